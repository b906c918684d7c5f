"""What the published encoders of DeepSeek V4 and V4.1 print for a client's conversation: the right-hand side of the tests.

It takes the client's own messages and shares no code with the library. `released` is `encoding_dsv4.py`, with messages
prepared as SGLang 0.5.14's serving path prepares them; `recipe_prompt` is `deepseek-recipe`, with messages prepared as
SGLang 0.5.23's does (`deepseek_recipe_renderer.py`, `serving_deepseek_recipe.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from hypothesis import strategies as st

from conversations import Conversation, conversations, json_objects, texts
from oracles import dsv4, recipe, tokenizer_json, tool_classes
from token_path import engine_ids, plain

Json = dict[str, Any]
Version = Literal["4", "4.1"]
MODELS: dict[Version, str] = {"4": "DeepSeek-V4-Pro", "4.1": "DeepSeek-V4.1-Flash"}
ASK: Json = {"role": "user", "content": "q"}
_SYSTEM = ("system", "developer")
A_TOOL: Json = {"type": "function", "function": {"name": "f"}}


def released(
    messages: Sequence[Json],
    tools: Sequence[Json] | None = None,
    *,
    thinking: bool,
    effort: str = "high",
    drop_thinking: bool = False,
) -> str:
    """The released encoder's print. Raises what it raises."""
    made = [_flat(message, " ") for message in messages]
    for message in made:
        for call in message.get("tool_calls") or ():
            arguments = call["function"]["arguments"]
            call["function"]["arguments"] = json.loads(arguments) if isinstance(arguments, str) else arguments
        if message.get("tools"):
            message["tools"] = _dumped(message["tools"])
    if made[0]["role"] != "system":
        made.insert(0, {"role": "system", "content": ""})
    if tools:
        made[0]["tools"] = _dumped(tools)
    return str(
        dsv4().encode_messages(
            made,
            thinking_mode="thinking" if thinking else "chat",
            drop_thinking=drop_thinking,
            reasoning_effort=effort if effort in ("max", "high") else None,
        )
    )


def recipe_prompt(
    messages: Sequence[Json],
    tools: Sequence[Json] | None = None,
    *,
    thinking: bool,
    effort: str | None = None,
    version: Version = "4",
) -> Any:
    """The recipe's `RenderedPrompt`. Raises its ConversionError."""
    encoding = recipe().DeepseekV4Encoding() if version == "4" else recipe().DeepseekV41Encoding()
    return encoding.render_conversation(_converted(messages, tools, thinking, effort, version))


def recipe_text(
    messages: Sequence[Json],
    tools: Sequence[Json] | None = None,
    *,
    thinking: bool,
    effort: str | None = None,
    version: Version = "4",
    drop_thinking: bool = False,
) -> str:
    """The recipe's print. It drops every thought exactly where there is no tool: to keep them, it is given one, and the
    tools' block is cut out of its print."""
    if tools or drop_thinking or not thinking:
        return str(recipe_prompt(messages, tools, thinking=thinking, effort=effort, version=version).prompt)
    text = str(recipe_prompt(messages, [A_TOOL], thinking=thinking, effort=effort, version=version).prompt)
    assert tools_block(version) in text
    return text.replace(tools_block(version), "", 1)


@st.composite
def served(
    draw: st.DrawFn, *, system_last: bool = False, system_later: bool = True, developer: bool = True
) -> Conversation:
    """Conversations that the recipe takes: schemas are JSON schemas of objects, and named as it wants them.

    `system_last`: they may end with a system message; `system_later`: one may stand behind the front.
    """
    messages, tools = draw(conversations(carried=False, developer=developer, generation=True))
    if not system_later:
        messages = [message for at, message in enumerate(messages) if not at or message["role"] not in _SYSTEM]
    if system_last and draw(st.integers(0, 3)) == 0:
        messages.append({"role": "system", "content": draw(texts())})
    made = []
    for number, tool in enumerate(tools or ()):
        function = {**tool["function"], "name": f"t_{number}"}
        function.pop("strict", None)
        if isinstance(function.get("parameters"), dict):
            properties = {key: {"description": draw(texts())} for key in function["parameters"]}
            function["parameters"] = {"type": "object", "x-note": draw(json_objects()), "properties": properties}
        else:
            function.pop("parameters", None)
        made.append({**tool, "type": "function", "function": function})
    return Conversation(messages, made if tools is not None else None)


@cache
def tools_block(version: Version) -> str:
    """What the recipe prints for A_TOOL."""
    bare, with_tool = (
        str(recipe_prompt([{"role": "system", "content": "S"}, ASK], tools, thinking=False, version=version).prompt)
        for tools in (None, [A_TOOL])
    )
    before, after = bare.split("S<｜User｜>")
    return with_tool.removeprefix(f"{before}S").removesuffix(f"<｜User｜>{after}")


