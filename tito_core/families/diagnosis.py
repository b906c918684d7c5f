"""How every installed plugin fares: each is loaded and asked in a process of its own.

So the time is what a fresh worker pays, a package that one plugin imports isn't laid to another, and a plugin that ends
its process, as a broken CUDA library does, is one more diagnosis.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from tito_core.errors import FamilyError
from tito_core.families import hooks
from tito_core.families.family import NATIVE, load_reference
from tito_core.families.installed import info_of, requires_core
from tito_core.families.registry import LoadedFamily, Registry

__all__ = ["Diagnosis", "Status", "diagnose"]

Status = Literal["FAIL", "WARN", "ok"]
WORST_FIRST: Final = ("FAIL", "WARN", "ok")
SLOW: Final = 2.0
"""Seconds that loading a plugin may take."""
PATIENCE: Final = 120.0
"""Seconds after which a plugin that is still loading has failed."""
HEAVY: Final = ("jax", "sglang", "tensorflow", "torch", "transformers", "vllm")
"""Packages that take seconds to import, and that no plugin needs in order to be loaded."""


class Diagnosis(NamedTuple):
    """How one entry point fares. `seconds` is what loading it took; `traceback` is empty unless it failed."""

    status: Status
    group: str
    name: str
    module: str
    distribution: str
    version: str
    seconds: float
    text: str = ""
    traceback: str = ""


def diagnose(points: Sequence[importlib.metadata.EntryPoint], name: str | None = None) -> list[Diagnosis]:
    """The diagnosis of each of the entry points, or of those of one name; the worst first."""
    made = [_one(points, place) for place, point in enumerate(points) if name in (None, point.name)]
    if name is None:
        made += _unreadable()
    return sorted(made, key=lambda found: (WORST_FIRST.index(found.status), *found[1:6]))


def _one(points: Sequence[importlib.metadata.EntryPoint], place: int) -> Diagnosis:
    point, began = points[place], time.monotonic()
    told = json.dumps([sys.path, [_metadata(point) for point in points], place])
    try:
        command = [sys.executable, "-P", "-c", _CHILD]
        done = subprocess.run(command, input=told.encode(), capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as late:
        text = f"{info_of(point).origin} was still loading after {PATIENCE:.0f} s"
        return _found(point, "FAIL", time.monotonic() - began, text, (late.stderr or b"").decode(errors="replace"))
    try:
        return _found(point, **json.loads(done.stdout))
    except ValueError:
        code = done.returncode
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        text = f"{info_of(point).origin} ended its process {how} while it was loaded"
        return _found(point, "FAIL", time.monotonic() - began, text, done.stderr.decode(errors="replace"))


def _found(
    point: importlib.metadata.EntryPoint, status: Status, seconds: float, text: str, traceback: str = ""
) -> Diagnosis:
    return Diagnosis(status, point.group, *info_of(point), seconds=seconds, text=text, traceback=traceback)


def _metadata(point: importlib.metadata.EntryPoint) -> dict[str, str]:
    """What a distribution's directory would hold of one entry point."""
    info, lines = info_of(point), []
    if point.dist is not None:
        lines = [f"Name: {info.distribution}", f"Version: {info.version}"]
        with suppress(Exception):
            lines += [f"Requires-Dist: {line}" for line in point.dist.requires or ()]
    return {
        "METADATA": "\n".join(lines) + "\n",
        "entry_points.txt": f"[{point.group}]\n{point.name} = {point.value}\n",
    }


class _Told(importlib.metadata.Distribution):
    """A distribution as the parent process knows it."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def read_text(self, filename: str) -> str | None:
        return self._files.get(filename)

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)


# Before anything else is imported, so that the child imports what its parent would.
_CHILD: Final = (
    "import json, sys; sys.path[:], *told = json.load(sys.stdin); "
    "from tito_core.families.diagnosis import _child; _child(*told)"
)


def _child(told: list[dict[str, str]], place: int) -> None:
    """Diagnoses one entry point in this process, prints the answer as JSON, and leaves without a look back."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    points = [point for files in told for point in _Told(files).entry_points]
    print(json.dumps(_examine(points, points[place])), file=channel, flush=True)
    os._exit(0)


def _examine(points: list[importlib.metadata.EntryPoint], point: importlib.metadata.EntryPoint) -> dict[str, Any]:
    registry, info = Registry(points), info_of(point)
    began = time.monotonic()
    try:
        if point.group == hooks.FAMILIES:
            loaded = registry.family(point.name)
        else:
            Registry([point]).overrides()
        seconds = time.monotonic() - began
        heavy = [name for name in HEAVY if name in sys.modules]
        if point.group == hooks.FAMILIES:
            loaded.probe()
            _use(loaded)
    except Exception as error:
        told = "".join(traceback.format_exception(error.__cause__ or error))
        return {"status": "FAIL", "seconds": time.monotonic() - began, "text": str(error), "traceback": told}
    warnings = []
    if heavy:
        warnings.append(f"loading it imports {', '.join(heavy)}; import that where it is used")
    if seconds > SLOW:
        warnings.append(f"loading it took {seconds:.1f} s; keep it under {SLOW:.0f} s")
    if not requires_core(point):
        warnings.append(f"{info.distribution} does not say which tito-core it is for; add it to its dependencies")
    return {"status": "WARN" if warnings else "ok", "seconds": seconds, "text": "; ".join(warnings)}


def _use(loaded: LoadedFamily) -> None:
    """What the first session needs and no question asks for. Raises FamilyError or TemplateError."""
    from tito_core.prompts.messages import normalise
    from tito_core.prompts.template import renderer
    from tito_core.tokens.encoder import load_vocabulary

    family = loaded.declaration
    for reference in (family.response_parser, *(rule.check for rule in family.recipe_rules)):
        if reference is not None and not callable(found := load_reference(reference)):
            raise FamilyError(f"{reference} is a value of type {type(found).__name__}; it must be a function")
    for vocabulary in family.vocabularies:
        load_vocabulary(loaded.package, vocabulary)
    if family.template == NATIVE:
        return
    made, kwargs = renderer(loaded.template()), loaded.thinking(()).render_kwargs
    for revision in family.revisions:
        made.render(normalise([{"role": "user", "content": "0"}]), tools=(), kwargs={**revision.kwargs, **kwargs})


def _unreadable() -> Iterator[Diagnosis]:
    """Distributions whose entry points can't be read, and may hold ours."""
    for distribution in importlib.metadata.distributions():
        text = None
        try:
            text = distribution.read_text("entry_points.txt")
            list(distribution.entry_points)
        except Exception as cause:
            if text is None or "tito." in text:
                name, version = distribution.metadata["Name"], distribution.metadata["Version"]
                said = f"the entry points of {name} {version} can't be read: {type(cause).__name__}: {cause}"
                told = "".join(traceback.format_exception(cause))
                yield Diagnosis("FAIL", "", "", "", name, version, 0.0, said, told)
