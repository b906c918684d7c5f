"""Stored sessions: every committed turn is there again, whole, whatever became of its process; counts add up."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import os
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tito_core
from chats import TOOL, Json, assistant, call, codec, result, said, step, user
from tito_core import Completion, Counters, MemoryStore, Message, Session, SQLiteStore, Store, ToolCall
from tito_core.errors import CompletionError, SessionError
from tito_core.sessions.store import FORMAT, check_about, packed, unpacked
from token_path import EOS, engine_ids


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[sqlite3.Connection]]:
    """What a test opens, which must be closed when it ends: Python 3.13 warns of the others, wherever it then is."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def recorded(*given: Any, **named: Any) -> sqlite3.Connection:
        opened.append(connect(*given, **named))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", recorded)
    yield opened
    assert list(map(is_closed, opened)) == [True] * len(opened)


def is_closed(file: sqlite3.Connection) -> bool:
    try:
        file.execute("select 1")
    except sqlite3.ProgrammingError as cause:
        return "closed" in str(cause)
    return False


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with SQLiteStore(tmp_path / "turns.db") as made:
        yield made


def seen(session: Session) -> list[tuple[Any, ...]]:
    places = [(turn.parent, turn.summarises) for turn in session.turns]
    return [
        (
            turn.number,
            turn.depth,
            *(other and other.number for other in places[turn.number]),
            turn.ids.tolist(),
            turn.sampled,
            np.asarray(turn.completion.logprobs).tolist(),
            (turn.completion.id, turn.completion.stop, turn.finish_reason, dict(turn.completion.meta)),
            {name: (rows.tolist(), str(rows.dtype)) for name, rows in turn.completion.extras.items()},
            turn.conversation(),
            (
                turn.tools,
                turn.decision,
                turn.length,
                turn.kept,
                turn.spans,
                turn.parsed,
                turn.requested,
                turn.committed,
            ),
        )
        for turn in session.turns
    ]


SUM = "a sum that is said in words enough"


def grown(session: Session) -> list[Json]:
    """Calls, results, a retry, a branch, a compaction, one completion that was read back, one stop string."""
    messages: list[Json] = [{"role": "system", "content": "S"}, user("naïve ☕")]
    calls = [call("a", '{"x": 1, "big": 123456789012345678901234567890}'), call("b", '{"y": [1.0, null]}')]
    step(session, messages, assistant("", tool_calls=calls), tools=[TOOL])
    messages += [result("b", "RB"), result("a", "RA")]
    step(session, [*messages], assistant("first"))
    done = said(assistant("second"))
    session.commit(session.prepare(messages), dataclasses.replace(done, message=None, meta={"weight_version": "v1"}))
    step(session, [*messages[:3], result("a", "other"), result("b", "RB")], assistant(f"{SUM}\n"))
    step(session, [user(f"So far: {SUM}")], assistant("third"))
    messages += [session.turns[2].message.wire(), user("u")]
    reply = assistant("x</answer>")
    ids = said(reply).ids[:-1]
    session.commit(
        session.prepare(messages), Completion(ids, [-1.0] * len(ids), "stop", stop="</answer>", message=reply)
    )
    return [*messages, reply, user("on")]


def test_a_stored_session_is_there_again(store: Store) -> None:
    session = codec().session(store=store, id="s")
    messages = grown(session)
    again = codec().session(store=store, id="s")
    assert seen(again) == seen(session)
    assert [turn.summarises and turn.summarises.number for turn in again.turns] == [None] * 4 + [3, None]
    assert again.prepare(messages).ids.tolist() == session.prepare(messages).ids.tolist()
    for one, other in zip(session.samples(select="leaves"), again.samples(select="leaves"), strict=True):
        assert (one.tokens.tolist(), one.loss_mask.tolist()) == (other.tokens.tolist(), other.loss_mask.tolist())
        assert (one.logprobs.tolist(), one.turns, one.metadata) == (
            other.logprobs.tolist(),
            other.turns,
            other.metadata,
        )
    turn = again.commit(again.prepare(messages), said(assistant("after")))
    assert turn.number == 6
    assert seen(codec().session(store=store, id="s")) == seen(again)
    assert codec().session(store=store, id="another").turns == ()


