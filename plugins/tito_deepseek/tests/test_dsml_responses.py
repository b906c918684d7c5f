"""Completions of DeepSeek V3.2 read back: against the published parser where that accepts, by hand where it refuses.

Text is the published encoder's own print; ids are `tokenizers`', or others of the same bytes. Where ours reads more or
less than the published parser is listed here (`STRICTER`, and the tests of spelled marks) and in docs/deepseek-v32.md.
"""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tito_core
from amounts import examples
from conversations import Json, assistants, texts
from oracles import dsv32
from tito_core import Codec, Completion, Message, Parsed
from token_path import EOS, NAMES, Name, added, array, engine_ids, plain, resplit

MARK = "｜DSML｜"
END = "<｜end▁of▁sentence｜>"
CALLS = "\n\n<｜DSML｜function_calls>\n"
UNCALLS = "</｜DSML｜function_calls>"
FINISH = Literal["stop", "length", "tool_calls", "abort"]
names, modes = st.sampled_from(NAMES), st.booleans()


@cache
def codec(name: Name) -> Codec:
    return tito_core.load("deepseekv32", vocabulary=name)


def read(name: Name, ids: Any, thinking: bool, finish: FINISH = "stop") -> Parsed:
    ids = array(ids)
    completion = Completion(ids, np.zeros(len(ids)), finish, id="c")
    made = tito_core.parse(codec(name), completion, codec(name).decide(thinking))
    assert np.array_equal(completion.ids, ids)
    return made


def read_text(text: str, thinking: bool = False, finish: FINISH = "stop", name: Name = "r1") -> Parsed:
    return read(name, engine_ids(name, text), thinking, finish)


def upstream(text: str, thinking: bool) -> Json | None:
    """What the published parser reads, None where it refuses."""
    try:
        made: Json = dsv32().parse_message_from_completion_text(text, "thinking" if thinking else "chat")
    except dsv32().DS32EncodingError:
        return None
    return made


def upstream_print(message: Json, thinking: bool) -> str:
    """What the published encoder prints of an assistant message after a user's."""
    encoder = dsv32()
    if thinking and not (message.get("reasoning_content") or message.get("tool_calls")):
        return str(encoder.thinking_end_token + (message.get("content") or "") + encoder.eos_token)
    return str(
        encoder.render_message(1, [{"role": "user", "content": "q"}, message], "thinking" if thinking else "chat")
    )


def printed(parsed: Parsed, thinking: bool) -> str:
    """What our encoder prints of what was read."""
    decision = codec("r1").decide(thinking)
    asked = Message("user", "0")
    before = codec("r1").render([asked], decision=decision).text
    return codec("r1").render([asked, parsed.message], decision=decision).text[len(before) :]


def same(parsed: Parsed, expected: Json) -> None:
    assert (parsed.state, parsed.why) == ("ok", "")
    assert (parsed.reasoning, parsed.content) == (expected["reasoning_content"], expected["content"])
    assert [(one.name, one.text) for one in parsed.tool_calls] == [
        (one["function"]["name"], one["function"]["arguments"]) for one in expected["tool_calls"]
    ]
    assert [one.arguments for one in parsed.tool_calls] == [json.loads(one.text or "") for one in parsed.tool_calls]
    assert [one.id for one in parsed.tool_calls] == [f"call_c_{number}" for number in range(len(parsed.tool_calls))]


def respelled(text: str) -> str:
    """The text with every parameter that is JSON as the template prints its value, and calls without any likewise."""
    text = re.sub(r'(<｜DSML｜invoke name="[^"]*">\n)(</｜DSML｜invoke>)', r"\1\n\2", text)

    def value(match: re.Match[str]) -> str:
        found = json.loads(match[2])
        if isinstance(found, str):
            return f'{match[1]}string="true">{found}</｜DSML｜parameter>'
        return f'{match[1]}string="false">{json.dumps(found, ensure_ascii=False)}</｜DSML｜parameter>'

    return re.sub(
        r'(<｜DSML｜parameter name="[^"]*" )string="false">(.*?)</｜DSML｜parameter>', value, text, flags=re.DOTALL
    )


