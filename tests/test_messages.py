"""What becomes of a client's messages and tools. SGLang's own classes are the truth for a tool's bytes."""

from __future__ import annotations

import copy
import json
import pickle
from collections import UserDict
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amounts import examples
from conversations import Conversation, contents, conversations, json_objects, json_texts, texts, tool_schemas
from oracles import tool_classes
from tito_core.errors import MessageError
from tito_core.prompts.messages import MAX_DEPTH, Message, Tool, ToolCall, normalise, normalise_tools, whole

Json = dict[str, Any]


def user(content: Any = "q") -> Json:
    return {"role": "user", "content": content}


def calling(*ids: str | None, name: str = "f", arguments: Any = None) -> Json:
    function = {"name": name, "arguments": {} if arguments is None else arguments}
    calls = [{"id": identity, "type": "function", "function": function} for identity in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(identity: str | None, content: str = "R") -> Json:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def tool(**function: Any) -> Json:
    return {"type": "function", "function": {"name": "f", **function}}


def refusal(messages: Any, **options: Any) -> tuple[str, Json]:
    with pytest.raises(MessageError) as caught:
        normalise(messages, **options)
    return str(caught.value), caught.value.where


# Content


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
@given(content=contents())
@settings(max_examples=examples(40))
def test_text_parts_are_joined_by_one_space_as_the_server_joins_them(role: str, content: str | list[Json]) -> None:
    (made,) = normalise([{"role": role, "content": content}])
    assert made.content == (content if isinstance(content, str) else " ".join(part["text"] for part in content))


def test_the_joiner_is_the_revisions() -> None:
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]
    assert normalise([user(parts)])[0].content == "hi there"
    assert normalise([user(parts)], text_joiner="\n\n")[0].content == "hi\n\nthere"
    assert normalise([user(tuple(parts))])[0].content == "hi there"
    assert normalise([user([])])[0].content == ""


def test_absent_parts_are_empty_whatever_the_client_wrote() -> None:
    bare = Message("assistant")
    absent: list[Any] = [
        {"role": "assistant"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "", "tool_calls": [], "reasoning": None, "reasoning_content": ""},
        {"role": "assistant", "content": [], "tool_calls": None, "function_call": None, "tools": [], "refusal": None},
        MappingProxyType({"role": "assistant", "response_format": None}),
        UserDict({"role": "assistant", "content": None}),
    ]
    for message in absent:
        assert normalise([message]) == (bare,)
    assert normalise([{"role": "system", "content": "", "tools": None, "response_format": {}}]) == (Message("system"),)
    assert normalise([]) == ()


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_has_two_names(key: str) -> None:
    message = {"role": "assistant", "content": "a", key: "r"}
    assert normalise([message]) == (Message("assistant", "a", "r"),)
    assert normalise([{**message, "reasoning": "r", "reasoning_content": "r"}]) == (Message("assistant", "a", "r"),)


class Word(str, Enum):  # noqa: UP042 - format() of a StrEnum is its text already
    YES = "yes"


class Number(IntEnum):
    ONE = 1


class Role(str, Enum):  # noqa: UP042
    USER = "user"
    ASSISTANT = "assistant"


def test_subclasses_become_plain_so_that_no_repr_is_printed() -> None:
    arguments = {Word.YES: Word.YES, "n": [Number.ONE], "o": UserDict({"x": (1, 2)})}
    message = {**calling("c", name=Word.YES, arguments=arguments), "role": Role.ASSISTANT, "reasoning": Word.YES}
    asked, made = normalise([user(Word.YES), message])
    assert (type(asked.content), asked.content) == (str, "yes")
    assert (type(made.role), made.role, type(made.reasoning)) == (str, "assistant", str)
    (call,) = made.tool_calls
    assert (type(call.name), json.dumps(call.arguments)) == (str, '{"yes": "yes", "n": [1], "o": {"x": [1, 2]}}')
    assert [type(key) for key in call.arguments] == [str, str, str]
    assert (type(call.arguments["yes"]), type(call.arguments["n"][0])) == (str, int)
    assert normalise([{"role": Role.USER, "content": "q"}])[0].role.__class__ is str


# Arguments


