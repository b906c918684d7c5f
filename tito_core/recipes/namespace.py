"""A recipe as the fields that trainers keep: an engine's arguments by their short names, behind a prefix."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from tito_core.errors import RecipeError
from tito_core.families.family import Recipe, blaming
from tito_core.recipes.options import spelled
from tito_core.recipes.sglang import SGLANG, values

__all__ = ["from_namespace", "to_namespace"]

_SIZES: Final = {
    option.dest: option.field
    for option in SGLANG.options
    if "." not in option.field and option.field in Recipe.model_fields
}
_INSIDE: Final = {option.dest: option.field for option in SGLANG.options if "." in option.field}
_DESTS: Final = {option.name: option.dest for option in SGLANG.options}
_NAMES: Final = {dest: name for name, dest in SGLANG.dests.items()}


def to_namespace(recipe: Recipe, prefix: str = "sglang_") -> dict[str, Any]:
    """A recipe as SGLang's fields, `sglang_tp_size` and so on: every field that a recipe has, None where it is unset, so
    that nothing older stays beside them; parsers only where the recipe names them.

    What belongs to no engine's arguments is not among them: `environment`, `made_for`, `source`, `seen` and `engine`. Raises
    RecipeError for what SGLang's fields can't say: another engine's recipe, one that is not yet on a platform, one with an
    argument that has a field, and one with replicas of an engine whose attention is data parallel.
    """
    refused = _refused(recipe)
    if refused:
        raise RecipeError(f"the recipe is no namespace: {refused}")
    found = {_DESTS[name]: value for name, value in values(recipe).items()}
    if recipe.parsers is None:
        del found["reasoning_parser"], found["tool_call_parser"]
    found |= {_dest(name): value for name, value in recipe.arguments.items()}
    return {f"{prefix}{name}": value for name, value in found.items()}


def from_namespace(
    namespace: Mapping[str, Any] | Namespace, prefix: str = "sglang_", *, environment: Mapping[str, str] | None = None
) -> Recipe:
    """The recipe that SGLang's fields say; those without the prefix are not SGLang's, and are left.

    `to_namespace` gives the same fields back, and `from_namespace(to_namespace(recipe), environment=recipe.environment)` the
    same `told()`. What a recipe has no field for is in `arguments`. Attention's data parallelism is read in both of its
    spellings, of one rank it is none. Raises RecipeError, which names the field.
    """
    given = vars(namespace) if isinstance(namespace, Namespace) else namespace
    found = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    with blaming(f"the fields {prefix}... are no recipe", RecipeError, passing=(RecipeError,)):
        return _recipe(found, prefix, dict(environment or {}))


def _recipe(found: dict[str, Any], prefix: str, environment: dict[str, str]) -> Recipe:
    fields: dict[str, Any] = {"engine": "sglang", "environment": environment}
    attention, replicas = found.pop("attn_dp_size", None), found.pop("dp_size", None)
    said = found.pop("enable_dp_attention", None)
    if said not in (None, False, True):
        raise RecipeError(f"{prefix}enable_dp_attention is {said!r}; it is True or False")
    if said and attention in (None, 1):
        attention, replicas = replicas, None
    sizes = {"attention_data_parallel": attention, "data_parallel": replicas}
    for dest, field in _SIZES.items():
        if dest in found:
            sizes[field] = found.pop(dest)
    fields |= {name: value for name, value in sizes.items() if value is not None}
    inside: dict[str, dict[str, Any]] = {"speculative": {}, "parsers": {}}
    for dest, path in _INSIDE.items():
        if dest in found:
            field, _, name = path.partition(".")
            inside[field][name] = found.pop(dest)
    spoken = {name: value for name, value in inside["speculative"].items() if value is not None}
    if spoken and "algorithm" not in spoken:
        said = ", ".join(f"{name} {value!r}" for name, value in spoken.items())
        raise RecipeError(
            f"the fields {prefix}speculative_... have {said} and no algorithm; name it, or leave them out"
        )
    fields["speculative"] = spoken or None
    fields["parsers"] = inside["parsers"] or None
    if strange := next((dest for dest in found if _dest(_name(dest)) != dest), None):
        raise RecipeError(
            f"{prefix}{strange} is no field of SGLang's: it keeps that option as {prefix}{_dest(_name(strange))}"
        )
    fields["arguments"] = {_name(dest): value for dest, value in found.items()}
    return Recipe.model_validate(fields)


def _name(dest: str) -> str:
    return _NAMES.get(dest, spelled(dest))


def _dest(name: str) -> str:
    return SGLANG.dests.get(name, name.replace("-", "_"))


def _refused(recipe: Recipe) -> str | None:
    if recipe.engine != "sglang":
        return f"it is one of {recipe.engine}"
    if recipe.platforms:
        return f"it holds for several platforms ({', '.join(recipe.platforms)}); take it on one: recipe.on(platform)"
    if recipe.data_parallel > 1 and recipe.attention_data_parallel > 1:
        return (
            f"data_parallel is {recipe.data_parallel} and attention_data_parallel is {recipe.attention_data_parallel}, and one "
            "field says both; give 1 for one of them"
        )
    if strange := next((name for name in recipe.arguments if _name(_dest(name)) != spelled(name)), None):
        return f"arguments has {strange}, and SGLang's option is {_name(_dest(strange))}; name it so"
    return SGLANG.twice(recipe, launched=False)
