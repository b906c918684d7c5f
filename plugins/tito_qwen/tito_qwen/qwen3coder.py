"""The family `qwen3coder`: Qwen3-Coder, which does not think, and calls in XML.

Qwen3-Coder-Next has another template, and is no model of this family.
"""

from __future__ import annotations

from tito_core import Family, Thinking, hookimpl
from tito_qwen.chatml import QWEN3, chatml, with_fp8


@hookimpl
def tito_family() -> Family:
    return chatml(
        "qwen3coder",
        models=with_fp8("Qwen3-Coder-30B-A3B-Instruct", "Qwen3-Coder-480B-A35B-Instruct"),
        model_types=("qwen3_moe",),
        vocabulary=QWEN3,
        calls="xml",
        thinking=Thinking(aliases=("enable_thinking",), forward_as="enable_thinking", default=False, modes=(False,)),
        trims=frozenset({"assistant"}),
        schemas="own",
        chat_template_sha256={
            "5a38bfa05833266240066aedc497decc9b00cc0d3e3b8cceea98cf530196ab06": "Qwen3-Coder-30B-A3B-Instruct",
        },
    )
