"""A session: what was sent and sampled, turn by turn, and the next prompt.

This version keeps one line of turns and rolls back by one: a request that continues the turn before the last one (or
begins again, after a single turn) replaces the last one when it is committed.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tito_core.errors import CompletionError, EncodingError, MessageError, SessionError
from tito_core.families.family import AppendRoles, ThinkingDecision
from tito_core.prompts import thinking
from tito_core.prompts.messages import Message, Tool, normalise_tools
from tito_core.responses.completion import Completion
from tito_core.sessions.line import Line
from tito_core.sessions.matching import matches, remembered, same_tools, spelled
from tito_core.tokens.append import Append, FinishReason, Ids, Truncation
from tito_core.tokens.compare import Mismatch
from tito_core.tokens.encoder import IdSpan, Mode

if TYPE_CHECKING:
    from tito_core.tokens.codec import Codec

__all__ = ["Request", "Sample", "Session", "Turn"]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A prompt and its completion.

    `kept` of the parent's ids are its own prompt's first; `length` counts the messages of the conversation, the
    assistant's `message` included, which `messages` (what was appended) stand before. `spans` say who printed each id
    from `kept` to the completion. Its ids are a view of the line that it shares with the turns before it.
    """

    number: int
    parent: Turn | None
    messages: tuple[Message, ...]
    message: Message
    completion: Completion
    decision: ThinkingDecision
    tools: tuple[Tool, ...]
    length: int
    kept: int
    spans: tuple[IdSpan, ...]
    line: Line
    end: int

    @property
    def ids(self) -> Ids:
        """The prompt's ids and the completion's, int32, read-only."""
        return self.line.upto(self.end)

    @property
    def sampled(self) -> int:
        """How many of the last ids the engine sampled."""
        return len(self.completion.ids)

    @property
    def finish_reason(self) -> FinishReason:
        return self.completion.finish_reason


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What to send: `ids` (int32) and, beside them, `engine_kwargs`. `ledger` says where the ids come from.

    `parent` is the turn that it continues, `tip` the session's last one when it was prepared.
    """

    session: str
    parent: Turn | None
    tip: Turn | None
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    decision: ThinkingDecision
    ledger: Append

    @property
    def ids(self) -> Ids:
        return self.ledger.ids

    @property
    def engine_kwargs(self) -> dict[str, Any]:
        return thinking.engine_kwargs(self.decision)

    @property
    def length(self) -> int:
        """How many messages the conversation of this request has."""
        return (self.parent.length if self.parent else 0) + len(self.messages)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One training sample: `tokens` (int32), `loss_mask` (int8, 1 where the engine sampled the id), `logprobs`
    (float32, 0 where it did not), and `spans` of the ids that it did not sample."""

    tokens: Ids
    loss_mask: npt.NDArray[np.int8]
    logprobs: npt.NDArray[np.float32]
    spans: tuple[IdSpan, ...]


