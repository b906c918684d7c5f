"""Faults put into shipped source: one line changed, in effect only inside a `with` block.

The module's source is compiled with the line replaced, and the code object of the function that holds it is swapped
for the time of the block: nothing is written, nothing else is touched, and every reference to the function sees it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from tito_core.families import family


class Mutant(NamedTuple):
    """`old`, found exactly once in the source of the module, becomes `new` in `function`; `check` is to catch it, when
    `family` is verified."""

    name: str
    check: str
    function: str  # package.module:qualified.name
    old: str
    new: str
    family: str = "deepseekv32"

    def __str__(self) -> str:
        return self.name


class TemplateMutant(NamedTuple):
    """`old`, found exactly once in a family's chat template, becomes `new`; `check` is to catch it."""

    name: str
    check: str
    family: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.family}: {self.name}"


@contextmanager
def printed(mutant: TemplateMutant) -> Iterator[None]:
    """The families' templates are read with the line changed; nothing is written."""
    before = family.packaged

    def changed(package: str, file: str, where: str) -> bytes:
        data = before(package, file, where)
        if file != f"templates/{mutant.family}.jinja":
            return data
        text = data.decode()
        if text.count(mutant.old) != 1:
            raise AssertionError(f"{mutant}: {file} holds {mutant.old!r} {text.count(mutant.old)} times, not once")
        return text.replace(mutant.old, mutant.new).encode()

    family.packaged = changed
    try:
        yield
    finally:
        family.packaged = before


@contextmanager
def in_effect(mutant: Mutant) -> Iterator[None]:
    module, _, name = mutant.function.partition(":")
    function = _function(importlib.import_module(module), name)
    path = Path(inspect.getfile(function))
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        raise AssertionError(f"{mutant.name}: {path} holds {mutant.old!r} {source.count(mutant.old)} times, not once")
    code = _code(compile(source.replace(mutant.old, mutant.new), str(path), "exec"), function.__code__.co_qualname)
    if _same(code, function.__code__):
        raise AssertionError(f"{mutant.name}: the line is not in {name}")
    before = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before


def _function(found: Any, name: str) -> FunctionType:
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    assert isinstance(found, FunctionType), found
    return found


def _code(code: CodeType, name: str) -> CodeType:
    pending = [code]
    while pending:
        one = pending.pop()
        if one.co_qualname == name:
            return one
        pending += [const for const in one.co_consts if isinstance(const, CodeType)]
    raise AssertionError(f"no function is named {name}")


def _same(one: CodeType, other: CodeType) -> bool:
    if one.co_code != other.co_code or one.co_names != other.co_names or len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _same(left, right) if isinstance(left, CodeType) and isinstance(right, CodeType) else left == right
        for left, right in zip(one.co_consts, other.co_consts, strict=True)
    )


