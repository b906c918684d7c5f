"""`tito verify`: runs a verification, prints what it found, and exits with its verdict."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from tito_core.cli.launch import Launch, launch_options
from tito_core.cli.main import NOT_LOADED, USAGE
from tito_core.cli.text import clip, plain, quoted
from tito_core.errors import TitoError

if TYPE_CHECKING:
    from rich.console import Console

    from tito_core.tokens.append import Truncation
    from tito_core.verify.report import Failure, Report

__all__ = ["command", "print_report"]

_AROUND: Final = 6
_TEXT: Final = 60
_LINE: Final = 1000
_LABELS: Final = {
    "special_token_count": "special",
    "special_token_type": "type",
    "non_assistant_text": "text",
    "assistant_text": "assistant",
    "end_token": "end token",
}
"""What the comparator's kinds are called in a table, the last being the soft one."""


def _roles(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    from tito_core.families.family import APPEND_ROLES

    if value is None:
        return None
    roles = tuple(role.strip() for role in value.split(","))
    if strange := [role for role in roles if role not in APPEND_ROLES]:
        raise click.BadParameter(f"{strange[0]!r} is none; choose among {','.join(APPEND_ROLES)}")
    return roles


def _target(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuses a file that can't be written before the work is done, not after it."""
    if value is None or value == "-":
        return value
    path = Path(value)
    if os.path.isdir(path):
        raise click.BadParameter(f"{value} is a directory")
    if not os.path.isdir(path.parent):
        raise click.BadParameter(f"{path.parent} is not a directory")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise click.BadParameter(f"{value} may not be written")
    return value


@click.command("verify")
@click.option("--family", required=True, metavar="F", help="The family to verify; `tito families` lists them.")
@click.option("--model", metavar="DIR", help="A checkpoint directory: its own tokenizer and template.")
@click.option("--revision", metavar="R", help="One of the family's revisions.  [default: its first]")
@click.option("--vocabulary", metavar="V", help="One of the plugin's vocabularies.  [default: all of them]")
@click.option(
    "--sessions",
    type=click.IntRange(min=0),
    metavar="N",
    default=64,
    show_default=True,
    help="Whole sessions to drive.",
)
@click.option(
    "--conversations",
    type=click.IntRange(min=1),
    metavar="N",
    default=1000,
    show_default=True,
    help="Conversations to generate.",
)
@click.option(
    "--seed", type=int, metavar="N", default=0, show_default=True, help="What generates them; another finds others."
)
@click.option("--append-roles", callback=_roles, metavar="ROLES", help="Fewer append roles, as in tool,user.")
@click.option("--engine", metavar="URL", help="Drive the sessions on this live SGLang or vLLM instead.")
@click.option("--engine-kind", type=click.Choice(["sglang", "vllm"]), default="sglang", show_default=True)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    default=16,
    show_default=True,
    help="Sessions that the engine serves at once.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    default=1024,
    show_default=True,
    help="Ids that the engine may sample in a turn.",
)
@click.option(
    "--truncation",
    type=click.Choice(["refuse", "close"]),
    default="refuse",
    show_default=True,
    help="What becomes of a turn that was cut: its session ends, or the turn is closed.",
)
@click.option(
    "--assistant-text-threshold",
    type=click.FloatRange(0, 1),
    metavar="X",
    default=0.2,
    show_default=True,
    help="Share of turns that may be in other ids than their text has.",
)
@launch_options
@click.option("--api-key-env", metavar="NAME", help="The environment variable that holds the engine's API key.")
@click.option("--json", "target", callback=_target, metavar="FILE", help="Write the report there; - is stdout.")
def command(
    family: str,
    model: str | None,
    revision: str | None,
    vocabulary: str | None,
    sessions: int,
    conversations: int,
    seed: int,
    append_roles: Sequence[str] | None,
    engine: str | None,
    engine_kind: str,
    concurrency: int,
    max_tokens: int,
    truncation: Truncation,
    assistant_text_threshold: float,
    api_key_env: str | None,
    target: str | None,
    **launching: Any,
) -> None:
    """Prove that a family keeps its promises, on generated conversations and whole sessions.

    Needs no GPU and no network. Exits 0 when all held and 1 when a promise broke: the smallest conversation that shows
    it is then printed, and saved in this directory. 2 is wrong usage, 3 a family or a checkpoint that can't be loaded,
    or an engine that can't be started or reached or runs other parsers than the family's. With --engine only sessions are
    driven, with the vocabulary that it serves; with --launch on an engine that is started for them.
    """
    from tito_core.cli.output import console
    from tito_core.families.registry import default_registry
    from tito_core.verify.run import verify

    if model is not None and vocabulary is not None:
        raise click.UsageError("--model brings its own vocabulary: leave --vocabulary out.")
    launch = Launch.of(launching)
    _together(engine, launch.launch, launching)
    if launch.dry_run:
        if target is not None:
            raise click.UsageError("--dry-run verifies nothing, so there is no report: leave --json out.")
        launch.show(family, engine_kind, launch.checkpoint(model))
        return
    with contextlib.ExitStack() as until_told:
        # What a plugin prints is no part of the answer.
        with contextlib.redirect_stdout(sys.stderr), _progress() as progress:
            if (revision, vocabulary, append_roles) != (None, None, None):
                _known(family, revision, vocabulary, append_roles)
            common: dict[str, Any] = {
                "model": model,
                "revision": revision,
                "vocabulary": vocabulary if engine is None or model is not None else _served(family, vocabulary),
                "sessions": sessions,
                "seed": seed,
                "append_roles": append_roles,
                "progress": progress,
            }
            key, served = _key(api_key_env), None
            if launch.launch:
                default_registry.load(
                    family, model=model, revision=revision
                )  # what fails, fails before an engine loads
                serving = launch.serving(family, engine_kind, launch.checkpoint(model), progress)
                served = until_told.enter_context(serving)
                engine = served.url
            if engine is None:
                report = verify(family, conversations=conversations, **common)
            else:
                from tito_core.engines.sglang import SGLangEngine
                from tito_core.engines.vllm import VLLMEngine
                from tito_core.verify.live import verify_live

                kind = {"sglang": SGLangEngine, "vllm": VLLMEngine}[engine_kind]
                with kind(engine, api_key=key, concurrency=concurrency) as live:
                    report = verify_live(
                        family,
                        live,
                        concurrency=concurrency,
                        max_tokens=max_tokens,
                        truncation=truncation,
                        threshold=assistant_text_threshold,
                        launched=served.command if served else "",
                        **common,
                    )
        print_report(report, console(stderr=target == "-"))
        if served and report.exit_code == NOT_LOADED:
            served.tell()
    code = report.exit_code
    if target is not None and not _written(target, report):
        code = code or USAGE
    click.get_current_context().exit(code)


def print_report(report: Report, out: Console) -> None:
    """The report as an engineer reads it. Saves each failing conversation in the current directory."""
    from rich.text import Text

    from tito_core.cli.output import emit, grid

    said = f"{report.family} ({report.distribution} {report.version})"
    emit(out, f"tito verify  {plain(said)}   revision {plain(report.revision)}   seed {report.seed}")
    heading = [(_label("template"), plain(report.template.reference), f"sha256 {report.template.sha256[:8]}", "")]
    for one in report.vocabulary:
        of = one.title if one.name == "checkpoint" else f"{one.name}, {one.title}" if one.title else one.name
        stands = f"stands in for {one.stands_in_for}" if one.stands_in_for else ""
        heading.append((_label("vocabulary"), plain(of), f"sha256 {one.sha256[:8]}", plain(stands)))
    emit(out, grid(heading))
    if report.overrides:
        emit(out, grid((_label("override"), plain(one)) for one in report.overrides))
    if report.warnings:
        emit(out, grid((Text(_label("warning"), "yellow"), plain(warning)) for warning in report.warnings))
    held, broken, empty = Text("ok", "green"), Text("FAIL", "bold red"), Text("none", "yellow")
    rows: list[tuple[str | Text, ...]] = [
        (
            _label(plain(one.name)),
            plain(one.promise),
            f"{one.conversations:,}",
            f"{one.tokens:,}" if one.tokens else "-",
            broken if not one.ok else held if one.conversations else empty,
        )
        for one in report.checks
    ]
    sessions = report.sessions
    rows.append(
        (
            _label("sessions"),
            f"{sessions.passed} of {sessions.driven} held, {sessions.turns:,} turns, {sessions.calls:,} calls",
            f"{sessions.driven:,}",
            f"{sessions.tokens:,}" if sessions.tokens else "-",
            broken if sessions.passed < sessions.driven else held if sessions.driven else empty,
        )
    )
    emit(out, "", grid(rows, headings=(_label("check"), "promise", "cases", "tokens", "result"), right=(2, 3)))
    counts = "  ".join(
        _count(kind, number) for kind, number in sessions.mismatches.items() if number or kind != "end_token"
    )
    actions = ", ".join(f"{plain(name.replace('_', ' '))} {number:,}" for name, number in sessions.actions.items())
    emit(out, grid([(_label("mismatches"), counts), (_label("driven"), actions or "nothing"), *_engine(report)]))
    taken: set[str] = set()
    for failure in report.failures:
        head = Text.assemble((f"FAIL {plain(failure.check)}", "bold red"), f"  {clip(plain(failure.what), _LINE)}")
        emit(out, "", head, grid(_failure(report, failure, taken)))
    emit(out, "", _verdict(report))


def _engine(report: Report) -> list[tuple[str, str]]:
    if (engine := report.engine) is None:
        return []
    reuse = ", ".join(
        f"turn {number} {row.cached / row.shared:.0%}" for number, row in enumerate(engine.turns) if row.shared
    )
    versions = f", weights {plain(', '.join(engine.weight_versions))}" if engine.weight_versions else ""
    turns = sum(row.turns for row in engine.turns)
    return [
        (_label("engine"), f"{engine.kind} at {plain(engine.url)}{versions}"),
        (_label("reused"), f"{reuse or 'nothing to reuse'} (cached, of the ids before the append)"),
        (_label("accepted"), "no speculation" if engine.accepted is None else f"{engine.accepted:.2f} ids a step"),
        (
            _label("turns"),
            f"{turns:,} turns of at most {engine.max_tokens} ids: {engine.cut:,} cut, {engine.early:,} early stops, "
            f"{engine.assistant_text:.0%} in other ids than their text (at most {engine.threshold:.0%})",
        ),
    ]


def _label(name: str) -> str:
    return f"  {name:<10}"


def _count(kind: str, number: int) -> str:
    return f"{_LABELS.get(kind, kind)} {number:,}{' (soft)' if kind in ('assistant_text', 'end_token') else ''}"


def _verdict(report: Report) -> str:
    seconds = f"{report.seconds:.1f} s"
    if report.exit_code == 0:
        sessions = f" and all {report.sessions.driven} sessions" if report.sessions.driven else ""
        lacking = sorted({one.stands_in_for for one in report.vocabulary if one.stands_in_for})
        models = plain(" and ".join(lacking))
        where = f", on stand-ins for the vocabulary of {models}: --model DIR proves it on a checkpoint's own"
        total, empty = len(report.checks), sum(not check.conversations for check in report.checks)
        promises = f"{total - empty} of {total}" if empty else f"All {total}"
        nothing = f", {empty} had nothing to look at" if empty else ""
        return f"{promises} promises{sessions} held in {seconds}{nothing}{where if lacking else ''}."
    if report.exit_code == NOT_LOADED:
        return f"The engine was lost after {seconds}: start it again, and the same command. This says nothing of the family."
    names = ", ".join(dict.fromkeys(failure.check for failure in report.failures)) or "a promise"
    told = "".join(f" or {one}" for one in dict.fromkeys(one.partition(": ")[0] for one in report.overrides))
    return (
        f"Broken: {names} (in {seconds}). Don't train on this yet: the same command with --seed {report.seed} shows it "
        f"again, and whoever publishes {report.distribution} {report.version}{told} needs this output and the saved files."
    )


def _failure(report: Report, failure: Failure, taken: set[str]) -> list[tuple[str, str]]:
    rows = [(_label("vocabulary"), plain(failure.vocabulary))]
    where = []
    if failure.message_index is not None:
        where.append(f"message {failure.message_index}{f' ({plain(failure.role)})' if failure.role else ''}")
    if failure.first_index is not None:
        where.append(f"id {failure.first_index}")
    if where:
        rows.append((_label("where"), ", ".join(where)))
    texts, ids = (failure.expected_text, failure.actual_text), (failure.expected_ids, failure.actual_ids)
    for label, text, run in zip(("expected", "got"), _texts(*texts), _ids(*ids), strict=True):
        if any(texts):
            rows.append((_label(label), text))
        if any(ids):
            rows.append(("" if any(texts) else _label(label), f"ids {run}"))
    if failure.said:
        rows.append((_label("smallest"), clip(plain(failure.said), _LINE)))
    if failure.known_issue:
        rows.append((_label("known"), plain(failure.known_issue)))
    if failure.conversation is not None:
        rows.append((_label("saved"), _saved(report, failure, taken)))
    return rows


def _ids(expected: Sequence[int], actual: Sequence[int]) -> tuple[str, str]:
    """Both runs around the first id that differs, which stands in brackets."""
    first = _first(expected, actual)

    def window(run: Sequence[int]) -> str:
        start, end = max(0, first - _AROUND), min(len(run), first + _AROUND)
        said = [f"[{run[at]}]" if at == first else str(run[at]) for at in range(start, end)]
        if first >= len(run):
            said.append("[nothing]")
        return " ".join([*(["…"] if start else []), *said, *(["…"] if end < len(run) else [])])

    return window(expected), window(actual)


def _texts(expected: str, actual: str) -> tuple[str, str]:
    """Both texts, around the first character that differs where they are long."""
    start = max(0, _first(expected, actual) - _TEXT)

    def window(text: str) -> str:
        cut = text[start : start + 2 * _TEXT]
        return f"{'…' if start else ''}{quoted(cut)}{'…' if start + len(cut) < len(text) else ''}"

    return window(expected), window(actual)


def _first(one: Sequence[Any], two: Sequence[Any]) -> int:
    shared = min(len(one), len(two))
    return next((at for at in range(shared) if one[at] != two[at]), shared)


def _saved(report: Report, failure: Failure, taken: set[str]) -> str:
    """Writes the failure and its conversation, and says where; a directory that refuses hides nothing."""
    stem = f"tito-fail-{re.sub(r'[^A-Za-z0-9_.-]+', '-', failure.check)}"
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    taken.add(name)
    path = Path(f"{name}.json")
    content = {
        "family": report.family,
        "distribution": report.distribution,
        "version": report.version,
        "revision": report.revision,
        "template": report.template.model_dump(),
        "overrides": report.overrides,
        "seed": report.seed,
        **failure.model_dump(),
    }
    try:
        path.write_text(f"{json.dumps(content, indent=2)}\n", encoding="ascii")
    except OSError as cause:
        return f"not saved: {path} can't be written here ({cause.strerror}); --json - prints the conversation"
    return str(path)


def _known(family: str, revision: str | None, vocabulary: str | None, roles: Sequence[str] | None) -> None:
    """Refuses names that this family does not have, and append roles that it can't be narrowed to, as wrong usage."""
    from tito_core.families.registry import default_registry

    loaded, option = default_registry.family(family), "revision"
    try:
        rendering = loaded.declaration.revision(revision)
        option = "vocabulary"
        loaded.declaration.vocabulary(vocabulary)
        option = "append-roles"
        if roles is not None:
            loaded.append_roles(rendering).narrowed(frozenset(roles))
    except (KeyError, ValueError) as cause:
        if isinstance(cause, TitoError):
            raise
        raise click.BadParameter(cause.args[0], param_hint=f"'--{option}'") from None


def _together(engine: str | None, launch: bool, launching: Iterable[str]) -> None:
    """Refuses options that mean nothing beside the others given."""
    context = click.get_current_context()
    given = {
        parameter.name: parameter.opts[0]
        for parameter in context.command.params
        if parameter.name and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    if engine is not None and launch:
        raise click.UsageError("--engine is one that runs, --launch starts one: leave out one of the two.")
    started = [given[name] for name in launching if name in given]
    if started and not launch:
        raise click.UsageError(f"{started[0]} is about an engine that is started: say --launch.")
    live = ("engine_kind", "concurrency", "max_tokens", "truncation", "assistant_text_threshold", "api_key_env")
    alone = [given[name] for name in live if name in given]
    if alone and engine is None and not launch:
        raise click.UsageError(
            f"{alone[0]} is about a live engine: name it with --engine URL, or start it with --launch."
        )
    if "conversations" in given and (engine is not None or launch):
        raise click.UsageError("--conversations is about the run without an engine: leave out one of the two.")


def _served(family: str, vocabulary: str | None) -> str | None:
    """The one vocabulary that a live engine serves: the one named, or the family's only one."""
    from tito_core.families.registry import default_registry

    names = [shipped.name for shipped in default_registry.get_family(family).vocabularies]
    if vocabulary is None and len(names) > 1:
        raise click.UsageError(
            f"--engine serves one vocabulary: name it with --model DIR, or with --vocabulary {' or '.join(names)}."
        )
    return vocabulary


def _key(name: str | None) -> str | None:
    if name is not None and not os.environ.get(name):
        raise click.BadParameter(f"the environment has no {name}", param_hint="'--api-key-env'")
    return os.environ[name] if name is not None else None


def _written(target: str, report: Report) -> bool:
    text = json.dumps(report.model_dump(), indent=2)
    if target == "-":
        click.echo(text)
        return True
    try:
        Path(target).write_text(f"{text}\n", encoding="ascii")
    except OSError as cause:
        click.echo(f"error: the report can't be written to {target}: {cause.strerror}", err=True)
        return False
    return True


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr where that is a terminal, which leaves nothing behind; else nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tito_core.cli.output import console

    to = console(stderr=True)
    if not to.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=to, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
