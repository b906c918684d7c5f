"""Emptied source turns the suite red: a copy of the tree, with the bodies of one file taken out, under its own tests."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


class Emptied(ast.NodeTransformer):
    """Function bodies replaced by a trivial statement, by qualified name; the file still imports."""

    def __init__(self, bodies: dict[str, str]) -> None:
        self.bodies = dict(bodies)
        self._inside: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._inside.append(node.name)
        self.generic_visit(node)
        self._inside.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        body = self.bodies.pop(".".join((*self._inside, node.name)), None)
        if body is not None:
            node.body = ast.parse(body).body
        return node


def copy(target: Path, file: str, bodies: dict[str, str]) -> None:
    for name in ("tito_core", "plugins", "tests", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
        else:
            shutil.copy(source, target / name)
    path = target / file
    transformer = Emptied(bodies)
    path.write_text(ast.unparse(transformer.visit(ast.parse(path.read_text(encoding="utf-8")))), encoding="utf-8")
    assert not transformer.bodies, f"{file} has no {list(transformer.bodies)}"


def run(tree: Path, *tests: str) -> tuple[int, int]:
    """How many tests passed and failed in the copy. The copy's own packages are imported, not the installed ones."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    paths = [str(tree), *map(str, (tree / "plugins").iterdir())]
    environment["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", *tests],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert " error" not in done.stdout.splitlines()[-1], done.stdout
    passed, failed = (re.search(rf"(\d+) {word}", done.stdout) for word in ("passed", "failed"))
    return int(passed[1]) if passed else 0, int(failed[1]) if failed else 0


APPEND = {
    "Append.ids": "return self.parent",
    "Append.spans": "return ()",
    "Joiner.first": "return Append(rendered and self._glue, 0, 0, self._glue, self._glue, None, -1)",
    "Joiner.join": "return Append(turn.ids, len(turn.ids), 0, turn.ids[:0], turn.ids[:0], None, turn.length - 1)",
    "Joiner.finished": "return ids",
}
COMPARE = {"Comparator.compare": "return []", "Comparator.assistant_runs": "return []"}
ENCODING = {"V32Encoding.render": "return Parts().rendered()"}
GATE = {"check_prompt": "return None", "check_append": "return None"}
QUICK = "not published and not engine_mode"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "bodies", "tests"),
    [
        ("tito_core/tokens/append.py", APPEND, ["tests/test_append.py", "-k", QUICK]),
        ("tito_core/tokens/compare.py", COMPARE, ["tests/test_compare.py"]),
        ("tito_core/prompts/gate.py", GATE, ["plugins/tito_deepseek/tests/test_v32_family.py", "-k", "refused"]),
        ("plugins/tito_deepseek/tito_deepseek/v32_encoding.py", ENCODING, ["tests/test_append.py", "-k", QUICK]),
    ],
    ids=["append", "compare", "gate", "encoder"],
)
def test_emptied_source_turns_its_tests_red(
    file: str, bodies: dict[str, str], tests: list[str], tmp_path: Path
) -> None:
    copy(tmp_path, file, bodies)
    passed, failed = run(tmp_path, *tests)
    assert failed > passed, f"{file} emptied: {passed} of its tests still pass, {failed} fail"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "bodies"),
    [
        ("tito_core/tokens/append.py", APPEND),
        ("tito_core/tokens/compare.py", COMPARE),
        ("tito_core/prompts/gate.py", GATE),
        ("plugins/tito_deepseek/tito_deepseek/v32_encoding.py", ENCODING),
    ],
    ids=["append", "compare", "gate", "encoder"],
)
def test_emptied_source_breaks_verify(file: str, bodies: dict[str, str], tmp_path: Path) -> None:
    copy(tmp_path, file, bodies)
    code = (
        "from tito_core.verify import run; import tito_core, sys; run.SHRINK_SECONDS = 0.1\n"
        "assert tito_core.__file__.startswith(sys.argv[1]), tito_core.__file__\n"
        "report = run.verify('deepseekv32', vocabulary='r1', conversations=10, sessions=2)\n"
        "print(report.exit_code, *sorted({failure.check for failure in report.failures}))"
    )
    paths = [str(tmp_path), *map(str, (tmp_path / "plugins").iterdir()), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("1 "), done.stdout + done.stderr
