"""The family `deepseekv4`: DeepSeek V4."""

from __future__ import annotations

from typing import Any

from tito_core import (
    AppendRoles,
    Boundary,
    ControlToken,
    Deployment,
    Effort,
    Family,
    Parsers,
    Recipe,
    Revision,
    Rule,
    Segments,
    Speculative,
    Thinking,
    ToolSchema,
    Vocabulary,
    hookimpl,
)
from tito_deepseek.v4_encoding import ANSWER, ASSISTANT, BOS, EOS, LEVELS, THINK, USER
from tito_deepseek.vocabulary import SPLIT_PATTERN

CALL, UNCALL = "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"

DISPATCH = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
DISPATCHED, RUNNING = 128, 256
"""What SGLang 0.5.23 takes where neither is given: tokens that a rank dispatches, and requests of a V4 that run."""

COOKBOOK = "SGLang, docs_new/cookbook DeepSeek-V4.mdx"


def _on_eight(source: str, steps: int, **more: Any) -> Recipe:
    """EAGLE with top-k 1 drafts one token more than it takes steps; no steps is no speculation."""
    eagle = Speculative(algorithm="EAGLE", num_steps=steps, eagle_topk=1, num_draft_tokens=steps + 1) if steps else None
    on_amd: dict[Any, Any] = {"rocm": {"environment": {"SGLANG_USE_AITER_AG": "false"}}} if steps else {}
    return Recipe(
        speculative=eagle,
        tensor_parallel=8,
        made_for="deepseek-ai/DeepSeek-V4-Pro",
        source=source,
        platforms=on_amd,
        **more,
    )


RECIPES = {
    "default": _on_eight("miles, run_deepseek_v4.py --enable-mtp, on AMD too; tensor parallel: SGLang's for V4 Pro", 3),
    "low-latency": _on_eight(f"{COOKBOOK}; V4 Flash fits tensor parallel 4", 3),
    "balanced": _on_eight(
        f"{COOKBOOK}; requests and dispatched tokens: the largest that fit together",
        1,
        attention_data_parallel=8,
        expert_parallel=8,
        max_running_requests=128,
        arguments={"moe-a2a-backend": "deepep"},
        environment={DISPATCH: "256"},
    ),
    "plain": _on_eight(f"{COOKBOOK}, its high-throughput", 0),
}


def speculation(recipe: Recipe, deployment: Deployment) -> str | None:
    """SGLang starts V4 with EAGLE of top-k 1 or with DSPARK, else not at all."""
    one = recipe.speculative
    if (
        deployment.engine != "sglang"
        or one is None
        or one.algorithm == "DSPARK"
        or (one.algorithm, one.eagle_topk) == ("EAGLE", 1)
    ):
        return None
    return f"it speculates with {one.algorithm} of top-k {one.eagle_topk}, and takes EAGLE of top-k 1 or DSPARK only"


def dispatch(recipe: Recipe, deployment: Deployment) -> str | None:
    """With DeepEP every running request's draft tokens are dispatched at once."""
    if recipe.arguments.get("moe-a2a-backend") != "deepep":
        return None
    running, drafted = recipe.max_running_requests or RUNNING, 1
    if recipe.speculative is not None:
        drafted = recipe.speculative.num_draft_tokens
    if not (fits := recipe.environment.get(DISPATCH, str(DISPATCHED))).isdecimal():
        return f"{DISPATCH} is {fits!r}, which is no number of tokens; give one, at least {running * drafted}"
    if running * drafted <= int(fits):
        return None
    return (
        f"{running} running requests of {drafted} draft tokens dispatch {running * drafted} tokens, and {DISPATCH} is {fits}; "
        "run fewer, or raise it"
    )


def all_gather(recipe: Recipe, deployment: Deployment) -> str | None:
    """On AMD speculation ends turns early, or not at all, with aiter's all-gather."""
    if deployment.engine != "sglang" or deployment.platform != "rocm" or recipe.speculative is None:
        return None
    if recipe.environment.get("SGLANG_USE_AITER_AG", "").lower() in ("false", "0"):
        return None
    return "it speculates on rocm with aiter's all-gather, which ends turns early; set SGLANG_USE_AITER_AG=false"


