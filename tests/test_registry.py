"""Finding families, loading one, asking it, in any process; and diagnosing all of them."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import fake_families
import pytest
from fake_families import RULES, family

import tito_core
from fake_distributions import Fakes, fakes_below, in_a_child, override, package, source, told
from tito_core import AppendRoles, Deployment, Diagnosis, FamilyInfo, Layer, Recipe, Registry, Revision, Template
from tito_core.errors import FamilyError, PluginError, UnknownFamilyError
from tito_core.families import diagnosis, hooks
from tito_core.families.registry import LoadedFamily


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[Fakes]:
    with fakes_below(tmp_path) as made:
        yield made


@pytest.fixture
def two(fakes: Fakes) -> Fakes:
    """Two families of one distribution, and one of another."""
    modules = {"fake_one": source("one"), "fake_two": source("two")}
    fakes.add("fake-pair", version="1.5", families={"two": "fake_two", "one": "fake_one"}, modules=modules)
    fakes.add("fake-third", families={"third": "fake_third"}, modules={"fake_third": "1 / 0"})
    return fakes


def test_finding_is_metadata_only_and_lists_by_name(two: Fakes) -> None:
    registry = two.registry()
    assert registry.list_families() == [
        FamilyInfo("one", "fake_one", "fake-pair", "1.5"),
        FamilyInfo("third", "fake_third", "fake-third", "1.0"),
        FamilyInfo("two", "fake_two", "fake-pair", "1.5"),
    ]
    assert not {"fake_one", "fake_two", "fake_third"} & set(sys.modules)


def test_loading_one_family_imports_no_other(two: Fakes) -> None:
    registry = two.registry()
    assert registry.get_family("one") == family("one")
    assert {"fake_one", "fake_two", "fake_third"} & set(sys.modules) == {"fake_one"}
    assert registry.family("one") is registry.family("one")
    assert registry.family("one").info == FamilyInfo("one", "fake_one", "fake-pair", "1.5")


def test_the_installed_families_are_found_on_first_use_and_not_before(two: Fakes) -> None:
    script = (
        "import importlib.metadata, tito_core.families.registry as r\n"
        "scan = importlib.metadata.entry_points\n"
        "scans = []\n"
        "importlib.metadata.entry_points = lambda *a, **k: scans.append(1) or scan(*a, **k)\n"
        "import tito_core; assert not scans\n"
        "names = [info.name for info in tito_core.list_families()]; tito_core.list_families(); assert len(scans) == 1\n"
        "tito_core.get_family('two')\n"
        "print(*names)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert {"one", "two", "third"} <= set(done.stdout.split())


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_worker_finds_by_name_what_its_parent_found(method: str, two: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked worker has its parent's scan: one that nobody made before these distributions were there."""
    monkeypatch.setattr(tito_core.families.registry, "default_registry", Registry())
    registry = Registry()
    ours = [info.name for info in registry.list_families() if info.distribution.startswith("fake-")]
    names, declared, imported = in_a_child(method, "found_by_name", "two")
    assert names == ours == ["one", "third", "two"]
    assert tito_core.Family.model_validate_json(declared) == registry.get_family("two")
    assert imported == ["fake_two"]


def test_a_worker_that_finds_nothing_is_told_what_there_is(two: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tito_core.families.registry, "default_registry", Registry())
    said = in_a_child("spawn", "told", "tow")
    assert said == told("tow")
    assert "; did you mean 'two'? Installed: " in said
    assert said.endswith(f"into this environment: {sys.executable} -m pip install DISTRIBUTION")


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_worker_may_be_forked_while_a_family_is_being_imported(fakes: Fakes) -> None:
    slow = "import fake_gate\nfake_gate.began.set()\nfake_gate.go.wait(30)\n" + source("slow")
    gate = "import threading\nbegan, go = threading.Event(), threading.Event()\n"
    fakes.add("fake-slow", families={"slow": "fake_slow"}, modules={"fake_slow": slow, "fake_gate": gate})
    fakes.add("fake-fast", families={"fast": "fake_fast"}, modules={"fake_fast": source("fast")})
    registry = fakes.registry()
    loading = threading.Thread(target=registry.get_family, args=("slow",))
    import fake_gate  # type: ignore[import-not-found]

    loading.start()
    assert fake_gate.began.wait(30)
    worker = multiprocessing.get_context("fork").Process(target=registry.get_family, args=("fast",))
    worker.start()
    worker.join(30)
    alive = worker.is_alive()
    worker.kill()
    fake_gate.go.set()
    loading.join()
    assert not alive
    assert worker.exitcode == 0


