"""Prompt text that knows where each part came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Protocol

from tito_core.errors import TemplateError, TitoError
from tito_core.families.family import Template, blaming, load_reference
from tito_core.prompts.messages import Message, Tool

__all__ = ["MOMENT", "Parts", "Rendered", "Renderer", "Source", "Span", "dated", "renderer"]

Source = Literal["template", "content"]


MOMENT: Final[ContextVar[datetime | None]] = ContextVar("moment", default=None)
"""The date that templates print; None: now."""


@contextmanager
def dated(seconds: float) -> Iterator[None]:
    """What is rendered in here is of this time (seconds since 1970): a conversation keeps the date it began with."""
    token = MOMENT.set(datetime.fromtimestamp(seconds))
    try:
        yield
    finally:
        MOMENT.reset(token)


class Span(NamedTuple):
    """Characters `start` to `end` of a text: printed by the template, or written by the author of message `index`.

    `index` is the message's place in what was rendered, -1 for what belongs to none (the prompt's own opener).
    """

    start: int
    end: int
    source: Source
    index: int  # type: ignore[assignment]  # the field is what a span is known by; nothing counts spans by value
    role: str


class Rendered(NamedTuple):
    """A prompt's text and the spans that cover it without a gap, in order."""

    text: str
    spans: tuple[Span, ...]


class Parts:
    """Collects a prompt part by part. A control token is added whole, within one template part."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._spans: list[Span] = []
        self._length = 0

    def template(self, text: str, index: int, role: str) -> None:
        self._add(text, "template", index, role)

    def content(self, text: str, index: int, role: str) -> None:
        self._add(text, "content", index, role)

    def _add(self, text: str, source: Source, index: int, role: str) -> None:
        if not text:
            return
        end = self._length + len(text)
        self._texts.append(text)
        self._spans.append(Span(self._length, end, source, index, role))
        self._length = end

    def rendered(self) -> Rendered:
        return Rendered("".join(self._texts), tuple(self._spans))


class Renderer(Protocol):
    """What turns normalised messages into prompt text. A family's encoder class is one, made without arguments.

    `kwargs` holds the thinking decision's `render_kwargs` and the revision's. The generation header belongs to the
    message before it: a prompt that ends with a role of `AppendRoles.ends` ends with an open assistant turn.
    Raises TemplateError, with the message's index and role, for what the format can't print; its text says `message 3`, and
    both are made to say the place in the conversation where an append is rendered. Never changes its input.
    """

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool], kwargs: Mapping[str, Any]) -> Rendered: ...


class _Guarded:
    """A family's renderer: what its code raises beside our errors, or returns beside Rendered, is a TemplateError."""

    def __init__(self, reference: str, made: Renderer) -> None:
        self._said, self._render = f"the template {reference} failed to render", made.render

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool], kwargs: Mapping[str, Any]) -> Rendered:
        try:
            rendered = self._render(messages, tools=tools, kwargs=kwargs)
            if isinstance(rendered, Rendered):
                return rendered
            raise TypeError(f"render returned a value of type {type(rendered).__name__}; it must be a Rendered")
        except BaseException:
            with blaming(self._said, TemplateError, passing=(TitoError,)):
                raise


def renderer(template: Template) -> Renderer:
    """The renderer that a resolved template names. Raises TemplateError where it is none."""
    if template.kind == "jinja":
        from tito_core.prompts.jinja import JinjaRenderer  # which imports this module

        return JinjaRenderer(template.source, template.reference, template.special_tokens)
    found = load_reference(template.reference)
    if not isinstance(found, type) or not callable(getattr(found, "render", None)):
        raise TemplateError(f"the template {template.reference} is not a class with a render method")
    with blaming(f"the template {template.reference} can't be made without arguments", TemplateError):
        return _Guarded(template.reference, found())
