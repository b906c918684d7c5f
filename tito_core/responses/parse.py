"""A completion's ids read back as an assistant message, by the parser that its family declares.

The parser sees text and control tokens, never ids, so what is stored and trained on can't depend on it. What it can't
read with certainty is no tool call: it stays visible as content, with a state and the reason.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, Protocol

import numpy as np

from tito_core.errors import CompletionError, FamilyError
from tito_core.families.family import ThinkingDecision, blaming, load_reference
from tito_core.prompts.messages import Message, Tool, ToolCall, normalise
from tito_core.responses.completion import Completion
from tito_core.tokens.append import FinishReason, Ids
from tito_core.tokens.codec import Codec
from tito_core.tokens.encoder import Encoder

__all__ = ["Parsed", "Piece", "ResponseParser", "Sampled", "parse", "strict_json", "tool_call"]

State = Literal["ok", "incomplete", "malformed"]
ENDED: Final = frozenset({"stop", "tool_calls"})
_HEADER_OF: Final = (Message("user", "0"),)


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of `text`, one `control` token, or `bytes` that no character has: those are shown as U+FFFD.

    A control token is an added token of the vocabulary that was sampled as its one id; its characters spelled by
    ordinary tokens are text. `start` to `end` are the completion's ids that hold the piece, for saying where.
    """

    kind: Literal["text", "control", "bytes"]
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion as a family's parser sees it: `pieces` in order, up to the stop token that ended it.

    `opened`: the prompt's generation header opened reasoning. `stop`: the stop token, None where none was sampled.
    `tools`: those that the prompt offered, for formats whose values have a type only there. `controls`: the text of
    every control token that the vocabulary has.
    """

    pieces: tuple[Piece, ...]
    opened: bool
    stop: str | None
    finish_reason: FinishReason
    tools: tuple[Tool, ...] = ()
    controls: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def whole(self) -> bool:
        """Whether the turn ended by itself, by a stop token or a stop string; otherwise it was cut."""
        return self.stop is not None or self.finish_reason in ENDED


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a completion says. `state`: `ok`; `incomplete`, cut before it was whole; or `malformed`. `why`: if not ok.

    Only an ok one has tool calls. Of the others, the text of what was to be a call stands in `content`.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    state: State = "ok"
    why: str = ""

    @property
    def message(self) -> Message:
        return Message("assistant", self.content, self.reasoning, self.tool_calls)


class ResponseParser(Protocol):
    """What `Family.response_parser` names: a function that never raises, whatever was sampled.

    Text is kept to the byte, less what the template itself prints around it. Calls may be left without an id.
    """

    def __call__(self, sampled: Sampled, /) -> Parsed: ...


def parse(codec: Codec, completion: Completion, decision: ThinkingDecision, tools: Sequence[Tool] = ()) -> Parsed:
    """The message that a completion is, to a prompt of this decision and these tools. It reads the ids alone.

    A stop string that ended it is no part of the message, as engines have it, save one that ends a call. A call that has no
    id in the format gets one from the completion's id and its number. A character that was cut at
    the end is left out and said so; other bytes that are no text are U+FFFD, and the state is not ok.

    Raises CompletionError where the family declares no parser, FamilyError where its parser fails, EncodingError for
    an id that the vocabulary lacks.
    """
    family, reference = codec.family, codec.family.response_parser
    if reference is None:
        raise CompletionError(
            f"completion {completion.id} has no message, and {family.name} declares no response_parser; pass the "
            "assistant message that the engine's parsers made",
            id=completion.id,
        )
    ids = np.asarray(completion.ids)
    stop = next((token for token in family.boundary.stop if codec.encoder.token_id(token) == int(ids[-1])), None)
    cut = 0 if stop or completion.finish_reason in ENDED else _pending(codec.encoder, ids)
    opened, controls = _opened(codec, decision), _controls(codec.encoder)

    def read(less: int) -> tuple[Sampled, Parsed]:
        pieces = tuple(_pieces(codec.encoder, ids[: len(ids) - bool(stop)], less))
        sampled = Sampled(pieces, opened, stop, completion.finish_reason, tuple(tools), controls)
        with blaming(
            f"the response parser {reference} of {family.name} failed on completion {completion.id}", FamilyError
        ):
            parsed = load_reference(reference)(sampled)
            if not isinstance(parsed, Parsed):
                raise TypeError(f"it answered a {type(parsed).__name__}; it must answer a Parsed")
            if parsed.state != "ok" and (parsed.tool_calls or not parsed.why):
                raise ValueError(f"what is {parsed.state} has no tool calls, and says why")
        return sampled, parsed

    past, size = _stopped(codec.encoder, ids, completion.stop)
    sampled, parsed = read(cut or past)
    if size and not parsed.tool_calls:
        sampled, parsed = read(past + size)
    if parsed.state == "ok" and (cut or any(piece.kind == "bytes" for piece in sampled.pieces)):
        parsed = Parsed(sampled.text, state="incomplete" if cut else "malformed", why="it holds bytes that are no text")
    calls = tuple(
        call if call.id is not None else replace(call, id=f"call_{completion.id}_{number}")
        for number, call in enumerate(parsed.tool_calls)
    )
    left_out = f"; {cut} byte(s) at its end begin a character that was cut, and are left out" if cut else ""
    return replace(parsed, tool_calls=calls, why=parsed.why + left_out)


def strict_json(text: str) -> Any:
    """The value of a JSON text that says one thing. Raises ValueError: no NaN, no infinity, no key twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def tool_call(name: str, arguments: str, id: str | None = None) -> ToolCall:
    """A call that keeps the exact text of its arguments. Raises ValueError where a session could not store it."""
    strict_json(arguments)
    function = {"name": name, "arguments": arguments}
    return normalise([{"role": "assistant", "tool_calls": [{"id": id, "function": function}]}])[0].tool_calls[0]


