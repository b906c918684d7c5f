"""Finding families by their entry points, loading one, and asking it.

Finding reads metadata and imports nothing. Loading one family imports that family's module and no other's. Each
module has a small `PluginManager` of its own, so that a question has no answer or one, and its provider is known.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pluggy
from pydantic import ValidationError

from tito_core.errors import FamilyError, PluginError, TitoError, UnknownFamilyError
from tito_core.families import defaults, hooks
from tito_core.families.family import (
    AppendRoles,
    Case,
    Checkpoint,
    Deployment,
    Family,
    Layer,
    Recipe,
    Template,
    ThinkingDecision,
)

if TYPE_CHECKING:
    from tito_core.tokens.codec import Codec

__all__ = ["FamilyInfo", "LoadedFamily", "Registry", "default_registry", "get_family", "list_families", "load"]

_T = TypeVar("_T")


class FamilyInfo(NamedTuple):
    """What the metadata says of an installed family; nothing was imported to learn it."""

    name: str
    module: str
    distribution: str
    version: str


@dataclass(frozen=True)
class _Provider:
    """A module that answers questions, and who brought it."""

    origin: str
    manager: pluggy.PluginManager

    def ask(self, question: str, **arguments: Any) -> Any:
        answers = getattr(self.manager.hook, question)(**arguments)
        return answers[0] if answers else None


class LoadedFamily:
    """One family's declaration, and the questions put to override, family and core in that order."""

    def __init__(self, info: FamilyInfo, provider: _Provider, declaration: Family, registry: Registry) -> None:
        self.info = info
        self.declaration = declaration
        self._provider = provider
        self._registry = registry

    @property
    def name(self) -> str:
        return self.declaration.name

    def with_append_roles(self, roles: AppendRoles) -> LoadedFamily:
        """The same family declaring other append roles: what a check asks to see that nothing else depends on them."""
        declaration = self.declaration.model_copy(update={"append_roles": roles})
        return LoadedFamily(self.info, self._provider, declaration, self._registry)

    def template(self, checkpoint: Checkpoint | None = None) -> Template:
        """The family's template. Raises FamilyError where nobody can name one."""
        answer, _ = self._ask("tito_resolve_template", Template, checkpoint=checkpoint)
        if answer is None:
            raise FamilyError(f"no one names a template for the family {self.name}")
        return answer

    def thinking(self, layers: tuple[Layer, ...]) -> ThinkingDecision:
        """One decision from layers of template kwargs, the highest first. Raises ThinkingError."""
        answer, _ = self._ask("tito_forward_thinking", ThinkingDecision, layers=layers)
        if answer is None:
            raise FamilyError(f"no one decides the thinking mode of the family {self.name}")
        return answer

    def append_roles(self) -> AppendRoles:
        """The roles that may be appended. Raises PluginError where an override widens them."""
        answer, origin = self._ask("tito_append_roles", AppendRoles)
        if answer is None:
            raise FamilyError(f"no one names append roles for the family {self.name}")
        declared = self.declaration.append_roles
        wider = answer.roles - declared.roles or answer.ends - declared.ends
        for role, after in answer.follows.items():
            wider = wider or after - declared.follows.get(role, frozenset())
        if wider and origin not in (self._provider.origin, _CORE.origin):
            raise PluginError(
                f"{origin} widens the append roles of {self.name} by {sorted(wider)}; an override may narrow them only"
            )
        return answer

    def recipe(self, deployment: Deployment) -> Recipe:
        """The recipe for a deployment. Raises FamilyError where the family has no such profile."""
        answer, _ = self._ask("tito_speculative_recipe", Recipe, deployment=deployment)
        if answer is None:
            known = ", ".join(self.declaration.recipes) or "none"
            raise FamilyError(f"{self.name} has no recipe of the profile {deployment.profile!r}; known: {known}")
        return answer

    def cases(self) -> tuple[Case, ...]:
        """The conversations that the family itself brings to a verification."""
        answer = self._asked(self._provider, "tito_cases")
        if answer is None:
            return ()
        cases = tuple(answer)
        for case in cases:
            self._checked(case, Case, "tito_cases", self._provider.origin)
        return cases

    def _ask(self, question: str, kind: type[_T], **arguments: Any) -> tuple[_T | None, str]:
        answers = [
            (answer, provider.origin)
            for provider in self._registry.overrides
            if (answer := self._asked(provider, question, **arguments)) is not None
        ]
        if len(answers) > 1:
            raise PluginError(
                f"{answers[0][1]} and {answers[1][1]} both answer {question} for the family {self.name}; "
                "uninstall one of them"
            )
        if not answers:
            for provider in (self._provider, _CORE):
                if (answer := self._asked(provider, question, **arguments)) is not None:
                    answers = [(answer, provider.origin)]
                    break
        if not answers:
            return None, ""
        answer, origin = answers[0]
        return self._checked(answer, kind, question, origin), origin

    def _asked(self, provider: _Provider, question: str, **arguments: Any) -> Any:
        try:
            return provider.ask(question, family=self.declaration, **arguments)
        except TitoError:
            raise
        except Exception as cause:
            raise PluginError(
                f"{provider.origin} failed in {question} for the family {self.name}: {type(cause).__name__}: {cause}"
            ) from cause

    def _checked(self, answer: Any, kind: type[_T], question: str, origin: str) -> _T:
        if not isinstance(answer, kind):
            raise PluginError(
                f"{origin} answered {question} for the family {self.name} with a {type(answer).__name__}; it must be "
                f"a {kind.__name__} or None"
            )
        return answer


