"""The engines over HTTP: what they send, what they make of the answer, and every fault told apart by its exact text."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest

import tito_core
from fake_sglang import Answer, Fake, Raw, Reset, Status, chat, model, serving
from processes import until
from tito_core import Codec, Request, Session
from tito_core.engines.http import HTTPEngine
from tito_core.engines.sglang import SGLangEngine
from tito_core.engines.vllm import VLLMEngine
from tito_core.errors import CompletionError, EngineError

EOS = 1
IDS = [3001, 3002, EOS]


@cache
def codec() -> Codec:
    return tito_core.load("deepseekv32", vocabulary="r1")


def asked(session: Session | None = None) -> Request:
    return (session or codec().session()).prepare([{"role": "user", "content": "0"}])


def usual(path: str, body: Answer) -> Answer:
    return chat(IDS, body["input_ids"])


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving(Fake(usual)) as made:
        yield made


def sglang(fake: Fake, **options: Any) -> SGLangEngine:
    return SGLangEngine(fake.url, **{"backoff": 0.001, "retries": 2, **options})


def refused(engine: HTTPEngine, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
    """The kind, the text without the engine's address, and the place."""
    with engine, pytest.raises(EngineError) as caught:
        engine.complete(asked(), **{"max_tokens": 8, **arguments})
    where = dict(caught.value.where)
    return where.pop("kind"), str(caught.value).replace(f"{engine.kind} at {engine.url} ", ""), where


def raising(cause: Exception) -> Callable[[str, Answer], Answer]:
    def act(path: str, body: Answer) -> Answer:
        raise cause

    return act


def changed(**more: Any) -> Callable[[str, Answer], Answer]:
    return lambda path, body: chat(IDS, body["input_ids"], **more)


def metaed(**more: Any) -> Callable[[str, Answer], Answer]:
    def act(path: str, body: Answer) -> Answer:
        made = chat(IDS, body["input_ids"])
        made["choices"][0]["meta_info"].update(more)
        return made

    return act


@pytest.mark.parametrize(
    ("arguments", "finish", "kept"),
    [
        ('{"x": 1}', "tool_calls", True),
        ('{"x": 1}', "length", False),
        ('{"x": 1', "length", False),
        ('{"x": 1', "stop", False),
        ("[1]", "tool_calls", False),
        (None, "tool_calls", False),
    ],
)
def test_calls_that_can_not_be_whole_are_left_to_our_own_parser(
    fake: Fake, arguments: Any, finish: str, kept: bool
) -> None:
    """SGLang's parser of DeepSeek V4 makes calls of a block that was cut; a partial call is never run."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    fake.acts.append(changed(message=said, finish_reason=finish))
    session = codec().session(thinking=False)
    with sglang(fake) as engine:
        completion = engine.complete(request := session.prepare([{"role": "user", "content": "0"}]), max_tokens=8)
    assert completion.message == (said if kept else None)
    if not kept:
        assert session.commit(request, completion).message.tool_calls == ()


def test_chat_sends_ids_and_what_the_parsers_need_and_keeps_what_came_back(fake: Fake) -> None:
    session = codec().session(thinking=False)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "0"}]
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    said = {"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": [call]}
    fake.acts.append(changed(message=said, finish_reason="tool_calls"))
    fake.acts.append(metaed(cached_tokens=7, spec_accept_length=2.5, weight_version="v7", e2e_latency=1.0))
    with sglang(fake, api_key="secret", sampling={"temperature": 0.7}, fields={"rid": "r"}) as engine:
        turn = session.commit(request := session.prepare(messages, tools=tools), engine.complete(request, max_tokens=8))
        messages += [turn.message.wire(), {"role": "tool", "tool_call_id": "a", "content": "2"}]
        request = session.prepare(messages)
        completion = engine.complete(request, max_tokens=9, sampling={"temperature": 0.1})
        session.commit(request, completion)
    (path, first), (_, second) = fake.seen
    assert path == "/v1/chat/completions"
    assert fake.headers[0]["authorization"] == "Bearer secret"
    assert first == {
        "rid": "r",
        "temperature": 0.7,
        "messages": [{"role": "user", "content": "0"}],
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "description": None}}
        ],
        "chat_template_kwargs": {"thinking": False},
        "input_ids": session.turns[0].ids[:-3].tolist(),
        "max_tokens": 8,
        "logprobs": True,
        "return_meta_info": True,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }
    assert second["messages"] == [
        {"role": "user", "content": "0"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "a"},
    ]
    assert (second["temperature"], second["max_tokens"]) == (0.1, 9)
    assert second["input_ids"] == request.ids.tolist()
    assert turn.message.tool_calls[0].id == "a"
    assert np.asarray(completion.ids).tolist() == IDS
    assert np.asarray(completion.logprobs).tolist() == [-0.5] * 3
    assert (completion.finish_reason, completion.stop) == ("stop", None)
    assert completion.message == {"role": "assistant", "content": "hello"}
    assert completion.meta == {
        "prompt_tokens": len(request.ids),
        "completion_tokens": 3,
        "cached_tokens": 7,
        "spec_accept_length": 2.5,
        "weight_version": "v7",
        "finish_reason": {"type": "stop", "matched": EOS},
    }


def test_calls_of_a_turn_that_was_cut_are_for_our_own_parser_to_find(fake: Fake) -> None:
    """SGLang's parsers make calls of what stands before the cut, whether it is whole or not."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": "hi", "tool_calls": [call]}
    request = codec().session(thinking=False).prepare([{"role": "user", "content": "0"}])
    with sglang(fake) as engine:
        for message, kept in ((said, None), ({**said, "tool_calls": []}, {**said, "tool_calls": []})):
            fake.acts.append(changed(message=message, finish_reason="length"))
            completion = engine.complete(request, max_tokens=8)
            assert (completion.finish_reason, completion.message) == ("length", kept)


