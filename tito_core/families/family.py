"""What a plugin declares: `Family`, and every type that a declaration or a hook names.

Declarations are data: frozen, checked when they are made, refused when a key is unknown, and the same after a trip
through JSON or pickle. Code enters a declaration only as a dotted reference, `package.module:name`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.resources
import importlib.util
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    ValidationError,
    field_validator,
    model_validator,
)

from tito_core.errors import FamilyError, TitoError

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
    "Effort",
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
    "ToolSchema",
    "Vocabulary",
    "load_reference",
    "packaged",
]

Role = Literal["tool", "user", "system", "assistant"]
APPEND_ROLES: tuple[Role, ...] = ("tool", "user", "system", "assistant")
"""The whole universe of roles that can be appended after a turn."""

Part = Literal["system", "user", "tool", "assistant", "reasoning"]
"""What of a message a template may trim: the content of one role, or an assistant's reasoning."""

NATIVE = "native"
"""The `template` of a family that renders with the checkpoint's own chat template."""


def _template(value: str) -> str:
    if value != NATIVE and not value.endswith(".jinja"):
        _reference(value)
    return value


def _reference(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value):
        raise ValueError(f"{value!r} is not a reference of the form 'package.module:name'")
    return value


@contextmanager
def blaming(
    what: str, kind: type[TitoError], *, passing: tuple[type[TitoError], ...] = (), **where: Any
) -> Iterator[None]:
    """Raises `kind`, which says `what` and the cause, for whatever foreign code raises inside: SystemExit and a test
    runner's outcomes too, which are no Exceptions. A user's KeyboardInterrupt and the errors of `passing` go through.
    """
    try:
        yield
    except BaseException as cause:
        if isinstance(cause, (KeyboardInterrupt, *passing)):
            raise
        raise kind(f"{what}: {_said(cause)}", **where) from cause


def _said(cause: BaseException) -> str:
    if isinstance(cause, ValidationError):
        return "; ".join(
            f"{'.'.join(str(part) for part in (cause.title, *problem['loc']))}: "
            f"{problem['msg'].removeprefix('Value error, ')}"
            for problem in cause.errors(include_url=False)
        )
    try:
        text = str(cause)
    except Exception:
        text = "(its text can't be printed)"
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def load_reference(reference: str) -> Any:
    """The object that `package.module:name` names. Raises FamilyError where it can't be had."""
    with blaming(f"{reference} can't be loaded", FamilyError):
        module, _, name = _reference(reference).partition(":")
        return getattr(importlib.import_module(module), name)


def packaged(package: str, file: str, where: str) -> bytes:
    """A file of a plugin's package, by its path inside it. Raises FamilyError, which calls it `where`."""
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise FamilyError(f"{where} is outside of the package; a plugin ships its files inside it")
    if (spec := importlib.util.find_spec(package)) is not None and spec.submodule_search_locations is None:
        raise FamilyError(
            f"{where} can't be read: {package} is a single module; a plugin that ships files must be a package, a "
            f"directory {package} with the module and the file inside"
        )
    try:
        return importlib.resources.files(package).joinpath(file).read_bytes()
    except (ImportError, OSError) as cause:
        marked = "" if spec is None or spec.origin else f"put an empty __init__.py into {package}, and "
        raise FamilyError(f"{where} can't be read: {cause}; {marked}install the plugin again") from cause


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
    raise TypeError("declared data is read-only; change a copy of it, as dict(...) and list(...) make")


class FrozenDict(dict[Any, Any]):
    """A dict that can't be changed: equal to a plain one, and the same through JSON, pickle and copy."""

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that can't be changed, as FrozenDict is."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return FrozenDict({key: _freeze(one) for key, one in value.items()})
    return FrozenList(map(_freeze, value)) if isinstance(value, list) else value


FROZEN: Final = AfterValidator(_freeze)
"""On every field that holds a dict: neither it nor what it holds can be changed."""


def _json(value: dict[str, Any]) -> dict[str, Any]:
    try:
        same = json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode()) == value
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise ValueError("holds what JSON does not keep; write null, booleans, numbers, strings, lists and string keys")
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_json), FROZEN]
"""Free-form data of a declaration: the same after a trip through JSON."""

