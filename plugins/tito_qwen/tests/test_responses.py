"""Qwen's completions read back, against the published templates that print them and SGLang's own parsers of them.

`DIFFERENCES` is the list of what SGLang 0.5.23 reads otherwise, `TYPES` that of the values; docs/qwen-completions.md
says why. Completions are texts cut at control tokens by hand: what spells one in a text is no control token.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from sglang_qwen import Read, sglang_reads

import tito_core
from amounts import examples
from conversations import json_values, texts
from oracles import chat_template
from tito_core import Codec, Completion, Parsed, Piece, Sampled
from tito_core.prompts.messages import normalise_tools
from tito_qwen import responses
from token_path import added, plain, resplit

Json = dict[str, Any]
Finish = Literal["stop", "length", "tool_calls", "abort"]
END = "<|im_end|>"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
OTHERS = ("<tool_response>", "</tool_response>", r"<\|im_start\|>", r"<\|im_end\|>", r"<\|endoftext\|>")
CONTROLS = frozenset((*MARKS, *(one.replace("\\", "") for one in OTHERS)))
_CONTROL = re.compile(f"({'|'.join(map(re.escape, sorted(CONTROLS, key=len, reverse=True)))})")


class Family(NamedTuple):
    """`template`: the published one; `opens`: its generation header opens reasoning, None where the model does."""

    template: str
    parse: Callable[[Sampled], Parsed]
    kind: Literal["qwen25", "qwen3_coder"]
    opens: bool | None
    modes: tuple[bool, ...]
    trims: bool = False


FAMILIES = {
    "qwen3": Family("qwen3", responses.hermes, "qwen25", None, (True, False)),
    "qwen3instruct": Family("qwen3_instruct_2507", responses.hermes_instruct, "qwen25", None, (False,)),
    "qwennext": Family("Qwen-Qwen3-4B-Thinking-2507", responses.hermes, "qwen25", True, (True,)),
    "qwen3coder": Family(
        "Qwen-Qwen3-Coder-30B-A3B-Instruct", responses.xml_instruct, "qwen3_coder", None, (False,), True
    ),
    "qwen35": Family("qwen3_5_think", responses.xml, "qwen3_coder", True, (True, False), True),
    "qwen36": Family("qwen3_6", responses.xml, "qwen3_coder", True, (True, False), True),
    "qwen38": Family("qwen3_8", responses.xml, "qwen3_coder", True, (True, False), True),
}
families = st.sampled_from(sorted(FAMILIES))


@cache
def _compiled(name: str) -> Any:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    made.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return made.from_string(chat_template(name))


def prompt(family: Family, thinking: bool) -> str:
    """The published template's print of a user's message, up to where the engine samples."""
    return str(
        _compiled(family.template).render(
            messages=[{"role": "user", "content": "q"}], add_generation_prompt=True, enable_thinking=thinking
        )
    )


def printed(family: Family, message: Json, thinking: bool) -> str:
    """What the published template prints of an assistant message, after the generation header of `thinking`."""
    header = prompt(family, thinking)
    text = str(
        _compiled(family.template).render(
            messages=[{"role": "user", "content": "q"}, {"role": "assistant", **message}], enable_thinking=thinking
        )
    )
    assert text.startswith(header)
    return text[len(header) :].removesuffix("\n")


def wire(parsed: Parsed) -> Json:
    """What was read, as the templates take it."""
    calls = [{"function": {"name": one.name, "arguments": one.arguments}} for one in parsed.tool_calls]
    return {"content": parsed.content, "reasoning_content": parsed.reasoning, "tool_calls": calls}


def pieces(text: str, mask: str = "\ue000", controls: frozenset[str] = CONTROLS) -> Iterator[Piece]:
    """Control tokens where their text stands whole; the mask that breaks one is taken out of the other texts."""
    place = 0
    for part in _CONTROL.split(text):
        kind: Literal["text", "control"] = "control" if part in controls else "text"
        if part := part.replace(mask, ""):
            size = 1 if kind == "control" else len(part)
            yield Piece(kind, part, place, place + size)
            place += size


def sampled(
    text: str,
    *,
    opened: bool = False,
    finish: Finish = "stop",
    tools: Sequence[Json] = (),
    mask: str = "\ue000",
    controls: frozenset[str] = CONTROLS,
) -> Sampled:
    stop = END if text.endswith(END) else None
    made = tuple(pieces(text.removesuffix(END), mask, controls))
    return Sampled(made, opened, stop, finish, normalise_tools(tools), controls)


def told(parsed: Parsed) -> list[tuple[str, Any]]:
    return [(one.name, one.arguments) for one in parsed.tool_calls]


def typed(value: Any) -> Json:
    """The schema of a value."""
    kinds = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"))
    return {"type": next((name for kind, name in kinds if isinstance(value, kind)), "null")}


def tools_of(message: Json) -> list[Json]:
    """Each call's own tool: its parameters have the types of the arguments."""
    return [
        {
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "parameters": {
                    "type": "object",
                    "properties": {key: typed(value) for key, value in call["function"]["arguments"].items()},
                },
            },
        }
        for call in message["tool_calls"]
    ]


INNER = (
    "<function=f>",
    "</function>",
    "<parameter=k>",
    "</parameter>",
    "\n</parameter>\n",
    "null",
    "None",
    "True",
    "1",
)
words = st.lists(st.one_of(texts(), st.sampled_from((*INNER, *sorted(CONTROLS)))), max_size=3).map("".join)
keys = st.one_of(st.sampled_from(["path", "b", "ключ"]), words).map(lambda key: re.sub("[<>\n]", "", key))
arguments = st.dictionaries(keys, st.one_of(words, json_values()), max_size=3)


