"""What a scripted engine says, in fewer words: a real server needs its time for every one of them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tito_core import Codec, Request, ThinkingDecision
from tito_core.engines.scripted import ScriptedEngine


class Brief(ScriptedEngine):
    def reply(self, tools: Sequence[str], decision: ThinkingDecision, calling: bool = True) -> dict[str, Any]:
        message = super().reply(tools, decision, calling)
        for key in {"content", "reasoning_content"} & message.keys():
            message[key] = message[key][:12]
        if message.get("tool_calls"):
            message["tool_calls"] = message["tool_calls"][:2]
        return message


def brief(codec: Codec, request: Request) -> tuple[list[int], int]:
    """Ids for a server to sample, and how many of them: thoughts, calls, cut turns, garbled calls."""
    seed = zlib.crc32(request.ids.tobytes())
    said = Brief(codec, seed, garbled=0.2).complete(request, calling=seed % 2 == 0)
    ids = np.asarray(said.ids).tolist()
    return ids, 1 + seed // 8 % len(ids) if seed % 8 == 0 else len(ids)