def test_threads_get_one_family_and_run_its_module_once(fakes: Fakes) -> None:
    module = "import fake_count, time\nfake_count.runs.append(1)\ntime.sleep(0.2)\n" + source("one")
    fakes.add("fake-one", families={"one": "fake_one"}, modules={"fake_one": module, "fake_count": "runs = []"})
    registry = fakes.registry()
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(registry.family, ["one"] * 64))
    assert len({id(loaded) for loaded in found}) == 1
    import fake_count  # type: ignore[import-not-found]

    assert fake_count.runs == [1]


def test_a_module_may_load_another_family_in_a_thread_while_it_is_imported(fakes: Fakes) -> None:
    module = (
        "import fake_shared, threading\n"
        "loading = threading.Thread(target=fake_shared.registry.get_family, args=('inner',), daemon=True)\n"
        "loading.start(); loading.join(20)\n"
        "assert not loading.is_alive(), 'deadlock'\n"
    )
    modules = {"fake_outer": module + source("outer"), "fake_inner": source("inner"), "fake_shared": ""}
    fakes.add("fake-nested", families={"outer": "fake_outer", "inner": "fake_inner"}, modules=modules)
    registry = fakes.registry()
    import fake_shared  # type: ignore[import-not-found]

    fake_shared.registry = registry
    assert registry.get_family("outer").name == "outer"


def test_a_family_that_failed_is_tried_again(fakes: Fakes) -> None:
    site = fakes.add("fake-one", families={"one": "fake_one"}, modules={"fake_one": "import fake_later"})
    registry = fakes.registry()
    with pytest.raises(PluginError):
        registry.get_family("one")
    (site / "fake_later.py").write_text("")
    (site / "fake_one.py").write_text("import fake_later\n" + source("one") + "\n# longer")
    importlib.invalidate_caches()
    assert registry.get_family("one").name == "one"
    sys.modules.pop("fake_later")


def test_bare_entry_points_will_do_for_a_test(fakes: Fakes) -> None:
    fakes.add("fake-one", modules={"fake_one": source("one")})
    registry = Registry(entry_points=[EntryPoint("one", "fake_one", hooks.FAMILIES)])
    assert registry.list_families() == [FamilyInfo("one", "fake_one", "unknown", "unknown")]
    assert registry.get_family("one") == family("one")


# Questions: override over family over core default.

ANSWERS: dict[str, tuple[str, Any]] = {
    "tito_resolve_template": (
        "Template(kind='encoder', reference={!r}, sha256='')",
        lambda loaded: loaded.template().reference,
    ),
    "tito_forward_thinking": (
        "ThinkingDecision(enabled=True, render_kwargs={{'from': {!r}}}, forward_kwargs={{}})",
        lambda loaded: loaded.thinking(()).render_kwargs.get("from", "core"),
    ),
    "tito_append_roles": (
        "family.append_roles.narrowed({{'family': {{'tool', 'user'}}, 'override': {{'tool'}}}}[{!r}])",
        lambda loaded: {1: "override", 2: "family", 4: "core"}[len(loaded.append_roles().roles)],
    ),
    "tito_speculative_recipe": (
        "Recipe(speculative=None, source={!r})",
        lambda loaded: loaded.recipe(Deployment(profile="p")).source,
    ),
}


def loaded_with(fakes: Fakes, in_family: str, in_override: str | None) -> LoadedFamily:
    declares = "fake_families.family('odd', recipes={'p': Recipe(speculative=None, source='core')})"
    module = source("odd", in_family).replace("fake_families.family('odd')", declares)
    fakes.add("fake-odd", families={"odd": "fake_odd"}, modules={"fake_odd": module})
    if in_override is not None:
        fakes.add("fake-house", overrides={"house": "fake_house"}, modules={"fake_house": override(in_override)})
    return fakes.registry().family("odd")