MUTANTS = (
    Mutant(
        "lost glue",
        "seam",
        "tito_core.tokens.append:Joiner._ending",
        """if turn.finish_reason != "length":
            return self._printed(stop)""",
        """if turn.finish_reason != "length":
            return self._printed("")""",
    ),
    Mutant(
        "doubled opener",
        "seam",
        "tito_core.tokens.append:Joiner.join",
        "suffix, kept = encoded.ids, len(parent)",
        "suffix, kept = np.concatenate((encoded.ids, encoded.ids[-1:])), len(parent)",
    ),
    Mutant(
        "thought dropped",
        "prefix",
        "tito_deepseek.v32_encoding:V32Encoding.render",
        "dropping = dropping and thinking",
        "dropping = thinking",
    ),
    Mutant(
        "schema re-serialised",
        "schema",
        "tito_deepseek.v32_encoding:_print_tools",
        "parts.content(_dump(tool.function), index, role)",
        "parts.content(json.dumps(tool.function, ensure_ascii=False, sort_keys=True), index, role)",
    ),
    Mutant(
        "result reordered",
        "results",
        "tito_core.prompts.messages:_matched",
        "return [answers[number] for number in range(len(asked))]",
        "return results",
    ),
    Mutant(
        "control text parsed",
        "control",
        "tito_core.tokens.encoder:Encoder.encode",
        'if mode == "engine":',
        'if mode in ("engine", "literal"):',
    ),
    Mutant(
        "wrong kwarg forwarded",
        "thinking",
        "tito_core.families.defaults:tito_forward_thinking",
        "forward_kwargs={**others, **said},",
        'forward_kwargs={**others, "enable_thinking": enabled},',
    ),
    Mutant(
        "history re-encoded",
        "prefix",
        "tito_core.tokens.append:Joiner.join",
        "        parent = turn.ids\n",
        "        parent = np.array(self._encoder.tokenizer.encode(self._encoder.decode(turn.ids)).ids, dtype=np.int32)\n",
    ),
    # More of them: each stands for a way in which a joining library has been, or could be, quietly wrong.
    Mutant(
        "kept one too few",
        "prefix",
        "tito_core.tokens.append:Append.ids",
        "self.parent[: self.kept]",
        "self.parent[: self.kept - 1]",
    ),
    Mutant(
        "spans of the next message",
        "ledger",
        "tito_core.tokens.append:Joiner._suffix",
        "shift = turn.length - len(base)",
        "shift = turn.length - len(base) + 1",
    ),
    Mutant(
        "stop token inserted again",
        "seam",
        "tito_core.tokens.append:Joiner._ended",
        "            return True, False\n",
        "            return False, False\n",
    ),
    Mutant(
        "text faults not reported",
        "compare",
        "tito_core.tokens.compare:Comparator.compare",
        "if not np.array_equal(run, run_of_actual):",
        "if half and not np.array_equal(run, run_of_actual):",
    ),
    Mutant(
        "another mode's opener is soft",
        "compare",
        "tito_core.tokens.compare:Comparator._runs",
        "yield _Run(start, said + 1 if opener == said else said, end, header)",
        "yield _Run(start, said, end, header)",
    ),
    Mutant(
        "system may end an append",
        "gate",
        "tito_core.prompts.gate:check_append",
        "if before not in rules.ends:",
        'if before not in rules.ends and before != "system":',
    ),
    Mutant(
        "system may end a prompt",
        "gate",
        "tito_core.prompts.gate:check_prompt",
        "rules.ends | FIRST_ENDS",
        'rules.ends | FIRST_ENDS | {"system"}',
    ),
    Mutant(
        "system declared after user",
        "gate",
        "tito_deepseek.v32:tito_family",
        '"user": frozenset({"user", "assistant"}),',
        '"user": frozenset({"user", "assistant", "system"}),',
    ),
    Mutant(
        "engine always canonical",
        "engine",
        "tito_core.engines.scripted:ScriptedEngine._sampled",
        "return ids if self._canonical else self._resplit(ids)",
        "return ids",
    ),
    Mutant(
        "mask covers the opener",
        "sessions",
        "tito_core.sessions.samples:_sample",
        "mask[start:end] = 1",
        "mask[start - 1 : end] = 1",
    ),
    Mutant(
        "cut turn left open",
        "truncation",
        "tito_core.tokens.append:Joiner._ending",
        "self._printed(self._boundary.closers[self._state(turn, kwargs)] + stop)",
        "self._printed(stop)",
    ),
    Mutant(
        "cut turn taken as whole",
        "truncation",
        "tito_core.tokens.append:Joiner._ending",
        'if turn.finish_reason != "length":',
        'if turn.finish_reason != "abort":',
    ),
    Mutant(
        "control text not rejected",
        "control",
        "tito_core.tokens.encoder:Encoder.encode",
        'if mode == "reject":',
        'if mode == "rejected":',
    ),
    Mutant(
        "mode not frozen",
        "thinking",
        "tito_core.prompts.thinking:frozen",
        "if before.get(key) != after.get(key):",
        "if before is after:",
    ),
    Mutant(
        "value stripped",
        "parse",
        "tito_deepseek.dsml_responses:_argument",
        "_dump(value) if is_string",
        "_dump(value.strip()) if is_string",
    ),
    Mutant(
        "cut content taken as whole",
        "parse",
        "tito_deepseek.dsml_responses:_answer",
        """if not sampled.whole:
            raise _Incomplete(sampled, "content")""",
        "pass",
    ),
    Mutant(
        "calls of a cut block",
        "parse",
        "tito_deepseek.dsml_responses:_answer",
        """    if not sampled.whole:
        raise _Incomplete(sampled, "block of calls")""",
        """    if not sampled.whole:
        return before[:-3], tuple(calls)""",
    ),
    Mutant(
        "opened reasoning forgotten",
        "parse",
        "tito_core.responses.parse:_opened",
        "return bool(opener) and text.rfind(opener) > text.rfind(closer)",
        "return False",
    ),
    Mutant(
        "half a character shown",
        "parse",
        "tito_core.responses.parse:_pending",
        "return len(decoder.getstate()[0])",
        "return 0",
    ),
    Mutant(
        "system text stripped",
        "content",
        "tito_deepseek.v32_encoding:V32Encoding.render",
        """elif role == "system":
                parts.content(message.content,""",
        """elif role == "system":
                parts.content(message.content.strip(),""",
    ),
    Mutant(
        "user text stripped",
        "content",
        "tito_deepseek.v32_encoding:V32Encoding.render",
        """parts.template(USER, index, role)
                parts.content(message.content,""",
        """parts.template(USER, index, role)
                parts.content(message.content.rstrip(),""",
    ),
    Mutant(
        "result stripped",
        "content",
        "tito_deepseek.v32_encoding:V32Encoding.render",
        """index, role)
                parts.content(message.content, index, role)
                if results""",
        """index, role)
                parts.content(message.content.strip(), index, role)
                if results""",
    ),
    Mutant(
        "thought stripped",
        "content",
        "tito_deepseek.v32_encoding:V32Encoding.render",
        "parts.content(message.reasoning,",
        "parts.content(message.reasoning.strip(),",
    ),
    Mutant(
        "answer stripped",
        "content",
        "tito_deepseek.v32_encoding:V32Encoding.render",
        """parts.content(message.content, index, role)
                _print_calls""",
        """parts.content(message.content.rstrip(), index, role)
                _print_calls""",
    ),
    Mutant(
        "argument stripped",
        "content",
        "tito_deepseek.v32_encoding:_print_calls",
        "parts.content(value if is_string",
        "parts.content(value.strip() if is_string",
    ),
    Mutant(
        "call name trusted",
        "control",
        "tito_deepseek.v32_encoding:_print_calls",
        "parts.content(call.name,",
        "parts.template(call.name,",
    ),
    Mutant(
        "argument name trusted",
        "control",
        "tito_deepseek.v32_encoding:_print_calls",
        "parts.content(key,",
        "parts.template(key,",
    ),
    Mutant(
        "logprobs reversed",
        "sessions",
        "tito_core.sessions.samples:_sample",
        "turn.completion.logprobs[: end - start]",
        "turn.completion.logprobs[: end - start][::-1]",
    ),
    Mutant(
        "a span is lost",
        "sessions",
        "tito_core.sessions.samples:_sample",
        "spans += turn.spans",
        "spans += turn.spans[:-1]",
    ),
    Mutant(
        "spans go on after a cut",
        "sessions",
        "tito_core.sessions.samples:_sample",
        "span._replace(end=min(span.end, len(tokens))) for",
        "span for",
    ),
    Mutant(
        "stale request stored",
        "sessions",
        "tito_core.sessions.session:Session._admit",
        "if self.linear and tip is not request.tip:",
        "if self.linear and tip is None:",
    ),
    Mutant(
        "completion stored twice",
        "sessions",
        "tito_core.sessions.session:Session._admit",
        "if turn.completion.id == completion.id:",
        "if turn.completion is completion:",
    ),
    Mutant(
        "a sibling takes the others away",
        "sessions",
        "tito_core.sessions.session:Session.commit",
        "if self.linear else turns",
        "if request else turns",
    ),
    Mutant(
        "summary not linked",
        "sessions",
        "tito_core.sessions.session:_summarised",
        "leaf.message.content.strip() for",
        "leaf.message.reasoning.strip() for",
    ),
    Mutant(
        "first that matches is continued",
        "sessions",
        "tito_core.sessions.matching:closest",
        "depth = max(",
        "depth = min(",
    ),
    Mutant(
        "a line begins at its parent's end",
        "sessions",
        "tito_core.sessions.turn:Turn.ids",
        "made[turn.kept : turn.end] = turn.new",
        "made[turn.end - turn.sampled : turn.end] = turn.completion.ids",
    ),
    Mutant(
        "what lines share trains twice",
        "sessions",
        "tito_core.sessions.samples:once",
        "mask[turn.start : turn.start + before] = 0",
        "mask[turn.start : turn.start] = 0",
    ),
    Mutant(
        "a turn is cut in its middle",
        "sessions",
        "tito_core.sessions.samples:_sample",
        "turn.end <= max_tokens",
        "turn.end <= max_tokens + 1",
    ),
    Mutant(
        "results keep the client's ids",
        "sessions",
        "tito_core.sessions.matching:_results_of",
        "replace(result, tool_call_id=call.id)",
        "replace(result)",
    ),
    Mutant(
        "1.0 taken for 1",
        "sessions",
        "tito_core.sessions.matching:same_json",
        "if type(left) is not type(right):",
        "if type(left) is not type(right) and {type(left), type(right)} != {int, float}:",
    ),
    Mutant(
        "delimiters only counted",
        "compare",
        "tito_core.tokens.compare:Comparator._ended",
        "for number in np.flatnonzero(expected[marks] != actual[other]).tolist():",
        "for number in ():",
    ),
    Mutant(
        "inserted delimiter passes",
        "compare",
        "tito_core.tokens.compare:Comparator.compare",
        "ended = self._ended(expected, actual, marks, other, sampled)",
        """other = other[: len(marks)]
        ended = [] if len(marks) == len(other) == sum(np.isin(expected[marks], actual[other])) else None""",
    ),
    Mutant(
        "effort not forwarded",
        "thinking",
        "tito_core.families.defaults:tito_forward_thinking",
        "forward_kwargs={**others, **said},",
        "forward_kwargs={**others, thinking.forward_as: enabled},",
        "deepseekv4",
    ),
    Mutant(
        "effort of a lower layer",
        "thinking",
        "tito_core.families.defaults:tito_forward_thinking",
        "(*levels, effort.default)[0]",
        "(*levels[::-1], effort.default)[0]",
        "deepseekv4",
    ),
    Mutant(
        "any number is an effort",
        "thinking",
        "tito_core.families.family:Effort.takes",
        "return self.range[0] <= value <= self.range[1]",
        "return True",
        "deepseekv41",
    ),
    Mutant(
        "thought dropped without tools",
        "prefix",
        "tito_deepseek.v4_encoding:_render",
        'dropping = switches["drop_thinking"] and thinking and not (',
        "dropping = thinking and not (",
        "deepseekv4",
    ),
    Mutant(
        "hoisted system appended",
        "gate",
        "tito_deepseek.v4:tito_family",
        "append_roles=FOLDING,",
        "append_roles=IN_PLACE.model_copy(),",
        "deepseekv4",
    ),
    Mutant(
        "schema as sent",
        "schema",
        "tito_deepseek.v4_encoding:_Format.shown",
        "return self.json({key: value for key, value in shown.items() if value is not ...})",
        "return self.json(tool.function)",
        "deepseekv4",
    ),
    Mutant(
        "folded result stripped",
        "content",
        "tito_deepseek.v4_encoding:_render",
        """parts.content(message.content, index, role)
                parts.template(RESULT[1], index, role)""",
        """parts.content(message.content.strip(), index, role)
                parts.template(RESULT[1], index, role)""",
        "deepseekv4",
    ),
    Mutant(
        "folded user trusted",
        "control",
        "tito_deepseek.v4_encoding:_render",
        """parts.template(RESULT[1], index, role)
            else:
                parts.content(message.content, index, role)""",
        """parts.template(RESULT[1], index, role)
            else:
                parts.template(message.content, index, role)""",
        "deepseekv4",
    ),
    Mutant(
        "header forgotten after a fold",
        "gate",
        "tito_deepseek.v4_encoding:_render",
        'opens = folds or role == "developer"',
        'opens = (folds and not after_user) or role == "developer"',
        "deepseekv4",
    ),
    Mutant(
        "another model's block read",
        "parse",
        "tito_deepseek.dsml_responses:parse_v41",
        "return _parse(sampled, V41)",
        "return _parse(sampled, V4)",
        "deepseekv41",
    ),
    Mutant(
        "draft of the wrong length",
        "recipe",
        "tito_deepseek.v32:tito_family",
        "recipes=RECIPES,",
        'recipes={**RECIPES, "default": RECIPES["default"].model_copy(update={"speculative": '
        '{**dict(RECIPES["default"].speculative or ()), "num_draft_tokens": 4}})},',
    ),
    Mutant(
        "ranks that attention does not divide",
        "recipe",
        "tito_deepseek.v4:tito_family",
        "recipes=RECIPES,",
        'recipes={**RECIPES, "balanced": RECIPES["balanced"].model_copy(update={"tensor_parallel": 12})},',
        "deepseekv4",
    ),
    Mutant(
        "dispatch of the environment unread",
        "recipe",
        "tito_deepseek.v4:dispatch",
        "recipe.environment.get(DISPATCH, str(DISPATCHED))",
        "str(DISPATCHED)",
        "deepseekv4",
    ),
    Mutant(
        "experts kept as ranks",
        "recipe",
        "tito_core.recipes.namespace:to_namespace",
        "for name, value in values(recipe).items()}",
        'for name, value in values(recipe).items()} | {"ep_size": recipe.tensor_parallel}',
        "deepseekv4",
    ),
    Mutant(
        "attention's parallelism kept as replicas",
        "recipe",
        "tito_core.recipes.sglang:values",
        'found["enable-dp-attention"] = attention > 1',
        'found["enable-dp-attention"] = attention > 99',
        "deepseekv4",
    ),
)

