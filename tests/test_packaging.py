"""What a user installs: the wheels' contents, and the command in environments that hold nothing else."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import pythons

pytestmark = [pytest.mark.slow, pytest.mark.installs]

ROOT = pythons.ROOT
PLUGINS = {path.name: path for path in sorted((ROOT / "plugins").iterdir()) if (path / "pyproject.toml").is_file()}
Tito = Callable[..., "subprocess.CompletedProcess[str]"]


def run(command: list[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    """As a user's shell would: no source tree on the path, no terminal."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COVERAGE", "PYTEST"))}
    return subprocess.run(
        command, cwd=cwd, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def done(command: list[str | Path], cwd: Path) -> str:
    finished = run(command, cwd)
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every wheel, each from its own sdist, from copies: a stale `build/` beside the source would enter a wheel."""
    home = tmp_path_factory.mktemp("wheels")
    leavings = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", ".*", "plugins", "tests")
    for name, source in (("core", ROOT), *PLUGINS.items()):
        shutil.copytree(source, home / name, ignore=leavings)
        done([sys.executable, "-m", "build", "--outdir", home / "dist", home / name], home)
    return {path.name.split("-")[0]: path for path in (home / "dist").glob("*.whl")}


def contents(wheel: Path) -> tuple[set[str], set[str]]:
    """Files of the package, and of the metadata less the directory's name."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    inside = {name for name in names if ".dist-info/" not in name}
    return inside, {name.partition(".dist-info/")[2] for name in names} - {""}


def metadata(wheel: Path, file: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(f".dist-info/{file}"))).decode()


def tree(package: Path) -> set[str]:
    paths = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(package.parent)) for path in paths}


def test_the_core_wheel_holds_the_core_and_nothing_else(wheels: dict[str, Path]) -> None:
    package, about = contents(wheels["tito_core"])
    assert package == tree(ROOT / "tito_core")
    assert "tito_core/py.typed" in package
    assert {"METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"} <= about
    assert metadata(wheels["tito_core"], "entry_points.txt").split() == [
        *("[console_scripts]", "tito", "=", "tito_core.cli.main:main")
    ]


ENTRY_POINTS = {
    "tito_deepseek": {"deepseekv32": "v32"},
    "tito_qwen": {
        name: name for name in ("qwen3", "qwen3instruct", "qwennext", "qwen3coder", "qwen35", "qwen36", "qwen38")
    },
}


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_plugin_wheel_holds_the_plugin_with_its_vocabularies(plugin: str, wheels: dict[str, Path]) -> None:
    package, about = contents(wheels[plugin])
    assert package == tree(PLUGINS[plugin] / plugin)
    assert {f"{plugin}/py.typed", f"{plugin}/vocabularies/PROVENANCE"} <= package
    assert len([name for name in package if name.startswith(f"{plugin}/vocabularies/")]) > 1
    assert {"METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"} <= about
    assert f"licenses/{plugin}/vocabularies/PROVENANCE" in about
    declared = [f"{name} = {plugin}.{module}" for name, module in ENTRY_POINTS[plugin].items()]
    title, *found = metadata(wheels[plugin], "entry_points.txt").strip().splitlines()
    assert (title, sorted(found)) == ("[tito.families]", sorted(declared))
    requires = Parser().parsestr(metadata(wheels[plugin], "METADATA")).get_all("Requires-Dist")
    assert requires == ["tito-core<0.2,>=0.1"]


@pytest.mark.parametrize(
    "package", [ROOT / "tito_core", *(path / name for name, path in PLUGINS.items())], ids=lambda path: path.name
)
def test_what_is_imported_is_declared(package: Path) -> None:
    """That another dependency happens to bring it is no promise; `samples` is imported by the functions that need it."""
    project = tomllib.loads((package.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project.get("optional-dependencies", {}).get("samples", ())]
    declared = {re.split(r"[<>=!~ ;\[]", line)[0] for line in lines} | {project["name"]}
    imported: dict[str, str] = {}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0]: str(path) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported[node.module.partition(".")[0]] = str(path)
    homes = packages_distributions()
    foreign = {name: at for name, at in imported.items() if name not in {*sys.stdlib_module_names, package.name}}
    assert {name: at for name, at in foreign.items() if not declared & set(map(str.lower, homes.get(name, ())))} == {}


def installed(home: Path, *wheels: Path) -> Tito:
    """An empty environment with these wheels and what pip resolves for them; answers its `tito`."""
    done([sys.executable, "-m", "venv", home / "venv"], home)
    python = home / "venv" / "bin" / "python"
    done([python, "-m", "pip", "install", "--quiet", *wheels], home)
    done([python, "-m", "pip", "check"], home)
    where = done([python, "-c", "import tito_core; print(tito_core.__file__)"], home).strip()
    assert where.startswith(str(home))
    return lambda *arguments: run([home / "venv" / "bin" / "tito", *arguments], home)


@pytest.fixture(scope="module")
def core_alone(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Tito:
    return installed(tmp_path_factory.mktemp("core"), wheels["tito_core"])


@pytest.fixture(scope="module")
def core_and_plugins(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Tito:
    return installed(tmp_path_factory.mktemp("all"), *wheels.values())


def test_the_core_alone_explains_itself(core_alone: Tito) -> None:
    finished = core_alone("--help")
    assert finished.returncode == 0, finished.stderr
    assert {"families", "show", "verify"} <= set(finished.stdout.split())


def test_the_core_alone_says_that_no_family_is_installed_and_how_to_install_one(core_alone: Tito) -> None:
    finished = core_alone("families")
    assert finished.returncode == 0, finished.stderr
    said = finished.stdout + finished.stderr
    assert re.search(r"\bno (family|families|plugin)", said, re.IGNORECASE), said
    assert "pip install" in said


def test_the_core_alone_can_verify_nothing_and_says_so(core_alone: Tito) -> None:
    finished = core_alone("verify", "--family", "deepseekv32")
    assert finished.returncode == 3, finished.stdout + finished.stderr
    assert "deepseekv32" in finished.stderr
    assert "Traceback" not in finished.stdout + finished.stderr


def test_core_and_plugins_list_the_families(core_and_plugins: Tito) -> None:
    finished = core_and_plugins("families")
    assert finished.returncode == 0, finished.stderr
    for plugin, families in ENTRY_POINTS.items():
        for family in families:
            line = rf"^{family} .*\b{plugin.replace('_', '-')}\b.*\b0\.1\.0\b"
            assert re.search(line, finished.stdout, re.MULTILINE), finished.stdout
    shown = core_and_plugins("show", "deepseekv32")
    assert shown.returncode == 0, shown.stderr
    assert "deepseek-ai/DeepSeek-V3.2" in shown.stdout


@pytest.mark.parametrize("family", [name for families in ENTRY_POINTS.values() for name in families])
def test_core_and_plugins_do_the_main_job(family: str, core_and_plugins: Tito) -> None:
    finished = core_and_plugins("verify", "--family", family, "--conversations", "60", "--sessions", "4")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "FAIL" not in finished.stdout
