"""The ids of a line of turns: one growing array that its turns are views of."""

from __future__ import annotations

import numpy as np

from tito_core.tokens.append import Ids

__all__ = ["Line"]


class Line:
    """Ids (int32) of one line of turns. Ids that stand in it never change; a line that goes back begins another."""

    __slots__ = ("_array", "_length")

    def __init__(self, ids: Ids, spare: int = 1024) -> None:
        self._array = np.empty(len(ids) + spare, dtype=np.int32)
        self._array[: len(ids)] = ids
        self._length = len(ids)

    def upto(self, end: int) -> Ids:
        """A read-only view of the first `end` ids."""
        view = self._array[:end]
        view.setflags(write=False)
        return view

    def extended(self, kept: int, *more: Ids) -> tuple[Line, int]:
        """The line of the first `kept` ids and `more`, and its length: this one where nothing stood after `kept`."""
        if kept != self._length:
            return Line(self.upto(kept)).extended(kept, *more)
        end = kept + sum(len(ids) for ids in more)
        if end > len(self._array):
            array = np.empty(max(end, 2 * len(self._array)), dtype=np.int32)
            array[:kept] = self._array[:kept]
            self._array = array
        at = kept
        for ids in more:
            self._array[at : at + len(ids)] = ids
            at += len(ids)
        self._length = end
        return self, end
