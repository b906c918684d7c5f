"""The comparator: kinds of mismatch between two id sequences, found at the family's own delimiters."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tito_core.families.family import Segments
from tito_core.tokens.append import Ids
from tito_core.tokens.encoder import Encoder, IdSpan

__all__ = ["FAULTS", "KINDS", "Comparator", "Kind", "Mismatch", "shared_length"]

Kind = Literal["special_token_count", "special_token_type", "non_assistant_text", "assistant_text", "end_token"]
KINDS: tuple[Kind, ...] = (
    "special_token_count",
    "special_token_type",
    "non_assistant_text",
    "assistant_text",
    "end_token",
)
FAULTS: tuple[Kind, ...] = KINDS[:3]
"""The kinds that must be zero. `assistant_text` is soft: the sampled ids differ from the canonical ones; so is
`end_token`: a turn ended on another of the family's stop tokens than the one that the template prints, or where it prints
none, and keeps it."""


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


class Comparator:
    """Compares sequences of one family under one vocabulary.

    Think tags never delimit. A run between two delimiters is split: what the template or an author printed, and what an
    assistant said. Only a difference in the second is soft, and only where the model can have sampled it. What it did
    sample is known where `sampled` is given; else the headers tell, and `spans`: an assistant's message that the client
    put directly behind another one is prompt text. `stop` are the tokens that end a completion,
    `shared` those that are the next message's opener too.
    """

    def __init__(
        self, segments: Segments, encoder: Encoder, stop: Sequence[str] = (), shared: Sequence[str] = ()
    ) -> None:
        self._encoder = encoder
        self._stop = self._known(stop)
        self._ending = self._stop - self._known(shared)
        self._delimiters = np.array(sorted(self._known(segments.delimiters)), dtype=np.int32)
        self._headers: dict[int, list[bytes]] = {}
        for token in segments.delimiters:
            texts = [header[len(token) :].encode() for header in segments.headers if header.startswith(token)]
            if texts and (known := encoder.token_id(token)) is not None:
                self._headers[known] = texts
        self._openers = np.array(sorted(self._known(segments.openers)), dtype=np.int32)
        self._ends = self._known(segments.ends)

    def compare(
        self,
        expected: Ids,
        actual: Ids,
        spans: Sequence[IdSpan] = (),
        sampled: Sequence[tuple[int, int]] | None = None,
    ) -> list[Mismatch]:
        """Every mismatch of `actual` against `expected`, int32 arrays; `spans` are the expected sequence's.

        `sampled` are the ranges (start, end) of `actual`, in order, that the engine sampled: only they are
        `assistant_text`, with the closers of one that was cut, and a delimiter in one delimits nothing, unless it is the
        stop token that ends it. Where they
        are not given, whatever stands behind an assistant's header is taken for sampled.

        Where the delimiters differ the segments can't be matched, and that one mismatch is all that is reported. Costs
        what the sequences' lengths cost.
        """
        if np.array_equal(expected, actual):
            return []
        marks, other = self._marks(expected), self._marks(actual)
        if sampled is not None:
            other = self._undisputed(actual, other, sampled)
            marks = _aligned(marks, other, spans, sampled)
            if len(other) > len(marks) and (added := self._added(expected, actual, marks, other, sampled)):
                found = []
                for number, at, there in added:
                    last = self._mismatch(
                        "end_token", 2 * number, at, expected[at:at], actual[there : there + 1], spans
                    )
                    found.append(replace(last, message_index=_message(spans, at - 1)))
                places = [there for _, _, there in added]
                less = [(start, end - (end - 1 in places)) for start, end in sampled]
                moved = [(start - bisect_left(places, start), end - bisect_left(places, end)) for start, end in less]
                rest = self.compare(expected, np.delete(actual, places), spans, moved)
                return sorted([*found, *rest], key=_first)
        ended = self._ended(expected, actual, marks, other, sampled)
        if ended is None:
            return [self._structural(expected, actual, marks, other, spans)]
        found = [
            self._mismatch("end_token", 2 * number, at, expected[at : at + 1], actual[there : there + 1], spans)
            for number, at, there in ended
        ]
        ranges = iter(sampled or ())
        following = next(ranges, None)
        for number, (one, two) in enumerate(zip(self._runs(expected, marks), self._runs(actual, other), strict=True)):
            while following is not None and following[0] < two.start:
                following = next(ranges, None)
            if np.array_equal(expected[one.start : one.end], actual[two.start : two.end]):
                continue
            if sampled is None:
                parts = self._split(expected, actual, one, two, spans)
            elif following is None or following[0] > two.end:
                parts = [(one.start, one.end, two.start, two.end)]
            else:
                parts = self._before(expected, actual, one, two, following[0])
            for half, (start, end, begins, ends) in enumerate(parts):
                run, run_of_actual = expected[start:end], actual[begins:ends]
                if not np.array_equal(run, run_of_actual):
                    kind: Kind = "assistant_text" if half else "non_assistant_text"
                    found.append(self._mismatch(kind, 2 * number + half, start, run, run_of_actual, spans))
        return found

    def _ended(
        self,
        expected: Ids,
        actual: Ids,
        marks: npt.NDArray[np.intp],
        other: npt.NDArray[np.intp],
        sampled: Sequence[tuple[int, int]] | None,
    ) -> list[tuple[int, int, int]] | None:
        """Where an assistant's turn ends on two different stop tokens: the segment, and the place in either sequence.

        None where the delimiters differ otherwise.
        """
        if len(marks) != len(other):
            return None
        found = []
        for number in np.flatnonzero(expected[marks] != actual[other]).tolist():
            at, there = int(marks[number]), int(other[number])
            if not {int(expected[at]), int(actual[there])} <= self._stop:
                return None
            if sampled is None:
                begins = int(other[number - 1]) if number else -1
                said = begins >= 0 and self._header(actual[begins + 1 : there], int(actual[begins])) is not None
            else:
                said = any(end == there + 1 for _, end in sampled)
            if not said:
                return None
            found.append((number, at, there))
        return found

    def _added(
        self,
        expected: Ids,
        actual: Ids,
        marks: npt.NDArray[np.intp],
        other: npt.NDArray[np.intp],
        sampled: Sequence[tuple[int, int]],
    ) -> list[tuple[int, int, int]]:
        """Where an assistant's turn ends on a stop token and the expected sequence goes on with what follows it: the segment,
        and the place in either sequence."""
        lasts = {end - 1 for _, end in sampled if end <= len(actual) and int(actual[end - 1]) in self._stop}
        places, wanted = [*marks.tolist(), len(expected)], [*expected[marks].tolist(), None]
        found = []
        number = 0
        for there, following in pairwise([*other.tolist(), len(actual)]):
            next_ = int(actual[following]) if following < len(actual) else None
            goes_on = following == there + 1 and next_ == wanted[number] and next_ not in self._ending
            if there in lasts and goes_on and next_ != int(actual[there]):
                found.append((number, places[number], there))
            elif (number := number + 1) == len(places):
                break
        return found

    def assistant_runs(self, ids: Ids) -> list[tuple[int, int]]:
        """The runs (start, end) of `ids` that an assistant said."""
        return [(run.said, run.end) for run in self._runs(ids, self._marks(ids)) if run.said < run.end]

    def _split(self, expected: Ids, actual: Ids, one: _Run, two: _Run, spans: Sequence[IdSpan]) -> list[_Part]:
        """What was printed and what was said in two runs, as headers and spans tell."""
        said, begins = one.said, two.said
        header = min(one.header, two.header)
        if header >= 0 and one.header != two.header:
            said = one.start + self._within(expected[one.start : one.end], header)
            begins = two.start + self._within(actual[two.start : two.end], header)
        if _put(one, spans) or (one.end == len(expected) and said == one.end):
            # A client's own message, or a generation header that nothing was sampled after.
            said, begins = one.end, two.end
        return [(one.start, said, two.start, begins), (said, one.end, begins, two.end)]

    def _before(self, expected: Ids, actual: Ids, one: _Run, two: _Run, begins: int) -> list[_Part]:
        """What was printed before `begins`, and what was sampled from there on, with what closes it if it was cut."""
        prefix, said = actual[two.start : begins], one.start + begins - two.start
        missing = expected[said : one.said]  # an opener that the template prints, unless the model sampled it
        if not np.array_equal(expected[one.start : said], prefix):
            said, run, data = one.said, expected[one.start : one.end], self._encoder.decode_bytes(prefix)
            if self._encoder.decode_bytes(run[: len(data)]).startswith(data):
                # The end of what was printed became one token with the text.
                said = one.start + self._within(run, len(data))
                begins = two.start + self._within(prefix, self._size(run, said - one.start))
            elif not len(self._openers):
                # A message that doesn't fit the mode: what the template prints after the header hangs on the message.
                begins = min(begins, two.said)
        elif not np.array_equal(missing, actual[begins : begins + len(missing)]):
            said = one.said
        return [(one.start, said, two.start, begins), (said, one.end, begins, two.end)]

    def _undisputed(
        self, actual: Ids, marks: npt.NDArray[np.intp], sampled: Sequence[tuple[int, int]]
    ) -> npt.NDArray[np.intp]:
        """The delimiters that nobody sampled, and the stop tokens that end what was sampled."""
        inside = np.zeros(len(actual) + 1, dtype=np.bool_)
        for start, end in sampled:
            end = min(end, len(actual))
            inside[start : end - (end > start and int(actual[end - 1]) in self._stop)] = True
        return marks[~inside[marks]]

    def _marks(self, ids: Ids) -> npt.NDArray[np.intp]:
        return np.flatnonzero(np.isin(ids, self._delimiters))

    def _runs(self, ids: Ids, marks: npt.NDArray[np.intp]) -> Iterator[_Run]:
        openers = np.flatnonzero(np.isin(ids, self._openers)).tolist()
        place = 0
        edges = [-1, *marks.tolist(), len(ids)]
        for before, end in pairwise(edges):
            start = before + 1
            while place < len(openers) and openers[place] < start:
                place += 1
            opener = openers[place] if place < len(openers) and openers[place] < end else None
            previous = int(ids[before]) if before >= 0 else -1
            header = self._header(ids[start:end], previous)
            if header is not None:
                said = start + self._within(ids[start:end], header)
                yield _Run(start, said + 1 if opener == said else said, end, header)
            elif previous in self._ends and opener is not None:
                yield _Run(start, opener + 1, end)
            else:
                yield _Run(start, end, end)

    def _header(self, run: Ids, delimiter: int) -> int | None:
        """How many bytes of an assistant's header text begin a run in whole tokens; None where it has no such header.

        A prompt's header is encoded before there is a text after it; in a full render its last characters may have
        become one token with the first of the text.
        """
        for text in self._headers.get(delimiter, ()):
            begins = self._encoder.decode_bytes(run[: len(text)])
            if begins.startswith(text):
                return self._size(run, self._within(run, len(text)))
        return None

    def _within(self, run: Ids, size: int) -> int:
        """How many of a run's first tokens lie within so many bytes."""
        place = 0
        while place < len(run) and (size := size - len(self._encoder.token_bytes(int(run[place])))) >= 0:
            place += 1
        return place

    def _size(self, run: Ids, tokens: int) -> int:
        return len(self._encoder.decode_bytes(run[:tokens]))

    def _structural(
        self,
        expected: Ids,
        actual: Ids,
        marks: npt.NDArray[np.intp],
        other: npt.NDArray[np.intp],
        spans: Sequence[IdSpan],
    ) -> Mismatch:
        left, right = expected[marks], actual[other]
        number = shared_length(left, right)
        at = int(marks[number]) if number < len(left) else len(expected)
        there = int(other[number]) if number < len(right) else len(actual)
        kind: Kind = "special_token_type" if len(left) == len(right) else "special_token_count"
        return self._mismatch(kind, 2 * number, at, expected[at : at + 1], actual[there : there + 1], spans)

    def _mismatch(self, kind: Kind, segment: int, at: int, run: Ids, other: Ids, spans: Sequence[IdSpan]) -> Mismatch:
        first = at + shared_length(run, other)
        return Mismatch(
            kind,
            segment,
            _message(spans, first),
            first,
            tuple(run.tolist()),
            tuple(other.tolist()),
            self._encoder.decode(run),
            self._encoder.decode(other),
        )

    def _known(self, tokens: Sequence[str]) -> set[int]:
        return {found for token in tokens if (found := self._encoder.token_id(token)) is not None}


