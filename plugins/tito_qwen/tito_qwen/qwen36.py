"""The family `qwen36`: Qwen3.6."""

from __future__ import annotations

from tito_core import Family, hookimpl
from tito_qwen.chatml import JOINED, PRESERVING, QWEN35, THINKING, TRIMS, chatml, with_fp8


@hookimpl
def tito_family() -> Family:
    return chatml(
        "qwen36",
        models=with_fp8("Qwen3.6-27B", "Qwen3.6-35B-A3B"),
        model_types=("qwen3_5", "qwen3_5_moe"),
        vocabulary=QWEN35,
        calls="xml",
        thinking=THINKING,
        fixed_kwargs=PRESERVING,
        revisions=JOINED,
        trims=TRIMS,
        chat_template_sha256={
            "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259": "Qwen3.6",
        },
    )
