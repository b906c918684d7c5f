"""The family `qwen3`: Qwen3, which thinks or does not, as the prompt says."""

from __future__ import annotations

from tito_core import Family, hookimpl
from tito_qwen.chatml import PRESERVING, QWEN3, THINKING, chatml, with_fp8


@hookimpl
def tito_family() -> Family:
    return chatml(
        "qwen3",
        models=with_fp8(
            *("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B"),
            *("Qwen3-30B-A3B", "Qwen3-235B-A22B"),
        ),
        model_types=("qwen3", "qwen3_moe"),
        vocabulary=QWEN3,
        calls="hermes",
        thinking=THINKING,
        fixed_kwargs=PRESERVING,
        trims=frozenset({"assistant", "reasoning"}),
        chat_template_sha256={
            "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8": "Qwen3, as published first",
            "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5": "Qwen3",
        },
        peers={"miles-tito-tokenizers": "qwen3"},
    )