def test_generate_sends_ids_alone_and_our_parser_makes_the_message(fake: Fake) -> None:
    fake.usual = lambda path, body: {
        "text": "hello",
        "output_ids": IDS,
        "prompt_token_ids": body["input_ids"],
        "meta_info": chat(IDS, [])["choices"][0]["meta_info"],
    }
    session = codec().session()
    with sglang(fake, endpoint="generate", sampling={"top_p": 0.9}, fields={"custom_logit_processor": "p"}) as engine:
        turn = session.commit(request := asked(session), engine.complete(request, max_tokens=8))
    assert fake.seen == [
        (
            "/generate",
            {
                "custom_logit_processor": "p",
                "input_ids": request.ids.tolist(),
                "sampling_params": {"top_p": 0.9, "max_new_tokens": 8, "skip_special_tokens": False},
                "return_logprob": True,
                "return_prompt_token_ids": True,
            },
        )
    ]
    assert turn.parsed is not None
    assert turn.completion.message is None


def test_vllm(fake: Fake) -> None:
    fake.usual = lambda path, body: {
        "choices": [
            {
                "text": "hello",
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": IDS,
                "prompt_token_ids": body["prompt"],
                "logprobs": {"token_logprobs": [-0.25, -0.5, -1.0], "tokens": ["a", "b", "c"]},
            }
        ],
        "usage": {"prompt_tokens": 4, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
        "metrics": {"speculative_decoding": {"mean_acceptance_length": 2.5}},
    }
    session = codec().session()
    with VLLMEngine(f"{fake.url}/v1/", fields={"model": "tiny"}) as engine:
        turn = session.commit(request := asked(session), engine.complete(request, max_tokens=8))
        fake.usual = lambda path, body: {"choices": [], "prompt_token_ids": [1, 2]}
        assert engine.rendered([{"role": "user", "content": "0"}]).tolist() == [1, 2]
        tool = {"type": "function", "function": {"name": "f"}}
        assert engine.rendered([{"role": "user", "content": "0"}], tools=[tool]).tolist() == [1, 2]
        fake.usual = lambda path, body: {"choices": []}
        with pytest.raises(EngineError) as caught:
            engine.rendered([{"role": "user", "content": "0"}])
    assert str(caught.value) == (
        f"vllm at {fake.url} returned no prompt ids; it needs a vLLM that knows return_token_ids in chat"
    )
    assert fake.seen[:2] == [
        (
            "/v1/completions",
            {
                "model": "tiny",
                "prompt": request.ids.tolist(),
                "max_tokens": 8,
                "logprobs": 1,
                "return_token_ids": True,
                "skip_special_tokens": False,
                "chat_template_kwargs": {"thinking": True},
            },
        ),
        (
            "/v1/chat/completions",
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": "0"}],
                "chat_template_kwargs": {},
                "max_tokens": 1,
                "return_token_ids": True,
            },
        ),
    ]
    assert (fake.seen[2][1]["tools"], fake.seen[2][1]["tool_choice"]) == ([tool], "none"), "any other needs a parser"
    assert np.asarray(turn.completion.logprobs).tolist() == [-0.25, -0.5, -1.0]
    assert (turn.completion.meta["cached_tokens"], turn.completion.meta["spec_accept_length"]) == (2, 2.5)