@st.composite
def spoken(draw: st.DrawFn) -> Json:
    """An assistant message: text that may spell anything, calls of a tool each."""
    names = draw(st.lists(st.sampled_from(["f", "read_file", "naïve", "a.b-c"]), max_size=2))
    calls = [
        {"function": {"name": f"{name}_{number}", "arguments": draw(arguments)}} for number, name in enumerate(names)
    ]
    return {"content": draw(words), "reasoning_content": draw(words), "tool_calls": calls}


def broken(mask: str, value: Any) -> Any:
    """The value with every control string in it broken by the mask, and what could begin one."""
    if isinstance(value, str):
        return value.replace("<", f"<{mask}")
    if isinstance(value, Mapping):
        return {broken(mask, key): broken(mask, one) for key, one in value.items()}
    return [broken(mask, one) for one in value] if isinstance(value, list) else value


def values(message: Json) -> list[str]:
    """The arguments as XML holds them."""
    found = [one for call in message["tool_calls"] for one in call["function"]["arguments"].values()]
    return [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in found]


def ambiguous(family: Family, message: Json) -> bool:
    """Whether a call's XML says two things: a value opens a parameter, or ends one and the function."""
    said = r"<parameter=|</parameter>\s*</function>\s*\Z"
    return family.kind == "qwen3_coder" and any(re.search(said, one) for one in values(message))


def canonical(family: Family, name: str, message: Json) -> bool:
    """Whether the template prints content and reasoning as they are."""
    content, reasoning = message["content"], message["reasoning_content"]
    if family.trims:
        return (content, reasoning) == (content.strip(), reasoning.strip()) or (
            name == "qwen3coder" and not message["tool_calls"]
        )
    return name == "qwen3instruct" or (content == content.lstrip("\n") and reasoning == reasoning.strip("\n"))


@settings(deadline=None, max_examples=examples(300))
@given(families, st.data(), spoken())
def test_what_a_template_prints_is_read_back(name: str, data: st.DataObject, message: Json) -> None:
    """Reasoning, content and arguments to the byte, whatever control tokens their texts spell."""
    family = FAMILIES[name]
    thinking = data.draw(st.sampled_from(family.modes))
    if not thinking:
        message = {**message, "reasoning_content": ""}
    assume(not ambiguous(family, message))
    said = json.dumps(message, ensure_ascii=False)
    mask = next(one for one in map(chr, range(0xE000, 0xF000)) if one not in said)
    text = printed(family, broken(mask, message), thinking)
    parsed = family.parse(sampled(text, opened=bool(family.opens and thinking), tools=tools_of(message), mask=mask))
    assert (parsed.state, parsed.why) == ("ok", "")
    assert told(parsed) == [(one["function"]["name"], one["function"]["arguments"]) for one in message["tool_calls"]]
    assert [list(one) for _, one in told(parsed)] == [
        list(one["function"]["arguments"]) for one in message["tool_calls"]
    ]
    assert [one.arguments for one in parsed.tool_calls] == [json.loads(one.text or "") for one in parsed.tool_calls]
    if canonical(family, name, message):
        assert (parsed.content, parsed.reasoning) == (message["content"], message["reasoning_content"])
    assert printed(family, broken(mask, wire(parsed)), thinking) == text


def stripped(read: Read, text: str) -> Read:
    """What SGLang reads, less what the template prints around reasoning and content."""
    reasoning, content = read.reasoning.removesuffix("\n"), read.content
    if text.startswith("<think>"):
        reasoning = read.reasoning.removeprefix("\n").removesuffix("\n")
    if "</think>" in text:
        content = content.removeprefix("\n").removeprefix("\n")
    return Read(reasoning, content.strip() if read.calls else content, read.calls)


def upstream(family: Family, text: str, opened: bool, tools: Sequence[Json]) -> Read:
    """As a server reads it that was started with this family's parsers."""
    thinks = family.parse in (responses.hermes, responses.xml)
    read = sglang_reads(text.removesuffix(END), family.kind, tools, opened=opened if thinks else None)
    return stripped(read, text)


def ours(parsed: Parsed) -> Read:
    return Read(parsed.reasoning, parsed.content.strip() if parsed.tool_calls else parsed.content, told(parsed))


@settings(deadline=None, max_examples=examples(300))
@given(families, st.data(), spoken())
def test_what_sglang_reads(name: str, data: st.DataObject, message: Json) -> None:
    """The same, where no text spells a mark of the format: SGLang sees no tokens. Nor null, which it reads as none."""
    family = FAMILIES[name]
    thinking = data.draw(st.sampled_from(family.modes))
    message = json.loads(json.dumps(message if thinking else {**message, "reasoning_content": ""}).replace("<", "-"))
    assume(family.kind == "qwen25" or not any(one.lower() == "null" for one in values(message)))
    text, opened, tools = printed(family, message, thinking), bool(family.opens and thinking), tools_of(message)
    assert ours(family.parse(sampled(text, opened=opened, tools=tools))) == upstream(family, text, opened, tools)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {"k": {"type": "string"}, "j": {"type": "integer"}}},
        },
    }
]
SPLICES = (
    *CONTROLS, *INNER, "\n", "\n\n", " ", "x", "é", "👩‍👩‍👧", "<function=", "<parameter=", "{", "}", ":", ",", '"', "NaN",
    '{"name": "f", "arguments": {}}', '<tool_call>\n{"name": "f", "arguments": {"k": "v"}}\n</tool_call>',
    "<tool_call>\n<function=f>\n<parameter=k>\nv\n</parameter>\n</function>\n</tool_call>", '"k": "v", ', "<think", "think>",
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, family: Family, thinking: bool) -> str:
    """A well-formed completion in which spans are cut out, doubled, moved or replaced."""
    plain = st.sampled_from(["", "a", "a\n", " b", "    if x:\n        return 1\n"])
    calls = draw(st.lists(st.fixed_dictionaries({}, optional={"k": plain, "j": st.integers(0, 9)}), max_size=2))
    message = {
        "content": draw(plain),
        "reasoning_content": draw(plain) if thinking else "",
        "tool_calls": [{"function": {"name": "f", "arguments": value}} for value in calls],
    }
    text = printed(family, message, thinking)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 1, 2, 8, 30, 1000])))
        kind = draw(st.sampled_from(["delete", "double", "insert"]))
        if kind == "delete":
            text = text[:start] + text[end:]
        elif kind == "double":
            text = text[:end] + text[start:]
        else:
            text = text[:start] + draw(st.sampled_from(SPLICES)) + text[start:]
    return text