class _Run(NamedTuple):
    """Ids between two delimiters, `start` to `end`; an assistant said those from `said` on.

    `header` counts the bytes of a header's text that are tokens of their own, -1 where no header begins the run.
    """

    start: int
    said: int
    end: int
    header: int = -1


def shared_length(one: Ids, other: Ids) -> int:
    """How many ids two sequences begin with alike: the index of the first that differs, or where the shorter ends."""
    most = min(len(one), len(other))
    differing = np.flatnonzero(one[:most] != other[:most])
    return int(differing[0]) if len(differing) else most


def _message(spans: Sequence[IdSpan], place: int) -> int | None:
    """Whose message an id is of; None where it is of none."""
    number = bisect_right(spans, place, key=_start) - 1
    return spans[number].index if number >= 0 and spans[number].index >= 0 else None


def _first(mismatch: Mismatch) -> int:
    return mismatch.first_index


def _start(span: IdSpan) -> int:
    return span.start


_Part = tuple[int, int, int, int]
"""A part of a run: `start` and `end` in the expected sequence, then in the actual one."""


def _put(run: _Run, spans: Sequence[IdSpan]) -> bool:
    """Whether spans say that no model said a run of the expected sequence: its end is another role's, or it begins with
    an assistant's message, and the delimiter before it ended another one."""
    place = bisect_right(spans, run.start, key=_start) - 1
    if place < 1:
        return False
    span, before = spans[place], spans[bisect_right(spans, run.start - 1, key=_start) - 1]
    if run.end > run.said and spans[bisect_right(spans, run.end - 1, key=_start) - 1].role != "assistant":
        return True
    return span.role == before.role == "assistant" and span.index != before.index


def _aligned(
    marks: npt.NDArray[np.intp],
    other: npt.NDArray[np.intp],
    spans: Sequence[IdSpan],
    sampled: Sequence[tuple[int, int]],
) -> npt.NDArray[np.intp]:
    """The expected sequence's delimiters without those in the content of messages that were sampled: they are `marks`
    that stand where `other`, those of the actual one, have a sampled range before them."""

    def said(mark: int) -> bool:
        place = bisect_right(spans, mark, key=_start) - 1
        return place >= 0 and spans[place].role == "assistant" and spans[place].source == "content"

    left = [(mark, said(mark)) for mark in marks.tolist()]
    if not any(inside for _, inside in left):
        return marks
    starts = [start for start, _ in sampled]
    kept: list[int] = []
    place = passed = 0
    for mark in (*other.tolist(), None):
        before, passed = passed, len(starts) if mark is None else bisect_right(starts, mark)
        while passed > before and place < len(left) and left[place][1]:
            place += 1
        kept += [one for one, _ in left[place : None if mark is None else place + 1]]
        place += 1
    return np.array(kept, dtype=np.intp)
