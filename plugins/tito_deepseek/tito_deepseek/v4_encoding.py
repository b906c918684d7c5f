"""The prompt formats of DeepSeek V4 and V4.1: the encoders, written from the formats' facts.

The fixed strings are those of the published formats: `encoding_dsv4.py`, as SGLang 0.5.14 ships it, and
`deepseek-recipe` 0.2.0, which SGLang 0.5.23 serves with. The text equals theirs byte for byte, which the tests prove
against both; the code is this project's own. It reads each message once, so a render costs what its text costs.

Neither format has a role for tool results: results, and the user messages that follow them, fold into one user turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

from tito_core.errors import TemplateError
from tito_core.prompts.messages import Message, Tool, ToolCall
from tito_core.prompts.template import Parts, Rendered

__all__ = ["V4Encoding", "V41Encoding"]

BOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"
SYSTEM: Final = "<｜System｜>"
USER: Final = "<｜User｜>"
ASSISTANT: Final = "<｜Assistant｜>"
THINK: Final = "<think>"
ANSWER: Final = "</think>"
RESULT: Final = ("<tool_result>", "</tool_result>")
BETWEEN: Final = "\n\n"
RESPONSE_FORMAT: Final = (
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"  # the schema follows
)

ABSOLUTE: Final = """\
Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, \
rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, \
and rejected hypothesis to ensure absolutely no assumption is left unchecked.

"""
BEYOND: Final = """\
Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the \
problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause \
rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no \
assumption remains unchecked and no error remains undiscovered.

"""
NO_DOUBLE: Final = (
    "holds an integer that no double holds, and the format prints numbers as doubles; send it as a string"
)
NUMBER: Final = "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"

_dump = json.JSONEncoder(ensure_ascii=False).encode


def _tools_text(mark: str, block: str) -> str:
    return f"""\
## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<{mark}{block}>" block like the following:

<{mark}{block}>
<{mark}invoke name="$TOOL_NAME">
<{mark}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{mark}parameter>
...
</{mark}invoke>
<{mark}invoke name="$TOOL_NAME2">
...
</{mark}invoke>
</{mark}{block}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside {THINK}...{ANSWER} \
BEFORE any tool calls or final response.

Otherwise, output directly after {ANSWER} with tool calls or final response.

### Available Tool Schemas

