"""Sessions: what is stored, what a request continues, what is refused and leaves no trace.

Ids on the right-hand side come from `tokenizers` on the published print, or from the completions that a test made.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import importlib.util
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tito_core
from chats import TOOL, Json, assistant, call, codec, result, said, state, step, user
from tito_core import Codec, Completion, MemoryStore, Message, Template, ToolCall
from tito_core.engines.scripted import ScriptedEngine
from tito_core.errors import (
    CompletionError,
    EncodingError,
    GateError,
    MessageError,
    SessionError,
    ThinkingError,
    TitoError,
    TruncatedTurnError,
)
from token_path import EOS, USER, engine_ids
from v32_upstream import upstream_text


def test_a_conversation_is_the_published_print_id_by_id() -> None:
    session = codec().session(thinking=True)
    messages = [{"role": "system", "content": "S"}, user("q1")]
    step(session, messages, assistant("", tool_calls=[call("a"), call("b", '{"x": "é"}')]), tools=[TOOL])
    messages += [result("b", "RB"), result("a", "RA"), user("and?")]
    step(session, messages, assistant("done"), tools=[TOOL])
    ordered = [*messages[:3], result("a", "RA"), result("b", "RB"), *messages[5:]]
    expected = engine_ids("r1", upstream_text(ordered, [TOOL], thinking=True))
    assert session.turns[-1].ids.tolist() == expected.tolist()
    assert session.compare() == []
    assert session.turns[-1].length == len(messages)


def test_every_request_forwards_the_mode() -> None:
    for thinking in (True, False):
        request = codec().session(thinking=thinking).prepare([user("q")])
        assert request.engine_kwargs == {"chat_template_kwargs": {"thinking": thinking}}
        assert codec().decode(request.ids).endswith("<｜Assistant｜><think>" if thinking else "<｜Assistant｜></think>")


def test_the_mode_is_frozen_with_the_first_turn_and_a_flip_leaves_no_trace() -> None:
    session = codec().session()
    messages = [user("q")]
    step(session, messages, assistant("a", ""), chat_template_kwargs={"enable_thinking": False})
    messages.append(user("q2"))
    before = state(session)
    with pytest.raises(ThinkingError) as error:
        session.prepare(messages, chat_template_kwargs={"thinking": True})
    assert str(error.value) == (
        "the request asks for thinking=True, but this session's first turn was sampled with thinking=False, which "
        "shapes its prompt; open another session for another mode"
    )
    assert state(session) == before
    for kwargs in (None, {}, {"thinking_mode": "chat"}, {"thinking": None}):
        assert session.prepare(messages, chat_template_kwargs=kwargs).engine_kwargs == {
            "chat_template_kwargs": {"thinking": False}
        }


def test_tools_are_the_first_turns() -> None:
    session = codec().session()
    messages = [user("q")]
    step(session, messages, assistant("a"), tools=[TOOL])
    messages.append(user("q2"))
    reordered = {"function": dict(reversed(TOOL["function"].items())), "type": "function"}
    same = session.prepare(messages, tools=[TOOL]).ids.tolist()
    assert session.prepare(messages, tools=[reordered]).ids.tolist() == same
    assert session.prepare(messages).ids.tolist() == same
    before = state(session)
    changed = copy.deepcopy(TOOL)
    changed["function"]["parameters"]["type"] = "array"
    other = {"type": "function", "function": {"name": "g"}}
    for tools, text in (
        (
            [changed],
            'the tool \'f\' changed from {"name": "f", "parameters": {"type": "object"}, "description": null} to '
            '{"name": "f", "parameters": {"type": "array"}, "description": null}',
        ),
        ([TOOL, other], "the tool 'g' is new"),
        ([], "the tool 'f' is gone"),
    ):
        with pytest.raises(SessionError) as error:
            session.prepare(messages, tools=tools)
        assert str(error.value) == (
            f"{text}, but the first turn's prompt holds the tools it was sampled with; open another session for other tools"
        )
        assert state(session) == before


@pytest.mark.parametrize(
    "echo",
    [
        {"role": "assistant", "content": "a", "reasoning": "r", "tool_calls": [call("a", '{"x": 1, "y": [true]}')]},
        {
            "role": "assistant",
            "content": "a",
            "reasoning_content": "r",
            "tool_calls": [call("a", '{"y":[true],"x":1}')],
        },
        {"role": "assistant", "content": "a", "tool_calls": [call("a", {"y": [True], "x": 1})], "refusal": None},
        {"role": "assistant", "content": "a", "tool_calls": [call("a", {"y": [True], "x": 1})], "name": "agent"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "a"}],
            "tool_calls": [call("a", '{"x": 1, "y": [true]}')],
        },
    ],
)
def test_what_a_client_echoes_matches_and_never_replaces_what_is_stored(echo: Json) -> None:
    session = codec().session()
    messages = [user("q")]
    step(session, messages, assistant("a", tool_calls=[call("a", '{"x": 1, "y": [true]}')]))
    plain = session.prepare([*messages, result("a", "R")]).ids.tolist()
    assert session.prepare([messages[0], echo, result("a", "R")]).ids.tolist() == plain
    assert plain[: session.turns[0].end] == session.turns[0].ids.tolist()


@pytest.mark.parametrize(
    "echo",
    [
        assistant("a", tool_calls=[call("a", '{"x": 1.0, "y": [true]}')]),
        assistant("a", tool_calls=[call("a", {"x": True, "y": [True]})]),
        assistant("a", tool_calls=[call("a", {"x": 1, "y": [1]})]),
        assistant("b", tool_calls=[call("a", '{"x": 1, "y": [true]}')]),
        assistant("a", "other", tool_calls=[call("a", '{"x": 1, "y": [true]}')]),
        assistant("a"),
    ],
)
def test_another_message_does_not_match(echo: Json) -> None:
    """On the slow path and, after a first request, on the fast one."""
    session = codec().session(linear=True)
    messages = [user("q")]
    step(session, messages, assistant("a", tool_calls=[call("a", '{"x": 1, "y": [true]}')]))
    step(session, [*messages, result("a", "R")], assistant("b"))
    told = [*messages, result("a", "R"), assistant("b"), user("u")]
    session.prepare(told)
    told[1] = echo
    before = state(session)
    with pytest.raises((SessionError, MessageError)):
        session.prepare(told)
    assert state(session) == before


def test_the_fast_path_sees_a_message_that_the_client_changed_in_place() -> None:
    session = codec().session(linear=True)
    messages = [user("q")]
    step(session, messages, assistant("a"))
    messages.append(user("q2"))
    step(session, messages, assistant("b"))
    messages.append(user("q3"))
    session.prepare(messages)
    messages[0]["content"] = "changed"
    with pytest.raises(SessionError) as error:
        session.prepare(messages)
    assert str(error.value) == (
        "message 0 (user) is not what this session stores there: the content 'q' is stored, 'changed' was sent; a request "
        "continues the last turn, or takes it back; open another session for another conversation"
    )


def test_a_retry_of_the_first_turn_begins_again_twice() -> None:
    session = codec().session(linear=True)
    first = session.prepare([user("q")]).ids.tolist()
    for text in ("a", "b", "c"):
        request = session.prepare([user("q")])
        assert (request.parent, request.ids.tolist()) == (None, first)
        session.commit(request, said(assistant(text)))
        assert [turn.message.content for turn in session.turns] == [text]


def test_one_turn_can_be_rolled_back_not_two() -> None:
    session = codec().session(linear=True)
    messages = [user("q")]
    for text in ("a", "b", "c"):
        step(session, messages, assistant(text))
        messages.append(user(f"after {text}"))
    first, second, third = session.turns
    kept = second.ids.tolist()
    request = session.prepare([*messages[:4], user("other")])
    assert request.parent is second
    assert session.turns == (first, second, third)
    turn = session.commit(request, said(assistant("d")))
    assert session.turns == (first, second, turn)
    assert second.ids.tolist() == kept
    assert turn.ids.tolist()[: len(kept)] == kept
    assert third.ids.tolist()[: len(kept)] == kept
    before = state(session)
    with pytest.raises(SessionError) as error:
        session.prepare([*messages[:2], user("too far")])
    assert str(error.value) == (
        "message 2 (user) is not what this session stores there: the content 'after a' is stored, 'too far' was sent; a "
        "request continues the last turn, or takes it back; open another session for another conversation"
    )
    with pytest.raises(SessionError) as error:
        session.prepare(messages[:1])
    assert str(error.value) == (
        "the request ends after message 0, and this session's last turn with message 5: it takes back more than one turn; a "
        "request continues the last turn, or takes it back; open another session for another conversation"
    )
    with pytest.raises(SessionError, match="message 0 "):
        session.prepare([user("another conversation")])
    assert state(session) == before


def test_after_a_rollback_nothing_of_the_old_line_is_taken_for_seen() -> None:
    session = codec().session(linear=True)
    messages = [user("q")]
    step(session, messages, assistant("a"))
    old = [*messages, user("old")]
    step(session, old, assistant("b"))
    old.append(user("next"))
    session.prepare(old)
    new = [*messages, user("new")]
    step(session, new, assistant("b"))
    with pytest.raises(SessionError, match="the content 'new' is stored, 'old' was sent"):
        session.prepare(old)
    assert session.prepare([*new, user("next")]).parent is session.turns[-1]


def test_a_divergent_first_message_before_any_turn_starts_over() -> None:
    session = codec().session()
    session.prepare([{"role": "system", "content": "S"}, user("A")])
    request = session.prepare([{"role": "system", "content": "S"}, user("B")])
    assert "B<｜Assistant｜>" in codec().decode(request.ids)


def test_a_request_that_ends_with_what_is_stored() -> None:
    session = codec().session()
    messages = [user("q")]
    step(session, messages, assistant("a"))
    with pytest.raises(SessionError) as error:
        session.prepare(messages)
    assert str(error.value) == (
        "the request ends with message 1 (assistant), which is stored already; append a message, or leave it out to "
        "sample it again"
    )


def test_a_refused_append_leaves_no_trace() -> None:
    session = codec().session(append_roles={"tool", "user"})
    messages = [user("q")]
    step(session, messages, assistant("a", tool_calls=[call("a")]))
    before = state(session)
    for appended, kind in (
        ([{"role": "system", "content": "S"}], TitoError),
        ([result("zz", "R")], MessageError),
        ([user("no result")], MessageError),
        ([result("a", "R"), result("a", "R")], MessageError),
        ([{"role": "user", "content": None}], MessageError),
        ([result("a", "R"), assistant("injected"), user("u")], GateError),
    ):
        with pytest.raises(kind) as error:
            session.prepare([*messages, *appended])
        assert error.value.where["index"] >= 1
        assert state(session) == before


def test_an_injected_assistant_is_prompt_text() -> None:
    session = codec().session()
    messages = [user("q")]
    step(session, messages, assistant("a"))
    messages += [assistant("injected"), user("u")]
    step(session, messages, assistant("b"))
    (sample,) = session.samples()
    sampled = [said(assistant(text)).ids for text in ("a", "b")]
    assert sample.tokens[sample.loss_mask == 1].tolist() == np.concatenate(sampled).tolist()
    spans = [(span.source, span.index, span.role) for span in sample.spans]
    assert ("content", 2, "assistant") in spans
    assert session.compare() == []


def test_a_sample_masks_exactly_what_was_sampled() -> None:
    session = codec().session()
    messages = [user("q")]
    completions = []
    for reply in (assistant("<think>unclosed"), assistant("</think>"), assistant("plain", "")):
        request = session.prepare(messages)
        completions.append(said(reply))
        session.commit(request, completions[-1])
        messages += [reply, user("go on")]
    (sample,) = session.samples()
    assert sample.loss_mask.dtype == np.int8
    assert sample.logprobs.dtype == np.float32
    assert sample.tokens.dtype == np.int32
    assert len(sample.tokens) == len(sample.loss_mask) == len(sample.logprobs)
    assert sample.tokens[sample.loss_mask == 1].tolist() == [one for done in completions for one in done.ids]
    assert sample.logprobs[sample.loss_mask == 1].tolist() == [one for done in completions for one in done.logprobs]
    assert not sample.logprobs[sample.loss_mask == 0].any()
    covered = [place for span in sample.spans for place in range(span.start, span.end)]
    assert covered == np.flatnonzero(sample.loss_mask == 0).tolist()


def test_after_a_stop_string_the_stop_token_is_inserted_and_not_trained() -> None:
    session = codec().session()
    messages = [user("q")]
    reply = assistant("a</answer>")
    done = said(reply)
    stopped = Completion(done.ids[:-1], done.logprobs[:-1], "stop", stop="</answer>", message=reply)
    session.commit(session.prepare(messages), stopped)
    messages += [reply, user("u")]
    step(session, messages, assistant("b"))
    (sample,) = session.samples()
    place = session.turns[0].end
    assert sample.tokens[place] == EOS
    assert (sample.loss_mask[place], sample.logprobs[place]) == (0, 0)
    assert session.compare() == []


def test_a_turn_that_was_cut_is_refused_or_closed() -> None:
    reply = assistant("never said", "Adding them")
    done = said(reply)
    ids = done.ids[:2]
    for truncation in ("refuse", "close"):
        session = codec().session(truncation=truncation)
        cut = assistant("", codec().decode(ids))
        session.commit(session.prepare([user("q")]), Completion(ids, [-1.0, -1.0], "length", message=cut))
        told = [user("q"), cut, user("u")]
        before = state(session)
        if truncation == "refuse":
            with pytest.raises(TruncatedTurnError, match="was cut by length after 2 sampled ids"):
                session.prepare(told)
            assert state(session) == before
        else:
            text = codec().decode(session.prepare(told).ids[session.turns[0].end :])
            assert text == "</think><｜end▁of▁sentence｜><｜User｜>u<｜Assistant｜><think>"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"finish_reason": "abort"}, "completion c was aborted by the engine; sample it again, it is never stored"),
        ({"message": user("u")}, "completion c has a message of the role 'user'; it must be assistant"),
        (
            {"message": {"content": 3}},
            "completion c has a message that can't be stored: message 1 (assistant) has content of type int; it must be "
            "a string or a list of text parts",
        ),
        (
            {"ids": [5, 1, 6, 7], "logprobs": [-1.0] * 4},
            "completion c goes on for 2 ids after the stop token 1 at 1; cut ids and logprobs there",
        ),
    ],
)
def test_a_completion_that_is_not_stored(changes: Json, text: str) -> None:
    session = codec().session()
    request = session.prepare([user("q")])
    made: Json = {
        "ids": [5, 1],
        "logprobs": [-1.0, -1.0],
        "finish_reason": "stop",
        "message": assistant("a"),
        "id": "c",
    }
    with pytest.raises(CompletionError) as error:
        session.commit(request, Completion(**{**made, **changes}))
    assert str(error.value) == text
    assert session.turns == ()
    session.commit(request, Completion(**made))


def test_ids_past_a_stop_string_are_not_stored() -> None:
    session = codec().session()
    request = session.prepare([user("q")])
    ids = engine_ids("r1", "h a hat and more")
    stop = Completion(ids, [-1.0] * len(ids), "stop", stop="hat", message=assistant("h a"), id="c")
    with pytest.raises(CompletionError) as error:
        session.commit(request, stop)
    assert str(error.value) == (
        "completion c goes on after the stop string 'hat' (text ends 'h a hat and more'); cut ids and logprobs after the "
        "id that completes it"
    )


def test_an_id_outside_the_vocabulary_is_not_stored() -> None:
    session = codec().session()
    request = session.prepare([user("q")])
    with pytest.raises(
        CompletionError, match=r"^completion c can't be stored: id 999999 at place 1 is not in the vocab"
    ):
        session.commit(request, Completion([5, 999999], [-1.0, -1.0], "stop", message=assistant("a"), id="c"))
    assert session.turns == ()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ids": []}, "completion c has no ids; ask the engine to return token ids, text is never encoded again"),
        (
            {"ids": list(range(16))},
            "completion c has 16 ids and 1 logprobs; ask the engine for the log-prob of every sampled id",
        ),
        ({"ids": [-1]}, "completion c has an id outside 0..2^31-1; ids are token ids"),
        ({"ids": [[1]]}, "completion c has ids of 2 dimensions; it must be one"),
        ({"ids": ["1"]}, "completion c has ids of type <U1; they must be whole numbers"),
        ({"ids": [1.0]}, "completion c has ids of type float64; they must be whole numbers"),
        ({"ids": [True]}, "completion c has ids of type bool; they must be whole numbers"),
        (
            {"logprobs": [float("nan")]},
            "completion c has the logprob nan at 0; an id that was sampled has a finite one, not above 0",
        ),
        (
            {"logprobs": [-1e39]},
            "completion c has the logprob -1e+39 at 0; an id that was sampled has a finite one, not above 0",
        ),
        (
            {"logprobs": [5.0]},
            "completion c has the logprob 5.0 at 0; an id that was sampled has a finite one, not above 0",
        ),
        ({"logprobs": [1j]}, "completion c has logprobs of type complex128; they must be numbers"),
        ({"ids": [[1], [2, 3]]}, "completion c has ids of unequal rows; it must be one row of numbers"),
        (
            {"stop": 1},
            "completion c has the stop 1; it is the stop string that was matched, and None where a token ended the turn",
        ),
        ({"message": "a"}, "completion c has a message of type str; pass message.model_dump() or a dict"),
        ({"logprobs": [None]}, "completion c has logprobs of type object; they must be numbers"),
        (
            {"finish_reason": "eos"},
            "completion c has the finish reason 'eos'; it is one of stop, length, tool_calls, abort",
        ),
    ],
)
def test_a_completion_that_does_not_fit_itself(changes: Json, text: str) -> None:
    made: Json = {"ids": [1], "logprobs": [-1.0], "finish_reason": "stop", "id": "c"}
    with pytest.raises(CompletionError) as error:
        Completion(**{**made, **changes})
    assert str(error.value) == text


def test_a_completion_keeps_its_own_copy() -> None:
    ids, logprobs = np.array([1, 2]), np.array([-1.0, -2.0])
    done = Completion(ids, logprobs, "stop")
    ids[0], logprobs[0] = 9, 9
    assert list(done.ids) == [1, 2]
    assert list(done.logprobs) == [-1.0, -2.0]


def test_a_request_is_for_its_session_and_for_the_tip_it_saw() -> None:
    session, other = codec().session(linear=True), codec().session(linear=True)
    request = session.prepare([user("q")])
    with pytest.raises(SessionError) as error:
        other.commit(request, said(assistant("a")))
    assert str(error.value) == f"the request belongs to the session {session.id}, not to {other.id}"
    session.commit(request, said(assistant("a")))
    with pytest.raises(SessionError) as error:
        session.commit(request, said(assistant("b")))
    assert str(error.value) == "the session went on to turn 0 after this request was prepared; prepare it again"
    assert [turn.message.content for turn in session.turns] == ["a"]


def test_ids_of_a_turn_can_not_be_written_to() -> None:
    session = codec().session()
    turn = step(session, [user("q")], assistant("a"))
    for array in (turn.ids, turn.completion.ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 3  # type: ignore[index]


def test_one_of_many_threads_commits() -> None:
    session = codec().session(linear=True)
    requests = [session.prepare([user("q")]) for _ in range(8)]
    outcomes: list[str] = []

    def commit(number: int) -> None:
        try:
            session.commit(requests[number], said(assistant(str(number))))
            outcomes.append("stored")
        except SessionError:
            outcomes.append("refused")

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 7 + ["stored"]
    assert len(session.turns) == 1


def test_a_turn_stores_its_own_new_ids_only() -> None:
    session = codec().session()
    messages = [user("q")]
    for number in range(40):
        step(session, messages, assistant(f"a{number}"))
        messages.append(user("0"))
    assert sum(len(turn.new) for turn in session.turns) == session.turns[-1].end
    for turn in session.turns:
        assert (turn.new.dtype, turn.new.base, turn.completion.logprobs.dtype) == (np.int32, None, np.float32)
        assert np.shares_memory(turn.completion.ids, turn.new)
        assert (turn.completion.message, turn.completion.prompt_ids) == (None, None)


@pytest.mark.parametrize(
    ("field", "changed", "text"),
    [
        ("content", "a3", "the content 'a3 ' is stored, 'a3' was sent"),
        ("reasoning_content", "R", "the reasoning 'r' is stored, 'R' was sent"),
        (
            "tool_calls",
            [call("c3", '{"x": 1.0}')],
            "tool call 0 'f({\"x\": 1})' is stored, 'f({\"x\": 1.0})' was sent",
        ),
        ("tool_calls", [], "the number of tool calls 1 is stored, 0 was sent"),
    ],
)
def test_the_last_turn_edited_is_no_way_back_over_it(field: str, changed: Any, text: str) -> None:
    """Otherwise the sampled turn would be thrown away, and its edited copy be prompt text that nothing trains on."""
    session = codec().session(linear=True)
    messages = [user("q")]
    for number in range(4):
        step(session, messages, assistant(f"a{number} ", tool_calls=[call(f"c{number}", '{"x": 1}')]))
        messages.append(result(f"c{number}", "R"))
    session.prepare(messages)
    before = state(session)
    messages[-2] = {**messages[-2], field: changed}
    if changed == []:
        messages[-1] = user("u")
    with pytest.raises(SessionError) as error:
        session.prepare(messages)
    assert str(error.value) == (
        f"message 7 (assistant) is not what this session stores there: {text}; a request continues the last turn, or takes it "
        "back; open another session for another conversation"
    )
    messages[-2]["content"] = "a3 "
    messages[-3] = result("c2", "edited")
    with pytest.raises(SessionError, match="the content 'R' is stored, 'edited' was sent"):
        session.prepare(messages)
    assert state(session) == before


TWO: Json = {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("matcher", "changes", "text"),
    [
        ("strict", {"reasoning_content": ""}, "the reasoning 'r' is stored, '' was sent"),
        (
            "strict",
            {"tool_calls": [call("b", {"y": 2, "x": 1}), call("d", {})]},
            'tool call 0 \'f({"x": 1, "y": 2})\' is stored, \'f({"y": 2, "x": 1})\' was sent',
        ),
        (
            "tool_arguments",
            {"reasoning_content": "", "tool_calls": [call("b", {"y": 2, "x": 1}), call("d", {"z": 3})]},
            "tool call 1 'f({})' is stored, 'f({\"z\": 3})' was sent",
        ),
        (
            lambda stored, sent: stored.role != "assistant",
            {},
            "nothing that it holds differs, but the session's matcher takes it for another",
        ),
    ],
)
def test_what_a_matcher_finds_different_is_named(matcher: Any, changes: Json, text: str) -> None:
    session = codec().session(linear=True, matcher=matcher)
    reply = assistant("a", tool_calls=[call("a", TWO), call("c", {})])
    step(session, [user("q")], reply, tools=[TOOL])
    sent = {**reply, **changes}
    with pytest.raises(SessionError) as error:
        session.prepare([user("q"), sent, *(result(one["id"], "R") for one in sent["tool_calls"])])
    assert str(error.value) == (
        f"message 1 (assistant) is not what this session stores there: {text}; a request continues the last turn, or takes it "
        "back; open another session for another conversation"
    )


@pytest.mark.parametrize("stored", ["ann", None])
def test_a_name_is_of_its_message(stored: str | None) -> None:
    """One that a template prints may not change behind stored ids; a client's own name of a reply is no part of it."""
    store = MemoryStore()
    session = codec().session(linear=True, store=store, id="s")
    told = [{**user("q"), "name": stored}, {**assistant("a"), "name": "agent"}]
    step(session, told[:1], assistant("a"))
    for held in (session, codec().session(linear=True, store=store, id="s")):
        assert held.turns[0].messages[0].name == stored
        for _ in range(2):
            assert held.prepare([*told, user("u")]).parent is held.turns[0]
        with pytest.raises(SessionError, match=f"the name {stored!r} is stored, 'bob' was sent"):
            held.prepare([{**told[0], "name": "bob"}, told[1], user("u")])


