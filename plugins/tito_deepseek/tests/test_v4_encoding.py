"""DeepSeek V4's and V4.1's encoders against the published ones, byte for byte, and what they refuse, word for word."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amounts import examples
from conversations import Conversation, Json
from conversations import conversations as any_conversations
from tito_core.errors import TemplateError
from tito_core.prompts.messages import Message, Tool, ToolCall, normalise, normalise_tools
from tito_core.prompts.template import Rendered
from tito_deepseek.v4_encoding import LEVELS, V4Encoding, V41Encoding
from v4_upstream import recipe_prompt, recipe_text, released, served

Form = Literal["recipe", "release", "4.1"]
FORMS: tuple[Form, ...] = ("recipe", "release", "4.1")
MODES = st.booleans()
EFFORTS = st.sampled_from(LEVELS)
CONTROL = re.compile("<｜(?:begin▁of▁sentence|end▁of▁sentence|System|User|Assistant)｜>|</?think>|｜DSML｜")

USER: Json = {"role": "user", "content": "q1"}
TOOL: Json = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}


def render(
    conversation: Conversation, form: Form, thinking: bool = False, effort: Any = "high", drop: bool = False
) -> Rendered:
    messages = normalise(conversation.messages, text_joiner=" " if form == "release" else "\n\n")
    return rendered(messages, normalise_tools(conversation.tools), form, thinking, effort, drop)


def rendered(
    messages: Any, tools: Any, form: Form, thinking: bool = False, effort: Any = "high", drop: bool = False
) -> Rendered:
    kwargs = {"thinking": thinking, "reasoning_effort": effort, "drop_thinking": drop}
    if form == "4.1":
        return V41Encoding().render(messages, tools=tools, kwargs=kwargs)
    return V4Encoding().render(messages, tools=tools, kwargs={**kwargs, "release": form == "release"})


def text(messages: list[Json], form: Form, thinking: bool = False, effort: Any = "low") -> str:
    return render(Conversation(messages, None), form, thinking, effort).text


def called(*arguments: str) -> Json:
    return {
        "role": "assistant",
        "content": "",
        "reasoning_content": "r",
        "tool_calls": [
            {"id": f"c{number}", "type": "function", "function": {"name": f"f{number}", "arguments": one}}
            for number, one in enumerate(arguments)
        ],
    }


def result(number: int) -> Json:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": f"R{number}"}


# Equality with the published encoders


@settings(max_examples=examples(200))
@given(any_conversations(), MODES, EFFORTS, MODES)
def test_the_release_prints_what_the_released_encoder_does(
    conversation: Conversation, thinking: bool, effort: str, drop: bool
) -> None:
    ours = render(conversation, "release", thinking, effort, drop).text
    assert ours == released(
        conversation.messages, conversation.tools, thinking=thinking, effort=effort, drop_thinking=drop
    )


def test_a_developer_message_that_is_dropped_parts_the_turns_around_it() -> None:
    messages: list[Json] = [
        called("{}"),
        result(0),
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "q"},
    ]
    text = render(Conversation(messages, None), "release", True, "high", True).text
    assert text.endswith("<tool_result>R0</tool_result><｜User｜>q<｜Assistant｜><think>")
    assert text == released(messages, None, thinking=True, effort="high", drop_thinking=True)


@settings(max_examples=examples(200))
@given(served(), MODES, EFFORTS, MODES)
def test_the_recipe_prints_what_the_recipe_does(
    conversation: Conversation, thinking: bool, effort: str, drop: bool
) -> None:
    ours = render(conversation, "recipe", thinking, effort, drop).text
    assert ours == recipe_text(
        conversation.messages, conversation.tools, thinking=thinking, effort=effort, drop_thinking=drop
    )


@settings(max_examples=examples(200))
@given(served(system_last=True), MODES, EFFORTS, MODES)
def test_v41_prints_what_the_recipe_does(conversation: Conversation, thinking: bool, effort: str, drop: bool) -> None:
    ours = render(conversation, "4.1", thinking, effort, drop).text
    assert ours == recipe_text(
        conversation.messages, conversation.tools, thinking=thinking, effort=effort, drop_thinking=drop, version="4.1"
    )


@settings(max_examples=examples(100))
@given(served(), MODES, st.sampled_from(("4", "4.1")))
def test_control_tokens_are_where_the_recipe_says(
    conversation: Conversation, thinking: bool, version: Literal["4", "4.1"]
) -> None:
    """In template parts each control string is one of its special tokens, in content parts none is."""
    if thinking and not conversation.tools:
        conversation = conversation._replace(tools=[TOOL])
    ours, spans = render(conversation, "recipe" if version == "4" else "4.1", thinking)
    theirs = recipe_prompt(conversation.messages, conversation.tools, thinking=thinking, effort="high", version=version)
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]
    assert spans[-1].end == len(ours)
    found = [
        (span.start + match.start(), span.start + match.end())
        for span in spans
        if span.source == "template"
        for match in CONTROL.finditer(ours[span.start : span.end])
    ]
    assert found == theirs.special_ranges
    for index, message in enumerate(normalise(conversation.messages, text_joiner="\n\n")):
        if message.role in ("user", "tool"):
            parts = [ours[span.start : span.end] for span in spans if (span.index, span.source) == (index, "content")]
            assert parts == [message.content] * bool(message.content)


# Fixed texts, by hand

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
ABSOLUTE = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough"
BEYOND = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\nYou MUST reason"
STARTS: list[tuple[Form, str]] = [
    *(("recipe", level) for level in LEVELS),
    *(("release", level) for level in LEVELS),
    *(("4.1", level) for level in LEVELS),
]
RECIPE_EFFORTS = {"medium": ABSOLUTE, "high": ABSOLUTE, "xhigh": ABSOLUTE, "ultra": BEYOND, "max": BEYOND}
NUMBERS = {"minimal": 50, "low": 50, "medium": 75, "high": 75, "xhigh": 75, "ultra": 100, "max": 100}


@pytest.mark.parametrize(("form", "level"), STARTS)
def test_what_each_effort_prints(form: Form, level: str) -> None:
    """Right after the prompt's opener, with thinking only."""
    assert text([USER], form, False, level) == f"{BOS}<｜User｜>q1<｜Assistant｜></think>"
    start, end = text([USER], form, True, level).split("<｜User｜>")
    assert end == "q1<｜Assistant｜><think>"
    if form == "4.1":
        assert start == (
            f"{BOS}<｜System｜>Reasoning Effort: {NUMBERS[level]} (range 1-100, the higher the value, the more thorough the "
            "reasoning)\n\n"
        )
        return
    expected = RECIPE_EFFORTS.get(level, "") if form == "recipe" else ABSOLUTE if level == "max" else ""
    assert start[len(BOS) :].startswith(expected)
    assert start.endswith("\n\n") == bool(expected)
    assert (start == BOS) == (not expected)