def completing(**changes: Any) -> Callable[[str, Answer], Answer]:
    choice = {"finish_reason": "length", "token_ids": [3001, 3002, 3003]}
    logprobs = {"token_logprobs": [-0.25, -0.5, -1.0]}
    return lambda path, body: {
        "choices": [{**choice, "prompt_token_ids": body["prompt"], "logprobs": logprobs, **changes}]
    }


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"token_ids": None},
            "returned no token ids, and text is never encoded again; it needs a vLLM that knows return_token_ids, 0.10.2 or "
            "later",
        ),
        (
            {"prompt_token_ids": None},
            "returned no prompt ids, and text is never encoded again; it needs a vLLM that knows return_token_ids, 0.10.2 or "
            "later",
        ),
        (
            {"logprobs": {"token_logprobs": "abc"}},
            "returned no log-probs, and text is never encoded again; it must be a vLLM that returns log-probs of sampled "
            "ids: see its --max-logprobs",
        ),
        (
            {"logprobs": {"token_logprobs": [-1.0]}},
            "returned 3 ids and 1 log-probs; it must be a vLLM that returns log-probs of sampled ids: see its "
            "--max-logprobs",
        ),
    ],
)
def test_what_a_vllm_does_not_return(fake: Fake, changes: dict[str, Any], text: str) -> None:
    fake.usual = completing(**changes)
    assert refused(VLLMEngine(fake.url)) == ("answer", text, {})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"finish_reason": "repetition"},
            "has the finish reason 'repetition'; it is one of stop, length, tool_calls, abort",
        ),
        ({"logprobs": {"token_logprobs": [-0.5, "x", -0.5]}}, "has logprobs of type <U32; they must be numbers"),
    ],
)
def test_what_is_no_completion(fake: Fake, changes: dict[str, Any], text: str) -> None:
    fake.usual = completing(**changes)
    kind, said, _ = refused(VLLMEngine(fake.url))
    assert kind == "answer"
    assert re.fullmatch(f"answered what can't be kept: completion [0-9a-f]+ {re.escape(text)}", said), said


def test_the_server_s_own_render(fake: Fake) -> None:
    fake.usual = model(codec())
    with sglang(fake) as engine:
        ids = engine.rendered([{"role": "user", "content": "hi"}], chat_template_kwargs={"thinking": True})
        assert ids.dtype == np.int32
        assert ids.tolist() == codec().prompt([{"role": "user", "content": "hi"}]).ids.tolist()
        fake.usual = lambda path, body: chat(IDS, [])
        with pytest.raises(EngineError) as caught:
            engine.rendered([{"role": "user", "content": "hi"}])
    assert str(caught.value) == (
        f"sglang at {fake.url} returned no prompt ids; it needs an SGLang that knows return_prompt_token_ids"
    )
    assert fake.seen[0][1]["return_prompt_token_ids"] is True


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (
            400,
            {"object": "error", "message": "bad top_p", "code": 400},
            "usage",
            "refused the request (HTTP 400): bad top_p; correct it, sending it again changes nothing",
        ),
        (
            422,
            {"detail": [{"loc": "x"}]},
            "usage",
            'refused the request (HTTP 422): [{"loc":"x"}]; correct it, sending it again changes nothing',
        ),
        (
            401,
            {"error": "Unauthorized"},
            "usage",
            "wants another API key (HTTP 401): Unauthorized; pass the key that it was started with",
        ),
        (
            404,
            {"detail": "Not Found"},
            "usage",
            "has no such endpoint or model (HTTP 404): Not Found; is it this kind of engine, is that its URL, and does it "
            "serve that model?",
        ),
        (
            429,
            {"error": {"message": "queue is full"}},
            "overload",
            "is overloaded (HTTP 429): queue is full; send less at once, or sample this turn again later",
        ),
        (
            503,
            b"busy",
            "overload",
            "is overloaded (HTTP 503): busy; send less at once, or sample this turn again later",
        ),
        (500, {"message": "boom"}, "fault", "failed (HTTP 500): boom; its log says why"),
        (
            400,
            {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."},
            "context",
            "has no room for the prompt and what is to be sampled (HTTP 400): The input (9 tokens) is longer than the "
            "model's context length (8 tokens).; end this session, or sample fewer",
        ),
        (
            400,
            {"error": {"message": "max_completion_tokens is too large: 9000."}},
            "context",
            "has no room for the prompt and what is to be sampled (HTTP 400): max_completion_tokens is too large: 9000.; "
            "end this session, or sample fewer",
        ),
        (307, b"", "usage", "refused the request (HTTP 307): ; correct it, sending it again changes nothing"),
    ],
)
def test_answers_that_refuse_are_told_apart_and_never_tried_again(
    fake: Fake, status: int, body: Any, kind: str, text: str
) -> None:
    fake.acts.append(raising(Status(status, body)))
    assert refused(sglang(fake)) == (kind, text, {})
    assert len(fake.seen) == 1


