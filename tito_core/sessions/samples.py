"""Training samples: which lines of turns are kept, and which of their ids train."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from numbers import Real
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from tito_core.errors import SessionError
from tito_core.responses.completion import NUMBERS
from tito_core.sessions.custom import Custom
from tito_core.sessions.turn import Turn, leaves
from tito_core.tokens.append import FinishReason, Ids
from tito_core.tokens.encoder import IdSpan

__all__ = [
    "Finish",
    "Sample",
    "SampleTurn",
    "Select",
    "check_extras",
    "finite",
    "latest",
    "made",
    "once",
    "retries",
    "sampled",
]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SampleTurn:
    """One turn of a sample: `number` in its session, and where its completion's ids stand, `start` to `end`.

    `trains` is False where samples before this one train them all. Times are seconds since the epoch, `weight_version` is what
    the engine said.
    """

    number: int
    completion: str
    start: int
    end: int
    requested: float
    committed: float
    finish_reason: FinishReason
    weight_version: str | None = None
    reward: float | None = None
    trains: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One training sample, of the turns from a first prompt to the turn of number `leaf`, or to the last that fits; where
    none does, of what fits of the first prompt.

    `tokens` (int32), `loss_mask` (int8, 1 where the engine sampled the id and no sample before this one trains it),
    `logprobs` (float32, 0 where it did not sample), `spans` of the ids that it did not sample, `turns`, and `extras`: arrays
    with a row for each id, or for each but the last. `status`: `complete`; `truncated` where the last turn or the sample
    itself was cut; or the name of the error that ended the session early, of which this is the last good prefix.
    """

    leaf: int
    tokens: Ids
    loss_mask: npt.NDArray[np.int8]
    logprobs: npt.NDArray[np.float32]
    spans: tuple[IdSpan, ...]
    turns: tuple[SampleTurn, ...]
    extras: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    status: str = "complete"
    metadata: Mapping[str, Any] = field(default_factory=dict)


Select = Callable[[Sequence[Turn]], Sequence[Turn]]
"""Of a session's turns, oldest first, those that samples are made of, in the order of the samples."""

Finish = Callable[[Sequence[Sample], Mapping[str, float], Mapping[str, Any]], Sequence[Sample]]
"""What becomes of the samples, which all train whatever was sampled in them; with the rewards and the metadata given."""


def retries(turns: Sequence[Turn]) -> list[Turn]:
    """The leaves, less the retries that were superseded: of turns that answer the same prompt ids after the same turn, the
    one that went on stays, or the newest. First prompts are never dropped, and branches, which answer other prompts, are no
    retries of each other.

    Raises SessionError where several retries of one prompt went on.
    """
    parents = {turn.parent for turn in turns}
    tries: dict[tuple[Turn, int, bytes], list[Turn]] = {}
    for turn in turns:
        prompt = turn.new[: len(turn.new) - turn.sampled].tobytes()
        tries.setdefault((turn.parent or turn, turn.kept, prompt), []).append(turn)
    kept = set()
    for siblings in tries.values():
        ongoing = [turn for turn in siblings if turn in parents]
        if len(ongoing) > 1:
            one, other = (turn.number for turn in ongoing[:2])
            raise SessionError(
                f"turns {one} and {other} answer the same prompt and both went on, so neither is a retry that the other "
                "superseded; pass select='leaves' for a sample of each, select='latest' for the newest, or a function that "
                "chooses",
                turns=(one, other),
            )
        kept.add(ongoing[0] if ongoing else siblings[-1])
    return [leaf for leaf in leaves(turns) if leaf in kept]


def latest(turns: Sequence[Turn]) -> list[Turn]:
    """The newest turn of each first prompt: what is left where every other way was given up."""
    return list({turn.line[0]: turn for turn in turns}.values())


