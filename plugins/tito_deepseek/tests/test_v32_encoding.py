"""DeepSeek V3.2's encoder against the published one, byte for byte, and what it refuses, word for word."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tito_core
import tito_deepseek
from amounts import examples
from conversations import Conversation, conversations, loose_conversations
from tito_core.errors import TemplateError
from tito_core.prompts.messages import Message, Tool, ToolCall, normalise, normalise_tools
from tito_core.prompts.template import Rendered
from tito_deepseek.v32_encoding import V32Encoding
from v32_upstream import upstream_text, written

CONTROL = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
)
MODES = st.booleans()
MASK = "\ue000"

TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
TOOLS_TEXT = """

## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block"""


def render(
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    thinking: bool = True,
    drop_thinking: bool = False,
    answered: bool = False,
) -> Rendered:
    kwargs = {"thinking": thinking, "drop_thinking": drop_thinking, "answered": answered}
    return V32Encoding().render(messages, tools=tools, kwargs=kwargs)


def text_or_refusal(messages: Sequence[Message], tools: Sequence[Tool], **kwargs: bool) -> str | None:
    """The text, or None where the encoder refuses; a refusal names the message that it is about."""
    try:
        return render(messages, tools, **kwargs).text
    except TemplateError as refused:
        refusal = refused
    index = refusal.where["index"]
    assert refusal.where == {"index": index, "role": messages[index].role}
    assert str(refusal).startswith(f"message {index} ({messages[index].role}) ")
    return None


def as_sent(conversation: Conversation) -> tuple[Message, ...]:
    """Messages normalised one by one, so that results without calls reach the encoder."""
    return tuple(
        Message("tool", _joined(message["content"]), tool_call_id=message["tool_call_id"])
        if message["role"] == "tool"
        else normalise([message])[0]
        for message in conversation.messages
    )


def _joined(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)


# Equality with the published encoder


@settings(max_examples=examples(200))
@given(conversations(), MODES, MODES)
def test_dropping_prints_and_refuses_what_the_published_encoder_does(
    conversation: Conversation, thinking: bool, answered: bool
) -> None:
    messages, tools = conversation
    assert text_or_refusal(
        normalise(messages), normalise_tools(tools), thinking=thinking, drop_thinking=True, answered=answered
    ) == upstream_text(messages, tools, thinking=thinking, drop_thinking=True)


@settings(max_examples=examples(200))
@given(conversations(), MODES, MODES)
def test_keeping_prints_each_message_as_if_nothing_followed(
    conversation: Conversation, thinking: bool, answered: bool
) -> None:
    messages, tools = conversation
    ours = render(normalise(messages), normalise_tools(tools), thinking=thinking, answered=answered).text
    assert ours == upstream_text(messages, tools, thinking=thinking, answered=answered)


@settings(max_examples=examples(100))
@given(conversations(thinking=True, developer=False), MODES)
def test_a_conversation_with_every_thought_is_never_refused(conversation: Conversation, drop_thinking: bool) -> None:
    messages, tools = conversation
    ours = render(normalise(messages), normalise_tools(tools), drop_thinking=drop_thinking).text
    assert ours == upstream_text(messages, tools, thinking=True, drop_thinking=drop_thinking)


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(loose_conversations(), MODES, MODES, MODES)
def test_messages_in_any_order_are_refused_where_the_published_encoder_refuses(
    conversation: Conversation, thinking: bool, drop_thinking: bool, answered: bool
) -> None:
    mode = {"thinking": thinking, "drop_thinking": drop_thinking, "answered": answered}
    assert text_or_refusal(as_sent(conversation), (), **mode) == upstream_text(conversation.messages, None, **mode)


@settings(max_examples=examples(50))
@given(conversations(generation=True), MODES)
def test_the_last_header_is_the_same_in_both_revisions(conversation: Conversation, thinking: bool) -> None:
    messages, tools = normalise(conversation.messages), normalise_tools(conversation.tools)
    for answered in (False, True):
        text = render(messages, tools, thinking=thinking, answered=answered).text
        assert text.endswith("<think>" if thinking else "</think>")


@settings(max_examples=examples(100))
@given(conversations(), st.data())
def test_what_follows_changes_nothing_before_it(conversation: Conversation, data: st.DataObject) -> None:
    messages, tools = normalise(conversation.messages), normalise_tools(conversation.tools)
    cut = data.draw(st.integers(1, len(messages)))
    assert render(messages, tools).text.startswith(render(messages[:cut], tools).text)


# Spans


