"""Running a verification: every check on its share of the conversations, whole sessions, and a report."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, configuration
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tito_core.families.registry import Registry, default_registry
from tito_core.tokens.compare import KINDS
from tito_core.verify.bench import Bench, Broken, of_error
from tito_core.verify.cases import Conversation, conversations, simpler
from tito_core.verify.checks import CHECKS, Check
from tito_core.verify.driver import Drive, actions, drive
from tito_core.verify.report import (
    CheckResult,
    EngineResult,
    Failure,
    Report,
    SessionsResult,
    TemplateUsed,
    VocabularyUsed,
)

__all__ = ["Progress", "Tally", "reported", "verify"]

Progress = Callable[[str, int, int], None]

SHRINK_SECONDS: Final = 10.0
"""How long one failing check looks for a smaller conversation than the others that failed found."""


def verify(
    family: str,
    *,
    model: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    vocabulary: str | None = None,
    sessions: int = 64,
    conversations: int = 1000,
    seed: int = 0,
    append_roles: Iterable[str] | None = None,
    registry: Registry | None = None,
    progress: Progress | None = None,
) -> Report:
    """Verifies a family on a checkpoint directory, or on the vocabularies that its plugin ships.

    `conversations` and `sessions` are divided among the vocabularies. `progress` is told what runs, how much of it is
    done, and of how much. Raises UnknownFamilyError, PluginError, FamilyError or CheckpointError where there is nothing
    to verify.
    """
    began = time.monotonic()
    known = registry or default_registry
    declared = known.get_family(family)
    names: list[str | None] = [None]
    if model is None and vocabulary is None:
        names = [shipped.name for shipped in declared.vocabularies]
    elif vocabulary is not None:
        names = [vocabulary]
    roles = None if append_roles is None else tuple(append_roles)
    benches = []
    for name in names:
        codec = known.load(family, model=model, revision=revision, vocabulary=name)
        benches.append(Bench(codec, codec.narrowed(roles), seed))
    tally = Tally(progress or (lambda *_: None))
    for bench, share in zip(benches, _shares(conversations, len(benches)), strict=True):
        tally.checks(bench, share)
    for number, (bench, share) in enumerate(zip(benches, _shares(sessions, len(benches)), strict=True)):
        tally.sessions(bench, share, first=number * sessions, total=sessions)
    checks = tuple(
        CheckResult(
            name=check.name,
            promise=check.promise,
            conversations=tally.conversations[check.name],
            tokens=tally.tokens[check.name],
            ok=not any(failure.check == check.name for failure in tally.failures),
        )
        for check in CHECKS
    )
    return reported(benches, tally, checks, began)


def reported(
    benches: Sequence[Bench],
    tally: Tally,
    checks: tuple[CheckResult, ...],
    began: float,
    engine: EngineResult | None = None,
) -> Report:
    """The report of what these benches were verified for since `began`, in seconds of the monotonic clock."""
    tally.proved(benches[0])
    codec = benches[0].codec
    return Report(
        family=codec.family.name,
        distribution=codec.loaded.info.distribution,
        version=codec.loaded.info.version,
        revision=codec.revision.name,
        vocabulary=tuple(
            VocabularyUsed(
                name=bench.codec.origin.vocabulary,
                title=bench.codec.origin.title,
                sha256=bench.codec.origin.sha256,
                stands_in_for=bench.codec.origin.stands_in_for,
            )
            for bench in benches
        ),
        template=TemplateUsed(reference=codec.template.reference, sha256=codec.template.sha256),
        overrides=codec.loaded.overrides,
        seed=benches[0].seed,
        seconds=time.monotonic() - began,
        warnings=(*(warning for bench in benches for warning in bench.codec.origin.warnings), *tally.warnings),
        checks=checks,
        sessions=tally.result(),
        failures=tuple(tally.failures),
        exit_code=(3 if tally.lost else 1) if tally.failures else 0,
        engine=engine,
    )


class Tally:
    """Counts of a verification while it runs. `lost`: the engine was, so that nothing is said about the family."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.conversations: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.failures: list[Failure] = []
        self.warnings: list[str] = []
        self.lost = False
        self._small: list[Conversation] = []
        self._driven = self._passed = self._appended = self._turns = self._calls = self._ids = 0
        self._actions: Counter[str] = Counter()
        self._mismatches: Counter[str] = Counter(dict.fromkeys(KINDS, 0))

    def checks(self, bench: Bench, share: int) -> None:
        broken: dict[str, tuple[Conversation | None, Broken]] = {}
        for check in CHECKS:
            if check.once is not None:
                try:
                    self.conversations[check.name] += _guarded(partial(check.once, bench))
                except Broken as found:
                    broken[check.name] = (None, found)
        done = 0

        def examine(conversation: Conversation) -> None:
            nonlocal done
            done += 1
            self.progress(f"checks on {bench.codec.origin.vocabulary}", done, share)
            for check in CHECKS:
                if check.each is None or check.name in broken:
                    continue
                try:
                    tokens = _guarded(partial(check.each, bench, conversation))
                except Broken as found:
                    broken[check.name] = (conversation, found)
                    continue
                if tokens:
                    self.conversations[check.name] += 1
                    self.tokens[check.name] += tokens

        for case in bench.codec.loaded.cases():
            mode = bench.codec.decide(chat_template_kwargs=case.chat_template_kwargs).enabled
            examine(Conversation.of(case, mode))
        done = 0
        if share:
            _generate(bench, examine, share)
        for check in CHECKS:
            if check.name in broken and not any(failure.check == check.name for failure in self.failures):
                conversation, cause = broken[check.name]
                if conversation is not None:
                    self.progress(f"shrinking {check.name}", 0, 1)
                    conversation, cause = self._smallest(bench, check, conversation, cause)
                self.failures.append(_failure(bench, check.name, conversation, cause))

    def _smallest(
        self, bench: Bench, check: Check, conversation: Conversation, cause: Broken
    ) -> tuple[Conversation, Broken]:
        """A small conversation that breaks a check: one that broke another check already, or the smallest found."""
        assert check.each is not None
        for known in self._small:
            try:
                _guarded(partial(check.each, bench, known))
            except Broken as found:
                return known, found
        smallest = _smallest(bench, check.each, conversation, cause)
        self._small.append(smallest[0])
        return smallest

    def sessions(self, bench: Bench, share: int, *, first: int, total: int) -> None:
        for number in range(share):
            self.progress("sessions", self._driven, total)
            done = drive(bench, bench.seed * 1_000_003 + first + number)
            self.drove(done)
            if done.broken is not None:
                self.fail("sessions", bench, f"session {number}: {done.broken.what}", done, **done.broken.details)

    def drove(self, done: Drive) -> None:
        self._driven += 1
        self._turns += done.turns
        self._calls += done.calls
        self._ids += done.tokens
        self._actions.update(done.actions)
        self._mismatches.update(done.mismatches)
        self._passed += done.broken is None
        self._appended += any(turn.parent for turn in done.committed)

    def fail(self, check: str, bench: Bench, what: str, done: Drive | None = None, **details: Any) -> None:
        """The first failure of a check is reported."""
        if not any(failure.check == check for failure in self.failures):
            if done is not None:
                details["conversation"] = _json({"messages": done.messages})
            self.failures.append(Failure(check=check, vocabulary=bench.codec.origin.vocabulary, what=what, **details))

    def proved(self, bench: Bench) -> None:
        """Sessions that appended nothing, or whose schedule answers tool calls and that saw none, have proved nothing."""
        schedule = actions(bench.roles, bench.codec.family.boundary)
        if not self._driven or self.lost:
            return
        what = ""
        if not self._appended:
            what = (
                f"nothing was appended in {self._driven} sessions, each ended with its first turn: this proves nothing"
            )
        elif not self._calls and "tool_results" in schedule:
            what = (
                f"{self._driven} sessions answer tool calls, and the engine made none: this proves nothing about them"
            )
        if what:
            self.failures.append(Failure(check="sessions", vocabulary=bench.codec.origin.vocabulary, what=what))

    def result(self) -> SessionsResult:
        return SessionsResult(
            driven=self._driven,
            passed=self._passed,
            turns=self._turns,
            calls=self._calls,
            tokens=self._ids,
            actions={name: count for name, count in sorted(self._actions.items()) if count},
            mismatches={kind: self._mismatches[kind] for kind in KINDS},
        )


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (1 if number < total % parts else 0) for number in range(parts)]


