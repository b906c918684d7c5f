"""The command line: what it prints to the letter, how it exits, and what it imports."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tito_core
from fake_distributions import fakes_below, override, source
from tito_core.cli.main import NOT_LOADED, tito
from tito_core.cli.text import clip, plain, quoted
from tito_core.errors import CheckpointError
from tito_core.families import registry
from tito_core.families.registry import Registry
from tito_core.verify import run as verification
from tito_core.verify.report import (
    CheckResult,
    Failure,
    Report,
    SessionsResult,
    TemplateUsed,
    VocabularyUsed,
)

ROOT = Path(__file__).parent.parent

TOY = """
from tito_core import *

@hookimpl
def tito_family():
    return Family(
        name="toy",
        models=("maker/Toy-1", "maker/Toy-2"),
        model_types=("toy",),
        template="json:JSONDecoder",
        fixed_kwargs={"keep": True},
        kwargs=("effort",),
        append_roles=AppendRoles(
            roles={"tool", "user"},
            follows={"assistant": {"tool", "user"}, "tool": {"user"}, "user": set()},
            ends={"user"},
        ),
        thinking=Thinking(
            aliases=("think", "mode"),
            forward_as="think",
            default=False,
            words={"mode": {"on": True}},
            effort=Effort(name="level", levels=("low", "high"), default="high", range=(1, 9)),
        ),
        boundary=Boundary(stop=("<end>",), glue="\\n", shared=("<end>",)),
        segments=Segments(delimiters=("<end>",), headers=("<end>",)),
        control_tokens=(ControlToken(text="<end>"),),
        parsers={"sglang": Parsers(reasoning="toy")},
        recipes={
            "default": Recipe(speculative=None),
            "fast": Recipe(
                speculative=Speculative(algorithm="EAGLE", num_steps=3, eagle_topk=1, num_draft_tokens=4),
                tensor_parallel=8,
                max_running_requests=64,
                arguments={"chunks": 2},
                environment={"FAST": "1"},
            ),
        },
        recipe_rules=(Rule(name="even", check="toy_plugin:even"),),
        peers={"theirs": "toy-1", "others": None},
        revisions=(
            Revision(name="first", note="as published"),
            Revision(
                name="second",
                append_roles=AppendRoles(roles={"user"}, follows={"assistant": {"user"}, "user": set()}, ends={"user"}),
            ),
        ),
        vocabularies=(
            Vocabulary(name="own", file="own.json.gz", sha256="ab" * 32, title="Toy", stands_in_for="Toy 2"),
        ),
        known_issues=(KnownIssue(name="slow", summary="It is slow.", matches="slow", advice="Wait\\x1b[31m."),),
    )


def even(recipe, deployment):
    return None
"""


def toy(folder: Path) -> Path:
    """A folder that holds an installed plugin, as far as importing and metadata go."""
    info = folder / "tito_toy-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tito-toy\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[tito.families]\ntoy = toy_plugin\n")
    (folder / "toy_plugin.py").write_text(TOY)
    return info


@pytest.fixture
def toy_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    found = importlib.metadata.PathDistribution(toy(tmp_path)).entry_points
    monkeypatch.syspath_prepend(tmp_path)
    for module in (registry, verification):
        monkeypatch.setattr(module, "default_registry", Registry(found))
    yield
    sys.modules.pop("toy_plugin", None)


@pytest.fixture(autouse=True)
def _plain_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "TITO_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def tito_says(*arguments: str) -> Result:
    return CliRunner().invoke(tito, arguments, prog_name="tito")


def python(code: str, *path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, warnings being errors, with these folders importable."""
    found = os.pathsep.join(map(str, (*path, *(entry for entry in sys.path if entry))))
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": found, **environment},
    )


