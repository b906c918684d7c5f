"""Whether what a client sends back is what a session stores."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import starmap
from typing import Any, Final

import orjson

from tito_core.errors import MessageError, SessionError
from tito_core.prompts.messages import Message, Tool, ToolCall
from tito_core.sessions.custom import Custom
from tito_core.sessions.turn import Turn
from tito_core.tokens.codec import Codec

__all__ = [
    "Match",
    "Matcher",
    "closest",
    "difference",
    "edited",
    "same_tools",
    "spelled",
    "strict",
    "tool_arguments",
]

Match = Callable[[Message, Message], bool]
"""Whether a stored message (the first) is what a client sent (the second); both are normalised."""

_IGNORED: Final = frozenset(("refusal", "annotations", "audio"))
_PLAIN: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
_KNOWN: Final = frozenset(("role", "content", "reasoning_content", "reasoning", "tool_calls")) | _IGNORED


def strict(stored: Message, sent: Message) -> bool:
    """Role, content, reasoning, and calls with their arguments in the order in which they were sampled."""
    return stored.reasoning == sent.reasoning and _same(stored, sent, _same_text)


def tool_arguments(stored: Message, sent: Message) -> bool:
    """The same, but arguments are compared as JSON objects, without key order, and 1 is not 1.0 is not true.

    A client that leaves an assistant's reasoning out still matches: many do. Other reasoning than the stored does not.
    """
    return (stored.reasoning == sent.reasoning or not sent.reasoning) and _same(stored, sent, same_json)


_MATCHERS: Final[dict[str, Match]] = {"strict": strict, "tool_arguments": tool_arguments}


class Matcher:
    """Finds the stored turns that a request's messages begin with. `match` is a name of ours, a callable or its path."""

    def __init__(self, codec: Codec, match: str | Match) -> None:
        self._codec = codec
        self._match = Custom("matcher", match, _MATCHERS, 2)
        self.name = self._match.name
        self._known: dict[Turn, tuple[bytes, Message | None, Message]] = {}
        self._line: tuple[Turn | None, list[dict[str, Any]]] = None, []

    def found(self, turns: Sequence[Turn], sent: Sequence[Any]) -> dict[Turn | None, Message | None]:
        """The turns whose conversation begins `sent`, each with its message under the ids that the client gave its calls.

        None is there too: every request begins with nothing. Raises SessionError where a matcher fails.
        """
        found: dict[Turn | None, Message | None] = {None: None}
        if turns and self._match.ours and self._continued(turns[-1], sent):
            found |= {turn: turn.message for turn in turns[-1].line}
        for turn in turns:
            if turn not in found and turn.parent in found and turn.length <= len(sent):
                echo = self._echo(turn, found[turn.parent], sent[turn.start : turn.length])
                if echo is not None:
                    found[turn] = echo
        return found

    def appended(self, turn: Turn, echo: Message, sent: Sequence[Any]) -> tuple[Message, ...]:
        """The messages after a turn, normalised, with results under the ids that were sampled. Raises MessageError."""
        made = self._codec.normalise(sent[turn.length :], after=echo, start=turn.length)
        return _results_of(turn.message, echo, made)

    def same(self, stored: Message, sent: Message) -> bool:
        """Whether they match, by all but the ids of calls that they answer: results stand in the order of their calls."""
        answer = self._match(
            *(one if one.tool_call_id is None else replace(one, tool_call_id=None) for one in (stored, sent))
        )
        if type(answer) is not bool:
            raise self._match.refuse(f"answered {answer!r}; it must answer True or False")
        return answer

    def _continued(self, tip: Turn, sent: Sequence[Any]) -> bool:
        """Whether a request begins with the newest turn's conversation in our own spelling: of most requests the whole cost.
        There are texts alone in it, so that what equals it is it."""
        line, spelled = self._line
        if line is not tip:
            begun = spelled if line and line is tip.parent else _wire(tip.parent.line if tip.parent else ())
            spelled = begun + _wire((tip,))
            self._line = tip, spelled
        return len(spelled) == tip.length and sent[: tip.length] == spelled

    def _echo(self, turn: Turn, after: Message | None, sent: Sequence[Any]) -> Message | None:
        before = turn.parent.message if turn.parent else None
        if self._match.ours and after is before and _spelled(turn, sent, self._match.function is strict):
            return turn.message
        digest = _digest(sent) if self._match.ours else None  # another may answer otherwise the next time
        if digest and (known := self._known.get(turn)) and known[0] == digest and known[1] is after:
            return known[2]
        own = (*turn.messages, turn.message)
        try:
            made = self._codec.normalise(sent, after=after, start=turn.start)
        except MessageError:
            return None
        if len(made) != len(own) or not all(map(self.same, own, made)):
            return None
        echo = self._labelled(turn.message, made[-1])
        if digest:
            self._known[turn] = digest, after, echo
        return echo

    def _labelled(self, stored: Message, echo: Message) -> Message:
        """A stored message with the ids that the client gave its calls, where it gave others."""
        calls = [*zip(stored.tool_calls, echo.tool_calls, strict=False)]
        if all(theirs.id in (None, ours.id) for ours, theirs in calls):
            return stored
        if len(stored.tool_calls) != len(echo.tool_calls) or not all(starmap(_same_call, calls)):
            if {call.id for call in echo.tool_calls} <= {call.id for call in stored.tool_calls}:
                return stored  # a matcher of the user's own, and calls in another order: the ids tell which is which
            names, theirs = (", ".join(call.name for call in one.tool_calls) for one in (stored, echo))
            if names != theirs:
                raise self._match.refuse(
                    f"takes the calls of {theirs} for those of {names}, under ids that are not theirs: which result is "
                    "which call's can't be told; it must not, or the client must send the ids that were sampled"
                )
        return replace(stored, tool_calls=tuple(replace(ours, id=theirs.id or ours.id) for ours, theirs in calls))


