"""`tito doctor`, and what the commands print as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fake_distributions import Fakes, fakes_below, package
from tito_core import Family
from tito_core.cli.main import tito
from tito_core.families import registry

pytestmark = pytest.mark.slow


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[Fakes]:
    with fakes_below(tmp_path) as made:
        yield made


@pytest.fixture
def broken(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One plugin that is whole, one that can't be imported, one that exits."""
    fakes.add("fake-whole", families={"whole": "fake_whole"}, modules={"fake_whole.__init__": package("whole")})
    fakes.add("fake-lost", families={"lost": "fake_lost"}, modules={"fake_lost": "import no_such_module"})
    fakes.add("fake-exit", families={"exit": "fake_exit"}, modules={"fake_exit": "raise SystemExit(3)"})
    monkeypatch.setattr(registry, "default_registry", fakes.registry())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(tito, arguments)


def masked(text: str) -> str:
    return re.sub(r"\d+\.\d s", "N s", text)


@pytest.mark.usefixtures("broken")
def test_every_plugin_the_worst_first() -> None:
    result = run("doctor")
    assert masked(result.output) == (
        "      name   distribution    module      loads in\n"
        "FAIL  exit   fake-exit 1.0   fake_exit   N s\n"
        "FAIL  lost   fake-lost 1.0   fake_lost   N s\n"
        "ok    whole  fake-whole 1.0  fake_whole  N s\n"
        "\n"
        "FAIL exit: fake-exit 1.0 (fake_exit) can't be imported: SystemExit: 3\n"
        "\n"
        "FAIL lost: fake-lost 1.0 (fake_lost) can't be imported: ModuleNotFoundError: No module named 'no_such_module'\n"
        "\n"
        "`tito doctor NAME` shows the traceback.\n"
    )
    assert result.exit_code == 1


@pytest.mark.usefixtures("broken")
def test_one_plugin_with_its_traceback() -> None:
    result = run("doctor", "lost")
    assert "whole" not in result.output
    assert "  Traceback (most recent call last):\n" in result.output
    assert "import no_such_module" in result.output
    assert result.exit_code == 1
    result = run("doctor", "whole")
    assert masked(result.output) == (
        "    name   distribution    module      loads in\nok  whole  fake-whole 1.0  fake_whole  N s\n"
    )
    assert result.exit_code == 0


@pytest.mark.usefixtures("broken")
def test_an_unknown_name_is_said_with_what_is_near() -> None:
    result = run("doctor", "lots")
    assert "did you mean 'lost'?" in result.output
    assert result.exit_code == 3


def test_nothing_to_diagnose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default_registry", registry.Registry(()))
    result = run("doctor")
    assert result.output == (
        "No plugin is installed, so there is nothing to diagnose; `tito families` says how to install one.\n"
    )
    assert result.exit_code == 0


@pytest.mark.usefixtures("broken")
def test_json() -> None:
    told = json.loads(run("doctor", "--json").output)
    assert told["schema_version"] == 1
    assert [(one["status"], one["name"]) for one in told["plugins"]] == [
        ("FAIL", "exit"),
        ("FAIL", "lost"),
        ("ok", "whole"),
    ]
    assert "Traceback" in told["plugins"][1]["traceback"]
    told = json.loads(run("show", "whole", "--json").output)
    assert told["schema_version"] == 1
    assert (told["name"], told["distribution"], told["version"]) == ("whole", "fake-whole", "1.0")
    assert Family.model_validate(told["family"]) == registry.default_registry.get_family("whole")
    assert told["append_roles"]["ends"] == sorted(told["append_roles"]["ends"])


def test_families_as_json(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.add("fake-whole", families={"whole": "fake_whole"}, modules={"fake_whole.__init__": package("whole")})
    found = fakes.registry().list_families()
    monkeypatch.setattr(registry, "list_families", lambda: found)
    assert json.loads(run("families", "--json").output) == {
        "schema_version": 1,
        "families": [{"name": "whole", "module": "fake_whole", "distribution": "fake-whole", "version": "1.0"}],
    }
