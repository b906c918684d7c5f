"""A plugin module's hooks; refused is what pluggy would ignore, or would call in another way than its author thinks."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from tito_core.errors import PluginError
from tito_core.families import hooks

__all__ = ["hooks_of"]

_MARK: Final = f"{hooks.PROJECT}_impl"
_ARGUMENTS: Final = {
    name: tuple(inspect.signature(spec).parameters)
    for name, spec in vars(hooks).items()
    if name.startswith("tito_") and inspect.isfunction(spec)
}
_ADVICE: Final = "mark it with tito_core.hookimpl"


def hooks_of(origin: str, module: ModuleType, *, override: bool) -> dict[str, Callable[..., Any]]:
    """The hooks that a module answers, by name. Raises PluginError for the first thing that breaks the contract."""
    found = {
        name: value
        for name, value in vars(module).items()
        if (inspect.isfunction(value) and hasattr(value, _MARK))
        or (name.startswith("tito_") and (callable(value) or name in _ARGUMENTS))
    }
    for name, value in found.items():
        if wrong := _wrong(name, value, override):
            raise PluginError(f"{origin} {wrong}")
    if not override and "tito_family" not in found:
        raise PluginError(f"{origin} has no tito_family; define it, and {_ADVICE}")
    return found


def _wrong(name: str, value: Any, override: bool) -> str | None:
    """What is wrong with one hook, or None."""
    if name not in _ARGUMENTS:
        near = difflib.get_close_matches(name, _ARGUMENTS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the hooks are {', '.join(_ARGUMENTS)}"
        return f"defines {name}, which is no hook; {hint}"
    if not inspect.isfunction(value):
        return f"has a value of type {type(value).__name__} where the hook {name} belongs; it must be a plain function"
    options = getattr(value, _MARK, None)
    if options is None:
        others = [mark.removesuffix("_impl") for mark in vars(value) if mark.endswith("_impl")]
        if others:
            return f"marks {name} for the project {others[0]!r}, so tito would never ask it; {_ADVICE}"
        return f"defines {name} without the marker, so it would never be asked; {_ADVICE}"
    if given := sorted(f"{option}={chosen!r}" for option, chosen in options.items() if chosen):
        return f"marks {name} with {', '.join(given)}; a tito hook takes no options: nobody comes before it or wraps it"
    if override and name not in hooks.QUESTIONS:
        return f"answers {name}, which only a family answers; an override may answer {', '.join(hooks.QUESTIONS)}"
    takes = ", ".join(_ARGUMENTS[name]) or "no arguments"
    for argument in inspect.signature(value).parameters.values():
        if argument.name not in _ARGUMENTS[name] or argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            return f"defines {name} with the argument {argument}, which it does not have; {name} takes {takes}"
        if argument.default is not argument.empty or argument.kind is argument.KEYWORD_ONLY:
            return (
                f"defines {name} with the argument {argument.name} optional or by keyword only, so it would never be "
                "given; write it plainly"
            )
    return None