def once(samples: Sequence[Sample], rewards: Mapping[str, float], metadata: Mapping[str, Any]) -> list[Sample]:
    """Each sampled id trains in the first sample that holds it, each turn has its completion's reward; of equal keys of
    metadata ours win."""
    trained: dict[str, int] = {}
    finished = []
    for sample in samples:
        mask = sample.loss_mask.copy()
        turns = []
        for turn in sample.turns:
            size = turn.end - turn.start
            before = min(trained.get(turn.completion, 0), size)
            mask[turn.start : turn.start + before] = 0
            trained[turn.completion] = max(trained.get(turn.completion, 0), size)
            turns.append(replace(turn, trains=before < size, reward=rewards.get(turn.completion)))
        layered = {**metadata, **sample.metadata}
        finished.append(replace(sample, loss_mask=mask, turns=tuple(turns), metadata=layered))
    return finished


_SELECTS: Final[dict[str, Select]] = {"retries": retries, "leaves": leaves, "latest": latest}
_FINISHES: Final[dict[str, Finish]] = {"once": once}


def made(
    turns: Sequence[Turn],
    *,
    max_tokens: int | None,
    select: str | Select,
    finish: str | Finish,
    rewards: Mapping[str, float],
    metadata: Mapping[str, Any],
    ours: Mapping[str, Any],
    error: BaseException | None,
) -> list[Sample]:
    """The samples of a session's turns; see `Session.samples`. `ours` is metadata that wins over a caller's."""
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise SessionError(f"max_tokens is {max_tokens!r}; it must be a number of ids, 1 or more, or None for no limit")
    for what, given in (("rewards", rewards), ("metadata", metadata)):
        if not isinstance(given, Mapping):
            raise SessionError(f"{what} is a {type(given).__name__}; it must be a mapping, or None for none")
    if unknown := rewards.keys() - {turn.completion.id for turn in turns}:
        first = min(unknown, key=repr)
        raise SessionError(
            f"rewards names the completion {first!r}, which this session does not hold; its keys are the ids of "
            "completions",
            id=first,
        )
    for one, reward in rewards.items():
        if not finite(reward):
            raise SessionError(
                f"rewards gives completion {one} {reward!r:.80}, a {type(reward).__name__}; it must be a finite number, or "
                "None for none",
                id=one,
            )
    if error is not None and not isinstance(error, BaseException):
        raise SessionError(
            f"error is {error!r:.80}, a {type(error).__name__}; it must be the exception that ended the session, or None"
        )
    selecting = Custom("select", select, _SELECTS, 1)
    finishing = Custom("finish", finish, _FINISHES, 3)
    chosen = _chosen(selecting, selecting(turns), turns)
    drawn = [_sample(leaf, max_tokens, ours, error) for leaf in chosen]
    own = drawn if finishing.ours else [_copied(sample) for sample in drawn]
    plain = {one: _plain(reward) for one, reward in rewards.items()}
    return _finished(finishing, finishing(own, plain, metadata), drawn)


def sampled(leaf: Turn) -> list[tuple[int, int]]:
    """The ranges (start, end) of a turn's ids that the engine sampled, oldest first."""
    ends = [after.kept for _, after in pairwise(leaf.line)]
    return [(turn.end - turn.sampled, end) for turn, end in zip(leaf.line, (*ends, leaf.end), strict=True)]


