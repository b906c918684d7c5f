"""Whole sessions: an agent's schedule, driven through `Session` with the scripted engine or a live one."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tito_core.engines.engine import Engine
from tito_core.engines.scripted import ScriptedEngine
from tito_core.errors import GateError, SessionError, TruncatedTurnError
from tito_core.families.family import AppendRoles, Boundary
from tito_core.responses.completion import Completion
from tito_core.sessions.session import SUMMARY, Session
from tito_core.sessions.turn import Request, Turn
from tito_core.tokens.append import Ids, Truncation
from tito_core.tokens.compare import FAULTS
from tito_core.verify.bench import Bench, Broken, of_error

__all__ = ["TOOLS", "Agent", "Drive", "Live", "actions", "drive"]

TURNS: Final = 6
TOOLS: Final = (
    {
        "type": "function",
        "function": {"name": "read_file", "description": "reads 📄", "parameters": {"type": "object"}},
    },
    {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}},
)
_SAID: Final = ("0", "", "go on", "naïve ☕\n", "你好", "  two lines\nhere ", '{"ok": true}', "👩‍👩‍👧", "\r\n", "١٢٣")


@dataclass
class Drive:
    """What one session came to. `broken` is the first promise that did not hold, with the conversation so far.

    `committed` is every turn that the session took, those that were taken back included, and `completions` what the engine
    returned for each; `compared` counts the turns that were compared, and `mismatches` those of each turn once.
    """

    turns: int = 0
    calls: int = 0
    tokens: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    mismatches: Counter[str] = field(default_factory=Counter)
    broken: Broken | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    committed: list[Turn] = field(default_factory=list)
    completions: dict[Turn, Completion] = field(default_factory=dict)
    compared: int = 0


@dataclass(frozen=True)
class Live:
    """An engine that is not scripted: at most `max_tokens` ids a turn, and the session's rule for a turn that was cut.

    `opened` is told the first prompt's messages and thinking mode, before they are sent.
    """

    engine: Engine
    max_tokens: int
    truncation: Truncation
    opened: Callable[[list[dict[str, Any]], bool], None]


def actions(roles: AppendRoles, boundary: Boundary) -> tuple[str, ...]:
    """The schedule that a family's append roles, and its closers for a turn that was cut, allow."""
    follows = roles.follows
    after = follows.get("assistant", frozenset())
    user = "user" in after and "user" in roles.ends
    results = "tool" in after and "tool" in roles.ends
    found = {
        "tool_results": results,
        "parallel_results": results and roles.parallel,
        "tool_results_then_user": "tool" in after and "user" in follows.get("tool", ()) and "user" in roles.ends,
        "user": user,
        "system_then_user": "system" in after and "user" in follows.get("system", ()) and "user" in roles.ends,
        "assistant_then_user": "assistant" in after and "user" in roles.ends,
        "rollback": True,
        "rollback_twice": True,
        "regenerate": True,
        "branch": True,
        "compaction": True,
        "force_final": user,
        "failed_call_result": results,
        "failed_call_user": user and "tool" in roles.roles,
        "failed_call_rollback": "tool" in roles.roles,
        "cut": bool(boundary.closers),
    }
    return tuple(name for name, allowed in found.items() if allowed)


def drive(bench: Bench, seed: int, live: Live | None = None) -> Drive:
    """One session of a few turns with the scripted engine, or a live one. Deterministic from the seed, as the engine is.

    Where a turn that was cut is refused, a live session ends with it.
    """
    done = Drive()
    rng = random.Random(seed)
    codec = bench.codec
    cutting = live is None and bool(codec.family.boundary.closers) and rng.random() < 0.25
    truncation: Truncation = live.truncation if live else "close" if cutting else "refuse"
    try:
        session = codec.session(
            thinking=rng.choice(codec.family.thinking.modes),
            append_roles=bench.roles.roles,
            truncation=truncation,
            linear=seed % 5 < 2,
        )
        engine = ScriptedEngine(codec, seed, stopped=0.15, garbled=0.2, silent=0.5, otherwise=0.1)

        def sample(request: Request, final: bool) -> Completion:
            if live is None:
                most = rng.randint(1, 40) if cutting and rng.random() < 0.5 else 4096
                return engine.complete(request, max_tokens=most, calling=not final)
            if not done.committed:
                live.opened(done.messages, request.decision.enabled)
            return live.engine.complete(request, max_tokens=live.max_tokens)

        try:
            Agent(session, bench.roles, rng, sample, done).work()
        except TruncatedTurnError:
            if live is None or truncation == "close":
                raise
        _compared(bench, session, done)
    except Broken as broken:
        done.broken = broken
    except Exception as cause:
        done.broken = of_error(cause)
    return done


