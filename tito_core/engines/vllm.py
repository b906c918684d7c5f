"""vLLM: completions of prompts that are ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tito_core.engines.http import NOTHING, HTTPEngine, choice_of, mapping
from tito_core.responses.completion import Completion
from tito_core.sessions.turn import Request
from tito_core.tokens.append import Ids

__all__ = ["VLLMEngine"]


class VLLMEngine(HTTPEngine):
    """vLLM 0.10.2 and later. Its completions are parsed by nobody there: our own parser makes the message.

    The thinking kwargs go with every call, though a prompt of ids is not rendered again. `fields={"model": ...}` names
    the served model where the release asks for one. Its log-probs are the model's own, before the temperature and other
    sampling parameters, unless it is served with `--logprobs-mode processed_logprobs`; it tells what it had cached with
    `--enable-prompt-tokens-details`, and what speculation accepted with `--per-request-spec-decode-metrics summary`.
    """

    kind = "vllm"
    how: ClassVar[Mapping[str, str]] = {
        "ids": "it needs a vLLM that knows return_token_ids, 0.10.2 or later",
        "logprobs": "it must be a vLLM that returns log-probs of sampled ids: see its --max-logprobs",
        "prompt": "it needs a vLLM that knows return_token_ids, 0.10.2 or later",
        "render": "it needs a vLLM that knows return_token_ids in chat",
    }

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
        drafted = mapping(mapping(answer.get("metrics")).get("speculative_decoding"))
        return self.completion(
            request,
            ids=choice.get("token_ids"),
            logprobs=said.get("token_logprobs"),
            prompt=choice.get("prompt_token_ids"),
            finish=choice.get("finish_reason"),
            matched=choice.get("stop_reason"),
            meta={
                "prompt_tokens": usage.get("prompt_tokens"),
                "completion_tokens": usage.get("completion_tokens"),
                "cached_tokens": mapping(usage.get("prompt_tokens_details")).get("cached_tokens"),
                "spec_accept_length": drafted.get("mean_acceptance_length"),
                "finish_reason": choice.get("finish_reason"),
            },
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
            **({"tools": tools, "tool_choice": "none"} if tools else {}),
            "chat_template_kwargs": dict(chat_template_kwargs),
            "return_token_ids": True,
        }
        return self.own_render(ours, lambda answer: answer.get("prompt_token_ids"))
