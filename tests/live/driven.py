"""Sessions of `tito verify` on a real SGLang: an engine that is told what to say, and what holds of every report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from brief import brief
from drawn import codec
from sglang_server import Server, processor
from tito_core import Completion, Request, SGLangEngine
from tito_core.tokens.compare import FAULTS
from tito_core.verify.report import Report

AT_ONCE = 32
FEW = 16
MOST = 16
"""Ids a random turn: a session takes some nine turns, and the server makes some 45 ids a second."""


def sessions(usual: int) -> int:
    """How many to drive: `usual`, unless TITO_LIVE_SESSIONS says otherwise."""
    return int(os.environ.get("TITO_LIVE_SESSIONS") or usual)


class Scripted(SGLangEngine):
    """The real server, made to sample what the scripted engine says: thoughts, calls, cut turns, garbled calls."""

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server.url, fields={"custom_logit_processor": processor()}, **options)
        self.codec = codec(server.vocabulary)

    def complete(self, request: Request, *, max_tokens: int, sampling: Mapping[str, Any] = {}) -> Completion:
        ids, most = brief(self.codec, request)
        return super().complete(request, max_tokens=most, sampling={"custom_params": {"script": ids}})


def held(report: Report, driven: int) -> None:
    assert report.failures == ()
    assert (report.sessions.driven, report.sessions.passed, report.exit_code) == (driven, driven, 0)
    assert {kind: report.sessions.mismatches[kind] for kind in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert all(check.ok for check in report.checks)
    assert report.engine is not None
    assert len(report.engine.mismatches) == driven
