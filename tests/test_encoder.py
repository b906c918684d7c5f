"""Text to ids: equal to `tokenizers`, whatever the text, and never a control token from content.

The right-hand side is always `tokenizers` itself, on the whole text, or on a tokenizer.json whose added tokens were
taken out as JSON.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from amounts import examples
from oracles import tokenizer_json
from tito_core.errors import CheckpointError, EncodingError, FamilyError
from tito_core.families.family import Vocabulary
from tito_core.prompts.template import Parts, Rendered, Span
from tito_core.tokens import encoder as module
from tito_core.tokens.encoder import GPT2_PATTERN, Encoder, IdSpan, Mode, load_vocabulary
from tito_deepseek.vocabulary import SPLIT_PATTERN
from token_path import toy_tokenizer

NASTY: Final = (
    *("a", "Z", "the", " The", "ing", "don't", "'LL", "'ſ", "K", "é", "e\u0301", "\u0301\u0301", "ß", "Ω", "ж", "א", "ب"),
    *("हि", "ไท", "한", "\u1112\u1161", "中", "中文", "龥", "鿿", "〇", "の", "カ", "・", "゛", "ー", "\u3099", "。", "「"),
    *("0", "12", "345", "6789", "٣", "Ⅷ", "½", "²", " ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", "\u00a0"),
    *("\u3000", "\u200b", "\u200d", "\u2028", "\x85", "\x00", "\x1f", "\x7f", "\ufeff", "\ue000", "\U000f0001", "\u0378"),
    *("!", "?!", "...", "_x", "$", "€", "+", "<", ">", "</", "<｜", "｜>", "|", "｜", "▁", "Ġ", "{", '"', "\\n", "//", "-"),
    *("👩\u200d👧", "🇩🇪", "👍🏽", "\ufe0f", "𝒳", "ﬁ", "\u212b", "<th", "ink>", "｜DS", "ML｜", "User", "\U0010ffff", "="),
)  # fmt: skip


class Oracle:
    """One vocabulary thrice: the encoder, `tokenizers` on the file, `tokenizers` without its added tokens."""

    def __init__(self, data: bytes, split_pattern: str | None = None) -> None:
        declared = json.loads(data)
        self.added = {token["content"]: token["id"] for token in declared["added_tokens"]}
        self.encoder = Encoder.from_json(data, split_pattern=split_pattern)
        self.engine = Tokenizer.from_str(data.decode())
        self.plain = Tokenizer.from_str(json.dumps({**declared, "added_tokens": []}))

    def text(self, text: str) -> list[int]:
        return list(self.plain.encode(text, add_special_tokens=False).ids)

    def whole(self, text: str) -> list[int]:
        return list(self.engine.encode(text, add_special_tokens=False).ids)


_LOADED: dict[str, Oracle] = {}


@pytest.fixture(params=["r1", "v4"])
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return _real(request.param)


def _real(name: str) -> Oracle:
    if name not in _LOADED:
        _LOADED[name] = Oracle(tokenizer_json(name).read_bytes(), SPLIT_PATTERN)  # type: ignore[arg-type]
    return _LOADED[name]


def _rendered(*parts: tuple[str, str]) -> Rendered:
    """Parts written `("t", text)` or `("c", text)`; part i belongs to message i, a user's."""
    made = Parts()
    for index, (source, text) in enumerate(parts):
        (made.template if source == "t" else made.content)(text, index, "user")
    return made.rendered()


def _byte_characters() -> list[str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        table.setdefault(byte, chr(256 + sum(one not in printable for one in range(byte))))
    return [table[byte] for byte in range(256)]


def _toy(
    merges: Sequence[str] = ("h e", "l l", "ll o", "he llo"),
    added: Sequence[dict[str, Any]] = (),
    order: Callable[[list[str]], list[str]] = list,
    **changes: Any,
) -> dict[str, Any]:
    """A tokenizer.json: all bytes, then what the merges make, in the order that `order` puts them; then `added`."""
    entries = order([*_byte_characters(), *dict.fromkeys(merge.replace(" ", "") for merge in merges)])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokens = [{"id": len(entries) + place, **flags, **token} for place, token in enumerate(added)]
    model = {"type": "BPE", "vocab": {entry: number for number, entry in enumerate(entries)}, "merges": list(merges)}
    declared = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }
    for key, value in changes.items():
        if key.startswith("model_"):
            model[key.removeprefix("model_")] = value
        else:
            declared[key] = value
    return declared


def _toy_oracle(split_pattern: str | None = None, **changes: Any) -> Oracle:
    return Oracle(json.dumps(_toy(**changes)).encode(), split_pattern)


def _same(oracle: Oracle, text: str) -> None:
    ids = oracle.encoder.encode_text(text)
    assert ids.dtype == np.int32
    assert ids.flags.c_contiguous
    assert ids.tolist() == oracle.text(text), repr(text)


# --- plain text


def test_generated_texts_equal_tokenizers(oracle: Oracle) -> None:
    assert oracle.encoder.fast
    assert oracle.encoder.slow_reason is None
    draw = random.Random(7)
    for _ in range(50_000):
        _same(oracle, "".join(draw.choices(NASTY, k=draw.randint(1, 8))))


