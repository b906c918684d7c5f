"""One server at a time, on each of the vocabularies; pytest puts the tests of one vocabulary together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drawn import codec
from engine_server import make_model
from environment import VLLM
from token_path import NAMES
from vllm_server import Server


def pytest_report_header() -> str:
    return f"vLLM {VLLM.version}: {VLLM.home}"


@pytest.fixture(scope="session", params=NAMES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server and its log, `NAME.log` in `vllm*` in the base of the temporary directories; closed whatever happens."""
    home = tmp_path_factory.mktemp("vllm")
    codec(request.param)  # once, before many threads ask for it at the same time
    model = make_model(VLLM, request.param, home / request.param)
    server = Server(request.param, model, (), home / f"{request.param}.log")
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def live(served: Server) -> Server:
    """The server, started where it is not up."""
    if not served.alive:
        served.start()
    return served
