"""Distributions that were never installed: real directories on sys.path, found as every installed plugin is.

Also what a child process runs, since it must be importable there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_families
import pytest

import tito_core
from tito_core.errors import UnknownFamilyError
from tito_core.families.registry import Registry


def source(name: str = "fake", more: str = "") -> str:
    """The module of a family that is whole; `more` is appended to it."""
    return f"""
import fake_families
from tito_core import AppendRoles, Case, Deployment, Family, Recipe, Template, ThinkingDecision, hookimpl

@hookimpl
def tito_family():
    return fake_families.family({name!r})
{more}
"""


def package(name: str, more: str = "", **changes: Any) -> str:
    """The same for the `__init__` of a package, so that it has its vocabulary, of a family that renders too."""
    given = "".join(f", {field}={value!r}" for field, value in {"template": "fake_families:Bare", **changes}.items())
    return source(name, more).replace(f"family({name!r})", f"family({name!r}{given})")


def override(body: str) -> str:
    """The module of an override that holds these lines."""
    return f"from tito_core import AppendRoles, Recipe, Template, ThinkingDecision, hookimpl\n{body}\n"


class Fakes:
    """Writes distributions below a directory and puts them on sys.path, each in a place of its own."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root, self._monkeypatch, self._count = root, monkeypatch, 0
        self._modules: set[str] = set()

    def add(
        self,
        distribution: str,
        *,
        version: str = "1.0",
        families: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
        modules: Mapping[str, str] | None = None,
        requires: Sequence[str] = (f"tito-core=={tito_core.__version__}",),
        entry_points: str | None = None,
        metadata: str | None = None,
    ) -> Path:
        """A distribution whose entry points name modules; `modules` gives each module's source."""
        self._count += 1
        site = self._root / f"site{self._count}"
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n" if metadata is None else metadata)
        if entry_points is None:
            entry_points = "".join(
                f"[{group}]\n" + "".join(f"{name} = {module}\n" for name, module in points.items())
                for group, points in (("tito.families", families), ("tito.overrides", overrides))
                if points
            )
        (info / "entry_points.txt").write_text(entry_points)
        for name, text in (modules or {}).items():
            self._modules |= {name, name.partition(".")[0]}
            path = site / f"{name.replace('.', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if path.name == "__init__.py":
                (path.parent / "tiny.json").write_bytes(fake_families.TINY)
        self._monkeypatch.syspath_prepend(site)
        importlib.invalidate_caches()
        return site

    def registry(self) -> Registry:
        """What is found where these distributions are the only ones, each as often as it lies on the path."""
        return Registry(
            point
            for found in importlib.metadata.distributions()
            if str(found.locate_file("")).startswith(str(self._root))
            for point in found.entry_points
        )

    def forget(self) -> None:
        """Takes every module of these distributions out of this process."""
        for name in self._modules:
            sys.modules.pop(name, None)


@contextmanager
def fakes_below(root: Path) -> Iterator[Fakes]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        fakes = Fakes(root, monkeypatch)
        yield fakes
        fakes.forget()


def in_a_child(method: str, what: str, *arguments: Any) -> Any:
    """What a function of this module returns in a worker that is started by `method`."""
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply(globals()[what], arguments)


def found_by_name(name: str) -> tuple[list[str], str, list[str]]:
    """In a worker: the fake families' names, one family's declaration as JSON, and which fake modules were imported."""
    names = [info.name for info in tito_core.list_families() if info.distribution.startswith("fake-")]
    return names, tito_core.get_family(name).model_dump_json(), sorted(set(sys.modules) & {"fake_one", "fake_two"})


def told(name: str) -> str:
    """In a worker: the text of the error for a family."""
    try:
        tito_core.get_family(name)
    except UnknownFamilyError as error:
        return str(error)
    return "found"


def returned(value: Any) -> Any:
    """In a worker: what was sent to it."""
    return value
