"""The contract with plugins, whole: what a family's module may answer.

A module under the entry-point group `tito.families` answers `tito_family()` and may answer any of the others, each
about its own family. A module under `tito.overrides` may answer the four questions in the middle about any family.
An override's answer precedes the family's, which precedes the core's reading of the declaration. None means *no
answer here*. Two overrides that answer the same question about one family are an error.

    from tito_core import Family, hookimpl

    @hookimpl
    def tito_family() -> Family: ...

A hook is a plain function of the module, under one of the names below and the bare marker (no ordering, no wrapper, no
other option), and takes any of the hook's arguments, none with a default. Names that begin with `tito_` are hooks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from tito_core.families.family import (
        AppendRoles,
        Case,
        Checkpoint,
        Deployment,
        Family,
        Layer,
        Recipe,
        Template,
        ThinkingDecision,
    )

__all__ = ["FAMILIES", "OVERRIDES", "PROJECT", "QUESTIONS", "hookimpl"]

PROJECT = "tito"
FAMILIES = "tito.families"
OVERRIDES = "tito.overrides"
QUESTIONS = ("tito_resolve_template", "tito_forward_thinking", "tito_append_roles", "tito_speculative_recipe")
"""What an override may answer."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin's module as a hook. It takes no options."""


@hookspec
def tito_family() -> Family:
    """The declaration. Required, one per module; its name is the entry point's name."""
    raise NotImplementedError


@hookspec
def tito_resolve_template(family: Family, checkpoint: Checkpoint | None, package: str) -> Template | None:
    """Template resolution: the one template of a family. It never sees append roles.

    `checkpoint` is None where the family's reference vocabulary is used. `package` is the import name of the plugin's
    package, where its files are.
    """


@hookspec
def tito_forward_thinking(family: Family, layers: tuple[Layer, ...]) -> ThinkingDecision | None:
    """Thinking-mode forwarding: one decision from the layers of template kwargs, the highest first."""


@hookspec
def tito_append_roles(family: Family) -> AppendRoles | None:
    """Append-role gating. An override may narrow what the family declares, never widen it."""


@hookspec
def tito_speculative_recipe(family: Family, deployment: Deployment) -> Recipe | None:
    """Speculative recipes: how to serve the family. A recipe without speculation has `speculative=None`."""


@hookspec
def tito_cases(family: Family) -> Iterable[Case] | None:
    """More conversations to verify the family with, beside the generated ones."""
