"""The peers that speed.py measures: their environment, and the process of its Python that they run in.

Kept in `$TITO_PEERS`, or `tito/peers` in the user's cache; each is installed by itself. Asked by lines of JSON on standard
input, answered on standard output. Each is called as its README says:

- miles-tito-tokenizers, with the fixed template that it resolves for results of tools. Append: `merge_tokens` of the messages
  before and after and the ids so far. Full: `render_messages`, tokenized. Audit: that, and `compare_sequences` of the
  comparator that it makes.
- renderers, with the typed config of the family. Append: `bridge_to_next_turn` of the prompt's and the completion's ids and the
  new message. Full: `render_ids`.
- verl, with the continuous-token builder that it chooses by the model type, and the published chat template. Append:
  `merge_context_tokens` of the messages before and after and the ids so far. Full: `build_initial_tokens`. Its package is
  installed without Ray and torch, and its `__init__`, which needs them, is stepped over: the builder does not.

A session is a first prompt, rendered in full, and 225 appends, each after `prompt + completion` (verl: `merge_assistant_tokens`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

TRANSFORMERS = "transformers>=5.5.3,!=5.6.0,<5.11"  # as verl asks
REQUIREMENTS = {
    "miles-tito-tokenizers": ("miles-tito-tokenizers==0.1.1",),
    "renderers": ("renderers[transformers]==0.1.12", "httpx"),
    "verl": ("verl==0.9.1", "--no-deps"),
}
BLOCK = 0.05  # seconds that a short call is repeated for


def installed() -> tuple[Path, dict[str, str]]:
    """The environment's Python, and what pip said last of each peer that can't be installed."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = Path(os.environ.get("TITO_PEERS") or f"{cache_home}/tito/peers").expanduser().absolute()
    python, failed = home / "bin" / "python", {}
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
    for peer, required in REQUIREMENTS.items():
        stamp = home / f".{peer}"
        if stamp.exists() and stamp.read_text() == f"{TRANSFORMERS} {required}":
            continue
        for arguments in ((TRANSFORMERS,), required):
            command = [python, "-m", "pip", "install", "--quiet", "--no-input", *arguments]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode:
                failed[peer] = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
                break
        else:
            stamp.write_text(f"{TRANSFORMERS} {required}")
    return python, failed


