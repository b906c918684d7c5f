"""Messages, tool calls and tools, and normalising what clients send into them.

Input is the chat-completions format. What can't be printed unambiguously raises MessageError with the message's
index and role; nothing is guessed and the client's objects are never changed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tito_core.errors import MessageError, not_text

__all__ = ["Message", "Tool", "ToolCall", "normalise", "normalise_tools", "whole"]

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
MAX_DEPTH: Final = 100
"""How deep a JSON value inside a message or a tool may nest."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of an assistant message. `arguments` keeps the key order; `text` is the JSON text where one was sent."""

    name: str
    arguments: dict[str, Any]
    text: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `function` is what encoders print: the function of SGLang 0.5.23's `Tool(**t).model_dump()`."""

    function: dict[str, Any]
    type: str = "function"
    defer_loading: bool | None = None

    @property
    def name(self) -> str:
        return str(self.function["name"])

    def dump(self) -> dict[str, Any]:
        """The whole dump, which a Jinja template is given."""
        return {"type": self.type, "function": self.function, "defer_loading": self.defer_loading}


@dataclass(frozen=True, slots=True)
class Message:
    """A message whose absent parts are empty, whatever the client wrote for them (null, missing, an empty list).

    `tools` and `response_format` are what the format lets a system or developer message carry. `name` is whose message it
    is, of several of one role, or which tool's result: some templates print it.
    """

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    tools: tuple[Tool, ...] = ()
    response_format: Any = None
    name: str | None = None

    def wire(self) -> dict[str, Any]:
        """The message in the chat-completions format, as a client sends it; a call's arguments are printed again."""
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in self.tool_calls
        ]
        tools = [{"type": tool.type, "function": tool.function} for tool in self.tools]
        parts: dict[str, Any] = {
            "reasoning_content": self.reasoning,
            "tool_calls": calls,
            "tool_call_id": self.tool_call_id,
            "tools": tools,
            "response_format": self.response_format,
            "name": self.name,
        }
        content = None if self.role == "assistant" and not self.content else self.content
        return {"role": self.role, "content": content, **{key: value for key, value in parts.items() if value}}


_UNPRINTED: Final = {
    "function_call": "use tool_calls",
    "content_blocks": "use content",
    "task": "leave it out",
    "wo_eos": "leave it out",
}
"""What published encoders or older clients know of a message, and would be lost in silence."""
_FIELDS: Final = ("role", "content", "tool_calls", "tool_call_id", "tools", "response_format", "name")


