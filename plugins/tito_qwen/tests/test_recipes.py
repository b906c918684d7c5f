"""Qwen's recipes: their numbers, the options that SGLang 0.5.23 takes, and the rules."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from functools import cache
from typing import Any

from oracles import wheel
from tito_core import Deployment, KnownIssue, Recipe, Speculative
from tito_core.families.family import load_reference
from tito_core.families.registry import Registry
from tito_qwen.recipes import MAMBA, RECIPES, RULES, STRATEGY, draft, mamba, mamba_of_its_own_draft

CUDA = {STRATEGY: "extra_buffer", "page-size": 64}
ROCM = {STRATEGY: "no_buffer", "page-size": 1, "disable-overlap-schedule": True}
NUMBERS = {
    ("qwen3", "default"): (None, 1, 1),
    ("qwen3instruct", "default"): (None, 8, 1),
    ("qwen3instruct", "low-latency"): (("EAGLE3", 3, 1, 4), 8, 1),
    ("qwen3instruct", "low-latency-30b"): (("EAGLE3", 3, 1, 4), 4, 1),
    ("qwennext", "default"): (("EAGLE", 2, 1, 3), 8, 8),
    ("qwennext", "low-latency"): (("EAGLE", 3, 1, 4), 4, 1),
    ("qwennext", "plain"): (None, 8, 1),
    ("qwen3coder", "default"): (None, 8, 1),
    ("qwen3coder", "low-latency"): (("EAGLE3", 3, 1, 4), 8, 1),
    ("qwen3coder", "low-latency-30b"): (("EAGLE3", 3, 1, 4), 4, 1),
    ("qwen35", "default"): (("EAGLE", 2, 1, 3), 8, 1),
    ("qwen35", "low-latency"): (("EAGLE", 3, 1, 4), 8, 1),
    ("qwen35", "low-latency-fp8"): (("EAGLE", 3, 1, 4), 8, 1),
    ("qwen35", "low-latency-fp4"): (("EAGLE", 3, 1, 4), 8, 1),
    ("qwen35", "plain"): (None, 8, 1),
    ("qwen36", "default"): (("EAGLE", 2, 1, 3), 1, 1),
    ("qwen36", "low-latency"): (("EAGLE", 3, 1, 4), 1, 1),
    ("qwen36", "plain"): (None, 1, 1),
    ("qwen38", "default"): (None, 1, 1),
}


def every() -> Iterator[tuple[str, str, Deployment, Recipe]]:
    """Every recipe of every family, as it is answered for each platform."""
    for family, recipes in RECIPES.items():
        loaded = Registry().family(family)
        for profile in recipes:
            for platform in ("cuda", "rocm", "cpu"):
                deployment = Deployment(profile=profile, platform=platform)
                yield family, profile, deployment, loaded.recipe(deployment)


def test_numbers() -> None:
    found = {}
    for family, profile, _, recipe in every():
        one = recipe.speculative
        said = one and (one.algorithm, one.num_steps, one.eagle_topk, one.num_draft_tokens)
        found[family, profile] = (said, recipe.tensor_parallel, recipe.expert_parallel)
        assert recipe.source
        assert recipe.data_parallel == recipe.pipeline_parallel == 1
        assert one is None or (one.draft_model is not None) == (one.algorithm == "EAGLE3")
    assert found == NUMBERS


def test_what_holds_on_a_platform_only() -> None:
    for family, profile, deployment, recipe in every():
        given = {name: recipe.arguments[name] for name in ROCM if name in recipe.arguments}
        hybrid = family in ("qwennext", "qwen35", "qwen36") and recipe.speculative and profile != "low-latency-fp4"
        assert given == ({"cuda": CUDA, "rocm": ROCM}.get(deployment.platform, {}) if hybrid else {})
        assert recipe.platforms == {}


def test_every_recipe_keeps_every_rule() -> None:
    for family, profile, deployment, recipe in every():
        assert Registry().get_family(family).recipe_rules == RULES[family]
        for rule in RULES[family]:
            assert load_reference(rule.check)(recipe, deployment) is None, (profile, rule.name)


def test_recipes_are_the_same_after_json_and_pickle() -> None:
    for recipes in RECIPES.values():
        for recipe in recipes.values():
            assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
            assert pickle.loads(pickle.dumps(recipe)) == recipe


@cache
def fields() -> dict[str, ast.expr]:
    """The fields of SGLang 0.5.23's arguments with their annotations: each is an option, with dashes for underscores."""
    found: dict[str, ast.expr] = {}
    for file in ("exec_", "memory", "parallel", "schedule", "spec"):
        path = wheel("sglang", "0.5.23") / "sglang" / "srt" / "arg_groups" / "fields" / f"{file}.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = node.annotation
    return found


