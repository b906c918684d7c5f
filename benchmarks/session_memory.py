"""What a session of 226 tool turns and 100,000 ids holds in memory, messages included.

    python benchmarks/session_memory.py

Measured with `sys.getsizeof` over every object that the session refers to, each counted once: arrays with their data,
texts, dicts, and the turns themselves. What it shares with all sessions (the codec, classes, texts of the code)
is not its own and is left out, and so is what the client holds: messages are sent and sent back as JSON, so no text of
theirs is shared with the client's. The time is the process's own on the CPU, the best of three, engine not included.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "tito_deepseek")]

import numpy as np  # noqa: E402

import tito_core  # noqa: E402
from tito_core import Codec, Completion, Session  # noqa: E402

TURNS, IDS, LIMIT = 226, 100_000, 2_000_000
TOOL = {"type": "function", "function": {"name": "read", "description": "Reads a file.", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "array"}}, "required": ["path"],
}}}  # fmt: skip
ASKED = {"role": "user", "content": "The suite fails on main. Find out why."}
RESULT = "    return self.table[key]  # the parser's own\n" * 20
THOUGHT = "The error points at the parser, so its source comes next; the table may lack the key. " * 7


def turn_of(number: int) -> dict[str, Any]:
    """A reply that thinks and calls, as an engine's parsers make it."""
    arguments = json.dumps({"path": f"src/module_{number}.py", "lines": [1, 40 + number]})
    call = {"id": f"call_{number:08x}", "type": "function", "function": {"name": "read", "arguments": arguments}}
    return {"role": "assistant", "content": "", "reasoning_content": f"{number}. {THOUGHT}", "tool_calls": [call]}


def answer_to(number: int) -> dict[str, Any]:
    """What the tool returns to it."""
    return {"role": "tool", "tool_call_id": f"call_{number:08x}", "content": f"{number}\n{RESULT}"}


def completions(codec: Codec) -> list[Completion]:
    """What the engine returns, with the ids that the template prints."""
    decision = codec.decide()
    before = len(codec.render([{"role": "user", "content": "0"}], decision=decision).text)
    made = []
    for number in range(TURNS):
        reply = turn_of(number)
        text = codec.render([{"role": "user", "content": "0"}, reply], decision=decision).text[before:]
        text = text.removesuffix(codec.family.boundary.glue)
        ids = np.array(codec.encoder.tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)
        made.append(Completion(ids, np.linspace(-3, 0, len(ids)), "tool_calls", message=json.loads(json.dumps(reply))))
    return made


def grow(
    codec: Codec, sampled: list[Completion], tools: Sequence[dict[str, Any]] = (TOOL,), **kwargs: Any
) -> tuple[Session, float]:
    """A session of all these turns, and the seconds that it took; `kwargs` are the template's."""
    session, seconds = codec.session(chat_template_kwargs=kwargs), 0.0
    wire = json.dumps([ASKED])
    for number, completion in enumerate(sampled):
        messages = json.loads(wire)
        began = time.process_time()
        turn = session.commit(session.prepare(messages, tools=tools), completion)
        seconds += time.process_time() - began
        wire = json.dumps([*messages, turn.message.wire(), answer_to(number)])
    return session, seconds


def owned(session: Session) -> dict[str, int]:
    """Bytes of what a session refers to, by kind."""
    shared = {id(one) for one in _graph(session.codec, set())}
    sizes: dict[str, int] = {}
    for one in _graph(session, shared):
        kind = {np.ndarray: "ids and log-probs", str: "texts"}.get(type(one), "objects")
        sizes[kind] = sizes.get(kind, 0) + sys.getsizeof(one)
    return sizes


def _graph(root: object, known: set[int]) -> list[object]:
    found, pending, known = [], [root], {*known}
    while pending:
        one = pending.pop()
        if id(one) in known or isinstance(one, (type, ModuleType, FunctionType)):
            continue
        known.add(id(one))
        found.append(one)
        pending += gc.get_referents(one)
    return found


def grown() -> tuple[Session, float]:
    codec = tito_core.load("deepseekv32", vocabulary="r1")
    return grow(codec, completions(codec))


def main() -> None:
    runs = [grown() for _ in range(3)]
    session = runs[0][0]
    sizes, ids = owned(session), session.turns[-1].end
    total = sum(sizes.values())
    print(f"{TURNS} turns, {ids:,} ids, {min(seconds for _, seconds in runs):.3f} s")
    for kind, size in (*sizes.items(), ("in all", total)):
        print(f"{kind:18} {size / 1e6:6.2f} MB")
    if total > LIMIT or ids < IDS:
        raise SystemExit(f"at most {LIMIT / 1e6:g} MB are allowed, for {IDS:,} ids or more")


if __name__ == "__main__":
    main()