@pytest.mark.parametrize("question", ANSWERS)
@pytest.mark.parametrize(
    ("in_family", "in_override", "who"),
    [
        (None, None, "core"),
        (None, "nobody", "core"),
        ("nobody", None, "core"),
        ("nobody", "nobody", "core"),
        ("family", None, "family"),
        ("family", "nobody", "family"),
        (None, "override", "override"),
        ("family", "override", "override"),
    ],
)
def test_an_override_precedes_the_family_which_precedes_the_core(
    in_family: str | None, in_override: str | None, who: str, question: str, fakes: Fakes
) -> None:
    answer, read = ANSWERS[question]

    def body(by: str | None) -> str:
        if by is None:
            return ""
        return f"@hookimpl\ndef {question}(family):\n    return {'None' if by == 'nobody' else answer.format(by)}\n"

    loaded = loaded_with(fakes, body(in_family), None if in_override is None else body(in_override))
    if question == "tito_resolve_template" and who == "core":
        assert read(loaded) == "fake_families:Unrenderable"
    else:
        assert read(loaded) == who


def test_an_override_is_imported_at_the_first_question_and_once(fakes: Fakes) -> None:
    body = "import fake_count\nfake_count.runs.append(1)"
    fakes.add("fake-count", modules={"fake_count": "runs = []"})
    loaded = loaded_with(fakes, "", body)
    assert "fake_house" not in sys.modules
    loaded.thinking(())
    loaded.template()
    import fake_count

    assert fake_count.runs == [1]


def test_overrides_are_checked_once(fakes: Fakes) -> None:
    fakes.add("fake-house", overrides={"house": "fake_house"}, modules={"fake_house": ""})
    registry = fakes.registry()
    assert registry.overrides() is registry.overrides()


def test_what_a_module_says_it_holds_does_not_hide_its_hooks(fakes: Fakes) -> None:
    module = source("one", "def __dir__(): return ['tito_cases']\ndef __getattr__(name): raise RuntimeError(name)")
    fakes.add("fake-one", families={"one": "fake_one"}, modules={"fake_one": module})
    assert fakes.registry().get_family("one") == family("one")


def test_one_override_under_two_names_is_one(fakes: Fakes) -> None:
    body = override("@hookimpl\ndef tito_append_roles(family): return family.append_roles.narrowed({'tool'})")
    fakes.add("fake-odd", families={"odd": "fake_odd"}, modules={"fake_odd": source("odd")})
    fakes.add("fake-house", overrides={"a": "fake_house", "b": "fake_house"}, modules={"fake_house": body})
    assert fakes.registry().family("odd").append_roles().roles == {"tool"}


def test_a_hook_takes_the_arguments_that_it_wants(fakes: Fakes) -> None:
    loaded = loaded_with(
        fakes,
        "@hookimpl\ndef tito_speculative_recipe(deployment):\n"
        "    return Recipe(speculative=None, source=deployment.engine)\n"
        "@hookimpl\ndef tito_resolve_template(): return Template(kind='jinja', reference='x', sha256='')",
        None,
    )
    assert loaded.recipe(Deployment(engine="vllm")).source == "vllm"
    assert loaded.template() == Template(kind="jinja", reference="x", sha256="")


def test_cases_come_from_the_family(fakes: Fakes) -> None:
    hook = "@hookimpl\ndef tito_cases(family):\n    yield Case(name=family.name, messages=[{'role': 'user'}])"
    assert [case.name for case in loaded_with(fakes, hook, None).cases()] == ["odd"]


def test_a_recipe_of_an_unknown_profile_names_the_known_ones(fakes: Fakes) -> None:
    loaded = loaded_with(fakes, "", None)
    assert loaded.recipe(Deployment(profile="p")) == Recipe(speculative=None, source="core")
    with pytest.raises(FamilyError, match=r"^odd has no recipe of the profile 'default'; known: p$"):
        loaded.recipe(Deployment())


RULED = """
from tito_core import Rule

def even(recipe, deployment):
    return f"{recipe.tensor_parallel} is odd" if recipe.tensor_parallel % 2 else None
"""


@pytest.fixture
def ruled(fakes: Fakes) -> Any:
    """A family whose recipes have an even size, and a recipe of the house that has none."""
    declares = (
        "fake_families.family('odd', recipes={'p': Recipe(speculative=None, tensor_parallel=2)}, "
        "recipe_rules=(Rule(name='even', check='fake_odd:even'), Rule(name='broken', check='fake_odd:broken'))[:BROKEN])"
    )

    def made(in_override: str | None, rules: int = 1) -> LoadedFamily:
        module = source("odd", RULED + "def broken(recipe, deployment): return 1 / 0\n")
        module = module.replace("fake_families.family('odd')", declares.replace("BROKEN", str(rules)))
        fakes.add("fake-odd", families={"odd": "fake_odd"}, modules={"fake_odd": module})
        if in_override is not None:
            fakes.add("fake-house", overrides={"house": "fake_house"}, modules={"fake_house": override(in_override)})
        return fakes.registry().family("odd")

    return made


