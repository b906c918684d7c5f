"""The checks. Each proves one promise, on one generated conversation or once for a vocabulary, and counts ids.

What a sequence is compared with is encoded by `tokenizers`, from a render of the whole conversation: no check
compares a join with itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tito_core.engines.scripted import ScriptedEngine
from tito_core.errors import EncodingError, GateError, MessageError, ThinkingError, TitoError, TruncatedTurnError
from tito_core.families.family import APPEND_ROLES, Deployment, Effort, Family
from tito_core.prompts.messages import Message, Tool, ToolCall, normalise_tools
from tito_core.recipes.namespace import from_namespace, to_namespace
from tito_core.recipes.plan import command_line, plan
from tito_core.responses.completion import Completion
from tito_core.responses.parse import Parsed
from tito_core.responses.parse import parse as read_back
from tito_core.tokens.append import FinishReason, Ids
from tito_core.tokens.compare import FAULTS
from tito_core.verify.bench import Bench, Broken, Step, StoredTurn, same_ids, stored
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
        source = Path(spec.origin).read_bytes()
    else:
        source = template.source.encode()
    if (digest := hashlib.sha256(source).hexdigest()) != template.sha256:
        raise Broken(f"the template {template.reference} has the sha256 {digest}, and says {template.sha256}")
    tried = 0
    for size in range(1, len(APPEND_ROLES) + 1):
        for roles in itertools.combinations(APPEND_ROLES, size):
            try:
                narrowed = codec.append_roles.narrowed(frozenset(roles))
            except ValueError:
                continue
            tried += 1
            answer = codec.loaded.with_append_roles(narrowed).template(codec.origin.checkpoint)
            if answer != template:
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
    """One mode and one effort: what is rendered and what the engine is told agree, under every name, from every layer."""
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
    if declared.effort:
        tried += _effort(bench, declared.effort, messages)
    if len(declared.modes) == 2:
        tried += 1
        _frozen(bench, messages, {declared.forward_as: other})
    return tried


def _effort(bench: Bench, effort: Effort, messages: list[dict[str, Any]]) -> int:
    """Every level means thinking on, is rendered and sent, and gives way to a higher layer; `off` means thinking off."""
    codec, mode = bench.codec, bench.codec.family.thinking.forward_as
    levels: tuple[str | int, ...] = (*effort.levels, *(effort.range or ()))
    asked: list[tuple[dict[str, Any] | None, dict[str, Any] | None, dict[str, Any]]] = [
        ({mode: True}, None, {mode: True, effort.name: effort.default})
    ]
    for level, other in zip(levels, (*levels[1:], levels[0]), strict=True):
        told = {mode: True, effort.name: level}
        asked += [(None, {effort.name: level}, told), ({effort.name: level}, {effort.name: other}, told)]
        asked += [({mode: True}, {effort.name: level}, told), ({mode: False}, {effort.name: level}, {mode: False})]
        if effort.off is not None:
            asked.append(({effort.name: effort.off}, {effort.name: level}, {mode: False}))
    for request, session, told in asked:
        made = codec.session(chat_template_kwargs=session).prepare(messages, chat_template_kwargs=request)
        found = made.engine_kwargs.get("chat_template_kwargs")
        if found != told:
            raise Broken(
                f"request {request} over session chat_template_kwargs {session} mean {told}; the engine is told {found}"
            )
        rendered = codec.render(messages, decision=codec.decide(chat_template_kwargs=told))
        same_ids(
            bench,
            bench.encode(rendered.text),
            made.ids,
            f"request {request} over session {session} render another effort",
        )
    refused: list[dict[str, Any]] = [{effort.name: "no such level"}, {effort.name: True}]
    refused += [{effort.name: levels[0], mode: False}]
    if effort.off is not None:
        refused.append({effort.name: effort.off, mode: True})
    if effort.range:
        refused += [{effort.name: effort.range[0] - 1}, {effort.name: effort.range[1] + 1}]
    for kwargs in refused:
        try:
            codec.session(chat_template_kwargs=kwargs).prepare(messages)
        except ThinkingError:
            continue
        raise Broken(f"chat_template_kwargs {kwargs} are accepted")
    another = next((level for level in levels if level != effort.default), None)
    if another is not None:
        _frozen(bench, messages, {effort.name: another})
    return len(asked) + len(refused) + 1


def _frozen(bench: Bench, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> None:
    """After a turn in the default mode, these kwargs are refused and change nothing."""
    session = bench.codec.session()
    request = session.prepare(messages)
    said = {"role": "assistant", "content": "a"}
    turn = session.commit(request, ScriptedEngine(bench.codec, bench.seed).say(said, request.decision))
    try:
        session.prepare([*messages, said, *messages], chat_template_kwargs=kwargs)
    except ThinkingError:
        if session.turns != (turn,):
            raise Broken(f"a refused change to {kwargs} changed the session") from None
    else:
        raise Broken(f"chat_template_kwargs {kwargs} are accepted after a turn in another mode")


def gate(bench: Bench) -> int:
    """Every sequence of up to three roles: what is declared renders whole and opens a turn, all else is refused."""
    codec = bench.codec
    rules = bench.roles
    tried = 0
    decision = codec.decide()
    for role in ("system", "assistant"):
        tried += 1
        _refused_prompt(bench, role)
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
        if not isinstance(cause, (GateError, MessageError)):
            raise Broken(
                f"{said} is not declared, and is refused by nothing before {type(cause).__name__}: {cause}"
            ) from cause
        if cause.where.get("index") is None or cause.where.get("role") is None:
            raise Broken(f"{said} is refused without the index and role: {cause}") from cause
        return
    if not allowed:
        raise Broken(f"{said} is not declared, and is rendered")
    codec = bench.codec
    text = codec.decode(append.ids[append.kept :])
    places = [text.find(mark) for mark in marks]
    if -1 in places or places != sorted(places):
        raise Broken(f"{said} loses or reorders text: {text!r}", expected_text=" ".join(marks), actual_text=text)
    spoken = " ".join(codec.decode(append.ids[start:end]) for start, end in codec.assistant_runs(append.ids))
    for role, mark in zip(roles, marks, strict=True):
        if role != "assistant" and mark in spoken:
            raise Broken(f"{said} prints the {role} message inside an assistant turn: {text!r}", actual_text=text)


def _refused_prompt(bench: Bench, role: str) -> None:
    """A first prompt that ends where no turn is opened."""
    if role in bench.codec.append_roles.ends:
        return
    said = f"a first prompt that ends with a message of the role {role}"
    try:
        bench.codec.prompt([{"role": "user", "content": "0"}, {"role": role, "content": "0"}])
    except GateError as cause:
        if cause.where != {"index": 1, "role": role}:
            raise Broken(f"{said} is refused without the index and role: {cause}") from cause
    except TitoError as cause:
        raise Broken(f"{said} is refused by nothing before {type(cause).__name__}: {cause}") from cause
    else:
        raise Broken(f"{said} is rendered")


def prefix(bench: Bench, conversation: Conversation) -> int:
    """Stored ids stand unchanged at the start of the next prompt, and no render rewrites what stood before."""
    tokens = 0
    rendered = ""
    for step in bench.steps(conversation):
        ids = step.append.ids
        tokens += len(ids)
        if step.turn is not None:
            stored, append = step.turn.ids, step.append
            shared = [bench.codec.encoder.token_id(token) for token in bench.codec.family.boundary.shared]
            spared = 1 if int(stored[-1]) in shared and append.dropped else 0
            kept = len(stored) - spared
            same_ids(bench, stored[:kept], ids[:kept], "stored ids are rewritten", message_index=step.turn.length - 1)
            if (append.kept, append.dropped) != (kept, spared):
                raise Broken(
                    f"of {len(stored)} stored ids {append.kept} are said to be kept and {append.dropped} to be dropped; it "
                    f"is {kept} and {spared}",
                    message_index=step.turn.length - 1,
                )
        text = bench.text(conversation, len(conversation.messages(step.number)))
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
    first, *_ = steps = bench.steps(conversation)
    step = steps[-1]
    prompt = bench.encode(bench.text(conversation, len(conversation.prompt)))
    same_ids(bench, prompt, first.append.ids, "a first prompt's ids differ from its render")
    expected = bench.encode(bench.text(conversation))
    canonical = bench.canonical(conversation)
    if canonical and all(int(one.append.ids[-1]) in bench.codec.encoder.added_ids for one in steps):
        same_ids(bench, expected, step.append.ids, "joined ids differ from the full render")
        return len(expected)
    # A header that ends in text may become one token with the first of what is sampled after it: that is drift.
    for mismatch in bench.codec.compare(expected, step.append.ids):
        if mismatch.kind in FAULTS or (canonical and not mismatch.drift):
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
    tokens = 0
    for step in bench.steps(conversation):
        turn = step.turn
        if turn is None:
            continue
        start, expected = _after(bench, conversation, step)
        same_ids(
            bench,
            expected,
            step.append.ids[start:],
            f"after {conversation.messages(step.number)[turn.length]['role']}, message {turn.length}",
            offset=start,
            message_index=turn.length,
        )
        tokens += len(expected)
    return tokens


def _after(bench: Bench, conversation: Conversation, step: Step) -> tuple[int, Ids]:
    """Where a step's prompt goes on after what was sampled, and the ids that the full render has from there on.

    A sampled stop token that opens the next message too belongs to what follows it.
    """
    turn, boundary = step.turn, bench.codec.family.boundary
    assert turn is not None
    stops = [bench.codec.encoder.token_id(token) for token in boundary.stop]
    shared = [bench.codec.encoder.token_id(token) for token in boundary.shared]
    before = bench.text(conversation, turn.length)
    whole = bench.text(conversation, len(conversation.messages(step.number)))
    last, start = int(turn.ids[-1]), len(turn.ids)
    expected = bench.encode(whole[len(before) - (0 if stops[0] in shared else len(boundary.glue)) :])
    if last in shared:
        start -= 1
    elif last not in stops and stops[0] not in shared:
        expected = np.concatenate((np.array(stops[:1], dtype=np.int32), expected))
    return start, expected


def ledger(bench: Bench, conversation: Conversation) -> int:
    """The ledger names the author of every new id: in order, without a gap, each text in its own message's span.

    What a result says is its text, or the id of the call that it answers; either may be printed as JSON.
    """
    codec = bench.codec
    messages = codec.normalise(conversation.messages())
    tokens = 0
    for step in bench.steps(conversation):
        append = step.append
        same_ids(
            bench,
            np.concatenate((append.parent[: append.kept], append.inserted, append.suffix)),
            append.ids,
            "a prompt is not what its ledger says",
        )
        place = append.kept
        for span in append.spans:
            if span.start != place or span.end <= span.start:
                raise Broken(f"the span {span} does not begin at {place}, where the one before it ends")
            place = span.end
        if place != len(append.ids):
            raise Broken(f"the spans of {len(append.ids)} ids end at {place}")
        if len(append.inserted):
            inserted, owner = append.spans[0], append.kept + len(append.inserted)
            if inserted[:3] != (append.kept, owner, "template") or messages[inserted.index].role != "assistant":
                raise Broken(f"{len(append.inserted)} inserted ids at {append.kept} have the span {inserted}")
        data = [bench.token_bytes(one) for one in append.ids[append.kept :].tolist()]
        ends = [0, *itertools.accumulate(map(len, data))]
        whole = b"".join(data)
        for span in append.spans:
            if span.index >= 0 and messages[span.index].role != span.role:
                raise Broken(
                    f"the span {span} says {span.role}, and message {span.index} is {messages[span.index].role}",
                    message_index=span.index,
                )
            if span.source != "content" or span.role not in ("user", "tool") or messages[span.index].tools:
                continue
            start, end = ends[span.start - append.kept], ends[span.end - append.kept]
            message = messages[span.index]
            content = _kept(codec.family, span.role, message.content)
            texts = [text for text in (content, message.tool_call_id, message.name) if text is not None]
            said = {
                bench.normalised(spelling).encode()
                for text in texts
                for spelling in (text, json.dumps(text, ensure_ascii=False), json.dumps(text))
            } - {b""}
            # A token that straddles two parts belongs to the one that it starts in.
            begins = range(start, max(start - _STRADDLING, -1), -1)
            if not any(whole.startswith(text, at) and start < at + len(text) <= end for text in said for at in begins):
                raise Broken(
                    f"the span {span} is said to hold the content of message {span.index} ({span.role})",
                    message_index=span.index,
                    role=span.role,
                    expected_text=messages[span.index].content,
                    actual_text=whole[start:end].decode("utf-8", "replace"),
                )
        tokens += len(append.ids) - append.kept
    return tokens


_STRADDLING: Final = 128
"""No token of any vocabulary is longer, in bytes, where it matters: one that begins before a content and ends in it."""


def content(bench: Bench, conversation: Conversation) -> int:
    """What somebody said stands whole in the full render, in a part of it that is marked as that message's content."""
    rendered, family = bench.rendered(conversation), bench.codec.family
    pieces: dict[int, list[str]] = {}
    for span in rendered.spans:
        if span.source == "content":
            pieces.setdefault(span.index, []).append(rendered.text[span.start : span.end])
    for index, message in enumerate(bench.codec.normalise(conversation.messages())):
        said = [_spellings(_kept(family, message.role, message.content))]
        said.append(_spellings(_kept(family, "reasoning", message.reasoning) if conversation.thinking else ""))
        for call in message.tool_calls:
            said += [_spellings(call.name), *_leaves(call.arguments)]
        printed = pieces.get(index, [""])
        for spellings in said:
            if not any(spelling in piece for spelling in spellings for piece in printed):
                where = "prints that as the template's own, not as content"
                if not any(spelling in rendered.text for spelling in spellings):
                    where = "does not print that whole"
                raise Broken(
                    f"message {index} ({message.role}) says {spellings[0]!r}, and the render {where}",
                    message_index=index,
                    role=message.role,
                    expected_text=spellings[0],
                    actual_text="".join(printed),
                )
    return len(bench.steps(conversation)[-1].append.ids)


