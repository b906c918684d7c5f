"""Completions of DeepSeek V4 and V4.1 read back: against the published parsers where those accept, by hand elsewhere.

Text is the published encoders' own print, ids are `tokenizers`'. Where ours reads less than a published parser, the reason
stands in docs/deepseek-v4.md.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tito_core
from amounts import examples
from conversations import Json, json_values, texts
from oracles import dsv4
from tito_core import Codec, Completion, Parsed
from token_path import EOS, added, engine_ids
from v4_upstream import ASK, recipe_reads, recipe_text, released

Form = Literal["recipe", "release", "4.1"]
FORMS: tuple[Form, ...] = ("recipe", "release", "4.1")
END = "<｜end▁of▁sentence｜>"
MARKS = {"recipe": ("tool_calls", ""), "release": ("tool_calls", ""), "4.1": ("calls", " ")}


@cache
def codec(form: Form) -> Codec:
    return tito_core.load("deepseekv41") if form == "4.1" else tito_core.load("deepseekv4", revision=form)


def read(form: Form, ids: Any, thinking: bool, finish: Any = "stop") -> Parsed:
    completion = Completion(np.asarray(ids, dtype=np.int32), np.zeros(len(ids)), finish, id="c")
    return tito_core.parse(codec(form), completion, codec(form).decide(thinking))


def read_text(form: Form, text: str, finish: Any = "stop") -> Parsed:
    return read(form, engine_ids("v4", text), False, finish)


def _bare(text: str) -> str:
    """The text without anything that is a control token."""
    while found := [token for token in added("v4").values() if token in text]:
        for token in found:
            text = text.replace(token, "")
    return text


plain = texts().map(_bare)
names = plain.map(lambda text: text.replace('"', "'"))
VALUES = json_values(leaves=3).map(lambda value: json.loads(_bare(json.dumps(value, ensure_ascii=False))))


@st.composite
def said(draw: st.DrawFn) -> tuple[Form, Json]:
    """The recipe's own parser reads a parameter's name up to a space, and does not escape it: its names are plain."""
    form = draw(st.sampled_from(FORMS))
    keys = names if form == "release" else st.sampled_from(("path", "a", "x-1", "ключ", "日本"))
    message: Json = {"role": "assistant", "content": draw(plain), "reasoning_content": draw(plain)}
    message["tool_calls"] = [
        {
            "id": f"c{number}",
            "type": "function",
            "function": {
                "name": draw(names) or "f",
                "arguments": json.dumps(draw(st.dictionaries(keys, VALUES, max_size=3)), ensure_ascii=False),
            },
        }
        for number in range(draw(st.integers(0, 3)))
    ]
    if not message["tool_calls"]:
        del message["tool_calls"]
    return form, message


def printed(form: Form, message: Json, thinking: bool) -> str:
    """What the published encoder prints of the message, behind its header; thoughts are kept."""
    results = [{"role": "tool", "tool_call_id": call["id"], "content": ""} for call in message.get("tool_calls", ())]
    whole = [ASK, message, *results, ASK]
    if form == "release":
        text = released(whole, thinking=thinking)
    else:
        text = recipe_text(whole, thinking=thinking, effort="low", version="4.1" if form == "4.1" else "4")
    start = text.index("<｜Assistant｜>") + len("<｜Assistant｜>" + ("<think>" if thinking else "</think>"))
    return text[start : text.index(END) + len(END)]


def same_as_the_recipe(form: Form, ids: Any, ours: Parsed, thinking: bool) -> None:
    """It takes line breaks off the edges of a thought and an answer, which ours keeps: they were sampled. Of those between a
    `<` and the calls it leaves one."""
    theirs = recipe_reads(ids, thinking=thinking, version="4.1" if form == "4.1" else "4")
    content = ours.content.lstrip("\n")
    assert theirs["reasoning"] == ours.reasoning.strip("\n")
    said = theirs["content"]
    if ours.tool_calls:
        said, content = said.rstrip("\n"), content.rstrip("\n")
    assert said == content
    assert [name for name, _ in theirs["calls"]] == [call.name for call in ours.tool_calls]
    for (_, arguments), call in zip(theirs["calls"], ours.tool_calls, strict=True):
        if all(PLAIN_KEY.fullmatch(key) for key in call.arguments):
            assert json.loads(arguments) == call.arguments


PLAIN_KEY = re.compile(r"[\w-]+")


def calls_of(parsed: Parsed) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in parsed.tool_calls]


@settings(max_examples=examples(150))
@given(said(), st.booleans())
def test_what_was_printed_is_read_as_the_published_parser_reads_it(case: tuple[Form, Json], thinking: bool) -> None:
    form, message = case
    text = printed(form, message, thinking)
    ids = engine_ids("v4", text)
    ours = read(form, ids, thinking)
    assert (ours.state, ours.why) == ("ok", "")
    assert ours.content == message["content"]
    assert ours.reasoning == (message["reasoning_content"] if thinking else "")
    if form == "release":
        theirs = dsv4().parse_message_from_completion_text(text, "thinking" if thinking else "chat")
        assert (theirs["content"], theirs["reasoning_content"]) == (ours.content, ours.reasoning)
        assert [(one["function"]["name"], one["function"]["arguments"]) for one in theirs["tool_calls"]] == [
            (call.name, call.text) for call in ours.tool_calls
        ]
        assert [arguments for _, arguments in calls_of(ours)] == [
            json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())
        ]
        return
    same_as_the_recipe(form, ids[:-1], ours, thinking)


@settings(max_examples=examples(60))
@given(said(), st.booleans(), st.data())
def test_a_cut_completion_is_never_whole(case: tuple[Form, Json], thinking: bool, data: st.DataObject) -> None:
    form, message = case
    ids = engine_ids("v4", printed(form, message, thinking))[:-1]
    assume(len(ids) > 1)
    found = read(form, ids[: data.draw(st.integers(1, len(ids) - 1))], thinking, "length")
    assert found.state == "incomplete"
    assert found.tool_calls == ()
    assert not thinking or message["reasoning_content"].startswith(found.reasoning)


EDITS = (
    "\n",
    " ",
    "<",
    ">",
    "/",
    '"',
    "｜DSML｜",
    "invoke",
    "parameter",
    'string="true"',
    "{",
    "x",
    "</｜DSML｜invoke>",
)


@settings(max_examples=examples(300))
@given(said(), st.data())
def test_what_is_read_as_ok_is_what_the_published_parser_reads(case: tuple[Form, Json], data: st.DataObject) -> None:
    """Completions that a few edits broke, or did not."""
    form, message = case
    text = printed(form, message, False).removesuffix(END)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.sampled_from((0, 0, 1, 3)))
        text = text[:at] + data.draw(st.sampled_from(EDITS)) + text[at + gone :]
    ours = read_text(form, text + END)
    if ours.state != "ok":
        assert ours.tool_calls == ()
        return
    if form == "release":
        theirs = dsv4().parse_message_from_completion_text(text + END, "chat")
        assert (theirs["content"], len(theirs["tool_calls"])) == (ours.content, len(ours.tool_calls))
        assert [
            (one["function"]["name"], json.loads(one["function"]["arguments"])) for one in theirs["tool_calls"]
        ] == (calls_of(ours))
        return
    same_as_the_recipe(form, engine_ids("v4", text), ours, False)


# By hand


def block(form: Form, inside: str, name: str | None = None) -> str:
    named, space = MARKS[form]
    text = f"\n\n<@{name or named}>\n{inside}\n</@{name or named}>".replace("@", f"｜DSML｜{space}")
    return text + END


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("other", ["function_calls", "tool_calls", "calls"])
def test_another_models_block_is_malformed(form: Form, other: str) -> None:
    """Its ids are kept, and nothing of it is called."""
    if other == MARKS[form][0]:
        return
    found = read_text(form, "a" + block(form, '<@invoke name="f">\n</@invoke>', other))
    space = MARKS[form][1]
    assert (found.state, found.tool_calls) == ("malformed", ())
    assert found.why == (f"the block of calls is broken: '{space}{other}>\\n<' stands where the block should")
    assert found.content.startswith("a\n\n<｜DSML｜")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("inside", "why"),
    [
        (
            '<@invoke name="f">\n{"a": 1}\n</@invoke>',
            'the block of calls is broken: \'{space}invoke name="f">\\n{{"a": 1}}\\n</\' stands where the invoke should',
        ),
        (
            '<@invoke name="f">\n<@parameter name="a" string="false">x</@parameter>\n</@invoke>',
            "the parameter 'a' is said to be JSON, and is not (",
        ),
        ("<@invoke>\n</@invoke>", "the block of calls is broken: '{space}invoke>\\n</' stands where the invoke should"),
        (
            '<@invoke name="f">\n<@parameter name="a" string="true">1</@parameter>',
            "the block of calls is broken: '{space}{block}>' stands where the invoke's end should",
        ),
    ],
)
def test_broken_blocks(form: Form, inside: str, why: str) -> None:
    named, space = MARKS[form]
    found = read_text(form, block(form, inside))
    assert (found.state, found.tool_calls) == ("malformed", ())
    assert found.why.startswith(why.format(space=space, block=named))


@pytest.mark.parametrize(
    "text",
    [
        '\n\n<@tool_calls>\n<@invoke name="f">\n{"a": 1}\n</@invoke>\n</@tool_calls>',
        '\n\n<@function_calls>\n<@invoke name="f">\n</@invoke>\n</@function_calls>',
        '\n\n<@tool_calls>\n<@invoke name="f">\n</@invoke>',
    ],
)
def test_what_the_recipe_calls_and_we_do_not(text: str) -> None:
    """The released parser refuses it as we do."""
    text = text.replace("@", "｜DSML｜")
    assert recipe_reads(engine_ids("v4", text), thinking=False)["calls"] == [("f", "{}")]
    with pytest.raises((ValueError, AssertionError)):
        dsv4().parse_message_from_completion_text(text + END, "chat")
    assert read_text("recipe", text + END).state == "malformed"


def test_the_prompt_that_opened_a_thought_nobody_closed() -> None:
    found = read("recipe", [*engine_ids("v4", "so it goes"), EOS], True)
    assert (found.state, found.content) == ("malformed", "so it goes")
    assert read("recipe", engine_ids("v4", "so it goes"), True, "length").reasoning == "so it goes"
