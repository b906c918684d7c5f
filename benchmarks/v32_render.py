"""Full renders of DeepSeek V3.2 conversations, beside the published encoder.

    python tests/oracles.py && python benchmarks/v32_render.py

One conversation of 100 and one of 1,000 messages: user, assistant with a thought and a call, tool result of some 260
tokens, over and over; one tool schema. The best of five runs. `drop` is the published behaviour, the same text from
both; `keep` is this project's default, for which the published file has no single call: its right-hand side renders
each message with what stands before it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "tito_deepseek"), str(ROOT / "tests")]

from oracles import dsv32  # noqa: E402
from tito_core.prompts.messages import normalise, normalise_tools  # noqa: E402
from tito_deepseek.v32_encoding import V32Encoding  # noqa: E402

TOOL = {"type": "function", "function": {"name": "read", "description": "Reads a file.", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "array"}}, "required": ["path"],
}}}  # fmt: skip


def conversation(length: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You fix the failing test."}]
    for number in range((length - 2) // 2):
        call = {"name": "read", "arguments": {"path": f"src/module_{number}.py", "lines": [1, 40 + number]}}
        messages += [
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "The error points at the parser, so its source comes first. " * 4,
                "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"c{number}", "content": "    return self.table[key]  # строка\n" * 26},
        ]
    messages.insert(1, {"role": "user", "content": "The suite fails on main. Find out why."})
    return messages


def kept(messages: list[dict[str, Any]]) -> str:
    upstream = dsv32()
    return str(upstream.bos_token) + "".join(
        upstream.render_message(index, messages[: index + 1], "thinking") for index in range(len(messages))
    )


def best(run: Callable[[], Any]) -> float:
    """Seconds, the least of five runs."""
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times)


def main() -> None:
    print(
        f"{'messages':>8} {'':5} {'text':>9} {'published':>11} {'tito':>10} {'ratio':>7} {'MB/s':>6} {'normalise':>10}"
    )
    before: dict[bool, tuple[float, float]] = {}
    for length in (100, 1000):
        wire = conversation(length)
        hosted = [{**wire[0], "tools": [TOOL]}, *wire[1:]]
        messages, tools = normalise(wire), normalise_tools([TOOL])
        normal = best(lambda wire=wire: normalise(wire))  # type: ignore[misc]
        for dropping in (True, False):
            kwargs = {"thinking": True, "drop_thinking": dropping}
            ours = V32Encoding().render(messages, tools=tools, kwargs=kwargs).text
            if dropping:
                run: Callable[[], str] = lambda: dsv32().encode_messages(hosted, thinking_mode="thinking")  # noqa: E731, B023
            else:
                run = lambda: kept(hosted)  # noqa: E731, B023
            if run() != ours:
                raise SystemExit("the texts differ: see the tests before the times")
            theirs, mine = best(run), best(lambda: V32Encoding().render(messages, tools=tools, kwargs=kwargs))  # noqa: B023
            size = len(ours.encode()) / 1e6
            print(
                f"{len(messages):8} {'drop' if dropping else 'keep':5} {size:6.3f} MB {theirs * 1e3:8.2f} ms "
                f"{mine * 1e3:7.2f} ms {theirs / mine:6.1f}x {size / mine:6.0f} {normal * 1e3:7.2f} ms"
            )
            if dropping in before:
                growth = [now / then for now, then in zip((theirs, mine), before[dropping], strict=True)]
                print(f"{'':14} ten times the messages: published {growth[0]:.0f} times, tito {growth[1]:.0f} times")
            before[dropping] = (theirs, mine)


if __name__ == "__main__":
    main()
