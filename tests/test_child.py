"""An engine as a child process: what it prints and how it ends are told, and nothing of it outlives its holder."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes import members, until
from tito_core.errors import EngineError
from tito_core.recipes.child import Child, free_port

FAKE = Path(__file__).parent / "fake_child.py"
SOON = 60.0


@pytest.fixture(autouse=True)
def _logs_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


class Started(Child):
    def __init__(self, *words: str, **options: Any) -> None:
        self.port = free_port()
        command = [sys.executable, str(FAKE), str(self.port), *words]
        super().__init__("fake", command, options.pop("environment", {}), **{"grace": 20.0, **options})

    def listens(self) -> bool:
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", self.port)) == 0

    def healthy(self, within: float = SOON) -> None:
        self.ready(f"http://127.0.0.1:{self.port}/health", within)


def test_it_is_ready_and_ends_with_the_with() -> None:
    taken: list[float] = []
    with Started("worker") as child:
        child.ready(f"http://127.0.0.1:{child.port}/health", SOON, taken.append)
        assert (child.code, len(members(child.pid))) == (None, 3), "the guard, the command, its worker"
        assert os.getpgid(0) != child.pid == os.getsid(child.pid)
    assert members(child.pid) == [], "the worker ignores SIGTERM"
    assert child.code == -signal.SIGTERM
    assert taken == sorted(taken)
    assert taken
    child.stop()


def test_its_environment_stands_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TITO_ONE", "ours")
    monkeypatch.setenv("TITO_TWO", "ours")
    with Started("say=TITO_ONE", "say=TITO_TWO", environment={"TITO_TWO": "its own"}) as child:
        child.healthy()
    assert child.tail() == ["ours", "its own"]
    assert child.log.read_text() == "ours\nits own\n"


@pytest.mark.parametrize(("word", "how", "code"), [("die=7", "exit code 7", 7), ("kill", "signal 9", -9)])
def test_what_dies_at_start_says_how(word: str, how: str, code: int) -> None:
    with Started("worker", word) as child:
        with pytest.raises(EngineError) as caught:
            child.healthy()
        assert members(child.pid) == []
    assert caught.value.where == {"kind": "unreached"}
    assert re.sub(r"\d+ s", "N s", str(caught.value)) == (
        f"fake ended before it was ready ({how}, after N s); its last lines, or {child.log}, say why"
    )
    assert child.code == code
    if word.startswith("die"):
        assert child.tail() == ["Traceback (most recent call last):", "  in a worker", "RuntimeError: no kernel image"]
        assert child.tail(1) == ["RuntimeError: no kernel image"]


def test_what_can_not_be_run_says_so() -> None:
    with Child("fake", ["/nowhere/python", "-m", "x"], {}) as child, pytest.raises(EngineError, match="exit code 127"):
        child.ready("http://127.0.0.1:1", SOON)
    assert child.tail() == ["/nowhere/python can't be run: No such file or directory"]


@pytest.mark.parametrize(("word", "answer"), [("unwell", "HTTP 503"), ("sleep", "ConnectError")])
def test_what_is_never_healthy_is_given_up(word: str, answer: str) -> None:
    with Started(word) as child:
        assert word == "sleep" or until(child.listens, SOON)
        with pytest.raises(EngineError) as caught:
            child.healthy(0.5)
    assert members(child.pid) == []
    assert caught.value.where == {"kind": "timeout"}
    assert str(caught.value) == (
        f"fake was not ready within 0.5 s (http://127.0.0.1:{child.port}/health: {answer}); see its last lines, and "
        f"{child.log}, or allow it more time"
    )


def test_what_ignores_the_signal_is_killed_after_the_grace() -> None:
    with Started("ignore", grace=0.5) as child:
        child.healthy()
        began = time.monotonic()
    assert 0.5 <= time.monotonic() - began < 5
    assert (members(child.pid), child.code) == ([], -signal.SIGKILL)


def test_endless_output_is_bounded_and_blocks_nobody() -> None:
    with Started("print", most=1 << 20) as child, pytest.raises(EngineError, match="not ready"):
        child.healthy(2)
    kept, written = child.tail(), child.log.read_text()
    assert 300 < len(kept) <= 400
    assert len(written) <= 1 << 20
    assert kept[-1].endswith(written.splitlines()[-1].rstrip())


def test_a_line_that_is_printed_over_is_told_in_its_last_state() -> None:
    with Started("bar") as child:
        child.healthy()
        assert child.tail() == ["loading 2%"]
        assert child.log.read_bytes() == b"loading 1%\rloading 2%"


def test_a_guard_that_is_killed_leaves_nothing() -> None:
    with Started("worker") as child:
        child.healthy()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="signal 9"):
            child.healthy()
    assert members(child.pid) == []


def test_a_port_in_use_is_refused_and_a_free_one_is_found() -> None:
    assert free_port(free_port()) != 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EngineError) as caught:
            free_port(port)
        assert free_port() != port
    assert caught.value.where == {"kind": "usage"}
    assert str(caught.value) == (
        f"port {port} of 127.0.0.1 can't be had (Address already in use); name another, or none, and a free one is chosen"
    )


@contextmanager
def holder(*words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds a healthy child, and the child's group."""
    command = [sys.executable, str(FAKE), "held", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as held:
        assert held.stdout is not None
        group = int(held.stdout.readline())
        try:
            assert members(group)
            yield held, group
        finally:
            held.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_its_holder(number: signal.Signals) -> None:
    """SIGTERM and SIGKILL end the holder without a word of its own."""
    with holder("worker") as (held, group):
        held.send_signal(number)
        held.wait(SOON)
        if number == signal.SIGINT:
            assert members(group) == []
        assert until(lambda: not members(group), 10)


def test_a_second_interrupt_kills_at_once() -> None:
    with Started("ignore", grace=60) as child:
        child.healthy()
        began = time.monotonic()

        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            child.stop()
    assert time.monotonic() - began < 10
    assert members(child.pid) == []
