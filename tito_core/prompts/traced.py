"""Text that knows, character by character, who wrote it: the template, or the author of a message."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Final, SupportsIndex

__all__ = ["LOCAL", "LOST", "TEMPLATE", "Traced", "concat", "like", "origins", "stringified"]

TEMPLATE: Final = -2
"""The template printed it. A message's content has the message's index, -1 where it belongs to none."""
LOCAL: Final = -3
"""A number, a constant or an empty object, printed as text: it belongs where it stands."""
LOST: Final = -4
"""Parts of several authors went through what can't be followed."""

Runs = tuple[tuple[int, int], ...]
"""(length, origin) of each stretch, in order, none empty."""


class Traced(str):
    """A string that behaves as its plain text does, and keeps the origin of every character through what is done to it.

    What can't be followed never becomes the template's: it has the one origin that all its parts have, else LOST.
    """

    __slots__ = ("_runs",)
    _runs: Runs

    def __new__(cls, text: str, origin: int = LOST) -> Traced:
        return _made(text, ((len(text), origin),) if text else ())

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> Traced:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Traced:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> Traced:
        return _made(str.__mul__(self, times), self._runs * max(times.__index__(), 0))

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> Traced:
        return like(str.__mod__(self, values), self, values)

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        text = str.__getitem__(self, key)
        if len(self._runs) <= 1:
            return _made(text, ((len(text), self._runs[0][1]),) if text else ())
        if not isinstance(key, slice):
            at = key.__index__() % len(self)
            return self._cut(at, at + 1)
        start, end, step = key.indices(len(self))
        return self._cut(start, max(start, end)) if step == 1 else concat(self[at] for at in range(start, end, step))

    def __iter__(self) -> Iterator[str]:
        return (self[at] for at in range(len(self)))

    def _cut(self, start: int, end: int) -> Traced:
        runs, place = [], 0
        for size, origin in self._runs:
            kept = min(place + size, end) - max(place, start)
            if kept > 0:
                runs.append((kept, origin))
            place += size
        return _made(str.__getitem__(self, slice(start, end)), tuple(runs))

    def _found(self, parts: Iterable[str]) -> list[str]:
        """Parts of this text, in order, none overlapping, each at the first place where it stands."""
        made: list[str] = []
        place = 0
        for part in parts:
            start = str.find(self, part, place)
            place = start + len(part)
            made.append(self[start:place])
        return made

    def _divided(self, parts: list[str], between: int) -> list[str]:
        """Parts of this text that follow each other with so many characters between."""
        made: list[str] = []
        place = 0
        for part in parts:
            made.append(self[place : place + len(part)])
            place += len(part) + between
        return made

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        parts = str.split(self, sep, maxsplit)
        return self._found(parts) if sep is None else self._divided(parts, len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        parts = str.rsplit(self, sep, maxsplit)
        return self._found(parts) if sep is None else self._divided(parts, len(sep))

    def splitlines(self, keepends: bool = False) -> list[str]:
        whole = self._divided(str.splitlines(self, keepends=True), 0)
        if keepends:
            return whole
        return [line[: len(part)] for line, part in zip(whole, str.splitlines(self), strict=True)]

    def partition(self, sep: str) -> tuple[str, str, str]:
        return tuple(self._divided(list(str.partition(self, sep)), 0))  # type: ignore[return-value]

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        return tuple(self._divided(list(str.rpartition(self, sep)), 0))  # type: ignore[return-value]

    def lstrip(self, chars: str | None = None) -> Traced:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None) -> Traced:
        return self[: len(str.rstrip(self, chars))]

    def strip(self, chars: str | None = None) -> Traced:
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str) -> Traced:
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    def removesuffix(self, suffix: str) -> Traced:
        return self[: len(str.removesuffix(self, suffix))]

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Traced:
        if not old:
            return like(str.replace(self, old, new, count), self, new)
        parts = self.split(old, count)
        return _as_traced(new).join(parts)

    def join(self, parts: Iterable[str]) -> Traced:
        made: list[str] = []
        for part in parts:
            made += (self, part) if made else (part,)
        return concat(made)


def _followed(name: str) -> Callable[..., Any]:
    plain = getattr(str, name)

    @functools.wraps(plain)
    def method(self: Traced, *args: Any, **kwargs: Any) -> Traced:
        text = plain(self, *args, **kwargs)
        same = name in _SAME_SIZE and len(text) == len(self)
        return _made(text, self._runs) if same else like(text, self, args, kwargs)

    return method


_SAME_SIZE: Final = frozenset({"capitalize", "casefold", "lower", "swapcase", "title", "upper"})
for _name in (*_SAME_SIZE, "center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill"):
    setattr(Traced, _name, _followed(_name))


def _made(text: str, runs: Runs) -> Traced:
    traced = str.__new__(Traced, text)
    traced._runs = runs
    return traced


def _as_traced(text: str) -> Traced:
    return text if isinstance(text, Traced) else Traced(text, LOST)


def concat(parts: Iterable[str], plain: int = LOST) -> Traced:
    """The parts joined; `plain` is the origin of those that have none."""
    texts: list[str] = []
    runs: list[tuple[int, int]] = []
    for part in parts:
        texts.append(part)
        if isinstance(part, Traced):
            runs += part._runs
        elif part:
            runs.append((len(part), plain))
    merged = groupby(runs, key=lambda run: run[1])
    return _made("".join(texts), tuple((sum(size for size, _ in group), origin) for origin, group in merged))


def origins(value: Any) -> set[int]:
    """The origins of all text inside a value."""
    if isinstance(value, Traced):
        return {origin for _, origin in value._runs}
    if isinstance(value, str):
        return {LOST} if value else set()
    if isinstance(value, dict):
        return origins([*value.keys(), *value.values()])
    if isinstance(value, (list, tuple, set, frozenset)):
        return set().union(*map(origins, value))
    return set()


def like(text: str, *sources: Any) -> Traced:
    """Text that was made of `sources`: theirs, where they have one origin."""
    found = origins(sources) - {LOCAL}
    return Traced(text, LOCAL if not found else found.pop() if len(found) == 1 else LOST)


def stringified(text: str, value: Any) -> Traced:
    """The text of a value that is no string, or of a data structure. One that holds content is content, whole."""
    found = origins(value) - {LOCAL}
    if len(found) > 1:
        found.discard(TEMPLATE)
    return Traced(text, LOCAL if not found else found.pop() if len(found) == 1 else LOST)