@settings(max_examples=examples(200))
@given(conversations(), MODES, MODES)
def test_spans_cover_the_text_and_content_is_what_the_authors_wrote(
    conversation: Conversation, thinking: bool, drop_thinking: bool
) -> None:
    messages, tools = conversation
    try:
        text, spans = render(
            normalise(messages), normalise_tools(tools), thinking=thinking, drop_thinking=drop_thinking
        )
    except TemplateError:
        assert drop_thinking
        return
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]
    assert spans[-1].end == len(text)
    assert all(span.start < span.end for span in spans)
    authored = [(span.index, span.role, text[span.start : span.end]) for span in spans if span.source == "content"]
    assert authored == written(messages, tools, thinking=thinking, drop_thinking=drop_thinking)
    said = [span.index for span in spans if span.index >= 0]
    assert said == sorted(said)

    template = [text[span.start : span.end] if span.source == "template" else MASK for span in spans]
    for token in CONTROL:
        assert "".join(template).count(token) == sum(part.count(token) for part in template)


def test_request_tools_belong_to_no_message() -> None:
    """Inside of a system message too: nothing that a client changes in it changes them."""
    tools = normalise_tools([TOOL])
    schema = '{"name": "get", "parameters": {"type": "object"}, "description": null}'
    for system in ([], [{"role": "system", "content": "S"}]):
        text, spans = render(normalise([*system, {"role": "user", "content": "q"}]), tools)
        (found,) = [span for span in spans if text[span.start : span.end] == schema]
        assert (found.source, found.index, found.role) == ("content", -1, "system")


# Fixed texts, by hand


@pytest.mark.parametrize(("thinking", "opener"), [(True, "<think>"), (False, "</think>")])
def test_the_header_carries_the_mode(thinking: bool, opener: str) -> None:
    messages = normalise([{"role": "user", "content": "q"}])
    assert render(messages, thinking=thinking).text == "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜>" + opener


def test_tools_follow_the_system_prompt_where_there_is_one() -> None:
    user = {"role": "user", "content": "q"}
    system = {"role": "system", "content": "You are S"}
    tools = normalise_tools([TOOL])
    assert render(normalise([system, user]), tools).text.startswith("<｜begin▁of▁sentence｜>You are S" + TOOLS_TEXT)
    assert render(normalise([user]), tools).text.startswith("<｜begin▁of▁sentence｜>" + TOOLS_TEXT)
    assert render(normalise([user, system]), tools).text.startswith("<｜begin▁of▁sentence｜>" + TOOLS_TEXT)
    assert render([], tools).text.endswith("</functions>\n")


def test_an_appended_user_message_strips_thoughts_only_in_the_published_behaviour() -> None:
    messages = normalise(
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "reasoning_content": "r1", "content": "a1"},
            {"role": "user", "content": "q2"},
        ]
    )
    assert render(messages).text == (
        "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜><think>r1</think>a1<｜end▁of▁sentence｜>"
        "<｜User｜>q2<｜Assistant｜><think>"
    )
    assert render(messages, drop_thinking=True).text == (
        "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>a1<｜end▁of▁sentence｜>"
        "<｜User｜>q2<｜Assistant｜><think>"
    )


