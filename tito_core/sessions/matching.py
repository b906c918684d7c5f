"""Whether what a client sends back is what a session stores."""

from __future__ import annotations

import copy
import json
from typing import Any

import orjson

from tito_core.errors import SessionError
from tito_core.prompts.messages import Message, Tool, ToolCall

__all__ = ["difference", "matches", "remembered", "same_tools", "spelled"]


def matches(stored: Message, sent: Message) -> bool:
    """Whether two normalised messages are the same to a session.

    Arguments are compared as JSON values, without key order and spacing, and 1 is not 1.0 is not true. A client that
    leaves an assistant's reasoning out still matches: many do. Other reasoning than the stored does not.
    """
    return (
        stored.role == sent.role
        and stored.content == sent.content
        and (stored.reasoning == sent.reasoning or not sent.reasoning)
        and stored.tool_call_id == sent.tool_call_id
        and len(stored.tool_calls) == len(sent.tool_calls)
        and all(map(_same_call, stored.tool_calls, sent.tool_calls))
        and same_json(stored.response_format, sent.response_format)
        and same_json([tool.function for tool in stored.tools], [tool.function for tool in sent.tools])
    )


def difference(stored: Message, sent: Message) -> str:
    """The first thing in which two messages that do not match differ."""
    for what, ours, theirs in (
        ("the role", stored.role, sent.role),
        ("the content", stored.content, sent.content),
        ("the reasoning", stored.reasoning, sent.reasoning or stored.reasoning),
        ("the tool_call_id", stored.tool_call_id, sent.tool_call_id),
        ("the number of tool calls", len(stored.tool_calls), len(sent.tool_calls)),
        *(
            (f"tool call {number}", *(f"{call.id} {call.name}({json.dumps(call.arguments)})" for call in pair))
            for number, pair in enumerate(zip(stored.tool_calls, sent.tool_calls, strict=False))
            if not _same_call(*pair)
        ),
    ):
        if ours != theirs:
            return f"{what} {_short(ours)} is stored, {_short(theirs)} was sent"
    return "its tools or response_format differ"


def _same_call(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and one.id == other.id and same_json(one.arguments, other.arguments)


def _short(value: object) -> str:
    """The value, or both its ends."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:38]} ... {text[-38:]}"


def same_json(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal without regard to key order, where a number's type counts."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_json(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(same_json(one, other) for one, other in zip(left, right, strict=True))
    return bool(left == right)


def same_tools(first: tuple[Tool, ...], sent: tuple[Tool, ...]) -> None:
    """Raises SessionError where a request's tools mean something else than the first turn's; key order is no matter."""
    if first is sent:
        return
    before, after = [tool.name for tool in first], [tool.name for tool in sent]
    for name in (*before, *after):
        mine, theirs = ([tool for tool in tools if tool.name == name] for tools in (first, sent))
        if len(mine) < len(theirs):
            what = "is new"
        elif len(mine) > len(theirs):
            what = "is gone"
        elif changed := [pair for pair in zip(mine, theirs, strict=True) if not same_json(*(t.function for t in pair))]:
            before_it, now = (json.dumps(tool.function) for tool in changed[0])
            what = f"changed from {before_it} to {now}"
        else:
            continue
        raise SessionError(
            f"the tool {name!r} {what}, but the first turn's prompt holds the tools it was sampled with; open another "
            "session for other tools",
            tool=name,
        )
    if before != after:
        raise SessionError(
            f"the tools come in the order {after}, and the first turn's prompt holds them as {before}; keep the order",
            tool=after[0],
        )


def remembered(message: Any) -> object:
    """A copy of a client's message that equals, by `==`, only a message that means the same.

    Numbers compare equal across types, so a message that prints any is remembered as something that equals nothing:
    it is normalised and matched again each time.
    """
    if not isinstance(message, dict) or message.get("response_format") or message.get("tools"):
        return object()
    calls = message.get("tool_calls") or ()
    try:
        if not all(isinstance(call["function"]["arguments"], str) for call in calls):
            return object()
    except (TypeError, KeyError):
        return object()
    try:
        return copy.deepcopy(message)
    except Exception:  # what a client keeps beside the message can be anything
        return object()


def spelled(tools: Any) -> bytes | None:
    """The spelling of a request's tools; None where it has none that can be compared."""
    try:
        return orjson.dumps(tools)
    except orjson.JSONEncodeError:
        return None
