"""What an engine returned, held against what was sent, before it becomes a turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tito_core.errors import CompletionError, EncodingError, MessageError, SessionError
from tito_core.prompts.messages import Message, whole
from tito_core.responses.completion import Completion
from tito_core.responses.parse import Parsed, parse
from tito_core.sessions.turn import Request
from tito_core.tokens.append import Ids
from tito_core.tokens.codec import Codec
from tito_core.tokens.compare import shared_length

__all__ = ["Overrun", "accepted", "own_extras"]

Overrun = Literal["refuse", "trim"]
"""What becomes of ids past the stop, as speculation returns them: the completion is refused, or cut there."""


def accepted(
    codec: Codec, request: Request, completion: Completion, overrun: Overrun
) -> tuple[Completion, Message, Parsed | None]:
    """The completion, the assistant message that it is, and what that was read back as where it brought none. Where the
    rule says so it is cut, and then its message and finish reason are what its ids say: others may say what was cut off.

    Raises CompletionError for one that can't be stored, SessionError for a request whose ids are not its parent's and then
    its own, FamilyError where the family's parser fails.
    """
    if completion.finish_reason == "abort":
        raise CompletionError(
            f"completion {completion.id} was aborted by the engine; sample it again, it is never stored",
            id=completion.id,
        )
    _check_prefix(request)
    _check_prompt(request, completion)
    try:
        text = codec.encoder.decode_bytes(completion.ids)
    except EncodingError as cause:
        raise CompletionError(f"completion {completion.id} can't be stored: {cause}", id=completion.id) from cause
    _check_rows(request, completion)
    end = _end(codec, completion, text, overrun)
    if end == len(completion.ids):
        return completion, *_answer(codec, request, completion)
    if completion.message is not None and codec.family.response_parser is None:
        raise CompletionError(
            f"completion {completion.id} is cut after {end} of its {len(completion.ids)} ids, and its message may say what "
            f"stands past them; {codec.family.name} declares no response_parser to read the rest back: cut ids, logprobs "
            "and message before they are committed",
            id=completion.id,
            first_index=end,
        )
    cut = replace(completion.cut(end), message=None)
    message, parsed = _answer(codec, request, cut)
    return replace(cut, finish_reason="tool_calls" if message.tool_calls else "stop"), message, parsed


def _answer(codec: Codec, request: Request, completion: Completion) -> tuple[Message, Parsed | None]:
    parsed = None
    if completion.message is None:
        parsed = parse(codec, completion, request.decision, request.tools)
    message = parsed.message if parsed else _brought(codec, request, completion)
    if message.tool_calls and completion.finish_reason == "length":
        _check_calls(codec, request, completion)
    return message, parsed


def own_extras(request: Request, completion: Completion) -> dict[str, npt.NDArray[Any]]:
    """A completion's extras from where its parent's end."""
    parent = request.parent
    made = {}
    for name, rows in completion.extras.items():
        start = min(request.ledger.kept, parent.end - parent.lag(name)) if parent else 0
        made[name] = rows[start:].copy()
        made[name].setflags(write=False)
    return made


def _end(codec: Codec, completion: Completion, text: bytes, overrun: Overrun) -> int:
    """How many ids belong to the completion: those up to the first stop token, or to the end of its stop string.

    One that the last id completes is the stop, wherever else it occurs: an engine that was told to sample so many tokens
    goes on after an earlier one. Of several before the last id none is known to be, so that is refused by both rules.
    """
    ids, stop = np.asarray(completion.ids), completion.stop
    encoder = codec.encoder
    stops = np.array([encoder.token_id(token) for token in codec.family.boundary.stop], dtype=np.int32)
    end = len(ids)
    early = end
    if stop:
        places = text.find(stop.encode()), text.rfind(stop.encode())
        if places[0] < 0:
            raise CompletionError(
                f"completion {completion.id} is said to end with the stop string {stop!r}, which its text (it ends "
                f"{encoder.decode(ids)[-20:]!r}) does not hold; pass stop=None where a token ended it",
                id=completion.id,
            )
        sizes = np.cumsum([len(encoder.token_bytes(int(one))) for one in ids])
        early, end = (int(np.searchsorted(sizes, place + len(stop.encode()))) + 1 for place in places)
    inside = np.flatnonzero((ids[: end - 1, None] == stops).any(axis=1))
    if len(inside) and (overrun == "refuse" or stop):
        raise CompletionError(
            f"completion {completion.id} goes on for {len(ids) - 1 - int(inside[0])} ids after the stop token "
            f"{int(ids[inside[0]])} at {int(inside[0])}; cut ids and logprobs there",
            id=completion.id,
            first_index=int(inside[0]) + 1,
        )
    if early < end < len(ids):
        raise CompletionError(
            f"completion {completion.id} goes on after the stop string {stop!r}, which ids {early - 1} and {end - 1} complete: "
            "which of them stopped the engine can't be told (told min_tokens, it goes on after an early one); cut ids and "
            "logprobs after the one that did",
            id=completion.id,
            first_index=early,
        )
    if end < len(ids) and overrun == "refuse":
        raise CompletionError(
            f"completion {completion.id} goes on after the stop string {stop!r} (text ends "
            f"{encoder.decode(ids)[-20:]!r}); cut ids and logprobs after the id that completes it",
            id=completion.id,
            first_index=end,
        )
    return int(inside[0]) + 1 if len(inside) else end


def _check_rows(request: Request, completion: Completion) -> None:
    """Refuses extras whose rows are not those of the ids, and others than the turns before have."""
    whole = len(request.ids) + len(completion.ids)
    for name, rows in completion.extras.items():
        if whole - len(rows) not in (0, 1):
            raise CompletionError(
                f"completion {completion.id} has {len(rows)} rows of {name!r} for {len(request.ids)} ids of the prompt and "
                f"{len(completion.ids)} sampled ones; ask the engine for {whole}, or for all but the last",
                id=completion.id,
            )
    if request.parent is None:
        return
    parent = request.parent
    kinds = {name: (whole - len(rows), rows.shape[1:], str(rows.dtype)) for name, rows in completion.extras.items()}
    before = {
        name: (parent.lag(name), rows.shape[1:], str(rows.dtype)) for name, rows in parent.completion.extras.items()
    }
    if kinds != before:
        raise CompletionError(
            f"completion {completion.id} has the extras (rows short, shape of a row, type) {kinds}, and the turn before it "
            f"{before}; a sample needs the same of all its turns: ask the engine for them always or never",
            id=completion.id,
        )


def _brought(codec: Codec, request: Request, completion: Completion) -> Message:
    given = completion.message
    assert given is not None
    role = given.role if isinstance(given, Message) else given.get("role", "assistant")
    if role != "assistant":
        raise CompletionError(
            f"completion {completion.id} has a message of the role {role!r}; it must be assistant", id=completion.id
        )
    sent = given if isinstance(given, Message) else {**given, "role": "assistant"}
    try:
        made = codec.normalise([sent], start=request.length)[0]
        return whole(made, request.length) if made is given else made
    except MessageError as cause:
        raise CompletionError(
            f"completion {completion.id} has a message that can't be stored: {cause}", id=completion.id
        ) from cause


def _check_calls(codec: Codec, request: Request, completion: Completion) -> None:
    """Refuses calls of a completion that was cut, unless the family's own parser finds them whole in its ids."""
    if codec.family.response_parser is not None:
        bare = replace(completion, message=None)
        if parse(codec, bare, request.decision, request.tools).state == "ok":
            return
    raise CompletionError(
        f"completion {completion.id} was cut by length, and its message has tool calls that are not known to be whole; "
        "leave them out of the message: a partial call is never run",
        id=completion.id,
    )