@given(text=st.text(max_size=60), name=st.sampled_from(["r1", "v4"]))
@settings(max_examples=examples(500), suppress_health_check=[HealthCheck.too_slow])
def test_any_text_equals_tokenizers(text: str, name: str) -> None:
    _same(_real(name), text)


@pytest.mark.parametrize("context", ["{}", "a{}b", " {}1", "中{}!"])
def test_every_kind_of_character_equals_tokenizers(context: str) -> None:
    # All characters of the first two planes, then those of the others a step apart: which classes a character is in
    # is decided by two libraries' tables.
    points = [*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 1021)]
    for start in range(0, len(points), 4096):
        _same(_real("r1"), "\n中x".join(context.format(chr(point)) for point in points[start : start + 4096]))


@pytest.mark.parametrize(
    ("unit", "count"),
    [
        *((" ", 1_000_000), ("\ue000", 300_000), ("a", 300_000), ("\n", 300_000), ("中", 300_000), ("\u0301", 300_000)),
        *((" \n\t\r\u3000", 60_000), ("\u200d", 300_000), ("  x", 100_000), ("'", 300_000)),
    ],
)
def test_adversarial_texts_equal_tokenizers_in_bounded_time(unit: str, count: int) -> None:
    text, oracle = unit * count, _real("r1")
    began = time.process_time()
    ids = oracle.encoder.encode_text(text)
    assert time.process_time() - began < 20
    assert ids.tolist() == oracle.text(text)


def test_a_panic_falls_back_and_nothing_else_does() -> None:
    oracle = _toy_oracle()

    class PanicException(BaseException):
        pass

    class Raises:
        def __init__(self, kind: type[BaseException]) -> None:
            self.kind = kind

        def encode_to_numpy(self, text: str, disallowed_special: Sequence[str]) -> np.ndarray[Any, Any]:
            raise self.kind("stack")

    for kind in (PanicException, ValueError):
        oracle.encoder._tiktoken = Raises(kind)  # type: ignore[assignment]
        _same(oracle, "hello hell")
    oracle.encoder._tiktoken = Raises(KeyboardInterrupt)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        oracle.encoder.encode_text("hello")


def test_lone_surrogates_raise_in_every_mode() -> None:
    slow = _toy_oracle(normalizer={"type": "Lowercase"})
    for one in (_real("r1"), _toy_oracle(normalizer={"type": "NFC"}), slow):
        with pytest.raises(EncodingError) as caught:
            one.encoder.encode_text("ab\ud800")
        assert str(caught.value) == (
            "the text holds the lone surrogate '\\ud800' at character 2, which is not text; decode the bytes it came "
            "from with errors='replace'"
        )
        for mode in ("literal", "reject", "engine"):
            with pytest.raises(
                EncodingError, match=r"^message 1 \(user\) holds the lone surrogate .* at character 1,"
            ) as at:
                one.encoder.encode(_rendered(("t", "ab"), ("c", "c\udfff")), mode)
            assert at.value.where == {"index": 1, "role": "user"}


# --- whole prompts


def _conversation(draw: random.Random, controls: Sequence[str]) -> Rendered:
    parts: list[tuple[str, str]] = []
    for _ in range(draw.randint(1, 7)):
        kind = draw.choice("tcTcC")
        text = "".join(draw.choices(NASTY, k=draw.randint(0, 4)))
        if kind == "T":
            text += draw.choice(controls)
        if kind == "t":
            text = draw.choice(controls) + text + draw.choice(("", "\n\n", " ", "he", "\u0301"))
        parts.append((kind.lower(), text))
    return _rendered(*parts)


def test_prompts_without_control_text_equal_tokenizers_on_the_whole_text(oracle: Oracle) -> None:
    draw = random.Random(11)
    controls = [*draw.sample(sorted(oracle.added), 40), "<think>", "</think>", "<｜User｜>", "<｜end▁of▁sentence｜>"]
    compared = 0
    for _ in range(6_000):
        rendered = _conversation(draw, [text for text in controls if text in oracle.added])
        content = [(span.start, span.end) for span in rendered.spans if span.source == "content"]
        met = oracle.engine.encode(rendered.text, add_special_tokens=False)
        if any(
            number in oracle.encoder.added_ids and start < last and first < end
            for number, (start, end) in zip(met.ids, met.offsets, strict=True)
            for first, last in content
        ):
            continue
        compared += 1
        encoded = oracle.encoder.encode(rendered)
        assert encoded.ids.tolist() == met.ids, rendered
        assert encoded.ids.dtype == np.int32
        assert encoded.ids.flags.c_contiguous
        assert oracle.encoder.encode(rendered, "engine").ids.tolist() == met.ids
        assert oracle.encoder.decode(encoded.ids) == rendered.text
        _spans_are_right(oracle, rendered, encoded.spans, [start for start, _ in met.offsets])
        assert oracle.encoder.encode(rendered, "engine").spans == encoded.spans
    assert compared > 5_000


def _spans_are_right(oracle: Oracle, rendered: Rendered, spans: Sequence[IdSpan], starts: Sequence[int]) -> None:
    """Each id is in the span of the part in which it starts, by the offsets of `tokenizers`."""
    place = 0
    for span in spans:
        assert span.start == place < span.end
        place = span.end
        for start in starts[span.start : span.end]:
            part = next(part for part in rendered.spans if part.start <= start < part.end)
            assert (part.source, part.index, part.role) == (span.source, span.index, span.role)
    assert place == len(starts)


