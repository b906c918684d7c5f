"""What a check works with: one codec, an encoder that is not ours, and a conversation driven through the joins."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tito_core.engines.scripted import ScriptedEngine
from tito_core.errors import EncodingError, TitoError
from tito_core.families.family import AppendRoles, ThinkingDecision
from tito_core.prompts.messages import Message
from tito_core.prompts.template import Rendered
from tito_core.responses.completion import Completion
from tito_core.tokens.append import Append, FinishReason, Ids
from tito_core.tokens.codec import Codec
from tito_core.tokens.compare import shared_length
from tito_core.verify.cases import Conversation

_T = TypeVar("_T")

__all__ = ["Bench", "Broken", "Step", "StoredTurn", "of_error", "same_ids", "stored"]

AROUND = 6
"""How many ids are shown on either side of a first difference."""


class Broken(AssertionError):
    """A promise that did not hold. `details` are fields of a report's Failure."""

    def __init__(self, what: str, **details: Any) -> None:
        super().__init__(what)
        self.what = what
        self.details = details


def of_error(cause: Exception) -> Broken:
    """An error where none should be: one of ours with its place, another's with the line that raised it."""
    if isinstance(cause, TitoError):
        where, at = cause.where, ""
    else:
        frame = traceback.extract_tb(cause.__traceback__)[-1]
        where, at = {}, f" ({Path(frame.filename).name}, line {frame.lineno})"
    made = Broken(f"{type(cause).__name__}: {cause}{at}", message_index=where.get("index"), role=where.get("role"))
    made.__cause__ = cause
    return made


@dataclass(frozen=True)
class StoredTurn:
    """A turn as joining sees it; held by the verifier itself, not by a session."""

    ids: Ids
    sampled: int
    message: Message
    finish_reason: FinishReason
    decision: ThinkingDecision
    length: int


@dataclass(frozen=True)
class Step:
    """One prompt of a conversation: the turn it continues (None for the first), and the messages it holds."""

    number: int
    turn: StoredTurn | None
    append: Append
    decision: ThinkingDecision


