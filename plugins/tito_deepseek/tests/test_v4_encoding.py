"""DeepSeek V4's and V4.1's encoders against the published ones, byte for byte, and what they refuse, word for word."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from conversations import Conversation, conversations, json_objects, texts
from tito_core.prompts.messages import normalise, normalise_tools
from tito_core.prompts.template import Rendered
from tito_deepseek.v4_encoding import LEVELS, V4Encoding, V41Encoding
from v4_upstream import recipe_text, released

MODES = st.booleans()
EFFORTS = st.sampled_from(LEVELS)
JOINERS = {"release": " ", "recipe": "\n\n", "4.1": "\n\n"}


def render(conversation: Conversation, form: str, thinking: bool, effort: Any = "high", drop: bool = False) -> Rendered:
    kwargs = {"thinking": thinking, "reasoning_effort": effort, "drop_thinking": drop}
    messages = normalise(conversation.messages, text_joiner=JOINERS[form])
    tools = normalise_tools(conversation.tools)
    if form == "4.1":
        return V41Encoding().render(messages, tools=tools, kwargs=kwargs)
    return V4Encoding().render(messages, tools=tools, kwargs={**kwargs, "release": form == "release"})


@st.composite
def served(draw: st.DrawFn) -> Conversation:
    """Conversations that the recipe takes: schemas that are JSON schemas of objects, names of tools as it wants them."""
    messages, tools = draw(conversations(carried=False, generation=True))
    if tools is None:
        return Conversation(messages, None)
    made = []
    for number, tool in enumerate(tools):
        function = {**tool["function"], "name": f"t_{number}"}
        function.pop("strict", None)
        if isinstance(function.get("parameters"), dict):
            properties = {key: {"description": draw(texts())} for key in function["parameters"]}
            function["parameters"] = {"type": "object", "x-note": draw(json_objects()), "properties": properties}
        else:
            function.pop("parameters", None)
        made.append({**tool, "type": "function", "function": function})
    return Conversation(messages, made)


@settings(max_examples=150)
@given(conversations(), MODES, EFFORTS, MODES)
def test_the_release_prints_what_the_released_encoder_does(
    conversation: Conversation, thinking: bool, effort: str, drop: bool
) -> None:
    ours = render(conversation, "release", thinking, effort, drop).text
    assert ours == released(
        conversation.messages, conversation.tools, thinking=thinking, effort=effort, drop_thinking=drop
    )


@settings(max_examples=150)
@given(served(), MODES, EFFORTS, MODES)
def test_the_recipe_prints_what_the_recipe_does(
    conversation: Conversation, thinking: bool, effort: str, drop: bool
) -> None:
    ours = render(conversation, "recipe", thinking, effort, drop).text
    assert ours == recipe_text(
        conversation.messages, conversation.tools, thinking=thinking, effort=effort, drop_thinking=drop
    )


@settings(max_examples=150)
@given(served(), MODES, EFFORTS, MODES)
def test_v41_prints_what_the_recipe_does(conversation: Conversation, thinking: bool, effort: str, drop: bool) -> None:
    ours = render(conversation, "4.1", thinking, effort, drop).text
    assert ours == recipe_text(
        conversation.messages, conversation.tools, thinking=thinking, effort=effort, drop_thinking=drop, version="4.1"
    )