RULES = tuple(Rule(name=name, check=f"tito_deepseek.v4:{name}") for name in ("speculation", "dispatch", "all_gather"))

VOCABULARY = Vocabulary(
    name="v4",
    file="vocabularies/v4.json.gz",
    sha256="8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
    title="DeepSeek V4",
)

FOLDING = AppendRoles(
    roles=frozenset({"tool", "user", "assistant"}),
    follows={
        "assistant": frozenset({"tool", "user", "assistant"}),
        "tool": frozenset({"tool", "user", "assistant"}),
        "user": frozenset({"user", "assistant"}),
    },
    ends=frozenset({"tool", "user"}),
)
"""A system message is not among them: the recipe prints all system text at the front, so one that is appended would
rewrite the prompt."""

IN_PLACE = AppendRoles(
    roles=frozenset({"tool", "user", "system", "assistant"}),
    follows={
        "assistant": frozenset({"tool", "user", "system", "assistant"}),
        "tool": frozenset({"tool", "user", "assistant"}),
        "user": frozenset({"user", "assistant"}),
        "system": frozenset({"system", "user"}),
    },
    ends=frozenset({"tool", "user"}),
)
"""The released encoder prints system text where it stands, without a header: after a user's message or a result it would
stand inside that, and no turn is opened after it."""


@hookimpl
def tito_family() -> Family:
    return Family(
        name="deepseekv4",
        models=("deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"),
        model_types=("deepseek_v4",),
        template="tito_deepseek.v4_encoding:V4Encoding",
        fixed_kwargs={"drop_thinking": False},
        append_roles=FOLDING,
        thinking=Thinking(
            aliases=("thinking", "enable_thinking", "thinking_mode"),
            forward_as="thinking",
            default=True,
            words={"thinking_mode": {"thinking": True, "chat": False}},
            effort=Effort(name="reasoning_effort", levels=LEVELS, default="high"),
        ),
        boundary=Boundary(
            stop=(EOS,),
            closers={"reasoning": ANSWER, "content": "", "call": "\n" + UNCALL},
            marks={"reasoning": (THINK, ANSWER), "call": (CALL, UNCALL)},
        ),
        segments=Segments(
            delimiters=(BOS, EOS, USER, ASSISTANT), headers=(ASSISTANT,), openers=(THINK, ANSWER), ends=(EOS,)
        ),
        control_tokens=(
            ControlToken(text=BOS, id=0),
            ControlToken(text=EOS, id=1),
            ControlToken(text=USER, id=128803),
            ControlToken(text=ASSISTANT, id=128804),
            ControlToken(text=THINK, id=128821),
            ControlToken(text=ANSWER, id=128822),
            ControlToken(text="｜DSML｜", id=128825),
        ),
        split_pattern=SPLIT_PATTERN,
        response_parser="tito_deepseek.dsml_responses:parse_v4",
        parsers={"sglang": Parsers(reasoning="deepseek-v4", tool_call="deepseekv4")},
        revisions=(
            Revision(
                name="recipe",
                kwargs={"release": False},
                text_joiner="\n\n",
                tool_schema=ToolSchema(
                    order=("name", "description", "parameters"), absent={"description": "", "parameters": {}}
                ),
                note="deepseek-recipe 0.2.0, which SGLang 0.5.23 serves with",
            ),
            Revision(
                name="release",
                kwargs={"release": True},
                text_joiner=" ",
                append_roles=IN_PLACE,
                tool_schema=ToolSchema(
                    order=("description", "name", "parameters", "strict", "defer_loading"),
                    absent={"description": None, "parameters": None, "strict": False},
                ),
                note="the encoder released with the checkpoints, as SGLang 0.5.14 serves with it",
            ),
        ),
        vocabularies=(VOCABULARY,),
        recipes=RECIPES,
        recipe_rules=RULES,
        peers={"miles-tito-tokenizers": "deepseekv4"},
    )
