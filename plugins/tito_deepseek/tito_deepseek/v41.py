"""The family `deepseekv41`: DeepSeek V4.1. It folds as V4 does, and has a token of its own before a system message."""

from __future__ import annotations

from tito_core import AppendRoles, ControlToken, Effort, Family, Parsers, Recipe, Revision, Vocabulary, hookimpl
from tito_core.families.family import Role
from tito_deepseek import v4
from tito_deepseek.v4_encoding import ANSWER, ASSISTANT, BOS, EOS, LEVELS, SYSTEM, THINK, USER

CALL, UNCALL = "<｜DSML｜ calls>", "</｜DSML｜ calls>"

VOCABULARY = Vocabulary(
    name="v4",
    file=v4.VOCABULARY.file,
    sha256=v4.VOCABULARY.sha256,
    title=f"DeepSeek V4 and {SYSTEM}",
    stands_in_for="DeepSeek V4.1",
    added=(SYSTEM,),
)

RECIPES = {
    "default": Recipe(
        speculative=None,
        tensor_parallel=8,
        source="none of V4.1's is among the sources: V4's ranks, and no speculation, of which nobody says that it holds here",
    ),
}


@hookimpl
def tito_family() -> Family:
    """V4's declaration, where V4.1 has no other. No ids of control tokens: its vocabulary is on no index."""
    spoken: frozenset[Role] = frozenset({"user", "system", "assistant"})
    results: frozenset[Role] = spoken | {"tool"}
    family = v4.tito_family()
    return Family(
        name="deepseekv41",
        models=("deepseek-ai/DeepSeek-V4.1-Flash",),
        model_types=("deepseek_v41",),
        template="tito_deepseek.v4_encoding:V41Encoding",
        fixed_kwargs=family.fixed_kwargs,
        append_roles=AppendRoles(
            roles=results,
            follows={
                "assistant": results,
                "tool": results,
                "user": spoken,
                "system": spoken,
            },
            ends=frozenset({"tool", "user", "system"}),
        ),
        thinking=family.thinking.model_copy(
            update={"effort": Effort(name="reasoning_effort", levels=LEVELS, default="high", range=(1, 100))}
        ),
        boundary=family.boundary.model_copy(
            update={
                "closers": {**family.boundary.closers, "call": "\n" + UNCALL},
                "marks": {**family.boundary.marks, "call": (CALL, UNCALL)},
            }
        ),
        segments=family.segments.model_copy(update={"delimiters": (BOS, EOS, SYSTEM, USER, ASSISTANT)}),
        control_tokens=tuple(
            ControlToken(text=text) for text in (BOS, EOS, SYSTEM, USER, ASSISTANT, THINK, ANSWER, "｜DSML｜")
        ),
        split_pattern=family.split_pattern,
        response_parser="tito_deepseek.dsml_responses:parse_v41",
        parsers={"sglang": Parsers(reasoning="deepseek-v41", tool_call="deepseekv41")},
        revisions=(
            Revision(
                name="recipe",
                text_joiner="\n\n",
                tool_schema=family.revisions[0].tool_schema,
                note="deepseek-recipe 0.2.0, which SGLang 0.5.23 serves with",
            ),
        ),
        vocabularies=(VOCABULARY,),
        recipes=RECIPES,
        recipe_rules=v4.RULES,
    )
