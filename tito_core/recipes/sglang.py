"""SGLang: how it is told a recipe, and what it refuses, or changes without a word, of the recipes that it is told.

Read in 0.5.23: `srt/server_args.py` and `srt/arg_groups/` beside it, `fields/parallel.py`, `fields/spec.py`,
`speculative_hook.py`, `parallel_hook.py`, `validation_hook.py`, `lora_hook.py`, `argparse_actions.py`. A rule that changed
between releases says for which it holds.
"""

from __future__ import annotations

from typing import Any, Final

from tito_core.families.family import Deployment, Recipe
from tito_core.recipes.options import Check, CommandLine, Launch, Option, value_at

__all__ = ["SGLANG", "values"]

OPTIONS: Final = (
    Option("tensor_parallel", "tensor-parallel-size", "tp_size", ("tp-size", "tp")),
    Option("pipeline_parallel", "pipeline-parallel-size", "pp_size", ("pp-size", "pp")),
    Option("expert_parallel", "expert-parallel-size", "ep_size", ("ep-size", "ep")),
    Option("data_parallel", "data-parallel-size", "dp_size", ("dp-size", "dp")),
    Option("attention_data_parallel", "attention-data-parallel-size", "attn_dp_size", ("attn-dp-size",)),
    Option("attention_data_parallel", "enable-dp-attention", "enable_dp_attention"),
    Option("attention_context_parallel", "attention-context-parallel-size", "attn_cp_size", ("attn-cp-size",)),
    Option("moe_data_parallel", "moe-data-parallel-size", "moe_dp_size", ("moe-dp-size",)),
    Option("memory_fraction", "mem-fraction-static", "mem_fraction_static"),
    Option("max_running_requests", "max-running-requests", "max_running_requests"),
    Option("parsers.reasoning", "reasoning-parser", "reasoning_parser"),
    Option("parsers.tool_call", "tool-call-parser", "tool_call_parser"),
    Option("speculative.algorithm", "speculative-algorithm", "speculative_algorithm"),
    Option("speculative.num_steps", "speculative-num-steps", "speculative_num_steps"),
    Option("speculative.eagle_topk", "speculative-eagle-topk", "speculative_eagle_topk"),
    Option("speculative.num_draft_tokens", "speculative-num-draft-tokens", "speculative_num_draft_tokens"),
    Option(
        "speculative.draft_model",
        "speculative-draft-model-path",
        "speculative_draft_model_path",
        ("speculative-draft-model",),
    ),
    Option("model", "model-path", "model_path", ("model",)),
    Option("host", "host", "host"),
    Option("port", "port", "port"),
    Option("nodes", "nnodes", "nnodes"),
    Option("node", "node-rank", "node_rank"),
    Option("address", "dist-init-addr", "dist_init_addr", ("nccl-init-addr",)),
)

DESTS: Final = {
    "fp8-gemm-backend": "fp8_gemm_runner_backend",
    "fp4-gemm-backend": "fp4_gemm_runner_backend",
    "elastic-ep-join-mode": "ep_join_mode",
    "elastic-ep-join-rank-offset": "ep_join_rank_offset",
}
SWITCHES: Final = frozenset(
    {
        "enable-tf32-matmul",
        "dcp-replicate-q-proj",
        "enable-tp-lm-head-all-to-all",
        "enable-fused-qk-norm-rope",
        "speculative-enable-w4a4-mxfp4-megamoe",
        "mm-enable-dp-encoder",
        "experts-shared-outer-loras",
        "lora-strict-loading",
        "dllm-fdfo",
        "ple-offload-embedding",
        "enable-decoder-swa-bounded-replay",
        "enable-dsa-fused-indexer",
    }
)
LISTS: Final = frozenset(
    {
        "decoupled-spec-connect-endpoints",
        "forward-hooks",
        "remote-instance-weight-loader-send-weights-group-ports",
        "sidecar-args",
    }
)
"""What takes a list as one word of JSON; every other list is as many words."""

READ: Final = "0.5.23"
"""The release that the rules were read in."""

