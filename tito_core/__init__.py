"""Token-in token-out for reinforcement learning on language-model agents. Names are loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tito_core.engines.engine import Engine
    from tito_core.engines.sglang import SGLangEngine
    from tito_core.engines.vllm import VLLMEngine
    from tito_core.families.diagnosis import Diagnosis
    from tito_core.families.family import (
        NATIVE,
        AppendRoles,
        Boundary,
        Case,
        Checkpoint,
        ControlToken,
        Deployment,
        Effort,
        Family,
        KnownIssue,
        Layer,
        Parsers,
        Recipe,
        Revision,
        Rule,
        Segments,
        Speculative,
        Template,
        Thinking,
        ThinkingDecision,
        ToolSchema,
        Vocabulary,
    )
    from tito_core.families.hooks import hookimpl
    from tito_core.families.installed import FamilyInfo
    from tito_core.families.registry import Registry, diagnose, get_family, list_families, load
    from tito_core.prompts.messages import Message, Tool, ToolCall
    from tito_core.prompts.template import Parts, Rendered, Renderer, Span
    from tito_core.recipes.namespace import from_namespace, to_namespace
    from tito_core.recipes.plan import Command, Plan, plan
    from tito_core.responses.completion import Completion
    from tito_core.responses.parse import Parsed, Piece, Sampled, parse, strict_json, tool_call
    from tito_core.sessions.counters import Counters
    from tito_core.sessions.samples import Sample, SampleTurn
    from tito_core.sessions.session import Session
    from tito_core.sessions.store import MemoryStore, SQLiteStore, Store
    from tito_core.sessions.turn import Request, Turn
    from tito_core.sessions.wire import from_jsonl, from_safetensors, to_jsonl, to_safetensors
    from tito_core.tokens.append import Append
    from tito_core.tokens.codec import Codec
    from tito_core.tokens.compare import Comparator, Mismatch
    from tito_core.tokens.encoder import Encoder

__version__ = "0.1.0"

_HOMES = {
    "tito_core.engines.engine": "Engine",
    "tito_core.engines.sglang": "SGLangEngine",
    "tito_core.engines.vllm": "VLLMEngine",
    "tito_core.families.family": (
        "NATIVE AppendRoles Boundary Case Checkpoint ControlToken Deployment Effort Family KnownIssue Layer Parsers "
        "Recipe Revision Rule Segments Speculative Template Thinking ThinkingDecision ToolSchema "
        "Vocabulary"
    ),
    "tito_core.families.hooks": "hookimpl",
    "tito_core.families.installed": "FamilyInfo",
    "tito_core.families.diagnosis": "Diagnosis",
    "tito_core.families.registry": "Registry diagnose get_family list_families load",
    "tito_core.prompts.messages": "Message Tool ToolCall",
    "tito_core.prompts.template": "Parts Rendered Renderer Span",
    "tito_core.recipes.namespace": "from_namespace to_namespace",
    "tito_core.recipes.plan": "Command Plan plan",
    "tito_core.responses.completion": "Completion",
    "tito_core.responses.parse": "Parsed Piece Sampled parse strict_json tool_call",
    "tito_core.sessions.counters": "Counters",
    "tito_core.sessions.samples": "Sample SampleTurn",
    "tito_core.sessions.session": "Session",
    "tito_core.sessions.store": "MemoryStore SQLiteStore Store",
    "tito_core.sessions.turn": "Request Turn",
    "tito_core.sessions.wire": "from_jsonl from_safetensors to_jsonl to_safetensors",
    "tito_core.tokens.append": "Append",
    "tito_core.tokens.codec": "Codec",
    "tito_core.tokens.compare": "Comparator Mismatch",
    "tito_core.tokens.encoder": "Encoder",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "NATIVE",
    "Append",
    "AppendRoles",
    "Boundary",
    "Case",
    "Checkpoint",
    "Codec",
    "Command",
    "Comparator",
    "Completion",
    "ControlToken",
    "Counters",
    "Deployment",
    "Diagnosis",
    "Effort",
    "Encoder",
    "Engine",
    "Family",
    "FamilyInfo",
    "KnownIssue",
    "Layer",
    "MemoryStore",
    "Message",
    "Mismatch",
    "Parsed",
    "Parsers",
    "Parts",
    "Piece",
    "Plan",
    "Recipe",
    "Registry",
    "Rendered",
    "Renderer",
    "Request",
    "Revision",
    "Rule",
    "SGLangEngine",
    "SQLiteStore",
    "Sample",
    "SampleTurn",
    "Sampled",
    "Segments",
    "Session",
    "Span",
    "Speculative",
    "Store",
    "Template",
    "Thinking",
    "ThinkingDecision",
    "Tool",
    "ToolCall",
    "ToolSchema",
    "Turn",
    "VLLMEngine",
    "Vocabulary",
    "diagnose",
    "from_jsonl",
    "from_namespace",
    "from_safetensors",
    "get_family",
    "hookimpl",
    "list_families",
    "load",
    "parse",
    "plan",
    "strict_json",
    "to_jsonl",
    "to_namespace",
    "to_safetensors",
    "tool_call",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tito_core' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