def stricter(message: Json, name: Name) -> bool:
    """Whether ours refuses a message that the published parser may read back from its print.

    The reasons stand in docs/deepseek-v32.md: control tokens and marks inside a call, names that hold quotes or nothing.
    """
    heads, values = [], [message.get("content") or "", message.get("reasoning_content") or ""]
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        heads += [call["function"]["name"], *arguments]
        values += [json.dumps(value, ensure_ascii=False) for value in arguments.values()]
        if not call["function"]["name"]:
            return True
    marks = {MARK, *added(name).values()}
    return any('"' in head for head in heads) or any(mark in one for mark in marks for one in (*heads, *values))


def stricter_text(text: str, name: Name, thinking: bool) -> bool:
    """The same for any text; and values that are not JSON, and blocks that call nothing or end before their own end."""
    body = text.removesuffix(END)
    if any(mark in body.replace("</think>", "", int(thinking)) for mark in {*added(name).values()} - {MARK}):
        return True
    _, opened, block = body.partition(CALLS[:-2])
    if not opened:
        return False
    for kind in ("invoke", "parameter"):  # marks that do not open and close in turn
        marks = re.findall(rf"(</?)｜DSML｜{kind}", block)
        if marks != ["<", "</"] * (len(marks) // 2) or f"<｜DSML｜{kind}>" in block:
            return True
    segments = block.split(MARK)
    if not block.endswith(UNCALLS) or len(segments) < 4 or any(not SEGMENT.fullmatch(one) for one in segments):
        return True
    for kind, value in re.findall(r'string="(true|false)">(.*?)</｜DSML｜parameter>', text, re.DOTALL):
        if MARK in value:
            return True
        if kind == "true":
            continue
        try:
            json.loads(value, parse_constant=lambda _: 1 / 0)
        except (ValueError, ZeroDivisionError):
            return True
    return False


SEGMENT = re.compile(
    r'>\n<|invoke name="[^"]+">\n\n?</?|parameter name="[^"]*" string="(true|false)">.*</|(parameter|invoke)>\n</?'
    r"|function_calls>",
    re.DOTALL,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(300))
@given(st.data(), names, modes, st.integers(0, 2**16))
def test_what_the_published_parser_reads(data: st.DataObject, name: Name, thinking: bool, seed: int) -> None:
    message = data.draw(assistants(0, reasoning=None, calls=data.draw(st.booleans())))
    message = {
        **message,
        "content": _flat(message.get("content")),
        "reasoning_content": message.get("reasoning_content") or message.get("reasoning") if thinking else None,
    }
    text = upstream_print(message, thinking)
    expected = upstream(text, thinking)
    canonical = engine_ids(name, text)
    for ids in (canonical, resplit(name, canonical, random.Random(seed))):
        parsed = read(name, ids, thinking, "tool_calls" if message.get("tool_calls") else "stop")
        if expected is None or stricter(message, name):
            assert parsed.state == "malformed"
            assert parsed.tool_calls == ()
        else:
            same(parsed, expected)
            assert printed(parsed, thinking) == text


def test_most_of_what_is_generated_is_accepted() -> None:
    """The test above compares something: plain messages are read by both, in both vocabularies and modes."""
    value = {"path": "    if x:\n        return 1\n", "n": [1, {"é": None}], "t": "<b>&\"'\\n"}
    calls = [
        {"function": {"name": "f", "arguments": value}},
        {"function": {"name": "g", "arguments": {}}},
        {"function": {"name": "f", "arguments": '{"x": 1.50, "x2": "naïve ☕"}'}},
    ]
    for message in (
        {"content": " four\n", "reasoning_content": "\nso\n\n"},
        {"content": "", "reasoning_content": "r", "tool_calls": calls},
        {"content": "x\n\n", "reasoning_content": "", "tool_calls": calls[1:2]},
        {"content": "a <｜DS｜ML｜ <｜DSML b", "reasoning_content": "<think"},
        {"content": "", "reasoning_content": ""},
    ):
        for name in NAMES:
            for thinking in (True, False):
                text = upstream_print({"role": "assistant", **message}, thinking)
                expected = upstream(text, thinking)
                assert expected is not None
                parsed = read_text(text, thinking, name=name)
                same(parsed, expected)
                assert printed(parsed, thinking) == text


PIECES = (
    CALLS, UNCALLS, MARK, "<", "</", ">", ">\n", "\n\n", '"', "</think>", "<think>", END, "<｜User｜>", "x", "é", "1", " ",
    '<｜DSML｜invoke name="f">\n', "\n</｜DSML｜invoke>\n", '<｜DSML｜parameter name="k" string="true">',
    '<｜DSML｜parameter name="j" string="false">', "</｜DSML｜parameter>\n", "<｜DSML｜tool_calls>\n", "NaN", "{}", "👩‍👩‍👧",
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, thinking: bool) -> str:
    """A well-formed completion in which spans are cut out, doubled, moved or replaced."""
    reasoning, content = draw(texts()), draw(texts())
    calls = draw(
        st.lists(st.dictionaries(st.sampled_from("kj"), st.sampled_from(["v", "", 1, [1], {"a": 1}])), max_size=2)
    )
    message = {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
        "tool_calls": [{"function": {"name": "f", "arguments": value}} for value in calls],
    }
    text = upstream_print(message, thinking)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 1, 2, 8, 30, 1000])))
        kind = draw(st.sampled_from(["delete", "double", "insert", "keep"]))
        if kind == "delete":
            text = text[:start] + text[end:]
        elif kind == "double":
            text = text[:end] + text[start:]
        elif kind == "insert":
            text = text[:start] + draw(st.sampled_from(PIECES)) + text[start:]
    return text


