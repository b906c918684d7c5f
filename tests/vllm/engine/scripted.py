"""Makes a server sample ids of our choosing: `--logits-processors scripted:Script`, and `vllm_xargs={"script": [...]}` in a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class Script(AdapterLogitsProcessor):
    """The next token is the script's at the number of ids sampled so far; past its end, its last one."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[[Sequence[int], Any], Any] | None:
        if not (script := (params.extra_args or {}).get("script")):
            return None

        def say(sampled: Sequence[int], logits: Any) -> Any:
            logits[:] = float("-inf")
            logits[script[min(len(sampled), len(script) - 1)]] = 0.0
            return logits

        return say