CHAINS: Final = ("EAGLE", "EAGLE3", "STANDALONE")
"""Algorithms that draft token by token; top-k more than 1 makes a tree of them."""
BLOCKS: Final = ("DFLASH", "DSPARK")
"""Algorithms that draft a block at once."""
OWN: Final = (*CHAINS, *BLOCKS, "NGRAM", "UNO")
"""The algorithms of SGLang itself; what it is extended with may register others."""
BESIDE: Final = ("EAGLE3", "STANDALONE", "DFLASH")
"""Algorithms whose draft model stands beside the checkpoint: no layer of its own drafts so."""
MIXING: Final = ("EAGLE", "EAGLE3", "DFLASH", "DSPARK")
"""Algorithms beside which `enable-mixed-chunk` stays (0.5.23, `speculative/spec_info.py`)."""
TREES: Final = ("flashinfer", "fa3", "triton")
"""Attention backends that draft a tree over pages of several tokens; the first one NGRAM's too."""
BREADTH: Final = "speculative-ngram-max-bfs-breadth"
LORA_LISTED: Final = {READ: ("EAGLE", "EAGLE3", "DFLASH", "DSPARK", "NGRAM")}
"""What speculates beside LoRA, by the releases that list it: the adapter is the target's alone, the draft has none."""
PIPELINED: Final = {READ: ("EAGLE",), "0.5.14": ()}
"""What speculates beside pipeline parallelism, by release."""
SPANNING: Final = (
    *("deepep", "megamoe", "mooncake", "nixl", "ascend_fuseep", "flashinfer", "flashinfer_megamoe", "mori", "pplx"),
    "deepep_v2",
)
"""Dispatchers of tokens to experts that take every rank (0.5.23, `overrides.py`)."""
BACKENDS: Final = ("attention-backend", "decode-attention-backend", "prefill-attention-backend")


def algorithm(recipe: Recipe) -> str | None:
    """The algorithm that SGLang makes of the one it is told: in capitals, and NEXTN is EAGLE."""
    if recipe.speculative is None:
        return None
    said = recipe.speculative.algorithm.upper()
    return "EAGLE" if said == "NEXTN" else said


def _version(deployment: Deployment) -> str | None:
    """The release that is served, without how it was built: 0.5.23 of 0.5.23+rocm700."""
    return deployment.version and deployment.version.partition("+")[0]


def drafted(recipe: Recipe, deployment: Deployment) -> str | None:
    """A chain of drafts is one token longer than its steps: with top-k 1 SGLang sets the number so, with a warning
    (`_handle_eagle_family`). A block is one step of top-k 1, which it sets too (`_handle_dflash`, `_handle_dspark`), and
    so it does with the top-k of what looks drafts up (`_handle_ngram`). Without a draft model DFLASH does not start, and
    others load the checkpoint for its own (`TpModelWorker`)."""
    one, kind = recipe.speculative, algorithm(recipe)
    if one is None:
        return None
    if kind in BESIDE and not one.draft_model:
        return (
            f"it speculates with {kind} and has no draft model; name one (draft_model, --speculative-draft-model-path)"
        )
    if kind in CHAINS and one.eagle_topk == 1 and one.num_draft_tokens != one.num_steps + 1:
        return (
            f"num_draft_tokens is {one.num_draft_tokens} and num_steps is {one.num_steps}: with eagle_topk 1 SGLang drafts "
            f"num_steps + 1, that is {one.num_steps + 1}, whatever it is told; give that"
        )
    if kind in BLOCKS and (one.num_steps, one.eagle_topk) != (1, 1):
        return (
            f"num_steps is {one.num_steps} and eagle_topk is {one.eagle_topk}: {kind} drafts a block at once, and SGLang sets "
            "both to 1, whatever it is told; give 1 and 1"
        )
    breadth = recipe.arguments.get(BREADTH) or 10
    if kind == "NGRAM" and str(breadth) != str(one.eagle_topk):
        return (
            f"eagle_topk is {one.eagle_topk} and {BREADTH} is {breadth}: NGRAM takes that for its top-k, whatever it is told; "
            "give the same"
        )
    return None


