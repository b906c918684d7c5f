"""vLLM: how it is told a recipe, and what it has no word for.

Read in 0.32.0: `config/parallel.py`, `config/speculative.py`, `engine/arg_utils.py`, `entrypoints/launchers/cli_args.py`.
"""

from __future__ import annotations

from typing import Any, Final

from tito_core.families.family import Deployment, Recipe
from tito_core.recipes.options import Check, CommandLine, Launch, Option

__all__ = ["VLLM"]

OPTIONS: Final = (
    Option("tensor_parallel", "tensor-parallel-size", "tensor_parallel_size", ("tp",)),
    Option("pipeline_parallel", "pipeline-parallel-size", "pipeline_parallel_size", ("pp",)),
    Option("expert_parallel", "enable-expert-parallel", "enable_expert_parallel", ("ep",)),
    Option("data_parallel", "data-parallel-size", "data_parallel_size", ("dp",)),
    Option("memory_fraction", "gpu-memory-utilization", "gpu_memory_utilization", ("device-memory-utilization",)),
    Option("max_running_requests", "max-num-seqs", "max_num_seqs"),
    Option("parsers.reasoning", "reasoning-parser", "reasoning_parser"),
    Option("parsers.tool_call", "tool-call-parser", "tool_call_parser"),
    Option("parsers.tool_call", "enable-auto-tool-choice", "enable_auto_tool_choice"),
    Option("speculative", "speculative-config", "speculative_config", ("sc",)),
    Option("speculative", "spec-method", "spec_method"),
    Option("speculative", "spec-model", "spec_model"),
    Option("speculative", "spec-tokens", "spec_tokens"),
    Option("model", "model", "model"),
    Option("host", "host", "host"),
    Option("port", "port", "port"),
    Option("nodes", "nnodes", "nnodes", ("n",)),
    Option("node", "node-rank", "node_rank", ("r",)),
    Option("address", "master-addr", "master_addr"),
    Option("address", "master-port", "master_port"),
    Option("node", "headless", "headless"),
)

FLAGS: Final = frozenset(
    {"headless", "grpc", "data-parallel-multi-port-external-lb", "disable-log-stats", "aggregate-engine-logging"}
)
"""What can only be turned on; every other option that is on or off has its `--no-`."""
METHODS: Final = {"EAGLE": "mtp", "NEXTN": "mtp", "EAGLE3": "eagle3"}
"""What the checkpoint's own layers are called here, and a draft model of EAGLE's third kind."""


def unsaid(recipe: Recipe, deployment: Deployment) -> str | None:
    """Sizes that vLLM has no option for: its data parallelism is attention's, over engines of their own ranks."""
    for name in ("attention_data_parallel", "attention_context_parallel", "moe_data_parallel"):
        if (size := getattr(recipe, name)) > 1:
            return f"{name} is {size}, and vLLM has no option for it; give 1, and data_parallel for engines beside each other"
    return None


def experts(recipe: Recipe, deployment: Deployment) -> str | None:
    """Experts are split over all ranks of tensor and data parallelism, or over none (`ParallelConfig`)."""
    split, ranks = recipe.expert_parallel, recipe.tensor_parallel * recipe.data_parallel
    if split in (1, ranks):
        return None
    return (
        f"expert_parallel is {split}, and vLLM splits experts over tensor_parallel × data_parallel, that is {ranks} ranks, or "
        "over none; give that or 1"
    )


def nodes(recipe: Recipe, deployment: Deployment) -> str | None:
    """Every node has as many ranks as the others (`ParallelConfig`)."""
    ranks = recipe.tensor_parallel * recipe.pipeline_parallel * recipe.data_parallel
    if ranks % deployment.nodes == 0:
        return None
    return (
        f"tensor_parallel {recipe.tensor_parallel} × pipeline_parallel {recipe.pipeline_parallel} × data_parallel "
        f"{recipe.data_parallel} is {ranks}, and {deployment.nodes} nodes do not share them evenly; give another number of "
        "nodes, or sizes that they divide"
    )


def drafted(recipe: Recipe, deployment: Deployment) -> str | None:
    """vLLM drafts a chain: it is told a number of tokens, and neither a top-k nor a number of drafts."""
    one = recipe.speculative
    if one is None:
        return None
    if one.algorithm.upper() not in METHODS:
        return (
            f"it speculates with {one.algorithm}, and vLLM is told of {', '.join(METHODS)} only; give one of them, or "
            "speculative-config in arguments and no speculation"
        )
    if (one.algorithm.upper() == "EAGLE3") == (one.draft_model is None):
        has = f"the draft model {one.draft_model}" if one.draft_model else "no draft model"
        return f"it speculates with {one.algorithm} and has {has}: EAGLE3 has one, and the checkpoint's own layers have none"
    if (one.eagle_topk, one.num_draft_tokens) != (1, one.num_steps + 1):
        return (
            f"eagle_topk is {one.eagle_topk}, num_draft_tokens {one.num_draft_tokens} and num_steps {one.num_steps}: vLLM "
            f"drafts a chain of num_steps tokens; give eagle_topk 1 and num_draft_tokens {one.num_steps + 1}"
        )
    return None


CHECKS: Final[dict[str, Check]] = {check.__name__: check for check in (unsaid, experts, nodes, drafted)}


def said(recipe: Recipe) -> dict[str, Any]:
    """A recipe's fields by the long names of their options; what is vLLM's own default is left out."""
    one, parsers = recipe.speculative, recipe.parsers
    sizes = {
        "tensor-parallel-size": recipe.tensor_parallel,
        "pipeline-parallel-size": recipe.pipeline_parallel,
        "data-parallel-size": recipe.data_parallel,
    }
    found: dict[str, Any] = {name: size for name, size in sizes.items() if size > 1}
    found["enable-expert-parallel"] = recipe.expert_parallel > 1 or None
    found["gpu-memory-utilization"] = recipe.memory_fraction
    found["max-num-seqs"] = recipe.max_running_requests
    if parsers is not None:
        found["reasoning-parser"] = parsers.reasoning
        found["tool-call-parser"] = parsers.tool_call
        found["enable-auto-tool-choice"] = parsers.tool_call is not None or None
    if one is not None:
        config = {"method": METHODS[one.algorithm.upper()], "num_speculative_tokens": one.num_steps}
        found["speculative-config"] = {**config, **({"model": one.draft_model} if one.draft_model else {})}
    return found


def notes(recipe: Recipe) -> tuple[str, ...]:
    return ()


def start(launch: Launch) -> tuple[str, ...]:
    return "vllm", "serve", launch.model


def node(launch: Launch, rank: int) -> dict[str, Any]:
    many = launch.nodes > 1
    spread: dict[str, Any] = {"nnodes": launch.nodes, "node-rank": rank} if many else {}
    if launch.address is not None:
        host, _, port = launch.address.rpartition(":")
        spread |= {"master-addr": host, "master-port": port}
    spread["headless"] = many and rank > 0
    return {"host": launch.host, "port": launch.port, **spread}


VLLM: Final = CommandLine(
    engine="vllm",
    version="0.32.0",
    options=OPTIONS,
    checks=CHECKS,
    start=start,
    node=node,
    said=said,
    notes=notes,
    switch=lambda name: name not in FLAGS,
    whole=("allowed-origins", "allowed-methods", "allowed-headers").__contains__,
)