@settings(max_examples=examples(100))
@given(json_objects(), st.data())
def test_arguments_are_the_same_as_text_and_as_mapping(arguments: Json, data: st.DataObject) -> None:
    text = data.draw(json_texts(arguments))
    (written,) = normalise([calling("c", arguments=text)])[0].tool_calls
    (mapped,) = normalise([calling("c", arguments=arguments)])[0].tool_calls
    assert (written.text, mapped.text) == (text, None)
    # Compared as JSON text: it tells 1 from 1.0 and True, and keys by their order.
    assert json.dumps(written.arguments) == json.dumps(mapped.arguments) == json.dumps(arguments)


def test_keys_keep_their_order_and_the_last_of_a_repeated_one_counts() -> None:
    made = normalise([calling("c", arguments='{"b": 1, "a": 2, "b": 3}')])[0].tool_calls[0]
    assert list(made.arguments.items()) == [("b", 3), ("a", 2)]


BEHIND_CALL = "message 0 (assistant) tool call 0 "
CALL_PLACE = {"index": 0, "role": "assistant", "call": 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "",
            "has arguments that can't be read as JSON (Expecting value: line 1 column 1 (char 0)); send a JSON object",
        ),
        (
            "{'a': 1}",
            "has arguments that can't be read as JSON (Expecting property name enclosed in double quotes: line 1 "
            "column 2 (char 1)); send a JSON object",
        ),
        ("[1]", "has arguments that are JSON, but a list; send a JSON object"),
        ("null", "has arguments that are JSON, but a NoneType; send a JSON object"),
        ('"{}"', "has arguments that are JSON, but a str; send a JSON object"),
        ([("a", 1)], "has arguments of type list; send a JSON object, '{}' where there are none"),
        (b"{}", "has arguments of type bytes; send a JSON object, '{}' where there are none"),
        ('{"a": NaN}', "arguments holds nan, which is not JSON; send null or a string"),
        ('{"a": [1e999]}', "arguments holds inf, which is not JSON; send null or a string"),
        ({"a": float("-inf")}, "arguments holds -inf, which is not JSON; send null or a string"),
        ({"a": {1: 2}}, "arguments has the key 1, a int; JSON keys are strings"),
        ({"a": {None: 2}}, "arguments has the key None, a NoneType; JSON keys are strings"),
        ({"a": {1, 2}}, "arguments holds a set, which is not a JSON type"),
        ({"a": b"x"}, "arguments holds a bytes, which is not a JSON type"),
        (
            {"a": 10**5000},
            "arguments holds an integer of 16610 bits, more than Python prints; send it as a string",
        ),
        (
            '{"a": "\\ud83d"}',
            "arguments holds the lone surrogate '\\ud83d' at character 0, which is not text; decode the bytes it came "
            "from with errors='replace'",
        ),
    ],
)
def test_arguments_that_are_no_json_object(arguments: Any, said: str) -> None:
    assert refusal([calling("c", arguments=arguments)]) == (BEHIND_CALL + said, CALL_PLACE)


def test_arguments_missing() -> None:
    call = {"id": "c", "function": {"name": "f"}}
    assert refusal([{"role": "assistant", "tool_calls": [call]}]) == (
        BEHIND_CALL + "has arguments of type NoneType; send a JSON object, '{}' where there are none",
        CALL_PLACE,
    )


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_bounded() -> None:
    normalise([calling("c", arguments={"a": nested(MAX_DEPTH - 1)})])
    whole(normalise([calling("c", arguments={"a": nested(MAX_DEPTH - 1)})])[0], 0)
    said = BEHIND_CALL + "arguments nests deeper than 100 levels"
    assert refusal([calling("c", arguments={"a": nested(MAX_DEPTH)})]) == (said, CALL_PLACE)
    assert refusal([calling("c", arguments='{"a": ' + "[" * 100 + "]" * 100 + "}")]) == (said, CALL_PLACE)
    knot: list[Any] = []
    knot += [knot, knot]
    assert refusal([calling("c", arguments={"a": knot})]) == (said, CALL_PLACE)
    text, where = refusal([calling("c", arguments='{"a": ' + "[" * 100_000)])
    assert text.startswith(BEHIND_CALL + "has arguments that can't be read as JSON (maximum recursion depth exceeded")
    assert where == CALL_PLACE


# What is refused, word for word


