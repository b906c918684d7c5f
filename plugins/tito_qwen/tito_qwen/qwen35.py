"""The family `qwen35`: Qwen3.5. Its smaller models do not think where nothing is said."""

from __future__ import annotations

from tito_core import Family, hookimpl
from tito_qwen.chatml import JOINED, PRESERVING, QWEN35, THINKING, TRIMS, chatml, with_fp8

SMALL = "273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80"


@hookimpl
def tito_family() -> Family:
    return chatml(
        "qwen35",
        models=(
            *("Qwen/Qwen3.5-0.8B", "Qwen/Qwen3.5-2B", "Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-9B"),
            *with_fp8("Qwen3.5-27B", "Qwen3.5-35B-A3B", "Qwen3.5-122B-A10B", "Qwen3.5-397B-A17B"),
        ),
        model_types=("qwen3_5", "qwen3_5_moe"),
        vocabulary=QWEN35,
        calls="xml",
        thinking=THINKING.model_copy(update={"defaults": {SMALL: False}}),
        fixed_kwargs=PRESERVING,
        revisions=JOINED,
        trims=TRIMS,
        chat_template_sha256={
            "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715": "Qwen3.5-4B and larger",
            SMALL: "Qwen3.5-2B and smaller",
        },
    )
