"""`tito recipe FAMILY`: what starts an engine that serves the family, and where each value of it comes from."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tito_core.cli.main import USAGE
from tito_core.cli.text import plain
from tito_core.recipes.plan import ENGINES

if TYPE_CHECKING:
    from tito_core.families.family import Deployment
    from tito_core.families.registry import LoadedFamily
    from tito_core.recipes.plan import Plan

__all__ = ["command", "planned", "recipe_options", "script"]

_F = TypeVar("_F", bound=Callable[..., Any])

_SIZE: Final = click.IntRange(min=1)
_KINDS: Final[dict[str, click.ParamType[Any]]] = {
    "tensor_parallel": _SIZE,
    "pipeline_parallel": _SIZE,
    "expert_parallel": _SIZE,
    "data_parallel": _SIZE,
    "attention_data_parallel": _SIZE,
    "attention_context_parallel": _SIZE,
    "moe_data_parallel": _SIZE,
    "memory_fraction": click.FloatRange(0, 1, min_open=True, max_open=True),
    "max_running_requests": _SIZE,
    "parsers.reasoning": click.STRING,
    "parsers.tool_call": click.STRING,
    "speculative.algorithm": click.STRING,
    "speculative.num_steps": _SIZE,
    "speculative.eagle_topk": _SIZE,
    "speculative.num_draft_tokens": _SIZE,
    "speculative.draft_model": click.STRING,
}
_FLAGS: Final = ("enable-dp-attention", "enable-expert-parallel", "enable-auto-tool-choice")
"""What engines spell as a flag beside, or in place of, a size."""


def _names() -> dict[str, tuple[str, ...]]:
    """By field of a recipe, every name that an engine has for its option; SGLang's long one is first."""
    found: dict[str, dict[str, None]] = {field: {} for field in _KINDS}
    for option in (option for line in ENGINES.values() for option in line.options if option.field in found):
        found[option.field] |= {name: None for name in option.names if name not in _FLAGS}
    return {field: tuple(names) for field, names in found.items()}


_NAMES: Final = _names()


def recipe_options(function: _F, *, hidden: bool = False) -> _F:
    """Adds the options that `planned` reads: one for every name of every field, those but the first in its help and not in
    the list; and those for whatever has no field. `hidden`: none in the list."""
    pair: dict[str, Any] = {"multiple": True, "callback": _settings, "metavar": "NAME=VALUE", "hidden": hidden}
    function = click.option("--env", "environment", help="An environment variable.", **pair)(function)
    function = click.option("--set", "arguments", help="Another option of the engine.", **pair)(function)
    attention = "--data-parallel-size is attention's."
    function = click.option("--enable-dp-attention", is_flag=True, hidden=hidden, help=attention)(function)
    for field, names in reversed(_NAMES.items()):
        for name in reversed(names):
            also = f"Also --{', --'.join(names[1:])}." if len(names) > 1 else None
            function = click.option(
                f"--{name}",
                _parameter(field, name),
                type=_KINDS[field],
                multiple=True,
                metavar="X",
                help=also,
                hidden=hidden or name != names[0],
            )(function)
    return function


def _parameter(field: str, name: str) -> str:
    return f"{field}__{name}".replace(".", "_").replace("-", "_")


