"""`tito doctor [FAMILY]`: how every installed plugin fares, the worst first."""

from __future__ import annotations

import click

from tito_core.cli.text import plain

__all__ = ["command"]


@click.command("doctor")
@click.argument("family", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, tracebacks included.")
def command(family: str | None, as_json: bool) -> None:
    """Load every installed plugin, or the one of FAMILY, each in a process of its own.

    FAIL: it can't be used. WARN: it is slow to load, or imports what it should not. With FAMILY, tracebacks are shown.
    Exit code 1 where one failed.
    """
    from tito_core.cli.output import console, emit, emit_json, grid
    from tito_core.families.registry import default_registry

    found = default_registry.diagnose(family)
    failed = any(one.status == "FAIL" for one in found)
    if as_json:
        emit_json(plugins=[one._asdict() for one in found])
    elif not found:
        click.echo("No plugin is installed, so there is nothing to diagnose; `tito families` says how to install one.")
    else:
        out = console()
        rows = [
            tuple(
                map(
                    plain,
                    (one.status, one.name, f"{one.distribution} {one.version}", one.module, f"{one.seconds:.1f} s"),
                )
            )
            for one in found
        ]
        emit(out, grid(rows, headings=("", "name", "distribution", "module", "loads in")))
        for one in found:
            if one.text:
                emit(out, "", f"{one.status} {plain(one.name)}: {plain(one.text)}")
            if one.traceback and family is not None:
                emit(out, *(f"  {plain(line)}" for line in one.traceback.splitlines()))
        if failed and family is None:
            emit(out, "", "`tito doctor NAME` shows the traceback.")
    raise click.exceptions.Exit(1 if failed else 0)
