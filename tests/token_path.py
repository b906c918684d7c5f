"""What the tests of the token path compare with: `tokenizers` alone, the published encoder's text, and toy vocabularies.

Nothing here imports the library. Ids of a conversation whose texts spell control tokens are those of the mode
`literal`: the control strings inside its texts are broken with a character that it does not hold, the published
encoder prints it, the print is cut at the control strings that are still whole, and each piece is encoded by a
tokenizer that has no added tokens at all.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from oracles import tokenizer_json
from v32_upstream import Json, upstream_text

Ids = npt.NDArray[np.int32]
Name = Literal["r1", "v4", "qwen3"]
NAMES: tuple[Name, ...] = ("r1", "v4")
"""Those of DeepSeek."""
BOS, EOS, USER, ASSISTANT = 0, 1, 128803, 128804
THINK: dict[Name, int] = {"r1": 128798, "v4": 128821}
UNTHINK: dict[Name, int] = {"r1": 128799, "v4": 128822}


@cache
def raw(name: Name) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_json(name)))


@cache
def plain(name: Name) -> Tokenizer:
    """The same model without added tokens: what it encodes is text."""
    declared = json.loads(tokenizer_json(name).read_text(encoding="utf-8"))
    return Tokenizer.from_str(json.dumps({**declared, "added_tokens": [], "post_processor": None}))


@cache
def added(name: Name) -> dict[int, str]:
    return {number: token.content for number, token in raw(name).get_added_tokens_decoder().items()}


@cache
def _controls(name: Name) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(added(name).values(), key=len, reverse=True))))


def array(ids: Iterable[int]) -> Ids:
    return np.array(list(ids), dtype=np.int32)


def engine_ids(name: Name, text: str) -> Ids:
    """What an engine makes of a prompt's text."""
    return array(raw(name).encode(text, add_special_tokens=False).ids)


def literal_ids(
    name: Name,
    messages: Sequence[Json],
    tools: Sequence[Json] | None = None,
    *,
    thinking: bool,
    answered: bool = False,
) -> Ids:
    """A conversation's ids where no text that somebody wrote is a control token."""

    def printed(messages: Sequence[Json], tools: Sequence[Json] | None) -> str | None:
        return upstream_text(messages, tools, thinking=thinking, answered=answered)

    return printed_ids(name, messages, tools, printed)


def printed_ids(
    name: Name,
    messages: Sequence[Json],
    tools: Sequence[Json] | None,
    printed: Callable[[Sequence[Json], Sequence[Json] | None], str | None],
) -> Ids:
    """The same of what any published encoder prints."""
    written = json.dumps([messages, tools], ensure_ascii=False)
    mask = next(mark for mark in map(chr, range(0xE000, 0xF000)) if mark not in written)
    text = printed(_broken(name, mask, messages), _broken(name, mask, tools))
    assert text is not None
    ids: list[int] = []
    place = 0
    for match in [*_controls(name).finditer(text), None]:
        piece = text[place : match.start() if match else len(text)].replace(mask, "")
        ids += plain(name).encode(piece, add_special_tokens=False).ids
        if match:
            ids += engine_ids(name, match.group()).tolist()
            place = match.end()
    return array(ids)


def _broken(name: Name, mask: str, value: Any) -> Any:
    if isinstance(value, str):
        if value[:1] in "{[":  # arguments as JSON text: the same value, so that no escape hides a control string
            try:
                return (
                    _broken(name, mask, json.loads(value))
                    if isinstance(json.loads(value), dict)
                    else _cut(name, mask, value)
                )
            except ValueError:
                pass
        return _cut(name, mask, value)
    if isinstance(value, dict):
        return {_key(name, mask, key): _broken(name, mask, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_broken(name, mask, item) for item in value]
    return value


def _key(name: Name, mask: str, key: str) -> str:
    return _cut(name, mask, key)


def _cut(name: Name, mask: str, text: str) -> str:
    while match := _controls(name).search(text):
        text = text[: match.start() + 1] + mask + text[match.start() + 1 :]
    return text


def resplit(name: Name, ids: Ids, rng: random.Random, share: float = 0.3) -> Ids:
    """Other ids of the same bytes: now and then a token becomes shorter ones. Control tokens stay."""
    tokenizer, made = raw(name), []
    for one in ids.tolist():
        if one in added(name) or rng.random() > share:
            made.append(one)
            continue
        left = tokenizer.id_to_token(one)
        while left:
            size = rng.randint(1, len(left))
            while (found := tokenizer.token_to_id(left[:size])) is None or found in added(name):
                size -= 1
            made.append(found)
            left = left[size:]
    return array(made)


@dataclass(frozen=True)
class StoredTurn:
    """A turn as joining needs it."""

    ids: Ids
    sampled: int
    message: Any
    finish_reason: Literal["stop", "length", "tool_calls", "abort"]
    decision: Any
    length: int


_SAFE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_CHARACTERS = {byte: chr(byte) for byte in _SAFE} | {
    byte: chr(256 + number) for number, byte in enumerate(byte for byte in range(256) if byte not in _SAFE)
}


def toy_tokenizer(words: Sequence[str], controls: Sequence[str]) -> bytes:
    """A byte-level BPE tokenizer.json: 256 bytes, then `words` in the order of their merges, then control tokens.

    Ids: a byte is its own id, words follow from 256, control tokens after them. A word must be made of two tokens that
    stand before it.
    """
    vocab = {character: byte for byte, character in BYTE_CHARACTERS.items()}
    merges: list[list[str]] = []
    for word in words:
        token = "".join(BYTE_CHARACTERS[byte] for byte in word.encode())
        at = next(at for at in range(1, len(token)) if token[:at] in vocab and token[at:] in vocab)
        merges.append([token[:at], token[at:]])
        vocab[token] = len(vocab)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": len(vocab) + number, "content": text, **flags} for number, text in enumerate(controls)
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": vocab,
                "merges": merges,
            },
        }
    ).encode()