def whole(family: Family, text: str, opened: bool) -> bool:
    """Whether a text has the form that docs/qwen-completions.md gives, written as one pattern of the text."""
    opener, closer = ('"', '"') if family.kind == "qwen25" else ("<parameter=", "</parameter>")
    last = r"</function>\s*</?tool_call>"  # of a parameter that is not closed
    free, mind, within, beside = (
        f"(?:(?!{'|'.join(ends)}).)*"
        for ends in (
            (*MARKS, *OTHERS),
            ("</think>", *OTHERS[2:]),
            (closer, *((r"\\",) if opener == '"' else (last,)), *OTHERS[2:]),
            (opener, *MARKS[2:], *OTHERS[2:]),
        )
    )
    call = f"{beside}(?:{opener}{within}(?:\\\\.{within})*{closer}{beside})*"
    thought = (
        "" if family.parse in (responses.hermes_instruct, responses.xml_instruct) else f"(?:<think>{mind}</think>)?"
    )
    thought = f"{mind}</think>" if opened else thought
    found = re.fullmatch(rf"{thought}{free}((?:<tool_call>{call}</tool_call>\s*)*)", text, re.DOTALL)
    if found is None:
        return False
    bodies = re.findall(
        f"<tool_call>({call})</tool_call>", found[found.lastindex or 0] if found.lastindex else "", re.DOTALL
    )
    return all(map(json_body if family.kind == "qwen25" else xml_body, bodies))


def json_body(body: str) -> bool:
    class Twice(list[Any]):
        pass

    try:
        call = json.loads(body, object_pairs_hook=Twice, parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return False
    if not isinstance(call, Twice) or sorted(key for key, _ in call) != ["arguments", "name"]:
        return False
    name, given = dict(call)["name"], dict(call)["arguments"]
    return isinstance(name, str) and bool(name) and isinstance(given, Twice) and len(dict(given)) == len(given)


def xml_body(body: str) -> bool:
    found = re.fullmatch(
        r"\s*<function=([^<>\n]+)>\s*((?:<parameter=[^<>\n]*>.*</parameter>\s*)?)</function>\s*", body, re.DOTALL
    )
    if found is None:
        return False
    heads = re.split(r"</parameter>\s*(?=<parameter=)", found[2])
    given = [re.match(r"<parameter=([^<>\n]*)>\n?(.*)", head, re.DOTALL) for head in heads if head]
    names = [one and one[1] for one in given]
    return all(one and "<parameter=" not in one[2] for one in given) and len(set(names)) == len(names)


def lossless(parsed: Parsed, text: str) -> None:
    """What is not ok shows all that was sampled, less the line ends that the template prints."""
    assert parsed.why
    assert parsed.tool_calls == ()
    shown = parsed.reasoning, parsed.content
    forms = ["".join(shown), f"<think>{''.join(shown)}", "</think>".join(shown), f"<think>{'</think>'.join(shown)}"]
    assert text.replace("\n", "") in [form.replace("\n", "") for form in forms]
    assert parsed.content in text
    assert parsed.reasoning in text


@settings(deadline=None, max_examples=examples(500), derandomize=True)  # the list of differences may not be closed
@given(families, st.data(), st.sampled_from(["stop", "length"]))
def test_whatever_was_sampled(name: str, data: st.DataObject, finish: Finish) -> None:
    family = FAMILIES[name]
    thinking = data.draw(st.sampled_from(family.modes))
    opened = bool(family.opens and thinking)
    text = data.draw(mutated(family, thinking))
    parsed = family.parse(sampled(text, opened=opened, finish=finish, tools=TOOLS))
    body = text.removesuffix(END)
    if parsed.state == "ok":
        assert text.endswith(END) or finish == "stop"
        listed = any(word in str(told(parsed)) for word in INNER[:8]) or re.search(
            r"<tool_call>(?!\n)|(?<!\n)</tool_call>", text
        )
        listed = listed or any(called != "f" for called, _ in told(parsed))
        if not listed and not text.startswith("<think>" if opened else "<think><think>"):
            read = upstream(family, body, opened, TOOLS)
            assert read == ours(parsed)
    else:
        lossless(parsed, body)
        assert parsed.state == "malformed" or not (text.endswith(END) or finish == "stop")
    if text.endswith(END) or finish == "stop":
        assert (parsed.state == "ok") == whole(family, body, opened)


@settings(deadline=None, max_examples=examples(60))
@given(families, st.data(), spoken())
def test_every_cut(name: str, data: st.DataObject, message: Json) -> None:
    """Cut at any place: never ok, reasoning only grows, and nothing is lost."""
    family = FAMILIES[name]
    thinking = data.draw(st.sampled_from(family.modes))
    message = message if thinking else {**message, "reasoning_content": ""}
    assume(not ambiguous(family, message))
    said = json.dumps(message, ensure_ascii=False)
    mask = next(one for one in map(chr, range(0xE000, 0xF000)) if one not in said)
    text = printed(family, broken(mask, message), thinking).removesuffix(END)
    opened, reasoning = bool(family.opens and thinking), ""
    final = family.parse(sampled(text, opened=opened, tools=tools_of(message), mask=mask)).reasoning
    for size in sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=30))):
        if re.search(r"<[^<>\s]*\Z", text[:size]) or not size:  # half a mark is no token
            continue
        parsed = family.parse(sampled(text[:size], opened=opened, finish="length", tools=tools_of(message), mask=mask))
        assert parsed.state == "incomplete"
        assert re.fullmatch(r"cut in its (reasoning|content|calls) \(finish reason length\)", parsed.why)
        lossless(parsed, text[:size].replace(mask, ""))
        assert parsed.reasoning.startswith(reasoning)
        assert final.startswith(parsed.reasoning)
        reasoning = parsed.reasoning