def test_tools_that_differ_are_named() -> None:
    session = codec().session(linear=True)
    system = {"role": "system", "content": "S", "tools": [TOOL]}
    step(session, [system, user("q")], assistant("a"))
    with pytest.raises(SessionError, match="stores there: its tools or response_format differ; a request"):
        session.prepare([{"role": "system", "content": "S"}, user("q"), assistant("a"), user("u")])


@pytest.mark.parametrize("leaf", [0, "0", False])
def test_a_leaf_is_a_turn(leaf: Any) -> None:
    session = codec().session()
    assert (session.messages(), session.compare(), session.sampled()) == ((), [], [])
    turn = step(session, [user("q")], assistant("a"))
    assert session.messages(turn) == session.messages() != ()
    for asked in (session.messages, session.compare, session.sampled):
        with pytest.raises(SessionError) as error:
            asked(leaf)
        assert str(error.value) == (
            f"leaf is {leaf!r}, a {type(leaf).__name__}; pass one of the session's turns, or None for the last"
        )


def test_ids_of_a_client_s_own_are_no_difference_that_is_named() -> None:
    session = codec().session(linear=True)
    messages = [user("q")]
    for identity in ("a", "b", "c"):
        step(session, messages, assistant(identity, tool_calls=[call(identity)]), tools=[TOOL])
        messages.append(result(identity, "R"))
    messages[1:3] = [assistant("a", tool_calls=[call("theirs")]), result("theirs", "R")]
    messages[4] = result("b", "edited")
    with pytest.raises(SessionError, match=r"^message 4 \(tool\) .* the content 'R' is stored, 'edited' was sent"):
        session.prepare(messages)