"""


TOOLS_CLOSE: Final = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


def _double(value: Any) -> str:
    """A number as a JSON library with 64-bit integers and doubles prints it."""
    return repr(float(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value)


def _short_double(value: Any) -> str:
    """The same, without a leading zero in an exponent, and with an exponent below the fifth decimal place only."""
    text = _double(value)
    return format(Decimal(text), "f") if text.endswith("e-05") else text.replace("e-0", "e-")


@dataclass(frozen=True)
class _Format:
    """What the published encoders disagree about.

    - `effort`: the text after the prompt's opener, by level or number.
    - `released`: the older encoder, which prints every message where it stands, opens an assistant's turn after a user's
      message only, and knows developers.
    - `mark`, `block`, `bare`: how a DSML tag begins, what the block of calls is named, and what ends the opening tag of a
      call without arguments.
    - `system`: what opens a system message behind the front; None: all of them are printed at the front.
    - `empty`: whether an empty user message leaves a trace where it folds into another.
    - `schema`: the keys of a tool's schema, in order, and what an absent one is printed as (`...`: it is not); `number` prints
      numbers.
    """

    effort: Mapping[str | int, str]
    released: bool = False
    mark: str = "｜DSML｜"
    block: str = "tool_calls"
    bare: str = '">\n'
    system: str | None = ""
    empty: bool = True
    schema: tuple[tuple[str, Any], ...] = (("name", None), ("description", ""), ("parameters", {}))
    number: Callable[[Any], str] = _double

    @cached_property
    def tools(self) -> str:
        return _tools_text(self.mark, self.block)

    @cached_property
    def calls(self) -> tuple[str, str, str]:
        """What stands before the first call's name, between a call and the next one's name, and after the last call."""
        call, end = f'<{self.mark}invoke name="', f"\n</{self.mark}invoke>\n"
        return f"\n\n<{self.mark}{self.block}>\n{call}", end + call, f"{end}</{self.mark}{self.block}>"

    @cached_property
    def parameter(self) -> tuple[str, str]:
        """What stands before a parameter's name, and after its value."""
        return f'<{self.mark}parameter name="', f"</{self.mark}parameter>"

    def json(self, value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{_dump(key)}: {self.json(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list):
            return f"[{', '.join(map(self.json, value))}]"
        return self.number(value) if type(value) in (int, float) else _dump(value)

    def shown(self, tool: Tool) -> str:
        """A tool's schema as it is printed."""
        given = {key: value for key, value in tool.function.items() if value is not None}
        shown = {key: given.get(key, absent) for key, absent in self.schema}
        return self.json({key: value for key, value in shown.items() if value is not ...})


LEVELS: Final = ("minimal", "low", "medium", "high", "xhigh", "ultra", "max")
_NUMBERS: Final = {**dict.fromkeys(LEVELS, 75), "minimal": 50, "low": 50, "ultra": 100, "max": 100}

RELEASE: Final = _Format(
    effort={**dict.fromkeys(LEVELS, ""), "max": ABSOLUTE},
    released=True,
    schema=(("description", None), ("name", None), ("parameters", None), ("strict", False), ("defer_loading", ...)),
    number=_dump,
)
RECIPE: Final = _Format(
    effort={**dict.fromkeys(LEVELS, ABSOLUTE), "minimal": "", "low": "", "ultra": BEYOND, "max": BEYOND},
    bare='">',
    system=None,
    empty=False,
    number=_short_double,
)
V41: Final = _Format(
    effort={
        **{level: NUMBER.format(number) for level, number in _NUMBERS.items()},
        **{number: NUMBER.format(number) for number in range(1, 101)},
    },
    mark="｜DSML｜ ",
    block="calls",
    system=SYSTEM,
)


class V4Encoding:
    """Renders V4 prompts; a `Renderer` of tito_core. It holds no state.

    Kwargs:

    - `thinking` (required): the mode, True or False. A generation header ends in `<think>` with it, in `</think>` without.
    - `reasoning_effort` (default "high"): one of LEVELS. With thinking it chooses the text after the prompt's opener.
    - `drop_thinking` (default False): True is what the published encoders do with a prompt that has no tools: thoughts
      are left out (the recipe: all of them, the release: those before the last user message or result) and their headers
      closed, so that an append rewrites the history. False keeps every thought, with and without tools.
    - `release` (default False): whether to print as the encoder that was released with the checkpoints does.
    """

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), kwargs: Mapping[str, Any]) -> Rendered:
        """The prompt. Raises TemplateError, with `index` and `role`, where the format can't print a message.

        That is: a role it does not know; a developer message without content; an integer that no double holds; a tool
        that is `strict`, or tools and a response format of a message (the recipe); tools of the request beside the first
        system message's own (the release).
        """
        switches = _switches("V4", kwargs, release=False)
        return _render(RELEASE if switches["release"] else RECIPE, messages, tools, switches)


class V41Encoding:
    """Renders V4.1 prompts. Kwargs and errors are those of V4's recipe; an effort may also be a number, 1 to 100."""

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), kwargs: Mapping[str, Any]) -> Rendered:
        return _render(V41, messages, tools, _switches("V4.1", kwargs))