_PYTHONS: Final = {"true": "True", "false": "False", "null": "None"}
"""How a template that prints an argument as Python does spells JSON's words."""


def _kept(family: Family, part: str, text: str) -> str:
    """What a family prints of a part of a message."""
    return text.strip() if part in family.trims else text


def _spellings(text: str) -> tuple[str, ...]:
    """A text as it is, as it stands inside JSON, and as Python spells it where it is a word of JSON's."""
    return text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1], _PYTHONS.get(text, text)


def _leaves(value: Any) -> Iterator[tuple[str, ...]]:
    """The spellings of a JSON value's keys, strings, numbers and words. A format may know integers of 64 bits only."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield _spellings(key)
            yield from _leaves(one)
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, str):
        yield _spellings(value)
    else:
        yield (*_spellings(json.dumps(value)), json.dumps(_doubles(value)))


def _doubles(value: Any) -> Any:
    """A JSON value whose integers of more than 64 bits are the nearest doubles."""
    if isinstance(value, dict):
        return {key: _doubles(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_doubles(one) for one in value]
    return float(value) if type(value) is int and not -(2**63) <= value < 2**64 else value


def truncation(bench: Bench, conversation: Conversation) -> int:
    """A turn cut by length is refused, or closed: stored ids stand, no block stays open, and the append follows."""
    step = bench.steps(conversation)[-1]
    whole = step.turn
    assert whole is not None
    stops = [bench.codec.encoder.token_id(token) for token in bench.codec.family.boundary.stop]
    size = len(whole.ids) - whole.sampled
    last = len(whole.ids) - (int(whole.ids[-1]) in stops)
    cuts: Sequence[int] = range(size + 1, last + 1)
    if not cuts:
        return 0
    chosen = random.Random(conversation.rounds[-1].seed)
    if len(cuts) > _SHORT_TURN or chosen.random() < _SKIPPED:
        cuts = [chosen.choice(cuts)]
    return sum(_cut(bench, conversation, step, cut) for cut in cuts)


_SHORT_TURN: Final = 40
_SKIPPED: Final = 0.9
"""A turn of so few ids is cut at each of them, if it is not among this share of turns, which are cut once."""


def _cut(bench: Bench, conversation: Conversation, step: Step, cut: int) -> int:
    codec, boundary, whole = bench.codec, bench.codec.family.boundary, step.turn
    assert whole is not None
    appended, size = conversation.rounds[-1].appended, len(whole.ids) - whole.sampled
    turn = replace(whole, ids=whole.ids[:cut], sampled=cut - size, finish_reason="length")
    try:
        codec.append(turn, appended, append_roles=bench.roles)
    except TruncatedTurnError as cause:
        if cause.where != {"index": turn.length - 1, "role": "assistant"}:
            raise Broken(f"a cut turn is refused without its index: {cause}") from cause
    else:
        raise Broken(
            f"a turn cut after {turn.sampled} ids is continued as if it were whole", message_index=turn.length - 1
        )
    if not boundary.closers:
        return cut
    append = codec.append(turn, appended, append_roles=bench.roles, truncation="close")
    where = {"message_index": turn.length - 1}
    same_ids(bench, turn.ids, append.ids[:cut], "stored ids of a cut turn are rewritten", **where)
    same_ids(
        bench, step.append.suffix, append.suffix, "what follows a cut turn differs from what follows it whole", **where
    )
    ended = (boundary.stop[0] if boundary.stop[0] not in boundary.shared else "") + boundary.glue
    text = codec.decode(append.inserted)
    if not text.endswith(ended):
        raise Broken(f"a cut turn is ended with {text!r}, and not with {ended!r}", **where)
    header = bench.text(conversation, turn.length - 1)[-_HEADER:]
    said = header + codec.decode(turn.ids[size:]) + text
    for name, (opener, closer) in boundary.marks.items():
        if said.rfind(opener) > said.rfind(closer):
            raise Broken(f"a turn cut in its {name} is left open: {said!r}", **where)
    return len(append.ids)


_HEADER: Final = 40
"""So many characters before a completion hold its generation header."""


def compare(bench: Bench, conversation: Conversation) -> int:
    """The comparator tells faults from drift: one id changed, in what was sampled, in an append, at a delimiter."""
    codec, family = bench.codec, bench.codec.family
    step = bench.steps(conversation)[-1]
    turn, append = step.turn, step.append
    assert turn is not None
    ids, seed = append.ids, conversation.rounds[-1].seed
    added = codec.encoder.added_ids
    delimiters = [found for token in family.segments.delimiters if (found := codec.encoder.token_id(token)) is not None]
    texts = [
        place
        for span in append.spans
        if span.role in ("user", "tool", "system") and (span.source == "content" or len(append.suffix) < _SHORT)
        for place in range(span.start, span.end)
        if int(ids[place]) not in added
    ]
    said = [place for place in range(len(turn.ids) - turn.sampled, append.kept) if int(ids[place]) not in added]
    marks = np.flatnonzero(np.isin(ids, delimiters)).tolist()
    opening = [found for token in family.segments.openers if (found := codec.encoder.token_id(token)) is not None]
    openers = [
        place
        for span in append.spans
        if span.role in ("user", "tool") and span.source == "template"
        for place in range(span.start, span.end)
        if len(opening) > 1 and int(ids[place]) in opening
    ]
    for kind, places in (
        ("non_assistant_text", texts),
        ("non_assistant_text", openers),
        ("assistant_text", said),
        ("special_token_type", marks),
        ("special_token_count", marks),
        ("special_token_count", [*texts, *said, *marks]),
        ("special_token_type", [one for one, two in itertools.pairwise(marks) if ids[one] != ids[two]]),
    ):
        if not places:
            continue
        place = places[seed % len(places)]
        changed = ids.copy()
        if kind == "special_token_count":
            changed = np.delete(changed, place) if places is marks else np.insert(changed, place, delimiters[0])
        elif kind == "special_token_type" and places is not marks:
            other = next(one for one in marks if one > place)
            changed[[place, other]] = changed[[other, place]]
        elif kind == "special_token_type":
            changed[place] = next(one for one in delimiters if one != int(ids[place]))
        else:
            others = opening if int(ids[place]) in opening else bench.plain_ids
            changed[place] = next(one for one in others if one != int(ids[place]))
        told = () if places is openers else append.spans  # an opener is known for what it is without being told
        kinds = [mismatch.kind for mismatch in codec.compare(ids, changed, told)]
        if kinds != [kind]:
            raise Broken(
                f"with another id at {place}, {codec.decode(ids[place : place + 1])!r}, the comparator says {kinds}, not {kind}",
                first_index=place,
            )
    return len(ids)


_SHORT: Final = 64


def engine(bench: Bench) -> int:
    """The scripted engine's ids decode to what it was told to say, and are often not the canonical ones."""
    codec = bench.codec
    tried = drifted = halved = splittable = 0
    for mode in codec.family.thinking.modes:
        decision = bench.decision(mode)
        asked = [{"role": "user", "content": "0"}]
        message = {"role": "assistant", "content": "four lines, naïve ☕ 👩‍👩‍👧 你好\n\n  return x"}
        before = codec.render(asked, decision=decision).text
        text = codec.render([*asked, message], decision=decision).text[len(before) :]
        glue = codec.family.boundary.glue
        canonical = bench.encode(text.removesuffix(glue) if glue else text)
        plain = [one for one in canonical.tolist() if one not in codec.encoder.added_ids]
        splittable += sum(len(bench.token_bytes(one)) > 1 for one in plain)
        for number in range(8):
            tried += 1
            said = ScriptedEngine(codec, bench.seed + number).say(message, decision)
            ids = np.asarray(said.ids)
            same_ids(bench, canonical, bench.encode(codec.decode(ids)), "the scripted engine says something else")
            drifted += not np.array_equal(ids, canonical)
            halved += any("\ufffd" in codec.decode(ids[:size]) for size in range(1, len(ids)))
    if splittable >= _SPLITTABLE and not (drifted and halved):
        raise Broken(
            f"of {tried} scripted completions {drifted} are not canonical, and {halved} can be cut inside a character"
        )
    return tried


