"""One thinking mode: resolved once, and the same for the local render and the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tito_core.errors import ThinkingError
from tito_core.families.family import Layer, ThinkingDecision
from tito_core.families.registry import LoadedFamily

__all__ = ["engine_kwargs", "frozen", "resolve", "session_kwargs"]


def resolve(
    family: LoadedFamily, *, request: Mapping[str, Any] | None = None, session: Mapping[str, Any] | None = None
) -> ThinkingDecision:
    """The decision for a request: its own kwargs, else the session's, else the family's default. Raises ThinkingError."""
    return family.thinking(
        tuple(
            Layer(name=name, kwargs=dict(kwargs))
            for name, kwargs in (("request", request), ("session", session))
            if kwargs
        )
    )


def session_kwargs(family: LoadedFamily, thinking: bool | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The session's layer: template kwargs, and `thinking` under the family's own name. Raises ThinkingError."""
    made = dict(kwargs or {})
    if thinking is None:
        return made
    name = family.declaration.thinking.forward_as
    if made.get(name, thinking) is not None and made.get(name, thinking) != thinking:
        raise ThinkingError(
            f"the session was opened with thinking={thinking!r} and chat_template_kwargs {name}={made[name]!r}; "
            "these are one setting, give one of them",
            layer="session",
            key=name,
        )
    made[name] = thinking
    return made


def frozen(first: ThinkingDecision, now: ThinkingDecision) -> None:
    """Raises ThinkingError where a request asks for another prompt than the first turn's."""
    if first.render_kwargs == now.render_kwargs and first.forward_kwargs == now.forward_kwargs:
        return
    before = {**first.forward_kwargs, **first.render_kwargs}
    after = {**now.forward_kwargs, **now.render_kwargs}
    key = next(key for key in (*before, *after) if before.get(key) != after.get(key))
    raise ThinkingError(
        f"the request asks for {key}={after.get(key)!r}, but this session's first turn was sampled with "
        f"{key}={before.get(key)!r}, which shapes its prompt; open another session for another mode",
        key=key,
    )


def engine_kwargs(decision: ThinkingDecision) -> dict[str, Any]:
    """What every request tells the engine, whatever the mode is."""
    return {"chat_template_kwargs": dict(decision.forward_kwargs)}