def tree(recipe: Recipe, deployment: Deployment) -> str | None:
    """Top-k more than 1 is a tree, which few attention backends can draft (`_handle_eagle_family`, `_handle_ngram`), of no
    more tokens than its steps draft (`organize_draft_results`)."""
    one, kind, page = recipe.speculative, algorithm(recipe), recipe.arguments.get("page-size") or 1
    if one is None or one.eagle_topk == 1 or kind not in (*CHAINS, "NGRAM"):
        return None
    drafts = one.eagle_topk + (one.num_steps - 1) * one.eagle_topk**2
    if kind in CHAINS and one.num_draft_tokens > drafts + 1:
        return (
            f"num_draft_tokens is {one.num_draft_tokens}, num_steps is {one.num_steps} and eagle_topk is {one.eagle_topk}: so "
            f"many steps draft {drafts} tokens, and the root is one more; give {drafts + 1} at most"
        )
    trees = TREES if kind in CHAINS else TREES[:1]
    backends = {name: recipe.arguments[name] for name in BACKENDS if recipe.arguments.get(name)}
    if kind in CHAINS and "trtllm_mha" in backends.values():
        name = next(name for name, backend in backends.items() if backend == "trtllm_mha")
        return (
            f"eagle_topk is {one.eagle_topk} and {name} is trtllm_mha, which takes 1 only; give 1, or another backend"
        )
    backend = backends.get("attention-backend")
    if str(page) != "1" and backend not in trees:
        return (
            f"eagle_topk is {one.eagle_topk} and page-size is {page}, with attention-backend {backend or 'unset'}: with "
            f"pages of more than one token a tree is drafted by {', '.join(trees)} only; name one, or give page-size 1"
        )
    return None


def pipelined(recipe: Recipe, deployment: Deployment) -> str | None:
    """Speculation in a pipeline (`check_pipeline_parallel_compat`)."""
    kind, size, version = algorithm(recipe), recipe.pipeline_parallel, _version(deployment)
    if size == 1 or kind is None:
        return None
    said = f"pipeline_parallel is {size} and it speculates with {kind}"
    if kind not in PIPELINED.get(version or READ, ()) or recipe.arguments.get("enable-multi-layer-eagle"):
        known = "; ".join(
            f"{release} with {' or '.join(kinds)} of one layer" if kinds else f"{release} not at all"
            for release, kinds in PIPELINED.items()
        )
        return (
            f"{said}, which SGLang {version or READ} is not known to do; it speculates in a pipeline, by release: {known}; "
            "give pipeline_parallel 1, or no speculation"
        )
    if not recipe.arguments.get("disable-overlap-schedule"):
        return f"{said}: a pipeline does not overlap scheduling, and SGLang turns it off untold; say disable-overlap-schedule"
    relayed = recipe.environment.get("SGLANG_ENABLE_PP_SPEC", "").lower() in ("1", "true", "yes", "y")
    if not relayed and recipe.arguments.get("disaggregation-mode") != "prefill":
        return (
            f"{said}: SGLang {READ} does that with SGLANG_ENABLE_PP_SPEC=1 in the environment, or on a prefill node "
            "(disaggregation-mode prefill); say one of them"
        )
    if relayed and (mode := recipe.arguments.get("disaggregation-mode") or "null") != "null":
        return (
            f"{said} with SGLANG_ENABLE_PP_SPEC=1, and disaggregation-mode is {mode}: SGLang takes one of them; leave out the "
            "variable on a prefill node, else the mode"
        )
    if relayed and recipe.attention_data_parallel > 1:
        return (
            f"{said} and attention_data_parallel is {recipe.attention_data_parallel}: every stage must see the same batch; "
            "give attention_data_parallel 1"
        )
    return None


