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
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tito_core
from chats import TOOL, Json, assistant, call, codec, result, said, step, user
from tito_core import Completion, Counters, MemoryStore, Session, SQLiteStore, Store
from tito_core.errors import SessionError
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


def grown(session: Session) -> list[Json]:
    """Calls, results, a retry, a branch, a compaction, one completion that was read back, one stop string."""
    messages: list[Json] = [{"role": "system", "content": "S"}, user("naïve ☕")]
    calls = [call("a", '{"x": 1, "big": 123456789012345678901234567890}'), call("b", '{"y": [1.0, null]}')]
    step(session, messages, assistant("", tool_calls=calls), tools=[TOOL])
    messages += [result("b", "RB"), result("a", "RA")]
    step(session, [*messages], assistant("first"))
    done = said(assistant("second"))
    session.commit(session.prepare(messages), dataclasses.replace(done, message=None, meta={"weight_version": "v1"}))
    step(session, [*messages[:3], result("a", "other"), result("b", "RB")], assistant("sum\n"))
    step(session, [user("So far: sum")], assistant("third"))
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
    assert str(error.value) == ("the request continues turn 0 of an earlier opening of the session s; prepare it again")
    step(other, messages, assistant("c"))
    assert [turn.message.content for turn in codec().session(store=store, id="s").turns] == ["a", "c"]


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
        "the stored session s was begun with linear=False, and is opened with True; its ids would not fit"
    )
    other = tito_core.load("deepseekv32", vocabulary="v4")
    with pytest.raises(SessionError, match="^the stored session s was begun with vocabulary="):
        other.session(store=store, id="s")


def test_what_can_t_be_stored_is_not_committed(store: Store) -> None:
    session = codec().session(store=store, id="s")
    request = session.prepare([user("q")])
    with pytest.raises(
        SessionError, match=r"^completion c can't be kept in a store: its meta is not JSON \(Object of type"
    ):
        session.commit(request, dataclasses.replace(said(assistant("a")), meta={"x": object()}, id="c"))
    assert session.turns == ()
    assert codec().session(store=store, id="s").turns == ()


def test_a_store_that_fails_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "turns.db")
    session = codec().session(store=store, id="s")
    messages = [user("q")]
    step(session, messages, assistant("a"))
    request, before = session.prepare([*messages, user("u")]), seen(session)
    store.close()
    with pytest.raises(
        SessionError, match="^the store .*turns.db can't be used .ProgrammingError: .*; what was committed"
    ):
        session.commit(request, said(assistant("b")))
    assert seen(session) == before
    with SQLiteStore(tmp_path / "turns.db") as again:
        assert seen(codec().session(store=again, id="s")) == before


def test_a_file_that_is_no_store_and_a_record_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "no.db"
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(SessionError, match="^the store .*no.db can't be used .DatabaseError: file is not a database"):
        SQLiteStore(path)
    good = tmp_path / "good.db"
    with SQLiteStore(good) as store:
        step(codec().session(store=store, id="s"), [user("q")], assistant("a"))
        with closing(sqlite3.connect(good)) as file, file:
            assert file.execute("pragma journal_mode").fetchone() == ("wal",)
            file.execute("update turns set record = substr(record, 1, 50)")
        with pytest.raises(
            SessionError,
            match=r"^the record of turn 0 can't be read \(ValueError: its checksum is \w{8}, and \w{8} is written\); it was",
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
        match=rf"^the record of turn 1 can't be read \({why}\); it was written by another version, or changed$",
    ):
        codec().session(store=store, id="s")


def test_a_record_that_is_missing(store: Store) -> None:
    session = codec().session(store=store, id="s")
    messages = [user("q")]
    for text in ("a", "b", "c"):
        step(session, messages, assistant(text))
        messages.append(user("u"))
    if isinstance(store, SQLiteStore):
        store._file.execute("delete from turns where number = 1")
    else:
        del store._held["s"][1][1]  # type: ignore[attr-defined]
    with pytest.raises(
        SessionError, match=r"^the record of turn 1 can't be read \(ValueError: it is the record of turn 2"
    ):
        codec().session(store=store, id="s")


def test_a_session_that_was_begun_in_another_mode(store: Store) -> None:
    step(codec().session(store=store, id="s", thinking=True), [user("q")], assistant("a"))
    with pytest.raises(SessionError) as error:
        codec().session(store=store, id="s", thinking=False)
    assert str(error.value) == (
        "the stored session s was begun with thinking=True, and is opened with False; its ids would not fit"
    )
    assert len(codec().session(store=store, id="s", chat_template_kwargs={"enable_thinking": True}).turns) == 1


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
