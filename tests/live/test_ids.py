"""What the engines count on: the ids that were sent and sampled, one log-prob an id, how a turn ends, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from drawn import codec
from sglang_server import Server, scripted
from token_path import EOS, engine_ids

Ids = list[int]
TOO_LONG = "The input (9000 tokens) is longer than the model's context length (8192 tokens)."


def prompt(live: Server) -> Ids:
    """Not what a tokenizer makes of its text: a server that went through text would echo other ids."""
    whole: Ids = codec(live.vocabulary).prompt([{"role": "user", "content": "unbelievable"}]).ids.tolist()
    letters = [one for letter in "unbelievable" for one in engine_ids(live.vocabulary, letter).tolist()]
    return [*whole[:2], *letters, *whole[-2:]]


def ids_of(live: Server, text: str) -> Ids:
    made: Ids = engine_ids(live.vocabulary, text).tolist()
    return made


def paired(found: Any, ids: Ids) -> None:
    """One log-prob an id, in order, each of a probability."""
    pairs = found["meta_info"]["output_token_logprobs"]
    assert [one for _, one, *_ in pairs] == ids
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob, *_ in pairs)


def test_both_ways_echo_the_prompt_and_pair_log_probs_with_ids(live: Server) -> None:
    sent = prompt(live)
    assert codec(live.vocabulary).encoder.decode(sent).count("unbelievable") == 1
    assert sent != ids_of(live, codec(live.vocabulary).decode(sent))
    chat, generate = live.chat(input_ids=sent), live.generate(sent)
    assert chat["prompt_token_ids"] == generate["prompt_token_ids"] == sent
    paired(chat, chat["response_token_ids"])
    paired(generate, generate["output_ids"])
    assert generate["meta_info"]["cached_tokens"] == len(sent) - 1


def test_sampled_ids_come_back_as_they_were_sampled(live: Server) -> None:
    said = [one for letter in "unbelievable" for one in ids_of(live, letter)]
    assert live.chat(input_ids=prompt(live), max_tokens=len(said), **scripted(said))["response_token_ids"] == said
    assert live.generate(prompt(live), said, max_new_tokens=len(said))["output_ids"] == said


def test_a_stop_token_is_sampled_and_never_in_the_text(live: Server) -> None:
    said = [*ids_of(live, "one two"), EOS]
    for trimmed in (True, False):
        found = live.generate(prompt(live), [*said, 5], no_stop_trim=not trimmed)
        assert (found["output_ids"], found["text"]) == (said, "one two")
        assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS}
        paired(found, said)
    chat = live.chat(input_ids=prompt(live), **scripted([*said, 5]))
    assert (chat["response_token_ids"], chat["finish_reason"], chat["matched_stop"]) == (said, "stop", EOS)


def test_calls_hide_which_stop_ended_a_turn(live: Server) -> None:
    block = '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    said = [*ids_of(live, block), EOS]
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = live.chat(input_ids=prompt(live), max_tokens=len(said), tools=tools, **scripted(said))
    assert (found["response_token_ids"], found["finish_reason"], found["matched_stop"]) == (said, "tool_calls", None)
    assert found["meta_info"]["finish_reason"] == {"type": "tool_calls", "matched": None}


@pytest.mark.parametrize(
    ("stop", "kept", "with_it"), [(" three", "one two", "one two three"), ("hre", "one two t", "one two thre")]
)
def test_ids_reach_past_a_stop_string_that_ends_inside_a_token(
    live: Server, stop: str, kept: str, with_it: str
) -> None:
    said, end = ids_of(live, "one two three"), ids_of(live, "one two three four")
    assert end[: len(said)] == said
    for untrimmed, text in ((False, kept), (True, with_it)):
        found = live.generate(prompt(live), end, stop=[stop], no_stop_trim=untrimmed)
        assert (found["output_ids"], found["text"]) == (said, text)
        assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        chat = live.chat(input_ids=prompt(live), stop=[stop], no_stop_trim=untrimmed, **scripted(end))
        assert (chat["response_token_ids"], chat["message"]["content"], chat["matched_stop"]) == (said, text, stop)


def test_length_ends_a_turn_after_so_many_ids(live: Server) -> None:
    said = ids_of(live, "one two three four")
    found = live.generate(prompt(live), said, max_new_tokens=2)
    assert found["output_ids"] == said[:2]
    assert found["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    chat = live.chat(input_ids=prompt(live), max_tokens=2, **scripted(said))
    assert (chat["response_token_ids"], chat["finish_reason"], chat["matched_stop"]) == (said[:2], "length", None)


def test_no_option_no_ids(live: Server) -> None:
    """Nothing is refused and nothing is said: whoever reads must miss them."""
    bare = live.chat(input_ids=prompt(live), max_tokens=1, **OFF)
    assert not {"meta_info", "prompt_token_ids", "response_token_ids"} & set(bare)
    meta = live.chat(input_ids=prompt(live), max_tokens=1, **{**OFF, "return_meta_info": True})
    assert "output_token_logprobs" not in meta["meta_info"]
    text = live.chat(input_ids=prompt(live), max_tokens=1, **{**OFF, "logprobs": True})
    assert set(text["logprobs"]["content"][0]) == {"token", "bytes", "logprob", "top_logprobs"}


OFF = {"logprobs": False, "return_meta_info": False, "return_prompt_token_ids": False, "return_token_ids": False}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": [5] * 9000}, TOO_LONG),
        ({"input_ids": [5] * 8190}, "Requested token count exceeds the model's maximum context length of 8192 tokens."),
        ({"input_ids": []}, "input_ids cannot be empty."),
        ({"messages": []}, "Messages cannot be empty."),
        ({"stream": True, "return_meta_info": True}, "return_meta_info is not supported with streaming."),
    ],
)
def test_what_is_refused(live: Server, change: dict[str, Any], message: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "input_ids": [5], "max_tokens": 8}
    answer = live.client.post("/v1/chat/completions", json={**body, **change})
    assert answer.status_code == 400
    assert answer.json()["message"].startswith(message)


def test_the_server_says_what_it_is(live: Server) -> None:
    told = live.client.get("/server_info").json()
    assert (told["version"], told["context_length"], told["model_path"]) == ("0.5.23", 8192, str(live.model))
    assert (told["reasoning_parser"], told["tool_call_parser"]) == ("deepseek-v3", "deepseekv32")
