"""Text that knows, character by character, who wrote it: the template, or the author of a message."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Final, SupportsIndex

__all__ = ["LOCAL", "LOST", "TEMPLATE", "Probe", "Seen", "Traced", "concat", "like", "origins", "stringified"]

NOBODY: Final = -1
"""A tool says it, or a kwarg: a message's content has the message's index."""
TEMPLATE: Final = -2
"""The template printed it."""
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


class Seen:
    """What a template did with probes: the questions it asked about them, and whether it did what can't be told."""

    def __init__(self) -> None:
        self.questions: dict[Question, bool] = {}
        self.spoilt = False


Chain = tuple[tuple[str, str | None], ...]
"""Strips, one after the other: method and characters."""
Question = tuple[int, Chain, str, Any]
"""Of the text in a slot, after strips: method and argument. The answer is true or false."""


class Probe(Traced):
    """Stands for any text that is not blank, in a slot of a message. Strips and questions are noted; what would tell
    more about the text than their answers spoils the probe.

    `_parts` are the texts it was joined of, itself where it was not: the probe of a slot, after a chain of strips. A slot
    below zero holds the id of a call, and no two of those hold the same.
    """

    __slots__ = ("_chain", "_parts", "_seen", "_slot")
    _slot: int
    _chain: Chain
    _parts: tuple[Traced, ...]
    _seen: Seen

    @classmethod
    def _of(cls, text: str, origin: int, slot: int, seen: Seen, chain: Chain = ()) -> Probe:
        made = str.__new__(cls, text)
        made._runs = ((len(text), origin),)
        made._slot, made._chain, made._parts, made._seen = slot, chain, (made,), seen
        return made

    @classmethod
    def _joined(cls, text: str, runs: Runs, parts: tuple[Traced, ...], seen: Seen) -> Probe:
        made = str.__new__(cls, text)
        made._runs, made._slot, made._chain, made._parts, made._seen = runs, 0, (), parts, seen
        return made

    def _spoil(self) -> None:
        self._seen.spoilt = True

    def __bool__(self) -> bool:
        return True

    def __hash__(self) -> int:
        self._spoil()
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Probe) and max(self._slot, other._slot) < 0 and not self._chain and not other._chain:
            return self._slot == other._slot  # two calls' ids
        return self._asked("__eq__", other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, part: object) -> bool:
        return self._asked("__contains__", part)

    def startswith(self, prefix: Any, *limits: Any) -> bool:
        return self._asked("startswith", prefix, *limits)

    def endswith(self, suffix: Any, *limits: Any) -> bool:
        return self._asked("endswith", suffix, *limits)

    def _asked(self, method: str, argument: Any, *limits: Any) -> bool:
        answer: bool = getattr(str, method)(self, argument, *limits) is True
        if limits or len(self._parts) > 1 or _probes(argument):
            self._spoil()
        elif isinstance(argument, (str, tuple)):
            asked = tuple(map(str.__str__, argument)) if isinstance(argument, tuple) else str.__str__(argument)
            self._seen.questions[self._slot, self._chain, method, asked] = answer
        return answer

    def _lacks(self, part: str) -> None:
        if not part or self._asked("__contains__", part):
            self._spoil()

    def _stripped(self, method: str, chars: str | None) -> Probe:
        if len(self._parts) > 1 or (chars is not None and not chars.isspace()):
            self._spoil()
        text = getattr(str, method)(self, chars)
        chain = (*self._chain, (method, None if chars is None else str.__str__(chars)))
        return Probe._of(text, self._runs[0][1], self._slot, self._seen, chain)

    def strip(self, chars: str | None = None) -> Probe:
        return self._stripped("strip", chars)

    def lstrip(self, chars: str | None = None) -> Probe:
        return self._stripped("lstrip", chars)

    def rstrip(self, chars: str | None = None) -> Probe:
        return self._stripped("rstrip", chars)

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        self._lacks(sep or "")
        return [self]

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        self._lacks(sep or "")
        return [self]

    def partition(self, sep: str) -> tuple[str, str, str]:
        self._lacks(sep)
        return self, _made("", ()), _made("", ())

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        self._lacks(sep)
        return _made("", ()), _made("", ()), self

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Probe:
        self._lacks(old)
        return self

    def removeprefix(self, prefix: str) -> Probe:
        if self.startswith(prefix):
            self._spoil()
        return self

    def removesuffix(self, suffix: str) -> Probe:
        if self.endswith(suffix):
            self._spoil()
        return self


def _probes(value: Any) -> list[Probe]:
    return [one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, Probe)]


def _told(method: Callable[..., Any], *, of_itself: bool) -> Callable[..., Any]:
    """A method of strings whose answer tells something of the probes among its arguments, or of the one it is of."""

    @functools.wraps(method)
    def told(self: Traced, *args: Any, **kwargs: Any) -> Any:
        for probe in (*([self] if of_itself else []), *_probes(args)):
            assert isinstance(probe, Probe)
            probe._spoil()
        return method(self, *args, **kwargs)

    return told


_UNTOLD: Final = {
    *("__new__", "__init__", "__getattribute__", "__repr__", "__str__", "__sizeof__", "__getnewargs__", "__doc__"),
    *("__add__", "__radd__", "join", "maketrans"),
}
for _name in sorted({*vars(str), *vars(Traced)} - _UNTOLD):
    _method = getattr(Traced, _name)
    if callable(_method):
        if _name not in vars(Probe):
            setattr(Probe, _name, _told(_method, of_itself=True))
        if not _name.startswith("__") or _name in ("__contains__", "__mod__"):
            setattr(Traced, _name, _told(_method, of_itself=False))


def _made(text: str, runs: Runs) -> Traced:
    traced = str.__new__(Traced, text)
    traced._runs = runs
    return traced


def _as_traced(text: str) -> Traced:
    return text if isinstance(text, Traced) else Traced(text, LOST)


def concat(parts: Iterable[str], plain: int = LOST) -> Traced:
    """The parts joined; `plain` is the origin of those that have none."""
    texts = [part if isinstance(part, Traced) else Traced(part, plain) for part in parts]
    merged = groupby((run for text in texts for run in text._runs), key=lambda run: run[1])
    runs = tuple((sum(size for size, _ in group), origin) for origin, group in merged)
    probe = next((text for text in texts if isinstance(text, Probe)), None)
    if probe is None:
        return _made("".join(texts), runs)
    flat = [one for text in texts for one in (text._parts if isinstance(text, Probe) else (text,) if text else ())]
    if len(flat) == 1:
        return flat[0]
    return Probe._joined("".join(texts), runs, tuple(flat), probe._seen)


def origins(value: Any) -> set[int]:
    """The origins of all text inside a value."""
    if isinstance(value, Probe):
        value._spoil()
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
