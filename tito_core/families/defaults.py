"""The core's own answers to the four questions: they read the declaration and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tito_core.errors import FamilyError, ThinkingError
from tito_core.families.family import (
    NATIVE,
    AppendRoles,
    Checkpoint,
    Deployment,
    Effort,
    Family,
    FrozenDict,
    FrozenList,
    Layer,
    Recipe,
    Template,
    Thinking,
    ThinkingDecision,
)
from tito_core.families.hooks import hookimpl

__all__: list[str] = []


@hookimpl
def tito_resolve_template(family: Family, checkpoint: Checkpoint | None, package: str) -> Template:
    if family.template == NATIVE:
        if checkpoint is None:
            raise FamilyError(
                f"the family {family.name} renders with the checkpoint's own chat template; name a checkpoint: model=, "
                "--model"
            )
        if checkpoint.chat_template is None:
            raise FamilyError(
                f"the family {family.name} renders with the checkpoint's own chat template, and {checkpoint.path} has "
                "none, neither as chat_template.jinja nor in tokenizer_config.json"
            )
        if "tool_use" in checkpoint.chat_template_names:
            raise FamilyError(
                f"the family {family.name} renders with the checkpoint's own chat template, and {checkpoint.path} has "
                f"several ({', '.join(checkpoint.chat_template_names)}), of which an engine takes tool_use for requests "
                "with tools; leave one, as chat_template.jinja"
            )
        file = str(checkpoint.path / checkpoint.chat_template_file)
        return Template.of_text(checkpoint.chat_template, file, checkpoint.special_tokens)
    if ":" in family.template:
        return Template.of_encoder(family.template)
    return Template.of_file(package, family.template)


@hookimpl
def tito_append_roles(family: Family) -> AppendRoles:
    return family.append_roles


@hookimpl
def tito_speculative_recipe(family: Family, deployment: Deployment) -> Recipe | None:
    return family.recipes.get(deployment.profile)


@hookimpl
def tito_forward_thinking(family: Family, layers: tuple[Layer, ...]) -> ThinkingDecision:
    """The highest layer that says anything decides alone. None says nothing: it neither sets nor clears.

    An effort says the mode too. Where thinking is on, it is that of the highest layer that names a level.
    """
    thinking, effort = family.thinking, family.thinking.effort
    known = {*thinking.aliases, *family.fixed_kwargs, *family.kwargs, *((effort.name,) if effort else ())}
    modes: list[bool] = []
    levels: list[str | int] = []
    others: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.kwargs.items():
            if key not in known:
                raise ThinkingError(
                    f"{layer.name} chat_template_kwargs has {key!r}, which {family.name} does not know; known: "
                    f"{', '.join(sorted(known))}",
                    layer=layer.name,
                    key=key,
                )
            if value is None:
                continue
            if key in family.fixed_kwargs and not _same(value, family.fixed_kwargs[key]):
                raise ThinkingError(
                    f"{layer.name} chat_template_kwargs has {key}={value!r}, but {family.name} fixes "
                    f"{key}={family.fixed_kwargs[key]!r}, which keeps its prompts append-only; leave it out",
                    layer=layer.name,
                    key=key,
                )
            if key in family.kwargs:
                others.setdefault(key, value)
        level = _level(family.name, effort, layer) if effort else None
        modes += _mode(family.name, thinking, layer, level)
        if effort and level not in (None, effort.off):
            levels.append(level)
    enabled = (*modes, thinking.default)[0]
    if enabled not in thinking.modes:
        raise ThinkingError(
            f"{family.name} has no mode with thinking {_word(enabled)}; its model was trained with thinking "
            f"{_word(thinking.modes[0])} only",
            key=thinking.forward_as,
        )
    said: dict[str, Any] = {thinking.forward_as: enabled}
    if effort and enabled:
        said[effort.name] = (*levels, effort.default)[0]
    switched = said if len(thinking.modes) > 1 else {key: said[key] for key in said if key != thinking.forward_as}
    return ThinkingDecision(
        enabled=enabled,
        render_kwargs={**family.fixed_kwargs, **others, **switched},
        forward_kwargs={**others, **said},
    )


def _mode(family: str, thinking: Thinking, layer: Layer, level: str | int | None) -> list[bool]:
    """The mode that one layer asks for: one or none. The whole alias group must agree, and the effort with it."""
    found: dict[str, bool] = {}
    for alias in thinking.aliases:
        value = layer.kwargs.get(alias)
        if value is None:
            continue
        words = thinking.words.get(alias, {})
        if isinstance(value, Mapping) and dict(value) in ({"type": "enabled"}, {"type": "disabled"}):
            found[alias] = value["type"] == "enabled"
        elif isinstance(value, bool):
            found[alias] = value
        elif isinstance(value, str) and value in words:
            found[alias] = words[value]
        else:
            allowed = ["true", "false", *(repr(word) for word in words)]
            raise ThinkingError(
                f"{layer.name} chat_template_kwargs has {alias}={value!r}; {family} takes {' or '.join(allowed)} there",
                layer=layer.name,
                key=alias,
            )
    if thinking.effort and level is not None:
        found[thinking.effort.name] = level != thinking.effort.off
    if len(set(found.values())) > 1:
        said = ", ".join(f"{alias}={layer.kwargs[alias]!r}" for alias in found)
        raise ThinkingError(
            f"{layer.name} chat_template_kwargs says both on and off: {said}; these are one setting, send one of them",
            layer=layer.name,
            key=next(iter(found)),
        )
    return list(found.values())[:1]


def _level(family: str, effort: Effort, layer: Layer) -> str | int | None:
    """The effort that one layer asks for, `off` among them; None where it says nothing."""
    value = layer.kwargs.get(effort.name)
    if value is None or effort.takes(value) or (effort.off is not None and value == effort.off):
        return value
    allowed = [repr(word) for word in (*([effort.off] if effort.off else []), *effort.levels)]
    if effort.range:
        allowed.append(f"a whole number from {effort.range[0]} to {effort.range[1]}")
    raise ThinkingError(
        f"{layer.name} chat_template_kwargs has {effort.name}={value!r}; {family} takes {', '.join(allowed[:-1])} or "
        f"{allowed[-1]} there",
        layer=layer.name,
        key=effort.name,
    )


def _word(enabled: bool) -> str:
    return "on" if enabled else "off"


def _same(left: Any, right: Any) -> bool:
    frozen = isinstance(right, (FrozenDict, FrozenList))
    return (frozen or type(left) is type(right)) and bool(left == right)
