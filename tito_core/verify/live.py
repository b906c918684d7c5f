"""Verifying on a live engine: whole sessions at once, and its own render of every first prompt against ours."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np

from tito_core.engines.http import HTTPEngine
from tito_core.errors import EncodingError, EngineError
from tito_core.families.family import ThinkingDecision
from tito_core.families.registry import Registry, default_registry
from tito_core.sessions.counters import told
from tito_core.tokens.append import Append, Ids, Truncation
from tito_core.tokens.codec import Codec
from tito_core.tokens.compare import KINDS
from tito_core.verify.bench import Bench, Broken, same_ids
from tito_core.verify.driver import TOOLS, Drive, Live, drive
from tito_core.verify.report import CheckResult, EngineResult, Report, TurnResult
from tito_core.verify.run import Progress, Tally, reported

__all__ = ["verify_live"]

EARLY: Final = 3
MANY_EARLY: Final = 0.05
LITTLE_REUSE: Final = 0.8


def verify_live(
    family: str,
    engine: HTTPEngine,
    *,
    model: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    vocabulary: str | None = None,
    sessions: int = 64,
    concurrency: int = 16,
    max_tokens: int = 1024,
    truncation: Truncation = "refuse",
    append_roles: Iterable[str] | None = None,
    threshold: float = 0.2,
    launched: str = "",
    seed: int = 0,
    registry: Registry | None = None,
    progress: Progress | None = None,
) -> Report:
    """Drives sessions on a live engine, `concurrency` at a time, each turn at most `max_tokens` ids.

    The engine's own parsers make the messages where it has any. `threshold` bounds the share of turns whose sampled ids
    differ from the canonical ones. Under `refuse` a session ends with its first turn that was cut. `launched` is the command
    that started the engine, for the report.

    Raises EngineError where the engine does not answer at all; one that is lost later is a failure, and the report holds
    what was committed before. FamilyError where the engine's parsers are not the family's. UnknownFamilyError, PluginError,
    FamilyError and CheckpointError as `verify` does.
    """
    began = time.monotonic()
    codec = (registry or default_registry).load(family, model=model, revision=revision, vocabulary=vocabulary)
    bench = Bench(codec, codec.narrowed(None if append_roles is None else tuple(append_roles)), seed)
    engine.rendered([{"role": "user", "content": "0"}], chat_template_kwargs=codec.decide().forward_kwargs)
    if (parsers := engine.parsers()) is not None:
        codec.family.check_parsers(engine.kind, reasoning=parsers.reasoning, tool_call=parsers.tool_call)
    run = _Run(bench, engine, Tally(progress or (lambda *_: None)))
    with ThreadPoolExecutor(concurrency) as pool:
        calls = [pool.submit(run.session, number, max_tokens, truncation) for number in range(sessions)]
        try:
            for number, call in enumerate(calls):
                run.tally.progress(f"sessions on {engine.kind}", number, sessions)
                if (done := call.result()) is not None:
                    run.add(number, done)
        except BaseException:
            run.lost.set()
            engine.cancel()
            raise
    return run.report(max_tokens, threshold, launched, began)


class _Run:
    """One run. What sessions call is safe in their threads."""

    def __init__(self, bench: Bench, engine: HTTPEngine, tally: Tally) -> None:
        self.bench, self.engine, self.tally = bench, engine, tally
        self.lost = threading.Event()
        self.drives: list[Drive] = []
        self._renders: dict[int, tuple[int, Broken | None]] = {}

    def session(self, number: int, max_tokens: int, truncation: Truncation) -> Drive | None:
        if self.lost.is_set():
            return None
        live = Live(self.engine, max_tokens, truncation, partial(self._opened, number))
        done = drive(self.bench, self.bench.seed * 1_000_003 + number, live)
        cause = done.broken.__cause__ if done.broken else None
        if isinstance(cause, EngineError) and cause.where.get("kind") == "unreached":
            self.lost.set()
        return done

    def _opened(self, number: int, messages: list[dict[str, Any]], thinking: bool) -> None:
        """Compares a session's first prompt with the engine's own render of it; every other session's with tools."""
        tools = TOOLS if number % 2 else None
        decision = self.bench.decision(thinking)
        ours = self.bench.codec.prompt(messages, tools=tools, decision=decision, mode="engine")
        theirs = self.engine.rendered(messages, tools=tools, chat_template_kwargs=decision.forward_kwargs)
        self._renders[number] = len(theirs), self._differs(messages, tools, decision, ours, theirs)

    def _differs(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        decision: ThinkingDecision,
        ours: Append,
        theirs: Ids,
    ) -> Broken | None:
        what = "our first prompt is not the one that the server renders of the same messages (expected)"
        try:
            same_ids(self.bench, theirs, ours.ids, what, conversation={"messages": list(messages), "tools": tools})
        except EncodingError as cause:
            return Broken(f"the server renders ids that this vocabulary lacks ({cause}); verify with the server's own")
        except Broken as broken:
            first = broken.details["first_index"]
            likely = _variant(self.bench.codec, messages, tools, decision, theirs) or _place(ours, first)
            broken.what += f"; {likely}"
            return broken
        return None

    def add(self, number: int, done: Drive) -> None:
        self.tally.drove(done)
        self.drives.append(done)
        if done.broken is None:
            return
        cause, what, check = done.broken.__cause__, f"session {number}: {done.broken.what}", "sessions"
        if isinstance(cause, EngineError):
            check = "engine"
            what += f" ({len(done.committed)} turn(s) of this session were committed, and are kept)"
        known = self.bench.codec.family.explained(what, self.engine.kind)
        self.tally.fail(check, self.bench, what, done, known_issue=known, **done.broken.details)

    def report(self, max_tokens: int, threshold: float, launched: str, began: float) -> Report:
        tally, bench = self.tally, self.bench
        renders = [self._renders[number] for number in sorted(self._renders)]
        for _, broken in renders:
            if broken is not None:
                tally.fail("render", bench, broken.what, **broken.details)
        compared = sum(done.compared for done in self.drives)
        other = sum(min(done.mismatches["assistant_text"], done.compared) for done in self.drives)
        share = other / compared if compared else 0.0
        if share > threshold:
            tally.fail(
                "canonical",
                bench,
                f"{other} of {compared} turns ({share:.0%}, at most {threshold:.0%} are allowed) were sampled in other ids "
                "than their text has: harmless to tito, which keeps them, but far from what the model was trained on; see "
                "the temperature, the engine's numerics and its speculation, or allow more",
            )
        turns = [turn for done in self.drives for turn in done.committed]
        metas = [turn.completion.meta for turn in turns]
        accepted = [length for turn in turns if (length := told(turn, "spec_accept_length"))]
        early = sum(turn.finish_reason == "stop" and turn.sampled <= EARLY for turn in turns)
        rows: dict[int, Counter[str]] = {}
        for turn in turns:
            prompt = turn.end - turn.sampled
            shared = turn.parent.end if turn.parent else 0
            cached = min(int(told(turn, "cached_tokens")), shared)
            rows.setdefault(turn.depth, Counter()).update(turns=1, prompt=prompt, shared=shared, cached=cached)
        engine = EngineResult(
            kind=self.engine.kind,
            url=self.engine.url,
            launched=launched,
            max_tokens=max_tokens,
            turns=tuple(TurnResult(**rows[number]) for number in sorted(rows)),
            cut=sum(turn.finish_reason == "length" for turn in turns),
            early=early,
            assistant_text=share,
            threshold=threshold,
            accepted=sum(accepted) / len(accepted) if accepted else None,
            weight_versions=tuple(sorted({str(meta["weight_version"]) for meta in metas if "weight_version" in meta})),
            mismatches=tuple({kind: done.mismatches[kind] for kind in KINDS} for done in self.drives),
        )
        self._warn(engine, len(turns))
        tally.lost = self.lost.is_set()
        failed = {failure.check for failure in tally.failures}
        counts = (len(renders), sum(size for size, _ in renders))
        sampled = (len(turns), sum(turn.sampled for turn in turns))
        checks = (
            ("engine", "every answer has the ids and log-probs that a trainer needs", *sampled),
            ("render", "the server renders a first prompt as we do", *counts),
            ("canonical", f"at most {threshold:.0%} of turns are in other ids than their text has", compared, 0),
        )
        results = tuple(
            CheckResult(name=name, promise=promise, conversations=cases, tokens=tokens, ok=name not in failed)
            for name, promise, cases, tokens in checks
        )
        return reported([bench], tally, results, began, engine)

    def _warn(self, engine: EngineResult, turns: int) -> None:
        shared, cached = (sum(getattr(row, name) for row in engine.turns[1:]) for name in ("shared", "cached"))
        if engine.accepted is not None and cached < LITTLE_REUSE * shared:
            self.tally.warnings.append(
                f"with speculation the engine had only {cached / shared:.0%} of the earlier ids cached: its speculative "
                "path may not reuse prefixes; compare with a profile without speculation"
            )
        if turns and engine.early > MANY_EARLY * turns:
            self.tally.warnings.append(
                f"{engine.early} of {turns} turns stopped within {EARLY} ids: a draft model or a kernel may make false "
                "ends; compare with a profile without speculation"
            )


