"""What one engine call sampled."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from tito_core.errors import CompletionError
from tito_core.prompts.messages import Message
from tito_core.tokens.append import FinishReason, Ids

__all__ = ["Completion"]


@dataclass(frozen=True, eq=False)
class Completion:
    """Sampled ids as the engine returned them.

    `ids`: int32, one dimension. `logprobs`: float32, natural logarithm, one for each id. `finish_reason`: what the
    engine said. `stop`: the stop string that was matched, None where a token ended it. `message`: the assistant
    message that the engine's parsers made of it. Raises CompletionError where these do not fit each other.
    """

    ids: Ids | Sequence[int]
    logprobs: npt.NDArray[np.float32] | Sequence[float]
    finish_reason: FinishReason
    stop: str | None = None
    message: Mapping[str, Any] | Message | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
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
        object.__setattr__(self, "ids", _frozen(ids.astype(np.int32)))
        object.__setattr__(self, "logprobs", _frozen(logprobs.astype(np.float32)))


def _array(values: Any, what: str, identity: str) -> npt.NDArray[Any]:
    made = np.asarray(values)
    if made.ndim != 1:
        raise CompletionError(
            f"completion {identity} has {what} of {made.ndim} dimensions; it must be one", id=identity
        )
    if made.size == 0:
        return made.astype(np.int64)
    wanted = np.integer if what == "ids" else np.number
    if not np.issubdtype(made.dtype, wanted):
        raise CompletionError(
            f"completion {identity} has {what} of type {made.dtype}; they must be numbers", id=identity
        )
    if what == "logprobs" and not np.isfinite(made).all():
        place = int(np.flatnonzero(~np.isfinite(made))[0])
        raise CompletionError(
            f"completion {identity} has the logprob {made[place]} at {place}; an id that was sampled has a finite one",
            id=identity,
        )
    return made


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array = array.copy()
    array.setflags(write=False)
    return array
