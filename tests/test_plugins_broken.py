"""Every way in which a plugin can be broken: what is said of it, and that it stops no other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_families
import pytest

import tito_core
from fake_distributions import Fakes, fakes_below, override, source
from tito_core import __version__
from tito_core.errors import FamilyError, GateError, PluginError, TemplateError, TitoError, UnknownFamilyError
from tito_core.families import hooks
from tito_core.families.family import Deployment, Layer, Template
from tito_core.families.registry import LoadedFamily, Registry
from tito_core.prompts.template import Renderer, renderer


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[Fakes]:
    with fakes_below(tmp_path) as made:
        made.add("fake-whole", families={"whole": "fake_whole"}, modules={"fake_whole": source("whole")})
        yield made


def failure(registry: Registry, name: str) -> str:
    with pytest.raises(PluginError) as caught:
        registry.get_family(name)
    assert registry.get_family("whole").name == "whole"
    return str(caught.value)


MARK = "from tito_core import hookimpl\n"
DECLARES = MARK + "import fake_families\nfrom tito_core import Family\n@hookimpl\ndef tito_family():\n    return "
NO_OPTIONS = "; a tito hook takes no options: nobody comes before it or wraps it"

# What is wrong: the module, and what is said after "fake-broken 1.0 (fake_broken) ".
BROKEN = {
    "an ImportError": ("import fake_missing", "can't be imported: ModuleNotFoundError: No module named 'fake_missing'"),
    "a name that a package lacks": (
        "from tito_core import Famly",
        "can't be imported: ImportError: cannot import name 'Famly' from 'tito_core' "
        f"({Path(hooks.__file__).parent.parent / '__init__.py'})",
    ),
    "a SystemExit": ("import sys; sys.exit('no GPU')", "can't be imported: SystemExit: no GPU"),
    "a SystemExit without a word": ("import sys; sys.exit()", "can't be imported: SystemExit"),
    "a syntax error": ("def", "can't be imported: SyntaxError: invalid syntax (fake_broken.py, line 1)"),
    "a test runner's outcome": (
        "import pytest; pytest.skip('no GPU', allow_module_level=True)",
        "can't be imported: Skipped: no GPU",
    ),
    "a GeneratorExit": ("raise GeneratorExit", "can't be imported: GeneratorExit"),
    "a recursion without an end": (
        "def f(): return f()\nf()",
        "can't be imported: RecursionError: maximum recursion depth exceeded",
    ),
    "an error that can't be printed": (
        "class E(Exception):\n    def __str__(self): raise TypeError\nraise E",
        "can't be imported: E: (its text can't be printed)",
    ),
    "another object in the module's place": (
        "import sys; sys.modules[__name__] = 'me'",
        "put a value of type str in its module's place; it must stay a module",
    ),
    "no tito_family": (
        "import tito_core",
        "has no tito_family; define it, and mark it with tito_core.hookimpl",
    ),
    "a misspelt hook": (
        source("broken", "@hookimpl\ndef tito_apend_roles(family): ..."),
        "defines tito_apend_roles, which is no hook; did you mean tito_append_roles?",
    ),
    "a misspelt hook without the marker": (
        source("broken", "def tito_case(family): ..."),
        "defines tito_case, which is no hook; did you mean tito_cases?",
    ),
    "a misspelt optional hook": (
        source("broken", "@hookimpl(optionalhook=True)\ndef tito_apend_roles(family): ..."),
        "defines tito_apend_roles, which is no hook; did you mean tito_append_roles?",
    ),
    "a hook without the prefix": (
        source("broken", "@hookimpl\ndef zzz(family): ..."),
        "defines zzz, which is no hook; the hooks are tito_family, tito_resolve_template, tito_forward_thinking, "
        "tito_append_roles, tito_speculative_recipe, tito_cases",
    ),
    "an undecorated hook": (
        "def tito_family(): ...",
        "defines tito_family without the marker, so it would never be asked; mark it with tito_core.hookimpl",
    ),
    "another project's marker": (
        "import pluggy\n@pluggy.HookimplMarker('pytest')\ndef tito_family(): ...",
        "marks tito_family for the project 'pytest', so tito would never ask it; mark it with tito_core.hookimpl",
    ),
    "ordering": (
        MARK + "@hookimpl(tryfirst=True)\ndef tito_family(): ...",
        "marks tito_family with tryfirst=True" + NO_OPTIONS,
    ),
    "ordering, last": (
        MARK + "@hookimpl(trylast=True)\ndef tito_family(): ...",
        "marks tito_family with trylast=True" + NO_OPTIONS,
    ),
    "a wrapper": (
        source("broken", "@hookimpl(wrapper=True)\ndef tito_append_roles(family):\n    return (yield)"),
        "marks tito_append_roles with wrapper=True" + NO_OPTIONS,
    ),
    "an old wrapper": (
        source("broken", "@hookimpl(hookwrapper=True)\ndef tito_append_roles(family):\n    yield"),
        "marks tito_append_roles with hookwrapper=True" + NO_OPTIONS,
    ),
    "an optional hook": (
        source("broken", "@hookimpl(optionalhook=True)\ndef tito_cases(family): ..."),
        "marks tito_cases with optionalhook=True" + NO_OPTIONS,
    ),
    "another name for a hook": (
        source("broken", "@hookimpl(specname='tito_append_roles')\ndef tito_cases(family): ..."),
        "marks tito_cases with specname='tito_append_roles'" + NO_OPTIONS,
    ),
    "a declaration in place of the hook": (
        "import fake_families\ntito_family = fake_families.family('broken')",
        "has a value of type Family where the hook tito_family belongs; it must be a plain function",
    ),
    "a cached function": (
        MARK + "import functools\n@hookimpl\n@functools.cache\ndef tito_family(): ...",
        "has a value of type _lru_cache_wrapper where the hook tito_family belongs; it must be a plain function",
    ),
    "an argument that does not exist": (
        source("broken", "@hookimpl\ndef tito_append_roles(famly): ..."),
        "defines tito_append_roles with the argument famly, which it does not have; tito_append_roles takes family",
    ),
    "an argument where there are none": (
        MARK + "@hookimpl\ndef tito_family(name): ...",
        "defines tito_family with the argument name, which it does not have; tito_family takes no arguments",
    ),
    "template resolution that wants to see roles": (
        source("broken", "@hookimpl\ndef tito_resolve_template(family, append_roles): ..."),
        "defines tito_resolve_template with the argument append_roles, which it does not have; tito_resolve_template "
        "takes family, checkpoint, package",
    ),
    "any arguments": (
        source("broken", "@hookimpl\ndef tito_append_roles(**family): ..."),
        "defines tito_append_roles with the argument **family, which it does not have; tito_append_roles takes family",
    ),
    "an argument with a default": (
        source("broken", "@hookimpl\ndef tito_append_roles(family=None): ..."),
        "defines tito_append_roles with the argument family optional or by keyword only, so it would never be given; "
        "write it plainly",
    ),
    "an argument by keyword only": (
        source("broken", "@hookimpl\ndef tito_append_roles(*, family): ..."),
        "defines tito_append_roles with the argument family optional or by keyword only, so it would never be given; "
        "write it plainly",
    ),
    "a wrong name": (
        source("other"),
        "declares a family named 'other' under the entry point 'broken'; they must agree",
    ),
    "a declaration that is none": (
        MARK + "@hookimpl\ndef tito_family(): return {'name': 'broken'}",
        "answered tito_family with a value of type dict; it must be a Family",
    ),
    "a declaration that was not returned": (
        MARK + "@hookimpl\ndef tito_family(): ...",
        "answered tito_family with a value of type NoneType; it must be a Family",
    ),
    "a SystemExit in a hook": (
        MARK + "@hookimpl\ndef tito_family(): raise SystemExit(3)",
        "declares the family broken wrongly: SystemExit: 3",
    ),
    "an error in a hook": (
        MARK + "@hookimpl\ndef tito_family(): return 1 / 0",
        "declares the family broken wrongly: ZeroDivisionError: division by zero",
    ),
    "an unknown key": (
        DECLARES + "fake_families.family('broken', boundry=1)",
        "declares the family broken wrongly: Family.boundry: Extra inputs are not permitted",
    ),
    "an unknown key inside, at import": (
        "from tito_core import Boundary\nboundary = Boundary(stop=('<end>',), glu='x')",
        "can't be imported: Boundary.glu: Extra inputs are not permitted",
    ),
    "a declaration that contradicts itself": (
        DECLARES + "fake_families.family('broken', revisions=())",
        "declares the family broken wrongly: Family: revisions is empty: a family has at least one, and the first "
        "is the default",
    ),
    "a declaration that nobody checked": (
        DECLARES + "Family.model_construct(**{**dict(fake_families.family('broken')), 'models': 1})",
        "declares the family broken wrongly: Family.models: Input should be a valid array",
    ),
    "a subclass with keys of its own": (
        DECLARES + "Mine(**fake_families.declaration('broken'))\nclass Mine(Family):\n    more: int = 1",
        "declares the family broken wrongly: Family.more: Extra inputs are not permitted",
    ),
    "a copy with a wrong and an unknown key": (
        DECLARES + "fake_families.family('broken').model_copy(update={'models': 1, 'kwarg': 2})",
        "declares the family broken wrongly: Family.models: Input should be a valid tuple; Family.kwarg: Extra inputs are not "
        "permitted",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_family_is_named_with_its_distribution_and_its_cause(kind: str, fakes: Fakes) -> None:
    module, said = BROKEN[kind]
    fakes.add("fake-broken", families={"broken": "fake_broken"}, modules={"fake_broken": module})
    registry = fakes.registry()
    assert failure(registry, "broken") == f"fake-broken 1.0 (fake_broken) {said}"
    assert [info.name for info in registry.list_families()] == ["broken", "whole"]


def test_the_cause_stays_behind_the_error(fakes: Fakes) -> None:
    fakes.add("fake-broken", families={"broken": "fake_broken"}, modules={"fake_broken": "import fake_missing"})
    with pytest.raises(PluginError) as caught:
        fakes.registry().get_family("broken")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize("place", ["", MARK + "@hookimpl\ndef tito_family():\n    "])
def test_a_user_can_interrupt(place: str, fakes: Fakes) -> None:
    fakes.add(
        "fake-broken", families={"broken": "fake_broken"}, modules={"fake_broken": f"{place}raise KeyboardInterrupt"}
    )
    with pytest.raises(KeyboardInterrupt):
        fakes.registry().get_family("broken")


@pytest.mark.parametrize("value", ["fake_broken:FAMILY", "fake_broken [extra]", "fake broken", ".fake_broken", ""])
def test_an_entry_point_that_names_no_module(value: str, fakes: Fakes) -> None:
    fakes.add("fake-broken", families={"broken": value}, modules={"fake_broken": source("broken")})
    assert failure(fakes.registry(), "broken") == (
        f"fake-broken 1.0 ({value}) is no module; the entry point 'broken' must name one, as package.module"
    )


@pytest.mark.parametrize(
    ("requires", "wanted"),
    [
        (("numpy", "tito-core>=98,<99"), "<99,>=98"),
        (("tito_core<0.0.1",), "<0.0.1"),
        (("Tito.Core>=99; python_version >= '3.0'",), ">=99"),
    ],
)
def test_a_plugin_of_another_core_is_not_even_imported(requires: tuple[str, ...], wanted: str, fakes: Fakes) -> None:
    fakes.add(
        "fake-broken", families={"broken": "fake_broken"}, modules={"fake_broken": source("broken")}, requires=requires
    )
    assert failure(fakes.registry(), "broken") == (
        f"fake-broken 1.0 (fake_broken) is for tito-core{wanted}, and tito-core {__version__} is installed; install a "
        "fake-broken for this tito-core, or the tito-core that it is for"
    )
    assert "fake_broken" not in sys.modules


@pytest.mark.parametrize(
    "requires",
    [(), ("tito-core",), ("tito-core-extras>=9",), ("tito-core>=9; extra == 'testing'",), ("tito-core>=0.0.1rc1",)],
)
def test_a_plugin_of_this_core_loads(requires: tuple[str, ...], fakes: Fakes) -> None:
    fakes.add(
        "fake-other", families={"other": "fake_other"}, modules={"fake_other": source("other")}, requires=requires
    )
    assert fakes.registry().get_family("other").name == "other"


@pytest.mark.parametrize(("version", "loads"), [("0.1.5rc1", True), ("0.2.0rc1", False), ("0.2.0", False)])
def test_a_core_that_is_a_release_candidate(
    version: str, loads: bool, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants = ("tito-core>=0.1,<0.2",)
    fakes.add("fake-other", families={"other": "fake_other"}, modules={"fake_other": source("other")}, requires=wants)
    monkeypatch.setattr(tito_core, "__version__", version)
    if loads:
        assert fakes.registry().get_family("other").name == "other"
    else:
        with pytest.raises(PluginError, match=rf"is for tito-core<0.2,>=0.1, and tito-core {version} is installed"):
            fakes.registry().get_family("other")


def test_a_requirement_that_nobody_can_read(fakes: Fakes) -> None:
    fakes.add(
        "fake-broken", families={"broken": "fake_broken"}, modules={"fake_broken": ""}, requires=("tito-core>=>1",)
    )
    assert failure(fakes.registry(), "broken") == (
        "fake-broken 1.0 (fake_broken) has a requirement that can't be read: 'tito-core>=>1'"
    )


def test_two_distributions_of_one_name(fakes: Fakes) -> None:
    fakes.add("fake-two", version="2.0", families={"twice": "fake_two"}, modules={"fake_two": source("twice")})
    fakes.add("fake-one", families={"twice": "fake_one"}, modules={"fake_one": source("twice")})
    assert failure(fakes.registry(), "twice") == (
        "the family twice is provided by fake-one 1.0 (fake_one) and fake-two 2.0 (fake_two); uninstall all but one"
    )
    assert not {"fake_one", "fake_two"} & set(sys.modules)


def test_one_distribution_seen_twice_is_one(fakes: Fakes) -> None:
    for _ in range(2):
        fakes.add("fake-one", families={"once": "fake_one"}, modules={"fake_one": source("once")})
    fakes.add("Fake_One", families={"once": "fake_one"}, modules={"fake_one": source("once")})
    for registry in (fakes.registry(), Registry()):
        assert [info.module for info in registry.list_families() if info.name == "once"] == ["fake_one"]
        assert registry.get_family("once").name == "once"


def test_of_two_versions_of_one_distribution_the_first_on_the_path_counts(fakes: Fakes) -> None:
    for version in ("1.0", "2.0"):
        fakes.add("fake-one", version=version, families={"once": "fake_one"}, modules={"fake_one": source("once")})
    for registry in (fakes.registry(), Registry()):
        assert [info.version for info in registry.list_families() if info.name == "once"] == ["2.0"]


def test_a_distribution_without_metadata_is_named_as_well_as_can_be(fakes: Fakes) -> None:
    fakes.add("fake-broken", families={"broken": "fake_broken"}, modules={"fake_broken": "1 / 0"}, metadata="")
    assert failure(fakes.registry(), "broken") == (
        "unknown unknown (fake_broken) can't be imported: ZeroDivisionError: division by zero"
    )


def test_entry_points_that_cannot_be_read_hide_no_others(fakes: Fakes) -> None:
    fakes.add("fake-garbled", entry_points="[tito.families]\ngarbled\n")
    assert Registry().get_family("whole").name == "whole"


def test_an_unknown_family_names_the_nearest_and_the_installed_ones(fakes: Fakes) -> None:
    fakes.add("fake-one", families={"fakeone": "fake_one"}, modules={"fake_one": "1 / 0"})
    advice = (
        "A family comes with its plugin's distribution; install that into this environment: "
        f"{sys.executable} -m pip install DISTRIBUTION"
    )
    asked_for: list[tuple[Any, str]] = [
        ("FAKEON", "'FAKEON'; did you mean 'fakeone'? Installed: fakeone, whole. "),
        ("zzz", "'zzz'. Installed: fakeone, whole. "),
        ("", "''. Installed: fakeone, whole. "),
        (None, "None. Installed: fakeone, whole. "),
        (["whole"], "['whole']. Installed: fakeone, whole. "),
    ]
    for name, said in asked_for:
        with pytest.raises(UnknownFamilyError) as caught:
            fakes.registry().get_family(name)
        assert str(caught.value) == f"no installed plugin provides the family {said}{advice}"
        assert caught.value.where == {"family": name, "known": ["fakeone", "whole"]}
    with pytest.raises(UnknownFamilyError, match=r"family 'whole'\. Installed: none\. A family"):
        Registry(entry_points=()).get_family("whole")


# Questions.


def asked(loaded: LoadedFamily, question: str) -> object:
    questions: dict[str, Callable[[], object]] = {
        "tito_resolve_template": loaded.template,
        "tito_forward_thinking": lambda: loaded.thinking(()),
        "tito_append_roles": loaded.append_roles,
        "tito_speculative_recipe": lambda: loaded.recipe(Deployment()),
        "tito_cases": loaded.cases,
    }
    return questions[question]()


def refused(loaded: LoadedFamily, question: str) -> str:
    with pytest.raises(PluginError) as caught:
        asked(loaded, question)
    return str(caught.value)


KINDS = {
    "tito_resolve_template": "Template",
    "tito_forward_thinking": "ThinkingDecision",
    "tito_append_roles": "AppendRoles",
    "tito_speculative_recipe": "Recipe",
}


@pytest.mark.parametrize("question", KINDS)
@pytest.mark.parametrize("kind", ["family", "override"])
def test_an_answer_of_the_wrong_type(kind: str, question: str, fakes: Fakes) -> None:
    body = f"@hookimpl\ndef {question}(family): return {{'a': 1}}"
    if kind == "family":
        fakes.add("fake-broken", families={"odd": "fake_odd"}, modules={"fake_odd": source("odd", body)})
    else:
        fakes.add("fake-odd", families={"odd": "fake_odd"}, modules={"fake_odd": source("odd")})
        fakes.add("fake-broken", overrides={"any": "fake_any"}, modules={"fake_any": override(body)})
    module = "fake_odd" if kind == "family" else "fake_any"
    assert refused(fakes.registry().family("odd"), question) == (
        f"fake-broken 1.0 ({module}) answered {question} for the family odd with a value of type dict; it must be a "
        f"{KINDS[question]} or None"
    )


@pytest.mark.parametrize("question", KINDS)
@pytest.mark.parametrize(
    ("body", "cause"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("raise SystemExit(2)", "SystemExit: 2")],
)
def test_an_error_in_an_answer(body: str, cause: str, question: str, fakes: Fakes) -> None:
    module = source("odd", f"@hookimpl\ndef {question}(family):\n    {body}")
    fakes.add("fake-broken", families={"odd": "fake_odd"}, modules={"fake_odd": module})
    assert refused(fakes.registry().family("odd"), question) == (
        f"fake-broken 1.0 (fake_odd) failed in {question} for the family odd: {cause}"
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1", "failed in tito_cases for the family odd: TypeError: 'int' object is not iterable"),
        ("return 'ab'", "answered tito_cases for the family odd with a value of type str; it must hold Case only"),
        ("return [2]", "answered tito_cases for the family odd with a value of type int; it must hold Case only"),
        ("raise SystemExit", "failed in tito_cases for the family odd: SystemExit"),
        ("yield 1 / 0", "failed in tito_cases for the family odd: ZeroDivisionError: division by zero"),
        (
            "yield Case(name='a', messages=[{'role': {1}}])",
            "failed in tito_cases for the family odd: Case.messages.0: holds what JSON does not keep; write null, booleans, "
            "numbers, strings, lists and string keys",
        ),
    ],
)
def test_wrong_cases(body: str, said: str, fakes: Fakes) -> None:
    module = source("odd", f"@hookimpl\ndef tito_cases(family):\n    {body}")
    fakes.add("fake-broken", families={"odd": "fake_odd"}, modules={"fake_odd": module})
    assert refused(fakes.registry().family("odd"), "tito_cases") == f"fake-broken 1.0 (fake_odd) {said}"


def test_a_refusal_of_the_request_is_no_fault_of_the_plugin(fakes: Fakes) -> None:
    more = "from tito_core.errors import ThinkingError\n@hookimpl\ndef tito_forward_thinking(family, layers):\n"
    module = source("odd", f"{more}    raise ThinkingError('no such mode')")
    fakes.add("fake-odd", families={"odd": "fake_odd"}, modules={"fake_odd": module})
    with pytest.raises(TitoError, match=r"^no such mode$") as caught:
        fakes.registry().family("odd").thinking(())
    assert not isinstance(caught.value, PluginError)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("fake_missing:X", "fake_missing:X can't be loaded: ModuleNotFoundError: No module named 'fake_missing'"),
        (
            "fake_families:X",
            "fake_families:X can't be loaded: AttributeError: module 'fake_families' has no attribute 'X'",
        ),
        ("fake_exit:X", "fake_exit:X can't be loaded: SystemExit: 1"),
        ("fake_families:family", "the template fake_families:family is a function; it must be a class"),
        (
            "builtins:int",
            "the source file of the template builtins:int can't be read, so it has no hash: TypeError: <class 'int'> "
            "is a built-in class",
        ),
        (
            "native",
            "the family odd renders with the checkpoint's own chat template; name a checkpoint: model=, --model",
        ),
        (
            "templates/x.jinja",
            "the template fake_odd/templates/x.jinja can't be read: fake_odd is a single module; a plugin that ships "
            "files must be a package, a directory fake_odd with the module and the file inside",
        ),
        (
            "../x.jinja",
            "the template fake_odd/../x.jinja is outside of the package; a plugin ships its files inside it",
        ),
    ],
)
def test_a_template_that_is_none(template: str, said: str, fakes: Fakes) -> None:
    module = f"{DECLARES}fake_families.family('odd', template={template!r})"
    fakes.add(
        "fake-odd", families={"odd": "fake_odd"}, modules={"fake_odd": module, "fake_exit": "raise SystemExit(1)"}
    )
    assert refused(fakes.registry().family("odd"), "tito_resolve_template") == (
        f"fake-odd 1.0 (fake_odd), family odd: {said}"
    )


# Overrides.

WRONG_OVERRIDES = {
    "an ImportError": ("import fake_missing", "can't be imported: ModuleNotFoundError: No module named 'fake_missing'"),
    "a SystemExit": ("raise SystemExit(1)", "can't be imported: SystemExit: 1"),
    "a family": (
        source("whole"),
        "answers tito_family, which only a family answers; an override may answer tito_resolve_template, "
        "tito_forward_thinking, tito_append_roles, tito_speculative_recipe",
    ),
    "cases": (
        override("@hookimpl\ndef tito_cases(family): ..."),
        "answers tito_cases, which only a family answers; an override may answer tito_resolve_template, "
        "tito_forward_thinking, tito_append_roles, tito_speculative_recipe",
    ),
    "an undecorated hook": (
        "def tito_append_roles(family): ...",
        "defines tito_append_roles without the marker, so it would never be asked; mark it with tito_core.hookimpl",
    ),
    "a wrapper": (
        override("@hookimpl(wrapper=True)\ndef tito_append_roles(family): return (yield)"),
        "marks tito_append_roles with wrapper=True" + NO_OPTIONS,
    ),
}


@pytest.mark.parametrize("kind", WRONG_OVERRIDES)
def test_an_override_that_cannot_be_loaded_makes_questions_raise(kind: str, fakes: Fakes) -> None:
    module, said = WRONG_OVERRIDES[kind]
    fakes.add("fake-broken", overrides={"any": "fake_any"}, modules={"fake_any": module})
    registry = fakes.registry()
    loaded = registry.family("whole")
    assert "fake_any" not in sys.modules
    for question in KINDS:
        for _ in range(2):
            assert refused(loaded, question) == f"fake-broken 1.0 (fake_any) {said}"
    assert loaded.cases() == ()


@pytest.mark.parametrize("question", KINDS)
def test_two_overrides_of_one_question(question: str, fakes: Fakes) -> None:
    answer = {
        "tito_resolve_template": "Template(kind='encoder', reference='a:B', sha256='')",
        "tito_forward_thinking": "ThinkingDecision(enabled=True, render_kwargs={}, forward_kwargs={})",
        "tito_append_roles": "family.append_roles",
        "tito_speculative_recipe": "Recipe(speculative=None)",
    }[question]
    body = override(f"@hookimpl\ndef {question}(family): return {answer} if family.name == 'whole' else None")
    fakes.add("fake-b", version="2.0", overrides={"same": "fake_b"}, modules={"fake_b": body})
    fakes.add("fake-a", overrides={"same": "fake_a"}, modules={"fake_a": body})
    fakes.add("fake-other", families={"other": "fake_other"}, modules={"fake_other": source("other")})
    registry = fakes.registry()
    assert refused(registry.family("whole"), question) == (
        f"fake-a 1.0 (fake_a) and fake-b 2.0 (fake_b) both answer {question} for the family whole; uninstall all "
        "but one"
    )
    if question == "tito_speculative_recipe":
        with pytest.raises(FamilyError, match=r"^other has no recipe of the profile 'default'; known: none$"):
            asked(registry.family("other"), question)
    else:
        assert asked(registry.family("other"), question) is not None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            "family.append_roles.model_copy(update={'follows': {**family.append_roles.follows, "
            "'system': frozenset({'system', 'user', 'tool'})}})",
            "lets tool follow system",
        ),
        ("family.append_roles.model_copy(update={'ends': frozenset({'system', 'user', 'tool'})})", "ends with system"),
        (
            "AppendRoles.model_construct(roles=frozenset({'user', 'developer'}), follows={'assistant': "
            "frozenset({'user', 'developer'})}, ends=frozenset({'user'}))",
            "appends developer, lets developer follow assistant",
        ),
    ],
)
def test_an_override_that_widens_roles(answer: str, said: str, fakes: Fakes) -> None:
    body = override(f"@hookimpl\ndef tito_append_roles(family): return {answer}")
    fakes.add("fake-wide", overrides={"any": "fake_any"}, modules={"fake_any": body})
    assert refused(fakes.registry().family("whole"), "tito_append_roles") == (
        f"fake-wide 1.0 (fake_any) widens the append roles of the family whole: it {said}; an override may "
        "narrow them only"
    )


def test_an_override_may_not_undo_what_the_family_itself_narrowed(fakes: Fakes) -> None:
    narrow = "@hookimpl\ndef tito_append_roles(family): return family.append_roles.narrowed({'tool'})"
    wide = override("@hookimpl\ndef tito_append_roles(family): return family.append_roles")
    fakes.add("fake-odd", families={"odd": "fake_odd"}, modules={"fake_odd": source("odd", narrow)})
    fakes.add("fake-wide", overrides={"any": "fake_any"}, modules={"fake_any": wide})
    assert refused(fakes.registry().family("odd"), "tito_append_roles").startswith(
        "fake-wide 1.0 (fake_any) widens the append roles of the family odd: it appends assistant, appends system, "
    )


@pytest.mark.parametrize(
    "edit",
    [
        "layers[0].kwargs.clear()",
        "family.append_roles.follows['user'] = frozenset({'tool', 'user'})",
        "family.fixed_kwargs['x'] = 1",
    ],
)
def test_an_override_that_edits_what_it_is_asked_is_named_and_changes_nothing(edit: str, fakes: Fakes) -> None:
    body = override(f"@hookimpl\ndef tito_forward_thinking(family, layers):\n    {edit}")
    fakes.add("fake-edit", overrides={"any": "fake_any"}, modules={"fake_any": body})
    layer, loaded = Layer(name="request", kwargs={"thinking": False}), fakes.registry().family("whole")
    with pytest.raises(PluginError) as caught:
        loaded.thinking((layer,))
    assert str(caught.value) == (
        "fake-edit 1.0 (fake_any) failed in tito_forward_thinking for the family whole: TypeError: declared data is "
        "read-only; change a copy of it, as dict(...) and list(...) make"
    )
    assert layer.kwargs == {"thinking": False}
    assert loaded.declaration == fake_families.family("whole")


# Renderers.

RENDERERS = {
    "a KeyError": ("raise KeyError('x')", "KeyError: 'x'"),
    "a SystemExit": ("raise SystemExit(0)", "SystemExit: 0"),
    "an error that can't be printed": (
        "class E(Exception):\n            def __str__(self): raise TypeError\n        raise E",
        "E: (its text can't be printed)",
    ),
    "nothing": ("return None", "TypeError: render returned a value of type NoneType; it must be a Rendered"),
    "a tuple": ("return ('', ())", "TypeError: render returned a value of type tuple; it must be a Rendered"),
}


def rendering(body: str, fakes: Fakes) -> Renderer:
    text = f"class Broken:\n    def render(self, messages, *, tools, kwargs):\n        {body}\n"
    fakes.add("fake-render", modules={"fake_render": text})
    return renderer(Template(kind="encoder", reference="fake_render:Broken", sha256=""))


@pytest.mark.parametrize("kind", RENDERERS)
def test_a_renderer_that_fails_is_named(kind: str, fakes: Fakes) -> None:
    body, said = RENDERERS[kind]
    made = rendering(body, fakes)
    with pytest.raises(TemplateError) as caught:
        made.render((), tools=(), kwargs={})
    assert str(caught.value) == f"the template fake_render:Broken failed to render: {said}"


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "tito_core.errors.GateError('mine', index=1)"])
def test_what_a_renderer_may_raise_goes_through(error: str, fakes: Fakes) -> None:
    made = rendering(f"import tito_core.errors; raise {error}", fakes)
    with pytest.raises((KeyboardInterrupt, GateError)) as caught:
        made.render((), tools=(), kwargs={})
    assert str(caught.value) in ("", "mine")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "def __init__(self, config): ...",
            "TypeError: Broken.__init__() missing 1 required positional argument: 'config'",
        ),
        ("def __init__(self): raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_a_renderer_that_cannot_be_made(body: str, said: str, fakes: Fakes) -> None:
    text = f"class Broken:\n    {body}\n    def render(self): ...\n"
    fakes.add("fake-render", modules={"fake_render": text})
    with pytest.raises(TemplateError) as caught:
        renderer(Template(kind="encoder", reference="fake_render:Broken", sha256=""))
    assert str(caught.value) == f"the template fake_render:Broken can't be made without arguments: {said}"


def test_a_vocabulary_of_a_package_that_is_none(fakes: Fakes) -> None:
    """An editable install of one finds its modules, and not its files."""
    module = f"{DECLARES}fake_families.family('bare')"
    site = fakes.add("fake-bare", families={"bare": "fake_bare.bare"}, modules={"fake_bare.bare": module})
    with pytest.raises(FamilyError) as caught:
        fakes.registry().load("bare")
    assert str(caught.value) == (
        "the vocabulary tiny (fake_bare/tiny.json) can't be read: [Errno 2] No such file or directory: "
        f"'{site}/fake_bare/tiny.json'; put an empty __init__.py into fake_bare, and install the plugin again"
    )


def test_a_vocabulary_of_a_single_module(fakes: Fakes) -> None:
    with pytest.raises(FamilyError) as caught:
        fakes.registry().load("whole")
    assert str(caught.value) == (
        "the vocabulary tiny (fake_whole/tiny.json) can't be read: fake_whole is a single module; a plugin that ships "
        "files must be a package, a directory fake_whole with the module and the file inside"
    )
