"""No version is claimed that was not run: the running one runs everything, the others that are here the unit tests."""

from __future__ import annotations

import subprocess

import pytest
import pythons


def test_the_distributions_claim_the_same_versions_from_the_lowest_that_they_require() -> None:
    core, *plugins = (pythons.claimed(manifest) for manifest in pythons.MANIFESTS)
    assert plugins
    assert all(plugin == core for plugin in plugins)
    assert core[0] == "3.11"


@pytest.mark.slow
@pytest.mark.installs
def test_the_unit_tests_hold_under_the_other_claimed_versions() -> None:
    for version, python in pythons.found().items():
        command = pythons.unit_tests(pythons.environment(version, python))
        finished = subprocess.run(
            command, cwd=pythons.ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, f"Python {version}\n{finished.stdout[-6000:]}\n{finished.stderr[-2000:]}"
