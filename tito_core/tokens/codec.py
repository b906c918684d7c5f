"""`Codec`: one family bound to one tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tito_core.errors import CheckpointError, EncodingError, FamilyError
from tito_core.families.family import AppendRoles, Checkpoint, Family, Revision, Template, ThinkingDecision
from tito_core.families.registry import LoadedFamily
from tito_core.prompts import gate
from tito_core.prompts.messages import Message, Tool, normalise, normalise_tools
from tito_core.prompts.template import Rendered, renderer
from tito_core.prompts.thinking import resolve, session_kwargs
from tito_core.tokens import checkpoint as checkpoints
from tito_core.tokens.append import Append, Ids, Joiner, Truncation, Turn, check_modes
from tito_core.tokens.compare import Comparator, Mismatch
from tito_core.tokens.encoder import Encoded, Encoder, IdSpan, Mode, load_vocabulary

if TYPE_CHECKING:
    from tito_core.sessions.accept import Overrun
    from tito_core.sessions.matching import Match
    from tito_core.sessions.session import Session
    from tito_core.sessions.store import Store

__all__ = ["Codec", "Origin"]

Messages = Sequence[Mapping[str, Any] | Message]
Tools = Sequence[Mapping[str, Any] | Tool]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a codec's vocabulary is from, for a report: a shipped one by its name, or a checkpoint directory.

    `checkpoint` is what its template was chosen by; None for a shipped one.
    """

    vocabulary: str
    title: str
    sha256: str
    stands_in_for: str | None
    warnings: tuple[str, ...]
    checkpoint: Checkpoint | None = None


