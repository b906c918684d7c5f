"""The family `deepseekv32`: DeepSeek V3.2."""

from __future__ import annotations

from tito_core import (
    AppendRoles,
    Boundary,
    ControlToken,
    Family,
    KnownIssue,
    Parsers,
    Recipe,
    Revision,
    Segments,
    Speculative,
    Thinking,
    Vocabulary,
    hookimpl,
)
from tito_deepseek.v32_encoding import ANSWER, ASSISTANT, BOS, EOS, THINK, USER
from tito_deepseek.vocabulary import SPLIT_PATTERN

CALL, UNCALL = "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"

VOCABULARIES = (
    Vocabulary(
        name="r1",
        file="vocabularies/r1.json.gz",
        sha256="ecb6f9fc369894346f0511f4074ca75cee5cd5f3b06d02f1ba35fcd39f8e121d",
        title="DeepSeek R1",
        stands_in_for="DeepSeek V3.2",
    ),
    Vocabulary(
        name="v4",
        file="vocabularies/v4.json.gz",
        sha256="8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
        title="DeepSeek V4",
        stands_in_for="DeepSeek V3.2",
    ),
)


def _on_eight(source: str, steps: int, seen: str = "") -> Recipe:
    """EAGLE with top-k 1 drafts one token more than it takes steps; no steps is no speculation."""
    eagle = Speculative(algorithm="EAGLE", num_steps=steps, eagle_topk=1, num_draft_tokens=steps + 1) if steps else None
    return Recipe(speculative=eagle, tensor_parallel=8, expert_parallel=8, source=source, seen=seen)


RECIPES = {
    "default": _on_eight("miles, session verification of DeepSeek V3.2", 2),
    "plain": _on_eight(
        "the default without speculation", 0, seen="GPUs, where 64 of 64 sessions held, as its users report"
    ),
    "low-latency": _on_eight("SGLang, docs/basic_usage/deepseek_v32.md", 3),
}

NEXTN_LOADER = KnownIssue(
    name="nextn-fuse-qkv-a-proj",
    summary=(
        "SGLang can't load the draft model that the checkpoint carries: its DeepseekV3ForCausalLMNextN lacks "
        "fuse_qkv_a_proj."
    ),
    matches=r"DeepseekV3ForCausalLMNextN.*fuse_qkv_a_proj|fuse_qkv_a_proj.*DeepseekV3ForCausalLMNextN",
    advice="Serve with the profile plain, or with an SGLang whose NextN model has it.",
    profiles=("default", "low-latency"),
    engines=("sglang",),
)


@hookimpl
def tito_family() -> Family:
    """Roles and headers: a system message has no header of its own, so nothing can be sampled after one, and after a
    user message it would be printed inside the opened assistant turn."""
    return Family(
        name="deepseekv32",
        models=("deepseek-ai/DeepSeek-V3.2",),
        model_types=("deepseek_v32",),
        template="tito_deepseek.v32_encoding:V32Encoding",
        fixed_kwargs={"drop_thinking": False},
        append_roles=AppendRoles(
            roles=frozenset({"tool", "user", "system", "assistant"}),
            follows={
                "assistant": frozenset({"tool", "user", "system", "assistant"}),
                "tool": frozenset({"tool", "user", "assistant"}),
                "user": frozenset({"user", "assistant"}),
                "system": frozenset({"system", "user"}),
            },
            ends=frozenset({"tool", "user"}),
        ),
        thinking=Thinking(
            aliases=("thinking", "enable_thinking", "thinking_mode"),
            forward_as="thinking",
            default=True,
            words={"thinking_mode": {"thinking": True, "chat": False}},
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
            ControlToken(text=THINK),
            ControlToken(text=ANSWER),
        ),
        split_pattern=SPLIT_PATTERN,
        response_parser="tito_deepseek.dsml_responses:parse_v32",
        parsers={"sglang": Parsers(reasoning="deepseek-v3", tool_call="deepseekv32")},
        revisions=(
            Revision(name="open", kwargs={"answered": False}, note="a thinking opener whatever follows it"),
            Revision(name="answered", kwargs={"answered": True}, note="a closed one where another message follows"),
        ),
        vocabularies=VOCABULARIES,
        recipes=RECIPES,
        known_issues=(NEXTN_LOADER,),
        peers={"miles-tito-tokenizers": "deepseekv32"},
    )