CHECKS = (
    CheckResult(name="gate", promise="what is declared renders", conversations=336, tokens=0, ok=True),
    CheckResult(
        name="seam", promise="what follows a turn is what the render prints", conversations=1000, tokens=44636, ok=True
    ),
)
HELD = Report(
    family="toy",
    distribution="tito-toy",
    version="1.2",
    revision="first",
    vocabulary=(
        VocabularyUsed(name="own", title="Toy", sha256="ab" * 32, stands_in_for=None),
        VocabularyUsed(name="x", title="Other 3", sha256="cd" * 32, stands_in_for="Toy 2"),
    ),
    template=TemplateUsed(reference="toy_plugin:Toy", sha256="ef" * 32),
    overrides=(),
    seed=7,
    seconds=12.34,
    warnings=(),
    checks=CHECKS,
    sessions=SessionsResult(
        driven=64,
        passed=64,
        turns=1479,
        calls=731,
        tokens=344584,
        actions={"tool_results": 142, "user": 49},
        mismatches={"special_token_count": 0, "special_token_type": 0, "non_assistant_text": 0, "assistant_text": 61},
    ),
    failures=(),
    exit_code=0,
)
BROKEN = HELD.model_copy(
    update={
        "vocabulary": (VocabularyUsed(name="checkpoint", title="/ckpt", sha256="ab" * 32, stands_in_for=None),),
        "revision": "[red]first[/red]",
        "warnings": ("/ckpt has a chat template of its own\x1b[31m",),
        "checks": (CHECKS[0], CHECKS[1].model_copy(update={"ok": False})),
        "sessions": HELD.sessions.model_copy(update={"passed": 63, "actions": {}}),
        "failures": (
            Failure(
                check="seam",
                vocabulary="checkpoint",
                what="after tool: got 198 '\\n', expected [bold]",
                message_index=3,
                role="tool",
                first_index=1187,
                expected_ids=(*range(20), 128798, 5),
                actual_ids=(*range(20), 198),
                expected_text="a" * 100 + '"<think>\u202e[red]\n' + "b" * 100,
                actual_text="a" * 100 + '"\n',
                said='user "0\u200d", assistant calls f({}), tool ""',
                conversation={"messages": [{"role": "user", "content": "\ud800"}]},
            ),
            Failure(check="sessions", vocabulary="checkpoint", what="the loss mask is wrong"),
        ),
        "exit_code": 1,
    }
)


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Report], list[dict[str, Any]]]:
    """Makes verification answer with a report, in an empty directory; what it was asked is in the list."""
    monkeypatch.chdir(tmp_path)

    def answer(report: Report) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def verify(family: str, **arguments: Any) -> Report:
            asked.append({"family": family, **arguments})
            return report

        monkeypatch.setattr(verification, "verify", verify)
        return asked

    return answer


def raising(error: BaseException) -> Callable[..., Report]:
    def verify(family: str, **arguments: Any) -> Report:
        raise error

    return verify


def test_help_imports_click_alone() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from tito_core.cli.main import main\n"
        "try: main(sys.argv[1:] or ['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names\n"
        "print(sorted(new))"
    )
    for argument in ("--help", "--version"):
        done = python(code.replace("sys.argv[1:] or ['--help']", f"['{argument}']"))
        assert done.stderr == ""
        assert done.stdout.splitlines()[-1] in ("['click', 'tito_core']", "['click', 'tito_core', 'typing_extensions']")
    assert "_distutils_hack" not in done.stdout


def test_help() -> None:
    said = tito_says("--help")
    assert said.exit_code == 0
    assert (
        said.output
        == """\
Usage: tito [OPTIONS] COMMAND [ARGS]...

  Token-in token-out: a trainer learns from exactly the token ids that the
  engine sampled.

  `tito verify --family F` proves on this machine that a model family can do
  that, before any GPU hour is spent.

Options:
  -V, --version  Show the version and exit.
  -h, --help     Show this message and exit.

Commands:
  families  List the installed families.
  show      Show what a family declares.
  template  Print a family's chat template.
  recipe    Print what starts an engine with a family's recipe.
  doctor    Diagnose every installed plugin.
  verify    Prove that a family keeps its promises.

  Exit codes: 0 all held, 1 a promise broke or a plugin is broken, 2 usage, 3
  the family or the checkpoint could not be loaded, 70 a fault of tito itself.
"""
    )
    assert tito_says("--version").output == f"tito-core {tito_core.__version__}\n"


@pytest.mark.parametrize("name", ["families", "show", "template", "verify"])
def test_the_line_in_help_is_the_commands_own(name: str) -> None:
    said = tito_says(name, "--help")
    assert said.exit_code == 0
    listed = next(
        line.split(maxsplit=1)[1] for line in tito_says("--help").output.splitlines() if line.startswith(f"  {name} ")
    )
    assert listed.rstrip(".").split(" a family")[0] in " ".join(said.output.split()).replace("FAMILY", "a family")


