"""The sandbox that a chat template runs in: the environment of `transformers`, bounded in time and in what it makes.

Checkpoints' templates are foreign code. Loops and macros ask the clock, and what operators and blocks make is measured
before it is made. The memory of a single filter or method is not bounded.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, NoReturn, Self, TypeVar, cast

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from tito_core.errors import TemplateError
from tito_core.prompts.template import MOMENT

__all__ = ["Direct", "Run", "Sandbox", "Ticks", "bounded", "sandbox", "strftime_now"]

_Sized = TypeVar("_Sized", bound=str | list[Any] | tuple[Any, ...])

LARGEST_TEXT: Final = 64 * 1024 * 1024
"""The longest prompt that is rendered, in characters; and the longest text or list that an operator or a block makes."""
LARGEST_NUMBER: Final = 1 << 14
"""The largest number that an operator makes, in bits."""
LONGEST: Final = 60.0
"""How long a template may run, in seconds."""


class Run:
    """One run of a template, `name`: in a `with`, its clock is asked by what runs there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: Any = None
        self.moment = MOMENT.get() or datetime.now()
        self.begin()

    def __enter__(self) -> Self:
        self._told = _RUN.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _RUN.reset(self._told)

    @staticmethod
    def current() -> Run:
        return _RUN.get()

    def begin(self) -> None:
        self._until = time.monotonic() + LONGEST

    def tick(self) -> None:
        """Raises TemplateError where it has run too long."""
        if time.monotonic() > self._until:
            raise TemplateError(f"the template {self._name} runs for more than {LONGEST:g} seconds")


_RUN: ContextVar[Run] = ContextVar("run")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: prints its body. What it marks for `transformers`, spans tell here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict`, without its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """`namespace`, which keeps no name that begins with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace keeps no name that begins with an underscore: {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format: str) -> str:
    return Run.current().moment.strftime(format)


def sandbox(kind: Callable[..., Any], **options: Any) -> Any:
    """An environment of a kind of `Sandbox`, set up as `transformers` 5.24 does (`utils/chat_template_utils.py`)."""
    made = kind(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols], **options)
    made.filters["tojson"] = _tojson
    made.globals.update(raise_exception=_raise_exception, strftime_now=strftime_now, dict=_Dict(), namespace=_Namespace)
    del made.globals["lipsum"]  # as many words of chance as it is asked for
    return made


class Direct(CodeGenerator):
    """Writes `~`, and what the environment itself is asked, as calls of the environment's own."""

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.write(f"environment.{node.node.name}(")
            for one in node.args:
                self.visit(one, frame)
                self.write(", ")
            self.write(")")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.tilde((")
        for one in node.nodes:
            self.visit(one, frame)
            self.write(", ")
        self.write("))")


class Ticks(NodeTransformer):
    """Asks the clock wherever a loop or a macro begins its body."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node | list[nodes.Node]:
        return self._ticked(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._ticked(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._ticked(node)

    def _ticked(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, self._call("tick", [], node))
        return cast(nodes.Node, node)

    def _call(self, name: str, items: Sequence[nodes.Expr], at: nodes.Node) -> nodes.Node:
        call = nodes.Call(nodes.EnvironmentAttribute(name), list(items), [], None, None)
        return nodes.ExprStmt(call).set_lineno(at.lineno).set_environment(self._environment)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox whose loops and macros end in time, and whose operators make nothing that is too large."""

    code_generator_class = Direct
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    rewriter: type[Ticks] = Ticks

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        made = self.rewriter(self).visit(super()._parse(source, name, filename))
        assert isinstance(made, nodes.Template)
        return made

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _refuse_large(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def tilde(self, values: tuple[Any, ...]) -> str:
        return "".join(bounded(map(str, values)))

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """What a macro or a block is made of."""
        return "".join(bounded(pieces))

    def tick(self) -> None:
        Run.current().tick()


_WIDE: Final = re.compile(r"%[^a-zA-Z%]*(\*|\d{6})")


def _refuse_large(operator: str, left: Any, right: Any) -> None:
    """What `+`, `*`, `**` or `%` would make, before it is made."""
    if operator == "%":
        if isinstance(left, str) and _WIDE.search(left):
            raise jinja2.exceptions.SecurityError(
                "% fills a width of more than 99,999 characters, or one that is filled in"
            )
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        bits = bits * max(right, 0) if operator == "**" else bits + right.bit_length()
        if bits > LARGEST_NUMBER:
            raise jinja2.exceptions.SecurityError(f"{operator} makes a number of more than {LARGEST_NUMBER:,} bits")
    elif operator == "+":
        if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            bounded((left, right))
    elif operator == "*":
        for one, times in ((left, right), (right, left)):
            if isinstance(one, (str, list, tuple)) and isinstance(times, int):
                bounded((one,), times=times)


def bounded(parts: Iterable[_Sized], times: int = 1) -> list[_Sized]:
    """The parts of a text or list that is not too long, were it made of them.

    To ask a followed text for its length is a question that would be noted, so that it is not asked in its own name.
    """
    made = list(parts)
    if sum([str.__len__(one) if isinstance(one, str) else len(one) for one in made]) * times > LARGEST_TEXT:
        raise jinja2.exceptions.SecurityError(f"a text or list of more than {LARGEST_TEXT:,} parts is made")
    return made
