"""What a plugin declares: `Family`, and every type that a declaration or a hook names.

Declarations are data: frozen, checked when they are made, refused when a key is unknown, and the same after a trip
through JSON or pickle. Code enters a declaration only as a dotted reference, `package.module:name`.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, model_validator

from tito_core.errors import FamilyError, TemplateError

_T = TypeVar("_T")

__all__ = [
    "APPEND_ROLES",
    "NATIVE",
    "AppendRoles",
    "Boundary",
    "Case",
    "Checkpoint",
    "ControlToken",
    "Deployment",
    "Family",
    "KnownIssue",
    "Layer",
    "Parsers",
    "Recipe",
    "Revision",
    "Role",
    "Rule",
    "Segments",
    "Speculative",
    "Template",
    "Thinking",
    "ThinkingDecision",
    "Vocabulary",
    "load_reference",
]

Role = Literal["tool", "user", "system", "assistant"]
APPEND_ROLES: tuple[Role, ...] = ("tool", "user", "system", "assistant")
"""The whole universe of roles that can be appended after a turn."""

NATIVE = "native"
"""`Family.template` of a family that renders with the checkpoint's own chat template."""


def _reference(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value):
        raise ValueError(f"{value!r} is not a reference of the form 'package.module:name'")
    return value


def load_reference(reference: str) -> Any:
    """The object that `package.module:name` names. Raises FamilyError where it is not there."""
    module, _, name = _reference(reference).partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as cause:
        raise FamilyError(f"{reference} can't be loaded: {type(cause).__name__}: {cause}") from cause


Reference = Annotated[str, AfterValidator(_reference)]
Roles = Annotated[frozenset[Role], PlainSerializer(sorted, return_type=list[str])]


