"""A session: what was sent and sampled, as a forest of turns, and the next prompt."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np

from tito_core.errors import SessionError, not_text
from tito_core.families.family import AppendRoles, ThinkingDecision
from tito_core.prompts import thinking
from tito_core.prompts.messages import Message, Tool, normalise_tools
from tito_core.prompts.template import dated
from tito_core.responses.completion import Completion
from tito_core.sessions import accept, linear, samples
from tito_core.sessions.accept import Overrun
from tito_core.sessions.counters import Counters, counted
from tito_core.sessions.matching import Match, Matcher, closest, difference, edited, same_tools, spelled
from tito_core.sessions.samples import Finish, Sample, Select
from tito_core.sessions.store import Store, check_about, packed, unpacked
from tito_core.sessions.turn import Request, Turn, leaves
from tito_core.tokens.append import Ids, Truncation, check_modes
from tito_core.tokens.compare import Mismatch
from tito_core.tokens.encoder import Mode

if TYPE_CHECKING:
    from tito_core.tokens.codec import Codec

__all__ = ["SUMMARY", "Session"]

SUMMARY: Final = 32
"""How many characters a reply has at least, without the white space around it, for a first prompt to summarise it."""


class Session:
    """One agent's conversations with one model. Opened by `Codec.session`; safe under threads and asyncio: no call waits
    for an engine, and what is in flight together becomes siblings."""

    def __init__(
        self,
        codec: Codec,
        *,
        chat_template_kwargs: Mapping[str, Any],
        append_roles: AppendRoles,
        encoding: Mode,
        truncation: Truncation,
        overrun: Overrun,
        matcher: str | Match,
        linear: bool,
        store: Store | None,
        id: str | None,
    ) -> None:
        if id is not None and (not isinstance(id, str) or not id or not_text(id)):
            raise SessionError(
                f"a session has the id {id!r:.80}; it is text that names it, and not empty: leave it out for a new one"
            )
        if store is not None and not all(callable(getattr(store, name, None)) for name in ("take", "put")):
            raise SessionError(
                f"store is {store!r:.80}, which has no take and put; pass MemoryStore(), SQLiteStore(path) or one of your own"
            )
        self.id = uuid.uuid4().hex if id is None else id
        self.codec = codec
        self.linear = linear
        self.rollbacks = 0
        self._opening = object()
        self._kwargs = dict(chat_template_kwargs)
        self._append_roles = append_roles
        check_modes(encoding, truncation)
        if overrun not in get_args(Overrun):
            raise SessionError(f"overrun is {overrun!r}; choose {' or '.join(map(repr, get_args(Overrun)))}")
        self._encoding, self._truncation, self._overrun = encoding, truncation, overrun
        self._matcher = Matcher(codec, matcher)
        self._lock = threading.Lock()
        self._turns: tuple[Turn, ...] = ()
        self._tools: tuple[bytes | None, tuple[Tool, ...]] = (None, ())
        decision = codec.decide(chat_template_kwargs=self._kwargs)
        self._store = store
        if store is not None:
            about = self._about(decision)

            def read(before: str, records: Sequence[str]) -> tuple[Turn, ...]:
                check_about(self.id, before, about)
                return unpacked(self.id, records)

            self._claim, self._turns = store.take(self.id, json.dumps(about, sort_keys=True), read)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The committed turns, oldest first; a linear session's are its one line."""
        return self._turns

    @property
    def leaves(self) -> tuple[Turn, ...]:
        """The turns that nothing continues, oldest first."""
        return leaves(self._turns)

    def prepare(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Request:
        """The request for a whole conversation, as the client sends it. Changes nothing.

        It continues the deepest turn whose conversation it begins with, of several the one that it names most exactly (see
        `matching.closest`), the newest of equal ones; without one it is a first prompt. Tools and thinking mode are the
        session's first turn's from then on: leave them out, or send the same.

        Raises MessageError, GateError, ThinkingError, SessionError, TruncatedTurnError, AppendError, TemplateError or
        EncodingError; the session is as it was.
        """
        at, turns = time.time(), self._turns
        sent = list(messages) if isinstance(messages, Sequence) and not isinstance(messages, (str, bytes)) else []
        found = self._matcher.found(turns, sent)
        parent = closest(found, sent)
        if parent and parent.length == len(sent):
            raise SessionError(
                f"the request ends with message {len(sent) - 1} (assistant), which is stored already; append a message, "
                "or leave it out to sample it again",
                index=len(sent) - 1,
                role="assistant",
            )
        tip = turns[-1] if turns else None
        if self.linear and tip:
            linear.check(self.codec, self._matcher.same, tip, parent, messages)
        offered = self._offered(tools)
        first = turns[0] if turns else None
        if first is None:
            decision = thinking.resolve(self.codec.loaded, request=chat_template_kwargs, session=self._kwargs)
        else:
            decision = first.decision
            if chat_template_kwargs:
                asked = thinking.resolve(
                    self.codec.loaded, request=chat_template_kwargs, session=decision.forward_kwargs
                )
                thinking.frozen(decision, asked)
            if tools is not None:
                same_tools(first.tools, offered)
            offered = first.tools
        summarises = None
        if parent is None:
            made = self.codec.normalise(messages)
            with dated(at):
                ledger = self.codec.prompt(made, tools=offered, decision=decision, mode=self._encoding)
            if not self.linear:  # its first turn is taken back here, and nothing is left to sum up
                summarises = _summarised(turns, made, ledger.ids)
            if summarises is None and "assistant" not in self._append_roles.roles:
                self._refuse_edited(turns, made)
        else:
            echo = found[parent]
            assert echo is not None
            made = self._matcher.appended(parent, echo, sent)
            with dated(parent.line[0].requested):
                ledger = self.codec.append(
                    parent, made, mode=self._encoding, truncation=self._truncation, append_roles=self._append_roles
                )
        return Request(self.id, self._opening, parent, tip, made, offered, decision, ledger, summarises, at)

    def commit(self, request: Request, completion: Completion) -> Turn:
        """Stores a completion of a request as a turn, read back by the family's parser where it brings no message.

        Raises CompletionError, SessionError, or FamilyError where that parser fails; then nothing changed. What is cut
        or malformed is stored like any other, without tool calls. A store holds the turn before anybody sees it.
        """
        if not isinstance(request, Request) or not isinstance(completion, Completion):
            raise SessionError(
                f"commit takes the Request that prepare gave and a Completion, not a {type(request).__name__} and a "
                f"{type(completion).__name__}"
            )
        if request.session != self.id:
            raise SessionError(f"the request belongs to the session {request.session}, not to {self.id}")
        if request.opening is not self._opening:
            raise SessionError(
                f"the request was prepared by another opening of the session {self.id}; prepare it again"
            )
        completion, message, parsed = accept.accepted(self.codec, request, completion, self._overrun)
        ledger, parent = request.ledger, request.parent
        new = np.concatenate((ledger.inserted, ledger.suffix, np.asarray(completion.ids)))
        new.setflags(write=False)
        stored = completion.stored(new[len(new) - len(completion.ids) :], accept.own_extras(request, completion))
        with self._lock:
            turns = self._turns
            self._admit(turns, request, completion)
            kept = turns[: parent.number + 1 if parent else 0] if self.linear else turns
            turn = Turn(
                number=len(kept),
                depth=parent.depth + 1 if parent else 0,
                parent=parent,
                messages=request.messages,
                message=message,
                completion=stored,
                decision=request.decision,
                tools=request.tools,
                length=request.length + 1,
                kept=ledger.kept,
                new=new,
                spans=ledger.spans,
                parsed=parsed,
                summarises=request.summarises,
                requested=request.at,
                committed=time.time(),
            )
            if self._store is not None:
                self._store.put(self.id, self._claim, turn.number, packed(turn))
            self.rollbacks += len(kept) < len(turns)
            self._turns = (*kept, turn)
        return turn

    def messages(self, leaf: Turn | None = None) -> tuple[Message, ...]:
        """The whole conversation of a turn, the last one where none is named, normalised."""
        last = self._named(leaf)
        return last.conversation() if last else ()

    def compare(self, leaf: Turn | None = None) -> list[Mismatch]:
        """What the stored ids of a turn, the last one where none is named, differ in from a full render of its line."""
        last = self._named(leaf)
        if last is None:
            return []
        with dated(last.line[0].requested):
            rendered = self.codec.render(last.conversation(), tools=last.tools, decision=last.decision)
        mode: Mode = "engine" if self._encoding == "engine" else "literal"  # what was sampled is rejected by no rule
        expected = self.codec.encode(rendered, mode)
        return self.codec.compare(expected.ids, self.codec.finished(last), expected.spans, samples.sampled(last))

    def sampled(self, leaf: Turn | None = None) -> list[tuple[int, int]]:
        """The ranges (start, end) of a turn's ids, the last one's where none is named, that the engine sampled."""
        last = self._named(leaf)
        return samples.sampled(last) if last else []

    def samples(
        self,
        *,
        max_tokens: int | None = None,
        select: str | Select = "retries",
        finish: str | Finish = "once",
        rewards: Mapping[str, float] | None = None,
        metadata: Mapping[str, Any] | None = None,
        error: BaseException | None = None,
    ) -> list[Sample]:
        """The training samples, one for each turn that `select` keeps, of the turns up to it.

        `max_tokens` cuts a sample after the last turn that fits whole. `select` is `retries`, `leaves`, `latest`, or a
        function or its dotted path; `finish` is `once` or such a function: see `tito_core.sessions.samples`. `rewards` are
        keyed by completion id, `metadata` is every sample's. `error` is what ended the session early, if something did:
        what was committed before it is still good, and the samples' status names it.

        Raises SessionError for arguments that are none, a tree that `select` has no answer for, and a function of the
        user's that fails or that breaks what a sample is.
        """
        return samples.made(
            self._turns,
            max_tokens=max_tokens,
            select=select,
            finish=finish,
            rewards={} if rewards is None else rewards,
            metadata={} if metadata is None else metadata,
            ours={"session": self.id, "family": self.codec.family.name},
            error=error,
        )

    def counters(self) -> Counters:
        """What happened in it, in whole numbers that can be added up over sessions."""
        return counted(self)

    def _named(self, leaf: Turn | None) -> Turn | None:
        if leaf is not None and not isinstance(leaf, Turn):
            raise SessionError(
                f"leaf is {leaf!r:.80}, a {type(leaf).__name__}; pass one of the session's turns, or None for the last"
            )
        return leaf or (self._turns[-1] if self._turns else None)

    def _admit(self, turns: tuple[Turn, ...], request: Request, completion: Completion) -> None:
        """Refuses what may not become the next turn. Called under the lock."""
        tip = turns[-1] if turns else None
        if self.linear and tip is not request.tip:
            raise SessionError(
                f"the session went on to turn {len(turns) - 1} after this request was prepared; prepare it again"
            )
        for turn in turns:
            if turn.completion.id == completion.id:
                raise SessionError(
                    f"completion {completion.id} is stored already, as turn {turn.number}; each is stored once, and trains "
                    "once: give another sampling another id",
                    id=completion.id,
                )
        if turns and request.parent is None:
            thinking.frozen(turns[0].decision, request.decision)
            same_tools(turns[0].tools, request.tools)

    def _refuse_edited(self, turns: tuple[Turn, ...], made: Sequence[Message]) -> None:
        """Refuses a first prompt that repeats a turn with something changed: its replies would be an assistant's messages
        that somebody wrote, and the session takes none."""
        if found := edited(turns, made, self._matcher.same):
            turn, place = found
            what = difference(turn.conversation()[place], made[place])
            raise SessionError(
                f"message {place} ({made[place].role}) is not what turn {turn.number} holds there: {what}; so the request "
                "continues no turn, and the assistant messages that it repeats would be prompt text, which this session's "
                f"append roles {sorted(self._append_roles.roles)} leave out: send what is stored, begin anew with a summary, "
                "or open a session that appends assistant messages",
                index=place,
                role=made[place].role,
                turn=turn.number,
            )

    def _about(self, decision: ThinkingDecision) -> dict[str, Any]:
        """What this session's turns depend on: their ids, which prompts go on from them, and what is committed."""
        codec, held = self.codec, decision.model_dump(mode="json")
        return {
            "family": codec.family.name,
            "revision": codec.revision.name,
            "vocabulary": codec.encoder.sha256,
            "template": codec.template.sha256,
            "encoding": self._encoding,
            "truncation": self._truncation,
            "overrun": self._overrun,
            "append_roles": sorted(self._append_roles.roles),
            "matcher": self._matcher.name,
            "linear": self.linear,
            "thinking": held["enabled"],
            "chat_template_kwargs": held["forward_kwargs"],
            "render_kwargs": held["render_kwargs"],
        }

    def _offered(self, tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
        """The tools of a request, normalised once for each spelling."""
        key = spelled(tools)
        known, made = self._tools
        if key is None or key != known:
            made = normalise_tools(tools)
            self._tools = (key, made)
        return made


def _summarised(turns: tuple[Turn, ...], prompt: Sequence[Message], ids: Ids) -> Turn | None:
    """The turn whose text a first prompt holds, in a message that no first prompt had before: the longest such text among
    the leaves', the newest of several; one shorter than SUMMARY could stand there by chance. A first prompt that was sent
    before holds what it held then."""
    for turn in turns:
        if turn.parent is None and np.array_equal(turn.new[: len(turn.new) - turn.sampled], ids):
            return turn.summarises
    before = {message.content for turn in turns if turn.parent is None for message in turn.messages}
    texts = [one.content for one in prompt if one.role != "assistant" and one.content not in before]
    said = {leaf: leaf.message.content.strip() for leaf in leaves(turns)}
    found = [leaf for leaf, text in said.items() if len(text) >= SUMMARY and any(text in one for one in texts)]
    return max(found, key=lambda leaf: (len(said[leaf]), leaf.number), default=None)