def normalise(
    messages: Sequence[Mapping[str, Any] | Message],
    *,
    text_joiner: str = " ",
    after: Message | None = None,
    start: int = 0,
) -> tuple[Message, ...]:
    """Messages as the templates take them: parts joined, arguments parsed, tool results in the order of their calls.

    `after` is the stored assistant message that `messages` are appended to, `start` the conversation index of the
    first of them. Every call of an assistant message is answered exactly once, directly after it, in any order; only
    the last assistant message of all may stand unanswered.

    Arguments of a call are a JSON object, as a mapping or as text; whatever else stands there raises, empty text too.
    Of a key that the text repeats the last value counts, as in every JSON parser. A `Message` is checked and copied as a
    mapping is. Raises MessageError.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise MessageError(f"messages is a {type(messages).__name__}, not a list of messages; pass a list")
    made = [_message(message, start + offset, text_joiner) for offset, message in enumerate(messages)]
    return _results_in_call_order(made, after, start)


def normalise_tools(tools: Sequence[Mapping[str, Any] | Tool] | None) -> tuple[Tool, ...]:
    """Tools as the templates print them. None and an empty list are no tools. Raises MessageError."""
    return _tools(tools, "tools")


def whole(message: Message, index: int) -> Message:
    """A message that may have been made elsewhere. Raises MessageError where it holds what is not JSON, or not text."""
    _json(asdict(message), f"message {index} ({message.role})", -3, index=index, role=message.role)
    return message


def _message(message: Any, index: int, joiner: str) -> Message:
    if isinstance(message, Message):
        message = {"reasoning_content": message.reasoning, **{key: getattr(message, key) for key in _FIELDS}}
    if not isinstance(message, Mapping):
        raise MessageError(
            f"message {index} is a {type(message).__name__}, not a mapping; pass message.model_dump() or a dict",
            index=index,
        )
    role = message.get("role")
    if isinstance(role, str):
        role = str.__str__(role)
    if not isinstance(role, str) or role not in ROLES:
        raise MessageError(
            f"message {index} has the role {role!r}; it must be one of {', '.join(sorted(ROLES))}",
            index=index,
            role=role,
        )
    where = f"message {index} ({role})"
    for key, instead in _UNPRINTED.items():
        if message.get(key) not in (None, False):
            raise MessageError(f"{where} has {key}, which no template prints; {instead}", index=index, role=role)
    reasoning = _reasoning(message, where, index, role)
    if message.get("tool_calls") and role != "assistant":
        raise MessageError(f"{where} has tool_calls; only an assistant makes calls", index=index, role=role)
    calls = _tool_calls(message.get("tool_calls"), where, index, role)
    if reasoning and role != "assistant":
        raise MessageError(f"{where} has reasoning; only an assistant reasons", index=index, role=role)
    for key in ("tools", "response_format"):
        if message.get(key) and role not in ("system", "developer"):
            raise MessageError(f"{where} has {key}; only a system or developer message may", index=index, role=role)
    tools = _tools(message.get("tools"), f"{where} tools", index=index, role=role)
    response_format = message.get("response_format")
    if response_format is not None:
        if not isinstance(response_format, Mapping):
            raise MessageError(
                f"{where} has response_format of type {type(response_format).__name__}; it must be a JSON object",
                index=index,
                role=role,
            )
        response_format = _json(response_format, f"{where} response_format", index=index, role=role) or None
    call_id = message.get("tool_call_id") if role == "tool" else None
    if call_id is not None and not isinstance(call_id, str):
        raise MessageError(
            f"{where} has the tool_call_id {call_id!r}, a {type(call_id).__name__}; it must be a string",
            index=index,
            role=role,
        )
    if call_id is not None:
        call_id = _text(call_id, f"{where} tool_call_id", index=index, role=role)
    name = message.get("name") or None
    if name is not None and not isinstance(name, str):
        raise MessageError(
            f"{where} has the name {name!r}, a {type(name).__name__}; it must be a string", index=index, role=role
        )
    if name is not None:
        name = _text(name, f"{where} name", index=index, role=role)
    content = _content(message.get("content"), where, index, role, joiner)
    return Message(role, content, reasoning, calls, call_id, tools, response_format, name)


def _content(content: Any, where: str, index: int, role: str, joiner: str) -> str:
    if isinstance(content, str):
        return _text(content, f"{where} content", index=index, role=role)
    if content is None:
        if role == "assistant":
            return ""
        raise MessageError(
            f"{where} has no content; send a string, an empty one where nothing is meant", index=index, role=role
        )
    if not isinstance(content, Sequence) or isinstance(content, (bytes, bytearray)):
        raise MessageError(
            f"{where} has content of type {type(content).__name__}; it must be a string or a list of text parts",
            index=index,
            role=role,
        )
    texts: list[str] = []
    for number, part in enumerate(content):
        at = f"{where} content part {number}"
        place: dict[str, Any] = {"index": index, "role": role, "part": number}
        if not isinstance(part, Mapping):
            raise MessageError(f"{at} is a {type(part).__name__}; send {{'type': 'text', 'text': ...}}", **place)
        if (kind := part.get("type")) not in ("text", "input_text"):
            raise MessageError(f"{at} has the type {kind!r}; this format prints text only", **place)
        if not isinstance(text := part.get("text"), str):
            raise MessageError(f"{at} has text of type {type(text).__name__}; it must be a string", **place)
        texts.append(_text(text, at, **place))
    return joiner.join(texts)


def _reasoning(message: Mapping[str, Any], where: str, index: int, role: str) -> str:
    found: dict[str, str] = {}
    for key in ("reasoning_content", "reasoning"):
        value = message.get(key)
        if value is None or value == "":
            continue
        if not isinstance(value, str):
            raise MessageError(
                f"{where} has {key} of type {type(value).__name__}; it must be a string", index=index, role=role
            )
        found[key] = _text(value, f"{where} {key}", index=index, role=role)
    if len(set(found.values())) > 1:
        raise MessageError(
            f"{where} has reasoning and reasoning_content, and they differ; they are one field, send one of them",
            index=index,
            role=role,
        )
    return next(iter(found.values()), "")


def _tool_calls(calls: Any, where: str, index: int, role: str) -> tuple[ToolCall, ...]:
    if calls is None:
        return ()
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise MessageError(
            f"{where} has tool_calls of type {type(calls).__name__}; it must be a list", index=index, role=role
        )
    made = []
    for number, call in enumerate(calls):
        at = f"{where} tool call {number}"
        place: dict[str, Any] = {"index": index, "role": role, "call": number}
        if isinstance(call, ToolCall):
            call = _wired(call, at, place)
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise MessageError(f"{at} has no function; send {{'function': {{'name', 'arguments'}}}}", **place)
        name, identity = function.get("name"), call.get("id")
        if not isinstance(name, str) or not name:
            raise MessageError(f"{at} has the function name {name!r}; it must be a string that is not empty", **place)
        if identity is not None and not isinstance(identity, str):
            raise MessageError(f"{at} has the id {identity!r}; it must be a string", **place)
        if identity is not None:
            identity = _text(identity, f"{at} id", **place)
        arguments, text = _arguments(function.get("arguments"), at, place)
        made.append(ToolCall(_text(name, f"{at} name", **place), arguments, text, identity))
    if twice := sorted(
        identity for identity, count in Counter(call.id for call in made if call.id is not None).items() if count > 1
    ):
        raise MessageError(
            f"{where} has two tool calls with the id {twice[0]!r}; results could not be told apart",
            index=index,
            role=role,
            id=twice[0],
        )
    return tuple(made)


def _wired(call: ToolCall, at: str, place: dict[str, Any]) -> dict[str, Any]:
    """A call as a client sends it: by the text of its arguments, where it has one."""
    sent = call.arguments if call.text is None else call.text
    if call.text is not None and _arguments(sent, at, place)[0] != call.arguments:
        raise MessageError(f"{at} has arguments, and a text of them that says others; leave the text out", **place)
    return {"id": call.id, "function": {"name": call.name, "arguments": sent}}


def _arguments(arguments: Any, at: str, place: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The one rule for arguments: a JSON object, as a mapping or as text; everything else raises."""
    if isinstance(arguments, Mapping):
        return _json(arguments, f"{at} arguments", **place), None
    if not isinstance(arguments, str):
        raise MessageError(
            f"{at} has arguments of type {type(arguments).__name__}; send a JSON object, '{{}}' where there are none",
            **place,
        )
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError) as cause:
        raise MessageError(
            f"{at} has arguments that can't be read as JSON ({cause}); send a JSON object", **place
        ) from None
    if not isinstance(parsed, dict):
        raise MessageError(
            f"{at} has arguments that are JSON, but a {type(parsed).__name__}; send a JSON object", **place
        )
    return _json(parsed, f"{at} arguments", **place), arguments


