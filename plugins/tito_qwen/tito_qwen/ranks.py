"""A tokenizer.json from the ranks of a `.tiktoken` file: how the vocabulary of Qwen3.5 and 3.6 was made.

    python -m tito_qwen.ranks qwen3_6.tiktoken qwen35.json.gz

Such a file lists tokens in the order of their merges, and not what each was merged of. The two parts of a token are
what is left of its bytes when every other merge is done. The tests feed this Qwen3's ranks, and get the ids of
Qwen3's own tokenizer.json.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

__all__ = ["QWEN3_ADDED", "QWEN3_SPLIT", "QWEN35_ADDED", "QWEN35_SPLIT", "packed", "tokenizer_json"]

QWEN3_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

_BOXES: Final = tuple(
    f"<|{name}|>"
    for name in (
        *("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end"),
        *("quad_start", "quad_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad"),
    )
)
_MARKS: Final = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
_SOUNDS: Final = (
    *("<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"),
    *("<tts_text_bos_single>", "<|audio_pad|>"),
)
QWEN3_ADDED: Final = (*_BOXES, *_MARKS)
QWEN35_ADDED: Final = (*_BOXES, *_MARKS, *_SOUNDS)


def _byte_characters() -> list[str]:
    """The character that a byte-level vocabulary writes each byte as."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def read(data: bytes) -> dict[bytes, int]:
    """Token to rank, of a `.tiktoken` file's bytes. Raises ValueError where a rank is missing or a line is none."""
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in data.splitlines() if line)}
    if sorted(ranks.values()) != list(range(len(ranks))) or any(bytes([byte]) not in ranks for byte in range(256)):
        raise ValueError(f"{len(ranks)} ranks are not those of 0 to {len(ranks) - 1}, each byte among them")
    return ranks


def parts(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two tokens that a token of two bytes or more is merged of; None where no merges lead to it.

    Qwen3.5's file has 201 tokens of the second kind. They have no merge in its maker's tokenizer.json either, which
    counts 247,587 merges for 248,044 tokens, 256 of them bytes: text never becomes one of them.
    """
    made = [token[at : at + 1] for at in range(len(token))]
    while len(made) > 2:
        rank, at = min((ranks.get(one + two, len(ranks)), at) for at, (one, two) in enumerate(pairwise(made)))
        if rank == len(ranks):
            return None
        made[at : at + 2] = [made[at] + made[at + 1]]
    return made[0], made[1]


def tokenizer_json(data: bytes, *, split: str = QWEN35_SPLIT, added: Sequence[str] = QWEN35_ADDED) -> dict[str, Any]:
    """The tokenizer.json of a `.tiktoken` file's bytes: a token's id is its rank, `added` follow in order.

    `split` is the regular expression that text is split by. Text is normalised to NFC first, as Qwen's is.
    """
    ranks, characters = read(data), _byte_characters()
    spelled = {token: "".join(map(characters.__getitem__, token)) for token in sorted(ranks, key=ranks.__getitem__)}
    pairs = (parts(token, ranks) for token in spelled if len(token) > 1)
    merges = [[spelled[left], spelled[right]] for left, right in filter(None, pairs)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": text, **flags, "special": text not in _MARKS}
            for number, text in enumerate(added, len(ranks))
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: ranks[token] for token, text in spelled.items()},
            "merges": merges,
        },
    }


def packed(declared: dict[str, Any]) -> bytes:
    """A tokenizer.json's bytes: UTF-8, one line, nothing escaped."""
    return json.dumps(declared, ensure_ascii=False, separators=(",", ":")).encode()


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_bytes(gzip.compress(packed(tokenizer_json(source.read_bytes())), mtime=0))
