"""`tito verify --launch` with a real SGLang: it is started, verified and stopped, and nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine_server import make_model
from environment import SGLANG
from processes import members, running, until
from tito_core import KnownIssue
from tito_core.cli.main import tito
from tito_core.families.registry import Registry, default_registry
from tito_core.verify.report import Report

READY_WITHIN = 600
ON_THE_CPU = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "max-total-tokens": 16384,
    "context-length": 8192,
    "disable-overlap-schedule": True,
    "skip-server-warmup": True,
}


pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def model(home: Path) -> Path:
    return make_model(SGLANG, "qwen3", home / "qwen3")


def arguments(model: Path, *more: str) -> list[str]:
    surroundings = {**SGLANG.variables, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return [
        *("verify", "--family", "qwen3", "--model", str(model)),
        *("--launch", "--launcher", str(SGLANG.python()), "--platform", "cpu", "--mem-fraction-static", "0.3"),
        *("--ready-within", str(READY_WITHIN), "--max-tokens", "24", "--truncation", "close", "--append-roles", "user"),
        *("--assistant-text-threshold", "1"),
        *(word for name, value in ON_THE_CPU.items() for word in ("--set", f"{name}={json.dumps(value)}")),
        *(word for name, value in surroundings.items() for word in ("--env", f"{name}={value}")),
        *more,
    ]


def started(model: Path, home: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tito_core", *arguments(model, *more)]
    surroundings = {**os.environ, "TMPDIR": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    said = subprocess.PIPE
    return subprocess.Popen(command, cwd=home, env=surroundings, text=True, stdout=said, stderr=said)


def guard(model: Path) -> list[int]:
    """The leader of the group that serves this model."""
    return [pid for pid in running("sglang.launch_server", str(model)) if members(pid)]


def served(home: Path) -> int:
    """How many requests the log tells of."""
    return sum(log.read_text().count("/v1/chat/completions") for log in home.glob("tito-sglang-*.log"))


def test_it_serves_the_recipe_and_is_stopped(model: Path, tmp_path: Path) -> None:
    with started(model, tmp_path, "--sessions", "4", "--concurrency", "4", "--json", "out.json") as tito:
        assert until(lambda: guard(model) or tito.poll() is not None, READY_WITHIN)
        (group,) = guard(model)
        out, err = tito.communicate()
    assert tito.returncode == 0, (out, err)
    report = Report.model_validate_json((tmp_path / "out.json").read_text())
    assert (report.sessions.passed, report.warnings) == (4, ())
    engine = report.engine
    assert engine is not None
    assert f"--model-path {model} --host 127.0.0.1 --port {engine.url.rpartition(':')[2]} " in engine.launched
    assert "--reasoning-parser qwen3 --tool-call-parser qwen " in engine.launched
    assert err.splitlines()[0] == f"starting sglang: {engine.launched}"
    assert members(group) == []


def test_an_interrupt_while_it_is_verified_leaves_nothing(model: Path, tmp_path: Path) -> None:
    with started(model, tmp_path, "--sessions", "2000", "--concurrency", "4") as tito:
        assert until(lambda: served(tmp_path) > 20 or tito.poll() is not None, READY_WITHIN)
        (group,) = guard(model)
        assert len(members(group)) > 3, "the guard, the server, its scheduler, its detokenizer"
        tito.send_signal(signal.SIGINT)
        out, err = tito.communicate(timeout=60)
    assert (tito.returncode, out) == (130, ""), err
    assert members(group) == []


def test_what_dies_at_start_shows_its_last_lines_and_the_known_issue(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    matches = r"unrecognized arguments: --no-such-option 7"
    issue = KnownIssue(name="old", summary="It is too old.", matches=matches, advice="Take a newer one.")
    declared = default_registry.get_family("qwen3").model_copy(update={"known_issues": (issue,)})
    monkeypatch.setattr(Registry, "get_family", lambda self, name: declared)
    said = CliRunner().invoke(tito, arguments(model, "--set", "no-such-option=7"))
    assert (said.exit_code, said.stdout) == (3, "")
    *_, last, known, log, error = said.stderr.splitlines()
    assert last.endswith("error: unrecognized arguments: --no-such-option 7")
    assert known == "  known       old: It is too old. Take a newer one."
    assert log.startswith(f"  log         {tmp_path}/tito-sglang-")
    assert error.startswith("error: sglang ended before it was ready (exit code 2, after ")
    assert guard(model) == []
