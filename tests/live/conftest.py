"""Servers for the tests: one at a time, started when a test needs it, kept for the next that needs the same."""

from __future__ import annotations

from collections.abc import Iterator

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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """`server(vocabulary, reasoning_parser, tool_call_parser, *flags)`: a server that is ready. Logs: `sglang-*` in the
    base of the temporary directories."""
    home = tmp_path_factory.mktemp("sglang")
    running: dict[tuple[str, ...], Server] = {}

    def serve(vocabulary: Name, reasoning_parser: str, tool_call_parser: str, *more: str) -> Server:
        key = (vocabulary, reasoning_parser, tool_call_parser, *more)
        if key not in running:
            stop()
            flags = ("--reasoning-parser", reasoning_parser, "--tool-call-parser", tool_call_parser, *more)
            model = make_model(SGLANG, vocabulary, home / vocabulary)
            codec(vocabulary), processor()  # once, before many threads ask for them at the same time
            running[key] = Server(vocabulary, model, flags, home / f"{'-'.join(key[:3])}.log")
        if not running[key].alive:
            running[key].start()
        return running[key]

    def stop() -> None:
        while running:
            running.popitem()[1].close()

    yield serve
    stop()


@pytest.fixture(scope="session", params=NAMES)
def live(request: pytest.FixtureRequest, server: Serve) -> Server:
    """A server with V3.2's parsers, on each of the vocabularies; pytest puts the tests of one vocabulary together."""
    return server(request.param, REASONING_PARSER, TOOL_CALL_PARSER)