NO_IDS = (
    "returned no token ids, and text is never encoded again; it needs an SGLang that knows return_meta_info (chat) or "
    "return_logprob (/generate)"
)
NO_LOGPROBS = "it must be an SGLang whose speculation returns log-probs, or serve without speculation"


@pytest.mark.parametrize(
    ("act", "text", "where"),
    [
        (changed(response_token_ids=None), NO_IDS, {}),
        (changed(response_token_ids=[]), NO_IDS, {}),
        (changed(response_token_ids=["3001"]), NO_IDS, {}),
        (
            changed(meta_info=None),
            f"returned no log-probs, and text is never encoded again; {NO_LOGPROBS}",
            {},
        ),
        (
            metaed(output_token_logprobs=[[-0.5]]),
            f"returned no log-probs, and text is never encoded again; {NO_LOGPROBS}",
            {},
        ),
        (metaed(output_token_logprobs=[[-0.5, 3001, "x"]]), f"returned 3 ids and 1 log-probs; {NO_LOGPROBS}", {}),
        (
            metaed(output_token_logprobs=[[-0.5, 3001, "x"], [None, 3002, "x"], [-0.5, 1, "x"]]),
            f"returned 3 ids and 2 log-probs; {NO_LOGPROBS}",
            {},
        ),
        (
            metaed(output_token_logprobs=[[-0.5, 3001, "x"], [-0.5, 9, "x"], [-0.5, 1, "x"]]),
            "returned log-probs of other ids than it returned; its release is broken, use another",
            {},
        ),
        (
            changed(prompt_token_ids=None),
            "returned no prompt ids, and text is never encoded again; it needs an SGLang that knows return_token_ids "
            "(chat) or return_prompt_token_ids (/generate)",
            {},
        ),
        (
            changed(response_token_ids=[3001, EOS, 3002]),
            "returned log-probs of other ids than it returned; its release is broken, use another",
            {},
        ),
        (
            lambda path, body: chat(
                [3001, EOS, 3002, 3003],
                body["input_ids"],
                meta_info={
                    "finish_reason": {"type": "stop", "matched": EOS},
                    "output_token_logprobs": [[0, one, ""] for one in (3001, EOS, 3002, 3003)],
                },
            ),
            "returned 2 ids after the stop token 1 at 1, which nobody may train on; serve without speculation, or with a "
            "release that cuts them off",
            {"first_index": 2},
        ),
        (
            lambda path, body: chat(
                [3001, 3002],
                body["input_ids"],
                meta_info={
                    "finish_reason": {"type": "stop", "matched": EOS},
                    "output_token_logprobs": [[0, one, ""] for one in (3001, 3002)],
                },
            ),
            "was ended by the stop token 1 and did not return it among its 2 ids, so it would never be trained; serve with a "
            "release that returns it",
            {},
        ),
        (
            lambda path, body: {"choices": []},
            'answered without one choice: {"choices":[]}; is it this kind of engine?',
            {},
        ),
        (
            lambda path, body: {"choices": [1]},
            'answered without one choice: {"choices":[1]}; is it this kind of engine?',
            {},
        ),
        (
            raising(Raw(b'{"choices": [')),
            'answered what is no JSON (unexpected end of data: line 1 column 14 (char 13)): {"choices": [; is it an engine?',
            {},
        ),
        (raising(Raw(b"[]")), "answered a JSON list, not an object; is it an engine?", {}),
        (
            raising(Raw(b" " * 5000)),
            "answers more than 4096 bytes; allow more, or sample less",
            {},
        ),
    ],
)
def test_an_answer_that_can_t_be_trained_on_is_refused(
    fake: Fake, act: Callable[[str, Answer], Answer], text: str, where: dict[str, Any]
) -> None:
    fake.acts.append(act)
    assert refused(sglang(fake, max_bytes=4096)) == ("answer", text, where)
    assert len(fake.seen) == 1


