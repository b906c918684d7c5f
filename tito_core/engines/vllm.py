"""vLLM: completions of prompts that are ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tito_core.engines.http import NOTHING, HTTPEngine, choice_of, int_ids, mapping
from tito_core.responses.completion import Completion
from tito_core.sessions.turn import Request
from tito_core.tokens.append import Ids

__all__ = ["VLLMEngine"]

_HOW = {
    "ids": "it needs a vLLM that knows return_token_ids, 0.10.2 or later",
    "logprobs": "it must be a vLLM that returns log-probs of sampled ids: see its --max-logprobs",
    "prompt": "it needs a vLLM that knows return_token_ids, 0.10.2 or later",
}


class VLLMEngine(HTTPEngine):
    """vLLM 0.10.2 and later. Its completions are parsed by nobody there: our own parser makes the message.

    The thinking kwargs go with every call, though a prompt of ids is not rendered again. `fields={"model": ...}` names
    the served model where the release asks for one.
    """

    kind: ClassVar[str] = "vllm"

    def complete(self, request: Request, *, max_tokens: int, sampling: Mapping[str, Any] = NOTHING) -> Completion:
        ours = {
            "prompt": request.ids,
            "max_tokens": max_tokens,
            "logprobs": 1,
            "return_token_ids": True,
            "skip_special_tokens": False,
            **request.engine_kwargs,
        }
        answer = self.post("/v1/completions", self.merged(ours, self._fields, {**self._sampling, **sampling}), request)
        choice = choice_of(self, answer)
        usage, said = mapping(answer.get("usage")), mapping(choice.get("logprobs"))
        return self.completion(
            request,
            ids=int_ids(choice.get("token_ids")),
            logprobs=said.get("token_logprobs"),
            prompt=int_ids(choice.get("prompt_token_ids")),
            finish=choice.get("finish_reason"),
            matched=choice.get("stop_reason"),
            meta={
                "prompt_tokens": usage.get("prompt_tokens"),
                "completion_tokens": usage.get("completion_tokens"),
                "cached_tokens": mapping(usage.get("prompt_tokens_details")).get("cached_tokens"),
                "finish_reason": choice.get("finish_reason"),
            },
            how=_HOW,
        )

    def rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] = NOTHING,
    ) -> Ids:
        ours: dict[str, Any] = {
            "messages": messages,
            **({"tools": tools} if tools else {}),
            "chat_template_kwargs": dict(chat_template_kwargs),
            "max_tokens": 1,
            "return_token_ids": True,
        }
        answer = self.post("/v1/chat/completions", self.merged(ours, self._fields))
        ids = int_ids(answer.get("prompt_token_ids"))
        if not ids:
            raise self.error("answer", "returned no prompt ids; it needs a vLLM that knows return_token_ids in chat")
        return np.array(ids, dtype=np.int32)
