"""What vLLM does with ids, and what the engine makes of it: ids and log-probs, how a turn ends, every fault told apart."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from drawn import codec
from tito_core import Completion, Request
from tito_core.errors import CompletionError, EngineError
from token_path import EOS, engine_ids
from vllm_server import KEY, Server, scripted

Ids = list[int]
LONG = {"ignore_eos": True}


def asked(live: Server, said: str = "0") -> Request:
    return codec(live.vocabulary).session().prepare([{"role": "user", "content": said}])


def ids_of(live: Server, text: str) -> Ids:
    made: Ids = engine_ids(live.vocabulary, text).tolist()
    return made


def letters(live: Server) -> Ids:
    """Not what a tokenizer makes of their text."""
    return [one for letter in "unbelievable" for one in ids_of(live, letter)]


def complete(live: Server, request: Request, script: Ids | None = None, **options: Any) -> Completion:
    sampling = {**(scripted(script) if script else {}), **options.pop("sampling", {})}
    with live.engine() as engine:
        return engine.complete(request, **{"max_tokens": 8, "sampling": sampling, **options})


def paired(completion: Completion, ids: Ids) -> None:
    """One log-prob an id, each of a probability."""
    assert np.asarray(completion.ids).tolist() == ids
    logprobs = np.asarray(completion.logprobs).tolist()
    assert len(logprobs) == len(ids)
    assert all(math.isfinite(one) and one <= 0 for one in logprobs)


def test_the_prompt_is_the_ids_that_were_sent(live: Server) -> None:
    whole = asked(live, "unbelievable").ids.tolist()
    sent = [*whole[:2], *letters(live), *whole[-2:]]
    text = codec(live.vocabulary).decode(sent)
    assert ids_of(live, text) != sent
    found = live.complete(sent)
    assert found["prompt_token_ids"] == sent
    assert len(found["token_ids"]) == len(found["logprobs"]["token_logprobs"]) == 8
    again = live.complete(sent + [5] * 64)
    assert again["prompt_token_ids"] == sent + [5] * 64


def test_sampled_ids_come_back_as_they_were_sampled(live: Server) -> None:
    said = letters(live)
    completion = complete(live, asked(live), said, max_tokens=len(said))
    paired(completion, said)
    assert (completion.finish_reason, completion.stop, completion.message) == ("length", None, None)
    assert completion.meta == {
        "prompt_tokens": len(asked(live).ids),
        "completion_tokens": len(said),
        "cached_tokens": 0,
        "finish_reason": "length",
    }


def test_log_probs_are_those_of_the_model_before_sampling_parameters(live: Server) -> None:
    """`--logprobs-mode processed_logprobs` would make them the sampler's: 0 for what is sampled greedily."""
    request = asked(live)
    greedy = complete(live, request, sampling={"temperature": 0})
    ids, logprobs = np.asarray(greedy.ids).tolist(), np.asarray(greedy.logprobs)
    assert (logprobs < -5).all()
    for more in ({}, {"temperature": 2.0}, {"top_p": 0.1, "temperature": 0.5}):
        same = complete(live, request, ids, sampling=more)
        assert np.asarray(same.ids).tolist() == ids
        assert np.allclose(np.asarray(same.logprobs), logprobs, atol=0.05)


def test_a_stop_token_is_sampled_and_ends_a_turn(live: Server) -> None:
    said = [*ids_of(live, "one two"), EOS]
    completion = complete(live, asked(live), [*said, 5])
    paired(completion, said)
    assert (completion.finish_reason, completion.stop) == ("stop", None)
    raw = live.complete(asked(live).ids.tolist(), [*said, 5])
    assert (raw["text"], raw["finish_reason"], raw["stop_reason"]) == ("one two", "stop", None)
    other = said[1]
    found = live.complete(asked(live).ids.tolist(), [*said, 5], stop_token_ids=[other])
    assert (found["token_ids"], found["finish_reason"], found["stop_reason"]) == (said[:2], "stop", other)
    paired(complete(live, asked(live), said, sampling={"stop_token_ids": [other]}), said[:2])


def test_what_is_sampled_past_a_stop_token_is_refused_at_the_commit(live: Server) -> None:
    session = codec(live.vocabulary).session()
    request = session.prepare([{"role": "user", "content": "0"}])
    said = [*ids_of(live, "one"), EOS, *ids_of(live, "two")]
    completion = complete(live, request, said, max_tokens=len(said), sampling=LONG)
    paired(completion, said)
    with pytest.raises(CompletionError):
        session.commit(request, completion)
    assert session.turns == ()