@cache
def codec(name: str) -> Codec:
    return tito_core.load(name)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(60))
@given(
    st.sampled_from(["qwen3", "qwen3instruct", "qwennext", "qwen3coder"]), st.data(), spoken(), st.integers(0, 2**16)
)
def test_ids_of_the_real_vocabulary(name: str, data: st.DataObject, message: Json, seed: int) -> None:
    """Encoded by `tokenizers`, texts without control tokens and then in other ids of the same bytes, they read the same."""
    family = FAMILIES[name]
    thinking = data.draw(st.sampled_from(family.modes))
    message = message if thinking else {**message, "reasoning_content": ""}
    said = json.dumps(message, ensure_ascii=False)
    mask = next(one for one in map(chr, range(0xE000, 0xF000)) if one not in said)
    text = printed(family, broken(mask, message), thinking)
    tools, opened = tools_of(message), bool(family.opens and thinking)
    known = {content: number for number, content in added("qwen3").items()}
    ids: list[int] = []
    for piece in pieces(text, mask):
        ids += [known[piece.text]] if piece.kind == "control" else plain("qwen3").encode(piece.text).ids
    ids = resplit("qwen3", np.array(ids, np.int32), random.Random(seed)).tolist()
    completion = Completion(ids, np.zeros(len(ids)), "stop", id="c")
    parsed = tito_core.parse(codec(name), completion, codec(name).decide(thinking), normalise_tools(tools))
    expected = family.parse(sampled(unicodedata.normalize("NFC", text), opened=opened, tools=tools, mask=mask))
    assert (parsed.state, parsed.content, parsed.reasoning) == (expected.state, expected.content, expected.reasoning)
    assert [(one.name, one.text) for one in parsed.tool_calls] == [(one.name, one.text) for one in expected.tool_calls]
    assert [one.id for one in parsed.tool_calls] == [f"call_c_{number}" for number in range(len(parsed.tool_calls))]
    assert list(completion.ids) == ids


def call(name: str = "f", **given: str) -> str:
    """A call in XML as the templates print it."""
    return (
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items())
        + "</function>\n</tool_call>"
    )


def hermes(arguments: str = "{}", name: str = "f") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def schema(**properties: Json) -> list[Json]:
    return [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}]


F, K = ("f", {}), [("f", {"k": "v"})]
THINKS = "<think>\na\n</think>\n\n"


class Difference(NamedTuple):
    """A whole completion that SGLang reads otherwise. `why` is None where ours is ok and has `calls`."""

    what: str
    family: str
    text: str
    why: str | None
    calls: list[tuple[str, Any]]
    sglang: Read
    opened: bool = False