def test_sglang_takes_every_option() -> None:
    """Named as in 0.5.23, with a value of its kind: a flag, a number, or one of its choices."""
    seen = set()
    for _, _, _, recipe in every():
        for name, value in recipe.arguments.items():
            annotation = ast.unparse(fields()[name.replace("-", "_")])
            assert "no_cli" not in annotation
            kind = {bool: "bool", int: "int", float: "float", str: "str"}[type(value)]
            assert kind in annotation.split(",")[0], (name, annotation)
            assert "choices=" not in annotation or repr(value) in annotation
            seen.add(name)
    assert seen >= {STRATEGY, "page-size", "disable-overlap-schedule", "disable-radix-cache"}
    assert "mamba_scheduler_strategy" not in fields()


def eagle(draft_model: str | None = None) -> Speculative:
    algorithm = "EAGLE3" if draft_model else "EAGLE"
    return Speculative(algorithm=algorithm, num_steps=3, eagle_topk=1, num_draft_tokens=4, draft_model=draft_model)


def served(**arguments: Any) -> Recipe:
    return Recipe(speculative=eagle(), arguments={name.replace("_", "-"): value for name, value in arguments.items()})


def test_speculation_needs_the_cache_of_its_platform() -> None:
    cuda, rocm, cpu = Deployment(), Deployment(platform="rocm"), Deployment(platform="cpu")
    advice = "; set it, or disable-radix-cache: every turn then prefills the whole session"
    need = "and the prefix cache of linear attention needs"
    assert mamba(served(), cuda) == (
        f"it speculates on cuda with {STRATEGY} unset, {need} {STRATEGY} extra_buffer there{advice}"
    )
    assert mamba(served(mamba_radix_cache_strategy="no_buffer"), cuda) == (
        f"it speculates on cuda with {STRATEGY} no_buffer, {need} {STRATEGY} extra_buffer there{advice}"
    )
    assert mamba(served(mamba_radix_cache_strategy="extra_buffer", page_size=1), cuda) == (
        f"it speculates on cuda with page-size 1, {need} page-size 64 there{advice}"
    )
    assert mamba(Recipe(speculative=eagle(), arguments=CUDA), rocm) == (
        f"it speculates on rocm with {STRATEGY} extra_buffer, {need} {STRATEGY} no_buffer there{advice}"
    )
    assert mamba(Recipe(speculative=eagle(), arguments={**ROCM, "disable-overlap-schedule": False}), rocm) == (
        f"it speculates on rocm with disable-overlap-schedule False, {need} disable-overlap-schedule True there{advice}"
    )
    for recipe, deployment in (
        (Recipe(speculative=eagle(), arguments=CUDA), cuda),
        (Recipe(speculative=eagle(), arguments=ROCM), rocm),
        (Recipe(speculative=eagle(), platforms=MAMBA).on("rocm"), rocm),
        (served(disable_radix_cache=True), cuda),
        (Recipe(speculative=None), cuda),
        (served(), cpu),
        (served(mamba_radix_cache_strategy="extra_buffer", page_size=64), cuda),
    ):
        assert mamba(recipe, deployment) is None


def test_where_only_some_models_have_linear_attention() -> None:
    assert mamba_of_its_own_draft(served(), Deployment()) == mamba(served(), Deployment())
    assert mamba_of_its_own_draft(Recipe(speculative=eagle("some/draft")), Deployment()) is None
    assert mamba_of_its_own_draft(Recipe(speculative=None), Deployment()) is None


def test_a_checkpoint_without_a_draft_layer_needs_a_draft_model() -> None:
    assert draft(served(), Deployment()) == (
        "it speculates with EAGLE and no draft model, and the checkpoint carries no draft layer; name one"
    )
    lookup = Speculative(algorithm="ngram", num_steps=1, eagle_topk=10, num_draft_tokens=12)
    for one in (None, eagle("some/draft"), lookup):
        assert draft(Recipe(speculative=one), Deployment()) is None


def test_an_older_sglang_is_explained() -> None:
    issue: KnownIssue
    (issue,) = Registry().get_family("qwen35").known_issues
    assert issue.explains(f"launch_server.py: error: unrecognized arguments: --{STRATEGY} extra_buffer")
    assert not issue.explains(f"server_args={{'{STRATEGY}': 'extra_buffer'}}")