SURROGATE = (
    "holds the lone surrogate '\\ud800' at character 1, which is not text; decode the bytes it came from with "
    "errors='replace'"
)
ROLES = "it must be one of assistant, developer, system, tool, user"


@pytest.mark.parametrize(
    ("message", "said", "where"),
    [
        ("q", "is a str, not a mapping; pass message.model_dump() or a dict", {"index": 1}),
        (None, "is a NoneType, not a mapping; pass message.model_dump() or a dict", {"index": 1}),
        ({"content": "q"}, f"has the role None; {ROLES}", {"index": 1, "role": None}),
        ({"role": "critic", "content": "q"}, f"has the role 'critic'; {ROLES}", {"index": 1, "role": "critic"}),
        ({"role": "User", "content": "q"}, f"has the role 'User'; {ROLES}", {"index": 1, "role": "User"}),
        ({"role": ["user"], "content": "q"}, f"has the role ['user']; {ROLES}", {"index": 1, "role": ["user"]}),
        *(
            (
                {"role": role, "content": None},
                f"({role}) has no content; send a string, an empty one where nothing is meant",
                {"index": 1, "role": role},
            )
            for role in ("user", "system", "developer", "tool")
        ),
        (
            {"role": "user"},
            "(user) has no content; send a string, an empty one where nothing is meant",
            {"index": 1, "role": "user"},
        ),
        (
            user(5),
            "(user) has content of type int; it must be a string or a list of text parts",
            {"index": 1, "role": "user"},
        ),
        (
            user(b"q"),
            "(user) has content of type bytes; it must be a string or a list of text parts",
            {"index": 1, "role": "user"},
        ),
        (
            user({"type": "text", "text": "q"}),
            "(user) has content of type dict; it must be a string or a list of text parts",
            {"index": 1, "role": "user"},
        ),
        (
            user([{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "u"}}]),
            "(user) content part 1 has the type 'image_url'; this format prints text only",
            {"index": 1, "role": "user", "part": 1},
        ),
        (
            user([{"text": "q"}]),
            "(user) content part 0 has the type None; this format prints text only",
            {"index": 1, "role": "user", "part": 0},
        ),
        (
            user([{"type": "text"}]),
            "(user) content part 0 has text of type NoneType; it must be a string",
            {"index": 1, "role": "user", "part": 0},
        ),
        (
            user(["q"]),
            "(user) content part 0 is a str; send {'type': 'text', 'text': ...}",
            {"index": 1, "role": "user", "part": 0},
        ),
        (user("a\ud800"), f"(user) content {SURROGATE}", {"index": 1, "role": "user"}),
        (result("a\ud800"), f"(tool) tool_call_id {SURROGATE}", {"index": 1, "role": "tool"}),
        (calling("a\ud800"), f"(assistant) tool call 0 id {SURROGATE}", {"index": 1, "role": "assistant", "call": 0}),
        (
            calling("c", name="a\ud800"),
            f"(assistant) tool call 0 name {SURROGATE}",
            {"index": 1, "role": "assistant", "call": 0},
        ),
        (
            user([{"type": "text", "text": "a\ud800"}]),
            f"(user) content part 0 {SURROGATE}",
            {"index": 1, "role": "user", "part": 0},
        ),
        (
            {"role": "assistant", "reasoning": "a\ud800"},
            f"(assistant) reasoning {SURROGATE}",
            {"index": 1, "role": "assistant"},
        ),
        (
            {"role": "assistant", "reasoning": {"text": "r"}},
            "(assistant) has reasoning of type dict; it must be a string",
            {"index": 1, "role": "assistant"},
        ),
        (
            {"role": "assistant", "reasoning": "r", "reasoning_content": "s"},
            "(assistant) has reasoning and reasoning_content, and they differ; they are one field, send one of them",
            {"index": 1, "role": "assistant"},
        ),
        (
            {**user(), "reasoning": "r"},
            "(user) has reasoning; only an assistant reasons",
            {"index": 1, "role": "user"},
        ),
        (
            {**user(), "tool_calls": calling("c")["tool_calls"]},
            "(user) has tool_calls; only an assistant makes calls",
            {"index": 1, "role": "user"},
        ),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            "(assistant) has function_call, which no template prints; use tool_calls",
            {"index": 1, "role": "assistant"},
        ),
        (
            {**user(), "content_blocks": [{"type": "text", "text": "x"}]},
            "(user) has content_blocks, which no template prints; use content",
            {"index": 1, "role": "user"},
        ),
        (
            {**user(), "task": "title"},
            "(user) has task, which no template prints; leave it out",
            {"index": 1, "role": "user"},
        ),
        (
            {"role": "assistant", "content": "", "wo_eos": True},
            "(assistant) has wo_eos, which no template prints; leave it out",
            {"index": 1, "role": "assistant"},
        ),
        (
            {**user(), "name": 7},
            "(user) has the name 7, a int; it must be a string",
            {"index": 1, "role": "user"},
        ),
        (
            {**user(), "tools": [tool()]},
            "(user) has tools; only a system or developer message may",
            {"index": 1, "role": "user"},
        ),
        (
            {**user(), "response_format": {"type": "object"}},
            "(user) has response_format; only a system or developer message may",
            {"index": 1, "role": "user"},
        ),
        (
            {"role": "system", "content": "", "response_format": "{}"},
            "(system) has response_format of type str; it must be a JSON object",
            {"index": 1, "role": "system"},
        ),
        (
            {"role": "system", "content": "", "response_format": {"a": {1}}},
            "(system) response_format holds a set, which is not a JSON type",
            {"index": 1, "role": "system"},
        ),
        (
            {"role": "system", "content": "", "tools": [tool(), {"type": "function"}]},
            "(system) tools[1] has no function; send {'type': 'function', 'function': {'name', ...}}",
            {"index": 1, "role": "system", "tool": 1},
        ),
        (
            {"role": "tool", "tool_call_id": 7, "content": "R"},
            "(tool) has the tool_call_id 7, a int; it must be a string",
            {"index": 1, "role": "tool"},
        ),
        (
            {"role": "assistant", "tool_calls": {"id": "c"}},
            "(assistant) has tool_calls of type dict; it must be a list",
            {"index": 1, "role": "assistant"},
        ),
        (
            {"role": "assistant", "tool_calls": ""},
            "(assistant) has tool_calls of type str; it must be a list",
            {"index": 1, "role": "assistant"},
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "name": "f"}]},
            "(assistant) tool call 0 has no function; send {'function': {'name', 'arguments'}}",
            {"index": 1, "role": "assistant", "call": 0},
        ),
        (
            calling("c", name=""),
            "(assistant) tool call 0 has the function name ''; it must be a string that is not empty",
            {"index": 1, "role": "assistant", "call": 0},
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": 3, "function": {"name": "f", "arguments": {}}}]},
            "(assistant) tool call 0 has the id 3; it must be a string",
            {"index": 1, "role": "assistant", "call": 0},
        ),
        (
            calling("a", "c", "c"),
            "(assistant) has two tool calls with the id 'c'; results could not be told apart",
            {"index": 1, "role": "assistant", "id": "c"},
        ),
    ],
)
def test_refused_messages(message: Any, said: str, where: Json) -> None:
    assert refusal([user(), message]) == (f"message 1 {said}", where)


