"""Declarations for tests. It imports nothing heavy: the modules of fake plugins import it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tito_core import AppendRoles, Boundary, ControlToken, Family, Segments, Thinking, Vocabulary
from tito_core.families.family import APPEND_ROLES, Role

if TYPE_CHECKING:
    from tito_core import Message, Rendered, Tool

ROLES: frozenset[Role] = frozenset(APPEND_ROLES)

RULES = AppendRoles(
    roles=ROLES,
    follows={
        "assistant": ROLES,
        "tool": frozenset({"tool", "user", "assistant"}),
        "user": frozenset({"user", "assistant"}),
        "system": frozenset({"system", "user"}),
    },
    ends=frozenset({"tool", "user"}),
)


TINY = b"{}"
"""The file tiny.json of every fake package."""


class Unrenderable:
    """The template of every fake family: a test that renders with it fails."""

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool], kwargs: Mapping[str, Any]) -> Rendered:
        raise AssertionError("rendered")


class Bare:
    """A template that prints what was written, and nothing else."""

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool], kwargs: Mapping[str, Any]) -> Rendered:
        from tito_core import Parts

        parts = Parts()
        for index, message in enumerate(messages):
            parts.content(message.content, index, message.role)
        return parts.rendered()


def declaration(name: str = "fake", **changes: Any) -> dict[str, Any]:
    """The arguments of a whole declaration that core's own defaults serve."""
    return {
        "name": name,
        "models": ("fake/Fake-1",),
        "model_types": ("fake",),
        "template": "fake_families:Unrenderable",
        "fixed_kwargs": {"keep": True},
        "append_roles": RULES,
        "thinking": Thinking(
            aliases=("thinking", "enable_thinking", "thinking_mode"),
            forward_as="thinking",
            default=True,
            words={"thinking_mode": {"thinking": True, "chat": False}},
        ),
        "boundary": Boundary(stop=("<end>",)),
        "segments": Segments(delimiters=("<end>", "<user>", "<assistant>"), headers=("<assistant>",), ends=("<end>",)),
        "control_tokens": tuple(ControlToken(text=text) for text in ("<end>", "<user>", "<assistant>")),
        "vocabularies": (Vocabulary(name="tiny", file="tiny.json", sha256=hashlib.sha256(TINY).hexdigest()),),
        **changes,
    }


def family(name: str = "fake", **changes: Any) -> Family:
    return Family(**declaration(name, **changes))
