"""DeepSeek V3.2's prompt format: the encoder, written from the format's facts.

The fixed strings are those of the published format (`encoding_dsv32.py`, as SGLang 0.5.23 ships it). The text equals
the published encoder's byte for byte, which the tests prove against that file; the code is this project's own. It
reads each message once, so a render costs what its text costs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tito_core.errors import TemplateError
from tito_core.prompts.messages import Message, Tool, ToolCall
from tito_core.prompts.template import Parts, Rendered

__all__ = ["V32Encoding"]

BOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"
USER: Final = "<｜User｜>"
ASSISTANT: Final = "<｜Assistant｜>"
THINK: Final = "<think>"
ANSWER: Final = "</think>"

TOOLS_OPEN: Final = """\


## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of \
your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should \
use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types \
(numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. \
Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
"""
TOOLS_CLOSE: Final = "\n</functions>\n"
RESPONSE_FORMAT: Final = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
DEVELOPER_TEXT: Final = "\n\n# The user's message is: "

CALLS_OPEN: Final = '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="'
CALLS_NEXT: Final = '\n</｜DSML｜invoke>\n<｜DSML｜invoke name="'
CALLS_CLOSE: Final = "\n</｜DSML｜invoke>\n</｜DSML｜function_calls>" + EOS
NAME_CLOSE: Final = '">\n'
PARAMETER_OPEN: Final = '<｜DSML｜parameter name="'
PARAMETER_NEXT: Final = '</｜DSML｜parameter>\n<｜DSML｜parameter name="'
PARAMETER_CLOSE: Final = "</｜DSML｜parameter>"
IS_STRING: Final = '" string="true">'
IS_JSON: Final = '" string="false">'

RESULTS_OPEN: Final = "\n\n<function_results>\n<result>"
RESULTS_NEXT: Final = "\n<result>"
RESULT_CLOSE: Final = "</result>"
RESULTS_CLOSE: Final = "</result>\n</function_results>\n\n"

_dump = json.JSONEncoder(ensure_ascii=False).encode


class V32Encoding:
    """Renders V3.2 prompts; a `Renderer` of tito_core. It holds no state.

    Kwargs, all booleans:

    - `thinking` (required): the mode. A generation header ends in `<think>` with it, in `</think>` without.
    - `drop_thinking` (default False): True is the published behaviour. Thoughts before the last user or developer
      message are left out, and every header before it is closed with `</think>`: appending a user message rewrites
      the history. False keeps every thought and never looks ahead: what is printed is the same whatever follows.
    - `answered` (default False): with `drop_thinking=False`, a header that another message than an assistant's
      follows is closed with `</think>`, as the published behaviour closes it, in place of an opener that nobody
      answers. The last header stays `<think>`. With `drop_thinking=True` it changes nothing.
    """

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), kwargs: Mapping[str, Any]) -> Rendered:
        """The prompt. `tools` are printed in the first message where that is a system message, else before it.

        Raises TemplateError, with `index` and `role`, where the format can't print a message: a developer message
        without content; a tool message that stands after no call or is one too many; tools of the request beside the
        first system message's own; a role it does not know. With `drop_thinking=True` and `thinking=True` also, as
        the published encoder does: a developer message before the last user's, and an assistant after the last user
        with neither reasoning nor calls.
        """
        thinking, dropping, answered = _switches(kwargs)
        dropping = dropping and thinking
        answered = answered and not dropping
        last_user = _last_user(messages) if dropping else -1
        carrier = bool(messages) and messages[0].role == "system"

        parts = Parts()
        parts.template(BOS, -1, "system")
        if tools and not carrier:
            _print_tools(parts, tools, -1, "system")

        asked, results = 0, 0
        for index, message in enumerate(messages):
            role = message.role
            if role == "tool":
                results += 1
                if results > asked:
                    raise _unasked(messages, index, asked)
                parts.template(RESULTS_OPEN if results == 1 else RESULTS_NEXT, index, role)
                parts.content(message.content, index, role)
                if results < asked:
                    parts.template(RESULT_CLOSE, index, role)
                    continue
                close = RESULTS_CLOSE
            elif role == "assistant":
                asked, results = len(message.tool_calls), 0
                if thinking and index > last_user:
                    if dropping and not (message.reasoning or message.tool_calls):
                        raise _refusal(
                            index,
                            role,
                            "has neither reasoning nor tool calls, and no user message follows it; with thinking and "
                            "drop_thinking the format has no print of it: send its reasoning, or render with "
                            "drop_thinking=False",
                        )
                    parts.content(message.reasoning, index, role)
                    parts.template(ANSWER, index, role)
                parts.content(message.content, index, role)
                _print_calls(parts, message.tool_calls, index, role)
                continue
            elif role == "user":
                parts.template(USER, index, role)
                parts.content(message.content, index, role)
                asked, results, close = 0, 0, ASSISTANT
            elif role == "system":
                parts.content(message.content, index, role)
                shown, whose = message.tools, index
                if tools and index == 0:
                    if shown:
                        raise _refusal(
                            index,
                            role,
                            "carries tools, and the request carries tools too; they would be printed in one place: "
                            "send them all with the request, or all in the message",
                        )
                    shown, whose = tuple(tools), -1
                _print_tools(parts, shown, whose, role)
                _print_response_format(parts, message, index, role)
                asked, results = 0, 0
                continue
            elif role == "developer":
                if not message.content:
                    raise _refusal(
                        index,
                        role,
                        "has no content; the format prints it as the user's message: send its text, or send tools and "
                        "response_format in a system message",
                    )
                if index < last_user:
                    raise _refusal(
                        index,
                        role,
                        f"stands before the last user's, message {last_user}; with thinking and drop_thinking the "
                        "format can't print it: render with drop_thinking=False, or send a user message in its place",
                    )
                parts.template(USER, index, role)
                _print_tools(parts, message.tools, index, role)
                _print_response_format(parts, message, index, role)
                parts.template(DEVELOPER_TEXT, index, role)
                parts.content(message.content, index, role)
                asked, results, close = 0, 0, ASSISTANT
            else:
                raise _refusal(
                    index, role, "has a role that the format does not know: system, developer, user, assistant or tool"
                )
            opened = thinking and index >= last_user
            if answered and index + 1 < len(messages) and messages[index + 1].role != "assistant":
                opened = False
            parts.template(close + (THINK if opened else ANSWER), index, role)
        return parts.rendered()


def _switches(kwargs: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    known = {"thinking": None, "drop_thinking": False, "answered": False}
    if unknown := [key for key in kwargs if key not in known]:
        raise TemplateError(
            f"{unknown[0]!r} is no kwarg of the V3.2 encoder; it takes {', '.join(known)}", key=unknown[0]
        )
    if "thinking" not in kwargs:
        raise TemplateError("thinking is missing: tell the V3.2 encoder the mode, True or False", key="thinking")
    values = {**known, **kwargs}
    for key, value in values.items():
        if not isinstance(value, bool):
            raise TemplateError(f"{key} is {value!r}, a {type(value).__name__}; it must be True or False", key=key)
    return values["thinking"], values["drop_thinking"], values["answered"]


def _last_user(messages: Sequence[Message]) -> int:
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role in ("user", "developer"):
            return index
    return -1


def _print_tools(parts: Parts, tools: Sequence[Tool], index: int, role: str) -> None:
    between = TOOLS_OPEN
    for tool in tools:
        parts.template(between, index, role)
        parts.content(_dump(tool.function), index, role)
        between = "\n"
    if tools:
        parts.template(TOOLS_CLOSE, index, role)


def _print_response_format(parts: Parts, message: Message, index: int, role: str) -> None:
    if message.response_format:
        parts.template(RESPONSE_FORMAT, index, role)
        parts.content(_dump(message.response_format), index, role)


def _print_calls(parts: Parts, calls: Sequence[ToolCall], index: int, role: str) -> None:
    if not calls:
        parts.template(EOS, index, role)
        return
    before = CALLS_OPEN
    for call in calls:
        parts.template(before, index, role)
        parts.content(call.name, index, role)
        between = NAME_CLOSE + PARAMETER_OPEN
        for key, value in call.arguments.items():
            parts.template(between, index, role)
            parts.content(key, index, role)
            is_string = isinstance(value, str)
            parts.template(IS_STRING if is_string else IS_JSON, index, role)
            parts.content(value if is_string else _dump(value), index, role)
            between = PARAMETER_NEXT
        closed = PARAMETER_CLOSE if call.arguments else NAME_CLOSE
        before = closed + CALLS_NEXT
    parts.template(closed + CALLS_CLOSE, index, role)


def _refusal(index: int, role: str, why: str) -> TemplateError:
    return TemplateError(f"message {index} ({role}) {why}", index=index, role=role)


def _unasked(messages: Sequence[Message], index: int, asked: int) -> TemplateError:
    if asked:
        why = f"is one result too many: the assistant message before it made {asked} call(s)"
    elif index == 0:
        why = "is the first message"
    else:
        before = messages[index - 1].role
        why = f"answers no call: the message before it is {before}" + ", without calls" * (before == "assistant")
    return _refusal(index, "tool", f"{why}; keep a call and its results together")
