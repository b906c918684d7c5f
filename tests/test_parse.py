"""Reading completions back: what a family's parser is told, what the core asks of it, and what a session stores."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from fake_families import family

import tito_core
import tito_deepseek.dsml_responses
from tito_core import Codec, Completion, Family, Parsed, Piece, Sampled, ToolCall
from tito_core.errors import CompletionError, EncodingError, FamilyError
from tito_core.prompts.messages import normalise_tools
from token_path import EOS, NAMES, UNTHINK, Name, engine_ids, plain

Json = dict[str, Any]
TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER: Json = {"role": "user", "content": "q"}
CALLED = (
    '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="false">[1,2]'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
)


@cache
def loaded(name: Name) -> Codec:
    return tito_core.load("deepseekv32", vocabulary=name)


@pytest.fixture(params=NAMES)
def codec(request: pytest.FixtureRequest) -> Codec:
    return loaded(request.param)


def completion(codec: Codec, text: str, finish: Any = "stop", *, more: list[int] | None = None) -> Completion:
    name: Name = "r1" if codec.origin.vocabulary == "r1" else "v4"
    ids = [*engine_ids(name, text).tolist(), *(more or [])]
    return Completion(ids, np.linspace(-1, -0.5, len(ids)), finish, id="c")


def told(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Sampled], Any]) -> list[Sampled]:
    """Puts a parser in the family's place; the list holds what it is given."""
    seen: list[Sampled] = []

    def parser(sampled: Sampled) -> Any:
        seen.append(sampled)
        return answer(sampled)

    monkeypatch.setattr(tito_deepseek.dsml_responses, "parse_v32", parser)
    return seen


def test_what_a_parser_is_told(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = told(monkeypatch, lambda sampled: Parsed("x"))
    unthink = codec.decode([UNTHINK["r1" if codec.origin.vocabulary == "r1" else "v4"]])
    spelled = plain("r1").encode("</think>", add_special_tokens=False).ids
    tools = normalise_tools([TOOL])
    for thinking in (True, False):
        made = completion(codec, "a" + unthink, more=[*spelled, EOS])
        tito_core.parse(codec, made, codec.decide(thinking), tools)
        (sampled,) = seen
        assert sampled.pieces == (
            Piece("text", "a", 0, 1),
            Piece("control", unthink, 1, 2),
            Piece("text", "</think>", 2, 2 + len(spelled)),
        )
        assert (sampled.opened, sampled.stop, sampled.whole) == (thinking, "<｜end▁of▁sentence｜>", True)
        assert sampled.text == "a</think></think>"
        assert (sampled.finish_reason, sampled.tools) == ("stop", tools)
        assert ("｜DSML｜" in sampled.controls) == (codec.origin.vocabulary == "v4")
        assert {"<think>", "</think>"} <= sampled.controls
        seen.clear()


@pytest.mark.parametrize(
    ("finish", "stopped", "whole"),
    [("stop", False, True), ("tool_calls", False, True), ("length", False, False), ("abort", False, False)]
    + [(finish, True, True) for finish in ("stop", "length", "abort")],
)
def test_when_a_turn_is_whole(
    codec: Codec, monkeypatch: pytest.MonkeyPatch, finish: str, stopped: bool, whole: bool
) -> None:
    seen = told(monkeypatch, lambda sampled: Parsed("x"))
    tito_core.parse(codec, completion(codec, "a", finish, more=[EOS] if stopped else []), codec.decide())
    assert seen[0].whole is whole
    assert seen[0].text == "a"


def test_bytes_between_texts_are_a_piece(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = told(monkeypatch, lambda sampled: Parsed(sampled.text, tool_calls=(ToolCall("f", {}),)))
    first = plain("r1").encode("🙂", add_special_tokens=False).ids
    assert len(first) > 1
    ids = [*first, first[0], *first, first[0]]
    half = "\ufffd"
    parsed = tito_core.parse(codec, Completion(ids, [0.0] * len(ids), "stop"), codec.decide())
    n = len(first)
    assert seen[0].pieces == (
        Piece("text", "🙂", 0, n),
        Piece("bytes", half, n, n + 1),
        Piece("text", "🙂", n + 1, 2 * n + 1),
        Piece("bytes", half, 2 * n + 1, 2 * n + 2),
    )
    assert parsed == Parsed(f"🙂{half}🙂{half}", state="malformed", why="it holds bytes that are no text")
    cut = tito_core.parse(codec, Completion(ids, [0.0] * len(ids), "length"), codec.decide())
    assert seen[1].pieces == seen[0].pieces[:3]
    assert (cut.content, cut.state, cut.tool_calls) == (f"🙂{half}🙂", "incomplete", ())


def test_calls_without_an_id_get_one(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = (ToolCall("f", {}), ToolCall("f", {}, None, "own:1"), ToolCall("f", {}))
    told(monkeypatch, lambda sampled: Parsed("", "", calls))
    for _ in range(2):
        made = tito_core.parse(codec, completion(codec, "a"), codec.decide()).tool_calls
        assert [call.id for call in made] == ["call_c_0", "own:1", "call_c_2"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda sampled: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda sampled: None, "TypeError: it answered a NoneType; it must answer a Parsed"),
        (
            lambda sampled: Parsed(tool_calls=(ToolCall("f", {}),), state="malformed", why="w"),
            "ValueError: what is malformed has no tool calls, and says why",
        ),
        (lambda sampled: Parsed(state="incomplete"), "ValueError: what is incomplete has no tool calls, and says why"),
    ],
)
def test_a_parser_that_fails(
    codec: Codec, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Sampled], Any], why: str
) -> None:
    told(monkeypatch, answer)
    session = codec.session()
    request = session.prepare([USER])
    with pytest.raises(FamilyError) as error:
        session.commit(request, completion(codec, "a"))
    assert str(error.value) == (
        f"the response parser tito_deepseek.dsml_responses:parse_v32 of deepseekv32 failed on completion c: {why}"
    )
    assert session.turns == ()


