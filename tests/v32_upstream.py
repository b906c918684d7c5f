"""What DeepSeek V3.2's published encoder prints for a client's conversation: the right-hand side of the tests.

It takes the client's own messages and shares no code with the library. The messages are prepared as SGLang 0.5.23's
serving path prepares them (`serving_chat.py`), with the results of parallel calls in call order, as the library's
normalisation puts them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from oracles import dsv32, tool_classes

Json = dict[str, Any]


def upstream_messages(messages: Sequence[Json], tools: Sequence[Json] | None = None) -> list[Json]:
    """The messages that SGLang hands to the encoder, request tools inside the first."""
    made = [_flat(message) for message in _in_call_order(messages)]
    if tools:
        if made[0]["role"] != "system":
            made.insert(0, {"role": "system", "content": ""})
        made[0]["tools"] = _dumped(tools)
    return made


def upstream_text(
    messages: Sequence[Json],
    tools: Sequence[Json] | None = None,
    *,
    thinking: bool,
    drop_thinking: bool = False,
    answered: bool = False,
) -> str | None:
    """The prompt, or None where the published encoder refuses the messages.

    `drop_thinking=True` is its own render. Without, it is each message rendered with what stands before it alone: an
    assistant without reasoning is kept as `</think>` and its content; `answered` adds an empty user message after one
    that another than an assistant's follows. A tool message that comes first is always refused.
    """
    if messages[0]["role"] == "tool":
        return None
    encoder, mode = dsv32(), "thinking" if thinking else "chat"
    made = upstream_messages(messages, tools)
    try:
        if drop_thinking:
            return str(encoder.encode_messages(made, thinking_mode=mode, drop_thinking=True))
        text = encoder.bos_token
        for index, message in enumerate(made):
            before, following = made[: index + 1], made[index + 1 : index + 2]
            if (
                message["role"] == "assistant"
                and thinking
                and not (message["reasoning_content"] or message["tool_calls"])
            ):
                text += encoder.thinking_end_token + message["content"] + encoder.eos_token
                continue
            if answered and message["role"] in ("user", "developer", "tool") and following:
                if following[0]["role"] != "assistant":
                    before = [*before, {"role": "user", "content": ""}]
            text += encoder.render_message(index, before, mode)
        return str(text)
    except encoder.DS32EncodingError:
        return None


def written(
    messages: Sequence[Json], tools: Sequence[Json] | None = None, *, thinking: bool, drop_thinking: bool = False
) -> list[tuple[int, str, str]]:
    """What authors wrote, in the order it is printed: index of the message, its role, the text. Empty ones left out.

    Index -1 is what no message says: the request's tools.
    """
    made = upstream_messages(messages, tools)
    first = len(messages) - len(made)
    last_user = max((at for at, message in enumerate(made) if message["role"] in ("user", "developer")), default=-1)
    found: list[tuple[int, str, str]] = []
    for at, message in enumerate(made):
        schemas = [_json(tool["function"]) for tool in message.get("tools") or ()]
        nobodys = len(schemas) if tools and at == 0 else 0
        if message.get("response_format"):
            schemas.append(_json(message["response_format"]))
        if message["role"] == "developer":
            texts = [*schemas, message["content"]]
        elif message["role"] == "assistant":
            shown = thinking and (not drop_thinking or at > last_user)
            texts = [message["reasoning_content"] if shown else "", message["content"]]
            for call in message["tool_calls"]:
                texts.append(call["function"]["name"])
                for key, value in call["function"]["arguments"].items():
                    texts += [key, value if isinstance(value, str) else _json(value)]
        else:
            texts = [message["content"], *schemas]
        whose = [-1 if text in schemas[:nobodys] and place else first + at for place, text in enumerate(texts)]
        found += [(index, message["role"], text) for index, text in zip(whose, texts, strict=True) if text]
    return found


def _flat(message: Json) -> Json:
    content = message.get("content") or ""
    made: Json = {
        "role": message["role"],
        "content": content if isinstance(content, str) else " ".join(part["text"] for part in content),
        "reasoning_content": message.get("reasoning_content") or message.get("reasoning") or "",
        "tool_calls": [],
    }
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        made["tool_calls"].append({"function": {"name": call["function"]["name"], "arguments": arguments}})
    if message.get("tools"):
        made["tools"] = _dumped(message["tools"])
    if message.get("response_format"):
        made["response_format"] = message["response_format"]
    return made


def _in_call_order(messages: Sequence[Json]) -> list[Json]:
    """Stable: results whose calls are unknown stay behind, in their order."""
    ordered: list[Json] = []
    calls: list[str] = []
    run: list[Json] = []
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool":
            run.append(message)
            continue
        ordered += sorted(run, key=lambda result: [*calls, result["tool_call_id"]].index(result["tool_call_id"]))
        run = []
        calls = [call["id"] for call in message.get("tool_calls") or ()]
        ordered.append(message)
    return ordered[:-1]


def _dumped(tools: Sequence[Json]) -> list[Json]:
    _, tool_class = tool_classes()
    return [tool_class(**tool).model_dump() for tool in tools]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