class Session:
    """One agent's conversation with one model. Opened by `Codec.session`; safe to share between threads."""

    def __init__(
        self,
        codec: Codec,
        *,
        chat_template_kwargs: Mapping[str, Any],
        append_roles: AppendRoles,
        encoding: Mode,
        truncation: Truncation,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.codec = codec
        self._kwargs = dict(chat_template_kwargs)
        self._append_roles = append_roles
        self._encoding, self._truncation = encoding, truncation
        self._lock = threading.Lock()
        self._turns: tuple[Turn, ...] = ()
        self._seen: list[object] = []
        self._tools: tuple[bytes | None, tuple[Tool, ...]] = (None, ())
        codec.decide(chat_template_kwargs=self._kwargs)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The committed turns, oldest first."""
        return self._turns

    def prepare(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Request:
        """The request for a whole conversation, as the client sends it. Changes nothing.

        Tools and thinking mode are the first turn's from then on: leave them out, or send the same.

        Raises MessageError, GateError, ThinkingError, SessionError, TruncatedTurnError, AppendError, TemplateError or
        EncodingError; the session is as it was.
        """
        with self._lock:
            turns, before = self._turns, self._seen
        known, base = _known(turns, before, messages)
        start = base.length if base else 0
        made = self.codec.normalise(
            messages[start:] if base else messages, after=base.message if base else None, start=start
        )
        offered = self._offered(tools)
        parent = _parent(turns, made, start)
        tip = turns[-1] if turns else None
        if parent is None:
            decision = thinking.resolve(self.codec.loaded, request=chat_template_kwargs, session=self._kwargs)
            ledger = self.codec.prompt(made, tools=offered, decision=decision, mode=self._encoding)
            return Request(self.id, None, tip, made, offered, decision, ledger)
        decision = parent.decision
        if chat_template_kwargs:
            asked = thinking.resolve(self.codec.loaded, request=chat_template_kwargs, session=decision.forward_kwargs)
            thinking.frozen(decision, asked)
        if tools is not None:
            same_tools(parent.tools, offered)
        appended = made[parent.length - start :]
        ledger = self.codec.append(
            parent, appended, mode=self._encoding, truncation=self._truncation, append_roles=self._append_roles
        )
        now = [*before[:known], *map(remembered, messages[known : parent.length])]
        with self._lock:
            if self._turns is turns:
                self._seen = now
        return Request(self.id, parent, tip, appended, parent.tools, decision, ledger)

    def commit(self, request: Request, completion: Completion) -> Turn:
        """Stores a completion of a request as a turn. Raises CompletionError or SessionError; then nothing changed."""
        if request.session != self.id:
            raise SessionError(f"the request belongs to the session {request.session}, not to {self.id}")
        message = self._message(request, completion)
        self._check_ids(completion)
        ledger = request.ledger
        with self._lock:
            if (self._turns[-1] if self._turns else None) is not request.tip:
                raise SessionError(
                    f"the session went on to turn {len(self._turns) - 1} after this request was prepared; prepare it again"
                )
            parent = request.parent
            kept = self._turns[: parent.number + 1] if parent else ()
            more = (ledger.inserted, ledger.suffix, np.asarray(completion.ids))
            if parent is None:
                line, end = Line(ledger.parent).extended(0, *more)
            else:
                line, end = parent.line.extended(ledger.kept, *more)
            turn = Turn(
                number=len(kept),
                parent=parent,
                messages=request.messages,
                message=message,
                completion=completion,
                decision=request.decision,
                tools=request.tools,
                length=request.length + 1,
                kept=ledger.kept,
                spans=ledger.spans,
                line=line,
                end=end,
            )
            self._turns = (*kept, turn)
            self._seen = self._seen[: parent.length if parent else 0]
        return turn

    def messages(self) -> tuple[Message, ...]:
        """The whole conversation of the last turn, normalised."""
        return _conversation(self._turns, 0)

    def compare(self) -> list[Mismatch]:
        """What the stored ids of the last turn differ in from a full render of its conversation."""
        if not self._turns:
            return []
        last = self._turns[-1]
        rendered = self.codec.render(self.messages(), tools=last.tools, decision=last.decision)
        expected = self.codec.encode(rendered, self._encoding)
        return self.codec.compare(expected.ids, self.codec.finished(last), expected.spans)

    def samples(self, *, max_tokens: int | None = None) -> list[Sample]:
        """The training samples: one, of the whole line of turns, cut after `max_tokens` ids; none without a turn."""
        if not self._turns:
            return []
        tokens = self._turns[-1].ids
        mask = np.zeros(len(tokens), dtype=np.int8)
        logprobs = np.zeros(len(tokens), dtype=np.float32)
        spans: list[IdSpan] = []
        for turn, following in zip(self._turns, (*self._turns[1:], None), strict=True):
            start = turn.end - turn.sampled
            end = turn.end if following is None else following.kept
            mask[start:end] = 1
            logprobs[start:end] = turn.completion.logprobs[: end - start]
            spans += turn.spans
        cut = len(tokens) if max_tokens is None else min(max_tokens, len(tokens))
        return [Sample(tokens[:cut], mask[:cut], logprobs[:cut], tuple(span for span in spans if span.start < cut))]

    def _offered(self, tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
        """The tools of a request, normalised once for each spelling."""
        key = spelled(tools)
        if key is None or key != self._tools[0]:
            self._tools = (key, normalise_tools(tools))
        return self._tools[1]

    def _message(self, request: Request, completion: Completion) -> Message:
        if completion.finish_reason == "abort":
            raise CompletionError(
                f"completion {completion.id} was aborted by the engine; sample it again, it is never stored",
                id=completion.id,
            )
        if completion.message is None:
            raise CompletionError(
                f"completion {completion.id} has no message; pass the assistant message that the engine's parsers made",
                id=completion.id,
            )
        given = completion.message
        role = given.role if isinstance(given, Message) else given.get("role", "assistant")
        if role != "assistant":
            raise CompletionError(
                f"completion {completion.id} has a message of the role {role!r}; it must be assistant", id=completion.id
            )
        sent = given if isinstance(given, Message) else {**given, "role": "assistant"}
        try:
            return self.codec.normalise([sent], start=request.length)[0]
        except MessageError as cause:
            raise CompletionError(
                f"completion {completion.id} has a message that can't be stored: {cause}", id=completion.id
            ) from cause

    def _check_ids(self, completion: Completion) -> None:
        ids = np.asarray(completion.ids)
        encoder = self.codec.encoder
        try:
            text = encoder.decode(ids)
        except EncodingError as cause:
            raise CompletionError(f"completion {completion.id} can't be stored: {cause}", id=completion.id) from cause
        stops = np.array([encoder.token_id(token) for token in self.codec.family.boundary.stop], dtype=np.int32)
        inside = np.flatnonzero(np.isin(ids[:-1], stops))
        if len(inside):
            raise CompletionError(
                f"completion {completion.id} goes on for {len(ids) - 1 - int(inside[0])} ids after the stop token "
                f"{int(ids[inside[0]])} at {int(inside[0])}; cut ids and logprobs there",
                id=completion.id,
                first_index=int(inside[0]) + 1,
            )
        if completion.stop and completion.stop in encoder.decode(ids[:-1]):
            raise CompletionError(
                f"completion {completion.id} goes on after the stop string {completion.stop!r} (text ends "
                f"{text[-20:]!r}); cut ids and logprobs after the id that completes it",
                id=completion.id,
            )


def _known(
    turns: tuple[Turn, ...], seen: list[object], messages: Sequence[Mapping[str, Any]]
) -> tuple[int, Turn | None]:
    """How many of the messages are those of an earlier request, word for word, and the last turn within them."""
    known = 0
    if isinstance(messages, list) and seen == messages[: len(seen)]:
        known = len(seen)
    elif isinstance(messages, Sequence):
        for ours, theirs in zip(seen, messages, strict=False):
            if ours != theirs:
                break
            known += 1
    return known, next((turn for turn in reversed(turns) if turn.length <= known), None)


def _parent(turns: tuple[Turn, ...], messages: tuple[Message, ...], start: int) -> Turn | None:
    """The turn that a request continues: the last, the one before it, or None for a first prompt.

    `messages` are those from the conversation's index `start` on; what stands before is known to match.
    """
    if not turns:
        return None
    stored = _conversation(turns, start)
    shared = 0
    for ours, theirs in zip(stored, messages, strict=False):
        if not matches(ours, theirs):
            break
        shared += 1
    found, sent, stands = start + shared, start + len(messages), turns[-1].length
    for turn in reversed(turns[-2:]):
        if found >= turn.length and sent > turn.length:
            return turn
    if len(turns) == 1 and found >= stands - 1 == sent:
        return None
    if found == sent == stands:
        raise SessionError(
            f"the request ends with message {sent - 1} (assistant), which is stored already; append a message, or "
            "leave it out to sample it again",
            index=sent - 1,
            role="assistant",
        )
    theirs_role = messages[shared].role if shared < len(messages) else None
    ours_role = stored[shared].role if shared < len(stored) else "nothing"
    raise SessionError(
        f"message {found} ({theirs_role or 'missing'}) is not what this session stores there ({ours_role}): a request "
        f"continues the last turn, or the one before it, and the last one ends with message {stands - 1}; open "
        "another session for another conversation",
        index=found,
        role=theirs_role,
    )


def _conversation(turns: tuple[Turn, ...], start: int) -> tuple[Message, ...]:
    """The conversation of the last turn from the message of index `start` on."""
    made: list[Message] = []
    for turn in reversed(turns):
        if turn.length <= start:
            break
        made += (turn.message, *reversed(turn.messages))
    made.reverse()
    return tuple(made[len(made) - (turns[-1].length - start) :]) if made else ()