def test_extras_are_stored(store: Store) -> None:
    session = codec().session(store=store, id="s")
    messages = [user("q")]
    for text in ("a", "b"):
        request, done = session.prepare(messages), said(assistant(text))
        rows = np.concatenate((request.ids, done.ids)).astype(np.uint8).reshape(-1, 1)
        session.commit(request, dataclasses.replace(done, extras={"experts": rows}))
        messages += [assistant(text), user("u")]
    again = codec().session(store=store, id="s")
    assert seen(again) == seen(session)
    (sample,) = again.samples()
    assert sample.extras["experts"][:, 0].tolist() == sample.tokens.astype(np.uint8).tolist()


def test_who_was_taken_over_stores_nothing_more(store: Store) -> None:
    session = codec().session(store=store, id="s")
    messages = [user("q")]
    step(session, messages, assistant("a"))
    messages.append(user("u"))
    request = session.prepare(messages)
    other = codec().session(store=store, id="s")
    before = seen(session)
    with pytest.raises(SessionError) as error:
        session.commit(request, said(assistant("b")))
    assert str(error.value) == (
        "the session s was taken over by another opening of it, so nothing is stored from here; open it again"
    )
    assert seen(session) == before
    with pytest.raises(SessionError) as error:
        other.commit(request, said(assistant("b")))
    assert str(error.value) == "the request was prepared by another opening of the session s; prepare it again"
    step(other, messages, assistant("c"))
    assert [turn.message.content for turn in codec().session(store=store, id="s").turns] == ["a", "c"]


def test_a_first_prompt_of_another_opening_is_not_stored(store: Store) -> None:
    session = codec().session(store=store, id="s")
    step(session, [user("q")], assistant(SUM))
    summary = session.prepare([user(f"So far: {SUM}")])
    for other in (codec().session(store=store, id="s"), codec().session(id="s", thinking=False)):
        before = seen(other)
        with pytest.raises(SessionError) as error:
            other.commit(summary, said(assistant("b")))
        assert str(error.value) == "the request was prepared by another opening of the session s; prepare it again"
        assert seen(other) == before


def same_role(stored: Message, sent: Message) -> bool:
    return stored.role == sent.role


def test_a_linear_session_s_first_turn_that_was_taken_back_is_not_summarised(store: Store) -> None:
    settings: Json = {"store": store, "id": "s", "linear": True, "matcher": same_role}
    session = codec().session(**settings)
    step(session, [user("q")], assistant(SUM))
    assert step(session, [user(f"not {SUM}")], assistant("a")).summarises is None
    assert seen(codec().session(**settings)) == seen(session)


def test_a_linear_session_s_turn_that_was_taken_back_is_gone(store: Store) -> None:
    session = codec().session(store=store, id="s", linear=True)
    messages = [user("q")]
    step(session, messages, assistant("a"))
    messages.append(user("u"))
    for text in ("b", "c"):
        session.commit(session.prepare(messages), said(assistant(text)))
    assert (session.counters().rollbacks, session.counters().turns) == (1, 2)
    again = codec().session(store=store, id="s", linear=True)
    assert [turn.message.content for turn in again.turns] == ["a", "c"]
    assert seen(again) == seen(session)


def test_a_session_that_was_begun_otherwise(store: Store) -> None:
    step(codec().session(store=store, id="s"), [user("q")], assistant("a"))
    with pytest.raises(SessionError) as error:
        codec().session(store=store, id="s", linear=True)
    assert str(error.value) == (
        "the stored session s was begun with linear=false, and is opened with linear=true; its turns would not go on as they "
        "began: open it with what it was begun with, or another session under another id"
    )
    assert error.value.where == {"id": "s", "keys": ["linear"]}
    other = tito_core.load("deepseekv32", vocabulary="v4")
    with pytest.raises(SessionError, match="^the stored session s was begun with vocabulary="):
        other.session(store=store, id="s")