STRAY = "the control token {} stands where the format has none: ids {} to {} of the completion"
DIFFERENCES = (
    Difference(
        "reasoning that the prompt opened and nothing closes: an answer that is not as it should be",
        "qwen35", "It is 4.", "the prompt opened reasoning, and no </think> closes it", [],
        Read("It is 4.", "", []), True,
    ),
    Difference(
        "reasoning that the model opened and never closed",
        "qwen3", "<think>\nIt is 4.", "it opened reasoning, and no </think> closes it", [], Read("\nIt is 4.", "", []),
    ),
    Difference(
        "a call in reasoning that nothing closes: no call",
        "qwen35", "a\n" + call(k="v"), "the prompt opened reasoning, and no </think> closes it", [],
        Read("a\n", "", K), True,
    ),
    Difference(
        "an opener that comes first after the prompt's own: kept in the reasoning",
        "qwen35", "<think>\na\n</think>\n\nb", None, [], Read("\na\n", "\n\nb", []), True,
    ),
    Difference(
        "an opener in the content", "qwen3", "a <think> b",
        STRAY.format("<think>", 2, 2), [], Read("a <think> b", "", []),
    ),
    Difference(
        "a second closer", "qwen3", THINKS + "b</think>c",
        STRAY.format("</think>", 8, 8), [], Read("\na\n", "\n\nb</think>c", []),
    ),
    Difference(
        "reasoning of a model that has none", "qwen3instruct", THINKS + hermes(),
        STRAY.format("<think>", 0, 0), [], Read("", THINKS.strip(), [F]),
    ),
    Difference(
        "text after a call", "qwen3", "a\n" + hermes() + "\nb",
        "'b' stands after a call, where only another call may", [], Read("", "a", [F]),
    ),
    Difference(
        "text between calls", "qwen3coder", call(k="v") + "b" + call(),
        "'b' stands after a call, where only another call may", [], Read("", "", [*K, F]),
    ),
    Difference(
        "white space around content that calls follow: kept", "qwen3", " a \n" + hermes(), None, [F], Read("", "a", [F]),
    ),
    Difference(
        "a call that is not closed", "qwen3coder", call(k="v") + "\n" + call().removesuffix("</tool_call>"),
        "a call is not closed: </tool_call> is missing", [], Read("", "", K),
    ),
    Difference(
        "a call in a call", "qwen3", "<tool_call>\n" + hermes(),
        STRAY.format("<tool_call>", 2, 2), [], Read("", "", []),
    ),
    Difference(
        "a call that is no JSON, beside one that is", "qwen3", hermes() + "\n" + hermes("{'k': 1}"),
        "a call is no JSON (Expecting property name enclosed in double quotes: line 2 column 29 (char 29)): "
        "'{\"name\": \"f\", \"arguments\": {\\'k\\': 1}}'", [], Read("", "", [F]),
    ),
    Difference(
        "XML where JSON is spoken", "qwen3", call(k="v"),
        "a call is no JSON (Expecting value: line 2 column 1 (char 1)): '<function=f>\\n<parameter=k>\\nv\\n</parameter'", [],
        Read("", "", []),
    ),
    Difference(
        "JSON where XML is spoken", "qwen3coder", hermes(),
        "a call is broken: '\\n{\"name\": \"f\", \"arguments\": {}}\\n' stands where <function=NAME> should", [],
        Read("", "", []),
    ),
    Difference(
        "JSON that says a thing twice", "qwen3", hermes('{"k": 1, "k": 2}'),
        "a call is no JSON (the key 'k' stands twice): '{\"name\": \"f\", \"arguments\": {\"k\": 1, \"k\":'", [],
        Read("", "", [("f", {"k": 2})]),
    ),
    Difference(
        "JSON without arguments", "qwen3", '<tool_call>\n{"name": "f"}\n</tool_call>',
        "a call is no object of name and arguments alone: '{\"name\": \"f\"}'", [], Read("", "", [F]),
    ),
    Difference(
        "JSON with another name for arguments", "qwen3", '<tool_call>\n{"name": "f", "parameters": {"k": "v"}}\n</tool_call>',
        "a call is no object of name and arguments alone: '{\"name\": \"f\", \"parameters\": {\"k\": \"v\"}}'", [],
        Read("", "", K),
    ),
    Difference(
        "JSON that says more", "qwen3", '<tool_call>\n{"name": "f", "arguments": {}, "id": 1}\n</tool_call>',
        "a call is no object of name and arguments alone: '{\"name\": \"f\", \"arguments\": {}, \"id\": 1}'", [],
        Read("", "", [F]),
    ),
    Difference(
        "a list of calls", "qwen3", '<tool_call>\n[{"name": "f", "arguments": {}}]\n</tool_call>',
        "a call is no object of name and arguments alone: '[{\"name\": \"f\", \"arguments\": {}}]'", [], Read("", "", [F]),
    ),
    Difference(
        "arguments that are no object", "qwen3", hermes('"{}"'),
        "the call of 'f' can't be kept: message 0 (assistant) tool call 0 has arguments that are JSON, but a str; send a "
        "JSON object", [], Read("", "", [("f", "{}")]),
    ),
    Difference(
        "JSON beside its marks, without line ends", "qwen3", hermes().replace("\n", ""), None, [F],
        Read("", hermes().replace("\n", ""), []),
    ),
    Difference(
        "a tool that was not offered", "qwen3", hermes(name="g"), None, [("g", {})], Read("", "", []),
    ),
    Difference(
        "a parameter twice", "qwen3coder", call(k="v").replace("</function>", "<parameter=k>\nw\n</parameter>\n</function>"),
        "the call of 'f' can't be kept: the key 'k' stands twice", [], Read("", "", [("f", {"k": "w"})]),
    ),
    Difference(
        "a parameter that is not closed", "qwen3coder", call(k="v").replace("\n</parameter>", ""),
        "the call of 'f' is broken: '<parameter=k>\\nv\\n</function>\\n' stands where a whole parameter or </function> "
        "should", [], Read("", "", K),
    ),
    Difference(
        "a parameter that is not closed before the next", "qwen3coder",
        call(k="v", j="1").replace("\n</parameter>", "", 1),
        "the call of 'f' says two things: the parameter 'k' holds <parameter=, or is not closed before it",
        [], Read("", "", [("f", {"k": "v", "j": 1})]),
    ),
    Difference(
        "a function that is not closed", "qwen3coder", call(k="v").replace("</function>\n", ""),
        "the call of 'f' is broken: '<parameter=k>\\nv\\n</parameter>\\n' stands where a whole parameter or </function> "
        "should", [], Read("", "", K),
    ),
    Difference(
        "two functions in one call", "qwen3coder", call(k="v").replace("\n</tool_call>", "\n<function=f>\n</function>\n</tool_call>"),
        "the call of 'f' is broken: '<parameter=k>\\nv\\n</parameter>\\n</function>' stands where a whole parameter or "
        "</function> should", [], Read("", "", [*K, F]),
    ),
    Difference(
        "text in a call", "qwen3coder", call(k="v").replace("<function", "so: <function"),
        "a call is broken: '\\nso: <function=f>\\n<parameter=k>\\nv\\n</para' stands where <function=NAME> should", [],
        Read("", "", K),
    ),
    Difference(
        "a value that holds marks", "qwen3coder", call(k="a</parameter>b</function>c<parameter>d"), None,
        [("f", {"k": "a</parameter>b</function>c<parameter>d"})], Read("", "", [("f", {"k": "a"})]),
    ),
    Difference(
        "a value that holds a call's marks", "qwen3coder", call(k="a <tool_call> b </tool_call> c"), None,
        [("f", {"k": "a <tool_call> b </tool_call> c"})], Read("", "", [("f", {"k": "a <tool_call> b "})]),
    ),
    Difference(
        "the word null in a string", "qwen3coder", call(k="null"), None, [("f", {"k": "null"})],
        Read("", "", [("f", {"k": None})]),
    ),
)  # fmt: skip