def _sample(leaf: Turn, max_tokens: int | None, ours: Mapping[str, Any], error: BaseException | None) -> Sample:
    line = leaf.line
    fitting = [turn for turn in line if max_tokens is None or turn.end <= max_tokens]
    last = fitting[-1] if fitting else line[0]
    size = last.end if fitting else min(last.end - last.sampled, max_tokens or 0)
    tokens = last.ids[:size]
    mask = np.zeros(len(tokens), dtype=np.int8)
    logprobs = np.zeros(len(tokens), dtype=np.float32)
    spans: list[IdSpan] = []
    turns = []
    for turn, (start, end) in zip(fitting, sampled(last), strict=False):
        mask[start:end] = 1
        logprobs[start:end] = turn.completion.logprobs[: end - start]
        spans += turn.spans
        version = turn.completion.meta.get("weight_version")
        turns.append(
            SampleTurn(
                number=turn.number,
                completion=turn.completion.id,
                start=start,
                end=end,
                requested=turn.requested,
                committed=turn.committed,
                finish_reason=turn.finish_reason,
                weight_version=None if version is None else str(version),
            )
        )
    if not fitting:
        spans = [span._replace(end=min(span.end, len(tokens))) for span in last.spans if span.start < len(tokens)]
    cut = last is not leaf or not fitting or last.finish_reason == "length"
    status = type(error).__name__ if error else "truncated" if cut else "complete"
    root = line[0]
    about = {**ours, "summarises": root.summarises.completion.id} if root.summarises else dict(ours)
    extras = {name: _rows(name, last)[: len(tokens) - last.lag(name)] for name in last.completion.extras}
    return Sample(leaf.number, tokens, mask, logprobs, tuple(spans), tuple(turns), extras, status, about)


def _rows(name: str, last: Turn) -> npt.NDArray[Any]:
    """The rows of one of the extras, from the line's first id to a turn's last."""
    own = last.completion.extras[name]
    lag = last.lag(name)
    made = np.empty((last.end - lag, *own.shape[1:]), dtype=own.dtype)
    for turn in last.line:
        rows = turn.completion.extras[name]
        made[turn.end - lag - len(rows) : turn.end - lag] = rows
    return made


def _chosen(custom: Custom, answer: Any, turns: Sequence[Turn]) -> list[Turn]:
    chosen = _listed(custom, answer, Turn, "turns of the session")
    if len(set(chosen)) < len(chosen) or not set(turns).issuperset(chosen):
        numbers = [turn.number for turn in chosen]
        raise custom.refuse(f"answered the turns {numbers}; each must be one of the session's, and none twice")
    return chosen


def _finished(custom: Custom, answer: Any, drawn: Sequence[Sample]) -> list[Sample]:
    """Holds what a user's `finish` answered against what was sampled: whatever it does, masks stay honest."""
    finished = _listed(custom, answer, Sample, "samples")
    if custom.ours:
        return finished
    origins = {sample.leaf: sample for sample in drawn}
    trained: set[tuple[int, int]] = set()
    for at, one in enumerate(finished):
        origin = origins.get(one.leaf) if type(one.leaf) is int else None
        if origin is None or not np.array_equal(origin.tokens, _numbers(custom, one, "tokens")):
            raise custom.refuse(f"answered a sample of turn {one.leaf} whose tokens are not those that it was given")
        mask, logprobs = _numbers(custom, one, "loss_mask"), _numbers(custom, one, "logprobs")
        if not mask.shape == logprobs.shape == origin.tokens.shape:
            raise custom.refuse(f"answered a sample of turn {one.leaf} whose arrays are not as long as its tokens")
        if mask.dtype.kind == "f" or not np.isin(mask, (0, 1)).all():
            raise custom.refuse(
                f"answered a sample of turn {one.leaf} whose loss_mask ({mask.dtype}) is not of whole numbers 0 and 1"
            )
        if np.any(mask > origin.loss_mask):
            raise custom.refuse(f"answered a sample of turn {one.leaf} that trains ids which nobody sampled")
        same = {
            "logprobs": np.array_equal(logprobs, origin.logprobs),
            "spans": isinstance(one.spans, tuple) and one.spans == origin.spans,
            "turns": isinstance(one.turns, tuple)
            and [*map(_unrewarded, one.turns)] == [*map(_unrewarded, origin.turns)],
        }
        for name in (name for name, kept in same.items() if not kept):
            raise custom.refuse(f"answered a sample of turn {one.leaf} whose {name} are not those that it was given")
        if not isinstance(one.status, str) or not isinstance(one.metadata, Mapping):
            raise custom.refuse(
                f"answered a sample of turn {one.leaf} whose status and metadata are a {type(one.status).__name__} and a "
                f"{type(one.metadata).__name__}; they are a text and a mapping"
            )
        try:
            check_extras(one.extras, len(origin.tokens))
        except ValueError as cause:
            raise custom.refuse(f"answered a sample of turn {one.leaf} whose extras are none: {cause}") from None
        for name in one.extras.keys() & origin.extras.keys():
            rows, given = one.extras[name], origin.extras[name]
            if rows.dtype != given.dtype or not np.array_equal(rows, given, equal_nan=given.dtype.kind == "f"):
                raise custom.refuse(
                    f"answered a sample of turn {one.leaf} whose extras {name!r} are not those that it was given"
                )
        for turn in origin.turns:
            ids = {(turn.number, int(place)) for place in np.flatnonzero(mask[turn.start : turn.end])}
            if trained & ids:
                raise custom.refuse(
                    f"answered samples of which two train completion {turn.completion}; each trains once"
                )
            trained |= ids
        finished[at] = replace(
            one,
            tokens=origin.tokens,
            loss_mask=mask.astype(np.int8),
            logprobs=origin.logprobs.copy(),
            turns=tuple(replace(turn, reward=_plain(turn.reward)) for turn in one.turns),
        )
    return finished