def closest(found: Mapping[Turn | None, Message | None], sent: Sequence[Any]) -> Turn | None:
    """Of the turns found, the deepest; of several the one whose line has most of the ids that the client gives to calls, then
    of the reasoning that it sends, then one that was not cut by length, then the newest."""
    depth = max((turn.length for turn in found if turn), default=0)

    def likeness(turn: Turn) -> tuple[int, int, bool, int]:
        others = sum(found[one] is not one.message for one in turn.line)
        unsaid = sum(one.message.reasoning != _reasoning(sent[one.length - 1]) for one in turn.line)
        return -others, -unsaid, turn.finish_reason != "length", turn.number

    deepest = [turn for turn in found if turn and turn.length == depth]
    return deepest[0] if len(deepest) == 1 else max(deepest, key=likeness, default=None)


def _reasoning(sent: Any) -> str:
    if isinstance(sent, Message):
        return sent.reasoning
    return sent.get("reasoning_content") or sent.get("reasoning") or ""


def _spelled(turn: Turn, sent: Sequence[Any], strictly: bool) -> bool:
    """Whether what a client sent surely is a turn's messages: what normalising it would show, without doing it."""
    reply = turn.message
    try:
        for stored, raw in zip(turn.messages, sent, strict=False):
            if (
                raw["content"] != stored.content
                or type(raw) is not dict
                or raw["role"] != stored.role
                or len(raw) != 2 + (stored.role == "tool") + (stored.name is not None)
                or raw.get("name") != stored.name
                or raw.get("tool_call_id") != stored.tool_call_id
                or stored.role == "assistant"
                or stored.tools
                or stored.response_format
            ):
                return False
        raw = sent[-1]
        if type(raw) is not dict or raw["role"] != "assistant" or not raw.keys() <= _KNOWN:
            return False
        content, one, other, calls = map(raw.get, ("content", "reasoning_content", "reasoning", "tool_calls"))
        said = one or other or ""
        return (
            ("" if content is None else content) == reply.content
            and all(text is None or type(text) is str for text in (one, other))
            and (said == reply.reasoning or not (said or strictly))
            and (not other or other == said)
            and (calls is None or type(calls) is list)
            and len(calls or ()) == len(reply.tool_calls)
            and all(map(_spelled_call, reply.tool_calls, calls or ()))
        )
    except Exception:  # what a client sends can be anything; normalising it says what is wrong
        return False


