"""Servers of vLLM 0.32.0, and how they are spoken to."""

from __future__ import annotations

from typing import Any, ClassVar

from engine_server import EngineServer
from environment import VLLM
from tito_core import VLLMEngine

KEY = "secret"


class Server(EngineServer):
    environment = VLLM
    headers: ClassVar[dict[str, str]] = {"authorization": f"Bearer {KEY}"}
    tidies = 30  # shared memory, sockets
    command = (
        *("-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--served-model-name", "tiny"),
        *("--api-key", KEY, "--max-model-len", "8192", "--max-num-seqs", "16", "--block-size", "32", "--enforce-eager"),
        *("--tokenizer-mode", "deepseek_v32", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
        *("--logits-processors", "scripted:Script", "--model"),
    )

    def engine(self, **options: Any) -> VLLMEngine:
        return VLLMEngine(self.url, **{"api_key": KEY, "backoff": 0.05, **options})

    def complete(self, ids: list[int], script: list[int] | None = None, **body: Any) -> Any:
        """The one choice of a completion, with ids and log-probs asked for."""
        asked = {"prompt": ids, "max_tokens": 8, "logprobs": 1, "return_token_ids": True, "skip_special_tokens": False}
        (choice,) = self.post("/v1/completions", {**asked, **(scripted(script) if script else {}), **body})["choices"]
        return choice


def scripted(ids: list[int]) -> dict[str, Any]:
    """What a request carries so that these ids are sampled."""
    return {"vllm_xargs": {"script": ids}}
