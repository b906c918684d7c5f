"""Which processes are there, read from /proc, which nothing of what is tested does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path


def members(group: int) -> list[int]:
    """The processes of a group that are not dead."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, leader = stat.read_text().rpartition(")")[2].split()[:3]
            if int(leader) == group and state != "Z":
                found.append(int(stat.parent.name))
    return found


def running(*words: str) -> list[int]:
    """The processes whose command lines have all of these words."""
    return [pid for pid, line in _lines() if set(words) <= set(line)]


def until(done: Callable[[], object], within: float) -> bool:
    """Whether it is so within these seconds."""
    end = time.monotonic() + within
    while not done() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(done())


def _lines() -> Iterator[tuple[int, list[str]]]:
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield int(command.parent.name), command.read_bytes().decode(errors="replace").split("\0")
