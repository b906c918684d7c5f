"""The engine without a model: the template's own text, in ids that a model might have sampled."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest

import tito_core
from conversations import Json
from mutants import TemplateMutant, printed
from tito_core import Codec
from tito_core.engines.scripted import ScriptedEngine
from tito_core.errors import EngineError
from tito_core.families.registry import Registry
from token_path import EOS, NAMES, Name, added, engine_ids, literal_ids, raw

CALLS = [
    {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": '{"q": "naïve ☕", "n": [1]}'}}
    for number in range(2)
]
SAID: tuple[Json, ...] = (
    {"role": "assistant", "content": "four lines 👩‍👩‍👧 你好"},
    {"role": "assistant", "content": "", "reasoning_content": "so\n\n  it is"},
    {"role": "assistant", "content": "<think> is text </think>", "reasoning_content": "r", "tool_calls": CALLS},
)
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@cache
def codec(name: Name) -> Codec:
    return tito_core.load("deepseekv32", vocabulary=name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("message", SAID)
def test_it_says_what_the_published_template_prints(name: Name, thinking: bool, message: Json) -> None:
    asked = [{"role": "user", "content": "q"}]
    canonical = literal_ids(name, [*asked, message], thinking=thinking)[
        len(literal_ids(name, asked, thinking=thinking)) :
    ]
    text = raw(name).decode(canonical.tolist(), skip_special_tokens=False)
    decision = codec(name).decide(thinking)
    drifted = 0
    for seed in range(20):
        said = ScriptedEngine(codec(name), seed).say(message, decision)
        ids = np.asarray(said.ids)
        assert raw(name).decode(ids.tolist(), skip_special_tokens=False) == text
        assert [one for one in ids.tolist() if one in added(name)] == [
            one for one in canonical.tolist() if one in added(name)
        ]
        assert len(said.logprobs) == len(ids)
        assert said.finish_reason == ("tool_calls" if "tool_calls" in message else "stop")
        drifted += ids.tolist() != canonical.tolist()
        exact = ScriptedEngine(codec(name), seed, canonical=True).say(message, decision)
        assert np.asarray(exact.ids).tolist() == canonical.tolist()
    assert drifted >= 10 or len(canonical) < 12


def test_the_same_seed_says_the_same() -> None:
    def replies(seed: int) -> list[Any]:
        engine = ScriptedEngine(codec("r1"), seed)
        request = codec("r1").session().prepare([{"role": "user", "content": "q"}], tools=TOOLS)
        return [
            (np.asarray(one.ids).tolist(), np.asarray(one.logprobs).tolist(), one.id, one.message, one.finish_reason)
            for one in (engine.complete(request) for _ in range(5))
        ]

    assert replies(3) == replies(3)
    assert replies(3) != replies(4)


def test_it_is_cut_by_length_even_inside_a_character() -> None:
    decision, made = codec("r1").decide(), codec("r1")
    whole = np.asarray(ScriptedEngine(made, 5).say(SAID[0], decision).ids).tolist()
    halves = 0
    for size in range(1, len(whole)):
        cut = ScriptedEngine(made, 5).say(SAID[0], decision, max_tokens=size)
        assert np.asarray(cut.ids).tolist() == whole[:size]
        assert cut.finish_reason == "length"
        halves += made.decode(cut.ids).endswith("\ufffd")
    assert halves
    assert ScriptedEngine(made, 5).say(SAID[0], decision, max_tokens=len(whole)).finish_reason == "stop"


def test_a_stop_string_leaves_the_stop_token_out() -> None:
    decision, made = codec("r1").decide(), codec("r1")
    whole = np.asarray(ScriptedEngine(made, 5).say(SAID[0], decision).ids).tolist()
    stopped = ScriptedEngine(made, 5).say(SAID[0], decision, stop="")
    assert np.asarray(stopped.ids).tolist() == whole[:-1]
    assert (whole[-1], stopped.finish_reason, stopped.stop) == (EOS, "stop", None)
    ended = ScriptedEngine(made, 5).say({"role": "assistant", "content": "a</answer>"}, decision, stop="</answer>")
    assert ended.stop == "</answer>"
    assert made.decode(ended.ids).endswith("</answer>")


def test_its_own_replies_are_of_every_kind() -> None:
    """Thoughts only where thinking is on, calls only where tools were offered, one call and several."""
    seen = {"thought": 0, "call": 0, "calls": 0, "neither": 0, "emoji": 0, "stopped": 0}
    for thinking in (True, False):
        for tools in (TOOLS, None):
            session = codec("v4").session(thinking=thinking)
            request = session.prepare([{"role": "user", "content": "q"}], tools=tools)
            engine = ScriptedEngine(codec("v4"), 1, stopped=0.2)
            for _ in range(40):
                said = engine.complete(request)
                message = said.message
                assert isinstance(message, dict)
                thought, calls = message.get("reasoning_content"), message.get("tool_calls") or ()
                assert thinking or not thought
                assert tools or not calls
                assert all(call["function"]["name"] == "f" for call in calls)
                seen["thought"] += bool(thought)
                seen["call"] += len(calls) == 1
                seen["calls"] += len(calls) > 1
                seen["neither"] += not calls and not thought
                seen["emoji"] += "🙂" in (thought or "") + message["content"]
                seen["stopped"] += np.asarray(said.ids)[-1] != EOS
    assert all(seen.values()), seen


def test_pieces_are_ordinary_tokens_of_the_same_bytes() -> None:
    """Whatever is split, no control token is made of it, and encoding the text again gives the canonical ids."""
    made, rng = codec("v4"), random.Random(0)
    for _ in range(50):
        text = "".join(rng.choice(["<｜User｜>", "</think>", "naïve", "🙂", "\n", " x", "日本"]) for _ in range(6))
        ids = np.asarray(
            ScriptedEngine(made, rng.random().__hash__())
            .say({"role": "assistant", "content": text}, made.decide(False))
            .ids
        )
        assert [one for one in ids.tolist() if one in added("v4")] == [EOS]
        assert made.decode(ids[:-1]) == text
    assert engine_ids("v4", "</think>").tolist() == [128822]


def test_a_line_too_many_in_the_generation_header_is_shown() -> None:
    header = "'<|im_start|>assistant{}' }}}}\n    {{{{- '<think>\\n\\n</think>"
    fault = TemplateMutant("a line too many", "", "qwen3", header.format("\\n"), header.format("\\n\\n"))
    with printed(fault):
        made = Registry().load("qwen3")
    with pytest.raises(EngineError) as refusal:
        ScriptedEngine(made).say({"role": "assistant", "content": "4"}, made.decide(True))
    assert str(refusal.value) == (
        "qwen3 ends a prompt with 'tart|>assistant\\n\\n', and prints 'tart|>assistant\\n<think>\\n\\n</think' there once it is "
        "answered, so there is no text that a model would have sampled; its template must print an answer, a thought that is "
        "empty too, behind all that a prompt ends with"
    )
