"""The family `qwennext`: Qwen3-Thinking-2507 and Qwen3-Next-Thinking, which always think."""

from __future__ import annotations

from tito_core import Family, Thinking, hookimpl
from tito_qwen.chatml import PRESERVING, QWEN3, chatml, with_fp8


@hookimpl
def tito_family() -> Family:
    return chatml(
        "qwennext",
        models=with_fp8(
            *("Qwen3-4B-Thinking-2507", "Qwen3-30B-A3B-Thinking-2507", "Qwen3-235B-A22B-Thinking-2507"),
            "Qwen3-Next-80B-A3B-Thinking",
        ),
        model_types=("qwen3", "qwen3_moe", "qwen3_next"),
        vocabulary=QWEN3,
        calls="hermes",
        thinking=Thinking(aliases=("enable_thinking",), forward_as="enable_thinking", default=True, modes=(True,)),
        fixed_kwargs=PRESERVING,
        trims=frozenset({"assistant", "reasoning"}),
        chat_template_sha256={
            "3802169b2a02b81e6adb7ab4f64f91ff02db753c8c3a64a01c35192d3a61d8d7": "Qwen3-4B-Thinking-2507",
        },
    )