class Codec:
    """Renders, encodes, joins and compares for one family and one tokenizer. Safe to share between threads."""

    def __init__(
        self, loaded: LoadedFamily, encoder: Encoder, template: Template, revision: Revision, origin: Origin
    ) -> None:
        self.loaded, self.encoder, self.template, self.revision, self.origin = (
            loaded,
            encoder,
            template,
            revision,
            origin,
        )
        self._renderer = renderer(template)
        self._joiner = Joiner(loaded.name, self.family.boundary, encoder, self._renderer)
        self._comparator = Comparator(
            self.family.segments, encoder, self.family.boundary.stop, self.family.boundary.shared
        )
        self.append_roles: AppendRoles = loaded.append_roles(revision)

    @classmethod
    def of(
        cls,
        loaded: LoadedFamily,
        *,
        model: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        vocabulary: str | None = None,
    ) -> Codec:
        """A codec on a checkpoint directory, or on one of the plugin's vocabularies. See `tito_core.load`."""
        family = loaded.declaration
        if model is not None and vocabulary is not None:
            raise FamilyError("model and vocabulary are both given; a checkpoint brings its own vocabulary")
        try:
            rendering, shipped = family.revision(revision), family.vocabulary(vocabulary)
        except KeyError as cause:
            raise FamilyError(f"{family.name}: {cause.args[0]}") from None
        if model is not None:
            checkpoint = checkpoints.read(model)
            checkpoints.check_model_type(family, checkpoint)
            loaded = loaded.on(checkpoint)
            try:
                encoder = Encoder.from_checkpoint(checkpoint.path, split_pattern=family.split_pattern)
            except EncodingError as cause:
                raise CheckpointError(str(cause), **cause.where) from cause
            template = loaded.template(checkpoint)
            warnings = checkpoints.accept(family, checkpoint, encoder, template)
            origin = Origin("checkpoint", str(checkpoint.path), encoder.sha256, None, tuple(warnings), checkpoint)
            return cls(loaded, encoder, template, rendering, origin)
        encoder = Encoder.from_json(load_vocabulary(loaded.package, shipped), split_pattern=family.split_pattern)
        checkpoints.check_control_tokens(family, encoder, f"the vocabulary {shipped.name}", ids=False)
        origin = Origin(shipped.name, shipped.title, encoder.sha256, shipped.stands_in_for, ())
        return cls(loaded, encoder, loaded.template(None), rendering, origin)

    @property
    def family(self) -> Family:
        return self.loaded.declaration

    def normalise(self, messages: Messages, *, after: Message | None = None, start: int = 0) -> tuple[Message, ...]:
        """Messages as this family's template takes them. Raises MessageError."""
        return normalise(messages, text_joiner=self.revision.text_joiner, after=after, start=start)

    def decide(
        self, thinking: bool | None = None, chat_template_kwargs: Mapping[str, Any] | None = None
    ) -> ThinkingDecision:
        """The thinking decision for these kwargs. Raises ThinkingError."""
        return resolve(self.loaded, session=session_kwargs(self.loaded, thinking, chat_template_kwargs))

    def render(
        self, messages: Messages, *, tools: Tools | None = None, decision: ThinkingDecision | None = None
    ) -> Rendered:
        """The text of a whole conversation, from its start. Raises MessageError, TemplateError."""
        return self._renderer.render(
            self.normalise(messages), tools=normalise_tools(tools), kwargs=self._kwargs(decision or self.decide())
        )

    def encode(self, rendered: Rendered, mode: Mode = "literal") -> Encoded:
        """Ids (int32) of a rendered text. Raises EncodingError."""
        return self.encoder.encode(rendered, mode)

    def prompt(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        decision: ThinkingDecision | None = None,
        mode: Mode = "literal",
    ) -> Append:
        """A first prompt, ending with an open assistant turn. Raises GateError where it would not."""
        made = self.normalise(messages)
        gate.check_prompt(made, self.append_roles, self.family.name)
        rendered = self.render(made, tools=tools, decision=decision)
        return self._joiner.first(rendered, mode, made[-1], len(made) - 1)

    def append(
        self,
        turn: Turn,
        messages: Messages,
        *,
        mode: Mode = "literal",
        truncation: Truncation = "refuse",
        append_roles: AppendRoles | None = None,
    ) -> Append:
        """The next prompt: a stored turn's ids, and the ids of what is appended to it.

        Raises GateError, MessageError, TruncatedTurnError, AppendError, TemplateError or EncodingError.
        """
        check_modes(mode, truncation)
        appended = self.normalise(messages, after=turn.message, start=turn.length)
        gate.check_append(appended, append_roles or self.append_roles, self.family.name, turn.length)
        return self._joiner.join(turn, appended, kwargs=self._kwargs(turn.decision), mode=mode, truncation=truncation)

    def finished(self, turn: Turn) -> Ids:
        """A turn's ids, ending as a full render of its messages ends: what `compare` expects of a last turn."""
        return self._joiner.finished(turn.ids)

    def compare(
        self,
        expected: Ids,
        actual: Ids,
        spans: Sequence[IdSpan] = (),
        sampled: Sequence[tuple[int, int]] | None = None,
    ) -> list[Mismatch]:
        """Every mismatch of `actual` against `expected`. `spans` are the expected sequence's, `sampled` the ranges
        (start, end) of `actual` that the engine sampled, where they are known."""
        return self._comparator.compare(expected, actual, spans, sampled)

    def assistant_runs(self, ids: Ids) -> list[tuple[int, int]]:
        """Where an assistant speaks in a sequence, as (start, end), by the family's delimiters alone."""
        return self._comparator.assistant_runs(ids)

    def decode(self, ids: Ids | Sequence[int]) -> str:
        """Text of ids, control tokens included. Raises EncodingError for an id that is none."""
        return self.encoder.decode(ids)

    def narrowed(self, roles: Iterable[str] | None) -> AppendRoles:
        """This family's append roles, narrowed to the names given. Raises FamilyError."""
        if roles is None:
            return self.append_roles
        if isinstance(roles, str):
            raise FamilyError(f"append_roles is the text {roles!r}; pass a set of names")
        try:
            return self.append_roles.narrowed(frozenset(roles))
        except ValueError as cause:
            raise FamilyError(f"{self.family.name}: {cause}") from None

    def session(
        self,
        *,
        thinking: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        append_roles: Iterable[str] | None = None,
        encoding: Mode = "literal",
        truncation: Truncation = "refuse",
        overrun: Overrun = "refuse",
        matcher: str | Match = "tool_arguments",
        linear: bool = False,
        store: Store | None = None,
        id: str | None = None,
    ) -> Session:
        """A new session; a `linear` one keeps one line of turns and takes back one. `overrun` is the rule for ids past a
        stop, `matcher` for what a client sends back: `strict`, `tool_arguments`, or a function or its dotted path. A `store`
        keeps every committed turn under the session's `id`, and one that holds turns of that id goes on with them.

        Raises ThinkingError or FamilyError where the arguments contradict the family, SessionError for a matcher, store
        or id that is none and for a stored session that was begun otherwise.
        """
        from tito_core.sessions.session import Session

        return Session(
            self,
            chat_template_kwargs=session_kwargs(self.loaded, thinking, chat_template_kwargs),
            append_roles=self.narrowed(append_roles),
            encoding=encoding,
            truncation=truncation,
            overrun=overrun,
            matcher=matcher,
            linear=linear,
            store=store,
            id=id,
        )

    def _kwargs(self, decision: ThinkingDecision) -> dict[str, Any]:
        return {**self.revision.kwargs, **decision.render_kwargs}
