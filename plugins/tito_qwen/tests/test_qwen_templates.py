"""Each family's template against the published one, both rendered by `transformers`; and that it only appends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from amounts import examples
from conversations import Json
from oracles import chat_template
from qwen_upstream import UPSTREAM, messages, ours, outcome, rendered, some_tools, turns, upstream

FAMILIES = tuple(UPSTREAM)
THINKING = ("qwen3", "qwennext", "qwen35", "qwen36", "qwen38")
XML = ("qwen35", "qwen36", "qwen38")
EVERYBODY = ("system", "user", "user", "assistant", "assistant", "tool", "tool", "developer")
ABSENT: Any = object()
EXAMPLES = settings(max_examples=examples(60), deadline=None)


def kwargs_of(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Kwargs, each of which may be left out."""
    return st.fixed_dictionaries({}, optional=strategies)


COMMON = {"enable_thinking": st.booleans(), "add_generation_prompt": st.booleans()}
KWARGS = {
    **dict.fromkeys(FAMILIES, kwargs_of(**COMMON)),
    "qwen36": kwargs_of(**COMMON, preserve_thinking=st.just(False)),
    "qwen38": kwargs_of(
        **COMMON,
        preserve_thinking=st.just(False),
        reasoning_effort=st.sampled_from(["xhigh", "medium", "low", "high", ""]),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@EXAMPLES
def test_with_default_kwargs_it_is_the_published_text(family: str, data: st.DataObject) -> None:
    """The text, or the same error."""
    conversation, tools, kwargs = data.draw(turns(*EVERYBODY)), data.draw(some_tools()), data.draw(KWARGS[family])
    assert outcome(ours(family), conversation, tools, **kwargs) == outcome(
        upstream(family), conversation, tools, **kwargs
    )


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@EXAMPLES
def test_well_formed_conversations_too(family: str, data: st.DataObject) -> None:
    """A system message first or not at all: what no version refuses."""
    conversation = [*data.draw(turns("system", least=0, most=1)), data.draw(messages("user"))]
    conversation += data.draw(turns("user", "assistant", "assistant", "tool"))
    tools, kwargs = data.draw(some_tools()), data.draw(KWARGS[family])
    assert outcome(ours(family), conversation, tools, **kwargs) == outcome(
        upstream(family), conversation, tools, **kwargs
    )


@given(data=st.data())
@EXAMPLES
def test_the_smaller_models_of_qwen35_differ_in_what_is_meant_by_nothing(data: st.DataObject) -> None:
    """Their published template is this one with `enable_thinking=false`, unless it is said to be true."""
    conversation, tools = data.draw(turns(*EVERYBODY)), data.draw(some_tools())
    kwargs = data.draw(KWARGS["qwen35"])
    small = outcome(chat_template("qwen3_5_nothink"), conversation, tools, **kwargs)
    assert outcome(ours("qwen35"), conversation, tools, **{"enable_thinking": False, **kwargs}) == small


@pytest.mark.parametrize("family", ["qwen36", "qwen38"])
@given(data=st.data())
@EXAMPLES
def test_with_their_own_preserve_thinking_it_is_the_published_text(family: str, data: st.DataObject) -> None:
    """Where that text exists: without a system message later on, with a question that is no tool's result, and without
    marks in an assistant's content, which 3.6 takes apart."""
    conversation = [*data.draw(turns("system", least=0, most=1)), {"role": "user", "content": "q"}]
    conversation += data.draw(turns("user", "assistant", "assistant", "tool", least=0))
    tools = data.draw(some_tools())
    kwargs = {**data.draw(KWARGS[family]), "preserve_thinking": True}
    assume(not any(one["role"] == "assistant" and "</think>" in str(one["content"]) for one in conversation))
    assert outcome(ours(family), conversation, tools, **kwargs) == outcome(
        upstream(family), conversation, tools, **kwargs
    )


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@EXAMPLES
def test_preserving_it_only_appends(family: str, data: st.DataObject) -> None:
    """Whatever follows, in whatever roles, what stands before keeps its bytes."""
    before = [*data.draw(turns("system", least=0, most=1)), data.draw(messages("user"))]
    before += data.draw(turns("user", "assistant", "assistant", "system", least=0))
    before.append(data.draw(messages("assistant")))
    after = data.draw(turns("tool", least=0, most=2)) + data.draw(turns("user", "assistant", "system"))
    tools, kwargs = data.draw(some_tools()), {"preserve_thinking": True, "enable_thinking": data.draw(st.booleans())}
    short = rendered(ours(family), before, tools, **kwargs)
    assert rendered(ours(family), [*before, *after], tools, **kwargs, add_generation_prompt=True).startswith(short)


@pytest.mark.parametrize("family", THINKING)
def test_every_thought_is_kept(family: str) -> None:
    """The flag changes the bytes: without it the published templates drop the first thought, save that of 3.8."""
    conversation: list[Json] = [
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "a1", "reasoning_content": "r1"},
        {"role": "user", "content": "q2"},
        {"role": "assistant", "content": "a2"},
        {"role": "user", "content": "q3"},
    ]
    text = rendered(ours(family), conversation, preserve_thinking=True, reasoning_effort="medium")
    assert text == (
        "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n<think>\nr1\n</think>\n\na1<|im_end|>\n"
        "<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\na2<|im_end|>\n"
        "<|im_start|>user\nq3<|im_end|>\n"
    )
    stock = rendered(ours(family), conversation, reasoning_effort="medium")
    assert ("r1" in stock) == (family == "qwen38")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_system_message_later_on_is_printed_where_it_stands(family: str) -> None:
    conversation = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "system", "content": "s"},
    ]
    text = rendered(ours(family), conversation, preserve_thinking=True)
    assert text.endswith("a<|im_end|>\n<|im_start|>system\ns<|im_end|>\n")
    if family in XML:
        assert outcome(ours(family), conversation) == "TemplateError System message must be at the beginning."


