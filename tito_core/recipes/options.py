"""How a recipe is spelled for an engine: which option says which field, by all of its names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tito_core.families.family import Deployment, Recipe

__all__ = ["Check", "CommandLine", "Launch", "Option", "spelled", "value_at", "words"]

Check = Callable[[Recipe, Deployment], str | None]
"""A rule of an engine: why it can't serve a recipe, or None. The recipe has the deployment's overrides in it."""


@dataclass(frozen=True)
class Option:
    """An option that says a field of a recipe, `speculative.num_steps` for one inside another; or what a launch says.

    `name` is the long one, without dashes in front, `aliases` are the others, and `dest` is where a parser keeps it.
    """

    field: str
    name: str
    dest: str
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, *self.aliases


@dataclass(frozen=True)
class Launch:
    """What is said about the machines: `address` is HOST:PORT of the first node, where there are several."""

    model: str
    host: str | None = None
    port: int | None = None
    nodes: int = 1
    address: str | None = None
    python: str = "python"


@dataclass(frozen=True)
class CommandLine:
    """An engine's. `said` spells a recipe's fields, `node` what one node of a launch adds; both give arguments by name.

    `switch` says of an option whether `--no-` and its name turn it off, `whole` whether it takes a list as one word of JSON.
    `dests` are the options of no field that a parser keeps under another name than their own. `notes` tells what the engine
    will do with a recipe without being told.
    """

    engine: str
    version: str
    options: tuple[Option, ...]
    checks: Mapping[str, Check]
    start: Callable[[Launch], tuple[str, ...]]
    node: Callable[[Launch, int], dict[str, Any]]
    said: Callable[[Recipe], dict[str, Any]]
    notes: Callable[[Recipe], tuple[str, ...]]
    switch: Callable[[str], bool]
    whole: Callable[[str], bool]
    dests: Mapping[str, str] = field(default_factory=dict)

    @property
    def rules(self) -> dict[str, Check]:
        return {"once": lambda recipe, deployment: self.twice(recipe), **self.checks}

    def why_not(self, recipe: Recipe, deployment: Deployment) -> Iterator[tuple[str, str]]:
        """The rules that refuse a recipe: name and reason."""
        for name, check in self.rules.items():
            if (why := check(recipe, deployment)) is not None:
                yield name, why

    def owner(self, name: str) -> Option | None:
        """The option of a field, or of the launch, that a name means: any of its names, or the beginning of one, which a
        parser takes for the whole."""
        name = spelled(name)
        found = [option for option in self.options if name in option.names]
        found += [option for option in self.options if any(one.startswith(name) for one in option.names)]
        return found[0] if found else None

    def twice(self, recipe: Recipe, *, launched: bool = True) -> str | None:
        """What a recipe says twice: an argument that has a field, or one under two names. `launched`: so that a launch, which
        says the model and the machines, says nothing again."""
        names: dict[str, str] = {}
        for name, value in recipe.arguments.items():
            if not _NAMED(spelled(name)):
                return f"arguments has {name!r}, which is no option's name"
            if (option := self.owner(name)) is not None:
                said = value_at(recipe, option.field)
                if said is _LAUNCH and not launched:
                    continue
                which = f"the field {option.field}" if said is not _LAUNCH else f"the launch's {option.field}"
                which += "" if said is _LAUNCH else f", which is {said!r}"
                return f"arguments has {name} {value!r}, and that is {which}; say it there alone"
            if (plain := spelled(name)) in names:
                other = names[plain]
                return (
                    f"arguments has {other} {recipe.arguments[other]!r} and {name} {value!r}, which are one option; keep "
                    f"{plain}"
                )
            names[plain] = name
        if wrong := next((name for plain, name in names.items() if plain != name), None):
            return f"arguments has {wrong}; options are named without dashes in front and with dashes between: {spelled(wrong)}"
        return None


_LAUNCH: Final = object()
_NAMED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*").fullmatch


def value_at(recipe: Recipe, path: str) -> Any:
    """The value of a recipe at a path of fields; `_LAUNCH` where it has no such field."""
    found: Any = recipe
    for name in path.split("."):
        found = getattr(found, name, None if found is not recipe else _LAUNCH)
    return found


def spelled(name: str) -> str:
    """An option's name as recipes have it."""
    return name.replace("_", "-").lstrip("-")


def words(
    arguments: Mapping[str, Any], switch: Callable[[str], bool], whole: Callable[[str], bool] = lambda name: False
) -> Iterator[str]:
    """Arguments as a shell's words. None is not said, true is a bare flag, false is `--no-` where there is that, a list is as
    many words, but one where the option takes it `whole`, and what is nested is JSON."""
    for name, value in arguments.items():
        if value is None or (value is False and not switch(name)):
            continue
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        elif isinstance(value, list) and not whole(name):
            yield from (f"--{name}", *map(_word, value))
        else:
            text = _word(value)
            yield from (f"--{name}={text}",) if text.startswith("-") else (f"--{name}", text)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
