"""What SGLang 0.5.23 itself makes of recipes: its own parser, its own resolution, its own checks, and no server.

Without a GPU. `ServerArgs.add_cli_args` and `from_cli_args` read every recipe of every installed family. What the rules
refuse is resolved and checked as a launch does it (`resolve_once`, `check_server_args`), on the CPU and for a tiny model: so a
rule that needs a kernel of a GPU is not reached there, and `ruled.py` says which.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest

from engine_server import make_model
from environment import SGLANG
from ruled import REFUSED, TAKEN, Ruled
from tito_core import Deployment, Plan, Recipe, from_namespace, list_families, plan, to_namespace
from tito_core.families.registry import default_registry
from tito_core.recipes.options import Launch, words
from tito_core.recipes.sglang import SGLANG as LINE

START: Final = ("python", "-m", "sglang.launch_server")
PLACED: Final = ("model_path", "host", "port", "nnodes", "node_rank", "dist_init_addr")
LISTED: Final = {
    "forward-hooks": [{"name": "h"}],
    "lora-paths": [{"lora_name": "a", "lora_path": "/a b"}, "b=/b"],
    "sidecar-args": ["--a", "1"],
    "cuda-graph-bs-decode": [1, 2],
}
"""Lists as SGLang keeps them, of words and of one word of JSON."""
PARTIAL: Final = (
    (["--speculative-num-steps", "1"], "TypeError: '>' not supported between instances of 'NoneType' and 'int'"),
    (["--speculative-num-draft-tokens", "4"], "AssertionError"),
)


def every() -> list[Plan]:
    """Every recipe of every installed family, on every platform; the largest on two machines as well."""
    found = []
    for info in list_families():
        loaded = default_registry.family(info.name)
        for profile in loaded.declaration.recipes:
            for platform in ("cuda", "rocm", "cpu"):
                asked = Deployment(profile=profile, platform=platform)
                found.append(plan(loaded, asked, model="m", host="0.0.0.0", port=30001))
                if found[-1].recipe.tensor_parallel > 1:
                    two = asked.model_copy(update={"nodes": 2})
                    found.append(plan(loaded, two, model="m", address="10.0.0.1:5000"))
    return found


PLANS: Final = every()


def told(recipe: Recipe, deployment: Deployment, model: str) -> list[str]:
    """A recipe as its command line, asked of no rule."""
    launch = Launch(model, nodes=deployment.nodes, address="127.0.0.1:5000")
    arguments = {**LINE.node(launch, 0), "device": "cpu", **LINE.said(recipe), **recipe.arguments}
    if recipe.speculative and recipe.speculative.draft_model:
        arguments["speculative-draft-model-path"] = model  # one that is there
    return list(words(arguments, LINE.switch, LINE.whole))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What SGLang makes of everything here, asked once: importing it takes half a minute."""
    home = tmp_path_factory.mktemp("recipes")
    model = str(make_model(SGLANG, "r1", home / "model"))
    asked = {
        "parse": [
            *(list(one.argv[len(START) :]) for made in PLANS for one in made.commands),
            ["--model-path", "m", *words(LISTED, LINE.switch, LINE.whole)],
        ],
        "resolve": [
            *((told(case.recipe, case.deployment, model), dict(case.recipe.environment)) for case in REFUSED),
            *((told(recipe, deployment, model), dict(recipe.environment)) for recipe, deployment in TAKEN),
            *((["--model-path", model, "--speculative-algorithm", "EAGLE", *argv], {}) for argv, _ in PARTIAL),
        ],
    }
    (home / "asked.json").write_text(json.dumps(asked))
    found: dict[str, Any] = json.loads(
        SGLANG.run(SGLANG.scripts / "arguments.py", home / "asked.json").splitlines()[-1]
    )
    return found


def expected(recipe: Recipe) -> dict[str, Any]:
    """SGLang's fields by name, as the recipe means them; those at their default are left out."""
    one, parsers = recipe.speculative, recipe.parsers
    found: dict[str, Any] = {
        "tp_size": recipe.tensor_parallel,
        "pp_size": recipe.pipeline_parallel,
        "ep_size": recipe.expert_parallel,
        "dp_size": recipe.data_parallel * recipe.attention_data_parallel,
        "attn_cp_size": recipe.attention_context_parallel,
        "moe_dp_size": recipe.moe_data_parallel,
    }
    found = {name: size for name, size in found.items() if size != 1}
    if recipe.attention_data_parallel > 1:
        found["enable_dp_attention"] = True
    found |= {"mem_fraction_static": recipe.memory_fraction, "max_running_requests": recipe.max_running_requests}
    if one is not None:
        found["speculative_algorithm"] = one.algorithm
        found["speculative_num_steps"] = one.num_steps
        found["speculative_eagle_topk"] = one.eagle_topk
        found["speculative_num_draft_tokens"] = one.num_draft_tokens
        found["speculative_draft_model_path"] = one.draft_model
    if parsers is not None:
        found |= {"reasoning_parser": parsers.reasoning, "tool_call_parser": parsers.tool_call}
    found |= {name.replace("-", "_"): value for name, value in recipe.arguments.items()}
    return {name: value for name, value in found.items() if value is not None}


