"""Every error that a user of tito can meet.

Each message says what happened, where (message index, role, ids), why, and what to do about it. `where` repeats the
place as data, so that a server can answer its client without reading the sentence.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AppendError",
    "CheckpointError",
    "CompletionError",
    "EncodingError",
    "EngineError",
    "FamilyError",
    "GateError",
    "MessageError",
    "PluginError",
    "RecipeError",
    "SessionError",
    "TemplateError",
    "ThinkingError",
    "TitoError",
    "TruncatedTurnError",
    "UnknownFamilyError",
    "not_text",
]


class TitoError(ValueError):
    """The base of all of them. `where` holds the place: keys such as `index`, `role`, `id`, `key`, `first_index`."""

    def __init__(self, message: str, **where: Any) -> None:
        super().__init__(message)
        self.where: dict[str, Any] = where

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.where)


def _rebuild(kind: type[TitoError], message: str, where: dict[str, Any]) -> TitoError:
    return kind(message, **where)


class FamilyError(TitoError):
    """A family's declaration is wrong, or answers a question wrongly."""


class UnknownFamilyError(FamilyError):
    """No installed plugin provides the family."""


class PluginError(FamilyError):
    """A plugin could not be imported, or breaks the contract."""


class RecipeError(FamilyError):
    """An engine can't be started with a recipe: a rule of the engine, `where["rule"]`, refuses it."""


class CheckpointError(TitoError):
    """A checkpoint directory can't be read, or belongs to another family."""


class MessageError(TitoError):
    """A message, a tool call or a tool schema that a client sent is malformed."""


class GateError(TitoError):
    """A role may not be appended where it stands."""


class ThinkingError(TitoError):
    """Template kwargs conflict, are unknown, have the wrong type, or changed after the first turn."""


class TemplateError(TitoError):
    """The family's template can't render these messages."""


class EncodingError(TitoError):
    """Text can't be turned into ids as asked."""


class AppendError(TitoError):
    """An append can't be joined to the stored ids."""


class TruncatedTurnError(AppendError):
    """The stored turn was cut by length, and the session's rule is to refuse."""


class SessionError(TitoError):
    """A request does not continue what the session stores."""


class CompletionError(TitoError):
    """What an engine returned can't be committed."""


class EngineError(TitoError):
    """An engine could not be reached, or did not answer as it must. `where["kind"]` is one of `engines.http.Kind`."""


def not_text(value: str) -> str:
    """Why a string can't be encoded: where its first lone surrogate is; empty where it is text."""
    try:
        if not value.isascii():
            value.encode()
    except UnicodeEncodeError as cause:
        return (
            f"holds the lone surrogate {value[cause.start]!r} at character {cause.start}, which is not text; decode the bytes "
            "it came from with errors='replace'"
        )
    return ""
