"""Generated examples, drawn at once: requests to a server are sent together, not one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tito_core
from tito_core import Codec
from token_path import Name

T = TypeVar("T")
U = TypeVar("U")
AT_ONCE = 16
FAMILY: dict[Name, str] = {"r1": "deepseekv32", "v4": "deepseekv32", "qwen3": "qwen3"}
"""Of each vocabulary."""


@cache
def codec(name: Name) -> Codec:
    return tito_core.load(FAMILY[name], vocabulary=name)


def drawn(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """At most `count` examples, the same in every run: every fourth, since neighbours are alike."""
    made: list[T] = []

    @settings(
        max_examples=4 * count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(example: T) -> None:
        made.append(example)

    draw()
    return made[::4]


def at_once(ask: Callable[[T], U], questions: Sequence[T]) -> list[U]:
    """The answers, in the order of the questions."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, questions))
