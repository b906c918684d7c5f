"""Sessions as forests: where a request continues, what becomes a sibling or another root, and what leaves no trace.

Ids on the right-hand side are `tokenizers` on the published print, or those of the completions that a test made.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amounts import examples
from chats import TOOL, Json, assistant, call, codec, result, said, step, user
from tito_core import Codec, Completion, Message, Session, Turn
from tito_core.errors import CompletionError, GateError, MessageError, SessionError, ThinkingError, TruncatedTurnError
from tito_core.sessions import matching
from token_path import EOS, engine_ids
from v32_upstream import upstream_text


def printed(messages: list[Json], tools: list[Json] | None = None) -> list[int]:
    """Ids of a conversation's published print."""
    text = upstream_text(messages, tools, thinking=True)
    assert text is not None
    return engine_ids("r1", text).tolist()


def frozen(session: Session) -> list[tuple[Any, ...]]:
    """All that a reader can see of a session, as bytes and places."""
    return [
        (
            turn.number,
            turn.depth,
            turn.parent and turn.parent.number,
            turn.ids.tobytes(),
            turn.new.tobytes(),
            np.asarray(turn.completion.logprobs).tobytes(),
            turn.completion.id,
            turn.conversation(),
            turn.kept,
            turn.spans,
            turn.committed,
        )
        for turn in session.turns
    ]


def shape(session: Session) -> list[int | None]:
    """The number of each turn's parent."""
    return [turn.parent.number if turn.parent else None for turn in session.turns]


def calling(*identities: str) -> Json:
    return assistant("", tool_calls=[call(identity) for identity in identities])


def test_a_retry_is_a_sibling_with_the_same_prompt() -> None:
    session = codec().session()
    messages = [user("q")]
    step(session, messages, calling("a"), tools=[TOOL])
    asked = [*messages, result("a", "R")]
    prompts = []
    for text in ("one", "two", "three"):
        request = session.prepare(asked)
        prompts.append(request.ids.tolist())
        turn = session.commit(request, said(assistant(text)))
        assert turn.ids.tolist() == printed([*asked, assistant(text)], [TOOL])
    assert shape(session) == [None, 0, 0, 0]
    assert session.leaves == session.turns[1:]
    assert prompts == [prompts[0]] * 3
    went_on = session.commit(session.prepare([*asked, assistant("two"), user("u")]), said(assistant("four")))
    assert went_on.parent is session.turns[2]
    assert session.leaves == (session.turns[1], session.turns[3], went_on)


def test_a_retry_of_the_first_turn_is_another_root() -> None:
    session = codec().session()
    first = session.prepare([user("q")]).ids.tolist()
    for text in ("a", "b", "c"):
        request = session.prepare([user("q")])
        assert (request.parent, request.ids.tolist()) == (None, first)
        session.commit(request, said(assistant(text)))
    assert shape(session) == [None, None, None]
    assert session.prepare([user("q"), assistant("b"), user("u")]).parent is session.turns[1]


def test_of_equal_retries_the_newest_is_continued() -> None:
    session = codec().session()
    for _ in range(2):
        session.commit(session.prepare([user("q")]), said(assistant("a")))
    assert session.prepare([user("q"), assistant("a"), user("u")]).parent is session.turns[1]


def test_of_retries_that_match_the_one_that_the_client_names_is_continued() -> None:
    session = codec().session()
    for identity in ("a", "b", "c"):
        session.commit(session.prepare([user("q")], tools=[TOOL]), said(calling(identity)))
    for number, identity in enumerate(("a", "b", "c")):
        request = session.prepare([user("q"), calling(identity), result(identity, "R")])
        assert request.parent is session.turns[number]
    assert session.prepare([user("q"), calling("other"), result("other", "R")]).parent is session.turns[2]


def test_of_retries_that_match_the_one_with_the_reasoning_that_was_sent_is_continued() -> None:
    session = codec().session()
    for reasoning in ("", "r", "s"):
        session.commit(session.prepare([user("q")]), said(assistant("a", reasoning)))
    for reasoning, number in (("", 0), ("r", 1), ("s", 2)):
        assert session.prepare([user("q"), assistant("a", reasoning), user("u")]).parent is session.turns[number]
        sent = Message("assistant", "a", reasoning)
        assert session.prepare([user("q"), sent, user("u")]).parent is session.turns[number]  # type: ignore[list-item]


def test_of_retries_that_match_one_that_was_not_cut_is_continued() -> None:
    session = codec().session()
    whole = session.commit(session.prepare([user("q")]), said(assistant("a")))
    cut = Completion(whole.completion.ids[:-1], [-1.0] * (whole.sampled - 1), "length", message=assistant("a"))
    session.commit(session.prepare([user("q")]), cut)
    assert session.prepare([user("q"), assistant("a"), user("u")]).parent is whole


def test_ids_of_calls_come_before_reasoning_and_that_before_a_cut() -> None:
    session = codec().session(truncation="close")
    for identity, reasoning in (("a", "r"), ("b", "")):
        reply = assistant("", reasoning, tool_calls=[call(identity)])
        session.commit(session.prepare([user("q")], tools=[TOOL]), said(reply))
    sent = [user("q"), assistant("", "", tool_calls=[call("a")]), result("a", "R")]
    assert session.prepare(sent).parent is session.turns[0]
    cut = Completion([5, 6], [-1.0] * 2, "length", message=assistant("x", ""))
    session.commit(session.prepare([user("q")]), cut)
    session.commit(session.prepare([user("q")]), said(assistant("x", "r")))
    assert session.prepare([user("q"), assistant("x", ""), user("u")]).parent is session.turns[2]
    assert session.prepare([user("q"), assistant("x", "r"), user("u")]).parent is session.turns[3]


def test_a_retry_of_a_compaction_is_one_too() -> None:
    session = codec().session()
    first = step(session, [user("q")], assistant("the sum of all that was said so far"))
    for text in ("a", "b", "c"):
        root = session.commit(
            session.prepare([user("Well: the sum of all that was said so far")]), said(assistant(text))
        )
        assert root.parent is None
        assert root.summarises is first
    again = session.commit(session.prepare([user("q")]), said(assistant("other")))
    assert again.summarises is None