@pytest.mark.parametrize("number", [1, 30, 75, 100])
def test_v41_takes_a_number(number: int) -> None:
    assert text([USER], "4.1", True, number).startswith(f"{BOS}<｜System｜>Reasoning Effort: {number} (range 1-100, ")


@pytest.mark.parametrize("form", FORMS)
def test_results_and_what_a_user_says_after_them_fold(form: Form) -> None:
    """Results come in the order of the calls."""
    conversation = [USER, called("{}", "{}"), result(1), result(0), {"role": "user", "content": "q2"}]
    assert text(conversation, form).endswith(
        f"{EOS}<｜User｜><tool_result>R0</tool_result>\n\n<tool_result>R1</tool_result>\n\nq2<｜Assistant｜></think>"
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_the_thought_of_a_calling_turn_stands_before_its_result(form: Form, tools: list[Json] | None) -> None:
    """With and without tools: the published encoders drop it without."""
    found = render(Conversation([USER, called("{}"), result(0)], tools), form, True).text
    assert "<｜Assistant｜><think>r</think>\n\n<｜DSML｜" in found
    assert found.endswith("<tool_result>R0</tool_result><｜Assistant｜><think>")


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        (
            "recipe",
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f0">\n</｜DSML｜invoke>\n<｜DSML｜invoke name="f1">\n'
            '<｜DSML｜parameter name="n" string="false">1e+20</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="d" string="false">1e-7</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="s" string="true">"</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        ),
        (
            "release",
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f0">\n\n</｜DSML｜invoke>\n<｜DSML｜invoke name="f1">\n'
            '<｜DSML｜parameter name="n" string="false">100000000000000000000</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="d" string="false">1e-07</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="s" string="true">"</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        ),
        (
            "4.1",
            '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f0">\n\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name="f1">\n'
            '<｜DSML｜ parameter name="n" string="false">1e+20</｜DSML｜ parameter>\n'
            '<｜DSML｜ parameter name="d" string="false">1e-07</｜DSML｜ parameter>\n'
            '<｜DSML｜ parameter name="s" string="true">"</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>',
        ),
    ],
)
def test_calls(form: Form, printed: str) -> None:
    """Without arguments, and with the numbers that the encoders disagree about."""
    conversation = [USER, called("{}", '{"n": 100000000000000000000, "d": 1e-7, "s": "\\""}'), result(0), result(1)]
    assert f"</think>\n\n{printed}{EOS}" in text(conversation, form)


SCHEMAS: list[tuple[Form, str]] = [
    ("recipe", '{"name": "get", "description": "", "parameters": {"type": "object"}}'),
    ("release", '{"description": null, "name": "get", "parameters": {"type": "object"}, "strict": false}'),
    ("4.1", '{"name": "get", "description": "", "parameters": {"type": "object"}}'),
]


@pytest.mark.parametrize(("form", "schema"), SCHEMAS)
def test_tools_follow_the_system_prompt(form: Form, schema: str) -> None:
    """The one that is there; an empty one where there is none."""
    opener = "<｜System｜>" if form == "4.1" else ""
    for messages, content in (([{"role": "system", "content": "You are S"}, USER], "You are S"), ([USER], "")):
        found = render(Conversation(messages, [TOOL]), form).text
        assert found.startswith(f"{BOS}{opener}{content}\n\n## Tools\n\nYou have access to a set of tools")
        assert found.endswith(
            f"### Available Tool Schemas\n\n{schema}\n\nYou MUST strictly follow the above defined tool name and parameter "
            "schemas to invoke tool calls.\n<｜User｜>q1<｜Assistant｜></think>"
        )


def test_a_system_message_in_the_conversation() -> None:
    conversation = [
        {"role": "system", "content": "S"},
        USER,
        {"role": "assistant", "content": "a1"},
        {"role": "system", "content": "S2"},
        {"role": "user", "content": "q2"},
    ]
    said, asked = f"<｜User｜>q1<｜Assistant｜></think>a1{EOS}", "<｜User｜>q2<｜Assistant｜></think>"
    assert text(conversation, "recipe") == f"{BOS}S\n\nS2{said}{asked}"
    assert text(conversation, "release") == f"{BOS}S{said}S2{asked}"
    assert text(conversation, "4.1") == f"{BOS}<｜System｜>S{said}<｜System｜>S2{asked}"


def test_an_assistant_right_after_another_one() -> None:
    conversation = [USER, *({"role": "assistant", "content": name} for name in "ab"), {"role": "user", "content": "q2"}]
    asked = "<｜User｜>q2<｜Assistant｜></think>"
    for form, header in (("recipe", "<｜Assistant｜></think>"), ("release", ""), ("4.1", "<｜Assistant｜></think>")):
        expected = f"{BOS}<｜User｜>q1<｜Assistant｜></think>a{EOS}{header}b{EOS}{asked}"
        assert text(conversation, form) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "parts", "folded", "empty"),
    [
        ("recipe", "hi\n\nthere", "q1\n\nq2", "q2"),
        ("release", "hi there", "q1\n\nq2", "\n\nq2"),
        ("4.1", "hi\n\nthere", "q1\n\nq2", "\n\nq2"),
    ],
)
def test_what_joins_users_and_their_parts(form: Form, parts: str, folded: str, empty: str) -> None:
    both = {"role": "user", "content": [{"type": "text", "text": one} for one in ("hi", "there")]}
    second = {"role": "user", "content": "q2"}
    for messages, said in (
        ([both], parts),
        ([USER, second], folded),
        ([{"role": "user", "content": ""}, second], empty),
    ):
        assert text(messages, form) == f"{BOS}<｜User｜>{said}<｜Assistant｜></think>"


