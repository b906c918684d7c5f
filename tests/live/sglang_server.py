"""Servers of SGLang 0.5.23 on the CPU, which never outlive the tests.

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
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from environment import ENGINE, LiveError, python, run, surroundings, tail
from oracles import tokenizer_json
from token_path import Name

READY_WITHIN = 240.0  # seconds; an idle machine takes 25 to 70
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<｜begin▁of▁sentence｜>",
    "eos_token": "<｜end▁of▁sentence｜>",
    "add_bos_token": False,
    "clean_up_tokenization_spaces": False,
}
# Its input ends when the tests do, however they end; then nothing of the group is left.
GUARD = 'exec 3<&0; "$@" </dev/null & server=$!; { cat <&3 >/dev/null; kill -KILL 0; } & wait $server'
QUEUED = 40
FLAGS = (
    *("--max-queued-requests", str(QUEUED)),
    *("--host", "127.0.0.1", "--served-model-name", "tiny", "--device", "cpu", "--attention-backend", "torch_native"),
    *("--mem-fraction-static", "0.3", "--max-total-tokens", "16384", "--context-length", "8192"),
    *("--disable-overlap-schedule", "--skip-server-warmup", "--enable-custom-logit-processor"),
)


@cache
def processor() -> str:
    """The scripted processor, as a request carries it."""
    return run(ENGINE / "scripted.py").splitlines()[-1]


def make_model(vocabulary: Name, directory: Path) -> Path:
    """A checkpoint directory with the vocabulary's tokenizer and random weights, made once."""
    if not (directory / "config.json").is_file():
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(tokenizer_json(vocabulary), directory / "tokenizer.json")
        (directory / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, ensure_ascii=False))
        run(ENGINE / "make_model.py", directory)
    return directory


@dataclass
class Server:
    """One server: started, stopped, killed and started again on the same port. `client` speaks to it."""

    vocabulary: Name
    model: Path
    flags: tuple[str, ...]
    log: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.port = self.port or _free_port()
        self.client = httpx.Client(base_url=self.url, timeout=600, trust_env=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Answers when the server is ready. Raises LiveError, with the log's end, where it dies or takes too long."""
        command = [
            str(python()),
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(self.model),
            "--port",
            str(self.port),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", GUARD, "guard", *command, *FLAGS, *self.flags],
                env=surroundings(),
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
        until = time.monotonic() + READY_WITHIN
        while time.monotonic() < until:
            if not self.alive:
                raise LiveError(f"SGLang died while it started; the end of {self.log}:\n{tail(self.log, 40)}")
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/health", timeout=5).status_code == 200:
                    return
            time.sleep(0.3)
        raise LiveError(f"SGLang was not ready in {READY_WITHIN:.0f} s; the end of {self.log}:\n{tail(self.log, 40)}")

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
        self.kill()
        self.client.close()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer's JSON. Fails where the status is not 200."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, f"{path} answered {answer.status_code}: {answer.text}"
        return answer.json()

    def chat(self, **body: Any) -> Any:
        """The one choice of a chat completion, with ids and log-probs asked for."""
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "logprobs": True}
        asked |= {"return_meta_info": True, "return_prompt_token_ids": True, "return_token_ids": True}
        (choice,) = self.post("/v1/chat/completions", {**asked, **body})["choices"]
        return choice

    def generate(self, ids: list[int], script: list[int] | None = None, **sampling: Any) -> Any:
        body: dict[str, Any] = {"input_ids": ids, "return_logprob": True, "return_prompt_token_ids": True}
        sampling = {"max_new_tokens": 8, **sampling}
        if script is not None:
            body["custom_logit_processor"] = processor()
            sampling |= {"custom_params": {"script": script}, "temperature": 0}
        return self.post("/generate", {**body, "sampling_params": sampling})


def scripted(ids: list[int]) -> dict[str, Any]:
    """What a chat request carries so that these ids are sampled."""
    return {"custom_logit_processor": processor(), "custom_params": {"script": ids}, "temperature": 0}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