def test_a_ledger_is_read_only() -> None:
    session = codec().session(truncation="close")
    request = session.prepare([user("q")])
    session.commit(request, Completion([5, 6], [-1.0] * 2, "length", message=assistant("", "x")))
    following = session.prepare([user("q"), assistant("", "x"), user("u")])
    assert len(following.ledger.inserted)
    for rows in (request.ledger.suffix, following.ledger.inserted, following.ledger.suffix, following.ids):
        before = rows.tolist()
        with pytest.raises(ValueError, match="read-only"):
            rows[0] = 7
        assert rows.tolist() == before


def test_a_way_back_over_any_number_of_turns_is_a_branch() -> None:
    session = codec().session()
    messages = [user("q")]
    for text in ("a", "b", "c"):
        step(session, messages, assistant(text))
        messages.append(user(f"after {text}"))
    held = [turn.ids for turn in session.turns]
    kept = [ids.tolist() for ids in held]
    told = [*messages[:2], user("another way")]
    turn = step(session, told, assistant("d"))
    assert shape(session) == [None, 0, 1, 0]
    assert turn.ids.tolist() == printed(told)
    assert turn.ids.tolist()[: session.turns[0].end] == kept[0]
    assert [ids.tolist() for ids in held] == [turn.ids.tolist() for turn in session.turns[:3]] == kept
    assert session.prepare(messages).parent is session.turns[2]
    assert session.prepare([*told, user("u")]).parent is turn
    assert session.compare(session.turns[2]) == session.compare(turn) == []


def test_branches_share_what_stands_before_them() -> None:
    session = codec().session()
    messages = [user("q")]
    parent = step(session, messages, calling("a"), tools=[TOOL])
    turns = []
    for text in ("left", "right"):
        told = [*messages, result("a", text)]
        turns.append(step(session, told, assistant(text)))
        assert turns[-1].ids.tolist() == printed(told, [TOOL])
    assert [turn.parent for turn in turns] == [parent, parent]
    assert sum(len(turn.new) for turn in session.turns) == turns[0].end + turns[1].end - parent.end


def test_two_continuations_in_flight_together_are_two_children() -> None:
    session = codec().session()
    messages = [user("q")]
    parent = step(session, messages, calling("a"), tools=[TOOL])
    requests = [session.prepare([*messages, result("a", text)]) for text in ("R1", "R2")]
    for request, text in zip(reversed(requests), ("late", "early"), strict=True):
        session.commit(request, said(assistant(text)))
    assert shape(session) == [None, 0, 0]
    assert [turn.messages[0].content for turn in session.turns[1:]] == ["R2", "R1"]
    for turn in session.turns[1:]:
        wire = [*messages, result("a", turn.messages[0].content), assistant(turn.message.content)]
        assert turn.ids.tolist() == printed(wire, [TOOL])
    assert session.turns[1].parent is session.turns[2].parent is parent


def test_a_divergent_first_message_is_a_conversation_of_its_own() -> None:
    session = codec().session()
    session.prepare([user("never sent")])
    first = step(session, [user("A")], assistant("a"))
    other = [user("B")]
    turn = step(session, other, assistant("b"))
    assert (turn.parent, turn.summarises, turn.depth) == (None, None, 0)
    assert turn.ids.tolist() == printed(other)
    assert session.prepare([user("A"), assistant("a"), user("u")]).parent is first
    assert session.prepare([*other, user("u")]).parent is turn


def test_a_compaction_is_a_root_linked_to_the_summary() -> None:
    session = codec().session()
    messages = [{"role": "system", "content": "S"}, user("q")]
    for text in ("a", "b"):
        step(session, messages, assistant(text))
        messages.append(user("go on"))
    messages[-1] = user("sum up")
    summary = step(session, messages, assistant(" We did a and b, and c is left to do.\n"))
    compacted = [messages[0], user("So far:\nWe did a and b, and c is left to do.\nGo on.")]
    turn = step(session, compacted, assistant("c"))
    assert (turn.parent, turn.summarises) == (None, summary)
    assert turn.ids.tolist() == printed(compacted)
    later = step(session, [*compacted, user("u")], assistant("d"))
    assert (later.parent, later.summarises) == (turn, None)
    one, two = session.samples()
    assert (one.leaf, two.leaf) == (summary.number, later.number)
    assert one.metadata.get("summarises") is None
    assert two.metadata["summarises"] == summary.completion.id
    assert trained(one) == [*said(assistant("a")).ids, *said(assistant("b")).ids, *summary.completion.ids]
    assert trained(two) == [*said(assistant("c")).ids, *said(assistant("d")).ids]


def test_a_first_prompt_that_was_there_before_summarises_nothing() -> None:
    session = codec().session()
    four, five = ("the answer is the number four, surely", "the answer is the number five, surely")
    for text in (four, five):
        assert step(session, [user(f"{four} or {five}?")], assistant(text)).summarises is None
    assert step(session, [user(f"{four} or {five}, again")], assistant("6")).summarises is session.turns[1]
    assert step(session, [assistant(five), user("u")], assistant("7")).summarises is None


@pytest.mark.parametrize(
    ("said_before", "asked", "linked"),
    [
        ("ok", "ok, look at the book again", False),
        ("1", "what is 11 + 31?", False),
        ("I am sorry, I can't help you.", "It said: I am sorry, I can't help you.", False),
        (f"{'x' * 31}\n ", f"So far: {'x' * 31}", False),
        (f"\n{'x' * 32} ", f"So far: {'x' * 32}", True),
        ("好" * 32, "好" * 33, True),
        ("We did a and b, and c is left to do.", "We did a and b, and c is left.", False),
    ],
)
def test_a_first_prompt_is_linked_to_no_text_that_could_stand_there_by_chance(
    said_before: str, asked: str, linked: bool
) -> None:
    session = codec().session()
    step(session, [user("q")], assistant(said_before))
    turn = step(session, [user(asked)], assistant("a"))
    assert turn.summarises is (session.turns[0] if linked else None)


def trained(sample: Any) -> list[int]:
    made: list[int] = sample.tokens[sample.loss_mask == 1].tolist()
    return made


