"""What commands print with: tables without art, and lines that are never cut.

On a terminal a table fits its width; elsewhere lines are as long as they need to be, so that a log can be searched.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Final

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["SCHEMA_VERSION", "console", "emit", "emit_json", "grid"]

SCHEMA_VERSION: Final = 1
"""Of what `--json` prints: a field may be added under one number, and means the same for ever."""

_ENDLESS: Final = 100_000


def console(*, stderr: bool = False) -> Console:
    """A console for stdout or stderr that takes no markup from what it prints."""
    made = Console(file=sys.stderr if stderr else sys.stdout, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = _ENDLESS
    return made


def emit(to: Console, *what: RenderableType) -> None:
    """Prints each on lines of its own, without trailing blanks."""
    with to.capture() as captured:
        to.print(*what, sep="\n")
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()), file=to.file, color=True)


def emit_json(**fields: Any) -> None:
    """Prints one JSON object, `schema_version` first."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **fields}, ensure_ascii=False, indent=2))


def grid(
    rows: Iterable[tuple[str | Text, ...]], *, headings: tuple[str, ...] = (), right: tuple[int, ...] = ()
) -> Table:
    """Columns two blanks apart. The first keeps its width, and so do those in `right`, which are set flush right."""
    kept = [tuple(Text(cell) if isinstance(cell, str) else cell for cell in row) for row in rows]
    table = Table(box=None, show_header=bool(headings), padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for number in range(len(kept[0]) if kept else len(headings)):
        table.add_column(
            Text(headings[number]) if headings else "",
            justify="right" if number in right else "left",
            no_wrap=number == 0 or number in right,
            overflow="fold",
        )
    for row in kept:
        table.add_row(*row)
    return table
