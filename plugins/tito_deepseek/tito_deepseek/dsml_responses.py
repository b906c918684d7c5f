"""Completions of DeepSeek V3.2, V4 and V4.1 read back as messages: reasoning, content, and calls in DSML.

Written from the formats' facts (the published parsers are in `encoding_dsv32.py`, as SGLang 0.5.23 ships it, in
`encoding_dsv4.py`, as 0.5.14 does, and in `deepseek-recipe` 0.2.0) and compared with them by the tests. Where it reads more
or less than the published ones, docs/deepseek-v32.md and docs/deepseek-v4.md say why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from tito_core import Parsed, Piece, Sampled, ToolCall, strict_json, tool_call

__all__ = ["parse_v4", "parse_v32", "parse_v41"]

ANSWER: Final = "</think>"
DSML: Final = "｜DSML｜"
_dump = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True)
class _Dialect:
    """What a block of calls is named, and what stands between a mark and a tag's name."""

    block: str
    space: str = ""

    @property
    def end(self) -> str:
        """What stands after the last mark of a block."""
        return f"{self.space}{self.block}>"

    @cached_property
    def segments(self) -> dict[str, re.Pattern[str]]:
        """What may stand after each mark up to the next one, by what the marks before it opened or closed."""
        space = self.space
        return {
            "block": re.compile(rf"{self.end}\n<"),
            "invoke": re.compile(rf'{space}invoke name="([^"]+)">\n(?:<|\n?</)'),
            "parameter": re.compile(rf'{space}parameter name="([^"]*)" string="(true|false)">(.*)</', re.DOTALL),
            "parameter's end": re.compile(rf"{space}parameter>\n</?"),
            "invoke's end": re.compile(rf"{space}invoke>\n</?"),
            "block's end": re.compile(self.end),
        }


V32, V4, V41 = _Dialect("function_calls"), _Dialect("tool_calls"), _Dialect("calls", " ")


class _NotOk(Exception):
    """Why a completion is no message that can be relied on."""

    state: Literal["malformed", "incomplete"] = "malformed"


class _Incomplete(_NotOk):
    state = "incomplete"

    def __init__(self, sampled: Sampled, where: str) -> None:
        super().__init__(f"cut in its {where} (finish reason {sampled.finish_reason})")


def parse_v32(sampled: Sampled) -> Parsed:
    return _parse(sampled, V32)


def parse_v4(sampled: Sampled) -> Parsed:
    return _parse(sampled, V4)


def parse_v41(sampled: Sampled) -> Parsed:
    return _parse(sampled, V41)


def _parse(sampled: Sampled, dialect: _Dialect) -> Parsed:
    """The message. Reasoning ends at the first `</think>` that was sampled as a control token, never at its spelling.

    Where the prompt opened reasoning and nothing closes it, a turn that ended by itself is an answer (malformed, all of
    it content), and one that was cut is still thinking (incomplete, all of it reasoning).
    """
    closer, reasoning, rest = -1, "", sampled.text
    if sampled.opened:
        marks = (at for at, piece in enumerate(sampled.pieces) if (piece.kind, piece.text) == ("control", ANSWER))
        closer = next(marks, len(sampled.pieces))
        if closer < len(sampled.pieces) or not sampled.whole:
            reasoning, rest = (_text(run) for run in (sampled.pieces[:closer], sampled.pieces[closer + 1 :]))
    try:
        _check_pieces(sampled, closer)
        if DSML in reasoning:
            raise _NotOk(f"{DSML} stands in the reasoning")
        if closer == len(sampled.pieces):
            if not sampled.whole:
                raise _Incomplete(sampled, "reasoning")
            raise _NotOk(f"the prompt opened reasoning, and no {ANSWER} closes it")
        content, calls = _answer(sampled, rest, dialect)
    except _NotOk as cause:
        return Parsed(rest, reasoning, (), cause.state, str(cause))
    return Parsed(content, reasoning, calls)


def _check_pieces(sampled: Sampled, closer: int) -> None:
    """Refuses what can't be text: a control token, bytes, and a mark that is spelled where it is one control token."""
    for at, piece in enumerate(sampled.pieces):
        where = f"ids {piece.start} to {piece.end - 1} of the completion"
        if piece.kind == "bytes":
            raise _NotOk(f"{where} hold bytes that no character has")
        if piece.kind == "control" and at != closer and piece.text != DSML:
            raise _NotOk(f"the control token {piece.text} stands where the format has none: {where}")
        if piece.kind == "text" and DSML in sampled.controls and DSML in piece.text:
            raise _NotOk(f"{where} spell {DSML} in ordinary tokens, and this vocabulary has it as a control token")


def _answer(sampled: Sampled, rest: str, dialect: _Dialect) -> tuple[str, tuple[ToolCall, ...]]:
    """Content and calls of what follows the reasoning. No value can hold a mark, so marks cut it into what is known."""
    before, *segments = rest.split(DSML)
    if not segments:
        if not sampled.whole:
            raise _Incomplete(sampled, "content")
        return rest, ()
    if not before.endswith("\n\n<"):
        raise _NotOk(f"{DSML} stands where no block of calls opens: after {before[-20:]!r}")
    wanted, calls, name, arguments = "block", list[ToolCall](), "", list[str]()
    for number, segment in enumerate(segments, 1):
        found = dialect.segments[wanted].fullmatch(segment)
        if found is None:
            last_is_cut = number == len(segments) and not sampled.whole
            if last_is_cut and (wanted != "block's end" or dialect.end.startswith(segment)):
                break
            raise _NotOk(f"the block of calls is broken: {segment[:40]!r} stands where the {wanted} should")
        closes = segment.endswith("</")
        if wanted == "block":
            wanted = "invoke"
        elif wanted == "invoke":
            name, arguments = found[1], []
            wanted = "invoke's end" if closes else "parameter"
        elif wanted == "parameter":
            arguments.append(_argument(*found.groups()))
            wanted = "parameter's end"
        elif wanted == "parameter's end":
            wanted = "invoke's end" if closes else "parameter"
        elif wanted == "invoke's end":
            calls.append(_call(name, arguments))
            wanted = "block's end" if closes else "invoke"
        else:
            return before[:-3], tuple(calls)
    if not sampled.whole:
        raise _Incomplete(sampled, "block of calls")
    raise _NotOk(f"the block of calls is not closed: the {wanted} is missing")


def _argument(key: str, is_string: str, value: str) -> str:
    if is_string == "false":
        try:
            strict_json(value)
        except ValueError as cause:
            raise _NotOk(f"the parameter {key!r} is said to be JSON, and is not ({cause}): {value[:40]!r}") from None
    return f"{_dump(key)}: {_dump(value) if is_string == 'true' else value}"


def _call(name: str, arguments: list[str]) -> ToolCall:
    try:
        return tool_call(name, "{" + ", ".join(arguments) + "}")
    except ValueError as cause:
        raise _NotOk(f"the call of {name!r} has arguments that can't be kept: {cause}") from None


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)
