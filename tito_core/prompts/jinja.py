"""Prompts rendered by a Jinja chat template, with the origin of every character.

The text is what `transformers` renders: the same environment (`sandbox.py`), the same view of the messages, without its
import (1.3 s).
The template is then run a second time on text that knows its origin; what the two print must be equal.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox
from jinja2 import nodes
from jinja2.compiler import Frame
from jinja2.runtime import Context

from tito_core.errors import TemplateError
from tito_core.prompts.messages import Message, Tool
from tito_core.prompts.sandbox import LARGEST_TEXT, Direct, Run, Sandbox, Ticks, bounded, sandbox, strftime_now
from tito_core.prompts.template import Parts, Rendered, Source, Span
from tito_core.prompts.traced import (
    LOCAL,
    LOST,
    NOBODY,
    TEMPLATE,
    Chain,
    Probe,
    Question,
    Seen,
    Traced,
    concat,
    like,
    origins,
    stringified,
)

__all__ = ["JinjaRenderer"]

LARGEST_TEMPLATE: Final = 1024 * 1024
"""The longest template that is compiled, in characters."""
SHORT: Final = 16
SHORT_TEXT: Final = 256
"""What a shape is remembered of: so many messages, and so many characters of an assistant's text in it."""
SKELETONS: Final = 1024
"""How many shapes a renderer remembers."""

SPECIAL_TOKEN: Final = "_token"
"""How the kwargs that hold control tokens end: what a template prints of them is structure. Any other text is a caller's."""

