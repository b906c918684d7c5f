"""Servers of an engine on the CPU, which never outlive the tests.

Loopback only. A server runs in a process group of its own, which is ended as a whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx

from environment import SGLANG, Environment, LiveError, tail
from oracles import chat_template, tokenizer_json
from token_path import Name

READY_WITHIN = 600.0  # seconds; an idle machine takes 25 to 70, one that does much else minutes
COMMON = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "clean_up_tokenization_spaces": False}
DEEPSEEK = {**COMMON, "bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
QWEN_ENDS = [151645, 151643]  # <|im_end|>, <|endoftext|>
# Its input ends when the tests do, however they end; then nothing of the group is left. Told to end, it tells the server.
GUARD = (
    'exec 3<&0; "$@" </dev/null & server=$!; trap "kill $server" TERM; { cat <&3 >/dev/null; kill -KILL 0; } & '
    "wait $server; wait $server"
)


def tokenizer_config(vocabulary: Name) -> dict[str, Any]:
    """Qwen's holds the published template, as its checkpoints do; DeepSeek's V3.2 has none."""
    if vocabulary != "qwen3":
        return DEEPSEEK
    return {**COMMON, "eos_token": "<|im_end|>", "chat_template": chat_template("qwen3")}


def make_model(environment: Environment, vocabulary: Name, directory: Path) -> Path:
    """A checkpoint directory with the vocabulary's tokenizer and random weights, made once."""
    if not (directory / "config.json").is_file():
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(tokenizer_json(vocabulary), directory / "tokenizer.json")
        (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(vocabulary), ensure_ascii=False))
        environment.run(SGLANG.scripts / "make_model.py", directory)
        if vocabulary == "qwen3":
            (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": QWEN_ENDS}))
    return directory


@dataclass
class EngineServer:
    """One server: started, stopped, killed and started again on the same port. `client` speaks to it."""

    environment: ClassVar[Environment]
    command: ClassVar[tuple[str, ...]]
    """What the environment's Python is given, ending with the option that names the model; `--port` and `flags` follow."""
    headers: ClassVar[dict[str, str]] = {}
    tidies: ClassVar[float] = 0
    """Seconds that it is given to remove what it shares with its own processes outside of them."""

    vocabulary: Name
    model: Path
    flags: tuple[str, ...]
    log: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.port = self.port or _free_port()
        self.client = httpx.Client(base_url=self.url, headers=self.headers, timeout=600, trust_env=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Answers when the server is ready. Raises LiveError, with the log's end, where it dies or takes too long."""
        command = (str(self.environment.python()), *self.command, str(self.model), "--port", str(self.port))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", GUARD, "guard", *command, *self.flags],
                env=self.environment.surroundings(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise

    def _wait(self) -> None:
        engine, until = self.environment.engine, time.monotonic() + READY_WITHIN
        while time.monotonic() < until:
            if not self.alive:
                raise LiveError(f"{engine} died while it started; the end of {self.log}:\n{tail(self.log, 40)}")
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/health", timeout=5).status_code == 200:
                    return
            time.sleep(0.3)
        raise LiveError(f"{engine} was not ready in {READY_WITHIN:.0f} s; the end of {self.log}:\n{tail(self.log, 40)}")

    def kill(self) -> None:
        """Ends the whole group at once, as a machine that fails does."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process = None

    def close(self) -> None:
        if self.process is not None and self.tidies:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(self.tidies)
        self.kill()
        self.client.close()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer's JSON. Fails where the status is not 200."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, f"{path} answered {answer.status_code}: {answer.text}"
        return answer.json()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