def _settings(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE pairs; of arguments a value that is JSON is that, another is a string."""
    argument = parameter.name == "arguments"
    found: dict[str, Any] = {}
    said: dict[str, str] = {}
    for one in values:
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{one!r} is not NAME=VALUE" + ("; a bare flag is NAME=true" if argument else ""))
        if said.setdefault(name, text) != text:
            raise click.BadParameter(f"{name} is given as {said[name]!r} and as {text!r}")
        found[name] = _json_or_text(text) if argument else text
    return found


def _json_or_text(text: str) -> Any:
    """The JSON that a text is; the text where it is none, holds what JSON does not keep (`NaN`), or is a number that is
    printed otherwise (`1.10`, `1e5`: they may be names)."""
    try:
        found = json.loads(text)
        again = json.dumps(found, allow_nan=False, ensure_ascii=False).encode().decode()
    except (ValueError, RecursionError):
        return text
    return text if isinstance(found, (int, float)) and again != text else found


@click.command("recipe")
@click.argument("family")
@click.option("--profile", default="default", show_default=True, metavar="P", help="One of the family's recipes.")
@click.option("--platform", type=click.Choice(["cuda", "rocm", "cpu"]), default="cuda", show_default=True)
@click.option("--nodes", "--nnodes", type=_SIZE, default=1, show_default=True, metavar="N", help="Machines.")
@click.option("--address", metavar="HOST:PORT", help="The first machine's, where there are several.")
@click.option("--model", metavar="M", help="A directory or a name.  [default: the family's first model]")
@click.option("--host", metavar="H", help="What the server listens on.  [default: the engine's]")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="  [default: the engine's]")
@click.option("--engine-version", metavar="V", help="For rules that changed between releases.")
@recipe_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["sglang", "vllm", "json", "namespace"]),
    default="sglang",
    show_default=True,
    help="An engine's commands, one a node; the plan; or the fields that trainers keep.",
)
@click.option("--engine", type=click.Choice(["sglang", "vllm"]), help="Of --format json.  [default: sglang]")
def command(
    family: str,
    profile: str,
    platform: Any,
    nodes: int,
    address: str | None,
    model: str | None,
    host: str | None,
    port: int | None,
    engine_version: str | None,
    form: str,
    engine: str | None,
    **given: Any,
) -> None:
    """Print what starts an engine that serves FAMILY, and where each value comes from.

    \b
      tito recipe FAMILY --model /ckpt/MODEL
      tito recipe FAMILY --nodes 2 --address 10.0.0.1:5000 --tp 16 --ep 16

    Every name that an engine has for a size is taken: --tp, --tp-size and --tensor-parallel-size are one option.
    --speculative-algorithm none is no speculation.
    """
    from tito_core.cli.output import emit_json
    from tito_core.families.family import Deployment
    from tito_core.families.registry import default_registry
    from tito_core.recipes.namespace import to_namespace

    served = engine or (form if form == "vllm" else "sglang")
    if served != {"vllm": "vllm", "json": served}.get(form, "sglang"):
        raise click.UsageError(f"--format {form} is not --engine {served}'s; leave out one of them")
    with contextlib.redirect_stdout(sys.stderr):  # what a plugin prints is no part of the answer
        loaded = default_registry.family(family)
        asked = Deployment(engine=served, version=engine_version, platform=platform, nodes=nodes, profile=profile)
        made = planned(loaded, asked, given, model=model, host=host, port=port, address=address)
    if form == "namespace":
        emit_json(
            family=family,
            origins=dict(made.origins),
            namespace=to_namespace(made.recipe),
            environment=dict(made.recipe.environment),
        )
    elif form == "json":
        emit_json(**_json(made, loaded))
    else:
        click.echo(script(made))


def planned(loaded: LoadedFamily, asked: Deployment, given: Mapping[str, Any], **where: Any) -> Plan:
    """The plan for a deployment with a caller's values in it; `where` goes to `plan`.

    Exits as wrong usage where the family's own recipe can be served, and not with these values. Raises FamilyError.
    """
    from tito_core.errors import FamilyError, RecipeError
    from tito_core.families.family import blaming
    from tito_core.recipes.plan import plan

    fields = _given(given)
    try:
        if given["enable_dp_attention"]:
            fields = _of_attention(fields, loaded.answered(asked)[0].attention_data_parallel)
        overrides = _overrides(loaded, asked, fields, given["arguments"], given["environment"])
        with blaming(f"{loaded.name} can't be served with these values", RecipeError):
            asked = asked.model_copy(update={"overrides": overrides})
        return plan(loaded, asked, **where)
    except FamilyError as error:
        if not _callers(loaded, asked):
            raise
        click.echo(f"error: {plain(str(error))}", err=True)
        raise click.exceptions.Exit(USAGE) from None


def _given(given: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """One value a field, whatever names it was given under. Raises UsageError, which names both, where they differ."""
    found: dict[str, Any] = {}
    for field, names in _NAMES.items():
        said = [(name, value) for name in names for value in given[_parameter(field, name)]]
        if not said:
            continue
        first, known = said[0]
        for name, value in said[1:]:
            if value != known:
                raise click.UsageError(
                    f"--{first} {known} and --{name} {value} are one option, {field}; give one of them"
                )
        found[field] = known
    return found


def _of_attention(fields: Mapping[str, Any], answered: int) -> dict[str, Any]:
    """The same, with data parallelism as attention's; none is needed where the recipe that was answered has it."""
    size, also = fields.get("data_parallel"), fields.get("attention_data_parallel")
    if size is None and also is None:
        if answered > 1:
            return dict(fields)
        raise click.UsageError("--enable-dp-attention says whose --data-parallel-size is, and none is given; give one")
    if None not in (size, also) and size != also:
        raise click.UsageError(
            f"--data-parallel-size {size} --enable-dp-attention and --attention-data-parallel-size {also} are one option, "
            "attention_data_parallel; give one of them"
        )
    others = {field: value for field, value in fields.items() if field != "data_parallel"}
    return {**others, "attention_data_parallel": also if size is None else size}


def _overrides(
    loaded: LoadedFamily,
    asked: Deployment,
    fields: Mapping[str, Any],
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """A caller's values as fields of a recipe; those inside another are put beside what the profile has there."""
    answer, _ = loaded.answered(asked)
    overrides = {field: value for field, value in fields.items() if "." not in field}
    for name in ("speculative", "parsers"):
        inside = {field.partition(".")[2]: value for field, value in fields.items() if field.startswith(f"{name}.")}
        if not inside:
            continue
        was = getattr(answer, name) or (loaded.declaration.parsers.get(asked.engine) if name == "parsers" else None)
        overrides[name] = {**(was.model_dump() if was else {}), **inside}
    part = next(
        (field for field in fields if field.startswith("speculative.") and field != "speculative.algorithm"), None
    )
    if str(fields.get("speculative.algorithm", "")).lower() == "none":
        if part is not None:
            raise click.UsageError(
                f"--speculative-algorithm none is no speculation, and --{_NAMES[part][0]} {fields[part]} is a part of one; "
                "leave out one of them"
            )
        overrides["speculative"] = None
    if arguments:
        overrides["arguments"] = {**answer.arguments, **arguments}
    if environment:
        overrides["environment"] = {**answer.environment, **environment}
    if (arguments or environment) and not (answer.arguments or answer.environment):
        overrides["engine"] = asked.engine
    return overrides


def _callers(loaded: LoadedFamily, asked: Deployment) -> bool:
    """Whether it is the caller's values that can't be served: the family's own can, or the profile is none of its."""
    from tito_core.errors import FamilyError
    from tito_core.recipes.plan import plan

    try:
        plan(loaded, asked.model_copy(update={"nodes": 1, "overrides": {}}))
    except FamilyError:
        return asked.profile not in loaded.declaration.recipes
    return True


def script(made: Plan) -> str:
    """A shell script: comments that say where each value comes from, then a command a node."""
    recipe = made.recipe
    lines = [
        f"{made.engine}, family {made.family}, profile {made.deployment.profile}, platform {made.deployment.platform}"
    ]
    lines += [f"source: {recipe.source or 'none is given'}", f"seen working: {recipe.seen or 'not by us'}"]
    lines += [f"{name} {plain(_value(made, name))}: {origin}" for name, origin in made.origins.items()]
    lines += [f"note: {note}" for note in made.notes]
    text = "".join(f"# {plain(line)}\n" for line in lines)
    many = len(made.commands) > 1
    return text + "\n".join(
        (f"# node {rank} of {len(made.commands)}\n" if many else "") + str(one)
        for rank, one in enumerate(made.commands)
    )


def _value(made: Plan, name: str) -> str:
    if name == "model":
        return made.model
    head, _, rest = name.partition(".")
    found = getattr(made.recipe, head)
    if rest:
        found = found[rest] if isinstance(found, dict) else getattr(found, rest)
    if name == "parsers":
        return f"{found.reasoning or 'none'} and {found.tool_call or 'none'}"
    return "none" if found is None else str(found)


def _json(made: Plan, loaded: LoadedFamily) -> dict[str, Any]:
    return {
        "family": made.family,
        "distribution": loaded.info.distribution,
        "version": loaded.info.version,
        "engine": made.engine,
        "deployment": made.deployment.model_dump(mode="json"),
        "recipe": made.recipe.model_dump(mode="json"),
        "origins": dict(made.origins),
        "notes": list(made.notes),
        "commands": [{"argv": list(one.argv), "environment": dict(one.environment)} for one in made.commands],
    }
