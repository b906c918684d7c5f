"""`tito recipe`: what it prints to the letter, which names are one option, and how it exits."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tito_core import Recipe, from_namespace
from tito_core.cli.main import tito
from tito_core.families.registry import default_registry
from tito_core.recipes.plan import ENGINES


def says(*arguments: str) -> Result:
    return CliRunner().invoke(tito, ("recipe", *arguments), prog_name="tito")


def params() -> list[click.Parameter]:
    command = tito.get_command(click.Context(tito), "recipe")
    assert command is not None
    return command.params


def served(*arguments: str) -> list[str]:
    """The words of the one command."""
    said = says("deepseekv32", *arguments)
    assert said.exit_code == 0, said.output
    (line,) = [line for line in said.output.splitlines() if not line.startswith("#")]
    return shlex.split(line)


def test_what_it_prints() -> None:
    said = says("deepseekv32", "--tp", "16", "--profile", "low-latency", "--set", "page-size=64", "--env", "A=b c")
    assert said.exit_code == 0
    assert (
        said.output
        == """\
# sglang, family deepseekv32, profile low-latency, platform cuda
# source: SGLang, docs/basic_usage/deepseek_v32.md
# seen working: not by us
# model deepseek-ai/DeepSeek-V3.2: the first model of deepseekv32
# speculative.algorithm EAGLE: profile low-latency of deepseekv32
# speculative.num_steps 3: profile low-latency of deepseekv32
# speculative.eagle_topk 1: profile low-latency of deepseekv32
# speculative.num_draft_tokens 4: profile low-latency of deepseekv32
# tensor_parallel 16: caller
# expert_parallel 8: profile low-latency of deepseekv32
# arguments.page-size 64: caller
# environment.A b c: caller
# parsers deepseek-v3 and deepseekv32: parsers of deepseekv32
# note: max_running_requests is unset: beside speculation SGLang runs 48 requests at once, where the model has no number of its own
A='b c' python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3.2 --tensor-parallel-size 16 --expert-parallel-size 8 --reasoning-parser deepseek-v3 --tool-call-parser deepseekv32 --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --page-size 64
"""
    )


def test_a_shell_takes_it_as_it_is() -> None:
    said = says("deepseekv32", "--env", "A=it's $HOME # not", "--model", "/a b/$c")
    text = said.output.replace("python -m sglang.launch_server", "printf '%s|' \"$A\"")
    done = subprocess.run(["sh"], input=f"export A\n{text}", capture_output=True, text=True, check=True)
    assert done.stdout.split("|")[1:3] == ["--model-path", "/a b/$c"]


def test_one_command_a_node() -> None:
    said = says("deepseekv32", "--nodes", "2", "--tp", "16", "--address", "10.0.0.1:5000")
    lines = [line for line in said.output.splitlines() if "node" in line]
    assert [line for line in lines if line.startswith("#")] == ["# node 0 of 2", "# node 1 of 2"]
    assert sum("--nnodes 2 --node-rank" in line for line in lines) == 2


@pytest.mark.parametrize("name", ["--tp", "--tp-size", "--tensor-parallel-size"])
def test_every_name_of_a_size(name: str) -> None:
    words = served(name, "16")
    assert words[words.index("--tensor-parallel-size") + 1] == "16"
    assert served(name, "16", "--tp", "16") == words


def test_every_name_that_an_engine_has_is_taken() -> None:
    ours = {name for parameter in params() for name in parameter.opts}
    fields = set(Recipe.model_fields) | {"parsers.reasoning", "parsers.tool_call"}
    for line in ENGINES.values():
        for option in line.options:
            if option.field in fields - {"speculative"} or option.field.startswith("speculative."):
                wanted = {f"--{name}" for name in option.names}
                assert wanted - ours <= {"--enable-expert-parallel", "--enable-auto-tool-choice"}, option.field


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--tp", "8", "--tp-size", "4"), "--tp-size 4 and --tp 8 are one option, tensor_parallel; give one of them"),
        (("--ep", "8", "--ep", "4"), "--ep 8 and --ep 4 are one option, expert_parallel; give one of them"),
        (
            ("--expert-parallel-size", "8", "--ep-size", "4"),
            "--expert-parallel-size 8 and --ep-size 4 are one option, expert_parallel; give one of them",
        ),
        (
            ("--enable-dp-attention", "--dp", "8", "--attn-dp-size", "4"),
            "--data-parallel-size 8 --enable-dp-attention and --attention-data-parallel-size 4 are one option, "
            "attention_data_parallel; give one of them",
        ),
        (
            ("--enable-dp-attention",),
            "--enable-dp-attention says whose --data-parallel-size is, and none is given; give one",
        ),
        (("--format", "vllm", "--engine", "sglang"), "--format vllm is not --engine sglang's; leave out one of them"),
        (
            ("--format", "namespace", "--engine", "vllm"),
            "--format namespace is not --engine vllm's; leave out one of them",
        ),
        (
            ("--set", "page-size"),
            "Invalid value for '--set': 'page-size' is not NAME=VALUE; a bare flag is NAME=true",
        ),
        (("--env", "A"), "Invalid value for '--env': 'A' is not NAME=VALUE"),
        (("--set", "a=1", "--set", "a=2"), "Invalid value for '--set': a is given as '1' and as '2'"),
        (("--set", "a=1", "--set", "a=true"), "Invalid value for '--set': a is given as '1' and as 'true'"),
        (
            ("--speculative-algorithm", "NONE", "--speculative-num-steps", "3"),
            "--speculative-algorithm none is no speculation, and --speculative-num-steps 3 is a part of one; leave out one of "
            "them",
        ),
        (("--tp", "0"), "Invalid value for '--tp': 0 is not in the range x>=1."),
    ],
)
def test_usage(arguments: tuple[str, ...], why: str) -> None:
    said = says("deepseekv32", *arguments)
    assert said.exit_code == 2
    assert said.stderr.splitlines()[-1] == f"Error: {why}"
    assert said.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ("deepseekv32", "--tp", "6"),
            "deepseekv32 can't be served by sglang with the profile 'default': tensor_parallel is 6, and expert_parallel 8 × "
            "moe_data_parallel 1 is 8: they must divide it; give sizes that do",
        ),
        (
            ("deepseekv32", "--speculative-num-steps", "3"),
            "deepseekv32 can't be served by sglang with the profile 'default': num_draft_tokens is 3 and num_steps is 3: with "
            "eagle_topk 1 SGLang drafts num_steps + 1, that is 4, whatever it is told; give that",
        ),
        (
            ("deepseekv32", "--profile", "plain", "--speculative-num-steps", "3", "--speculative-algorithm", "EAGLE"),
            "deepseekv32 can't be served with the profile 'plain' and the overrides {'speculative': {'algorithm': 'EAGLE', "
            "'num_steps': 3}}: Recipe.speculative: speculation gives num_steps, eagle_topk and num_draft_tokens together, or is "
            "None; missing: eagle_topk, num_draft_tokens",
        ),
        (
            ("deepseekv32", "--profile", "p"),
            "deepseekv32 has no recipe of the profile 'p'; known: default, plain, low-latency",
        ),
        (
            ("deepseekv32", "--nodes", "2"),
            "2 nodes find each other at the first one's address, and that is None; give HOST:PORT (address, --address)",
        ),
        (
            ("deepseekv32", "--set", "tp_size=4"),
            "deepseekv32 can't be served by sglang with the profile 'default': arguments has tp_size 4, and that is the field "
            "tensor_parallel, which is 8; say it there alone",
        ),
        (
            ("deepseekv4", "--speculative-algorithm", "EAGLE3"),
            "deepseekv4 can't be served with the profile 'default': it speculates with EAGLE3 of top-k 1, and takes EAGLE of "
            "top-k 1 or DSPARK only",
        ),
        (
            ("deepseekv32", "--model", ""),
            "the model is an empty text; give a directory or a name, or none",
        ),
        (
            ("deepseekv32", "--mem-fraction-static", "nan"),
            "deepseekv32 can't be served with these values: Deployment.overrides: holds what JSON does not keep; write null, "
            "booleans, numbers, strings, lists and string keys",
        ),
        (
            ("deepseekv32", "--env", "A=\udcff"),
            "deepseekv32 can't be served with these values: Deployment.overrides: holds what JSON does not keep; write null, "
            "booleans, numbers, strings, lists and string keys",
        ),
        (
            ("deepseekv4", "--profile", "balanced", "--env", "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK="),
            "deepseekv4 can't be served with the profile 'balanced': SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK is '', "
            "which is no number of tokens; give one, at least 256",
        ),
    ],
)
def test_a_callers_values_that_can_not_be_served(arguments: tuple[str, ...], why: str) -> None:
    said = says(*arguments)
    assert (said.exit_code, said.stderr, said.stdout) == (2, f"error: {why}\n", "")


def test_what_the_family_itself_can_not_be_served_with() -> None:
    said = says("qwen35", "--format", "vllm")
    assert (said.exit_code, said.stdout) == (3, "")
    assert said.stderr == (
        "error: qwen35 can't be served by vllm with the profile 'default': its arguments and environment are sglang's: "
        "mamba-radix-cache-strategy, page-size; take another profile, or say engine, arguments and environment for this one\n"
    )
    assert says("nosuch").exit_code == 3
    assert says("deepseekv4", "--platform", "rocm", "--format", "vllm").exit_code == 3


def test_parts_of_speculation_stand_beside_the_profiles() -> None:
    words = served("--speculative-num-steps", "1", "--speculative-num-draft-tokens", "2")
    at = words.index("--speculative-algorithm")
    assert words[at:] == [
        *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "1", "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", "2"),
    ]
    assert "--speculative-algorithm" not in served("--speculative-algorithm", "none")


def test_a_parser_is_the_familys_own() -> None:
    said = says("qwen36", "--tool-call-parser", "qwen25")
    assert (said.exit_code, said.output) == (
        2,
        "error: sglang reads reasoning with the parser qwen3 and tool calls with qwen25, and qwen36 is read with qwen3 and "
        "qwen3_coder; start it with --reasoning-parser qwen3 --tool-call-parser qwen3_coder\n",
    )
    told = json.loads(says("deepseekv32", "--format", "json", "--engine", "vllm", "--reasoning-parser", "other").output)
    assert told["recipe"]["parsers"] == {"reasoning": "other", "tool_call": None}


def test_attentions_data_parallelism() -> None:
    words = served("--dp", "8", "--enable-dp-attention")
    assert words == served("--attn-dp-size", "8")
    assert words[words.index("--data-parallel-size") :][:3] == ["--data-parallel-size", "8", "--enable-dp-attention"]


def test_json() -> None:
    said = says("deepseekv4", "--platform", "rocm", "--format", "json", "--model", "m")
    told = json.loads(said.output)
    assert next(iter(told)) == "schema_version"
    assert (told["engine"], told["family"], told["deployment"]["platform"]) == ("sglang", "deepseekv4", "rocm")
    assert told["origins"]["environment.SGLANG_USE_AITER_AG"] == "profile default of deepseekv4"
    assert told["origins"]["model"] == "caller"
    assert told["commands"] == [
        {"argv": told["commands"][0]["argv"], "environment": {"SGLANG_USE_AITER_AG": "false"}},
    ]
    assert told["commands"][0]["argv"][:5] == ["python", "-m", "sglang.launch_server", "--model-path", "m"]
    assert Recipe.model_validate(told["recipe"]).tensor_parallel == 8
    other = json.loads(says("deepseekv32", "--format", "json", "--engine", "vllm").output)
    assert other["commands"][0]["argv"][:2] == ["vllm", "serve"]


def test_namespace() -> None:
    told: dict[str, Any] = json.loads(says("deepseekv4", "--profile", "balanced", "--format", "namespace").output)
    fields = told["namespace"]
    assert (fields["sglang_dp_size"], fields["sglang_enable_dp_attention"], fields["sglang_ep_size"]) == (8, True, 8)
    declared = default_registry.get_family("deepseekv4").recipes["balanced"]
    again = from_namespace(fields, environment=told["environment"])
    parsers = default_registry.get_family("deepseekv4").parsers["sglang"]
    assert again == declared.on("cuda").told().model_copy(update={"parsers": parsers})


def test_an_argument_that_is_json() -> None:
    words = served("--set", 'lora-paths=["a","b"]', "--set", "enable-lora=true", "--profile", "plain", "--set", "x=1:2")
    assert words[-6:] == ["--lora-paths", "a", "b", "--enable-lora", "--x", "1:2"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        *((one, one) for one in ("1e5", "1.10", "1e999", "NaN", "-Infinity", "[NaN]", "[1e999]", "0012", " 1", "True")),
        *((one, one) for one in ("99999999999999999999999", "0.8", "-1", '{"a": [1.5, null]}', "[" * 100_000)),
        ('"1e5"', "1e5"),
    ],
)
def test_no_value_is_changed(text: str, word: str) -> None:
    last = served("--set", f"revision={text}")[-1]
    assert last.removeprefix("--revision=") == word


def test_attention_that_the_profile_has() -> None:
    balanced = ("deepseekv4", "--profile", "balanced")
    assert says(*balanced, "--enable-dp-attention").output == says(*balanced).output


def test_the_guide() -> None:
    """docs/recipes.md shows what is printed, runs, and names every rule."""
    guide = (Path(__file__).parent.parent / "docs" / "recipes.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```console\n\$ tito recipe (.*?)\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    assert says(*shlex.split(shown[0])).output == shown[1]
    (example,) = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(example, "recipes.md", "exec"), {})
    assert [line.split()[7:9] for line in printed.getvalue().splitlines()] == [
        ["--node-rank", "0"],
        ["--node-rank", "1"],
    ]
    assert re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE) == list(ENGINES["sglang"].rules)
    options = set(re.findall(r"`(--[a-z-]+)", guide.partition("## What is refused")[0]))
    assert options - {name for parameter in params() for name in parameter.opts} == set()
