"""Declarations: refused with the field's name where they are wrong, frozen, and the same after JSON and pickle."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_families import ROLES, RULES, declaration, family
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fake_distributions import returned
from tito_core import (
    AppendRoles,
    Boundary,
    Case,
    ControlToken,
    Deployment,
    Effort,
    Family,
    KnownIssue,
    Parsers,
    Recipe,
    Revision,
    Rule,
    Segments,
    Speculative,
    Template,
    Thinking,
    ToolSchema,
    Vocabulary,
)
from tito_core.errors import FamilyError
from tito_core.families.family import Declaration, Layer, ThinkingDecision, load_reference

FULL = family(
    kwargs=("effort",),
    fixed_kwargs={"keep": True, "nested": {"a": [1, 2.5, None, "é"]}},
    chat_template_sha256={"upstream": "0" * 64},
    split_pattern=r"\s+",
    parsers={"sglang": Parsers(reasoning="r", tool_call="t")},
    recipes={
        "default": Recipe(
            speculative=Speculative(algorithm="EAGLE", num_steps=2, eagle_topk=1, num_draft_tokens=3),
            tensor_parallel=8,
            environment={"A": "1"},
        ),
        "plain": Recipe(
            speculative=None,
            engine="vllm",
            attention_data_parallel=2,
            parsers=Parsers(tool_call="t"),
            memory_fraction=0.5,
            max_running_requests=8,
            arguments={"page-size": 1, "flag": True},
            seen="two machines",
            platforms={"rocm": {"arguments": {"page-size": 64}, "environment": {"A": "2"}}, "cpu": {}},
        ),
    },
    recipe_rules=(Rule(name="rule", check="fake_families:family"),),
    peers={"renderers": None, "other": "fake"},
    revisions=(Revision(name="a", kwargs={"old": False}), Revision(name="b", append_roles=RULES, note="n")),
    known_issues=(
        KnownIssue(name="i", summary="s", matches="m", advice="a", profiles=("default",), engines=("sglang",)),
    ),
)


def test_a_declaration_is_equal_after_json() -> None:
    text = FULL.model_dump_json()
    assert Family.model_validate_json(text) == FULL
    assert Family.model_validate_json(text).model_dump_json() == text
    assert Family.model_validate(FULL.model_dump()) == FULL
    assert FULL.model_dump()["append_roles"]["roles"] == ["assistant", "system", "tool", "user"]
    assert '"ends":["tool","user"]' in text


def test_a_declaration_is_equal_after_pickle() -> None:
    assert pickle.loads(pickle.dumps(FULL)) == FULL


def dicts(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every dict and list of a declaration, with its place."""
    if isinstance(value, Declaration):
        for name in type(value).model_fields:
            yield from dicts(getattr(value, name), f"{place}.{name}")
    elif isinstance(value, (dict, list, tuple)):
        if not isinstance(value, tuple):
            yield place, value
        for one in value.values() if isinstance(value, dict) else value:
            yield from dicts(one, place)


EDITS: dict[type, tuple[Callable[[Any], object], ...]] = {
    dict: (
        lambda made: made.__setitem__("user", 1),
        lambda made: made.__delitem__("a"),
        lambda made: made.__ior__({}),
        lambda made: made.clear(),
        lambda made: made.pop("a", 0),
        lambda made: made.popitem(),
        lambda made: made.setdefault("a", 1),
        lambda made: made.update(a=1),
    ),
    list: (
        lambda made: made.__setitem__(0, 1),
        lambda made: made.__delitem__(0),
        lambda made: made.__iadd__([]),
        lambda made: made.__imul__(2),
        lambda made: made.append(1),
        lambda made: made.extend([]),
        lambda made: made.insert(0, 1),
        lambda made: made.pop(),
        lambda made: made.remove(1),
        lambda made: made.clear(),
        lambda made: made.sort(),
        lambda made: made.reverse(),
    ),
}