CHANGED = "changed, or written by another version: put a copy in its place, or begin a session under another id"
SURROGATE = "at character 1, which is not text; decode the bytes it came from with errors='replace'"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"meta": {"x": object()}}, "its meta is not JSON (Object of type object is not JSON serializable)"),
        ({"meta": {"x": [{1: 2}]}}, "its meta is not JSON (the key 1 is a int, not a text)"),
        (
            {"meta": {"x": "a\ud800"}},
            "its meta is not JSON ('utf-8' codec can't encode character '\\ud800' in position 8: surrogates not allowed)",
        ),
        (
            {"meta": {"\ud800": 1}},
            "its meta is not JSON ('utf-8' codec can't encode character '\\ud800' in position 2: surrogates not allowed)",
        ),
    ],
)
def test_what_can_t_be_stored_is_not_committed(store: Store, change: Json, why: str) -> None:
    session = codec().session(store=store, id="s")
    request = session.prepare([user("q")])
    with pytest.raises(SessionError) as error:
        session.commit(request, dataclasses.replace(said(assistant("a")), id="c", **change))
    assert str(error.value) == f"completion c can't be kept in a store: {why}; keep plain values in it"
    assert session.turns == ()
    assert codec().session(store=store, id="s").turns == ()


def test_meta_comes_back_as_it_was(store: Store) -> None:
    session = codec().session(store=store, id="s")
    meta = {"☕": [None, True, 1, 1.0, 10**400, "\0", {"x": {}}], "y": float("inf")}
    session.commit(session.prepare([user("q")]), dataclasses.replace(said(assistant("a")), meta=meta))
    (turn,) = codec().session(store=store, id="s").turns
    assert repr(turn.completion.meta) == repr(meta)


@pytest.mark.parametrize(
    ("message", "where"),
    [
        (assistant("a\ud800"), "content"),
        (assistant("a", tool_calls=[call("a\ud800")]), "tool call 0 id"),
        (Message("assistant", "a\ud800"), "content"),
        (Message("assistant", tool_calls=(ToolCall("f", {"x": "a\ud800"}),)), "tool call 0 arguments"),
    ],
)
def test_a_message_with_a_lone_surrogate_is_not_committed(message: Any, where: str) -> None:
    session = codec().session(id="s")
    request = session.prepare([user("q")])
    with pytest.raises(CompletionError) as error:
        session.commit(request, dataclasses.replace(said(assistant("a")), id="c", message=message))
    assert str(error.value) == (
        f"completion c has a message that can't be stored: message 1 (assistant) {where} holds the lone surrogate '\\ud800' {SURROGATE}"
    )
    assert session.turns == ()


def test_a_store_that_fails_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "turns.db")
    session = codec().session(store=store, id="s")
    messages = [user("q")]
    step(session, messages, assistant("a"))
    request, before = session.prepare([*messages, user("u")]), seen(session)
    store.close()
    with pytest.raises(SessionError) as error:
        session.commit(request, said(assistant("b")))
    assert str(error.value) == (
        f"the store '{tmp_path}/turns.db' is closed; open it again, what was committed is there"
    )
    assert seen(session) == before
    with SQLiteStore(tmp_path / "turns.db") as again:
        assert seen(codec().session(store=again, id="s")) == before