@pytest.mark.parametrize(("messages", "kind"), [("q", "str"), ({"role": "user"}, "dict"), (iter([]), "list_iterator")])
def test_messages_are_a_list(messages: Any, kind: str) -> None:
    assert refusal(messages) == (f"messages is a {kind}, not a list of messages; pass a list", {})


# Tool results


@settings(max_examples=examples(100))
@given(conversations(), st.integers(0, 3))
def test_results_stand_in_call_order_and_nothing_else_moves(conversation: Conversation, start: int) -> None:
    made = normalise(conversation.messages, start=start)
    assert [message.role for message in made] == [message["role"] for message in conversation.messages]
    calls: list[str] = []
    for message in made:
        if message.role == "tool":
            assert message.tool_call_id == calls.pop(0)
            (sent,) = [sent for sent in conversation.messages if sent.get("tool_call_id") == message.tool_call_id]
            assert message.content == normalise([user(sent["content"])])[0].content
        else:
            assert not calls
            calls = [str(call.id) for call in message.tool_calls]


def test_results_of_an_append_answer_the_stored_turn() -> None:
    (stored,) = normalise([calling("a", "b")])
    made = normalise([result("b", "B"), result("a", "A"), user()], after=stored, start=7)
    assert [message.content for message in made] == ["A", "B", "q"]
    assert normalise([], after=stored, start=7) == ()
    assert normalise([user()], after=Message("assistant", "a"), start=7) == (Message("user", "q"),)


