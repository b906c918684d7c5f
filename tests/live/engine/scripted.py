"""Makes a server emit ids of our choosing, so that its own parsers, stop handling and bookkeeping run on them.

    python scripted.py        prints the processor as a request carries it; run by the environment's Python

A request names it as `custom_logit_processor` and its ids as `custom_params={"script": [...]}`. The server must run with
`--enable-custom-logit-processor`.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class Script(CustomLogitProcessor):
    """The next token is the script's at the number of ids sampled so far; past its end, its last one."""

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]] | None = None) -> Any:
        for row, params in enumerate(custom_param_list or []):
            script = (params or {}).get("script")
            if not script:
                continue
            request = params.get("__req__")
            sampled = len(request.output_ids) if request is not None else 0
            logits[row, :] = float("-inf")
            logits[row, script[min(sampled, len(script) - 1)]] = 0.0
        return logits


if __name__ == "__main__":
    print(Script().to_str())
