"""Generated conversations: what a family declares decides which there are, hypothesis draws and shrinks them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

from hypothesis import strategies as st

from tito_core.families.family import APPEND_ROLES, AppendRoles, Case, Family, Role

__all__ = ["Conversation", "Round", "conversations", "simpler"]

Draw = Callable[[st.SearchStrategy[Any]], Any]

_TEXTS: Final = (
    "0", "", " ", "\n", "a", " lead", "trail ", "line\n", "\n\nafter two", "\r\n", "tab\t", "naïve ☕ <b>&\"", "你好，世界",
    "こんにちは 2024年", "👩‍👩‍👧", "e\u0301", "\u200b", "١٢٣", "1234567 8", "it's", "{\"a\": [1, 2]}", "{0} %s {{x}}", "a\\nb",
    "def f(x):\n    return x\n", "  indented", "!?…", "Ω≈ç√", "a" * 40, "<result>x</result>", "null", "None", "\ufffd", "ﬁ",
    " ".join(map(str, range(400))), "".join(f"\n  line {n}" for n in range(120)),
)  # fmt: skip
_NAMES: Final = ("f", "get_weather", "read_file", "run", "naïve", "a.b-c")
_VALUES: Final[tuple[Any, ...]] = (
    "0", "", "naïve ☕", "a\nb", "    if x:\n        return 1\n",
    0, 1, -7, 1.0, 2.5, True, False, None, [], [1, "two", None], {"k": {"z": 1, "a": "é"}}, 10**20,
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

    @classmethod
    def of(cls, case: Case, thinking: bool) -> Conversation:
        """A family's own case: its first prompt up to the first assistant message, and a round for each of those.

        A case that an assistant says nothing in gets a round of the shortest kind.
        """
        starts = [place for place, message in enumerate(case.messages) if message["role"] == "assistant"]
        edges = [*starts, len(case.messages)]
        said = [
            Round(case.messages[start], case.messages[start + 1 : end], stopped=False, seed=start)
            for start, end in pairwise(edges)
        ]
        shortest = Round({"role": "assistant", "content": "0"}, ({"role": "user", "content": "0"},), False, 0)
        return cls(
            thinking=thinking,
            tools=case.tools,
            prompt=case.messages[: edges[0]],
            rounds=tuple(said or [shortest]),
        )

    def messages(self, rounds: int | None = None) -> list[dict[str, Any]]:
        """The whole conversation after so many rounds, ending where the engine would sample next."""
        made = list(self.prompt)
        for one in self.rounds if rounds is None else self.rounds[:rounds]:
            made += (one.assistant, *one.appended)
        return made

    def said(self) -> str:
        """One line: who says what."""
        return ", ".join(_said(message) for message in self.messages())


def simpler(conversation: Conversation, family: Family, roles: AppendRoles) -> Iterator[Conversation]:
    """Conversations that the family can carry as well, each a step smaller: the largest steps first."""
    rounds, prompt = conversation.rounds, conversation.prompt
    for keep in range(1, len(rounds)):
        yield replace(conversation, rounds=rounds[:keep])
        yield replace(conversation, rounds=rounds[keep:])
    last_user = max(place for place, message in enumerate(prompt) if message["role"] == "user")
    if last_user:
        yield replace(conversation, prompt=prompt[last_user:])
        if prompt[0]["role"] == "system":
            yield replace(conversation, prompt=prompt[1:])
            yield replace(conversation, prompt=(prompt[0], *prompt[last_user:]))
    for change in (_bare, _quiet, _spoken):
        yield _every(conversation, change)
    if conversation.tools and not any(message.get("tool_calls") for message in conversation.messages()):
        yield replace(conversation, tools=())
    yield _renamed(conversation)
    for number, one in enumerate(rounds):
        for made in _simpler(one, roles):
            yield replace(conversation, rounds=(*rounds[:number], made, *rounds[number + 1 :]))
    if conversation.thinking and False in family.thinking.modes:
        yield replace(_every(conversation, _quiet), thinking=False)
    for message in conversation.messages():
        for change in (_bare, _quiet, _spoken):
            yield _every(conversation, partial(_where, message, change))


def _where(
    message: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]], other: dict[str, Any]
) -> dict[str, Any]:
    return change(other) if other is message else other


def _simpler(one: Round, roles: AppendRoles) -> Iterator[Round]:
    """A round with fewer messages, fewer calls, and less that is said of it."""
    appended = one.appended
    results = sum(message["role"] == "tool" for message in appended)
    for size in range(max(results, 1), len(appended)):
        if appended[size - 1]["role"] in roles.ends:
            yield replace(one, appended=appended[:size])
    for place in range(results, len(appended)):
        fewer = (*appended[:place], *appended[place + 1 :])
        if fewer and _allowed(fewer, roles):
            yield replace(one, appended=fewer)
    calls = one.assistant.get("tool_calls") or []
    for number, call in enumerate(calls):
        others = [*calls[:number], *calls[number + 1 :]]
        left = tuple(message for message in appended if message.get("tool_call_id") != call["id"])
        if others:
            yield replace(one, assistant={**one.assistant, "tool_calls": others}, appended=left)
        elif left and left[0]["role"] in roles.follows["assistant"]:
            plain = {key: value for key, value in one.assistant.items() if key != "tool_calls"}
            yield replace(one, assistant=plain, appended=left)
        elif not left and "user" in roles.follows["assistant"] & roles.ends:
            plain = {key: value for key, value in one.assistant.items() if key != "tool_calls"}
            yield replace(one, assistant=plain, appended=({"role": "user", "content": "0"},))
    if one.stopped:
        yield replace(one, stopped=False)
    for seed in (0, 1):
        if one.seed > seed:
            yield replace(one, seed=seed)


def _allowed(appended: tuple[dict[str, Any], ...], roles: AppendRoles) -> bool:
    said = ["assistant", *(message["role"] for message in appended)]
    pairs = [pair for pair in pairwise(said) if pair != ("tool", "tool")]
    return said[-1] in roles.ends and all(role in roles.follows.get(before, ()) for before, role in pairs)


def _every(conversation: Conversation, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Conversation:
    return replace(
        conversation,
        prompt=tuple(map(change, conversation.prompt)),
        rounds=tuple(
            replace(one, assistant=change(one.assistant), appended=tuple(map(change, one.appended)))
            for one in conversation.rounds
        ),
    )


def _spoken(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": "0"}


def _quiet(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    """The same calls without arguments."""
    if not message.get("tool_calls"):
        return message
    calls = [{**call, "function": {**call["function"], "arguments": "{}"}} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _renamed(conversation: Conversation) -> Conversation:
    """One tool without a schema, which every call calls."""
    tools = conversation.tools[:1] and ({"type": "function", "function": {"name": "f"}},)

    def change(message: dict[str, Any]) -> dict[str, Any]:
        calls = [{**call, "function": {**call["function"], "name": "f"}} for call in message.get("tool_calls") or ()]
        return {**message, "tool_calls": calls} if calls else message

    return replace(_every(conversation, change), tools=tools)


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
    """Conversations that the family can carry: one to three rounds, every append role and pair that `roles` allow."""
    modes, rounds = st.sampled_from(family.thinking.modes), st.integers(1, 3)
    answered = "tool" in roles.follows["assistant"]
    only = not _goes_on(roles)

    @st.composite
    def drawn(draw: Draw) -> Conversation:
        thinking = draw(modes)
        tools = draw(_some_tools if only else _tools) if answered else ()
        teller = _Teller(draw, roles, contents, tools, thinking, only)
        prompt = teller.prompt()
        return Conversation(thinking, tools, prompt, tuple(teller.round() for _ in range(draw(rounds))))

    return drawn()


def _goes_on(roles: AppendRoles) -> bool:
    """Whether an append can end where a prompt may end without results of calls."""
    found: set[Role] = {"assistant"}
    for _ in APPEND_ROLES:
        found |= {role for last in found for role in roles.follows.get(last, frozenset()) if role != "tool"}
    return any("assistant" in roles.follows["assistant"] or role != "assistant" for role in found & roles.ends)


@st.composite
def _tool(draw: Draw, name: str) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if draw(_boolean):
        function["description"] = draw(text)
    if draw(_boolean):
        function["parameters"] = {
            "type": "object",
            "properties": {key: {"type": "string", "description": draw(text)} for key in ("z", "a")},
            "required": ["z"],
        }
    if draw(_boolean):
        function = dict(reversed(function.items()))
    return {"type": "function", "function": function}


_boolean = st.booleans()
_few = st.integers(1, 3)
_seeds = st.integers(0, 2**16)
_tools = st.lists(st.sampled_from(_NAMES), unique=True, max_size=3).flatmap(
    lambda names: st.tuples(*(_tool(name) for name in names))
)
_some_tools = _tools.map(lambda tools: tools or ({"type": "function", "function": {"name": "f"}},))
_earlier = st.integers(0, 3)


@dataclass
class _Teller:
    """Draws the messages of one conversation. `only`: every turn calls, since nothing else could follow it."""

    draw: Draw
    roles: AppendRoles
    contents: st.SearchStrategy[str]
    tools: tuple[dict[str, Any], ...]
    thinking: bool
    only: bool
    calls: int = 0

    def prompt(self) -> tuple[dict[str, Any], ...]:
        made: list[dict[str, Any]] = []
        if self.draw(_boolean):
            made.append(self._message("system"))
        made.append(self._message("user"))
        if {"assistant", "user"} <= self.roles.roles and self.draw(_earlier) == 3:
            earlier = self._assistant()
            made += (earlier, *self._results(earlier), self._message("user"))
        return tuple(made)

    def round(self) -> Round:
        assistant = self._assistant()
        return Round(assistant, tuple(self._append(assistant)), self.draw(_boolean), self.draw(_seeds))

    def _message(self, role: str) -> dict[str, Any]:
        return {"role": role, "content": self.draw(self.contents)}

    def _assistant(self) -> dict[str, Any]:
        draw, made = self.draw, self._message("assistant")
        if self.thinking and draw(_boolean):
            made["reasoning_content"] = draw(self.contents)
        if self.tools and (self.only or draw(_boolean)):
            made["tool_calls"] = [self._call() for _ in range(draw(_few) if self.roles.parallel else 1)]
        return made

    def _call(self) -> dict[str, Any]:
        arguments, spaced = self.draw(_arguments), self.draw(_boolean)
        dumped = json.dumps(arguments, ensure_ascii=spaced, separators=None if spaced else (",", ":"))
        name = self.tools[(self.draw(_few) - 1) % len(self.tools)]["function"]["name"]
        self.calls += 1
        identity = f"functions.{name}:{self.calls - 1}"  # some formats print the id, and the name in it alone
        return {"id": identity, "type": "function", "function": {"name": name, "arguments": dumped}}

    def _results(self, assistant: dict[str, Any]) -> list[dict[str, Any]]:
        ids = [call["id"] for call in assistant.get("tool_calls") or ()]
        order = self.draw(st.permutations(ids)) if len(ids) > 1 else ids
        return [{**self._message("tool"), "tool_call_id": identity} for identity in order]

    def _append(self, assistant: dict[str, Any]) -> list[dict[str, Any]]:
        """A walk along the allowed pairs that ends where a prompt may end."""
        made = self._results(assistant)
        last: Role = "tool" if made else "assistant"
        for left in (2, 1, 0):
            follow = [role for role in _WALK if role in self.roles.follows.get(last, frozenset())]
            if made and last in self.roles.ends and (not follow or not self.draw(_boolean)):
                return made
            reachable = [role for role in follow if role in self.roles.ends] if left == 0 else follow
            if not reachable:
                break
            last = reachable[(self.draw(_few) - 1) % len(reachable)]
            message = self._message(last)
            if last == "assistant" and self.thinking and self.draw(_boolean):
                message["reasoning_content"] = self.draw(self.contents)
            made.append(message)
        while made and made[-1]["role"] not in self.roles.ends:
            made.pop()
        return made or [self._message("user")]


_WALK: Final[tuple[Role, ...]] = ("user", "system", "assistant")