@pytest.mark.parametrize(
    ("stop", "kept", "with_it"), [(" three", "one two", "one two three"), ("hre", "one two t", "one two thre")]
)
def test_ids_reach_past_a_stop_string_that_ends_inside_a_token(
    live: Server, stop: str, kept: str, with_it: str
) -> None:
    said, end = ids_of(live, "one two three"), ids_of(live, "one two three four")
    assert end[: len(said)] == said
    for included, text in ((False, kept), (True, with_it)):
        found = live.complete(asked(live).ids.tolist(), end, stop=[stop], include_stop_str_in_output=included)
        assert (found["token_ids"], found["text"]) == (said, text)
        assert (found["finish_reason"], found["stop_reason"]) == ("stop", stop)
    session = codec(live.vocabulary).session()
    request = session.prepare([{"role": "user", "content": "0"}])
    completion = complete(live, request, end, sampling={"stop": [stop]})
    paired(completion, said)
    assert (completion.finish_reason, completion.stop) == ("stop", stop)
    turn = session.commit(request, completion)
    assert (turn.message.content, turn.ids[-turn.sampled :].tolist()) == (kept, said), "vLLM's text, and all of its ids"


def test_length_ends_a_turn_after_so_many_ids_and_where_the_context_is_full(live: Server) -> None:
    said = ids_of(live, "one two three four")
    completion = complete(live, asked(live), said, max_tokens=2)
    paired(completion, said[:2])
    assert completion.finish_reason == "length"
    full = live.complete([5] * 8190, max_tokens=8, ignore_eos=True)
    assert (len(full["token_ids"]), full["finish_reason"]) == (2, "length"), "fewer than asked for, and no error"


def test_what_was_computed_before_is_cached_in_blocks(live: Server) -> None:
    ids = [7] * 100
    found = live.post("/v1/completions", {"prompt": ids, "max_tokens": 1})["usage"]["prompt_tokens_details"]
    again = live.post("/v1/completions", {"prompt": ids, "max_tokens": 1})["usage"]["prompt_tokens_details"]
    assert (found["cached_tokens"], again["cached_tokens"]) == (0, 96)


def test_no_option_no_ids(live: Server) -> None:
    """Nothing is refused and nothing is said: whoever reads must miss them."""
    bare = live.complete([5], return_token_ids=False)
    assert (bare["token_ids"], bare["prompt_token_ids"]) == (None, None)
    assert live.complete([5], logprobs=None)["logprobs"] is None


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"max_tokens": 9000}, "context", "max_tokens=9000 cannot be greater than max_model_len=8192."),
        ({"sampling": {"temperature": -1.0}}, "usage", "temperature must be non-negative, got -1.0."),
        ({"sampling": {"model": "large"}}, "usage", "The model `large` does not exist. Valid aliases: tiny."),
    ],
)
def test_what_is_refused(live: Server, options: dict[str, Any], kind: str, said: str) -> None:
    with pytest.raises(EngineError) as caught:
        complete(live, asked(live), **options)
    assert said in str(caught.value)
    assert caught.value.where == {"kind": kind}, str(caught.value)


def test_a_prompt_that_is_too_long(live: Server) -> None:
    with pytest.raises(EngineError) as caught:
        complete(live, asked(live, "0 1 " * 5000))
    assert "has no room for the prompt and what is to be sampled (HTTP 400): This model's maximum context" in str(
        caught.value
    )
    assert caught.value.where == {"kind": "context"}


def test_keys_and_addresses(live: Server) -> None:
    for options, said in (
        ({"api_key": "other"}, "wants another API key (HTTP 401): Unauthorized; pass the key that it was started with"),
        ({"api_key": None}, "wants another API key (HTTP 401): Unauthorized; pass the key that it was started with"),
    ):
        with live.engine(**options) as engine, pytest.raises(EngineError) as caught:
            engine.complete(asked(live), max_tokens=8)
        assert str(caught.value) == f"vllm at {live.url} {said}"
        assert caught.value.where == {"kind": "usage"}
    assert KEY not in str(caught.value)


def running(live: Server) -> float:
    lines = live.client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))


def until(live: Server, state: bool) -> None:
    """Waits until the server has work, or has none."""
    end = time.monotonic() + 60
    while bool(running(live)) is not state:
        assert time.monotonic() < end, f"the server was not {'busy' if state else 'idle'} within a minute"
        time.sleep(0.05)


def test_a_call_that_is_cancelled_frees_the_server(live: Server) -> None:
    session = codec(live.vocabulary).session()
    request = session.prepare([{"role": "user", "content": "0"}])
    with live.engine() as engine, ThreadPoolExecutor(1) as pool:
        call = pool.submit(engine.complete, request, max_tokens=8000, sampling=LONG)
        until(live, True)
        engine.cancel(request)
        with pytest.raises(EngineError, match="was told to cancel this call; nothing was stored") as caught:
            call.result()
        assert caught.value.where == {"kind": "cancelled"}
        until(live, False)
        session.commit(request, engine.complete(request, max_tokens=4, sampling=LONG))
    assert len(session.turns) == 1