def test_calls_and_results_without_ids_are_matched_by_place() -> None:
    made = normalise([calling(None, None), result(None, "A"), {"role": "tool", "content": "B"}, user()])
    assert [message.content for message in made] == ["", "A", "B", "q"]


def test_the_last_calls_of_all_may_stand_unanswered() -> None:
    assert len(normalise([user(), calling("a", "b")])) == 2


MISSING = "does not stand directly after it; send all results of a turn together"
NO_CALL = (
    "answers no call: what stands before it is not an assistant message with tool_calls; keep call and result together"
)


@pytest.mark.parametrize(
    ("messages", "said", "where"),
    [
        (
            [user(), result("zz")],
            f"message 1 (tool) with the id 'zz' {NO_CALL}",
            {"index": 1, "role": "tool", "id": "zz"},
        ),
        ([result("zz")], f"message 0 (tool) with the id 'zz' {NO_CALL}", {"index": 0, "role": "tool", "id": "zz"}),
        (
            [calling("a"), result("a"), user(), result("a")],
            f"message 3 (tool) with the id 'a' {NO_CALL}",
            {"index": 3, "role": "tool", "id": "a"},
        ),
        (
            [user(), calling("c0"), result("c9")],
            "message 2 (tool) has the tool_call_id 'c9', which message 1 (assistant) did not call; its calls have the "
            "ids ['c0']",
            {"index": 2, "role": "tool", "id": "c9"},
        ),
        (
            [calling("c0"), result(None)],
            "message 1 (tool) has the tool_call_id None, which message 0 (assistant) did not call; its calls have the "
            "ids ['c0']",
            {"index": 1, "role": "tool", "id": None},
        ),
        (
            [calling("a", "b"), result("a"), result("a")],
            "message 2 (tool) answers the call 'a' a second time; send one result for each call",
            {"index": 2, "role": "tool", "id": "a"},
        ),
        (
            [calling(None), result(None), result(None)],
            "message 2 (tool) is one result too many: message 0 (assistant) made 1 call(s)",
            {"index": 2, "role": "tool", "id": None},
        ),
        (
            [user(), calling("a", "b"), result("b")],
            f"message 1 (assistant) made 2 call(s), and the result of call 0 (id 'a', f) {MISSING}",
            {"index": 1, "role": "assistant", "id": "a"},
        ),
        (
            [calling("a"), user()],
            f"message 0 (assistant) made 1 call(s), and the result of call 0 (id 'a', f) {MISSING}",
            {"index": 0, "role": "assistant", "id": "a"},
        ),
        (
            [calling("a", "b"), result("b"), user(), result("a")],
            f"message 0 (assistant) made 2 call(s), and the result of call 0 (id 'a', f) {MISSING}",
            {"index": 0, "role": "assistant", "id": "a"},
        ),
        (
            [calling("a"), calling("b"), result("b")],
            f"message 0 (assistant) made 1 call(s), and the result of call 0 (id 'a', f) {MISSING}",
            {"index": 0, "role": "assistant", "id": "a"},
        ),
    ],
)
def test_results_that_do_not_match(messages: list[Json], said: str, where: Json) -> None:
    assert refusal(messages) == (said, where)


def test_an_append_counts_from_its_place_in_the_conversation() -> None:
    (stored,) = normalise([calling("a")])
    assert refusal([result("b")], after=stored, start=7) == (
        "message 7 (tool) has the tool_call_id 'b', which message 6 (assistant) did not call; its calls have the ids "
        "['a']",
        {"index": 7, "role": "tool", "id": "b"},
    )
    assert refusal([user()], after=stored, start=7) == (
        f"message 6 (assistant) made 1 call(s), and the result of call 0 (id 'a', f) {MISSING}",
        {"index": 6, "role": "assistant", "id": "a"},
    )
    assert refusal([user(), calling("a", "b"), result("b")], start=7) == (
        f"message 8 (assistant) made 2 call(s), and the result of call 0 (id 'a', f) {MISSING}",
        {"index": 8, "role": "assistant", "id": "a"},
    )
    assert refusal([user(), user(None)], start=7)[1] == {"index": 8, "role": "user"}
    assert refusal([result("a")], after=Message("assistant", "a"), start=7)[1] == {
        "index": 7,
        "role": "tool",
        "id": "a",
    }