def test_text_is_not_cut_at_the_edges_of_content() -> None:
    oracle = _real("r1")
    rendered = _rendered(("t", "<｜User｜>"), ("c", "hel"), ("t", "lo "), ("c", " world\n"), ("t", "\n<｜Assistant｜>"))
    encoded = oracle.encoder.encode(rendered)
    assert encoded.ids.tolist() == oracle.whole("<｜User｜>hello  world\n\n<｜Assistant｜>")
    apart = [number for span in rendered.spans for number in oracle.whole(rendered.text[span.start : span.end])]
    assert encoded.ids.tolist() != apart
    # "hello" starts in the first content, "\n\n" in the second; the template's "lo" and "\n" own no id of their own.
    assert [(oracle.encoder.decode(encoded.ids[span.start : span.end]), span.index) for span in encoded.spans] == [
        ("<｜User｜>", 0),
        ("hello", 1),
        (" ", 2),
        (" world\n\n", 3),
        ("<｜Assistant｜>", 4),
    ]


@pytest.mark.parametrize("joint", ["", "\n", " x", "中"])
def test_every_added_token_in_content_stays_text(oracle: Oracle, joint: str) -> None:
    encoder = oracle.encoder
    for text, number in oracle.added.items():
        rendered = _rendered(("t", "<｜User｜>"), ("c", joint + text + joint), ("t", "<｜Assistant｜>"))
        ids = encoder.encode(rendered).ids.tolist()
        assert ids == [
            oracle.added["<｜User｜>"],
            *oracle.text(joint + text + joint),
            oracle.added["<｜Assistant｜>"],
        ]
        assert not encoder.added_ids.intersection(ids[1:-1])
        assert encoder.decode(ids) == rendered.text
        engine = encoder.encode(rendered, "engine").ids.tolist()
        assert engine == oracle.whole(rendered.text)
        assert number in engine
        with pytest.raises(EncodingError) as caught:
            encoder.encode(rendered, "reject")
        assert caught.value.where == {"index": 1, "role": "user", "id": number}
        assert encoder.token_id(text) == number


def test_reject_says_who_spelled_what() -> None:
    rendered = _rendered(("t", "<｜User｜>"), ("c", "x"), ("c", "a <｜Assistant｜> b"))
    with pytest.raises(EncodingError) as caught:
        _real("r1").encoder.encode(rendered, "reject")
    assert str(caught.value) == (
        "message 2 (user) spells the control token '<｜Assistant｜>' (id 128804) in its content; take it out, or encode "
        "in mode literal, which keeps it ordinary text"
    )


def test_what_no_message_says_is_a_tools_or_a_kwargs() -> None:
    encoder = _real("r1").encoder
    for text, said in (
        ("<think>", "spells the control token '<think>' (id 128798) in its content; take it out, or encode in mode "
         "literal, which keeps it ordinary text"),
        ("a\ud800", "holds the lone surrogate '\\ud800' at character 1, which is not text; decode the bytes it came from "
         "with errors='replace'"),
    ):  # fmt: skip
        with pytest.raises(EncodingError) as caught:
            encoder.encode(Rendered(text, (Span(0, len(text), "content", -1, "system"),)), "reject")
        assert str(caught.value) == f"a tool or a template kwarg {said}"
        assert (caught.value.where["index"], caught.value.where["role"]) == (None, None)


@pytest.mark.parametrize(
    "parts",
    [
        [("t", "<th"), ("c", "ink>")],
        [("c", "<th"), ("t", "ink>")],
        [("c", "<th"), ("c", "ink>")],
        [("t", "<"), ("c", "thin"), ("t", "k>")],
        [("t", "<｜User｜><"), ("c", "think"), ("t", "><｜User｜>")],
    ],
)
def test_control_text_across_an_edge_of_content_is_text_or_refused(parts: list[tuple[str, str]]) -> None:
    oracle, rendered = _real("r1"), _rendered(*parts)
    think = oracle.added["<think>"]
    assert think not in oracle.encoder.encode(rendered).ids
    assert think in oracle.encoder.encode(rendered, "engine").ids
    with pytest.raises(EncodingError, match="spells the control token '<think>'") as caught:
        oracle.encoder.encode(rendered, "reject")
    assert rendered.spans[caught.value.where["index"]].source == "content"


def test_reject_finds_a_token_that_begins_inside_another() -> None:
    oracle = _toy_oracle(added=[{"content": "abc"}, {"content": "cd"}, {"content": "abcxyz"}])
    # The template's own abc hides cd from a scan that goes on behind each match.
    with pytest.raises(EncodingError, match="spells the control token 'cd'"):
        oracle.encoder.encode(_rendered(("t", "abc"), ("c", "d")), "reject")
    with pytest.raises(EncodingError, match="spells the control token 'abcxyz'"):
        oracle.encoder.encode(_rendered(("t", "abc"), ("c", "x"), ("t", "yz")), "reject")
    assert oracle.encoder.encode(_rendered(("t", "abc"), ("c", "xcxd"), ("t", "cd")), "reject").ids.tolist() == (
        oracle.whole("abcxcxdcd")
    )