_SPLITTABLE: Final = 8
"""With fewer ids that could have been sampled as several, nothing says that one was: a vocabulary may have no merges."""


def schema(bench: Bench, conversation: Conversation) -> int:
    """A tool's schema is printed in the bytes an engine prints: its keys in their order, and what stands for absent ones."""
    if not conversation.tools:
        return 0
    step = bench.steps(conversation)[0]
    text = bench.text(conversation, len(conversation.prompt))
    if bench.codec.family.schemas == "own":
        for said in (said.strip() for tool in conversation.tools for said in _named(tool["function"])):
            if not any(spelling in text for spelling in _spellings(said)):
                raise Broken(
                    f"the schema of a tool says {said!r}, and the prompt does not print that", actual_text=text
                )
        return len(step.append.ids)
    for tool in conversation.tools:
        function = tool["function"]
        expected = json.dumps(bench.codec.revision.tool_schema.of(function), ensure_ascii=False)
        if expected not in text:
            near = max(0, text.find(f'"name": "{function["name"]}"') - 40)
            raise Broken(
                f"the schema of the tool {function['name']!r} is not printed as an engine prints it",
                expected_text=expected,
                actual_text=text[near : near + len(expected) + 40],
            )
    return len(step.append.ids)


def _named(schema: Any) -> Iterator[str]:
    """The names and descriptions in a schema."""
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties") or {}
    yield from properties
    yield from (schema[key] for key in ("name", "description") if isinstance(schema.get(key), str))
    for one in (*properties.values(), schema.get("parameters")):
        yield from _named(one)


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