class Declaration(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AppendRoles(Declaration):
    """Which roles a family can render after a turn without changing what stands before them.

    `follows` maps a role to the roles that may stand directly after it, beginning with the stored assistant turn.
    `ends` are the roles after which the template prints a generation header: the last message of a prompt has one.
    """

    roles: Roles
    follows: dict[Role, Roles]
    ends: Roles

    @model_validator(mode="after")
    def _whole(self) -> AppendRoles:
        for role, after in self.follows.items():
            if stray := after - self.roles:
                raise ValueError(f"follows[{role!r}] names {sorted(stray)}, which roles does not")
        if missing := self.roles - set(self.follows) - {"assistant"}:
            raise ValueError(
                f"follows says nothing about {sorted(missing)}; write an empty set where nothing may follow"
            )
        if "assistant" not in self.follows:
            raise ValueError("follows must say what may stand after the stored assistant turn: follows['assistant']")
        if stray := self.ends - self.roles:
            raise ValueError(f"ends names {sorted(stray)}, which roles does not")
        if not self.ends:
            raise ValueError("ends is empty: no append could ever be sent to an engine")
        return self

    def narrowed(self, roles: frozenset[str]) -> AppendRoles:
        """The same rules for fewer roles.

        Raises ValueError where `roles` names one that the family does not append, or leaves no role to end with.
        """
        if wider := roles - self.roles:
            raise ValueError(
                f"append roles {sorted(wider)} are not among the family's {sorted(self.roles)}: a caller may narrow "
                "them, never widen them"
            )
        kept = frozenset(role for role in self.roles if role in roles)
        if not self.ends & kept:
            raise ValueError(
                f"append roles {sorted(kept)} leave no role that a prompt may end with; keep one of {sorted(self.ends)}"
            )
        return AppendRoles(
            roles=kept,
            follows={role: after & kept for role, after in self.follows.items() if role in kept or role == "assistant"},
            ends=self.ends & kept,
        )


class Thinking(Declaration):
    """How a family's thinking mode is named, forwarded and defaulted.

    `aliases` are the template kwargs that mean the mode; they are one group, and a higher layer replaces it whole.
    `forward_as` is the one name under which it is rendered and sent. `words` gives an alias the strings that it
    takes beside true and false. A family without a thinking mode declares `modes=(default,)`.
    """

    aliases: tuple[str, ...]
    forward_as: str
    default: bool
    words: dict[str, dict[str, bool]] = {}
    modes: tuple[bool, ...] = (True, False)

    @model_validator(mode="after")
    def _whole(self) -> Thinking:
        if self.forward_as not in self.aliases:
            raise ValueError(f"forward_as {self.forward_as!r} must be one of the aliases {list(self.aliases)}")
        if stray := set(self.words) - set(self.aliases):
            raise ValueError(f"words names {sorted(stray)}, which are not aliases")
        if self.default not in self.modes:
            raise ValueError(f"default {self.default} is not among modes {list(self.modes)}")
        return self


class Boundary(Declaration):
    """How a turn ends and what stands between it and the next message.

    `stop`: the control tokens that end a turn, the first is the one inserted where the text ended without any.
    `glue`: text printed once after a stop token. `shared`: stop tokens that are also the next message's opener.
    `closers`: what closes a turn that was cut, by the state at the cut, without the stop token and the glue.
    `marks`: the texts that open and close reasoning and a block of calls, by which that state is found; a state that is
    not among them is never entered, and everything outside is content.
    """

    stop: tuple[str, ...]
    glue: str = ""
    shared: tuple[str, ...] = ()
    closers: dict[Literal["reasoning", "content", "call"], str] = {}
    marks: dict[Literal["reasoning", "call"], tuple[str, str]] = {}

    @model_validator(mode="after")
    def _whole(self) -> Boundary:
        if not self.stop:
            raise ValueError("stop is empty: name the control token that ends a turn")
        if stray := set(self.shared) - set(self.stop):
            raise ValueError(f"shared names {sorted(stray)}, which are not stop tokens")
        if self.closers and (missing := {"content", *self.marks} - set(self.closers)):
            raise ValueError(
                f"closers says nothing about {sorted(missing)}; write an empty text where nothing closes it"
            )
        if not all(text for pair in self.marks.values() for text in pair):
            raise ValueError("marks holds an empty text: name what opens and what closes each state")
        return self


class Segments(Declaration):
    """Which control tokens delimit messages, and where an assistant's text begins, for the comparator.

    A run between two `delimiters` is an assistant's where it follows one of `headers`; where it follows one of `ends`
    (results without a header of their own) it is an assistant's after the first of `openers`. Everything else is not an
    assistant's, an opener that directly follows a header included: the template prints it.
    """

    delimiters: tuple[str, ...]
    headers: tuple[str, ...]
    openers: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Segments:
        for name, tokens in (("headers", self.headers), ("ends", self.ends)):
            if stray := set(tokens) - set(self.delimiters):
                raise ValueError(f"{name} names {sorted(stray)}, which are not delimiters")
        if stray := set(self.openers) & set(self.delimiters):
            raise ValueError(f"openers {sorted(stray)} are delimiters too: an opener never delimits")
        return self


class ControlToken(Declaration):
    """A control token that the template prints; `id` where every checkpoint of the family has the same one."""

    text: str
    id: int | None = None


class Vocabulary(Declaration):
    """A vocabulary that the plugin ships: `file` is a path inside the plugin's package, `sha256` of the unpacked file.

    `stands_in_for` names the vocabulary it is used in place of, where the family's own could not be shipped.
    """

    name: str
    file: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    title: str = ""
    stands_in_for: str | None = None


class Revision(Declaration):
    """One of several published renders of the same family: kwargs for the template, roles where they differ.

    `text_joiner` joins the text parts of one message's content.
    """

    name: str
    kwargs: dict[str, Any] = {}
    text_joiner: str = " "
    append_roles: AppendRoles | None = None
    note: str = ""


class Parsers(Declaration):
    """The parser names that one engine knows this family by."""

    reasoning: str | None = None
    tool_call: str | None = None


class Speculative(Declaration):
    """Speculative decoding: an algorithm and its three numbers, which are given together."""

    algorithm: str
    num_steps: int = Field(ge=1)
    eagle_topk: int = Field(ge=1)
    num_draft_tokens: int = Field(ge=1)
    draft_model: str | None = None


class Recipe(Declaration):
    """The settings that an engine serves a family with. `speculative=None` is a recipe without speculation."""

    speculative: Speculative | None
    tensor_parallel: int = Field(default=1, ge=1)
    expert_parallel: int = Field(default=1, ge=1)
    data_parallel: int = Field(default=1, ge=1)
    pipeline_parallel: int = Field(default=1, ge=1)
    environment: dict[str, str] = {}
    source: str = ""


class Rule(Declaration):
    """A named check of a recipe: a reference to a function, so that a declaration stays data."""

    name: str
    check: Reference


class Deployment(Declaration):
    """What a recipe is asked for."""

    engine: str = "sglang"
    version: str | None = None
    platform: Literal["cuda", "rocm", "cpu"] = "cuda"
    nodes: int = Field(default=1, ge=1)
    profile: str = "default"
    overrides: dict[str, Any] = {}


class KnownIssue(Declaration):
    """A fault of an engine or a checkpoint that a user of this family meets, found again by `matches` in a log."""

    name: str
    summary: str
    matches: str
    advice: str
    profiles: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()


class Case(Declaration):
    """One conversation to verify with: messages in the chat-completions format, ending where an engine would sample."""

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    chat_template_kwargs: dict[str, Any] = {}


class Layer(Declaration):
    """Template kwargs of one origin: `request`, `session` or `family`."""

    name: str
    kwargs: dict[str, Any] = {}


class ThinkingDecision(Declaration):
    """The mode in force, what the local template is rendered with, and what the engine is told.

    `forward_kwargs` goes to the engine under `chat_template_kwargs`.
    """

    enabled: bool
    render_kwargs: dict[str, Any]
    forward_kwargs: dict[str, Any]


class Template(Declaration):
    """A resolved template. `reference` is where it came from: `package.module:Class`, a Jinja file, or a checkpoint.

    `sha256` is that of the source file: what a report records.
    """

    kind: Literal["encoder", "jinja"]
    reference: str
    sha256: str

    @classmethod
    def of_encoder(cls, reference: str) -> Template:
        """The template that `package.module:Class` names, with the hash of the file that defines the class."""
        source = inspect.getsourcefile(load_reference(reference))
        if source is None:
            raise TemplateError(f"the template {reference} has no source file, so its hash can't be recorded")
        return cls(kind="encoder", reference=reference, sha256=hashlib.sha256(Path(source).read_bytes()).hexdigest())


class Checkpoint(Declaration):
    """A directory in Hugging Face layout, as far as choosing a template needs it."""

    path: Path
    model_type: str | None = None
    chat_template: str | None = None


class Family(Declaration):
    """A line of models that share one prompt format. See the plugin guide for what each field changes.

    `models` are exact ids. `model_types` only exclude: a checkpoint of another type is refused, one of these types is
    not yet accepted. `fixed_kwargs` keep renders append-only; a caller who contradicts one gets an error.
    `kwargs` are further template kwargs that a caller may give. `split_pattern` is one regular expression that
    splits text as the vocabulary's own pre-tokenizer does: it is checked against it at load, and only makes it faster.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_.-]*$")
    models: tuple[str, ...]
    model_types: tuple[str, ...]
    template: str
    fixed_kwargs: dict[str, Any] = {}
    kwargs: tuple[str, ...] = ()
    append_roles: AppendRoles
    thinking: Thinking
    boundary: Boundary
    segments: Segments
    control_tokens: tuple[ControlToken, ...]
    chat_template_sha256: dict[str, str] = {}
    split_pattern: str | None = None
    parsers: dict[str, Parsers] = {}
    recipes: dict[str, Recipe] = {}
    recipe_rules: tuple[Rule, ...] = ()
    peers: dict[str, str | None] = {}
    revisions: tuple[Revision, ...] = (Revision(name="default"),)
    vocabularies: tuple[Vocabulary, ...]
    known_issues: tuple[KnownIssue, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Family:
        for what, names in (
            ("revisions", [revision.name for revision in self.revisions]),
            ("vocabularies", [vocabulary.name for vocabulary in self.vocabularies]),
            ("control_tokens", [token.text for token in self.control_tokens]),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{what} names {twice} more than once")
        if not self.revisions:
            raise ValueError("revisions is empty: a family has at least one, and the first is the default")
        if not self.vocabularies:
            raise ValueError("vocabularies is empty: a family ships the vocabulary that it is verified with")
        known = {token.text for token in self.control_tokens}
        for what, tokens in (
            ("boundary.stop", self.boundary.stop),
            ("segments.delimiters", self.segments.delimiters),
            ("segments.openers", self.segments.openers),
        ):
            if stray := [token for token in tokens if token not in known]:
                raise ValueError(f"{what} names {stray}, which control_tokens does not")
        if twice := sorted(set(self.fixed_kwargs) & set(self.thinking.aliases)):
            raise ValueError(f"fixed_kwargs {twice} are thinking aliases: a mode can't be both chosen and fixed")
        return self

    def revision(self, name: str | None) -> Revision:
        """The revision of that name; the first where it is None. Raises KeyError with the known names."""
        if name is None:
            return self.revisions[0]
        return _named("revision", name, {revision.name: revision for revision in self.revisions})

    def vocabulary(self, name: str | None) -> Vocabulary:
        """The vocabulary of that name; the first where it is None. Raises KeyError with the known names."""
        if name is None:
            return self.vocabularies[0]
        return _named("vocabulary", name, {vocabulary.name: vocabulary for vocabulary in self.vocabularies})


def _named(what: str, name: str, known: Mapping[str, _T]) -> _T:
    try:
        return known[name]
    except KeyError:
        raise KeyError(f"no {what} is named {name!r}; known: {', '.join(known)}") from None