def test_reject_gives_the_ids_of_literal_where_content_spells_nothing(oracle: Oracle) -> None:
    rendered = _rendered(
        ("t", "<｜User｜>"), ("c", "<thin k> < ｜ |"), ("t", "<｜Assistant｜><think>"), ("t", "</think>")
    )
    assert oracle.encoder.encode(rendered, "reject").ids.tolist() == oracle.encoder.encode(rendered).ids.tolist()


def test_a_control_token_may_span_neighbouring_template_parts() -> None:
    oracle = _real("r1")
    encoded = oracle.encoder.encode(_rendered(("t", "x<th"), ("t", "ink>y")))
    assert encoded.ids.tolist() == oracle.whole("x<think>y")
    assert encoded.spans == (IdSpan(0, 2, "template", 0, "user"), IdSpan(2, 3, "template", 1, "user"))


def test_control_tokens_are_matched_in_the_two_passes_of_tokenizers() -> None:
    tokens = [
        {"content": "<a>", "normalized": True},
        {"content": "a><b", "normalized": False},
        {"content": "<a><b><c>", "normalized": True},
        {"content": "<b", "normalized": False},
        {"content": "<bcd", "normalized": False},
        {"content": ">>", "normalized": True},
        {"content": ">>>", "normalized": True},
    ]
    oracle = _toy_oracle(added=tokens)
    draw = random.Random(3)
    for _ in range(4_000):
        text = "".join(draw.choices(["<a>", "<b", "cd", "<c>", ">", ">>", "x", "<a", " "], k=draw.randint(1, 7)))
        assert oracle.encoder.encode(_rendered(("t", text))).ids.tolist() == oracle.whole(text), text


def test_the_cache_of_template_runs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_RUNS", 8)
    oracle = _toy_oracle(added=[{"content": "<a>"}])
    for number in range(100):
        text = f"{number}<a>{'x' * (number * 20)}"
        assert oracle.encoder.encode(_rendered(("t", text))).ids.tolist() == oracle.whole(text)
        assert len(oracle.encoder._structures) <= 8
        assert max(map(len, oracle.encoder._structures), default=0) <= module.CACHED_RUN_CHARACTERS


def test_spans_must_cover_the_text() -> None:
    encoder = _toy_oracle().encoder
    spans = (Span(0, 1, "content", 0, "user"), Span(2, 3, "content", 0, "user"))
    for text, wrong in (("abc", spans), ("ab", spans[:1]), ("a", ())):
        with pytest.raises(EncodingError, match=r"^the spans of a rendered text (leave it|end) at character"):
            encoder.encode(Rendered(text, tuple(wrong)))
    empty = encoder.encode(Rendered("", ()))
    assert (empty.ids.tolist(), empty.spans) == ([], ())
    assert empty.ids.dtype == np.int32


def test_an_unknown_mode_raises() -> None:
    unknown: Mode = "lax"  # type: ignore[assignment]
    with pytest.raises(EncodingError) as caught:
        _toy_oracle().encoder.encode(_rendered(("c", "a")), unknown)
    assert str(caught.value) == "no encoding mode is named 'lax'; choose literal, reject or engine"


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_a_structural_token_that_depends_on_its_surroundings_raises(flag: str) -> None:
    oracle = _toy_oracle(added=[{"content": "<a>", flag: True}])
    with pytest.raises(EncodingError) as caught:
        oracle.encoder.encode(_rendered(("t", "x <a> y")))
    assert str(caught.value) == (
        f"the template prints the added token '<a>' (id 260), which is declared {flag}: what it matches depends on the "
        f"text around it, which is not supported; declare it without {flag}"
    )
    assert oracle.encoder.encode(_rendered(("c", "x <a> y"))).ids.tolist() == oracle.text("x <a> y")
    assert oracle.encoder.encode(_rendered(("c", "x <a> y")), "engine").ids.tolist() == oracle.whole("x <a> y")


# --- ids to text


def test_decoding_gives_the_text_back(oracle: Oracle) -> None:
    draw = random.Random(5)
    for _ in range(500):
        text = "".join(draw.choices([*NASTY, *oracle.added], k=9))
        assert oracle.encoder.decode(oracle.whole(text)) == text
        assert oracle.encoder.decode(np.array(oracle.whole(text), np.uint32)) == text
    known = {**{number: text for text, number in oracle.added.items()}}
    for number in range(oracle.encoder.size):
        if number not in known:
            assert oracle.encoder.token_bytes(number).decode("utf-8", "replace") == oracle.plain.decode([number])


def test_half_a_character_decodes_to_its_bytes() -> None:
    encoder = _real("r1").encoder
    ids = encoder.encode_text("🫠☕")
    assert len(ids) == 5
    assert b"".join(encoder.token_bytes(number) for number in ids.tolist()) == "🫠☕".encode()
    assert encoder.decode(ids[:1]) == "\ufffd"
    assert encoder.decode_bytes(ids[1:]) == encoder.decode_bytes(ids)[len(encoder.token_bytes(int(ids[0]))) :]