class Agent:
    """A client on a schedule: answers calls, appends, takes back, asks for an end. `sample` is the engine."""

    def __init__(
        self,
        session: Session,
        roles: AppendRoles,
        rng: random.Random,
        sample: Callable[[Request, bool], Completion],
        done: Drive,
    ) -> None:
        self._session, self._rng, self._sample, self._done = session, rng, sample, done
        self._schedule = actions(roles, session.codec.family.boundary)
        self._tools = [*TOOLS] if "tool" in roles.roles else None
        self._messages = done.messages
        self._held: list[tuple[Turn, Ids]] = []
        self._echoed = False

    @property
    def _last(self) -> Turn:
        return self._done.committed[-1]

    def work(self, turns: int = TURNS) -> None:
        """Drives the session for so many turns. Raises Broken, and what the session and the engine raise."""
        self._begin()
        while self._last.depth + 1 < turns:
            self._take_back()
            final = self._last.depth + 1 == turns - 1 and self._may("force_final")
            last = self._last
            if not self._append(final):
                break
            self._echo()
            self._turn(last, final)
        if not self._session.linear:
            self._branch()
            self._compact()
        for turn, ids in self._held:
            if not np.array_equal(turn.ids, ids):
                raise Broken(f"the ids of turn {turn.number}, which was left behind, are others now")
        kept = self._last.line if self._session.linear else tuple(self._done.committed)
        if self._session.turns != kept:
            raise Broken(
                f"the session holds {len(self._session.turns)} turns, of {len(kept)} that it committed and kept"
            )

    def _begin(self, *said: str) -> None:
        """A first prompt, and its turn."""
        if self._rng.random() < 0.5:
            self._messages.append({"role": "system", "content": self._said()})
        self._messages.append({"role": "user", "content": "\n".join((*said, self._said()))})
        self._turn(None)

    def _turn(self, after: Turn | None, final: bool = False) -> None:
        """A request that continues the turn `after`, its completion, and what the client makes of it."""
        session, done = self._session, self._done
        request = session.prepare(self._messages, tools=self._tools)
        if request.parent is not after and not (  # of two that say the same, either may be continued
            after and request.parent and request.parent.conversation() == after.conversation()
        ):
            numbers = [turn and turn.number for turn in (request.parent, after)]
            raise Broken(f"a request continues turn {numbers[0]}, and turn {numbers[1]} is what it holds")
        if request.parent is not None:
            before = request.parent.ids
            if not np.array_equal(before, request.ids[: len(before)]) and not session.codec.family.boundary.shared:
                raise Broken("the prompt does not begin with the stored ids", message_index=request.parent.length - 1)
        completion = self._sample(request, final)
        turn = session.commit(request, completion)
        if turn.depth == 1:
            _refused(session, "a completion is stored twice", lambda: session.commit(request, completion))
            if session.linear:
                other = replace(completion, id=f"{completion.id}-again")
                _refused(
                    session,
                    "a request that was prepared before the last turn is committed",
                    lambda: session.commit(request, other),
                )
        self._messages.append(self._sent_back(turn))
        done.committed.append(turn)
        done.completions[turn] = completion
        done.turns += 1
        done.actions["cut"] += turn.finish_reason == "length"
        stops = [session.codec.encoder.token_id(token) for token in session.codec.family.boundary.stop]
        done.actions["other_end_token"] += int(turn.new[-1]) in stops[1:]
        done.calls += len(turn.message.tool_calls)
        done.tokens += turn.end

    def _sent_back(self, turn: Turn) -> dict[str, Any]:
        """A turn's message as a client echoes it: every third has call ids of the client's own."""
        wire = turn.message.wire()
        if len(self._done.committed) % 3 == 0:
            for call in wire.get("tool_calls", ()):
                call["id"] = f"client-{call['id']}"
        return wire

    def _echo(self) -> None:
        """Once in a session: a client that sends an argument back as another type of number is another conversation."""
        last, session = self._last, self._session
        if self._echoed or not any(
            type(value) is int for call in last.message.tool_calls for value in call.arguments.values()
        ):
            return
        self._echoed = True
        messages = copy.deepcopy(self._messages)
        for call in messages[last.length - 1]["tool_calls"]:
            values = json.loads(call["function"]["arguments"])
            changed = {key: float(value) if type(value) is int else value for key, value in values.items()}
            call["function"]["arguments"] = json.dumps(changed)
        what = "an argument that is sent back as 1.0 for 1 is taken for the same"
        if session.linear:
            _refused(session, what, lambda: session.prepare(messages, tools=self._tools))
            return
        try:
            found = session.prepare(messages, tools=self._tools).parent
        except (GateError, SessionError):
            return
        if found is last:
            raise Broken(what, message_index=last.length - 1)

    def _take_back(self) -> None:
        """Sometimes samples the last turn again, or goes back one turn and another way, once or twice in a row."""
        line = self._last.line
        if self._failed() and self._rng.random() < 0.5:
            name = "failed_call_rollback"
        elif self._rng.random() < 0.25:
            name = self._rng.choice(
                [one for one in self._schedule if one in ("regenerate", "rollback", "rollback_twice")]
            )
        else:
            return
        self._held.append((line[-1], line[-1].ids.copy()))
        if name in ("regenerate", "failed_call_rollback"):
            del self._messages[line[-1].length - 1 :]
            self._turn(line[-1].parent)
        elif len(line) > 1:
            for _ in range(2 if name == "rollback_twice" else 1):
                del self._messages[line[-2].length :]
                self._append(False, line[-2])
                self._turn(line[-2])
        else:
            return
        self._done.actions[name] += 1

    def _branch(self) -> None:
        """Another way after an earlier turn; and then on from where the line was left."""
        line, left = self._last.line, [*self._messages]
        if len(line) < 2:
            return
        self._held.append((line[-1], line[-1].ids.copy()))
        turn = self._rng.choice(line[:-1])
        del self._messages[turn.length :]
        if self._append(False, turn):
            self._turn(turn)
            self._done.actions["branch"] += 1
        self._messages[:] = left
        if self._append(False, line[-1]):
            self._turn(line[-1])

    def _compact(self) -> None:
        """A first prompt that holds what was said last, and a turn after it; control text is nothing that a user says here."""
        codec, said = self._session.codec, self._last.message.content.strip()
        if len(said) < SUMMARY or any(codec.decode([one]) in said for one in codec.encoder.added_ids):
            return
        self._messages.clear()
        self._begin(f"So far: {said}")
        if self._last.summarises is None or self._last.summarises.message.content.strip() != said:
            raise Broken("a first prompt that holds what was said last is not linked to it", message_index=0)
        self._done.actions["compaction"] += 1
        last = self._last
        if self._append(False):
            self._turn(last)

    def _failed(self, turn: Turn | None = None) -> bool:
        """Whether a turn's calls could not be read."""
        parsed = (turn or self._last).parsed
        return "tool" in self._session.codec.append_roles.roles and parsed is not None and parsed.state == "malformed"

    def _append(self, final: bool, turn: Turn | None = None) -> bool:
        """Whether anything may follow the turn, the last where none is named; then it is appended to the messages."""
        last = turn or self._last
        rng, messages = self._rng, self._messages
        if last.message.tool_calls:
            name = self._chosen("tool_results", "tool_results_then_user", "failed_call_result")
            if final and self._may("tool_results_then_user"):
                name = "force_final"
            failed = "error: it timed out " if name == "failed_call_result" else ""
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": f"{failed}{number} {self._said()}"}
                for number, call in enumerate(messages[last.length - 1]["tool_calls"])
            ]
            rng.shuffle(results)
            messages += results
            self._done.actions["parallel_results"] += len(results) > 1
            if name in ("tool_results_then_user", "force_final"):
                messages.append({"role": "user", "content": self._said()})
        else:
            name = self._chosen("user", "system_then_user", "assistant_then_user")
            if not name:
                return False
            if final or self._failed(last):
                name = "force_final" if final else "failed_call_user"
            if name == "system_then_user":
                messages.append({"role": "system", "content": f"{len(messages)}000 ids left"})
            if name == "assistant_then_user":
                messages.append({"role": "assistant", "content": self._said()})
            messages.append({"role": "user", "content": "answer now" if final else self._said()})
        self._done.actions[name] += 1
        return True

    def _may(self, name: str) -> bool:
        return name in self._schedule

    def _chosen(self, *names: str) -> str:
        """One of these actions that the schedule has, or an empty text."""
        allowed = [name for name in names if self._may(name)]
        return self._rng.choice(allowed) if allowed else ""

    def _said(self) -> str:
        return self._rng.choice(_SAID)