def test_a_record_in_the_file_that_is_none(tmp_path: Path) -> None:
    good = tmp_path / "good.db"
    with SQLiteStore(good) as store:
        step(codec().session(store=store, id="s"), [user("q")], assistant("a"))
        with closing(sqlite3.connect(good)) as file, file:
            assert file.execute("pragma journal_mode").fetchone() == ("wal",)
            file.execute("update turns set record = substr(record, 1, 50)")
        with pytest.raises(
            SessionError,
            match=r"^the record of turn 0 of the stored session s can't be read \(ValueError: its checksum is \w{8}, and \w{8} is written\); it was",
        ):
            codec().session(store=store, id="s")
        for about in ("[1]", "{", "[" * 100_000):
            with closing(sqlite3.connect(good)) as file, file:
                file.execute("update sessions set about = ?", (about,))
            with pytest.raises(SessionError, match="^what the stored session s was begun with can't be read"):
                codec().session(store=store, id="s")


def test_a_store_closes_its_file(tmp_path: Path, files: list[sqlite3.Connection]) -> None:
    path = tmp_path / "turns.db"
    with SQLiteStore(path) as store:
        assert not is_closed(files[0])
    assert is_closed(files[0])
    store.close()
    session: Session | None = codec().session(store=SQLiteStore(path), id="s")
    assert session
    step(session, [user("q")], assistant("a"))
    assert not is_closed(files[1])
    session = None
    gc.collect()
    assert is_closed(files[1])
    with SQLiteStore(path) as store:
        assert len(codec().session(store=store, id="s").turns) == 1


def _summed(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x} {text}"


def _held(**change: Any) -> Any:
    return lambda record: _summed(json.dumps({**json.loads(record[9:]), **change}))


SAID: Json = {
    "content": "a",
    "reasoning": "☕",
    "tool_calls": [{"name": "f", "arguments": {"x": 1}, "text": "{}", "id": "i"}],
}
SENT: Json = {"role": "user", "content": "q", "reasoning": "", "tool_calls": []}
REST: Json = {"tool_call_id": None, "tools": [], "response_format": None, "name": None}
RECORD: Json = {
    "number": 0,
    "parent": None,
    "messages": [{**SENT, **REST}],
    "message": {"role": "assistant", **SAID, **REST},
    "decision": {"enabled": True, "render_kwargs": {"thinking": True}, "forward_kwargs": {}},
    "tools": [{"function": {"name": "f"}, "type": "function", "defer_loading": None}],
    "kept": 0,
    "new": ["<i4", [3], "AQAAAAIAAAADAAAA"],
    "spans": [[0, 1, "content", 0, "user"], [1, 2, "template", -1, "system"]],
    "parsed": {**SAID, "state": "ok", "why": ""},
    "summarises": None,
    "times": [1.5, 2.5],
    "completion": {"id": "c", "finish_reason": "stop", "stop": "s", "meta": {"m": [1]}},
    "logprobs": ["<f4", [1], "AACAvw=="],
    "extras": {"x": ["|u1", [2, 1], "AQI="]},
}


def test_records_are_of_this_format() -> None:
    """A record that looks otherwise is of another format: then older files must be refused, by another `FORMAT`."""
    assert FORMAT == 2
    record = _summed(json.dumps(RECORD, ensure_ascii=False))
    (turn,) = unpacked("s", [record])
    assert packed(turn) == record
    assert (turn.ids.tolist(), turn.sampled, turn.message.reasoning) == ([1, 2, 3], 1, "☕")
    assert turn.completion.logprobs.tolist() == [-1.0]  # type: ignore[union-attr]
    assert turn.completion.extras["x"].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda record: record[:-1] + " ", "ValueError: its checksum is .*"),
        (lambda record: record.replace('"content": "b"', '"content": "c"'), "ValueError: its checksum is .*"),
        (lambda record: "", "ValueError: its checksum is 00000000, and  is written"),
        (lambda record: record.encode(), "TypeError: .*"),
        (lambda record: _summed("{"), "JSONDecodeError: .*"),
        (lambda record: _summed("[" * 100_000), "RecursionError: .*"),
        (lambda record: _summed("[]"), "TypeError: .*"),
        (_held(number=0), "ValueError: it is the record of turn 0"),
        (_held(parent=-1), "ValueError: its parent is turn -1"),
        (_held(parent=1), "ValueError: its parent is turn 1"),
        (_held(summarises=-1), "ValueError: its summarises is turn -1"),
        (_held(kept=10**6), r"ValueError: it keeps 1000000 ids of the \d+ before it"),
        (_held(kept=-1), r"ValueError: it keeps -1 ids of the \d+ before it"),
        (_held(new=["<i8", [1], "AAAAAAAAAAA="]), r"ValueError: it holds 4 logprobs, and ids of int64 and .*"),
        (_held(new=["<i4", [10**400], ""]), ".*"),
    ],
)
def test_a_record_that_was_changed(change: Any, why: str) -> None:
    store = MemoryStore()
    messages = [user("q")]
    session = codec().session(store=store, id="s")
    step(session, messages, assistant("a"))
    step(session, [*messages, user("u")], assistant("b"))
    records = store._held["s"][1]
    records[1] = change(records[1])
    with pytest.raises(
        SessionError,
        match=rf"^the record of turn 1 of the stored session s can't be read \({why}\); it was {CHANGED}$",
    ):
        codec().session(store=store, id="s")