def test_ids_that_somebody_holds_stand_whatever_comes_after() -> None:
    session = codec().session()
    messages = [user("q")]
    for number in range(3):
        step(session, messages, assistant(f"a{number}"))
        messages.append(user("u"))
    held = session.turns[-1].ids
    kept = held.tolist()
    step(session, [*messages[:4], user("another way")], assistant("longer than what stood there before, by far"))
    assert held.tolist() == kept
    assert session.turns[-1].ids.tolist() != kept


def test_calls_of_a_cut_completion_are_not_taken() -> None:
    session = codec().session(truncation="close")
    request = session.prepare([user("q")], tools=[TOOL])
    reply = assistant("", tool_calls=[call("a", '{"x": "y"}')])
    done = said(reply)
    with pytest.raises(CompletionError) as error:
        session.commit(request, Completion(done.ids[:-6], done.logprobs[:-6], "length", message=reply, id="c"))
    assert str(error.value) == (
        "completion c was cut by length, and its message has tool calls that are not known to be whole; leave them out of the "
        "message: a partial call is never run"
    )
    whole = Completion(done.ids[:-1], done.logprobs[:-1], "length", message=reply)
    assert session.commit(request, whole).message.tool_calls[0].name == "f"


def test_a_stop_string_that_is_not_there() -> None:
    session = codec().session()
    request = session.prepare([user("q")])
    done = said(assistant("a"))
    with pytest.raises(CompletionError) as error:
        session.commit(request, Completion(done.ids, done.logprobs, "stop", stop="zzz", message=assistant("a"), id="c"))
    assert str(error.value) == (
        "completion c is said to end with the stop string 'zzz', which its text (it ends 'r</think>a<｜end▁of▁sentence｜>'[-20:]) "
        "does not hold; pass stop=None where a token ended it"
    ).replace("'r</think>a<｜end▁of▁sentence｜>'[-20:]", repr("r</think>a<｜end▁of▁sentence｜>"[-20:]))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"truncation": "Refuse"}, "truncation is 'Refuse'; choose 'refuse' or 'close'"),
        ({"encoding": "litteral"}, "encoding is 'litteral'; choose 'literal' or 'reject' or 'engine'"),
    ],
)
def test_a_mistyped_rule_is_refused_when_the_session_is_opened(rule: Json, text: str) -> None:
    with pytest.raises(TitoError) as error:
        codec().session(**rule)
    assert str(error.value) == text


