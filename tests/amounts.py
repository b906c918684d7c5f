"""How many examples a test draws."""

from __future__ import annotations

from hypothesis import settings


def examples(usual: int) -> int:
    """As many as usual under a profile of 100, and in proportion under another."""
    default = settings.default
    assert default is not None
    return max(1, usual * default.max_examples // 100)
