"""What the Qwen families share: ChatML turns, the marks of thoughts and calls, and two vocabularies.

A family's module says what is its own; what each version prints is in its template.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from tito_core import AppendRoles, Boundary, ControlToken, Family, Parsers, Revision, Segments, Thinking, Vocabulary
from tito_qwen.ranks import QWEN3_ADDED, QWEN35_ADDED
from tito_qwen.recipes import ISSUES, RECIPES, RULES

__all__ = ["JOINED", "PRESERVING", "QWEN3", "QWEN35", "THINKING", "TRIMS", "chatml", "with_fp8"]

Role = Literal["tool", "user", "system", "assistant"]
State = Literal["reasoning", "content", "call"]
Mark = Literal["reasoning", "call"]

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
THINK, UNTHINK = "<think>", "</think>"
CALL, UNCALL = "<tool_call>", "</tool_call>"

PRESERVING: Final = {"preserve_thinking": True}
"""Old thoughts stay, whatever follows: without it no user message could be appended."""
THINKING: Final = Thinking(aliases=("enable_thinking", "thinking"), forward_as="enable_thinking", default=True)
JOINED: Final = (Revision(name="default", text_joiner=""),)
"""From 3.5 on, templates print the text parts of a message's content without anything between."""
TRIMS: Final = frozenset({"system", "user", "tool", "assistant", "reasoning"})
"""From 3.5 on, nothing that somebody said keeps the white space at its edges."""

QWEN3: Final = Vocabulary(
    name="qwen3",
    file="vocabularies/qwen3.json.gz",
    sha256="aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    title="Qwen3",
)
QWEN35: Final = Vocabulary(
    name="qwen35",
    file="vocabularies/qwen35.json.gz",
    sha256="a57b5c62cd5f242a06c632b82cc0b4f8239d08cc80fd9347fc1f629be977c6ca",
    title="Qwen3.5 and 3.6",
)

_IDS: Final = {
    QWEN3.name: {text: number for number, text in enumerate(QWEN3_ADDED, 151643)},
    QWEN35.name: {text: number for number, text in enumerate(QWEN35_ADDED, 248044)},
}
_ANY: Final[frozenset[Role]] = frozenset({"user", "system", "assistant"})
_AFTER_CALLS: Final[frozenset[Role]] = _ANY | {"tool"}

_CALLS: Final = {
    "hermes": (f"\n{UNCALL}", {"sglang": "qwen", "vllm": "hermes"}),
    "xml": (f"\n</parameter>\n</function>\n{UNCALL}", {"sglang": "qwen3_coder", "vllm": "qwen3_coder"}),
}
"""What closes a call that was cut, and what engines call the parser of calls."""


def chatml(
    name: str,
    *,
    models: Sequence[str],
    model_types: Sequence[str],
    vocabulary: Vocabulary,
    calls: Literal["hermes", "xml"],
    thinking: Thinking,
    **own: Any,
) -> Family:
    """A family of ChatML turns; `own` are further fields of its declaration.

    Every role has a header, so each may follow each, and only an assistant's message opens no turn of its own.
    `<|endoftext|>` ends a turn too where a model samples it: it stays, and the line's end follows it.
    """
    thinks = True in thinking.modes
    closer, parsers = _CALLS[calls]
    closers: dict[State, str] = {"content": "", "call": closer}
    marks: dict[Mark, tuple[str, str]] = {"call": (CALL, UNCALL)}
    if thinks:
        closers["reasoning"], marks["reasoning"] = f"\n{UNTHINK}\n\n", (THINK, UNTHINK)
    tokens = (START, END, END_OF_TEXT, *(text for pair in marks.values() for text in pair))
    tokens += ("<tool_response>", "</tool_response>")
    return Family(
        name=name,
        models=tuple(models),
        model_types=tuple(model_types),
        template=f"templates/{name}.jinja",
        append_roles=AppendRoles(
            roles=_AFTER_CALLS,
            follows={
                "assistant": _AFTER_CALLS,
                "tool": _AFTER_CALLS,
                "user": _ANY,
                "system": _ANY,
            },
            ends=frozenset({"tool", "user", "system"}),
        ),
        thinking=thinking,
        boundary=Boundary(stop=(END, END_OF_TEXT), glue="\n", closers=closers, marks=marks),
        segments=Segments(delimiters=(START, END, END_OF_TEXT), headers=(f"{START}assistant\n",)),
        control_tokens=tuple(ControlToken(text=text, id=_IDS[vocabulary.name][text]) for text in tokens),
        response_parser=f"tito_qwen.responses:{calls}{'' if thinks else '_instruct'}",
        parsers={
            engine: Parsers(reasoning="qwen3" if thinks else None, tool_call=parser)
            for engine, parser in parsers.items()
        },
        vocabularies=(vocabulary,),
        recipes=RECIPES[name],
        recipe_rules=RULES[name],
        known_issues=ISSUES.get(name, ()),
        **own,
    )


def with_fp8(*models: str) -> tuple[str, ...]:
    """Ids under Qwen's name, each with its FP8 twin, which ships the same tokenizer and template."""
    return tuple(f"Qwen/{model}{kind}" for model in models for kind in ("", "-FP8"))