def _switches(name: str, kwargs: Mapping[str, Any], **more: bool) -> dict[str, Any]:
    known = {"thinking": None, "reasoning_effort": "high", "drop_thinking": False, **more}
    if unknown := [key for key in kwargs if key not in known]:
        raise TemplateError(
            f"{unknown[0]!r} is no kwarg of the {name} encoder; it takes {', '.join(known)}", key=unknown[0]
        )
    if "thinking" not in kwargs:
        raise TemplateError(f"thinking is missing: tell the {name} encoder the mode, True or False", key="thinking")
    values = {**known, **kwargs}
    for key, value in values.items():
        if key != "reasoning_effort" and not isinstance(value, bool):
            raise TemplateError(f"{key} is {value!r}, a {type(value).__name__}; it must be True or False", key=key)
    return values


def _render(form: _Format, messages: Sequence[Message], tools: Sequence[Tool], switches: Mapping[str, Any]) -> Rendered:
    thinking, level = switches["thinking"], switches["reasoning_effort"]
    effort = form.effort.get(level) if type(level) in (int, str) else None
    if effort is None:
        raise TemplateError(
            f"reasoning_effort is {level!r}, which the format does not know; it takes {', '.join(LEVELS)}"
            + ", or a whole number from 1 to 100" * (form is V41),
            key="reasoning_effort",
        )
    dropping = switches["drop_thinking"] and thinking and not (tools or any(message.tools for message in messages))
    head, body = _arranged(form, messages, dropping)
    turns = [place for place, (_, message) in enumerate(body) if message.role in ("user", "tool", "developer")]
    last_turn = turns[-1] if turns else -1

    def header(opened: bool) -> str:
        return ASSISTANT + (THINK if thinking and opened else ANSWER)

    parts = Parts()
    parts.template(BOS, -1, "system")
    opener = (form.system or "") + (effort if thinking else "")
    if head or tools or thinking:
        parts.template(opener, -1, "system")
    _print_head(parts, form, head, tools)

    folds = said = False
    for place, (index, message) in enumerate(body):
        role = message.role
        following = body[place + 1][1].role if place + 1 < len(body) else None
        if role in ("user", "tool"):
            folds = folds and not (form.released and body[place - 1][0] < index - 1)  # what is dropped parts two turns
            after_user = folds and body[place - 1][1].role == "user"
            if not folds:
                parts.template(USER, index, role)
            elif form.empty or not after_user or (said and message.content):
                parts.template(BETWEEN, index, role)
            said = bool(message.content) or (after_user and said)
            if role == "tool":
                parts.template(RESULT[0], index, role)
                parts.content(message.content, index, role)
                parts.template(RESULT[1], index, role)
            else:
                parts.content(message.content, index, role)
        elif role == "assistant":
            if not form.released and (place == 0 or body[place - 1][1].role == "assistant"):
                parts.template(header(not dropping), index, role)
            if thinking and not (dropping and (not form.released or place < last_turn)):
                parts.content(message.reasoning, index, role)
                parts.template(ANSWER, index, role)
            parts.content(message.content, index, role)
            _print_calls(parts, form, message.tool_calls, index)
        elif role == "developer" and form.released:
            parts.template(USER, index, role)
            parts.content(message.content, index, role)
            _print_carried(parts, form, message, index)
        else:
            parts.template(form.system or "", index, role)
            parts.content(message.content, index, role)
            _print_carried(parts, form, message, index)
        folds = role in ("user", "tool")
        opens = folds or role == "developer" or (role == "system" and not form.released)
        if opens and following in (None, "assistant"):
            last = place == last_turn if form.released else following is None
            parts.template(header(last or not dropping), index, role)
    if not form.released and messages and _is_system(messages[-1]) and (not body or body[-1][1].role == "assistant"):
        parts.template(header(True), len(messages) - 1, messages[-1].role)
    return parts.rendered()


Numbered = list[tuple[int, Message]]