def test_a_family_without_a_parser(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = codec.family.model_copy(update={"response_parser": None})
    monkeypatch.setattr(Codec, "family", bare)
    session = codec.session()
    with pytest.raises(CompletionError) as error:
        session.commit(session.prepare([USER]), completion(codec, "a"))
    assert str(error.value) == (
        "completion c has no message, and deepseekv32 declares no response_parser; pass the assistant message that the "
        "engine's parsers made"
    )
    assert error.value.where == {"id": "c"}


def test_an_id_that_is_none(codec: Codec) -> None:
    made = Completion([5, 129_900], [0.0, 0.0], "stop", id="c")
    with pytest.raises(EncodingError, match="id 129900 at place 1 is not in the vocabulary"):
        tito_core.parse(codec, made, codec.decide())
    session = codec.session()
    with pytest.raises(CompletionError, match="completion c can't be stored: id 129900 at place 1"):
        session.commit(session.prepare([USER]), made)


def test_a_declaration_keeps_its_parser() -> None:
    made = family(response_parser="package.module:parse")
    assert Family.model_validate_json(made.model_dump_json()) == made
    assert made.response_parser == "package.module:parse"
    with pytest.raises(ValueError, match="'package.module' is not a reference of the form 'package.module:name'"):
        family(response_parser="package.module")


def test_a_session_reads_back_what_brings_no_message(codec: Codec) -> None:
    session = codec.session(thinking=True)
    turn = session.commit(
        session.prepare([USER], tools=[TOOL]), completion(codec, f"so</think>on it{CALLED}", "tool_calls", more=[EOS])
    )
    assert turn.parsed is not None
    assert turn.parsed.state == "ok"
    assert turn.message == turn.parsed.message
    (call,) = turn.message.tool_calls
    assert (call.name, call.arguments, call.text, call.id) == ("f", {"x": [1, 2]}, '{"x": [1,2]}', "call_c_0")
    sent = {
        "role": "assistant",
        "content": "on it",
        "reasoning_content": "so",
        "tool_calls": [{"id": call.id, "function": {"name": "f", "arguments": call.text}}],
    }
    result = {"role": "tool", "tool_call_id": call.id, "content": "r"}
    request = session.prepare([USER, sent, result], tools=[TOOL])
    assert request.parent is turn
    assert np.array_equal(request.ids[: len(turn.ids)], turn.ids)


def test_a_message_that_is_given_is_not_read_again(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = told(monkeypatch, lambda sampled: Parsed("x"))
    session = codec.session()
    made = completion(codec, "a</think>b", more=[EOS])
    given = Completion(made.ids, made.logprobs, "stop", message={"content": "b", "reasoning": "a"})
    assert session.commit(session.prepare([USER]), given).parsed is None
    assert seen == []


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("The answer is 4.", "The answer is 4.", ""),
        (f"r</think>{CALLED}x", f"{CALLED}x", "r"),
        (f"r{CALLED}", f"r{CALLED}", ""),
        (f"r</think>{CALLED[2:]}", CALLED[2:], "r"),
    ],
)
def test_what_is_malformed_is_stored_and_continued(codec: Codec, text: str, content: str, reasoning: str) -> None:
    """Its ids are those that were sampled, whatever was read in them; a user may go on, and no tool is run."""
    session = codec.session(thinking=True)
    made = completion(codec, text, more=[EOS])
    turn = session.commit(session.prepare([USER], tools=[TOOL]), made)
    assert turn.parsed is not None
    assert turn.parsed.state == "malformed"
    assert (turn.message.content, turn.message.reasoning, turn.message.tool_calls) == (content, reasoning, ())
    sent = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    request = session.prepare([USER, sent, {"role": "user", "content": "again"}])
    assert np.array_equal(request.ids[: len(turn.ids)], turn.ids)
    assert np.array_equal(turn.ids[-len(made.ids) :], made.ids)
    assert {mismatch.kind for mismatch in session.compare()} <= {"assistant_text"}
    (sample,) = session.samples()
    assert np.array_equal(sample.tokens[sample.loss_mask == 1], made.ids)


