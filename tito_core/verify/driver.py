"""Whole sessions: an agent's schedule, driven through `Session` with the scripted engine or a live one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tito_core.engines.engine import Engine
from tito_core.engines.scripted import ScriptedEngine
from tito_core.errors import SessionError, TruncatedTurnError
from tito_core.families.family import AppendRoles, Boundary
from tito_core.responses.completion import Completion
from tito_core.sessions.session import Request, Session, Turn
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

    `committed` is every turn that the session took, those that were taken back included; `compared` counts those of its
    last line.
    """

    turns: int = 0
    calls: int = 0
    tokens: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    mismatches: Counter[str] = field(default_factory=Counter)
    broken: Broken | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    committed: list[Turn] = field(default_factory=list)
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
        "parallel_results": results,
        "tool_results_then_user": "tool" in after and "user" in follows.get("tool", ()) and "user" in roles.ends,
        "user": user,
        "system_then_user": "system" in after and "user" in follows.get("system", ()) and "user" in roles.ends,
        "assistant_then_user": "assistant" in after and "user" in roles.ends,
        "rollback": True,
        "rollback_twice": True,
        "regenerate": True,
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

    def work(self, turns: int = TURNS) -> None:
        """Drives the session for so many turns. Raises Broken, and what the session and the engine raise."""
        if self._rng.random() < 0.5:
            self._messages.append({"role": "system", "content": self._said()})
        self._messages.append({"role": "user", "content": self._said()})
        self._turn()
        while len(self._session.turns) < turns:
            self._take_back()
            final = len(self._session.turns) == turns - 1 and self._may("force_final")
            if not self._append(final):
                break
            self._echo()
            self._turn(final)
        for turn, ids in self._held:
            if not np.array_equal(turn.ids, ids):
                raise Broken(f"the ids of turn {turn.number}, which was taken back, are others now")

    def _turn(self, final: bool = False) -> None:
        session, done = self._session, self._done
        request = session.prepare(self._messages, tools=self._tools)
        if request.parent is not None:
            before = request.parent.ids
            if not np.array_equal(before, request.ids[: len(before)]) and not session.codec.family.boundary.shared:
                raise Broken("the prompt does not begin with the stored ids", message_index=request.parent.length - 1)
        turn = session.commit(request, self._sample(request, final))
        if turn.number == 1:
            _refused(
                session,
                "a request that was prepared before the last turn is committed",
                lambda: session.commit(request, turn.completion),
            )
        self._messages.append(turn.message.wire())
        done.committed.append(turn)
        done.turns += 1
        done.actions["cut"] += turn.finish_reason == "length"
        stops = [session.codec.encoder.token_id(token) for token in session.codec.family.boundary.stop]
        done.actions["other_end_token"] += int(turn.ids[-1]) in stops[1:]
        done.calls += len(turn.message.tool_calls)
        done.tokens += len(turn.ids)

    def _echo(self) -> None:
        """Once in a session: a client that sends an argument back as another type of number is another conversation."""
        last = self._session.turns[-1]
        if self._echoed or not any(
            type(value) is int for call in last.message.tool_calls for value in call.arguments.values()
        ):
            return
        self._echoed = True
        changed = [
            replace(
                call,
                arguments={key: float(value) if type(value) is int else value for key, value in call.arguments.items()},
            )
            for call in last.message.tool_calls
        ]
        messages = [*self._messages]
        messages[last.length - 1] = replace(last.message, tool_calls=tuple(changed)).wire()
        _refused(
            self._session,
            "an argument that is sent back as 1.0 for 1 is taken for the same",
            lambda: self._session.prepare(messages, tools=self._tools),
        )

    def _take_back(self) -> None:
        """Sometimes samples the last turn again, or goes back one turn and another way, once or twice in a row."""
        turns = self._session.turns
        if self._failed() and self._rng.random() < 0.5:
            name = "failed_call_rollback"
        elif self._rng.random() < 0.25:
            name = self._rng.choice(
                [one for one in self._schedule if one in ("regenerate", "rollback", "rollback_twice")]
            )
        else:
            return
        self._held.append((turns[-1], turns[-1].ids.copy()))
        if name in ("regenerate", "failed_call_rollback"):
            del self._messages[turns[-1].length - 1 :]
            self._turn()
        elif len(turns) > 1:
            for _ in range(2 if name == "rollback_twice" else 1):
                del self._messages[self._session.turns[-2].length :]
                self._append(False, self._session.turns[-2])
                self._turn()
        else:
            return
        self._done.actions[name] += 1

    def _failed(self, turn: Turn | None = None) -> bool:
        """Whether a turn's calls could not be read."""
        parsed = (turn or self._session.turns[-1]).parsed
        return "tool" in self._session.codec.append_roles.roles and parsed is not None and parsed.state == "malformed"

    def _append(self, final: bool, turn: Turn | None = None) -> bool:
        """Whether anything may follow the turn, the last where none is named; then it is appended to the messages."""
        last = turn or self._session.turns[-1]
        rng, messages = self._rng, self._messages
        if last.message.tool_calls:
            name = self._chosen("tool_results", "tool_results_then_user", "failed_call_result")
            if final and self._may("tool_results_then_user"):
                name = "force_final"
            failed = "error: it timed out " if name == "failed_call_result" else ""
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": f"{failed}{number} {self._said()}"}
                for number, call in enumerate(last.message.tool_calls)
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
    """The whole line against `tokenizers` on the full render, and its sample against what was sampled."""
    last, done.compared = session.turns[-1], len(session.turns)
    rendered = session.codec.render(session.messages(), tools=last.tools, decision=last.decision)
    ids = session.codec.finished(last)
    spans = session.codec.encode(rendered, "engine").spans
    ranges = [
        (turn.end - turn.sampled, turn.end if following is None else following.kept)
        for turn, following in zip(session.turns, (*session.turns[1:], None), strict=True)
    ]
    found = session.codec.compare(bench.encode(rendered.text), ids, spans, ranges)
    done.mismatches.update(mismatch.kind for mismatch in found)
    for mismatch in found:
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
    (sample,) = session.samples()
    mask = np.zeros(len(sample.tokens), dtype=np.int8)
    logprobs = np.zeros(len(sample.tokens), dtype=np.float32)
    tokens = np.array(last.ids)
    for turn, (start, end) in zip(session.turns, ranges, strict=True):
        mask[start:end] = 1
        logprobs[start:end] = np.asarray(turn.completion.logprobs)[: end - start]
        tokens[start:end] = np.asarray(turn.completion.ids)[: end - start]
    for size in (None, len(tokens) - 1, ranges[-1][0] - 1, ranges[0][0] + 1):
        (sample,) = session.samples(max_tokens=size)
        cut = f"a sample cut after {size} ids" if size else "the sample"
        for name, expected in (("tokens", tokens), ("loss_mask", mask), ("logprobs", logprobs)):
            if not np.array_equal(getattr(sample, name), expected[:size]):
                raise Broken(f"{cut}: its {name} are not those of the turns' completions and prompts")
        told = np.zeros(len(tokens), dtype=np.int8)
        for span in sample.spans:
            told[span.start : span.end] += 1
        if not np.array_equal(told, np.where(np.arange(len(tokens)) < len(sample.tokens), 1 - mask, 0)):
            raise Broken(f"{cut}: its spans are not exactly the ids that were not sampled")


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
