"""The command `tito`: which commands there are, and what becomes of an error.

Help needs the names and one line about each; a command's own module is imported when the command is used.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn, TypeGuard

import click

from tito_core import __version__
from tito_core.cli.text import plain
from tito_core.errors import TitoError

__all__ = ["INTERNAL", "INTERRUPTED", "NOT_LOADED", "USAGE", "main", "tito"]

USAGE: Final = 2
NOT_LOADED: Final = 3
INTERNAL: Final = 70
INTERRUPTED: Final = 130

_COMMANDS: Final = {
    "families": "List the installed families.",
    "show": "Show what a family declares.",
    "template": "Print a family's chat template.",
    "recipe": "Print what starts an engine with a family's recipe.",
    "doctor": "Diagnose every installed plugin.",
    "verify": "Prove that a family keeps its promises.",
}


class Commands(click.Group):
    """Commands by name; each is `command` in the module of its name beside this one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"tito_core.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            code = INTERRUPTED
        except TitoError as error:
            _debug()
            click.echo(f"error: {plain(str(error))}", err=True)
            code = NOT_LOADED
        except Exception as error:
            if _unwritten(error):
                code = _lost(error)
            else:
                _debug()
                click.echo(
                    f"internal error: {type(error).__name__}: {plain(str(error))}\n"
                    "This is a fault of tito, not a verdict on the family. TITO_DEBUG=1 shows where it happened.",
                    err=True,
                )
                code = INTERNAL
        except BaseException as error:
            # A plugin's SystemExit, or a test runner's outcome: never the end of a command.
            _debug()
            click.echo(f"error: a plugin ended the command: {type(error).__name__}: {plain(str(error))}", err=True)
            code = NOT_LOADED
        raise click.exceptions.Exit(code)


def _unwritten(error: Exception) -> TypeGuard[OSError]:
    """Whether standard output could not be written."""
    return (
        isinstance(error, OSError) and error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO)
    )


def _lost(error: OSError) -> int:
    """The exit code where standard output can't be written; a reader that went away (`| head`) is told nothing."""
    if error.errno != errno.EPIPE:
        click.echo(f"error: standard output can't be written: {error.strerror}", err=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter would say it once more
    return USAGE


def _debug() -> None:
    if os.environ.get("TITO_DEBUG", "") not in ("", "0"):
        traceback.print_exc()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 all held, 1 a promise broke or a plugin is broken, 2 usage, 3 the family or the checkpoint "
    "could not be loaded, 70 a fault of tito itself.",
)
@click.version_option(__version__, "-V", "--version", message="tito-core %(version)s")
def tito() -> None:
    """Token-in token-out: a trainer learns from exactly the token ids that the engine sampled.

    `tito verify --family F` proves on this machine that a model family can do that, before any GPU hour is spent.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script. What a stream can't encode is shown as an escape, never a reason to stop."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    try:
        tito.main(arguments, prog_name="tito")
    except OSError as error:
        if not _unwritten(error):
            raise
        sys.exit(_lost(error))
    raise AssertionError("click exits")