def test_answers_that_are_broken_off_leave_nothing_behind(fake: Fake) -> None:
    for _ in range(20):
        fake.acts.append(raising(Raw(b" " * 5000)))
        assert refused(sglang(fake, max_bytes=4096))[0] == "answer"
        gc.collect()  # what is left unclosed warns here, and a warning is an error


@pytest.mark.parametrize(
    ("echo", "first", "one", "two"),
    [(lambda ids: [*ids[:1], 7, *ids[2:]], 1, "128803", "7"), (lambda ids: ids[:-1], 4, "128798", "nothing")],
)
def test_other_prompt_ids_than_were_sent(
    fake: Fake, echo: Callable[[list[int]], list[int]], first: int, one: str, two: str
) -> None:
    fake.usual = lambda path, body: chat(IDS, echo(body["input_ids"]))
    sent = asked().ids.tolist()
    assert str(sent[first]) == one
    assert refused(sglang(fake)) == (
        "answer",
        f"sampled after other prompt ids than were sent: index {first} was {one} and came back as {two} ({len(sent)} ids "
        f"sent, {len(echo(sent))} used); something before the model encodes them again, a multimodal processor for one: "
        "serve without it",
        {"first_index": first},
    )


def test_ids_past_a_stop_string_are_refused_at_the_commit(fake: Fake) -> None:
    one, two = codec().encoder.tokenizer.encode("ha").ids, codec().encoder.tokenizer.encode("xy").ids
    reason = {"finish_reason": {"type": "stop", "matched": "ha"}}

    def act(path: str, body: Answer) -> Answer:
        made = chat([*one, *two], body["input_ids"])
        made["choices"][0]["meta_info"].update(reason)
        return made

    fake.acts.append(act)
    session = codec().session()
    with sglang(fake) as engine:
        completion = engine.complete(request := asked(session), max_tokens=8)
    assert completion.stop == "ha"
    with pytest.raises(CompletionError, match="goes on after the stop string 'ha'"):
        session.commit(request, completion)
    assert session.turns == ()


def test_an_aborted_call_is_a_fault_of_the_engine(fake: Fake) -> None:
    fake.acts.append(
        changed(finish_reason="abort", meta_info={"finish_reason": {"type": "abort", "message": "Aborted"}})
    )
    text = "aborted the call ({'type': 'abort', 'message': 'Aborted'}); sample this turn again"
    assert refused(sglang(fake)) == ("fault", text, {})


@pytest.mark.parametrize("fault", [Reset(), Raw(b'{"choices"', 400)])
def test_faults_of_the_transport_are_tried_again_and_no_more_often_than_told(fake: Fake, fault: Exception) -> None:
    fake.acts.extend([raising(fault), raising(fault)])
    with sglang(fake) as engine:
        assert engine.complete(asked(), max_tokens=8).finish_reason == "stop"
    assert len(fake.seen) == 3
    fake.acts.extend([raising(fault)] * 3)
    kind, text, _ = refused(sglang(fake))
    assert (kind, len(fake.seen)) == ("unreached", 6)
    assert text.startswith("could not be reached, or broke off, 3 time(s) (")
    assert text.endswith("); see whether it runs, and its log. Every committed turn is kept")


def test_a_session_is_as_it_was_when_its_engine_is_lost(fake: Fake) -> None:
    session = codec().session()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "0"}]
    with sglang(fake) as engine:
        turn = session.commit(request := session.prepare(messages), engine.complete(request, max_tokens=8))
        messages += [turn.message.wire(), {"role": "user", "content": "1"}]
        fake.acts.extend([raising(Reset())] * 3)
        with pytest.raises(EngineError):
            engine.complete(session.prepare(messages), max_tokens=8)
        assert session.turns == (turn,)
        session.commit(request := session.prepare(messages), engine.complete(request, max_tokens=8))
    assert len(session.turns) == 2


