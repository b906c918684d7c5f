"""What README.md and docs/verify.md say is what happens."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tito_core.cli import main
from tito_core.verify.checks import CHECKS
from tito_core.verify.report import Report

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def shown(command: str) -> str:
    """The output that README.md shows for a command."""
    (found,) = (
        text for block in blocks("console") for line, _, text in [block.partition("\n")] if line == f"$ {command}"
    )
    return found


def masked(text: str) -> list[list[str]]:
    """The words of each line, without hashes and numbers."""
    text = re.sub(r"sha256 [0-9a-f]{8}", "sha256 #", text)
    return [re.sub(r"\b\d[\d,.]*\d\b|\b\d\b", "#", line).split() for line in text.splitlines()]


def tito(*arguments: str) -> str:
    command = [sys.executable, "-m", "tito_core", *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_families_as_shown() -> None:
    assert masked(tito("families")) == masked(shown("tito families"))


def test_verify_as_shown() -> None:
    fewer = tito("verify", "--family", "deepseekv32", "--conversations", "40", "--sessions", "16")
    assert masked(fewer) == masked(shown("tito verify --family deepseekv32"))


def test_masking_hides_numbers_alone() -> None:
    assert masked("  seam  1,000  44.6 s, v4 0\nok") == [["seam", "#", "#", "s,", "v4", "#"], ["ok"]]
    assert masked("a  1") != masked("b  1")


def test_the_example_runs() -> None:
    (example,) = blocks("python")
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(example, "README.md", "exec"), names)
    turns = names["session"].turns
    assert len(turns) == 3
    assert printed.getvalue().count("[") >= 3
    sample = names["sample"]
    sampled = np.concatenate([np.asarray(turn.completion.ids) for turn in turns])
    assert np.array_equal(sample.tokens[sample.loss_mask == 1], sampled)


def test_every_make_target_and_option_exists() -> None:
    targets = re.findall(r"^make ([\w-]+)", README, re.MULTILINE)
    assert targets[:2] == ["verify", "test"]
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", rules, re.MULTILINE) for target in targets)
    known = tito("verify", "--help")
    engines = {"--chat-template"}
    assert {option for option in re.findall(r"--[a-z][a-z-]*", README + GUIDE) if option not in known} == engines


@pytest.mark.parametrize(
    "document", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("plugins/*/*.md"))
)
def test_links_lead_somewhere_and_nothing_tells_to_install_another_project(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (document.parent / target).exists(), target
    for line in re.findall(r"pip install(.*)", text):
        assert "tito" not in re.split(r"[\s`),;]+", line), line


def table(heading: str) -> list[str]:
    """The first column of the table in docs/verify.md whose first column has this heading."""
    (rows,) = re.findall(rf"^\| {heading} \|.*\n\|[ -|]*\n((?:\|.*\n)+)", GUIDE, re.MULTILINE)
    return [row.split("|")[1].strip() for row in rows.splitlines()]


def test_the_guide_names_every_check_and_exit_code() -> None:
    names = [*(check.name for check in CHECKS), "sessions"]
    assert table("check") == names
    assert [name for row in table("broken") for name in row.split(", ")] == names
    codes = (0, 1, main.USAGE, main.NOT_LOADED, main.INTERNAL, main.INTERRUPTED)
    assert table("code") == [str(code) for code in codes]


def test_the_guide_names_every_field_of_a_report() -> None:
    said = GUIDE.partition("`--json FILE`")[2]
    assert re.findall(r"`([a-z_]+)`", said) == list(Report.model_fields)