# Tools


def served(sent: Json) -> str:
    """The bytes of a tool's function as SGLang hands it to its encoder."""
    _, tool_class = tool_classes()
    return json.dumps(tool_class(**copy.deepcopy(sent)).model_dump()["function"], ensure_ascii=False)


@settings(max_examples=examples(300))
@given(st.lists(tool_schemas(), max_size=3))
def test_tool_schemas_have_the_bytes_that_the_server_prints(sent: list[Json]) -> None:
    inside = normalise([{"role": "system", "content": "", "tools": sent}])[0].tools
    for made in (normalise_tools(sent), inside):
        assert [json.dumps(tool.function, ensure_ascii=False) for tool in made] == [served(tool) for tool in sent]
        assert [tool.name for tool in made] == [tool["function"]["name"] for tool in sent]


@pytest.mark.parametrize(
    ("sent", "printed"),
    [
        (tool(), '{"name": "f", "description": null, "parameters": null}'),
        (tool(strict=None, extra=1), '{"name": "f", "description": null, "parameters": null}'),
        (tool(strict=True, parameters={"b": 1, "a": "é"}),
         '{"name": "f", "strict": true, "parameters": {"b": 1, "a": "é"}, "description": null}'),
        ({**tool(), "defer_loading": True},
         '{"name": "f", "description": null, "parameters": null, "defer_loading": true}'),
        ({**tool(defer_loading=False), "defer_loading": True},
         '{"name": "f", "defer_loading": false, "description": null, "parameters": null}'),
    ],
)  # fmt: skip
def test_tool_schemas_by_hand(sent: Json, printed: str) -> None:
    assert json.dumps(normalise_tools([sent])[0].function, ensure_ascii=False) == printed == served(sent)


@pytest.mark.parametrize(
    ("tools", "said", "where"),
    [
        ("f", "tools is a str, not a list of tools", {}),
        (tool(), "tools is a dict, not a list of tools", {}),
        (
            [tool(), {"name": "f", "parameters": {}}],
            "tools[1] has no function; send {'type': 'function', 'function': {'name', ...}}",
            {"tool": 1},
        ),
        ([{**tool(), "type": None}], "tools[0] has the type None; it must be a string", {"tool": 0}),
        ([tool(name=None)], "tools[0] has the name None; it must be a string", {"tool": 0}),
        ([tool(description=5)], "tools[0] (f) has a description of type int; it must be a string", {"tool": 0}),
        ([tool(strict="yes")], "tools[0] (f) has strict 'yes'; it must be true or false", {"tool": 0}),
        (
            [{**tool(), "defer_loading": 1}],
            "tools[0] (f) has defer_loading 1; it must be true or false",
            {"tool": 0},
        ),
        (
            [tool(parameters={"a": float("nan")})],
            "tools[0] (f) holds nan, which is not JSON; send null or a string",
            {"tool": 0},
        ),
        ([tool(parameters={1: 2})], "tools[0] (f) has the key 1, a int; JSON keys are strings", {"tool": 0}),
        ([tool(description="a\ud800")], f"tools[0] (f) {SURROGATE}", {"tool": 0}),
        ([tool(name="a\ud800")], f"tools[0] name {SURROGATE}", {"tool": 0}),
        ([{**tool(), "type": "a\ud800"}], f"tools[0] type {SURROGATE}", {"tool": 0}),
    ],
)
def test_refused_tools(tools: Any, said: str, where: Json) -> None:
    with pytest.raises(MessageError) as caught:
        normalise_tools(tools)
    assert (str(caught.value), caught.value.where) == (said, where)


def test_no_tools() -> None:
    assert normalise_tools(None) == normalise_tools([]) == ()


# The client's objects


@settings(max_examples=examples(100))
@given(conversations())
def test_the_clients_objects_are_neither_changed_nor_shared(conversation: Conversation) -> None:
    before = copy.deepcopy(conversation)
    made, tools = normalise(conversation.messages), normalise_tools(conversation.tools)
    assert conversation == before
    kept = copy.deepcopy((made, tools))
    for message in [*conversation.messages, *(conversation.tools or ())]:
        _scramble(message)
    assert (made, tools) == kept


