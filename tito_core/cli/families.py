"""`tito families`: what is installed, from metadata alone."""

from __future__ import annotations

import click

from tito_core.cli.text import plain

__all__ = ["command"]

_NONE = """\
No family is installed. A family comes in a plugin, a distribution of its own: install one into this environment
(pip install DISTRIBUTION; from a checkout of this project, pip install ./plugins/NAME) and it is listed here."""


@click.command("families")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List the installed families.

    Nothing is imported to learn this; `tito show FAMILY` loads one.
    """
    from tito_core.cli.output import console, emit, emit_json, grid
    from tito_core.families.registry import list_families

    found = list_families()
    if as_json:
        emit_json(families=[one._asdict() for one in found])
        return
    if not found:
        click.echo(_NONE)
        return
    rows = [tuple(plain(cell) for cell in (one.name, one.distribution, one.version, one.module)) for one in found]
    emit(console(), grid(rows, headings=("family", "distribution", "version", "module")))