def _arranged(form: _Format, messages: Sequence[Message], dropping: bool) -> tuple[Numbered, Numbered]:
    """The system messages at the front, and the others, with their places in the conversation."""
    numbered = list(enumerate(messages))
    for index, message in numbered:
        if message.role not in ("system", "developer", "user", "assistant", "tool"):
            raise _refusal(
                index,
                message.role,
                "has a role that the format does not know: system, developer, user, assistant or tool",
            )
        if message.role == "developer" and not message.content:
            whose = "the user's" if form.released else "a system"
            raise _refusal(
                index, message.role, f"has no content; the format prints it as {whose} message: send its text"
            )
        if not form.released and (message.tools or message.response_format):
            what = "tools" if message.tools else "a response_format"
            instead = "send tools with the request" if message.tools else "leave it out"
            raise _refusal(index, message.role, f"carries {what}, which the format does not print; {instead}")
    if form.released:
        size = int(bool(messages) and messages[0].role == "system")
        if dropping:
            asked = [index for index, message in numbered if message.role in ("user", "tool", "developer")]
            numbered = [
                (index, message) for index, message in numbered if message.role != "developer" or index == asked[-1]
            ]
        return numbered[:size], numbered[size:]
    numbered = [(index, message) for index, message in numbered if message.content or not _is_system(message)]
    if form.system is None:
        hoisted = [one for one in numbered if _is_system(one[1])]
        return hoisted, [one for one in numbered if not _is_system(one[1])]
    size = int(bool(numbered) and _is_system(numbered[0][1]))
    return numbered[:size], numbered[size:]


def _is_system(message: Message) -> bool:
    """A client's developer message is a system message to the newer formats."""
    return message.role in ("system", "developer")


def _print_head(parts: Parts, form: _Format, head: Numbered, tools: Sequence[Tool]) -> None:
    index, role = -1, "system"
    for place, (index, message) in enumerate(head):
        role = message.role
        parts.template(BETWEEN if place else "", index, role)
        parts.content(message.content, index, role)
        if tools and message.tools:
            raise _refusal(
                index,
                role,
                "carries tools, and the request carries tools too; they would be printed in one place: send them all with "
                "the request, or all in the message",
            )
    _print_tools(parts, form, tools, -1, "system")
    for index, message in head:
        _print_carried(parts, form, message, index)


def _print_carried(parts: Parts, form: _Format, message: Message, index: int) -> None:
    _print_tools(parts, form, message.tools, index, message.role)
    if message.response_format:
        parts.template(RESPONSE_FORMAT, index, message.role)
        parts.content(_dump(message.response_format), index, message.role)


def _print_tools(parts: Parts, form: _Format, tools: Sequence[Tool], index: int, role: str) -> None:
    between = BETWEEN + form.tools
    for tool in tools:
        if tool.function.get("strict") and not form.released:
            raise TemplateError(
                f"the tool {tool.name!r} is strict, and the format prints another schema than such a tool's own; send it "
                "without strict",
                tool=tool.name,
            )
        parts.template(between, index, role)
        try:
            parts.content(form.shown(tool), index, role)
        except OverflowError:
            raise TemplateError(f"the tool {tool.name!r} {NO_DOUBLE}", tool=tool.name) from None
        between = "\n"
    if tools:
        parts.template(TOOLS_CLOSE, index, role)


def _print_calls(parts: Parts, form: _Format, calls: Sequence[ToolCall], index: int) -> None:
    role = "assistant"
    first, between, end = form.calls
    before, after = form.parameter
    opened = first
    for call in calls:
        parts.template(opened, index, role)
        parts.content(call.name, index, role)
        gap = '">\n'
        for key, value in call.arguments.items():
            is_string = isinstance(value, str)
            parts.template(gap + before, index, role)
            parts.content(key, index, role)
            parts.template(f'" string="{"true" if is_string else "false"}">', index, role)
            try:
                parts.content(value if is_string else form.json(value), index, role)
            except OverflowError:
                raise _refusal(index, role, NO_DOUBLE) from None
            gap = after + "\n"
        closed = after if call.arguments else form.bare
        opened = closed + between
    parts.template((closed + end if calls else "") + EOS, index, role)


def _refusal(index: int, role: str, why: str) -> TemplateError:
    return TemplateError(f"message {index} ({role}) {why}", index=index, role=role)
