"""SGLang: the chat endpoint, whose parsers make the message, and the endpoint of bare ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from tito_core.engines.http import NOTHING, HTTPEngine, choice_of, conversation, mapping, offered
from tito_core.errors import EngineError
from tito_core.families.family import Parsers
from tito_core.responses.completion import Completion
from tito_core.sessions.turn import Request
from tito_core.tokens.append import Ids

__all__ = ["SGLangEngine"]

_META = ("prompt_tokens", "completion_tokens", "cached_tokens", "spec_accept_length", "weight_version", "finish_reason")


class SGLangEngine(HTTPEngine):
    """SGLang 0.5.23 and later. `endpoint`: `chat`, or `generate`, where our own parser makes the message; on `chat` it does
    where SGLang's parsers find calls that can't be whole.

    The thinking kwargs go to `chat` in every call; `generate` renders and parses nothing, and has no place for them.
    """

    kind = "sglang"
    how: ClassVar[Mapping[str, str]] = {
        "ids": "it needs an SGLang that knows return_meta_info (chat) or return_logprob (/generate)",
        "logprobs": "it must be an SGLang whose speculation returns log-probs, or serve without speculation",
        "prompt": "it needs an SGLang that knows return_token_ids (chat) or return_prompt_token_ids (/generate)",
        "render": "it needs an SGLang that knows return_prompt_token_ids",
    }

    def __init__(self, url: str, *, endpoint: Literal["chat", "generate"] = "chat", **options: Any) -> None:
        super().__init__(url, **options)
        self._chat = endpoint == "chat"

    def complete(self, request: Request, *, max_tokens: int, sampling: Mapping[str, Any] = NOTHING) -> Completion:
        sampling = {**self._sampling, **sampling}
        if self._chat:
            ours: dict[str, Any] = {
                "messages": conversation(request),
                "tools": offered(request.tools),
                **request.engine_kwargs,
                "input_ids": request.ids,
                "max_tokens": max_tokens,
                "logprobs": True,
                "return_meta_info": True,
                "return_token_ids": True,
                "skip_special_tokens": False,
            }
            answer = self.post("/v1/chat/completions", self.merged(ours, self._fields, sampling), request)
            choice = choice_of(self, answer)
            ids, prompt = choice.get("response_token_ids"), choice.get("prompt_token_ids")
            finish, said = choice.get("finish_reason"), choice.get("message")
        else:
            limits = self.merged({"max_new_tokens": max_tokens, "skip_special_tokens": False}, sampling)
            ours = {
                "input_ids": request.ids,
                "sampling_params": limits,
                "return_logprob": True,
                "return_prompt_token_ids": True,
            }
            choice = self.post("/generate", self.merged(ours, self._fields), request)
            ids, prompt = choice.get("output_ids"), choice.get("prompt_token_ids")
            finish, said = None, None
        meta = mapping(choice.get("meta_info"))
        reason = mapping(meta.get("finish_reason"))
        triples: Any = meta.get("output_token_logprobs")
        if not isinstance(triples, list) or not all(isinstance(one, list) and len(one) > 1 for one in triples):
            triples = []
        if isinstance(ids, list) and triples and len(ids) == len(triples) and ids != [one[1] for one in triples]:
            raise self.error(
                "answer", "returned log-probs of other ids than it returned; its release is broken, use another"
            )
        return self.completion(
            request,
            ids=ids,
            logprobs=[one[0] for one in triples],
            prompt=prompt,
            finish=finish or reason.get("type"),
            matched=reason.get("matched"),
            message={key: value for key, value in said.items() if value is not None}
            if isinstance(said, dict)
            else None,
            meta={key: meta.get(key) for key in _META},
        )

    def rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] = NOTHING,
    ) -> Ids:
        ours = {
            "messages": messages,
            "tools": tools,
            "chat_template_kwargs": dict(chat_template_kwargs),
            "return_prompt_token_ids": True,
        }
        return self.own_render(ours, lambda answer: choice_of(self, answer).get("prompt_token_ids"))

    def parsers(self) -> Parsers | None:
        if not self._chat:
            return None
        try:
            told = self.get("/server_info")
        except EngineError as cause:
            if cause.where["kind"] in ("usage", "fault", "answer"):
                return None
            raise
        names = [told.get(key, 0) for key in ("reasoning_parser", "tool_call_parser")]
        if not all(isinstance(name, str | None) for name in names):
            return None
        return Parsers(reasoning=names[0], tool_call=names[1])
