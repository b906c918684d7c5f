"""Functions of a user's own: one of ours by name, a callable, or the dotted path of one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tito_core.errors import FamilyError, SessionError
from tito_core.families.family import blaming, load_reference

__all__ = ["Custom"]


class Custom:
    """A function that a user chose. Whatever it raises, and an answer that `checked` does not take, is blamed on it.

    `arguments` is how many it is called with; `name` is the same in every process. Raises SessionError where there is no
    such function.
    """

    def __init__(
        self, what: str, given: str | Callable[..., Any], ours: Mapping[str, Callable[..., Any]], arguments: int
    ) -> None:
        name: str | None = given if isinstance(given, str) else getattr(given, "__qualname__", None)
        self.name = type(given).__qualname__ if name is None else name
        self._called = f"the {what} {repr(given) if name is None else name!r}"
        made: Any = ours.get(given) if isinstance(given, str) else given
        if made is None and isinstance(given, str):
            if ":" not in given and "." not in given:
                raise SessionError(
                    f"{self._called} is none of {', '.join(ours)}; name one of them, or pass a callable or its dotted path"
                )
            try:
                made = load_reference(given if ":" in given else ":".join(given.rsplit(".", 1)))
            except FamilyError as cause:
                raise SessionError(f"{self._called} can't be had: {cause}") from cause
        if not callable(made):
            raise SessionError(f"{self._called} is a {type(made).__name__}; it must be a function")
        try:
            inspect.signature(made).bind(*range(arguments))
        except TypeError as cause:
            raise SessionError(f"{self._called} is called with {arguments} argument(s): {cause}") from None
        except ValueError:  # a function written in C may have no signature
            pass
        self.function: Callable[..., Any] = made
        self.ours = isinstance(given, str) and given in ours

    def __call__(self, *arguments: Any) -> Any:
        if self.ours:
            return self.function(*arguments)
        with blaming(f"{self._called} failed", SessionError):
            return self.function(*arguments)

    def refuse(self, why: str) -> SessionError:
        """The error for an answer that is none."""
        return SessionError(f"{self._called} {why}")