def lossless(parsed: Parsed, text: str, thinking: bool) -> None:
    """Whatever was sampled is in what was read: not ok keeps the text, ok prints it again."""
    body = text.removesuffix(END)
    if parsed.state == "ok":
        assert printed(parsed, thinking).removesuffix(END) == respelled(body)
        return
    assert parsed.why
    assert parsed.tool_calls == ()
    joined = [parsed.reasoning + parsed.content, f"{parsed.reasoning}</think>{parsed.content}"]
    assert body in joined if thinking else body == parsed.content and not parsed.reasoning


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(600), derandomize=True)  # the list of refusals below is not yet closed
@given(st.data(), names, modes, st.sampled_from(["stop", "length"]))
def test_whatever_was_sampled(data: st.DataObject, name: Name, thinking: bool, finish: FINISH) -> None:
    text = data.draw(mutated(thinking))
    assume(text)
    parsed = read_text(text, thinking, finish, name)
    lossless(parsed, text, thinking)
    if parsed.state == "incomplete":
        assert finish == "length"
        assert not text.endswith(END)
    # A stop string ends a turn without the stop token, which the published parser asks for.
    expected = upstream(text if text.endswith(END) or finish == "length" else text + END, thinking)
    if parsed.state == "ok":
        assert expected is not None
        same(parsed, expected)
    elif expected is not None and finish == "stop":
        assert stricter_text(text, name, thinking)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(200))
@given(st.data(), names, modes, st.integers(0, 2**16))
def test_every_cut(data: st.DataObject, name: Name, thinking: bool, seed: int) -> None:
    """Cut after any id: never ok before the text is whole, no half character, reasoning and content only grow."""
    rng = random.Random(seed)
    message = {
        "role": "assistant",
        "content": data.draw(st.sampled_from(["", "👩‍👩‍👧 four", "naïve\n\n"])),
        "reasoning_content": data.draw(st.sampled_from(["so 🙂 then\n", "r"])),
        "tool_calls": data.draw(
            st.sampled_from([[], [{"function": {"name": "f", "arguments": {"k": "数据", "j": [1, "é"]}}}] * 2])
        ),
    }
    text = upstream_print(message, thinking)
    ids = resplit(name, engine_ids(name, text), rng, 0.8)
    reasoning = ""
    for size in range(1, len(ids)):
        parsed = read(name, ids[:size], thinking, "length")
        bytes_cut = codec(name).encoder.decode_bytes(ids[:size])
        shown = bytes_cut.decode(errors="ignore")
        if parsed.state == "ok":
            assert size == len(ids) - 1
            assert message["tool_calls"]
        else:
            assert parsed.state == "incomplete"
            lossless(parsed, shown, thinking)
            assert ("are left out" in parsed.why) == (shown.encode() != bytes_cut)
        assert "\ufffd" not in parsed.reasoning + parsed.content
        assert parsed.reasoning.startswith(reasoning)
        reasoning = parsed.reasoning


