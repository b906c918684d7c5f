"""Qwen's completions read back as messages: reasoning, content, and calls in JSON (Hermes) or in XML (Qwen3-Coder).

Four parsers: `hermes` (Qwen3, the Thinking-2507 models and Next) and `xml` (3.5, 3.6, 3.8), and each for models that
print no reasoning, `hermes_instruct` (Instruct-2507) and `xml_instruct` (Qwen3-Coder). Written from what the published
chat templates print, and compared with SGLang 0.5.23's own parsers by the tests; docs/qwen-completions.md has the
rules, and where they read more or less than SGLang's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tito_core import Parsed, Piece, Sampled, Tool, ToolCall, strict_json, tool_call

__all__ = ["hermes", "hermes_instruct", "xml", "xml_instruct"]

THINK, UNTHINK = "<think>", "</think>"
CALL, UNCALL = "<tool_call>", "</tool_call>"
MARKS: Final = (THINK, UNTHINK, CALL, UNCALL)
# What a model may write about as it may about any text: in a thought or a call it stands for its own characters, the marks
# of a call in a value of one.
NAMES: Final = frozenset({*MARKS, "<tool_response>", "</tool_response>"})

_FUNCTION: Final = re.compile(r"\s*<function=([^<>\n]*)>\s*")
_PARAMETER: Final = re.compile(
    # The closing mark is the first that a parameter or the function's end follows: a value may hold others.
    r"<parameter=([^<>\n]*)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|</function>\s*\Z)",
    re.DOTALL,
)
_UNFUNCTION: Final = re.compile(r"</function>\s*\Z")
_PYTHONS: Final = {"null": "null", "None": "null", "true": "true", "True": "true", "false": "false", "False": "false"}
_KINDS: Final = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)
_NUMBERS: Final = ("integer", "number")
_TYPES: Final = {
    **{name: frozenset({name}) for name in ("string", "integer", "boolean", "null", "array", "object")},
    **{name: frozenset(_NUMBERS) for name in ("number", "float")},
    **{name: frozenset({as_json}) for name, as_json in (("str", "string"), ("int", "integer"), ("bool", "boolean"))},
    **{name: frozenset({as_json}) for name, as_json in (("list", "array"), ("tuple", "array"), ("dict", "object"))},
}
_dump = json.JSONEncoder(ensure_ascii=False).encode
_decode = json.JSONDecoder().raw_decode
_Types = frozenset[str]


class _NotOk(Exception):
    """Why a completion is no message that can be relied on."""

    state: Literal["malformed", "incomplete"] = "malformed"


class _Incomplete(_NotOk):
    state = "incomplete"

    def __init__(self, sampled: Sampled, where: str) -> None:
        super().__init__(f"cut in its {where} (finish reason {sampled.finish_reason})")


@dataclass(frozen=True, slots=True)
class _Format:
    """Whether the template prints reasoning, how many line ends it prints between content and a call, what a call is, and
    what follows its values."""

    thinks: bool
    line_ends: int
    call: Callable[[str, Sequence[Tool]], ToolCall]
    values: type[_Strings | _Parameters]


def hermes(sampled: Sampled) -> Parsed:
    """Reasoning, content, and calls as JSON: `<tool_call>`, an object of `name` and `arguments`, `</tool_call>`."""
    return _parse(sampled, _Format(True, 1, _json_call, _Strings))


def hermes_instruct(sampled: Sampled) -> Parsed:
    """`hermes` for models that have no reasoning: an opener of it is a control token that stands nowhere."""
    return _parse(sampled, _Format(False, 1, _json_call, _Strings))


def xml(sampled: Sampled) -> Parsed:
    """Reasoning, content, and calls as XML: `<function=NAME>` with `<parameter=KEY>`, typed by the tool's schema."""
    return _parse(sampled, _Format(True, 2, _xml_call, _Parameters))


def xml_instruct(sampled: Sampled) -> Parsed:
    """`xml` for models that have no reasoning: an opener of it is a control token that stands nowhere."""
    return _parse(sampled, _Format(False, 2, _xml_call, _Parameters))