def test_a_callers_own_values_and_the_familys_rules(ruled: Any) -> None:
    recipe = ruled(None).recipe
    assert recipe(Deployment(profile="p")).tensor_parallel == 2
    assert recipe(Deployment(profile="p", overrides={"tensor_parallel": 4})).tensor_parallel == 4
    with pytest.raises(FamilyError) as caught:
        recipe(Deployment(profile="p", overrides={"tensor_parallel": 3}))
    assert (str(caught.value), caught.value.where) == (
        "odd can't be served with the profile 'p': 3 is odd",
        {"rule": "even"},
    )
    with pytest.raises(FamilyError) as caught:
        recipe(Deployment(profile="p", overrides={"tp": 3}))
    assert str(caught.value) == (
        "odd can't be served with the profile 'p' and the overrides {'tp': 3}: Recipe.tp: Extra inputs are not permitted"
    )


def test_the_familys_rules_hold_for_an_override_too(ruled: Any) -> None:
    hook = "@hookimpl\ndef tito_speculative_recipe(deployment): return Recipe(speculative=None, tensor_parallel=5)"
    with pytest.raises(FamilyError, match="^odd can't be served with the profile 'p': 5 is odd$"):
        ruled(hook).recipe(Deployment(profile="p"))


def test_a_rule_that_fails_is_blamed_on_its_plugin(ruled: Any) -> None:
    with pytest.raises(PluginError, match="failed in the recipe rule broken for the family odd: ZeroDivisionError"):
        ruled(None, 2).recipe(Deployment(profile="p"))


ON_ROCM = (
    "@hookimpl\ndef tito_speculative_recipe(): return Recipe(speculative=None, arguments={'a': 1}, "
    "platforms={'rocm': {'arguments': {'a': 2}}})"
)


@pytest.mark.parametrize(("own", "override"), [(ON_ROCM, None), ("", ON_ROCM)])
def test_a_recipe_is_answered_for_the_platform_that_is_asked_for(fakes: Fakes, own: str, override: str | None) -> None:
    loaded = loaded_with(fakes, own, override)
    assert loaded.recipe(Deployment()) == Recipe(speculative=None, arguments={"a": 1})
    assert loaded.recipe(Deployment(platform="rocm")) == Recipe(speculative=None, arguments={"a": 2})


def test_a_revision_with_roles_of_its_own_is_narrowed_by_an_override_too(fakes: Fakes) -> None:
    narrow = "@hookimpl\ndef tito_append_roles(family): return family.append_roles.narrowed({'tool'})"
    loaded = loaded_with(fakes, "", narrow)
    rules = AppendRoles(
        roles=frozenset({"tool", "user"}),
        follows={"assistant": frozenset({"tool", "user"}), "tool": frozenset(), "user": frozenset()},
        ends=frozenset({"tool", "user"}),
    )
    assert loaded.append_roles(Revision(name="other", append_roles=rules)) == rules.narrowed(frozenset({"tool"}))
    assert loaded.append_roles(Revision(name="same")) == RULES.narrowed(frozenset({"tool"}))


def test_other_append_roles_change_no_template(fakes: Fakes) -> None:
    loaded = loaded_with(fakes, "", None)
    other = loaded.with_append_roles(RULES.narrowed(frozenset({"tool"})))
    assert other.append_roles() != loaded.append_roles()
    assert other.template() == loaded.template()


def test_thinking_is_asked_with_every_layer_the_highest_first(fakes: Fakes) -> None:
    hook = (
        "@hookimpl\ndef tito_forward_thinking(layers):\n"
        "    return ThinkingDecision(enabled=True, render_kwargs={l.name: l.kwargs for l in layers}, forward_kwargs={})"
    )
    layers = (Layer(name="request", kwargs={"a": 1}), Layer(name="session", kwargs={"b": 2}))
    decision = loaded_with(fakes, hook, None).thinking(layers)
    assert list(decision.render_kwargs.items()) == [("request", {"a": 1}), ("session", {"b": 2})]


# Diagnosis.