def test_an_engine_that_is_not_there() -> None:
    with serving(Fake(usual)) as gone:
        pass
    kind, text, _ = refused(sglang(gone, retries=0))
    assert (kind, text) == (
        "unreached",
        "could not be reached, or broke off, 1 time(s) (ConnectError: All connection attempts failed); see whether it "
        "runs, and its log. Every committed turn is kept",
    )


@pytest.mark.parametrize(
    ("options", "limit"),
    [({"read": 0.05}, "ReadTimeout after 0.05 s of silence"), ({"total": 0.05}, "0.05 s in all")],
)
def test_an_engine_that_is_slow(fake: Fake, options: dict[str, float], limit: str) -> None:
    fake.acts.append(fake.hang)
    text = f"did not answer in time ({limit}); sample less at once, or allow it more"
    assert refused(sglang(fake, **options)) == ("timeout", text, {})
    assert len(fake.seen) == 1


def test_cancelling_one_request_leaves_the_others(fake: Fake) -> None:
    fake.usual = fake.hang
    one, two = asked(), asked()
    with sglang(fake) as engine, ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(engine.complete, request, max_tokens=8) for request in (one, two))
        assert until(lambda: fake.busy == 2, 5)
        engine.cancel(one)
        with pytest.raises(EngineError) as caught:
            first.result(1)
        assert not second.done()
        engine.cancel()
        with pytest.raises(EngineError):
            second.result(1)
        fake.usual = usual
        assert engine.complete(one, max_tokens=8).finish_reason == "stop"
    assert str(caught.value) == f"sglang at {fake.url} was told to cancel this call; nothing was stored"
    assert caught.value.where == {"kind": "cancelled"}


def test_closing_cancels_and_refuses(fake: Fake) -> None:
    fake.usual = fake.hang
    engine = sglang(fake)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(engine.complete, asked(), max_tokens=8)
        assert until(lambda: fake.busy == 1, 5)
        engine.close()
        with pytest.raises(EngineError):
            call.result(1)
    engine.close()
    kind, text, _ = refused(engine)
    assert (kind, text) == ("cancelled", "was closed; open another engine")


def test_a_forked_process_opens_its_own(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    with sglang(fake) as engine:
        here = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert refused(engine) == (
            "usage",
            f"was opened by process {here}, from which this one (-1) forked, and its thread is not here; open one in each process",
            {},
        )
        engine.cancel()
        engine.close()
        monkeypatch.undo()
        assert engine.complete(asked(), max_tokens=8).finish_reason == "stop"


def test_no_more_calls_at_once_than_told(fake: Fake) -> None:
    gate = threading.Barrier(2)

    def act(path: str, body: Answer) -> Answer:
        gate.wait(5)
        return usual(path, body)

    fake.usual = act
    with sglang(fake, concurrency=2) as engine, ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: engine.complete(asked(), max_tokens=8).finish_reason, range(8)))
    assert (done, fake.busiest) == (["stop"] * 8, 2)


def test_what_can_t_be_sent(fake: Fake) -> None:
    with sglang(fake) as engine, pytest.raises(EngineError) as caught:
        engine.complete(asked(), max_tokens=8, sampling={"logprobs": False})
    assert str(caught.value) == "logprobs is set by tito itself in every request; leave it out"
    with sglang(fake) as engine, pytest.raises(EngineError) as caught:
        engine.complete(asked(), max_tokens=8, sampling={"temperature": object()})
    assert (str(caught.value), caught.value.where, fake.seen) == (
        "a request is no JSON (Type is not JSON serializable: object); give plain values in sampling and fields",
        {"kind": "usage"},
        [],
    )


@pytest.mark.parametrize(
    "url",
    ["localhost:30000", "http://", "http://h:x", "http://[::1", "http://h:99999", "http://h:-1", "http://xn--a.h"],
)
def test_a_url_that_can_t_be_one_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(EngineError) as caught:
        SGLangEngine(url)
    assert str(caught.value) == f"the engine's URL is {url!r}; it looks like http://127.0.0.1:30000"
    assert caught.value.where["kind"] == "usage"


@pytest.mark.parametrize("key", ["secret\n", " secret", "sécret"])
def test_a_key_that_no_header_can_carry_is_refused_and_never_printed(key: str) -> None:
    with pytest.raises(EngineError) as caught:
        SGLangEngine("http://h", api_key=key)
    assert str(caught.value) == (
        "the API key holds a line's end, a blank or a character outside ASCII, which no header can carry; pass the key "
        "alone"
    )
    assert caught.value.where["kind"] == "usage"
