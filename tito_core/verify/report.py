"""What a verification found, as data: `Report` is the JSON that `--json` writes."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["CheckResult", "Failure", "Report", "SessionsResult", "TemplateUsed", "VocabularyUsed"]

SCHEMA_VERSION: Final = 1


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VocabularyUsed(_Part):
    """`name` is that of a shipped vocabulary, or `checkpoint`; `title` says whose it is, or where the directory is."""

    name: str
    title: str
    sha256: str
    stands_in_for: str | None


class TemplateUsed(_Part):
    reference: str
    sha256: str


class CheckResult(_Part):
    """One check over all vocabularies: how many conversations and ids it looked at, and whether its promise held."""

    name: str
    promise: str
    conversations: int
    tokens: int
    ok: bool


class SessionsResult(_Part):
    """Whole sessions: how many were driven, how many held, and their mismatches by kind (of the comparator)."""

    driven: int
    passed: int
    turns: int
    calls: int
    tokens: int
    actions: dict[str, int]
    mismatches: dict[str, int]


class Failure(_Part):
    """A broken promise, with the smallest conversation that shows it.

    `first_index` is the place of the first differing id in the expected ids; the id and text runs begin a little
    before it and end a little after it.
    """

    check: str
    vocabulary: str
    what: str
    message_index: int | None = None
    role: str | None = None
    first_index: int | None = None
    expected_ids: tuple[int, ...] = ()
    actual_ids: tuple[int, ...] = ()
    expected_text: str = ""
    actual_text: str = ""
    said: str = ""
    conversation: dict[str, Any] | None = None


class Report(_Part):
    """A verification. `exit_code`: 0 all held, 1 a promise broke.

    `overrides`: what answered in the family's place, as "distribution version (module): question".
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    family: str
    distribution: str
    version: str
    revision: str
    vocabulary: tuple[VocabularyUsed, ...]
    template: TemplateUsed
    overrides: tuple[str, ...]
    seed: int
    seconds: float
    warnings: tuple[str, ...]
    checks: tuple[CheckResult, ...]
    sessions: SessionsResult
    failures: tuple[Failure, ...]
    exit_code: int
