"""Where committed turns are kept: in memory, or in a file that outlives its process."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from tito_core.errors import SessionError
from tito_core.families.family import ThinkingDecision
from tito_core.prompts.messages import Message, Tool, ToolCall
from tito_core.responses.completion import Completion
from tito_core.responses.parse import Parsed
from tito_core.sessions.turn import Turn
from tito_core.tokens.encoder import IdSpan

__all__ = ["FORMAT", "MemoryStore", "SQLiteStore", "Store", "check_about", "check_keys", "packed", "unpacked"]


_T = TypeVar("_T")


class Store(Protocol):
    """Keeps the turns of sessions as records, each whole or not at all. Safe under threads."""

    def take(self, session: str, about: str, read: Callable[[str, Sequence[str]], _T]) -> tuple[int, _T]:
        """Takes a session over from whoever held it, or begins it: a claim that `put` must show, and what `read` makes of
        the text that it was begun with (`about`, where it is begun here) and of its records, oldest first.

        Where `read` raises, nothing is taken and nothing begun. Raises SessionError where a record is missing.
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
        self._held: dict[str, tuple[str, list[str]]] = {}
        self._claims: dict[str, int] = {}

    def take(self, session: str, about: str, read: Callable[[str, Sequence[str]], _T]) -> tuple[int, _T]:
        with self._lock:
            before, records = self._held.get(session, (about, []))
            made = read(before, tuple(records))
            self._held[session] = before, records
            self._claims[session] = self._claims.get(session, 0) + 1
            return self._claims[session], made

    def put(self, session: str, claim: int, number: int, record: str) -> None:
        with self._lock:
            if self._claims.get(session) != claim:
                raise _taken(session)
            self._held[session][1][number:] = [record]


FORMAT: Final = 2
"""Of the file, and of the records in it."""
_WAIT: Final = 30.0  # seconds, for what others hold
_PROGRAM: Final = int.from_bytes(b"tito")
_SCHEMA: Final = (
    "create table sessions (id text primary key, about text not null, claim integer not null, turns integer not null)",
    "create table turns (session text, number integer, record text not null, primary key (session, number))",
    f"pragma application_id = {_PROGRAM}",
    f"pragma user_version = {FORMAT}",
)
_CHANGED: Final = "changed, or written by another version: put a copy in its place, or begin a session under another id"
_ELSEWHERE: Final = "name a store or a new file, in a directory that is there and may be written"


