"""The other Pythons that the distributions claim: finding them, and running the unit tests under each.

    python tests/pythons.py        runs them under every claimed version that this machine has

A claimed version is one of pyproject.toml's classifiers. The unit tests are all that are not marked `slow`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANIFESTS = (ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml")))
PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def claimed(manifest: Path = MANIFESTS[0]) -> list[str]:
    """The versions that a distribution's classifiers name, such as `3.11`."""
    project = tomllib.loads(manifest.read_text(encoding="utf-8"))["project"]
    named = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in project["classifiers"])
    return [match[1] for match in named if match]


def found() -> dict[str, Path]:
    """Every claimed version that this machine has, less the running one, and an interpreter that can make a venv."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    answers: dict[str, Path] = {}
    for version in claimed():
        if version == running:
            continue
        for python in _candidates(version):
            probe = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False)
            if probe.returncode == 0 and probe.stdout.strip() == version:
                answers[version] = python
                break
    return answers


def _candidates(version: str) -> Iterator[Path]:
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}*/bin/python{version}"), reverse=True)


def environment(version: str, python: Path) -> Path:
    """The python of `.venv-VERSION`, with core, plugins and test tools; made anew where a manifest changed."""
    home = ROOT / f".venv-{version}"
    stamp = home / ".manifests"
    digest = hashlib.sha256(b"".join(manifest.read_bytes() for manifest in MANIFESTS)).hexdigest()
    inside = home / "bin" / "python"
    if not stamp.is_file() or stamp.read_text() != digest:
        subprocess.run([python, "-m", "venv", "--clear", home], check=True)
        plugins = [part for manifest in MANIFESTS[1:] for part in ("--editable", str(manifest.parent))]
        install: list[str | Path] = [inside, "-m", "pip", "install", "-q", "--editable", f"{ROOT}[dev]", *plugins]
        subprocess.run(install, check=True, stdin=subprocess.DEVNULL)
        stamp.write_text(digest)
    return inside


def unit_tests(python: Path) -> list[str | Path]:
    """The command that runs the unit tests, with fewer generated examples; the caches of a run are its own."""
    suites = [str(path.relative_to(ROOT)) for path in (ROOT / "tests", *sorted(ROOT.glob("plugins/*/tests")))]
    return [
        python,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not slow",
        "--hypothesis-profile",
        "few",
        "-p",
        "no:cacheprovider",
        *suites,
    ]


def main() -> int:
    pythons = found()
    print(f"claimed: {', '.join(claimed())}; here besides the running one: {', '.join(pythons) or 'none'}", flush=True)
    failed = []
    for version, python in pythons.items():
        print(f"Python {version} ({python})", flush=True)
        if subprocess.run(unit_tests(environment(version, python)), cwd=ROOT, check=False).returncode:
            failed.append(version)
    if failed:
        print(f"the unit tests failed under {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
