"""Joining an append to stored ids: nothing before the seam is ever encoded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tito_core.errors import AppendError, TemplateError, TruncatedTurnError
from tito_core.families.family import Boundary, ThinkingDecision
from tito_core.prompts.messages import Message, ToolCall
from tito_core.prompts.template import Rendered, Renderer, Span
from tito_core.tokens.encoder import Encoded, Encoder, IdSpan, Mode

__all__ = ["Append", "FinishReason", "Ids", "Joiner", "Truncation", "Turn"]

Ids = npt.NDArray[np.int32]
FinishReason = Literal["stop", "length", "tool_calls", "abort"]
Truncation = Literal["refuse", "close"]

_BASE_USER = Message("user", "0")
_BASE_REASONING = "0"


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

    `kept` of the parent's ids, then `inserted` (closers, a stop token, glue), then `suffix` (int32 arrays). `dropped`
    counts shared boundary tokens taken off the parent's tail. A first prompt keeps nothing and is all suffix.
    """

    __slots__ = ("__dict__", "_encoded", "_index", "dropped", "inserted", "kept", "parent", "suffix")

    def __init__(
        self, parent: Ids, kept: int, dropped: int, inserted: Ids, suffix: Ids, encoded: Encoded, index: int
    ) -> None:
        self.parent, self.kept, self.dropped = parent, kept, dropped
        self.inserted, self.suffix = inserted, suffix
        self._encoded, self._index = encoded, index

    @cached_property
    def ids(self) -> Ids:
        """The next prompt, int32."""
        return np.concatenate((self.parent[: self.kept], self.inserted, self.suffix))

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


class _Base(NamedTuple):
    rendered: Rendered
    messages: tuple[Message, ...]


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
        kept, dropped = len(parent), 0
        stopped = kept > 0 and int(parent[-1]) in self._stop_ids
        inserted: list[Ids] = []
        if not stopped:
            inserted = self._ending(turn, truncation)
        suffix_text = self._suffix(turn, appended, kwargs)
        self._opened(suffix_text, appended[-1].role, turn.length + len(appended) - 1)
        encoded = self._encoder.encode(suffix_text, mode)
        suffix = encoded.ids
        opener = int(suffix[0]) if len(suffix) else -1
        if stopped and int(parent[-1]) in self._shared_ids:
            if opener == int(parent[-1]):
                suffix = suffix[1:]
            else:
                kept, dropped = kept - 1, 1
        elif len(self._glue):
            if opener not in self._encoder.added_ids:
                raise AppendError(
                    f"the append to {self._family} after message {turn.length - 1} (assistant) begins with text, and so "
                    f"does what is inserted before it ({self._boundary.glue!r}): they would be encoded apart; the "
                    "family must declare the glue as part of its suffix",
                    index=turn.length,
                    role=appended[0].role,
                )
            inserted.append(self._glue)
        joined = np.concatenate(inserted) if inserted else parent[:0]
        return Append(parent, kept, dropped, joined, suffix, encoded, turn.length - 1)

    def _ending(self, turn: Turn, truncation: Truncation) -> list[Ids]:
        """What ends a turn whose ids end without a stop token: a stop token, after closers where it was cut."""
        stop = np.array(self._stop_ids[:1], dtype=np.int32)
        if turn.finish_reason != "length":
            return [stop]
        if truncation == "refuse":
            raise TruncatedTurnError(
                f"message {turn.length - 1} (assistant) was cut by length after {turn.sampled} sampled ids, so its turn "
                f"never ended (last id {int(turn.ids[-1])}); sample it again with more room, end the session here, or "
                "open it with truncation='close'",
                index=turn.length - 1,
                role="assistant",
            )
        raise AppendError(
            f"message {turn.length - 1} (assistant) was cut by length, and {self._family} declares no closers for a "
            "turn that was cut",
            index=turn.length - 1,
            role="assistant",
        )

    def _opened(self, rendered: Rendered, role: str, index: int) -> None:
        if not rendered.spans or rendered.spans[-1].source != "template":
            raise TemplateError(
                f"{self._family} opens no assistant turn after message {index} ({role}), although its declaration says "
                "so; a prompt without a generation header is never sent",
                index=index,
                role=role,
            )

    def _suffix(self, turn: Turn, appended: Sequence[Message], kwargs: Mapping[str, Any]) -> Rendered:
        calls = tuple(ToolCall(call.name, {}, None, call.id) for call in turn.message.tool_calls)
        base = (_BASE_USER, Message("assistant", "", _BASE_REASONING, calls))
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
                f"{self._family} does not end an assistant message with a declared stop token "
                f"({' or '.join(self._boundary.stop)}): there is no token edge to join at",
                index=turn.length,
                role=appended[0].role,
            )
        shift = turn.length - len(base)
        spans = tuple(
            Span(max(span.start, cut) - cut, span.end - cut, span.source, span.index + shift, span.role)
            for span in whole.spans
            if span.end > cut
        )
        return Rendered(whole.text[cut:], spans)


def _only(encoder: Encoder, token: str) -> int:
    found = encoder.token_id(token)
    if found is None:
        raise AppendError(f"the control token {token!r} is not one id of this vocabulary")
    return found
