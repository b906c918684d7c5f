"""What a verification found, as data: `Report` is the JSON that `--json` writes."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

__all__ = [
    "CheckResult",
    "EngineResult",
    "Failure",
    "Report",
    "SessionsResult",
    "TemplateUsed",
    "TurnResult",
    "VocabularyUsed",
]

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
    known_issue: str = ""
    conversation: dict[str, Any] | None = None


class TurnResult(_Part):
    """All turns of one number: the ids of their prompts, those that they share with the turn before, and those of these
    that the engine had cached."""

    turns: int
    prompt: int
    shared: int
    cached: int


class EngineResult(_Part):
    """What a live engine did. `turns`, by number; `cut` by length; `early` is how many stopped within 3 ids.

    `assistant_text` is the share of turns whose ids differ from the canonical ones, allowed up to `threshold`. `accepted`
    is the mean length that speculation accepted, None without. `mismatches` are those of each session, by kind. `launched` is
    the command that started it, empty where it ran already.
    """

    kind: str
    url: str
    launched: str = ""
    max_tokens: int
    turns: tuple[TurnResult, ...]
    cut: int
    early: int
    assistant_text: float
    threshold: float
    accepted: float | None
    weight_versions: tuple[str, ...]
    mismatches: tuple[dict[str, int], ...]


class Report(_Part):
    """A verification. `exit_code`: 0 all held, 1 a promise broke, 3 the engine was lost.

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
    engine: EngineResult | None = None
