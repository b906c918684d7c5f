"""Qwen3 on a real SGLang: a tiny Qwen3 beside Qwen's vocabulary, served with our chat template and the family's parsers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tito_core
from conversations import Conversation, Json
from driven import AT_ONCE, MOST, Scripted, held
from drawn import at_once, codec, drawn
from prompts import first_prompts, rendered, texts_of
from qwen_upstream import rendered as printed_by
from qwen_upstream import upstream
from sglang_server import Serve, Server, processor, scripted
from tito_core import Completion, Parsed, SGLangEngine
from tito_core.cli.main import tito
from tito_core.prompts.thinking import engine_kwargs
from tito_core.verify.live import verify_live
from tito_core.verify.report import Report
from token_path import added, engine_ids, resplit

SESSIONS = 16
END = "<|im_end|>"


@pytest.fixture(scope="session")
def qwen(server: Serve, tmp_path_factory: pytest.TempPathFactory) -> Server:
    printed = CliRunner().invoke(tito, ["template", "qwen3"])
    assert printed.exit_code == 0
    template = tmp_path_factory.mktemp("qwen") / "qwen3.jinja"
    template.write_bytes(printed.stdout_bytes)
    parsers = tito_core.get_family("qwen3").parsers["sglang"]
    return server("qwen3", parsers.reasoning, parsers.tool_call, "--chat-template", str(template))


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
        *("--model", str(qwen.model), "--sessions", str(SESSIONS), "--concurrency", str(AT_ONCE)),
        *("--max-tokens", str(MOST), "--truncation", "close", "--append-roles", "user"),
        *("--assistant-text-threshold", "1", "--json", "report.json"),
    )
    print(said.output)
    report = Report.model_validate_json(Path("report.json").read_text())
    held(report, SESSIONS)
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
            "qwen3", engine, sessions=SESSIONS, concurrency=AT_ONCE, truncation="close", threshold=1.0
        )
    held(report, SESSIONS)
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
    print(said.message)
    session.commit(request, said)
    text = ours.decode(session.prepare([asked, said.message, asked]).ids)
    assert text.endswith("hi<|endoftext|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n")


def test_probe(qwen: Server) -> None:
    T, U, C, D = "<think>", "</think>", "<tool_call>", "</tool_call>"
    J = '{"name": "f", "arguments": {"k": "v"}}'
    for thinking, text in [
        (True, f"{T}\nso\n{U}\n\nhi{END}"),
        (True, f"{T}\nso\n{U}\n\nhi\n{C}\n{J}\n{D}{END}"),
        (False, f"hi\n{C}\n{J}\n{D}\n{C}\n{J}\n{D}{END}"),
        (True, f"{T}\nso{END}"),
        (True, f"{T}\nso\n{C}\n{J}\n{D}{END}"),
        (False, f"a{T}b{U}c{END}"),
        (True, f"{T}\n{T}so\n{U}\n\nhi{END}"),
        (False, f"a{T}b{END}"),
        (False, f"a{U}b{END}"),
        (False, f"\n{C}\n{J}\n{D}x{C}\n{J}\n{D}y{END}"),
        (False, f" hi \n{C}\n{J}\n{D}{END}"),
        (False, f"hi\n{C}\n{J[:-1]}\n{D}{END}"),
        (False, f"hi\n{C}\n{J}{END}"),
        (False, f"hi\n{C}{J}{D}{END}"),
        (False, "hi\n"+C+"\n"+J.replace('{"k": "v"}','"v"')+"\n"+D+END),
        (False, "hi\n"+C+"\n"+J.replace('"f"','"g"')+"\n"+D+END),
        (True, f"so{END}"),
        (True, f"so{U}hi{END}"),
        (False, f"{T}\nso\n{U}\n\nhi{END}"),
    ]:
        decision = codec("qwen3").decide(thinking)
        ids = engine_ids("qwen3", text).tolist()
        prompt = codec("qwen3").prompt([{"role": "user", "content": "hi"}], decision=decision).ids.tolist()
        choice = qwen.chat(input_ids=prompt, max_tokens=len(ids), skip_special_tokens=False, tools=[{"type": "function", "function": {"name": "f"}}], **engine_kwargs(decision), **scripted(ids))
        m = choice["message"]
        made = tito_core.parse(codec("qwen3"), Completion(ids, [0.0] * len(ids), "stop", id="c"), decision)
        print(thinking, repr(text), "\n   T", (m["reasoning_content"], m["content"], [(c["function"]["name"], c["function"]["arguments"]) for c in m.get("tool_calls") or ()], choice["finish_reason"]), "\n   O", (made.state, made.reasoning, made.content, [(c.name, c.text) for c in made.tool_calls]))
    assert not print