@pytest.mark.parametrize(
    ("change", "left", "held"),
    [
        ("delete from turns where number = 2", 3, 2),
        ("delete from turns where number = 1", 3, 2),
        ("delete from turns where number > 0", 3, 1),
        ("delete from turns", 3, 0),
        ("delete from sessions", 0, 3),
        ("insert into turns values ('s', 3, '')", 3, 4),
    ],
)
def test_a_record_that_is_missing(tmp_path: Path, change: str, left: int, held: int) -> None:
    with SQLiteStore(tmp_path / "turns.db") as store:
        session = codec().session(store=store, id="s")
        messages = [user("q")]
        for text in ("a", "b", "c"):
            step(session, messages, assistant(text))
            messages.append(user("u"))
        with closing(sqlite3.connect(tmp_path / "turns.db")) as file, file:
            file.execute(change)
        with pytest.raises(SessionError) as error:
            codec().session(store=store, id="s")
        assert str(error.value) == (
            f"the stored session s was left with {left} turn(s), and '{tmp_path}/turns.db' holds {held}; it was {CHANGED}"
        )


def test_what_a_linear_session_took_back_is_not_missing(store: Store) -> None:
    session = codec().session(store=store, id="s", linear=True)
    messages = [user("q")]
    step(session, messages, assistant("a"))
    step(session, [user("q")], assistant("b"))
    assert [turn.message.content for turn in codec().session(store=store, id="s", linear=True).turns] == ["b"]


MODES: dict[str, tuple[Json, Json, str, str]] = {
    "truncation": ({}, {"truncation": "close"}, '"refuse"', '"close"'),
    "overrun": ({}, {"overrun": "trim"}, '"refuse"', '"trim"'),
    "encoding": ({"encoding": "reject"}, {}, '"reject"', '"literal"'),
    "append_roles": ({"append_roles": ["tool", "user"]}, {"append_roles": {"tool"}}, '["tool", "user"]', '["tool"]'),
    "matcher": ({"matcher": "strict"}, {}, '"strict"', '"tool_arguments"'),
    "linear": ({"linear": True}, {}, "true", "false"),
}


@pytest.mark.parametrize("key", MODES)
def test_a_session_is_opened_with_what_it_was_begun_with(store: Store, key: str) -> None:
    begun, now, before, after = MODES[key]
    step(codec().session(store=store, id="s", **begun), [user("q")], assistant("a"))
    with pytest.raises(SessionError) as error:
        codec().session(store=store, id="s", **now)
    assert str(error.value).startswith(
        f"the stored session s was begun with {key}={before}, and is opened with {key}={after}; its turns"
    )
    assert len(codec().session(store=store, id="s", **begun).turns) == 1


