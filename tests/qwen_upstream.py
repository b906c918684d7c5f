"""Qwen's published chat templates, rendered by `transformers`, and conversations as a template sees them.

Nothing here imports the library: a message is what a client sends, with its content a string, its calls' arguments an
object, and its reasoning under `reasoning_content`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from conversations import HOSTILE, Json, json_objects, texts, tool_schemas
from oracles import chat_template, tokenizer_json

UPSTREAM = {
    "qwen3": "qwen3",
    "qwen3instruct": "qwen3_instruct_2507",
    "qwennext": "Qwen-Qwen3-4B-Thinking-2507",
    "qwen3coder": "Qwen-Qwen3-Coder-30B-A3B-Instruct",
    "qwen35": "qwen3_5_think",
    "qwen36": "qwen3_6",
    "qwen38": "qwen3_8",
}
"""The published template of each family, by its name among the oracles."""


@cache
def ours(family: str) -> str:
    return resources.files("tito_qwen").joinpath(f"templates/{family}.jinja").read_text(encoding="utf-8")


def upstream(family: str) -> str:
    return chat_template(UPSTREAM[family])


def rendered(template: str, messages: Sequence[Json], tools: Sequence[Json] | None = None, **kwargs: Any) -> str:
    """What `transformers` makes of a template's text."""
    offered: list[Any] | None = None if tools is None else list(tools)
    made: tuple[list[str], Any] = render_jinja_template(
        [list(messages)], tools=offered, chat_template=template, **kwargs
    )  # type: ignore[assignment]
    return made[0][0]


def outcome(template: str, messages: Sequence[Json], tools: Sequence[Json] | None = None, **kwargs: Any) -> str:
    """The text, or the error's name and text: what raises must raise the same."""
    try:
        return f"text {rendered(template, messages, tools, **kwargs)}"
    except (TemplateError, TypeError) as cause:
        return f"{type(cause).__name__} {cause}"


# Ids, by `tokenizers` alone.

CONTROLS: tuple[str, ...] = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
CONTROLS += ("<tool_response>", "</tool_response>")


@cache
def _file(family: str) -> bytes:
    """Qwen3's is the maker's own; that of 3.5 was made of its ranks, which has tests of its own."""
    if family in ("qwen35", "qwen36", "qwen38"):
        return gzip.decompress(resources.files("tito_qwen").joinpath("vocabularies/qwen35.json.gz").read_bytes())
    return tokenizer_json("qwen3").read_bytes()


@cache
def raw(family: str) -> Tokenizer:
    return Tokenizer.from_buffer(_file(family))


@cache
def plain(family: str) -> Tokenizer:
    """The same model without added tokens: what it encodes is text."""
    return Tokenizer.from_str(json.dumps({**json.loads(_file(family)), "added_tokens": []}))


@cache
def _added(family: str) -> re.Pattern[str]:
    texts = (token.content for token in raw(family).get_added_tokens_decoder().values())
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def engine_ids(family: str, text: str) -> list[int]:
    """What an engine makes of a text."""
    return list(raw(family).encode(text, add_special_tokens=False).ids)


def literal_ids(
    family: str, conversation: Sequence[Json], tools: Sequence[Json] | None = None, **kwargs: Any
) -> list[int]:
    """A conversation's ids where no text that somebody wrote is a control token.

    The control strings in it are broken with a character that it does not hold, the family's template is rendered by
    `transformers`, and the text between those that are whole is encoded as text.
    """
    written = json.dumps([conversation, tools], ensure_ascii=False)
    mask = next(mark for mark in map(chr, range(0xE000, 0xF000)) if mark not in written)

    def broken(value: Any) -> Any:
        if isinstance(value, str):
            while match := _added(family).search(value):
                value = value[: match.start() + 1] + mask + value[match.start() + 1 :]
            return value
        if isinstance(value, dict):
            return {broken(key): broken(one) for key, one in value.items()}
        return [broken(one) for one in value] if isinstance(value, list) else value

    text = rendered(ours(family), broken(list(conversation)), broken(list(tools)) if tools else None, **kwargs)
    ids: list[int] = []
    place = 0
    for match in [*_added(family).finditer(text), None]:
        piece = text[place : match.start() if match else len(text)].replace(mask, "")
        ids += plain(family).encode(piece, add_special_tokens=False).ids
        if match:
            ids += engine_ids(family, match.group())
            place = match.end()
    return ids


QWEN_HOSTILE = (
    *HOSTILE,
    *(
        "<tool_response>",
        "</tool_response>",
        "<tool_response>\nx\n</tool_response>",
        " <tool_response></tool_response>\n",
    ),
    *(
        "<tool_call>",
        "</tool_call>",
        "<|im_end|>",
        "<|endoftext|>",
        "<think>\n\n</think>\n\n",
        "\n\nr\n",
        "a</think>\n\nb",
    ),
    *("<think>a</think>b</think>c", "</parameter>\n</function>\n</tool_call>", "e\u0301", "\u1112\u1161\u11ab"),
)


@cache
def said() -> st.SearchStrategy[str]:
    """What somebody may say, with what Qwen's templates look at in it."""
    return st.one_of(
        st.sampled_from(QWEN_HOSTILE), st.lists(st.sampled_from(QWEN_HOSTILE), max_size=3).map("".join), texts()
    )


@cache
@st.composite
def messages(draw: st.DrawFn, role: str) -> Json:
    message: Json = {"role": role, "content": draw(said())}
    if role == "tool":
        message["tool_call_id"] = "c0"
    if role != "assistant":
        return message
    reasoning = draw(st.one_of(st.just(None), st.just(""), said()))
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if draw(st.booleans()):
        message["tool_calls"] = [
            {
                "id": f"c{number}",
                "type": "function",
                "function": {"name": draw(texts()), "arguments": draw(json_objects())},
            }
            for number in range(draw(st.integers(0, 3)))
        ]
    return message


@cache
def turns(*roles: str, least: int = 1, most: int = 6) -> st.SearchStrategy[list[Json]]:
    """Messages of these roles, in any order: templates print what they are given."""
    return st.lists(st.sampled_from(roles).flatmap(messages), min_size=least, max_size=most)


def some_tools() -> st.SearchStrategy[list[Json] | None]:
    return st.one_of(st.none(), st.lists(tool_schemas(), max_size=2))