def test_ids_that_the_vocabulary_lacks_raise() -> None:
    declared = _toy()
    declared["model"]["vocab"]["xyz"] = 300
    encoder = Encoder.from_json(json.dumps(declared).encode())
    assert encoder.size == 301
    for wrong in (-1, 301, 299, 2**40):
        for ids in ([5, wrong], np.array([5, wrong])):
            with pytest.raises(EncodingError) as caught:
                encoder.decode(ids)
            assert caught.value.where == {"id": wrong, "place": 1}
            assert str(caught.value) == (
                f"id {wrong} at place 1 is not in the vocabulary (ids below 301, sha256 {encoder.sha256[:8]}); decode "
                "with the vocabulary that the ids were made with"
            )
    for shape in ([[1]], [1.5], ["a"], 3):
        with pytest.raises(EncodingError, match=r"^ids must be one row of integers, not "):
            encoder.decode(shape)  # type: ignore[arg-type]
    assert encoder.decode([]) == ""
    assert encoder.token_bytes(300) == b"xyz"


def test_many_ids_decode_to_one_text() -> None:
    encoder = _toy_oracle().encoder
    he, llo, hello = (encoder.encode_text(text) for text in ("he", "llo", "hello"))
    assert [len(ids) for ids in (he, llo, hello)] == [1, 1, 1]
    sampled = np.concatenate([he, llo])
    assert encoder.decode(sampled) == encoder.decode(hello) == "hello"
    assert encoder.plain_tokens()[b"hello"] == int(hello[0])


def test_plain_tokens_are_what_text_can_become(oracle: Oracle) -> None:
    plain = oracle.encoder.plain_tokens()
    assert not oracle.encoder.added_ids.intersection(plain.values())
    assert {bytes([byte]) for byte in range(256)} <= set(plain)
    draw = random.Random(1)
    for data in draw.sample(sorted(plain), 2_000):
        assert oracle.encoder.token_bytes(plain[data]) == data
    # Entries of the model that no merge makes are the control tokens that stand in its vocabulary too.
    assert oracle.plain.get_vocab_size() - len(plain) == 3


# --- vocabularies of other kinds


def _mixed(draw: random.Random) -> str:
    return "".join(draw.choices(["hello", "hell", "he", "llo", "lo", " ", "  ", "\n", "1", "!", "é", "中", "'s"], k=8))


@pytest.mark.parametrize(
    "order",
    [list, lambda entries: entries[::-1], lambda entries: random.Random(0).sample(entries, len(entries))],
    ids=["merge order", "reversed", "shuffled"],
)
def test_ids_may_be_in_any_order(order: Callable[[list[str]], list[str]]) -> None:
    for merges in (("h e", "l l", "ll o", "he llo"), [["h", "e"], ["l", "l"], ["ll", "o"], ["he", "llo"]]):
        declared = _toy(order=order)
        declared["model"]["merges"] = list(merges)
        oracle = Oracle(json.dumps(declared).encode())
        assert oracle.encoder.fast
        draw = random.Random(2)
        for _ in range(300):
            _same(oracle, _mixed(draw))


def test_an_entry_that_its_own_merges_never_reach_is_not_produced() -> None:
    # "abc" would need "bc", but "ab" is merged first; tiktoken alone would find "abc" in its table.
    oracle = _toy_oracle(merges=["a b", "b c", "a bc"])
    assert oracle.encoder.slow_reason == "its entry b'abc' is not what its own text is merged into"
    for text in ("abc", "xabc", "bc", "ab", "abcabc"):
        _same(oracle, text)
    twice = _toy_oracle(merges=["a b", "b c", "a bc", "ab c"])
    assert twice.encoder.slow_reason == "several of its merges make the same entry"
    _same(twice, "abc aabc bc")


def test_an_entry_that_merges_are_ignored_for_is_produced() -> None:
    """`ignore_merges`: a whole piece that is an entry is that entry, made by merges or not, and only then."""
    declared = _toy(merges=["h e"], model_ignore_merges=True)
    assert Encoder.from_json(json.dumps(declared).encode()).fast
    declared["model"]["vocab"]["hello"] = len(declared["model"]["vocab"])
    oracle = Oracle(json.dumps(declared).encode())
    assert oracle.encoder.slow_reason == "it ignores merges for entries that no merge makes"
    for text in ("hello", "hello hello", "hellohello", "he"):
        _same(oracle, text)
    assert oracle.encoder.encode_text("hello").tolist() == [257]


def test_merging_across_a_seam_is_found_at_any_depth() -> None:
    merges = ["c d", "a b", "b cd", "e f", "cd ef", "ab cdef"]
    assert _toy_oracle(merges=merges).encoder.slow_reason is None
    late = ["a b", "e f", "c d", "cd ef", "b c", "ab cdef"]
    assert _toy_oracle(merges=late).encoder.slow_reason is None
    early = ["a b", "e f", "ab c", "c d", "cd ef", "ab cdef"]
    oracle = _toy_oracle(merges=early)
    assert oracle.encoder.slow_reason == "its entry b'abcdef' is not what its own text is merged into"
    for text in ("abcdef", "abcd", "cdef"):
        _same(oracle, text)


