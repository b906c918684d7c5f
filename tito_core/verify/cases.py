"""Generated conversations: what a family declares decides which there are, hypothesis draws and shrinks them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from tito_core.families.family import AppendRoles, Family

__all__ = ["Conversation", "Round", "conversations"]

Draw = Callable[[st.SearchStrategy[Any]], Any]

_TEXTS: Final = (
    "0", "", " ", "\n", "a", " lead", "trail ", "line\n", "\n\nafter two", "\r\n", "tab\t", "naïve ☕ <b>&\"", "你好，世界",
    "こんにちは 2024年", "👩‍👩‍👧", "e\u0301", "\u200b", "١٢٣", "1234567 8", "it's", "{\"a\": [1, 2]}", "{0} %s {{x}}", "a\\nb",
    "def f(x):\n    return x\n", "  indented", "!?…", "Ω≈ç√", "a" * 40, "<result>x</result>", "null", "None", "\ufffd", "ﬁ",
)  # fmt: skip
_NAMES: Final = ("f", "get_weather", "read_file", "run", "naïve", "a.b-c")
_VALUES: Final[tuple[Any, ...]] = (
    "0", "", "naïve ☕", "a\nb", 0, 1, -7, 1.0, 2.5, True, False, None, [], [1, "two", None], {"k": {"z": 1, "a": "é"}}, 10**20,
)  # fmt: skip

text = st.one_of(
    st.sampled_from(_TEXTS), st.text(st.characters(codec="utf-8", exclude_characters="<|｜▁"), max_size=12)
)
_value = st.sampled_from(_VALUES)
_arguments = st.dictionaries(st.sampled_from(("path", "q", "日本", "z", "a")), _value, max_size=3)


@dataclass(frozen=True)
class Round:
    """An assistant's turn as it was sampled, and what is appended to it. `stopped`: by a stop string, not a token."""

    assistant: dict[str, Any]
    appended: tuple[dict[str, Any], ...]
    stopped: bool
    seed: int


@dataclass(frozen=True)
class Conversation:
    """A first prompt and the rounds after it, in the chat-completions format."""

    thinking: bool
    tools: tuple[dict[str, Any], ...]
    prompt: tuple[dict[str, Any], ...]
    rounds: tuple[Round, ...]

    def messages(self, rounds: int | None = None) -> list[dict[str, Any]]:
        """The whole conversation after so many rounds, ending where the engine would sample next."""
        made = list(self.prompt)
        for one in self.rounds if rounds is None else self.rounds[:rounds]:
            made += (one.assistant, *one.appended)
        return made

    def said(self) -> str:
        """One line: who says what."""
        return ", ".join(_said(message) for message in self.messages())


def _said(message: dict[str, Any]) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or ()]
    parts = [json.dumps(message["content"], ensure_ascii=False)] if message["content"] or not calls else []
    if message.get("reasoning_content"):
        parts.insert(0, f"thinks {json.dumps(message['reasoning_content'], ensure_ascii=False)}")
    if calls:
        parts.append(f"calls {', '.join(calls)}")
    return f"{message['role']} {' '.join(parts)}"


def conversations(
    family: Family, roles: AppendRoles, *, contents: st.SearchStrategy[str] = text
) -> st.SearchStrategy[Conversation]:
    """Conversations that the family can carry: one to three rounds, every append role and pair that it declares."""

    @st.composite
    def drawn(draw: Draw) -> Conversation:
        thinking = draw(st.sampled_from(family.thinking.modes))
        tools = draw(_tools()) if "tool" in roles.roles else ()
        counter = [0]
        prompt = draw(_prompts(roles, contents, tools, thinking, counter))
        rounds = []
        for _ in range(draw(st.integers(1, 3))):
            assistant = _assistant(draw, contents, tools, thinking, counter)
            appended = _append(draw, assistant, roles, contents, thinking)
            rounds.append(Round(assistant, tuple(appended), draw(st.booleans()), draw(st.integers(0, 2**16))))
        return Conversation(thinking, tools, prompt, tuple(rounds))

    return drawn()