def _check_prefix(request: Request) -> None:
    parent, kept = request.parent, request.ledger.kept
    if parent is not None and (found := _differing(parent.ids[:kept], request.ids[:kept])):
        first, stored, sent = found
        raise SessionError(
            f"the request's ids are not those of turn {parent.number} that it continues: at {first} is {sent}, and {stored} "
            "is stored; what prepare gave was changed, prepare it again",
            first_index=first,
        )


def _check_prompt(request: Request, completion: Completion) -> None:
    """Refuses a completion whose engine saw another prompt than was sent: it decoded the ids and encoded their text."""
    if completion.prompt_ids is None:
        return
    sent, seen = request.ids, np.asarray(completion.prompt_ids)
    if found := _differing(sent, seen):
        first, one, other = found
        raise CompletionError(
            f"completion {completion.id} was sampled after other prompt ids than were sent: at {first} was sent {one}, the "
            f"engine saw {other} ({len(sent)} and {len(seen)} in all); the engine must take ids, not their text",
            id=completion.id,
            first_index=first,
        )


def _differing(one: Ids, other: Ids) -> tuple[int, str, str] | None:
    """The first index at which two sequences differ, and what each has there; None where they are the same."""
    if np.array_equal(one, other):
        return None
    first = shared_length(one, other)
    left, right = (f"id {int(ids[first])}" if first < len(ids) else "nothing" for ids in (one, other))
    return first, left, right
