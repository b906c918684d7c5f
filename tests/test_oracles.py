from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import oracles


def run(cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python tests/oracles.py` with another cache, and an index that can't be reached."""
    return subprocess.run(
        [sys.executable, oracles.__file__],
        env={**os.environ, "TITO_ORACLES": str(cache), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_missing_oracle_names_the_command_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TITO_ORACLES", str(tmp_path))
    with pytest.raises(oracles.OracleError) as caught:
        oracles._check(oracles.SGLANG)
    path = tmp_path / "sglang-0.5.23" / oracles.ENCODER
    assert str(caught.value) == (f"the oracle sglang==0.5.23 is missing ({path}); fetch it: python tests/oracles.py")


def test_an_altered_oracle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TITO_ORACLES", str(tmp_path))
    path = tmp_path / "sglang-0.5.23" / oracles.ENCODER
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    with pytest.raises(oracles.OracleError) as caught:
        oracles._check(oracles.SGLANG)
    assert str(caught.value) == (
        f"{path} has the sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855, expected "
        f"{oracles.SGLANG.files[oracles.ENCODER]}: not the file of sglang==0.5.23 that the tests were written against; "
        "fetch it again: python tests/oracles.py"
    )


def test_an_unknown_oracle_is_refused() -> None:
    with pytest.raises(oracles.OracleError, match=r"^sglang==0 is not an oracle; known are \['sglang==0.5.23', "):
        oracles.wheel("sglang", "0")


def test_a_full_cache_needs_no_network() -> None:
    done = run(oracles.oracle_dir())
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(" ... ")[1] for line in done.stdout.splitlines()[1:]] == ["cached"] * len(oracles.WHEELS)


def test_a_failed_fetch_is_one_sentence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert "pip could not download sglang==0.5.23: No matching distribution found for sglang==0.5.23" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_oracles_answer() -> None:
    function, tool = oracles.tool_classes()
    dumped = tool(type="function", function={"parameters": {"b": 1, "a": 2}, "name": "f"}).model_dump()
    assert list(dumped["function"]) == ["parameters", "name", "description"]
    assert function(name="f").name == "f"
    assert (
        oracles.dsv32().encode_messages([{"role": "user", "content": "x"}], thinking_mode="chat").endswith("</think>")
    )
    assert oracles.tokenizer_json("r1") != oracles.tokenizer_json("v4")