def test_an_injected_assistant_is_never_continued_and_never_trains() -> None:
    session = codec().session()
    messages = [user("q")]
    first = step(session, messages, assistant("a"))
    told = [*messages, assistant("injected"), user("u")]
    turn = step(session, told, assistant("b"))
    other = [*told[:3], user("another")]
    request = session.prepare(other)
    assert request.parent is first
    assert [message.content for message in request.messages] == ["injected", "another"]
    with pytest.raises(GateError, match=r"^message 2 \(assistant\) is the last of the append"):
        session.prepare(told[:3])
    (sample,) = session.samples()
    assert trained(sample) == [*said(assistant("a")).ids, *said(assistant("b")).ids]
    assert ("content", 2, "assistant") in {(span.source, span.index, span.role) for span in sample.spans}
    assert turn.ids.tolist() == printed(told)


def test_an_edited_reply_is_prompt_text_and_the_sampled_one_stays() -> None:
    session = codec().session()
    messages = [user("q")]
    step(session, messages, assistant("a"))
    messages.append(user("u"))
    sampled = step(session, messages, assistant("b"))
    edited = [*messages[:3], assistant("better"), user("v")]
    turn = step(session, edited, assistant("c"))
    assert turn.parent is session.turns[0]
    assert session.leaves == (sampled, turn)
    one, two = session.samples(select="leaves")
    assert trained(one) == [*said(assistant("a")).ids, *said(assistant("b")).ids]
    assert trained(two) == said(assistant("c")).ids.tolist()  # type: ignore[union-attr]
    assert two.tokens.tolist() == printed(edited)
    narrow = codec().session(append_roles={"tool", "user"})
    step(narrow, messages[:1], assistant("a"))
    with pytest.raises(GateError, match=r"^message 3 \(assistant\) can't be appended"):
        narrow.prepare(edited)


def narrow_session() -> tuple[Session, list[Json]]:
    """A session that appends results only, after two turns, and what its client would send next."""
    session = codec().session(append_roles={"tool"})
    messages: list[Json] = [{"role": "system", "content": "at 9:00"}, user("q")]
    for identity in ("a", "b"):
        step(session, messages, assistant(identity, tool_calls=[call(identity)]), tools=[TOOL])
        messages.append(result(identity, f"R{identity}"))
    return session, messages


@pytest.mark.parametrize(
    ("place", "changed", "turn", "what"),
    [
        (0, {"role": "system", "content": "at 9:01"}, 1, "the content 'at 9:00' is stored, 'at 9:01' was sent"),
        (1, user("Q"), 1, "the content 'q' is stored, 'Q' was sent"),
        (2, assistant("x", tool_calls=[call("their_a")]), 1, "the content 'a' is stored, 'x' was sent"),
    ],
)
def test_an_edited_echo_is_refused_where_no_assistant_may_be_appended(
    place: int, changed: Json, turn: int, what: str
) -> None:
    session, messages = narrow_session()
    before = frozen(session)
    named = [*messages]
    for at, identity in ((2, "a"), (4, "b")):
        theirs = f"their_{identity}"
        named[at : at + 2] = assistant(identity, tool_calls=[call(theirs)]), result(theirs, f"R{identity}")
    named[place] = changed
    with pytest.raises(SessionError) as error:
        session.prepare(named)
    assert str(error.value) == (
        f"message {place} ({changed['role']}) is not what turn {turn} holds there: {what}; so the request continues no turn, "
        "and the assistant messages that it repeats would be prompt text, which this session's append roles ['tool'] leave out: "
        "send what is stored, begin anew with a summary, or open a session that appends assistant messages"
    )
    assert error.value.where == {"index": place, "role": changed["role"], "turn": turn}
    assert frozen(session) == before


def test_what_begins_anew_is_a_root_where_no_assistant_may_be_appended() -> None:
    session, messages = narrow_session()
    said_last = "all is done, and this is what came of it"
    step(session, messages, assistant(said_last))
    shot = [user("2 + 2?"), assistant("4"), user("3 + 3?")]
    for told in (
        messages[:2],
        [messages[0], user("another")],
        [user("alone")],
        shot,
        [*shot[:2], user("4 + 4?")],
        [messages[0], user(f"So far: {said_last}"), *messages[2:4]],
        [messages[0], user("Somebody else's words"), *messages[4:6]],
    ):
        assert session.prepare(told).parent is None
    step(session, shot, assistant("6"))
    assert session.prepare([*shot[:2], user("5 + 5?")]).parent is None
    wide = codec().session()
    asked = [user("q")]
    step(wide, asked, assistant("a"))
    assert wide.prepare([user("Q"), assistant("a"), user("u")]).parent is None


def test_a_turn_that_was_cut_refuses_to_go_on_and_can_be_sampled_again() -> None:
    session = codec().session()
    messages = [user("q")]
    step(session, messages, assistant("a"))
    messages.append(user("u"))
    ids = said(assistant("b", "long thoughts")).ids[:2]
    cut = session.commit(
        session.prepare(messages), Completion(ids, [-1.0, -2.0], "length", message=assistant("", "lo"))
    )
    before = frozen(session)
    with pytest.raises(TruncatedTurnError, match=r"^message 3 \(assistant\) was cut by length after 2 sampled ids"):
        session.prepare([*messages, assistant("", "lo"), user("v")])
    assert frozen(session) == before
    again = step(session, messages, assistant("b"))
    assert again.parent is cut.parent
    assert [sample.leaf for sample in session.samples()] == [again.number]


def test_a_turn_that_was_cut_is_closed() -> None:
    session = codec().session(truncation="close")
    ids = said(assistant("b", "long thoughts")).ids[:2]
    cut = session.commit(
        session.prepare([user("q")]), Completion(ids, [-1.0, -2.0], "length", message=assistant("", "long thoughts"))
    )
    told = [user("q"), assistant("", "long thoughts"), user("v")]
    turn = step(session, told, assistant("c"))
    assert turn.parent is cut
    assert turn.ids.tolist() == printed(told)
    (sample,) = session.samples()
    assert trained(sample) == [*ids, *said(assistant("c")).ids]
    assert sample.status == "complete"


