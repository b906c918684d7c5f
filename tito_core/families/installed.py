"""What the metadata of the installed distributions says of plugins. Nothing is imported to learn it."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from tito_core.errors import PluginError
from tito_core.families import hooks

__all__ = ["FamilyInfo", "distinct", "info_of", "installed", "requires_core"]


class FamilyInfo(NamedTuple):
    """What the metadata says of an installed family (or override); nothing was imported to learn it."""

    name: str
    module: str
    distribution: str
    version: str

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version} ({self.module})"


def installed() -> Iterable[importlib.metadata.EntryPoint]:
    """The entry points of both groups. Of a distribution that lies on the path twice, the first one's."""
    try:
        found = importlib.metadata.entry_points()
        return (*found.select(group=hooks.FAMILIES), *found.select(group=hooks.OVERRIDES))
    except Exception:
        # One distribution whose entry points can't be read hides no other's.
        return (point for distribution in importlib.metadata.distributions() for point in _readable(distribution))


def _readable(distribution: importlib.metadata.Distribution) -> list[importlib.metadata.EntryPoint]:
    try:
        return [point for point in distribution.entry_points if point.group in (hooks.FAMILIES, hooks.OVERRIDES)]
    except Exception:
        return []


def distinct(points: Iterable[importlib.metadata.EntryPoint]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Each entry point of a distribution once: of one that is seen twice the first on the path counts."""
    first: dict[tuple[str, ...], importlib.metadata.EntryPoint] = {}
    for point in points:
        distribution = re.sub(r"[-_.]+", "-", info_of(point).distribution).lower()
        # An override's name means nothing, its module does.
        name = point.name if point.group == hooks.FAMILIES else ""
        first.setdefault((point.group, name, point.value, distribution), point)
    return tuple(first.values())


def info_of(point: importlib.metadata.EntryPoint) -> FamilyInfo:
    """The entry point and who brought it."""
    distribution, version = None, None
    if point.dist is not None:
        # A directory without METADATA still provides what it provides, and is named as well as can be.
        with suppress(Exception):
            distribution, version = point.dist.metadata["Name"], point.dist.metadata["Version"]
    return FamilyInfo(point.name, point.value, distribution or "unknown", version or "unknown")


def requires_core(point: importlib.metadata.EntryPoint) -> bool:
    """Whether the distribution says which tito-core it is for. Raises PluginError where that is not this one.

    pip checks this when the plugin is installed, not when tito-core is upgraded under it.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    version = sys.modules["tito_core"].__version__  # not imported: the facade comes after every room
    info, lines, said = info_of(point), None, False
    if point.dist is not None:
        with suppress(Exception):
            lines = point.dist.requires
    for line in lines or ():
        if not re.match(r"tito[-_.]+core\b(?![-_.])", line, re.IGNORECASE):
            continue
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            raise PluginError(f"{info.origin} has a requirement that can't be read: {line!r}") from None
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        said = True
        if not wanted.specifier.contains(version, prereleases=True):
            raise PluginError(
                f"{info.origin} is for tito-core{wanted.specifier}, and tito-core {version} is installed; install "
                f"a {info.distribution} for this tito-core, or the tito-core that it is for"
            )
    return said
