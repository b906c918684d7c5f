"""What one engine call sampled."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

import numpy as np
import numpy.typing as npt

from tito_core.errors import CompletionError, not_text
from tito_core.prompts.messages import Message
from tito_core.tokens.append import FinishReason, Ids

__all__ = ["Completion"]

ROUNDING: Final = 1e-3
"""How far above 0 an engine may have rounded a log-prob."""
NUMBERS: Final = frozenset(np.dtype(code).type for code in "?bhilqBHILQefd")
"""Not by kind: a float8 of another library has the kind of a float, and a name that numpy can't read."""


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """Sampled ids as the engine returned them.

    `ids`: int32, one dimension. `logprobs`: float32, natural logarithm, one for each id. `finish_reason`: what the
    engine said. `stop`: the stop string that was matched, None where a token ended it. `message`: the assistant
    message that the engine's parsers made of it. `prompt_ids`: the prompt as the engine says that it saw it, where it
    does; a session compares them with what was sent. `extras`: what else the engine returned by token (routed experts,
    an indexer's choices), arrays whose rows stand for the ids of prompt and completion, all or all but the last. Raises
    CompletionError where these do not fit each other.
    """

    ids: Ids | Sequence[int]
    logprobs: npt.NDArray[np.float32] | Sequence[float]
    finish_reason: FinishReason
    stop: str | None = None
    message: Mapping[str, Any] | Message | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    prompt_ids: Ids | Sequence[int] | None = None
    extras: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id or not_text(self.id):
            raise CompletionError(
                f"a completion has the id {self.id!r:.80}; it is text that names it, and not empty: leave it out for a new one"
            )
        if not isinstance(self.meta, Mapping):
            raise CompletionError(
                f"completion {self.id} has meta of type {type(self.meta).__name__}; map a name to what the engine said",
                id=self.id,
            )
        ids = _array(self.ids, "ids", self.id)
        if len(ids) and (ids.min() < 0 or ids.max() > np.iinfo(np.int32).max):
            raise CompletionError(f"completion {self.id} has an id outside 0..2^31-1; ids are token ids", id=self.id)
        logprobs = _array(self.logprobs, "logprobs", self.id)
        if len(ids) == 0:
            raise CompletionError(
                f"completion {self.id} has no ids; ask the engine to return token ids, text is never encoded again",
                id=self.id,
            )
        if len(logprobs) != len(ids):
            raise CompletionError(
                f"completion {self.id} has {len(ids)} ids and {len(logprobs)} logprobs; ask the engine for the log-prob "
                "of every sampled id",
                id=self.id,
            )
        if self.finish_reason not in get_args(FinishReason):
            raise CompletionError(
                f"completion {self.id} has the finish reason {self.finish_reason!r}; it is one of "
                f"{', '.join(get_args(FinishReason))}",
                id=self.id,
            )
        if self.stop is not None and not isinstance(self.stop, str):
            raise CompletionError(
                f"completion {self.id} has the stop {self.stop!r}; it is the stop string that was matched, and None where a "
                "token ended the turn",
                id=self.id,
            )
        if self.stop and (why := not_text(self.stop)):
            raise CompletionError(f"completion {self.id} has a stop that {why}", id=self.id)
        if self.message is not None and not isinstance(self.message, (Mapping, Message)):
            raise CompletionError(
                f"completion {self.id} has a message of type {type(self.message).__name__}; pass message.model_dump() or a "
                "dict",
                id=self.id,
            )
        if self.prompt_ids is not None:
            object.__setattr__(self, "prompt_ids", _frozen(_array(self.prompt_ids, "prompt ids", self.id)))
        if not isinstance(self.extras, Mapping) or not all(
            isinstance(rows, np.ndarray) and rows.ndim for rows in self.extras.values()
        ):
            raise CompletionError(
                f"completion {self.id} has extras that are not arrays of rows; map a name to an array, one row an id",
                id=self.id,
            )
        for name, rows in self.extras.items():
            if not isinstance(name, str) or not_text(name) or rows.dtype.type not in NUMBERS:
                raise CompletionError(
                    f"completion {self.id} has extras {name!r} of type {rows.dtype}; their name is text, and rows are numpy's "
                    "own booleans, or numbers of 64 bits at most, which stores and samples keep: give others as float32, or "
                    "as their bits (bfloat16: rows.view(numpy.uint16))",
                    id=self.id,
                )
        object.__setattr__(self, "ids", _frozen(ids.astype(np.int32)))
        object.__setattr__(self, "logprobs", _frozen(logprobs))

    def cut(self, end: int) -> Completion:
        """Its first `end` ids, as ended by a stop."""
        less = len(self.ids) - end
        extras = {name: rows[: len(rows) - less] for name, rows in self.extras.items()}
        return replace(self, ids=self.ids[:end], logprobs=self.logprobs[:end], finish_reason="stop", extras=extras)

    def stored(self, ids: Ids, extras: Mapping[str, npt.NDArray[Any]]) -> Completion:
        """It as a turn keeps it: `ids` are the same in the turn's own array, and what the turn has already is left out."""
        made = copy(self)
        own = {"ids": ids, "extras": extras, "meta": dict(self.meta), "message": None, "prompt_ids": None}
        for name, value in own.items():
            object.__setattr__(made, name, value)
        return made


def _array(values: Any, what: str, identity: str) -> npt.NDArray[Any]:
    try:
        made = np.asarray(values)
    except ValueError:
        raise CompletionError(
            f"completion {identity} has {what} of unequal rows; it must be one row of numbers", id=identity
        ) from None
    if made.ndim != 1:
        raise CompletionError(
            f"completion {identity} has {what} of {made.ndim} dimensions; it must be one", id=identity
        )
    if made.size == 0:
        return made.astype(np.int64)
    kinds, numbers = ("iuf", "numbers") if what == "logprobs" else ("iu", "whole numbers")
    if made.dtype.kind not in kinds:
        raise CompletionError(
            f"completion {identity} has {what} of type {made.dtype}; they must be {numbers}", id=identity
        )
    if what != "logprobs":
        return made
    with np.errstate(over="ignore"):
        cast = made.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(cast) | (cast > ROUNDING))
    if len(wrong):
        raise CompletionError(
            f"completion {identity} has the logprob {made[wrong[0]]} at {wrong[0]}; an id that was sampled has a finite one, "
            "not above 0",
            id=identity,
        )
    return cast


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array = array.copy()
    array.setflags(write=False)
    return array