def _compared(bench: Bench, session: Session, done: Drive) -> None:
    """Every line against `tokenizers` on its full render, and the samples against what was sampled."""
    lines = [leaf.line for leaf in session.leaves]
    done.compared = len(session.turns)
    known: set[Turn] = set()
    for line in lines:
        last, shared = line[-1], max((turn.length for turn in line if turn in known), default=0)
        known.update(line)
        rendered = session.codec.render(last.conversation(), tools=last.tools, decision=last.decision)
        spans = session.codec.encode(rendered, "engine").spans
        found = session.codec.compare(
            bench.encode(rendered.text), session.codec.finished(last), spans, [_range(line, turn) for turn in line]
        )
        for mismatch in found:
            done.mismatches[mismatch.kind] += mismatch.message_index is None or mismatch.message_index >= shared
            if mismatch.kind in FAULTS:
                raise Broken(
                    f"{mismatch.kind} in segment {mismatch.segment}",
                    message_index=mismatch.message_index,
                    first_index=mismatch.first_index,
                    expected_ids=mismatch.expected_ids,
                    actual_ids=mismatch.actual_ids,
                    expected_text=mismatch.expected_text,
                    actual_text=mismatch.actual_text,
                )
    newest = lines[-1]
    first = _range(newest, newest[0])
    for most in (None, newest[-1].end, newest[-1].end - 1, first[1] - 1, first[0] - 1):
        _sampled(session, done, lines, most)


