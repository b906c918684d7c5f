"""The checks. Each proves one promise, on one generated conversation or once for a vocabulary, and counts ids.

What a sequence is compared with is encoded by `tokenizers`, from a render of the whole conversation: no check
compares a join with itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tito_core.engines.scripted import ScriptedEngine
from tito_core.errors import EncodingError, ThinkingError, TitoError
from tito_core.families.family import APPEND_ROLES
from tito_core.tokens.compare import FAULTS
from tito_core.verify.bench import Bench, Broken, StoredTurn, same_ids, stored
from tito_core.verify.cases import Conversation

__all__ = ["CHECKS", "Check"]


@dataclass(frozen=True)
class Check:
    """`once` runs for a vocabulary and returns how many cases it tried; `each` runs for a conversation and returns
    how many ids it looked at. Both raise Broken."""

    name: str
    promise: str
    once: Callable[[Bench], int] | None = None
    each: Callable[[Bench, Conversation], int] | None = None


def resolve(bench: Bench) -> int:
    """One template, whatever is appended; every control token one id, for `tokenizers` too."""
    codec, family = bench.codec, bench.codec.family
    template = codec.template
    if template.kind == "encoder":
        spec = importlib.util.find_spec(template.reference.partition(":")[0])
        if spec is None or spec.origin is None:
            raise Broken(f"the template {template.reference} has no source file")
        digest = hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
        if digest != template.sha256:
            raise Broken(f"the template {template.reference} has the sha256 {digest}, and says {template.sha256}")
    tried = 0
    for size in range(1, len(APPEND_ROLES) + 1):
        for roles in itertools.combinations(APPEND_ROLES, size):
            try:
                narrowed = codec.append_roles.narrowed(frozenset(roles))
            except ValueError:
                continue
            tried += 1
            answer = codec.loaded.with_append_roles(narrowed).template(None)
            if codec.origin.vocabulary != "checkpoint" and answer != template:
                raise Broken(
                    f"with append roles {sorted(roles)} the template is {answer.reference} (sha256 {answer.sha256}), and "
                    f"{template.reference} (sha256 {template.sha256}) with all of them"
                )
    for token in family.control_tokens:
        tried += 1
        ids = bench.encode(token.text)
        if len(ids) != 1 or int(ids[0]) != codec.encoder.token_id(token.text):
            raise Broken(
                f"the control token {token.text!r} is {ids.tolist()} to tokenizers, and "
                f"{codec.encoder.token_id(token.text)} to this codec"
            )
    return tried


def thinking(bench: Bench) -> int:
    """One mode: what is rendered and what the engine is told agree, under every name and from every layer."""
    codec, declared = bench.codec, bench.codec.family.thinking
    messages = [{"role": "user", "content": "0"}]
    prompts = {mode: codec.prompt(messages, decision=codec.decide(mode)).ids for mode in declared.modes}
    if len(prompts) == 2 and np.array_equal(prompts[True], prompts[False]):
        raise Broken("prompts with thinking on and off are the same")
    tried = 0
    names = {alias: {mode: mode for mode in declared.modes} for alias in declared.aliases}
    asked: list[tuple[dict[str, Any], bool]] = [
        ({alias: value}, mode) for alias, values in names.items() for mode, value in values.items()
    ]
    asked += [
        ({alias: word}, mode)
        for alias, words in declared.words.items()
        for word, mode in words.items()
        if mode in declared.modes
    ]
    asked += [({}, declared.default), (dict.fromkeys(declared.aliases), declared.default)]
    other = next((mode for mode in declared.modes if mode != declared.default), declared.default)
    for kwargs, mode in asked:
        layers: tuple[tuple[str, dict[str, Any] | None, dict[str, Any] | None], ...] = (
            ("session", None, kwargs),
            ("request", kwargs, None),
            ("request over session", kwargs, {declared.aliases[-1]: declared.default if mode == other else other}),
        )
        for layer, asked_for, opened_with in layers:
            if layer == "request over session" and all(value is None for value in kwargs.values()):
                continue
            tried += 1
            made = codec.session(chat_template_kwargs=opened_with).prepare(messages, chat_template_kwargs=asked_for)
            told = made.engine_kwargs.get("chat_template_kwargs")
            if (
                told is None
                or told.get(declared.forward_as) is not mode
                or set(told) & set(declared.aliases) != {declared.forward_as}
            ):
                raise Broken(
                    f"{layer} chat_template_kwargs {kwargs} mean thinking {mode}; the engine is told {told}, and reads "
                    f"{declared.forward_as!r} alone"
                )
            same_ids(bench, prompts[mode], made.ids, f"{layer} chat_template_kwargs {kwargs} render another mode")
    refused: list[tuple[dict[str, Any], str]] = [
        ({declared.forward_as: "true"}, "a string for a boolean"),
        ({"no_such_kwarg": True}, "an unknown name"),
        *(({declared.aliases[0]: True, alias: False}, "both on and off") for alias in declared.aliases[1:]),
        *(({key: not value}, "the contrary of a fixed kwarg") for key, value in codec.family.fixed_kwargs.items()),
    ]
    for kwargs, why in refused:
        tried += 1
        try:
            codec.session().prepare(messages, chat_template_kwargs=kwargs)
        except ThinkingError:
            continue
        raise Broken(f"chat_template_kwargs {kwargs}, {why}, are accepted")
    if len(declared.modes) == 2:
        tried += 1
        session = codec.session()
        request = session.prepare(messages)
        engine = ScriptedEngine(codec, bench.seed)
        turn = session.commit(request, engine.say({"role": "assistant", "content": "a"}, request.decision))
        try:
            session.prepare(
                [*messages, {"role": "assistant", "content": "a"}, *messages],
                chat_template_kwargs={declared.forward_as: other},
            )
        except ThinkingError:
            if session.turns != (turn,):
                raise Broken("a refused change of mode changed the session") from None
        else:
            raise Broken("the mode can be changed after the first turn")
    return tried


def gate(bench: Bench) -> int:
    """Every sequence of up to three roles: what is declared renders whole and opens a turn, all else is refused."""
    codec = bench.codec
    rules = bench.roles
    tried = 0
    decision = codec.decide()
    first = codec.prompt([{"role": "user", "content": "0"}], decision=decision)
    engine = ScriptedEngine(codec, bench.seed, canonical=True)
    call = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for calls in ([], [call]):
        message = {"role": "assistant", "content": "a", "tool_calls": calls}
        turn = stored(codec, first, engine.say(message, decision), decision, 2)
        for size in (1, 2, 3):
            for roles in itertools.product(APPEND_ROLES, repeat=size):
                tried += 1
                _gate(bench, turn, roles, _allowed(roles, bool(calls), rules))
    return tried


def _allowed(roles: tuple[str, ...], called: bool, rules: Any) -> bool:
    pairs = zip(("assistant", *roles), roles, strict=False)
    answered = (roles[0] == "tool") == called and "tool" not in roles[1:]
    return answered and all(role in rules.follows.get(before, ()) for before, role in pairs) and roles[-1] in rules.ends


def _gate(bench: Bench, turn: StoredTurn, roles: tuple[str, ...], allowed: bool) -> None:
    marks = [f"mark{number}x" for number in range(len(roles))]
    messages = [
        {"role": role, "content": mark, **({"tool_call_id": "c0"} if role == "tool" else {})}
        for role, mark in zip(roles, marks, strict=True)
    ]
    calling = "with" if turn.message.tool_calls else "without"
    said = f"the append {', '.join(roles)} after an assistant turn {calling} calls"
    try:
        append = bench.codec.append(turn, messages, append_roles=bench.roles)
    except TitoError as cause:
        if allowed:
            raise Broken(f"{said} is declared, and raises {type(cause).__name__}: {cause}") from cause
        if cause.where.get("index") is None or cause.where.get("role") is None:
            raise Broken(f"{said} is refused without the index and role: {cause}") from cause
        return
    if not allowed:
        raise Broken(f"{said} is not declared, and is rendered")
    text = bench.codec.decode(append.ids[append.kept :])
    places = [text.find(mark) for mark in marks]
    if -1 in places or places != sorted(places):
        raise Broken(f"{said} loses or reorders text: {text!r}", expected_text=" ".join(marks), actual_text=text)


def prefix(bench: Bench, conversation: Conversation) -> int:
    """Stored ids stand unchanged at the start of the next prompt, and no render rewrites what stood before."""
    tokens = 0
    rendered = ""
    for step in bench.steps(conversation):
        ids = step.append.ids
        tokens += len(ids)
        if step.turn is not None:
            spared = 1 if bench.codec.family.boundary.shared else 0
            kept = len(step.turn.ids) - spared
            same_ids(
                bench, step.turn.ids[:kept], ids[:kept], "stored ids are rewritten", message_index=step.turn.length - 1
            )
            if step.append.kept < kept:
                raise Broken(f"{step.append.kept} of {len(step.turn.ids)} stored ids are said to be kept")
        text = bench.text(conversation, conversation.messages(step.number), step.decision)
        if not text.startswith(rendered):
            place = next(
                (at for at, (one, two) in enumerate(zip(rendered, text, strict=False)) if one != two), len(text)
            )
            raise Broken(
                f"the render of prompt {step.number} rewrites prompt {step.number - 1} from character {place} on",
                expected_text=rendered[max(0, place - 20) : place + 20],
                actual_text=text[max(0, place - 20) : place + 20],
            )
        rendered = text
    return tokens


def equality(bench: Bench, conversation: Conversation) -> int:
    """Outside assistant text the joined ids are the full render's; everywhere, where canonical ids were sampled."""
    if not bench.plain(conversation):
        return 0
    step = bench.steps(conversation)[-1]
    expected = bench.encode(bench.text(conversation, conversation.messages(), step.decision))
    if bench.canonical(conversation):
        same_ids(bench, expected, step.append.ids, "joined ids differ from the full render")
        return len(expected)
    for mismatch in bench.codec.compare(expected, step.append.ids):
        if mismatch.kind in FAULTS:
            raise Broken(
                f"{mismatch.kind} in segment {mismatch.segment}, id {mismatch.first_index}",
                first_index=mismatch.first_index,
                expected_ids=mismatch.expected_ids,
                actual_ids=mismatch.actual_ids,
                expected_text=mismatch.expected_text,
                actual_text=mismatch.actual_text,
            )
    return len(expected)