def _guarded(check: Callable[[], int]) -> int:
    """What a check returns. Whatever else than Broken it raises is a promise that broke too, a plugin's own fault."""
    try:
        return check()
    except Broken:
        raise
    except Exception as cause:
        raise of_error(cause) from cause


def _generate(bench: Bench, examine: Callable[[Conversation], None], examples: int) -> None:
    @hypothesis.seed(bench.seed)
    @hypothesis.settings(
        max_examples=examples,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        derandomize=False,
        verbosity=Verbosity.quiet,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(conversations(bench.codec.family, bench.roles))
    def run(conversation: Conversation) -> None:
        examine(conversation)

    # What it keeps for its next run, it keeps in the current directory: a user's, where it has no business.
    with tempfile.TemporaryDirectory() as home:
        before = getattr(configuration, "__hypothesis_home_directory", None)
        configuration.set_hypothesis_home_dir(home)
        try:
            with _nothing_local():
                run()
        finally:
            configuration.set_hypothesis_home_dir(before)


@contextmanager
def _nothing_local() -> Iterator[None]:
    """Hypothesis draws the constants too of whatever code this process has imported from outside of site-packages; a seed
    would generate other conversations in another checkout, or from another caller. It has no setting for that."""
    before = providers._get_local_constants
    providers._get_local_constants = Constants
    providers.CONSTANTS_CACHE.cache.clear()
    try:
        yield
    finally:
        providers._get_local_constants = before
        providers.CONSTANTS_CACHE.cache.clear()


def _smallest(
    bench: Bench, each: Callable[[Bench, Conversation], int], conversation: Conversation, cause: Broken
) -> tuple[Conversation, Broken]:
    """The smallest conversation found, within the time, that breaks the check too: a step at a time, while one does."""
    until = time.monotonic() + SHRINK_SECONDS
    best, smaller = (conversation, cause), True
    while smaller:
        smaller = False
        for candidate in simpler(best[0], bench.codec.family, bench.roles):
            if time.monotonic() > until:
                return best
            if candidate == best[0]:
                continue
            try:
                _guarded(partial(each, bench, candidate))
            except Broken as found:
                best, smaller = (candidate, found), True
                break
    return best


def _json(value: dict[str, Any]) -> dict[str, Any]:
    """The value as it is after a trip through JSON: what a report holds."""
    made: dict[str, Any] = json.loads(json.dumps(value))
    return made


def _failure(bench: Bench, check: str, conversation: Conversation | None, cause: Broken) -> Failure:
    saved: dict[str, Any] | None = None
    if conversation is not None:
        saved = _json({**dataclasses.asdict(conversation), "messages": conversation.messages()})
    return Failure(
        check=check,
        vocabulary=bench.codec.origin.vocabulary,
        what=cause.what,
        said=conversation.said() if conversation else "",
        conversation=saved,
        **cause.details,
    )
