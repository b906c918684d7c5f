"""A family's recipe for a deployment, checked by every rule, as the commands that start the engine."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tito_core.errors import RecipeError
from tito_core.families.family import Deployment, Recipe
from tito_core.families.registry import LoadedFamily
from tito_core.recipes.options import CommandLine, Launch, words
from tito_core.recipes.sglang import SGLANG
from tito_core.recipes.vllm import VLLM

__all__ = ["ENGINES", "Command", "Plan", "command_line", "plan"]

ENGINES: Final = {one.engine: one for one in (SGLANG, VLLM)}

CALLER: Final = "caller"
_NOT_SERVED: Final = frozenset({"engine", "platforms", "made_for", "source", "seen"})


@dataclass(frozen=True)
class Command:
    """What starts an engine on one node: its words, and what its environment has more."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        """One line for a shell."""
        return " ".join(
            (*(f"{name}={shlex.quote(value)}" for name, value in self.environment.items()), shlex.join(self.argv))
        )


@dataclass(frozen=True)
class Plan:
    """A recipe that every rule lets through, `recipe`, and one command a node, the first node's first.

    `origins` says where each value comes from: `caller`, an override plugin, or the family's profile. Keys are fields of the
    recipe, `arguments.page-size` and the like for what is in one, and `model`. `notes` tells what the engine does untold.
    """

    engine: str
    family: str
    model: str
    recipe: Recipe
    deployment: Deployment
    commands: tuple[Command, ...]
    origins: Mapping[str, str]
    notes: tuple[str, ...]


def command_line(engine: str) -> CommandLine:
    """How an engine is told a recipe. Raises RecipeError."""
    if engine not in ENGINES:
        raise RecipeError(f"no recipe is spelled for the engine {engine!r}; known: {', '.join(ENGINES)}")
    return ENGINES[engine]


def plan(
    loaded: LoadedFamily,
    deployment: Deployment,
    *,
    model: str | os.PathLike[str] | None = None,
    host: str | None = None,
    port: int | None = None,
    address: str | None = None,
    python: str = "python",
) -> Plan:
    """The commands that serve a family. `model` is a directory or a name; without one it is what
    the recipe is made for, else the family's first. `address` is HOST:PORT of the first node, where there are several;
    `python` is the interpreter that has SGLang.

    Raises FamilyError as `LoadedFamily.recipe` does, and RecipeError where a rule of the engine refuses the recipe.
    """
    line = command_line(deployment.engine)
    recipe = loaded.recipe(deployment)
    answer, origin = loaded.answered(deployment)
    parsers = loaded.declaration.parsers.get(deployment.engine)
    check(loaded.name, recipe, deployment)
    if deployment.nodes > 1 or address is not None:
        found = re.fullmatch(r"\S+:(\d{1,5})", address or "", re.ASCII)
        if found is None or not 0 < int(found[1]) < 1 << 16:
            many = "nodes" if deployment.nodes == 1 else f"{deployment.nodes} nodes"
            raise RecipeError(
                f"{many} find each other at the first one's address, and that is {address!r}; give HOST:PORT (address, "
                "--address)"
            )
    if model is not None and not os.fspath(model):
        raise RecipeError("the model is an empty text; give a directory or a name, or none")
    if host is not None and not host:
        raise RecipeError("the host is an empty text; give what the server listens on, or none")
    named = CALLER if model else origin if recipe.made_for else f"the first model of {loaded.name}"
    origins = {"model": named}
    origins |= _origins(recipe, answer, deployment, origin)
    if recipe.parsers is None and parsers is not None:
        recipe = recipe.model_copy(update={"parsers": parsers})
        origins["parsers"] = f"parsers of {loaded.name}"
    elif recipe.parsers is not None and parsers is not None:
        theirs = {**parsers.model_dump(), **recipe.parsers.model_dump(exclude_none=True)}
        loaded.declaration.check_parsers(deployment.engine, **theirs)
    model = os.fspath(model or recipe.made_for or loaded.declaration.models[0])
    launch = Launch(model, host, port, deployment.nodes, address, python)
    argv = (*line.start(launch),)
    told = (*words({**line.said(recipe), **recipe.arguments}, line.switch, line.whole),)
    commands = tuple(
        Command((*argv, *words(line.node(launch, rank), line.switch), *told), dict(recipe.environment))
        for rank in range(deployment.nodes)
    )
    return Plan(deployment.engine, loaded.name, model, recipe, deployment, commands, origins, line.notes(recipe))


def check(family: str, recipe: Recipe, deployment: Deployment) -> None:
    """Raises RecipeError, which names the rule, where the deployment's engine can't serve a recipe."""
    said = f"{family} can't be served by {deployment.engine} with the profile {deployment.profile!r}"
    given = ", ".join((*recipe.arguments, *recipe.environment))
    if given and recipe.engine != deployment.engine:
        raise RecipeError(
            f"{said}: its arguments and environment are {recipe.engine}'s: {given}; take another profile, or say engine, "
            "arguments and environment for this one",
            rule="engine",
        )
    for name in recipe.environment:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise RecipeError(f"{said}: environment has {name!r}, which is no variable's name", rule="environment")
    for rule, why in command_line(deployment.engine).why_not(recipe, deployment):
        raise RecipeError(f"{said}: {why}", rule=rule)


def _origins(recipe: Recipe, answer: Recipe, deployment: Deployment, origin: str) -> dict[str, str]:
    """Where each value comes from that a recipe sets."""
    found: dict[str, str] = {}
    for name, field in Recipe.model_fields.items():
        value, was, asked = getattr(recipe, name), getattr(answer, name), name in deployment.overrides
        if name in _NOT_SERVED or (value == field.default and not asked):
            continue
        if name in ("arguments", "environment"):
            for key in value:
                kept = key in was and was[key] == value[key]
                found[f"{name}.{key}"] = origin if kept or not asked else CALLER
        elif name == "speculative" and value is not None and was is not None:
            for key, one in value:
                if one is not None:
                    found[f"{name}.{key}"] = origin if one == getattr(was, key) or not asked else CALLER
        else:
            found[name] = CALLER if asked else origin
    return found
