"""What happened in sessions, in whole numbers: they add up to the same, in whatever order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, SupportsFloat

from tito_core.sessions.turn import Turn

if TYPE_CHECKING:
    from tito_core.sessions.session import Session

__all__ = ["Counters", "counted", "told"]


@dataclass(frozen=True)
class Counters:
    """Counts of one session, or of several that were added.

    `roots` are first prompts, `forks` turns beside another after the same one, `rollbacks` turns that a linear session took
    back since it was opened, `truncations` turns that were cut by length.
    `sampled` and `cached` are ids: those that the engine sampled, and those of prompts that it had cached. `drift` counts
    the comparator's mismatches by kind, of each turn once. `accepted` ids were sampled in `steps` steps of speculation.
    """

    sessions: int = 0
    turns: int = 0
    roots: int = 0
    forks: int = 0
    rollbacks: int = 0
    truncations: int = 0
    sampled: int = 0
    cached: int = 0
    accepted: int = 0
    steps: int = 0
    drift: Counter[str] = field(default_factory=Counter)

    @property
    def accept_length(self) -> float | None:
        """Ids for each step of speculation, None without any."""
        return self.accepted / self.steps if self.steps else None

    def __add__(self, other: Counters) -> Counters:
        return Counters(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})

    @staticmethod
    def merged(counters: Iterable[Counters]) -> Counters:
        """The sum of any number of them."""
        return sum(counters, Counters())


def counted(session: Session) -> Counters:
    """The counts of a session. Costs what comparing its lines costs."""
    turns = session.turns
    drift: Counter[str] = Counter()
    known: set[Turn] = set()
    for leaf in session.leaves:
        shared = max((turn.length for turn in leaf.line if turn in known), default=0)
        known.update(leaf.line)
        found = session.compare(leaf)
        drift.update(one.kind for one in found if one.message_index is None or one.message_index >= shared)
    speculated = [
        (turn.sampled, length)
        for turn in turns
        if (length := told(turn, "spec_accept_length")) and math.isfinite(turn.sampled / length)
    ]
    return Counters(
        sessions=1,
        turns=len(turns),
        roots=sum(turn.parent is None for turn in turns),
        forks=sum(number - 1 for parent, number in Counter(turn.parent for turn in turns).items() if parent),
        rollbacks=session.rollbacks,
        truncations=sum(turn.finish_reason == "length" for turn in turns),
        sampled=sum(turn.sampled for turn in turns),
        cached=sum(int(told(turn, "cached_tokens")) for turn in turns),
        accepted=sum(sampled for sampled, _ in speculated),
        steps=sum(round(sampled / length) for sampled, length in speculated),
        drift=drift,
    )


def told(turn: Turn, name: str) -> float:
    """What an engine said of a turn, 0 where it is no finite number of 0 or more: it counts, and no more."""
    said = turn.completion.meta.get(name)
    if isinstance(said, (bool, str)) or not isinstance(said, SupportsFloat):
        return 0
    try:
        made = float(said)
    except (TypeError, ValueError, OverflowError):
        return 0
    return made if math.isfinite(made) and made >= 0 else 0