def test_a_system_message_between_turns_stands_where_it_was_sent() -> None:
    session = codec().session()
    messages = [{"role": "system", "content": "S"}, user("q")]
    for number in range(3):
        turn = step(session, messages, assistant(f"a{number}"))
        assert turn.ids.tolist() == printed(messages)
        messages += [{"role": "system", "content": f"{5 - number}000 tokens left"}, user("go on")]
    assert shape(session) == [None, 0, 1]
    step(session, messages, calling("a"), tools=None)
    before = frozen(session)
    with pytest.raises(GateError) as error:
        session.prepare([*messages, result("a", "R"), {"role": "system", "content": "2000 tokens left"}])
    assert str(error.value) == (
        "message 13 (system) can't be appended to a deepseekv32 session after a tool message: what may stand there is "
        "assistant or tool or user"
    )
    assert frozen(session) == before


def test_what_is_refused_leaves_no_trace() -> None:
    session = codec().session(append_roles={"tool", "user"})
    messages = [user("q")]
    step(session, messages, calling("a"), tools=[TOOL])
    request = session.prepare([*messages, result("a", "R")])
    before = frozen(session)
    for appended in (
        [],
        [{"role": "system", "content": "S"}],
        [result("zz", "R")],
        [user("no result")],
        [result("a", "R"), result("a", "R")],
        [{"role": "user", "content": None}],
        [result("a", "R"), assistant("injected"), user("u")],
    ):
        with pytest.raises((GateError, MessageError, SessionError)):
            session.prepare([*messages, *appended])
        assert frozen(session) == before
    for wrong in (
        Completion([5, 1], [-1.0, -1.0], "abort", message=assistant("a")),
        Completion([5, 1, 5], [-1.0] * 3, "stop", message=assistant("a")),
        Completion([5, 999999], [-1.0] * 2, "stop", message=assistant("a")),
        Completion([5, 1], [-1.0] * 2, "stop", message=user("a")),
        Completion([5, 1], [-1.0] * 2, "stop", message=assistant("a"), prompt_ids=[1, 2]),
        Completion([5, 1], [-1.0] * 2, "stop", message=assistant("a"), stop="never said"),
        Completion([5, 1], [-1.0] * 2, "stop", message=assistant("a"), extras={"experts": np.zeros((3, 2))}),
        Completion([5, 1], [-1.0] * 2, "stop", message=assistant("a"), id=session.turns[0].completion.id),
    ):
        with pytest.raises((CompletionError, SessionError)):
            session.commit(request, wrong)
        assert frozen(session) == before
    session.commit(request, said(assistant("b")))
    assert frozen(session)[:1] == before


def test_a_request_whose_ids_are_not_its_parent_s_is_refused() -> None:
    session = codec().session()
    messages = [user("q")]
    parent = step(session, messages, assistant("a"))
    request = session.prepare([*messages, user("u")])
    with pytest.raises(ValueError, match="read-only"):
        request.ids[3] = 9
    ids = request.ids.copy()
    ids[3] = 9
    request.ledger.ids = ids
    before = frozen(session)
    with pytest.raises(SessionError) as error:
        session.commit(request, said(assistant("b")))
    assert str(error.value) == (
        f"the request's ids are not those of turn 0 that it continues: at 3 is id 9, and id {parent.ids[3]} is stored; what "
        "prepare gave was changed, prepare it again"
    )
    assert frozen(session) == before


def test_a_completion_is_stored_once() -> None:
    session = codec().session()
    request, done = session.prepare([user("q")]), said(assistant("a"))
    session.commit(request, done)
    with pytest.raises(SessionError) as error:
        session.commit(request, done)
    assert str(error.value) == (
        f"completion {done.id} is stored already, as turn 0; each is stored once, and trains once: give another sampling "
        "another id"
    )
    assert session.commit(request, said(assistant("a"))).number == 1


def test_mode_and_tools_are_the_session_s_in_every_conversation() -> None:
    session = codec().session()
    early = session.prepare([user("B")], chat_template_kwargs={"thinking": False})
    other = session.prepare([user("B")], tools=[TOOL])
    step(session, [user("A")], assistant("a"), tools=[])
    before = frozen(session)
    with pytest.raises(ThinkingError, match="^the request asks for thinking=False, but this session's first turn"):
        session.prepare([user("C")], chat_template_kwargs={"thinking": False})
    with pytest.raises(ThinkingError, match="^the request asks for thinking=False, but this session's first turn"):
        session.commit(early, said(assistant("a"), thinking=False))
    with pytest.raises(SessionError, match="^the tool 'f' is new"):
        session.prepare([user("C")], tools=[TOOL])
    with pytest.raises(SessionError, match="^the tool 'f' is new"):
        session.commit(other, said(assistant("a")))
    assert frozen(session) == before
    tooled = codec().session()
    step(tooled, [user("A")], assistant("a"), tools=[TOOL])
    assert tooled.prepare([user("C")]).ids.tolist() == tooled.prepare([user("C")], tools=[TOOL]).ids.tolist()


def test_the_client_s_call_ids_stand_for_the_sampled_ones() -> None:
    session = codec().session()
    messages = [user("q")]
    sampled = [call("functions.f:0", '{"x": 1}'), call("functions.f:1", '{"x": 2}')]
    turn = step(session, messages, assistant("", tool_calls=sampled), tools=[TOOL])
    theirs = [call("call_ab12", '{"x": 1}'), call("call_cd34", '{"x": 2}')]
    told = [user("q"), assistant("", tool_calls=theirs), result("call_cd34", "R2"), result("call_ab12", "R1")]
    request = session.prepare(told)
    assert request.parent is turn
    assert [(one.tool_call_id, one.content) for one in request.messages] == [
        ("functions.f:0", "R1"),
        ("functions.f:1", "R2"),
    ]
    second = session.commit(request, said(assistant("b")))
    told += [assistant("b"), user("u")]
    assert session.prepare(told).parent is second
    assert session.prepare(
        [*messages, result("functions.f:1", "R2"), result("functions.f:0", "R1"), *told[4:]]
    ).parent is (second)
    assert turn.message.tool_calls[0].id == "functions.f:0"
    with pytest.raises(MessageError, match="^message 2 .tool. has the tool_call_id 'functions.f:0', which message 1"):
        session.prepare([*told[:2], result("functions.f:0", "R1"), result("functions.f:1", "R2")])