def _copied(sample: Sample) -> Sample:
    """A sample whose mask a user's `finish` may write in, with the original kept to hold its answer against."""
    extras = {name: rows.view() for name, rows in sample.extras.items()}
    for rows in extras.values():
        rows.setflags(write=False)
    return replace(sample, loss_mask=sample.loss_mask.copy(), logprobs=sample.logprobs.copy(), extras=extras)


def check_extras(extras: Any, size: int) -> None:
    """Raises ValueError for extras that no sample of so many tokens has."""
    if not isinstance(extras, Mapping):
        raise ValueError(f"its extras are a {type(extras).__name__}, and must map names to arrays")
    for name, rows in extras.items():
        if not isinstance(name, str) or not isinstance(rows, np.ndarray):
            raise ValueError(f"its extras {name!r} are a {type(rows).__name__}, and must be an array under a name")
        if rows.dtype.type not in NUMBERS or not rows.ndim or size - len(rows) not in (0, 1):
            raise ValueError(
                f"its extras {name!r} are {rows.dtype} of the shape {rows.shape}, and must be numbers, a row for each of "
                f"{size} ids or for all but the last; numbers are of 64 bits at most"
            )


def _unrewarded(turn: Any) -> Any:
    """A turn without what a `finish` may set, where that can be."""
    if not isinstance(turn, SampleTurn) or type(turn.trains) is not bool:
        return None
    return replace(turn, reward=None, trains=True) if finite(turn.reward) else None


def finite(reward: Any) -> bool:
    """Whether it is a reward: a number that a float can be, or None for none."""
    try:
        return reward is None or (isinstance(reward, Real) and math.isfinite(reward))
    except OverflowError:
        return False


def _plain(reward: float | None) -> float | None:
    """A reward as JSON has it, whatever kind of number it was."""
    return None if reward is None else float(reward)


def _numbers(custom: Custom, sample: Sample, name: str) -> npt.NDArray[Any]:
    try:
        made = np.asarray(getattr(sample, name))
    except Exception:  # rows of unequal lengths, or whatever an object's own __array__ raises
        made = np.empty((), dtype=object)
    if made.ndim != 1 or made.dtype.kind not in "biuf":
        raise custom.refuse(
            f"answered a sample of turn {sample.leaf} whose {name} is a {type(getattr(sample, name)).__name__} that is no "
            "row of numbers; leave it, or make it an array"
        )
    return made


def _listed(custom: Custom, answer: Any, kind: type[_T], what: str) -> list[_T]:
    if not isinstance(answer, Sequence) or not all(isinstance(one, kind) for one in answer):
        raise custom.refuse(f"answered {answer!r:.80}; it must answer a list of {what}")
    return list(answer)
