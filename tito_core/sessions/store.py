"""Where committed turns are kept: in memory, or in a file that outlives its process."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from tito_core.errors import SessionError
from tito_core.families.family import ThinkingDecision
from tito_core.prompts.messages import Message, Tool, ToolCall
from tito_core.responses.completion import Completion
from tito_core.responses.parse import Parsed
from tito_core.sessions.turn import Turn
from tito_core.tokens.encoder import IdSpan

__all__ = ["MemoryStore", "SQLiteStore", "Store", "packed", "unpacked"]


class Store(Protocol):
    """Keeps the turns of sessions as records, each whole or not at all. Safe under threads."""

    def take(self, session: str, about: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Takes a session over from whoever held it: a claim that `put` must show, and the records, oldest first.

        `about` is what its prompts depend on. Raises SessionError where the session was begun with something else.
        """
        ...

    def put(self, session: str, claim: int, number: int, record: str) -> None:
        """Keeps a record as the session's turn `number`, in place of that and all after it; durable once this returns.

        Raises SessionError where another took the session over, or the record can't be written.
        """
        ...


class MemoryStore:
    """Keeps turns as long as the process lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
        self._claims: dict[str, int] = {}

    def take(self, session: str, about: Mapping[str, Any]) -> tuple[int, list[str]]:
        with self._lock:
            before, records = self._held.setdefault(session, (dict(about), []))
            _check_about(session, before, about)
            self._claims[session] = self._claims.get(session, 0) + 1
            return self._claims[session], [*records]

    def put(self, session: str, claim: int, number: int, record: str) -> None:
        with self._lock:
            if self._claims.get(session) != claim:
                raise _taken(session)
            self._held[session][1][number:] = [record]


_SCHEMA: Final = """
create table if not exists sessions (id text primary key, about text not null, claim integer not null);
create table if not exists turns (session text, number integer, record text not null, primary key (session, number));
"""


class SQLiteStore:
    """Keeps turns in a SQLite file (WAL, every commit synced), which processes on one machine may share: each opens its own.

    A turn whose `commit` returned is there after the process was killed, and so after the machine was. Leaving its `with`,
    `close`, or dropping it closes the file: nothing waits to be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._lock = threading.Lock()
        try:
            self._file = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as cause:
            raise self._failed(cause) from cause
        self._closed = weakref.finalize(self, self._file.close)
        try:
            self._file.execute("pragma journal_mode=wal")
            self._file.execute("pragma synchronous=full")
            self._file.executescript(_SCHEMA)
        except sqlite3.Error as cause:
            self.close()
            raise self._failed(cause) from cause

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file, once what is being written is; a second time it does nothing."""
        with self._lock:
            self._closed()

    def take(self, session: str, about: Mapping[str, Any]) -> tuple[int, list[str]]:
        with self._lock, _Transaction(self) as file:
            row = file.execute("select about, claim from sessions where id = ?", (session,)).fetchone()
            before, claim = (_begun(session, row[0]), row[1]) if row else (about, 0)
            _check_about(session, before, about)
            said = json.dumps(dict(about), sort_keys=True)
            file.execute("insert or replace into sessions values (?, ?, ?)", (session, said, claim + 1))
            records = file.execute("select record from turns where session = ? order by number", (session,)).fetchall()
            return claim + 1, [record for (record,) in records]

    def put(self, session: str, claim: int, number: int, record: str) -> None:
        with self._lock, _Transaction(self) as file:
            if file.execute("select claim from sessions where id = ?", (session,)).fetchone() != (claim,):
                raise _taken(session)
            file.execute("delete from turns where session = ? and number >= ?", (session, number))
            file.execute("insert into turns values (?, ?, ?)", (session, number, record))

    def _failed(self, cause: sqlite3.Error) -> SessionError:
        return SessionError(
            f"the store {self._path} can't be used ({type(cause).__name__}: {cause}); what was committed before is there"
        )


class _Transaction:
    """All or nothing, alone in the file."""

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._store._file.execute("begin immediate")
        except sqlite3.Error as cause:
            raise self._store._failed(cause) from cause
        return self._store._file

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        try:
            self._store._file.execute("rollback" if cause else "commit")
        except sqlite3.Error as failed:
            raise self._store._failed(failed) from failed
        if isinstance(cause, sqlite3.Error):
            raise self._store._failed(cause) from cause


def packed(turn: Turn) -> str:
    """A turn as a record: the crc32 of what follows it, and JSON, arrays in base64. Raises SessionError where its
    completion's meta is not JSON."""
    done = turn.completion
    root = turn.parent is None
    held = {
        "number": turn.number,
        "parent": turn.parent.number if turn.parent else None,
        "messages": [asdict(message) for message in turn.messages],
        "message": asdict(turn.message),
        "decision": turn.decision.model_dump(mode="json") if root else None,
        "tools": [asdict(tool) for tool in turn.tools] if root else None,
        "kept": turn.kept,
        "new": _array(turn.new),
        "spans": [tuple(span) for span in turn.spans],
        "parsed": asdict(turn.parsed) if turn.parsed else None,
        "summarises": turn.summarises.number if turn.summarises else None,
        "times": (turn.requested, turn.committed),
        "completion": {"id": done.id, "finish_reason": done.finish_reason, "stop": done.stop, "meta": dict(done.meta)},
        "logprobs": _array(np.asarray(done.logprobs)),
        "extras": {name: _array(rows) for name, rows in done.extras.items()},
    }
    try:
        text = json.dumps(held)
    except (TypeError, ValueError, RecursionError) as cause:
        raise SessionError(
            f"completion {done.id} can't be kept in a store: its meta is not JSON ({cause})", id=done.id
        ) from cause
    return f"{_checksum(text)} {text}"


