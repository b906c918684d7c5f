"""Text made safe to print: what a user, a tool or a plugin wrote can't move the cursor or look like something else."""

from __future__ import annotations

from typing import Final

__all__ = ["clip", "plain", "quoted"]

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def plain(text: str) -> str:
    """The text with every character that doesn't print as itself (controls, line ends, joiners) as an escape."""
    return "".join(one if one.isprintable() else _SHORT.get(one) or _escape(one) for one in text)


def quoted(text: str) -> str:
    """The text between double quotes, its own quotes and backslashes escaped, so that escapes are unambiguous."""
    return '"' + plain(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def clip(text: str, most: int) -> str:
    """At most so many characters of a text, and how many are left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def _escape(one: str) -> str:
    code = ord(one)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
