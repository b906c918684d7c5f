"""Text to ids and back: exactly as `tokenizers` would, fast, and with content kept content.

Every added token of a vocabulary is a control token here, whether or not it is flagged special. What an encoder may
produce them from depends on the mode:

- `literal`: from what the template printed, never from content;
- `reject`: the same ids, but content that spells a control token raises;
- `engine`: from anywhere, as an engine that is sent the text would.

Text is cut at structural control tokens only, and what lies between two of them is encoded once, whole: BPE merges
across the edge of content and template, so two halves encoded alone would give other ids.

Supported are byte-level BPE vocabularies. Everything else raises EncodingError at load.
"""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise, takewhile
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import tiktoken
from tokenizers import Tokenizer, normalizers, processors

from tito_core.errors import CheckpointError, EncodingError, FamilyError
from tito_core.families.family import Vocabulary, packaged
from tito_core.prompts.template import Rendered, Source, Span

__all__ = ["Encoded", "Encoder", "IdSpan", "Ids", "Mode", "load_vocabulary"]

Mode = Literal["literal", "reject", "engine"]
Ids = npt.NDArray[np.int32]

GPT2_PATTERN: Final = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel(use_regex=true)` splits by."""

LARGEST_VOCABULARY: Final = 64 << 20
"""How many bytes a shipped vocabulary may unpack to."""

CACHED_RUNS: Final = 4096
CACHED_RUN_CHARACTERS: Final = 512


class IdSpan(NamedTuple):
    """Ids `start` to `end` of a prompt, and where their text came from: the fields of `Span`, counted in ids."""

    start: int
    end: int
    source: Source
    index: int  # type: ignore[assignment]
    role: str


class _Added(NamedTuple):
    """An added token. `context` names the flag by which its match would depend on what stands around it."""

    id: int
    text: str
    normalized: bool
    context: str | None


_Cut = tuple[int, int, Ids | None]
"""Characters `start` to `end` of a prompt, and the id where they are a structural control token."""


class Encoded:
    """A prompt's ids (int32, C-contiguous, one dimension) and where they came from."""

    __slots__ = ("_counts", "_cuts", "_encoder", "_rendered", "_spans", "ids")

    def __init__(
        self, ids: Ids, rendered: Rendered, cuts: Sequence[_Cut], counts: Sequence[int], encoder: Encoder
    ) -> None:
        self.ids = ids
        self._rendered = rendered
        self._cuts = cuts
        self._counts = counts
        self._encoder = encoder
        self._spans: tuple[IdSpan, ...] | None = None

    @property
    def spans(self) -> tuple[IdSpan, ...]:
        """Spans that cover the ids without a gap, computed when first asked for.

        A token that straddles two parts belongs to the part that it starts in; a part without a token has no span.
        """
        if self._spans is None:
            self._spans = tuple(self._located())
        return self._spans

    def __repr__(self) -> str:
        return f"Encoded({len(self.ids)} ids, {len(self._rendered.spans)} parts)"

    def _located(self) -> Iterator[IdSpan]:
        parts = self._rendered.spans
        edges = [span.start for span in parts[1:]]
        firsts = [0, *self._first_ids(edges), len(self.ids)]
        for span, (start, end) in zip(parts, pairwise(firsts), strict=False):
            if start < end:
                yield IdSpan(start, end, span.source, span.index, span.role)

    def _first_ids(self, edges: Sequence[int]) -> Iterator[int]:
        """For each edge, ascending character positions, how many ids start before it."""
        first = place = 0
        starts: npt.NDArray[np.int64] | None = None
        for edge in edges:
            while place < len(self._cuts) and self._cuts[place][1] <= edge:
                first, place, starts = first + self._counts[place], place + 1, None
            if place == len(self._cuts):
                yield first
                continue
            start, end, control = self._cuts[place]
            if edge <= start:
                yield first
            elif control is not None:
                yield first + 1
            else:
                if starts is None:
                    ids = self.ids[first : first + self._counts[place]]
                    starts = self._encoder._starts(self._rendered.text[start:end], ids)
                yield first + int(np.searchsorted(starts, edge - start))


class Encoder:
    """Exact and fast text to ids, for one tokenizer.json.

    `sha256` is that of the tokenizer.json, `size` the largest id plus one. `fast` says whether `tiktoken` is in use:
    it is where its ids are proven the same at load; otherwise `slow_reason` says why not, and the ids are the same,
    five to eight times as slowly. `added_ids` are the ids of control tokens. An encoder can be shared by threads.
    """

    sha256: str
    size: int
    added_ids: frozenset[int]
    fast: bool
    slow_reason: str | None

    def __init__(self, data: bytes, split_pattern: str | None = None) -> None:
        self.sha256 = hashlib.sha256(data).hexdigest()
        try:
            declared = json.loads(data)
            self._engine = Tokenizer.from_buffer(data)
        except Exception as cause:
            raise EncodingError(
                f"this is not a tokenizer.json that `tokenizers` can read: {cause}; is the file whole, and no Git LFS pointer?"
            ) from cause
        self._engine.no_truncation()
        self._engine.no_padding()
        # It adds nothing where no special tokens are asked for, but may trim the offsets that spans are made from.
        self._engine.post_processor = processors.Sequence([])
        _check_supported(declared)
        # The same model without its added tokens: plain text only. The model itself is shared, not copied.
        self._plain = Tokenizer(self._engine.model)
        self._plain.pre_tokenizer = self._engine.pre_tokenizer
        if self._engine.normalizer is not None:
            self._plain.normalizer = self._engine.normalizer

        self._added = {token.text: token for token in map(_added, declared.get("added_tokens") or ()) if token.text}
        for token in self._added.values():
            if (found := self._engine.token_to_id(token.text)) != token.id:
                raise EncodingError(
                    f"the added token {token.text!r} is declared as id {token.id}, and `tokenizers` makes it {found}: other "
                    "ids than an engine's; save the tokenizer with tokenizer.save_pretrained",
                    id=token.id,
                )
        self._control_patterns = tuple(
            re.compile(_trie(sorted(texts)))
            for normalized in (False, True)
            if (texts := [token.text for token in self._added.values() if token.normalized is normalized])
        )
        self._any_added = re.compile(_trie(sorted(self._added))) if self._added else None
        self._longest_added = max(map(len, self._added), default=0)
        self._controls = {token.text: np.array([token.id], np.int32) for token in self._added.values()}
        self._structures: dict[str, tuple[tuple[int, int, Ids], ...]] = {}

        vocab: dict[str, int] = declared["model"]["vocab"]
        self.added_ids = frozenset(token.id for token in self._added.values())
        self.size = 1 + max(max(vocab.values(), default=-1), max(self.added_ids, default=-1))
        self._bytes, self._lengths = _byte_table(vocab, self._added.values(), self.size)
        merges = _merges(declared["model"])
        self._plain_ids = {vocab[one] for one in _CHARACTERS if one in vocab}.union(merges.made.tolist())

        self._normalizer = _normalizer(declared.get("normalizer"))
        self._tiktoken: tiktoken.Encoding | None = None
        self._id_of_rank: Ids | None = None
        self.slow_reason = self._make_fast(declared, merges, split_pattern)
        self.fast = self.slow_reason is None

    @classmethod
    def from_json(cls, data: bytes, *, split_pattern: str | None = None) -> Encoder:
        """The encoder for a tokenizer.json's bytes. Raises EncodingError where it is not supported.

        `split_pattern` is one regular expression that splits as the tokenizer's own pre-tokenizer does; it is
        checked against it, and makes encoding fast where the pre-tokenizer is not a single expression itself.
        """
        return cls(data, split_pattern)

    @classmethod
    def from_checkpoint(cls, path: Path, *, split_pattern: str | None = None) -> Encoder:
        """The encoder for a directory in Hugging Face layout. Raises CheckpointError where it has no tokenizer.

        Without a tokenizer.json, `transformers` converts what is there; nothing is downloaded, and no code of the
        checkpoint is run.
        """
        file = path / "tokenizer.json"
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            data = _converted(path)
        except OSError as cause:
            raise CheckpointError(f"{file} can't be read: {cause}", path=str(file)) from cause
        try:
            return cls(data, split_pattern)
        except EncodingError as cause:
            raise EncodingError(f"{file}: {cause}", **cause.where) from cause

    def token_id(self, text: str) -> int | None:
        """The id of the added token that is spelled `text`; None where there is no such added token."""
        token = self._added.get(text)
        return None if token is None else token.id

    @property
    def tokenizer(self) -> Tokenizer:
        """The `tokenizers` object itself, without a post-processor: none of this file's encoding."""
        return self._engine

    def encode(self, rendered: Rendered, mode: Mode = "literal") -> Encoded:
        """A prompt's ids. Raises EncodingError, with the message's index and role where one is to blame."""
        text, spans = rendered
        place = 0
        for span in spans:
            if span.start != place or span.end < place:
                raise EncodingError(f"the spans of a rendered text leave it at character {place}: next is {span}")
            place = span.end
        if place != len(text):
            raise EncodingError(f"the spans of a rendered text end at character {place} of {len(text)}")
        try:
            if mode == "engine":
                return self._encode_as_engine(rendered)
            if mode == "reject":
                self._refuse_control_text(rendered)
            elif mode != "literal":
                raise EncodingError(f"no encoding mode is named {mode!r}; choose literal, reject or engine")
            cuts = list(self._cuts(rendered))
            encoded = iter(self._encode_texts([text[start:end] for start, end, control in cuts if control is None]))
        except UnicodeEncodeError as cause:
            raise _surrogate_error(rendered) from cause
        arrays = [next(encoded) if control is None else control for _, _, control in cuts]
        ids = np.concatenate(arrays) if arrays else np.empty(0, np.int32)
        return Encoded(ids, rendered, cuts, list(map(len, arrays)), self)

    def encode_text(self, text: str) -> Ids:
        """Plain text's ids (int32). No added token is ever produced. Raises EncodingError for a lone surrogate."""
        try:
            return self._encode_texts([text])[0].copy() if text else np.empty(0, np.int32)
        except UnicodeEncodeError as cause:
            raise _surrogate_error(Rendered(text, ())) from cause

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> str:
        """The text of ids, added tokens included; bytes that are not UTF-8 become U+FFFD. Raises for an unknown id."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> bytes:
        """The UTF-8 bytes of ids, added tokens included. Raises EncodingError for an unknown id."""
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise EncodingError(f"ids must be one row of integers, not {array.dtype} of shape {array.shape}")
        if array.size and (array.min() < 0 or array.max() >= self.size):
            raise self._unknown(array)
        table = self._bytes
        try:
            return b"".join([cast(bytes, table[number]) for number in array.tolist()])
        except TypeError:
            raise self._unknown(array) from None

    def token_bytes(self, id: int) -> bytes:
        """The bytes of one id. Raises EncodingError where the vocabulary has none."""
        return self.decode_bytes([id])

    def plain_tokens(self) -> dict[bytes, int]:
        """The id of every byte sequence that plain text can become one token of, the single bytes among them."""
        return {cast(bytes, self._bytes[number]): number for number in self._plain_ids - self.added_ids}

    def _unknown(self, ids: npt.NDArray[Any]) -> EncodingError:
        place, number = next(
            (place, number)
            for place, number in enumerate(ids.tolist())
            if not 0 <= number < self.size or self._bytes[number] is None
        )
        return EncodingError(
            f"id {number} at place {place} is not in the vocabulary (ids below {self.size}, sha256 "
            f"{self.sha256[:8]}); decode with the vocabulary that the ids were made with",
            id=number,
            place=place,
        )

    def _cuts(self, rendered: Rendered) -> Iterator[_Cut]:
        """The text cut at structural control tokens."""
        text, place = rendered.text, 0
        for start, end in _runs(rendered.spans, "template"):
            for first, last, control in self._structure(text[start:end]):
                if place < start + first:
                    yield place, start + first, None
                place = start + last
                yield start + first, place, control
        if place < len(text):
            yield place, len(text), None

    def _structure(self, run: str) -> tuple[tuple[int, int, Ids], ...]:
        """Where control tokens stand in a run of template text: start and end in it, and the id as an array."""
        found = self._structures.get(run)
        if found is None:
            found = tuple(self._controls_in(run))
            if len(run) <= CACHED_RUN_CHARACTERS:
                if len(self._structures) >= CACHED_RUNS:
                    self._structures.clear()
                self._structures[run] = found
        return found

    def _controls_in(self, run: str) -> list[tuple[int, int, Ids]]:
        # As `tokenizers`: leftmost and longest, first the tokens that are not normalised, then the others between.
        found: list[tuple[int, int]] = []
        for pattern in self._control_patterns:
            edges = [(0, 0), *found, (len(run), len(run))]
            for (_, start), (end, _) in pairwise(edges):
                found += [match.span() for match in pattern.finditer(run, start, end)]
            found.sort()
        for start, end in found:
            token = self._added[run[start:end]]
            if token.context:
                raise EncodingError(
                    f"the template prints the added token {token.text!r} (id {token.id}), which is declared "
                    f"{token.context}: what it matches depends on the text around it, which is not supported; "
                    f"declare it without {token.context}",
                    id=token.id,
                )
        return [(start, end, self._controls[run[start:end]]) for start, end in found]

    def _refuse_control_text(self, rendered: Rendered) -> None:
        pattern, text = self._any_added, rendered.text
        if pattern is None:
            return
        for start, end in _runs(rendered.spans, "content"):
            limit = min(end + self._longest_added - 1, len(text))
            place = max(start - self._longest_added + 1, 0)
            while (match := pattern.search(text, place, limit)) and match.start() < end:
                if match.end() > start:
                    raise self._control_text_error(rendered, max(match.start(), start), match.group())
                place = match.start() + 1
        if self._normalizer == "nfc" and not text.isascii():
            for span in rendered.spans:
                if span.source == "content" and (match := pattern.search(_nfc(text[span.start : span.end]))):
                    raise self._control_text_error(rendered, span.start, match.group())

    def _control_text_error(self, rendered: Rendered, place: int, found: str) -> EncodingError:
        span = next(span for span in rendered.spans if span.end > place and span.source == "content")
        number = self._added[found].id
        where, place_of = _whose(span)
        return EncodingError(
            f"{where} spells the control token {found!r} (id {number}) in its content; "
            "take it out, or encode in mode literal, which keeps it ordinary text",
            **place_of,
            id=number,
        )

    def _encode_texts(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each plain text, by the fast path where there is one. Raises UnicodeEncodeError."""
        fast = None if self._tiktoken is None else self._fast(self._tiktoken, texts)
        return [self._slow(text) for text in texts] if fast is None else fast

    def _fast(self, encoding: tiktoken.Encoding, texts: Sequence[str]) -> list[Ids] | None:
        """By `tiktoken`; None where it leaves text out, as it does what its expression does not match."""
        if self._normalizer == "nfc":
            texts = [text if text.isascii() else _nfc(text) for text in texts]
        encoded: list[Ids] = []
        for text in texts:
            try:
                ids: Ids = encoding.encode_to_numpy(text, disallowed_special=()).view(np.int32)
            except UnicodeEncodeError:
                raise
            except ValueError:  # the expression's backtracking limit: 1,000,000 spaces reach it
                ids = self._slow(text)
            except BaseException as cause:
                if type(cause).__name__ != "PanicException":
                    raise
                ids = self._slow(text)
            else:
                if self._id_of_rank is not None:
                    ids = self._id_of_rank[ids]
            encoded.append(ids)
        whole = not encoded or sum(map(_size, texts)) == int(self._lengths[np.concatenate(encoded)].sum())
        return encoded if whole else None

    def _slow(self, text: str) -> Ids:
        """By `tokenizers`. Raises EncodingError where it leaves text out for want of an entry."""
        size = _size(_nfc(text) if self._normalizer == "nfc" else text)
        ids = np.array(self._plain.encode(text, add_special_tokens=False).ids, np.int32)
        if self._normalizer != "other" and int(self._lengths[ids].sum()) != size:
            raise EncodingError(
                f"the vocabulary (sha256 {self.sha256[:8]}) has no entry for part of the text {text[:40]!r}; use one "
                "that has all 256 bytes"
            )
        return ids

    def _encode_as_engine(self, rendered: Rendered) -> Encoded:
        _size(rendered.text)
        ids = np.array(self._engine.encode(rendered.text, add_special_tokens=False).ids, np.int32)
        return Encoded(ids, rendered, [(0, len(rendered.text), None)], [len(ids)], self)

    def _starts(self, text: str, ids: Ids) -> npt.NDArray[np.int64]:
        """The character of `text` in which each of its ids starts."""
        unchanged = self._normalizer == "none" or (self._normalizer == "nfc" and _nfc(text) == text)
        lengths, data = self._lengths[ids], text.encode()
        if unchanged and int(lengths.sum()) == len(data):
            starts = np.cumsum(lengths) - lengths
            if len(data) == len(text):
                return starts
            leading = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80
            characters: npt.NDArray[np.int64] = (np.cumsum(leading) - 1)[starts]
            return characters
        for tokenizer in (self._plain, self._engine):
            encoding = tokenizer.encode(text, add_special_tokens=False)
            if encoding.ids == ids.tolist():
                return np.array([start for start, _ in encoding.offsets], np.int64)
        raise EncodingError("ids and text of a prompt no longer belong together; encode it again")

    def _make_fast(self, declared: Mapping[str, Any], merges: _Merges, split_pattern: str | None) -> str | None:
        """Sets up `tiktoken`; says why not, where its ids can't be proven the same."""
        if self._normalizer == "other":
            return "its normalizer is neither empty nor NFC"
        pattern = split_pattern or _split_pattern(declared["pre_tokenizer"])
        if pattern is None:
            return "its pre-tokenizer is not a single expression, and no split pattern was given"
        model = declared["model"]
        if model.get("ignore_merges") and set(model["vocab"].values()) - self._plain_ids - self.added_ids:
            return "it ignores merges for entries that no merge makes"
        ranks = _ranks(model["vocab"], merges, self._bytes)
        if isinstance(ranks, str):
            return ranks
        try:
            encoding = tiktoken.Encoding(
                self.sha256[:8], pat_str=pattern, mergeable_ranks=ranks.of_bytes, special_tokens={}
            )
        except ValueError as cause:
            return f"its split pattern can't be compiled: {cause}"
        self._id_of_rank = ranks.ids
        for text in _sample():
            fast = self._fast(encoding, [text])
            if fast is None or not np.array_equal(fast[0], self._slow(text)):
                return f"the split pattern splits other than its pre-tokenizer: the ids of {text[:40]!r} differ"
        self._tiktoken = encoding
        return None


class _Merges(NamedTuple):
    """The merges of a vocabulary in order: the ids of the two parts, and the id that they make."""

    left: Ids
    right: Ids
    made: Ids


def _merges(model: Mapping[str, Any]) -> _Merges:
    vocab: dict[str, int] = model["vocab"]
    pairs = model["merges"]
    joined = bool(pairs) and isinstance(pairs[0], str)
    flat = " ".join(pairs).split(" ") if joined else [part for pair in pairs for part in pair]
    lefts, rights = flat[::2], flat[1::2]
    try:
        ids = [
            np.fromiter(map(vocab.__getitem__, names), np.int32, len(pairs))
            for names in (lefts, rights, map(str.__add__, lefts, rights))
        ]
    except (KeyError, ValueError, TypeError) as cause:
        raise EncodingError(f"the merges of this tokenizer name what its vocabulary has not: {cause}") from cause
    return _Merges(*ids)


class _Ranks(NamedTuple):
    """A vocabulary's entries by merge order, as `tiktoken` takes them. `ids` where the ids are in another order."""

    of_bytes: dict[bytes, int]
    ids: Ids | None


def _ranks(vocab: Mapping[str, int], merges: _Merges, table: Sequence[bytes | None]) -> _Ranks | str:
    """What `tiktoken` needs, or why its merging would not equal that of `tokenizers`.

    It merges whatever neighbours spell an entry, `tokenizers` only the pairs that are listed. The two are equal where
    every entry has one pair, and its own text alone is merged into that pair: other neighbours that spell the entry
    then never meet. Entries that no pair makes are left out.
    """
    alphabet = [vocab.get(character, -1) for character in _CHARACTERS]
    if -1 in alphabet:
        return f"its vocabulary has no entry for the byte {alphabet.index(-1)}"
    ids = np.concatenate([np.array(alphabet, np.int32), merges.made])
    if np.bincount(ids).max() > 1:
        return "several of its merges make the same entry"
    rank_of = np.full(len(table), -1, np.int64)
    rank_of[ids] = np.arange(len(ids))
    left, right = rank_of[merges.left], rank_of[merges.right]
    if len(left) and min(int(left.min()), int(right.min())) < 0:
        return "one of its merges joins an entry that no merge makes"
    if (fault := _unmergeable(left, right)) is not None:
        return f"its entry {table[ids[256 + fault]]!r} is not what its own text is merged into"
    numbers = ids.tolist()
    if (np.diff(merges.made) > 0).all():
        return _Ranks({cast(bytes, table[number]): number for number in numbers}, None)
    return _Ranks({cast(bytes, table[number]): rank for rank, number in enumerate(numbers)}, ids)


def _unmergeable(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> int | None:
    """The first merge whose entry's own text is merged otherwise; merge i joins `left[i]`, `right[i]` into 256 + i.

    Undoes merges on both sides of the seam between the two parts, latest first, and looks for a pair across the seam
    that would have been merged before.
    """
    count = len(left)
    span = 256 + count
    keys = left * span + right
    order = np.argsort(keys)
    keys = keys[order]
    heads = np.concatenate([np.arange(256), left])
    tails = np.concatenate([np.arange(256), right])
    before, after, limit, merge = left, right, np.arange(256, span), np.arange(count)
    fault = count
    while len(merge):
        undo = before > after
        limit = np.where(undo, before, after + 1)
        before, after = np.where(undo, tails[before], before), np.where(undo, after, heads[after])
        wanted = before * span + after
        place = np.minimum(np.searchsorted(keys, wanted), count - 1)
        early = (keys[place] == wanted) & (order[place] + 256 < limit)
        if early.any():
            fault = min(fault, int(merge[early].min()))
        open_ = (np.maximum(before, after) >= 256) & ~early
        before, after, merge = before[open_], after[open_], merge[open_]
    return fault if fault < count else None


def _characters() -> str:
    """The character that byte-level vocabularies write each byte as, in the order of the bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


_CHARACTERS: Final = _characters()


def _byte_table(
    vocab: Mapping[str, int], added: Iterable[_Added], size: int
) -> tuple[list[bytes | None], npt.NDArray[np.int32]]:
    """The bytes of each id, None where there is no such id, and their number.

    An entry that is not written in byte-level characters stands for its own text.
    """
    byte_of = np.full(0x200, 0x100, np.uint16)
    byte_of[[ord(character) for character in _CHARACTERS]] = np.arange(256)
    points = np.frombuffer("".join(vocab).encode("utf-32-le", "surrogatepass"), np.uint32)
    values = byte_of[np.minimum(points, 0x1FF)]
    data = values.astype(np.uint8).tobytes()
    ends = list(accumulate(map(len, vocab)))
    entries: list[bytes] = list(map(data.__getitem__, map(slice, [0, *ends], ends)))
    names = list(vocab)
    for place in np.unique(np.searchsorted(ends, np.flatnonzero(values > 0xFF), "right")).tolist():
        entries[place] = names[place].encode("utf-8", "surrogatepass")
    table: list[bytes | None] = [None] * size
    for number, entry in zip(vocab.values(), entries, strict=True):
        table[number] = entry
    for token in added:
        table[token.id] = token.text.encode("utf-8", "surrogatepass")
    return table, np.fromiter((len(entry or b"") for entry in table), np.int32, size)


def _added(declared: Mapping[str, Any]) -> _Added:
    context = next((flag for flag in ("lstrip", "rstrip", "single_word") if declared.get(flag)), None)
    return _Added(declared["id"], declared["content"], bool(declared.get("normalized")), context)


def _trie(texts: Sequence[str]) -> str:
    """An expression that matches the longest of `texts` (sorted, distinct) at a place, without trying each."""
    optional = texts[0] == ""
    groups: dict[str, list[str]] = {}
    for text in texts[optional:]:
        groups.setdefault(text[0], []).append(text)
    branches = []
    for group in groups.values():
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(group[0], group[-1], strict=False))
        prefix = "".join(one for one, _ in shared)  # of the first and the last in order, hence of all
        rest = [text[len(prefix) :] for text in group]
        branches.append(re.escape(prefix) + (f"(?:{_trie(rest)})" if len(rest) > 1 else ""))
    expression = "|".join(branches)
    return f"(?:{expression})?" if optional else expression


def _flat(declared: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    if declared is None:
        return []
    if declared["type"] == "Sequence":
        return [part for inner in declared[key] for part in _flat(inner, key)]
    return [declared]


def _check_supported(declared: Mapping[str, Any]) -> None:
    model = declared["model"]
    splits = _flat(declared.get("pre_tokenizer"), "pretokenizers")
    normal = _flat(declared.get("normalizer"), "normalizers")
    if any(part["type"] == "Metaspace" for part in splits) or any(part["type"] == "Prepend" for part in normal):
        raise EncodingError(
            "this tokenizer puts a marker before whatever text it is given (SentencePiece-style prepend), so a suffix "
            "encoded alone would have other ids; it is not supported yet"
        )
    if any(part["type"] == "ByteLevel" and part.get("add_prefix_space") for part in splits):
        raise EncodingError(
            "this tokenizer puts a space before whatever text it is given (ByteLevel with add_prefix_space), so a "
            "suffix encoded alone would have other ids; it is not supported yet"
        )
    if model.get("type") != "BPE" or not splits or splits[-1]["type"] != "ByteLevel" or model.get("byte_fallback"):
        raise EncodingError(
            f"this tokenizer is not byte-level BPE (model {model.get('type')}, pre-tokenizer "
            f"{', '.join(part['type'] for part in splits) or 'none'}); others are not supported yet"
        )
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise EncodingError(f"this tokenizer's model has {key} {model[key]!r}, which is not supported")


def _normalizer(declared: Mapping[str, Any] | None) -> Literal["none", "nfc", "other"]:
    parts = [part["type"] for part in _flat(declared, "normalizers")]
    return "none" if not parts else "nfc" if parts == ["NFC"] else "other"


def _split_pattern(declared: Mapping[str, Any]) -> str | None:
    parts = _flat(declared, "pretokenizers")
    *splits, last = parts
    if not splits:
        return GPT2_PATTERN if last.get("use_regex", True) else None
    split = splits[0]
    if len(splits) > 1 or last.get("use_regex", True) or split["type"] != "Split":
        return None
    if split["behavior"] != "Isolated" or split.get("invert"):
        return None
    return cast("str | None", split["pattern"].get("Regex"))


def _size(text: str) -> int:
    """The number of UTF-8 bytes. Raises UnicodeEncodeError for a lone surrogate."""
    return len(text) if text.isascii() else len(text.encode())


_NFC: Final = normalizers.NFC()


def _nfc(text: str) -> str:
    # By `tokenizers`, not unicodedata: the two may know different versions of Unicode.
    return _NFC.normalize_str(text)


def _runs(spans: Sequence[Span], source: Source) -> Iterator[tuple[int, int]]:
    """Start and end of each maximal run of neighbouring spans of one source, empty spans left out."""
    start = end = -1
    for span in spans:
        if span.source != source or span.start == span.end:
            continue
        if span.start != end:
            if end > start:
                yield start, end
            start = span.start
        end = span.end
    if end > start:
        yield start, end


def _surrogate_error(rendered: Rendered) -> EncodingError:
    text, spans = rendered
    place = next(place for place, character in enumerate(text) if "\ud800" <= character <= "\udfff")
    span = next((span for span in spans if span.start <= place < span.end), None)
    where, place_of = _whose(span) if span else ("the text", {})
    return EncodingError(
        f"{where} holds the lone surrogate {text[place]!r} at character {place - (span.start if span else 0)}, which "
        "is not text; decode the bytes it came from with errors='replace'",
        **place_of,
    )


def _whose(span: Span) -> tuple[str, dict[str, Any]]:
    """Whose text a span is, in words and as data."""
    if span.index < 0:
        return "a tool or a template kwarg", {"index": None, "role": None}
    return f"message {span.index} ({span.role})", {"index": span.index, "role": span.role}


def load_vocabulary(package: str, vocabulary: Vocabulary) -> bytes:
    """The tokenizer.json that a plugin ships: unpacked by the suffix (.gz, .xz, none), and checked by its hash.

    `package` is the plugin's import name. Raises FamilyError.
    """
    where = f"the vocabulary {vocabulary.name} ({package}/{vocabulary.file})"
    data = packaged(package, vocabulary.file, where)
    try:
        if vocabulary.file.endswith(".gz"):
            data = zlib.decompressobj(wbits=31).decompress(data, LARGEST_VOCABULARY + 1)
        elif vocabulary.file.endswith(".xz"):
            data = lzma.LZMADecompressor().decompress(data, LARGEST_VOCABULARY + 1)
    except (zlib.error, lzma.LZMAError) as cause:
        raise FamilyError(f"{where} can't be read: {cause}; install the plugin again") from cause
    if len(data) > LARGEST_VOCABULARY:
        raise FamilyError(f"{where} unpacks to more than {LARGEST_VOCABULARY} bytes; a tokenizer.json is smaller")
    if (found := hashlib.sha256(data).hexdigest()) != vocabulary.sha256:
        raise FamilyError(
            f"{where} is not the file that was declared: its sha256 is {found}, declared is {vocabulary.sha256}; "
            "install the plugin again, or correct the declaration",
            found=found,
            declared=vocabulary.sha256,
        )
    return _extended(data, vocabulary.added) if vocabulary.added else data


def _extended(data: bytes, texts: Sequence[str]) -> bytes:
    """A tokenizer.json with more control tokens, behind its last id."""
    made = json.loads(data)
    known = [*made["model"]["vocab"].values(), *(token["id"] for token in made["added_tokens"])]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    made["added_tokens"] += [
        {"id": number, "content": text, **plain, "special": True} for number, text in enumerate(texts, max(known) + 1)
    ]
    return json.dumps(made, ensure_ascii=False).encode()


FEWEST: Final = 256
"""The entries of the smallest vocabulary: every byte is one. transformers makes an emptier one where there is no file."""


def _converted(path: Path) -> bytes:
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory; pass a checkpoint in Hugging Face layout", path=str(path))
    heard = logging.root.manager.disable
    try:
        logging.disable(logging.WARNING)  # transformers tells what else it could do here
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
        if tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=False) < FEWEST:
            raise ValueError("it made one without a vocabulary")
        return cast(str, tokenizer.backend_tokenizer.to_str()).encode()
    except Exception as cause:
        raise CheckpointError(
            f"{path} has no tokenizer.json, and transformers can't make one from what is there: "
            f"{' '.join(str(cause).split()).rstrip('.')}; save the tokenizer with tokenizer.save_pretrained, which writes it",
            path=str(path),
        ) from cause
    finally:
        logging.disable(heard)


def _sample() -> list[str]:
    """Texts in which two ways to split would differ: each kind of character beside each other kind."""
    kinds = (
        "a", "Word", "don't", "I'LL'Ve", "'ſ", "naïve", "e\u0301", "\u0301", "Ωμέγα", "привет",
        "שלום", "مرحبا", "हिन्दी", "ไทย", "한국어", "\u1112\u1161\u11ab", "中文", "龥", "鿿", "〇", "ひらがな",
        "カタカナ", "・", "゛", "ー", "\u3099", "、。", "「」", "0", "12", "1234567", "٣", "Ⅷ", "½", "²",
        " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n ", "\u00a0", "\u3000", "\u200b", "\u200d",
        "\u2028", "\u0085", "\x00", "\x1f", "\x7f", "\ufeff", "\ue000", "\U000f0000", "\ufffd", "\u0378", "!",
        "?!", "...", "_", "$", "€", "+", "<", ">", "</a>", '{"', "'", "''", "’s", "//", "-", "—", "|", "｜",
        "▁", "Ġ", "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "\ufe0f", "𝒳", "𐍈", "ﬁ", "\u212b", "A\u030a", "\u212a",
    )  # fmt: skip
    draw = random.Random(20250101)
    mixed = ["".join(draw.choices(kinds, k=24)) for _ in range(48)]
    pairs = "".join(first + second for first in kinds[::3] for second in kinds[1::3])
    runs = [character * 300 for character in (" ", "a", "\n", "中", "1", "!", "\u0301")]
    return [*mixed, pairs, *runs, *kinds]