def test_an_answer_without_a_thought_is_kept() -> None:
    messages = normalise([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
    assert render(messages).text == (
        "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜><think></think>a<｜end▁of▁sentence｜>"
    )


def test_calls_and_results() -> None:
    arguments = '{"s": "строка", "b": 1, "a": 1.0, "t": true, "n": null, "o": {"k": ["é"]}}'
    call = {"id": "c0", "function": {"name": "f", "arguments": arguments}}
    empty = {"id": "c1", "function": {"name": "g", "arguments": {}}}
    messages = normalise(
        [
            {"role": "assistant", "content": None, "tool_calls": [call, empty]},
            {"role": "tool", "tool_call_id": "c1", "content": "R1"},
            {"role": "tool", "tool_call_id": "c0", "content": ""},
        ]
    )
    assert render(messages, thinking=False).text == (
        "<｜begin▁of▁sentence｜>\n\n<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="s" string="true">строка</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="false">1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="a" string="false">1.0</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="t" string="false">true</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">null</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="o" string="false">{"k": ["é"]}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="g">\n\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls><｜end▁of▁sentence｜>"
        "\n\n<function_results>\n<result></result>\n<result>R1</result>\n</function_results>\n\n</think>"
    )


@pytest.mark.parametrize(("answered", "opener"), [(False, "<think>"), (True, "</think>")])
def test_a_header_that_nobody_answers(answered: bool, opener: str) -> None:
    messages = normalise([{"role": "user", "content": "q"}, {"role": "user", "content": "q2"}])
    assert render(messages, answered=answered).text == (
        f"<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜>{opener}<｜User｜>q2<｜Assistant｜><think>"
    )


@pytest.mark.parametrize("answered", [False, True])
def test_the_published_behaviour_opens_a_thought_before_a_trailing_system_message(answered: bool) -> None:
    messages = normalise([{"role": "user", "content": "q"}, {"role": "system", "content": "S"}])
    text = render(messages, drop_thinking=True, answered=answered).text
    assert text == "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜><think>S"


# What it refuses, word for word


def _call() -> Message:
    return Message("assistant", tool_calls=(ToolCall("f", {}),))


REFUSALS: list[tuple[str, list[Message], dict[str, bool], dict[str, Any], str]] = [
    (
        "developer without content",
        [Message("user", "q"), Message("developer")],
        {},
        {"index": 1, "role": "developer"},
        "message 1 (developer) has no content; the format prints it as the user's message: send its text, or send "
        "tools and response_format in a system message",
    ),
    (
        "developer before the last user",
        [Message("developer", "d"), Message("user", "q")],
        {"drop_thinking": True},
        {"index": 0, "role": "developer"},
        "message 0 (developer) stands before the last user's, message 1; with thinking and drop_thinking the format "
        "can't print it: render with drop_thinking=False, or send a user message in its place",
    ),
    (
        "answer without a thought",
        [Message("user", "q"), Message("assistant", "a")],
        {"drop_thinking": True},
        {"index": 1, "role": "assistant"},
        "message 1 (assistant) has neither reasoning nor tool calls, and no user message follows it; with thinking "
        "and drop_thinking the format has no print of it: send its reasoning, or render with drop_thinking=False",
    ),
    (
        "first message is a result, the last one calls",
        [Message("tool", "R"), _call()],
        {},
        {"index": 0, "role": "tool"},
        "message 0 (tool) is the first message; keep a call and its results together",
    ),
    (
        "result after a user",
        [_call(), Message("user", "q"), Message("tool", "R")],
        {},
        {"index": 2, "role": "tool"},
        "message 2 (tool) answers no call: the message before it is user; keep a call and its results together",
    ),
    *(
        (
            f"result after a {between}, one of two answered",
            [
                Message("assistant", tool_calls=(ToolCall("f", {}), ToolCall("g", {}))),
                Message("tool", "R"),
                Message(between, "between"),
                Message("tool", "R"),
            ],
            {},
            {"index": 3, "role": "tool"},
            f"message 3 (tool) answers no call: the message before it is {between}; keep a call and its results "
            "together",
        )
        for between in ("user", "developer", "system")
    ),
    (
        "result after an answer",
        [Message("assistant", "a", "r"), Message("tool", "R")],
        {},
        {"index": 1, "role": "tool"},
        "message 1 (tool) answers no call: the message before it is assistant, without calls; keep a call and its "
        "results together",
    ),
    (
        "surplus result",
        [_call(), Message("tool", "R"), Message("tool", "R")],
        {},
        {"index": 2, "role": "tool"},
        "message 2 (tool) is one result too many: the assistant message before it made 1 call(s); keep a call and its "
        "results together",
    ),
    (
        "unknown role",
        [Message("critic", "c")],
        {},
        {"index": 0, "role": "critic"},
        "message 0 (critic) has a role that the format does not know: system, developer, user, assistant or tool",
    ),
]


@pytest.mark.parametrize(
    ("messages", "mode", "where", "said"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS]
)
def test_refusals(messages: list[Message], mode: dict[str, bool], where: dict[str, Any], said: str) -> None:
    with pytest.raises(TemplateError) as refusal:
        render(messages, (), **mode)
    assert (str(refusal.value), refusal.value.where) == (said, where)


def test_tools_in_two_places_are_refused() -> None:
    tools = normalise_tools([TOOL])
    messages = normalise([{"role": "system", "content": "S", "tools": [TOOL]}, {"role": "user", "content": "q"}])
    with pytest.raises(TemplateError) as refusal:
        render(messages, tools)
    assert refusal.value.where == {"index": 0, "role": "system"}
    assert str(refusal.value) == (
        "message 0 (system) carries tools, and the request carries tools too; they would be printed in one place: "
        "send them all with the request, or all in the message"
    )
    assert render([messages[1], messages[0]], tools).text.count("<functions>") == 2


@pytest.mark.parametrize(
    ("kwargs", "key", "said"),
    [
        ({}, "thinking", "thinking is missing: tell the V3.2 encoder the mode, True or False"),
        ({"thinking": "on"}, "thinking", "thinking is 'on', a str; it must be True or False"),
        ({"thinking": None}, "thinking", "thinking is None, a NoneType; it must be True or False"),
        ({"thinking": 1}, "thinking", "thinking is 1, a int; it must be True or False"),
        (
            {"thinking": True, "drop_thinking": "no"},
            "drop_thinking",
            "drop_thinking is 'no', a str; it must be True or False",
        ),
        ({"thinking": True, "answered": 0}, "answered", "answered is 0, a int; it must be True or False"),
        (
            {"thinking": True, "enable_thinking": True},
            "enable_thinking",
            "'enable_thinking' is no kwarg of the V3.2 encoder; it takes thinking, drop_thinking, answered",
        ),
    ],
)
def test_kwargs_are_known_booleans(kwargs: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(TemplateError) as refusal:
        V32Encoding().render([Message("user", "q")], tools=(), kwargs=kwargs)
    assert (str(refusal.value), refusal.value.where) == (said, {"key": key})


OPTIMISED = """
import pickle, sys
from tito_core.errors import TemplateError
from tito_deepseek.v32_encoding import V32Encoding
answers = []
for messages, kwargs in pickle.load(sys.stdin.buffer):
    try:
        answers.append(tuple(V32Encoding().render(messages, tools=(), kwargs=kwargs)))
    except TemplateError as refusal:
        answers.append((type(refusal).__name__, str(refusal), refusal.where))
assert False, "python -O does not run this"
pickle.dump(answers, sys.stdout.buffer)
"""


def test_the_same_under_python_without_asserts() -> None:
    cases: list[tuple[Sequence[Message], dict[str, Any]]] = [
        (messages, {"thinking": True, **mode}) for _, messages, mode, _, _ in REFUSALS
    ]
    cases.append(([Message("user", "q")], {"thinking": "on"}))

    @settings(max_examples=examples(100))
    @given(loose_conversations(), MODES, MODES, MODES)
    def collect(conversation: Conversation, thinking: bool, drop_thinking: bool, answered: bool) -> None:
        mode = {"thinking": thinking, "drop_thinking": drop_thinking, "answered": answered}
        cases.append((as_sent(conversation), mode))

    collect()
    homes = {str(Path(str(package.__file__)).parent.parent) for package in (tito_core, tito_deepseek)}
    done = subprocess.run(
        [sys.executable, "-O", "-c", OPTIMISED],
        input=pickle.dumps(cases),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(homes)},
    )
    assert pickle.loads(done.stdout) == [answer(*case) for case in cases]


def answer(messages: Sequence[Message], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    try:
        return tuple(V32Encoding().render(messages, tools=(), kwargs=kwargs))
    except TemplateError as refusal:
        return type(refusal).__name__, str(refusal), refusal.where


# What a render costs and leaves alone


@settings(max_examples=examples(50))
@given(conversations(), MODES, MODES)
def test_the_input_is_left_as_it_was(conversation: Conversation, thinking: bool, drop_thinking: bool) -> None:
    messages, tools = normalise(conversation.messages), normalise_tools(conversation.tools)
    before = copy.deepcopy((messages, tools))
    first = text_or_refusal(messages, tools, thinking=thinking, drop_thinking=drop_thinking)
    assert (messages, tools) == before
    assert text_or_refusal(messages, tools, thinking=thinking, drop_thinking=drop_thinking) == first


class Counted(Sequence[Message]):
    """Messages that count how often one of them is asked for."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages, self.asked = messages, 0

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        for message in self.messages:
            self.asked += 1
            yield message

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        assert isinstance(index, int), "a slice copies the history"
        self.asked += 1
        return self.messages[index]


@pytest.mark.parametrize("drop_thinking", [True, False])
def test_each_message_is_read_a_fixed_number_of_times(drop_thinking: bool) -> None:
    calls = tuple(ToolCall("f", {}) for _ in range(200))
    for block in (
        [Message("system", "s")],
        [Message("user", "q"), Message("assistant", "a", "r")],
        [Message("assistant", "", "r", calls), *(Message("tool", "R") for _ in calls)],
    ):
        messages = Counted([Message("user", "q"), *(block * (1000 // len(block)))])
        render(messages, drop_thinking=drop_thinking, answered=True)
        assert messages.asked <= 4 * len(messages)