def replicas(recipe: Recipe, deployment: Deployment) -> str | None:
    """`--data-parallel-size` alone is replicas of the engine, of one node (`check_server_args`); beside
    `--enable-dp-attention` it is attention's, so that both can't be said (`handle_data_parallelism`)."""
    many, attention = recipe.data_parallel, recipe.attention_data_parallel
    if many == 1:
        return None
    if attention > 1:
        return (
            f"data_parallel is {many} and attention_data_parallel is {attention}: SGLang has no replicas of an engine whose "
            "attention is data parallel; give 1 for one of them"
        )
    if deployment.nodes > 1:
        return (
            f"data_parallel is {many} on {deployment.nodes} nodes: replicas are of one node; start an engine a node, or give "
            f"attention_data_parallel {many}"
        )
    return None


def attention(recipe: Recipe, deployment: Deployment) -> str | None:
    """Attention's groups divide the ranks of tensor parallelism (`handle_data_parallelism`, `handle_context_parallelism`)."""
    ranks, data, context = recipe.tensor_parallel, recipe.attention_data_parallel, recipe.attention_context_parallel
    if ranks % (data * context) == 0:
        return None
    return (
        f"tensor_parallel is {ranks}, and attention_data_parallel {data} × attention_context_parallel {context} is "
        f"{data * context}, which does not divide it; give sizes that do"
    )


def experts(recipe: Recipe, deployment: Deployment) -> str | None:
    """Experts' groups divide the ranks of tensor parallelism (`handle_context_parallelism`)."""
    ranks, split, data = recipe.tensor_parallel, recipe.expert_parallel, recipe.moe_data_parallel
    if ranks % data:
        return f"tensor_parallel is {ranks}, which moe_data_parallel {data} does not divide; give one that does"
    if split * data > ranks or (data > 1 and split > 1 and split * data != ranks) or ranks % (split * data):
        need = f"must be {ranks} together" if data > 1 and split > 1 else "must divide it"
        return (
            f"tensor_parallel is {ranks}, and expert_parallel {split} × moe_data_parallel {data} is {split * data}: they "
            f"{need}; give sizes that do"
        )
    if data > 1 and recipe.pipeline_parallel > 1:
        return (
            f"moe_data_parallel is {data} and pipeline_parallel is {recipe.pipeline_parallel}: SGLang has no pipeline there; "
            "give 1 for one of them"
        )
    if data > 1 and recipe.attention_context_parallel != data:
        return (
            f"moe_data_parallel is {data} and attention_context_parallel is {recipe.attention_context_parallel}: they are the "
            "same size, or moe_data_parallel is 1"
        )
    return None


def dispatched(recipe: Recipe, deployment: Deployment) -> str | None:
    """A dispatcher of tokens splits the experts over all ranks, whatever SGLang is told (`_a2a_ep_size`). 1 is not said."""
    backend, split, ranks = recipe.arguments.get("moe-a2a-backend"), recipe.expert_parallel, recipe.tensor_parallel
    if backend not in SPANNING or split in (1, ranks):
        return None
    return (
        f"moe-a2a-backend is {backend}, expert_parallel is {split} and tensor_parallel is {ranks}: with it SGLang splits the "
        f"experts over all {ranks} ranks, whatever it is told; give expert_parallel {ranks}"
    )


def nodes(recipe: Recipe, deployment: Deployment) -> str | None:
    """Every node has as many ranks as the others (`check_server_args`)."""
    ranks, stages = recipe.tensor_parallel, recipe.pipeline_parallel
    if (ranks * stages) % deployment.nodes == 0:
        return None
    return (
        f"tensor_parallel {ranks} × pipeline_parallel {stages} is {ranks * stages}, and {deployment.nodes} nodes do not share "
        "them evenly; give another number of nodes, or sizes that they divide"
    )


def standalone(recipe: Recipe, deployment: Deployment) -> str | None:
    """What drafts by itself (`_handle_eagle_family`, `_handle_ngram`), or with the target's head (`_handle_dflash`,
    `_handle_dspark`), beside attention that is data parallel."""
    kind, size = algorithm(recipe), recipe.attention_data_parallel
    if size == 1:
        return None
    said = f"it speculates with {kind} and attention_data_parallel is {size}, which SGLang"
    if kind in ("STANDALONE", "NGRAM"):
        return f"{said} refuses; give 1, or another algorithm"
    if kind in BLOCKS and not recipe.arguments.get("enable-dp-lm-head"):
        return f"{said} starts with enable-dp-lm-head only; say it, or give 1"
    return None