def _wire(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Turns as a client sends them that echoes what it got; not those with messages of more than texts."""
    made: list[dict[str, Any]] = []
    for turn in turns:
        if any(one.role == "assistant" or one.tools or one.response_format for one in turn.messages):
            continue
        reply = turn.message.wire()
        for call, stored in zip(reply.get("tool_calls", ()), turn.message.tool_calls, strict=True):
            call["function"]["arguments"] = stored.text or call["function"]["arguments"]
        made += [*(one.wire() for one in turn.messages), reply]
    return made


def _digest(sent: Sequence[Any]) -> bytes | None:
    """Of a client's own spelling; None where it is no plain JSON."""
    try:
        data = orjson.dumps(sent, option=_PLAIN)
        if b"null" in data:
            json.dumps(sent, allow_nan=False)  # NaN is null to orjson
        return blake2b(data, digest_size=16).digest()
    except (TypeError, ValueError):
        return None


def _same_call(stored: ToolCall, sent: ToolCall) -> bool:
    return stored.name == sent.name and same_json(stored.arguments, sent.arguments)


def _same(stored: Message, sent: Message, same_arguments: Callable[[Any, Any], bool]) -> bool:
    return (
        stored.role == sent.role
        and stored.content == sent.content
        and (stored.name == sent.name or (stored.role == "assistant" and stored.name is None))  # a client names replies
        and len(stored.tool_calls) == len(sent.tool_calls)
        and all(
            one.name == other.name and same_arguments(one.arguments, other.arguments)
            for one, other in zip(stored.tool_calls, sent.tool_calls, strict=True)
        )
        and same_json(stored.response_format, sent.response_format)
        and same_json([tool.function for tool in stored.tools], [tool.function for tool in sent.tools])
    )


def _spelled_call(stored: ToolCall, raw: Any) -> bool:
    function = raw["function"]
    text = function["arguments"]
    return (
        raw["id"] == stored.id
        and function["name"] == stored.name
        and type(text) is str
        and (text == stored.text or text == json.dumps(stored.arguments))
    )


def _results_of(stored: Message, echo: Message, made: tuple[Message, ...]) -> tuple[Message, ...]:
    """Messages after an assistant's, whose results (in the order of its calls) get the ids of the stored calls again."""
    if echo is stored:
        return made
    calls = len(stored.tool_calls) if made and made[0].role == "tool" else 0
    results = [
        replace(result, tool_call_id=call.id) for result, call in zip(made[:calls], stored.tool_calls, strict=True)
    ]
    return (*results, *made[calls:])


def difference(stored: Message, sent: Message) -> str:
    """The first thing in which two messages that do not match differ; what only `strict` takes for a difference comes last."""
    calls = [
        (f"tool call {number}", *(f"{call.name}({json.dumps(call.arguments)})" for call in pair))
        for number, pair in enumerate(zip(stored.tool_calls, sent.tool_calls, strict=False))
    ]
    alike = [*map(_same_call, stored.tool_calls, sent.tool_calls)]
    for what, ours, theirs in (
        ("the role", stored.role, sent.role),
        ("the content", stored.content, sent.content),
        ("the reasoning", stored.reasoning, sent.reasoning or stored.reasoning),
        ("the number of tool calls", len(stored.tool_calls), len(sent.tool_calls)),
        *(call for call, same in zip(calls, alike, strict=True) if not same),
        ("the reasoning", stored.reasoning, sent.reasoning),
        *calls,
        ("the name", stored.name, sent.name),
    ):
        if ours != theirs:
            return f"{what} {_short(ours)} is stored, {_short(theirs)} was sent"
    if _same(stored, sent, same_json):
        return "nothing that it holds differs, but the session's matcher takes it for another"
    return "its tools or response_format differ"


def edited(
    turns: Sequence[Turn], sent: Sequence[Message], same: Callable[[Message, Message], bool]
) -> tuple[Turn, int] | None:
    """The turn that messages which continue none repeat with something changed, and the place of the first change: the one
    with the most messages that stand unchanged in their place, the newest of equal ones.

    A turn is repeated where its reply stands in its place, or an assistant's message there is the first change. The ids that
    a client gives to calls are no change.
    """
    alike: dict[Turn | None, int] = {None: 0}
    change: dict[Turn | None, int | None] = {None: None}
    repeated = []
    for turn in turns:
        own, theirs = (*turn.messages, turn.message), sent[turn.start : turn.length]
        matches = [*map(same, own, theirs)]
        alike[turn] = alike[turn.parent] + sum(matches)
        change[turn] = change[turn.parent]
        if change[turn] is None and False in matches:
            change[turn] = turn.start + matches.index(False)
        replied = len(matches) == len(own) and theirs[-1].role == "assistant"
        if replied and (matches[-1] or change[turn] == turn.length - 1):
            repeated.append(turn)
    nearest = max(repeated, key=lambda turn: (alike[turn], turn.number), default=None)
    place = change[nearest]
    return None if nearest is None or place is None else (nearest, place)


def _short(value: object) -> str:
    """The value, or both its ends."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:38]} ... {text[-38:]}"


def _same_text(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return json.dumps(left) == json.dumps(right)


def same_json(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal without regard to key order, where a number's type counts."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_json(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(same_json(one, other) for one, other in zip(left, right, strict=True))
    return bool(left == right)


def same_tools(first: tuple[Tool, ...], sent: tuple[Tool, ...]) -> None:
    """Raises SessionError where a request's tools mean something else than the first turn's; key order is no matter."""
    if first is sent:
        return
    before, after = [tool.name for tool in first], [tool.name for tool in sent]
    for name in (*before, *after):
        mine, theirs = ([tool for tool in tools if tool.name == name] for tools in (first, sent))
        if len(mine) < len(theirs):
            what = "is new"
        elif len(mine) > len(theirs):
            what = "is gone"
        elif changed := [pair for pair in zip(mine, theirs, strict=True) if not same_json(*(t.function for t in pair))]:
            before_it, now = (json.dumps(tool.function) for tool in changed[0])
            what = f"changed from {before_it} to {now}"
        else:
            continue
        raise SessionError(
            f"the tool {name!r} {what}, but the first turn's prompt holds the tools it was sampled with; open another "
            "session for other tools",
            tool=name,
        )
    if before != after:
        raise SessionError(
            f"the tools come in the order {after}, and the first turn's prompt holds them as {before}; keep the order",
            tool=after[0],
        )


def spelled(tools: Any) -> bytes | None:
    """The spelling of a request's tools; None where it has none that can be compared."""
    try:
        return orjson.dumps(tools)
    except orjson.JSONEncodeError:
        return None