def test_ids_never_depend_on_what_was_read(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    made = completion(codec, f"r</think>{CALLED}", more=[EOS])
    stored = []
    for answer in (Parsed("x"), Parsed("", "y", (ToolCall("f", {}),)), Parsed("z", state="malformed", why="w")):
        told(monkeypatch, lambda sampled, answer=answer: answer)
        session = codec.session()
        stored.append(session.commit(session.prepare([USER], tools=[TOOL]), made).ids.tolist())
    assert stored[0] == stored[1] == stored[2]


def test_strict_json() -> None:
    assert tito_core.strict_json(' {"b": 1.50, "a": [null, -0, "\\u00e9"]}') == {"b": 1.5, "a": [None, 0, "é"]}
    for text, why in (
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("1, 2", "Extra data: line 1 column 2 (char 1)"),
        ("[NaN]", "NaN is no JSON number"),
        ("-Infinity", "-Infinity is no JSON number"),
        ("1e999", "1e999 is no JSON number"),
        ('[{"a": 1, "b": 2, "a": 1}]', "the key 'a' stands twice"),
        ("[" * 100_000, "it nests too deep"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
            tito_core.strict_json(text)


def test_a_call_keeps_the_text_of_its_arguments() -> None:
    text = '{ "b":1.50,"a" : "\\u00e9"}'
    assert tito_core.tool_call("f", text) == ToolCall("f", json.loads(text), text)
    for arguments, why in (
        ("[]", "has arguments that are JSON, but a list"),
        ('{"a": 1', "Expecting ',' delimiter"),
        ('{"a": "\\ud800"}', "holds the lone surrogate"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "nests deeper than 100 levels"),
    ):
        with pytest.raises(ValueError, match=why):
            tito_core.tool_call("f", arguments)
    with pytest.raises(ValueError, match="has the function name ''"):
        tito_core.tool_call("", "{}")