def _range(line: Sequence[Turn], turn: Turn) -> tuple[int, int]:
    """Where a turn's sampled ids stand in the ids of a line."""
    following = line[turn.depth + 1 : turn.depth + 2]
    return turn.end - turn.sampled, following[0].kept if following else turn.end


def _sampled(session: Session, done: Drive, lines: Sequence[Sequence[Turn]], most: int | None) -> None:
    """One sample a line, of the turns that fit whole; what an earlier one trains does not train again."""
    trained: dict[Turn, int] = {}
    made = session.samples(max_tokens=most, select="leaves")
    if len(made) != len(lines):
        raise Broken(f"{len(made)} samples are made of {len(lines)} lines")
    for line, sample in zip(lines, made, strict=True):
        fitting = [turn for turn in line if most is None or turn.end <= most]
        size = fitting[-1].end if fitting else min(most or 0, line[0].end - line[0].sampled)
        tokens = line[-1].ids[:size].copy()
        mask = np.zeros(len(tokens), dtype=np.int8)
        logprobs = np.zeros(len(tokens), dtype=np.float32)
        told = np.ones(len(tokens), dtype=np.int8)
        for turn in fitting:
            start, end = _range(fitting, turn)
            completion = done.completions[turn]
            mask[start + trained.get(turn, 0) : end] = 1
            trained[turn] = max(trained.get(turn, 0), end - start)
            told[start:end] = 0
            tokens[start:end] = np.asarray(completion.ids)[: end - start]
            logprobs[start:end] = np.asarray(completion.logprobs)[: end - start]
        what = f"the sample of turn {line[-1].number}" + (f", cut to {most} ids" if most else "")
        for name, expected in (("tokens", tokens), ("loss_mask", mask), ("logprobs", logprobs)):
            if not np.array_equal(getattr(sample, name), expected):
                raise Broken(f"{what}: its {name} are not those of the turns' completions and prompts")
        spans = np.zeros(len(tokens), dtype=np.int8)
        for span in sample.spans:
            spans[span.start : span.end] += 1
        if not np.array_equal(spans, told) or sum(span.end - span.start for span in sample.spans) != told.sum():
            raise Broken(f"{what}: its spans are not exactly the ids that were not sampled")


def _refused(session: Session, what: str, act: Callable[[], object]) -> None:
    """Raises Broken where `act` does not raise SessionError, or changes the session."""
    before = session.turns
    try:
        act()
    except SessionError:
        if session.turns == before:
            return
        what = f"{what}: it is refused, and the session changed"
    raise Broken(what, message_index=before[-1].length - 1)
