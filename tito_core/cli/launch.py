"""`tito verify --launch`: the engine is started with the family's recipe, and lives as long as the verification does."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from tito_core.cli.recipe import planned, recipe_options, script
from tito_core.cli.text import clip, plain
from tito_core.errors import EngineError

if TYPE_CHECKING:
    from tito_core.families.family import Family, Platform
    from tito_core.recipes.child import Child
    from tito_core.recipes.plan import Plan

__all__ = ["Launch", "launch_options"]

_SHOWN: Final = 20
_LINE: Final = 400
_MISSING: Final = 3
_PROBE: Final = f"""
import importlib.metadata, importlib.util, sys
name = sys.argv[1]
if importlib.util.find_spec(name) is None:
    sys.exit({_MISSING})
try:
    print(importlib.metadata.version(name))
except importlib.metadata.PackageNotFoundError:
    pass
"""

_OPTIONS: Final = (
    click.option(
        "--launch",
        is_flag=True,
        help="Start the engine with the family's recipe, and stop it at the end. Takes --tp 4, --set, --env and "
        "so on, as `tito recipe` does.",
    ),
    click.option("--profile", metavar="P", default="default", show_default=True, help="The recipe to start it with."),
    click.option(
        "--platform",
        type=click.Choice(["cuda", "rocm", "cpu"]),
        default="cuda",
        show_default=True,
        help="What it runs on.",
    ),
    click.option(
        "--launcher",
        metavar="PYTHON",
        help="The Python that has the engine installed.  [default: the one that runs tito]",
    ),
    click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Its port.  [default: a free one]"),
    click.option(
        "--ready-within",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        default=3600.0,
        show_default=True,
        help="How long it may take to load.",
    ),
    click.option("--dry-run", is_flag=True, help="Print what --launch would start, and start nothing."),
)


def launch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that `Launch.of` reads, those of `tito recipe` among them."""
    command = recipe_options(command, hidden=True)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Launch:
    """What a command line asks for."""

    launch: bool
    profile: str
    platform: Platform
    launcher: str | None
    port: int | None
    ready_within: float
    dry_run: bool
    recipe: Mapping[str, Any]
    """A caller's own values for the recipe."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Launch:
        own = {field.name: given[field.name] for field in fields(cls) if field.name in given}
        return cls(**own, recipe={name: value for name, value in given.items() if name not in own})

    @contextlib.contextmanager
    def serving(
        self, family: str, kind: str, model: str, progress: Callable[[str, int, int], None] | None
    ) -> Iterator[Served]:
        """The engine, once it is ready. An EngineError that leaves the `with` is preceded by its last lines.

        Raises EngineError where it is not installed, its port is taken, or it is not ready; FamilyError as `plan` does.
        """
        from tito_core.families.registry import default_registry
        from tito_core.recipes.child import HOST, Child, free_port

        with _interruptible():
            version = _version(kind, self._python)
            port = free_port(self.port)
            (command,) = self._plan(family, kind, model, port, version).commands
            child = Child(kind, command.argv, command.environment)
            with child:
                served = Served(f"http://{HOST}:{port}", str(command), child, default_registry.get_family(family))
                click.echo(f"starting {kind}: {plain(served.command)}\nits log: {plain(str(child.log))}", err=True)
                try:
                    within = self.ready_within
                    child.ready(
                        f"{served.url}/health",
                        within,
                        lambda taken: (
                            progress(f"starting {kind}, seconds", int(taken), int(within)) if progress else None
                        ),
                    )
                    yield served
                except EngineError:
                    served.tell()
                    raise

    def show(self, family: str, kind: str, model: str) -> None:
        """Prints what would be started, and where each value comes from; starts nothing."""
        with contextlib.redirect_stdout(sys.stderr):  # what a plugin prints is no part of the answer
            plan = self._plan(family, kind, model, self.port, None)
        click.echo(script(plan))

    @staticmethod
    def checkpoint(model: str | None) -> str:
        if model is None:
            raise click.UsageError("--launch serves a checkpoint: name it with --model DIR.")
        return model

    @property
    def _python(self) -> str:
        return sys.executable if self.launcher is None else self.launcher

    def _plan(self, family: str, kind: str, model: str, port: int | None, version: str | None) -> Plan:
        from tito_core.families.family import Deployment
        from tito_core.families.registry import default_registry
        from tito_core.recipes.child import HOST

        asked = Deployment(engine=kind, version=version, platform=self.platform, profile=self.profile)
        loaded = default_registry.family(family)
        return planned(loaded, asked, self.recipe, model=model, host=HOST, port=port, python=self._python)


class Served(NamedTuple):
    """An engine that was started: where it is, what started it, and whose known issues explain its log."""

    url: str
    command: str
    child: Child
    family: Family

    def tell(self) -> None:
        """Prints on stderr its last lines, the known issues that its kept lines show, and where its log is."""
        from tito_core.cli.output import console, emit, grid

        lines = self.child.tail()
        shown = [clip(plain(line), _LINE) for line in lines[-_SHOWN:]]
        known = self.family.explained("\n".join(lines), self.child.name)
        rows = [("  last lines" if number == 0 else "", line) for number, line in enumerate(shown)]
        rows += [("  known", plain(known))] if known else []
        emit(console(stderr=True), grid([*rows, ("  log", plain(str(self.child.log)))]))


def _version(kind: str, python: str) -> str | None:
    """The version of the engine that a Python has, None where it does not tell. Raises EngineError where it has none."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, kind],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise click.BadParameter(f"{python} can't be run: {cause}", param_hint="'--launcher'") from None
    if done.returncode == _MISSING:
        raise EngineError(
            f"{kind} is not installed for {python}; install it there (pip install {kind}), or name the Python that has it "
            "with --launcher",
            kind="usage",
        )
    if done.returncode:
        why = f"{python} is no Python that runs (exit code {done.returncode}): {plain(done.stderr[-200:].strip()) or 'no word'}"
        raise click.BadParameter(why, param_hint="'--launcher'")
    return done.stdout.strip() or None


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM, and SIGHUP where it is not ignored, end the command as an interrupt does: nothing is left running."""
    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, signal.default_int_handler) for one in numbers}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
