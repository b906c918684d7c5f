"""An engine as a child process: started, watched until it is healthy, and ended with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Self

from tito_core.errors import EngineError
from tito_core.recipes import guard

__all__ = ["HOST", "Child", "free_port"]

HOST: Final = "127.0.0.1"
_LINES: Final = 400
_LINE: Final = 4096
_POLL: Final = 0.2


class Child:
    """A command without a shell, in a session and a process group of its own; use it in a `with`.

    `environment` stands over this process's own. After the `with` nothing of the group is left: the command is told to end
    (SIGTERM), and the group is killed when it has, after `grace` seconds, or where an interrupt comes meanwhile. When this
    process is killed, its guard does so: it leads the group, and sees its own input end. What left the group, for a
    session of its own, is not reached.

    What the command prints is in `log`, which begins anew after each `most` bytes; the last lines are kept.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        grace: float = 30.0,
        most: int = 256 << 20,
    ) -> None:
        self.name = name
        self._command, self._environment, self._grace, self._most = tuple(command), dict(environment), grace, most
        self._lines: deque[bytes] = deque(maxlen=_LINES)
        self._last = self._told = b""
        self._gone = False

    def __enter__(self) -> Self:
        file, log = tempfile.mkstemp(prefix=f"tito-{self.name}-", suffix=".log")
        self._file, self.log = os.fdopen(file, "wb", buffering=0), Path(log)
        self._began = time.monotonic()
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(self._grace), *self._command],
            env={**os.environ, **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        pipes = self._guard.stdin, self._guard.stdout, self._guard.stderr
        self._hold, self._status, said = (pipe for pipe in pipes if pipe is not None)
        os.set_blocking(self._status.fileno(), False)
        self._reader = threading.Thread(target=self._keep, args=[said], name=self.name, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Its group, which the guard leads."""
        return self._guard.pid

    @property
    def code(self) -> int | None:
        """The exit code that the command ended with, negative the signal; None while it runs."""
        self._listen()
        return int(self._told) if self._told else -signal.SIGKILL if self._gone else None

    def tail(self, lines: int = _LINES) -> list[str]:
        """The last lines that were printed, of at most 4096 bytes each; of a line that was printed over, its last state."""
        kept = [*self._lines, *([self._last] if self._last else [])][-lines:]
        return [line.decode(errors="replace").rstrip().rpartition("\r")[2] for line in kept]

    def ready(self, url: str, within: float, progress: Callable[[float], None] = lambda _: None) -> None:
        """Waits until `url` answers 200, at most `within` seconds. `progress` is told the seconds it has taken.

        Raises EngineError: of the kind `unreached` where the command ended before, `timeout` where it took too long.
        """
        import httpx

        answer, began = "no answer", time.monotonic()
        with httpx.Client(timeout=5, trust_env=False) as client:
            while (taken := time.monotonic() - began) < within:
                if self.code is not None:
                    raise self.ended("before it was ready")
                progress(taken)
                try:
                    with client.stream("GET", url) as response:
                        if response.status_code == 200:
                            return
                        answer = f"HTTP {response.status_code}"
                except httpx.TransportError as cause:
                    answer = type(cause).__name__
                time.sleep(_POLL)
        raise EngineError(
            f"{self.name} was not ready within {within:g} s ({url}: {answer}); see its last lines, and {self.log}, or allow "
            "it more time",
            kind="timeout",
        )

    def ended(self, when: str) -> EngineError:
        """The error that says how the command ended; nothing of its group is left then."""
        after = time.monotonic() - self._began
        self.stop()
        code = self.code or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return EngineError(
            f"{self.name} ended {when} ({how}, after {after:.0f} s); its last lines, or {self.log}, say why",
            kind="unreached",
        )

    def stop(self) -> None:
        """Ends the group, and returns when nothing of it is left. Harmless a second time."""
        if self._guard.returncode is not None:
            return
        try:
            self._hold.close()
            _until(self._listen, self._grace + 5)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._guard.wait()
            self._listen()
            _until(self._empty, 10)
            self._reader.join(10)
            self._status.close()
            self._file.close()

    def _listen(self) -> bool:
        """Hears what the guard told, and whether it is gone."""
        while not self._gone and (data := self._status.read(64)) is not None:
            self._told += data
            self._gone = not data
        return self._gone

    def _empty(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def _keep(self, said: IO[bytes]) -> None:
        written = 0
        with said:
            while chunk := said.read(1 << 16):
                *lines, last = (self._last + chunk).split(b"\n")
                self._lines.extend(line[-_LINE:] for line in lines)
                self._last = last[-_LINE:]
                with contextlib.suppress(
                    OSError, ValueError
                ):  # a full disk, or a log that is closed: never a blocked engine
                    if (written := written + len(chunk)) > self._most:
                        self._file.seek(0)
                        self._file.truncate()
                        written = len(chunk)
                    self._file.write(chunk)


def free_port(wanted: int | None = None) -> int:
    """A port of the loopback interface that nobody has: `wanted`, or one that is chosen. Raises EngineError."""
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((HOST, wanted or 0))
        except OSError as cause:
            raise EngineError(
                f"port {wanted} of {HOST} can't be had ({cause.strerror}); name another, or none, and a free one is chosen",
                kind="usage",
            ) from None
        return int(found.getsockname()[1])


def _until(done: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(_POLL / 4)
