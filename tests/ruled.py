"""Recipes that an engine's rules refuse, with the exact reason, and what SGLang 0.5.23 itself does with each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tito_core import Deployment, Recipe, Speculative


def eagle(steps: int = 3, topk: int = 1, drafts: int = 4, algorithm: str = "EAGLE", **more: Any) -> Speculative:
    return Speculative(algorithm=algorithm, num_steps=steps, eagle_topk=topk, num_draft_tokens=drafts, **more)


def recipe(one: Speculative | None = None, **fields: Any) -> Recipe:
    return Recipe(speculative=one, **fields)


@dataclass(frozen=True)
class Ruled:
    """`why` the rule refuses. `real` is a pattern of what SGLang says when it is told so: it raises, or warns and takes
    another value. None where its CPU build does not come that far, or takes it: `but` says what then."""

    rule: str
    recipe: Recipe
    why: str
    real: str | None
    deployment: Deployment = field(default_factory=Deployment)
    but: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.why[:40]}"


RELAYED = {"SGLANG_ENABLE_PP_SPEC": "1"}
OVERLAP_OFF = {"disable-overlap-schedule": True}
LORA = {"enable-lora": True, "lora-paths": ["a=/nowhere"]}

REFUSED = (
    Ruled(
        "drafted",
        recipe(eagle(drafts=6)),
        "num_draft_tokens is 6 and num_steps is 3: with eagle_topk 1 SGLang drafts num_steps + 1, that is 4, whatever it is "
        "told; give that",
        r"speculative_num_draft_tokens is adjusted to speculative_num_steps \+ 1",
    ),
    Ruled(
        "drafted",
        recipe(eagle(drafts=5, algorithm="nextn")),
        "num_draft_tokens is 5 and num_steps is 3: with eagle_topk 1 SGLang drafts num_steps + 1, that is 4, whatever it is "
        "told; give that",
        r"speculative_num_draft_tokens is adjusted to speculative_num_steps \+ 1",
    ),
    Ruled(
        "drafted",
        recipe(eagle(steps=4, drafts=5, algorithm="DSPARK")),
        "num_steps is 4 and eagle_topk is 1: DSPARK drafts a block at once, and SGLang sets both to 1, whatever it is told; "
        "give 1 and 1",
        None,
        but="DSPARK is refused on a CPU",
    ),
    Ruled(
        "drafted",
        recipe(eagle(steps=1, drafts=8, algorithm="DFLASH")),
        "it speculates with DFLASH and has no draft model; name one (draft_model, --speculative-draft-model-path)",
        None,
        but="DFLASH is refused on a CPU",
    ),
    *(
        Ruled(
            "drafted",
            recipe(eagle(algorithm=kind)),
            f"it speculates with {kind} and has no draft model; name one (draft_model, --speculative-draft-model-path)",
            None,
            but="SGLang starts, and loads the checkpoint as its own draft",
        )
        for kind in ("EAGLE3", "STANDALONE")
    ),
    Ruled(
        "drafted",
        recipe(eagle(algorithm="NGRAM")),
        "eagle_topk is 1 and speculative-ngram-max-bfs-breadth is 10: NGRAM takes that for its top-k, whatever it is told; give "
        "the same",
        None,
        but="it is taken, and eagle_topk is 10",
    ),
    Ruled(
        "drafted",
        recipe(eagle(topk=10, algorithm="ngram"), arguments={"speculative-ngram-max-bfs-breadth": 4}),
        "eagle_topk is 10 and speculative-ngram-max-bfs-breadth is 4: NGRAM takes that for its top-k, whatever it is told; give "
        "the same",
        None,
        but="it is taken, and eagle_topk is 4",
    ),
    Ruled(
        "tree",
        recipe(eagle(steps=2, topk=4, drafts=22)),
        "num_draft_tokens is 22, num_steps is 2 and eagle_topk is 4: so many steps draft 20 tokens, and the root is one more; "
        "give 21 at most",
        None,
        but="it is taken, and fails when it drafts",
    ),
    Ruled(
        "tree",
        recipe(
            eagle(topk=10, drafts=12, algorithm="NGRAM"), arguments={"page-size": 64, "attention-backend": "triton"}
        ),
        "eagle_topk is 10 and page-size is 64, with attention-backend triton: with pages of more than one token a tree is "
        "drafted by flashinfer only; name one, or give page-size 1",
        r"This combination is only supported for the 'flashinfer' backend",
    ),
    Ruled(
        "tree",
        recipe(eagle(topk=4, drafts=8), arguments={"page-size": 64}),
        "eagle_topk is 4 and page-size is 64, with attention-backend unset: with pages of more than one token a tree is "
        "drafted by flashinfer, fa3, triton only; name one, or give page-size 1",
        "speculative_eagle_topk > 1 with page_size > 1 is only supported on",
    ),
    Ruled(
        "tree",
        recipe(eagle(topk=2, drafts=8), arguments={"page-size": 16, "attention-backend": "torch_native"}),
        "eagle_topk is 2 and page-size is 16, with attention-backend torch_native: with pages of more than one token a tree "
        "is drafted by flashinfer, fa3, triton only; name one, or give page-size 1",
        "speculative_eagle_topk > 1 with page_size > 1 is only supported on",
    ),
    Ruled(
        "tree",
        recipe(eagle(topk=4, drafts=8), arguments={"page-size": "64"}),
        "eagle_topk is 4 and page-size is 64, with attention-backend unset: with pages of more than one token a tree is "
        "drafted by flashinfer, fa3, triton only; name one, or give page-size 1",
        "speculative_eagle_topk > 1 with page_size > 1 is only supported on",
    ),
    Ruled(
        "tree",
        recipe(eagle(topk=4, drafts=8), arguments={"attention-backend": "trtllm_mha"}),
        "eagle_topk is 4 and attention-backend is trtllm_mha, which takes 1 only; give 1, or another backend",
        None,
        but="the backend is refused on a CPU",
    ),
    Ruled(
        "tree",
        recipe(eagle(topk=4, drafts=8), arguments={"decode-attention-backend": "trtllm_mha"}),
        "eagle_topk is 4 and decode-attention-backend is trtllm_mha, which takes 1 only; give 1, or another backend",
        None,
        but="the backend is refused on a CPU",
    ),
    Ruled(
        "pipelined",
        recipe(eagle(algorithm="EAGLE3", draft_model="d"), pipeline_parallel=2, arguments=OVERLAP_OFF),
        "pipeline_parallel is 2 and it speculates with EAGLE3, which SGLang 0.5.23 is not known to do; it speculates in a "
        "pipeline, by release: 0.5.23 with EAGLE of one layer; 0.5.14 not at all; give pipeline_parallel 1, or no speculation",
        r"Pipeline parallelism currently only supports EAGLE \(non-multi-layer\) speculative decoding",
    ),
    Ruled(
        "pipelined",
        recipe(eagle(), pipeline_parallel=2, arguments={**OVERLAP_OFF, "enable-multi-layer-eagle": True}),
        "pipeline_parallel is 2 and it speculates with EAGLE, which SGLang 0.5.23 is not known to do; it speculates in a "
        "pipeline, by release: 0.5.23 with EAGLE of one layer; 0.5.14 not at all; give pipeline_parallel 1, or no speculation",
        r"Pipeline parallelism currently only supports EAGLE \(non-multi-layer\) speculative decoding",
    ),
    Ruled(
        "pipelined",
        recipe(eagle(), pipeline_parallel=2, arguments=OVERLAP_OFF, environment=RELAYED),
        "pipeline_parallel is 2 and it speculates with EAGLE, which SGLang 0.5.14 is not known to do; it speculates in a "
        "pipeline, by release: 0.5.23 with EAGLE of one layer; 0.5.14 not at all; give pipeline_parallel 1, or no speculation",
        None,
        Deployment(version="0.5.14"),
        but="another release",
    ),
    Ruled(
        "pipelined",
        recipe(eagle(), pipeline_parallel=2, environment=RELAYED),
        "pipeline_parallel is 2 and it speculates with EAGLE: a pipeline does not overlap scheduling, and SGLang turns it off "
        "untold; say disable-overlap-schedule",
        "Pipeline parallelism is incompatible with overlap schedule",
    ),
    Ruled(
        "pipelined",
        recipe(eagle(), pipeline_parallel=2, arguments=OVERLAP_OFF),
        "pipeline_parallel is 2 and it speculates with EAGLE: SGLang 0.5.23 does that with SGLANG_ENABLE_PP_SPEC=1 in the "
        "environment, or on a prefill node (disaggregation-mode prefill); say one of them",
        r"PP \+ speculative decoding \(MTP\) is only supported on prefill nodes",
    ),
    Ruled(
        "pipelined",
        recipe(
            eagle(),
            tensor_parallel=2,
            pipeline_parallel=2,
            attention_data_parallel=2,
            arguments=OVERLAP_OFF,
            environment=RELAYED,
        ),
        "pipeline_parallel is 2 and it speculates with EAGLE and attention_data_parallel is 2: every stage must see the same "
        "batch; give attention_data_parallel 1",
        "SGLANG_ENABLE_PP_SPEC is not compatible with attention DP",
    ),
    Ruled(
        "pipelined",
        recipe(
            eagle(),
            pipeline_parallel=2,
            arguments={**OVERLAP_OFF, "disaggregation-mode": "prefill"},
            environment=RELAYED,
        ),
        "pipeline_parallel is 2 and it speculates with EAGLE with SGLANG_ENABLE_PP_SPEC=1, and disaggregation-mode is prefill: "
        "SGLang takes one of them; leave out the variable on a prefill node, else the mode",
        "SGLANG_ENABLE_PP_SPEC is not compatible with --disaggregation-mode",
    ),
    Ruled(
        "replicas",
        recipe(tensor_parallel=4, data_parallel=2, arguments={}),
        "data_parallel is 2 on 2 nodes: replicas are of one node; start an engine a node, or give attention_data_parallel 2",
        "multi-node data-parallel replicas are not supported",
        Deployment(nodes=2),
    ),
    Ruled(
        "replicas",
        recipe(tensor_parallel=4, data_parallel=2, attention_data_parallel=4),
        "data_parallel is 2 and attention_data_parallel is 4: SGLang has no replicas of an engine whose attention is data "
        "parallel; give 1 for one of them",
        None,
        but="one option says both",
    ),
    Ruled(
        "attention",
        recipe(tensor_parallel=8, attention_data_parallel=3),
        "tensor_parallel is 8, and attention_data_parallel 3 × attention_context_parallel 1 is 3, which does not divide it; "
        "give sizes that do",
        "handle_data_parallelism",
    ),
    Ruled(
        "attention",
        recipe(tensor_parallel=8, attention_context_parallel=3),
        "tensor_parallel is 8, and attention_data_parallel 1 × attention_context_parallel 3 is 3, which does not divide it; "
        "give sizes that do",
        "tp_size must be divisible by attn_cp_size",
    ),
    Ruled(
        "attention",
        recipe(tensor_parallel=8, attention_data_parallel=4, attention_context_parallel=4),
        "tensor_parallel is 8, and attention_data_parallel 4 × attention_context_parallel 4 is 16, which does not divide it; "
        "give sizes that do",
        r"tp_size must be divisible by attn_dp_size \* attn_cp_size",
    ),
    Ruled(
        "experts",
        recipe(tensor_parallel=8, moe_data_parallel=3),
        "tensor_parallel is 8, which moe_data_parallel 3 does not divide; give one that does",
        "tp_size must be divisible by moe_dp_size",
    ),
    Ruled(
        "experts",
        recipe(tensor_parallel=8, expert_parallel=8, moe_data_parallel=2),
        "tensor_parallel is 8, and expert_parallel 8 × moe_data_parallel 2 is 16: they must be 8 together; give sizes that do",
        r"ep_size \* moe_dp_size must be less than or equal to tp_size",
    ),
    Ruled(
        "experts",
        recipe(tensor_parallel=8, expert_parallel=2, moe_data_parallel=2),
        "tensor_parallel is 8, and expert_parallel 2 × moe_data_parallel 2 is 4: they must be 8 together; give sizes that do",
        r"ep_size \* moe_dp_size must be equal to tp_size",
    ),
    Ruled(
        "experts",
        recipe(tensor_parallel=8, expert_parallel=3),
        "tensor_parallel is 8, and expert_parallel 3 × moe_data_parallel 1 is 3: they must divide it; give sizes that do",
        "ranks without a group of experts: 2 of 8",
        but="it is taken, and the groups that are made of it leave ranks out",
    ),
    Ruled(
        "experts",
        recipe(tensor_parallel=8, expert_parallel=4, moe_data_parallel=2, pipeline_parallel=2),
        "moe_data_parallel is 2 and pipeline_parallel is 2: SGLang has no pipeline there; give 1 for one of them",
        "PP is not supported with context parallelism",
    ),
    Ruled(
        "experts",
        recipe(tensor_parallel=8, expert_parallel=4, moe_data_parallel=2),
        "moe_data_parallel is 2 and attention_context_parallel is 1: they are the same size, or moe_data_parallel is 1",
        "attn_cp_size != moe_dp_size is only supported when moe_dp_size == 1",
    ),
    Ruled(
        "dispatched",
        recipe(tensor_parallel=8, expert_parallel=4, arguments={"moe-a2a-backend": "deepep"}),
        "moe-a2a-backend is deepep, expert_parallel is 4 and tensor_parallel is 8: with it SGLang splits the experts over all "
        "8 ranks, whatever it is told; give expert_parallel 8",
        r"The expert parallel size is adjusted from 4 to the tensor parallel size \[8\]",
    ),
    Ruled(
        "nodes",
        recipe(tensor_parallel=3),
        "tensor_parallel 3 × pipeline_parallel 1 is 3, and 2 nodes do not share them evenly; give another number of nodes, or "
        "sizes that they divide",
        "tp_size must be divisible by number of nodes",
        Deployment(nodes=2),
    ),
    Ruled(
        "standalone",
        recipe(eagle(algorithm="STANDALONE", draft_model="d"), tensor_parallel=2, attention_data_parallel=2),
        "it speculates with STANDALONE and attention_data_parallel is 2, which SGLang refuses; give 1, or another algorithm",
        "standalone speculative decoding does not support dp attention",
    ),
    Ruled(
        "standalone",
        recipe(eagle(topk=10, drafts=12, algorithm="NGRAM"), tensor_parallel=2, attention_data_parallel=2),
        "it speculates with NGRAM and attention_data_parallel is 2, which SGLang refuses; give 1, or another algorithm",
        "ngram speculative decoding does not support dp attention",
    ),
    Ruled(
        "standalone",
        recipe(eagle(1, 1, 5, "DSPARK"), tensor_parallel=2, attention_data_parallel=2),
        "it speculates with DSPARK and attention_data_parallel is 2, which SGLang starts with enable-dp-lm-head only; say it, or "
        "give 1",
        None,
        but="DSPARK is refused on a CPU",
    ),
    Ruled(
        "mixed",
        recipe(eagle(algorithm="STANDALONE", draft_model="d"), arguments={"enable-mixed-chunk": True}),
        "it speculates with STANDALONE and has enable-mixed-chunk, which SGLang turns off untold; leave it out, or speculate "
        "with one of EAGLE, EAGLE3, DFLASH, DSPARK",
        "Mixed chunked prefill is disabled: STANDALONE speculative decoding does not support it",
    ),
    Ruled(
        "lora",
        recipe(eagle(algorithm="STANDALONE", draft_model="d"), arguments=LORA),
        "it speculates with STANDALONE and has enable-lora, which SGLang 0.5.23 is not known to serve together; SGLang 0.5.23 "
        "with EAGLE, EAGLE3, DFLASH, DSPARK, NGRAM is: name that version, or serve without one of them",
        "LoRA is only compatible with NGRAM, EAGLE, NEXTN, EAGLE3, DFLASH, or DSPARK speculative decoding, not STANDALONE",
        Deployment(version="0.5.23"),
    ),
    Ruled(
        "lora",
        recipe(eagle(), arguments={"lora-paths": ["a=/nowhere"]}),
        "it speculates with EAGLE and has lora-paths, which SGLang of an unknown version is not known to serve together; "
        "SGLang 0.5.23 with EAGLE, EAGLE3, DFLASH, DSPARK, NGRAM is: name that version, or serve without one of them",
        None,
        but="0.5.23 takes the pair, and the version is unknown",
    ),
)

TAKEN = (
    (recipe(), Deployment()),
    (recipe(eagle()), Deployment()),
    (recipe(eagle(algorithm="NEXTN")), Deployment()),
    (recipe(eagle(topk=4, drafts=8), arguments={"page-size": 1}), Deployment()),
    (recipe(eagle(), pipeline_parallel=2, arguments=OVERLAP_OFF, environment=RELAYED), Deployment(version="0.5.23")),
    (recipe(pipeline_parallel=2), Deployment(nodes=2)),
    (recipe(tensor_parallel=4, data_parallel=2), Deployment()),
    (recipe(tensor_parallel=8, attention_data_parallel=4, attention_context_parallel=2), Deployment()),
    (recipe(tensor_parallel=8, attention_data_parallel=4), Deployment(nodes=2)),
    (recipe(tensor_parallel=8, expert_parallel=4), Deployment()),
    (
        recipe(tensor_parallel=8, expert_parallel=4, moe_data_parallel=2, attention_context_parallel=2),
        Deployment(),
    ),
    (recipe(eagle(), arguments={"enable-mixed-chunk": True}), Deployment()),
    (recipe(eagle(), arguments=LORA), Deployment(version="0.5.23")),
    (recipe(eagle(), arguments=LORA), Deployment(version="0.5.23+rocm700")),
    (recipe(eagle(topk=4, drafts=8), arguments={"page-size": "1"}), Deployment()),
    (recipe(eagle(steps=2, topk=4, drafts=21)), Deployment()),
    (recipe(eagle(topk=10, drafts=12, algorithm="NGRAM")), Deployment()),
    (recipe(eagle(topk=1, algorithm="NGRAM"), arguments={"speculative-ngram-max-bfs-breadth": "1"}), Deployment()),
    (recipe(tensor_parallel=8, arguments={"moe-a2a-backend": "deepep"}), Deployment()),
)
"""What every rule lets through, each beside something refused; and SGLang takes it."""