@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: row.what)
def test_what_sglang_reads_otherwise(row: Difference) -> None:
    family = FAMILIES[row.family]
    parsed = family.parse(sampled(row.text + END, opened=row.opened, tools=TOOLS))
    thinks = family.parse in (responses.hermes, responses.xml)
    read = sglang_reads(row.text, family.kind, TOOLS, opened=row.opened if thinks else None)
    assert read == row.sglang
    assert (parsed.why or None, told(parsed)) == (row.why, row.calls)
    assert parsed.state == ("malformed" if row.why else "ok")
    assert row.why or Read(parsed.reasoning, parsed.content, told(parsed)) != stripped(read, row.text)
    if row.why:
        lossless(parsed, row.text)


def values_of(text: str, tools: Sequence[Json]) -> tuple[Any, str | None]:
    """The one argument of a call, and its JSON as it is kept."""
    parsed = responses.xml(sampled(call(k=text) + END, tools=tools))
    assert parsed.state == "ok"
    (one,) = parsed.tool_calls
    return one.arguments["k"], one.text


ANY: Json = {"properties": {}}
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}
TYPES: tuple[tuple[Json, str, Any, Any], ...] = (
    # the parameter's schema, the text, ours, SGLang's
    ({"type": "string"}, '{"a": 1}', '{"a": 1}', '{"a": 1}'),
    ({"type": "string"}, "5", "5", "5"),
    ({"type": "string"}, "true", "true", "true"),
    ({"type": "string"}, "null", "null", None),
    ({"type": "string"}, "NULL", "NULL", None),
    ({"type": "string"}, "", "", ""),
    ({"type": "string"}, "\n  x \n", "\n  x \n", "\n  x \n"),
    ({"type": "integer"}, "5", 5, 5),
    ({"type": "integer"}, "-7", -7, -7),
    ({"type": "integer"}, str(10**40), 10**40, 10**40),
    ({"type": "integer"}, "1.0", "1.0", "1.0"),
    ({"type": "integer"}, "five", "five", "five"),
    ({"type": "integer"}, "+5", "+5", 5),
    ({"type": "integer"}, "1_000", "1_000", 1000),
    ({"type": "integer"}, "true", "true", "true"),
    ({"type": "integer"}, "null", "null", None),
    ({"type": "integer"}, "", "", ""),
    ({"type": "number"}, "1", 1, 1),
    ({"type": "number"}, "1.50", 1.5, 1.5),
    ({"type": "number"}, "1e3", 1000.0, 1000.0),
    ({"type": "number"}, ".5", ".5", 0.5),
    ({"type": "number"}, "NaN", "NaN", float("nan")),
    ({"type": "boolean"}, "true", True, True),
    ({"type": "boolean"}, "False", False, False),
    ({"type": "boolean"}, "TRUE", "TRUE", True),
    ({"type": "boolean"}, "yes", "yes", False),
    ({"type": "boolean"}, "1", "1", False),
    ({"type": "null"}, "null", None, None),
    ({"type": "null"}, "None", None, None),
    ({"type": "null"}, "x", "x", "x"),
    ({"type": "array"}, '[1, "two", null]', [1, "two", None], [1, "two", None]),
    ({"type": "array"}, "[1, True]", "[1, True]", [1, True]),
    ({"type": "array"}, '{"a": 1}', '{"a": 1}', {"a": 1}),
    ({"type": "object"}, '{"b": {"z": 1, "a": "é"}}', {"b": {"z": 1, "a": "é"}}, {"b": {"z": 1, "a": "é"}}),
    ({"type": "object"}, "{'a': 1}", "{'a': 1}", {"a": 1}),
    ({"type": "object"}, '{"a": 1, "a": 2}', '{"a": 1, "a": 2}', {"a": 2}),
    ({"type": ["integer", "null"]}, "5", 5, 5),
    ({"type": ["integer", "null"]}, "None", None, "None"),
    ({"type": ["string", "null"]}, "null", None, None),
    ({"type": ["string", "null"]}, "None", None, "None"),
    ({"type": ["integer", "string"]}, "5", "5", 5),
    ({"type": ["boolean", "integer"]}, "5", 5, False),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5, 5),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5", "5", "5"),
    ({"anyOf": [{"type": "boolean"}, {"type": "object"}]}, '{"a": 1}', {"a": 1}, False),
    ({"oneOf": [{"type": "array"}, {"type": "integer"}]}, "[1]", [1], [1]),
    ({"anyOf": [{}, {"type": "null"}]}, "5", "5", 5),
    ({"allOf": [{"type": "integer"}]}, "5", 5, 5),
    ({"type": "number", "enum": [1, 2]}, "2", 2, 2),
    ({"enum": ["1", "2"]}, "2", "2", "2"),
    ({"enum": [1, 2]}, "2", 2, 2),
    ({"enum": ["auto", 1]}, "1", "1", "1"),
    ({"const": 3}, "3", 3, "3"),
    ({"$ref": "#/$defs/Point"}, '{"x": 1}', {"x": 1}, '{"x": 1}'),
    ({"allOf": [{"$ref": "#/$defs/Point"}]}, '{"x": 1}', {"x": 1}, '{"x": 1}'),
    ({"$ref": "#/$defs/Loop"}, "5", 5, "5"),
    ({"$ref": "#/$defs/absent"}, "5", "5", "5"),
    ({"$ref": "https://example.org/x"}, "5", "5", "5"),
    ({"properties": {"x": {}}}, '{"x": 1}', {"x": 1}, {"x": 1}),
    ({"items": {}}, "[1]", [1], [1]),
    ({"type": "int"}, "5", 5, 5),
    ({"type": "float"}, "5.5", 5.5, 5.5),
    ({"type": "bool"}, "True", True, True),
    ({"type": "list"}, "[1]", [1], [1]),
    ({"type": "dict"}, '{"a": 1}', {"a": 1}, {"a": 1}),
    ({"type": "bigint"}, "5", "5", 5),
    ({"type": "any"}, "5", "5", 5),
    ({"type": 5}, "5", "5", "5"),
    ({"type": []}, "5", "5", "5"),
    ({"description": "a number"}, "5", "5", "5"),
    ({}, "null", "null", None),
)


