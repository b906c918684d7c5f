"""What SGLang makes of command lines, without starting it. Run by the environment's Python.

    python arguments.py FILE        FILE holds {"parse": [argv, ...], "resolve": [[argv, environment], ...]}

Prints one line of JSON. `parse`: the fields of `ServerArgs.from_cli_args` that are not as without any argument, or the
parser's error. `resolve`: what `ServerArgs.resolve_once` and `check_server_args` raise and say on the way, which a launch runs
before it starts its workers (0.5.23's `__post_init__` does nothing). `options`, `switches` and `lists`, those of one word of JSON, are the parser's own, `defaults`
the namespace of no arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.runtime_context import parallel_widths_of
from sglang.srt.server_args import ServerArgs

parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
DEFAULTS = vars(parser.parse_args(["--model-path", "m"]))


def record(argv: list[str]) -> ServerArgs:
    return ServerArgs.from_cli_args(parser.parse_args(argv))


def parsed(argv: list[str]) -> dict[str, Any]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            made, plain = record(argv), record(["--model-path", "m"])
    except SystemExit:
        return {"error": said.getvalue().splitlines()[-1]}
    names = [name for name in DEFAULTS if hasattr(made, name)]
    return {name: getattr(made, name) for name in names if getattr(made, name) != getattr(plain, name)}


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, line: logging.LogRecord) -> None:
        self.lines.append(line.getMessage())


def resolved(argv: list[str], environment: dict[str, str]) -> dict[str, Any]:
    kept = Kept()
    logging.getLogger().handlers, logging.getLogger().level = [kept], logging.INFO
    os.environ.update(environment)
    error = None
    try:
        made = record(argv)
        made.resolve_once()
        made.check_server_args()
        view = resolving_view(made)
        widths = parallel_widths_of(view)
        grouped = widths["moe_tp_size"] * widths["moe_ep_size"] * view.moe_dp_size
        if grouped != view.tp_size:
            kept.lines.append(f"ranks without a group of experts: {view.tp_size - grouped} of {view.tp_size}")
    except (Exception, SystemExit) as cause:
        error = f"{type(cause).__name__}: {cause} ({traceback.extract_tb(cause.__traceback__)[-1].name})"
    finally:
        for name in environment:
            del os.environ[name]
    return {"error": error, "said": kept.lines}


def main(file: Path) -> None:
    asked = json.loads(file.read_text())
    actions = [action for action in parser._actions if action.dest != "help"]
    print(
        json.dumps(
            {
                "options": [(action.dest, action.option_strings) for action in actions],
                "switches": [
                    action.option_strings for action in actions if isinstance(action, argparse.BooleanOptionalAction)
                ],
                "lists": [
                    action.option_strings
                    for action in actions
                    if getattr(action.type, "__name__", None) == "json_list_type"
                ],
                "defaults": DEFAULTS,
                "parse": [parsed(argv) for argv in asked["parse"]],
                "resolve": [resolved(argv, environment) for argv, environment in asked["resolve"]],
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