@st.composite
def _tools(draw: Draw) -> tuple[dict[str, Any], ...]:
    made = []
    for name in draw(st.lists(st.sampled_from(_NAMES), unique=True, max_size=3)):
        function: dict[str, Any] = {"name": name}
        if draw(st.booleans()):
            function["description"] = draw(text)
        if draw(st.booleans()):
            function["parameters"] = {
                "type": "object",
                "properties": {key: {"type": "string", "description": draw(text)} for key in ("z", "a")},
                "required": ["z"],
            }
        if draw(st.booleans()):
            function = dict(reversed(function.items()))
        made.append({"type": "function", "function": function})
    return tuple(made)


def _prompts(
    roles: AppendRoles, contents: st.SearchStrategy[str], tools: tuple[Any, ...], thinking: bool, counter: list[int]
) -> st.SearchStrategy[tuple[dict[str, Any], ...]]:
    @st.composite
    def drawn(draw: Draw) -> tuple[dict[str, Any], ...]:
        made: list[dict[str, Any]] = []
        if draw(st.booleans()):
            made.append({"role": "system", "content": draw(contents)})
        made.append({"role": "user", "content": draw(contents)})
        if "assistant" in roles.roles and "user" in roles.roles and draw(st.integers(0, 3)) == 3:
            earlier = _assistant(draw, contents, tools, thinking, counter)
            made += (earlier, *_results(draw, earlier, contents), {"role": "user", "content": draw(contents)})
        return tuple(made)

    return drawn()


def _assistant(
    draw: Draw, contents: st.SearchStrategy[str], tools: tuple[Any, ...], thinking: bool, counter: list[int]
) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": draw(contents)}
    if thinking and draw(st.booleans()):
        made["reasoning_content"] = draw(contents)
    if tools and draw(st.booleans()):
        calls = []
        for _ in range(draw(st.integers(1, 3))):
            arguments = draw(_arguments)
            spaced = draw(st.booleans())
            calls.append(
                {
                    "id": f"c{counter[0]}",
                    "type": "function",
                    "function": {
                        "name": draw(st.sampled_from([tool["function"]["name"] for tool in tools])),
                        "arguments": json.dumps(
                            arguments, ensure_ascii=spaced, separators=None if spaced else (",", ":")
                        ),
                    },
                }
            )
            counter[0] += 1
        made["tool_calls"] = calls
    return made


def _results(draw: Draw, assistant: dict[str, Any], contents: st.SearchStrategy[str]) -> list[dict[str, Any]]:
    ids = [call["id"] for call in assistant.get("tool_calls") or ()]
    return [
        {"role": "tool", "tool_call_id": identity, "content": draw(contents)}
        for identity in (draw(st.permutations(ids)) if len(ids) > 1 else ids)
    ]


def _append(
    draw: Draw, assistant: dict[str, Any], roles: AppendRoles, contents: st.SearchStrategy[str], thinking: bool
) -> list[dict[str, Any]]:
    """A walk along the allowed pairs that ends where a prompt may end."""
    made = _results(draw, assistant, contents)
    last = "tool" if made else "assistant"
    for left in (2, 1, 0):
        follow = sorted(role for role in roles.follows.get(last, frozenset()) if role != "tool")  # type: ignore[call-overload]
        if made and last in roles.ends and (not follow or not draw(st.booleans())):
            return made
        reachable = [role for role in follow if role in roles.ends] if left == 0 else follow
        if not reachable:
            break
        last = draw(st.sampled_from([role for role in ("user", "system", "assistant") if role in reachable]))
        message: dict[str, Any] = {"role": last, "content": draw(contents)}
        if last == "assistant" and thinking and draw(st.booleans()):
            message["reasoning_content"] = draw(contents)
        made.append(message)
    while made and last not in roles.ends:
        made.pop()
        last = made[-1]["role"] if made else "assistant"
    return made or [{"role": "user", "content": draw(contents)}]
