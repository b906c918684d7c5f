"""SGLang's parsers against ours, on the same sampled ids. Where they differ is listed here and in docs/deepseek-v32.md."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

import tito_core
from completions import BLOCK, INVOKE, TOOLS, UNBLOCK, Said, completions, said
from drawn import at_once, codec, drawn
from sglang_server import Server, scripted
from tito_core import Completion, Parsed
from tito_core.prompts.thinking import engine_kwargs
from token_path import THINK, UNTHINK, Name

END = "<｜end▁of▁sentence｜>"
Calls = list[tuple[str, str]]


class Read(NamedTuple):
    """What a completion was read as; calls are names and argument text."""

    reasoning: str
    content: str
    calls: Calls


def theirs(server: Server, one: Said) -> Read:
    ours, decision = codec(server.vocabulary), codec(server.vocabulary).decide(one.thinking)
    prompt = ours.prompt([{"role": "user", "content": "hi"}], decision=decision).ids.tolist()
    offered = {"tools": [{"type": "function", "function": {"name": name}} for name in one.tools]} if one.tools else {}
    choice = server.chat(
        input_ids=prompt, max_tokens=len(one.ids), **engine_kwargs(decision), **offered, **scripted(list(one.ids))
    )
    assert choice["prompt_token_ids"] == prompt
    assert choice["response_token_ids"] == list(one.ids)
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    assert choice["finish_reason"] == ("length" if one.cut else "tool_calls" if calls else "stop")
    return Read(message["reasoning_content"] or "", message["content"], calls)


def parsed(name: Name, one: Said) -> Parsed:
    completion = Completion(one.ids, [0.0] * len(one.ids), "length" if one.cut else "stop", id="c")
    return tito_core.parse(codec(name), completion, codec(name).decide(one.thinking))


def read(made: Parsed) -> Read:
    return Read(made.reasoning, made.content, [(call.name, call.text or "") for call in made.tool_calls])


def reprinted(made: Parsed) -> Read:
    """Ours with the arguments as SGLang prints them: JSON dumped anew, text without the space around it."""
    calls = [
        (call.name, {key: value.strip() if isinstance(value, str) else value for key, value in call.arguments.items()})
        for call in made.tool_calls
    ]
    return read(made)._replace(calls=[(name, json.dumps(value, ensure_ascii=False)) for name, value in calls])


def differences(name: Name, one: Said, made: Parsed) -> set[str]:
    """The keys of DIFFERENT that may apply to a completion."""
    ids, text = list(one.ids), codec(name).decode(one.ids)
    closed = UNTHINK[name] in ids
    found = {
        "broken calls": made.state != "ok"
        and any(mark in text for mark in ("<｜DSML｜function_calls>", "<｜DSML｜invoke")),
        "reasoning never closed": one.thinking and not closed and not one.cut,
        "a think mark opens": THINK[name] in ids,
        "spelled think mark": any(
            text.count(mark) > ids.count(number)
            for mark, number in (("<think>", THINK[name]), ("</think>", UNTHINK[name]))
        ),
        "half a character": "\ufffd" in text,
    }
    return {key for key, applies in found.items() if applies}


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
def test_generated_completions(live: Server, broken: bool) -> None:
    strategy = completions(live.vocabulary, broken=broken)
    examples = drawn(strategy if broken else strategy.filter(lambda one: not one.cut), 32)
    compared = 0
    for one, found in zip(examples, at_once(lambda one: theirs(live, one), examples), strict=True):
        made = parsed(live.vocabulary, one)
        if not differences(live.vocabulary, one, made):
            assert found == reprinted(made), (one, made)
            compared += 1
        assert broken or made.state == "ok"
    assert compared == len(examples) if not broken else compared > len(examples) / 4


def call(body: str) -> str:
    return f"{BLOCK}{INVOKE}{body}</｜DSML｜invoke>\n{UNBLOCK}{END}"


TEXT = '<｜DSML｜parameter name="k" string="true">{}</｜DSML｜parameter>\n'
JSON = '<｜DSML｜parameter name="k" string="false">{}</｜DSML｜parameter>\n'

APART = "‖"  # what stands on its two sides is encoded apart

# What differs: thinking, the sampled text, the tools offered, and what we and what SGLang read.
DIFFERENT: dict[str, tuple[bool, str, tuple[str, ...], Read, Read]] = {
    "text is stripped": (
        *(False, call(TEXT.format("    if x:\n")), TOOLS),
        Read("", "", [("f", '{"k": "    if x:\\n"}')]),
        Read("", "", [("f", '{"k": "if x:"}')]),
    ),
    "JSON is printed anew": (
        *(False, call(JSON.format('{"a":1.50}')), TOOLS),
        Read("", "", [("f", '{"k": {"a":1.50}}')]),
        Read("", "", [("f", '{"k": {"a": 1.5}}')]),
    ),
    "a tool that was not offered": (
        *(False, "ok" + call("\n"), ("g",)),
        Read("", "ok", [("f", "{}")]),
        Read("", "ok", []),
    ),
    "no tools were offered": (
        *(False, "ok" + call("\n"), ()),
        Read("", "ok", [("f", "{}")]),
        Read("", "ok" + call("\n").removesuffix(END), []),
    ),
    "broken calls": (
        *(False, f"ok{BLOCK}{INVOKE}{TEXT.format('v')}", TOOLS),
        Read("", f"ok{BLOCK}{INVOKE}{TEXT.format('v')}", []),
        Read("", "ok", []),
    ),
    "a JSON parameter that is none": (
        *(False, call(JSON.format("NaN")), TOOLS),
        Read("", call(JSON.format("NaN")).removesuffix(END), []),
        Read("", "", [("f", '{"k": "NaN"}')]),
    ),
    "whole calls in a broken block": (
        *(False, f"ok{BLOCK}{INVOKE}\n</｜DSML｜invoke>\n{INVOKE}{UNBLOCK}{END}", TOOLS),
        Read("", f"ok{BLOCK}{INVOKE}\n</｜DSML｜invoke>\n{INVOKE}{UNBLOCK}", []),
        Read("", "ok", [("f", "{}")]),
    ),
    "reasoning never closed": (True, f"done{END}", TOOLS, Read("", "done", []), Read("done", "", [])),
    "a think mark opens": (False, f"a<think>b{END}", TOOLS, Read("", "a<think>b", []), Read("a<think>b", "", [])),
    "spelled think mark": (
        *(True, f"a</‖think>b</think>c{END}", TOOLS),
        Read("a</think>b", "c", []),
        Read("a", "b</think>c", []),
    ),
    "half a character": (False, "ok 👩‍👩‍👧", TOOLS, Read("", "ok 👩‍👩‍", []), Read("", "ok 👩‍👩‍\ufffd", [])),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_listed_differences(live: Server, what: str) -> None:
    thinking, text, tools, ours, expected = DIFFERENT[what]
    parts = [said(live.vocabulary, part, thinking).ids for part in text.split(APART)]
    one = Said(sum(parts, ()), thinking, tools)
    if what == "half a character":
        one = Said(one.ids[:-1], thinking, tools)
    assert read(parsed(live.vocabulary, one)) == ours
    assert theirs(live, one) == expected


def test_the_page_lists_them(request: Any) -> None:
    page = (request.config.rootpath / "docs" / "deepseek-v32.md").read_text(encoding="utf-8")
    listed = page.partition("### Compared with SGLang's parsers")[2]
    assert [line.split(" | ")[0][2:] for line in listed.splitlines() if line.startswith("| ")][2:] == list(DIFFERENT)