def seam(bench: Bench, conversation: Conversation) -> int:
    """What follows a completion is what the full render prints there: a stop token once, its glue, then the append."""
    if not bench.plain(conversation):
        return 0
    boundary = bench.codec.family.boundary
    stops = [bench.codec.encoder.token_id(token) for token in boundary.stop]
    tokens = 0
    for step in bench.steps(conversation):
        turn = step.turn
        if turn is None:
            continue
        before = bench.text(conversation, conversation.messages(step.number)[: turn.length], step.decision)
        whole = bench.text(conversation, conversation.messages(step.number), step.decision)
        cut = len(before) - len(boundary.glue)
        expected = bench.encode(whole[cut:])
        if int(turn.ids[-1]) not in stops:
            expected = np.concatenate((np.array(stops[:1], dtype=np.int32), expected))
        same_ids(
            bench,
            expected,
            step.append.ids[len(turn.ids) :],
            f"after {conversation.messages(step.number)[turn.length]['role']}, message {turn.length}",
            offset=len(turn.ids),
            message_index=turn.length,
        )
        tokens += len(expected)
    return tokens


def schema(bench: Bench, conversation: Conversation) -> int:
    """A tool's schema is printed in the bytes an engine prints: the client's key order, absent keys as null."""
    if not conversation.tools:
        return 0
    step = bench.steps(conversation)[0]
    text = bench.text(conversation, conversation.prompt, step.decision)
    for tool in conversation.tools:
        function = dict(tool["function"])
        function.setdefault("description", None)
        function.setdefault("parameters", None)
        expected = json.dumps(function, ensure_ascii=False)
        if expected not in text:
            near = max(0, text.find(f'"name": "{function["name"]}"') - 40)
            raise Broken(
                f"the schema of the tool {function['name']!r} is not printed as an engine prints it",
                expected_text=expected,
                actual_text=text[near : near + len(expected) + 40],
            )
    return len(step.append.ids)