@pytest.mark.parametrize(("schema", "text", "expected", "sglangs"), TYPES)
def test_types_of_values(schema: Json, text: str, expected: Any, sglangs: Any) -> None:
    """A value that does not fit its type is the text: the tool sees what the model wrote."""
    loop = {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Loop"}]}
    parameters = {"type": "object", "properties": {"k": schema}, "$defs": {"Point": POINT, "Loop": loop}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    value, kept = values_of(text, tools)
    assert (type(value), value) == (type(expected), expected)
    assert kept == f'{{"k": {json.dumps(text, ensure_ascii=False) if isinstance(value, str) else respelled(text)}}}'
    (found,) = sglang_reads(call(k=text), "qwen3_coder", tools).calls
    assert repr(found[1]["k"]) == repr(sglangs)


def respelled(text: str) -> str:
    return {"True": "true", "False": "false", "None": "null"}.get(text, text)


@pytest.mark.parametrize(
    "tools",
    [
        [],
        [{"type": "function", "function": {"name": "f"}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"j": {"type": "integer"}}}}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"properties": [{"type": "integer"}]}}}],
        [{"type": "function", "function": {"name": "g", "parameters": {"properties": {"k": {"type": "integer"}}}}}],
    ],
    ids=["no tools", "no schema", "another parameter", "no properties", "another tool"],
)
def test_without_a_schema_a_value_is_its_text(tools: list[Json]) -> None:
    for text in ("5", "null", "[1]", " x\n"):
        assert values_of(text, tools)[0] == text


def test_a_parameter_of_alternatives() -> None:
    """Arguments that are one of several objects: what they say of a parameter is put together."""
    branches = [{"properties": {"k": {"type": "integer"}}}, {"properties": {"k": {"type": "boolean"}}}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"oneOf": branches}}}]
    assert [values_of(text, tools)[0] for text in ("5", "True", "x")] == [5, True, "x"]


def test_the_prompt_opened_the_reasoning() -> None:
    parsed = responses.xml(sampled("plan\n</think>\n\n4" + END, opened=True))
    assert parsed == Parsed("4", "plan")
    assert prompt(FAMILIES["qwen35"], True).endswith("<think>\n")
    assert printed(FAMILIES["qwen35"], wire(parsed), True) == "plan\n</think>\n\n4" + END
    assert responses.xml(sampled("plan</think>\n\n4" + END, opened=True)) == Parsed("4", "plan")


def test_thoughts_that_were_cut_are_no_answer() -> None:
    cut = Parsed("", "Let me", (), "incomplete", "cut in its reasoning (finish reason length)")
    assert responses.xml(sampled("Let me", opened=True, finish="length")) == cut
    assert responses.hermes(sampled("<think>\nLet me", finish="length")) == cut
    assert responses.hermes(sampled("<think>", finish="abort")) == Parsed(
        "", "", (), "incomplete", "cut in its reasoning (finish reason abort)"
    )
    answer = Parsed("It is 4.", "", (), "malformed", "the prompt opened reasoning, and no </think> closes it")
    assert responses.xml(sampled("It is 4." + END, opened=True)) == answer


def test_a_line_end_alone_is_content() -> None:
    """Between content and a call the template prints line ends; with no content before them they are not its own."""
    for name, text, content in (
        ("qwen3instruct", f"\n{hermes()}", "\n"),
        ("qwen3instruct", f"\n\n{hermes()}", "\n"),
        ("qwen3", f"<think>\n\n</think>\n\n\n{hermes()}", "\n"),
        ("qwen3", f"<think>\n\n</think>\n\n{hermes()}", ""),
        ("qwen3coder", f"a\n\n{call()}", "a"),
        ("qwen3coder", f"a\n{call()}", "a"),
        ("qwen3coder", f"a{call()}", "a"),
        ("qwen3coder", call(), ""),
    ):
        parsed = FAMILIES[name].parse(sampled(text + END))
        assert (parsed.state, parsed.content) == ("ok", content)


def test_a_cut_is_never_whole() -> None:
    """Another call may have followed, or more of the content."""
    for text, where in (
        ("a", "content"),
        (hermes(), "calls"),
        (hermes()[:-20], "calls"),
        (f"a\n{hermes()}\n", "calls"),
    ):
        parsed = responses.hermes(sampled(text, finish="length"))
        assert (parsed.state, parsed.content, parsed.tool_calls) == ("incomplete", text, ())
        assert parsed.why == f"cut in its {where} (finish reason length)"
    broken_before = responses.hermes(sampled(hermes("{") + "\n<tool_call>", finish="length"))
    assert broken_before.state == "malformed"