Platform = Literal["cuda", "rocm", "cpu"]
Reference = Annotated[str, AfterValidator(_reference)]
Roles = Annotated[frozenset[Role], PlainSerializer(sorted, return_type=list[str])]


class Declaration(BaseModel):
    """Frozen data. Unknown keys are refused, and so is a copy that would not have been accepted as a declaration."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed, checked as a new declaration is (pydantic's own checks nothing)."""
        return type(self).model_validate({**dict(super().model_copy(deep=deep)), **(update or {})})


class AppendRoles(Declaration):
    """Which roles a family can render after a turn without changing what stands before them.

    `follows` maps a role to the roles that may stand directly after it, beginning with the stored assistant turn.
    `ends` are the roles after which the template prints a generation header: the last message of a prompt has one.
    """

    roles: Roles
    follows: Annotated[dict[Role, Roles], FROZEN]
    ends: Roles

    @model_validator(mode="after")
    def _whole(self) -> AppendRoles:
        if unknown := set(self.follows) - self.roles - {"assistant"}:
            raise ValueError(f"follows says what may stand after {sorted(unknown)}, which roles does not name")
        for role, after in self.follows.items():
            if stray := after - self.roles:
                raise ValueError(f"follows[{role!r}] names {sorted(stray)}, which roles does not")
        if missing := self.roles - set(self.follows) - {"assistant"}:
            raise ValueError(f"follows says nothing about {sorted(missing)}; write an empty set where nothing follows")
        if "assistant" not in self.follows:
            raise ValueError("follows must say what may stand after the stored assistant turn: follows['assistant']")
        if stray := self.ends - self.roles:
            raise ValueError(f"ends names {sorted(stray)}, which roles does not")
        if not self.ends:
            raise ValueError("ends is empty: no append could ever be sent to an engine")
        if not self.ends & self._reached():
            raise ValueError(
                f"no append can get to a role of ends {sorted(self.ends)}: after the stored assistant turn, follows "
                f"leads to {sorted(self._reached())} only"
            )
        return self

    @property
    def parallel(self) -> bool:
        """Whether a turn may make several calls: the results of all follow each other. Where no result may be appended, none
        is in the way."""
        return "tool" not in self.roles or "tool" in self.follows["tool"]

    def _reached(self) -> frozenset[Role]:
        """The roles that some append holds."""
        reached: frozenset[Role] = frozenset(self.follows["assistant"])
        for _ in self.roles:
            reached = reached.union(*(self.follows[role] for role in reached))
        return reached

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
        try:
            return AppendRoles(
                roles=kept,
                follows={
                    role: after & kept for role, after in self.follows.items() if role in kept or role == "assistant"
                },
                ends=self.ends & kept,
            )
        except ValidationError:
            raise ValueError(
                f"append roles {sorted(kept)} leave no append that a prompt may end with; keep one of "
                f"{sorted(self.ends)}, and what may stand before it"
            ) from None


class Effort(Declaration):
    """How hard a model is told to think: a template kwarg that is one setting with the thinking mode.

    A level means that thinking is on, `off` that it is not. `range` are the smallest and the largest whole number that a
    caller may give in place of a level, None where the family takes none. With thinking on, the level is rendered and
    sent under `name`, `default` where nobody gives one; with thinking off there is none.
    """

    name: str
    levels: tuple[str, ...]
    default: str
    off: str | None = "none"
    range: tuple[int, int] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Effort:
        if self.default not in self.levels:
            raise ValueError(f"default {self.default!r} is not among levels {list(self.levels)}")
        if self.off in self.levels:
            raise ValueError(f"off {self.off!r} is among levels: it would mean thinking on and off")
        return self

    def takes(self, value: Any) -> bool:
        """Whether a caller may give this value for thinking on: a level, or a number of the range."""
        if type(value) is int and self.range is not None:
            return self.range[0] <= value <= self.range[1]
        return isinstance(value, str) and value in self.levels


