"""tito beside its peers, in one run: times, ratios, and the bounds that tito is built to.

    make bench        or: python tests/oracles.py && python benchmarks/speed.py

Everybody gets the same conversation, tool schemas and vocabulary: a user's question and 226 turns, each a thought, a call and
its result of 262 tokens. Peers run as peers.py says, and tito so:

- append: `codec.append(turn, [result]).ids`, the turn being the first with so many ids, the first prompt's apart.
- session: `session.prepare` and `session.commit` of all turns, the whole conversation sent each time.
- full: `codec.prompt(messages, tools=tools).ids` of the whole conversation.
- audit: `session.compare()`: the conversation rendered, encoded and compared with the ids that the session stores.
- memory: session_memory.py counts it.
- commands: as they are typed; miles-tito-tokenizers has one that verifies a template, on conversations of its own.

A first call is not timed: its ids are compared with tito's, and what differs is printed. Then come five rounds, fewer where they
take long and two at least, of tito and each peer in turn, short calls repeated. The least time counts; every time is one on the
CPU, all threads together, so that what else runs counts little. A ratio says how many times as long the peer takes.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import peers
import session_memory
from peers import best, timed
from session_memory import ASKED, LIMIT, TOOL, answer_to, completions, grow, owned, turn_of

sys.path.append(str(session_memory.ROOT / "tests"))

import oracles
import tito_core
from tito_core.tokens.compare import shared_length

ROUNDS, SPENT = 5, 6.0  # rounds of a row; seconds after which it has no third one
SIZES = {"1k": 1_000, "10k": 10_000, "100k": 100_000}
FAMILIES: dict[
    str, tuple[Any, str, float, dict[str, Any]]
] = {  # vocabulary, model type, tokens/s, the template's kwargs
    "qwen3": ("qwen3", "qwen3", 1.2e6, {}),
    "deepseekv32": ("r1", "deepseek_v32", 1.5e6, {}),
    "deepseekv4": ("v4", "deepseek_v4", 1.5e6, {"reasoning_effort": "low"}),  # which prints nothing, as the peers do
}
ONE = [{**TOOL, "defer_loading": None}]  # an engine prints that key, so tito does; the peers print what they are given
FIELD = {"type": "string", "description": "A path, a pattern or a name, relative to the root of the repository."}
FORTY = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": "Does one thing to the files of the repository and says what it did. " * 4,
            "parameters": {"type": "object", "properties": {f"argument_{one}": FIELD for one in range(11)}},
        },
        "defer_loading": None,
    }
    for number in range(40)
]


Run = Callable[[], tuple[float, Any]]
Show = Callable[[float], str]


@dataclass(frozen=True)
class Row:
    """What is measured: tito's `run` gives seconds and a result, `call` is the peers' method for what is in `case`."""

    name: str
    limit: float
    show: Show
    run: Run
    call: str
    family: str
    case: Path


class Child:
    """The process that the peers run in."""

    def __init__(self) -> None:
        self.python, self.failed = peers.installed()
        quiet = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
        self.environment = {key: value for key, value in quiet.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        self.process = subprocess.Popen(
            [self.python, peers.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.environment,
        )

    def ask(self, peer: str, row: Row, first: bool) -> Any:
        if peer in self.failed:
            return {"none": f"does not install: {self.failed[peer]}"}
        assert self.process.stdin
        assert self.process.stdout
        asked = {"peer": peer, "family": row.family, "call": row.call, "first": first}
        self.process.stdin.write(json.dumps({**asked, "place": str(row.case.parent), "case": str(row.case)}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.{3 if seconds < 0.01 else 0}f} ms"


def tokens(count: int) -> Callable[[float], str]:
    return lambda seconds: f"{count / seconds / 1e6:.2f} M/s"


def rows_of(family: str, scratch: Path) -> Iterator[Row]:
    vocabulary, model_type, rate, kwargs = FAMILIES[family]
    place = scratch / family
    place.mkdir()
    (place / "tokenizer.json").write_bytes(oracles.tokenizer_json(vocabulary).read_bytes())
    (place / "config.json").write_text(json.dumps({"model_type": model_type}))
    (place / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (place / "chat_template.jinja").write_text(oracles.chat_template("qwen3"), encoding="utf-8")
    codec = tito_core.load(family, vocabulary=vocabulary)
    sampled = completions(codec)
    messages = [ASKED]
    for number in range(len(sampled)):
        messages += [turn_of(number), answer_to(number)]

    def row(name: str, limit: float, show: Show, run: Run, call: str, turn: Any, tools: Any) -> Row:
        ids, cut = turn.ids.tolist(), turn.end - turn.sampled
        case = {"messages": messages[: turn.length + 1], "tools": tools, "prompt": ids[:cut], "completion": ids[cut:]}
        case["completions"] = [one.ids.tolist() for one in sampled[: turn.number + 1]]
        path = place / f"{name}.json"
        path.write_text(json.dumps(case))
        return Row(name, limit, show, run, call, family, path)

    for tools in (FORTY, ONE):
        session, _ = grow(codec, sampled, tools, **kwargs)
        first = session.turns[0].end - session.turns[0].sampled
        for size, ids in SIZES.items():
            turn = next((turn for turn in session.turns if turn.end - first >= ids), session.turns[-1])
            appended = partial(timed, lambda turn=turn: codec.append(turn, [messages[turn.length]]).ids)
            name = f"append at {size}, {len(tools)} tool{'s' * (len(tools) > 1)}: {first:,} ids"
            yield row(name, 0.3e-3, milliseconds, appended, "append", turn, tools)

    def grown() -> tuple[float, Any]:
        made, seconds = grow(codec, sampled, ONE, **kwargs)
        return seconds, made.turns[-1].ids

    last = session.turns[-1]
    full = partial(timed, lambda: codec.prompt(messages, tools=ONE, decision=last.decision).ids)
    audit = partial(timed, lambda: len(session.compare()))
    count = len(full()[1])
    yield row(f"session of 226 turns: {last.end:,} ids", 0.15, milliseconds, grown, "session", last, ONE)
    yield row(f"full render and encode: {count:,} ids", count / rate, tokens(count), full, "full", last, ONE)
    yield row(f"audit: {last.end:,} ids", 0.1, milliseconds, audit, "audit", last, ONE)


def differing(ours: Any, theirs: Any) -> str:
    """What is not the same, as text; empty where all is."""
    if isinstance(ours, int):
        return "" if ours == theirs == 0 else f"tito finds {ours} mismatches, it finds {theirs}"
    ids = ours.tolist()
    if ids == theirs:
        return ""
    first, last = (shared_length(np.array(ids[::way]), np.array(theirs[::way])) for way in (1, -1))
    mine, other = (one[first : max(first, len(one) - last)] for one in (ids, theirs))
    return f"{len(mine)} of {len(ids):,} ids, from {first:,} on, are {len(other)} others: {other[:6]}, not {mine[:6]}"


def measure(row: Row, child: Child) -> tuple[float, list[float | str], list[str]]:
    """tito's seconds; each peer's, or why there are none; and what differs or fails."""
    began = time.perf_counter()
    _, ours = row.run()
    firsts = {peer: child.ask(peer, row, first=True) for peer in peers.PEERS}
    notes = [f"{peer}: {first['none']}" for peer, first in firsts.items() if ": " in first.get("none", "")]
    times: dict[str, list[float]] = {"tito": []}
    for peer, first in firsts.items():
        if "result" in first:
            times[peer] = []
            if what := differing(ours, first["result"]):
                notes.append(f"{peer}: {row.family}, {row.name}: {what}")
    for number in range(ROUNDS):
        if number < 2 or time.perf_counter() - began < SPENT:
            for who, its in times.items():
                its.append(best(row.run) if who == "tito" else child.ask(who, row, first=False)["seconds"])
    others = [min(times[peer]) if peer in times else first["none"].partition(": ")[0] for peer, first in firsts.items()]
    return min(times["tito"]), others, notes


def line(name: str, mine: str, limit: str, met: str, others: Iterable[str]) -> None:
    print(f"  {name:44} {mine:>10} {limit:>10}  {met:3}" + "".join(f" {one:>22}" for one in others), flush=True)


def said(met: bool) -> str:
    return "yes" if met else "NO"


def commands(child: Child, scratch: Path) -> None:
    """What is run as a command: `tito --help` six times, `tito verify` once."""
    tito = Path(sys.executable).with_name("tito")
    helped = min(ran(tito, "--help")[0] for _ in range(6))
    line("tito --help", milliseconds(helped), "150 ms", said(helped <= 0.15), [])
    modules, bare = imported(tito, "--help"), imported("-c", "pass")
    packages = {name.partition(".")[0] for name in modules - bare} - set(sys.stdlib_module_names)
    print(f"      imports {len(modules - bare)} modules more than Python alone, of {', '.join(sorted(packages))}")
    for family in FAMILIES:
        seconds, done = ran(tito, "verify", "--family", family)
        others = ["has no such command"] * len(peers.PEERS)
        script = ("-m", "miles_tito_tokenizers.scripts.verify_chat_template", "--tito-model", family)
        more = ("--model", scratch / family, "--tito-allowed-append-roles", "tool")
        theirs, their = ran(child.python, *script, *more, environment=child.environment)
        passed = re.search(r"^Results: (\d+)/\1 passed", their.stdout, re.MULTILINE)
        others[0] = f"{passed[1]} cases: {theirs:.1f} s" if passed else "fails"
        met = said(seconds <= 30 and not done.returncode)
        line(f"tito verify --family {family}", f"{seconds:.1f} s", "30 s", met, others)
        print(f"      {done.stdout.strip().splitlines()[-1]}")


def imported(*arguments: Any) -> set[str]:
    traced = ran(sys.executable, "-X", "importtime", *arguments)[1].stderr.splitlines()
    return {text.rpartition("|")[2].strip() for text in traced if text.startswith("import time:")}


def ran(*command: Any, environment: dict[str, str] | None = None) -> tuple[float, subprocess.CompletedProcess[str]]:
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime, done


def main() -> None:
    began = time.monotonic()
    child = Child()
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    print(f"{os.cpu_count()} cores, {cpu[1] if cpu else platform.machine()}, load {os.getloadavg()[0]:.1f}")
    required = ", ".join(one[0] for one in peers.REQUIREMENTS.values())
    print(f"Python {platform.python_version()}, tito-core {version('tito-core')}; beside it {required}\n")
    line("", "tito", "bound", "met", peers.PEERS)
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for family in FAMILIES:
            print(family)
            for row in rows_of(family, Path(scratch)):
                mine, found, differ = measure(row, child)
                others = [one if isinstance(one, str) else f"{row.show(one)} {one / mine:6,.1f}x" for one in found]
                line(row.name, row.show(mine), row.show(row.limit), said(mine <= row.limit), others)
                notes += differ
        print("memory and commands")
        session, _ = session_memory.grown()
        held = sum(owned(session).values())
        others = ["keeps no session"] * len(peers.PEERS)
        name = f"memory of a session: {session.turns[-1].end:,} ids"
        line(name, f"{held / 1e6:.2f} MB", f"{LIMIT / 1e6:g} MB", said(held <= LIMIT), others)
        commands(child, Path(scratch))
    print("\n" + ("\n".join(dict.fromkeys(notes)) or "every peer's ids are tito's"))
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