# In the chat templates of Qwen: a fault that the checks must see in any family of Jinja templates.
TEMPLATE_MUTANTS = (
    TemplateMutant(
        "old thoughts dropped",
        "prefix",
        "qwen3",
        "{%- if preserving or (loop.index0 > asked.last and (loop.last or thought)) %}",
        "{%- if loop.index0 > asked.last and (loop.last or thought) %}",
    ),
    TemplateMutant(
        "empty block of the newest alone",
        "prefix",
        "qwen3",
        "{%- if preserving or (",
        "{%- if (preserving and (thought or loop.last)) or (",
    ),
    TemplateMutant(
        "thought cut short",
        "content",
        "qwen3",
        "thought.strip('\\n')",
        "thought.strip('\\n')[:-1]",
    ),
    TemplateMutant(
        "question stripped",
        "content",
        "qwen3",
        "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}",
        "{{- '<|im_start|>' + message.role + '\\n' + content.strip() + '<|im_end|>\\n' }}",
    ),
    TemplateMutant(
        "results apart",
        "gate",
        "qwen3",
        "{{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' }}",
        "{{- '<|im_start|>assistant' if loop.first or loop.previtem.role != 'tool' }}",
    ),
    TemplateMutant("schema sorted", "schema", "qwen3", "tool | tojson", "tool | tojson(sort_keys=true)"),
    TemplateMutant(
        "arguments escaped", "parse", "qwen3", "called.arguments | tojson }}", "called.arguments | string }}"
    ),
    TemplateMutant(
        "mode ignored",
        "thinking",
        "qwen3",
        "if enable_thinking is defined and enable_thinking is false }}",
        "if enable_thinking is defined and false }}",
    ),
    TemplateMutant(
        "no line end after a turn",
        "seam",
        "qwen3",
        "{%- endfor %}\n        {{- '<|im_end|>\\n' }}",
        "{%- endfor %}\n        {{- '<|im_end|>' }}",
    ),
    TemplateMutant(
        "later system message folded away",
        "gate",
        "qwen35",
        "{{- '<|im_start|>system\\n' + content + '<|im_end|>\\n' if not loop.first }}",
        "",
    ),
    TemplateMutant(
        "later system message refused",
        "gate",
        "qwen35",
        "{%- if not (loop.first or preserving) %}",
        "{%- if not loop.first %}",
    ),
    TemplateMutant(
        "values stripped",
        "content",
        "qwen35",
        "else value | string)",
        "else value | string | trim)",
    ),
    TemplateMutant(
        "effort at the end",
        "prefix",
        "qwen38",
        "{%- if add_generation_prompt %}",
        "{{- effort }}{%- if add_generation_prompt %}",
    ),
    # Families that fold, with an effort and with schemas of their own.
)


def main() -> None:
    """Whether each still has its place: the verifications that they are for take minutes, and this a second."""
    for mutant in MUTANTS:
        with in_effect(mutant):
            pass
    for one in TEMPLATE_MUTANTS:
        with printed(one):
            family.packaged("tito_qwen", f"templates/{one.family}.jinja", str(one))


if __name__ == "__main__":
    main()
