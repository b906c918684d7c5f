"""Qwen3 on a real SGLang: a tiny Qwen3 beside Qwen's vocabulary, served with our chat template and the family's parsers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import strategies as st

import tito_core
from completions import PLAIN, TOOLS, VALUES
from conversations import Conversation, Json
from drawn import at_once, codec, drawn
from driven import AT_ONCE, FEW, MOST, Scripted, held, sessions
from prompts import first_prompts, rendered, texts_of
from qwen_upstream import rendered as printed_by
from qwen_upstream import upstream
from sglang_server import Serve, Server, processor, scripted
from tito_core import Completion, SGLangEngine
from tito_core.cli.main import tito
from tito_core.prompts.thinking import engine_kwargs
from tito_core.verify.live import verify_live
from tito_core.verify.report import Report
from token_path import added, engine_ids, resplit

END = "<|im_end|>"


@pytest.fixture(scope="session")
def qwen(server: Serve, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Started with the older name of the family's parser of calls, which the server tells by its newer one."""
    printed = CliRunner().invoke(tito, ["template", "qwen3"])
    assert printed.exit_code == 0
    template = tmp_path_factory.mktemp("qwen") / "qwen3.jinja"
    template.write_bytes(printed.stdout_bytes)
    return server("qwen3", "qwen3", "qwen25", "--chat-template", str(template))


@pytest.mark.parametrize("thinking", [True, False])
def test_the_server_renders_first_prompts_as_we_do(qwen: Server, thinking: bool) -> None:
    ours, decision = codec("qwen3"), codec("qwen3").decide(thinking)
    examples = drawn(first_prompts(), 32)
    theirs = at_once(lambda one: rendered(qwen, one, **engine_kwargs(decision)), examples)
    free = 0
    for conversation, ids in zip(examples, theirs, strict=True):
        messages, tools = conversation
        assert np.array_equal(ours.prompt(messages, tools=tools, decision=decision, mode="engine").ids, ids), (
            conversation
        )
        if not any(mark in text for text in texts_of([messages, tools]) for mark in added("qwen3").values()):
            assert np.array_equal(ours.prompt(messages, tools=tools, decision=decision).ids, ids), conversation
            free += 1
    assert free > len(examples) / 4
    assert {bool(one.tools) for one in examples} == {True, False}


CALL = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"k": "v", "n": null}'}}
HISTORY: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "a", "reasoning_content": "so", "tool_calls": [CALL, {**CALL, "id": "c1"}]},
    {"role": "tool", "tool_call_id": "c0", "content": "r0"},
    {"role": "tool", "tool_call_id": "c1", "content": "r1"},
    {"role": "assistant", "content": "b", "reasoning_content": "then"},
    {"role": "user", "content": "<tool_response>\nx\n</tool_response>"},
    {"role": "system", "content": "Go on."},
    {"role": "user", "content": "q"},
]


@pytest.mark.parametrize("thinking", [True, False])
def test_the_template_keeps_what_the_published_one_drops(qwen: Server, thinking: bool) -> None:
    """The published template, which stands in the checkpoint, would print neither of the thoughts."""
    ours, decision = codec("qwen3"), codec("qwen3").decide(thinking)
    said = Conversation(HISTORY, [{"type": "function", "function": {"name": "f"}}])
    ids = rendered(qwen, said, chat_template_kwargs={**decision.forward_kwargs, "preserve_thinking": True})
    assert np.array_equal(ours.prompt(said.messages, tools=said.tools, decision=decision, mode="engine").ids, ids)
    assert "<think>\nso\n</think>" in ours.decode(ids)


def command(server: Server, *more: str, family: str = "qwen3") -> Result:
    return CliRunner().invoke(tito, ["verify", "--family", family, "--engine", server.url, *more])


