"""Whole sessions on a real vLLM: what `tito verify --engine` proves, and what becomes of a server that dies.

16 sessions of random output on each vocabulary, and 16 of scripted output. TITO_LIVE_SESSIONS=64 sets all of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from brief import brief
from drawn import codec
from tito_core import Completion, Request, VLLMEngine
from tito_core.cli.main import tito
from tito_core.errors import EngineError
from tito_core.tokens.compare import FAULTS
from tito_core.verify.live import verify_live
from tito_core.verify.report import Report
from vllm_server import KEY, Server, scripted

SESSIONS = int(os.environ.get("TITO_LIVE_SESSIONS") or 16)
AT_ONCE = 16
CLOSED: dict[str, Any] = {"append_roles": ["user"], "truncation": "close", "threshold": 1.0}


class Scripted(VLLMEngine):
    """The real server, made to sample what the scripted engine says."""

    def __init__(self, live: Server) -> None:
        super().__init__(live.url, api_key=KEY)
        self.codec = codec(live.vocabulary)

    def complete(self, request: Request, *, max_tokens: int, sampling: Mapping[str, Any] = {}) -> Completion:
        ids, most = brief(self.codec, request)
        return super().complete(request, max_tokens=most, sampling=scripted(ids))


def held(report: Report, driven: int) -> None:
    """All sessions held. Where tools are offered, vLLM's own render of a first prompt is another than ours."""
    assert (report.sessions.driven, report.sessions.passed) == (driven, driven)
    assert {kind: report.sessions.mismatches[kind] for kind in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert {check.name: check.ok for check in report.checks} == {
        "engine": True,
        "render": driven < 2,
        "canonical": True,
    }
    assert report.engine is not None
    assert len(report.engine.mismatches) == driven
    assert report.exit_code == (0 if driven < 2 else 1)
    for failure in report.failures:
        assert failure.check == "render"
        assert failure.what.endswith(
            "; it stands in the tools: the server prints them elsewhere, or other fields of them"
        )
        assert (failure.expected_text.count("null"), failure.actual_text.count("null")) == (1, 0)
    assert len(report.failures) == (0 if driven < 2 else 1)


@pytest.mark.parametrize("driven", [1, SESSIONS])
def test_random_output_is_kept_as_it_was_sampled(
    live: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driven: int
) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner(env={"KEY": KEY}).invoke(
        tito,
        [
            *(
                "verify",
                "--family",
                "deepseekv32",
                "--engine",
                live.url,
                "--engine-kind",
                "vllm",
                "--api-key-env",
                "KEY",
            ),
            *("--vocabulary", live.vocabulary, "--sessions", str(driven), "--concurrency", str(AT_ONCE)),
            *("--max-tokens", "16", "--truncation", "close", "--append-roles", "user"),
            *("--assistant-text-threshold", "1", "--json", "report.json"),
        ],
    )
    print(said.output)
    report = Report.model_validate_json(Path("report.json").read_text())
    held(report, driven)
    assert said.exit_code == report.exit_code
    engine = report.engine
    assert engine is not None
    assert engine.kind == "vllm"
    assert engine.cut > 0.9 * report.sessions.turns
    assert engine.assistant_text > 0.1, "random ids are often not canonical"
    assert driven < 2 or sum(row.cached for row in engine.turns[1:]) > 0


def test_scripted_output_with_thoughts_calls_cuts_and_garbled_markup(live: Server) -> None:
    with Scripted(live) as engine:
        report = verify_live(
            "deepseekv32",
            engine,
            vocabulary=live.vocabulary,
            sessions=SESSIONS,
            concurrency=AT_ONCE,
            truncation="close",
            threshold=1.0,
        )
    held(report, SESSIONS)
    assert report.sessions.calls > 0
    assert {"cut"} < set(report.sessions.actions)
    assert {"tool_results", "tool_results_then_user", "failed_call_result"} & set(report.sessions.actions)


def test_a_server_that_is_killed_in_mid_session_loses_no_turn_and_serves_again(live: Server) -> None:
    answers = threading.Event()

    class Watched(VLLMEngine):
        def complete(self, request: Request, *, max_tokens: int, sampling: Mapping[str, Any] = {}) -> Completion:
            if request.parent is not None:
                answers.set()
            return super().complete(request, max_tokens=max_tokens, sampling=sampling)

    def kill() -> None:
        answers.wait(300)
        live.kill()

    options: dict[str, Any] = {"vocabulary": live.vocabulary, **CLOSED}
    with Watched(live.url, api_key=KEY, retries=1, backoff=0.05) as engine:
        threading.Thread(target=kill).start()
        report = verify_live("deepseekv32", engine, sessions=8, concurrency=4, max_tokens=32, **options)
        failure = report.failures[0]
        assert (failure.check, report.exit_code) == ("engine", 3)
        assert f"vllm at {live.url} could not be reached, or broke off, 2 time(s) (" in failure.what
        assert report.sessions.turns > 0
        assert failure.conversation is not None
        with pytest.raises(EngineError, match="could not be reached"):
            verify_live("deepseekv32", engine, sessions=1, max_tokens=8, **options)
        live.start()
        held(verify_live("deepseekv32", engine, sessions=2, max_tokens=8, **options), 2)
