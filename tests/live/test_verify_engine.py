"""Whole sessions on a real SGLang: what `tito verify --engine` proves, and what becomes of a server that dies.

Random output: 64 sessions on one vocabulary and 16 on the other. Scripted output, which is longer: 16 on each.
TITO_LIVE_SESSIONS=64 sets all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from click.testing import CliRunner

from drawn import codec
from driven import AT_ONCE, FEW, MOST, Scripted, held, sessions
from sglang_server import Server, processor
from tito_core import Completion, Request, SGLangEngine
from tito_core.cli.main import tito
from tito_core.errors import EngineError
from tito_core.verify.live import verify_live
from tito_core.verify.report import Report

SESSIONS = {"r1": 64, "v4": 16}


def test_random_output_is_kept_as_it_was_sampled(live: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    driven = sessions(SESSIONS[live.vocabulary])
    said = CliRunner().invoke(
        tito,
        [
            *("verify", "--family", "deepseekv32", "--engine", live.url, "--vocabulary", live.vocabulary),
            *(
                "--sessions",
                str(driven),
                "--concurrency",
                str(AT_ONCE),
                "--max-tokens",
                str(MOST),
                "--truncation",
                "close",
            ),
            *("--append-roles", "user", "--assistant-text-threshold", "1", "--json", "report.json"),
        ],
    )
    print(said.output)
    report = Report.model_validate_json(Path("report.json").read_text())
    held(report, driven)
    assert said.exit_code == 0
    engine = report.engine
    assert engine is not None
    assert engine.cut > 0.9 * report.sessions.turns
    assert engine.assistant_text > 0.2, "random ids are often not canonical"
    assert sum(row.cached for row in engine.turns[1:]) > 0.5 * sum(row.shared for row in engine.turns[1:])
    assert engine.weight_versions == ("default",)


def test_scripted_output_with_thoughts_calls_cuts_and_garbled_markup(live: Server) -> None:
    with Scripted(live) as engine:
        report = verify_live(
            "deepseekv32",
            engine,
            vocabulary=live.vocabulary,
            sessions=sessions(FEW),
            concurrency=AT_ONCE,
            truncation="close",
            threshold=1.0,
        )
    held(report, sessions(FEW))
    assert report.sessions.calls > 0
    assert {"cut"} < set(report.sessions.actions)
    assert {"tool_results", "tool_results_then_user", "failed_call_result"} & set(report.sessions.actions)


@pytest.mark.parametrize("live", ["r1"], indirect=True)
def test_a_server_that_is_killed_in_mid_session_loses_no_turn_and_serves_again(live: Server) -> None:
    answers = threading.Event()

    class Watched(SGLangEngine):
        def complete(self, request: Request, *, max_tokens: int, sampling: Mapping[str, Any] = {}) -> Completion:
            if request.parent is not None:
                answers.set()
            return super().complete(request, max_tokens=max_tokens, sampling=sampling)

    def kill() -> None:
        answers.wait(300)
        live.kill()

    options: dict[str, Any] = {
        "vocabulary": live.vocabulary,
        "append_roles": ["user"],
        "truncation": "close",
        "threshold": 1.0,
    }
    with Watched(live.url, retries=1, backoff=0.05) as engine:
        threading.Thread(target=kill).start()
        report = verify_live("deepseekv32", engine, sessions=8, concurrency=4, max_tokens=32, **options)
        (failure,) = report.failures
        assert (failure.check, report.exit_code) == ("engine", 3)
        assert f"sglang at {live.url} could not be reached, or broke off, 2 time(s) (" in failure.what
        assert report.sessions.turns > 0
        assert failure.conversation is not None
        with pytest.raises(EngineError, match="could not be reached"):
            verify_live("deepseekv32", engine, sessions=1, max_tokens=8, **options)
        live.start()
        held(verify_live("deepseekv32", engine, sessions=2, max_tokens=8, **options), 2)


def test_both_endpoints_return_the_ids_and_what_can_t_be_served_is_told_apart(live: Server) -> None:
    one = codec(live.vocabulary)
    request = one.session().prepare([{"role": "user", "content": "0"}])
    script = one.encoder.tokenizer.encode("so</think>hi<｜end▁of▁sentence｜>", add_special_tokens=False).ids
    said_by_chat = {"role": "assistant", "content": "hi", "reasoning_content": "so"}
    ways: tuple[tuple[Literal["chat", "generate"], Any], ...] = (("chat", said_by_chat), ("generate", None))
    for endpoint, message in ways:
        with SGLangEngine(live.url, endpoint=endpoint, fields={"custom_logit_processor": processor()}) as engine:
            said = engine.complete(request, max_tokens=20, sampling={"custom_params": {"script": script}})
            assert (np.asarray(said.ids).tolist(), said.finish_reason, said.message) == (script, "stop", message)
            assert said.meta["finish_reason"] == {"type": "stop", "matched": script[-1]}
            for options, kind in (
                ({"max_tokens": 8190}, "context"),
                ({"max_tokens": 8, "sampling": {"temperature": -1.0}}, "usage"),
            ):
                with pytest.raises(EngineError) as caught:
                    engine.complete(request, **options)
                assert caught.value.where == {"kind": kind}, str(caught.value)
    with SGLangEngine(f"{live.url}/nowhere") as engine, pytest.raises(EngineError, match="has no such endpoint"):
        engine.complete(request, max_tokens=8)
