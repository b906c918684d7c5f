"""Joining an append to stored ids: nothing before the seam is ever encoded again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from tito_core.errors import AppendError, TemplateError, TitoError, TruncatedTurnError
from tito_core.families.family import Boundary, ThinkingDecision
from tito_core.prompts.messages import Message, ToolCall
from tito_core.prompts.template import Rendered, Renderer, Span
from tito_core.tokens.encoder import Encoded, Encoder, IdSpan, Mode

__all__ = ["Append", "FinishReason", "Ids", "Joiner", "Truncation", "Turn", "check_modes"]

Ids = npt.NDArray[np.int32]
FinishReason = Literal["stop", "length", "tool_calls", "abort"]
Truncation = Literal["refuse", "close"]

_BASE_USER = Message("user", "0")
_BASE_REASONING = "0"


def check_modes(mode: str, truncation: str) -> None:
    """Raises AppendError for a name that is neither: a mistyped rule must not choose another."""
    for what, name, known in (("encoding", mode, get_args(Mode)), ("truncation", truncation, get_args(Truncation))):
        if name not in known:
            raise AppendError(f"{what} is {name!r}; choose {' or '.join(map(repr, known))}")


class Turn(Protocol):
    """What joining needs of a stored turn."""

    @property
    def ids(self) -> Ids:
        """The prompt's ids and the completion's, int32."""

    @property
    def sampled(self) -> int:
        """How many of the last ids the engine sampled."""

    @property
    def message(self) -> Message:
        """The assistant message that the completion is."""

    @property
    def finish_reason(self) -> FinishReason: ...

    @property
    def decision(self) -> ThinkingDecision: ...

    @property
    def length(self) -> int:
        """How many messages the conversation has, this turn's assistant message included."""


class Append:
    """The next prompt, and the ledger of where its ids come from.

    `kept` of the parent's ids, then `inserted` (closers, a stop token, glue), then `suffix` (int32, read-only). `dropped`
    counts shared boundary tokens taken off the parent's tail; one that is the suffix's first id too stays kept, and the
    suffix begins after it. A first prompt keeps nothing and is all suffix.
    """

    __slots__ = ("__dict__", "_encoded", "_index", "dropped", "inserted", "kept", "parent", "suffix")

    def __init__(
        self, parent: Ids, kept: int, dropped: int, inserted: Ids, suffix: Ids, encoded: Encoded, index: int
    ) -> None:
        self.parent, self.kept, self.dropped = parent, kept, dropped
        self.inserted, self.suffix = _frozen(inserted), _frozen(suffix)
        self._encoded, self._index = encoded, index

    @cached_property
    def ids(self) -> Ids:
        """The next prompt, int32, read-only."""
        made = np.concatenate((self.parent[: self.kept], self.inserted, self.suffix))
        made.setflags(write=False)
        return made

    @cached_property
    def spans(self) -> tuple[IdSpan, ...]:
        """Who printed each id from `kept` on: template or content, of which message, in the coordinates of `ids`."""
        at = self.kept
        spans: list[IdSpan] = []
        if len(self.inserted):
            spans.append(IdSpan(at, at + len(self.inserted), "template", self._index, "assistant"))
            at += len(self.inserted)
        shift = at - (len(self._encoded.ids) - len(self.suffix))
        for span in self._encoded.spans:
            if span.end + shift > at:
                spans.append(span._replace(start=max(span.start + shift, at), end=span.end + shift))
        return tuple(spans)