def test_a_session_that_was_begun_in_another_mode(store: Store) -> None:
    step(codec().session(store=store, id="s", thinking=True), [user("q")], assistant("a"))
    with pytest.raises(SessionError) as error:
        codec().session(store=store, id="s", thinking=False, linear=True)
    assert str(error.value) == (
        'the stored session s was begun with linear=false, thinking=true, chat_template_kwargs={"thinking": true}, '
        'render_kwargs={"drop_thinking": false, "thinking": true}, and is opened with linear=true, thinking=false, '
        'chat_template_kwargs={"thinking": false}, render_kwargs={"drop_thinking": false, "thinking": false}; its turns would '
        "not go on as they began: open it with what it was begun with, or another session under another id"
    )
    assert error.value.where == {"id": "s", "keys": ["linear", "thinking", "chat_template_kwargs", "render_kwargs"]}
    assert len(codec().session(store=store, id="s", chat_template_kwargs={"enable_thinking": True}).turns) == 1


def test_what_was_begun_is_compared_as_json() -> None:
    for before, about, then, now in (
        ('{"x": 1}', {"x": True}, "x=1", "x=true"),
        ('{"x": 1}', {"x": 1.0}, "x=1", "x=1.0"),
        ("{}", {"x": None}, "x=(nothing)", "x=null"),
        ('{"x": {"a": 1}}', {"y": 1}, 'y=(nothing), x={"a": 1}', "y=1, x=(nothing)"),
    ):
        with pytest.raises(SessionError) as error:
            check_about("s", before, about)
        assert f"was begun with {then}, and is opened with {now}; " in str(error.value)
    check_about("s", '{"x": {"b": [1], "a": NaN}}', {"x": {"a": float("nan"), "b": (1,)}})


def test_who_fails_to_open_a_session_does_not_take_it_over(store: Store) -> None:
    session = codec().session(store=store, id="s")
    messages = [user("q")]
    step(session, messages, assistant("a"))
    messages.append(user("u"))
    with pytest.raises(SessionError, match="was begun with"):
        codec().session(store=store, id="s", linear=True)
    step(session, messages, assistant("b"))
    messages.append(user("u"))
    good = store.take("s", "", lambda about, records: (about, list(records)))[1]
    session = codec().session(store=store, id="s")

    def write(about: str, record: str) -> None:
        if isinstance(store, SQLiteStore):
            store._file.execute("update sessions set about = ?", (about,))
            store._file.execute("update turns set record = ? where number = 1", (record,))
        else:
            assert isinstance(store, MemoryStore)
            store._held["s"] = about, [good[1][0], record]

    for about, record in ((good[0], good[1][1][:-1]), ("[", good[1][1])):
        write(about, record)
        with pytest.raises(SessionError, match="can't be read"):
            codec().session(store=store, id="s")
    write(good[0], good[1][1])
    step(session, messages, assistant("c"))
    assert [turn.message.content for turn in codec().session(store=store, id="s").turns] == ["a", "b", "c"]


def test_what_fails_to_begin_is_not_begun(store: Store) -> None:
    def fail(about: str, records: Any) -> None:
        assert (about, list(records)) == ("first", [])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.take("s", "first", fail)
    assert store.take("s", "second", lambda about, records: about) == (1, "second")


def test_a_full_disk(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "turns.db") as store:
        session = codec().session(store=store, id="s")
        step(session, [user("q")], assistant("a"))
        request, before = session.prepare([user("x" * 100_000)]), seen(session)
        (pages,) = store._file.execute("pragma page_count").fetchone()
        store._file.execute(f"pragma max_page_count = {pages + 1}")
        for _ in range(2):
            with pytest.raises(SessionError) as error:
                session.commit(request, said(assistant("b")))
            assert str(error.value) == (
                f"the store '{tmp_path}/turns.db' can't be used (OperationalError: database or disk is full); what was "
                "committed before is there: see to that, and do it again"
            )
            assert seen(session) == before
        store._file.execute("pragma max_page_count = 1000000")
        session.commit(request, said(assistant("b")))
        assert seen(codec().session(store=store, id="s")) == seen(session)


