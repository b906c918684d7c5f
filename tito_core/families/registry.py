"""Finding families by their entry points, loading one, and asking it.

Finding reads metadata and imports nothing. Loading one family imports that family's module and no other's. Each
module has a small `PluginManager` of its own, so that a question has no answer or one, and its provider is known.

Nothing here takes a lock: the import system makes one module of two imports, and the first declaration stays. A lock
held during an import would be held for ever in a worker that is forked meanwhile.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from tito_core.errors import FamilyError, PluginError, TitoError, UnknownFamilyError
from tito_core.families import defaults, hooks
from tito_core.families.contract import hooks_of
from tito_core.families.family import (
    NATIVE,
    AppendRoles,
    Case,
    Checkpoint,
    Deployment,
    Family,
    Layer,
    Recipe,
    Revision,
    Template,
    ThinkingDecision,
    blaming,
    load_reference,
)
from tito_core.families.installed import FamilyInfo, distinct, info_of, installed, requires_core

if TYPE_CHECKING:
    from tito_core.families.diagnosis import Diagnosis
    from tito_core.tokens.codec import Codec

__all__ = [
    "FamilyInfo",
    "LoadedFamily",
    "Registry",
    "default_registry",
    "diagnose",
    "get_family",
    "list_families",
    "load",
]

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Provider:
    """A module that answers questions, and who brought it."""

    origin: str
    answers: frozenset[str]
    manager: pluggy.PluginManager

    def ask(self, question: str, **arguments: Any) -> Any:
        given = getattr(self.manager.hook, question)(**arguments)
        return given[0] if given else None


class LoadedFamily:
    """One family's declaration, and the questions put to override, family and core in that order."""

    def __init__(self, info: FamilyInfo, provider: _Provider, declaration: Family, registry: Registry) -> None:
        self.info = info
        self.declaration = declaration
        self._provider = provider
        self._registry = registry
        self._overridden: set[str] = set()

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def package(self) -> str:
        """The import name of the plugin's package."""
        return self.info.module.partition(".")[0]

    def with_append_roles(self, roles: AppendRoles) -> LoadedFamily:
        """The same family declaring other append roles: what a check asks to see that nothing else depends on them."""
        return self._declaring(append_roles=roles)

    def on(self, checkpoint: Checkpoint) -> LoadedFamily:
        """The same family with the thinking default that a checkpoint's own chat template has."""
        thinking = self.declaration.thinking
        default = thinking.defaults.get(checkpoint.chat_template_sha256 or "", thinking.default)
        return self._declaring(thinking=thinking.model_copy(update={"default": default}))

    def _declaring(self, **fields: Any) -> LoadedFamily:
        declaration = self.declaration.model_copy(update=fields)
        other = LoadedFamily(self.info, self._provider, declaration, self._registry)
        other._overridden = self._overridden
        return other

    @property
    def overrides(self) -> tuple[str, ...]:
        """Every override that answered for this family so far, as "distribution version (module): question"."""
        return tuple(sorted(self._overridden))

    def template(self, checkpoint: Checkpoint | None = None) -> Template:
        """The family's template. Raises FamilyError where nobody can name one."""
        answer = self._ask("tito_resolve_template", Template, checkpoint=checkpoint, package=self.package)
        assert answer is not None
        return answer

    def thinking(self, layers: tuple[Layer, ...]) -> ThinkingDecision:
        """One decision from layers of template kwargs, the highest first. Raises ThinkingError."""
        answer = self._ask("tito_forward_thinking", ThinkingDecision, layers=layers)
        assert answer is not None
        return answer

    def append_roles(self, revision: Revision | None = None) -> AppendRoles:
        """The roles that may be appended, under a revision. Raises PluginError where an override widens them."""
        if revision is not None and revision.append_roles is not None:
            return self.with_append_roles(revision.append_roles).append_roles()
        own = self._own("tito_append_roles", AppendRoles, {})
        assert own is not None
        narrow, origin = self._overriding("tito_append_roles", AppendRoles, {})
        if narrow is None:
            return own
        wider = [
            *(f"appends {role}" for role in sorted(narrow.roles - own.roles)),
            *(
                f"lets {role} follow {before}"
                for before, after in sorted(narrow.follows.items())
                for role in sorted(after - own.follows.get(before, frozenset()))
            ),
            *(f"ends with {role}" for role in sorted(narrow.ends - own.ends)),
        ]
        if wider:
            raise PluginError(
                f"{origin} widens the append roles of the family {self.name}: it {', '.join(wider)}; an override may "
                "narrow them only",
                family=self.name,
            )
        return narrow

    def answered(self, deployment: Deployment) -> tuple[Recipe, str]:
        """The recipe of a deployment's profile on its platform, without the caller's overrides and asked of no rule, and who
        gives it. Raises FamilyError where the family has no such profile."""
        arguments = {"deployment": deployment}
        answer, origin = self._overriding("tito_speculative_recipe", Recipe, arguments)
        if answer is None:
            origin = f"profile {deployment.profile} of {self.name}"
            answer = self._own("tito_speculative_recipe", Recipe, arguments)
        if answer is None:
            known = ", ".join(self.declaration.recipes) or "none"
            raise FamilyError(f"{self.name} has no recipe of the profile {deployment.profile!r}; known: {known}")
        return answer.on(deployment.platform), origin

    def recipe(self, deployment: Deployment) -> Recipe:
        """The recipe for a deployment, on its platform, its overrides in it. Raises FamilyError where the family has no such
        profile, where the overrides make none, or where a rule of the family refuses it. `recipes.plan` asks the engine's
        rules too."""
        answer, _ = self.answered(deployment)
        said = f"{self.name} can't be served with the profile {deployment.profile!r}"
        with blaming(f"{said} and the overrides {dict(deployment.overrides)}", FamilyError):
            recipe = answer.model_copy(update=deployment.overrides)
        for rule in self.declaration.recipe_rules:
            with self._blaming(self._provider, f"the recipe rule {rule.name}"):
                why = load_reference(rule.check)(recipe, deployment)
            if why is not None:
                raise FamilyError(f"{said}: {why}", rule=rule.name)
        return recipe

    def cases(self) -> tuple[Case, ...]:
        """The conversations that the family itself brings to a verification. Raises PluginError."""
        with self._blaming(self._provider, "tito_cases"):
            cases = tuple(self._provider.ask("tito_cases", family=self.declaration) or ())
        for case in cases:
            self._checked(case, Case, "tito_cases", self._provider.origin)
        return cases

    def probe(self) -> None:
        """Asks every question once, as `tito doctor` does. Raises what the first bad answer raises."""
        if self.declaration.template != NATIVE:
            self.template()
        self.thinking(())
        for revision in self.declaration.revisions:
            self.append_roles(revision)
        for profile in self.declaration.recipes:
            self.recipe(Deployment(profile=profile))
        self.cases()

    def _ask(self, question: str, kind: type[_T], **arguments: Any) -> _T | None:
        answer, _ = self._overriding(question, kind, arguments)
        return self._own(question, kind, arguments) if answer is None else answer

    def _own(self, question: str, kind: type[_T], arguments: Mapping[str, Any]) -> _T | None:
        answer = self._put(self._provider, question, kind, arguments)
        return self._put(_CORE, question, kind, arguments) if answer is None else answer

    def _overriding(self, question: str, kind: type[_T], arguments: Mapping[str, Any]) -> tuple[_T | None, str]:
        answers = [
            (answer, override.origin)
            for override in self._registry.overrides()
            if (answer := self._put(override, question, kind, arguments)) is not None
        ]
        if len(answers) > 1:
            raise PluginError(
                f"{' and '.join(origin for _, origin in answers)} both answer {question} for the family {self.name}; "
                "uninstall all but one",
                family=self.name,
            )
        self._overridden.update(f"{origin}: {question}" for _, origin in answers)
        return answers[0] if answers else (None, "")

    def _put(self, asked: _Provider, question: str, kind: type[_T], arguments: Mapping[str, Any]) -> _T | None:
        if question not in asked.answers:
            return None
        if asked is _CORE:
            try:
                answer = asked.ask(question, family=self.declaration, **arguments)
            except FamilyError as cause:
                raise PluginError(f"{self.info.origin}, family {self.name}: {cause}", family=self.name) from cause
        else:
            # Copies, so that nobody edits what the next one is asked.
            with self._blaming(asked, question):
                answer = asked.ask(question, family=self.declaration, **copy.deepcopy(dict(arguments)))
        return None if answer is None else self._checked(answer, kind, question, asked.origin)

    def _blaming(self, asked: _Provider, question: str) -> AbstractContextManager[None]:
        said = f"{asked.origin} failed in {question} for the family {self.name}"
        return blaming(said, PluginError, passing=(TitoError,), family=self.name)

    def _checked(self, answer: Any, kind: type[_T], question: str, origin: str) -> _T:
        if not isinstance(answer, kind):
            must = f"hold {kind.__name__} only" if question == "tito_cases" else f"be a {kind.__name__} or None"
            raise PluginError(
                f"{origin} answered {question} for the family {self.name} with a value of type {type(answer).__name__}; it must "
                f"{must}",
                family=self.name,
            )
        return answer