def timed(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> tuple[float, Any]:
    """Seconds, and what the call answered."""
    began = clock()
    answer = call()
    return clock() - began, answer


def best(run: Callable[[], tuple[float, Any]]) -> float:
    """The least seconds of a block of runs."""
    times: list[float] = []
    until = time.perf_counter() + BLOCK
    while not times or time.perf_counter() < until:
        times.append(run()[0])
    return min(times)


class NoSuchFamily(Exception):
    """The peer knows none by which these prompts could be made."""

    def __str__(self) -> str:
        return "has no such family"


def opened(place: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(place)


class Peer:
    """One peer for one family: `append`, `full`, and for a session `step`. A case is what speed.py wrote; ids are lists."""

    def __init__(self, family: str, place: Path) -> None:
        raise NotImplementedError

    def append(self, case: Any) -> list[int]:
        raise NotImplementedError

    def step(self, case: Any, done: int, prompt: list[int], completion: list[int]) -> list[int]:
        raise NotImplementedError

    def render(self, messages: Any, tools: Any) -> list[int]:
        raise NotImplementedError

    def full(self, case: Any) -> list[int]:
        return self.render(case["messages"], case["tools"])

    def session(self, case: Any) -> list[int]:
        prompt = self.render(case["messages"][:1], case["tools"])
        *before, last = case["completions"]
        for number, completion in enumerate(before):
            prompt = self.step(case, 2 * number + 2, prompt, completion)
        return prompt + last


class Miles(Peer):
    def __init__(self, family: str, place: Path) -> None:
        import miles_tito_tokenizers as miles

        if family not in list(miles.TITOTokenizerType):
            raise NoSuchFamily
        tokenizer = opened(place)
        template, _ = miles.resolve_fixed_chat_template(family, ["tool"])
        if template:
            tokenizer.chat_template = Path(template).read_text(encoding="utf-8")
        self.made = miles.get_tito_tokenizer(tokenizer, tokenizer_type=family, allowed_append_roles=["tool"])
        self.comparator = self.made.create_comparator()

    def append(self, case: Any) -> list[int]:
        return self.made.merge_tokens(case["old"], case["messages"], case["ids"], case["tools"])

    def step(self, case: Any, done: int, prompt: list[int], completion: list[int]) -> list[int]:
        messages = case["messages"]
        return self.made.merge_tokens(messages[:done], messages[: done + 1], prompt + completion, case["tools"])

    def render(self, messages: Any, tools: Any) -> list[int]:
        return self.made.render_messages(messages, add_generation_prompt=True, tools=tools, tokenize=True)

    def audit(self, case: Any) -> int:
        expected = self.made.render_messages(
            case["old"], add_generation_prompt=False, tools=case["tools"], tokenize=True
        )
        return len(self.comparator.compare_sequences(expected, case["ids"]))


class Renderers(Peer):
    def __init__(self, family: str, place: Path) -> None:
        import renderers
        from renderers import configs

        made = {
            "qwen3": configs.Qwen3RendererConfig(),
            "deepseekv4": configs.DeepSeekV4RendererConfig(enable_thinking=True),
        }
        if family not in made:
            raise NoSuchFamily
        self.made = renderers.create_renderer(opened(place), made[family])

    def append(self, case: Any) -> list[int]:
        return self._bridged(case["prompt"], case["completion"], case["messages"][-1:], case["tools"])

    def step(self, case: Any, done: int, prompt: list[int], completion: list[int]) -> list[int]:
        return self._bridged(prompt, completion, case["messages"][done : done + 1], case["tools"])

    def _bridged(self, prompt: list[int], completion: list[int], messages: Any, tools: Any) -> list[int]:
        bridged = self.made.bridge_to_next_turn(prompt, completion, messages, tools=tools)
        if bridged is None:
            raise RuntimeError("bridge_to_next_turn asks for a full render")
        return bridged.token_ids

    def render(self, messages: Any, tools: Any) -> list[int]:
        return self.made.render_ids(messages, tools=tools, add_generation_prompt=True)


class Verl(Peer):
    def __init__(self, family: str, place: Path) -> None:
        for name in ("verl", "verl.utils"):
            package = ModuleType(name)
            package.__path__ = [str(distribution("verl").locate_file(name.replace(".", "/")))]
            sys.modules.setdefault(name, package)
        from verl.utils.tokenizer import continuous_token_wiring as wiring

        model_type = json.loads((place / "config.json").read_text())["model_type"]
        if wiring.infer_continuous_token_model_family(hf_model_type=model_type) == "default":
            raise NoSuchFamily
        self.made = wiring.create_continuous_token_builder(
            opened(place), hf_model_type=model_type, chat_template_kwargs={"enable_thinking": True}
        )

    def append(self, case: Any) -> list[int]:
        return self._merged(case["old"], case["messages"], case["ids"], case["tools"])

    def step(self, case: Any, done: int, prompt: list[int], completion: list[int]) -> list[int]:
        ids = self.made.merge_assistant_tokens(prompt, completion).token_ids
        return self._merged(case["messages"][:done], case["messages"][: done + 1], ids, case["tools"])

    def _merged(self, old: Any, new: Any, ids: list[int], tools: Any) -> list[int]:
        return self.made.merge_context_tokens(old, new, ids, tools=tools).token_ids

    def render(self, messages: Any, tools: Any) -> list[int]:
        return self.made.build_initial_tokens(messages, tools=tools)


PEERS = dict(zip(REQUIREMENTS, (Miles, Renderers, Verl), strict=True))


@cache
def peer_of(name: str, family: str, place: str) -> Peer:
    return PEERS[name](family, Path(place))


@cache
def case_of(path: str) -> Any:
    case = json.loads(Path(path).read_text())
    return {**case, "old": case["messages"][:-1], "ids": case["prompt"] + case["completion"]}


def answer(asked: Any) -> dict[str, Any]:
    peer = peer_of(asked["peer"], asked["family"], asked["place"])
    call = getattr(peer, asked["call"], None)
    if call is None:
        return {"none": "has no comparator"}
    case = case_of(asked["case"])
    clock = time.process_time if asked["call"] == "session" else time.perf_counter
    if asked["first"]:
        return {"result": call(case)}
    return {"seconds": best(lambda: timed(lambda: call(case), clock))}


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the peers print is no answer
    for line in sys.stdin:
        try:
            said = answer(json.loads(line))
        except Exception as cause:
            said = {"none": str(cause) if isinstance(cause, NoSuchFamily) else f"fails: {cause!r:.90}"}
        print(json.dumps(said), file=out, flush=True)


if __name__ == "__main__":
    main()