def call(*parameters: str, name: str = "f") -> str:
    return (
        f'<｜DSML｜invoke name="{name}">\n' + "".join(f"{one}\n" for one in parameters or ("",)) + "</｜DSML｜invoke>\n"
    )


def parameter(value: str, key: str = "k", string: str = "true") -> str:
    return f'<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>'


GOOD = CALLS + call(parameter("v")) + UNCALLS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a" + call(parameter("v")), "｜DSML｜ stands where no block of calls opens: after 'a<'"),
        (GOOD[1:], "｜DSML｜ stands where no block of calls opens: after '\\n<'"),
        (UNCALLS, "｜DSML｜ stands where no block of calls opens: after '</'"),
        (
            CALLS + call(parameter("v")),
            "the block of calls is broken: 'invoke>\\n' stands where the invoke's end should",
        ),
        (GOOD.removesuffix(UNCALLS[2:]), "the block of calls is not closed: the block's end is missing"),
        (GOOD[:-1], "the block of calls is broken: 'function_calls' stands where the block's end should"),
        (GOOD + "x", "the block of calls is broken: 'function_calls>x' stands where the block's end should"),
        (GOOD + GOOD, "the block of calls is broken: 'function_calls>\\n\\n<' stands where the block's end should"),
        (
            GOOD.replace("function_calls", "tool_calls"),
            "the block of calls is broken: 'tool_calls>\\n<' stands where the block should",
        ),
        (CALLS + UNCALLS, "the block of calls is broken: 'function_calls>\\n</' stands where the block should"),
        (CALLS[:-2], "the block of calls is broken: 'function_calls' stands where the block should"),
    ],
)
def test_blocks_that_are_none(text: str, why: str) -> None:
    """A bare invoke, a block that is not closed, text after it, another format's: visible, kept, and never run."""
    for thinking in (True, False):
        for name in NAMES:
            parsed = read_text(f"r</think>{text}{END}" if thinking else text + END, thinking, name=name)
            assert parsed == Parsed(text, "r" if thinking else "", (), "malformed", why)


def test_empty_and_open_blocks_that_the_published_parser_reads() -> None:
    """Ours refuses them: nothing prints the first, and the others are not whole."""
    for text in (CALLS + UNCALLS + END, CALLS[:-2], CALLS + call(parameter("v")).removesuffix(">\n")):
        assert upstream(text, False) is not None
        assert read_text(text).state == "malformed"


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        (
            (parameter("1, 2", string="false"),),
            "the parameter 'k' is said to be JSON, and is not (Extra data: line 1 column 2 (char 1)): '1, 2'",
        ),
        (
            (parameter("NaN", string="false"),),
            "the parameter 'k' is said to be JSON, and is not (NaN is no JSON number): 'NaN'",
        ),
        (
            (parameter("1e999", string="false"),),
            "the parameter 'k' is said to be JSON, and is not (1e999 is no JSON number): '1e999'",
        ),
        (
            (parameter('{"a": 1, "a": 2}', string="false"),),
            "the parameter 'k' is said to be JSON, and is not (the key 'a' stands twice): '{\"a\": 1, \"a\": 2}'",
        ),
        (
            (parameter("[" * 100_000, string="false"),),
            f"the parameter 'k' is said to be JSON, and is not (it nests too deep): '{'[' * 40}'",
        ),
        (
            (parameter("9" * 5000, string="false"),),
            None,
        ),
        (
            (parameter('"\\ud800"', string="false"),),
            "the call of 'f' has arguments that can't be kept: message 0 (assistant) tool call 0 arguments holds the lone "
            "surrogate '\\ud800' at character 0, which is not text; decode the bytes it came from with errors='replace'",
        ),
        (
            (parameter("1"), parameter("2")),
            "the call of 'f' has arguments that can't be kept: the key 'k' stands twice",
        ),
        (
            (parameter("a<｜DSML｜parameter x"),),
            'the block of calls is broken: \'parameter name="k" string="true">a<\' stands where the parameter should',
        ),
        (
            (parameter(call(parameter("v"))),),
            'the block of calls is broken: \'parameter name="k" string="true"><\' stands where the parameter should',
        ),
        (
            (parameter("v", string="maybe"),),
            'the block of calls is broken: \'parameter name="k" string="maybe">v</\' stands where the parameter should',
        ),
        (
            (parameter("v", key='k" type="int'),),
            'the block of calls is broken: \'parameter name="k" type="int" string="tr\' stands where the parameter should',
        ),
        (("prose",), "the block of calls is broken: 'invoke name=\"f\">\\nprose\\n</' stands where the invoke should"),
    ],
)
def test_parameters_that_are_none(parameters: tuple[str, ...], why: str | None) -> None:
    text = "t" + CALLS + call(*parameters) + UNCALLS
    for name in NAMES:
        parsed = read_text(text + END, finish="tool_calls", name=name)
        assert (parsed.state, parsed.content, parsed.tool_calls) == ("malformed", text, ())
        assert why is None or parsed.why == why


