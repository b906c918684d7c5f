"""The environment of SGLang 0.5.23 on the CPU build of torch, kept outside the tree.

python tests/live/environment.py        installs it; later runs need no network
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

VERSION = "0.5.23"
COMMAND = "python tests/live/environment.py"
ENGINE = Path(__file__).parent / "engine"
WITHOUT_DEPENDENCIES = (f"sglang=={VERSION}", "deepseek-recipe==0.2.0")


class LiveError(RuntimeError):
    """The environment is missing or can't be installed, or a server did not start."""


def environment_dir() -> Path:
    """Where the environment is kept: `$TITO_LIVE`, or `tito/sglang-0.5.23` in the user's cache."""
    if chosen := os.environ.get("TITO_LIVE"):
        return Path(chosen).expanduser().absolute()
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache_home).expanduser().absolute() / "tito" / f"sglang-{VERSION}"


def python() -> Path:
    """The environment's Python. Raises LiveError where the environment is missing or another one than is asked for."""
    home = environment_dir()
    if not _installed(home):
        raise LiveError(f"SGLang's environment is missing or not up to date ({home}); install it: {COMMAND}")
    return home / "bin" / "python"


def install() -> str:
    """Makes the environment where it isn't there whole; the answer says what was done. Raises LiveError.

    A stamp is written last: what was interrupted is made anew. Of several processes one installs, the others wait.
    """
    home = environment_dir()
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with (home.parent / f".{home.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _installed(home):
                return "cached"
            if home.exists() and not (home / "pyvenv.cfg").is_file() and any(home.iterdir()):
                raise LiveError(f"{home} holds something else than an environment; set TITO_LIVE to another place")
            shutil.rmtree(home, ignore_errors=True)
            started = time.monotonic()
            log = home.parent / f"{home.name}.log"
            pip = (str(home / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input")
            with log.open("w") as said:
                for command in (
                    (sys.executable, "-m", "venv", str(home)),
                    (*pip, "-r", str(ENGINE / "requirements.txt")),
                    (*pip, "--no-deps", *WITHOUT_DEPENDENCIES),
                    (str(home / "bin" / "python"), "-c", "import torch"),
                ):
                    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False)
                    if done.returncode:
                        raise LiveError(f"{' '.join(command)} failed; the end of {log}:\n{tail(log)}")
            (home / ".stamp").write_text(_stamp())
            return f"installed in {time.monotonic() - started:.0f} s"
    except OSError as cause:
        raise LiveError(f"{home} can't be written ({cause}); set TITO_LIVE to another place") from cause


def _installed(home: Path) -> bool:
    stamp = home / ".stamp"
    return stamp.is_file() and stamp.read_text() == _stamp() and (home / "bin" / "python").exists()


@cache
def _stamp() -> str:
    pinned = (ENGINE / "requirements.txt").read_bytes() + " ".join(WITHOUT_DEPENDENCIES).encode()
    return hashlib.sha256(pinned).hexdigest()


def tail(log: Path, lines: int = 15) -> str:
    return "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-lines:])


def surroundings() -> dict[str, str]:
    """What the environment's Python runs under: offline, and without what surrounds the tests' own Python.

    One thread: on cores that others use too, more of them wait for each other (38 tokens a second; with one, 200).
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "PYTEST"))}
    stubs, threads = str(ENGINE / "stubs"), {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**kept, **threads, "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": stubs}


def run(*arguments: str | Path) -> str:
    """What a script of `engine/` prints."""
    done = subprocess.run(
        [python(), *arguments],
        env=surroundings(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LiveError(f"{arguments[0]} failed:\n{done.stderr[-2000:]}")
    return done.stdout.strip()


def main() -> int:
    print(
        f"SGLang {VERSION} in {environment_dir()} (2.5 GB, some minutes where it is not there) ... ", end="", flush=True
    )
    try:
        print(install(), flush=True)
    except LiveError as cause:
        print(f"failed\n  {cause}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
