"""What a session holds: turns, each with its own new ids, and the requests that become turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tito_core.families.family import ThinkingDecision
from tito_core.prompts import thinking
from tito_core.prompts.messages import Message, Tool
from tito_core.responses.completion import Completion
from tito_core.responses.parse import Parsed
from tito_core.tokens.append import Append, FinishReason, Ids
from tito_core.tokens.encoder import IdSpan

__all__ = ["Request", "Turn", "leaves"]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A prompt and its completion, stored as what they add to the parent's.

    `number` is its place among the session's turns, `depth` that in its line. `messages` were appended to the parent's
    conversation and `message` was sampled after them; `length` counts the messages of the whole conversation. `kept` of
    the parent's ids stand before `new` (int32, read-only: the rest of the prompt, then what was sampled), and `spans` say
    who printed each of the prompt's from there on. `parsed` is what the ids were read back as, None where the completion
    brought its own message. `summarises` is the turn whose text a root's prompt holds. Times are seconds since the epoch.
    """

    number: int
    depth: int
    parent: Turn | None
    messages: tuple[Message, ...]
    message: Message
    completion: Completion
    decision: ThinkingDecision
    tools: tuple[Tool, ...]
    length: int
    kept: int
    new: Ids
    spans: tuple[IdSpan, ...]
    parsed: Parsed | None = None
    summarises: Turn | None = None
    requested: float = 0.0
    committed: float = 0.0

    @property
    def ids(self) -> Ids:
        """The prompt's ids and the completion's, int32, read-only; put together anew each time."""
        made = np.empty(self.end, dtype=np.int32)
        for turn in self.line:
            made[turn.kept : turn.end] = turn.new
        made.setflags(write=False)
        return made

    @property
    def end(self) -> int:
        """How many ids the prompt and the completion have."""
        return self.kept + len(self.new)

    @property
    def sampled(self) -> int:
        """How many of the last ids the engine sampled."""
        return len(self.completion.ids)

    @property
    def finish_reason(self) -> FinishReason:
        return self.completion.finish_reason

    @property
    def start(self) -> int:
        """How many messages stand before its own."""
        return self.parent.length if self.parent else 0

    @property
    def line(self) -> tuple[Turn, ...]:
        """The turns from the first prompt to this one."""
        return tuple(_upwards(self))[::-1]

    def lag(self, name: str) -> int:
        """By how many rows one of its extras is short of its ids: as in its line's first turn, which holds all rows."""
        root = self.line[0]
        return root.end - len(root.completion.extras[name])

    def conversation(self) -> tuple[Message, ...]:
        """The messages of its line, normalised, its own completion's the last."""
        return tuple(message for turn in self.line for message in (*turn.messages, turn.message))


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What to send: `ids` (int32) and, beside them, `engine_kwargs`. `ledger` says where the ids come from.

    `opening` is that of the session which prepared it, and may commit it. `parent` is the turn that it continues, `tip` the
    session's last one when it was prepared; `summarises` and `at` become the turn's.
    """

    session: str
    opening: object
    parent: Turn | None
    tip: Turn | None
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    decision: ThinkingDecision
    ledger: Append
    summarises: Turn | None = None
    at: float = 0.0

    @property
    def ids(self) -> Ids:
        return self.ledger.ids

    @property
    def engine_kwargs(self) -> dict[str, Any]:
        return thinking.engine_kwargs(self.decision)

    @property
    def length(self) -> int:
        """How many messages the conversation of this request has."""
        return (self.parent.length if self.parent else 0) + len(self.messages)


def leaves(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns that none of `turns` continues, in their order."""
    parents = {turn.parent for turn in turns}
    return tuple(turn for turn in turns if turn not in parents)


def _upwards(turn: Turn | None) -> Iterator[Turn]:
    while turn is not None:
        yield turn
        turn = turn.parent