class Thinking(Declaration):
    """How a family's thinking mode is named, forwarded and defaulted.

    `aliases` are the template kwargs that mean the mode; they are one group, with `effort` where there is one, and a
    higher layer replaces it whole. `forward_as` is the one name under which it is rendered and sent. `words` gives an
    alias the strings that it takes beside true and false. A family without a thinking mode declares `modes=(default,)`:
    engines are told, and its template, which has no such switch, is not. `defaults` holds the default of checkpoints
    whose own chat template, named by its sha256, means another one where nothing is said.
    """

    aliases: tuple[str, ...]
    forward_as: str
    default: StrictBool
    words: Annotated[dict[str, dict[str, StrictBool]], FROZEN] = {}
    modes: tuple[StrictBool, ...] = (True, False)
    defaults: Annotated[dict[str, StrictBool], FROZEN] = {}
    effort: Effort | None = None

    @model_validator(mode="after")
    def _whole(self) -> Thinking:
        if self.forward_as not in self.aliases:
            raise ValueError(f"forward_as {self.forward_as!r} must be one of the aliases {list(self.aliases)}")
        if stray := set(self.words) - set(self.aliases):
            raise ValueError(f"words names {sorted(stray)}, which are not aliases")
        for what, default in (
            ("default", self.default),
            *((f"defaults[{key!r}]", self.defaults[key]) for key in self.defaults),
        ):
            if default not in self.modes:
                raise ValueError(f"{what} {default} is not among modes {list(self.modes)}")
        if self.effort is not None and self.effort.name in self.aliases:
            raise ValueError(f"the effort {self.effort.name!r} is among aliases: it is no name of the mode")
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
    closers: Annotated[dict[Literal["reasoning", "content", "call"], str], FROZEN] = {}
    marks: Annotated[dict[Literal["reasoning", "call"], tuple[str, str]], FROZEN] = {}

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

    A run between two `delimiters` is an assistant's where it follows one of `headers`, which begin with a delimiter and
    may go on with text (a role's name) and control tokens that delimit nothing; where it follows one of `ends` (results
    without a header of their own) it is an assistant's after the first of `openers`. Everything else is not an
    assistant's, an opener that directly follows a header included: the template prints it.
    """

    delimiters: tuple[str, ...]
    headers: tuple[str, ...]
    openers: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Segments:
        if stray := set(self.ends) - set(self.delimiters):
            raise ValueError(f"ends names {sorted(stray)}, which are not delimiters")
        if stray := {header for header in self.headers if not header.startswith(self.delimiters)}:
            raise ValueError(f"headers names {sorted(stray)}, which do not begin with a delimiter")
        for header in self.headers:
            first = max((one for one in self.delimiters if header.startswith(one)), key=len)
            if inside := [one for one in self.delimiters if one in header[len(first) :]]:
                raise ValueError(
                    f"headers names {header!r}, which holds the delimiter {inside[0]!r} behind its first: it would end there; "
                    "leave it out of delimiters"
                )
        if stray := set(self.openers) & set(self.delimiters):
            raise ValueError(f"openers {sorted(stray)} are delimiters too: an opener never delimits")
        return self


class ControlToken(Declaration):
    """A control token that the template prints; `id` where every checkpoint of the family has the same one."""

    text: str
    id: int | None = None


class Vocabulary(Declaration):
    """A vocabulary that the plugin ships: `file` is a path inside the plugin's package, `sha256` of the unpacked file.

    `stands_in_for` names the vocabulary it is used in place of, where the family's own could not be shipped. `added` are
    control tokens that the file lacks: they are put behind its last id, so theirs are not the ids of any checkpoint.
    """

    name: str
    file: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    title: str = ""
    stands_in_for: str | None = None
    added: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Vocabulary:
        if self.added and self.stands_in_for is None:
            raise ValueError("added names tokens that the file lacks: then it stands in for another, say which")
        return self


class ToolSchema(Declaration):
    """How a tool's function is printed: its keys in this `order`, the client's own where that is empty, and what is
    printed for a key that the client left out or sent as null."""

    order: tuple[str, ...] = ()
    absent: JsonObject = {"description": None, "parameters": None}

    def of(self, function: Mapping[str, Any]) -> dict[str, Any]:
        """A client's function as it is printed; keys that `order` does not name are left out."""
        given = {key: value for key, value in function.items() if value is not None or not self.order}
        whole = {**given, **{key: value for key, value in self.absent.items() if given.get(key) is None}}
        return {key: whole[key] for key in self.order if key in whole} if self.order else whole