class Registry:
    """The families of one set of entry points: the installed ones, unless a test brings its own."""

    def __init__(self, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> None:
        self._given = None if entry_points is None else tuple(entry_points)
        self._loaded: dict[str, LoadedFamily] = {}
        self._lock = threading.RLock()

    def list_families(self) -> list[FamilyInfo]:
        """Every family that an installed distribution provides, by name. Imports no plugin."""
        return sorted(
            {
                FamilyInfo(point.name, point.value, *_distribution(point))
                for point in self._points
                if point.group == hooks.FAMILIES
            }
        )

    def get_family(self, name: str) -> Family:
        """The declaration of a family. Raises UnknownFamilyError or PluginError."""
        return self.family(name).declaration

    def family(self, name: str) -> LoadedFamily:
        """A family that can be asked. Imports its module on first use, and no other family's."""
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._load(name)
            return self._loaded[name]

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

    @cached_property
    def overrides(self) -> tuple[_Provider, ...]:
        points = {
            (point.value, *_distribution(point)): point for point in self._points if point.group == hooks.OVERRIDES
        }
        return tuple(_provider(_origin(points[key]), _import(points[key])) for key in sorted(points))

    @cached_property
    def _points(self) -> tuple[importlib.metadata.EntryPoint, ...]:
        if self._given is not None:
            return self._given
        found = importlib.metadata.entry_points()
        return (*found.select(group=hooks.FAMILIES), *found.select(group=hooks.OVERRIDES))

    def _load(self, name: str) -> LoadedFamily:
        known = self.list_families()
        providers = [info for info in known if info.name == name]
        if not providers:
            raise UnknownFamilyError(_unknown(name, sorted({info.name for info in known})), family=name)
        if len(providers) > 1:
            said = " and ".join(f"{info.distribution} {info.version} ({info.module})" for info in providers)
            raise PluginError(f"the family {name} is provided by {said}; uninstall one of them", family=name)
        point = next(
            point
            for point in self._points
            if point.group == hooks.FAMILIES and (point.name, point.value) == (name, providers[0].module)
        )
        origin = _origin(point)
        provider = _provider(origin, _import(point))
        try:
            declaration = provider.ask("tito_family")
        except ValidationError as cause:
            raise PluginError(f"{origin} declares the family {name} wrongly: {_validation(cause)}") from cause
        except Exception as cause:
            raise PluginError(f"{origin} failed in tito_family: {type(cause).__name__}: {cause}") from cause
        if declaration is None:
            raise PluginError(f"{origin} has no tito_family; define it and mark it with tito_core.hookimpl")
        if not isinstance(declaration, Family):
            raise PluginError(f"{origin} answered tito_family with a {type(declaration).__name__}; it must be a Family")
        if declaration.name != name:
            raise PluginError(
                f"{origin} declares a family named {declaration.name!r} under the entry point {name!r}; they must agree"
            )
        return LoadedFamily(providers[0], provider, declaration, self)


def _distribution(point: importlib.metadata.EntryPoint) -> tuple[str, str]:
    distribution = point.dist
    return (distribution.name, distribution.version) if distribution is not None else ("unknown", "0")


def _origin(point: importlib.metadata.EntryPoint) -> str:
    name, version = _distribution(point)
    return f"{name} {version} ({point.value})"


def _import(point: importlib.metadata.EntryPoint) -> ModuleType:
    try:
        module = point.load()
    except (Exception, SystemExit) as cause:
        raise PluginError(f"{_origin(point)} can't be imported: {type(cause).__name__}: {cause}") from cause
    if not isinstance(module, ModuleType):
        raise PluginError(f"{_origin(point)} is a {type(module).__name__}; the entry point must name a module")
    return module


def _provider(origin: str, module: ModuleType) -> _Provider:
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    try:
        manager.register(module)
        manager.check_pending()
    except pluggy.PluginValidationError as cause:
        raise PluginError(f"{origin} breaks the contract: {cause}") from cause
    for name, value in vars(module).items():
        if name.startswith("tito_") and callable(value) and not hasattr(value, f"{hooks.PROJECT}_impl"):
            raise PluginError(
                f"{origin} defines {name} without the marker, so it would never be asked; mark it with "
                "tito_core.hookimpl"
            )
    return _Provider(origin, manager)


def _validation(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'the declaration'}: {problem['msg']}"
        for problem in error.errors(include_url=False)
    )


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    installed = f"installed are {', '.join(known)}" if known else "none is installed"
    return (
        f"no installed plugin provides the family {name!r}: {installed}{hint}. A family comes with its plugin's "
        "distribution: pip install it into this environment"
    )


_CORE = _provider("tito-core", defaults)

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