class Joiner:
    """Joins appends for one family and tokenizer. A suffix is rendered after a synthetic turn, never after history."""

    def __init__(self, family: str, boundary: Boundary, encoder: Encoder, renderer: Renderer) -> None:
        self._family, self._boundary = family, boundary
        self._encoder, self._renderer = encoder, renderer
        self._stop_ids = [_only(encoder, token) for token in boundary.stop]
        self._shared_ids = {_only(encoder, token) for token in boundary.shared}
        self._glue = encoder.encode_text(boundary.glue)

    def first(self, rendered: Rendered, mode: Mode, last: Message, index: int) -> Append:
        """A first prompt, as an append to nothing; `last` is its last message, `index` that one's place."""
        self._opened(rendered, last.role, index)
        encoded = self._encoder.encode(rendered, mode)
        empty = encoded.ids[:0]
        return Append(empty, 0, 0, empty, encoded.ids, encoded, -1)

    def join(
        self,
        turn: Turn,
        appended: Sequence[Message],
        *,
        kwargs: Mapping[str, Any],
        mode: Mode,
        truncation: Truncation,
    ) -> Append:
        """The append of normalised, gated messages to a turn.

        Raises TruncatedTurnError for a turn cut by length under the rule `refuse`, AppendError where the template
        gives no token edge at the seam, TemplateError and EncodingError from rendering and encoding.
        """
        parent = turn.ids
        stopped, glued = self._ended(parent)
        shared = stopped and int(parent[-1]) in self._shared_ids
        if stopped:
            inserted = [] if glued or shared else [self._glue]
        else:
            inserted = [self._ending(turn, kwargs, truncation)]
            if self._stop_ids[0] not in self._shared_ids:
                inserted.append(self._glue)
        rendered = self._suffix(turn, appended, kwargs)
        self._opened(rendered, appended[-1].role, turn.length + len(appended) - 1)
        encoded = self._encoder.encode(rendered, mode)
        suffix, kept = encoded.ids, len(parent)
        if shared and int(suffix[0]) == int(parent[-1]):
            suffix = suffix[1:]
        else:
            kept -= shared
            self._edge(np.concatenate((parent[kept - 1 : kept], *inserted))[-1], suffix[0], turn, appended[0])
        joined = np.concatenate((parent[:0], *inserted))
        return Append(parent, kept, len(parent) - kept, joined, suffix, encoded, turn.length - 1)

    def finished(self, ids: Ids) -> Ids:
        """A turn's ids, int32, ending as the template ends a message: a stop token and glue, or no shared opener."""
        stopped, glued = self._ended(ids)
        if stopped:
            return ids[:-1] if int(ids[-1]) in self._shared_ids else ids if glued else np.concatenate((ids, self._glue))
        if self._stop_ids[0] in self._shared_ids:
            return ids
        return np.concatenate((ids, self._printed(self._boundary.stop[0]), self._glue))

    def _ended(self, ids: Ids) -> tuple[bool, bool]:
        """Whether ids end a turn, whatever the engine's finish reason; and whether the glue stands there already."""
        if int(ids[-1]) in self._stop_ids:
            return True, False
        size = len(self._glue)
        stops = 0 < size < len(ids) and int(ids[-size - 1]) in self._stop_ids
        glued = stops and np.array_equal(ids[-size:], self._glue)
        return glued, glued

    def _ending(self, turn: Turn, kwargs: Mapping[str, Any], truncation: Truncation) -> Ids:
        """What ends a turn whose ids end without a stop token: a stop token, after closers where it was cut.

        A stop token that is the next message's opener is not among it: the suffix begins with its own.
        """
        stop = "" if self._stop_ids[0] in self._shared_ids else self._boundary.stop[0]
        if turn.finish_reason != "length":
            return self._printed(stop)
        if truncation == "refuse":
            raise TruncatedTurnError(
                f"message {turn.length - 1} (assistant) was cut by length after {turn.sampled} sampled ids, so its turn "
                f"never ended (last id {int(turn.ids[-1])}); sample it again with more room, end the session here, or "
                "open it with truncation='close'",
                index=turn.length - 1,
                role="assistant",
            )
        if not self._boundary.closers:
            raise AppendError(
                f"message {turn.length - 1} (assistant) was cut by length, and {self._family} declares no closers for a "
                "turn that was cut; sample it again with more room, or end the session here",
                index=turn.length - 1,
                role="assistant",
            )
        return self._printed(self._boundary.closers[self._state(turn, kwargs)] + stop)

    def _state(self, turn: Turn, kwargs: Mapping[str, Any]) -> Literal["reasoning", "content", "call"]:
        """Where a turn was cut: in the block that its generation header or its text opened and nothing closed.

        The header is that of a synthetic prompt. A block's text may spell the other block's marks, a mark that is itself
        cut counts as not there, and one that is a control token counts where its id was sampled, not where it is spelt.
        """
        header = self._renderer.render((_BASE_USER,), tools=(), kwargs=kwargs)
        text = header.text[header.spans[-1].start :] + self._sampled_text(turn.ids[len(turn.ids) - turn.sampled :])
        marks, place = self._boundary.marks, 0
        while True:
            found = [
                (at, name, opener, closer)
                for name, (opener, closer) in marks.items()
                if (at := text.find(opener, place)) >= 0
            ]
            if not found:
                return "content"
            at, name, opener, closer = min(found)
            end = text.find(closer, at + len(opener))
            if end < 0:
                return name
            place = end + len(closer)

    def _sampled_text(self, ids: Ids) -> str:
        """Text of sampled ids, with every mark that is a control token taken out of what was sampled as plain text."""
        encoder = self._encoder
        marks = {mark: encoder.token_id(mark) for pair in self._boundary.marks.values() for mark in pair}
        controls = {mark: number for mark, number in marks.items() if number is not None}
        edges = np.flatnonzero(np.isin(ids, list(controls.values()))).tolist()
        made, place = [], 0
        for edge in (*edges, len(ids)):
            plain = encoder.decode(ids[place:edge])
            for mark in controls:
                plain = plain.replace(mark, "")
            made += [plain, encoder.decode(ids[edge : edge + 1])]
            place = edge + 1
        return "".join(made)

    def _printed(self, text: str) -> Ids:
        """Ids of what the template would have printed: control tokens become theirs."""
        spans = (Span(0, len(text), "template", 0, "assistant"),) if text else ()
        return self._encoder.encode(Rendered(text, spans)).ids

    def _edge(self, left: int, right: int, turn: Turn, first: Message) -> None:
        """Text is cut at control tokens only, so one must stand at the seam."""
        if int(left) in self._encoder.added_ids or int(right) in self._encoder.added_ids:
            return
        decode = self._encoder.decode
        raise AppendError(
            f"the append to {self._family} after message {turn.length - 1} (assistant) begins with text (id {right}, "
            f"{decode([right])!r}), and so does what stands before it end (id {left}, {decode([left])!r}): there is no "
            "token edge to join at, and they would be encoded apart; the family must declare a control token there",
            index=turn.length,
            role=first.role,
        )

    def _opened(self, rendered: Rendered, role: str, index: int) -> None:
        closed = tuple(stop + self._boundary.glue for stop in self._boundary.stop)
        if not rendered.spans or rendered.spans[-1].source != "template" or rendered.text.endswith(closed):
            raise TemplateError(
                f"{self._family} opens no assistant turn after message {index} ({role}), although its declaration says "
                "so; a prompt without a generation header is never sent",
                index=index,
                role=role,
            )

    def _suffix(self, turn: Turn, appended: Sequence[Message], kwargs: Mapping[str, Any]) -> Rendered:
        calls = tuple(ToolCall(call.name, {}, None, call.id) for call in turn.message.tool_calls)
        base = (_BASE_USER, Message("assistant", "" if calls else "0", _BASE_REASONING, calls))
        shift = turn.length - len(base)
        with _moved(shift):
            before = self._renderer.render(base, tools=(), kwargs=kwargs).text
            whole = self._renderer.render((*base, *appended), tools=(), kwargs=kwargs)
        cut = len(before)
        if not whole.text.startswith(before):
            raise AppendError(
                f"{self._family} renders what stands before message {turn.length} ({appended[0].role}) differently "
                "once it is appended, so the stored ids could not be kept",
                index=turn.length,
                role=appended[0].role,
            )
        if not any(before.endswith(stop + self._boundary.glue) for stop in self._boundary.stop) and not (
            self._boundary.shared
        ):
            raise AppendError(
                f"{self._family} ends an assistant message with {before[-24:]!r}, and not with a declared stop token "
                f"({' or '.join(self._boundary.stop)}) and the glue {self._boundary.glue!r}: there is no token edge to join at",
                index=turn.length,
                role=appended[0].role,
            )
        spans = tuple(
            span._replace(
                start=max(span.start, cut) - cut, end=span.end - cut, index=span.index + shift * (span.index >= 0)
            )
            for span in whole.spans
            if span.end > cut
        )
        return Rendered(whole.text[cut:], spans)


@contextmanager
def _moved(shift: int) -> Iterator[None]:
    """What a renderer refuses of messages is said of those that stand so many places later in the conversation."""
    try:
        yield
    except TitoError as error:
        if type(index := error.where.get("index")) is int:
            error.where["index"] = index + shift
            error.args = (re.sub(rf"\bmessage {index}\b", f"message {index + shift}", str(error), count=1),)
        raise


def _frozen(ids: Ids) -> Ids:
    made = ids.view()
    made.setflags(write=False)
    return made


def _only(encoder: Encoder, token: str) -> int:
    found = encoder.token_id(token)
    if found is None:
        raise AppendError(f"the control token {token!r} is not one id of this vocabulary")
    return found