def any_order(stored: Message, sent: Message) -> bool:
    return stored.role == sent.role and sorted(one.name for one in stored.tool_calls) == sorted(
        one.name for one in sent.tool_calls
    )


def test_calls_that_a_matcher_takes_in_another_order_keep_their_results() -> None:
    session = codec().session(matcher=any_order)
    other: Json = {**call("b"), "function": {"name": "g", "arguments": "{}"}}
    turn = step(session, [user("q")], assistant("", tool_calls=[call("a"), other]))
    swapped = [user("q"), assistant("", tool_calls=[other, call("a")]), result("b", "G"), result("a", "F")]
    request = session.prepare(swapped)
    assert request.parent is turn
    assert [(one.tool_call_id, one.content) for one in request.messages] == [("a", "F"), ("b", "G")]
    ones, twos = ([call(identity, {"x": int(identity)}) for identity in order] for order in ("12", "21"))
    step(session, [user("r")], assistant("", tool_calls=ones))
    request = session.prepare([user("r"), assistant("", tool_calls=twos), result("2", "F2"), result("1", "F1")])
    assert [(one.tool_call_id, one.content) for one in request.messages] == [("1", "F1"), ("2", "F2")]
    swapped = [call("2", {"x": 1}), call("1", {"x": 2})]
    request = session.prepare([user("r"), assistant("", tool_calls=swapped), result("2", "F1"), result("1", "F2")])
    assert [(one.tool_call_id, one.content) for one in request.messages] == [("1", "F1"), ("2", "F2")]
    theirs = [{**other, "id": "x"}, call("y")]
    with pytest.raises(SessionError) as error:
        session.prepare([user("q"), assistant("", tool_calls=theirs), result("x", "G"), result("y", "F")])
    assert str(error.value) == (
        "the matcher 'any_order' takes the calls of g, f for those of f, g, under ids that are not theirs: which result is "
        "which call's can't be told; it must not, or the client must send the ids that were sampled"
    )


def exampled(identity: str) -> list[Json]:
    return [user("q"), calling(identity), result(identity, "R"), user("u")]


@pytest.mark.parametrize("matcher", ["strict", "tool_arguments", lambda stored, sent: stored.tool_call_id is None])
@pytest.mark.parametrize("rule", [{}, {"append_roles": {"tool", "user"}}, {"linear": True}])
def test_the_client_s_ids_of_calls_that_it_put_in_are_no_difference(rule: Json, matcher: Any) -> None:
    session = codec().session(matcher=matcher, **rule)
    turn = step(session, exampled("a"), assistant("a"))
    assert session.prepare([*exampled("b"), assistant("a"), user("v")]).parent is turn
    assert session.prepare(exampled("b")).ids.tolist() == turn.ids[: -turn.sampled].tolist()
    if not rule:
        later = step(session, [*exampled("a"), assistant("a"), *exampled("a")], assistant("b"))
        assert (
            session.prepare([*exampled("b"), assistant("a"), *exampled("c"), assistant("b"), user("v")]).parent is later
        )


def test_reasoning_under_either_name_or_none() -> None:
    session = codec().session()
    turn = step(session, [user("q")], assistant("a1", "r1"))
    kept = turn.ids.tolist()
    for echo in (
        {"role": "assistant", "reasoning": "r1", "content": "a1"},
        {"role": "assistant", "reasoning_content": "r1", "reasoning": None, "content": "a1"},
        {"role": "assistant", "reasoning_content": "r1", "reasoning": "r1", "content": "a1"},
        {"role": "assistant", "reasoning_content": "", "content": "a1"},
        {"role": "assistant", "content": "a1"},
    ):
        request = session.prepare([user("q"), echo, user("u")])
        assert request.parent is turn
        assert request.ids.tolist()[: turn.end] == kept
    request = session.prepare([user("q"), {"role": "assistant", "reasoning": "other", "content": "a1"}, user("u")])
    assert request.parent is None


@pytest.mark.parametrize(
    ("echo", "strictly", "loosely"),
    [
        (assistant("a", tool_calls=[call("a", '{"x": 1, "y": [true]}')]), True, True),
        (assistant("a", tool_calls=[call("a", '{"x":1,"y":[true]}')]), True, True),
        (assistant("a", tool_calls=[call("a", {"x": 1, "y": [True]})], refusal=None, audio=None), True, True),
        (assistant([{"type": "text", "text": "a"}], tool_calls=[call("a", '{"x": 1, "y": [true]}')]), True, True),  # type: ignore[arg-type]
        (assistant("a", tool_calls=[call("a", '{"y": [true], "x": 1}')]), False, True),
        (assistant("a", "", tool_calls=[call("a", '{"x": 1, "y": [true]}')]), False, True),
        (assistant("a", tool_calls=[call("a", '{"x": 1.0, "y": [true]}')]), False, False),
        (assistant("a", tool_calls=[call("a", '{"x": true, "y": [true]}')]), False, False),
        (assistant("a", tool_calls=[call("a", '{"x": 1, "y": [1]}')]), False, False),
        (assistant("a", tool_calls=[call("a", '{"x": 1, "y": [true], "z": null}')]), False, False),
        (assistant("b", tool_calls=[call("a", '{"x": 1, "y": [true]}')]), False, False),
        (assistant("a", "R", tool_calls=[call("a", '{"x": 1, "y": [true]}')]), False, False),
    ],
)
def test_matchers(echo: Json, strictly: bool, loosely: bool) -> None:
    for matcher, expected in (("strict", strictly), ("tool_arguments", loosely)):
        session = codec().session(matcher=matcher)
        reply = assistant("a", tool_calls=[call("a", '{"x": 1, "y": [true]}')])
        turn = step(session, [user("q")], reply, tools=[TOOL])
        request = session.prepare([{**user("q"), "name": None, "cache_control": {}}, echo, result("a", "R")])
        assert (request.parent is turn) == expected
        if expected:
            plain = session.prepare([user("q"), reply, result("a", "R")])
            assert request.ids.tolist() == plain.ids.tolist()


