"""Whether what a client sends back is what a session stores."""

from __future__ import annotations

import copy
import json
from typing import Any

import orjson

from tito_core.errors import SessionError
from tito_core.prompts.messages import Message, Tool

__all__ = ["matches", "remembered", "same_tools", "spelled"]


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
        and all(
            one.name == other.name and one.id == other.id and same_json(one.arguments, other.arguments)
            for one, other in zip(stored.tool_calls, sent.tool_calls, strict=True)
        )
        and same_json(stored.response_format, sent.response_format)
        and same_json([tool.function for tool in stored.tools], [tool.function for tool in sent.tools])
    )


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
    before, after = ({tool.name: tool for tool in tools} for tools in (first, sent))
    for name in (*before, *after):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            what = "is new" if one is None else "is gone"
        elif not same_json(one.function, other.function):
            what = f"changed from {json.dumps(one.function)} to {json.dumps(other.function)}"
        else:
            continue
        raise SessionError(
            f"the tool {name!r} {what}, but the first turn's prompt holds the tools it was sampled with; open another "
            "session for other tools",
            tool=name,
        )
    if [tool.name for tool in first] != [tool.name for tool in sent]:
        raise SessionError(
            f"the tools come in the order {[tool.name for tool in sent]}, and the first turn's prompt holds them as "
            f"{[tool.name for tool in first]}; keep the order",
            tool=sent[0].name,
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
    return copy.deepcopy(message)


def spelled(tools: Any) -> bytes | None:
    """The spelling of a request's tools; None where it has none that can be compared."""
    try:
        return orjson.dumps(tools)
    except orjson.JSONEncodeError:
        return None
