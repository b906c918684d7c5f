"""The families `deepseekv4` and `deepseekv41`: ids of prompts and appends against the published encoders, and the rules."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tito_core
from amounts import examples
from conversations import Conversation, Json
from conversations import conversations as any_conversations
from oracles import tokenizer_json
from tito_core import Codec, Completion, Deployment, Family, Recipe
from tito_core.errors import (
    CheckpointError,
    CompletionError,
    FamilyError,
    GateError,
    MessageError,
    ThinkingError,
)
from tito_deepseek.v4_encoding import LEVELS
from token_path import StoredTurn, array, engine_ids, printed_ids
from v4_upstream import marked_ids, recipe_ids, recipe_prompt, released, served

Form = Literal["recipe", "release", "4.1"]
FORMS: tuple[Form, ...] = ("recipe", "release", "4.1")
ROLES = ("tool", "user", "system", "assistant")
EOS, SYSTEM = 1, 129280
TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ASKED: Json = {"role": "user", "content": "q1"}
SAID: Json = {"role": "assistant", "content": "a1", "reasoning_content": "r1"}
CALLS: list[Json] = [
    {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for number in range(2)
]
CALLED: Json = {**SAID, "tool_calls": CALLS}


@cache
def codec(form: Form = "recipe") -> Codec:
    if form == "4.1":
        return tito_core.load("deepseekv41")
    return tito_core.load("deepseekv4", revision=form)


def oracle_ids(form: Form, messages: list[Json], tools: list[Json] | None, thinking: bool, effort: str) -> list[int]:
    """A conversation's ids, by the published encoders and `tokenizers` alone. Thoughts are kept where there are tools."""
    if form == "recipe":
        return recipe_ids(messages, tools, thinking=thinking, effort=effort)
    if form == "4.1":
        prompt = recipe_prompt(messages, tools, thinking=thinking, effort=effort, version="4.1")
        return marked_ids(prompt, {"<｜System｜>": SYSTEM})

    def printed(messages: Any, tools: Any) -> str:
        return released(messages, tools, thinking=thinking, effort=effort)

    return printed_ids("v4", messages, tools, printed).tolist()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Form, Conversation, bool, str]:
    """A conversation whose thoughts the published encoders keep, in a mode and an effort."""
    form = draw(st.sampled_from(FORMS))
    if form == "release":
        conversation = draw(any_conversations(carried=False, developer=False, generation=True))
    else:
        conversation = draw(served(system_later=form == "4.1", system_last=form == "4.1", developer=False))
    thinking = draw(st.booleans())
    if thinking and not conversation.tools:
        conversation = conversation._replace(tools=[TOOL])
    return form, conversation, thinking, draw(st.sampled_from(LEVELS))


def decided(form: Form, thinking: bool, effort: str) -> Any:
    return codec(form).decide(thinking, {"reasoning_effort": effort} if thinking else None)


# Ids


@settings(max_examples=examples(120))
@given(cases())
def test_a_prompt_has_the_published_encoders_ids(case: tuple[Form, Conversation, bool, str]) -> None:
    """Whatever its texts spell: what somebody wrote is plain text to the recipe, and to us."""
    form, (messages, tools), thinking, effort = case
    decision = decided(form, thinking, effort)
    found = codec(form).prompt(messages, tools=tools, decision=decision).ids
    assert found.tolist() == oracle_ids(form, messages, tools, thinking, effort)


@settings(max_examples=examples(120))
@given(cases(), st.data())
def test_an_append_has_the_full_renders_ids(case: tuple[Form, Conversation, bool, str], data: st.DataObject) -> None:
    """After any assistant message, any later messages that the family appends: results, users, all folded as one."""
    form, (messages, tools), thinking, effort = case
    ends = ("user", "tool", "system") if form == "4.1" else ("user", "tool")
    places = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    pairs = [
        (at, end)
        for at in places
        for end in range(at + 2, len(messages) + 1)
        if messages[end - 1]["role"] in ends and _answered(messages[:end])
    ]
    assume(pairs)
    at, end = data.draw(st.sampled_from(pairs))
    whole = array(oracle_ids(form, messages[:end], tools, thinking, effort))
    turns = sum(message["role"] == "assistant" for message in messages[: at + 1])
    stored = whole[: np.flatnonzero(whole == EOS)[turns - 1] + 1]
    turn = StoredTurn(
        stored, 1, codec(form).normalise(messages[: at + 1])[at], "stop", decided(form, thinking, effort), at + 1
    )
    shuffled = _shuffled(messages[at + 1 : end], data)
    if form == "release" and not _in_place(messages[at:end]):
        with pytest.raises(GateError):
            codec(form).append(turn, shuffled)
        return
    append = codec(form).append(turn, shuffled)
    assert append.ids.tolist() == whole.tolist()
    assert append.kept == len(stored)


