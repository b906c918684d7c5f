"""What SGLang renders from messages itself is what we send: the ids of first prompts, on both vocabularies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from conversations import Conversation, contents, tool_schemas
from drawn import at_once, codec, drawn
from sglang_server import Server
from tito_core.prompts.thinking import engine_kwargs
from token_path import THINK, UNTHINK, added


@st.composite
def first_prompts(draw: st.DrawFn) -> Conversation:
    """At most one system message and one user message, in text or text parts; tools or none."""
    roles = ["system", "user"] if draw(st.booleans()) else ["user"]
    messages = [{"role": role, "content": draw(contents())} for role in roles]
    for message in messages:
        if not isinstance(message["content"], str):
            message["content"] = [{**part, "type": "text"} for part in message["content"]]
    # SGLang refuses parameters that are no JSON schema; what it makes of large integers is a test of its own.
    offered = tool_schemas().filter(
        lambda tool: isinstance(tool["function"].get("parameters"), dict | None) and not large(tool)
    )
    tools = st.lists(offered, min_size=1, max_size=2)
    return Conversation(messages, draw(st.one_of(st.none(), tools)))


def large(value: Any) -> bool:
    """Whether an integer of it does not fit into 64 bits."""
    if isinstance(value, dict | list):
        return any(map(large, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(2**63) <= value < 2**64


def texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return [text for one in value for text in texts_of(one)] if isinstance(value, list) else []


def rendered(server: Server, conversation: Conversation, **more: Any) -> list[int]:
    """The prompt that the server makes of messages; nothing is sampled."""
    body: dict[str, Any] = {"messages": conversation.messages, "max_tokens": 0, **more}
    if conversation.tools:
        body["tools"] = conversation.tools
    ids: list[int] = server.chat(**body)["prompt_token_ids"]
    return ids


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
