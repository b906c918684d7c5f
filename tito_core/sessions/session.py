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

from tito_core.errors import CompletionError, MessageError, SessionError
from tito_core.families.family import AppendRoles, ThinkingDecision
from tito_core.prompts import thinking
from tito_core.prompts.messages import Message, Tool, normalise_tools
from tito_core.responses.completion import Completion
from tito_core.sessions.matching import matches, same_tools
from tito_core.tokens.append import Append, FinishReason, Ids, Truncation
from tito_core.tokens.compare import Mismatch
from tito_core.tokens.encoder import IdSpan, Mode

if TYPE_CHECKING:
    from tito_core.tokens.codec import Codec

__all__ = ["Request", "Sample", "Session", "Turn"]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A prompt and its completion. It stores its own new ids only; `ids` is a view of the session's one array."""

    number: int
    parent: Turn | None
    messages: tuple[Message, ...]
    message: Message
    ledger_kept: int
    prompt: Ids
    completion: Completion
    decision: ThinkingDecision
    tools: tuple[Tool, ...]
    spans: tuple[IdSpan, ...]
    length: int
    ids: Ids

    @property
    def sampled(self) -> int:
        return len(self.completion.ids)

    @property
    def finish_reason(self) -> FinishReason:
        return self.completion.finish_reason


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What to send: `ids` (int32) and, beside them, `engine_kwargs`. `ledger` says where the ids come from."""

    session: str
    parent: Turn | None
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

        Raises MessageError, GateError, ThinkingError, SessionError, TruncatedTurnError, AppendError, TemplateError or
        EncodingError; the session is as it was.
        """
        turns = self._turns
        decision = thinking.resolve(self.codec.loaded, request=chat_template_kwargs, session=self._kwargs)
        made = self.codec.normalise(messages)
        offered = normalise_tools(tools)
        parent = self._parent(turns, made)
        if parent is None:
            ledger = self.codec.prompt(made, tools=offered, decision=decision, mode=self._encoding)
            return Request(self.id, None, made, offered, decision, ledger)
        thinking.frozen(parent.decision, decision)
        same_tools(parent.tools, offered)
        appended = made[parent.length :]
        ledger = self.codec.append(
            parent, appended, mode=self._encoding, truncation=self._truncation, append_roles=self._append_roles
        )
        return Request(self.id, parent, appended, parent.tools, parent.decision, ledger)

    def commit(self, request: Request, completion: Completion) -> Turn:
        """Stores a completion of a request as a turn. Raises CompletionError or SessionError; then nothing changed."""
        if request.session != self.id:
            raise SessionError(f"the request belongs to the session {request.session}, not to {self.id}")
        message = self._message(request, completion)
        self._check_ids(completion)
        ledger = request.ledger
        with self._lock:
            kept = self._kept_turns(request)
            parent = request.parent
            prompt = ledger.ids[ledger.kept :]
            turn = Turn(
                number=len(kept),
                parent=parent,
                messages=request.messages,
                message=message,
                ledger_kept=ledger.kept,
                prompt=prompt,
                completion=completion,
                decision=request.decision,
                tools=request.tools,
                spans=ledger.spans,
                length=request.length + 1,
                ids=_frozen(np.concatenate((ledger.ids, np.asarray(completion.ids)))),
            )
            self._turns = (*kept, turn)
        return turn

    def messages(self) -> tuple[Message, ...]:
        """The whole conversation of the last turn, normalised."""
        return tuple(message for turn in self._turns for message in (*turn.messages, turn.message))

    def compare(self) -> list[Mismatch]:
        """What the stored ids of the last turn differ in from a full render of its conversation."""
        if not self._turns:
            return []
        last = self._turns[-1]
        rendered = self.codec.render(self.messages(), tools=last.tools, decision=last.decision)
        expected = self.codec.encode(rendered, self._encoding)
        return self.codec.compare(expected.ids, last.ids, expected.spans)

    def samples(self, *, max_tokens: int | None = None) -> list[Sample]:
        """The training samples: one, of the whole line of turns, cut after `max_tokens` ids; none without a turn."""
        if not self._turns:
            return []
        tokens = self._turns[-1].ids
        mask = np.zeros(len(tokens), dtype=np.int8)
        logprobs = np.zeros(len(tokens), dtype=np.float32)
        spans: list[IdSpan] = []
        for turn, following in zip(self._turns, (*self._turns[1:], None), strict=True):
            start = len(turn.ids) - turn.sampled
            end = len(turn.ids) if following is None else following.ledger_kept
            mask[start:end] = 1
            logprobs[start:end] = turn.completion.logprobs[: end - start]
            spans += turn.spans
        cut = len(tokens) if max_tokens is None else min(max_tokens, len(tokens))
        return [Sample(tokens[:cut], mask[:cut], logprobs[:cut], tuple(span for span in spans if span.start < cut))]

    def _parent(self, turns: tuple[Turn, ...], messages: tuple[Message, ...]) -> Turn | None:
        """The turn that the request continues: the last, the one before it, or None for a first prompt."""
        if not turns:
            return None
        stored = self.messages()
        shared = 0
        for ours, theirs in zip(stored, messages, strict=False):
            if not matches(ours, theirs):
                break
            shared += 1
        for turn in reversed(turns[-2:]):
            if shared >= turn.length and len(messages) > turn.length:
                return turn
        first = turns[0]
        if len(turns) == 1 and shared >= len(first.messages) == len(messages):
            return None
        if shared == len(messages) == turns[-1].length:
            last = turns[-1]
            raise SessionError(
                f"the request ends with message {last.length - 1} (assistant), which is stored already; append a "
                "message, or leave it out to sample it again",
                index=last.length - 1,
                role="assistant",
            )
        role = messages[shared].role if shared < len(messages) else None
        raise SessionError(
            f"message {shared} ({role or 'missing'}) is not what this session stores there"
            f" ({stored[shared].role if shared < len(stored) else 'nothing'}): a request continues the last turn, or "
            f"the one before it; the last ends with message {turns[-1].length - 1}. Open another session for another "
            "conversation",
            index=shared,
            role=role,
        )

    def _kept_turns(self, request: Request) -> tuple[Turn, ...]:
        turns = self._turns
        if request.parent is None:
            if len(turns) > 1:
                raise SessionError(
                    f"the request was prepared before {len(turns)} turns were committed; prepare it again"
                )
            return ()
        if request.parent not in turns[-2:]:
            raise SessionError(
                f"the request continues turn {request.parent.number}, which is no longer one of the last two; prepare "
                "it again",
            )
        return turns[: request.parent.number + 1]

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
        text = encoder.decode(ids)
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


def _frozen(ids: Ids) -> Ids:
    ids.setflags(write=False)
    return ids
