"""How SGLang serves Qwen's families: recipes with their sources, and the rules that Qwen adds to an engine's own.

Options are named as SGLang 0.5.23 takes them. `mamba-radix-cache-strategy` was called `mamba-scheduler-strategy` in older
releases: the sources write that, and 0.5.23 does not know it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from tito_core import Deployment, KnownIssue, Recipe, Rule, Speculative

__all__ = ["ISSUES", "RECIPES", "RULES", "draft", "mamba", "mamba_of_its_own_draft"]

STRATEGY: Final = "mamba-radix-cache-strategy"
COOKBOOK: Final = "SGLang's cookbook"
BUNDLE: Final = f"{COOKBOOK}, SpecBundle.md"
LARGEST: Final = " (the model is our guess: the largest)"


def _eagle(steps: int, draft_model: str | None = None) -> Speculative:
    """EAGLE by the layer that the checkpoint carries, EAGLE3 by a draft model; top-k 1 drafts a token more than steps."""
    algorithm = "EAGLE" if draft_model is None else "EAGLE3"
    return Speculative(
        algorithm=algorithm, num_steps=steps, eagle_topk=1, num_draft_tokens=steps + 1, draft_model=draft_model
    )


MAMBA: Final[dict[Literal["cuda", "rocm", "cpu"], dict[Literal["arguments", "environment"], dict[str, Any]]]] = {
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
        "default": _plain(
            "the low-latency ones without speculation", tensor_parallel=8, made_for="Qwen/Qwen3-235B-A22B-Instruct-2507"
        ),
        "low-latency": Recipe(
            speculative=_eagle(3, "lmsys/SGLang-EAGLE3-Qwen3-235B-A22B-Instruct-2507-SpecForge-Meituan"),
            tensor_parallel=8,
            made_for="Qwen/Qwen3-235B-A22B-Instruct-2507",
            source=f"{COOKBOOK}, Qwen3.md; draft model of Qwen3-235B-A22B-Instruct-2507: {BUNDLE}",
        ),
        "low-latency-30b": Recipe(
            speculative=_eagle(3, "lmsys/SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge-Nex"),
            tensor_parallel=4,
            environment={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"},
            made_for="Qwen/Qwen3-30B-A3B-Instruct-2507",
            source=f"{BUNDLE}, for Qwen3-30B-A3B-Instruct-2507",
        ),
    },
    "qwennext": {
        "default": Recipe(
            speculative=_eagle(2),
            tensor_parallel=8,
            expert_parallel=8,
            max_running_requests=512,
            memory_fraction=0.8,
            arguments={"enable-draft-weights-cpu-backup": True},
            platforms=MAMBA,
            made_for="Qwen/Qwen3-Next-80B-A3B-Thinking",
            source="miles, run_qwen3_next_80b_a3b.py on four nodes: rollouts of Qwen3-Next-80B-A3B-Thinking; it leaves "
            "the mamba strategy to SGLang",
        ),
        "low-latency": Recipe(
            speculative=_eagle(3),
            tensor_parallel=4,
            platforms=MAMBA,
            made_for="Qwen/Qwen3-Next-80B-A3B-Thinking",
            source="SGLang, docs/basic_usage/qwen3.md; it writes NEXTN, which is EAGLE",
        ),
        "plain": _plain(
            "the default without speculation; the Thinking-2507 models carry no draft layer",
            tensor_parallel=8,
            made_for="Qwen/Qwen3-Next-80B-A3B-Thinking",
        ),
    },
    "qwen3coder": {
        "default": _plain(
            "the low-latency ones without speculation",
            tensor_parallel=8,
            made_for="Qwen/Qwen3-Coder-480B-A35B-Instruct",
        ),
        "low-latency": Recipe(
            speculative=_eagle(3, "lmsys/SGLang-EAGLE3-Qwen3-Coder-480B-A35B-Instruct-SpecForge-EigenAI"),
            tensor_parallel=8,
            made_for="Qwen/Qwen3-Coder-480B-A35B-Instruct",
            source=f"{BUNDLE}, for Qwen3-Coder-480B-A35B-Instruct",
        ),
        "low-latency-30b": Recipe(
            speculative=_eagle(3, "lmsys/SGLang-EAGLE3-Qwen3-Coder-30B-A3B-Instruct-SpecForge"),
            tensor_parallel=4,
            made_for="Qwen/Qwen3-Coder-30B-A3B-Instruct",
            source=f"{BUNDLE}, for Qwen3-Coder-30B-A3B-Instruct",
        ),
    },
    "qwen35": {
        "default": Recipe(
            speculative=_eagle(2),
            tensor_parallel=8,
            memory_fraction=0.7,
            platforms=MAMBA,
            made_for="Qwen/Qwen3.5-35B-A3B",
            source="miles, run_qwen3_5_35b_a3b_mtp.py: rollouts of Qwen3.5-35B-A3B",
        ),
        "low-latency": Recipe(
            speculative=_eagle(3),
            tensor_parallel=8,
            memory_fraction=0.8,
            platforms=MAMBA,
            made_for="Qwen/Qwen3.5-397B-A17B",
            source=f"{COOKBOOK}, Qwen3.5.md, in bf16{LARGEST}",
        ),
        "low-latency-fp8": Recipe(
            speculative=_eagle(3),
            tensor_parallel=8,
            max_running_requests=128,
            memory_fraction=0.8,
            arguments={"chunked-prefill-size": 16384},
            platforms=MAMBA,
            made_for="Qwen/Qwen3.5-397B-A17B-FP8",
            source=f"{COOKBOOK}, Qwen3.5.md, FP8 on H200{LARGEST}",
        ),
        "low-latency-fp4": Recipe(
            speculative=_eagle(3),
            tensor_parallel=8,
            memory_fraction=0.8,
            arguments={"disable-radix-cache": True},
            made_for="Qwen/Qwen3.5-397B-A17B",
            source=f"{COOKBOOK}, Qwen3.5.md, of an FP4 checkpoint, which you must name{LARGEST}; "
            "without the prefix cache, so each turn prefills the whole session",
        ),
        "plain": _plain("the default without speculation", tensor_parallel=8, made_for="Qwen/Qwen3.5-35B-A3B"),
    },
    "qwen36": {
        "default": Recipe(
            speculative=_eagle(2), tensor_parallel=1, platforms=MAMBA, source="miles: rollouts as of Qwen3.5"
        ),
        "low-latency": Recipe(
            speculative=_eagle(3),
            memory_fraction=0.8,
            environment={"SGLANG_ENABLE_SPEC_V2": "1"},
            platforms=MAMBA,
            source=f"{COOKBOOK}, Qwen3.6.md; SGLang 0.5.23 speculates as v2 always, and reads no such variable",
        ),
        "plain": _plain("the default without speculation"),
    },
    "qwen38": {
        "default": _plain("no recipe of Qwen3.8 is among the sources"),
    },
}
"""By family, then by profile."""


def draft(recipe: Recipe, deployment: Deployment) -> str | None:
    """Qwen3, Instruct-2507 and Coder carry no draft layer: what speculates needs a draft model, but what looks drafts up."""
    one = recipe.speculative
    if one is None or one.draft_model is not None or one.algorithm.upper() == "NGRAM":
        return None
    return f"it speculates with {one.algorithm} and no draft model, and the checkpoint carries no draft layer; name one"


def mamba(recipe: Recipe, deployment: Deployment) -> str | None:
    """Models with linear attention that speculate: how the prefix cache must keep their state, see `MAMBA`."""
    asked, platform = recipe.arguments, deployment.platform
    if (
        deployment.engine != "sglang"
        or recipe.speculative is None
        or platform not in MAMBA
        or asked.get("disable-radix-cache")
    ):
        return None
    for name, value in MAMBA[platform]["arguments"].items():
        if asked.get(name) != value:
            return (
                f"it speculates on {platform} with {name} {asked.get(name, 'unset')}, and the prefix cache of linear "
                f"attention needs {name} {value} there; set it, or disable-radix-cache: every turn then prefills the whole "
                "session"
            )
    return None


def mamba_of_its_own_draft(recipe: Recipe, deployment: Deployment) -> str | None:
    """`mamba` for a family where only the models with linear attention carry a draft layer."""
    one = recipe.speculative
    return None if one is None or one.draft_model is not None else mamba(recipe, deployment)


def _rules(*checks: Callable[[Recipe, Deployment], str | None]) -> tuple[Rule, ...]:
    return tuple(Rule(name=check.__name__, check=f"{__name__}:{check.__name__}") for check in checks)


RULES: Final = {
    **{family: _rules(draft) for family in ("qwen3", "qwen3instruct", "qwen3coder")},
    "qwennext": _rules(mamba_of_its_own_draft),
    **{family: _rules(mamba) for family in ("qwen35", "qwen36", "qwen38")},
}
"""By family."""

_STRATEGY_NAME: Final = KnownIssue(
    name="mamba-strategy-name",
    summary=f"This SGLang does not know {STRATEGY}; older releases call it mamba-scheduler-strategy.",
    matches=rf"unrecognized arguments:.*--{STRATEGY}",
    advice="Serve with SGLang 0.5.23, or write mamba-scheduler-strategy for an older one.",
    engines=("sglang",),
)
ISSUES: Final = dict.fromkeys(("qwennext", "qwen35", "qwen36"), (_STRATEGY_NAME,))
"""By family, where there are any."""