ELSEWHERE = "name a store or a new file, in a directory that is there and may be written"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (None, "a store's path is None; pass the path of its file"),
        (5, "a store's path is 5; pass the path of its file"),
        (
            "\ud800",
            "the store '\\ud800' can't be used (UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud800' in position "
            f"0: surrogates not allowed); {ELSEWHERE}",
        ),
        ("a\0b", f"the store 'a\\x00b' can't be used (ValueError: embedded null byte); {ELSEWHERE}"),
        (".", f"the store '.' can't be used (OperationalError: unable to open database file); {ELSEWHERE}"),
        ("no/x.db", f"the store 'no/x.db' can't be used (OperationalError: unable to open database file); {ELSEWHERE}"),
        *(
            (
                path,
                f"the store {path!r} can't be used: SQLite keeps its journal as {journal!r} there, not as 'wal', and would lose "
                "turns; name a file on a local disk, or take MemoryStore()",
            )
            for path, journal in (("", "delete"), (":memory:", "memory"))
        ),
    ],
)
def test_a_path_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, why: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SessionError) as error:
        SQLiteStore(path)
    assert str(error.value) == why
    assert list(tmp_path.iterdir()) == []


OLD = "create table sessions (id text); create table turns (session text)"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            None,
            "the store '{}' can't be used (DatabaseError: file is not a database); name a store or a new file, in a directory "
            "that is there and may be written",
        ),
        *(
            (
                script,
                f"the database '{{}}' (tables: {tables}) was written by another program, or by a tito before its files had "
                "formats, and this tito reads format 2; name another file",
            )
            for script, tables in (
                (OLD, "sessions, turns"),
                ("create table mine (x); pragma user_version = 1", "mine"),
                ("create view mine as select 1", "mine"),
                ("pragma user_version = 1", "None"),
                ("pragma application_id = 1", "None"),
            )
        ),
        *(
            (
                f"pragma application_id = 1953068143; pragma user_version = {version}; {OLD}",
                f"the store '{{}}' is of format {version}, and this tito reads format 2; open it with the tito that wrote it, or "
                "name another file",
            )
            for version in (0, 1)
        ),
    ],
)
def test_a_file_that_is_no_store_stays_as_it_is(tmp_path: Path, script: str | None, why: str) -> None:
    path = tmp_path / "x.db"
    if script is None:
        path.write_bytes(b"this is no database, whatever its name says" * 100)
    else:
        with closing(sqlite3.connect(path)) as file:
            file.executescript(script)
    before = path.read_bytes()
    with pytest.raises(SessionError) as error:
        SQLiteStore(path)
    assert str(error.value) == why.format(path)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"x.db": before}


@pytest.mark.parametrize("lock", ["immediate", "exclusive"])
def test_a_new_file_that_another_holds_a_moment_is_waited_for(tmp_path: Path, lock: str) -> None:
    path = tmp_path / "turns.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute(f"begin {lock}")
        threading.Timer(0.3, other.execute, ["rollback"]).start()
        with SQLiteStore(path) as store:
            step(codec().session(store=store, id="s"), [user("q")], assistant("a"))


def test_a_new_file_that_several_open_at_once(tmp_path: Path) -> None:
    for number in range(10):
        with ExitStack() as stack, ThreadPoolExecutor(8) as pool:
            for store in pool.map(SQLiteStore, [tmp_path / f"{number}.db"] * 8):
                stack.enter_context(store)


def test_a_forked_process_opens_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SQLiteStore(tmp_path / "turns.db") as store:
        session, here = codec().session(store=store, id="s"), os.getpid()
        request = session.prepare([user("q")])
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(SessionError) as error:
            session.commit(request, said(assistant("a")))
        assert str(error.value) == (
            f"the store '{tmp_path}/turns.db' was opened by process {here}, from which this one (-1) forked, and SQLite's locks "
            "do not reach here; open it in each process"
        )
        monkeypatch.undo()
        session.commit(request, said(assistant("a")))


