"""tito beside its peers, in one run: seconds, ratios, and the bounds that tito is built to.

    make bench        or: python tests/oracles.py && python benchmarks/speed.py

Everybody gets the same conversation, tool schemas and vocabulary: a user's question and 226 turns, each a thought, a call and
a result of 262 tokens. What each peer is called with is said in peers.py; what tito is:

- append: `codec.append(turn, [result]).ids`, the turn being the first whose ids, the schemas apart, are so many.
- session: `session.prepare` and `session.commit` for all turns, the whole conversation sent each time; CPU time.
- full: `codec.prompt(messages, tools=tools).ids` of that whole conversation.
- audit: `session.compare()`: the conversation rendered, encoded and compared with the ids that the session stores.
- memory: session_memory.py. `tito --help` and `tito verify` are commands that are run; miles-tito-tokenizers has one that
  verifies a template on conversations of its own.

The first call of each is not timed: its ids are compared with tito's, and a difference is printed. Then come up to five rounds,
in each tito and then the peers, one after the other; short calls are repeated within a round. The least time counts.
A ratio says how many times as long the peer takes. Ids are on the CPU; nothing needs a GPU or a network once it is installed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import peers
import session_memory
from peers import best, timed
from session_memory import ASKED, LIMIT, TOOL, answer_to, completions, grow, owned, turn_of

sys.path.append(str(session_memory.ROOT / "tests"))

import oracles  # noqa: E402
import tito_core  # noqa: E402

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
            "parameters": {"type": "object", "properties": {f"argument_{one}": FIELD for one in range(13)}},
        },
        "defer_loading": None,
    }
    for number in range(40)
]


@dataclass(frozen=True)
class Row:
    """What is measured: tito's `run` gives seconds and a result, `call` is the peers' method for the case at `case`."""

    name: str
    limit: float
    show: Callable[[float], str]
    family: str
    run: Callable[[], tuple[float, Any]]
    call: str
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


def in_seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"


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

    def written(name: str, turn: Any, tools: Any) -> Path:
        ids = turn.ids.tolist()
        case = {
            "messages": messages[: turn.length + 1],
            "tools": tools,
            "prompt": ids[: -turn.sampled],
            "completion": ids[-turn.sampled :],
            "completions": [one.ids.tolist() for one in sampled[: turn.number + 1]],
        }
        path = place / f"{name}.json"
        path.write_text(json.dumps(case))
        return path

    for tools in (FORTY, ONE):
        session, _ = grow(codec, sampled, tools, **kwargs)
        schemas = session.turns[0].end - session.turns[0].sampled
        for size, ids in SIZES.items():
            turn = next((turn for turn in session.turns if turn.end - schemas >= ids), session.turns[-1])
            name = f"append at {size}, {len(tools)} tool{'s' * (len(tools) > 1)}, {schemas:,} ids"
            case = written(f"{size}-{len(tools)}", turn, tools)

            def appended(turn: Any = turn) -> tuple[float, Any]:
                return timed(lambda: codec.append(turn, [messages[turn.length]]).ids)

            yield Row(name, 0.3e-3, milliseconds, family, appended, "append", case)
    last = session.turns[-1]
    case = written("whole", last, ONE)

    def grown() -> tuple[float, Any]:
        made, seconds = grow(codec, sampled, ONE, **kwargs)
        return seconds, made.turns[-1].ids

    def full() -> Any:
        return codec.prompt(messages, tools=ONE, decision=last.decision).ids

    count = len(full())
    yield Row(f"session of 226 turns, {last.end:,} ids, CPU", 0.15, milliseconds, family, grown, "session", case)
    yield Row(
        f"full render and encode, {count:,} ids", count / rate, tokens(count), family, lambda: timed(full), "full", case
    )
    audited = f"audit of {last.end:,} ids"
    yield Row(audited, 0.1, milliseconds, family, lambda: timed(lambda: len(session.compare())), "audit", case)


def differing(ours: Any, theirs: Any) -> str:
    """What is not the same, as text; empty where all is."""
    if isinstance(ours, int):
        return "" if ours == theirs == 0 else f"tito finds {ours} mismatches, it finds {theirs}"
    ids = ours.tolist()
    if ids == theirs:
        return ""
    pairs = list(zip(ids, theirs, strict=False))
    first = next((place for place, (one, other) in enumerate(pairs) if one != other), len(pairs))
    many = sum(one != other for one, other in pairs) + abs(len(ids) - len(theirs))
    return f"{many:,} of {len(ids):,} ids differ, the first at {first:,}: {theirs[first : first + 3]}, not {ids[first : first + 3]}"


def measure(row: Row, child: Child) -> tuple[float, dict[str, Any], list[str]]:
    """tito's seconds; each peer's, or why there are none; and what differs."""
    _, ours = row.run()
    found: dict[str, Any] = {}
    notes, began = [], time.perf_counter()
    for peer in peers.PEERS:
        said = child.ask(peer, row, True)
        found[peer] = said.get("none", float("inf"))
        if "result" in said and (what := differing(ours, said["result"])):
            notes.append(f"{row.family}, {row.name}: {peer}: {what}")
    mine = float("inf")
    for number in range(ROUNDS):
        if number > 1 and time.perf_counter() - began > SPENT:
            break
        mine = min(mine, best(row.run))
        for peer, known in found.items():
            if not isinstance(known, str):
                found[peer] = min(known, child.ask(peer, row, False)["seconds"])
    return mine, found, notes


def line(name: str, mine: str, bound: str, met: bool | None, others: list[str]) -> None:
    kept = {True: "yes", False: "NO", None: "met"}[met]
    print(
        f"  {name:46} {mine:>11} {bound:>11}  {kept:4}" + "".join(f" {other:>24}" for other in others).rstrip(),
        flush=True,
    )


def commands(child: Child, scratch: Path) -> None:
    """What is run as a command, once after a warm-up where it is short."""
    tito = Path(sys.executable).with_name("tito")
    none = ["", "", ""]
    helped = min(timed(lambda: ran([tito, "--help"]))[0] for _ in range(6))
    line("tito --help", milliseconds(helped), "150 ms", helped <= 0.15, none)
    traced = ran([sys.executable, "-X", "importtime", tito, "--help"]).stderr
    modules = [text.rpartition("|")[2].strip() for text in traced.splitlines() if text.startswith("import time:")]
    packages = sorted({name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names))
    print(f"      it imports {len(modules)} modules; not of the standard library: {', '.join(packages)}")
    for family in FAMILIES:
        seconds, done = timed(lambda family=family: ran([tito, "verify", "--family", family]))
        said = done.stdout.strip().splitlines()[-1]
        others = ["has no such command"] * 3
        script = [child.python, "-m", "miles_tito_tokenizers.scripts.verify_chat_template", "--tito-model", family]
        theirs, their = timed(
            lambda family=family, script=script: ran(
                [*script, "--model", scratch / family, "--tito-allowed-append-roles", "tool"], child.environment
            )
        )
        result = [text for text in their.stdout.splitlines() if text.startswith("Results:")]
        others[0] = f"{result[0].split()[1]} cases in {theirs:.1f} s" if result else "fails"
        if "miles-tito-tokenizers" in child.failed:
            others[0] = "does not install"
        line(
            f"tito verify --family {family}", in_seconds(seconds), "30 s", seconds <= 30 and not done.returncode, others
        )
        print(f"      {said}")


def ran(command: list[Any], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environment
    )


def main() -> None:
    began = time.monotonic()
    child = Child()
    cpu = next(
        (text.partition(": ")[2] for text in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in text), ""
    )
    print(
        f"{os.cpu_count()} cores, {cpu or platform.machine()}; Python {platform.python_version()}; load {os.getloadavg()[0]:.1f}"
    )
    required = ", ".join(one[0] for one in peers.REQUIREMENTS.values())
    print(f"tito-core {version('tito-core')} beside {required}\n")
    notes: list[str] = []
    line("row", "tito", "at most", None, list(peers.PEERS))
    with tempfile.TemporaryDirectory() as scratch:
        for family in FAMILIES:
            print(f"{family}")
            for row in rows_of(family, Path(scratch)):
                mine, found, more = measure(row, child)
                others = [
                    one if isinstance(one, str) else f"{row.show(one)} {one / mine:6,.1f}x" for one in found.values()
                ]
                line(row.name, row.show(mine), row.show(row.limit), mine <= row.limit, others)
                notes += more
        print("commands and memory")
        session, _ = session_memory.grown()
        held = sum(owned(session).values())
        line(
            f"memory of a session of {session.turns[-1].end:,} ids",
            f"{held / 1e6:.2f} MB",
            f"{LIMIT / 1e6:g} MB",
            held <= LIMIT,
            ["keeps no session"] * 3,
        )
        commands(child, Path(scratch))
    print()
    print("\n".join(notes) or "every id of every peer equals tito's")
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
