"""What vLLM 0.32.0's own parser makes of recipes, without a GPU and without a server.

Every recipe of every installed family that vLLM can be told: those with SGLang's arguments are refused before. Its resolution
needs a GPU and the checkpoint but for the sizes of a launch; those are configured for a tiny model.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from engine_server import make_model
from environment import VLLM
from tito_core import Deployment, Plan, Recipe, list_families, plan
from tito_core.errors import RecipeError
from tito_core.families.registry import default_registry
from tito_core.recipes.options import Launch, words
from tito_core.recipes.vllm import VLLM as LINE

METHODS: Final = {"EAGLE": "mtp", "EAGLE3": "eagle3"}


def every() -> list[Plan]:
    found = []
    for info in list_families():
        loaded = default_registry.family(info.name)
        for profile, recipe in loaded.declaration.recipes.items():
            for platform in ("cuda", "rocm", "cpu"):
                asked = Deployment(engine="vllm", profile=profile, platform=platform)
                here = recipe.on(platform)
                if here.arguments or here.environment:
                    with pytest.raises(RecipeError, match="its arguments and environment are sglang's: "):
                        plan(loaded, asked)
                    continue
                found.append(plan(loaded, asked, model="m", host="0.0.0.0", port=8001))
                if found[-1].recipe.tensor_parallel > 1:
                    two = asked.model_copy(update={"nodes": 2})
                    found.append(plan(loaded, two, model="m", address="10.0.0.1:5000"))
    return found


PLANS: Final = every()
SPREAD: Final = (
    (Recipe(speculative=None, tensor_parallel=3), 2, "`--nnodes 2` must evenly divide the total world size (3)"),
    (Recipe(speculative=None, tensor_parallel=2, pipeline_parallel=2, data_parallel=1), 3, "world size (4)"),
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("recipes")
    model = str(make_model(VLLM, "r1", home / "model"))
    parsing = [list(one.argv[2:]) for made in PLANS for one in made.commands]
    parsing.append(
        ["m", *words({"max-model-len": 8192, "enable-prefix-caching": False, "disable-log-stats": False}, LINE.switch)]
    )
    launches = [(recipe, Launch(model, nodes=nodes, address="127.0.0.1:5000")) for recipe, nodes, _ in SPREAD]
    asked = {
        "model": model,
        "parse": parsing,
        "configure": [
            [model, *words({**LINE.node(launch, 0), **LINE.said(recipe)}, LINE.switch)] for recipe, launch in launches
        ],
    }
    (home / "asked.json").write_text(json.dumps(asked))
    found: dict[str, Any] = json.loads(VLLM.run(VLLM.scripts / "arguments.py", home / "asked.json").splitlines()[-1])
    return found


def expected(recipe: Recipe) -> dict[str, Any]:
    """vLLM's fields by name, as the recipe means them; those at their default are left out."""
    one = recipe.speculative
    sizes = {
        "tensor_parallel_size": recipe.tensor_parallel,
        "pipeline_parallel_size": recipe.pipeline_parallel,
        "data_parallel_size": recipe.data_parallel,
    }
    found: dict[str, Any] = {name: size for name, size in sizes.items() if size != 1}
    if recipe.expert_parallel > 1:
        found["enable_expert_parallel"] = True
    found |= {"gpu_memory_utilization": recipe.memory_fraction, "max_num_seqs": recipe.max_running_requests}
    if recipe.parsers is not None:
        found |= {"reasoning_parser": recipe.parsers.reasoning, "tool_call_parser": recipe.parsers.tool_call}
        found["enable_auto_tool_choice"] = True if recipe.parsers.tool_call else None
    if one is not None:
        config: dict[str, Any] = {"method": METHODS[one.algorithm], "num_speculative_tokens": one.num_steps}
        found["speculative_config"] = {**config, "model": one.draft_model} if one.draft_model else config
    return {name: value for name, value in found.items() if value is not None}


def test_every_recipe_is_parsed_into_what_it_says(seen: dict[str, Any]) -> None:
    assert {made.family for made in PLANS} == {info.name for info in list_families()}
    answers = iter(seen["parse"])
    for made in PLANS:
        assert all(one.argv[:2] == ("vllm", "serve") for one in made.commands)
        for rank in range(made.deployment.nodes):
            placed: dict[str, Any] = {"model_tag": "m", "host": "0.0.0.0", "port": 8001}
            if made.deployment.nodes > 1:
                placed = {"model_tag": "m", "nnodes": 2, "master_addr": "10.0.0.1", "master_port": 5000}
                placed |= {"node_rank": rank, "headless": True} if rank else {}
            assert next(answers) == {**expected(made.recipe), **placed}, (made.family, made.deployment)
    assert next(answers) == {"model_tag": "m", "max_model_len": 8192, "enable_prefix_caching": False}
    assert {"speculative_config", "enable_expert_parallel"} <= {name for answer in seen["parse"] for name in answer}


def test_our_names_are_the_parsers(seen: dict[str, Any]) -> None:
    theirs = {dest: {name.lstrip("-") for name in names} for dest, names in seen["options"] if names}
    ours = {option.dest: set(option.names) for option in LINE.options}
    assert len(ours) == len(LINE.options)
    for dest, names in ours.items():
        assert names == {name for name in theirs[dest] if not name.startswith("no-")}, dest
    for dest, names in theirs.items():
        assert dest in ours or all(LINE.owner(name) is None for name in names if name != "h"), dest
    assert all(dest.replace("_", "-") in names for dest, names in theirs.items())
    lists = {name.removeprefix("--") for names in seen["lists"] for name in names}
    assert {name for names in theirs.values() for name in names if LINE.whole(name)} == lists
    flags = {names[0].removeprefix("--") for names in seen["flags"]}
    assert {name for names in theirs.values() for name in names if not LINE.switch(name)} == flags
    assert {f"--no-{names[0].removeprefix('--')}" in names for names in seen["switches"]} == {True}


def test_nodes_that_do_not_share_the_ranks(seen: dict[str, Any]) -> None:
    for (recipe, nodes, why), error in zip(SPREAD, seen["configure"], strict=True):
        assert error is not None
        assert why in error
        refused = list(LINE.why_not(recipe, Deployment(engine="vllm", nodes=nodes)))
        assert [rule for rule, _ in refused] == ["nodes"]
