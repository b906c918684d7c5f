"""The family `deepseekv4`: DeepSeek V4."""

from __future__ import annotations

from tito_core import (
    AppendRoles,
    Boundary,
    ControlToken,
    Effort,
    Family,
    Parsers,
    Revision,
    Segments,
    Thinking,
    ToolSchema,
    Vocabulary,
    hookimpl,
)
from tito_deepseek.v4_encoding import ANSWER, ASSISTANT, BOS, EOS, LEVELS, THINK, USER
from tito_deepseek.vocabulary import SPLIT_PATTERN

CALL, UNCALL = "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"

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
        peers={"miles-tito-tokenizers": "deepseekv4"},
    )