def test_a_client_that_leaves_a_thought_out() -> None:
    """It is printed as an empty one, with tools or without; sessions keep the ids that were sampled."""
    said = [USER, {"role": "assistant", "content": "On it."}, {"role": "user", "content": "q2"}]
    for form in FORMS:
        for tools in (None, [TOOL]):
            found = render(Conversation(said, tools), form, True).text
            assert f"<｜User｜>q1<｜Assistant｜><think></think>On it.{EOS}<｜User｜>q2" in found


# What they refuse, word for word

STRICT = Tool({"name": "f", "strict": True})
REFUSALS: list[tuple[Form, list[Message], tuple[Tool, ...], dict[str, Any], str]] = [
    *(
        (
            form,
            [Message("user", "q"), Message("critic", "c")],
            (),
            {"index": 1, "role": "critic"},
            "message 1 (critic) has a role that the format does not know: system, developer, user, assistant or tool",
        )
        for form in FORMS
    ),
    *(
        (
            form,
            [Message("user", "q"), Message("developer")],
            (),
            {"index": 1, "role": "developer"},
            f"message 1 (developer) has no content; the format prints it as {whose} message: send its text",
        )
        for form, whose in zip(FORMS, ("a system", "the user's", "a system"), strict=True)
    ),
    (
        "release",
        [Message("system", "S", tools=(Tool({"name": "g"}),))],
        (Tool({"name": "f"}),),
        {"index": 0, "role": "system"},
        "message 0 (system) carries tools, and the request carries tools too; they would be printed in one place: send "
        "them all with the request, or all in the message",
    ),
    *(
        (
            form,
            [Message("system", "S", tools=(Tool({"name": "g"}),))],
            (),
            {"index": 0, "role": "system"},
            "message 0 (system) carries tools, which the format does not print; send tools with the request",
        )
        for form in ("recipe", "4.1")
    ),
    (
        "recipe",
        [Message("user", "q"), Message("developer", "D", response_format={"type": "text"})],
        (),
        {"index": 1, "role": "developer"},
        "message 1 (developer) carries a response_format, which the format does not print; leave it out",
    ),
    *(
        (
            form,
            [Message("user", "q")],
            (STRICT,),
            {"tool": "f"},
            "the tool 'f' is strict, and the format prints another schema than such a tool's own; send it without strict",
        )
        for form in ("recipe", "4.1")
    ),
    *(
        (
            form,
            [Message("assistant", tool_calls=(ToolCall("f", {"n": [10**400]}),))],
            (),
            {"index": 0, "role": "assistant"},
            "message 0 (assistant) holds an integer that no double holds, and the format prints numbers as doubles; send it "
            "as a string",
        )
        for form in ("recipe", "4.1")
    ),
]