def unpacked(records: Sequence[str]) -> tuple[Turn, ...]:
    """The turns of a session's records. Raises SessionError for one that is none."""
    turns: list[Turn] = []
    for record in records:
        try:
            sum_, _, text = record.partition(" ")
            if sum_ != _checksum(text):
                raise ValueError(f"its checksum is {_checksum(text)}, and {sum_:.8} is written")
            turns.append(_turn(json.loads(text), turns))
        except Exception as cause:  # a record that was changed can be anything
            raise SessionError(
                f"the record of turn {len(turns)} can't be read ({type(cause).__name__}: {cause}); it was written by another "
                "version, or changed"
            ) from cause
    return tuple(turns)


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _turn(held: dict[str, Any], turns: Sequence[Turn]) -> Turn:
    if held["number"] != len(turns):
        raise ValueError(f"it is the record of turn {held['number']}")
    for name in ("parent", "summarises"):
        if held[name] is not None and held[name] not in range(len(turns)):
            raise ValueError(f"its {name} is turn {held[name]}")
    parent = None if held["parent"] is None else turns[held["parent"]]
    if held["kept"] not in range((parent.end if parent else 0) + 1):
        raise ValueError(f"it keeps {held['kept']} ids of the {parent.end if parent else 0} before it")
    new, logprobs = _read(held["new"]), _read(held["logprobs"])
    if new.dtype != np.int32 or new.ndim != 1 or len(logprobs) > len(new):
        raise ValueError(f"it holds {len(logprobs)} logprobs, and ids of {new.dtype} and the shape {new.shape}")
    completion = Completion(new[len(new) - len(logprobs) :], logprobs, **held["completion"])
    messages = tuple(map(_message, held["messages"]))
    parsed = held["parsed"]
    return Turn(
        number=len(turns),
        depth=parent.depth + 1 if parent else 0,
        parent=parent,
        messages=messages,
        message=_message(held["message"]),
        completion=completion.stored(
            new[len(new) - len(logprobs) :], {name: _read(rows) for name, rows in held["extras"].items()}
        ),
        decision=parent.decision if parent else ThinkingDecision.model_validate(held["decision"]),
        tools=parent.tools if parent else tuple(Tool(**tool) for tool in held["tools"]),
        length=(parent.length if parent else 0) + len(messages) + 1,
        kept=held["kept"],
        new=new,
        spans=tuple(IdSpan(*span) for span in held["spans"]),
        parsed=Parsed(**{**parsed, "tool_calls": _calls(parsed["tool_calls"])}) if parsed else None,
        summarises=None if held["summarises"] is None else turns[held["summarises"]],
        requested=held["times"][0],
        committed=held["times"][1],
    )


def _message(held: dict[str, Any]) -> Message:
    calls, tools = _calls(held["tool_calls"]), tuple(Tool(**tool) for tool in held["tools"])
    return Message(**{**held, "tool_calls": calls, "tools": tools})


def _calls(held: Sequence[dict[str, Any]]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(**call) for call in held)


def _array(rows: npt.NDArray[Any]) -> tuple[str, tuple[int, ...], str]:
    return rows.dtype.str, rows.shape, base64.b64encode(np.ascontiguousarray(rows).tobytes()).decode()


def _read(held: tuple[str, tuple[int, ...], str]) -> npt.NDArray[Any]:
    kind, shape, data = held
    return np.frombuffer(base64.b64decode(data), dtype=kind).reshape(shape)


def _begun(session: str, said: Any) -> dict[str, Any]:
    try:
        return dict(json.loads(said))
    except Exception as cause:
        raise SessionError(
            f"what the stored session {session} was begun with can't be read ({type(cause).__name__}: {cause}); it was "
            "written by another version, or changed"
        ) from cause


def _check_about(session: str, before: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    for key in (*about, *before):
        if before.get(key) != about.get(key):
            raise SessionError(
                f"the stored session {session} was begun with {key}={before.get(key)!r}, and is opened with "
                f"{about.get(key)!r}; its ids would not fit",
                key=key,
            )


def _taken(session: str) -> SessionError:
    return SessionError(
        f"the session {session} was taken over by another opening of it, so nothing is stored from here; open it again"
    )