def _parse(sampled: Sampled, format: _Format) -> Parsed:
    """Reasoning was opened by the prompt, or by a `<think>` that comes first; it ends at the first `</think>`.

    Where nothing closes it, a turn that ended by itself is an answer (malformed, all of it content), and one that was
    cut is still thinking (incomplete, all of it reasoning).
    """
    pieces = tuple(_pieces(sampled))
    itself = bool(format.thinks and not sampled.opened and pieces and _is(pieces[0], THINK))
    thinking = itself or (format.thinks and sampled.opened)
    closer = next((at for at, piece in enumerate(pieces) if _is(piece, UNTHINK)), None) if thinking else None
    reasoning, answer = pieces[:0], pieces
    if closer is not None:
        reasoning, answer = pieces[itself:closer], pieces[closer + 1 :]
    elif thinking and not sampled.whole:
        reasoning, answer = pieces[itself:], pieces[:0]
    thought, rest = _text(reasoning), _text(answer)
    thought = (thought.removeprefix("\n") if itself else thought).removesuffix("\n")
    head = len(rest) - len(rest.removeprefix("\n").removeprefix("\n")) if closer is not None else 0
    try:
        for piece in reasoning:
            _check(piece, NAMES)
        if thinking and closer is None:
            if not sampled.whole:
                raise _Incomplete(sampled, "reasoning")
            raise _NotOk(f"{'it' if itself else 'the prompt'} opened reasoning, and no {UNTHINK} closes it")
        (content, *between), inside = _cut(answer, format.values)
        calls = [format.call(body, sampled.tools) for body in inside[: len(between)]]
        if after := next((text for text in between if text.strip()), None):
            raise _NotOk(f"{after.strip()[:40]!r} stands after a call, where only another call may")
        if not sampled.whole:
            raise _Incomplete(sampled, "calls" if inside else "content")
        if len(inside) > len(between):
            raise _NotOk(f"a call is not closed: {UNCALL} is missing")
    except _NotOk as cause:
        return Parsed(rest[head:], thought, (), cause.state, str(cause))
    content = content[head:]
    for _ in range(format.line_ends if calls else 0):
        content = content.removesuffix("\n") or content  # printed after content alone: a line end by itself is content
    return Parsed(content, thought, tuple(calls))


def _cut(pieces: Sequence[Piece], values: type[_Strings | _Parameters]) -> tuple[list[str], list[str]]:
    """The texts outside of calls and inside: one more outside, unless the last call is still open."""
    sides: tuple[list[list[str]], list[list[str]]] = [[]], []
    value = values()
    for piece in pieces:
        within = len(sides[0]) == len(sides[1])
        text = within and piece.text in (CALL, UNCALL) and value.open
        if _is(piece, UNCALL if within else CALL) and not text:
            sides[not within].append([])
            value = values()
        else:
            _check(piece, NAMES if text else NAMES - {CALL} if within else frozenset())
            sides[within][-1].append(piece.text)
            value.feed(piece.text)
    outside, inside = (["".join(parts) for parts in side] for side in sides)
    return outside, inside


def _pieces(sampled: Sampled) -> Iterator[Piece]:
    """The pieces, and marks of their own where the vocabulary has a mark as no control token: its text is one then."""
    spelled = [re.escape(mark) for mark in MARKS if mark not in sampled.controls]
    for piece in sampled.pieces:
        parts = re.split(f"({'|'.join(spelled)})", piece.text) if spelled and piece.kind == "text" else [piece.text]
        for number, part in enumerate(parts):
            if part:
                yield Piece("control" if number % 2 else piece.kind, part, piece.start, piece.end)


def _is(piece: Piece, mark: str) -> bool:
    return (piece.kind, piece.text) == ("control", mark)


def _check(piece: Piece, names: frozenset[str]) -> None:
    """Refuses what is no text: bytes, and control tokens but these."""
    where = f"ids {piece.start} to {piece.end - 1} of the completion"
    if piece.kind == "bytes":
        raise _NotOk(f"{where} hold bytes that no character has")
    if piece.kind == "control" and piece.text not in names:
        raise _NotOk(f"the control token {piece.text} stands where the format has none: {where}")


class _Strings:
    """Whether a string of JSON is open, piece by piece: its quotes are odd, those aside that a backslash escapes."""

    open = False
    _escaping = False

    def feed(self, text: str) -> None:
        plain = re.sub(r"\\.", "", "\\" + text if self._escaping else text, flags=re.DOTALL)
        self._escaping = plain.endswith("\\")
        self.open ^= plain.count('"') % 2 == 1


class _Parameters:
    """Whether a parameter of XML is open, piece by piece, and what follows is no mark of a call that lacks its end."""

    open = False
    _begun = False

    def feed(self, text: str) -> None:
        begins, ends = text.rfind("<parameter="), text.rfind("</parameter>")
        if begins != ends:
            self._begun = begins > ends
        self.open = self._begun and _UNFUNCTION.search(text) is None


def _json_call(body: str, tools: Sequence[Tool]) -> ToolCall:
    try:
        made = strict_json(body)
    except ValueError as cause:
        raise _NotOk(f"a call is no JSON ({cause}): {body.strip()[:40]!r}") from None
    if not isinstance(made, dict) or set(made) != {"name", "arguments"}:
        raise _NotOk(f"a call is no object of name and arguments alone: {body.strip()[:40]!r}")
    return _call(made["name"], _members(body)["arguments"])


