"""Servers of SGLang 0.5.23, and how they are spoken to."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from engine_server import EngineServer
from environment import SGLANG

QUEUED = 40


@cache
def processor() -> str:
    """The scripted processor, as a request carries it."""
    return SGLANG.run(SGLANG.scripts / "scripted.py").splitlines()[-1]


class Server(EngineServer):
    environment = SGLANG
    command = (
        *("-m", "sglang.launch_server", "--host", "127.0.0.1", "--served-model-name", "tiny", "--device", "cpu"),
        *("--attention-backend", "torch_native", "--max-queued-requests", str(QUEUED)),
        *("--mem-fraction-static", "0.3", "--max-total-tokens", "16384", "--context-length", "8192"),
        *("--disable-overlap-schedule", "--skip-server-warmup", "--enable-custom-logit-processor", "--model-path"),
    )

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


Serve = Callable[..., Server]
"""The fixture `server`: vocabulary, reasoning parser, tool call parser, and further flags."""


def scripted(ids: list[int]) -> dict[str, Any]:
    """What a chat request carries so that these ids are sampled."""
    return {"custom_logit_processor": processor(), "custom_params": {"script": ids}, "temperature": 0}