_GIVEN: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class JinjaRenderer:
    """Renders with one chat template; a `Renderer`. `name` is what errors call it. Of `special_tokens` it reads some.

    Kwargs are the names that the template reads beside the messages, tools and `add_generation_prompt`; any other raises,
    for a template says nothing about what it ignores. A text among them is content, a special token's excepted.
    `add_generation_prompt` is true unless the last message is an assistant's.

    Checkpoints' templates are foreign code: they run sandboxed, and their size, their time, the size of what they print
    and of what their operators make are bounded. The memory of a single filter or method is not.
    """

    def __init__(self, source: str, name: str, special_tokens: Mapping[str, str] | None = None) -> None:
        if len(source) > LARGEST_TEMPLATE:
            raise TemplateError(
                f"the template {name} has {len(source):,} characters; at most {LARGEST_TEMPLATE:,} are rendered"
            )
        self._name = name
        try:
            environment = sandbox(Sandbox, optimized=False)
            self._plain = environment.from_string(source)
            self._traced = _tracing().from_string(source)
            parsed = environment.parse(source)
            read = jinja2.meta.find_undeclared_variables(parsed) & _read(parsed, frozenset())
        except jinja2.TemplateSyntaxError as cause:
            raise TemplateError(f"the template {name} can't be compiled: line {cause.lineno}: {cause}") from cause
        except RecursionError:
            raise TemplateError(f"the template {name} can't be compiled: it nests too deep") from None
        self._skeletons: dict[Any, _Skeleton | Literal["new", "once"] | None] = {}
        self.kwargs = frozenset(read - _GIVEN - set(environment.globals))
        """The names that the template reads beside what every render gives it."""
        self._tokens = {name: one for name, one in (special_tokens or {}).items() if name in self.kwargs}

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool], kwargs: Mapping[str, Any]) -> Rendered:
        if unknown := sorted(set(kwargs) - self.kwargs):
            raise TemplateError(
                f"the template {self._name} does not read {unknown[0]!r}, so it would change nothing; it reads "
                f"{', '.join(sorted(self.kwargs)) or 'no kwargs'}",
                key=unknown[0],
            )
        _check(messages, self._name)
        kwargs = {**self._tokens, **kwargs}
        shape = None if tools else _Shape.of(messages, kwargs)
        if shape is None:
            return self._rendered(messages, tools, kwargs)
        skeleton = self._skeletons.get(shape.key, "new")
        if isinstance(skeleton, _Skeleton) and (made := skeleton.filled(shape.texts)) is not None:
            return made
        rendered = self._rendered(messages, tools, kwargs)
        if skeleton == "new":
            if len(self._skeletons) >= SKELETONS:
                self._skeletons.clear()
            self._skeletons[shape.key] = "once"
        elif skeleton == "once":
            learnt = self._learnt(shape, messages, kwargs)
            fits = learnt is not None and learnt.filled(shape.texts) in (None, rendered)
            self._skeletons[shape.key] = learnt if fits else None
        return rendered

    def _learnt(self, shape: _Shape, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> _Skeleton | None:
        """What every render of this shape prints, learnt from probes; None where it depends on the texts themselves."""
        slots, seen, trace = shape.marks(), Seen(), _Trace(self._name)

        def text(one: str, origin: int) -> str:
            return Probe._of(one, origin, slots[one], seen) if one in slots else Traced(one, origin)

        variables = _variables(shape.marked(messages), (), kwargs, _Chat, text)
        runs: list[tuple[_Element, int, int | None]] = []
        with trace:
            try:
                for piece in _run(self._traced, variables, self._name):
                    for part in piece._parts if isinstance(piece, Probe) else (piece,):
                        if isinstance(part, Probe):
                            runs.append(((part._slot, part._chain), part._runs[0][1], trace.now))
                            continue
                        place = 0
                        for size, origin in _runs(part):
                            runs.append((str(part)[place : place + size], origin, trace.now))
                            place += size
            except Exception:
                return None
        if seen.spoilt or trace.passing or any(origin == LOST for _, origin, _ in runs):
            return None
        sized = [(1, _settled(origin, now), now) for _, origin, now in runs]
        spans: list[tuple[list[_Element], Source, int, str]] = []
        for (element, _, _), (_, origin, _), index in zip(runs, sized, _indices(sized, len(messages)), strict=True):
            whose: tuple[Source, int, str] = (
                "template" if origin == TEMPLATE else "content",
                index,
                messages[index].role if index >= 0 else "system",
            )
            if spans and spans[-1][1:] == whose:
                spans[-1][0].append(element)
            else:
                spans.append(([element], *whose))
        return _Skeleton(spans, seen.questions)

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Tool], kwargs: Mapping[str, Any]) -> Rendered:
        variables = functools.partial(_variables, messages, tools, kwargs)
        with _Trace(self._name) as trace:
            try:
                text = "".join(_run(self._plain, variables(_plain_dict, _plain_text), self._name))
            except TemplateError:
                raise
            except Exception as cause:
                raise self._failed(cause, variables, messages) from cause
            trace.begin()
            try:
                followed = _run(self._traced, variables(_Chat, Traced), self._name)
                pieces = [(piece, trace.now) for piece in followed]
            except Exception as cause:
                raise self._untold(f"what it prints: {type(cause).__name__}: {cause}") from cause
        return self._spans(text, pieces, messages)

    def _failed(
        self, cause: Exception, variables: Callable[..., dict[str, Any]], messages: Sequence[Message]
    ) -> TemplateError:
        """What a template raised, and in whose turn: the traced run comes to the same place."""
        with _Trace(self._name) as trace, contextlib.suppress(Exception):
            for _ in _run(self._traced, variables(_Chat, Traced), self._name):
                pass
        at, where = "these messages", {}
        if trace.now is not None:
            where = {"index": trace.now, "role": messages[trace.now].role}
            at = f"message {trace.now} ({where['role']})"
        if type(cause) is jinja2.TemplateError:
            return TemplateError(f"the template {self._name} refuses {at}: {cause.message}", **where)
        return TemplateError(f"the template {self._name} fails on {at}: {type(cause).__name__}: {cause}", **where)

    def _spans(self, text: str, pieces: Sequence[tuple[str, int | None]], messages: Sequence[Message]) -> Rendered:
        """The rendered text, its spans made of the traced pieces and the message in whose turn each was printed."""
        runs: list[tuple[int, int, int | None]] = []
        place = 0
        for piece, now in pieces:
            for size, origin in _runs(piece):
                if origin == LOST:
                    shown = text[place : place + size]
                    raise self._untold(f"where {shown[:60]!r} comes from, whether from itself or from a message")
                runs.append((size, _settled(origin, now), now))
                place += size
        printed = {origin for _, origin, _ in runs}
        for index, message in enumerate(messages):
            if message.role != "assistant" and index not in printed and message.content.strip():
                raise TemplateError(
                    f"the template {self._name} prints nothing of message {index} ({message.role}); send what it says in a "
                    "role that the template knows",
                    index=index,
                    role=message.role,
                )
        if text != "".join([piece for piece, _ in pieces]):
            raise self._untold("what it prints from what messages hold: another text is rendered when it is followed")
        parts, place = Parts(), 0
        for (size, origin, _), index in zip(runs, _indices(runs, len(messages)), strict=True):
            role = messages[index].role if index >= 0 else "system"
            add = parts.template if origin == TEMPLATE else parts.content
            add(text[place : place + size], index, role)
            place += size
        return _merged(parts.rendered())

    def _untold(self, what: str) -> TemplateError:
        return TemplateError(
            f"the template {self._name} does not let it be told {what}; join texts with +, ~ or join, and cut them with "
            "split, strip, replace or slices"
        )


