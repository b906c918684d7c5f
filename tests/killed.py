"""Grows one stored session in children that are killed, and reads it after each: run by the tests of the store.

    python tests/killed.py FILE ROUNDS

Prints a line of JSON: how many turns stood after each kill, and what was wrong with them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from chats import assistant, codec, said, user
from tito_core import Completion, Session, SQLiteStore

TURNS = 400


@contextmanager
def opened(path: str) -> Iterator[Session]:
    with SQLiteStore(path) as store:
        yield codec().session(store=store, id="s")


def grow(path: str, completions: list[Completion], told: int) -> None:
    """Commits turn after turn, telling each once its commit has returned."""
    messages = [user("q")]
    with opened(path) as session:
        for turn in session.turns:
            messages += [turn.message.wire(), user("u")]
        for completion in completions[len(session.turns) :]:
            turn = session.commit(session.prepare(messages), completion)
            os.write(told, f"{turn.number} {hash(turn.ids.tobytes())}\n".encode())
            messages += [turn.message.wire(), user("u")]


def wrong(session: Session, said_so: dict[int, int], completions: list[Completion]) -> str:
    """What is lost or torn; empty where nothing is."""
    if said_so and max(said_so) >= len(session.turns):
        return f"turn {max(said_so)} was committed, and {len(session.turns)} are there"
    for turn in session.turns:
        if turn.number in said_so and hash(turn.ids.tobytes()) != said_so[turn.number]:
            return f"turn {turn.number} has other ids"
        if turn.completion.ids.tolist() != completions[turn.number].ids.tolist():  # type: ignore[union-attr]
            return f"turn {turn.number} is torn"
    return ""


def main(path: str, rounds: int) -> None:
    rng = random.Random(0)
    completions = [said(assistant(f"a{number}")) for number in range(TURNS)]
    with opened(path):
        pass
    said_so: dict[int, int] = {}
    counts, faults = [], []
    for _ in range(rounds):
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(told)
            grow(path, completions, tell)
            os._exit(0)
        os.close(tell)
        heard = os.read(told, 100)
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(told, 10_000):
            heard += more
        os.close(told)
        for line in heard.decode().splitlines():
            number, ids = line.split()
            said_so[int(number)] = int(ids)
        with opened(path) as session:
            counts.append(len(session.turns))
            faults.append(wrong(session, said_so, completions))
    print(json.dumps({"turns": counts, "faults": [fault for fault in faults if fault]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