def _tools(tools: Any, where: str, **place: Any) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise MessageError(f"{where} is a {type(tools).__name__}, not a list of tools", **place)
    return tuple(
        _tool(tool.dump() if isinstance(tool, Tool) else tool, f"{where}[{number}]", {**place, "tool": number})
        for number, tool in enumerate(tools)
    )


def _tool(tool: Any, at: str, place: dict[str, Any]) -> Tool:
    """What SGLang's `Tool` model makes of it: five known keys, in the client's order, then the absent ones as null."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        raise MessageError(f"{at} has no function; send {{'type': 'function', 'function': {{'name', ...}}}}", **place)
    kind = tool.get("type", "function")
    if not isinstance(kind, str):
        raise MessageError(f"{at} has the type {kind!r}; it must be a string", **place)
    deferred, outer = function.get("defer_loading"), tool.get("defer_loading")
    if deferred is None:
        deferred = outer
    name, description, strict = function.get("name"), function.get("description"), function.get("strict")
    if not isinstance(name, str):
        raise MessageError(f"{at} has the name {name!r}; it must be a string", **place)
    name = _text(name, f"{at} name", **place)
    if description is not None and not isinstance(description, str):
        raise MessageError(
            f"{at} ({name}) has a description of type {type(description).__name__}; it must be a string", **place
        )
    for key, flag in (("strict", strict), ("defer_loading", deferred), ("defer_loading", outer)):
        if flag is not None and not isinstance(flag, bool):
            raise MessageError(f"{at} ({name}) has {key} {flag!r}; it must be true or false", **place)
    known: dict[str, Any] = {
        "description": description,
        "name": name,
        "parameters": function.get("parameters"),
        "strict": strict,
        "defer_loading": deferred,
    }
    for key in ("strict", "defer_loading"):
        if known[key] is None:
            del known[key]
    order = [key for key in function if key in known]
    ordered = {key: known[key] for key in [*order, *(key for key in known if key not in order)]}
    return Tool(_json(ordered, f"{at} ({name})", **place), _text(kind, f"{at} type", **place), outer)


def _results_in_call_order(messages: list[Message], after: Message | None, start: int) -> tuple[Message, ...]:
    if not (after and after.tool_calls) and not any(made.role == "tool" or made.tool_calls for made in messages):
        return tuple(messages)
    ordered: list[Message] = []
    asked: tuple[ToolCall, ...] = after.tool_calls if after else ()
    asker = start - 1
    position = 0
    while True:
        first = position
        while position < len(messages) and messages[position].role == "tool":
            position += 1
        results = messages[first:position]
        at_end = position == len(messages)
        if results or (asked and not at_end):
            ordered += _matched(asked, results, asker, start + first)
        if at_end:
            return tuple(ordered)
        ordered.append(messages[position])
        asked, asker = messages[position].tool_calls, start + position
        position += 1


def _matched(asked: tuple[ToolCall, ...], results: list[Message], asker: int, first: int) -> list[Message]:
    if not asked:
        raise MessageError(
            f"message {first} (tool) with the id {results[0].tool_call_id!r} answers no call: what stands before it "
            "is not an assistant message with tool_calls; keep call and result together",
            index=first,
            role="tool",
            id=results[0].tool_call_id,
        )
    ids = [call.id for call in asked]
    if all(identity is None for identity in ids) and all(result.tool_call_id is None for result in results):
        if len(results) > len(asked):
            raise MessageError(
                f"message {first + len(asked)} (tool) is one result too many: message {asker} (assistant) made "
                f"{len(asked)} call(s)",
                index=first + len(asked),
                role="tool",
                id=None,
            )
        answers = dict(enumerate(results))
    else:
        answers = {}
        places = {identity: number for number, identity in enumerate(ids) if identity is not None}
        for offset, result in enumerate(results):
            index = first + offset
            number = places.get(result.tool_call_id) if result.tool_call_id is not None else None
            if number is None:
                raise MessageError(
                    f"message {index} (tool) has the tool_call_id {result.tool_call_id!r}, which message {asker} "
                    f"(assistant) did not call; its calls have the ids {ids}",
                    index=index,
                    role="tool",
                    id=result.tool_call_id,
                )
            if number in answers:
                raise MessageError(
                    f"message {index} (tool) answers the call {result.tool_call_id!r} a second time; send one result "
                    "for each call",
                    index=index,
                    role="tool",
                    id=result.tool_call_id,
                )
            answers[number] = result
    if missing := [number for number in range(len(asked)) if number not in answers]:
        raise MessageError(
            f"message {asker} (assistant) made {len(asked)} call(s), and the result of call {missing[0]} "
            f"(id {asked[missing[0]].id!r}, {asked[missing[0]].name}) does not stand directly after it; send all "
            "results of a turn together",
            index=asker,
            role="assistant",
            id=asked[missing[0]].id,
        )
    return [answers[number] for number in range(len(asked))]


def _text(value: str, where: str, **place: Any) -> str:
    if type(value) is not str:  # an enum's member would print its own name
        value = str.__str__(value)
    if why := not_text(value):
        raise MessageError(f"{where} {why}", **place)
    return value


def _json(value: Any, where: str, depth: int = 0, **place: Any) -> Any:
    """A copy that shares nothing mutable with the client's value and holds plain JSON types only."""
    if isinstance(value, str):
        return _text(value, where, **place)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise MessageError(f"{where} holds {float(value)!r}, which is not JSON; send null or a string", **place)
        return float(value)
    if isinstance(value, int):
        try:
            int.__repr__(value)
        except ValueError:
            raise MessageError(
                f"{where} holds an integer of {value.bit_length()} bits, more than Python prints; send it as a string",
                **place,
            ) from None
        return int(value)
    if depth >= MAX_DEPTH:
        raise MessageError(f"{where} nests deeper than {MAX_DEPTH} levels", **place)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise MessageError(
                    f"{where} has the key {key!r}, a {type(key).__name__}; JSON keys are strings", **place
                )
        return {_text(key, where, **place): _json(item, where, depth + 1, **place) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(item, where, depth + 1, **place) for item in value]
    raise MessageError(f"{where} holds a {type(value).__name__}, which is not a JSON type", **place)