def test_every_recipe_is_parsed_into_what_it_says(seen: dict[str, Any]) -> None:
    assert {made.family for made in PLANS} == {info.name for info in list_families()}
    assert all(one.argv[: len(START)] == START for made in PLANS for one in made.commands)
    answers = iter(seen["parse"])
    for made in PLANS:
        for rank in range(made.deployment.nodes):
            placed: dict[str, Any] = {"host": "0.0.0.0", "port": 30001}
            if made.deployment.nodes > 1:
                placed = {"nnodes": 2, "dist_init_addr": "10.0.0.1:5000", **({"node_rank": rank} if rank else {})}
            assert next(answers) == {**expected(made.recipe), **placed}, (made.family, made.deployment)
    assert next(answers).items() >= {name.replace("-", "_"): value for name, value in LISTED.items()}.items()
    assert next(answers, None) is None
    assert {"enable_dp_attention", "speculative_num_steps", "page_size", "mem_fraction_static"} <= {
        name for answer in seen["parse"] for name in answer
    }


def test_a_recipe_comes_back_from_its_arguments(seen: dict[str, Any]) -> None:
    """Recipe, command line, SGLang's own namespace, recipe."""
    answers = iter(seen["parse"])
    for made in PLANS:
        for _ in made.commands:
            found = {f"sglang_{name}": value for name, value in next(answers).items() if name not in PLACED}
            again = from_namespace(found, environment=made.recipe.environment)
            assert again == made.recipe.told()


def test_a_whole_namespace_of_a_trainer_comes_back(seen: dict[str, Any]) -> None:
    """Every field that SGLang's parser has, not only those that a recipe names."""
    for answer in [{}, *seen["parse"]]:
        whole = {f"sglang_{name}": value for name, value in {**seen["defaults"], **answer}.items()}
        assert len(whole) > 400
        kept = from_namespace(whole)
        assert (
            to_namespace(kept).items()
            >= {name: value for name, value in whole.items() if name != "sglang_attn_dp_size"}.items()
        )
        assert from_namespace(to_namespace(kept)) == kept


def test_our_names_are_the_parsers(seen: dict[str, Any]) -> None:
    theirs = {dest: {name.removeprefix("--") for name in names} for dest, names in seen["options"]}
    ours = {option.dest: set(option.names) for option in LINE.options}
    assert len(ours) == len(LINE.options)
    for dest, names in ours.items():
        assert names >= theirs[dest], dest
        # What is ours alone is a beginning that argparse takes for the whole, or an abbreviation of the field's short name.
        for name in names - theirs[dest]:
            assert any(one.startswith(name) for one in theirs[dest]), name
    others = {dest: names for dest, names in theirs.items() if dest not in ours}
    for dest, names in others.items():
        assert all(LINE.owner(name) is None for name in names if not name.startswith("no-")), dest
    odd = {name: dest for dest, names in others.items() for name in names if dest.replace("_", "-") not in names}
    assert dict(LINE.dests) == {name: dest for name, dest in odd.items() if name != "monokernel-backend"}
    switches = {names[0].removeprefix("--") for names in seen["switches"]}
    assert {name for names in theirs.values() for name in names if LINE.switch(name)} == switches
    lists = {name.removeprefix("--") for names in seen["lists"] for name in names}
    assert {name for names in theirs.values() for name in names if LINE.whole(name)} == lists


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_a_rule_refuses(case: Ruled, seen: dict[str, Any]) -> None:
    """SGLang raises, or says that it takes another value than it was told."""
    found = seen["resolve"][REFUSED.index(case)]
    if case.real is None:
        assert case.but
        return
    assert re.search(case.real, "\n".join((found["error"] or "", *found["said"]))), found


def test_what_every_rule_lets_through(seen: dict[str, Any]) -> None:
    """SGLang takes it, and says nothing of what it says when a rule refuses; but of a pipeline it says so even when told."""
    patterns = [case.real for case in REFUSED if case.real and "overlap schedule" not in case.real]
    for (recipe, _), found in zip(TAKEN, seen["resolve"][len(REFUSED) :], strict=False):
        assert found["error"] is None, (recipe, found)
        assert not [pattern for pattern in patterns if re.search(pattern, "\n".join(found["said"]))], recipe


def test_a_part_of_speculation_breaks_sglang(seen: dict[str, Any]) -> None:
    """Which is why a recipe has all three numbers or none."""
    for (_, why), found in zip(PARTIAL, seen["resolve"][-len(PARTIAL) :], strict=True):
        assert found["error"].startswith(why)


def test_speculation_runs_48_requests_where_none_are_said(seen: dict[str, Any]) -> None:
    found = seen["resolve"][len(REFUSED) + 1]
    assert any(
        line.startswith("Max running requests is reset to 48 for speculative decoding") for line in found["said"]
    )
    (note,) = LINE.notes(TAKEN[1][0])
    assert "runs 48 requests" in note