def test_random_output_is_kept_as_it_was_sampled(qwen: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the checkpoint that the server serves: its model type, its control tokens' ids, its chat template."""
    monkeypatch.chdir(tmp_path)
    said = command(
        qwen,
        *("--model", str(qwen.model), "--sessions", str(sessions(FEW)), "--concurrency", str(AT_ONCE)),
        *("--max-tokens", str(MOST), "--truncation", "close", "--append-roles", "user"),
        *("--assistant-text-threshold", "1", "--json", "report.json"),
    )
    print(said.output)
    report = Report.model_validate_json(Path("report.json").read_text())
    held(report, sessions(FEW))
    assert (said.exit_code, report.warnings) == (0, ())
    assert [one.name for one in report.vocabulary] == ["checkpoint"]
    engine = report.engine
    assert engine is not None
    assert engine.cut > 0.9 * report.sessions.turns
    assert engine.assistant_text > 0.2, "random ids are often not canonical"
    assert sum(row.cached for row in engine.turns[1:]) > 0.5 * sum(row.shared for row in engine.turns[1:])


def test_scripted_output_with_thoughts_calls_cuts_and_garbled_markup(qwen: Server) -> None:
    with Scripted(qwen) as engine:
        report = verify_live(
            "qwen3", engine, sessions=sessions(FEW), concurrency=AT_ONCE, truncation="close", threshold=1.0
        )
    held(report, sessions(FEW))
    assert report.sessions.calls > 0
    assert {"cut"} < set(report.sessions.actions)
    assert {"tool_results", "tool_results_then_user", "failed_call_result"} & set(report.sessions.actions)


def test_a_family_of_other_parsers_is_refused(qwen: Server) -> None:
    said = command(qwen, family="qwen3coder")
    assert (said.exit_code, said.stdout) == (3, "")
    assert said.stderr.splitlines()[-1] == (
        "error: sglang reads reasoning with the parser qwen3 and tool calls with qwen, and qwen3coder is read with none and "
        "qwen3_coder; start it with --tool-call-parser qwen3_coder and without --reasoning-parser"
    )


def test_the_other_end_token_ends_a_turn_and_stays(qwen: Server) -> None:
    ours, asked = codec("qwen3"), {"role": "user", "content": "q"}
    session = ours.session()
    request = session.prepare([asked])
    script = engine_ids("qwen3", "<think>\n\n</think>\n\nhi<|endoftext|>").tolist()
    with SGLangEngine(qwen.url, fields={"custom_logit_processor": processor()}) as engine:
        said = engine.complete(request, max_tokens=20, sampling={"custom_params": {"script": script}})
    assert (np.asarray(said.ids).tolist(), said.finish_reason) == (script, "stop")
    turn = session.commit(request, said)
    text = ours.decode(session.prepare([asked, turn.message.wire(), asked]).ids)
    assert text.endswith("hi<|endoftext|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n")


class Said(NamedTuple):
    """A completion: ids that end with the stop token; what the request says."""

    ids: list[int]
    thinking: bool
    tools: tuple[str, ...] = TOOLS


class Read(NamedTuple):
    """What a completion was read as; calls are names and arguments."""

    reasoning: str
    content: str
    calls: list[tuple[str, Any]]


def offered(names: tuple[str, ...]) -> list[Json]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def theirs(server: Server, one: Said) -> Read:
    decision = codec("qwen3").decide(one.thinking)
    prompt = codec("qwen3").prompt([{"role": "user", "content": "q"}], decision=decision).ids.tolist()
    asked = {"tools": offered(one.tools), "skip_special_tokens": False, **engine_kwargs(decision), **scripted(one.ids)}
    choice = server.chat(input_ids=prompt, max_tokens=len(one.ids), **asked)
    assert (choice["prompt_token_ids"], choice["response_token_ids"]) == (prompt, one.ids)
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    read = [(call["name"], json.loads(call["arguments"])) for call in calls]
    return Read(message["reasoning_content"] or "", message["content"], read)


def ours(one: Said) -> tuple[str, Read]:
    completion = Completion(one.ids, [0.0] * len(one.ids), "stop", id="c")
    made = tito_core.parse(codec("qwen3"), completion, codec("qwen3").decide(one.thinking))
    return made.state, Read(made.reasoning, made.content, [(call.name, call.arguments) for call in made.tool_calls])


@st.composite
def whole(draw: st.DrawFn) -> Said:
    """The published template's print of a message, in ids that are often not the canonical ones."""
    thinking, words = draw(st.booleans()), st.sampled_from(PLAIN)
    arguments = st.dictionaries(st.sampled_from(["path", "b", "ключ"]), st.sampled_from(VALUES), max_size=2)
    message = {
        "role": "assistant",
        "content": draw(words),
        "reasoning_content": draw(words) if thinking else "",
        "tool_calls": [
            {"function": {"name": name, "arguments": draw(arguments)}}
            for name in draw(st.lists(st.sampled_from(TOOLS), max_size=2))
        ],
    }
    asked: list[Json] = [{"role": "user", "content": "q"}]
    mode: Json = {"enable_thinking": thinking}
    header = printed_by(upstream("qwen3"), asked, add_generation_prompt=True, **mode)
    text = printed_by(upstream("qwen3"), [*asked, message], **mode)
    assert text.startswith(header)
    ids = engine_ids("qwen3", text[len(header) :].removesuffix("\n"))
    seed = draw(st.sampled_from([None, 1, 2]))
    return Said((ids if seed is None else resplit("qwen3", ids, random.Random(seed))).tolist(), thinking)


def test_calls_before_a_cut_are_read_by_our_own_parser(qwen: Server) -> None:
    session = codec("qwen3").session(thinking=False)
    request = session.prepare([{"role": "user", "content": "q"}], tools=offered(TOOLS))
    script = engine_ids("qwen3", f"a\n{call()}\n").tolist()
    with SGLangEngine(qwen.url, fields={"custom_logit_processor": processor()}) as engine:
        said = engine.complete(request, max_tokens=len(script), sampling={"custom_params": {"script": script}})
    assert (said.finish_reason, said.message) == ("length", None)
    message = session.commit(request, said).message
    assert (message.content, message.tool_calls) == (f"a\n{call()}\n", ())


def test_what_the_template_prints_is_read_alike(qwen: Server) -> None:
    """Less the line ends around reasoning, which SGLang keeps, and the white space around content that calls follow."""
    examples = drawn(whole(), 48)
    for one, found in zip(examples, at_once(lambda one: theirs(qwen, one), examples), strict=True):
        state, made = ours(one)
        reasoning, content = found.reasoning, found.content
        if one.thinking:
            assert reasoning[0] == reasoning[-1] == "\n"
            reasoning, content = reasoning[1:-1], content.removeprefix("\n\n")
        expected = made._replace(content=made.content.strip() if made.calls else made.content)
        assert (state, Read(reasoning, content, found.calls)) == ("ok", expected), (one, found)
    assert {(one.thinking, bool(ours(one)[1].calls)) for one in examples} == {
        (thinking, calls) for thinking in (True, False) for calls in (True, False)
    }


def call(arguments: str = "{}", name: str = "f", more: str = "") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}{more}}}\n</tool_call>'


