"""The house's order: a room imports only from rooms before it, the core knows no family, and first contact is light."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parent.parent / "tito_core"
FACADE = "__init__"
# The facade, tito_core/__init__.py, hands out names of every room but cli.
ORDER = (
    *("errors", "families", "prompts", "tokens", "responses", "sessions", "engines", "recipes", "verify"),
    *(FACADE, "cli", "__main__"),
)
# A fact of the distribution, not of a room: a plugin's requirement is held against it.
VERSION = "tito_core.__version__"
# file: the functions that may import later rooms, inside and for their own annotations.
EXCEPTIONS = {
    "families/registry.py": {"load", "Registry.load"},
    "families/diagnosis.py": {"_use"},
    "tokens/codec.py": {"Codec.session"},
}


def misplaced(core: Path) -> list[str]:
    """Every import of `core` that goes against the order, and every file that stands in no room."""
    found = []
    for path in sorted(core.rglob("*.py")):
        file = path.relative_to(core)
        room = file.parts[0] if len(file.parts) > 1 else file.stem
        if room not in ORDER:
            found.append(f"{file}: {room} is not a room")
            continue
        for line, users, target in imports(ast.parse(path.read_text(encoding="utf-8")), file):
            there = target_room(target)
            if there is None or target == VERSION or users <= EXCEPTIONS.get(file.as_posix(), set()):
                continue
            if ORDER.index(there) > ORDER.index(room):
                found.append(f"{file}:{line}: {room} imports {target}")
    return found


def target_room(target: str) -> str | None:
    parts = target.split(".")
    if parts[0] != "tito_core":
        return None
    return next((part for part in parts[1:2] if part in ORDER), FACADE)


def imports(tree: ast.Module, file: Path) -> Iterator[tuple[int, set[str], str]]:
    """Line, functions and dotted target of every import, wherever it stands.

    The function is the one around it (`load`, `Codec.session`, "" for none); for an import under TYPE_CHECKING they
    are those that use its names.
    """
    package = ("tito_core", *file.parts[:-1])
    functions = {node: {function} for node, function in scopes(tree)}
    users: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            users.setdefault(node.id, set()).update(functions[node])
    for block in tree.body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                if isinstance(node, ast.ImportFrom):
                    names = [alias.asname or alias.name for alias in node.names]
                    functions[node] = set[str]().union(*(users.get(name, {""}) for name in names))
    for node, function in functions.items():
        if isinstance(node, ast.Import):
            yield from ((node.lineno, function, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).rstrip(".")
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "tito_core" else [module]
            yield from ((node.lineno, function, name) for name in names)
        elif isinstance(node, ast.Call) and re.search(r"\b(import_module|__import__)$", ast.unparse(node.func)):
            texts = (ast.literal_eval(word) for word in node.args if isinstance(word, ast.Constant))
            yield from ((node.lineno, function, text) for text in texts if isinstance(text, str))


def scopes(node: ast.AST, scope: str = "", function: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Every node with the outermost function around it, signature included, as `name` or `Class.name`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = f"{scope}.{node.name}".lstrip(".")
        if not function and not isinstance(node, ast.ClassDef):
            function = scope
    yield node, function
    for child in ast.iter_child_nodes(node):
        yield from scopes(child, scope, function)


def test_every_room_imports_only_from_rooms_before_it() -> None:
    assert misplaced(CORE) == []


@pytest.mark.parametrize(
    ("file", "source", "found"),
    [
        ("prompts/a.py", "from tito_core.errors import TitoError", []),
        ("prompts/a.py", "import json, tito_core.families.family", []),
        ("prompts/a.py", "from . import messages", []),
        ("prompts/a.py", "from tito_core.tokens import codec", ["prompts/a.py:1: prompts imports tito_core.tokens"]),
        ("prompts/a.py", "import tito_core.cli.main", ["prompts/a.py:1: prompts imports tito_core.cli.main"]),
        ("prompts/a.py", "from tito_core import cli", ["prompts/a.py:1: prompts imports tito_core.cli"]),
        ("prompts/a.py", "from tito_core import errors", []),
        ("prompts/a.py", "from tito_core import Codec", ["prompts/a.py:1: prompts imports tito_core.Codec"]),
        ("prompts/a.py", "from tito_core import load", ["prompts/a.py:1: prompts imports tito_core.load"]),
        ("prompts/a.py", "from tito_core import __version__", []),
        ("prompts/a.py", "import tito_core", ["prompts/a.py:1: prompts imports tito_core"]),
        ("prompts/a.py", "from ..verify import x", ["prompts/a.py:1: prompts imports tito_core.verify"]),
        ("prompts/a.py", "from .. import verify", ["prompts/a.py:1: prompts imports tito_core.verify"]),
        ("prompts/a.py", "if TYPE_CHECKING:\n import tito_core.cli", ["prompts/a.py:2: prompts imports tito_core.cli"]),
        ("prompts/a.py", "def f():\n import tito_core.cli", ["prompts/a.py:2: prompts imports tito_core.cli"]),
        ("prompts/a.py", "def load():\n import tito_core.cli", ["prompts/a.py:2: prompts imports tito_core.cli"]),
        ("prompts/a.py", "importlib.import_module('tito_core.cli')", ["prompts/a.py:1: prompts imports tito_core.cli"]),
        ("errors.py", "import tito_core.families", ["errors.py:1: errors imports tito_core.families"]),
        ("families/registry.py", "def load():\n from tito_core.tokens.codec import Codec", []),
        ("families/registry.py", "class Registry:\n def load(self):\n  from tito_core.tokens.codec import Codec", []),
        (
            "families/registry.py",
            "if TYPE_CHECKING:\n from tito_core.tokens import Codec\nclass Registry:\n def load(self) -> Codec: ...",
            [],
        ),
        (
            "families/registry.py",
            "if TYPE_CHECKING:\n from tito_core.tokens import Codec\ndef load() -> Codec: ...\ndef f() -> Codec: ...",
            ["families/registry.py:2: families imports tito_core.tokens"],
        ),
        (
            "families/registry.py",
            "from tito_core.tokens.codec import Codec\ndef load(): ...",
            ["families/registry.py:1: families imports tito_core.tokens.codec"],
        ),
        ("tokens/codec.py", "class Codec:\n def session(self):\n  import tito_core.sessions.session", []),
        (
            "tokens/codec.py",
            "class Codec:\n def append(self):\n  import tito_core.sessions.session",
            ["tokens/codec.py:3: tokens imports tito_core.sessions.session"],
        ),
        ("__init__.py", "import tito_core.verify", []),
        ("__init__.py", "import tito_core.cli", ["__init__.py:1: __init__ imports tito_core.cli"]),
        ("cli/main.py", "from tito_core import load, Codec", []),
        ("cli/main.py", "import tito_core, tito_core.verify.report, tito_core.cli.show", []),
        ("kitchen/a.py", "", ["kitchen/a.py: kitchen is not a room"]),
        ("helpers.py", "", ["helpers.py: helpers is not a room"]),
    ],
)
def test_an_import_against_the_order_is_found(tmp_path: Path, file: str, source: str, found: list[str]) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    assert misplaced(tmp_path) == found


# Names and marks of prompt formats that no generic code has a reason to hold, whichever plugins are installed.
WORDS = (
    *("deepseek", "dsml", "qwen", "llama", "kimi", "minimax", "glm-", "chatglm", "gpt-oss", "harmony", "gemma"),
    *("nemotron", "mistral", "im_start", "im_end", "<think>", "</think>", "[inst]", "|>", "<｜", "｜>", "▁of▁"),
)


def words_of_installed_families() -> set[str]:
    words: set[str] = set()
    for point in entry_points(group="tito.families"):
        family = importlib.import_module(point.module).tito_family()
        control = {token.text for token in family.control_tokens}
        words |= {point.name, point.module.partition(".")[0], *family.models, *family.model_types, *control}
    return words


def known_families(core: Path, words: set[str]) -> list[str]:
    found = []
    for path in sorted(path for path in core.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found += [f"{path.relative_to(core)}:{number}: {word}" for word in words if word.lower() in line.lower()]
    return sorted(found)


def test_the_core_knows_no_family() -> None:
    words = words_of_installed_families()
    assert words, "no family is installed beside the core, so its names can't be looked for; run: make test"
    assert known_families(CORE, words | set(WORDS)) == []


def test_a_family_in_the_core_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nif family.name == 'DeepSeekV32': pass  # <｜User｜>\n")
    found = known_families(tmp_path, {*WORDS, *words_of_installed_families()})
    assert {"a.py:2: deepseek", "a.py:2: deepseekv32", "a.py:2: <｜"} <= set(found)


LOADED = """
import sys
before = set(sys.modules)
{code}
import json
new = {{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)
print("\\n" + json.dumps(sorted(new)))
"""
COMMAND = """
sys.argv = ["tito", *{arguments}]
from tito_core.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def loaded_by(code: str) -> set[str]:
    """The packages outside the standard library that a fresh interpreter loads for `code`."""
    command = [sys.executable, "-c", LOADED.format(code=code)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout.splitlines()[-1]))


def test_importing_the_core_loads_nothing_else() -> None:
    assert loaded_by("import tito_core") == {"tito_core"}


def test_help_loads_click_alone() -> None:
    assert loaded_by(COMMAND.format(arguments=["--help"])) == {"tito_core", "click"}


def test_listing_families_loads_no_plugin() -> None:
    modules = {point.module.partition(".")[0] for point in entry_points(group="tito.families")}
    loaded = loaded_by(COMMAND.format(arguments=["families"]))
    assert modules, "no family is installed beside the core; run: make test"
    assert "tito_core" in loaded
    assert not loaded & (modules | {"transformers", "tokenizers", "tiktoken"})


def test_public_names_say_what_they_are() -> None:
    """Every package of the core tells what it is for."""
    for path in CORE.rglob("__init__.py"):
        assert re.match(r'"""[A-Z]', path.read_text(encoding="utf-8")), path