@given(data=st.data())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
def test_any_small_vocabulary_equals_tokenizers(data: st.DataObject) -> None:
    entries = ["a", "b", "c"]
    merges: dict[str, None] = {}
    for _ in range(data.draw(st.integers(0, 9))):
        left, right = data.draw(st.sampled_from(entries)), data.draw(st.sampled_from(entries))
        if left + right not in entries:
            entries.append(left + right)
        merges[f"{left} {right}"] = None
    order = data.draw(st.sampled_from([list, sorted]))
    oracle = _toy_oracle(merges=list(merges), order=order)
    for text in data.draw(st.lists(st.text("abc", min_size=1, max_size=24), min_size=1, max_size=8)):
        _same(oracle, text)
    for entry in entries:
        _same(oracle, entry)


def test_control_tokens_in_the_models_own_vocabulary_are_not_text() -> None:
    declared = _toy(added=[{"content": "<a>", "id": 0}])
    vocab = declared["model"]["vocab"]
    declared["model"]["vocab"] = {"<a>": 0, **{entry: number + 1 for entry, number in vocab.items()}}
    oracle = Oracle(json.dumps(declared).encode())
    assert oracle.encoder.fast
    assert 0 not in oracle.encoder.encode_text("<a>")
    _same(oracle, "x<a>y <a>")


NFC: Final = {"type": "NFC"}


@pytest.mark.parametrize("normalizer", [NFC, {"type": "Sequence", "normalizers": [NFC]}])
def test_nfc_is_applied_to_each_piece(normalizer: dict[str, Any]) -> None:
    oracle = _toy_oracle(normalizer=normalizer, added=[{"content": "<a>"}, {"content": "<é>", "normalized": True}])
    assert oracle.encoder.fast
    draw = random.Random(4)
    kinds = [
        "e",
        "\u0301",
        "e\u0301",
        "é",
        "he",
        "llo",
        "\u212b",
        "\u0958",
        "\u1112\u1161",
        "\u11ab",
        " ",
        "한",
        "q\u0307\u0323",
    ]
    for _ in range(2_000):
        text = "".join(draw.choices(kinds, k=draw.randint(1, 8)))
        _same(oracle, text)
        cut = draw.randint(0, len(text))
        rendered = _rendered(("t", "<a>"), ("c", text[:cut]), ("c", text[cut:]), ("t", "<a>"))
        met = oracle.engine.encode(rendered.text, add_special_tokens=False)
        for mode in ("literal", "reject", "engine"):
            encoded = oracle.encoder.encode(rendered, mode)
            assert encoded.ids.tolist() == met.ids
            _spans_are_right(oracle, rendered, encoded.spans, [start for start, _ in met.offsets])
    with pytest.raises(EncodingError, match="spells the control token '<é>'"):
        oracle.encoder.encode(_rendered(("t", "<a>"), ("c", "x <e\u0301>")), "reject")


def test_another_normalizer_takes_the_slow_path() -> None:
    oracle = _toy_oracle(normalizer={"type": "Lowercase"}, added=[{"content": "<a>"}])
    assert not oracle.encoder.fast
    assert oracle.encoder.slow_reason == "its normalizer is neither empty nor NFC"
    rendered = _rendered(("t", "<a>HE"), ("c", "LLO İ"), ("t", "x<a>"))
    met = oracle.engine.encode(rendered.text, add_special_tokens=False)
    encoded = oracle.encoder.encode(rendered)
    assert encoded.ids.tolist() == met.ids
    _spans_are_right(oracle, rendered, encoded.spans, [start for start, _ in met.offsets])


def test_control_text_stays_text_on_the_slow_path() -> None:
    oracle = _toy_oracle(pre_tokenizer=_splits(r"\p{N}", GPT2_PATTERN), added=[{"content": "<a>"}])
    assert not oracle.encoder.fast
    for text in ("<a>", "x <a>hello"):
        _same(oracle, text)
        ids = oracle.encoder.encode(_rendered(("t", "<a>"), ("c", text))).ids.tolist()
        assert ids == [oracle.added["<a>"], *oracle.text(text)]
    real = _real("r1")
    _same(real, "\ue000" * 300_000 + "<｜User｜>")


def _splits(*patterns: str, use_regex: bool = False) -> dict[str, Any]:
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    parts = [*({**split, "pattern": {"Regex": pattern}} for pattern in patterns), byte_level]
    return {"type": "Sequence", "pretokenizers": parts}


def test_the_split_pattern_is_found_or_given_and_checked() -> None:
    one = _toy_oracle(pre_tokenizer=_splits(GPT2_PATTERN))
    assert one.encoder.fast
    two = _toy_oracle(pre_tokenizer=_splits(r"\p{N}", GPT2_PATTERN))
    assert two.encoder.slow_reason == "its pre-tokenizer is not a single expression, and no split pattern was given"
    wrong = _toy_oracle(pre_tokenizer=_splits(r"e", GPT2_PATTERN), split_pattern=GPT2_PATTERN, merges=["h e", "r d"])
    assert wrong.encoder.slow_reason is None  # nothing in the sample that these merges would tell apart
    given = _toy_oracle(pre_tokenizer=_splits("o", GPT2_PATTERN), split_pattern=GPT2_PATTERN, merges=["W o", "r d"])
    assert given.encoder.slow_reason is not None
    assert given.encoder.slow_reason.startswith("the split pattern splits other than its pre-tokenizer: the ids of ")
    broken = _toy_oracle(split_pattern="(")
    assert broken.encoder.slow_reason is not None
    assert broken.encoder.slow_reason.startswith("its split pattern can't be compiled: ")
    for oracle in (one, two, given, broken):
        for text in ("hello Word 12 lo", "  Wo\n"):
            _same(oracle, text)