@settings(max_examples=examples(50))
@given(conversations())
def test_normal_messages_and_tools_pass_as_they_are(conversation: Conversation) -> None:
    made, tools = normalise(conversation.messages), normalise_tools(conversation.tools)
    assert normalise(made) == made
    assert normalise_tools(tools) == tools
    assert pickle.loads(pickle.dumps((made, tools))) == (made, tools)


@given(texts(empty=False))
@settings(max_examples=examples(20))
def test_calls_and_tools_made_by_hand_pass_inside_messages(name: str) -> None:
    call, known = ToolCall(name, {"a": 1}, None, "c"), Tool({"name": name, "description": None, "parameters": None})
    made = normalise([{"role": "system", "content": "", "tools": [known]}, {"role": "assistant", "tool_calls": [call]}])
    assert (made[0].tools, made[1].tool_calls) == ((known,), (call,))


def _scramble(value: Any) -> None:
    """Changes every list and mapping in place, the innermost first."""
    if isinstance(value, dict):
        for inner in value.values():
            _scramble(inner)
        value["scrambled"] = True
    elif isinstance(value, list):
        for inner in value:
            _scramble(inner)
        value.append("scrambled")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Message("user", None), "message 0 (user) has no content; send a string, an empty one where nothing is meant"),  # type: ignore[arg-type]
        (
            Message("human", "q"),
            "message 0 has the role 'human'; it must be one of assistant, developer, system, tool, user",
        ),
        (Message("user", 5), "message 0 (user) has content of type int; it must be a string or a list of text parts"),  # type: ignore[arg-type]
        (Message("user", "q", "r"), "message 0 (user) has reasoning; only an assistant reasons"),
        (Message("user", "\ud800"), "message 0 (user) content holds"),
        (Message("assistant", "", tool_calls=5), "message 0 (assistant) has tool_calls of type int; it must be a list"),  # type: ignore[arg-type]
        (
            Message("assistant", tool_calls=(ToolCall("", {}),)),
            "message 0 (assistant) tool call 0 has the function name ''; it must be a string that is not empty",
        ),
        (
            Message("assistant", tool_calls=(ToolCall("f", {"x": object()}),)),
            "message 0 (assistant) tool call 0 arguments",
        ),
        (
            Message("assistant", tool_calls=(ToolCall("f", {"x": 1}, '{"x": 2}'),)),
            "message 0 (assistant) tool call 0 has arguments, and a text of them that says others; leave the text out",
        ),
        (
            Message("assistant", tool_calls=(ToolCall("f", {}, "nothing"),)),
            "message 0 (assistant) tool call 0 has arguments that can't be read as JSON",
        ),
        (Message("system", tools=(Tool({}),)), "message 0 (system) tools[0] has the name None; it must be a string"),
    ],
)
def test_a_message_made_by_hand_is_checked_as_a_mapping_is(message: Message, why: str) -> None:
    assert refusal([message])[0].startswith(why)


def test_a_message_made_by_hand_is_copied() -> None:
    function: Json = {"name": "f", "parameters": {"type": "object"}}
    arguments, carried = {"x": [1]}, {"type": "json"}
    given = [
        Message("system", "S", tools=(Tool(function),), response_format=carried),
        Message("assistant", None, None, [ToolCall("f", arguments, None, "c")]),  # type: ignore[arg-type]
        Message("tool", "R", tool_call_id="c"),
    ]
    made = normalise(given)
    (tool,) = normalise_tools([Tool(function)])
    before = copy.deepcopy((made, tool))
    arguments["x"].append(2)
    function["parameters"]["type"] = "array"
    carried["type"] = "text"
    given[1].tool_calls.clear()  # type: ignore[attr-defined]
    assert (made, tool) == before
    assert made[1] == Message("assistant", "", "", (ToolCall("f", {"x": [1]}, None, "c"),))


@given(conversation=conversations())
@settings(max_examples=examples(40))
def test_normalising_again_changes_nothing(conversation: Conversation) -> None:
    made = normalise(conversation.messages)
    assert normalise(made) == made
    tools = normalise_tools(conversation.tools)
    assert normalise_tools(tools) == tools
    assert [[*tool.function] for tool in normalise_tools(tools)] == [[*tool.function] for tool in tools]