def _runs(piece: str) -> Sequence[tuple[int, int]]:
    """A printed piece's stretches: size and origin. One without any is the template's own."""
    return piece._runs if isinstance(piece, Traced) else ((len(piece), TEMPLATE),)


def _settled(origin: int, now: int | None) -> int:
    return origin if origin != LOCAL else TEMPLATE if now is None else now


def _indices(runs: Sequence[tuple[int, int, int | None]], count: int) -> Iterator[int]:
    """The message that each run belongs to.

    Content is its author's, a tool's and a kwarg's is nobody's (-1), and what else is printed in a message's turn is that
    message's. Of what the template prints outside of any turn, a header is the message's whose content follows, a closer's
    whose content stands before; the rest is nobody's before the first turn, and the last message's after it.
    """
    place, turns = 0, False
    while place < len(runs):
        if runs[place][2] is not None:
            turns = True
            yield runs[place][1] if runs[place][1] >= NOBODY else runs[place][2]  # type: ignore[misc]
            place += 1
            continue
        end = place
        while end < len(runs) and runs[end][2] is None:
            end += 1
        stretch = [origin for _, origin, _ in runs[place:end]]
        known = [origin if origin >= 0 else None for origin in stretch]
        default = count - 1 if turns or (end == len(runs) and count) else -1
        for at, one in enumerate(known):
            if one is None:
                following = next((other for other in known[at:] if other is not None), None)
                before = next((other for other in reversed(known[:at]) if other is not None), default)
                one = before if following is None else following
            yield NOBODY if stretch[at] == NOBODY else one
        place = end


def _read(node: nodes.Node, stored: frozenset[str]) -> set[str]:
    """The names that are read outside of every loop and macro that stores them itself."""
    if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
        stored |= {name.name for name in node.find_all(nodes.Name) if name.ctx != "load"}
    if isinstance(node, nodes.Name):
        return {node.name} - stored if node.ctx == "load" else set()
    return set().union(*(_read(child, stored) for child in node.iter_child_nodes()))


def _merged(rendered: Rendered) -> Rendered:
    spans = rendered.spans[:1]
    made = list(spans)
    for span in rendered.spans[1:]:
        if made[-1][2:] == span[2:]:
            made[-1] = made[-1]._replace(end=span.end)
        else:
            made.append(span)
    return Rendered(rendered.text, tuple(made))


def _check(messages: Sequence[Message], name: str) -> None:
    for index, message in enumerate(messages):
        for what, carried in (("tools", message.tools), ("response_format", message.response_format)):
            if carried:
                raise TemplateError(
                    f"message {index} ({message.role}) carries {what}, which the template {name} has no print of; send "
                    "them with the request",
                    index=index,
                    role=message.role,
                )


