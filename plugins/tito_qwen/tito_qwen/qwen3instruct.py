"""The family `qwen3instruct`: Qwen3-Instruct-2507, which does not think."""

from __future__ import annotations

from tito_core import Family, Thinking, hookimpl
from tito_qwen.chatml import QWEN3, chatml, with_fp8


@hookimpl
def tito_family() -> Family:
    return chatml(
        "qwen3instruct",
        models=with_fp8("Qwen3-4B-Instruct-2507", "Qwen3-30B-A3B-Instruct-2507", "Qwen3-235B-A22B-Instruct-2507"),
        model_types=("qwen3", "qwen3_moe"),
        vocabulary=QWEN3,
        calls="hermes",
        thinking=Thinking(aliases=("enable_thinking",), forward_as="enable_thinking", default=False, modes=(False,)),
        chat_template_sha256={
            "64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326": "Qwen3-Instruct-2507",
        },
    )