def test_values_are_kept_to_the_byte() -> None:
    indented = "\n    if x:\n        return 1\n\n"
    text = CALLS + call(parameter(indented), parameter(' [1,2.50,"\\u00e9"]\n', "j", "false")) + UNCALLS + END
    for name in NAMES:
        (one,) = read_text(text, name=name).tool_calls
        assert one.arguments == {"k": indented, "j": [1, 2.5, "é"]}
        assert one.text == '{"k": ' + json.dumps(indented) + ', "j":  [1,2.50,"\\u00e9"]\n}'


def test_json_spelled_otherwise_is_read_and_prints_from_its_value() -> None:
    text = CALLS + call(parameter('{"a":1}', string="false"), parameter('"s"', "j", "false")) + UNCALLS + END
    parsed = read_text(text)
    same(parsed, upstream(text, False) or {})
    assert printed(parsed, False) == respelled(text) != text


def test_a_call_without_parameters_is_read_with_one_line_end_or_two() -> None:
    for ends in ("\n", "\n\n"):
        text = f'{CALLS}<｜DSML｜invoke name="f">{ends}</｜DSML｜invoke>\n{UNCALLS}{END}'
        same(read_text(text), upstream(text, False) or {})


def test_an_answer_in_reasoning_that_was_never_closed() -> None:
    """The model answers straight, say after a tool result: what it ended by itself is its answer, and not as it should be."""
    for name in NAMES:
        parsed = read_text("The answer is 4." + END, True, name=name)
        assert parsed == Parsed(
            "The answer is 4.", state="malformed", why="the prompt opened reasoning, and no </think> closes it"
        )
        assert upstream("The answer is 4." + END, True) is None
        parsed = read_text("Let me", True, "length", name)
        assert parsed == Parsed("", "Let me", (), "incomplete", "cut in its reasoning (finish reason length)")
        called = read_text("Let me" + GOOD + END, True, "tool_calls", name)
        assert (called.state, called.content, called.tool_calls) == ("malformed", "Let me" + GOOD, ())


def test_a_stop_string_ends_a_turn_as_a_stop_token_does() -> None:
    assert read_text("a STOP") == Parsed("a STOP")
    assert read_text(GOOD).state == "ok"
    assert read_text("a STOP", finish="length").state == "incomplete"
    assert (
        read_text(GOOD[:-1]).why == "the block of calls is broken: 'function_calls' stands where the block's end should"
    )


def test_a_stop_token_ends_a_turn_whatever_the_finish_reason() -> None:
    assert read_text("a" + END, finish="length") == Parsed("a")


def test_a_block_that_is_closed_can_only_end() -> None:
    """Cut before the stop token, its calls are whole; a character begun after it makes them none."""
    assert read_text(GOOD, finish="length").state == "ok"
    parsed = read_text(GOOD + "x", finish="length")
    assert (parsed.state, parsed.content, parsed.tool_calls) == ("malformed", GOOD + "x", ())
    ids = [*engine_ids("r1", GOOD), *plain("r1").encode("🙂", add_special_tokens=False).ids[:1]]
    parsed = read("r1", ids, False, "length")
    assert (parsed.state, parsed.content, parsed.tool_calls) == ("incomplete", GOOD, ())
    assert (
        parsed.why
        == "it holds bytes that are no text; 3 byte(s) at its end begin a character that was cut, and are left out"
    )


