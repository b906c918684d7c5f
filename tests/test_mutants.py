"""The verifier is verified: every fault is caught by the check that is meant for it, and without it all hold."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mutants import MUTANTS, TEMPLATE_MUTANTS, Mutant, TemplateMutant, in_effect, printed
from tito_core.families.registry import Registry
from tito_core.verify import run
from tito_core.verify.report import Report

pytestmark = pytest.mark.slow

RUN = {"vocabulary": "r1", "conversations": 40, "sessions": 4, "seed": 1}


def verify() -> Report:
    """With a registry of its own: a declaration is remembered."""
    return run.verify("deepseekv32", registry=Registry(), **RUN)  # type: ignore[arg-type]


def columns(report: Report) -> dict[str, bool]:
    return {
        **{check.name: check.ok for check in report.checks},
        "sessions": report.sessions.driven == report.sessions.passed,
    }


@pytest.fixture(scope="module")
def twin() -> Report:
    return verify()


def test_without_a_fault_every_check_holds(twin: Report) -> None:
    assert twin.exit_code == 0
    assert all(columns(twin).values())
    assert all(check.conversations for check in twin.checks)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_caught_by_its_check(
    mutant: Mutant, twin: Report, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.setattr(run, "SHRINK_SECONDS", 0.3)
    with in_effect(mutant):
        report = verify()
    found = columns(report)
    record_property("mutant", json.dumps([mutant.name, mutant.check, found]))
    assert not found[mutant.check]
    failure = next(failure for failure in report.failures if failure.check == mutant.check)
    assert failure.what
    assert report.exit_code == 1


def test_nothing_of_them_is_left(twin: Report) -> None:
    """Before other families are loaded: what is generated draws on the constants of the modules that are."""
    again = verify()
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