def test_commit_takes_a_request_and_a_completion() -> None:
    session = codec().session()
    request = session.prepare([user("q")])
    with pytest.raises(SessionError) as error:
        session.commit(said(assistant("a")), request)  # type: ignore[arg-type]
    assert str(error.value) == (
        "commit takes the Request that prepare gave and a Completion, not a Completion and a Request"
    )


def test_what_a_client_keeps_beside_a_message_is_no_matter() -> None:
    session = codec().session()
    odd = {"role": "user", "content": "q", "lock": threading.Lock(), "array": np.arange(3)}
    messages: list[Json] = [odd]
    for number in range(3):
        step(session, messages, {**assistant(f"a{number}"), "array": np.arange(3)})
        messages.append(user("u"))
    assert session.prepare(collections.deque(messages)).parent is session.turns[-1]
    assert session.prepare(tuple(messages)).ids.tolist() == session.prepare(messages).ids.tolist()


def test_what_a_client_changes_later_changes_nothing_that_is_stored() -> None:
    session = codec().session()
    asked = [Message("user", "q")]
    arguments = {"x": [1]}
    reply = Message("assistant", "", "r", (ToolCall("f", arguments, None, "c"),))
    done = said(assistant("", tool_calls=[call("c", '{"x": [1]}')]))
    session.commit(session.prepare(asked, tools=[TOOL]), dataclasses.replace(done, message=reply))
    arguments["x"].append(2)
    asked.append(Message("user", "other"))
    assert session.turns[0].message.tool_calls[0].arguments == {"x": [1]}
    assert session.messages()[:-1] == (Message("user", "q"),)
    told = [user("q"), assistant("", tool_calls=[call("c", '{"x": [1]}')]), Message("tool", "R", tool_call_id="c")]
    assert session.prepare(told).parent is session.turns[0]
    with pytest.raises(MessageError, match=r"^message 2 \(tool\) has no content"):
        session.prepare([*told[:2], Message("tool", None, tool_call_id="c")])  # type: ignore[arg-type]