def test_python_dash_m() -> None:
    done = python(
        "import runpy, sys; sys.argv = ['x', '--version']; runpy.run_module('tito_core', run_name='__main__')"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tito-core {tito_core.__version__}\n", "")


def test_families_imports_no_plugin(tmp_path: Path) -> None:
    toy(tmp_path)
    (tmp_path / "toy_plugin.py").write_text("raise SystemExit('imported')")
    code = "from tito_core.cli.main import main; main(['families'])"
    done = python(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["family", "distribution", "version", "module"]
    assert ["toy", "tito-toy", "1.2", "toy_plugin"] in rows
    code = (
        "import sys\nfrom tito_core.cli.main import main\ntry: main(['families'])\n"
        "except SystemExit: print(any(name.startswith(('toy_plugin', 'tito_deepseek')) for name in sys.modules))"
    )
    assert python(code, tmp_path).stdout.splitlines()[-1] == "False"


@pytest.mark.usefixtures("toy_registry")
def test_families() -> None:
    said = tito_says("families")
    assert said.exit_code == 0
    assert (
        said.output
        == """\
family  distribution  version  module
toy     tito-toy      1.2      toy_plugin
"""
    )


def test_no_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default_registry", Registry([]))
    said = tito_says("families")
    assert said.exit_code == 0
    assert (
        said.output
        == """\
No family is installed. A family comes in a plugin, a distribution of its own: install one into this environment
(pip install DISTRIBUTION; from a checkout of this project, pip install ./plugins/NAME) and it is listed here.
"""
    )


@pytest.mark.usefixtures("toy_registry")
def test_show() -> None:
    import json.decoder

    said = tito_says("show", "toy")
    digest = hashlib.sha256(Path(json.decoder.__file__).read_bytes()).hexdigest()
    assert said.exit_code == 0, said.output
    assert (
        said.output
        == f"""\
toy (tito-toy 1.2, toy_plugin)
  models        maker/Toy-1, maker/Toy-2
  model types   toy
  template      json:JSONDecoder
                sha256 {digest}
  kwargs        effort
  fixed kwargs  keep=True
  thinking      off by default; engines are told think
                set by think or mode
                mode takes "on" (on) too
                level: low, high, or 1 to 9; high by default; none is off
  turn ends     with "<end>"; then "\\n"; shared with the next message: "<end>"
  revisions     first   as published  (default)
                second
  vocabularies  own  Toy  stands in for Toy 2  sha256 abababab
  parsers       sglang: reasoning toy, tool calls none
  recipes       default: no speculation
                fast: EAGLE, 3 steps, top-k 1, 4 draft tokens; tensor_parallel=8, max_running_requests=64; chunks=2; FAST='1'
  recipe rules  even: toy_plugin:even
  peers         theirs calls it toy-1
                others lacks it
  known issues  slow: It is slow. Wait\\x1b[31m.

  append roles     may stand   may end a prompt
  after tool       user        no
  after user       nothing     yes
  after assistant  tool, user  no

  of revision second  may stand  may end a prompt
  after user          nothing    yes
  after assistant     user       no
"""
    )


@pytest.fixture
def jinja_toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`shipped`, whose package has a chat template, and `own`, which renders with a checkpoint's."""
    site = tmp_path / "jinja_toys"
    (site / "toys" / "templates").mkdir(parents=True)
    (site / "toys" / "__init__.py").touch()
    (site / "toys" / "templates" / "toy.jinja").write_bytes(b"\xc3\xa9{{ x }}\r\n\n")
    for name, template in (("shipped", "templates/toy.jinja"), ("own", "native")):
        module = TOY.replace('name="toy"', f'name="{name}"').replace("json:JSONDecoder", template)
        module = module.replace("toy_plugin:", f"toys.{name}:")
        (site / "toys" / f"{name}.py").write_text(module)
    info = site / "toys-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1\nRequires-Dist: tito-core\n")
    (info / "entry_points.txt").write_text("[tito.families]\nshipped = toys.shipped\nown = toys.own\n")
    monkeypatch.syspath_prepend(site)
    points = [*importlib.metadata.PathDistribution(info).entry_points, *registry.default_registry.entry_points()]
    monkeypatch.setattr(registry, "default_registry", Registry(points))
    return tmp_path


def checkpoint(path: Path, **files: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "toy"}')
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return path


def test_template(jinja_toys: Path) -> None:
    """The file's own bytes, whatever its line ends are, and nothing else."""
    said = tito_says("template", "shipped")
    assert (said.exit_code, said.stdout_bytes, said.stderr) == (0, b"\xc3\xa9{{ x }}\r\n\n", "")
    one = checkpoint(jinja_toys / "one", chat_template__jinja="{{ one }}\n")
    two = checkpoint(
        jinja_toys / "two", tokenizer_config__json='{"chat_template": [{"name": "default", "template": "2"}]}'
    )
    none = checkpoint(jinja_toys / "none")
    assert tito_says("template", "own", "--model", str(one)).stdout == "{{ one }}\n"
    assert tito_says("template", "own", "--model", str(two)).stdout == "2"
    for arguments, error in (
        (
            ["own"],
            "toys 1 (toys.own), family own: the family own renders with the checkpoint's own chat template; name a checkpoint: model=, --model",
        ),
        (
            ["own", "--model", str(none)],
            "toys 1 (toys.own), family own: the family own renders with the checkpoint's own chat template, and "
            f"{none} has none, neither as chat_template.jinja nor in tokenizer_config.json",
        ),
        (
            ["deepseekv32"],
            "deepseekv32 has no chat template: it renders with an encoder, tito_deepseek.v32_encoding:V32Encoding; engines that serve it have one of their own",
        ),
    ):
        said = tito_says("template", *arguments)
        assert (said.exit_code, said.stdout, said.stderr) == (NOT_LOADED, "", f"error: {error}\n")


def test_show_says_whose_template_it_is(jinja_toys: Path) -> None:
    digest = hashlib.sha256(b"\xc3\xa9{{ x }}\r\n\n").hexdigest()
    assert (
        f"  template      toys/templates/toy.jinja\n                sha256 {digest}\n"
        in tito_says("show", "shipped").output
    )
    assert "  template      the checkpoint's own chat template\n" in tito_says("show", "own").output
    shown = json.loads(tito_says("show", "shipped", "--json").stdout)["template"]
    assert shown == {"kind": "jinja", "reference": "toys/templates/toy.jinja", "sha256": digest}
    assert json.loads(tito_says("show", "own", "--json").stdout)["template"] is None


def test_show_with_overrides(tmp_path: Path) -> None:
    with fakes_below(tmp_path) as fakes, pytest.MonkeyPatch.context() as monkeypatch:
        narrow = "@hookimpl\ndef tito_append_roles(family): return family.append_roles.narrowed({'tool'})\n"
        slow = "@hookimpl\ndef tito_speculative_recipe(): return Recipe(speculative=None, tensor_parallel=4)\n"
        silent = "@hookimpl\ndef tito_forward_thinking(): return None\n"
        declared = source("odd").replace("family('odd')", "family('odd', recipes={'p': Recipe(speculative=None)})")
        fakes.add("fake-odd", families={"odd": "fake_odd"}, modules={"fake_odd": declared})
        fakes.add("house", overrides={"a": "fake_a"}, modules={"fake_a": override(narrow + slow + silent)})
        monkeypatch.setattr(registry, "default_registry", fakes.registry())
        said, told = tito_says("show", "odd").output, json.loads(tito_says("show", "odd", "--json").output)
    assert "  overrides     house 1.0 (fake_a): tito_append_roles\n" in said
    assert "                house 1.0 (fake_a): tito_speculative_recipe\n" in said
    assert "  recipes       p: no speculation; tensor_parallel=4\n" in said
    assert "tito_forward_thinking" not in said
    assert told["overrides"] == ["house 1.0 (fake_a): tito_append_roles", "house 1.0 (fake_a): tito_speculative_recipe"]
    assert told["recipes"]["p"]["tensor_parallel"] == 4
    assert told["family"]["recipes"]["p"]["tensor_parallel"] == 1
    assert told["append_roles"]["roles"] == ["tool"]


def test_a_verification_that_held(verified: Callable[[Report], list[dict[str, Any]]]) -> None:
    asked = verified(HELD)
    said = tito_says("verify", "--family", "toy", "--seed", "7")
    assert said.stderr == ""
    assert said.exit_code == 0
    assert (
        said.stdout
        == """\
tito verify  toy (tito-toy 1.2)   revision first   seed 7
  template    toy_plugin:Toy  sha256 efefefef
  vocabulary  own, Toy        sha256 abababab
  vocabulary  x, Other 3      sha256 cdcdcdcd  stands in for Toy 2

  check       promise                                        cases   tokens  result
  gate        what is declared renders                         336        -  ok
  seam        what follows a turn is what the render prints  1,000   44,636  ok
  sessions    64 of 64 held, 1,479 turns, 731 calls             64  344,584  ok
  mismatches  special 0  type 0  text 0  assistant 61 (soft)
  driven      tool results 142, user 49

All 2 promises and all 64 sessions held in 12.3 s, on stand-ins for the vocabulary of Toy 2: --model DIR \
proves it on a checkpoint's own.
"""
    )
    assert asked == [
        {
            "family": "toy",
            "model": None,
            "revision": None,
            "vocabulary": None,
            "sessions": 64,
            "conversations": 1000,
            "seed": 7,
            "append_roles": None,
            "progress": None,
        }
    ]
    assert not list(Path().iterdir())


def test_a_verification_that_broke(verified: Callable[[Report], list[dict[str, Any]]]) -> None:
    verified(BROKEN)
    said = tito_says("verify", "--family", "toy", "--model", "/ckpt")
    assert said.stderr == ""
    assert said.exit_code == 1
    assert (
        said.stdout
        == f"""\
tito verify  toy (tito-toy 1.2)   revision [red]first[/red]   seed 7
  template    toy_plugin:Toy  sha256 efefefef
  vocabulary  /ckpt           sha256 abababab
  warning     /ckpt has a chat template of its own\\x1b[31m

  check       promise                                        cases   tokens  result
  gate        what is declared renders                         336        -  ok
  seam        what follows a turn is what the render prints  1,000   44,636  FAIL
  sessions    63 of 64 held, 1,479 turns, 731 calls             64  344,584  FAIL
  mismatches  special 0  type 0  text 0  assistant 61 (soft)
  driven      nothing

FAIL seam  after tool: got 198 '\\n', expected [bold]
  vocabulary  checkpoint
  where       message 3 (tool), id 1187
  expected    …"{"a" * 59}\\"<think>\\u202e[red]\\n{"b" * 46}"…
              ids … 14 15 16 17 18 19 [128798] 5
  got         …"{"a" * 59}\\"\\n"
              ids … 14 15 16 17 18 19 [198]
  smallest    user "0\\u200d", assistant calls f({{}}), tool ""
  saved       tito-fail-seam.json

FAIL sessions  the loss mask is wrong
  vocabulary  checkpoint

Broken: seam, sessions (in 12.3 s). Don't train on this yet: the same command with --seed 7 shows it again, and \
whoever publishes tito-toy 1.2 needs this output and the saved files.
"""
    )
    saved = json.loads(Path("tito-fail-seam.json").read_text())
    assert [path.name for path in Path().iterdir()] == ["tito-fail-seam.json"]
    assert saved["conversation"] == {"messages": [{"role": "user", "content": "\ud800"}]}
    assert (saved["family"], saved["version"], saved["seed"], saved["check"]) == ("toy", "1.2", 7, "seam")


def test_a_verification_with_overrides(verified: Callable[[Report], list[dict[str, Any]]]) -> None:
    overrides = ("house 1.0 (house): tito_append_roles", "house 1.0 (house): tito_resolve_template")
    verified(HELD.model_copy(update={"overrides": overrides}))
    assert tito_says("verify", "--family", "toy").stdout.splitlines()[:6] == [
        "tito verify  toy (tito-toy 1.2)   revision first   seed 7",
        "  template    toy_plugin:Toy  sha256 efefefef",
        "  vocabulary  own, Toy        sha256 abababab",
        "  vocabulary  x, Other 3      sha256 cdcdcdcd  stands in for Toy 2",
        "  override    house 1.0 (house): tito_append_roles",
        "  override    house 1.0 (house): tito_resolve_template",
    ]
    verified(BROKEN.model_copy(update={"overrides": overrides}))
    said = tito_says("verify", "--family", "toy").stdout
    assert said.endswith("whoever publishes tito-toy 1.2 or house 1.0 (house) needs this output and the saved files.\n")
    assert json.loads(Path("tito-fail-seam.json").read_text())["overrides"] == list(overrides)


def test_a_check_that_looked_at_nothing_is_no_promise_that_held(
    verified: Callable[[Report], list[dict[str, Any]]],
) -> None:
    empty = CHECKS[0].model_copy(update={"conversations": 0})
    sessions = HELD.sessions.model_copy(update={"driven": 0, "passed": 0, "tokens": 0})
    verified(HELD.model_copy(update={"checks": (empty, CHECKS[1]), "sessions": sessions, "vocabulary": ()}))
    lines = tito_says("verify", "--family", "toy").stdout.splitlines()
    assert "  gate        what is declared renders                           0       -  none" in lines
    assert "  sessions    0 of 0 held, 1,479 turns, 731 calls                0       -  none" in lines
    assert lines[-1] == "1 of 2 promises held in 12.3 s, 1 had nothing to look at."
    broken = empty.model_copy(update={"ok": False})
    verified(BROKEN.model_copy(update={"checks": (broken,)}))
    lines = tito_says("verify", "--family", "toy").stdout.splitlines()
    assert "  gate        what is declared renders                   0        -  FAIL" in lines


def test_a_directory_that_refuses_hides_no_failure(
    verified: Callable[[Report], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    verified(BROKEN)

    def refuse(*_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    said = tito_says("verify", "--family", "toy")
    assert said.exit_code == 1
    assert (
        "  saved       not saved: tito-fail-seam.json can't be written here (Permission denied); --json - prints the "
        "conversation\n"
    ) in said.stdout
    assert "\nBroken: seam, sessions" in said.stdout


def test_failures_of_one_check_are_saved_apart(verified: Callable[[Report], list[dict[str, Any]]]) -> None:
    first = BROKEN.failures[0]
    verified(BROKEN.model_copy(update={"failures": (first, first, first.model_copy(update={"check": "../a b"}))}))
    assert tito_says("verify", "--family", "toy").exit_code == 1
    assert sorted(path.name for path in Path().iterdir()) == [
        "tito-fail-..-a-b.json",
        "tito-fail-seam-2.json",
        "tito-fail-seam.json",
    ]


@pytest.mark.parametrize("report", [HELD, BROKEN])
def test_json(report: Report, verified: Callable[[Report], list[dict[str, Any]]]) -> None:
    verified(report)
    table = tito_says("verify", "--family", "toy").stdout
    said = tito_says("verify", "--family", "toy", "--json", "-")
    assert Report.model_validate(json.loads(said.stdout)) == report
    assert said.stderr == table
    said = tito_says("verify", "--family", "toy", "--json", "report.json")
    assert said.stdout == table
    assert Report.model_validate(json.loads(Path("report.json").read_text())) == report
    assert said.exit_code == report.exit_code


def test_json_that_can_not_be_written(
    verified: Callable[[Report], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = verified(HELD)
    for target, why in (("none/r.json", "none is not a directory"), (".", ". is a directory")):
        said = tito_says("verify", "--family", "toy", "--json", target)
        assert (said.exit_code, said.stderr.splitlines()[-1]) == (2, f"Error: Invalid value for '--json': {why}")
    with monkeypatch.context() as denied:
        denied.setattr(os, "access", lambda path, mode: (str(path), mode) != (".", os.W_OK))
        said = tito_says("verify", "--family", "toy", "--json", "r.json")
        assert (said.exit_code, said.stderr.splitlines()[-1]) == (
            2,
            "Error: Invalid value for '--json': r.json may not be written",
        )
    assert asked == []

    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)
    for report, code in ((HELD, 2), (BROKEN, 1)):
        verified(report)
        said = tito_says("verify", "--family", "toy", "--json", "r.json")
        assert (said.exit_code, said.stderr) == (
            code,
            "error: the report can't be written to r.json: No space left on device\n",
        )


@pytest.mark.usefixtures("toy_registry")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing option '--family'."),
        (("--family", "toy", "--sessions", "-1"), "Invalid value for '--sessions': -1 is not in the range x>=0."),
        (
            ("--family", "toy", "--conversations", "0"),
            "Invalid value for '--conversations': 0 is not in the range x>=1.",
        ),
        (
            ("--family", "toy", "--append-roles", "tool,usr"),
            "Invalid value for '--append-roles': 'usr' is none; choose among tool,user,system,assistant",
        ),
        (
            ("--family", "toy", "--append-roles", "tool"),
            "Invalid value for '--append-roles': append roles ['tool'] leave no append that a prompt may end with; "
            "keep one of ['user'], and what may stand before it",
        ),
        (
            ("--family", "toy", "--append-roles", "system,user"),
            "Invalid value for '--append-roles': append roles ['system'] are not among the family's ['tool', 'user']: "
            "a caller may narrow them, never widen them",
        ),
        (
            ("--family", "toy", "--revision", "second", "--append-roles", "tool,user"),
            "Invalid value for '--append-roles': append roles ['tool'] are not among the family's ['user']: a caller "
            "may narrow them, never widen them",
        ),
        (
            ("--family", "toy", "--revision", "zz"),
            "Invalid value for '--revision': no revision is named 'zz'; known: first, second",
        ),
        (
            ("--family", "toy", "--vocabulary", "zz"),
            "Invalid value for '--vocabulary': no vocabulary is named 'zz'; known: own",
        ),
        (
            ("--family", "toy", "--model", "d", "--vocabulary", "own"),
            "--model brings its own vocabulary: leave --vocabulary out.",
        ),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], message: str, verified: Callable[[Report], list[dict[str, Any]]]
) -> None:
    asked = verified(HELD)
    said = tito_says("verify", *arguments)
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.splitlines()[-1] == f"Error: {message}"
    assert asked == []


@pytest.mark.usefixtures("toy_registry")
def test_append_roles_are_passed_on(verified: Callable[[Report], list[dict[str, Any]]]) -> None:
    asked = verified(HELD)
    assert tito_says("verify", "--family", "toy", "--append-roles", "tool, user").exit_code == 0
    assert asked[0]["append_roles"] == ("tool", "user")


def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "verify", raising(CheckpointError("/ckpt has no\nconfig.json")))
    said = tito_says("verify", "--family", "toy")
    assert (said.exit_code, said.stdout, said.stderr) == (3, "", "error: /ckpt has no\\nconfig.json\n")


@pytest.mark.parametrize("command", [("show", "toi"), ("verify", "--family", "toi")])
@pytest.mark.usefixtures("toy_registry")
def test_an_unknown_family(command: tuple[str, ...]) -> None:
    said = tito_says(*command)
    assert (said.exit_code, said.stdout) == (3, "")
    assert said.stderr == (
        "error: no installed plugin provides the family 'toi'; did you mean 'toy'? Installed: toy. A family comes with its "
        f"plugin's distribution; install that into this environment: {sys.executable} -m pip install DISTRIBUTION\n"
    )


def test_a_checkpoint_that_is_none(tmp_path: Path) -> None:
    said = tito_says("verify", "--family", "deepseekv32", "--model", str(tmp_path))
    assert (said.exit_code, said.stdout) == (3, "")
    assert said.stderr == (
        f"error: {tmp_path} has no config.json, so its model type is unknown; is it a whole checkpoint?\n"
    )


@pytest.mark.parametrize("arguments", [["families"], ["--help"], ["--version"], ["show", "deepseekv32"]])
def test_an_output_that_is_full_is_one_line(arguments: list[str]) -> None:
    code = f"import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); from tito_core.cli.main import main; main({arguments})"
    done = python(code)
    told = "error: standard output can't be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, told)


@pytest.mark.parametrize("arguments", [["families"], ["show", "deepseekv32"]])
def test_a_reader_that_goes_away_is_no_broken_promise(arguments: list[str]) -> None:
    """As `| head -1` does; silent, as it is with other commands."""
    code = f"import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1); from tito_core.cli.main import main; main({arguments})"
    done = python(code)
    assert (done.returncode, done.stderr) == (2, "")


def test_a_plugin_that_prints_is_no_part_of_the_answer(tmp_path: Path) -> None:
    toy(tmp_path)
    (tmp_path / "toy_plugin.py").write_text("print('loud')\n" + TOY)
    done = python("from tito_core.cli.main import main; main(['show', 'toy', '--json'])", tmp_path)
    assert (done.returncode, done.stderr) == (0, "loud\n")
    assert json.loads(done.stdout)["name"] == "toy"
    code = "from tito_core.cli.main import main; main(['verify', '--family', 'toy', '--json', '-'])"
    done = python(code, tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("loud\nerror: the vocabulary own (toy_plugin/own.json.gz) can't be read: ")


def test_a_real_verification_names_overrides_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with fakes_below(tmp_path) as fakes:
        body = override(
            "@hookimpl\ndef tito_append_roles(family): return family.append_roles.narrowed({'tool', 'user'})"
        )
        site = fakes.add("house", overrides={"a": "fake_house"}, modules={"fake_house": body})
        (here := tmp_path / "here").mkdir()
        arguments = ["verify", "--family", "deepseekv32", "--vocabulary", "r1", "--conversations", "1"]
        arguments += ["--sessions", "0", "--json", "-"]
        code = f"import os; os.chdir({str(here)!r}); from tito_core.cli.main import main; main({arguments})"
        done = python(code, site)
    assert json.loads(done.stdout)["overrides"] == ["house 1.0 (fake_house): tito_append_roles"]
    assert "\n  override    house 1.0 (fake_house): tito_append_roles\n" in done.stderr
    assert list(here.iterdir()) == []


def test_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "verify", raising(RuntimeError("a\nb")))
    said = tito_says("verify", "--family", "toy")
    expected = """\
internal error: RuntimeError: a\\nb
This is a fault of tito, not a verdict on the family. TITO_DEBUG=1 shows where it happened.
"""
    assert (said.exit_code, said.stdout, said.stderr) == (70, "", expected)
    monkeypatch.setenv("TITO_DEBUG", "1")
    said = tito_says("verify", "--family", "toy")
    assert said.exit_code == 70
    assert said.stderr.startswith("Traceback (most recent call last):\n")
    assert said.stderr.endswith(expected)


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(), GeneratorExit("0")])
def test_a_plugin_ends_no_command(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "verify", raising(error))
    said = tito_says("verify", "--family", "toy")
    told = f"error: a plugin ended the command: {type(error).__name__}: {error}\n"
    assert (said.exit_code, said.stdout, said.stderr) == (3, "", told)


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "verify", raising(KeyboardInterrupt()))
    said = tito_says("verify", "--family", "toy")
    assert (said.exit_code, said.stdout, said.stderr) == (130, "", "")