def _variant(
    codec: Codec,
    messages: list[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None,
    decision: ThinkingDecision,
    theirs: Ids,
) -> str:
    """Which other revision, thinking mode or tools of this family make the server's prompt; empty where none does."""
    for revision in codec.family.revisions:
        other = Codec(codec.loaded, codec.encoder, codec.template, revision, codec.origin)
        for thinking in codec.family.thinking.modes:
            for offered in (tools, None) if tools else (None,):
                ids = other.prompt(messages, tools=offered, decision=other.decide(thinking), mode="engine").ids
                if np.array_equal(ids, theirs):
                    name = codec.family.thinking.forward_as
                    said = [
                        f"revision {revision.name!r}: load that one" if revision != codec.revision else "",
                        f"{name}={thinking}: it was sent {name}={decision.enabled}, and does not heed it"
                        if thinking != decision.enabled
                        else "",
                        "no tools: it was sent them, and does not print them" if offered != tools else "",
                    ]
                    return f"the server's is ours with {', and with '.join(filter(None, said))}"
    return ""


def _place(ours: Append, first: int) -> str:
    """In which part of our prompt the first difference stands, and what that part depends on."""
    spans = ours.spans
    at = next((span for span in spans if span.start <= first < span.end), spans[-1])
    if at.index < 0 and at.source == "content":
        return "it stands in the tools: the server prints them elsewhere, or other fields of them"
    if at.source == "content":
        return f"it stands in the content of message {at.index} ({at.role}): another vocabulary, or content that is changed"
    if first >= spans[-1].start:
        return "it stands in the generation header: see the server's thinking default, or its effort text"
    if at.index == 0:
        return "it stands before or around the first message: see the tool block, or the server's effort text"
    return f"it stands in what the template prints around message {at.index} ({at.role}): another revision of it"