class Registry:
    """The families of one set of entry points: the installed ones, unless a test brings its own. For any thread."""

    def __init__(self, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> None:
        self._found = None if entry_points is None else distinct(entry_points)
        self._loaded: dict[str, LoadedFamily] = {}
        self._overrides: tuple[_Provider, ...] | None = None

    def list_families(self) -> list[FamilyInfo]:
        """Every family that an installed distribution provides, by name. Imports no plugin."""
        return sorted(info_of(point) for point in self.entry_points() if point.group == hooks.FAMILIES)

    def get_family(self, name: str) -> Family:
        """The declaration of a family. Raises UnknownFamilyError or PluginError."""
        return self.family(name).declaration

    def family(self, name: str) -> LoadedFamily:
        """A family that can be asked. Imports its module on first use, and no other family's."""
        found = self._loaded.get(name) if isinstance(name, str) else None
        return found or self._loaded.setdefault(name, self._load(name))

    def load(
        self,
        name: str,
        *,
        model: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        vocabulary: str | None = None,
    ) -> Codec:
        """A family bound to a tokenizer: see `tito_core.load`."""
        from tito_core.tokens.codec import Codec

        return Codec.of(self.family(name), model=model, revision=revision, vocabulary=vocabulary)

    def diagnose(self, name: str | None = None) -> list[Diagnosis]:
        """How every installed plugin fares, or the entry points of one name; the worst first.

        Raises UnknownFamilyError.
        """
        from tito_core.families import diagnosis

        known = sorted({point.name for point in self.entry_points()})
        if name is not None and name not in known:
            raise UnknownFamilyError(_unknown(name, known), family=name, known=known)
        return diagnosis.diagnose(self.entry_points(), name)

    def entry_points(self) -> tuple[importlib.metadata.EntryPoint, ...]:
        """Those of both groups, each once. Scans the installed distributions on first use."""
        if self._found is None:
            self._found = distinct(installed())
        return self._found

    def overrides(self) -> tuple[_Provider, ...]:
        """Every override. Imports them on first use; raises PluginError where one can't be loaded."""
        if self._overrides is None:
            points = [point for point in self.entry_points() if point.group == hooks.OVERRIDES]
            self._overrides = tuple(_provider(point) for point in sorted(points, key=info_of))
        return self._overrides

    def _load(self, name: str) -> LoadedFamily:
        points = [point for point in self.entry_points() if point.group == hooks.FAMILIES]
        mine = [point for point in points if point.name == name]
        if not mine:
            known = sorted({point.name for point in points})
            raise UnknownFamilyError(_unknown(name, known), family=name, known=known)
        if len(mine) > 1:
            said = " and ".join(sorted(info_of(point).origin for point in mine))
            raise PluginError(f"the family {name} is provided by {said}; uninstall all but one", family=name)
        info, asked = info_of(mine[0]), _provider(mine[0])
        declaration = None
        with blaming(f"{info.origin} declares the family {name} wrongly", PluginError, family=name):
            answer = asked.ask("tito_family")
            if isinstance(answer, Family):
                # Once more: model_construct and a subclass get around the checks, and a worker may be sent the JSON.
                declaration = Family.model_validate_json(answer.model_dump_json(warnings=False))
        if declaration is None:
            raise PluginError(
                f"{info.origin} answered tito_family with a value of type {type(answer).__name__}; it must be a Family",
                family=name,
            )
        if declaration.name != name:
            raise PluginError(
                f"{info.origin} declares a family named {declaration.name!r} under the entry point {name!r}; they must "
                "agree",
                family=name,
            )
        return LoadedFamily(info, asked, declaration, self)


def _provider(point: importlib.metadata.EntryPoint) -> _Provider:
    origin = info_of(point).origin
    requires_core(point)
    if not all(part.isidentifier() for part in point.value.split(".")):
        raise PluginError(f"{origin} is no module; the entry point {point.name!r} must name one, as package.module")
    with blaming(f"{origin} can't be imported", PluginError):
        module = importlib.import_module(point.value)
    if not isinstance(module, ModuleType):
        raise PluginError(
            f"{origin} put a value of type {type(module).__name__} in its module's place; it must stay a module"
        )
    return _made(origin, module, override=point.group == hooks.OVERRIDES)


def _made(origin: str, module: ModuleType, *, override: bool) -> _Provider:
    answers = hooks_of(origin, module, override=override)
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    # The hooks alone, not the module: pluggy lists an object by its __dir__, which a module may define.
    with blaming(f"{origin} breaks the contract", PluginError):
        manager.register(SimpleNamespace(**answers), name=origin)
        manager.check_pending()
    return _Provider(origin, frozenset(answers), manager)


def _unknown(name: object, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1) if isinstance(name, str) else []
    return (
        f"no installed plugin provides the family {name!r}"
        + (f"; did you mean {near[0]!r}?" if near else ".")
        + f" Installed: {', '.join(known) or 'none'}. A family comes with its plugin's distribution; install that into "
        f"this environment: {sys.executable} -m pip install DISTRIBUTION"
    )


_CORE = _made("tito-core", defaults, override=True)

default_registry = Registry()


def list_families() -> list[FamilyInfo]:
    """Every installed family, by name. Imports no plugin."""
    return default_registry.list_families()


def get_family(name: str) -> Family:
    """The declaration of an installed family. Raises UnknownFamilyError or PluginError."""
    return default_registry.get_family(name)


def load(
    name: str,
    *,
    model: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    vocabulary: str | None = None,
) -> Codec:
    """An installed family bound to one tokenizer.

    `model` is a checkpoint directory; without one the plugin's reference vocabulary serves, or the one that
    `vocabulary` names. `revision` names one of the family's published renders; the first is the default.
    Raises UnknownFamilyError, PluginError, CheckpointError or FamilyError.
    """
    return default_registry.load(name, model=model, revision=revision, vocabulary=vocabulary)


def diagnose(name: str | None = None) -> list[Diagnosis]:
    """How every installed plugin fares, or the entry points of one name; the worst first. Raises UnknownFamilyError."""
    return default_registry.diagnose(name)