def test_a_diagnosis_of_every_plugin_the_worst_first(fakes: Fakes) -> None:
    fakes.add("fake-gone", families={"gone": "fake_gone"}, modules={"fake_gone": "import os; os._exit(7)"})
    fakes.add(
        "fake-killed",
        families={"killed": "fake_killed"},
        modules={"fake_killed": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"},
    )
    fakes.add("fake-import", families={"import": "fake_import"}, modules={"fake_import": "import fake_missing"})
    fakes.add(
        "fake-heavy",
        families={"heavy": "fake_heavy"},
        modules={"fake_heavy.__init__": "import torch\n" + package("heavy"), "torch": "import vllm", "vllm": ""},
    )
    lazy = package("lazy", "def f(): import torch")
    fakes.add("fake-lazy", families={"lazy": "fake_lazy"}, modules={"fake_lazy.__init__": lazy})
    fakes.add(
        "fake-slow",
        families={"slow": "fake_slow"},
        modules={"fake_slow.__init__": "import time\ntime.sleep(2.1)\nprint('hello')\n" + package("slow")},
        requires=(),
    )
    fakes.add("fake-whole", families={"whole": "fake_whole"}, modules={"fake_whole.__init__": package("whole")})
    fakes.add("fake-house", overrides={"house": "fake_house"}, modules={"fake_house": ""})
    found = fakes.registry().diagnose()
    assert [(one.status, one.name) for one in found if one.distribution.startswith("fake-")] == [
        ("FAIL", "gone"),
        ("FAIL", "import"),
        ("FAIL", "killed"),
        ("WARN", "heavy"),
        ("WARN", "slow"),
        ("ok", "lazy"),
        ("ok", "whole"),
        ("ok", "house"),
    ]
    by_name = {one.name: one for one in found}
    assert by_name["gone"].text == "fake-gone 1.0 (fake_gone) ended its process with exit code 7 while it was loaded"
    assert by_name["killed"].text == "fake-killed 1.0 (fake_killed) ended its process by SIGSEGV while it was loaded"
    broken = by_name["import"]
    assert (broken.group, broken.module, broken.distribution, broken.version) == (
        "tito.families",
        "fake_import",
        "fake-import",
        "1.0",
    )
    assert broken.text == (
        "fake-import 1.0 (fake_import) can't be imported: ModuleNotFoundError: No module named 'fake_missing'"
    )
    assert broken.traceback.startswith("Traceback (most recent call last):\n")
    assert 'fake_import.py", line 1, in <module>\n    import fake_missing\n' in broken.traceback
    assert "PluginError" not in broken.traceback
    assert broken.traceback.endswith("ModuleNotFoundError: No module named 'fake_missing'\n")
    assert by_name["heavy"].text == "loading it imports torch, vllm; import that where it is used"
    slow = by_name["slow"]
    assert 2.1 < slow.seconds < 60
    assert slow.text == (
        f"loading it took {slow.seconds:.1f} s; keep it under 2 s; fake-slow does not say which tito-core it is for; "
        "add it to its dependencies"
    )
    for one in (by_name["lazy"], by_name["whole"], by_name["house"]):
        assert (one.text, one.traceback) == ("", "")
        assert 0 < one.seconds < slow.seconds
    assert not {"fake_gone", "fake_import", "fake_whole", "torch"} & set(sys.modules)


def test_a_diagnosis_asks_every_question(fakes: Fakes) -> None:
    for name, answer in {
        "thinking": "@hookimpl\ndef tito_forward_thinking(family): return 1",
        "cases": "@hookimpl\ndef tito_cases(family): return [1]",
    }.items():
        fakes.add("fake-" + name, families={name: "fake_" + name}, modules={"fake_" + name: source(name, answer)})
    texts = {one.name: one.text for one in fakes.registry().diagnose() if one.status == "FAIL"}
    assert texts == {
        "thinking": "fake-thinking 1.0 (fake_thinking) answered tito_forward_thinking for the family thinking with a "
        "value of type int; it must be a ThinkingDecision or None",
        "cases": "fake-cases 1.0 (fake_cases) answered tito_cases for the family cases with a value of type int; it "
        "must hold Case only",
    }


UNUSABLE = {
    "a vocabulary of another hash": (
        {"vocabularies": [{"name": "tiny", "file": "tiny.json", "sha256": "0" * 64}]},
        "the vocabulary tiny (fake_unusable/tiny.json) is not the file that was declared: its sha256 is "
        f"{fake_families.family().vocabularies[0].sha256}, declared is {'0' * 64}; install the plugin again, or correct "
        "the declaration",
    ),
    "a response parser that is not there": (
        {"response_parser": "fake_families:parse"},
        "fake_families:parse can't be loaded: AttributeError: module 'fake_families' has no attribute 'parse'",
    ),
    "a response parser that is none": (
        {"response_parser": "fake_families:TINY"},
        "fake_families:TINY is a value of type bytes; it must be a function",
    ),
    "a recipe rule that is not there": (
        {"recipe_rules": ({"name": "r", "check": "fake_no:rule"},)},
        "fake_no:rule can't be loaded: ModuleNotFoundError: No module named 'fake_no'",
    ),
    "a template that is not there": (
        {"template": "fake_families:Gone"},
        "fake-unusable 1.0 (fake_unusable), family unusable: fake_families:Gone can't be loaded: AttributeError: module "
        "'fake_families' has no attribute 'Gone'",
    ),
    "a template that cannot be made": (
        {"template": "fake_unusable:Configured"},
        "the template fake_unusable:Configured can't be made without arguments: TypeError: Configured.__init__() missing "
        "1 required positional argument: 'config'",
    ),
    "a template that prints nothing": (
        {"template": "fake_families:Unrenderable"},
        "the template fake_families:Unrenderable failed to render: AssertionError: rendered",
    ),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_diagnosis_of_a_plugin_that_loads_and_cannot_be_used(kind: str, fakes: Fakes) -> None:
    changes, said = UNUSABLE[kind]
    more = "class Configured(fake_families.Bare):\n    def __init__(self, config): ..."
    text = package("unusable", more, **changes)
    fakes.add("fake-unusable", families={"unusable": "fake_unusable"}, modules={"fake_unusable.__init__": text})
    (found,) = fakes.registry().diagnose("unusable")
    assert (found.status, found.text) == ("FAIL", said)


def test_a_diagnosis_of_a_single_module(fakes: Fakes) -> None:
    fakes.add("fake-one", families={"one": "fake_one"}, modules={"fake_one": source("one")})
    (found,) = fakes.registry().diagnose("one")
    assert found.status == "FAIL"
    assert found.text.startswith("the vocabulary tiny (fake_one/tiny.json) can't be read: fake_one is a single module;")


def test_a_diagnosis_of_one_name_and_of_two_distributions_with_it(fakes: Fakes) -> None:
    for letter in "ab":
        module = f"fake_{letter}"
        fakes.add(f"fake-{letter}", families={"twice": module}, modules={module: source("twice")})
    fakes.add("fake-whole", families={"whole": "fake_whole"}, modules={"fake_whole.__init__": package("whole")})
    found = fakes.registry().diagnose("twice")
    assert [(one.status, one.distribution) for one in found] == [("FAIL", "fake-a"), ("FAIL", "fake-b")]
    for one in found:
        assert one.text == (
            "the family twice is provided by fake-a 1.0 (fake_a) and fake-b 1.0 (fake_b); uninstall all but one"
        )
    with pytest.raises(UnknownFamilyError, match=r"^no installed plugin provides the family 'twie'; did you mean"):
        fakes.registry().diagnose("twie")


def test_a_diagnosis_of_entry_points_that_cannot_be_read(fakes: Fakes) -> None:
    fakes.add("fake-garbled", entry_points="[tito.families]\ngarbled\n")
    fakes.add("fake-others", entry_points="[other.plugins]\ngarbled\n")
    first = Registry(entry_points=()).diagnose()
    assert [(one.status, one.distribution, one.version) for one in first] == [("FAIL", "fake-garbled", "1.0")]
    assert first[0].text.startswith("the entry points of fake-garbled 1.0 can't be read: ")
    assert "Traceback" in first[0].traceback


def test_a_diagnosis_does_not_wait_for_ever(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.add("fake-stuck", families={"stuck": "fake_stuck"}, modules={"fake_stuck": "import time; time.sleep(600)"})
    monkeypatch.setattr(diagnosis, "PATIENCE", 1.0)
    (found,) = fakes.registry().diagnose("stuck")
    assert (found.status, found.text) == ("FAIL", "fake-stuck 1.0 (fake_stuck) was still loading after 1 s")


def test_a_plugin_that_prints_does_not_garble_its_diagnosis(fakes: Fakes) -> None:
    loud = "import os\nprint('{')\nos.write(1, b'{')\n" + package("loud")
    fakes.add("fake-loud", families={"loud": "fake_loud"}, modules={"fake_loud.__init__": loud})
    (found,) = fakes.registry().diagnose("loud")
    assert found == Diagnosis("ok", "tito.families", "loud", "fake_loud", "fake-loud", "1.0", found.seconds)
    assert Registry().diagnose("loud") == [found._replace(seconds=ANY)]
