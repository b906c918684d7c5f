"""First prompts for a server to render."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from conversations import Conversation, contents, tool_schemas
from sglang_server import Server


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