def _answered(messages: list[Json]) -> bool:
    """Whether a conversation ends with no call open."""
    asked = 0
    for message in messages:
        asked = asked - 1 if message["role"] == "tool" else len(message.get("tool_calls") or ())
    return asked == 0


def _in_place(messages: list[Json]) -> bool:
    """Whether each system message stands after an assistant's or another one, and before a user's or another one."""
    for one, two in itertools.pairwise(message["role"] for message in messages):
        if two == "system" and one not in ("assistant", "system"):
            return False
        if one == "system" and two not in ("user", "system"):
            return False
    return True


def _shuffled(messages: list[Json], data: st.DataObject) -> list[Json]:
    """Each run of results in another order."""
    made: list[Json] = []
    for role, run in itertools.groupby(tuple(messages), key=lambda message: message["role"]):
        messages = list(run)
        made += data.draw(st.permutations(messages)) if role == "tool" else messages
    return made


@pytest.mark.parametrize("form", FORMS)
def test_each_control_token_is_one_id(form: Form) -> None:
    family = codec(form).family
    for token in family.control_tokens:
        if token.text == "<｜System｜>":
            assert codec(form).encoder.token_id(token.text) == SYSTEM
            continue
        (found,) = engine_ids("v4", token.text).tolist()
        assert token.id in (None, found)
        assert codec(form).encoder.token_id(token.text) == found
    assert Family.model_validate(json.loads(family.model_dump_json())) == family


def test_v41s_vocabulary_is_v4s_and_one_token_more_and_says_so() -> None:
    made, other = codec("4.1"), codec("recipe")
    assert made.encoder.size == other.encoder.size + 1
    assert made.origin.title == "DeepSeek V4 and <｜System｜>"
    assert made.origin.stands_in_for == "DeepSeek V4.1"
    assert (other.origin.title, other.origin.stands_in_for) == ("DeepSeek V4", None)
    text = "You are S. 你好 ☕"
    assert made.encoder.encode_text(text).tolist() == other.encoder.encode_text(text).tolist()