@pytest.mark.parametrize(
    "make",
    [
        lambda: FULL,
        lambda: family(),
        lambda: FULL.model_copy(deep=True),
        lambda: FULL.model_copy(update={"peers": {"a": "b"}}),
        lambda: pickle.loads(pickle.dumps(FULL)),
        lambda: Family.model_validate_json(FULL.model_dump_json()),
        lambda: Case(name="c", messages=({"role": "user", "content": [{"type": "text", "text": "0"}]},)),
        lambda: Layer(name="request", kwargs={"a": {"b": [1]}}),
        lambda: ThinkingDecision(enabled=True, render_kwargs={"a": [1]}, forward_kwargs={"a": [1]}),
        lambda: Deployment(overrides={"a": {"b": [1]}}),
        lambda: Layer(name="request"),
    ],
)
def test_nothing_in_a_declaration_can_be_changed(make: Callable[[], Declaration]) -> None:
    found = list(dicts(made := make()))
    assert found
    before = made.model_dump_json()
    for place, value in found:
        for edit in EDITS[dict if isinstance(value, dict) else list]:
            with pytest.raises(TypeError) as caught:
                edit(value)
            assert str(caught.value) == (
                "declared data is read-only; change a copy of it, as dict(...) and list(...) make"
            ), place
    assert made.model_dump_json() == before


def test_a_declaration_can_be_sent_to_a_spawned_worker_and_back() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(returned, (FULL,)) == FULL


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(min_size=1), json_values, max_size=4))
def test_free_form_data_is_the_same_after_json(values: dict[str, Any]) -> None:
    case = Case(name="c", messages=({"role": "user", **values},), tools=(values,), chat_template_kwargs=values)
    assert Case.model_validate_json(case.model_dump_json()) == case


class _Odd:
    pass


@pytest.mark.parametrize(
    "value", [(1,), {1}, {1: 2}, b"b", float("nan"), float("inf"), _Odd(), [[(1,)]]], ids=lambda value: repr(value)[:12]
)
def test_free_form_data_that_json_would_change_is_refused(value: Any) -> None:
    said = "holds what JSON does not keep; write null, booleans, numbers, strings, lists and string keys"
    for make in (
        lambda: family(fixed_kwargs={"a": value}),
        lambda: Revision(name="r", kwargs={"a": value}),
        lambda: Deployment(overrides={"a": value}),
        lambda: Case(name="c", messages=({"a": value},)),
    ):
        with pytest.raises(ValidationError, match=said):
            make()


def test_text_that_utf8_cannot_hold_is_refused() -> None:
    with pytest.raises(ValidationError):
        family(fixed_kwargs={"a": "\ud800"})


DECLARED: dict[type[Declaration], Callable[[], dict[str, Any]]] = {
    AppendRoles: lambda: dict(RULES),
    Thinking: lambda: {"aliases": ("a",), "forward_as": "a", "default": True},
    Boundary: lambda: {"stop": ("<end>",)},
    Segments: lambda: {"delimiters": (), "headers": ()},
    ControlToken: lambda: {"text": "<end>"},
    Vocabulary: lambda: {"name": "v", "file": "f", "sha256": "0" * 64},
    Effort: lambda: {"name": "e", "levels": ("a",), "default": "a"},
    ToolSchema: dict,
    Revision: lambda: {"name": "r"},
    Parsers: dict,
    Speculative: lambda: {"algorithm": "EAGLE", "num_steps": 1, "eagle_topk": 1, "num_draft_tokens": 2},
    Recipe: lambda: {"speculative": None},
    Rule: lambda: {"name": "r", "check": "a:b"},
    Deployment: dict,
    KnownIssue: lambda: {"name": "n", "summary": "s", "matches": "m", "advice": "a"},
    Case: lambda: {"name": "c", "messages": ()},
    Layer: lambda: {"name": "l"},
    ThinkingDecision: lambda: {"enabled": True, "render_kwargs": {}, "forward_kwargs": {}},
    Template: lambda: {"kind": "encoder", "reference": "a:B", "sha256": ""},
    Family: declaration,
}


@pytest.mark.parametrize("kind", DECLARED, ids=lambda kind: kind.__name__)
def test_every_type_is_frozen_and_refuses_an_unknown_key_by_its_name(kind: type[Declaration]) -> None:
    made = kind(**DECLARED[kind]())
    with pytest.raises(ValidationError, match="Instance is frozen"):
        setattr(made, next(iter(kind.model_fields)), None)
    with pytest.raises(ValidationError) as caught:
        kind(**{**DECLARED[kind](), "misspelt": 1})
    (problem,) = caught.value.errors()
    assert (problem["loc"], problem["msg"]) == (("misspelt",), "Extra inputs are not permitted")
    assert pickle.loads(pickle.dumps(made)) == made
    assert kind.model_validate_json(made.model_dump_json()) == made


