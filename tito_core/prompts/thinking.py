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
    """The decision for a request: its own kwargs over the session's over the family's default. Raises ThinkingError."""
    return family.thinking((_layer("request", request), _layer("session", session)))


def session_kwargs(family: LoadedFamily, thinking: bool | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The session's layer: template kwargs, and `thinking` under the family's own name. Raises ThinkingError."""
    made = dict(_layer("session", kwargs).kwargs)
    if thinking is None:
        return made
    name = family.declaration.thinking.forward_as
    if made.get(name) is not None and made[name] is not thinking:
        raise ThinkingError(
            f"the session was opened with thinking={thinking!r} and chat_template_kwargs {name}={made[name]!r}; "
            "these are one setting, give one of them",
            layer="session",
            key=name,
        )
    return {**made, name: thinking}


def frozen(first: ThinkingDecision, now: ThinkingDecision) -> None:
    """Raises ThinkingError where a request asks for another prompt than the first turn's."""
    for before, after in ((first.render_kwargs, now.render_kwargs), (first.forward_kwargs, now.forward_kwargs)):
        for key in (*before, *after):
            if before.get(key) != after.get(key):
                raise ThinkingError(
                    f"the request asks for {key}={after.get(key)!r}, but this session's first turn was sampled with "
                    f"{key}={before.get(key)!r}, which shapes its prompt; open another session for another mode",
                    key=key,
                )


def _layer(name: str, kwargs: Mapping[str, Any] | None) -> Layer:
    if kwargs is None:
        return Layer(name=name)
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise ThinkingError(f"{name} chat_template_kwargs is {kwargs!r}; it must map names to values", layer=name)
    try:
        return Layer(name=name, kwargs=dict(kwargs))
    except RecursionError:
        raise ThinkingError(f"{name} chat_template_kwargs is nested too deeply", layer=name) from None


def engine_kwargs(decision: ThinkingDecision) -> dict[str, Any]:
    """What every request tells the engine, whatever the mode is."""
    return {"chat_template_kwargs": dict(decision.forward_kwargs)}
