"""`tito show FAMILY`: what a family declares, for a reader."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tito_core.cli.text import plain, quoted

if TYPE_CHECKING:
    from rich.table import Table

    from tito_core.families.family import AppendRoles, Family, Recipe, Template, Thinking, Vocabulary
    from tito_core.families.registry import LoadedFamily

__all__ = ["command"]


@click.command("show")
@click.argument("family")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the whole declaration.")
def command(family: str, as_json: bool) -> None:
    """Show what FAMILY declares: models, template, append roles, vocabularies."""
    from tito_core.cli.output import console, emit, emit_json, grid
    from tito_core.families.family import NATIVE, Deployment
    from tito_core.families.registry import default_registry

    with contextlib.redirect_stdout(sys.stderr):  # what a plugin prints is no part of the answer
        loaded = default_registry.family(family)
        declared, info = loaded.declaration, loaded.info
        loaded.thinking(())
        template = None if declared.template == NATIVE else loaded.template()
        recipes = {profile: loaded.recipe(Deployment(profile=profile)) for profile in declared.recipes}
        roles = [
            (f"of revision {one.name}", loaded.append_roles(one)) for one in declared.revisions if one.append_roles
        ]
        roles.insert(0, ("append roles", loaded.append_roles()))
    if as_json:
        emit_json(
            **info._asdict(),
            template=template and template.model_dump(mode="json", include={"kind", "reference", "sha256"}),
            append_roles=roles[0][1].model_dump(mode="json"),
            recipes={profile: recipe.model_dump(mode="json") for profile, recipe in recipes.items()},
            overrides=loaded.overrides,
            family=declared.model_dump(mode="json"),
        )
        return
    out = console()
    emit(out, f"{declared.name} ({plain(f'{info.distribution} {info.version}, {info.module}')})")
    emit(out, grid((f"  {label}", plain(value)) for label, value in _facts(loaded, template, recipes)))
    for title, rules in roles:
        emit(out, "", _roles(title, rules))


def _facts(loaded: LoadedFamily, template: Template | None, recipes: Mapping[str, Recipe]) -> list[tuple[str, str]]:
    """Label and value; a label is said once, for the first of its values."""
    family = loaded.declaration
    facts: list[tuple[str, list[str]]] = [
        ("models", [", ".join(family.models)]),
        ("model types", [", ".join(family.model_types)]),
        (
            "template",
            [template.reference, f"sha256 {template.sha256}"] if template else ["the checkpoint's own chat template"],
        ),
        ("overrides", list(loaded.overrides)),
        ("kwargs", [", ".join(family.kwargs)] if family.kwargs else []),
        ("fixed kwargs", [_pairs(family.fixed_kwargs)] if family.fixed_kwargs else []),
        ("thinking", _thinking(family.thinking)),
        ("turn ends", _boundary(family)),
        ("revisions", _aligned([(one.name, one.note) for one in family.revisions])),
        ("vocabularies", _aligned([_vocabulary(one) for one in family.vocabularies])),
        (
            "parsers",
            [
                f"{engine}: reasoning {one.reasoning or 'none'}, tool calls {one.tool_call or 'none'}"
                for engine, one in family.parsers.items()
            ],
        ),
        ("recipes", [f"{name}: {_recipe(one)}" for name, one in recipes.items()]),
        ("recipe rules", [f"{one.name}: {one.check}" for one in family.recipe_rules]),
        ("peers", [f"{peer} {f'calls it {name}' if name else 'lacks it'}" for peer, name in family.peers.items()]),
        ("known issues", [f"{one.name}: {one.summary} {one.advice}" for one in family.known_issues]),
    ]
    return [(label if number == 0 else "", value) for label, values in facts for number, value in enumerate(values)]


def _thinking(thinking: Thinking) -> list[str]:
    if len(thinking.modes) == 1:
        said = f"always {_on(thinking.default)}"
    else:
        said = f"{_on(thinking.default)} by default"
    words = [
        f"{alias} takes {' and '.join(f'{chr(34)}{word}{chr(34)} ({_on(mode)})' for word, mode in known.items())} too"
        for alias, known in thinking.words.items()
    ]
    if effort := thinking.effort:
        numbers = f", or {effort.range[0]} to {effort.range[1]}" if effort.range else ""
        off = f"; {effort.off} is off" if effort.off else ""
        words.append(f"{effort.name}: {', '.join(effort.levels)}{numbers}; {effort.default} by default{off}")
    return [f"{said}; engines are told {thinking.forward_as}", f"set by {' or '.join(thinking.aliases)}", *words]


def _boundary(family: Family) -> list[str]:
    boundary = family.boundary
    said = [f"with {' or '.join(map(quoted, boundary.stop))}"]
    if boundary.glue:
        said.append(f"then {quoted(boundary.glue)}")
    if boundary.shared:
        said.append(f"shared with the next message: {', '.join(map(quoted, boundary.shared))}")
    return ["; ".join(said)]


def _vocabulary(one: Vocabulary) -> tuple[str, ...]:
    stands = f"stands in for {one.stands_in_for}" if one.stands_in_for else ""
    return one.name, one.title, stands, f"sha256 {one.sha256[:8]}"


def _recipe(recipe: Recipe) -> str:
    one = recipe.speculative
    said = (
        f"{one.algorithm}, {one.num_steps} steps, top-k {one.eagle_topk}, {one.num_draft_tokens} draft tokens"
        if one
        else "no speculation"
    )
    plain = {"speculative", "engine", "parsers", "arguments", "environment", "platforms", "made_for", "source", "seen"}
    sizes = _pairs(
        {
            name: value
            for name, field in type(recipe).model_fields.items()
            if name not in plain and (value := getattr(recipe, name)) != field.default
        }
    )
    return "; ".join(filter(None, (said, sizes, _pairs(recipe.arguments), _pairs(recipe.environment))))


def _roles(title: str, roles: AppendRoles) -> Table:
    from tito_core.cli.output import grid
    from tito_core.families.family import APPEND_ROLES

    rows = [
        (
            f"  after {role}",
            ", ".join(one for one in APPEND_ROLES if one in roles.follows[role]) or "nothing",
            "yes" if role in roles.ends else "no",
        )
        for role in APPEND_ROLES
        if role in roles.follows
    ]
    return grid(rows, headings=(f"  {title}", "may stand", "may end a prompt"))


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows as lines; the first is the default."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width) for row in rows]
    default = "  (default)" if len(rows) > 1 else ""
    return [line.rstrip() + (default if number == 0 else "") for number, line in enumerate(lines)]


def _on(mode: bool) -> str:
    return "on" if mode else "off"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items())
