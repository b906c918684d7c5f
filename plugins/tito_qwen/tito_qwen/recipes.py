"""How SGLang serves Qwen's families: recipes with their sources, and the rules that Qwen adds to an engine's own.

Options are named as SGLang 0.5.23 takes them. Up to some release before it, `mamba-radix-cache-strategy` was called
`mamba-scheduler-strategy`: the sources write that, and 0.5.23 refuses it.
"""

from __future__ import annotations

from typing import Any, Final

from tito_core import Deployment, KnownIssue, Recipe, Rule, Speculative

__all__ = ["ISSUES", "RECIPES", "RULES"]

STRATEGY: Final = "mamba-radix-cache-strategy"
COOKBOOK: Final = "SGLang's cookbook"
BUNDLE: Final = f"{COOKBOOK}, SpecBundle.md"


def _eagle(steps: int, draft_model: str | None = None) -> Speculative:
    """EAGLE by the layer that the checkpoint carries, EAGLE3 by a draft model; top-k 1 drafts a token more than steps."""
    algorithm = "EAGLE" if draft_model is None else "EAGLE3"
    return Speculative(
        algorithm=algorithm, num_steps=steps, eagle_topk=1, num_draft_tokens=steps + 1, draft_model=draft_model
    )


MAMBA: Final[dict[str, Any]] = {
    "cuda": {"arguments": {STRATEGY: "extra_buffer", "page-size": 64}},
    "rocm": {"arguments": {STRATEGY: "no_buffer", "page-size": 1, "disable-overlap-schedule": True}},
}
"""What speculation needs of models with linear attention, whose state in the prefix cache can't be cut at any token.

On cuda `extra_buffer`: it keeps the prefix cache, whole pages of 64 tokens of it, and overlapped scheduling; each running
request holds two states more, which is memory that other requests' prefixes could have. On rocm `no_buffer`: a page is
one token, and scheduling does not overlap. With `disable-radix-cache` neither is needed, and each turn of a session
prefills the whole of what stands before it.
"""


def _plain(source: str, **sizes: Any) -> Recipe:
    return Recipe(speculative=None, source=source, **sizes)