def test_two_tools_of_one_name() -> None:
    session = codec().session()
    tools = [{"function": {"name": "f", "description": text}} for text in ("one", "two")]
    messages = [user("q")]
    step(session, messages, assistant("a"), tools=tools)
    messages.append(user("u"))
    session.prepare(messages, tools=tools)
    changed = [{"function": {"name": "f", "description": "other"}}, tools[1]]
    with pytest.raises(SessionError, match=r"^the tool 'f' changed from .*one.* to .*other"):
        session.prepare(messages, tools=changed)


def test_an_engine_that_saw_another_prompt_is_refused() -> None:
    session = codec().session()
    request = session.prepare([user("q")])
    done = said(assistant("a"))
    for seen, text in (
        (
            [*request.ids[:2], 7, *request.ids[3:]],
            f"at 2 was sent id {request.ids[2]}, the engine saw id 7 (5 and 5 in all)",
        ),
        (request.ids[:-1], f"at 4 was sent id {request.ids[4]}, the engine saw nothing (5 and 4 in all)"),
        ([*request.ids, 9], "at 5 was sent nothing, the engine saw id 9 (5 and 6 in all)"),
    ):
        with pytest.raises(CompletionError) as error:
            session.commit(request, dataclasses.replace(done, prompt_ids=seen, id="c"))
        assert str(error.value) == (
            f"completion c was sampled after other prompt ids than were sent: {text}; the engine must take ids, not their text"
        )
        assert session.turns == ()
    session.commit(request, dataclasses.replace(done, prompt_ids=request.ids.tolist()))