def test_marks_spelled_by_ordinary_tokens() -> None:
    """Laxer than the published parser, which sees text alone: a spelled `</think>` or stop token is what was said."""
    for name in NAMES:
        spelled = plain(name).encode(f"quote </think> and {END}", add_special_tokens=False).ids
        closed = engine_ids(name, "</think>4" + END)
        parsed = read(name, [*spelled, *closed], True)
        assert parsed == Parsed("4", f"quote </think> and {END}")
        assert printed(parsed, True) == f"quote </think> and {END}</think>4{END}"
        alone = plain(name).encode("</think>", add_special_tokens=False).ids
        assert read(name, [*alone, *closed], True) == Parsed("4", "</think>")
    block = plain("v4").encode(GOOD, add_special_tokens=False).ids
    parsed = read("v4", [*block, EOS], False)
    assert (parsed.state, parsed.content, parsed.tool_calls) == ("malformed", GOOD, ())
    assert parsed.why == (
        f"ids 0 to {len(block) - 1} of the completion spell ｜DSML｜ in ordinary tokens, and this vocabulary has it as a "
        "control token"
    )
    assert read("r1", [*plain("r1").encode(GOOD, add_special_tokens=False).ids, EOS], False).state == "ok"


def test_control_tokens_that_are_no_text() -> None:
    for name in NAMES:
        for text, thinking, where in (
            ("a<｜User｜>b", False, 1),
            ("<think>a</think>b", True, 0),
            ("a</think>b</think>c", True, 3),
            (f"a{END}b", False, 1),
        ):
            parsed = read_text(text + END, thinking, name=name)
            stray = next(one for one in ("<｜User｜>", "<think>", END, "</think>") if one in text)
            assert (parsed.state, parsed.tool_calls) == ("malformed", ())
            assert parsed.why == (
                f"the control token {stray} stands where the format has none: ids {where} to {where} of the completion"
            )


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_bytes_that_are_no_character(finish: FINISH) -> None:
    half = plain("r1").encode("🙂", add_special_tokens=False).ids[:1]
    for text, ids in (
        ("a\ufffdb", [*engine_ids("r1", "a"), *half, *engine_ids("r1", "b"), EOS]),
        ("a\ufffd", [*engine_ids("r1", "a"), *half, EOS]),
    ):
        parsed = read("r1", ids, False, finish)
        assert parsed == Parsed(
            text, state="malformed", why="ids 1 to 1 of the completion hold bytes that no character has"
        )
    sampled = engine_ids("r1", "a\ufffdb" + END)
    assert read("r1", sampled, False) == Parsed("a\ufffdb")
    calls = [*engine_ids("r1", GOOD.partition("v<")[0]), *half, *engine_ids("r1", "<" + GOOD.partition("v<")[2]), EOS]
    assert read("r1", calls, False).tool_calls == ()


@settings(deadline=None, max_examples=examples(200))
@given(st.data(), names, modes, st.sampled_from(["stop", "length"]))
def test_any_ids(data: st.DataObject, name: Name, thinking: bool, finish: FINISH) -> None:
    """Garbage is read too: any ids of the vocabulary, and what is ok prints as it decodes."""
    encoder = codec(name).encoder
    known = st.one_of(st.integers(3, 400), st.sampled_from(sorted(encoder.added_ids)), st.integers(3, 127_000))
    ids = data.draw(st.lists(known, min_size=1, max_size=12))
    parsed = read(name, ids, thinking, finish)
    assert parsed.state in ("ok", "incomplete", "malformed")
    if parsed.state == "ok":
        assert printed(parsed, thinking).removesuffix(END) == encoder.decode(ids).removesuffix(END)


def _flat(content: Any) -> str:
    return " ".join(part["text"] for part in content) if isinstance(content, list) else content or ""
