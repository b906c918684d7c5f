"""`tito verify --launch` with a stand-in for SGLang: what is started, what is said when it fails, and that nothing stays."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner, Result

from processes import running, until
from tito_core import Codec
from tito_core.cli.main import tito
from tito_core.families.family import Platform
from tito_core.families.registry import Registry, default_registry
from tito_core.verify.report import Report

TESTS = Path(__file__).parent
RECIPE = (
    "--tensor-parallel-size 8 --expert-parallel-size 8 --reasoning-parser deepseek-v3 --tool-call-parser deepseekv32 "
    "--speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
)
KNOWN = (
    "nextn-fuse-qkv-a-proj: SGLang can't load the draft model that the checkpoint carries: its DeepseekV3ForCausalLMNextN "
    "lacks fuse_qkv_a_proj. Serve with the profile plain, or with an SGLang whose NextN model has it."
)


@cache
def codec() -> Codec:
    return Codec.of(default_registry.family("deepseekv32"), vocabulary="r1")


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any directory is a checkpoint of R1's vocabulary, the stand-in is installed, and files land in a place of their own."""
    monkeypatch.setattr(Registry, "load", lambda self, family, **_: codec())
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (TESTS / "fake_engine", TESTS, TESTS.parent))))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def launch(does: str, *arguments: str) -> Result:
    command = [
        "verify",
        "--family",
        "deepseekv32",
        "--model",
        "ckpt",
        "--launch",
        "--sessions",
        "2",
        "--max-tokens",
        "4096",
    ]
    return CliRunner().invoke(tito, [*command, *arguments], env={"FAKE": does})


def log() -> Path:
    (found,) = Path.cwd().glob("tito-sglang-*.log")
    return found


def nothing_stays() -> bool:
    return not running("sglang.launch_server", "ckpt")


def test_an_engine_is_started_verified_and_stopped() -> None:
    said = launch("serve", "--json", "out.json", "--profile", "low-latency", "--platform", "rocm", "--port", free())
    assert said.exit_code == 0, said.output
    engine = Report.model_validate_json(Path("out.json").read_text()).engine
    assert engine is not None
    port = engine.url.rpartition(":")[2]
    given = ["--model-path", "ckpt", "--host", "127.0.0.1", "--port", port, *shlex.split(RECIPE)]
    given[given.index("--speculative-num-steps") + 1] = "3"
    given[given.index("--speculative-num-draft-tokens") + 1] = "4"
    assert json.loads(log().read_text().splitlines()[0]) == given
    assert engine.launched == shlex.join([sys.executable, "-m", "sglang.launch_server", *given])
    assert said.stderr.splitlines() == [f"starting sglang: {engine.launched}", f"its log: {log()}"]
    assert f"  engine      sglang at {engine.url}, weights default\n" in said.stdout
    assert nothing_stays()


def free() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def test_a_dry_run_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    said = launch("die", "--dry-run", "--launcher", "/opt/sglang/bin/python")
    assert (said.exit_code, said.stderr) == (0, "")
    assert said.stdout.splitlines()[-1] == (
        f"/opt/sglang/bin/python -m sglang.launch_server --model-path ckpt --host 127.0.0.1 {RECIPE}"
    )
    assert [*Path.cwd().iterdir()] == []


def test_what_dies_at_start_shows_its_last_lines_and_the_known_issue() -> None:
    said = launch("die")
    assert (said.exit_code, said.stdout) == (3, "")
    lines = said.stderr.splitlines()
    assert lines[0].startswith("starting sglang: ")
    assert lines[2].startswith('  last lines  ["--model-path", "ckpt"')
    assert [re.sub(r"after \d+ s", "after N s", line) for line in lines[3:]] == [
        "              loading",
        "              AttributeError: 'DeepseekV3ForCausalLMNextN' object has no attribute 'fuse_qkv_a_proj'",
        f"  known       {KNOWN}",
        f"  log         {log()}",
        f"error: sglang ended before it was ready (exit code 1, after N s); its last lines, or {log()}, say why",
    ]
    assert nothing_stays()


def test_what_is_lost_while_it_is_verified_shows_its_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tito_core.engines.http.random.uniform", lambda one, two: 0.0)
    said = launch("lose", "--concurrency", "1")
    assert said.exit_code == 3
    assert said.stdout.splitlines()[-1].startswith("The engine was lost after ")
    assert said.stderr.splitlines()[-2:] == [
        "              CUDA error: device-side assert triggered",
        f"  log         {log()}",
    ]


def test_what_is_never_ready_is_stopped() -> None:
    said = launch("hang", "--ready-within", "2")
    assert said.exit_code == 3
    assert said.stderr.splitlines()[-1].startswith("error: sglang was not ready within 2 s (http://127.0.0.1:")
    assert nothing_stays()