def test_a_sample_says_how_its_session_ended() -> None:
    session = codec().session(linear=True)
    messages = [user("q")]
    step(session, messages, assistant("a"))
    (whole,) = session.samples()
    assert whole.status == "complete"
    assert session.samples(max_tokens=3)[0].status == "truncated"
    with pytest.raises(SessionError) as caught:
        session.prepare([user("another"), *messages[1:], user("u")])
    (failed,) = session.samples(error=caught.value)
    assert failed.status == "SessionError"
    assert failed.tokens.tolist() == whole.tokens.tolist()
    request = session.prepare([*messages, user("u")])
    session.commit(request, Completion([5, 6], [-1.0, -1.0], "length", message=assistant("", "x")))
    assert session.samples()[0].status == "truncated"


def test_a_delimiter_that_the_model_sampled_is_its_own_text() -> None:
    session = codec().session()
    messages = [user("q")]
    ids = [*engine_ids("r1", "r</think>hi "), USER, *engine_ids("r1", " yo"), EOS]
    session.commit(
        session.prepare(messages), Completion(ids, [-1.0] * len(ids), "stop", message=assistant("hi <｜User｜> yo"))
    )
    step(session, [*messages, assistant("hi <｜User｜> yo"), user("u")], assistant("b"))
    assert session.sampled()[0] == (session.turns[0].end - len(ids), session.turns[0].end)
    assert {mismatch.kind for mismatch in session.compare()} == {"assistant_text"}