ABSENT = object()
PARTS = [{"type": "text", "text": "a"}]
CALLS = [
    [call("c", '{"x": 1}')],
    [call("c", '{"x":1}')],
    [call("c", {"x": 1})],
    [call("d", '{"x": 1}')],
    [call("c", '{"x": 1.0}')],
    [call("c", '{"x": 1}')] * 2,
    [{"id": "c", "function": {"name": "f"}}],
    [3],
]


def exactly(calling: bool) -> list[Json]:
    reply = assistant("", "r", tool_calls=CALLS[0]) if calling else assistant("a")
    return [user("a"), reply]


@cache
def asked_and_said(calling: bool) -> tuple[Session, Session]:
    """Two sessions of the same turn, one that matches strictly."""
    made = codec().session(), codec().session(matcher="strict")
    for session in made:
        step(session, [user("a")], exactly(calling)[1], tools=[TOOL])
    return made


VALUES: dict[str, list[Any]] = {
    "role": ["user", "system", "assistant", "tool", None],
    "content": ["a", "", None, 0, False, [], PARTS, "b", ABSENT],
    "tool_call_id": [None, "c"],
    "reasoning": [ABSENT, None, "", "r", "R", 0, ["r"]],
    "reasoning_content": [ABSENT, None, "", "r", "R", False],
    "tool_calls": [ABSENT, None, [], False, {}, *CALLS],
    "refusal": [None, "no"],
    "function_call": [None, {"name": "f"}],
}
CHANGES = st.sampled_from(
    [(place, key, value) for place in (0, 1) for key, values in VALUES.items() for value in values]
)


@settings(max_examples=examples(400), deadline=None, database=None)
@given(changes=st.lists(CHANGES, max_size=3), calling=st.booleans())
def test_what_is_recognised_without_normalising_is_what_normalising_shows(changes: Any, calling: bool) -> None:
    for session in asked_and_said(calling):
        sent = exactly(calling)
        for place, key, value in changes:
            sent[place].pop(key, None)
            if value is not ABSENT:
                sent[place][key] = value
        quick = session._matcher.found(session.turns, sent)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matching, "_spelled", lambda *_: False)
            patch.setattr(matching.Matcher, "_continued", lambda *_: False)
            slow = session._matcher.found(session.turns, sent)
        assert quick == slow


def test_what_was_matched_before_is_not_normalised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's own spelling is read once: a prompt costs what is new in it, not its history."""
    session, messages, read = codec().session(), [user("q")], list[int]()
    normalise = Codec.normalise

    def counted(self: Codec, sent: Any, **more: Any) -> Any:
        read.append(len(sent))
        return normalise(self, sent, **more)

    monkeypatch.setattr(Codec, "normalise", counted)
    for number in range(5):
        read.clear()
        turn = session.commit(session.prepare(messages, tools=[TOOL]), said(calling(f"c{number}")))
        assert sum(read) <= 5  # of the newest turn two, the result that is appended twice, and the reply
        theirs = {**calling(f"other{number}"), "content": [{"type": "text", "text": ""}]}
        messages += [theirs, result(f"other{number}", f"R{number}")]
    assert [one.number for one in turn.line] == [0, 1, 2, 3, 4]
    assert session.prepare([*messages, user("u")]).parent is turn
    messages[1]["tool_calls"][0]["id"] = "renamed"
    with pytest.raises(MessageError, match=r"^message 2 \(tool\) has the tool_call_id 'other0', which message 1 "):
        session.prepare([*messages, user("u")])
    messages[2]["tool_call_id"] = "renamed"
    assert session.prepare([*messages, user("u")]).parent is turn
    messages[1]["content"][0]["text"] = "more"
    assert session.prepare([*messages, user("u")]).parent is None


def test_what_is_no_json_is_not_taken_for_what_was_matched_before() -> None:
    session = codec().session()
    turn = step(session, [user("q")], assistant("", "r", tool_calls=[call("c", '{"x": null}')]), tools=[TOOL])
    for value, parent in ((None, turn), (float("nan"), None), (None, turn)):
        theirs = assistant("", "r", tool_calls=[call("c", {"x": value})])
        found = session._matcher.found(session.turns, [user("q"), theirs])
        assert found.get(turn, None) is (parent and turn.message)


def by_role(stored: Message, sent: Message) -> bool:
    return stored.role == sent.role


@pytest.mark.parametrize("matcher", [by_role, "test_session_tree:by_role", "test_session_tree.by_role"])
def test_a_matcher_of_one_s_own(matcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_session_tree", sys.modules[__name__])
    session = codec().session(matcher=matcher)
    turn = step(session, [user("q")], assistant("a"))
    request = session.prepare([user("other"), assistant("entirely"), user("u")])
    assert request.parent is turn
    assert request.ids.tolist()[: turn.end] == turn.ids.tolist()


@pytest.mark.parametrize(
    ("matcher", "text"),
    [
        (
            "loose",
            "the matcher 'loose' is none of strict, tool_arguments; name one of them, or pass a callable or its dotted path",
        ),
        (
            "json:nothing",
            "the matcher 'json:nothing' can't be had: json:nothing can't be loaded: AttributeError: module 'json' has no "
            "attribute 'nothing'",
        ),
        ("math.pi", "the matcher 'math.pi' is a float; it must be a function"),
        (3, "the matcher '3' is a int; it must be a function"),
        (
            lambda stored: True,
            "the matcher 'test_matcher.<locals>.<lambda>' is called with 2 argument(s): too many positional arguments",
        ),
        (None, "the matcher 'None' is a NoneType; it must be a function"),
    ],
)
def test_a_matcher_that_is_none(matcher: Any, text: str) -> None:
    with pytest.raises(SessionError) as error:
        codec().session(matcher=matcher)
    assert str(error.value).replace("<lambda>", "test_matcher.<locals>.<lambda>") == text


def failing(stored: Message, sent: Message) -> bool:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("matcher", "text"),
    [
        (failing, "the matcher 'failing' failed: KeyError: 'no such thing'"),
        (lambda stored, sent: 1, "the matcher '<lambda>' answered 1; it must answer True or False"),
        (lambda stored, sent: None, "the matcher '<lambda>' answered None; it must answer True or False"),
    ],
)
def test_a_matcher_that_misbehaves_is_named(matcher: Any, text: str) -> None:
    session = codec().session(matcher=matcher)
    step(session, [user("q")], assistant("a"))
    before = frozen(session)
    with pytest.raises(SessionError) as error:
        session.prepare([user("q"), assistant("a"), user("u")])
    assert str(error.value) == text
    assert frozen(session) == before


