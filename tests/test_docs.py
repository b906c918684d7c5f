"""The examples of docs/trainers.md and docs/plugins.md run; the plugin that the guide builds is installed and verified."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_distributions import Fakes, fakes_below
from oracles import tokenizer_json
from tito_core.prompts.jinja import JinjaRenderer
from tito_core.prompts.messages import Message
from tito_core.prompts.template import Rendered
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


@pytest.mark.parametrize("kind", ["encoder", "jinja", "native"])
def test_the_plugin_of_the_guide_is_whole(kind: str, fakes: Fakes, tmp_path: Path) -> None:
    (module,) = blocks("plugins.md", "python")
    (field,) = re.findall(r"`(template=\"templates/.*?\")`", (DOCS / "plugins.md").read_text(encoding="utf-8"))
    (source,) = blocks("plugins.md", "jinja")
    (manifest,) = blocks("plugins.md", "toml")
    vocabulary = with_controls("<|start|>", "<|end|>")
    if kind != "encoder":
        own = field if kind == "jinja" else "template='native'"
        module = module.replace('template="tito_acme.acme:AcmeEncoding"', own)
        assert 'AcmeEncoding"' not in module
    module = module.replace("0" * 64, hashlib.sha256(vocabulary).hexdigest())
    name, place = re.findall(r"^(\w+) = \"(tito_\w+\.\w+)\"", manifest, re.MULTILINE)[0]
    requires = re.findall(r"dependencies = \[\"(.*)\"\]", manifest)
    site = fakes.add(
        "tito-acme", families={name: place}, modules={"tito_acme.__init__": "", place: module}, requires=requires
    )
    (site / "tito_acme" / "vocabularies").mkdir()
    (site / "tito_acme" / "vocabularies" / "acme.json").write_bytes(vocabulary)
    (site / "tito_acme" / "templates").mkdir()
    (site / "tito_acme" / "templates" / "acme.jinja").write_text(source, encoding="utf-8")
    model = None
    if kind == "native":
        model = tmp_path / "checkpoint"
        model.mkdir()
        (model / "config.json").write_text('{"model_type": "acme"}', encoding="utf-8")
        (model / "tokenizer.json").write_bytes(vocabulary)
        (model / "chat_template.jinja").write_text(source, encoding="utf-8")
    report = verify(name, registry=fakes.registry(), model=model, conversations=60, sessions=6)
    assert (
        report.template.reference
        == {
            "encoder": "tito_acme.acme:AcmeEncoding",
            "jinja": "tito_acme/templates/acme.jinja",
            "native": f"{model}/chat_template.jinja",
        }[kind]
    )
    assert [(failure.check, failure.what, failure.said) for failure in report.failures] == []
    assert report.sessions.passed == 6
    assert {"system_then_user", "user"} <= set(report.sessions.actions)
    assert report.warnings == (
        (
            f"{model} has a chat template of its own (sha256 {hashlib.sha256(source.encode()).hexdigest()}) that acme does "
            "not know; prompts are rendered with it, so make sure that this checkpoint is one of acme/chat-7b",
        )
        if kind == "native"
        else ()
    )


def whose(rendered: Rendered) -> Iterator[tuple[str, int, str]]:
    """The author of each character."""
    for span in rendered.spans:
        yield from [(span.source, span.index, span.role)] * (span.end - span.start)


def test_the_template_of_the_guide_prints_what_its_encoder_prints(fakes: Fakes) -> None:
    """The text and every span: one says itself what is content, of the other it is found out."""
    (module,) = blocks("plugins.md", "python")
    (source,) = blocks("plugins.md", "jinja")
    names: dict[str, Any] = {}
    exec(compile(module, "plugins.md", "exec"), names)
    encoding, template = names["AcmeEncoding"](), JinjaRenderer(source, "acme")
    for roles in itertools.product(("system", "user", "assistant"), repeat=3):
        for _ in range(3):  # the third time it is not rendered but filled in
            messages = [Message(role, text) for role, text in zip(roles, ("<|end|>\n", " a ", "b\n"), strict=True)]
            expected, found = encoding.render(messages, kwargs={}), template.render(messages, tools=(), kwargs={})
            assert found.text == expected.text
            assert list(whose(found)) == list(whose(expected))
