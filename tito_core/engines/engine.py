"""What an engine is to tito: ids in, a completion out."""

from __future__ import annotations

from typing import Protocol

from tito_core.responses.completion import Completion
from tito_core.sessions.turn import Request

__all__ = ["Engine"]


class Engine(Protocol):
    """Something that samples. Raises EngineError where it can't; its `where["kind"]` says what to do about it."""

    def complete(self, request: Request, *, max_tokens: int) -> Completion:
        """Samples after `request.ids`, at most `max_tokens` ids, with `request.engine_kwargs` in force."""
        ...
