"""A two-layer Qwen3 with random weights beside a real tokenizer, for a server to load.

    python make_model.py DIRECTORY        DIRECTORY holds tokenizer.json; run by the environment's Python

Random weights are the point: what they sample is as far from canonical tokenisation as ids can be.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def main(directory: Path) -> None:
    spec = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    known = [*spec["model"]["vocab"].values(), *(token["id"] for token in spec["added_tokens"])]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=max(known) + 1,  # no row that the tokenizer lacks: random weights would sample it
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
