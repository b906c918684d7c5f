"""What an engine is started with: spelling, rules with their exact reasons, plans and namespaces. `tests/live/test_recipes.py`
and `tests/vllm/test_recipes.py` ask the engines themselves."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amounts import examples
from fake_distributions import Fakes, fakes_below, override, source
from oracles import wheel
from ruled import REFUSED, TAKEN, Ruled, eagle, recipe
from tito_core import Command, Deployment, Parsers, Plan, Recipe, from_namespace, plan, to_namespace
from tito_core.errors import FamilyError, RecipeError
from tito_core.families.registry import LoadedFamily, default_registry
from tito_core.recipes.options import words
from tito_core.recipes.plan import check, command_line
from tito_core.recipes.sglang import SGLANG
from tito_core.recipes.vllm import VLLM


def loaded() -> LoadedFamily:
    return default_registry.family("deepseekv32")


# Rules


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_a_rule_of_sglang_refuses(case: Ruled) -> None:
    assert (case.rule, case.why) == next(SGLANG.why_not(case.recipe, case.deployment))
    with pytest.raises(RecipeError) as caught:
        check("f", case.recipe, case.deployment)
    assert str(caught.value) == f"f can't be served by sglang with the profile 'default': {case.why}"
    assert caught.value.where == {"rule": case.rule}


def test_every_rule_of_sglang_refuses_something() -> None:
    assert {case.rule for case in REFUSED} == set(SGLANG.checks)
    assert [case.rule for case in REFUSED if case.real is None and not case.but] == []


def test_what_every_rule_of_sglang_lets_through() -> None:
    for one, deployment in TAKEN:
        assert list(SGLANG.why_not(one, deployment)) == []
        check("f", one, deployment)


def test_an_older_sglang_speculates_in_no_pipeline() -> None:
    """What the rule says of 0.5.14, read in its own source."""
    text = (wheel("sglang", "0.5.14") / "sglang" / "srt" / "server_args.py").read_text(encoding="utf-8")
    assert re.search(
        r"if self.pp_size > 1:\s+assert \(\s+self.disable_overlap_schedule and self.speculative_algorithm is None\s+\)",
        text,
    )
    assert "--enable-dp-attention" in text
    assert "attn_dp_size:" not in text  # so that attention's data parallelism is spelled the older way


VLLM_REFUSED = (
    (
        "unsaid",
        recipe(attention_data_parallel=2),
        1,
        "attention_data_parallel is 2, and vLLM has no option for it; give 1, and "
        "data_parallel for engines beside each other",
    ),
    (
        "unsaid",
        recipe(moe_data_parallel=4),
        1,
        "moe_data_parallel is 4, and vLLM has no option for it; give 1, and "
        "data_parallel for engines beside each other",
    ),
    (
        "experts",
        recipe(tensor_parallel=8, expert_parallel=4),
        1,
        "expert_parallel is 4, and vLLM splits experts over "
        "tensor_parallel × data_parallel, that is 8 ranks, or over none; give that or 1",
    ),
    (
        "nodes",
        recipe(tensor_parallel=3),
        2,
        "tensor_parallel 3 × pipeline_parallel 1 × data_parallel 1 is 3, and 2 nodes do not "
        "share them evenly; give another number of nodes, or sizes that they divide",
    ),
    (
        "drafted",
        recipe(eagle(algorithm="NGRAM")),
        1,
        "it speculates with NGRAM, and vLLM is told of EAGLE, NEXTN, EAGLE3 only; "
        "give one of them, or speculative-config in arguments and no speculation",
    ),
    (
        "drafted",
        recipe(eagle(algorithm="EAGLE3")),
        1,
        "it speculates with EAGLE3 and has no draft model: EAGLE3 has one, and the checkpoint's own layers have none",
    ),
    (
        "drafted",
        recipe(eagle(draft_model="d")),
        1,
        "it speculates with EAGLE and has the draft model d: EAGLE3 has one, and the checkpoint's own layers have none",
    ),
    (
        "drafted",
        recipe(eagle(topk=4, drafts=8)),
        1,
        "eagle_topk is 4, num_draft_tokens 8 and num_steps 3: vLLM drafts a chain "
        "of num_steps tokens; give eagle_topk 1 and num_draft_tokens 4",
    ),
)


@pytest.mark.parametrize(("rule", "one", "nodes", "why"), VLLM_REFUSED)
def test_what_a_rule_of_vllm_refuses(rule: str, one: Recipe, nodes: int, why: str) -> None:
    assert list(VLLM.why_not(one, Deployment(engine="vllm", nodes=nodes))) == [(rule, why)]


def test_every_rule_of_vllm_refuses_something_and_lets_something_through() -> None:
    assert {rule for rule, *_ in VLLM_REFUSED} == set(VLLM.checks)
    for one in (
        recipe(),
        recipe(eagle(), tensor_parallel=8, expert_parallel=8),
        recipe(tensor_parallel=2, data_parallel=2),
    ):
        assert list(VLLM.why_not(one, Deployment(engine="vllm", nodes=2))) == [] or one.tensor_parallel == 1


@pytest.mark.parametrize(
    "name", ["tp", "--tp", "tp-size", "tp_size", "--tp_size", "tensor-parallel-size", "tensor-par"]
)
def test_an_argument_that_is_a_field(name: str) -> None:
    one = recipe(tensor_parallel=8, arguments={name: 4})
    assert list(SGLANG.why_not(one, Deployment())) == [
        ("once", f"arguments has {name} 4, and that is the field tensor_parallel, which is 8; say it there alone")
    ]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            {"speculative-algo": "EAGLE"},
            "arguments has speculative-algo 'EAGLE', and that is the field speculative.algorithm, which is None; say it there "
            "alone",
        ),
        (
            {"speculative_num_steps": 2},
            "arguments has speculative_num_steps 2, and that is the field speculative.num_steps, which is None; say it there "
            "alone",
        ),
        (
            {"enable-dp-attention": True},
            "arguments has enable-dp-attention True, and that is the field attention_data_parallel, which is 1; say it there "
            "alone",
        ),
        ({"model": "m"}, "arguments has model 'm', and that is the launch's model; say it there alone"),
        ({"node-rank": 1}, "arguments has node-rank 1, and that is the launch's node; say it there alone"),
        (
            {"page-size": 64, "page_size": 32},
            "arguments has page-size 64 and page_size 32, which are one option; keep page-size",
        ),
        (
            {"--page-size": 64},
            "arguments has --page-size; options are named without dashes in front and with dashes between: page-size",
        ),
    ],
)
def test_what_is_said_twice(arguments: dict[str, Any], why: str) -> None:
    assert list(SGLANG.why_not(recipe(arguments=arguments), Deployment())) == [("once", why)]


def test_words() -> None:
    arguments = {
        "a": 1,
        "flag": True,
        "off": False,
        "switch": False,
        "none": None,
        "many": ["x y", 2],
        "nested": {"k": ["é"]},
        "mixed": [{"k": 1}, "a=b", [2], None],
        "whole": [1, "a"],
        "text": "-1",
        "fraction": 0.8,
    }
    assert list(words(arguments, lambda name: name == "switch", lambda name: name == "whole")) == [
        *(
            "--a",
            "1",
            "--flag",
            "--no-switch",
            "--many",
            "x y",
            "2",
            "--nested",
            '{"k": ["é"]}',
            "--mixed",
            '{"k": 1}',
            "a=b",
            "[2]",
            "null",
            "--whole",
            '[1, "a"]',
        ),
        *("--text=-1", "--fraction", "0.8"),
    ]


def test_how_sizes_are_said() -> None:
    sizes = {"data_parallel": "data-parallel-size", "moe_data_parallel": "moe-data-parallel-size"}
    for field, name in sizes.items():
        assert {key: one for key, one in SGLANG.said(recipe(**{field: 4})).items() if one} == {name: 4}
    assert {key: one for key, one in SGLANG.said(recipe(attention_data_parallel=4)).items() if one} == {
        "data-parallel-size": 4,
        "enable-dp-attention": True,
    }
    assert [one for one in SGLANG.said(recipe()).values() if one] == []


# Plans


def test_a_plan() -> None:
    made = plan(loaded(), Deployment(), model="/ckpt", host="0.0.0.0", port=30000, python="/env/bin/python")
    (one,) = made.commands
    assert one.argv == (
        *(
            "/env/bin/python",
            "-m",
            "sglang.launch_server",
            "--model-path",
            "/ckpt",
            "--host",
            "0.0.0.0",
            "--port",
            "30000",
        ),
        *("--tensor-parallel-size", "8", "--expert-parallel-size", "8"),
        *("--reasoning-parser", "deepseek-v3", "--tool-call-parser", "deepseekv32", "--speculative-algorithm", "EAGLE"),
        *("--speculative-num-steps", "2", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "3"),
    )
    profile = "profile default of deepseekv32"
    assert made.origins == {
        "speculative.algorithm": profile,
        "speculative.num_steps": profile,
        "speculative.eagle_topk": profile,
        "speculative.num_draft_tokens": profile,
        "tensor_parallel": profile,
        "expert_parallel": profile,
        "parsers": "parsers of deepseekv32",
        "model": "caller",
    }
    assert made.notes == (
        "max_running_requests is unset: beside speculation SGLang runs 48 requests at once, where the model has no number of "
        "its own",
    )
    assert made.recipe.parsers == Parsers(reasoning="deepseek-v3", tool_call="deepseekv32")


def test_the_callers_values_are_the_callers() -> None:
    overrides = {
        "tensor_parallel": 4,
        "expert_parallel": 8,
        "speculative": {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4},
        "arguments": {"page-size": 64},
        "environment": {"A": "b c"},
        "parsers": {"reasoning": None, "tool_call": None},
        "max_running_requests": 64,
        "moe_data_parallel": 1,
    }
    with pytest.raises(RecipeError, match="expert_parallel 8 × moe_data_parallel 1 is 8: they must divide it"):
        plan(loaded(), Deployment(overrides=overrides))
    made = plan(loaded(), Deployment(overrides={**overrides, "tensor_parallel": 16}))
    profile = "profile default of deepseekv32"
    assert made.origins == {
        "speculative.algorithm": profile,
        "speculative.num_steps": "caller",
        "speculative.eagle_topk": profile,
        "speculative.num_draft_tokens": "caller",
        "tensor_parallel": "caller",
        "expert_parallel": "caller",
        "parsers": "caller",
        "max_running_requests": "caller",
        "moe_data_parallel": "caller",
        "arguments.page-size": "caller",
        "environment.A": "caller",
        "model": "the first model of deepseekv32",
    }
    assert made.notes == ()
    (one,) = made.commands
    assert str(one) == f"A='b c' {shlex.join(one.argv)}"
    assert "--reasoning-parser" not in one.argv
    assert one.argv[-2:] == ("--page-size", "64")


def test_what_is_no_variable() -> None:
    for name in ("A B", "", "A=B", "1A", "A;rm", "Ä"):
        with pytest.raises(RecipeError) as caught:
            plan(loaded(), Deployment(overrides={"environment": {name: "1"}}))
        assert str(caught.value) == (
            f"deepseekv32 can't be served by sglang with the profile 'default': environment has {name!r}, which is no "
            "variable's name"
        )


def test_one_command_a_node() -> None:
    asked = Deployment(nodes=2, overrides={"tensor_parallel": 16})
    made = plan(loaded(), asked, address="10.0.0.1:5000")
    assert [one.argv[5:11] for one in made.commands] == [
        ("--nnodes", "2", "--node-rank", rank, "--dist-init-addr", "10.0.0.1:5000") for rank in ("0", "1")
    ]
    for address in (None, "10.0.0.1", "host:", "a b:1", "h:0", "h:65536", "h:５０", ""):
        with pytest.raises(RecipeError) as caught:
            plan(loaded(), asked, address=address)
        assert str(caught.value) == (
            f"2 nodes find each other at the first one's address, and that is {address!r}; give HOST:PORT (address, --address)"
        )


@pytest.mark.parametrize(
    ("engine", "said"),
    [("sglang", ("--dist-init-addr", "h:5000")), ("vllm", ("--master-addr", "h", "--master-port", "5000"))],
)
def test_one_node_is_told_its_address_too(engine: str, said: tuple[str, ...]) -> None:
    (one,) = plan(loaded(), Deployment(engine=engine), address="h:5000").commands
    assert said == tuple(word for word in one.argv if word in said)
    with pytest.raises(RecipeError) as caught:
        plan(loaded(), Deployment(engine=engine), address="h")
    assert (
        str(caught.value)
        == "nodes find each other at the first one's address, and that is 'h'; give HOST:PORT (address, --address)"
    )


def test_a_model() -> None:
    made = plan(loaded(), Deployment(), model=Path("/ckpt/a b"))
    assert (made.model, made.commands[0].argv[4], made.origins["model"]) == ("/ckpt/a b", "/ckpt/a b", "caller")
    with pytest.raises(RecipeError) as caught:
        plan(loaded(), Deployment(), model="")
    assert str(caught.value) == "the model is an empty text; give a directory or a name, or none"
    with pytest.raises(RecipeError) as caught:
        plan(loaded(), Deployment(), host="")
    assert str(caught.value) == "the host is an empty text; give what the server listens on, or none"


def test_what_is_unset_is_noted() -> None:
    arguments = {"moe-a2a-backend": "deepep"}
    made = plan(loaded(), Deployment(profile="plain", overrides={"expert_parallel": 1, "arguments": arguments}))
    assert made.notes == (
        "expert_parallel is unset: with moe-a2a-backend deepep SGLang splits the experts over all 8 ranks",
    )
    assert plan(loaded(), Deployment(profile="plain", overrides={"arguments": arguments})).notes == ()


def test_an_algorithm_that_others_may_register_is_noted() -> None:
    asked = Deployment(overrides={"speculative": eagle(algorithm="eagel").model_dump(), "max_running_requests": 64})
    assert plan(loaded(), asked).notes == (
        "the algorithm EAGEL is none of SGLang's own (EAGLE, EAGLE3, STANDALONE, DFLASH, DSPARK, NGRAM, UNO): it starts only "
        "where that is registered",
    )


@pytest.mark.parametrize("name", ["", "-", "a b", "é", "a=b", "_"])
def test_what_is_no_option(name: str) -> None:
    with pytest.raises(RecipeError, match="arguments has .*, which is no option's name") as caught:
        plan(loaded(), Deployment(overrides={"arguments": {name: 1}}))
    assert f"arguments has {name!r}, " in str(caught.value)


def test_a_plan_for_vllm() -> None:
    made = plan(loaded(), Deployment(engine="vllm", nodes=2), model="m", address="10.0.0.1:5000")
    spread = "--nnodes 2 --node-rank {} --master-addr 10.0.0.1 --master-port 5000{}"
    rest = (
        "--tensor-parallel-size 8 --enable-expert-parallel --speculative-config "
        """'{"method": "mtp", "num_speculative_tokens": 2}'"""
    )
    assert [str(one) for one in made.commands] == [
        f"vllm serve m {spread.format(0, '')} {rest}",
        f"vllm serve m {spread.format(1, ' --headless')} {rest}",
    ]


def test_arguments_of_another_engine() -> None:
    v4 = default_registry.family("deepseekv4")
    with pytest.raises(RecipeError) as caught:
        plan(v4, Deployment(engine="vllm", profile="balanced"))
    assert str(caught.value) == (
        "deepseekv4 can't be served by vllm with the profile 'balanced': its arguments and environment are sglang's: "
        "moe-a2a-backend, SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK; take another profile, or say engine, arguments and "
        "environment for this one"
    )
    own = {"engine": "vllm", "arguments": {"max-model-len": 8192}}
    made = plan(loaded(), Deployment(engine="vllm", overrides=own))
    assert made.commands[0].argv[-2:] == ("--max-model-len", "8192")
    with pytest.raises(RecipeError, match=r"^no recipe is spelled for the engine 'other'; known: sglang, vllm$"):
        command_line("other")


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[Fakes]:
    with fakes_below(tmp_path) as made:
        yield made


def test_an_overrides_values_are_its_own(fakes: Fakes) -> None:
    fakes.add("fake-odd", families={"odd": "fake_odd"}, modules={"fake_odd": source("odd")})
    hook = (
        "@hookimpl\ndef tito_speculative_recipe(deployment): return Recipe(speculative=None, tensor_parallel=4, "
        "arguments={'page-size': 2})"
    )
    fakes.add("fake-house", overrides={"house": "fake_house"}, modules={"fake_house": override(hook)})
    made = plan(fakes.registry().family("odd"), Deployment(overrides={"memory_fraction": 0.5}))
    house = "fake-house 1.0 (fake_house)"
    assert made.origins == {
        "speculative": house,
        "tensor_parallel": house,
        "memory_fraction": "caller",
        "arguments.page-size": house,
        "model": "the first model of odd",
    }


def test_a_plan_raises_as_the_family_does() -> None:
    with pytest.raises(
        FamilyError, match="^deepseekv32 has no recipe of the profile 'p'; known: default, plain, low-latency$"
    ):
        plan(loaded(), Deployment(profile="p"))


# Namespaces

NAMES = st.from_regex(r"x[a-z0-9]{0,6}(-[a-z0-9]{1,6}){0,2}", fullmatch=True)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
SIZES = st.integers(1, 64)
OPTIONAL = st.none() | st.text(min_size=1, max_size=5)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    one = draw(
        st.none()
        | st.builds(
            eagle, SIZES, SIZES, SIZES, algorithm=st.sampled_from(("EAGLE", "EAGLE3", "NGRAM")), draft_model=OPTIONAL
        )
    )
    data, attention = draw(st.sampled_from(((1, 1), (4, 1), (1, 4))))
    return recipe(
        one,
        tensor_parallel=draw(SIZES),
        pipeline_parallel=draw(SIZES),
        expert_parallel=draw(SIZES),
        data_parallel=data,
        attention_data_parallel=attention,
        attention_context_parallel=draw(SIZES),
        moe_data_parallel=draw(SIZES),
        parsers=draw(st.none() | st.builds(Parsers, reasoning=OPTIONAL, tool_call=OPTIONAL)),
        memory_fraction=draw(st.none() | st.floats(0.01, 0.99)),
        max_running_requests=draw(st.none() | SIZES),
        arguments=draw(
            st.dictionaries(NAMES | st.sampled_from(("fp8-gemm-backend", "elastic-ep-join-mode")), VALUES, max_size=4)
        ),
        environment=draw(st.dictionaries(st.text(), st.text(), max_size=2)),
    )


@settings(max_examples=examples(100))
@given(recipes(), st.sampled_from(("sglang_", "", "rollout_")))
def test_a_recipe_comes_back_from_a_namespace(one: Recipe, prefix: str) -> None:
    found = to_namespace(one, prefix)
    assert all(name.startswith(prefix) for name in found)
    assert from_namespace(found, prefix, environment=one.environment) == one
    assert from_namespace(Namespace(**found), prefix, environment=one.environment) == one
    assert to_namespace(from_namespace(found, prefix), prefix) == found


def test_the_fields_that_trainers_keep() -> None:
    one = plan(loaded(), Deployment(overrides={"arguments": {"fp8-gemm-backend": "triton"}})).recipe
    assert to_namespace(one) == {
        "sglang_tp_size": 8,
        "sglang_pp_size": 1,
        "sglang_ep_size": 8,
        "sglang_dp_size": 1,
        "sglang_enable_dp_attention": False,
        "sglang_attn_cp_size": 1,
        "sglang_moe_dp_size": 1,
        "sglang_mem_fraction_static": None,
        "sglang_max_running_requests": None,
        "sglang_speculative_algorithm": "EAGLE",
        "sglang_speculative_num_steps": 2,
        "sglang_speculative_eagle_topk": 1,
        "sglang_speculative_num_draft_tokens": 3,
        "sglang_speculative_draft_model_path": None,
        "sglang_reasoning_parser": "deepseek-v3",
        "sglang_tool_call_parser": "deepseekv32",
        "sglang_fp8_gemm_runner_backend": "triton",
    }


@pytest.mark.parametrize(
    ("said", "attention", "replicas"),
    [
        ({"dp_size": 8, "enable_dp_attention": True}, 8, 1),
        ({"attn_dp_size": 8}, 8, 1),
        ({"attn_dp_size": 8, "enable_dp_attention": True}, 8, 1),
        ({"attn_dp_size": 1, "dp_size": 8, "enable_dp_attention": True}, 8, 1),
        ({"dp_size": 8}, 1, 8),
        ({"dp_size": 1, "enable_dp_attention": True}, 1, 1),
        ({}, 1, 1),
    ],
)
def test_both_spellings_of_attentions_data_parallelism(said: Mapping[str, Any], attention: int, replicas: int) -> None:
    """As SGLang's `handle_deprecated_dp_attention` reads them."""
    found = from_namespace({f"sglang_{name}": value for name, value in said.items()})
    assert (found.attention_data_parallel, found.data_parallel) == (attention, replicas)


