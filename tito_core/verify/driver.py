"""Whole sessions: an agent's schedule, driven through `Session` with the scripted engine or a live one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tito_core.engines.engine import Engine
from tito_core.engines.scripted import ScriptedEngine
from tito_core.families.family import AppendRoles, Boundary
from tito_core.prompts.messages import Message
from tito_core.sessions.session import Session, Turn
from tito_core.tokens.append import Truncation
from tito_core.tokens.compare import FAULTS
from tito_core.verify.bench import Bench, Broken, of_error

__all__ = ["TOOLS", "Drive", "Live", "actions", "drive"]

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

    `committed` is every turn that the session took, those that were rolled back or tried again included; `compared`
    counts those of its last line.
    """

    turns: int = 0
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

    `opened` is told each session's first messages and its thinking mode, before they are sent.
    """

    engine: Engine
    max_tokens: int
    truncation: Truncation
    opened: Callable[[list[dict[str, Any]], bool], None]


def actions(roles: AppendRoles, boundary: Boundary) -> tuple[str, ...]:
    """The schedule that a family's append roles, and its closers for a turn that was cut, allow."""
    follows = roles.follows
    after = follows.get("assistant", frozenset())
    found = {
        "tool_results": "tool" in after and "tool" in roles.ends,
        "tool_results_then_user": "tool" in after and "user" in follows.get("tool", ()) and "user" in roles.ends,
        "user": "user" in after and "user" in roles.ends,
        "system_then_user": "system" in after and "user" in follows.get("system", ()) and "user" in roles.ends,
        "assistant_then_user": "assistant" in after and "user" in roles.ends,
        "rollback": True,
        "retry": True,
        "cut": bool(boundary.closers),
    }
    return tuple(name for name, allowed in found.items() if allowed)


def drive(bench: Bench, seed: int, live: Live | None = None) -> Drive:
    """One session of a few turns. Deterministic from the seed, as far as the engine is."""
    done = Drive()
    try:
        _drive(bench, random.Random(seed), seed, done, live)
    except Broken as broken:
        done.broken = broken
    except Exception as cause:
        done.broken = of_error(cause)
    return done


def _drive(bench: Bench, rng: random.Random, seed: int, done: Drive, live: Live | None) -> None:
    codec = bench.codec
    schedule = actions(bench.roles, codec.family.boundary)
    cutting = live is None and "cut" in schedule and rng.random() < 0.25
    truncation: Truncation = live.truncation if live else "close" if cutting else "refuse"
    mode = rng.choice(codec.family.thinking.modes)
    session = codec.session(thinking=mode, append_roles=bench.roles.roles, truncation=truncation)
    engine = live.engine if live else ScriptedEngine(codec, seed, stopped=0.15)

    def turn() -> bool:
        most = live.max_tokens if live else rng.randint(1, 40) if cutting and rng.random() < 0.5 else 4096
        _turn(session, engine, messages, tools, done, most)
        return truncation == "close" or session.turns[-1].finish_reason != "length"

    tools = [*TOOLS] if "tool_results" in schedule or "tool_results_then_user" in schedule else None
    messages = done.messages
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": _said(rng)})
    messages.append({"role": "user", "content": _said(rng)})
    if live:
        live.opened(messages, mode)
    asked = 0
    while len(session.turns) < TURNS and turn():
        if done.turns < 3 * TURNS and rng.random() < 0.25:
            again = rng.choice(("rollback", "retry"))
            if _take_back(session, messages, again):
                done.actions[again] += 1
                if again == "rollback":
                    asked += 1
                    _append(rng, messages, session.turns[-2].message, schedule, done, asked)
                if not turn():
                    break
        asked += 1
        if not _append(rng, messages, session.turns[-1].message, schedule, done, asked):
            break
    _compared(bench, session, done)


def _turn(
    session: Session,
    engine: Engine,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    done: Drive,
    most: int,
) -> None:
    request = session.prepare(messages, tools=tools)
    if request.parent is not None:
        before = request.parent.ids
        if not np.array_equal(before, request.ids[: len(before)]) and not session.codec.family.boundary.shared:
            raise Broken("the prompt does not begin with the stored ids", message_index=request.parent.length - 1)
    turn = session.commit(request, engine.complete(request, max_tokens=most))
    messages.append(turn.message.wire())
    done.committed.append(turn)
    done.turns += 1
    done.actions["cut"] += turn.finish_reason == "length"
    done.tokens += len(turn.ids)


def _compared(bench: Bench, session: Session, done: Drive) -> None:
    """The whole line against `tokenizers` on the full render, and its sample against what was sampled."""
    last, done.compared = session.turns[-1], len(session.turns)
    rendered = session.codec.render(session.messages(), tools=last.tools, decision=last.decision)
    found = session.codec.compare(
        bench.encode(rendered.text), session.codec.finished(last), session.codec.encode(rendered).spans
    )
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
    sampled = [np.asarray(turn.completion.ids) for turn in session.turns]
    if not session.codec.family.boundary.shared and not np.array_equal(
        sample.tokens[sample.loss_mask == 1], np.concatenate(sampled)
    ):
        raise Broken("the loss mask of the sample does not cover exactly the sampled ids")


def _take_back(session: Session, messages: list[dict[str, Any]], how: str) -> bool:
    """Cuts the messages back to the last prompt (`retry`) or to the turn before the last (`rollback`)."""
    if how == "rollback" and len(session.turns) < 2:
        return False
    length = session.turns[-1].length - 1 if how == "retry" else session.turns[-2].length
    del messages[length:]
    return True


def _append(
    rng: random.Random,
    messages: list[dict[str, Any]],
    last: Message,
    schedule: tuple[str, ...],
    done: Drive,
    asked: int,
) -> bool:
    """Whether anything may follow the assistant's message; then it is appended to `messages`."""
    if last.tool_calls:
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": f"{number} {_said(rng)}"}
            for number, call in enumerate(last.tool_calls)
        ]
        rng.shuffle(results)
        messages += results
        name = rng.choice([name for name in schedule if name.startswith("tool_results")])
        if len(results) > 1:
            done.actions["parallel_results"] += 1
        if name == "tool_results_then_user":
            messages.append({"role": "user", "content": _said(rng)})
    else:
        names = [name for name in schedule if name in ("user", "system_then_user", "assistant_then_user")]
        if not names:
            return False
        name = rng.choice(names)
        if name == "system_then_user":
            messages.append({"role": "system", "content": f"{asked}000 ids left"})
        if name == "assistant_then_user":
            messages.append({"role": "assistant", "content": _said(rng)})
        messages.append({"role": "user", "content": _said(rng)})
    done.actions[name] += 1
    return True


def _said(rng: random.Random) -> str:
    return rng.choice(_SAID)