class Revision(Declaration):
    """One of several published renders of the same family: kwargs for the template, roles where they differ.

    `text_joiner` joins the text parts of one message's content. `tool_schema` says what `tito verify` expects a tool's
    schema to be printed as; the template prints it.
    """

    name: str
    kwargs: JsonObject = {}
    text_joiner: str = " "
    tool_schema: ToolSchema = ToolSchema()
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

    @model_validator(mode="before")
    @classmethod
    def _together(cls, given: Any) -> Any:
        numbers = ("num_steps", "eagle_topk", "num_draft_tokens")
        if isinstance(given, dict) and (missing := [name for name in numbers if given.get(name) is None]):
            raise ValueError(
                f"speculation gives {', '.join(numbers[:-1])} and {numbers[-1]} together, or is None; missing: "
                f"{', '.join(missing)}"
            )
        return given


class Recipe(Declaration):
    """The settings that an engine serves a family with. `speculative=None` is a recipe without speculation.

    Sizes are numbers of ranks. `expert_parallel`: those that experts are split over. `data_parallel`: replicas of the whole
    engine. `attention_data_parallel` and `attention_context_parallel` divide the ranks of `tensor_parallel`, for attention
    alone, and `moe_data_parallel` does for experts. `parsers=None` means the family's own for the engine. `memory_fraction`
    is the share of a GPU's memory for weights and cache. `arguments` are further ones of the engine, by their long names
    without dashes in front; true is a bare flag. They and `environment` are `engine`'s, and no other is served with them.
    `made_for` is the model that the numbers are for, one of the family's: None where they are for any. `source` says where
    the numbers come from, `seen` on what they were seen to work: empty where nobody here saw it.
    """

    speculative: Speculative | None
    engine: Literal["sglang", "vllm"] = "sglang"
    tensor_parallel: int = Field(default=1, ge=1)
    pipeline_parallel: int = Field(default=1, ge=1)
    expert_parallel: int = Field(default=1, ge=1)
    data_parallel: int = Field(default=1, ge=1)
    attention_data_parallel: int = Field(default=1, ge=1)
    attention_context_parallel: int = Field(default=1, ge=1)
    moe_data_parallel: int = Field(default=1, ge=1)
    parsers: Parsers | None = None
    memory_fraction: float | None = Field(default=None, gt=0, lt=1)
    max_running_requests: int | None = Field(default=None, ge=1)
    arguments: JsonObject = {}
    environment: Annotated[dict[str, str], FROZEN] = {}
    made_for: str | None = None
    source: str = ""
    seen: str = ""
    platforms: Annotated[dict[Platform, dict[Literal["arguments", "environment"], JsonObject]], FROZEN] = {}
    """What holds on one platform only, over `arguments` and `environment`; a family asked for a recipe answers `on` it."""

    @model_validator(mode="after")
    def _everywhere(self) -> Recipe:
        for platform in self.platforms:
            self.on(platform)
        return self

    def on(self, platform: Platform) -> Recipe:
        """The recipe for one platform, with what holds there only among the rest."""
        if not self.platforms:
            return self
        extras = self.platforms.get(platform, {})
        both = {name: {**getattr(self, name), **extras.get(name, {})} for name in ("arguments", "environment")}
        return self.model_copy(update={**both, "platforms": {}})

    def told(self) -> Recipe:
        """What an engine is told of it: without `made_for`, `source` and `seen`."""
        return self.model_copy(update={"made_for": None, "source": "", "seen": ""})


class Rule(Declaration):
    """A named check of a recipe: a reference to a function, so that a declaration stays data.

    It is called as `check(recipe, deployment)`, and answers why the recipe can't be served, or None.
    """

    name: str
    check: Reference


class Deployment(Declaration):
    """What a recipe is asked for. `overrides` are a caller's own values for fields of the recipe, each in place of the whole
    field. `version` is the engine's, for rules that changed between releases."""

    engine: str = "sglang"
    version: str | None = None
    platform: Platform = "cuda"
    nodes: int = Field(default=1, ge=1)
    profile: str = "default"
    overrides: JsonObject = {}


