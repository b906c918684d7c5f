"""What vLLM makes of command lines, without starting it. Run by the environment's Python.

    python arguments.py FILE        FILE holds {"model": directory, "parse": [words after `vllm serve`, ...], "configure":
    [words, ...]}

Prints one line of JSON. `parse`: what the parser of `vllm serve` reads that is not as without any argument, and whether
`AsyncEngineArgs.from_cli_args` takes it, or its error. `configure`: what `create_engine_config` raises, which a launch makes
before it starts its workers. `options`, `flags` and `lists`, those of one word of JSON,
are the parser's own.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())


def parsed(words: list[str], model: str) -> dict[str, Any]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            made, plain = parser.parse_args(words), vars(parser.parse_args([]))
    except SystemExit:
        return {"error": said.getvalue().splitlines()[-1]}
    validate_parsed_serve_args(made)
    AsyncEngineArgs.from_cli_args(argparse.Namespace(**{**vars(made), "model": model}))  # which must be there
    return {name: value for name, value in vars(made).items() if value != plain[name]}


def configured(words: list[str]) -> str | None:
    made = parser.parse_args(words)
    made.model = made.model_tag
    try:
        AsyncEngineArgs.from_cli_args(made).create_engine_config()
    except Exception as cause:
        return f"{type(cause).__name__}: {cause}"
    return None


def main(file: Path) -> None:
    asked = json.loads(file.read_text())
    found = {
        "options": [(action.dest, action.option_strings) for action in parser._actions],
        "lists": [
            action.option_strings
            for action in parser._actions
            if action.type is json.loads and isinstance(action.default, list)
        ],
        "flags": [action.option_strings for action in parser._actions if isinstance(action, argparse._StoreTrueAction)],
        "switches": [
            action.option_strings for action in parser._actions if isinstance(action, argparse.BooleanOptionalAction)
        ],
        "parse": [parsed(words, asked["model"]) for words in asked["parse"]],
        "configure": [configured(words) for words in asked["configure"]],
    }
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
