"""Completions for a server to say: V3.2's own print of generated messages, whole, cut off, broken, in sampled-looking ids."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from conversations import Json, texts
from oracles import dsv32
from token_path import EOS, Name, engine_ids, resplit

MOST = 240  # ids of a completion
TOOLS = ("f", "get_weather", "naïve")
BLOCK, UNBLOCK, INVOKE = "\n\n<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>", '<｜DSML｜invoke name="f">\n'
MARKS = (
    BLOCK, UNBLOCK, INVOKE, "｜DSML｜", "<", "</", ">\n", "\n\n", '"', "</think>", "<think>", "</｜DSML｜invoke>\n", "{}", "NaN",
    '<｜DSML｜parameter name="k" string="true">', '<｜DSML｜parameter name="j" string="false">', "</｜DSML｜parameter>\n", "<｜User｜>",
)  # fmt: skip
PLAIN = (
    "", "ok", " lead", "trail ", "\nso\n\n", "你好，世界", "naïve ☕", "👩‍👩‍👧", "e\u0301", "a < b > c", "{\"a\": [1]}", "x\r\ny",
    "    if x:\n        return 1\n", "<result>x</result>", "｜", "None",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *PLAIN,
    0,
    -7,
    1.0,
    2.5,
    1e300,
    True,
    None,
    [],
    [1, "two", None],
    {"k": {"z": " é "}},
    10**20,
)


@dataclass(frozen=True)
class Said:
    """`ids` end with the stop token, or are cut by length. `tools`: the names that the request offers."""

    ids: tuple[int, ...]
    thinking: bool
    tools: tuple[str, ...] = TOOLS

    @property
    def cut(self) -> bool:
        return self.ids[-1] != EOS


def said(name: Name, text: str, thinking: bool, *, tools: tuple[str, ...] = TOOLS, seed: int | None = None) -> Said:
    """The ids of a text, up to its stop token; with a seed, other ids of the same bytes."""
    ids = engine_ids(name, text)
    made = (ids if seed is None else resplit(name, ids, random.Random(seed))).tolist()[:MOST]
    return Said(tuple(made[: made.index(EOS) + 1] if EOS in made else made), thinking, tools)


def printed(message: Json, thinking: bool) -> str:
    """What the published encoder prints of an assistant message after a user's."""
    encoder = dsv32()
    if thinking and not (message["reasoning_content"] or message["tool_calls"]):
        return str(encoder.thinking_end_token + message["content"] + encoder.eos_token)
    return str(
        encoder.render_message(1, [{"role": "user", "content": "q"}, message], "thinking" if thinking else "chat")
    )


@st.composite
def completions(draw: st.DrawFn, name: Name, *, broken: bool) -> Said:
    """What a model says to a user. `broken`: parts are missing, doubled, or where they should not be, or it is cut off."""
    thinking = draw(st.booleans())
    words = st.one_of(st.sampled_from(PLAIN), texts()) if broken else st.sampled_from(PLAIN)
    arguments = st.dictionaries(st.sampled_from(["path", "b", "ключ"]), st.sampled_from(VALUES), max_size=2)
    message = {
        "role": "assistant",
        "content": draw(words),
        "reasoning_content": draw(words) if thinking else None,
        "tool_calls": [
            {"function": {"name": called, "arguments": draw(arguments)}}
            for called in draw(st.lists(st.sampled_from(TOOLS), max_size=2))
        ],
    }
    text = printed(message, thinking)
    for _ in range(draw(st.integers(0, 2)) if broken else 0):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 1, 2, 8, 30, 1000])))
        text = text[:start] + draw(st.sampled_from(["", text[start:end] * 2, *MARKS])) + text[end:]
    made = said(name, text or "x", thinking, seed=draw(st.sampled_from([None, 1, 2])))
    return (
        replace(made, ids=made.ids[: draw(st.integers(1, len(made.ids)))]) if broken and draw(st.booleans()) else made
    )
