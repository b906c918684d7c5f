"""Qwen's completions read back, against the published templates that print them and SGLang's own parsers of them.

`DIFFERENCES` is the list of what SGLang 0.5.23 reads otherwise, `TYPES` that of the values; docs/qwen-completions.md
says why. Completions are texts cut at control tokens by hand: what spells one in a text is no control token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from sglang_qwen import Read, sglang_reads

from conversations import json_values, texts
from oracles import chat_template
from tito_core import Parsed, Piece, Sampled
from tito_core.prompts.messages import normalise_tools
from tito_qwen import responses

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
keys = st.one_of(st.sampled_from(["path", "b", "ключ"]), words).map(lambda key: key.replace(">", ""))
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
    """Whether a call's XML says two things: a value holds the end of a parameter and the begin of another."""
    said = r"</parameter>\s*(<parameter=|</function>\s*\Z)"
    return family.kind == "qwen3_coder" and any(re.search(said, one) for one in values(message))


def canonical(family: Family, name: str, message: Json) -> bool:
    """Whether the template prints content and reasoning as they are."""
    content, reasoning = message["content"], message["reasoning_content"]
    if family.trims:
        return (content, reasoning) == (content.strip(), reasoning.strip()) or (
            name == "qwen3coder" and not message["tool_calls"]
        )
    return name == "qwen3instruct" or (content == content.lstrip("\n") and reasoning == reasoning.strip("\n"))


@settings(deadline=None, max_examples=300)
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


@settings(deadline=None, max_examples=300)
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
    free, mind, call = (
        f"(?:(?!{'|'.join(ends)}).)*" for ends in (MARKS + OTHERS, ("</think>", *OTHERS[2:]), (*MARKS[2:], *OTHERS[2:]))
    )
    thought = (
        "" if family.parse in (responses.hermes_instruct, responses.xml_instruct) else f"(?:<think>{mind}</think>)?"
    )
    thought = f"{mind}</think>" if opened else thought
    found = re.fullmatch(rf"{thought}{free}((?:<tool_call>{call}</tool_call>\s*)*)", text, re.DOTALL)
    if found is None:
        return False
    bodies = re.findall(
        "<tool_call>(.*?)</tool_call>", found[found.lastindex or 0] if found.lastindex else "", re.DOTALL
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
        r"\s*<function=([^>]+)>\s*((?:<parameter=[^>]*>.*</parameter>\s*)?)</function>\s*", body, re.DOTALL
    )
    if found is None:
        return False
    heads = re.split(r"</parameter>\s*(?=<parameter=)", found[2])
    names = [match[1] if (match := re.match(r"<parameter=([^>]*)>", head)) else None for head in heads if head]
    return None not in names and len(set(names)) == len(names)


def lossless(parsed: Parsed, text: str) -> None:
    """What is not ok shows all that was sampled, less the line ends that the template prints."""
    assert parsed.why
    assert parsed.tool_calls == ()
    shown = parsed.reasoning, parsed.content
    forms = ["".join(shown), f"<think>{''.join(shown)}", "</think>".join(shown), f"<think>{'</think>'.join(shown)}"]
    assert text.replace("\n", "") in [form.replace("\n", "") for form in forms]
    assert parsed.content in text
    assert parsed.reasoning in text


@settings(deadline=None, max_examples=500)
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
        if not any(word in str(told(parsed)) for word in INNER[:8]) and "<tool_call>{" not in text:
            read = upstream(family, body, opened, TOOLS)
            assert (read.reasoning, read.content) == ours(parsed)[:2]
    else:
        lossless(parsed, body)
        assert parsed.state == "malformed" or not (text.endswith(END) or finish == "stop")
    if text.endswith(END) or finish == "stop":
        assert (parsed.state == "ok") == whole(family, body, opened)


@settings(deadline=None, max_examples=60)
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
