"""The role gate: exhaustive against a tiny oracle, with exact texts, and before anything is rendered."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from fake_families import ROLES, RULES
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fake_distributions import fakes_below, source
from tito_core import AppendRoles, Codec, Encoder, Message, ThinkingDecision, ToolCall
from tito_core.errors import GateError, TemplateError
from tito_core.prompts.gate import check_append, check_prompt
from tito_core.tokens.codec import Origin

EVERY = ("tool", "user", "system", "assistant", "developer")
SEQUENCES = [roles for length in range(5) for roles in itertools.product(EVERY, repeat=length)]

# The oracle: an append, spelt from the stored assistant turn by initials, is one of these words.
PAIRS = {
    "all": "at au as aa tt tu ta uu ua ss su",
    "tools": "at tt",
    "no assistant": "at au as tt tu uu ss su",
    "one user": "au",
}
ENDS = {"all": "tu", "tools": "t", "no assistant": "tu", "one user": "u"}
GIVEN = {
    "all": RULES,
    "tools": RULES.narrowed(frozenset({"tool"})),
    "no assistant": RULES.narrowed(frozenset({"tool", "user", "system"})),
    "one user": AppendRoles(
        roles=frozenset({"user"}),
        follows={"assistant": frozenset({"user"}), "user": frozenset()},
        ends=frozenset({"user"}),
    ),
}


def spelt(roles: tuple[str, ...]) -> str:
    return "a" + "".join(role[0] for role in roles)


def allowed(kind: str, roles: tuple[str, ...]) -> bool:
    word = spelt(roles)
    return len(word) > 1 and word[-1] in ENDS[kind] and paired(kind, word)


def paired(kind: str, word: str) -> bool:
    return all(left + right in PAIRS[kind].split() for left, right in itertools.pairwise(word))


def refusal(check: Callable[[], None]) -> GateError | None:
    try:
        check()
    except GateError as error:
        return error
    return None


def messages(roles: tuple[str, ...]) -> list[Message]:
    return [Message(role) for role in roles]


@pytest.mark.parametrize("kind", GIVEN)
def test_every_append_up_to_four_messages(kind: str) -> None:
    passed = 0
    for roles in SEQUENCES:
        error = refusal(lambda roles=roles: check_append(messages(roles), GIVEN[kind], "fake", 3))  # type: ignore[misc]
        assert (error is None) is allowed(kind, roles), roles
        if error is None:
            passed += 1
            continue
        index = error.where["index"]
        assert 3 <= index <= 3 + max(len(roles) - 1, 0)
        assert error.where["role"] == (roles[index - 3] if roles else None)
        # Everything before the message that is named may stand there.
        assert paired(kind, spelt(roles[: index - 3]))
    assert passed == {"all": 68, "tools": 4, "no assistant": 20, "one user": 1}[kind]


@pytest.mark.parametrize("kind", GIVEN)
def test_every_first_prompt_up_to_four_messages(kind: str) -> None:
    for roles in SEQUENCES:
        error = refusal(lambda roles=roles: check_prompt(messages(roles), GIVEN[kind], "fake"))  # type: ignore[misc]
        assert (error is None) is (bool(roles) and roles[-1][0] in ENDS[kind] + "ud"), roles
        if error is not None:
            assert error.where == {"index": len(roles) - 1 if roles else None, "role": roles[-1] if roles else None}


TEXTS = {
    "": "nothing is appended after message 2 (assistant), and fake opens no assistant turn after it; append a message "
    "of assistant or system or tool or user",
    "system": "message 3 (system) is the last of the append, and fake opens no assistant turn after it; an append must "
    "end with tool or user",
    "user assistant": "message 4 (assistant) is the last of the append, and fake opens no assistant turn after it; an "
    "append must end with tool or user",
    "user system": "message 4 (system) can't be appended to a fake session after a user message: what may stand there "
    "is assistant or user",
    "tool system user": "message 4 (system) can't be appended to a fake session after a tool message: what may stand "
    "there is assistant or tool or user",
    "system system tool": "message 5 (tool) can't be appended to a fake session after a system message: what may stand "
    "there is system or user",
    "developer user": "message 3 (developer) can't be appended to a fake session after an assistant message: what may "
    "stand there is assistant or system or tool or user",
}


@pytest.mark.parametrize("roles", TEXTS)
def test_the_texts_of_an_append(roles: str) -> None:
    with pytest.raises(GateError) as caught:
        check_append(messages(tuple(roles.split())), RULES, "fake", 3)
    assert str(caught.value) == TEXTS[roles]


def test_the_texts_where_nothing_may_follow() -> None:
    with pytest.raises(GateError) as caught:
        check_append(messages(("user", "user")), GIVEN["one user"], "fake", 3)
    assert str(caught.value) == (
        "message 4 (user) can't be appended to a fake session after a user message: what may stand there is nothing"
    )


def test_the_texts_of_a_first_prompt() -> None:
    for roles, said in {
        "": "the prompt for fake has no messages; send at least one",
        "system": "message 0 (system) is the last of the prompt, and fake opens no assistant turn after it; a prompt "
        "must end with developer or tool or user",
        "user assistant": "message 1 (assistant) is the last of the prompt, and fake opens no assistant turn after it; "
        "a prompt must end with developer or tool or user",
    }.items():
        with pytest.raises(GateError) as caught:
            check_prompt(messages(tuple(roles.split())), RULES, "fake")
        assert str(caught.value) == said


# Through a codec whose renderer fails every test that comes to it.


def tiny() -> Encoder:
    """A byte-level vocabulary without merges, and the three control tokens of a fake family."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: id for id, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>", "<user>", "<assistant>"])
    return Encoder.from_json(json.dumps(json.loads(tokenizer.to_str())).encode())


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Codec]:
    with fakes_below(tmp_path_factory.mktemp("fakes")) as fakes:
        fakes.add("fake-one", families={"fake": "fake_one"}, modules={"fake_one": source()})
        loaded = fakes.registry().family("fake")
        revision = loaded.declaration.revision(None)
        yield Codec(loaded, tiny(), loaded.template(), revision, Origin("tiny", "tiny", "", None, ()))


