"""Samples on the wire: one safetensors payload, or JSON Lines. Both hold the same, and say which version they are."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tito_core.errors import SessionError
from tito_core.sessions.samples import Sample, SampleTurn, check_extras, finite
from tito_core.sessions.store import check_keys
from tito_core.tokens.encoder import IdSpan

__all__ = ["VERSION", "from_jsonl", "from_safetensors", "to_jsonl", "to_safetensors"]

VERSION: Final = 1
_ARRAYS: Final = {"tokens": np.int32, "loss_mask": np.int8, "logprobs": np.float32}
_KEY: Final = "tito_samples"


def to_jsonl(samples: Iterable[Sample]) -> str:
    """A line of JSON for each sample. Raises SessionError for metadata that is not JSON."""
    lines = []
    for sample in samples:
        arrays = {name: getattr(sample, name).tolist() for name in _ARRAYS}
        extras = {
            name: {
                "dtype": rows.dtype.str,
                "shape": rows.shape,
                "data": base64.b64encode(np.ascontiguousarray(rows).tobytes()).decode(),
            }
            for name, rows in sample.extras.items()
        }
        lines.append(_dumped({_KEY: VERSION, **_about(sample), **arrays, "extras": extras}) + "\n")
    return "".join(lines)


def from_jsonl(text: str) -> list[Sample]:
    """The samples of such lines. Raises SessionError for what is none."""
    made = []
    for number, line in enumerate(text.split("\n")[:-1] if text.endswith("\n") else text.split("\n") if text else []):
        where = f"line {number} of the samples"
        try:
            held = _loaded(line)
            _versioned(held[_KEY], where)
            arrays = {name: _array(name, held.pop(name)) for name in _ARRAYS}
            extras = {
                name: np.frombuffer(base64.b64decode(one["data"]), dtype=one["dtype"]).reshape(one["shape"])
                for name, one in held.pop("extras").items()
            }
            made.append(_sample(held, arrays, extras))
        except Exception as cause:  # what is no sample can be anything
            raise _torn(where, cause) from cause
    return made


def to_safetensors(samples: Iterable[Sample]) -> bytes:
    """One payload of all samples' arrays, what else they hold in its header. Needs the package `safetensors`.

    Raises SessionError for metadata that is not JSON.
    """
    from safetensors.numpy import save

    tensors: dict[str, npt.NDArray[Any]] = {}
    about = []
    for number, sample in enumerate(samples):
        for name in _ARRAYS:
            tensors[f"{number}.{name}"] = np.ascontiguousarray(getattr(sample, name))
        for name, rows in sample.extras.items():
            tensors[f"{number}.extras.{name}"] = np.ascontiguousarray(rows)
        about.append({**_about(sample), "extras": list(sample.extras)})
    return bytes(save(tensors, metadata={_KEY: _dumped({"version": VERSION, "samples": about})}))


def from_safetensors(data: bytes) -> list[Sample]:
    """The samples of such a payload. Raises SessionError for what is none."""
    from safetensors.numpy import load

    where = "the payload of samples"
    try:
        size = int.from_bytes(data[:8], "little")
        header = _loaded(_loaded(data[8 : 8 + size])["__metadata__"][_KEY])
        _versioned(header["version"], where)
        tensors = load(data)
        made = []
        for number, held in enumerate(header["samples"]):
            arrays = {name: tensors[f"{number}.{name}"] for name in _ARRAYS}
            extras = {name: tensors[f"{number}.extras.{name}"] for name in held["extras"]}
            made.append(_sample(held, arrays, extras))
        return made
    except Exception as cause:  # what is no payload can be anything
        raise _torn(where, cause) from cause


def _about(sample: Sample) -> dict[str, Any]:
    return {
        "leaf": sample.leaf,
        "spans": [tuple(span) for span in sample.spans],
        "turns": [asdict(turn) for turn in sample.turns],
        "status": sample.status,
        "metadata": dict(sample.metadata),
    }


def _loaded(text: str | bytes) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"it holds {constant}")

    return json.loads(text, parse_constant=refuse)


def _array(name: str, values: Any) -> npt.NDArray[Any]:
    kinds = (int, float) if name == "logprobs" else (int,)
    if type(values) is not list or not all(type(one) in kinds for one in values):
        raise ValueError(f"its {name} are not a list of {'numbers' if name == 'logprobs' else 'whole numbers'}")
    with np.errstate(over="ignore"):
        return np.array(values, dtype=_ARRAYS[name])


def _check(arrays: Mapping[str, npt.NDArray[Any]], extras: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raises ValueError for arrays that no sample has."""
    for name, kind in _ARRAYS.items():
        rows = arrays[name]
        if rows.dtype != kind or rows.ndim != 1:
            raise ValueError(
                f"its {name} are {rows.dtype} of the shape {rows.shape}, and must be one row of {kind.__name__}"
            )
    tokens = arrays["tokens"]
    if {len(rows) for rows in arrays.values()} != {len(tokens)}:
        raise ValueError("its tokens, loss_mask and logprobs have other lengths")
    if np.any(tokens < 0):
        raise ValueError(f"its tokens hold {tokens.min()}, which is no id")
    if not np.isin(arrays["loss_mask"], (0, 1)).all():
        raise ValueError("its loss_mask holds other numbers than 0 and 1")
    if not np.isfinite(arrays["logprobs"]).all():
        raise ValueError("its logprobs are not finite")
    check_extras(extras, len(tokens))


def _sample(
    held: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], extras: Mapping[str, npt.NDArray[Any]]
) -> Sample:
    _check(arrays, extras)
    spans = tuple(IdSpan(*span) for span in held["spans"])
    turns = tuple(SampleTurn(**turn) for turn in held["turns"])
    for start, end in (*(span[:2] for span in spans), *((turn.start, turn.end) for turn in turns)):
        if not type(start) is type(end) is int or not 0 <= start <= end <= len(arrays["tokens"]):
            raise ValueError(f"it holds a span or a turn from {start} to {end}, which is none of its ids")
    for number, turn in enumerate(turns):
        if not finite(turn.reward):
            raise ValueError(
                f"its turn {number} has the reward {turn.reward!r}, a {type(turn.reward).__name__}; one is a finite number"
            )
    if type(held["leaf"]) is not int or type(held["status"]) is not str or type(held["metadata"]) is not dict:
        raise ValueError("its leaf, status and metadata are not a number, a text and a mapping")
    return Sample(
        leaf=held["leaf"],
        tokens=arrays["tokens"],
        loss_mask=arrays["loss_mask"],
        logprobs=arrays["logprobs"],
        spans=spans,
        turns=turns,
        extras=extras,
        status=held["status"],
        metadata=held["metadata"],
    )


def _dumped(value: Sequence[Any] | Mapping[str, Any]) -> str:
    try:
        check_keys(value)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()  # safetensors would, and a writer of lines
        return text
    except (TypeError, ValueError, RecursionError) as cause:
        raise SessionError(f"a sample's metadata or reward is not JSON: {cause}; keep plain values in it") from cause


def _versioned(version: Any, where: str) -> None:
    if version != VERSION:
        raise SessionError(f"{where} is of version {version!r}, and this tito reads version {VERSION}")


def _torn(where: str, cause: Exception) -> SessionError:
    if isinstance(cause, SessionError):
        return cause
    return SessionError(f"{where} is none, or is torn: {type(cause).__name__}: {cause}")
