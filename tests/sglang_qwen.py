"""How SGLang 0.5.23 reads a Qwen completion: its own parsers, cut out of the wheel. The right-hand side of the tests.

The three classes are its files' own; what those import for streaming, grammars and the rest of the engine is left out,
which no one-time parse runs. They see a text, never ids.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Collection, Sequence
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, NamedTuple

from oracles import tool_classes, wheel

Json = dict[str, Any]
_ABSENT = ("sglang", "transformers", "partial_json_parser")


class Read(NamedTuple):
    """`calls`: name and arguments."""

    reasoning: str
    content: str
    calls: list[tuple[str, Any]]


def sglang_reads(
    text: str, kind: Literal["qwen25", "qwen3_coder"], tools: Sequence[Json] = (), *, opened: bool | None = None
) -> Read:
    """Reasoning first, then calls in what is left, as `serving_chat.py` does it. `opened`: by the prompt; None: the
    server runs without a reasoning parser."""
    reasoning = ""
    if opened is not None:
        split = _reasoning()["Qwen3Detector"](force_reasoning=opened).detect_and_parse(text)
        reasoning, text = split.reasoning_text, split.normal_text
    _, tool_class = tool_classes()
    found = _detector(kind)().detect_and_parse(text, [tool_class(**tool) for tool in tools])
    return Read(reasoning, found.normal_text, [(one.name, json.loads(one.parameters)) for one in found.calls])


@cache
def _reasoning() -> Json:
    kept = ("StreamingParseResult", "BaseReasoningFormatDetector", "Qwen3Detector")
    return _cut("parser/reasoning_parser.py", {"PreTrainedTokenizerBase": Any, "AnswerFrame": Any}, kept)


@cache
def _detector(kind: str) -> Any:
    _, tool_class = tool_classes()
    flags = SimpleNamespace(SGLANG_FORWARD_UNKNOWN_TOOLS=SimpleNamespace(get=lambda: False))  # its default
    names = {"Tool": tool_class, "ToolChoice": Any, "Allow": Any, "MalformedJSON": ValueError, "envs": flags}
    for file in ("core_types", "utils", "base_format_detector", f"{kind}_detector"):
        names |= _cut(f"function_call/{file}.py", names)
    return names[{"qwen25": "Qwen25Detector", "qwen3_coder": "Qwen3CoderDetector"}[kind]]


def _cut(file: str, names: Json, kept: Collection[str] = ()) -> Json:
    """What a file defines, run without the imports that are absent here; of its classes those in `kept`, or all."""
    path = wheel("sglang", "0.5.23") / "sglang" / "srt" / file
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_ABSENT))
        and not (isinstance(node, ast.Import) and node.names[0].name in _ABSENT)
        and not (kept and not isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "name", "") not in kept)
    ]
    module = ModuleType(f"oracle_{path.stem}")
    sys.modules[module.__name__] = module  # pydantic resolves the annotations of a class in its module
    module.__dict__.update(names)
    exec(compile(ast.Module(body, []), str(path), "exec"), module.__dict__)
    return module.__dict__