class SQLiteStore:
    """Keeps turns in a SQLite file (WAL, every commit synced), which processes on one machine may share: each opens its own.

    A turn whose `commit` returned is there after the process was killed, and so after the machine was. Leaving its `with`,
    `close`, or dropping it closes the file: nothing waits to be written. Raises SessionError for a path that is no such
    file and can't become one; a file of something else stays as it is.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self._path = os.fsdecode(path)
        except TypeError:
            raise SessionError(f"a store's path is {path!r:.80}; pass the path of its file") from None
        self._lock = threading.Lock()
        self._process = os.getpid()
        try:
            self._file = sqlite3.connect(self._path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
        except (sqlite3.Error, ValueError) as cause:  # ValueError: what no path holds
            raise self._failed(cause, _ELSEWHERE) from cause
        self._closed = weakref.finalize(self, self._file.close)
        try:
            self._open()
        except sqlite3.Error as cause:
            self.close()
            raise self._failed(cause, _ELSEWHERE) from cause
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file, once what is being written is; a second time it does nothing."""
        with self._lock:
            self._closed()

    def take(self, session: str, about: str, read: Callable[[str, Sequence[str]], _T]) -> tuple[int, _T]:
        with self._transaction() as file:
            row = file.execute("select about, claim, turns from sessions where id = ?", (session,)).fetchone()
            before, claim, turns = row or (about, 0, 0)
            found = file.execute("select record from turns where session = ? order by number", (session,)).fetchall()
            if len(found) != turns:
                raise SessionError(
                    f"the stored session {session} was left with {turns} turn(s), and {self._path!r} holds {len(found)}; "
                    f"it was {_CHANGED}",
                    id=session,
                )
            made = read(before, [record for (record,) in found])
            file.execute("insert or replace into sessions values (?, ?, ?, ?)", (session, before, claim + 1, turns))
            return claim + 1, made

    def put(self, session: str, claim: int, number: int, record: str) -> None:
        with self._transaction() as file:
            mine = "update sessions set turns = ? where id = ? and claim = ?"
            if not file.execute(mine, (number + 1, session, claim)).rowcount:
                raise _taken(session)
            file.execute("delete from turns where session = ? and number >= ?", (session, number))
            file.execute("insert into turns values (?, ?, ?)", (session, number, record))

    def _open(self) -> None:
        """Makes a store of a new file."""
        new = not self._made()
        (journal,) = self._journal()
        if journal != "wal":
            raise SessionError(
                f"the store {self._path!r} can't be used: SQLite keeps its journal as {journal!r} there, not as 'wal', and "
                "would lose turns; name a file on a local disk, or take MemoryStore()"
            )
        self._file.execute("pragma synchronous=full")
        if new:
            with self._transaction() as file:
                for statement in () if self._made() else _SCHEMA:
                    file.execute(statement)

    def _journal(self) -> Any:
        """SQLite does not wait itself where another changes the journal, or holds a new file, at that moment."""
        until = time.monotonic() + _WAIT
        while True:
            try:
                return self._file.execute("pragma journal_mode=wal").fetchone()
            except sqlite3.OperationalError as cause:
                if cause.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def _made(self) -> bool:
        """Whether the file is a store, and not new. Raises SessionError where it is something else."""
        program, version, tables = self._file.execute(
            "select application_id, user_version, (select group_concat(name, ', ') from sqlite_master where type <> 'index')"
            " from pragma_application_id, pragma_user_version"
        ).fetchone()
        if (program, version) == (_PROGRAM, FORMAT):
            return True
        if program == _PROGRAM:
            raise SessionError(
                f"the store {self._path!r} is of format {version}, and this tito reads format {FORMAT}; open it with the tito "
                "that wrote it, or name another file"
            )
        if program or version or tables:
            raise SessionError(
                f"the database {self._path!r} (tables: {tables}) was written by another program, or by a tito before its "
                f"files had formats, and this tito reads format {FORMAT}; name another file"
            )
        return False

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, alone in the file."""
        if os.getpid() != self._process:  # before the lock, which may have been held when the process forked
            raise SessionError(
                f"the store {self._path!r} was opened by process {self._process}, from which this one ({os.getpid()}) forked, "
                "and SQLite's locks do not reach here; open it in each process"
            )
        with self._lock:
            if not self._closed.alive:
                raise SessionError(f"the store {self._path!r} is closed; open it again, what was committed is there")
            try:
                self._file.execute("begin immediate")
                yield self._file
                self._file.execute("commit")
            except sqlite3.Error as cause:
                raise self._failed(cause, "what was committed before is there: see to that, and do it again") from cause
            finally:
                if self._file.in_transaction:  # SQLite itself rolls back where the disk is full
                    self._file.execute("rollback")

    def _failed(self, cause: Exception, do: str) -> SessionError:
        return SessionError(f"the store {self._path!r} can't be used ({type(cause).__name__}: {cause}); {do}")


def packed(turn: Turn) -> str:
    """A turn as a record: the crc32 of what follows it, and JSON, arrays in base64. Raises SessionError where its
    completion holds what does not come back from JSON as it was."""
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
    _check_meta(done)
    text = json.dumps(held, ensure_ascii=False)
    return f"{_checksum(text)} {text}"


def unpacked(session: str, records: Sequence[str]) -> tuple[Turn, ...]:
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
                f"the record of turn {len(turns)} of the stored session {session} can't be read ({type(cause).__name__}: "
                f"{cause}); it was {_CHANGED}",
                id=session,
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


def _check_meta(done: Completion) -> None:
    try:
        check_keys(done.meta)
        json.dumps(dict(done.meta), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as cause:
        raise SessionError(
            f"completion {done.id} can't be kept in a store: its meta is not JSON ({cause}); keep plain values in it",
            id=done.id,
        ) from cause


def check_keys(value: Any) -> None:
    """Raises TypeError for a key that JSON would make a text of."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is a {type(key).__name__}, not a text")
            check_keys(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            check_keys(one)


def check_about(session: str, before: str, about: Mapping[str, Any]) -> None:
    """Raises SessionError where a stored session was begun with something else, or that can't be read."""
    try:
        begun = dict(json.loads(before))
    except Exception as cause:  # what was changed can be anything
        raise SessionError(
            f"what the stored session {session} was begun with can't be read ({type(cause).__name__}: {cause}); it was "
            f"{_CHANGED}",
            id=session,
        ) from cause
    keys = [key for key in {**about, **begun} if _said(begun, key) != _said(about, key)]
    if keys:
        then, now = (", ".join(f"{key}={_said(one, key)}" for key in keys) for one in (begun, about))
        raise SessionError(
            f"the stored session {session} was begun with {then}, and is opened with {now}; its turns would not go on as they "
            "began: open it with what it was begun with, or another session under another id",
            id=session,
            keys=keys,
        )


def _said(about: Mapping[str, Any], key: str) -> str:
    return json.dumps(about[key], sort_keys=True) if key in about else "(nothing)"


def _taken(session: str) -> SessionError:
    return SessionError(
        f"the session {session} was taken over by another opening of it, so nothing is stored from here; open it again",
        id=session,
    )