def control_tokens(bench: Bench) -> int:
    """Each added token of the vocabulary, special or not, in every place where somebody writes text."""
    codec = bench.codec
    usual = bench.controls_in(_everywhere(bench, "x"))
    for between in ("", " "):
        same_ids(
            bench,
            usual,
            bench.controls_in(_everywhere(bench, between.join(bench.controls))),
            "control text that somebody wrote became a control token",
        )
    return len(bench.controls) * len(codec.family.thinking.modes)


def _everywhere(bench: Bench, text: str) -> Ids:
    """Prompts, in every mode, that hold a text in every role's content, in reasoning, names, arguments and schemas."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        {"role": "assistant", "content": text, "reasoning_content": text},
        {"role": "user", "content": text},
    ]
    tools: list[dict[str, Any]] = []
    if "tool" in bench.roles.roles:
        call = {"id": "c0", "function": {"name": text, "arguments": {text: text, f"{text}1": [text, {text: text}]}}}
        messages[2]["tool_calls"] = [call]
        messages.insert(3, {"role": "tool", "tool_call_id": "c0", "content": text})
        parameters = {"type": "object", "properties": {text: {"description": text}}}
        tools = [{"function": {"name": text, "description": text, "parameters": parameters}}]
    decisions = [bench.decision(mode) for mode in bench.codec.family.thinking.modes]
    return np.concatenate([bench.codec.prompt(messages, tools=tools, decision=one).ids for one in decisions])


def control(bench: Bench, conversation: Conversation) -> int:
    """Control text that a user or a tool wrote gives ordinary ids, and is found where it is to be rejected."""
    codec = bench.codec
    chosen = bench.controls[conversation.rounds[0].seed % len(bench.controls)]
    decision = bench.decision(conversation.thinking)
    spiked, usual = _spiked(conversation, chosen), _spiked(conversation, "x")
    rendered = codec.render(spiked.messages(), tools=spiked.tools, decision=decision)
    ids = codec.encode(rendered).ids
    plain = codec.encode(codec.render(usual.messages(), tools=usual.tools, decision=decision)).ids
    same_ids(
        bench,
        bench.controls_in(plain),
        bench.controls_in(ids),
        f"the text {chosen!r} in contents became a control token",
    )
    if bench.normalised(codec.decode(ids)) != bench.normalised(rendered.text):
        raise Broken(f"with {chosen!r} in contents the ids no longer decode to the prompt's text")
    try:
        codec.encode(rendered, "reject")
    except EncodingError as cause:
        if cause.where.get("index") is None and not spiked.tools:  # a tool belongs to no message
            raise Broken(f"{chosen!r} is rejected without the message's index: {cause}") from cause
    else:
        raise Broken(f"{chosen!r} in contents is not rejected where it should be")
    joined = bench.steps(conversation)[-1]
    if joined.turn is not None:
        harmless, append = (
            codec.append(joined.turn, one.rounds[-1].appended, append_roles=bench.roles) for one in (usual, spiked)
        )
        same_ids(
            bench,
            bench.controls_in(harmless.suffix),
            bench.controls_in(append.suffix),
            f"the text {chosen!r} in an append became a control token",
            message_index=joined.turn.length,
        )
    return len(ids)


def _spiked(conversation: Conversation, text: str) -> Conversation:
    """The same conversation, with the text in every content, thought, call and schema."""

    def spike(message: dict[str, Any]) -> dict[str, Any]:
        made = {**message, "content": f"{message['content']}{text}"}
        if message.get("reasoning_content"):
            made["reasoning_content"] = f"{message['reasoning_content']}{text}"
        if message.get("tool_calls"):
            made["tool_calls"] = [
                {
                    **call,
                    "function": {**call["function"], "arguments": json.dumps({f"k{text}": f"{text}v", "n": [text]})},
                }
                for call in message["tool_calls"]
            ]
        return made

    return replace(
        conversation,
        tools=tuple(
            {**tool, "function": {**tool["function"], "description": f"a{text}"}} for tool in conversation.tools
        ),
        prompt=tuple(spike(message) for message in conversation.prompt),
        rounds=tuple(
            replace(one, assistant=spike(one.assistant), appended=tuple(spike(message) for message in one.appended))
            for one in conversation.rounds
        ),
    )


def parse(bench: Bench, conversation: Conversation) -> int:
    """A completion read back makes the calls that were said and prints as it was sampled; a cut one is never whole."""
    if bench.codec.family.response_parser is None:
        return 0
    tokens = 0
    for step, one in zip(bench.steps(conversation)[1:], conversation.rounds, strict=True):
        turn = step.turn
        assert turn is not None
        ids = turn.ids[len(turn.ids) - turn.sampled :]
        offered = _offered(turn.message)
        whole = _read(bench, turn, ids, turn.finish_reason, offered)
        if whole.state != "ok":
            raise Broken(f"a whole completion is read as {whole.state}: {whole.why}", message_index=turn.length - 1)
        stopped = bench.codec.decode(ids[-1:]) in bench.codec.family.boundary.stop
        sizes = range(1, len(ids) - stopped)
        for size in random.Random(one.seed).sample(sizes, min(_CUTS, len(sizes))):
            cut = _read(bench, turn, ids[:size], "length", offered)
            if cut.state != "incomplete" or not whole.reasoning.startswith(cut.reasoning):
                raise Broken(
                    f"cut after {size} of {len(ids)} ids, it is read as {cut.state}: {cut.why}",
                    message_index=turn.length - 1,
                    expected_text=whole.reasoning,
                    actual_text=cut.reasoning,
                )
            tokens += size
        tokens += len(ids)
    return tokens


def _offered(message: Message) -> tuple[Tool, ...]:
    """Tools whose schemas name the type of every argument that a message's calls have."""
    properties: dict[str, dict[str, Any]] = {}
    for call in message.tool_calls:
        types = properties.setdefault(call.name, {})
        for key, value in call.arguments.items():
            types[key] = {"type": sorted({*types.get(key, {"type": ()})["type"], _TYPES[type(value)]})}
    return normalise_tools(
        [
            {"function": {"name": name, "parameters": {"type": "object", "properties": types}}}
            for name, types in properties.items()
        ]
    )