def recipe_ids(
    messages: Sequence[Json],
    tools: Sequence[Json] | None = None,
    *,
    thinking: bool,
    effort: str | None = None,
) -> list[int]:
    """The ids that the recipe makes of a V4 prompt: what somebody wrote is plain text to it."""
    return list(_encoding().encode(_converted(messages, tools, thinking, effort, "4")))


def marked_ids(prompt: Any, added: dict[str, int]) -> list[int]:
    """Ids of a `RenderedPrompt` under V4's vocabulary and more control tokens: what it says is one, and text between."""
    ids: list[int] = []
    place = 0
    for start, end in [*prompt.special_ranges, (len(prompt.prompt), len(prompt.prompt))]:
        ids += plain("v4").encode(prompt.prompt[place:start], add_special_tokens=False).ids
        if token := prompt.prompt[start:end]:
            ids += [added[token]] if token in added else engine_ids("v4", token).tolist()
        place = end
    return ids


def recipe_reads(ids: Sequence[int], *, thinking: bool, version: Version = "4", finish: str = "Stop") -> Json:
    """What the recipe's parser makes of a completion under V4's vocabulary: `content`, `reasoning`, and `calls` as name
    and JSON text of the arguments. `ids` end without the stop token."""
    model = recipe().ModelVersion.DeepseekV4Pro if version == "4" else recipe().ModelVersion.DeepseekV41Flash
    request = recipe().ConversationRequest(recipe().Conversation(), model)
    options = recipe().ParsingOptions(
        parse_tool_calls=True,
        parse_json_output=False,
        thinking_initial_stage=recipe().ThinkingInitialStage.ReasoningStart if thinking else None,
        special_tokens=recipe().SpecialTokens(),
    )
    generator = recipe().ChatCompletionRequest.chunk_generator(request, "", MODELS[version])
    processor = recipe().StreamProcessor(generator, options, _tokenizer())
    chunks = processor.push(recipe().InferenceChunk.tokens(list(ids))) if len(ids) else []
    if not processor.finished:
        chunks += processor.push(recipe().InferenceChunk.finish(getattr(recipe().InferenceFinishReason, finish)))
    content = reasoning = ""
    calls: dict[int, list[str]] = {}
    for chunk in chunks:
        delta = json.loads(chunk.to_json())["choices"][0]["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            made = calls.setdefault(call["index"], [call["function"].get("name") or "", ""])
            made[1] += call["function"]["arguments"]
    return {"content": content, "reasoning": reasoning, "calls": [tuple(call) for _, call in sorted(calls.items())]}


@cache
def _tokenizer() -> Any:
    return recipe().Tokenizer.from_file(str(tokenizer_json("v4")))


@cache
def _encoding() -> Any:
    return recipe().DeepseekV4Encoding().with_tokenizer(_tokenizer())


def _converted(
    messages: Sequence[Json], tools: Sequence[Json] | None, thinking: bool, effort: str | None, version: Version
) -> Any:
    body: Json = {
        "model": MODELS[version],
        "messages": [_flat(message, "\n\n") for message in messages],
        "thinking": {"type": "enabled" if thinking else "disabled"},
    }
    for message in body["messages"]:
        if message["role"] == "developer":
            message["role"] = "system"
        for call in message.get("tool_calls") or ():
            if not isinstance(call["function"]["arguments"], str):
                call["function"]["arguments"] = json.dumps(
                    call["function"]["arguments"], ensure_ascii=False, separators=(",", ":")
                )
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {key: value for key, value in tool["function"].items() if value is not None},
            }
            for tool in tools
        ]
    if effort is not None:
        body["reasoning_effort"] = effort
    # As text: a Python integer beyond 64 bits is refused where its digits are not.
    return recipe().ChatCompletionRequest(json.dumps(body)).convert(recipe().ConversionOptions()).conversation


def _flat(message: Json, joiner: str) -> Json:
    """A copy without what clients write in more than one way."""
    content = message.get("content") or ""
    made: Json = {
        "role": message["role"],
        "content": content if isinstance(content, str) else joiner.join(part["text"] for part in content),
    }
    if thought := message.get("reasoning_content") or message.get("reasoning"):
        made["reasoning_content"] = thought
    if message.get("tool_calls"):
        made["tool_calls"] = [{**call, "function": dict(call["function"])} for call in message["tool_calls"]]
    for key in ("tool_call_id", "tools", "response_format"):
        if message.get(key):
            made[key] = message[key]
    return made


def _dumped(tools: Sequence[Json]) -> list[Json]:
    _, tool_class = tool_classes("0.5.14")
    made = []
    for tool in tools:
        function = {key: value for key, value in tool["function"].items() if (key, value) != ("strict", None)}
        made.append(tool_class(**{**tool, "function": function}).model_dump())
    return made
