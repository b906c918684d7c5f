"""What a real SGLang does with a request that it does not finish: every fault is told apart, and nothing is lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from drawn import codec
from sglang_server import QUEUED, Server
from tito_core import Request, SGLangEngine
from tito_core.errors import EngineError

LONG = {"ignore_eos": True}


def asked(live: Server, said: str = "0") -> Request:
    return codec(live.vocabulary).session().prepare([{"role": "user", "content": said}])


def busy(live: Server) -> bool:
    (load,) = live.client.get("/v1/loads").json()["loads"]
    return bool(load["num_running_reqs"] + load["num_waiting_reqs"])


def until(live: Server, state: bool) -> None:
    """Waits until the server has work, or has none."""
    end = time.monotonic() + 60
    while busy(live) is not state:
        assert time.monotonic() < end, f"the server was not {'busy' if state else 'idle'} within a minute"
        time.sleep(0.05)


def test_what_somebody_aborts_is_no_completion(live: Server) -> None:
    with SGLangEngine(live.url) as engine, ThreadPoolExecutor(1) as pool:
        call = pool.submit(engine.complete, asked(live), max_tokens=4000, sampling=LONG)
        until(live, True)
        assert live.client.post("/abort_request", json={"rid": "", "abort_all": True}).status_code == 200
        with pytest.raises(EngineError, match=r"aborted the call .*; sample this turn again") as caught:
            call.result()
        assert caught.value.where == {"kind": "fault"}


def test_a_call_that_is_cancelled_frees_the_server(live: Server) -> None:
    session = codec(live.vocabulary).session()
    request = session.prepare([{"role": "user", "content": "0"}])
    with SGLangEngine(live.url) as engine, ThreadPoolExecutor(1) as pool:
        call = pool.submit(engine.complete, request, max_tokens=4000, sampling=LONG)
        until(live, True)
        engine.cancel(request)
        with pytest.raises(EngineError, match="was told to cancel this call; nothing was stored"):
            call.result()
        until(live, False)
        session.commit(request, engine.complete(request, max_tokens=4, sampling=LONG))
    assert len(session.turns) == 1


def test_more_than_the_queue_holds_is_overload(live: Server) -> None:
    """Longer prompts than the server has memory for at once wait in its queue; what finds it full is refused."""
    requests = [asked(live, f"{number} " + "word " * 900) for number in range(QUEUED + 60)]
    start = threading.Barrier(len(requests))
    said: Counter[str] = Counter()

    def ask(request: Request) -> None:
        start.wait()
        try:
            engine.complete(request, max_tokens=2)
            said["answered"] += 1
        except EngineError as cause:
            said[f"{cause.where}: {cause}"] += 1

    with SGLangEngine(live.url, concurrency=len(requests)) as engine, ThreadPoolExecutor(len(requests)) as pool:
        list(pool.map(ask, requests))
    full = (
        f"{{'kind': 'overload'}}: sglang at {live.url} is overloaded (HTTP 503): The request queue is full.; send less at "
        "once, or sample this turn again later"
    )
    assert set(said) == {"answered", full}