def test_text_that_the_split_pattern_does_not_match_is_not_lost() -> None:
    # tokenizers keeps what is between two matches, tiktoken leaves it out; only the sample's characters are covered.
    oracle = _toy_oracle(pre_tokenizer=_splits(r"[^€ℵ]+|€"))
    assert oracle.encoder.fast
    for text in ("helloℵhello", "ℵ", "ℵℵhe"):
        _same(oracle, text)
    rendered = _rendered(("c", "helloℵ"), ("t", "ℵhello"))
    assert oracle.encoder.encode(rendered).ids.tolist() == oracle.whole(rendered.text)


def test_a_vocabulary_without_all_bytes_raises_where_it_would_lose_text() -> None:
    declared = _toy()
    del declared["model"]["vocab"]["z"]
    encoder = Encoder.from_json(json.dumps(declared).encode())
    assert encoder.slow_reason == "its vocabulary has no entry for the byte 122"
    assert encoder.decode(encoder.encode_text("hello")) == "hello"
    with pytest.raises(EncodingError) as caught:
        encoder.encode_text("hello zoo")
    assert str(caught.value) == (
        f"the vocabulary (sha256 {encoder.sha256[:8]}) has no entry for part of the text 'hello zoo'; use one that has "
        "all 256 bytes"
    )


METASPACE: Final = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
PREFIXED: Final = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre_tokenizer": METASPACE}, "this tokenizer puts a marker before whatever text it is given"),
        ({"normalizer": {"type": "Prepend", "prepend": "▁"}}, "this tokenizer puts a marker before whatever text"),
        ({"pre_tokenizer": PREFIXED}, "this tokenizer puts a space before whatever text it is given"),
        ({"pre_tokenizer": None}, r"this tokenizer is not byte-level BPE \(model BPE, pre-tokenizer none\)"),
        (
            {"pre_tokenizer": {"type": "Whitespace"}},
            r"this tokenizer is not byte-level BPE \(model BPE, pre-tokenizer W",
        ),
        ({"model_byte_fallback": True}, "this tokenizer is not byte-level BPE"),
        (
            {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}},
            r"not byte-level BPE \(model WordLevel",
        ),
        ({"model_dropout": 0.1}, "this tokenizer's model has dropout 0.1, which is not supported"),
        ({"model_end_of_word_suffix": "</w>"}, "this tokenizer's model has end_of_word_suffix '</w>', which is not"),
    ],
)
def test_tokenizers_that_are_not_supported_raise_at_load(changes: dict[str, Any], message: str) -> None:
    declared = _toy(**changes)
    if "model_end_of_word_suffix" in changes:
        declared["model"]["merges"] = []
    with pytest.raises(EncodingError, match=message):
        Encoder.from_json(json.dumps(declared).encode())


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"model": {"type": "BPE"}}'])
def test_what_is_no_tokenizer_json_raises(data: bytes) -> None:
    with pytest.raises(
        EncodingError,
        match=r"^this is not a tokenizer.json that `tokenizers` can read: .*; is the file whole, and no Git LFS pointer\?$",
    ):
        Encoder.from_json(data)


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ([{"content": "<a>", "id": 300}], "'<a>' is declared as id 300, and `tokenizers` makes it 260"),
        ([{"content": "hello", "id": 300}], "'hello' is declared as id 300, and `tokenizers` makes it 259"),
        (
            [{"content": "<a>", "id": 261}, {"content": "<b>", "id": 260}],
            "'<a>' is declared as id 261, and `tokenizers` makes it 260",
        ),
        ([{"content": "<a>"}, {"content": "<a>"}], "'<a>' is declared as id 261, and `tokenizers` makes it 260"),
    ],
)
def test_an_added_token_whose_id_is_not_its_declared_one_raises(added: list[dict[str, Any]], said: str) -> None:
    """`tokenizers` counts on from the model's entries in the order of the file, and keeps the id of an entry."""
    data = json.dumps(_toy(added=added)).encode()
    token = added[0]
    assert f"makes it {Tokenizer.from_buffer(data).token_to_id(token['content'])}" in said
    with pytest.raises(EncodingError) as caught:
        Encoder.from_json(data)
    assert str(caught.value) == (
        f"the added token {said}: other ids than an engine's; save the tokenizer with tokenizer.save_pretrained"
    )


def test_truncation_and_padding_of_the_file_are_not_applied() -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    encoder = Encoder.from_json(json.dumps(_toy(truncation=truncation)).encode())
    for mode in ("literal", "engine"):
        assert encoder.decode(encoder.encode(_rendered(("c", "one two three")), mode).ids) == "one two three"


# --- files