F: tuple[str, Json] = ("f", {})
THOUGHT = "<think>\nso\n</think>\n\n"
APART = "‖"  # what stands on its two sides is encoded apart

# What differs: thinking, the sampled text, our state, and what we and what SGLang read; None: the text.
DIFFERENT: dict[str, tuple[bool, str, str, Read | None, Read]] = {
    "line ends around reasoning": (True, f"{THOUGHT}hi", "ok", Read("so", "hi", []), Read("\nso\n", "\n\nhi", [])),
    "thinking on, and no `<think>` comes first (`qwen3`)": (True, "hi", "ok", None, Read("hi", "", [])),
    "reasoning that is never closed, turn ended by itself": (
        *(True, "<think>\nso", "malformed", None),
        Read("\nso", "", []),
    ),
    "`<tool_call>` in reasoning that is never closed": (
        *(True, f"<think>\nso\n{call()}", "malformed", None),
        Read("\nso\n", "", [F]),
    ),
    "reasoning of a family that has none; a `</think>` in content": (
        *(False, "a</think>b", "malformed", None),
        Read("", "a</think>b", []),
    ),
    "a `<think>` in content": (False, "a<think>b</think>c", "malformed", None, Read("a<think>b", "c", [])),
    "a `<think>` directly after the one that opens reasoning": (
        *(True, f"<think>{THOUGHT}hi", "ok", Read("<think>\nso", "hi", [])),
        Read("\nso\n", "\n\nhi", []),
    ),
    "spelled marks": (
        *(True, "<think>a</‖think>b</think>\n\nc", "ok", Read("a</think>b", "c", [])),
        Read("a", "b</think>\n\nc", []),
    ),
    "text after or between calls": (False, f"{call()}a{call()}b", "malformed", None, Read("", "", [F, F])),
    "white space around content that JSON calls follow": (
        *(False, f" a \n{call()}", "ok", Read("", " a ", [F])),
        Read("", "a", [F]),
    ),
    "a call that is broken or not closed": (
        *(False, f"a\n{call('{')}\n{call()}", "malformed", None),
        Read("", "a", [F]),
    ),
    "JSON: a key twice, more or other keys, a list of calls, no arguments": (
        *(False, call('{"k": 1, "k": 2}', more=', "id": 1'), "malformed", None),
        Read("", "", [("f", {"k": 2})]),
    ),
    "JSON: arguments that are no object": (False, call('"v"'), "malformed", None, Read("", "", [("f", "v")])),
    "JSON beside its marks, without line ends": (
        *(False, call().replace("\n", ""), "ok", Read("", "", [F])),
        Read("", call().replace("\n", ""), []),
    ),
    "JSON: a tool that was not offered": (False, call(name="g"), "ok", Read("", "", [("g", {})]), Read("", "", [])),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_listed_differences(qwen: Server, what: str, request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "qwen-completions.md").read_text(encoding="utf-8")
    assert f"\n| {what} | " in page.partition("## Compared with SGLang")[2]
    thinking, text, state, expected, their = DIFFERENT[what]
    one = Said(
        [number for part in (text + END).split(APART) for number in engine_ids("qwen3", part).tolist()], thinking
    )
    assert ours(one) == (state, expected or Read("", text, []))
    assert theirs(qwen, one) == their