_TYPES: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def _certain(bench: Bench, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> list[tuple[str, str]]:
    """Names and arguments, less those that one call gives as text and another does not: a format may not tell."""
    types = {
        (tool.name, key): declared["type"]
        for tool in tools
        for key, declared in tool.function["parameters"]["properties"].items()
    }
    made = []
    for call in calls:
        known = {key: types.get((call.name, key), ["string"]) for key in call.arguments}
        kept = {
            key: call.arguments[key] for key, names in known.items() if names == ["string"] or "string" not in names
        }
        made.append((bench.normalised(call.name), bench.normalised(json.dumps(_doubles(kept), ensure_ascii=False))))
    return made


def _read(bench: Bench, turn: StoredTurn, ids: Ids, finish_reason: FinishReason, tools: Sequence[Tool]) -> Parsed:
    """What ids are read back as; where that is ok, it says what was said in the text that was sampled."""
    codec = bench.codec
    completion = Completion(ids, np.zeros(len(ids), dtype=np.float32), finish_reason, id="c")
    read = read_back(codec, completion, turn.decision, tools)
    if "\ufffd" in read.content + read.reasoning and "\ufffd" not in codec.decode(turn.ids[-turn.sampled :]):
        raise Broken(f"half a character is read as text: {codec.decode(ids)!r}", message_index=turn.length - 1)
    if read.state != "ok":
        return read
    made, said = (_certain(bench, message.tool_calls, tools) for message in (read.message, turn.message))
    if made != said:
        raise Broken(f"the calls {made} are read where {said} were made", message_index=turn.length - 1)
    for name, part in (("content", "assistant"), ("reasoning", "reasoning"))[: 1 + turn.decision.enabled]:
        expected, actual = (
            bench.normalised(_kept(codec.family, part, getattr(one, name))) for one in (turn.message, read.message)
        )
        if expected != actual:
            raise Broken(
                f"another {name} is read than was said",
                message_index=turn.length - 1,
                expected_text=expected,
                actual_text=actual,
            )
    asked = Message("user", "0")
    before = codec.render([asked], decision=turn.decision).text
    printed = codec.render([asked, read.message], decision=turn.decision).text[len(before) :]
    text = codec.decode(ids)
    printed, text = (bench.normalised(one) for one in (printed.removesuffix(codec.family.boundary.glue), text))
    if _unended(bench, printed) != _unended(bench, text):
        raise Broken(
            "a message that was read back prints as another text than was sampled",
            message_index=turn.length - 1,
            expected_text=text,
            actual_text=printed,
        )
    return read


def _unended(bench: Bench, text: str) -> str:
    stops = bench.codec.family.boundary.stop
    return next((text.removesuffix(stop) for stop in stops if text.endswith(stop)), text)


_CUTS: Final = 3
"""So many cuts of each completion are read."""


def recipe(bench: Bench) -> int:
    """Every declared recipe can be planned: it keeps every rule of the family and of its engine, and is the same after a trip
    through the fields that trainers keep. The declaration is the same after JSON."""
    loaded, family = bench.codec.loaded, bench.codec.family
    tried = 1
    again = type(family).model_validate_json(family.model_dump_json())
    if again != family:
        raise Broken("the declaration is another one after a trip through JSON")
    for profile, declared in family.recipes.items():
        for platform in dict.fromkeys((Deployment().platform, *declared.platforms)):
            asked = Deployment(profile=profile, platform=platform, engine=declared.engine)
            served = plan(loaded, asked).recipe
            tried += 1 + len(family.recipe_rules) + len(command_line(asked.engine).rules)
            if served.engine != "sglang":
                continue
            kept = from_namespace(to_namespace(served), environment=served.environment)
            if kept != served.told():
                raise Broken(
                    f"the recipe {profile} on {platform} is another one after a trip through a trainer's fields"
                )
    return tried


CHECKS = (
    Check("resolve", "one template, every control token one id", once=resolve),
    Check("thinking", "one mode, rendered and forwarded alike", once=thinking),
    Check("gate", "what is declared renders, all else is refused", once=gate),
    Check("engine", "scripted ids say what they should, not canonically", once=engine),
    Check("prefix", "stored ids are never rewritten", each=prefix),
    Check("equality", "joined ids equal the full render", each=equality),
    Check("seam", "what follows a turn is what the render prints", each=seam),
    Check("ledger", "every new id is told whose it is", each=ledger),
    Check("truncation", "a cut turn is refused, or closed", each=truncation),
    Check("content", "what was said is printed whole", each=content),
    Check("schema", "tool schemas in the bytes an engine prints", each=schema),
    Check("results", "parallel results in the order of their calls", each=results),
    Check("control", "content never becomes a control token", once=control_tokens, each=control),
    Check("parse", "a completion reads back as what was said", each=parse),
    Check("compare", "faults are told from drift", each=compare),
    Check("recipe", "recipes, rules and declaration are whole", once=recipe),
)
