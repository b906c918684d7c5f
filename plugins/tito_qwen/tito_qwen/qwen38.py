"""The family `qwen38`: Qwen3.8, which is also told how much to think. Its config names the type of Qwen3.5's models."""

from __future__ import annotations

from tito_core import Effort, Family, hookimpl
from tito_qwen.chatml import JOINED, PRESERVING, QWEN35, THINKING, TRIMS, chatml, with_fp8

EFFORT = Effort(name="reasoning_effort", levels=("xhigh", "medium", "low"), default="xhigh", off=None)


@hookimpl
def tito_family() -> Family:
    return chatml(
        "qwen38",
        models=with_fp8("Qwen3.8-27B"),
        model_types=("qwen3_5", "qwen3_8"),
        vocabulary=QWEN35.model_copy(update={"stands_in_for": "Qwen3.8"}),
        calls="xml",
        thinking=THINKING.model_copy(update={"effort": EFFORT}),
        fixed_kwargs=PRESERVING,
        revisions=JOINED,
        trims=TRIMS,
        chat_template_sha256={
            "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041": "Qwen3.8-27B",
        },
    )
