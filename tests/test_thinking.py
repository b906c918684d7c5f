"""The thinking mode: resolved once, by whole layers, and told to the engine always."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from fake_distributions import fakes_below, source
from tito_core import Message, Registry, ThinkingDecision
from tito_core.errors import ThinkingError
from tito_core.families.family import Checkpoint
from tito_core.families.registry import LoadedFamily
from tito_core.prompts.template import renderer
from tito_core.prompts.thinking import engine_kwargs, frozen, resolve, session_kwargs

ON, OFF = {"type": "enabled"}, {"type": "disabled"}
WORDS: dict[str, list[tuple[Any, bool]]] = {
    "thinking": [(True, True), (False, False), (ON, True), (OFF, False)],
    "enable_thinking": [(True, True), (False, False), (ON, True), (OFF, False)],
    "thinking_mode": [(True, True), (False, False), (ON, True), (OFF, False), ("thinking", True), ("chat", False)],
}
ONE = [({alias: value}, mode) for alias, values in WORDS.items() for value, mode in values]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedFamily]:
    with fakes_below(tmp_path_factory.mktemp("fakes")) as fakes:
        fakes.add("fake-one", families={"fake": "fake_one"}, modules={"fake_one": source()})
        yield fakes.registry().family("fake")


def made(fakes_root: Path, declared: str) -> LoadedFamily:
    with fakes_below(fakes_root) as fakes:
        module = source().replace("family('fake')", f"family('fake', {declared})")
        fakes.add("fake-one", families={"fake": "fake_other"}, modules={"fake_other": module})
        return fakes.registry().family("fake")


def refused(loaded: LoadedFamily, **layers: Mapping[str, Any] | None) -> ThinkingError:
    with pytest.raises(ThinkingError) as caught:
        resolve(loaded, **layers)
    return caught.value


@pytest.mark.parametrize(("kwargs", "mode"), [({}, True), *ONE])
def test_every_word_and_exactly_one_key_for_the_engine(
    kwargs: dict[str, Any], mode: bool, loaded: LoadedFamily
) -> None:
    for layers in ({"request": kwargs}, {"session": kwargs}, {"request": kwargs, "session": kwargs}):
        decision = resolve(loaded, **layers)
        assert decision.enabled is mode
        assert decision.render_kwargs == {"keep": True, "thinking": mode}
        assert engine_kwargs(decision) == {"chat_template_kwargs": {"thinking": mode}}
        assert engine_kwargs(decision)["chat_template_kwargs"]["thinking"] is mode


def test_without_a_word_the_engine_is_told_the_default(tmp_path: Path, loaded: LoadedFamily) -> None:
    assert engine_kwargs(resolve(loaded)) == {"chat_template_kwargs": {"thinking": True}}
    off = "thinking=fake_families.Thinking(aliases=('t',), forward_as='t', default=False)"
    assert engine_kwargs(resolve(made(tmp_path, off))) == {"chat_template_kwargs": {"t": False}}


def test_a_checkpoint_may_mean_another_mode_where_nothing_is_said(tmp_path: Path) -> None:
    """By its own template; what is said still counts, and the family itself is as it was."""
    digest = hashlib.sha256(b"small").hexdigest()
    loaded = made(
        tmp_path,
        f"thinking=fake_families.Thinking(aliases=('t',), forward_as='t', default=True, defaults={{{digest!r}: False}})",
    )
    for template, mode in (("small", False), ("large", True), (None, True)):
        on = loaded.on(Checkpoint(path=tmp_path, chat_template=template))
        assert resolve(on).enabled is mode
        assert resolve(on, request={"t": not mode}).enabled is not mode
    assert resolve(loaded).enabled


@pytest.mark.parametrize(("low", "_"), ONE)
def test_a_higher_layer_replaces_the_group_as_a_whole(low: dict[str, Any], _: bool, loaded: LoadedFamily) -> None:
    for high, mode in ONE:
        assert resolve(loaded, request=high, session=low).enabled is mode


def test_none_neither_sets_nor_clears(loaded: LoadedFamily) -> None:
    nothing = {"thinking": None, "enable_thinking": None, "thinking_mode": None, "keep": None}
    for session, mode in ONE:
        assert resolve(loaded, request=nothing, session=session).enabled is mode
        assert resolve(loaded, request={**nothing, **session}).enabled is mode
    assert resolve(loaded, request=nothing, session=nothing) == resolve(loaded)


def test_aliases_of_one_layer_agree_or_raise(loaded: LoadedFamily) -> None:
    for (left, first), (right, second) in itertools.permutations(ONE, 2):
        if left.keys() == right.keys():
            continue
        both = {**left, **right}
        for layer in ("request", "session"):
            if first is second:
                assert resolve(loaded, **{layer: both}).enabled is first
            else:
                error = refused(loaded, **{layer: both})
                said = ", ".join(f"{alias}={both[alias]!r}" for alias in WORDS if alias in both)
                assert str(error) == (
                    f"{layer} chat_template_kwargs says both on and off: {said}; these are one setting, send one of "
                    "them"
                )
                assert error.where["layer"] == layer


def test_a_conflict_in_a_lower_layer_is_not_hidden_by_a_higher_one(loaded: LoadedFamily) -> None:
    error = refused(loaded, request={"thinking": True}, session={"thinking": True, "enable_thinking": False})
    assert error.where == {"layer": "session", "key": "thinking"}


@pytest.mark.parametrize("alias", ["thinking", "enable_thinking"])
@pytest.mark.parametrize(
    "value",
    ["true", "false", "True", "on", "thinking", "", 1, 0, 1.0, [], {}, {"type": "auto"}, {**ON, "budget_tokens": 9}],
    ids=repr,
)
def test_what_is_no_boolean_raises(value: Any, alias: str, loaded: LoadedFamily) -> None:
    error = refused(loaded, request={alias: value})
    assert str(error) == f"request chat_template_kwargs has {alias}={value!r}; fake takes true or false there"
    assert error.where == {"layer": "request", "key": alias}


@pytest.mark.parametrize("value", ["true", "false", "Thinking", "", 1])
def test_what_is_no_word_of_an_alias_raises(value: Any, loaded: LoadedFamily) -> None:
    assert str(refused(loaded, session={"thinking_mode": value})) == (
        f"session chat_template_kwargs has thinking_mode={value!r}; fake takes true or false or 'thinking' or "
        "'chat' there"
    )


@pytest.mark.parametrize("value", [True, None])
def test_an_unknown_kwarg_raises_even_where_it_says_nothing(value: Any, loaded: LoadedFamily) -> None:
    error = refused(loaded, session={"thinkng": value})
    assert str(error) == (
        "session chat_template_kwargs has 'thinkng', which fake does not know; known: enable_thinking, keep, thinking, "
        "thinking_mode"
    )
    assert error.where == {"layer": "session", "key": "thinkng"}


@pytest.mark.parametrize("value", [False, 1, "True", [True]])
def test_a_contradicted_constant_names_key_and_both_values(value: Any, loaded: LoadedFamily) -> None:
    error = refused(loaded, request={"keep": value})
    assert str(error) == (
        f"request chat_template_kwargs has keep={value!r}, but fake fixes keep=True, which keeps its prompts "
        "append-only; leave it out"
    )
    assert error.where == {"layer": "request", "key": "keep"}


def test_a_constant_may_be_repeated_and_is_not_forwarded(loaded: LoadedFamily) -> None:
    assert resolve(loaded, request={"keep": True}, session={"keep": True}) == resolve(loaded)


@pytest.mark.parametrize("kwargs", ["thinking", [("thinking", True)], {1: True}, 0, False], ids=repr)
def test_kwargs_that_are_no_mapping_of_names_raise(kwargs: Any, loaded: LoadedFamily) -> None:
    for layer in ("request", "session"):
        assert str(refused(loaded, **{layer: kwargs})) == (
            f"{layer} chat_template_kwargs is {kwargs!r}; it must map names to values"
        )


def test_a_mode_that_the_family_lacks(tmp_path: Path) -> None:
    only = "thinking=fake_families.Thinking(aliases=('t',), forward_as='t', default=True, modes=(True,))"
    loaded = made(tmp_path, only)
    assert resolve(loaded, request={"t": True}) == resolve(loaded)
    assert str(refused(loaded, request={"t": False})) == (
        "fake has no mode with thinking off; its model was trained with thinking on only"
    )


def test_other_kwargs_are_rendered_and_forwarded_the_highest_layer_first(tmp_path: Path) -> None:
    loaded = made(tmp_path, "kwargs=('effort',)")
    decision = resolve(loaded, request={"effort": "max"}, session={"effort": "high", "thinking": False})
    assert decision.render_kwargs == {"keep": True, "effort": "max", "thinking": False}
    assert decision.forward_kwargs == {"effort": "max", "thinking": False}
    assert resolve(loaded, request={"effort": None}, session={"effort": "high"}).forward_kwargs["effort"] == "high"
    assert "effort" not in resolve(loaded).forward_kwargs


def test_the_client_s_kwargs_are_never_changed(loaded: LoadedFamily) -> None:
    request = {"thinking": dict(ON)}
    resolve(loaded, request=request, session=request)
    session_kwargs(loaded, None, request)["keep"] = True
    assert request == {"thinking": ON}


def test_kwargs_without_an_end_are_refused(loaded: LoadedFamily) -> None:
    endless: dict[str, Any] = {}
    endless["thinking"] = endless
    with pytest.raises(ThinkingError, match=r"^request chat_template_kwargs is nested too deeply$"):
        resolve(loaded, request=endless)


def test_the_argument_of_a_session_is_the_same_setting(loaded: LoadedFamily) -> None:
    assert session_kwargs(loaded, None, None) == {}
    assert session_kwargs(loaded, False, {"keep": True}) == {"keep": True, "thinking": False}
    assert session_kwargs(loaded, True, {"thinking": None}) == {"thinking": True}
    assert session_kwargs(loaded, True, {"thinking": True}) == {"thinking": True}
    with pytest.raises(ThinkingError) as caught:
        session_kwargs(loaded, True, {"thinking": False})
    assert str(caught.value) == (
        "the session was opened with thinking=True and chat_template_kwargs thinking=False; these are one setting, "
        "give one of them"
    )
    both = session_kwargs(loaded, True, {"enable_thinking": False})
    assert str(refused(loaded, session=both)) == (
        "session chat_template_kwargs says both on and off: thinking=True, enable_thinking=False; these are one "
        "setting, send one of them"
    )
    assert str(refused(loaded, session=session_kwargs(loaded, "on", None))) == (  # type: ignore[arg-type]
        "session chat_template_kwargs has thinking='on'; fake takes true or false there"
    )


def test_frozen_with_the_first_turn(loaded: LoadedFamily) -> None:
    first = resolve(loaded, session={"enable_thinking": False})
    frozen(first, resolve(loaded, request={"thinking_mode": "chat"}, session={}))
    with pytest.raises(ThinkingError) as caught:
        frozen(first, resolve(loaded, request={"enable_thinking": True}))
    assert str(caught.value) == (
        "the request asks for thinking=True, but this session's first turn was sampled with thinking=False, which "
        "shapes its prompt; open another session for another mode"
    )
    assert caught.value.where == {"key": "thinking"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (({}, {"effort": "low"}), ({}, {"effort": "high"})),
        (({"effort": "low"}, {}), ({"effort": "high"}, {})),
        (({"effort": "low"}, {"effort": "low"}), ({"effort": "low"}, {"effort": "high"})),
        (({}, {"effort": "low"}), ({}, {})),
        (({}, {}), ({"effort": "high"}, {})),
    ],
)
def test_whatever_shapes_the_prompt_is_frozen(before: Any, after: Any) -> None:
    first = ThinkingDecision(enabled=True, render_kwargs=before[0], forward_kwargs=before[1])
    now = ThinkingDecision(enabled=True, render_kwargs=after[0], forward_kwargs=after[1])
    frozen(first, first)
    with pytest.raises(ThinkingError) as caught:
        frozen(first, now)
    assert caught.value.where == {"key": "effort"}


@pytest.mark.parametrize(("kwargs", "mode"), [({}, True), *ONE])
def test_a_real_family_s_prompt_ends_as_the_engine_is_told(kwargs: dict[str, Any], mode: bool) -> None:
    real = Registry([EntryPoint("deepseekv32", "tito_deepseek.v32", "tito.families")]).family("deepseekv32")
    decision = resolve(real, request=kwargs)
    text = renderer(real.template()).render([Message("user", "q")], tools=(), kwargs=decision.render_kwargs).text
    assert text.endswith("<｜Assistant｜><think>" if mode else "<｜Assistant｜></think>")
    assert engine_kwargs(decision) == {"chat_template_kwargs": {"thinking": mode}}


EFFORT = (
    "thinking=fake_families.Thinking(aliases=('t',), forward_as='t', default=True, effort=Effort(name='e', "
    "levels=('low', 'high'), default='high', range=(1, 9)))"
)
HIGH, LOW, NINE = ({"t": True, "e": level} for level in ("high", "low", 9))
DECIDED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {}, HIGH),
    ({"t": True}, {}, HIGH),
    ({"e": "low"}, {}, LOW),
    ({"e": 9}, {}, NINE),
    ({"e": "none"}, {}, {"t": False}),
    ({"t": False}, {"e": "low"}, {"t": False}),
    ({"e": "none"}, {"e": "low"}, {"t": False}),
    ({"t": True}, {"e": "low"}, LOW),
    ({"t": True}, {"e": "none"}, HIGH),
    ({"e": "low"}, {"t": False}, LOW),
    ({"e": "low"}, {"e": 9}, LOW),
    ({"e": None, "t": None}, {"e": 9}, NINE),
    ({"e": "none", "t": False}, {}, {"t": False}),
]


def with_effort(tmp_path: Path) -> LoadedFamily:
    with fakes_below(tmp_path) as fakes:
        module = source().replace("family('fake')", f"family('fake', {EFFORT})")
        module = f"from tito_core import Effort\n{module}"
        fakes.add("fake-one", families={"fake": "fake_effort"}, modules={"fake_effort": module})
        return fakes.registry().family("fake")


def test_an_effort_is_one_setting_with_the_mode(tmp_path: Path) -> None:
    loaded = with_effort(tmp_path)
    for request, session, told in DECIDED:
        decision = resolve(loaded, request=request, session=session)
        assert (decision.enabled, decision.forward_kwargs) == (told["t"], told), (request, session)
        assert decision.render_kwargs == {"keep": True, **told}
        # What the engine was told asks for the same again.
        frozen(decision, resolve(loaded, session=decision.forward_kwargs))


def test_efforts_that_are_refused(tmp_path: Path) -> None:
    loaded = with_effort(tmp_path)
    takes = "fake takes 'none', 'low', 'high' or a whole number from 1 to 9 there"
    for value in ("max", 0, 10, 1.0, True, [9]):
        caught = refused(loaded, request={"e": value})
        assert str(caught) == f"request chat_template_kwargs has e={value!r}; {takes}"
        assert caught.where == {"layer": "request", "key": "e"}
    for kwargs in ({"t": False, "e": "low"}, {"t": True, "e": "none"}):
        said = ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
        assert str(refused(loaded, session=kwargs)) == (
            f"session chat_template_kwargs says both on and off: {said}; these are one setting, send one of them"
        )