@dataclass
class Stored:
    """A turn whose last message, the third of its conversation, is an assistant's."""

    decision: ThinkingDecision
    message: Message = field(default_factory=lambda: Message("assistant", "", "", (ToolCall("f", {}, None, "c0"),)))
    ids: Any = field(default_factory=lambda: np.array([1, 2, 256], dtype=np.int32))
    sampled: int = 1
    finish_reason: Any = "stop"
    length: int = 3


RESULT = {"role": "tool", "tool_call_id": "c0", "content": ""}
SENT = {role: {"role": role, "content": ""} for role in EVERY} | {"tool": RESULT}


def test_the_fake_renderer_fails_what_comes_to_it(codec: Codec) -> None:
    with pytest.raises(TemplateError, match=r"AssertionError: rendered$"):
        codec.append(Stored(codec.decide()), [RESULT])
    with pytest.raises(TemplateError, match=r"AssertionError: rendered$"):
        codec.prompt([SENT["user"]])


@pytest.mark.parametrize(
    "roles", ["system", "tool system user", "tool user system", "tool developer", "tool assistant"]
)
def test_a_refused_append_renders_nothing(roles: str, codec: Codec) -> None:
    appended = [SENT[role] for role in roles.split()]
    turn = Stored(codec.decide())
    if "tool" not in roles:
        turn.message = Message("assistant")
    before = turn.ids.copy()
    with pytest.raises(GateError):
        codec.append(turn, appended)
    assert np.array_equal(turn.ids, before)


@pytest.mark.parametrize("roles", ["", "system", "user assistant", "user system"])
def test_a_refused_first_prompt_renders_nothing(roles: str, codec: Codec) -> None:
    with pytest.raises(GateError):
        codec.prompt([SENT[role] for role in roles.split()])
    session = codec.session()
    with pytest.raises(GateError):
        session.prepare([SENT[role] for role in roles.split()])
    assert session.turns == ()


def test_a_narrowed_append_is_refused_and_its_first_prompt_is_not(codec: Codec) -> None:
    narrow = codec.narrowed({"tool"})
    with pytest.raises(GateError) as caught:
        codec.append(Stored(codec.decide()), [RESULT, SENT["user"]], append_roles=narrow)
    assert str(caught.value) == (
        "message 4 (user) can't be appended to a fake session after a tool message: what may stand there is tool"
    )
    with pytest.raises(TemplateError, match=r"AssertionError: rendered$"):
        codec.session(append_roles={"tool"}).prepare([SENT["user"]])


def test_the_universe_is_what_the_tests_run_over() -> None:
    assert set(EVERY) == ROLES | {"developer"}