def test_ids_past_a_stop_are_refused_or_cut() -> None:
    over = [*said(assistant("a")).ids, 5, 6]
    token = Completion(over, np.linspace(-2, -1, len(over)), "length", message=assistant("a"), id="c")
    ids = engine_ids("r1", "r</think>h a hat and more").tolist()
    string = Completion(ids, np.linspace(-2, -1, len(ids)), "stop", stop="hat", message=assistant("h a"), id="d")
    end = len(engine_ids("r1", "r</think>h a hat"))
    refusing = codec().session()
    request = refusing.prepare([user("q")])
    for completion, text in (
        (
            token,
            f"completion c goes on for 2 ids after the stop token {EOS} at {len(over) - 3}; cut ids and logprobs there",
        ),
        (
            string,
            "completion d goes on after the stop string 'hat' (text ends 'ink>h a hat and more'); cut ids and logprobs after "
            "the id that completes it",
        ),
    ):
        with pytest.raises(CompletionError) as error:
            refusing.commit(request, completion)
        assert str(error.value) == text
        assert refusing.turns == ()
    for completion, kept in ((token, len(over) - 2), (string, end)):
        session = codec().session(overrun="trim")
        turn = session.commit(session.prepare([user("q")]), completion)
        assert turn.completion.ids.tolist() == list(completion.ids[:kept])  # type: ignore[union-attr]
        assert turn.completion.logprobs.tolist() == list(completion.logprobs[:kept])  # type: ignore[union-attr]
        assert (turn.finish_reason, turn.completion.id) == ("stop", completion.id)
        (sample,) = session.samples()
        assert trained(sample) == list(completion.ids[:kept])
        assert sample.status == "complete"
        following = session.prepare([user("q"), turn.message.wire(), user("u")])
        assert following.parent is turn
        assert codec().decode(following.ids).endswith("<｜end▁of▁sentence｜><｜User｜>u<｜Assistant｜><think>")
    both = Completion([*ids[:2], EOS, *ids[2:]], [-1.0] * (len(ids) + 1), "stop", stop="hat", message=assistant("h"))
    for rule in ("trim", "refuse"):
        session = codec().session(overrun=rule)  # type: ignore[arg-type]
        with pytest.raises(CompletionError, match=f"after the stop token {EOS} at 2"):
            session.commit(session.prepare([user("q")]), both)
    with pytest.raises(SessionError, match="^overrun is 'keep'; choose 'refuse' or 'trim'$"):
        codec().session(overrun="keep")  # type: ignore[arg-type]


def stopped(*texts: str, stop: str, finish: Any = "stop", **more: Any) -> Completion:
    """A completion of texts that were sampled one by one, ended by a stop string."""
    ids = [one for text in texts for one in engine_ids("r1", text).tolist()]
    return Completion(ids, np.linspace(-2, -1, len(ids)), finish, stop=stop, id="c", **more)


@pytest.mark.parametrize("rule", ["refuse", "trim"])
def test_a_stop_string_before_the_one_that_stopped_is_none(rule: Any) -> None:
    """As an engine goes on that was told min_tokens."""
    session = codec().session(overrun=rule)
    request = session.prepare([user("q")])
    done = stopped("r</think>", "a STOP b STOP c", " STOP", stop="STOP")
    turn = session.commit(request, done)
    assert turn.completion.ids.tolist() == np.asarray(done.ids).tolist()
    assert (turn.message.content, turn.finish_reason) == ("a STOP b STOP c ", "stop")
    assert trained(session.samples()[0]) == np.asarray(done.ids).tolist()
    over = stopped("r</think>", "a STOP", " b STOP", " c", stop="STOP")
    first, last, before = (
        sum(len(engine_ids("r1", text)) for text in texts) - 1
        for texts in (("r</think>", "a STOP"), ("r</think>", "a STOP", " b STOP"), ("r</think>",))
    )
    assert first > before
    with pytest.raises(CompletionError) as error:
        session.commit(request, over)
    assert str(error.value) == (
        f"completion c goes on after the stop string 'STOP', which ids {first} and {last} complete: which of them stopped the "
        "engine can't be told (told min_tokens, it goes on after an early one); cut ids and logprobs after the one that did"
    )
    assert error.value.where == {"id": "c", "first_index": first + 1}
    assert session.turns == (turn,)


@pytest.mark.parametrize(
    ("texts", "past", "stop", "content"),
    [
        (("a", "</answer>"), (), "</answer>", "a"),
        (("a", "</answer>"), (" and", " more"), "</answer>", "a"),
        (("a", "\n\n"), (), "\n", "a"),
        (("a", "\n\n"), (" and",), "\n\n", "a"),
        (("a ☕", "b"), (), "☕b", "a "),
        (("STOP",), (), "STOP", ""),
        (("a STOP", "x STOP"), (), "STOP", "a STOPx "),
    ],
)
def test_what_is_read_back_ends_before_the_stop_string(
    texts: tuple[str, ...], past: tuple[str, ...], stop: str, content: str
) -> None:
    done = stopped("r</think>", *texts, *past, stop=stop)
    session = codec().session(overrun="trim" if past else "refuse")
    turn = session.commit(session.prepare([user("q")]), done)
    kept = stopped("r</think>", *texts, stop=stop)
    assert turn.completion.ids.tolist() == np.asarray(kept.ids).tolist()
    assert (turn.message.content, turn.message.reasoning) == (content, "r")


