"""What SGLang renders from messages itself is what we send: the ids of first prompts, on both vocabularies."""

from __future__ import annotations

import numpy as np
import pytest

from conversations import Conversation
from drawn import at_once, codec, drawn
from prompts import first_prompts, rendered, texts_of
from sglang_server import Server
from tito_core.prompts.thinking import engine_kwargs
from token_path import THINK, UNTHINK, added


@pytest.mark.parametrize("thinking", [True, False])
def test_the_server_renders_what_we_send(live: Server, thinking: bool) -> None:
    ours, decision = codec(live.vocabulary), codec(live.vocabulary).decide(thinking)
    examples = drawn(first_prompts(), 48)
    theirs = at_once(lambda one: rendered(live, one, **engine_kwargs(decision)), examples)
    free = 0
    for conversation, ids in zip(examples, theirs, strict=True):
        messages, tools = conversation
        assert np.array_equal(ours.prompt(messages, tools=tools, decision=decision, mode="engine").ids, ids), (
            conversation
        )
        if not any(mark in text for text in texts_of([messages, tools]) for mark in added(live.vocabulary).values()):
            assert np.array_equal(ours.prompt(messages, tools=tools, decision=decision).ids, ids), conversation
            free += 1
    assert free > len(examples) / 4


def test_large_integers_in_a_schema_become_floats(live: Server) -> None:
    """SGLang's reader of requests does that, before anything is rendered; the first turn's comparison finds it."""
    ours = codec(live.vocabulary)
    for number, printed in ((2**64 - 1, "18446744073709551615"), (2**64, "1.8446744073709552e+19")):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"maximum": number}}}
        asked = Conversation([{"role": "user", "content": "hi"}], [tool])
        ids = rendered(live, asked, **engine_kwargs(ours.decide()))
        assert f'{{"maximum": {printed}}}' in ours.decode(ids)
        assert np.array_equal(ours.prompt(asked.messages, tools=asked.tools).ids, ids) is (number < 2**64)


ASKED = Conversation([{"role": "user", "content": "hi"}], None)


def test_why_the_mode_is_always_sent(live: Server) -> None:
    """What an engine does without being told is its version's choice: SGLang 0.5.23 thinks less than the family does."""
    ours, unthink, think = codec(live.vocabulary), UNTHINK[live.vocabulary], THINK[live.vocabulary]
    assert rendered(live, ASKED)[-1] == unthink
    assert ours.prompt(ASKED.messages).ids[-1] == think
    assert rendered(live, ASKED, chat_template_kwargs={"enable_thinking": True})[-1] == unthink
    assert rendered(live, ASKED, reasoning_effort="high")[-1] == think
    for thinking, last in ((True, think), (False, unthink)):
        sent = engine_kwargs(ours.decide(thinking))
        assert sent == {"chat_template_kwargs": {"thinking": thinking}}
        assert rendered(live, ASKED, **sent)[-1] == rendered(live, ASKED, reasoning_effort="high", **sent)[-1] == last
    assert engine_kwargs(ours.decide()) == engine_kwargs(ours.decide(True))