def test_a_stop_token_or_a_stop_string_ends_a_turn() -> None:
    assert responses.hermes(sampled("a")) == Parsed("a")
    assert responses.hermes(sampled("a" + END, finish="length")) == Parsed("a")
    assert told(responses.hermes(sampled(hermes(), finish="tool_calls"))) == [F]


def test_whitespace_of_a_value_is_kept() -> None:
    indented = "    if x:\n        return 1\n"
    message = {
        "content": "",
        "reasoning_content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {"k": indented}}}],
    }
    for name in ("qwen3coder", "qwen35", "qwen36", "qwen38"):
        family = FAMILIES[name]
        text = printed(family, message, True)
        parsed = family.parse(sampled(text, opened=bool(family.opens)))
        assert parsed.tool_calls[0].arguments == {"k": indented}
        assert printed(family, wire(parsed), True) == text


def test_the_exact_text_of_arguments_is_kept() -> None:
    given = '{"q": "\\u4f60",  "n": 1.50,\n "x": {"b":[ ],"a":1e2}}'
    for text in (
        f'<tool_call>\n{{"name": "f", "arguments": {given}}}\n</tool_call>',
        f'<tool_call> {{ "arguments" : {given} ,\n"name":"f" }} </tool_call>',
    ):
        (one,) = responses.hermes(sampled(text + END)).tool_calls
        assert (one.name, one.text) == ("f", given)
        assert one.arguments == {"q": "你", "n": 1.5, "x": {"b": [], "a": 100.0}}


def test_characters_that_spell_a_mark_are_text() -> None:
    """Where the vocabulary has a mark as one token, only that token is it; where it has not, its characters are."""
    spelled = Piece("text", hermes(), 0, 9)
    assert responses.hermes(Sampled((spelled,), False, END, "stop", (), CONTROLS)) == Parsed(hermes())
    assert told(responses.hermes(Sampled((spelled,), False, END, "stop", (), frozenset({END})))) == [F]
    thought = Piece("text", "a\n</think>\n\nb", 0, 9)
    assert responses.xml(Sampled((thought,), True, END, "stop")) == Parsed("b", "a")
    assert responses.xml(Sampled((thought,), True, END, "stop", (), CONTROLS)).state == "malformed"


def test_tokens_that_are_written_about() -> None:
    """In a thought or a call the names of the format stand for their characters; SGLang reads the same."""
    text = "a <tool_call> b\n</think>\n\n" + call(k="<think>x</think><tool_response>")
    parsed = responses.xml(sampled(text + END, opened=True, tools=TOOLS))
    assert parsed.reasoning == "a <tool_call> b"
    assert told(parsed) == [("f", {"k": "<think>x</think><tool_response>"})]
    assert ours(parsed) == upstream(FAMILIES["qwen35"], text, True, TOOLS)
    about = {"k": 'a </tool_call> " <tool_call>\\', "</tool_call>": "<tool_call>"}
    text = hermes(json.dumps(about)) + "\n" + hermes()
    parsed = responses.hermes(sampled(text + END, tools=TOOLS))
    assert told(parsed) == [("f", about), F]
    assert ours(parsed) == upstream(FAMILIES["qwen3"], text, False, TOOLS)
    for stray in ("<|im_start|>", "<|endoftext|>"):
        for place, whole in enumerate((f"{stray}\n</think>\n\nb", f"</think>{stray}", f"</think>{call(k=stray)}")):
            parsed = responses.xml(sampled(whole + END, opened=True))
            at = (0, 1, 30)[place]
            assert (parsed.state, parsed.why) == ("malformed", STRAY.format(stray, at, at))
            lossless(parsed, whole)


def test_bytes_that_no_character_has() -> None:
    made = (Piece("text", "a", 0, 1), Piece("bytes", "\ufffd", 1, 3))
    for parse in (responses.hermes, responses.hermes_instruct, responses.xml, responses.xml_instruct):
        assert parse(Sampled(made, False, END, "stop")) == Parsed(
            "a\ufffd", state="malformed", why="ids 1 to 2 of the completion hold bytes that no character has"
        )


def test_names_and_values_that_a_session_could_not_store() -> None:
    for text, why in (
        (call(name=""), "the call of '' can't be kept: message 0 (assistant) tool call 0 has the function name ''; it must be "
            "a string that is not empty"),
        (hermes('{"k": "\\ud800"}'), "the call of 'f' can't be kept: message 0 (assistant) tool call 0 arguments holds the "
            "lone surrogate '\\ud800' at character 0, which is not text; decode the bytes it came from with errors='replace'"),
        (hermes("NaN"), "a call is no JSON (NaN is no JSON number): '{\"name\": \"f\", \"arguments\": NaN}'"),
        (hermes("[" * 100_000), "a call is no JSON (it nests too deep): '{\"name\": \"f\", \"arguments\": [[[[[[[[[[[[['"),
    ):  # fmt: skip
        parse = responses.xml if "<function" in text else responses.hermes
        parsed = parse(sampled(text + END))
        assert (parsed.state, parsed.why) == ("malformed", why)
        lossless(parsed, text)


@settings(max_examples=examples(300), deadline=None)
@given(pieces=st.lists(st.text('"\\a', max_size=5), max_size=8))
def test_a_string_is_open_wherever_the_pieces_end(pieces: list[str]) -> None:
    """A completion of many marks is read in one go: what stands before is not looked at again."""
    read, opened, escaped = responses._Strings(), False, False
    for piece in pieces:
        read.feed(piece)
        for character in piece:
            opened ^= character == '"' and not escaped
            escaped = character == "\\" and not escaped
        assert read.open is opened
