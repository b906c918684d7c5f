"""DeepSeek V4 on a real SGLang: its own first prompts are those of the revision `recipe`, `release` is found at turn 1, and
whole sessions are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tito_core
from conversations import Conversation
from drawn import at_once, drawn
from driven import AT_ONCE, FEW, MOST, Scripted, held, sessions
from prompts import large, rendered
from sglang_server import Server
from tito_core import Codec, SGLangEngine
from tito_core.cli.main import tito
from tito_core.verify.live import verify_live
from tito_core.verify.report import Report
from token_path import Name
from v4_upstream import served

LEVELS = (None, "none", "low", "high", "max")
CLOSED: dict[str, Any] = {"truncation": "close", "threshold": 1.0, "concurrency": AT_ONCE}


@cache
def codec(revision: str = "recipe") -> Codec:
    return tito_core.load("deepseekv4", revision=revision)


@pytest.fixture(scope="module")
def v4(server: Callable[[Name, str, str], Server]) -> Server:
    return server("v4", "deepseek-v4", "deepseekv4")


def sent(conversation: Conversation) -> Conversation:
    """The conversation in the words that SGLang's own reader of requests knows."""
    messages = []
    for message in conversation.messages:
        made = {key: message[key] for key in message if key != "reasoning" and (key != "tool_calls" or message[key])}
        if thought := message.get("reasoning_content") or message.get("reasoning"):
            made["reasoning_content"] = thought
        if isinstance(message.get("content"), list):
            made["content"] = [{"type": "text", "text": part["text"]} for part in message["content"]]
        messages.append(made)
    return Conversation(messages, conversation.tools)


@pytest.mark.parametrize("level", LEVELS)
def test_the_server_renders_what_we_send(v4: Server, level: str | None) -> None:
    """Id by id, whatever somebody wrote in it: content is plain text to both."""
    decision = codec().decide(chat_template_kwargs={} if level is None else {"reasoning_effort": level})
    examples = [sent(one) for one in drawn(served(), 24) if not large([one.messages, one.tools])]
    theirs = at_once(lambda one: rendered(v4, one, chat_template_kwargs=decision.forward_kwargs), examples)
    compared = 0
    for (messages, tools), ids in zip(examples, theirs, strict=True):
        said = any(message["role"] == "assistant" for message in messages)
        if tools or not decision.enabled or not said:  # elsewhere the server drops the thoughts of assistants
            assert np.array_equal(codec().prompt(messages, tools=tools, decision=decision).ids, ids), messages
            compared += 1
    assert compared > len(examples) / 6


def test_the_other_revision_is_found_at_turn_1(v4: Server) -> None:
    """With the first id that differs: behind the prompt's opener, where the recipe prints the effort; or in a schema."""
    with SGLangEngine(v4.url) as engine:
        report = verify_live(
            "deepseekv4", engine, revision="release", sessions=6, max_tokens=MOST, append_roles=["user"], **CLOSED
        )
    assert report.exit_code == 1
    assert report.sessions.driven == report.sessions.passed == 6
    assert {failure.check for failure in report.failures} == {"render"}
    for failure in report.failures:
        assert failure.what.endswith("; the server's is ours with revision 'recipe': load that one")
    assert 1 in [failure.first_index for failure in report.failures]


def test_random_output_is_kept_as_it_was_sampled(v4: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    driven = sessions(FEW)
    said = CliRunner().invoke(
        tito,
        [
            *("verify", "--family", "deepseekv4", "--engine", v4.url, "--sessions", str(driven)),
            *("--concurrency", str(AT_ONCE), "--max-tokens", str(MOST), "--truncation", "close"),
            *("--append-roles", "user", "--assistant-text-threshold", "1", "--json", "report.json"),
        ],
    )
    print(said.output)
    held(Report.model_validate_json(Path("report.json").read_text()), driven)
    assert said.exit_code == 0


def test_scripted_output_with_thoughts_calls_cuts_and_garbled_markup(v4: Server) -> None:
    with Scripted(v4) as engine:
        engine.codec = codec()
        report = verify_live("deepseekv4", engine, sessions=sessions(FEW), **CLOSED)
    held(report, sessions(FEW))
    assert report.sessions.calls > 0
    assert {"tool_results", "tool_results_then_user", "failed_call_result"} & set(report.sessions.actions)