def results(bench: Bench, conversation: Conversation) -> int:
    """Results of parallel calls come in the order of the calls, in whatever order they arrive."""
    tokens = 0
    for step in bench.steps(conversation):
        if step.turn is None or len(step.turn.message.tool_calls) < 2:
            continue
        calls = step.turn.message.tool_calls
        marks = {call.id: f"mark{number}x" for number, call in enumerate(calls)}
        answers = [{"role": "tool", "tool_call_id": identity, "content": mark} for identity, mark in marks.items()]
        if "tool" not in bench.roles.ends:
            answers.append({"role": "user", "content": "0"})
        append = bench.codec.append(step.turn, list(reversed(answers)), append_roles=bench.roles)
        text = bench.codec.decode(append.suffix)
        places = [text.find(mark) for mark in marks.values()]
        if -1 in places or places != sorted(places):
            raise Broken(
                f"results of {len(calls)} parallel calls, sent in reverse, are printed as {text!r}",
                message_index=step.turn.length,
                role="tool",
            )
        tokens += len(append.ids)
    return tokens


def control(bench: Bench, conversation: Conversation) -> int:
    """Control text that a user or a tool wrote gives ordinary ids, and is found where it is to be rejected."""
    codec = bench.codec
    chosen = bench.controls[conversation.rounds[0].seed % len(bench.controls)]
    decision = codec.decide(conversation.thinking)
    spiked = _spiked(conversation, chosen)
    rendered = codec.render(spiked.messages(), tools=spiked.tools, decision=decision)
    ids = codec.encode(rendered).ids
    plain = codec.encode(
        codec.render(_spiked(conversation, "x").messages(), tools=conversation.tools, decision=decision)
    ).ids
    added = np.array(sorted(codec.encoder.added_ids), dtype=np.int32)
    same_ids(
        bench,
        plain[np.isin(plain, added)],
        ids[np.isin(ids, added)],
        f"the text {chosen!r} in contents became a control token",
    )
    if codec.decode(ids) != rendered.text:
        raise Broken(f"with {chosen!r} in contents the ids no longer decode to the prompt's text")
    try:
        codec.encode(rendered, "reject")
    except EncodingError as cause:
        if cause.where.get("index") is None:
            raise Broken(f"{chosen!r} is rejected without the message's index: {cause}") from cause
    else:
        raise Broken(f"{chosen!r} in contents is not rejected where it should be")
    joined = bench.steps(conversation)[-1]
    if joined.turn is not None:
        append = codec.append(joined.turn, spiked.rounds[-1].appended, append_roles=bench.roles)
        found = append.suffix[np.isin(append.suffix, added)]
        same_ids(
            bench,
            joined.append.suffix[np.isin(joined.append.suffix, added)],
            found,
            f"the text {chosen!r} in an append became a control token",
            message_index=joined.turn.length,
        )
    return len(ids)


def _spiked(conversation: Conversation, text: str) -> Conversation:
    def spike(message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "content": f"{message['content']}{text}"}

    return replace(
        conversation,
        prompt=tuple(spike(message) for message in conversation.prompt),
        rounds=tuple(
            replace(one, appended=tuple(spike(message) for message in one.appended)) for one in conversation.rounds
        ),
    )


CHECKS = (
    Check("resolve", "one template, every control token one id", once=resolve),
    Check("thinking", "one mode, rendered and forwarded alike", once=thinking),
    Check("gate", "what is declared renders, all else is refused", once=gate),
    Check("prefix", "stored ids are never rewritten", each=prefix),
    Check("equality", "joined ids equal the full render", each=equality),
    Check("seam", "what follows a turn is what the render prints", each=seam),
    Check("schema", "tool schemas in the bytes an engine prints", each=schema),
    Check("results", "parallel results in the order of their calls", each=results),
    Check("control", "content never becomes a control token", each=control),
)