def sent_when_started(number: signal.Signals) -> None:
    """Sends this process a signal once its engine has said something."""

    def send() -> None:
        assert until(lambda: any(one.stat().st_size for one in Path.cwd().glob("tito-sglang-*.log")), 60)
        assert not nothing_stays()
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


@pytest.fixture
def handled() -> Iterator[dict[int, Any]]:
    """What SIGTERM and SIGHUP are handled with as long as the test runs."""

    def nothing(*_: Any) -> None:
        pass

    before = {number: signal.signal(number, nothing) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield dict.fromkeys(before, nothing)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_nothing(number: signal.Signals, handled: dict[int, Any]) -> None:
    sent_when_started(number)
    said = launch("hang")
    assert (said.exit_code, said.stdout) == (130, "")
    assert nothing_stays()
    assert {one: signal.getsignal(one) for one in handled} == handled


@pytest.mark.usefixtures("handled")
@pytest.mark.filterwarnings(
    "ignore:subprocess .* is still running:ResourceWarning"
)  # killed by `run`, and not waited for
def test_a_launcher_that_is_asked_is_ended_too() -> None:
    slow = Path("slow").absolute()
    slow.write_text("#!/bin/sh\necho > asked\nexec sleep 50.8\n")
    slow.chmod(0o755)

    def send() -> None:
        assert until(Path("asked").exists, 60)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send, daemon=True).start()
    said = launch("serve", "--launcher", str(slow), "--ready-within", "1")
    assert (said.exit_code, said.stdout) == (130, "")
    assert until(lambda: not running("sleep", "50.8"), 10)


@pytest.mark.usefixtures("handled")
def test_a_signal_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sent_when_started(signal.SIGHUP)
    assert launch("hang", "--ready-within", "3").exit_code == 3
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_checkpoint_that_is_none_fails_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    said = launch("serve", "--launcher", "/nowhere/python")
    assert (said.exit_code, said.stdout) == (3, "")
    assert said.stderr.startswith("error: ckpt ")


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    said = launch("serve", "--launcher", sys.executable)
    assert (said.exit_code, said.output) == (
        3,
        f"error: sglang is not installed for {sys.executable}; install it there (pip install sglang), or name the Python that "
        "has it with --launcher\n",
    )
    assert [*Path.cwd().iterdir()] == []


def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = launch("serve", "--port", str(port))
    assert (said.exit_code, said.output) == (
        3,
        f"error: port {port} of 127.0.0.1 can't be had (Address already in use); name another, or none, and a free one is "
        "chosen\n",
    )


def test_an_empty_launcher_is_not_ours() -> None:
    said = launch("serve", "--launcher", "")
    assert (said.exit_code, said.stdout) == (2, "")
    assert "Invalid value for '--launcher':  can't be run: " in said.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--launch", "--engine", "http://x"],
            "--engine is one that runs, --launch starts one: leave out one of the two.",
        ),
        (["--profile", "plain"], "--profile is about an engine that is started: say --launch."),
        (["--tp", "4"], "--tp is about an engine that is started: say --launch."),
        (["--dry-run"], "--dry-run is about an engine that is started: say --launch."),
        (["--launch"], "--launch serves a checkpoint: name it with --model DIR."),
        (
            ["--launch", "--dry-run", "--model", "ckpt", "--json", "report.json"],
            "--dry-run verifies nothing, so there is no report: leave --json out.",
        ),
        (
            ["--launch", "--model", "ckpt", "--conversations", "5"],
            "--conversations is about the run without an engine: leave out one of the two.",
        ),
        (
            ["--launch", "--model", "ckpt", "--launcher", "/nowhere/python"],
            "Invalid value for '--launcher': /nowhere/python can't be run: [Errno 2] No such file or directory: "
            "'/nowhere/python'",
        ),
        (
            ["--launch", "--model", "ckpt", "--launcher", "false"],
            "Invalid value for '--launcher': false is no Python that runs (exit code 1): no word",
        ),
        (
            ["--launch", "--model", "ckpt", "--tp", "4", "--tensor-parallel-size", "8"],
            "--tensor-parallel-size 8 and --tp 4 are one option, tensor_parallel; give one of them",
        ),
        (
            ["--launch", "--model", "ckpt", "--profile", "p"],
            "error: deepseekv32 has no recipe of the profile 'p'; known: default, plain, low-latency",
        ),
    ],
)
def test_what_is_refused(arguments: list[str], text: str) -> None:
    said = CliRunner().invoke(tito, ["verify", "--family", "deepseekv32", *arguments], env={"FAKE": "serve"})
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.splitlines()[-1] == (text if text.startswith("error: ") else f"Error: {text}")


def test_the_platforms_are_those_of_a_deployment() -> None:
    (option,) = [one for one in tito.get_command(None, "verify").params if one.name == "platform"]
    assert tuple(option.type.choices) == get_args(Platform)