RECIPES: Final[dict[str, dict[str, Recipe]]] = {
    "qwen3": {
        "default": _plain("no draft model of Qwen3 itself is among the sources: SpecBundle's are of Instruct-2507"),
    },
    "qwen3instruct": {
        "default": _plain("the low-latency ones without speculation", tensor_parallel=8),
        "low-latency": Recipe(
            speculative=_eagle(3, "lmsys/SGLang-EAGLE3-Qwen3-235B-A22B-Instruct-2507-SpecForge-Meituan"),
            tensor_parallel=8,
            environment={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"},
            source=f"{COOKBOOK}, Qwen3.md; draft model of Qwen3-235B-A22B-Instruct-2507: {BUNDLE}",
        ),
        "low-latency-30b": Recipe(
            speculative=_eagle(3, "lmsys/SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge-Nex"),
            tensor_parallel=4,
            environment={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"},
            source=f"{BUNDLE}, for Qwen3-30B-A3B-Instruct-2507",
        ),
        "next": Recipe(
            speculative=_eagle(3),
            tensor_parallel=4,
            platforms=MAMBA,
            source="SGLang, docs/basic_usage/qwen3.md, for Qwen3-Next-80B-A3B-Instruct; it writes NEXTN, which is EAGLE",
        ),
        "next-eagle3": Recipe(
            speculative=_eagle(
                3, "lmsys/SGLang-EAGLE3-Qwen3-Next-80B-A3B-Instruct-FP8-perfect-blend-regenerated"
            ),
            tensor_parallel=4,
            platforms=MAMBA,
            source=f"{BUNDLE}, for Qwen3-Next-80B-A3B-Instruct-FP8",
        ),
    },
    "qwennext": {
        "default": Recipe(
            speculative=_eagle(2),
            tensor_parallel=8,
            expert_parallel=8,
            max_running_requests=512,
            arguments={"mem-fraction-static": 0.8, "enable-draft-weights-cpu-backup": True},
            platforms=MAMBA,
            source="miles, run_qwen3_next_80b_a3b.py on four nodes: rollouts of Qwen3-Next-80B-A3B-Thinking; it leaves "
            "the mamba strategy to SGLang",
        ),
        "low-latency": Recipe(
            speculative=_eagle(3),
            tensor_parallel=4,
            platforms=MAMBA,
            source="SGLang, docs/basic_usage/qwen3.md; it writes NEXTN, which is EAGLE",
        ),
        "plain": _plain("the default without speculation; the Thinking-2507 models carry no draft layer", tensor_parallel=8),
    },
    "qwen3coder": {
        "default": _plain("the low-latency ones without speculation", tensor_parallel=8),
        "low-latency": Recipe(
            speculative=_eagle(3, "lmsys/SGLang-EAGLE3-Qwen3-Coder-480B-A35B-Instruct-SpecForge-EigenAI"),
            tensor_parallel=8,
            source=f"{BUNDLE}, for Qwen3-Coder-480B-A35B-Instruct",
        ),
        "low-latency-30b": Recipe(
            speculative=_eagle(3, "lmsys/SGLang-EAGLE3-Qwen3-Coder-30B-A3B-Instruct-SpecForge"),
            tensor_parallel=4,
            source=f"{BUNDLE}, for Qwen3-Coder-30B-A3B-Instruct",
        ),
    },
    "qwen35": {
        "default": Recipe(
            speculative=_eagle(2),
            tensor_parallel=8,
            arguments={"mem-fraction-static": 0.7},
            platforms=MAMBA,
            source="miles, run_qwen3_5_35b_a3b_mtp.py: rollouts of Qwen3.5-35B-A3B",
        ),
        "low-latency": Recipe(
            speculative=_eagle(3),
            tensor_parallel=8,
            arguments={"mem-fraction-static": 0.8},
            platforms=MAMBA,
            source=f"{COOKBOOK}, Qwen3.5.md, in bf16",
        ),
        "low-latency-fp8": Recipe(
            speculative=_eagle(3),
            tensor_parallel=8,
            max_running_requests=128,
            arguments={"mem-fraction-static": 0.8, "chunked-prefill-size": 16384},
            platforms=MAMBA,
            source=f"{COOKBOOK}, Qwen3.5.md, FP8 on H200",
        ),
        "low-latency-fp4": Recipe(
            speculative=_eagle(3),
            tensor_parallel=8,
            arguments={"mem-fraction-static": 0.8, "disable-radix-cache": True},
            source=f"{COOKBOOK}, Qwen3.5.md, FP4: without the prefix cache, so each turn prefills the whole session",
        ),
        "plain": _plain("the default without speculation", tensor_parallel=8),
    },
    "qwen36": {
        "default": Recipe(
            speculative=_eagle(2), tensor_parallel=1, platforms=MAMBA, source="miles: rollouts as of Qwen3.5"
        ),
        "low-latency": Recipe(
            speculative=_eagle(3),
            arguments={"mem-fraction-static": 0.8},
            environment={"SGLANG_ENABLE_SPEC_V2": "1"},
            platforms=MAMBA,
            source=f"{COOKBOOK}, Qwen3.6.md; SGLang 0.5.23 has no other speculation than v2, and ignores the variable",
        ),
        "plain": _plain("the default without speculation"),
    },
    "qwen38": {
        "default": _plain("no recipe of Qwen3.8 is among the sources", tensor_parallel=8),
    },
}
"""By family, then by profile."""

LORA_LISTED: Final = {("sglang", "0.5.23"): ("EAGLE", "NEXTN", "EAGLE3")}
"""Engines that list speculation beside LoRA: in SGLang 0.5.23 (lora_hook.py) the adapter is the target's, the draft has
none."""


def draft(recipe: Recipe, deployment: Deployment) -> str | None:
    """Qwen3, Instruct-2507 and Coder carry no draft layer: what speculates needs EAGLE3 and a draft model."""
    one = recipe.speculative
    if one is None or one.draft_model is not None:
        return None
    return f"it speculates with {one.algorithm} and no draft model, and the checkpoint carries no draft layer; name one"


def mamba(recipe: Recipe, deployment: Deployment) -> str | None:
    """The prefix cache of linear attention, where the model speculates: see `MAMBA`."""
    asked, platform = {**recipe.arguments, **_overrides(deployment)}, deployment.platform
    if recipe.speculative is None or platform not in MAMBA or asked.get("disable-radix-cache"):
        return None
    needed = MAMBA[platform]["arguments"]
    for name, value in needed.items():
        if asked.get(name) != value:
            said = f"{name} {asked[name]}" if name in asked else f"no {name}"
            return (
                f"it speculates on {platform} with {said}, and the prefix cache of linear attention needs {name} {value} "
                "there; set it, or disable-radix-cache, which prefills every turn whole"
            )
    return None


def lora(recipe: Recipe, deployment: Deployment) -> str | None:
    """An adapter beside speculation is refused, but by versions that list the pair."""
    asked, one = {**recipe.arguments, **_overrides(deployment)}, recipe.speculative
    given = next((name for name in ("enable-lora", "lora-paths") if asked.get(name)), None)
    if given is None or one is None:
        return None
    if one.algorithm in LORA_LISTED.get((deployment.engine, deployment.version or ""), ()):
        return None
    known = ", ".join(" ".join(pair) for pair in LORA_LISTED)
    return (
        f"it has {given} and speculates with {one.algorithm}, which {deployment.engine} {deployment.version or '(any)'} is "
        f"not known to serve together; {known} is: name that version, or serve without speculation"
    )


def _overrides(deployment: Deployment) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in deployment.overrides.items()}