@pytest.mark.parametrize("family", THINKING)
@pytest.mark.parametrize("wrapped", ["<tool_response>\nx\n</tool_response>", "<tool_response>"])
def test_a_user_message_that_looks_like_a_result_changes_nothing(family: str, wrapped: str) -> None:
    """Alone, or after a thought: the same bytes as for any other text in its place."""
    said = {"role": "assistant", "content": "a", "reasoning_content": "r"}
    for before in ([], [{"role": "user", "content": "q"}, said]):
        one, other = (
            rendered(ours(family), [*before, {"role": "user", "content": text}, said], preserve_thinking=True)
            for text in (wrapped, "MARK")
        )
        assert one == other.replace("MARK", wrapped)


@pytest.mark.parametrize("family", FAMILIES)
def test_results_of_one_turn_are_one_user_turn(family: str) -> None:
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": {}}} for n in range(2)]
    conversation = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c0", "content": "A"},
        {"role": "tool", "tool_call_id": "c1", "content": "B"},
    ]
    text = rendered(ours(family), conversation, preserve_thinking=True)
    tail = "<|im_start|>user\n<tool_response>\nA\n</tool_response>\n<tool_response>\nB\n</tool_response>"
    assert text.endswith(tail + ("\n<|im_end|>\n" if family == "qwen3coder" else "<|im_end|>\n"))


ARGUMENTS = {"flag": True, "n": None, "xs": [1, True]}
PRINTED = {
    **dict.fromkeys(("qwen3", "qwen3instruct", "qwennext"), '{"flag": true, "n": null, "xs": [1, true]}'),
    **dict.fromkeys(("qwen3coder", "qwen35"), "True None [1, true]"),
    **dict.fromkeys(("qwen36", "qwen38"), "true null [1, true]"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_are_printed_as_their_version_prints_them(family: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}
    conversation = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = rendered(ours(family), conversation, preserve_thinking=True)
    if family in ("qwen3", "qwen3instruct", "qwennext"):
        assert f'<tool_call>\n{{"name": "f", "arguments": {PRINTED[family]}}}\n</tool_call><|im_end|>\n' in text
        return
    flag, n, xs = PRINTED[family].split(" ", 2)
    assert text.endswith(
        f"<tool_call>\n<function=f>\n<parameter=flag>\n{flag}\n</parameter>\n<parameter=n>\n{n}\n</parameter>\n"
        f"<parameter=xs>\n{xs}\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
    )


OPENED = {
    "qwen3": ("", "<think>\n\n</think>\n\n"),
    "qwen3instruct": ("", ""),
    "qwennext": ("<think>\n", "<think>\n"),
    "qwen3coder": ("", ""),
    **dict.fromkeys(XML, ("<think>\n", "<think>\n\n</think>\n\n")),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_ends_with_its_header(family: str) -> None:
    """Nothing after it, and no newline of the file."""
    for thinking, opened in zip((True, False), OPENED[family], strict=True):
        text = rendered(
            ours(family), [{"role": "user", "content": "q"}], enable_thinking=thinking, add_generation_prompt=True
        )
        assert text.endswith(f"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{opened}")