def mixed(recipe: Recipe, deployment: Deployment) -> str | None:
    """Some algorithms switch mixed chunks off, with a warning (`_handle_eagle_family`)."""
    kind = algorithm(recipe)
    if kind is None or kind in MIXING or not recipe.arguments.get("enable-mixed-chunk"):
        return None
    return (
        f"it speculates with {kind} and has enable-mixed-chunk, which SGLang turns off untold; leave it out, or speculate "
        f"with one of {', '.join(MIXING)}"
    )


def lora(recipe: Recipe, deployment: Deployment) -> str | None:
    """An adapter beside speculation, but by releases that list the pair (`check_lora_speculative_compatibility`)."""
    kind, version = algorithm(recipe), _version(deployment)
    given = next((name for name in ("enable-lora", "lora-paths") if recipe.arguments.get(name)), None)
    if given is None or kind is None or kind in LORA_LISTED.get(version or "", ()):
        return None
    known = " or ".join(f"{release} with {', '.join(kinds)}" for release, kinds in LORA_LISTED.items())
    return (
        f"it speculates with {kind} and has {given}, which SGLang {version or 'of an unknown version'} is not known to serve "
        f"together; SGLang {known} is: name that version, or serve without one of them"
    )


CHECKS: Final[dict[str, Check]] = {
    check.__name__: check
    for check in (drafted, tree, pipelined, replicas, attention, experts, dispatched, nodes, standalone, mixed, lora)
}


def values(recipe: Recipe) -> dict[str, Any]:
    """What every option of a recipe's fields says of it, by long names, SGLang's own defaults too.

    Attention's data parallelism is spelled as all releases read it. 0.5.23 calls it `--attention-data-parallel-size` too,
    and reads the old way until the end of 2026.
    """
    ours = (option for option in OPTIONS if option.field.partition(".")[0] in Recipe.model_fields)
    found = {option.name: value_at(recipe, option.field) for option in ours}
    attention = found.pop("attention-data-parallel-size")
    found["data-parallel-size"] = max(recipe.data_parallel, attention)
    found["enable-dp-attention"] = attention > 1
    return found


def said(recipe: Recipe) -> dict[str, Any]:
    """A recipe's fields by the long names of their options; what is SGLang's own default is left out."""
    none = values(Recipe(speculative=None))
    return {name: value for name, value in values(recipe).items() if value != none[name]}


def notes(recipe: Recipe) -> tuple[str, ...]:
    found = []
    if recipe.speculative is not None and recipe.max_running_requests is None:
        found.append(
            "max_running_requests is unset: beside speculation SGLang runs 48 requests at once, where the model has no number "
            "of its own"
        )
    if (kind := algorithm(recipe)) is not None and kind not in OWN:
        found.append(
            f"the algorithm {kind} is none of SGLang's own ({', '.join(OWN)}): it starts only where that is registered"
        )
    backend, ranks = recipe.arguments.get("moe-a2a-backend"), recipe.tensor_parallel
    if backend in SPANNING and recipe.expert_parallel == 1 < ranks:
        found.append(
            f"expert_parallel is unset: with moe-a2a-backend {backend} SGLang splits the experts over all {ranks} ranks"
        )
    return tuple(found)


def start(launch: Launch) -> tuple[str, ...]:
    return launch.python, "-m", "sglang.launch_server"


def node(launch: Launch, rank: int) -> dict[str, Any]:
    spread = {"nnodes": launch.nodes, "node-rank": rank} if launch.nodes > 1 else {}
    return {
        "model-path": launch.model,
        "host": launch.host,
        "port": launch.port,
        **spread,
        "dist-init-addr": launch.address,
    }


SGLANG: Final = CommandLine(
    engine="sglang",
    version=READ,
    options=OPTIONS,
    checks=CHECKS,
    start=start,
    node=node,
    said=said,
    notes=notes,
    dests=DESTS,
    switch=SWITCHES.__contains__,
    whole=LISTS.__contains__,
)
