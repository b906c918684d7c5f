"""The verifier is verified: every fault is caught by the check that is meant for it, and without it all hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import pytest

from mutants import MUTANTS, TEMPLATE_MUTANTS, Mutant, TemplateMutant, in_effect, printed
from tito_core.families.registry import Registry
from tito_core.verify import run
from tito_core.verify.report import Report

pytestmark = pytest.mark.slow

VOCABULARIES = {"deepseekv32": "r1", "deepseekv4": "v4", "deepseekv41": "v4"}


@pytest.fixture(scope="module", autouse=True)
def _every_family_is_loaded() -> None:
    """What is generated draws on the constants of the modules that are loaded: the same ones, from the first run on."""
    for info in Registry().list_families():
        Registry().get_family(info.name)


def verify(family: str) -> Report:
    """With a registry of its own: a declaration is remembered."""
    return run.verify(
        family, registry=Registry(), vocabulary=VOCABULARIES[family], conversations=40, sessions=4, seed=1
    )


def columns(report: Report) -> dict[str, bool]:
    return {
        **{check.name: check.ok for check in report.checks},
        "sessions": report.sessions.driven == report.sessions.passed,
    }


@cache
def twin_of(family: str) -> Report:
    """The same without a fault, verified before there was any."""
    return verify(family)


@pytest.mark.parametrize("family", VOCABULARIES)
def test_without_a_fault_every_check_holds(family: str) -> None:
    twin = twin_of(family)
    assert twin.exit_code == 0
    assert all(columns(twin).values())
    assert all(check.conversations for check in twin.checks)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_caught_by_its_check(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    twin_of(mutant.family)
    monkeypatch.setattr(run, "SHRINK_SECONDS", 0.3)
    with in_effect(mutant):
        report = verify(mutant.family)
    found = columns(report)
    record_property("mutant", json.dumps([mutant.name, mutant.check, found]))
    assert not found[mutant.check]
    failure = next(failure for failure in report.failures if failure.check == mutant.check)
    assert failure.what
    assert report.exit_code == 1


@pytest.mark.parametrize("family", VOCABULARIES)
def test_nothing_of_them_is_left(family: str) -> None:
    again, twin = verify(family), twin_of(family)
    assert again.model_copy(update={"seconds": 0.0}) == twin.model_copy(update={"seconds": 0.0})


@pytest.mark.parametrize("family", sorted({mutant.family for mutant in TEMPLATE_MUTANTS}))
def test_without_a_fault_in_its_template_every_check_holds(family: str) -> None:
    report = run.verify(family, registry=Registry(), conversations=40, sessions=4, seed=1)
    assert report.exit_code == 0
    assert all(columns(report).values())


@pytest.mark.parametrize("mutant", TEMPLATE_MUTANTS, ids=str)
def test_a_template_mutant_is_caught_by_its_check(mutant: TemplateMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SHRINK_SECONDS", 0.3)
    with printed(mutant):
        report = run.verify(mutant.family, registry=Registry(), conversations=40, sessions=4, seed=1)
    assert not columns(report)[mutant.check], columns(report)
    assert report.exit_code == 1


def test_a_mutant_must_change_the_function_that_it_names() -> None:
    line = MUTANTS[0]
    with pytest.raises(AssertionError, match="lost glue: the line is not in Joiner.join$"):
        in_effect(line._replace(function="tito_core.tokens.append:Joiner.join")).__enter__()
    with pytest.raises(AssertionError, match=r"lost glue: .*append.py holds 'self' \d+ times, not once"):
        in_effect(line._replace(old="self")).__enter__()