def test_control_text_that_the_model_sampled_is_compared_where_a_client_s_is_rejected() -> None:
    session = codec().session(encoding="reject")
    messages = [user("q")]
    ids = [*engine_ids("r1", "r</think>hi "), USER, *engine_ids("r1", " yo"), EOS]
    session.commit(
        session.prepare(messages), Completion(ids, [-1.0] * len(ids), "stop", message=assistant("hi <｜User｜> yo"))
    )
    assert {mismatch.kind for mismatch in session.compare()} == {"assistant_text"}
    assert session.counters().drift == {"assistant_text": 1}
    with pytest.raises(EncodingError):
        session.prepare([*messages, assistant("hi <｜User｜> yo"), user("<｜User｜>")])


def test_a_long_session_is_small() -> None:
    """226 turns of 100,000 ids, messages included: as the benchmark counts."""
    path = Path(__file__).parent.parent / "benchmarks" / "session_memory.py"
    spec = importlib.util.spec_from_file_location("session_memory", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    session, _ = benchmark.grown()
    sizes, ids = benchmark.owned(session), session.turns[-1].end
    assert set(sizes) == {"ids and log-probs", "texts", "objects"}
    assert min(sizes.values()) > 200_000, "what is not found is not counted"
    assert 4 * (ids + sum(turn.sampled for turn in session.turns)) < sizes["ids and log-probs"]
    assert sum(sizes.values()) <= 2_000_000
    assert ids >= 100_000
    assert len(session.turns) == 226


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *(
            (
                {"id": name},
                f"a completion has the id {name!r}; it is text that names it, and not empty: leave it out for a ",
            )
            for name in ("", None, 5, b"c", "\ud800")
        ),
        *(
            ({"id": "c", "meta": meta}, f"completion c has meta of type {kind}; map a name to what the engine said")
            for meta, kind in ((None, "NoneType"), ([], "list"), ("x", "str"))
        ),
        *(
            (
                {"id": "c", "extras": {name: rows}},
                f"completion c has extras {name!r} of type {rows.dtype}; their name is text, and rows are numpy's own booleans, "
                "or numbers of 64 bits at most, which stores and samples keep: give others as float32, or as their bits "
                "(bfloat16: rows.view(numpy.uint16))",
            )
            for name, rows in (
                ("x", np.array([object()])),
                ("x", np.array(["a"])),
                ("x", np.zeros(1, dtype=[("a", "i4")])),
                ("x", np.zeros(1, dtype=[("a", "O")])),
                ("x", np.zeros(1, dtype="M8[s]")),
                ("x", np.zeros(1, dtype="m8[s]")),
                ("x", np.zeros(1, dtype="V2")),  # how another library's bfloat16 is described
                ("x", np.zeros(1, dtype=complex)),
                ("x", np.zeros(1, dtype=np.longdouble)),
                (5, np.zeros(1)),
                ("\ud800", np.zeros(1)),
            )
        ),
        (
            {"id": "c", "stop": "a\ud800"},
            "completion c has a stop that holds the lone surrogate '\\ud800' at character 1, which is not text; decode the bytes "
            "it came from with errors='replace'",
        ),
    ],
)
def test_a_completion_s_id_meta_and_extras(change: Json, why: str) -> None:
    with pytest.raises(CompletionError) as error:
        Completion([5], [-1.0], "stop", **change)
    assert str(error.value).startswith(why)


def test_a_conversation_keeps_the_date_that_it_began_with() -> None:
    """A template may print the time: turns later, and after a restart, it is still that of the first prompt."""
    qwen = tito_core.load("qwen3")
    source = "{{- strftime_now('%d %b %Y %H:%M:%S.%f') }}" + qwen.template.source
    dated = Codec(qwen.loaded, qwen.encoder, Template.of_text(source, "dated"), qwen.revision, qwen.origin)
    store, messages, texts = MemoryStore(), [user("q")], []
    for number in range(3):
        session = dated.session(store=store, id="s")
        request = session.prepare(messages)
        texts.append(dated.decode(request.ids).partition("<|im_start|>")[0])
        completion = ScriptedEngine(qwen, number, canonical=True).say(assistant("a"), request.decision)
        session.commit(request, completion)
        messages += [assistant("a"), user("q")]
        assert session.compare() == []
    assert len(set(texts)) == 1
    moment = datetime.fromtimestamp(session.turns[0].requested)
    assert texts[0] == moment.strftime("%d %b %Y %H:%M:%S.%f")
    again = dated.session().prepare(messages[:1])
    assert dated.decode(again.ids).partition("<|im_start|>")[0] != texts[0]
