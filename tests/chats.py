"""Conversations with a model that says what it is told, for the tests of sessions.

A completion's ids are `tokenizers` on the published print; its log-probs are numbers that no other completion has.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import tito_core
from tito_core import Codec, Completion, Session, Turn
from token_path import engine_ids
from v32_upstream import upstream_text

Json = dict[str, Any]
TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@cache
def codec() -> Codec:
    return tito_core.load("deepseekv32", vocabulary="r1")


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str, reasoning: str = "r", **more: Any) -> Json:
    return {"role": "assistant", "content": text, "reasoning_content": reasoning, **more}


def call(identity: str, arguments: Any = "{}") -> Json:
    return {"id": identity, "type": "function", "function": {"name": "f", "arguments": arguments}}


def result(identity: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": identity, "content": text}


def said(message: Json, thinking: bool = True) -> Completion:
    """A completion in canonical ids: what stands after the prompt in the published print, as `tokenizers` has it."""
    before = upstream_text([user("0")], [], thinking=thinking)
    whole = upstream_text([user("0"), message], [], thinking=thinking)
    assert whole.startswith(before)
    ids = engine_ids("r1", whole[len(before) :])
    return Completion(
        ids, np.linspace(-1, -0.1, len(ids)), "tool_calls" if message.get("tool_calls") else "stop", message=message
    )


def step(session: Session, messages: list[Json], reply: Json, **kwargs: Any) -> Turn:
    turn = session.commit(session.prepare(messages, **kwargs), said(reply))
    messages.append(reply)
    return turn


def state(session: Session) -> tuple[Any, ...]:
    return session.turns, [turn.ids.tolist() for turn in session.turns]
