"""The peers that speed.py measures: their environment, and the process of its Python that they run in.

Kept in `$TITO_PEERS`, or `tito/peers` in the user's cache; each peer is installed by itself. Asked by lines of JSON on standard
input, answered on standard output. An append is given all messages, the ids of the last prompt and those of its completion,
and makes the ids of the next prompt; a session is a full render of the first message, then an append a turn. Each peer is
called as its README says, its tokenizer transformers' own:

- miles-tito-tokenizers: append `merge_tokens`, full `render_messages` tokenized, on the template that it resolves for results
  of tools; audit the same full render, and `compare_sequences` of its comparator.
- renderers: append `bridge_to_next_turn`, full `render_ids`, by the typed config of the family.
- verl: append `merge_assistant_tokens` and `merge_context_tokens`, full `build_initial_tokens`, of the continuous-token builder
  that it chooses by the model type, on the published chat template. It is installed without Ray and torch: its package's
  `__init__` needs them and is stepped over, the builder does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
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
        if subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=False).returncode:
            raise SystemExit(f"no environment for the peers can be made in {home}; name another place with TITO_PEERS")
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


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """This process's seconds on the CPU, and what the call answered."""
    began = time.process_time()
    answer = call()
    return time.process_time() - began, answer


def best(run: Callable[[], tuple[float, Any]]) -> float:
    """The least seconds of a block of runs."""
    times: list[float] = []
    until = time.perf_counter() + BLOCK
    while not times or time.perf_counter() < until:
        times.append(run()[0])
    return min(times)


class NoSuchFamily(Exception):
    """The peer has nothing that makes these prompts."""


def opened(place: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(place)


class Miles:
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

    def append(self, messages: list[Any], prompt: list[int], completion: list[int], tools: Any) -> list[int]:
        return self.made.merge_tokens(messages[:-1], messages, prompt + completion, tools)

    def full(self, messages: list[Any], tools: Any, header: bool = True) -> list[int]:
        return self.made.render_messages(messages, add_generation_prompt=header, tools=tools, tokenize=True)

    def audit(self, messages: list[Any], ids: list[int], tools: Any) -> int:
        return len(self.comparator.compare_sequences(self.full(messages, tools, header=False), ids))


class Renderers:
    def __init__(self, family: str, place: Path) -> None:
        import renderers
        from renderers.configs import DeepSeekV4RendererConfig, Qwen3RendererConfig

        known = {"qwen3": Qwen3RendererConfig(), "deepseekv4": DeepSeekV4RendererConfig(enable_thinking=True)}
        if family not in known:
            raise NoSuchFamily
        self.made = renderers.create_renderer(opened(place), known[family])

    def append(self, messages: list[Any], prompt: list[int], completion: list[int], tools: Any) -> list[int]:
        bridged = self.made.bridge_to_next_turn(prompt, completion, messages[-1:], tools=tools)
        if bridged is None:
            raise RuntimeError("bridge_to_next_turn asks for a full render")
        return bridged.token_ids

    def full(self, messages: list[Any], tools: Any) -> list[int]:
        return self.made.render_ids(messages, tools=tools, add_generation_prompt=True)


class Verl:
    def __init__(self, family: str, place: Path) -> None:
        for name in ("verl", "verl.utils"):
            package = ModuleType(name)
            package.__path__ = [str(distribution("verl").locate_file(name.replace(".", "/")))]
            sys.modules.setdefault(name, package)
        from verl.utils.tokenizer import continuous_token_wiring as wiring

        model_type = json.loads((place / "config.json").read_text())["model_type"]
        if wiring.infer_continuous_token_model_family(hf_model_type=model_type) == "default":
            raise NoSuchFamily
        thinking = {"enable_thinking": True}
        self.made = wiring.create_continuous_token_builder(
            opened(place), hf_model_type=model_type, chat_template_kwargs=thinking
        )

    def append(self, messages: list[Any], prompt: list[int], completion: list[int], tools: Any) -> list[int]:
        ids = self.made.merge_assistant_tokens(prompt, completion).token_ids
        return self.made.merge_context_tokens(messages[:-1], messages, ids, tools=tools).token_ids

    def full(self, messages: list[Any], tools: Any) -> list[int]:
        return self.made.build_initial_tokens(messages, tools=tools)


PEERS = dict(zip(REQUIREMENTS, (Miles, Renderers, Verl), strict=True))


@cache
def peer_of(name: str, family: str, place: str) -> Any:
    return PEERS[name](family, Path(place))


@cache
def case_of(path: str) -> Any:
    return json.loads(Path(path).read_text())


def run(peer: Any, call: str, case: Any) -> Any:
    messages, tools, prompt, completion = (case[key] for key in ("messages", "tools", "prompt", "completion"))
    if call == "append":
        return peer.append(messages, prompt, completion, tools)
    if call == "full":
        return peer.full(messages, tools)
    if call == "audit":
        return peer.audit(messages[:-1], prompt + completion, tools)
    prompt = peer.full(messages[:1], tools)
    *before, last = case["completions"]
    for number, completion in enumerate(before):
        prompt = peer.append(messages[: 2 * number + 3], prompt, completion, tools)
    return prompt + last


def answer(asked: Any) -> dict[str, Any]:
    peer = peer_of(asked["peer"], asked["family"], asked["place"])
    if asked["call"] == "audit" and not hasattr(peer, "audit"):
        return {"none": "has no comparator"}
    call = partial(run, peer, asked["call"], case_of(asked["case"]))
    if asked["first"]:
        return {"result": call()}
    return {"seconds": best(partial(timed, call))}


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the peers print is no answer
    for line in sys.stdin:
        try:
            said = answer(json.loads(line))
        except NoSuchFamily:
            said = {"none": "has no such family"}
        except Exception as cause:
            said = {"none": f"fails: {cause!r:.200}"}
        print(json.dumps(said), file=out, flush=True)


if __name__ == "__main__":
    main()
