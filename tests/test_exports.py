"""The public names: importable, documented, and nothing else."""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tito_core


def run(script: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(tito_core.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", tito_core.__all__)
def test_every_name_is_its_home_s_public_one_and_documented(name: str) -> None:
    home = import_module(tito_core._HOME_OF[name])
    value = getattr(tito_core, name)
    assert value is getattr(home, name)
    assert name in home.__all__
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__module__ == home.__name__
        assert value.__doc__ is not None
        # A dataclass without a docstring gets its signature for one.
        assert not value.__doc__.startswith(f"{name}(")
    else:
        assert literal(Path(str(home.__file__)), name)


def literal(path: Path, name: str) -> str:
    """The string that stands under the assignment to a constant."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for statement, below in itertools.pairwise(body):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            assert isinstance(below, ast.Expr), name
            return str(ast.literal_eval(below.value))
    raise AssertionError(f"{path} does not assign {name}")


def test_the_lists_of_names_agree() -> None:
    assert sorted(tito_core.__all__) == sorted(tito_core._HOME_OF) == sorted(set(tito_core.__all__))
    tree = ast.parse(Path(tito_core.__file__).read_text(encoding="utf-8"))
    typed = {
        (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == {(home, name) for name, home in tito_core._HOME_OF.items()}


def test_nothing_else_is_public() -> None:
    shown = run("before = {*globals(), 'before'}\nfrom tito_core import *\nprint(*set(globals()) - before)")
    assert sorted(shown.split()) == sorted(tito_core.__all__)
    assert dir(tito_core) == sorted(tito_core.__all__)
    with pytest.raises(AttributeError, match=r"^module 'tito_core' has no attribute 'Famly'$"):
        tito_core.Famly  # noqa: B018


def test_importing_the_package_imports_nothing_that_takes_time() -> None:
    heavy = {"pydantic", "pluggy", "numpy", "tokenizers", "tiktoken", "transformers", "hypothesis", "rich", "click"}
    loaded = run("import sys; before = set(sys.modules); import tito_core; print(*set(sys.modules) - before)").split()
    assert not heavy & {name.partition(".")[0] for name in loaded}
    assert [name for name in loaded if name.startswith("tito_core.")] == []


def test_a_name_is_loaded_without_what_it_does_not_need() -> None:
    loaded = run("import sys, tito_core; tito_core.Family, tito_core.list_families; print(*sys.modules)").split()
    assert not {"numpy", "tokenizers", "tiktoken", "transformers", "hypothesis"} & set(loaded)
