"""The run of a verification: what it draws, what it counts, and how it reports a promise that broke."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import find, given, seed, settings

import tito_core
from mutants import MUTANTS, TemplateMutant, in_effect, printed
from tito_core import AppendRoles, Codec, Deployment, Encoder, Recipe, Rule
from tito_core.engines.scripted import ScriptedEngine
from tito_core.errors import CheckpointError, FamilyError, RecipeError, TitoError, UnknownFamilyError
from tito_core.families.family import Template
from tito_core.families.registry import Registry
from tito_core.prompts.gate import check_append, check_prompt
from tito_core.recipes.sglang import SGLANG
from tito_core.verify import bench, run
from tito_core.verify.bench import Bench, Broken, same_ids
from tito_core.verify.cases import Conversation, conversations, simpler
from tito_core.verify.checks import CHECKS
from tito_core.verify.driver import actions, drive
from tito_core.verify.report import Report
from token_path import toy_tokenizer

MUTANT = {mutant.name: mutant for mutant in MUTANTS}
EVERY = {"tool", "user", "system", "assistant"}


@cache
def codec() -> Codec:
    return tito_core.load("deepseekv32", vocabulary="r1")


def verify(**arguments: Any) -> Report:
    return run.verify("deepseekv32", **{"vocabulary": "r1", "conversations": 12, "sessions": 3, **arguments})


def timeless(report: Report) -> Report:
    return report.model_copy(update={"seconds": 0.0})


def test_a_seed_reproduces_a_run_and_another_draws_others() -> None:
    one, again, other = verify(seed=5), verify(seed=5), verify(seed=6)
    assert timeless(one) == timeless(again)
    assert one.sessions != other.sessions
    assert [check.tokens for check in one.checks] != [check.tokens for check in other.checks]
    assert (one.seed, other.seed, one.exit_code, other.exit_code) == (5, 6, 0, 0)


def test_a_seed_says_the_same_wherever_the_code_lies(tmp_path: Path) -> None:
    """Hypothesis draws what it finds in modules outside of site-packages, a caller's own among them: not here, but there."""
    words = ["".join(pair) for pair in product("qwxyz", "aeiou")]
    (tmp_path / "a_callers_own.py").write_text(f"ALL = {words}, {list(range(101, 201))}")
    (tmp_path / "draws.py").write_text(
        """
import tito_core
from tito_core.verify import run
from tito_core.verify.bench import Bench

codec, drawn = tito_core.load("deepseekv32", vocabulary="r1"), ([], [])
for some in drawn:
    run._generate(Bench(codec, codec.append_roles, 5), some.append, 100)
    import a_callers_own
print(drawn[0] == drawn[1], len(drawn[0]))
"""
    )
    done = subprocess.run([sys.executable, "draws.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True 100\n", "")


def test_content_that_is_printed_as_the_templates_own() -> None:
    printed = """elif role == "system":
                parts.template(message.content,"""
    mutant = MUTANT["system text stripped"]._replace(new=printed)
    with in_effect(mutant):
        report = run.verify("deepseekv32", registry=Registry(), vocabulary="r1", conversations=20, sessions=0)
    (failure,) = [one for one in report.failures if one.check == "content"]
    assert "(system) says '" in failure.what
    assert failure.what.endswith("', and the render prints that as the template's own, not as content")


def test_vocabularies_divide_the_work() -> None:
    seen: list[tuple[str, int, int]] = []
    report = run.verify(
        "deepseekv32", conversations=13, sessions=5, progress=lambda what, done, of: seen.append((what, done, of))
    )
    assert [used.name for used in report.vocabulary] == ["r1", "v4"]
    assert [used.stands_in_for for used in report.vocabulary] == ["DeepSeek V3.2"] * 2
    counts = {check.name: check.conversations for check in report.checks}
    assert counts["prefix"] == counts["equality"] == counts["seam"] == 13
    assert (report.sessions.driven, report.sessions.passed) == (5, 5)
    assert max(done for what, done, _ in seen if what == "checks on r1") == 7
    assert max(done for what, done, _ in seen if what == "checks on v4") == 6
    assert [(done, of) for what, done, of in seen if what == "sessions"] == [(number, 5) for number in range(5)]


def test_every_action_is_driven() -> None:
    report = verify(conversations=1, sessions=24)
    assert set(report.sessions.actions) == set(actions(codec().append_roles, codec().family.boundary))
    assert report.sessions.turns >= 24 * 6
    assert report.sessions.mismatches["assistant_text"] > 0
    assert sum(report.sessions.mismatches.values()) == report.sessions.mismatches["assistant_text"]


@pytest.mark.parametrize("revision", ["open", "answered"])
def test_revisions(revision: str) -> None:
    report = verify(revision=revision, conversations=30)
    assert (report.revision, report.exit_code, report.failures) == (revision, 0, ())
    assert verify(conversations=1, sessions=0).revision == "open"


@pytest.mark.parametrize("roles", [{"user"}, {"tool", "user"}, {"tool"}, {"system", "user"}, {"user", "assistant"}])
def test_narrowed_roles_shorten_generation_and_schedule(roles: set[str]) -> None:
    report = verify(append_roles=roles, conversations=25, sessions=24)
    assert (report.exit_code, report.failures) == (0, ())
    driven = set(report.sessions.actions)
    assert ("tool_results" in driven) == ("tool" in roles)
    assert ("user" in driven) == ("user" in roles)
    assert ("system_then_user" in driven) == ("system" in roles)
    assert ("assistant_then_user" in driven) == ("assistant" in roles)
    assert ("tool_results_then_user" in driven) == ({"tool", "user"} <= roles)
    counts = {check.name: check.conversations for check in report.checks}
    assert counts["prefix"] == 25
    assert bool(counts["results"]) == ("tool" in roles)


def _appended(conversation: Conversation) -> Iterable[tuple[dict[str, Any], tuple[dict[str, Any], ...]]]:
    return ((one.assistant, one.appended) for one in conversation.rounds)


@pytest.mark.parametrize(
    "roles", [EVERY, {"user"}, {"tool"}, {"tool", "user"}, {"system", "user"}, {"tool", "user", "assistant"}]
)
def test_generated_conversations_pass_the_gate(roles: set[str]) -> None:
    narrowed = codec().narrowed(roles)

    @settings(max_examples=60, database=None)
    @given(conversations(codec().family, narrowed))
    def passes(conversation: Conversation) -> None:
        _gated(conversation, narrowed)

    passes()


@pytest.mark.parametrize("roles", [EVERY, {"tool"}, {"tool", "user"}])
def test_smaller_conversations_pass_the_gate_too_and_come_to_an_end(roles: set[str]) -> None:
    narrowed, small = codec().narrowed(roles), set()

    @settings(max_examples=12, database=None)
    @given(conversations(codec().family, narrowed))
    def shrinks(conversation: Conversation) -> None:
        for _ in range(500):
            candidates = [one for one in simpler(conversation, codec().family, narrowed) if one != conversation]
            for candidate in candidates:
                _gated(candidate, narrowed)
            if not candidates:
                break
            conversation = candidates[0]
        else:
            raise AssertionError("no end")
        small.add(conversation.said())

    shrinks()
    assert small <= {'user "0", assistant "0", user "0"', 'user "0", assistant "0" calls f({}), tool "0"'}
    assert ('user "0", assistant "0", user "0"' in small) == ("user" in roles)


def _gated(conversation: Conversation, narrowed: AppendRoles) -> None:
    made = codec().normalise(conversation.messages())
    place = len(conversation.prompt)
    check_prompt(made[:place], codec().append_roles, "deepseekv32")
    for assistant, appended in _appended(conversation):
        place += 1
        assert made[place - 1].role == assistant["role"] == "assistant"
        assert appended
        check_append(made[place : place + len(appended)], narrowed, "deepseekv32", place)
        place += len(appended)
    assert place == len(made)


@pytest.mark.slow
def test_every_declared_pair_is_generated_and_no_other() -> None:
    found: set[tuple[str, str]] = set()

    @settings(max_examples=300, database=None)
    @seed(0)
    @given(conversations(codec().family, codec().append_roles))
    def collects(conversation: Conversation) -> None:
        for _, appended in _appended(conversation):
            found.update(pairwise(["assistant", *(message["role"] for message in appended)]))

    collects()
    declared = {(before, role) for before, roles in codec().append_roles.follows.items() for role in roles}
    assert found == {*declared, ("tool", "tool")}


@pytest.mark.slow
def test_long_texts_are_generated_in_every_role() -> None:
    """A template that cuts what is long is found."""
    found: set[str] = set()

    @settings(max_examples=1000, database=None)
    @seed(0)
    @given(conversations(codec().family, codec().append_roles))
    def collects(conversation: Conversation) -> None:
        for message in conversation.messages():
            found.update(
                f"{message['role']} {key}"
                for key, value in message.items()
                if isinstance(value, str) and len(value) > 1000
            )

    collects()
    assert found == {
        "system content",
        "user content",
        "tool content",
        "assistant content",
        "assistant reasoning_content",
    }


@pytest.mark.slow
def test_parallel_results_are_generated_out_of_order() -> None:
    def shuffled(conversation: Conversation) -> bool:
        return any(
            [message["tool_call_id"] for message in appended if message["role"] == "tool"]
            != [call["id"] for call in assistant.get("tool_calls", ())]
            for assistant, appended in _appended(conversation)
        )

    assert find(conversations(codec().family, codec().append_roles), shuffled, settings=settings(database=None))


@pytest.mark.slow
def test_a_report_survives_json() -> None:
    with in_effect(MUTANT["doubled opener"]):
        report = verify()
    assert report.failures
    assert Report.model_validate_json(report.model_dump_json()) == report
    assert set(report.model_dump()) == {
        *(
            "schema_version",
            "family",
            "distribution",
            "version",
            "revision",
            "vocabulary",
            "template",
            "overrides",
            "seed",
            "seconds",
        ),
        *("warnings", "checks", "sessions", "failures", "exit_code", "engine"),
    }
    assert (report.schema_version, report.family, report.distribution) == (1, "deepseekv32", "tito-deepseek")
    assert report.template.reference == "tito_deepseek.v32_encoding:V32Encoding"


@pytest.mark.slow
def test_a_failure_is_small_and_shows_where_ids_differ() -> None:
    """The opener is printed twice: one user, one answer, one user show it."""
    with in_effect(MUTANT["doubled opener"]):
        report = verify(conversations=60)
    seam = next(failure for failure in report.failures if failure.check == "seam")
    assert seam.said == 'user "0", assistant "0", user "0"'
    assert seam.conversation is not None
    assert seam.conversation["messages"] == [
        {"role": "user", "content": "0"},
        {"role": "assistant", "content": "0"},
        {"role": "user", "content": "0"},
    ]
    assert seam.vocabulary == "r1"
    assert seam.message_index == 2
    think = codec().encoder.token_id("<think>")
    assert seam.first_index is not None
    assert seam.actual_ids == (*seam.expected_ids, seam.actual_ids[-1])
    assert seam.what.startswith(
        f"after user, message 2: first id that differs {seam.first_index}: got {seam.actual_ids[-1]} "
    )
    assert seam.what.endswith(", expected nothing")
    assert think in seam.expected_ids or seam.conversation["thinking"] is False
    assert seam.expected_text == codec().decode(list(seam.expected_ids))
    assert seam.actual_text == codec().decode(list(seam.actual_ids))
    assert report.exit_code == 1
    assert {check.name for check in report.checks if not check.ok} <= {failure.check for failure in report.failures}


@pytest.mark.slow
def test_what_needs_calls_shrinks_to_calls() -> None:
    with in_effect(MUTANT["result reordered"]):
        report = verify(conversations=60)
    (failure,) = report.failures
    assert failure.check == "results"
    assert failure.conversation is not None
    assert len(failure.conversation["rounds"]) == 1
    (assistant,) = (message for message in failure.conversation["messages"] if message.get("tool_calls"))
    assert len(assistant["tool_calls"]) == 2
    assert {call["function"]["arguments"] for call in assistant["tool_calls"]} == {"{}"}


@pytest.mark.slow
def test_shrinking_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the check is; what was found first is kept."""
    monkeypatch.setattr(run, "SHRINK_SECONDS", 0.2)

    def slow(bench: Bench, conversation: Conversation) -> int:
        time.sleep(0.05)
        raise Broken("always")

    check = next(check for check in CHECKS if check.name == "seam")
    monkeypatch.setattr(run, "CHECKS", (type(check)("slow", "", each=slow),))
    began = time.monotonic()
    report = verify(conversations=5, sessions=0)
    assert [(failure.check, failure.what) for failure in report.failures] == [("slow", "always")]
    assert time.monotonic() - began < 15


def test_a_plugins_own_fault_is_a_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    from tito_deepseek.v32_encoding import V32Encoding

    render = V32Encoding.render

    def broken(self: Any, messages: Any, **arguments: Any) -> Any:
        if any(message.role == "tool" for message in messages):
            raise KeyError("lost")
        return render(self, messages, **arguments)

    monkeypatch.setattr(V32Encoding, "render", broken)
    report = verify(conversations=30)
    assert report.exit_code == 1
    whats = {failure.check: failure.what for failure in report.failures}
    assert whats["prefix"] == (
        "TemplateError: the template tito_deepseek.v32_encoding:V32Encoding failed to render: KeyError: 'lost'"
    )
    assert "sessions" in whats


def too_wide(recipe: Recipe, deployment: Deployment) -> str | None:
    """A rule of a family."""
    size = recipe.arguments.get("size", 0)
    return f"size {size} is more than 8 in {deployment.profile}" if size > 8 else None


def test_a_recipe_that_breaks_a_rule_of_its_engine() -> None:
    whole = codec()
    odd = Recipe(
        speculative=None,
        platforms={"rocm": {"arguments": {"moe-a2a-backend": "mori"}}},
        tensor_parallel=8,
        expert_parallel=2,
    )
    loaded = whole.loaded._declaring(recipes={"p": odd}, known_issues=())
    made = Codec(loaded, whole.encoder, whole.template, whole.revision, whole.origin)
    check = next(check for check in CHECKS if check.name == "recipe")
    assert check.once is not None
    with pytest.raises(RecipeError) as caught:
        check.once(Bench(made, made.append_roles, 0))
    assert (str(caught.value), caught.value.where) == (
        "deepseekv32 can't be served by sglang with the profile 'p': moe-a2a-backend is mori, expert_parallel is 2 and "
        "tensor_parallel is 8: with it SGLang splits the experts over all 8 ranks, whatever it is told; give expert_parallel 8",
        {"rule": "dispatched"},
    )


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        (Recipe(speculative=None, arguments={"size": 8}), None),
        (
            Recipe(speculative=None, arguments={"size": 9}),
            "deepseekv32 can't be served with the profile 'p': size 9 is more than 8 in p",
        ),
        (
            Recipe(speculative=None, platforms={"rocm": {"arguments": {"size": 16}}}),
            "deepseekv32 can't be served with the profile 'p': size 16 is more than 8 in p",
        ),
    ],
)
def test_a_recipe_that_breaks_a_rule_of_its_family(recipe: Recipe, why: str | None) -> None:
    whole, rules = codec(), (Rule(name="width", check=f"{__name__}:too_wide"),)
    loaded = whole.loaded._declaring(recipes={"p": recipe}, recipe_rules=rules, known_issues=())
    made = Codec(loaded, whole.encoder, whole.template, whole.revision, whole.origin)
    check = next(check for check in CHECKS if check.name == "recipe")
    assert check.once is not None
    bench = Bench(made, made.append_roles, 0)
    if why is None:
        assert check.once(bench) == 3 + len(SGLANG.rules)
        return
    with pytest.raises(FamilyError) as caught:
        check.once(bench)
    assert (str(caught.value), caught.value.where) == (why, {"rule": "width"})


PRINTS_IDS = """
{%- if tools %}{{- '<|im_start|>system\n' + (tools | tojson(separators=(',', ':'))) + '<|im_end|>\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + (message.name or message.role) + '\n' }}
    {{- 'Return of ' + message.tool_call_id + '\n' if message.tool_call_id }}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + call.id + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""


@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (("", ""), set()),
        (("message.tool_call_id + ", "message.tool_call_id[1:] + "), {"ledger"}),
        (("call.id + ' ' + ", ""), {"content"}),
        (("(tools | tojson(separators=(',', ':')))", "'none'"), {"schema"}),
    ],
)
def test_a_template_that_prints_the_ids_of_calls(broken: tuple[str, str], caught: set[str]) -> None:
    """And the function's name in them alone, and schemas as JSON of its own spacing."""
    whole = tito_core.load("qwen3instruct")
    loaded = whole.loaded._declaring(fixed_kwargs={}, schemas="own", response_parser=None)
    template = Template.of_text(PRINTS_IDS.replace(*broken), "prints_ids.jinja")
    made = Codec(loaded, whole.encoder, template, whole.revision, whole.origin)
    checked = Bench(made, made.append_roles, 0)
    found = set()

    @seed(0)
    @settings(max_examples=12, database=None)
    @given(conversations(made.family, made.append_roles))
    def tried(conversation: Conversation) -> None:
        for check in CHECKS:
            try:
                if check.each is not None:
                    check.each(checked, conversation)
            except (Broken, TitoError):
                found.add(check.name)

    tried()
    assert found == caught


def test_what_can_not_be_verified_raises() -> None:
    with pytest.raises(UnknownFamilyError):
        run.verify("nosuch")
    with pytest.raises(CheckpointError):
        verify(model="/nowhere", vocabulary=None)
    with pytest.raises(FamilyError):
        verify(vocabulary="nosuch")
    with pytest.raises(FamilyError):
        verify(append_roles={"system"})
    with pytest.raises(UnknownFamilyError):
        run.verify("deepseekv32", registry=Registry(()))


def test_same_ids_shows_both_runs() -> None:
    one = Bench(codec(), codec().append_roles, 0)
    with pytest.raises(Broken) as caught:
        same_ids(one, np.array([1, 67, 68], np.int32), np.array([1, 67], np.int32), "short", offset=10, role="user")
    assert caught.value.what == "short: first id that differs 12: got nothing, expected 68 'b'"
    assert caught.value.details == {
        "first_index": 12,
        "expected_ids": (1, 67, 68),
        "actual_ids": (1, 67),
        "expected_text": "<｜end▁of▁sentence｜>ab",
        "actual_text": "<｜end▁of▁sentence｜>a",
        "role": "user",
    }
    same_ids(one, np.array([1], np.int32), np.array([1], np.int32), "same")
    assert bench.AROUND >= 1


def test_a_session_is_the_same_from_its_seed() -> None:
    one = Bench(codec(), codec().append_roles, 0)
    first, again = drive(one, 7), drive(one, 7)
    assert (first.actions, first.messages, first.tokens) == (again.actions, again.messages, again.tokens)
    assert first.messages != drive(one, 8).messages
    assert first.broken is None


@pytest.mark.slow
def test_sessions_that_saw_no_call_prove_nothing_about_results(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ScriptedEngine.reply
    monkeypatch.setattr(ScriptedEngine, "reply", lambda self, tools, decision, calling=True: whole(self, [], decision))
    report = verify(conversations=0, sessions=3, vocabulary="r1")
    assert [(failure.check, failure.what) for failure in report.failures] == [
        ("sessions", "3 sessions answer tool calls, and the engine made none: this proves nothing about them")
    ]
    assert report.exit_code == 1
    assert verify(conversations=0, sessions=3, vocabulary="r1", append_roles=["user"]).exit_code == 0


def test_a_vocabulary_without_merges_can_only_be_canonical() -> None:
    """Nothing is demanded of the scripted engine that its vocabulary does not allow."""
    whole = codec()
    tiny = Encoder.from_json(toy_tokenizer((), tuple(token.text for token in whole.family.control_tokens)))
    made = Codec(whole.loaded, tiny, whole.template, whole.revision, whole.origin)
    check = next(check for check in CHECKS if check.name == "engine")
    assert check.once is not None
    assert check.once(Bench(made, made.append_roles, 0)) == 16


OTHER_FORMATS = [
    TemplateMutant(
        "the ids of calls, and results as JSON",
        "ledger",
        "qwen3",
        "'\\n<tool_response>\\n' + content + '\\n</tool_response>'",
        "'\\n<tool_response>\\n' + message.tool_call_id + ': ' + message.content | tojson + '\\n</tool_response>'",
    ),
    TemplateMutant(
        "an own schema's texts as JSON", "schema", "qwen3coder", "tool.description | trim", "tool.description | tojson"
    ),
]


@pytest.mark.parametrize("other", OTHER_FORMATS, ids=str)
def test_a_format_that_prints_otherwise_what_was_said_holds(other: TemplateMutant) -> None:
    """As Kimi's and Llama's do: these are no faults."""
    with printed(other):
        report = run.verify(other.family, registry=Registry(), conversations=40, sessions=2)
    assert [(failure.check, failure.what) for failure in report.failures] == []


ONE_CALL = PRINTS_IDS.replace(
    "{%- for call",
    "{%- if message.tool_calls and message.tool_calls | length > 1 %}{{- raise_exception('one call a turn') }}{%- endif %}{%- for call",
)


def test_a_family_of_one_call_a_turn_is_asked_for_no_more() -> None:
    """No result follows another there, so several could not be appended."""
    whole = tito_core.load("qwen3instruct")
    follows = {"assistant": {"tool", "user"}, "tool": {"user"}, "user": set()}
    roles = AppendRoles(roles={"tool", "user"}, follows=follows, ends={"tool", "user"})
    loaded = whole.loaded._declaring(fixed_kwargs={}, schemas="own", response_parser=None, append_roles=roles)
    made = Codec(loaded, whole.encoder, Template.of_text(ONE_CALL, "one_call.jinja"), whole.revision, whole.origin)
    checked, called = Bench(made, roles, 0), 0

    @seed(0)
    @settings(max_examples=30, database=None)
    @given(conversations(made.family, roles))
    def tried(conversation: Conversation) -> None:
        nonlocal called
        called += sum(len(message.get("tool_calls") or ()) for message in conversation.messages())
        for check in CHECKS:
            if check.each is not None:
                check.each(checked, conversation)

    tried()
    assert called
    driven = [drive(checked, number) for number in range(8)]
    assert [one.broken for one in driven] == [None] * 8
    assert sum(one.calls for one in driven)
    assert "parallel_results" not in actions(roles, made.family.boundary)
