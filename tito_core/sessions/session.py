"""A session: what was sent and sampled, turn by turn, and the next prompt.

This version keeps one line of turns and rolls back by one: a request that continues the turn before the last one (or
begins again, after a single turn) replaces the last one when it is committed.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tito_core.errors import CompletionError, EncodingError, MessageError, SessionError, TitoError
from tito_core.families.family import AppendRoles, ThinkingDecision
from tito_core.prompts import thinking
from tito_core.prompts.messages import Message, Tool, normalise_tools
from tito_core.responses.completion import Completion
from tito_core.responses.parse import Parsed, parse
from tito_core.sessions.line import Line
from tito_core.sessions.matching import difference, matches, remembered, same_tools, spelled
from tito_core.tokens.append import Append, FinishReason, Ids, Truncation, check_modes
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
    from `kept` to the completion. Its ids are a view of the line that it shares with the turns before it. `parsed` is
    what the ids were read back as, None where the completion brought its own message.
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
    parsed: Parsed | None = None

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
    (float32, 0 where it did not), and `spans` of the ids that it did not sample.

    `status`: `complete`; `truncated` where the last turn or the sample itself was cut; or the name of the error that ended
    the session early, of which this is the last good prefix.
    """

    tokens: Ids
    loss_mask: npt.NDArray[np.int8]
    logprobs: npt.NDArray[np.float32]
    spans: tuple[IdSpan, ...]
    status: str = "complete"


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
        check_modes(encoding, truncation)
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
        sent = list(messages) if isinstance(messages, Sequence) and not isinstance(messages, (str, bytes)) else None
        known, base = _known(turns, before, sent or [])
        start = base.length if base else 0
        made = self.codec.normalise(
            sent[start:] if sent else messages, after=base.message if base else None, start=start
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
        now = [*before[:known], *map(remembered, (sent or [])[known : parent.length])]
        with self._lock:
            if self._turns is turns:
                self._seen = now
        return Request(self.id, parent, tip, appended, parent.tools, decision, ledger)

    def commit(self, request: Request, completion: Completion) -> Turn:
        """Stores a completion of a request as a turn, read back by the family's parser where it brings no message.

        Raises CompletionError, SessionError, or FamilyError where that parser fails; then nothing changed. What is cut
        or malformed is stored like any other, without tool calls.
        """
        if not isinstance(request, Request) or not isinstance(completion, Completion):
            raise SessionError(
                f"commit takes the Request that prepare gave and a Completion, not a {type(request).__name__} and a "
                f"{type(completion).__name__}"
            )
        if request.session != self.id:
            raise SessionError(f"the request belongs to the session {request.session}, not to {self.id}")
        self._check_ids(completion)
        _check_echo(request, completion)
        parsed = None
        if completion.message is None:
            parsed = parse(self.codec, completion, request.decision, request.tools)
        message = parsed.message if parsed else self._message(request, completion)
        if message.tool_calls and completion.finish_reason == "length":
            self._check_calls(request, completion)
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
                parsed=parsed,
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
        return self.codec.compare(expected.ids, self.codec.finished(last), expected.spans, self.sampled())

    def sampled(self) -> list[tuple[int, int]]:
        """The ranges (start, end) of the last turn's ids that the engine sampled, oldest first."""
        return [
            (turn.end - turn.sampled, following.kept if following else turn.end)
            for turn, following in zip(self._turns, (*self._turns[1:], None), strict=True)
        ]

    def samples(self, *, max_tokens: int | None = None, error: TitoError | None = None) -> list[Sample]:
        """The training samples: one, of the whole line of turns, cut after `max_tokens` ids; none without a turn.

        `error` is what ended the session early, if something did: what was committed before it is still good, and the
        sample's status names it. Raises SessionError for a `max_tokens` that is no number of ids.
        """
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise SessionError(
                f"max_tokens is {max_tokens!r}; it must be a number of ids, 1 or more, or None for no limit"
            )
        if not self._turns:
            return []
        tokens = self._turns[-1].ids
        mask = np.zeros(len(tokens), dtype=np.int8)
        logprobs = np.zeros(len(tokens), dtype=np.float32)
        spans: list[IdSpan] = []
        for turn, (start, end) in zip(self._turns, self.sampled(), strict=True):
            mask[start:end] = 1
            logprobs[start:end] = turn.completion.logprobs[: end - start]
            spans += turn.spans
        cut = len(tokens) if max_tokens is None else min(max_tokens, len(tokens))
        within = tuple(span._replace(end=min(span.end, cut)) for span in spans if span.start < cut)
        cut_short = cut < len(tokens) or self._turns[-1].finish_reason == "length"
        status = type(error).__name__ if error else "truncated" if cut_short else "complete"
        return [Sample(tokens[:cut], mask[:cut], logprobs[:cut], within, status)]

    def _offered(self, tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
        """The tools of a request, normalised once for each spelling."""
        key = spelled(tools)
        known, made = self._tools
        if key is None or key != known:
            made = normalise_tools(tools)
            self._tools = (key, made)
        return made

    def _message(self, request: Request, completion: Completion) -> Message:
        given = completion.message
        assert given is not None
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

    def _check_calls(self, request: Request, completion: Completion) -> None:
        """Refuses calls of a completion that was cut, unless the family's own parser finds them whole in its ids."""
        if self.codec.family.response_parser is not None:
            bare = replace(completion, message=None)
            if parse(self.codec, bare, request.decision, request.tools).state == "ok":
                return
        raise CompletionError(
            f"completion {completion.id} was cut by length, and its message has tool calls that are not known to be whole; "
            "leave them out of the message: a partial call is never run",
            id=completion.id,
        )

    def _check_ids(self, completion: Completion) -> None:
        if completion.finish_reason == "abort":
            raise CompletionError(
                f"completion {completion.id} was aborted by the engine; sample it again, it is never stored",
                id=completion.id,
            )
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
        if completion.stop and completion.stop not in text:
            raise CompletionError(
                f"completion {completion.id} is said to end with the stop string {completion.stop!r}, which its text (it ends "
                f"{text[-20:]!r}) does not hold; pass stop=None where a token ended it",
                id=completion.id,
            )
        if completion.stop and completion.stop in encoder.decode(ids[:-1]):
            raise CompletionError(
                f"completion {completion.id} goes on after the stop string {completion.stop!r} (text ends "
                f"{text[-20:]!r}); cut ids and logprobs after the id that completes it",
                id=completion.id,
            )


def _check_echo(request: Request, completion: Completion) -> None:
    """Refuses a completion whose engine saw another prompt than was sent: it decoded the ids and encoded their text."""
    if completion.prompt_ids is None:
        return
    sent, seen = request.ids, np.asarray(completion.prompt_ids)
    shared = min(len(sent), len(seen))
    differing = np.flatnonzero(sent[:shared] != seen[:shared])
    if not len(differing) and len(sent) == len(seen):
        return
    first = int(differing[0]) if len(differing) else shared
    one, other = (f"id {int(ids[first])}" if first < len(ids) else "nothing" for ids in (sent, seen))
    raise CompletionError(
        f"completion {completion.id} was sampled after other prompt ids than were sent: at {first} was sent {one}, the engine "
        f"saw {other} ({len(sent)} and {len(seen)} in all); the engine must take ids, not their text",
        id=completion.id,
        first_index=first,
    )


def _known(turns: tuple[Turn, ...], seen: list[object], messages: list[Mapping[str, Any]]) -> tuple[int, Turn | None]:
    """How many of the messages are those of an earlier request, word for word, and the last turn within them."""
    known = 0
    try:
        if seen == messages[: len(seen)]:
            known = len(seen)
        else:
            while seen[known] == messages[known]:
                known += 1
    except Exception:  # the end of one of them, or a client's own objects that refuse to be compared
        pass
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
    found, sent, last = start + shared, start + len(messages), turns[-1]
    if found >= last.length and sent > last.length:
        return last
    if found == sent == last.length:
        raise SessionError(
            f"the request ends with message {sent - 1} (assistant), which is stored already; append a message, or "
            "leave it out to sample it again",
            index=sent - 1,
            role="assistant",
        )
    place = last.length - 1
    # An assistant message in the place of the last turn's own is that turn, edited: never a way back over it.
    if not (sent > place and messages[place - start].role == "assistant"):
        before = turns[-2] if len(turns) > 1 else None
        if before and found >= before.length and sent > before.length:
            return before
        if not before and found >= place == sent:
            return None
    rule = "a request continues the last turn, or takes it back; open another session for another conversation"
    if shared == len(messages):
        raise SessionError(
            f"the request ends after message {sent - 1}, and this session's last turn with message {place}: it takes "
            f"back more than one turn; {rule}",
            index=sent,
            role=None,
        )
    raise SessionError(
        f"message {found} ({messages[shared].role}) is not what this session stores there: "
        f"{difference(stored[shared], messages[shared])}; {rule}",
        index=found,
        role=messages[shared].role,
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