def _members(text: str) -> dict[str, str]:
    """The values of a JSON object, each as it is written."""
    found, at = dict[str, str](), text.index("{") + 1
    while text[_after(text, at)] != "}":
        key, at = _decode(text, _after(text, at))
        start = _after(text, _after(text, at) + 1)
        _, end = _decode(text, start)
        found[key] = text[start:end]
        at = _after(text, end)
        at += text[at] == ","
    return found


def _after(text: str, at: int) -> int:
    """Where the white space at this place ends."""
    return len(text) - len(text[at:].lstrip(" \t\r\n"))


def _xml_call(body: str, tools: Sequence[Tool]) -> ToolCall:
    if (head := _FUNCTION.match(body)) is None:
        raise _NotOk(f"a call is broken: {body[:40]!r} stands where <function=NAME> should")
    schema = next((tool.function.get("parameters") for tool in tools if tool.name == head[1]), None)
    at, arguments = head.end(), list[str]()
    while (parameter := _PARAMETER.match(body, at)) is not None:
        if "<parameter=" in parameter[2]:
            raise _NotOk(
                f"the call of {head[1]!r} says two things: the parameter {parameter[1]!r} holds <parameter=, or is not "
                "closed before it"
            )
        arguments.append(f"{_dump(parameter[1])}: {_value(parameter[2], _types_of(schema, parameter[1]))}")
        at = parameter.end()
    if _UNFUNCTION.match(body, at) is None:
        raise _NotOk(
            f"the call of {head[1]!r} is broken: {body[at : at + 40]!r} stands where a whole parameter or "
            "</function> should"
        )
    return _call(head[1], "{" + ", ".join(arguments) + "}")


def _value(text: str, types: _Types) -> str:
    """A value as JSON: what its text says in one of `types`, else the text, which nothing is taken from.

    Null where that is a type comes before string, and string before every other. `True`, `False` and `None` are read as
    Python prints them.
    """
    plain = _PYTHONS.get(text, text)
    if plain == "null" and plain in types:
        return plain
    if "string" not in types:
        try:
            if _type(strict_json(plain)) in types:
                return plain
        except ValueError:
            pass
    return _dump(text)


def _types_of(schema: Any, key: str) -> _Types:
    """The types that a tool's schema gives a parameter: string alone where it says nothing that is understood."""
    return _union([_types(one, schema) for one in _declared(schema, key)]) or _TYPES["string"]


def _declared(schema: Any, key: str) -> Iterator[Any]:
    """What a schema says of a property, in itself and in the alternatives that it is put together from."""
    if isinstance(schema, dict):
        if isinstance(properties := schema.get("properties"), dict) and key in properties:
            yield properties[key]
        for keyword in ("anyOf", "oneOf", "allOf"):
            for branch in _list(schema, keyword):
                yield from _declared(branch, key)


def _types(schema: Any, root: dict[str, Any], seen: frozenset[str] = frozenset()) -> _Types | None:
    """The JSON types that a schema allows; None where any. A number may be an integer.

    References into the tool's own schema are followed; one that leads to itself adds nothing.
    """
    if not isinstance(schema, dict):
        return None
    allowed: list[_Types | None] = []
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        allowed.append(_union([_TYPES.get(name) if isinstance(name, str) else None for name in names]))
    if values := [*_list(schema, "enum"), *([schema["const"]] if "const" in schema else [])]:
        allowed.append(frozenset(map(_type, values)))
    allowed += [
        _union([_types(branch, root, seen) for branch in _list(schema, keyword)]) for keyword in ("anyOf", "oneOf")
    ]
    allowed += [_types(branch, root, seen) for branch in _list(schema, "allOf")]
    if isinstance(to := schema.get("$ref"), str):
        allowed.append(frozenset() if to in seen else _types(_at(root, to), root, seen | {to}))
    known = [types for types in allowed if types is not None]
    if not known:
        return _TYPES["object"] if "properties" in schema else _TYPES["array"] if "items" in schema else None
    return frozenset.intersection(*known)


def _union(types: Sequence[_Types | None]) -> _Types | None:
    known = [one for one in types if one is not None]
    return frozenset().union(*known) if known and len(known) == len(types) else None


def _list(schema: dict[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _at(root: Any, reference: str) -> Any:
    """What a reference like `#/$defs/Point` names in the schema, None where it names nothing."""
    if not reference.startswith("#/"):
        return None
    for step in reference[2:].split("/"):
        root = root.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return root


def _type(value: Any) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "null")


def _call(name: Any, arguments: str) -> ToolCall:
    try:
        return tool_call(name, arguments)
    except ValueError as cause:
        raise _NotOk(f"the call of {name!r} can't be kept: {cause}") from None


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)