def test_another_checkpoints_model_type_is_refused(tmp_path: Path) -> None:
    """V4.1 is never taken for V4."""
    (tmp_path / "tokenizer.json").symlink_to(tokenizer_json("v4"))
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v41"}')
    with pytest.raises(CheckpointError, match="deepseek_v41"):
        tito_core.load("deepseekv4", model=tmp_path)
    with pytest.raises(CheckpointError, match="<｜System｜>"):
        tito_core.load("deepseekv41", model=tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v4"}')
    made = tito_core.load("deepseekv4", model=tmp_path)
    assert made.prompt([ASKED]).ids.tolist() == codec().prompt([ASKED]).ids.tolist()


def test_no_engine_and_no_upstream_package_is_imported() -> None:
    code = (
        "import sys, tito_core\n"
        "for name in ('deepseekv4', 'deepseekv41'): tito_core.load(name).prompt([{'role': 'user', 'content': 'q'}])\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('sglang', 'deepseek_recipe')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "[]\n"


# What may be appended


def turn(form: Form, said: Json, history: int = 1) -> StoredTurn:
    """A turn of a session with tools, after so many user messages."""
    messages = [*[ASKED] * history, said]
    whole = array(oracle_ids(form, [*messages[:-1], {**SAID}, ASKED], [TOOL], True, "high"))
    ids = whole[: np.flatnonzero(whole == EOS)[0] + 1]
    return StoredTurn(ids, 4, codec(form).normalise([said])[0], "stop", codec(form).decide(), len(messages))


# What may follow what, and end an append: tables of their own, not the declarations.
FOLLOWS: dict[Form, dict[str, set[str]]] = {
    "recipe": {
        "call": {"tool"},
        "assistant": {"user", "assistant"},
        "tool": {"user", "assistant"},
        "user": {"user", "assistant"},
    },
    "release": {
        "call": {"tool"},
        "assistant": {"user", "system", "assistant"},
        "tool": {"user", "assistant"},
        "user": {"user", "assistant"},
        "system": {"system", "user"},
    },
    "4.1": {
        "call": {"tool"},
        **{role: {"user", "system", "assistant"} for role in ROLES},
    },
}
ENDS: dict[Form, set[str]] = {
    "recipe": {"tool", "user"},
    "release": {"tool", "user"},
    "4.1": {"tool", "user", "system"},
}


def allowed(form: Form, roles: tuple[str, ...], called: bool) -> bool:
    before = "call" if called else "assistant"
    for role in roles:
        if role not in FOLLOWS[form].get(before, ()):
            return False
        before = role
    return before in ENDS[form]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("called", [False, True])
def test_pairs_that_are_refused_and_those_that_are_not(form: Form, called: bool) -> None:
    """Each of 84 sequences of roles after a turn. A refusal names index and role."""
    stored = turn(form, {**SAID, "tool_calls": CALLS[:1]} if called else SAID)
    think = codec(form).encoder.token_id("<think>")
    for size in (1, 2, 3):
        for roles in itertools.product(ROLES, repeat=size):
            messages = [
                {"role": role, "content": "x", **({"tool_call_id": "c0"} if role == "tool" else {})} for role in roles
            ]
            if allowed(form, roles, called):
                assert codec(form).append(stored, messages).ids[-1] == think
                continue
            with pytest.raises((GateError, MessageError)) as refused:
                codec(form).append(stored, messages)
            assert refused.value.where["index"] in (1, 2, 3, 4)
            assert refused.value.where["role"] in ROLES


def test_the_recipe_takes_no_system_message_later() -> None:
    """It would be printed at the front of the prompt."""
    left = {"role": "system", "content": "5000 tokens left"}
    for form, messages, said in (
        (
            "recipe",
            [left],
            "message 2 (system) can't be appended to a deepseekv4 session after an assistant message: what may stand there "
            "is assistant or tool or user",
        ),
        (
            "release",
            [left],
            "message 2 (system) is the last of the append, and deepseekv4 opens no assistant turn after it; an append must "
            "end with tool or user",
        ),
    ):
        with pytest.raises(GateError) as caught:
            codec(form).append(turn(form, SAID), messages)  # type: ignore[arg-type]
        assert (str(caught.value), caught.value.where) == (said, {"index": 2, "role": "system"})


@pytest.mark.parametrize("form", ["release", "4.1"])
def test_system_messages_in_the_conversation_are_printed_where_they_stand(form: Form) -> None:
    session = codec(form).session()
    messages: list[Json] = [ASKED]
    sampled = engine_ids("v4", "r1</think>a1<｜end▁of▁sentence｜>")
    stored: list[int] = []
    for left in (5000, 4000):
        request = session.prepare(messages)
        assert request.ids.tolist()[: len(stored)] == stored
        stored = session.commit(request, Completion(sampled, [0.0] * len(sampled), "stop", message=SAID)).ids.tolist()
        messages += [SAID, {"role": "system", "content": f"{left} tokens left"}]
        messages += [{"role": "user", "content": "on"}] if form == "release" else []
    text = codec(form).decode(session.prepare(messages).ids)
    opener, asked = ("<｜System｜>", "") if form == "4.1" else ("", "<｜User｜>on")
    for left in (5000, 4000):
        assert text.count(f"<｜end▁of▁sentence｜>{opener}{left} tokens left{asked}<｜Assistant｜><think>") == 1
    assert session.compare() == []


@pytest.mark.parametrize("form", FORMS)
def test_results_fold_in_any_order_and_with_what_a_user_says_after_them(form: Form) -> None:
    results = [{"role": "tool", "tool_call_id": f"c{number}", "content": f"R{number}"} for number in range(2)]
    after = {"role": "user", "content": "q2"}
    stored = turn(form, CALLED)
    one, other = (codec(form).append(stored, [*order, after]) for order in (results, results[::-1]))
    assert one.ids.tolist() == other.ids.tolist()
    assert codec(form).decode(one.suffix) == (
        "<｜User｜><tool_result>R0</tool_result>\n\n<tool_result>R1</tool_result>\n\nq2<｜Assistant｜><think>"
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_set_of_results_that_is_not_whole_is_refused(form: Form) -> None:
    """Partial; late, after a prompt was made of the first; twice. The session is as it was."""
    result = {"role": "tool", "tool_call_id": "c1", "content": "R1"}
    session = codec(form).session()
    sampled = engine_ids("v4", "r1</think>a1<｜end▁of▁sentence｜>")
    first = session.commit(session.prepare([ASKED]), Completion(sampled, [0.0] * len(sampled), "stop", message=CALLED))
    missing = (
        "message 1 (assistant) made 2 call(s), and the result of call 0 (id 'c0', f) does not stand directly after it; "
        "send all results of a turn together"
    )
    for more in ([result], [result, {"role": "user", "content": "q2"}]):
        with pytest.raises(MessageError) as caught:
            session.prepare([ASKED, CALLED, *more])
        assert str(caught.value) == missing
    late = [result, SAID, {"role": "tool", "tool_call_id": "c0", "content": "R0"}]
    with pytest.raises(MessageError):
        session.prepare([ASKED, CALLED, *late])
    with pytest.raises(MessageError, match=r"^message 3 \(tool\) answers the call 'c1' a second time"):
        session.prepare([ASKED, CALLED, result, result])
    assert session.turns == (first,)
    whole = [result, {"role": "tool", "tool_call_id": "c0", "content": "R0"}]
    assert session.prepare([ASKED, CALLED, *whole]).ids.tolist()[: len(first.ids)] == first.ids.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_an_append_costs_its_own_text(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the history is rendered: the same few messages after 1 and after 40."""
    made, handed = codec(form), []
    render = made._joiner._renderer.render

    def counted(messages: Any, **more: Any) -> Any:
        handed.append((len(messages), more["tools"]))
        return render(messages, **more)

    monkeypatch.setattr(made._joiner._renderer, "render", counted)
    suffixes = [made.append(turn(form, SAID, size), [ASKED]).suffix.tolist() for size in (1, 40)]
    assert suffixes[0] == suffixes[1]
    assert handed == [(2, ()), (3, ())] * 2


# One setting, and what an engine saw


@pytest.mark.parametrize("form", FORMS)
def test_mode_and_effort_are_frozen_with_the_first_turn(form: Form) -> None:
    session = codec(form).session(thinking=True, chat_template_kwargs={"reasoning_effort": "low"})
    request = session.prepare([ASKED])
    assert request.engine_kwargs == {"chat_template_kwargs": {"thinking": True, "reasoning_effort": "low"}}
    sampled = engine_ids("v4", "r1</think>a1<｜end▁of▁sentence｜>")
    first = session.commit(request, Completion(sampled, [0.0] * len(sampled), "stop", message=SAID))
    messages = [ASKED, SAID, ASKED]
    for kwargs, said in (
        (
            {"reasoning_effort": "max"},
            "the request asks for reasoning_effort='max', but this session's first turn was sampled with "
            "reasoning_effort='low', which shapes its prompt; open another session for another mode",
        ),
        (
            {"reasoning_effort": "none"},
            "the request asks for thinking=False, but this session's first turn was sampled with thinking=True, which shapes its prompt; open another session for another mode",
        ),
        (
            {"thinking": False},
            "the request asks for thinking=False, but this session's first turn was sampled with thinking=True, which shapes its prompt; open another session for another mode",
        ),
    ):
        with pytest.raises(ThinkingError) as caught:
            session.prepare(messages, chat_template_kwargs=kwargs)
        assert str(caught.value) == said
    assert session.turns == (first,)
    for kwargs in (None, {"thinking": True}, {"reasoning_effort": "low"}, {"thinking_mode": "thinking"}):
        assert session.prepare(messages, chat_template_kwargs=kwargs).engine_kwargs == request.engine_kwargs


def test_effort_and_mode_that_contradict_each_other() -> None:
    with pytest.raises(ThinkingError) as caught:
        codec().session(chat_template_kwargs={"thinking": False, "reasoning_effort": "max"})
    assert str(caught.value) == (
        "session chat_template_kwargs says both on and off: thinking=False, reasoning_effort='max'; these are one setting, "
        "send one of them"
    )
    with pytest.raises(ThinkingError) as caught:
        codec().session(chat_template_kwargs={"reasoning_effort": 30})
    assert str(caught.value) == (
        "session chat_template_kwargs has reasoning_effort=30; deepseekv4 takes 'none', 'minimal', 'low', 'medium', 'high', "
        "'xhigh', 'ultra' or 'max' there"
    )
    with pytest.raises(ThinkingError, match="'max' or a whole number from 1 to 100 there$"):
        codec("4.1").session(chat_template_kwargs={"reasoning_effort": 101})
    assert codec("4.1").decide(chat_template_kwargs={"reasoning_effort": 30}).forward_kwargs == {
        "thinking": True,
        "reasoning_effort": 30,
    }


@pytest.mark.parametrize("form", FORMS)
def test_an_engine_that_renders_the_other_revision_is_found_at_turn_1(form: Form) -> None:
    """With the first id that differs: behind the prompt's opener."""
    other: Form = "release" if form == "recipe" else "recipe"
    session = codec(form).session()
    request = session.prepare([ASKED])
    seen = oracle_ids(other, [ASKED], [TOOL], True, "max")
    sampled = engine_ids("v4", "r1</think>a1<｜end▁of▁sentence｜>")
    with pytest.raises(CompletionError) as caught:
        session.commit(request, Completion(sampled, [0.0] * len(sampled), "stop", message=SAID, prompt_ids=seen))
    first = next(at for at, (one, two) in enumerate(zip(request.ids.tolist(), seen, strict=False)) if one != two)
    assert caught.value.where["first_index"] == first
    assert session.turns == ()


# Recipes


def test_every_recipe_is_one_that_the_rules_take() -> None:
    loaded = codec().loaded
    for platform in ("cuda", "rocm"):
        eagle = {
            name: recipe.speculative and (recipe.speculative.num_steps, recipe.speculative.eagle_topk)
            for name in loaded.declaration.recipes
            if (recipe := loaded.recipe(Deployment(profile=name, platform=platform)))
        }
        assert eagle == {"default": (3, 1), "low-latency": (3, 1), "balanced": (1, 1), "plain": None}
    assert loaded.recipe(Deployment(platform="rocm")).environment == {"SGLANG_USE_AITER_AG": "false"}
    assert loaded.recipe(Deployment()).environment == {}
    assert all(recipe.source for recipe in loaded.declaration.recipes.values())


def speculating(algorithm: str, topk: int, drafted: int) -> dict[str, Any]:
    return {
        "speculative": {
            "algorithm": algorithm,
            "num_steps": max(drafted - 1, 1),
            "eagle_topk": topk,
            "num_draft_tokens": drafted,
        }
    }


DISPATCH = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(
        (
            "default",
            speculating(algorithm, topk, 4),
            f"it speculates with {algorithm} of top-k {topk}, and takes EAGLE of top-k 1 or DSPARK only",
        )
        for algorithm, topk in (("EAGLE", 4), ("EAGLE3", 1), ("NGRAM", 1))
    ),
    (
        "balanced",
        {"max_running_requests": 129},
        f"129 running requests of 2 draft tokens dispatch 258 tokens, and {DISPATCH} is 256; run fewer, or raise it",
    ),
    (
        "balanced",
        {"environment": {}},
        f"128 running requests of 2 draft tokens dispatch 256 tokens, and {DISPATCH} is 128; run fewer, or raise it",
    ),
    (
        "balanced",
        {"speculative": None, "max_running_requests": None, "environment": {}},
        f"256 running requests of 1 draft tokens dispatch 256 tokens, and {DISPATCH} is 128; run fewer, or raise it",
    ),
]


@pytest.mark.parametrize("family", ["deepseekv4", "deepseekv41"])
def test_both_families_have_the_rules(family: str) -> None:
    rules = [rule.name for rule in tito_core.get_family(family).recipe_rules]
    assert rules == ["speculation", "dispatch", "all_gather"]


@pytest.mark.parametrize(("profile", "overrides", "why"), REFUSED)
def test_recipes_that_are_refused(profile: str, overrides: dict[str, Any], why: str) -> None:
    with pytest.raises(FamilyError) as caught:
        codec().loaded.recipe(Deployment(profile=profile, overrides=overrides))
    assert str(caught.value) == f"deepseekv4 can't be served with the profile {profile!r}: {why}"


def test_what_the_rules_let_through() -> None:
    recipe = codec().loaded.recipe
    assert recipe(Deployment(overrides=speculating("DSPARK", 1, 5))).speculative is not None
    assert recipe(Deployment(profile="balanced", overrides={"max_running_requests": 128})).max_running_requests == 128
    assert recipe(Deployment(overrides={"max_running_requests": 9999})).max_running_requests == 9999  # no DeepEP


def test_speculation_on_amd_needs_its_environment() -> None:
    with pytest.raises(FamilyError) as caught:
        codec().loaded.recipe(Deployment(platform="rocm", overrides={"environment": {}}))
    assert str(caught.value) == (
        "deepseekv4 can't be served with the profile 'default': it speculates on rocm with aiter's all-gather, which ends "
        "turns early; set SGLANG_USE_AITER_AG=false"
    )
    assert isinstance(codec().loaded.recipe(Deployment(platform="rocm", profile="plain")), Recipe)