def test_a_trainers_other_fields_are_left() -> None:
    given = {"lr": 1e-6, "sglang_tp_size": 2, "sglang_page_size": 64, "sglangx": 1, "sglang_model_path": "m"}
    assert from_namespace(given) == recipe(tensor_parallel=2, arguments={"page-size": 64, "model-path": "m"})
    assert given["sglang_tp_size"] == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"sglang_speculative_num_steps": 2},
            "the fields sglang_speculative_... have num_steps 2 and no algorithm; name it, or leave them out",
        ),
        (
            {"sglang_speculative_algorithm": "EAGLE", "sglang_speculative_num_steps": 1},
            "the fields sglang_... are no recipe: Recipe.speculative: speculation gives num_steps, eagle_topk and num_draft_tokens "
            "together, or is None; missing: eagle_topk, num_draft_tokens",
        ),
        (
            {"sglang_fp8_gemm_backend": "triton"},
            "sglang_fp8_gemm_backend is no field of SGLang's: it keeps that option as sglang_fp8_gemm_runner_backend",
        ),
        ({"sglang_a-b": 1}, "sglang_a-b is no field of SGLang's: it keeps that option as sglang_a_b"),
        ({"sglang__tp_size": 8}, "sglang__tp_size is no field of SGLang's: it keeps that option as sglang_tp_size"),
        ({"sglang_enable_dp_attention": "false"}, "sglang_enable_dp_attention is 'false'; it is True or False"),
        (
            {"sglang_tp_size": 0},
            "the fields sglang_... are no recipe: Recipe.tensor_parallel: Input should be greater than or equal to 1",
        ),
        (
            {"sglang_forward_hooks": {1, 2}},
            "the fields sglang_... are no recipe: Recipe.arguments: holds what JSON does not keep; write null, booleans, numbers, "
            "strings, lists and string keys",
        ),
    ],
)
def test_fields_that_are_no_recipe(given: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeError) as caught:
        from_namespace(given)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (recipe(engine="vllm"), "it is one of vllm"),
        (
            recipe(platforms={"rocm": {"arguments": {}}}),
            "it holds for several platforms (rocm); take it on one: recipe.on(platform)",
        ),
        (
            recipe(data_parallel=2, attention_data_parallel=4),
            "data_parallel is 2 and attention_data_parallel is 4, and one field says both; give 1 for one of them",
        ),
        (
            recipe(arguments={"ep-join-mode": "scale"}),
            "arguments has ep-join-mode, and SGLang's option is elastic-ep-join-mode; name it so",
        ),
        (
            recipe(arguments={"tp_size": 4}),
            "arguments has tp_size 4, and that is the field tensor_parallel, which is 1; say it there alone",
        ),
    ],
)
def test_recipes_that_are_no_namespace(one: Recipe, why: str) -> None:
    with pytest.raises(RecipeError) as caught:
        to_namespace(one)
    assert str(caught.value) == f"the recipe is no namespace: {why}"


def test_the_public_types() -> None:
    made = plan(loaded(), Deployment())
    assert isinstance(made, Plan)
    assert isinstance(made.commands[0], Command)