def test_a_checkpoint_is_read_without_transformers(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(_toy()))
    code = (
        "import sys; from pathlib import Path; from tito_core.tokens.encoder import Encoder\n"
        f"encoder = Encoder.from_checkpoint(Path({str(tmp_path)!r}))\n"
        "assert encoder.decode(encoder.encode_text('hello')) == 'hello'\n"
        "assert not {'transformers', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(module.__file__).parents[2])


def test_a_checkpoint_without_tokenizer_json_is_converted(tmp_path: Path) -> None:
    declared = _toy(added=[{"content": "<|endoftext|>"}])
    vocab = {**declared["model"]["vocab"], "<|endoftext|>": 260}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *declared["model"]["merges"]]))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    encoder = Encoder.from_checkpoint(tmp_path)
    assert encoder.encode_text("hello hell").tolist() == _toy_oracle().text("hello hell")
    assert encoder.token_id("<|endoftext|>") == 260
    assert encoder.token_id("hello") is None


def test_a_checkpoint_whose_tokenizer_would_be_empty_raises(tmp_path: Path) -> None:
    """transformers makes one out of a config alone."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(CheckpointError) as caught:
        Encoder.from_checkpoint(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has no tokenizer.json, and transformers can't make one from what is there: it made one without a "
        "vocabulary; save the tokenizer with tokenizer.save_pretrained, which writes it"
    )


def test_a_checkpoint_without_a_tokenizer_raises(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        Encoder.from_checkpoint(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path} has no tokenizer.json, and transformers can't make one from what ")
    with pytest.raises(CheckpointError, match=r"is not a directory; pass a checkpoint in Hugging Face layout$"):
        Encoder.from_checkpoint(tmp_path / "absent")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EncodingError, match=rf"^{tmp_path}/tokenizer.json: this is not a tokenizer.json"):
        Encoder.from_checkpoint(tmp_path)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / f"tito_shipping_{tmp_path.name}"  # its own name: an imported package is kept
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


DATA: Final = b'{"a": "tokenizer.json"}' * 100
SHA256: Final = "d6fa5f3a3d3ff0eb0c83f9d55b9f4ac0f2d7b2c0b6ee1b0f0c2a0d1f7b1d2c3e"


def _declared(file: str, sha256: str | None = None) -> Vocabulary:
    return Vocabulary(name="v", file=file, sha256=sha256 or hashlib.sha256(DATA).hexdigest())


def test_a_shipped_vocabulary_is_unpacked_by_its_suffix(shipped: Path) -> None:
    packed = {"v.json.gz": gzip.compress(DATA), "v.json.xz": lzma.compress(DATA), "v.json": DATA}
    for name, data in packed.items():
        (shipped / name).write_bytes(data)
        assert load_vocabulary(shipped.name, _declared(name)) == DATA


def test_control_tokens_that_a_shipped_vocabulary_lacks_are_put_behind_its_last_id(shipped: Path) -> None:
    data = toy_tokenizer(["ab"], ["<|end|>"])
    (shipped / "v.json").write_bytes(data)
    declared = Vocabulary(
        name="v",
        file="v.json",
        sha256=hashlib.sha256(data).hexdigest(),
        stands_in_for="Another",
        added=("<|new|>", "<|two|>"),
    )
    bare, made = Encoder.from_json(data), Encoder.from_json(load_vocabulary(shipped.name, declared))
    last = bare.token_id("<|end|>")
    assert last is not None
    assert [made.token_id(text) for text in declared.added] == [last + 1, last + 2]
    assert [bare.token_id(text) for text in declared.added] == [None, None]
    assert made.tokenizer.encode("ab<|two|>", add_special_tokens=False).ids == [256, last + 2]
    assert made.encode_text("ab<|two|>").tolist() == bare.encode_text("ab<|two|>").tolist()


def test_a_shipped_vocabulary_that_is_not_the_declared_one_raises(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"the vocabulary v ({shipped.name}/v.json.gz)"
    with pytest.raises(FamilyError) as missing:
        load_vocabulary(shipped.name, _declared("v.json.gz"))
    assert str(missing.value).startswith(f"{where} can't be read: ")
    (shipped / "v.json.gz").write_bytes(gzip.compress(DATA))
    with pytest.raises(FamilyError) as other:
        load_vocabulary(shipped.name, _declared("v.json.gz", SHA256))
    assert str(other.value) == (
        f"{where} is not the file that was declared: its sha256 is {hashlib.sha256(DATA).hexdigest()}, declared "
        f"is {SHA256}; install the plugin again, or correct the declaration"
    )
    with monkeypatch.context() as patch:
        patch.setattr(module, "LARGEST_VOCABULARY", 1000)
        with pytest.raises(FamilyError, match=r"unpacks to more than 1000 bytes; a tokenizer.json is smaller$"):
            load_vocabulary(shipped.name, _declared("v.json.gz"))
    for damaged in (gzip.compress(DATA)[:30], b"\x00" + gzip.compress(DATA), b""):
        (shipped / "v.json.gz").write_bytes(damaged)
        with pytest.raises(FamilyError, match=r"(can't be read|is not the file that was declared): "):
            load_vocabulary(shipped.name, _declared("v.json.gz"))
    with pytest.raises(FamilyError, match=r"can't be read: No module named 'tito_no_such_plugin'"):
        load_vocabulary("tito_no_such_plugin", _declared("v.json"))