def test_progress_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, verified: Callable[[Report], list[dict[str, Any]]]
) -> None:
    verified(HELD)
    table = tito_says("verify", "--family", "toy")

    def verify(family: str, *, progress: Callable[[str, int, int], None], **_: Any) -> Report:
        for done in range(3):
            progress("checks on [red]x", done, 2)
        return HELD

    monkeypatch.setattr(verification, "verify", verify)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    said = tito_says("verify", "--family", "toy")
    assert said.exit_code == 0
    assert "checks on [red]x" in said.stderr
    assert "2/2" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.stderr)
    assert re.sub(r"\x1b\[[0-9;]*m", "", said.stdout).split() == table.stdout.split()
    assert "\x1b[32mok" in said.stdout


def test_a_narrow_terminal_folds_and_cuts_nothing(
    monkeypatch: pytest.MonkeyPatch, verified: Callable[[Report], list[dict[str, Any]]]
) -> None:
    verified(BROKEN)
    wide = tito_says("verify", "--family", "toy")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    narrow = re.sub(r"\x1b\[[0-9;]*m", "", tito_says("verify", "--family", "toy", "--json", "r.json").stdout)
    assert max(map(len, narrow.splitlines())) <= 60
    assert sorted(re.sub(r"\s", "", narrow)) == sorted(re.sub(r"\s", "", wide.stdout))


def test_a_stream_that_lacks_the_characters(tmp_path: Path) -> None:
    toy(tmp_path)
    (tmp_path / "toy_plugin.py").write_text(TOY.replace("maker/Toy-1", "maker/Töy｜"), encoding="utf-8")
    done = python(
        "from tito_core.cli.main import main; main(['show', 'toy'])", tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "maker/T\\xf6y\\uff5c" in done.stdout


def test_text_that_is_safe() -> None:
    assert plain("a\tb\r\n\x00\x1b[31m\x9b\u202e\U000e0001 ｜é\\") == (
        "a\\tb\\r\\n\\x00\\x1b[31m\\x9b\\u202e\\U000e0001 ｜é\\"
    )
    assert quoted('a"\\\n') == '"a\\"\\\\\\n"'
    assert clip("abcd", 4) == "abcd"
    assert clip("abcd" * 1000, 2) == "ab… (3,998 more characters)"