def test_a_stop_string_that_ends_a_call_stays() -> None:
    reply = calling("x")
    ids = np.asarray(said(reply).ids)[:-1]
    stop = codec().decode(ids)[-20:]
    session = codec().session()
    request = session.prepare([user("q")], tools=[TOOL])
    turn = session.commit(request, Completion(ids, [-1.0] * len(ids), "stop", stop=stop))
    assert [one.name for one in turn.message.tool_calls] == ["f"]


def test_a_finish_reason_says_nothing_of_calls_that_were_cut() -> None:
    whole = [*said(calling("x")).ids, 5]
    both = Completion(whole, [-1.0] * len(whole), "tool_calls", id="both")
    gone = stopped("r</think>a STOP", codec().decode(said(calling("x")).ids[2:-1]), stop="STOP", finish="tool_calls")
    for done, finish, calls in ((both, "tool_calls", 1), (gone, "stop", 0)):
        session = codec().session(overrun="trim")
        turn = session.commit(session.prepare([user("q")], tools=[TOOL]), done)
        assert (turn.finish_reason, len(turn.message.tool_calls)) == (finish, calls)
        assert session.samples()[0].turns[0].finish_reason == finish


def test_a_message_says_nothing_of_ids_that_were_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    done = said(assistant("a"))
    over = [*done.ids, *said(calling("x")).ids]
    told = Completion(
        over, [-1.0] * len(over), "tool_calls", message=assistant("a and on", tool_calls=[call("x")]), id="c"
    )
    session = codec().session(overrun="trim")
    request = session.prepare([user("q")], tools=[TOOL])
    turn = session.commit(request, told)
    assert (turn.message.content, turn.message.reasoning, turn.message.tool_calls) == ("a", "r", ())
    assert turn.parsed is not None
    assert turn.parsed.state == "ok"
    assert session.prepare([user("q"), assistant("a"), user("u")], tools=[TOOL]).parent is turn
    bare = codec().family.model_copy(update={"response_parser": None})
    session = codec().session(overrun="trim")
    request = session.prepare([user("q")])
    monkeypatch.setattr(Codec, "family", bare)
    with pytest.raises(CompletionError) as error:
        session.commit(request, told)
    assert str(error.value) == (
        f"completion c is cut after {len(done.ids)} of its {len(over)} ids, and its message may say what stands past them; "
        "deepseekv32 declares no response_parser to read the rest back: cut ids, logprobs and message before they are "
        "committed"
    )
    assert error.value.where == {"id": "c", "first_index": len(done.ids)}
    assert session.turns == ()


def test_many_threads_grow_one_session() -> None:
    session = codec().session()
    messages = [user("q")]
    parent = step(session, messages, assistant("a"))
    gate = threading.Barrier(8)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            told = [*messages, user(f"way {number % 4}")]
            for turn in range(5):
                gate.wait(20)
                request = session.prepare(told)
                reply = assistant(f"{number} {turn}")
                made = session.commit(request, said(reply))
                assert session.turns[made.number] is made
                told += [reply, user("u")]
        except BaseException as cause:
            failed.append(cause)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [turn.number for turn in session.turns] == list(range(41))
    assert len(session.leaves) == 8
    for leaf in session.leaves:
        number = leaf.message.content.split()[0]
        told = [*messages, user(f"way {int(number) % 4}")]
        assert [turn.message.content for turn in leaf.line[1:]] == [f"{number} {turn}" for turn in range(5)]
        assert leaf.line[0] is parent
        wire = [one for turn in range(5) for one in (assistant(f"{number} {turn}"), user("u"))][:-1]
        assert leaf.ids.tolist() == printed([*told, *wire])


def test_nothing_waits_while_an_engine_works() -> None:
    session = codec().session()
    slow = session.prepare([user("q")])
    began = time.monotonic()
    done = threading.Thread(target=lambda: step(session, [user("q")], assistant("quick")))
    done.start()
    done.join(5)
    assert not done.is_alive()
    assert not session._lock.locked()
    assert session.commit(slow, said(assistant("slow"))).number == 1
    assert time.monotonic() - began < 5


def test_many_tasks_of_one_loop_share_a_session() -> None:
    session = codec().session()
    messages = [user("q")]
    step(session, messages, calling("a"), tools=[TOOL])
    working = 0
    most = 0

    async def engine(reply: Json) -> Completion:
        nonlocal working, most
        working += 1
        most = max(most, working)
        await asyncio.sleep(0.01)
        working -= 1
        return said(reply)

    async def agent(number: int) -> Turn:
        told = [*messages, result("a", f"R{number}")]
        request = session.prepare(told)
        turn = session.commit(request, await engine(assistant(f"a{number}")))
        told += [assistant(f"a{number}"), user("u")]
        request = session.prepare(told)
        assert request.parent is turn
        return session.commit(request, await engine(assistant(f"b{number}")))

    async def work() -> list[Turn]:
        return await asyncio.gather(*map(agent, range(6)))

    turns = asyncio.run(work())
    assert most == 6
    assert len(session.turns) == 13
    for number, turn in enumerate(turns):
        told = [*messages, result("a", f"R{number}"), assistant(f"a{number}"), user("u"), assistant(f"b{number}")]
        assert turn.ids.tolist() == printed(told, [TOOL])


def test_a_linear_session_stays_byte_by_byte_as_it_was() -> None:
    session = codec().session(linear=True)
    messages = [user("q")]
    for text in ("a", "b", "c"):
        step(session, messages, assistant(text))
        messages.append(user(f"after {text}"))
    request = session.prepare(messages)
    before = frozen(session)
    for told in (
        [user("another")],
        messages[:1],
        [*messages[:2], user("two back")],
        [*messages[:5], assistant("edited"), user("u")],
        messages[:-1],
    ):
        with pytest.raises(SessionError):
            session.prepare(told)
        assert frozen(session) == before
    session.commit(request, said(assistant("d")))
    before = frozen(session)
    with pytest.raises(SessionError, match="^the session went on to turn 3 after this request was prepared"):
        session.commit(request, said(assistant("e")))
    assert frozen(session) == before
    assert shape(session) == [None, 0, 1, 2]
    back = session.commit(session.prepare(messages), said(assistant("f")))
    assert (back.number, session.turns[-1], len(session.turns)) == (3, back, 4)