class KnownIssue(Declaration):
    """A fault of an engine or a checkpoint that a user of this family meets, found again by `matches` in a log."""

    name: str
    summary: str
    matches: str
    advice: str
    profiles: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()

    @field_validator("matches")
    @classmethod
    def _pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as cause:
            raise ValueError(f"{pattern!r} is not a regular expression: {cause}") from None
        return pattern

    def explains(self, log: str) -> bool:
        """Whether an engine's log, or an error's text, shows this fault."""
        return re.search(self.matches, log, re.DOTALL) is not None


class Case(Declaration):
    """One conversation to verify with: messages in the chat-completions format, ending where an engine would sample."""

    name: str
    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] = ()
    chat_template_kwargs: JsonObject = {}


class Layer(Declaration):
    """Template kwargs of one origin: `request`, `session` or `family`."""

    name: str
    kwargs: Annotated[dict[str, Any], FROZEN] = {}


class ThinkingDecision(Declaration):
    """The mode in force, what the local template is rendered with, and what the engine is told.

    `forward_kwargs` goes to the engine under `chat_template_kwargs`.
    """

    enabled: bool
    render_kwargs: Annotated[dict[str, Any], FROZEN]
    forward_kwargs: Annotated[dict[str, Any], FROZEN]


class Template(Declaration):
    """A resolved template. `reference` is where it came from: `package.module:Class`, or the path of a Jinja file.

    `sha256` is that of the source file: what a report records. `source` is a Jinja file's text; `special_tokens` are
    the control tokens that it may read, `bos_token` and its like.
    """

    kind: Literal["encoder", "jinja"]
    reference: str
    sha256: str
    source: str = Field(default="", repr=False)
    special_tokens: Annotated[dict[str, str], FROZEN] = {}

    @classmethod
    def of_encoder(cls, reference: str) -> Template:
        """The template that `package.module:Class` names, with the hash of the file that defines the class.

        Raises FamilyError.
        """
        found = load_reference(reference)
        if not inspect.isclass(found):
            raise FamilyError(f"the template {reference} is a {type(found).__name__}; it must be a class")
        with blaming(f"the source file of the template {reference} can't be read, so it has no hash", FamilyError):
            source = Path(str(inspect.getsourcefile(found))).read_bytes()
        return cls(kind="encoder", reference=reference, sha256=hashlib.sha256(source).hexdigest())

    @classmethod
    def of_file(cls, package: str, file: str) -> Template:
        """The Jinja template in the file of a package, by its path inside it. Raises FamilyError."""
        where = f"the template {package}/{file}"
        data = packaged(package, file, where)
        with blaming(f"{where} can't be read", FamilyError):
            return cls.of_text(data.decode(), f"{package}/{file}")

    @classmethod
    def of_text(cls, source: str, reference: str, special_tokens: Mapping[str, str] | None = None) -> Template:
        """The Jinja template of this text, which was found at `reference`."""
        digest = hashlib.sha256(source.encode()).hexdigest()
        tokens = dict(special_tokens or {})
        return cls(kind="jinja", reference=reference, sha256=digest, source=source, special_tokens=tokens)


class Checkpoint(Declaration):
    """A directory in Hugging Face layout, as far as choosing a template needs it.

    `chat_template_names` are those that its chat templates go by; `default` is the one in force, `chat_template`.
    """

    path: Path
    model_type: str | None = None
    chat_template: str | None = None
    chat_template_file: str = "chat_template.jinja"
    chat_template_names: tuple[str, ...] = ()
    special_tokens: Annotated[dict[str, str], FROZEN] = {}

    @property
    def chat_template_sha256(self) -> str | None:
        return None if self.chat_template is None else hashlib.sha256(self.chat_template.encode()).hexdigest()


