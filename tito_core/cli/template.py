"""`tito template FAMILY`: the chat template that the family renders with, for an engine to be given."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

__all__ = ["command"]


@click.command("template")
@click.argument("family")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A checkpoint: for a family that renders with the checkpoint's own template.",
)
def command(family: str, model: Path | None) -> None:
    """Print the chat template that FAMILY renders with, unchanged.

    An engine that renders prompts itself renders the same with it:

    \b
      tito template FAMILY > FAMILY.jinja
      python -m sglang.launch_server --chat-template FAMILY.jinja ...
    """
    from tito_core.errors import FamilyError
    from tito_core.families.registry import default_registry
    from tito_core.tokens import checkpoint as checkpoints

    with contextlib.redirect_stdout(sys.stderr):  # what a plugin prints is no part of the answer
        loaded = default_registry.family(family)
        checkpoint = None if model is None else checkpoints.read(model)
        if checkpoint is not None:
            checkpoints.check_model_type(loaded.declaration, checkpoint)
        template = loaded.template(checkpoint)
    if template.kind != "jinja":
        raise FamilyError(
            f"{family} has no chat template: it renders with an encoder, {template.reference}; engines that serve it "
            "have one of their own"
        )
    click.echo(template.source.encode(), nl=False)
