"""The comparator: four kinds of mismatch between two id sequences, found at the family's own delimiters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from tito_core.families.family import Segments
from tito_core.tokens.append import Ids
from tito_core.tokens.encoder import Encoder, IdSpan

__all__ = ["FAULTS", "KINDS", "Comparator", "Kind", "Mismatch"]

Kind = Literal["special_token_count", "special_token_type", "non_assistant_text", "assistant_text"]
KINDS: tuple[Kind, ...] = ("special_token_count", "special_token_type", "non_assistant_text", "assistant_text")
FAULTS: tuple[Kind, ...] = KINDS[:3]
"""The kinds that must be zero. `assistant_text` is soft: the sampled ids differ from the canonical ones."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference. `first_index` is the first differing id's place in the expected sequence.

    `message_index` is known where the caller gave the expected sequence's spans, else None. `drift` says that both
    texts are the same and only the ids differ.
    """

    kind: Kind
    segment: int
    message_index: int | None
    first_index: int
    expected_ids: tuple[int, ...]
    actual_ids: tuple[int, ...]
    expected_text: str
    actual_text: str

    @property
    def drift(self) -> bool:
        return self.expected_text == self.actual_text


@dataclass(frozen=True, slots=True)
class _Segment:
    start: int
    end: int
    assistant: bool


class Comparator:
    """Compares sequences of one family under one vocabulary. Think tags never delimit."""

    def __init__(self, segments: Segments, encoder: Encoder) -> None:
        self._encoder = encoder
        self._delimiters = np.array(sorted(self._known(segments.delimiters)), dtype=np.int32)
        self._headers = self._known(segments.headers)
        self._openers = np.array(sorted(self._known(segments.openers)), dtype=np.int32)
        self._ends = self._known(segments.ends)

    def compare(self, expected: Ids, actual: Ids, spans: Sequence[IdSpan] = ()) -> list[Mismatch]:
        """Every mismatch of `actual` against `expected`, int32 arrays; `spans` are the expected sequence's.

        Where the delimiters differ the segments can't be matched, and that one mismatch is all that is reported.
        """
        if np.array_equal(expected, actual):
            return []
        marks, other = self._marks(expected), self._marks(actual)
        left, right = expected[marks], actual[other]
        if not np.array_equal(left, right):
            return [self._structural(expected, actual, marks, other, spans)]
        found = []
        for number, (one, two) in enumerate(
            zip(self._segments(expected, marks), self._segments(actual, other), strict=False)
        ):
            run, sampled = expected[one.start : one.end], actual[two.start : two.end]
            if np.array_equal(run, sampled):
                continue
            kind: Kind = "assistant_text" if one.assistant and two.assistant else "non_assistant_text"
            found.append(self._mismatch(kind, number, one.start, run, sampled, spans))
        if not found:
            found.append(self._mismatch("non_assistant_text", 0, 0, expected, actual, spans))
        return found

    def assistant_runs(self, ids: Ids) -> list[tuple[int, int]]:
        """The runs (start, end) of `ids` that are an assistant's."""
        return [(run.start, run.end) for run in self._segments(ids, self._marks(ids)) if run.assistant]

    def _marks(self, ids: Ids) -> Ids:
        return np.flatnonzero(np.isin(ids, self._delimiters)).astype(np.int32)

    def _segments(self, ids: Ids, marks: Ids) -> list[_Segment]:
        """Two segments for each run between delimiters: what is not the assistant's, then what is."""
        made: list[_Segment] = []
        edges = [-1, *(int(mark) for mark in marks), len(ids)]
        openers = np.flatnonzero(np.isin(ids, self._openers)) if len(self._openers) else self._openers
        for before, after in pairwise(edges):
            start, opener = before + 1, after
            previous = int(ids[before]) if before >= 0 else None
            following = int(ids[after]) if after < len(ids) else None
            if previous in self._headers:
                opener = start
            else:
                place = int(np.searchsorted(openers, start))
                if place < len(openers) and openers[place] < after:
                    opener = int(openers[place])
                elif previous in self._ends and following in self._ends:
                    opener = start
            made += (_Segment(start, opener, False), _Segment(opener, after, True))
        return made

    def _structural(self, expected: Ids, actual: Ids, marks: Ids, other: Ids, spans: Sequence[IdSpan]) -> Mismatch:
        left, right = expected[marks], actual[other]
        shared = min(len(left), len(right))
        differing = np.flatnonzero(left[:shared] != right[:shared])
        number = int(differing[0]) if len(differing) else shared
        same = Counter(left.tolist()) == Counter(right.tolist())
        one = expected[int(marks[number]) :][:1] if number < len(left) else expected[:0]
        two = actual[int(other[number]) :][:1] if number < len(right) else actual[:0]
        at = int(marks[number]) if number < len(left) else len(expected)
        kind: Kind = "special_token_type" if same or len(left) == len(right) else "special_token_count"
        return self._mismatch(kind, 2 * number, at, one, two, spans)

    def _mismatch(self, kind: Kind, segment: int, at: int, run: Ids, other: Ids, spans: Sequence[IdSpan]) -> Mismatch:
        shared = min(len(run), len(other))
        differing = np.flatnonzero(run[:shared] != other[:shared])
        first = at + (int(differing[0]) if len(differing) else shared)
        index = next((span.index for span in spans if span.start <= first < span.end), None)
        if index is None and spans and first >= spans[-1].end:
            index = spans[-1].index
        return Mismatch(
            kind,
            segment,
            index,
            first,
            tuple(run.tolist()),
            tuple(other.tolist()),
            self._encoder.decode(run),
            self._encoder.decode(other),
        )

    def _known(self, tokens: Sequence[str]) -> set[int]:
        return {found for token in tokens if (found := self._encoder.token_id(token)) is not None}