@pytest.mark.parametrize("store", ["turns.db", 5])
def test_a_store_that_is_none(store: Any) -> None:
    with pytest.raises(SessionError) as error:
        codec().session(store=store, id="s")
    assert str(error.value) == (
        f"store is {store!r}, which has no take and put; pass MemoryStore(), SQLiteStore(path) or one of your own"
    )


@pytest.mark.parametrize("name", ["", 5, b"x", [1], "\ud800"])
def test_a_session_s_id_is_text(name: Any) -> None:
    with pytest.raises(SessionError) as error:
        codec().session(id=name)
    assert str(error.value) == (
        f"a session has the id {name!r}; it is text that names it, and not empty: leave it out for a new one"
    )


@pytest.mark.slow
def test_no_turn_is_lost_or_torn_however_often_its_process_is_killed(tmp_path: Path) -> None:
    rounds = 40
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "killed.py"), str(tmp_path / "turns.db"), str(rounds)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"},
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["faults"] == []
    assert len(made["turns"]) == rounds
    assert made["turns"] == sorted(made["turns"])
    assert made["turns"][-1] >= rounds


def test_counters() -> None:
    session = codec().session(truncation="close")
    messages = [user("q")]
    for number, accept in enumerate((2.5, None, 2.0)):
        request, done = session.prepare(messages), said(assistant(f"a{number}"))
        meta: Json = (
            {"cached_tokens": number} if accept is None else {"cached_tokens": number, "spec_accept_length": accept}
        )
        session.commit(request, dataclasses.replace(done, meta=meta))
        messages += [assistant(f"a{number}"), user("u")]
    step(session, messages[:3], assistant("retry"))
    ids = [one for piece in ("r", "</think>", *"hello") for one in engine_ids("r1", piece)] + [EOS]
    session.commit(session.prepare([user("z")]), Completion(ids, [-1.0] * len(ids), "stop", message=assistant("hello")))
    session.commit(session.prepare([user("y")]), Completion([5, 6], [-1.0] * 2, "length", message=assistant("", "x")))
    counters = session.counters()
    sampled = [turn.sampled for turn in session.turns]
    assert counters == Counters(
        sessions=1,
        turns=6,
        roots=3,
        forks=1,
        truncations=1,
        sampled=sum(sampled),
        cached=3,
        accepted=sampled[0] + sampled[2],
        steps=round(sampled[0] / 2.5) + round(sampled[2] / 2.0),
        drift=Counter(assistant_text=2),
    )
    assert Counters().accept_length is None
    assert counters.accept_length == counters.accepted / counters.steps


def test_counters_leave_out_what_is_no_number() -> None:
    session = codec().session()
    for number, said_so in enumerate(
        ("1", None, -1, float("nan"), float("inf"), [], {}, True, 10**400, -(10**400), 5e-324)
    ):
        meta: Json = {"cached_tokens": said_so, "spec_accept_length": said_so}
        request = session.prepare([user(f"q{number}")])
        session.commit(request, dataclasses.replace(said(assistant("a")), meta=meta))
    counters = session.counters()
    assert (counters.turns, counters.cached, counters.accepted, counters.steps) == (11, 0, 0, 0)
    assert session.counters().accept_length is None


def test_counters_add_up_in_any_order() -> None:
    made = []
    for number in range(3):
        session = codec().session()
        messages = [user("q")]
        for _ in range(number + 1):
            request, done = session.prepare(messages), said(assistant("a"))
            session.commit(request, dataclasses.replace(done, meta={"spec_accept_length": 1.7 + number / 3}))
            messages += [assistant("a"), user("u")]
        made.append(session.counters())
    sums = [Counters.merged(order) for order in itertools.permutations(made)]
    assert sums == [sums[0]] * 6
    assert (sums[0].sessions, sums[0].turns) == (3, 6)
    assert (made[0] + made[1]) + made[2] == made[0] + (made[1] + made[2]) == sums[0]
    assert Counters.merged([]) == Counters()