class Family(Declaration):
    """A line of models that share one prompt format. See the plugin guide for what each field changes.

    `models` are exact ids. `model_types` only exclude: a checkpoint of another type is refused, one of these types is
    not yet accepted. `fixed_kwargs` keep renders append-only; a caller who contradicts one gets an error.
    `kwargs` are further template kwargs that a caller may give. `split_pattern` is one regular expression that
    splits text as the vocabulary's own pre-tokenizer does: it is checked against it at load, and only makes it faster.
    `response_parser` names the function that reads a completion back as a message: a `responses.parse.ResponseParser`.
    `trims` are the parts of a message that the template prints without the white space at their edges. `schemas` says how
    it prints a tool's: whole, as JSON, or name by name, in a form of its own.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_.-]*$")
    models: tuple[str, ...]
    model_types: tuple[str, ...]
    template: Annotated[str, AfterValidator(_template)]
    fixed_kwargs: JsonObject = {}
    kwargs: tuple[str, ...] = ()
    append_roles: AppendRoles
    thinking: Thinking
    boundary: Boundary
    segments: Segments
    control_tokens: tuple[ControlToken, ...]
    chat_template_sha256: Annotated[dict[str, str], FROZEN] = {}
    split_pattern: str | None = None
    response_parser: Reference | None = None
    trims: Annotated[frozenset[Part], PlainSerializer(sorted, return_type=list[str])] = frozenset()
    schemas: Literal["json", "own"] = "json"
    parsers: Annotated[dict[str, Parsers], FROZEN] = {}
    recipes: Annotated[dict[str, Recipe], FROZEN] = {}
    recipe_rules: tuple[Rule, ...] = ()
    peers: Annotated[dict[str, str | None], FROZEN] = {}
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
        if stray := [token for token in self.boundary.stop if token not in self.segments.delimiters]:
            raise ValueError(
                f"boundary.stop names {stray}, which segments.delimiters does not: a turn ends where it stands"
            )
        for profile, recipe in self.recipes.items():
            if recipe.made_for is not None and recipe.made_for not in self.models:
                raise ValueError(f"recipes[{profile!r}] is made for {recipe.made_for!r}, which models does not name")
        for issue in self.known_issues:
            if unknown := sorted(set(issue.profiles) - set(self.recipes)):
                raise ValueError(f"the known issue {issue.name!r} names profiles {unknown}, which recipes does not")
            if unknown := sorted(set(issue.engines) - set(self.parsers)):
                raise ValueError(f"the known issue {issue.name!r} names engines {unknown}, which parsers does not")
        owner: dict[str, str] = {}
        for what, keys in (
            ("thinking.aliases", self.thinking.aliases),
            ("thinking.effort", (self.thinking.effort.name,) if self.thinking.effort else ()),
            ("fixed_kwargs", tuple(self.fixed_kwargs)),
            ("kwargs", self.kwargs),
            ("revisions.kwargs", tuple({key for revision in self.revisions for key in revision.kwargs})),
        ):
            for key in keys:
                if key in owner:
                    raise ValueError(f"the template kwarg {key!r} is in {owner[key]} and in {what}; it belongs in one")
                owner[key] = what
        return self

    def check_parsers(self, engine: str, *, reasoning: str | None, tool_call: str | None) -> None:
        """Raises FamilyError where an engine parses with others than this family's: it would read no calls, or no
        thoughts, in what the model says. An engine that the family says nothing about may have any."""
        ours, theirs = self.parsers.get(engine), Parsers(reasoning=reasoning, tool_call=tool_call)
        if ours is None or ours == theirs:
            return
        flags = {"--reasoning-parser": ours.reasoning, "--tool-call-parser": ours.tool_call}
        given = " ".join(f"{flag} {parser}" for flag, parser in flags.items() if parser)
        absent = " or ".join(flag for flag, parser in flags.items() if not parser)
        start = " and ".join(filter(None, (given and f"with {given}", absent and f"without {absent}")))
        raise FamilyError(
            f"{engine} reads reasoning with the parser {reasoning or 'none'} and tool calls with {tool_call or 'none'}, and "
            f"{self.name} is read with {ours.reasoning or 'none'} and {ours.tool_call or 'none'}; start it {start}",
            engine=engine,
            found=theirs.model_dump(),
            declared=ours.model_dump(),
        )

    def explained(self, log: str, engine: str) -> str:
        """The known issues that an engine's log, or an error's text, shows, and what to do; empty where it shows none."""
        issues = [issue for issue in self.known_issues if not issue.engines or engine in issue.engines]
        return " ".join(f"{issue.name}: {issue.summary} {issue.advice}" for issue in issues if issue.explains(log))

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
