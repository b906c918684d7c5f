"""The examples of docs/trainers.md and docs/plugins.md run; the plugin that the guide builds is installed and verified."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_distributions import Fakes, fakes_below
from oracles import tokenizer_json
from tito_core.verify.run import verify

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parent.parent / "docs"


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[Fakes]:
    with fakes_below(tmp_path) as made:
        yield made


def with_controls(*texts: str) -> bytes:
    """A real vocabulary with control tokens of another family at its end."""
    declared = json.loads(tokenizer_json("r1").read_text(encoding="utf-8"))
    (last,) = [token for token in declared["added_tokens"] if token["content"] == "<｜tool▁sep｜>"]
    declared["added_tokens"] += [
        {**last, "id": last["id"] + number, "content": text} for number, text in enumerate(texts, 1)
    ]
    return json.dumps(declared).encode()


def test_the_trainers_example_runs() -> None:
    (example,) = blocks("trainers.md", "python")
    exec(compile(example, "trainers.md", "exec"), {})


def test_the_plugin_of_the_guide_is_whole(fakes: Fakes) -> None:
    (module,) = blocks("plugins.md", "python")
    (manifest,) = blocks("plugins.md", "toml")
    vocabulary = with_controls("<|start|>", "<|end|>")
    module = module.replace("0" * 64, hashlib.sha256(vocabulary).hexdigest())
    name, place = re.findall(r"^(\w+) = \"(tito_\w+\.\w+)\"", manifest, re.MULTILINE)[0]
    requires = re.findall(r"dependencies = \[\"(.*)\"\]", manifest)
    site = fakes.add(
        "tito-acme", families={name: place}, modules={"tito_acme.__init__": "", place: module}, requires=requires
    )
    (site / "tito_acme" / "vocabularies").mkdir()
    (site / "tito_acme" / "vocabularies" / "acme.json").write_bytes(vocabulary)
    report = verify(name, registry=fakes.registry(), conversations=60, sessions=6)
    assert [(failure.check, failure.what, failure.said) for failure in report.failures] == []
    assert report.sessions.passed == 6
    assert {"system_then_user", "user"} <= set(report.sessions.actions)