def _run(template: jinja2.Template, variables: dict[str, Any], name: str) -> Iterator[str]:
    """What a template prints, piece by piece. Raises TemplateError where that is too long."""
    size = 0
    for piece in template.root_render_func(template.new_context(variables)):
        size += str.__len__(piece)
        if size > LARGEST_TEXT:
            raise TemplateError(f"the template {name} prints more than {LARGEST_TEXT:,} characters")
        yield piece


# What renders of one shape have in common.

_Element = str | tuple[int, Chain]
"""A part of a text: a fixed one, or a slot and the strips that its text goes through."""


@dataclass(frozen=True)
class _Shape:
    """What a short conversation is beside the texts of its users, systems and tools and the ids of its calls.

    `texts` are those: contents by their slot, the ids from the end, the first at -1.
    """

    key: Any
    texts: list[str]
    ids: int

    @classmethod
    def of(cls, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> _Shape | None:
        """None where it is none to remember: long, with calls' arguments, or with a blank text that is not empty."""
        if len(messages) > SHORT:
            return None
        contents: list[str] = []
        ids: dict[str, int] = {}
        shapes: list[Any] = []
        for one in messages:
            if len(one.name or "") > SHORT_TEXT:
                return None
            names = []
            for call in one.tool_calls:
                if call.arguments:
                    return None
                names.append((call.name, call.id if call.id is None else ids.setdefault(call.id, ~len(ids))))
            answers = one.tool_call_id if one.tool_call_id is None else ids.setdefault(one.tool_call_id, ~len(ids))
            if one.role == "assistant":
                said = one.content + one.reasoning + "".join([name for name, _ in names])
                if len(said) > SHORT_TEXT or not said.isascii():
                    return None
                shapes.append((one.role, one.name, one.content, one.reasoning, *names))
            elif one.content:
                if one.content.isspace():
                    return None
                contents.append(one.content)
                shapes.append((one.role, one.name, True, answers))
            else:
                shapes.append((one.role, one.name, False, answers))
        if not all(kind in (bool, str, int, float, type(None)) for kind in map(type, kwargs.values())):
            return None
        if any(not identity or identity.isspace() for identity in ids):
            return None
        given = tuple(sorted((name, repr(value)) for name, value in kwargs.items()))
        return cls((given, tuple(shapes)), [*contents, *reversed(ids)], len(ids))

    def marks(self) -> dict[str, int]:
        """A text for each slot that no conversation holds, and the slot."""
        contents = len(self.texts) - self.ids
        slots = [*range(contents), *(~place for place in range(self.ids))]
        return {f"{_MARK}{slot}{_MARK}": slot for slot in slots}

    def marked(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with the marks in place of the texts."""
        ids = {self.texts[~place]: f"{_MARK}{~place}{_MARK}" for place in range(self.ids)}
        number = itertools.count()
        return [
            replace(
                one,
                content=f"{_MARK}{next(number)}{_MARK}" if one.content and one.role != "assistant" else one.content,
                tool_calls=tuple(replace(call, id=ids.get(call.id)) if call.id else call for call in one.tool_calls),
                tool_call_id=ids.get(one.tool_call_id) if one.tool_call_id else None,
            )
            for one in messages
        ]


_MARK: Final = "\U0010fffd"


class _Skeleton:
    """The spans of a shape, and the questions whose answers they rest on."""

    def __init__(
        self, spans: Sequence[tuple[Sequence[_Element], Source, int, str]], questions: Mapping[Question, bool]
    ) -> None:
        self._spans = spans
        self._questions = [
            (slot, chain, method, asked, answer) for (slot, chain, method, asked), answer in questions.items()
        ]

    def filled(self, texts: Sequence[str]) -> Rendered | None:
        """The render of these texts; None where a question has another answer for one of them."""
        for slot, chain, method, asked, answer in self._questions:
            if getattr(str, method)(_stripped(texts[slot], chain), asked) is not answer:
                return None
        parts: list[str] = []
        spans: list[Span] = []
        end = 0
        for elements, source, index, role in self._spans:
            start = end
            for element in elements:
                part = element if isinstance(element, str) else _stripped(texts[element[0]], element[1])
                parts.append(part)
                end += len(part)
            spans.append(Span(start, end, source, index, role))
        return Rendered("".join(parts), tuple(spans))


def _stripped(text: str, chain: Chain) -> str:
    for method, chars in chain:
        text = getattr(text, method)(chars)
    return text


# The variables of a render.


class _Chat(dict[str, Any]):
    """A message as a template sees it, and its index."""

    __slots__ = ("_index",)

    def __init__(self, parts: dict[str, Any], index: int) -> None:
        super().__init__(parts)
        self._index = index


def _plain_dict(parts: dict[str, Any], index: int) -> dict[str, Any]:
    return parts


def _plain_text(text: str, origin: int) -> str:
    return text


def _variables(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    kwargs: Mapping[str, Any],
    chat: Callable[[dict[str, Any], int], dict[str, Any]],
    text: Callable[[str, int], str],
) -> dict[str, Any]:
    """What a server gives a template: `transformers` 5.24's view of what SGLang 0.5.23 hands it."""

    def data(value: Any, origin: int) -> Any:
        if isinstance(value, str):
            return text(value, origin)
        if isinstance(value, Mapping):
            return {data(key, origin): data(one, origin) for key, one in value.items()}
        return [data(one, origin) for one in value] if isinstance(value, (list, tuple)) else value

    def named(**parts: Any) -> dict[str, Any]:
        return {text(key, TEMPLATE): value for key, value in parts.items() if value is not None}

    def message(index: int, one: Message) -> dict[str, Any]:
        calls = [
            named(
                id=None if call.id is None else text(call.id, index),
                type=text("function", TEMPLATE),
                function=named(name=text(call.name, index), arguments=data(call.arguments, index)),
            )
            for call in one.tool_calls
        ]
        reasoning = text(one.reasoning, index) if one.reasoning else None
        made = named(
            thinking=reasoning,
            role=text(one.role, TEMPLATE),
            content=text(one.content, index),
            tool_calls=calls or None,
            tool_call_id=None if one.tool_call_id is None else text(one.tool_call_id, index),
            reasoning_content=reasoning,
            name=None if one.name is None else text(one.name, index),
        )
        return chat(made, index)

    return {
        **{key: data(value, TEMPLATE if key.endswith(SPECIAL_TOKEN) else NOBODY) for key, value in kwargs.items()},
        "messages": [message(index, one) for index, one in enumerate(messages)],
        "tools": [data(one.dump(), NOBODY) for one in tools] or None,
        "documents": None,
        "add_generation_prompt": not messages or messages[-1].role != "assistant",
    }


# The same environment, in which every text keeps its origin.


class _Trace(Run):
    """Whose turn it is while a template runs: the message that each loop that is under way has come to."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._loops: list[int | None] = [None]
        self.passing = False
        """Whether what was printed is of the moment: a date, or chance."""

    @staticmethod
    def current() -> _Trace:
        return cast(_Trace, Run.current())

    @property
    def now(self) -> int | None:
        return self._loops[-1]

    def opened(self) -> None:
        self._loops.append(self.now)

    def entered(self, *targets: Any) -> None:
        for target in targets:
            if type(target) is _Chat:
                self._loops[-1] = target._index

    def closed(self) -> None:
        self._loops.pop()


class _Generator(Direct):
    """Writes literals as calls of the environment's own, too."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(f"environment.literal({value!r})")
        else:
            super().visit_Const(node, frame)


class _Loops(Ticks):
    """Tells the trace when a loop begins, comes to an item, and ends, too."""

    def visit_For(self, node: nodes.For) -> list[nodes.Node]:
        super().visit_For(node)
        names = [node.target, *node.target.find_all(nodes.Name)]
        items = [nodes.Name(name.name, "load") for name in names if isinstance(name, nodes.Name)]
        node.body.insert(0, self._call("loop_entered", items, node))
        return [self._call("loop_opened", [], node), node, self._call("loop_closed", [], node)]


class _Tracing(Sandbox):
    """A literal of the template is `Traced`, and so is whatever is printed; every loop says where it is."""

    code_generator_class = _Generator
    rewriter = _Loops

    def __init__(self, **options: Any) -> None:
        self._literals: dict[str, Traced] = {}
        super().__init__(**options)

    def literal(self, text: str) -> Traced:
        found = self._literals.get(text)
        if found is None:
            found = self._literals[text] = Traced(text, TEMPLATE)
        return found

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`format`, whose answer is made of the text it fills and of what it fills in."""
        made = super().wrap_str_format(value)
        if made is None or len(origins(value.__self__)) != 1:
            return made
        (origin,), formatter = origins(value.__self__), jinja2.sandbox.SandboxedFormatter(self)

        def filled(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                args, kwargs = (), *args
            parts: list[str] = []
            numbers = itertools.count()
            for text, field, spec, conversion in formatter.parse(value.__self__):
                parts.append(Traced(text, origin))
                if field is None:
                    continue
                found, _ = formatter.get_field(field or str(next(numbers)), args, kwargs)
                found = formatter.convert_field(found, conversion)
                text = formatter.format_field(found, formatter.vformat(spec or "", args, kwargs))
                parts.append(found if isinstance(found, Traced) and found == text else stringified(text, found))
            return concat(parts)

        return functools.update_wrapper(filled, value)

    def tilde(self, values: tuple[Any, ...]) -> Traced:
        return concat(bounded(map(_shown, values)))

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        return concat(bounded(pieces), plain=TEMPLATE)

    def loop_opened(self) -> None:
        _Trace.current().opened()

    def loop_entered(self, *targets: Any) -> None:
        _Trace.current().entered(*targets)

    def loop_closed(self) -> None:
        _Trace.current().closed()


@jinja2.pass_context
def _printed(context: Context, value: Any) -> str:
    return _shown(value)


def _shown(value: Any) -> Traced:
    if isinstance(value, Traced):
        return value
    return Traced(value, LOST) if isinstance(value, str) else stringified(str(value), value)


def _followed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or a function, whose text has the one origin that all it was made of has."""
    structured = name in ("tojson", "string", "pprint")

    @functools.wraps(function)
    def followed(*args: Any, **kwargs: Any) -> Any:
        if name == "random":
            _Trace.current().passing = True
        for one in args if name not in _OPEN else ():
            if isinstance(one, Probe):
                one._spoil()
        made = function(*args, **kwargs)
        if not isinstance(made, str) or isinstance(made, Traced):
            return made
        return stringified(made, args[:1]) if structured else like(made, args, kwargs)

    return followed


_OPEN: Final = frozenset({"trim", "string", "default", "d", "replace"})
"""The filters that do nothing to a text but what its own methods do."""


def _joined(eval_ctx: nodes.EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    parts = value if attribute is None else map(jinja2.filters.make_attrgetter(eval_ctx.environment, attribute), value)
    separator = d if isinstance(d, Traced) else Traced(d, TEMPLATE if not d else LOST)
    return separator.join(map(_shown, parts))


@functools.cache
def _tracing() -> _Tracing:
    made: _Tracing = sandbox(_Tracing, optimized=False, finalize=_printed)
    made.filters.update({name: _followed(name, function) for name, function in made.filters.items()})
    made.filters["join"] = jinja2.pass_eval_context(_joined)
    for test in ("iterable", "sequence"):
        plain: Any = made.tests[test]
        made.tests[test] = cast(Any, functools.partial(_is_text_or, plain))
    made.globals["strftime_now"] = _passing
    return made


def _is_text_or(test: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, str) or test(value)


def _passing(format: str) -> str:
    _Trace.current().passing = True
    return Traced(strftime_now(format), TEMPLATE)