@pytest.mark.parametrize(
    ("form", "messages", "tools", "where", "said"), REFUSALS, ids=[f"{case[0]}: {case[4][:50]}" for case in REFUSALS]
)
def test_refusals(form: Form, messages: list[Message], tools: tuple[Tool, ...], where: Any, said: str) -> None:
    with pytest.raises(TemplateError) as refusal:
        rendered(messages, tools, form)
    assert (str(refusal.value), refusal.value.where) == (said, where)


@pytest.mark.parametrize(
    ("kwargs", "key", "said"),
    [
        (
            {"thinking_mode": "on"},
            "thinking_mode",
            "'thinking_mode' is no kwarg of the V4 encoder; it takes thinking, reasoning_effort, drop_thinking, release",
        ),
        ({}, "thinking", "thinking is missing: tell the V4 encoder the mode, True or False"),
        ({"thinking": "on"}, "thinking", "thinking is 'on', a str; it must be True or False"),
        (
            {"thinking": True, "reasoning_effort": 30},
            "reasoning_effort",
            "reasoning_effort is 30, which the format does not know; it takes minimal, low, medium, high, xhigh, ultra, max",
        ),
    ],
)
def test_kwargs_that_are_refused(kwargs: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(TemplateError) as refusal:
        V4Encoding().render([Message("user", "q")], tools=(), kwargs=kwargs)
    assert (str(refusal.value), refusal.value.where) == (said, {"key": key})


@pytest.mark.parametrize("number", [0, 101, 1.5, True, "75"])
def test_numbers_that_v41_refuses(number: Any) -> None:
    with pytest.raises(TemplateError, match="ultra, max, or a whole number from 1 to 100$"):
        text([USER], "4.1", True, number)


def test_refusals_are_the_same_without_asserts() -> None:
    code = (
        "from tito_core.prompts.messages import Message\nfrom tito_deepseek.v4_encoding import V4Encoding\n"
        "try: V4Encoding().render([Message('critic')], tools=(), kwargs={'thinking': True})\n"
        "except ValueError as refused: print(refused)\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.startswith("message 0 (critic) has a role that the format does not know")