def test_a_recipe_holds_on_its_platform() -> None:
    recipe = FULL.recipes["plain"]
    rocm = Recipe(
        speculative=None,
        engine="vllm",
        attention_data_parallel=2,
        parsers=Parsers(tool_call="t"),
        memory_fraction=0.5,
        seen="two machines",
        max_running_requests=8,
        arguments={"page-size": 64, "flag": True},
        environment={"A": "2"},
    )
    assert recipe.on("rocm") == rocm
    assert recipe.on("cuda") == recipe.on("cpu") == recipe.model_copy(update={"platforms": {}})
    assert rocm.on("cpu") == rocm


@pytest.mark.parametrize(
    ("platforms", "message"),
    [
        ({"tpu": {}}, "Input should be 'cuda', 'rocm' or 'cpu'"),
        ({"rocm": {"speculative": {}}}, "Input should be 'arguments' or 'environment'"),
        ({"rocm": {"environment": {"A": 1}}}, "Input should be a valid string"),
        (
            {"rocm": {"arguments": {"a": float("nan")}}},
            "Value error, holds what JSON does not keep; write null, booleans, numbers, strings, lists and string keys",
        ),
    ],
)
def test_what_can_not_hold_on_a_platform(platforms: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate({"speculative": None, "platforms": platforms})
    assert message in [problem["msg"] for problem in caught.value.errors()]


def test_an_unknown_key_inside_is_named_with_its_place() -> None:
    raw = FULL.model_dump()
    raw["revisions"][1]["append_roles"]["end"] = []
    with pytest.raises(ValidationError) as caught:
        Family.model_validate(raw)
    assert [problem["loc"] for problem in caught.value.errors()] == [("revisions", 1, "append_roles", "end")]


def test_a_copy_is_checked_as_a_declaration_is() -> None:
    assert FULL.model_copy(update={"name": "other"}) == Family(**{**dict(FULL), "name": "other"})
    assert FULL.model_copy() == FULL
    assert FULL.model_copy(deep=True) == FULL
    updates: tuple[dict[str, Any], ...] = ({"name": "No Name"}, {"misspelt": 1}, {"append_roles": {"roles": []}})
    for update in updates:
        with pytest.raises(ValidationError):
            FULL.model_copy(update=update)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "stop token that is no control token": (
        {"boundary": Boundary(stop=("<stop>",))},
        "boundary.stop names ['<stop>'], which control_tokens does not",
    ),
    "delimiter that is no control token": (
        {"segments": Segments(delimiters=("<x>",), headers=())},
        "segments.delimiters names ['<x>'], which control_tokens does not",
    ),
    "stop token that delimits nothing": (
        {"segments": Segments(delimiters=("<user>", "<assistant>"), headers=("<assistant>",))},
        "boundary.stop names ['<end>'], which segments.delimiters does not: a turn ends where it stands",
    ),
    "opener that is no control token": (
        {"segments": Segments(delimiters=(), headers=(), openers=("<x>",))},
        "segments.openers names ['<x>'], which control_tokens does not",
    ),
    "no revision": ({"revisions": ()}, "revisions is empty: a family has at least one, and the first is the default"),
    "two revisions of one name": (
        {"revisions": (Revision(name="a"), Revision(name="a"))},
        "revisions names ['a'] more than once",
    ),
    "no vocabulary": (
        {"vocabularies": ()},
        "vocabularies is empty: a family ships the vocabulary that it is verified with",
    ),
    "a mode that is fixed": (
        {"fixed_kwargs": {"enable_thinking": True}},
        "the template kwarg 'enable_thinking' is in thinking.aliases and in fixed_kwargs; it belongs in one",
    ),
    "a kwarg that is fixed": (
        {"kwargs": ("keep",)},
        "the template kwarg 'keep' is in fixed_kwargs and in kwargs; it belongs in one",
    ),
    "a revision that sets the mode": (
        {"revisions": (Revision(name="a", kwargs={"thinking": True}),)},
        "the template kwarg 'thinking' is in thinking.aliases and in revisions.kwargs; it belongs in one",
    ),
    "an effort that is a kwarg": (
        {
            "kwargs": ("effort",),
            "thinking": Thinking(
                aliases=("a",), forward_as="a", default=True, effort=Effort(name="effort", levels=("x",), default="x")
            ),
        },
        "the template kwarg 'effort' is in thinking.effort and in kwargs; it belongs in one",
    ),
    "a template that is none": (
        {"template": "encoding"},
        "'encoding' is not a reference of the form 'package.module:name'",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_declaration_that_contradicts_itself(kind: str) -> None:
    changes, said = WRONG[kind]
    with pytest.raises(ValidationError) as caught:
        family(**changes)
    assert [problem["msg"] for problem in caught.value.errors()] == [f"Value error, {said}"]


@pytest.mark.parametrize("template", ["native", "templates/qwen.jinja", "package.module:Class"])
def test_templates_that_can_be_declared(template: str) -> None:
    assert family(template=template).template == template


@pytest.mark.parametrize("value", ["false", "off", 1, 0, None])
def test_a_default_mode_is_a_boolean(value: Any) -> None:
    with pytest.raises(ValidationError, match="default"):
        Thinking(aliases=("a",), forward_as="a", default=value)


WRONG_PARTS: list[tuple[Callable[[], object], str]] = [
    (lambda: Boundary(stop=()), "stop is empty: name the control token that ends a turn"),
    (lambda: Boundary(stop=("a",), shared=("b",)), "shared names ['b'], which are not stop tokens"),
    (lambda: Segments(delimiters=("a",), headers=("b",)), "headers names ['b'], which do not begin with a delimiter"),
    (
        lambda: Segments(delimiters=("<a>", "<b>"), headers=("<a>", "<a>name<b>")),
        "headers names '<a>name<b>', which holds the delimiter '<b>' behind its first: it would end there; leave it out of "
        "delimiters",
    ),
    (lambda: Segments(delimiters=("a",), headers=(), ends=("b",)), "ends names ['b'], which are not delimiters"),
    (
        lambda: Segments(delimiters=("a",), headers=(), openers=("a",)),
        "openers ['a'] are delimiters too: an opener never delimits",
    ),
    (
        lambda: Thinking(aliases=("a",), forward_as="b", default=True),
        "forward_as 'b' must be one of the aliases ['a']",
    ),
    (
        lambda: Thinking(aliases=("a",), forward_as="a", default=True, words={"b": {}}),
        "words names ['b'], which are not aliases",
    ),
    (
        lambda: Thinking(aliases=("a",), forward_as="a", default=True, modes=(False,)),
        "default True is not among modes [False]",
    ),
    (lambda: Effort(name="e", levels=("a",), default="b"), "default 'b' is not among levels ['a']"),
    (
        lambda: Effort(name="e", levels=("a", "none"), default="a"),
        "off 'none' is among levels: it would mean thinking on and off",
    ),
    (
        lambda: Thinking(
            aliases=("a",), forward_as="a", default=True, effort=Effort(name="a", levels=("x",), default="x")
        ),
        "the effort 'a' is among aliases: it is no name of the mode",
    ),
    (
        lambda: Vocabulary(name="v", file="f", sha256="0" * 64, added=("<x>",)),
        "added names tokens that the file lacks: then it stands in for another, say which",
    ),
    (
        lambda: Thinking(aliases=("a",), forward_as="a", default=False, modes=(False,), defaults={"0f": True}),
        "defaults['0f'] True is not among modes [False]",
    ),
]


@pytest.mark.parametrize(("make", "said"), WRONG_PARTS, ids=[said[:24] for _, said in WRONG_PARTS])
def test_a_part_that_contradicts_itself(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert [problem["msg"] for problem in caught.value.errors()] == [f"Value error, {said}"]


def test_a_tools_schema_as_it_is_printed() -> None:
    sent = {"parameters": None, "name": "f", "x": 1}
    assert list(ToolSchema().of(sent).items()) == [("parameters", None), ("name", "f"), ("x", 1), ("description", None)]
    made = ToolSchema(order=("name", "description", "strict"), absent={"description": ""})
    assert list(made.of(sent).items()) == [("name", "f"), ("description", "")]
    assert list(made.of({"strict": True, "name": "f", "description": "d"}).items()) == [
        *(("name", "f"), ("description", "d"), ("strict", True))
    ]


def rules(roles: str, ends: str, **follows: str) -> AppendRoles:
    """Append roles from words: `rules("tool user", "user", assistant="tool", ...)`."""
    return AppendRoles.model_validate(
        {
            "roles": roles.split(),
            "ends": ends.split(),
            "follows": {role: after.split() for role, after in follows.items()},
        }
    )


WRONG_RULES: list[tuple[Callable[[], AppendRoles], str]] = [
    (
        lambda: rules("tool", "tool", assistant="tool user", tool=""),
        "follows['assistant'] names ['user'], which roles does not",
    ),
    (
        lambda: rules("tool", "tool", assistant="tool", tool="", user="tool"),
        "follows says what may stand after ['user'], which roles does not name",
    ),
    (
        lambda: rules("tool user", "tool", assistant="tool", tool=""),
        "follows says nothing about ['user']; write an empty set where nothing follows",
    ),
    (
        lambda: rules("tool", "tool", tool=""),
        "follows must say what may stand after the stored assistant turn: follows['assistant']",
    ),
    (lambda: rules("tool", "tool user", assistant="tool", tool=""), "ends names ['user'], which roles does not"),
    (lambda: rules("tool", "", assistant="tool", tool=""), "ends is empty: no append could ever be sent to an engine"),
    (
        lambda: rules("tool user system", "user", assistant="tool", tool="tool", user="", system="user"),
        "no append can get to a role of ends ['user']: after the stored assistant turn, follows leads to ['tool'] only",
    ),
]


@pytest.mark.parametrize(("make", "said"), WRONG_RULES, ids=[said[:24] for _, said in WRONG_RULES])
def test_append_roles_that_contradict_themselves(make: Callable[[], AppendRoles], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert [problem["msg"] for problem in caught.value.errors()] == [f"Value error, {said}"]


def test_a_role_that_can_only_be_got_to_by_others_will_do() -> None:
    assert rules("tool user", "user", assistant="tool", tool="user", user="").ends == {"user"}


def test_the_universe_of_append_roles_has_no_developer() -> None:
    with pytest.raises(ValidationError, match="Input should be 'tool', 'user', 'system' or 'assistant'"):
        rules("developer", "developer", assistant="developer", developer="")


def test_narrowing_intersects_what_follows_and_what_ends() -> None:
    assert RULES.narrowed(ROLES) == RULES
    narrow = RULES.narrowed(frozenset({"tool", "assistant"}))
    assert narrow == rules("tool assistant", "tool", assistant="tool assistant", tool="tool assistant")
    assert RULES.narrowed(frozenset({"user"})) == rules("user", "user", assistant="user", user="user")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            {"tool", "developer"},
            "append roles ['developer'] are not among the family's ['assistant', 'system', 'tool', 'user']: a caller "
            "may narrow them, never widen them",
        ),
        (
            {"system"},
            "append roles ['system'] leave no append that a prompt may end with; keep one of ['tool', 'user'], and "
            "what may stand before it",
        ),
        (
            set(),
            "append roles [] leave no append that a prompt may end with; keep one of ['tool', 'user'], and what may "
            "stand before it",
        ),
    ],
)
def test_narrowing_never_widens_and_leaves_something(names: set[str], said: str) -> None:
    with pytest.raises(ValueError, match="append roles") as caught:
        RULES.narrowed(frozenset(names))
    assert str(caught.value) == said


def test_narrowing_to_a_role_that_nothing_leads_to_any_more() -> None:
    apart = rules("tool user", "user", assistant="tool", tool="user", user="")
    with pytest.raises(ValueError, match=r"^append roles \['user'\] leave no append that a prompt may end with"):
        apart.narrowed(frozenset({"user"}))


def test_revisions_and_vocabularies_by_name() -> None:
    assert FULL.revision(None).name == "a"
    assert FULL.revision("b").note == "n"
    assert FULL.vocabulary("tiny") == FULL.vocabulary(None)
    with pytest.raises(KeyError) as caught:
        FULL.revision("c")
    assert caught.value.args == ("no revision is named 'c'; known: a, b",)
    with pytest.raises(KeyError) as caught:
        FULL.vocabulary("c")
    assert caught.value.args == ("no vocabulary is named 'c'; known: tiny",)


def test_a_reference_is_loaded_or_says_why_not() -> None:
    assert load_reference("fake_families:family") is family
    for reference, said in {
        "fake_families:nothing": "AttributeError: module 'fake_families' has no attribute 'nothing'",
        "fake_nowhere:nothing": "ModuleNotFoundError: No module named 'fake_nowhere'",
        "nothing": "ValueError: 'nothing' is not a reference of the form 'package.module:name'",
    }.items():
        with pytest.raises(FamilyError) as caught:
            load_reference(reference)
        assert str(caught.value) == f"{reference} can't be loaded: {said}"


def test_known_issues_explain_a_log_of_their_engines() -> None:
    issues = (
        KnownIssue(name="one", summary="S.", matches="first.*last", advice="A.", engines=("sglang",)),
        KnownIssue(name="any", summary="T.", matches="last", advice="B."),
    )
    family = FULL.model_copy(update={"known_issues": issues})
    assert family.explained("first\nlast", "sglang") == "one: S. A. any: T. B."
    assert family.explained("first\nlast", "vllm") == "any: T. B."
    assert family.explained("nothing", "sglang") == ""
