"""The family `deepseekv32` as a user meets it: its declaration, what may be appended, and the prompts it makes."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import tito_core
from tito_core import Codec, Completion, Family
from tito_core.errors import GateError, MessageError
from token_path import ASSISTANT, EOS, NAMES, THINK, UNTHINK, USER, Name, StoredTurn, added, engine_ids, plain, raw

ROLES = ("tool", "user", "system", "assistant")
CALL = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SAID: dict[str, Any] = {"role": "assistant", "content": "a1", "reasoning_content": "r1"}


@cache
def codec(name: Name = "r1", revision: str | None = None) -> Codec:
    return tito_core.load("deepseekv32", vocabulary=name, revision=revision)


def test_the_declaration_is_data() -> None:
    family = tito_core.get_family("deepseekv32")
    assert Family.model_validate(json.loads(family.model_dump_json())) == family
    assert [vocabulary.stands_in_for for vocabulary in family.vocabularies] == ["DeepSeek V3.2"] * 2
    assert [revision.name for revision in family.revisions] == ["open", "answered"]
    assert family.fixed_kwargs == {"drop_thinking": False}


@pytest.mark.parametrize("name", NAMES)
def test_every_control_token_is_one_id(name: Name) -> None:
    for token in tito_core.get_family("deepseekv32").control_tokens:
        (found,) = engine_ids(name, token.text).tolist()
        assert found in added(name)
        assert token.id in (None, found)
        assert codec(name).encoder.token_id(token.text) == found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_a_thought_stands_when_a_user_speaks_again(name: Name, key: str) -> None:
    """Upstream strips it; here what was said stays, and the stored ids with it."""
    made = codec(name)
    session = made.session()
    request = session.prepare([{"role": "user", "content": "q1"}])
    sampled = engine_ids(name, "r1</think>a1<｜end▁of▁sentence｜>")
    turn = session.commit(request, Completion(sampled, [0.0] * len(sampled), "stop", message=SAID))
    said = {"role": "assistant", "content": "a1", key: "r1"}
    more = session.prepare([{"role": "user", "content": "q1"}, said, {"role": "user", "content": "q2"}])
    text = (
        "<｜begin▁of▁sentence｜><｜User｜>q1<｜Assistant｜><think>r1</think>a1<｜end▁of▁sentence｜>"
        "<｜User｜>q2<｜Assistant｜><think>"
    )
    assert more.ids.tolist() == engine_ids(name, text).tolist()
    assert more.ids.tolist()[: len(turn.ids)] == turn.ids.tolist()
    assert more.engine_kwargs == {"chat_template_kwargs": {"thinking": True}}


# What may follow what, and end an append: a table of its own, not the declaration.
FOLLOWS = {
    "call": {"tool"},
    "assistant": {"user", "system", "assistant"},
    "tool": {"user", "assistant"},
    "user": {"user", "assistant"},
    "system": {"system", "user"},
}


def allowed(roles: tuple[str, ...], called: bool) -> bool:
    before = "call" if called else "assistant"
    for role in roles:
        if role not in FOLLOWS[before]:
            return False
        before = role
    return before in ("tool", "user")


def turn(name: Name, said: dict[str, Any]) -> StoredTurn:
    made = codec(name)
    prompt = made.prompt([{"role": "user", "content": "q"}]).ids
    sampled = engine_ids(name, "r1</think>a1<｜end▁of▁sentence｜>")
    return StoredTurn(
        np.concatenate((prompt, sampled)), len(sampled), made.normalise([said])[0], "stop", made.decide(), 2
    )


SEQUENCES = [
    (roles, called) for called in (False, True) for size in (1, 2, 3) for roles in itertools.product(ROLES, repeat=size)
]


@pytest.mark.parametrize("called", [False, True])
def test_pairs_that_are_refused_and_those_that_are_not(called: bool) -> None:
    """Each of 84 sequences of roles after a turn. A refusal names index and role."""
    stored = turn("r1", {**SAID, "tool_calls": [CALL]} if called else SAID)
    for roles in (roles for roles, after in SEQUENCES if after == called):
        messages = [
            {"role": role, "content": "x", **({"tool_call_id": "c0"} if role == "tool" else {})} for role in roles
        ]
        if allowed(roles, called):
            assert codec().append(stored, messages).ids[-1] == THINK["r1"]
            continue
        with pytest.raises((GateError, MessageError)) as refused:
            codec().append(stored, messages)
        assert refused.value.where["index"] in (1, 2, 3, 4)
        assert refused.value.where["role"] in ROLES


def test_a_system_message_after_a_tool_result_is_refused() -> None:
    with pytest.raises(GateError) as caught:
        codec().append(
            turn("r1", {**SAID, "tool_calls": [CALL]}),
            [{"role": "tool", "tool_call_id": "c0", "content": "x"}, {"role": "system", "content": "5000 tokens left"}],
        )
    assert str(caught.value) == (
        "message 3 (system) can't be appended to a deepseekv32 session after a tool message: what may stand there is "
        "assistant or tool or user"
    )
    assert caught.value.where == {"index": 3, "role": "system"}


def test_a_system_message_at_the_end_is_refused() -> None:
    with pytest.raises(GateError) as caught:
        codec().append(turn("r1", SAID), [{"role": "system", "content": "5000 tokens left"}])
    assert str(caught.value) == (
        "message 2 (system) is the last of the append, and deepseekv32 opens no assistant turn after it; an append must "
        "end with tool or user"
    )
    assert caught.value.where == {"index": 2, "role": "system"}


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_a_prompt_that_opens_no_turn_is_refused(role: str) -> None:
    with pytest.raises(GateError) as caught:
        codec().prompt([{"role": "user", "content": "q"}, {"role": role, "content": "x"}])
    assert caught.value.where == {"index": 1, "role": role}


def test_an_empty_append_and_an_empty_prompt_are_refused() -> None:
    with pytest.raises(GateError, match=r"^nothing is appended after message 1 \(assistant\)"):
        codec().append(turn("r1", SAID), [])
    with pytest.raises(GateError, match="^the prompt for deepseekv32 has no messages; send at least one$"):
        codec().prompt([])


@pytest.mark.parametrize("name", NAMES)
def test_system_messages_in_the_conversation_are_printed_where_they_stand(name: Name) -> None:
    """Turn after turn: nothing moves to the front, and no stored id changes."""
    session = codec(name).session()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    sampled = engine_ids(name, "r1</think>a1<｜end▁of▁sentence｜>")
    stored: list[int] = []
    for left in (5000, 4000, 3000):
        request = session.prepare(messages)
        assert request.ids.tolist()[: len(stored)] == stored
        stored = session.commit(request, Completion(sampled, [0.0] * len(sampled), "stop", message=SAID)).ids.tolist()
        messages += [SAID, {"role": "system", "content": f"{left} tokens left"}, {"role": "user", "content": "on"}]
    text = raw(name).decode(session.prepare(messages).ids.tolist(), skip_special_tokens=False)
    assert text.count("<｜end▁of▁sentence｜>5000 tokens left<｜User｜>on<｜Assistant｜><think>r1") == 1
    assert text.endswith("<｜end▁of▁sentence｜>3000 tokens left<｜User｜>on<｜Assistant｜><think>")


def test_roles_change_no_prompt() -> None:
    """One template, whatever may be appended."""
    made = codec()
    wide = made.session().prepare([{"role": "user", "content": "q"}]).ids.tolist()
    for roles in ({"user"}, {"tool"}, {"tool", "user"}, {"system", "user"}):
        assert made.session(append_roles=roles).prepare([{"role": "user", "content": "q"}]).ids.tolist() == wide
        assert made.loaded.with_append_roles(made.narrowed(roles)).template(None) == made.template


@pytest.mark.parametrize("name", NAMES)
def test_revisions_differ_where_nobody_answered(name: Name) -> None:
    """In user+user and tool+user alone; the last header is open in both."""
    two = [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]
    found = {
        revision: codec(name, revision).append(turn(name, SAID), two).suffix.tolist()
        for revision in ("open", "answered")
    }
    x, y = engine_ids(name, "x").tolist(), engine_ids(name, "y").tolist()
    think, unthink = THINK[name], UNTHINK[name]
    assert found["open"] == [USER, *x, ASSISTANT, think, USER, *y, ASSISTANT, think]
    assert found["answered"] == [USER, *x, ASSISTANT, unthink, USER, *y, ASSISTANT, think]
    one = two[:1]
    assert codec(name, "answered").append(turn(name, SAID), one).suffix.tolist() == [USER, *x, ASSISTANT, think]


@pytest.mark.parametrize("name", NAMES)
def test_an_injected_assistant_is_prompt_text(name: Name) -> None:
    """Right after a sampled one it has no header, as upstream prints it; nothing of it trains."""
    session = codec(name).session()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    sampled = engine_ids(name, "r1</think>a1<｜end▁of▁sentence｜>")
    for _ in range(2):
        turn = session.commit(
            session.prepare(messages), Completion(sampled, [0.0] * len(sampled), "stop", message=SAID)
        )
        messages += [SAID, {"role": "assistant", "content": "put"}, {"role": "user", "content": "on"}]
    text = raw(name).decode(turn.ids.tolist(), skip_special_tokens=False)
    assert "a1<｜end▁of▁sentence｜></think>put<｜end▁of▁sentence｜><｜User｜>on<｜Assistant｜><think>r1" in text
    (sample,) = session.samples()
    assert sample.tokens[sample.loss_mask == 1].tolist() == [*sampled.tolist(), *sampled.tolist()]
    assert session.compare() == []


@pytest.mark.parametrize("body", ["<think>unclosed", "</think>", "<｜Assistant｜>", "a", ""])
def test_the_mask_follows_what_was_sampled(body: str) -> None:
    """Whatever the body spells, as control ids or as text, each sampled id trains and no other."""
    for sampled in (engine_ids("v4", body).tolist(), plain("v4").encode(body).ids):
        sampled = [*sampled, EOS]
        session = codec("v4").session()
        request = session.prepare([{"role": "user", "content": "q"}])
        message = {"role": "assistant", "content": "a", "reasoning_content": body}
        session.commit(request, Completion(sampled, [-0.5] * len(sampled), "stop", message=message))
        (sample,) = session.samples()
        assert sample.loss_mask.tolist() == [0] * len(request.ids) + [1] * len(sampled)
        assert sample.tokens[sample.loss_mask == 1].tolist() == sampled
        assert sample.logprobs.tolist() == [0.0] * len(request.ids) + [-0.5] * len(sampled)


def test_an_inserted_stop_token_is_masked_and_counted() -> None:
    """After a stop string: no log-prob, no training, and every later id stands one further on."""
    session = codec().session(thinking=False)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    sampled = engine_ids("r1", "x</answer>").tolist()
    said = {"role": "assistant", "content": "x</answer>"}
    for _ in range(2):
        request = session.prepare(messages)
        completion = Completion(sampled, [-0.5] * len(sampled), "stop", stop="</answer>", message=said)
        session.commit(request, completion)
        messages += [said, {"role": "user", "content": "on"}]
    (sample,) = session.samples()
    first = len(codec().prompt([{"role": "user", "content": "q"}], decision=codec().decide(False)).ids)
    assert sample.tokens[first + len(sampled)] == EOS
    assert sample.loss_mask[first + len(sampled)] == 0
    assert sample.logprobs[first + len(sampled)] == 0
    assert sample.tokens[sample.loss_mask == 1].tolist() == sampled * 2
    assert len(sample.tokens) == len(sample.loss_mask) == len(sample.logprobs)
    assert session.compare() == []