@dataclass
class Bench:
    """One vocabulary's codec and what checks share. `encode` is `tokenizers` itself: none of our own encoding."""

    codec: Codec
    roles: AppendRoles
    seed: int
    _of: Conversation | None = field(default=None, repr=False)
    _memo: dict[object, Any] = field(default_factory=dict, repr=False)
    _bytes: dict[int, bytes] = field(default_factory=dict, repr=False)
    _decisions: dict[bool, ThinkingDecision] = field(default_factory=dict, repr=False)

    @cached_property
    def controls(self) -> tuple[str, ...]:
        """The text of every added token of the vocabulary."""
        return tuple(self.codec.decode([one]) for one in sorted(self.codec.encoder.added_ids))

    def controls_in(self, ids: Ids) -> Ids:
        """The ids of control tokens among `ids`, in their order."""
        found: Ids = ids[self._added[ids]]
        return found

    @cached_property
    def _added(self) -> npt.NDArray[np.bool_]:
        made = np.zeros(self.codec.encoder.size, dtype=np.bool_)
        made[list(self.codec.encoder.added_ids)] = True
        return made

    def token_bytes(self, id: int) -> bytes:
        if id not in self._bytes:
            self._bytes[id] = self.codec.encoder.token_bytes(id)
        return self._bytes[id]

    @cached_property
    def plain_ids(self) -> tuple[int, int]:
        """Two ids of plain text."""
        tokens = self.codec.encoder.plain_tokens()
        return tokens[b"a"], tokens[b"b"]

    def encode(self, text: str) -> Ids:
        """Ids of a text as an engine encodes it, int32."""
        return np.array(self.codec.encoder.tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def normalised(self, text: str) -> str:
        """The text that the vocabulary encodes for this one; most have no normaliser."""
        normalizer = self.codec.encoder.tokenizer.normalizer
        return text if normalizer is None or text.isascii() else str(normalizer.normalize_str(text))

    def decision(self, thinking: bool) -> ThinkingDecision:
        if thinking not in self._decisions:
            self._decisions[thinking] = self.codec.decide(thinking)
        return self._decisions[thinking]

    def rendered(self, conversation: Conversation, size: int | None = None) -> Rendered:
        """The full render of a conversation from its start, or of its first `size` messages."""
        messages = conversation.messages()[:size]
        return self._once(
            conversation,
            len(messages),
            lambda: self.codec.render(
                messages, tools=conversation.tools, decision=self.decision(conversation.thinking)
            ),
        )

    def text(self, conversation: Conversation, size: int | None = None) -> str:
        return self.rendered(conversation, size).text

    def plain(self, conversation: Conversation) -> bool:
        """Whether the conversation holds no control text, so that an engine's encoding of its render is the truth."""

        def found() -> bool:
            try:
                self.codec.encode(self.rendered(conversation), "reject")
            except EncodingError:
                return False
            return True

        return self._once(conversation, "plain", found)

    def canonical(self, conversation: Conversation) -> bool:
        """Whether this conversation's completions are sampled in canonical ids; half of them are."""
        return conversation.rounds[0].seed % 2 == 0

    def steps(self, conversation: Conversation) -> list[Step]:
        """Every prompt of a conversation, joined. The checks of one conversation share them."""
        try:
            return self._once(conversation, "steps", lambda: self._drive(conversation))
        except TitoError as cause:
            raise of_error(cause) from cause

    def _once(self, conversation: Conversation, key: object, make: Callable[[], _T]) -> _T:
        """What was made for this conversation before, by whichever check; that of one conversation is remembered."""
        if self._of is not conversation:
            self._of, self._memo = conversation, {}
        if key not in self._memo:
            self._memo[key] = make()
        made: _T = self._memo[key]
        return made

    def _drive(self, conversation: Conversation) -> list[Step]:
        codec = self.codec
        decision = self.decision(conversation.thinking)
        append = codec.prompt(conversation.prompt, tools=conversation.tools, decision=decision)
        steps = [Step(0, None, append, decision)]
        length = len(conversation.prompt)
        for number, one in enumerate(conversation.rounds, 1):
            engine = ScriptedEngine(codec, one.seed, canonical=self.canonical(conversation))
            completion = engine.say(one.assistant, decision, stop="" if one.stopped else None)
            length += 1
            turn = stored(codec, append, completion, decision, length)
            append = codec.append(turn, one.appended, append_roles=self.roles)
            steps.append(Step(number, turn, append, decision))
            length += len(one.appended)
        return steps


def stored(codec: Codec, append: Append, completion: Completion, decision: ThinkingDecision, length: int) -> StoredTurn:
    assert completion.message is not None
    return StoredTurn(
        ids=np.concatenate((append.ids, np.asarray(completion.ids))),
        sampled=len(completion.ids),
        message=codec.normalise([completion.message], start=length - 1)[0],
        finish_reason=completion.finish_reason,
        decision=decision,
        length=length,
    )


def same_ids(bench: Bench, expected: Ids, actual: Ids, what: str, *, offset: int = 0, **details: Any) -> None:
    """Raises Broken, with both runs around the first differing id. `offset` is where `expected` begins in a prompt."""
    if np.array_equal(expected, actual):
        return
    first = shared_length(expected, actual)
    run = expected[max(0, first - AROUND) : first + AROUND]
    other = actual[max(0, first - AROUND) : first + AROUND]
    decode = bench.codec.decode
    got = _one(decode, actual, first)
    raise Broken(
        f"{what}: first id that differs {first + offset}: got {got}, expected {_one(decode, expected, first)}",
        first_index=first + offset,
        expected_ids=tuple(run.tolist()),
        actual_ids=tuple(other.tolist()),
        expected_text=decode(run),
        actual_text=decode(other),
        **details,
    )


def _one(decode: Any, ids: Ids, place: int) -> str:
    return f"{int(ids[place])} {decode(ids[place : place + 1])!r}" if place < len(ids) else "nothing"