def _pieces(encoder: Encoder, ids: Ids, pending: int) -> Iterator[Piece]:
    """The pieces of ids, less so many bytes at their end."""
    place, added = 0, encoder.added_ids
    for edge in (*[at for at, one in enumerate(ids.tolist()) if one in added], len(ids)):
        data = encoder.decode_bytes(ids[place:edge])
        yield from _texts(encoder, ids, place, edge, data[: len(data) - (pending if edge == len(ids) else 0)])
        if edge < len(ids):
            yield Piece("control", encoder.decode(ids[edge : edge + 1]), edge, edge + 1)
        place = edge + 1


def _texts(encoder: Encoder, ids: Ids, start: int, end: int, data: bytes) -> Iterator[Piece]:
    """The pieces of a run without control tokens: text, and between texts the bytes that are none."""
    parts = re.split(r"([\udc80-\udcff]+)", data.decode(errors="surrogateescape"))
    ends = np.cumsum([len(encoder.token_bytes(one)) for one in ids[start:end].tolist()]) if len(parts) > 1 else None
    at = 0
    for number, part in enumerate(parts):
        if not part:
            continue
        held = part.encode(errors="surrogateescape")
        first, last = (0, end - start - 1)
        if ends is not None:
            first, last = np.searchsorted(ends, (at, at + len(held) - 1), side="right").tolist()
        yield Piece("bytes" if number % 2 else "text", held.decode(errors="replace"), start + first, start + last + 1)
        at += len(held)


def _pending(encoder: Encoder, ids: Ids) -> int:
    """How many bytes at the end of ids begin a character that they don't end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(encoder.decode_bytes(ids[-4:]))
    return len(decoder.getstate()[0])


def _stopped(encoder: Encoder, ids: Ids, stop: str | None) -> tuple[int, int]:
    """How many bytes at the end of ids stand past the stop string that the last id completes in a text, and how many it has;
    0 without one."""
    edges = np.flatnonzero(np.isin(ids, list(encoder.added_ids)))
    text, held = encoder.decode_bytes(ids[edges[-1] + 1 if len(edges) else 0 :]), (stop or "").encode()
    before = len(text) - len(encoder.token_bytes(int(ids[-1])))
    place = text.find(held, max(0, before - len(held) + 1)) if held else -1
    return (len(text) - place - len(held), len(held)) if place >= 0 else (0, 0)


def _opened(codec: Codec, decision: ThinkingDecision) -> bool:
    header = codec.render(_HEADER_OF, decision=decision)
    text = header.text[header.spans[-1].start :]
    opener, closer = codec.family.boundary.marks.get("reasoning", ("", ""))
    return bool(opener) and text.rfind(opener) > text.rfind(closer)


@lru_cache(maxsize=4)
def _controls(encoder: Encoder) -> frozenset[str]:
    return frozenset(encoder.decode([one]) for one in encoder.added_ids)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return made


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no JSON number")
    return value
