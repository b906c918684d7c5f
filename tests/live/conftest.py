"""Servers for the tests: one at a time, started when a test needs it, kept for the next that needs the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drawn import codec
from engine_server import make_model
from environment import SGLANG
from sglang_server import Serve, Server, processor
from token_path import NAMES, Name

REASONING_PARSER, TOOL_CALL_PARSER = "deepseek-v3", "deepseekv32"


def pytest_report_header() -> str:
    return f"SGLang {SGLANG.version}: {SGLANG.home}"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the models, by their vocabularies' names, and the servers' logs."""
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="session")
def running() -> Iterator[dict[tuple[str, ...], Server]]:
    """The one server that runs, if one does, by what was asked for."""
    one: dict[tuple[str, ...], Server] = {}
    yield one
    stop(one)


@pytest.fixture
def alone(running: dict[tuple[str, ...], Server]) -> None:
    """No server runs."""
    stop(running)


@pytest.fixture(scope="session")
def server(home: Path, running: dict[tuple[str, ...], Server]) -> Serve:
    """`server(vocabulary, reasoning_parser, tool_call_parser, *flags)`: a server that is ready. Logs: `sglang-*` in the
    base of the temporary directories."""

    def serve(vocabulary: Name, reasoning_parser: str, tool_call_parser: str, *more: str) -> Server:
        key = (vocabulary, reasoning_parser, tool_call_parser, *more)
        if key not in running:
            stop(running)
            flags = ("--reasoning-parser", reasoning_parser, "--tool-call-parser", tool_call_parser, *more)
            model = make_model(SGLANG, vocabulary, home / vocabulary)
            codec(vocabulary), processor()  # once, before many threads ask for them at the same time
            running[key] = Server(vocabulary, model, flags, home / f"{'-'.join(key[:3])}.log")
        if not running[key].alive:
            running[key].start()
        return running[key]

    return serve


def stop(running: dict[tuple[str, ...], Server]) -> None:
    while running:
        running.popitem()[1].close()


@pytest.fixture(scope="session", params=NAMES)
def live(request: pytest.FixtureRequest, server: Serve) -> Server:
    """A server with V3.2's parsers, on each of the vocabularies; pytest puts the tests of one vocabulary together."""
    return server(request.param, REASONING_PARSER, TOOL_CALL_PARSER)
