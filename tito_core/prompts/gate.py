"""The role gate: which roles may be appended, by adjacent pairs and by the last role. It looks at roles alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tito_core.errors import GateError
from tito_core.families.family import AppendRoles
from tito_core.prompts.messages import Message

__all__ = ["check_append", "check_prompt"]

FIRST_ENDS: Final = frozenset({"user", "developer"})
"""What a first prompt may end with, besides the roles that an append may. A family that appends no user message still
begins with one, and `developer` stands in first prompts only."""


def check_prompt(messages: Sequence[Message], rules: AppendRoles, family: str) -> None:
    """Raises GateError where a first prompt would have no generation header: nothing could be sampled after it."""
    if not messages:
        raise GateError(f"the prompt for {family} has no messages; send at least one", index=None, role=None)
    last, ends = messages[-1].role, rules.ends | FIRST_ENDS
    if last not in ends:
        raise GateError(
            f"message {len(messages) - 1} ({last}) is the last of the prompt, and {family} opens no assistant turn "
            f"after it; a prompt must end with {_either(ends)}",
            index=len(messages) - 1,
            role=last,
        )


def check_append(messages: Sequence[Message], rules: AppendRoles, family: str, start: int) -> None:
    """Raises GateError where messages may not stand after an assistant turn; `start` is the first one's index."""
    if not messages:
        raise GateError(
            f"nothing is appended after message {start - 1} (assistant), and {family} opens no assistant turn after "
            f"it; append a message of {_either(rules.roles)}",
            index=start,
            role=None,
        )
    before = "assistant"
    for offset, message in enumerate(messages):
        index, role = start + offset, message.role
        allowed = rules.follows.get(before, frozenset())  # type: ignore[call-overload]
        if role not in allowed:
            raise GateError(
                f"message {index} ({role}) can't be appended to a {family} session after {_a(before)}: what may stand "
                f"there is {_either(allowed)}",
                index=index,
                role=role,
            )
        before = role
    if before not in rules.ends:
        index = start + len(messages) - 1
        raise GateError(
            f"message {index} ({before}) is the last of the append, and {family} opens no assistant turn after it; "
            f"an append must end with {_either(rules.ends)}",
            index=index,
            role=before,
        )


def _either(roles: Iterable[str]) -> str:
    return " or ".join(sorted(roles)) or "nothing"


def _a(role: str) -> str:
    return "an assistant message" if role == "assistant" else f"a {role} message"
