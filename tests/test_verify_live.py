"""Verifying on an engine over HTTP: what a run finds, what it reports, and what becomes of one whose engine is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fake_sglang import Answer, Fake, Raw, Reset, Status, model, serving
from tito_core import Codec, KnownIssue, Parsers
from tito_core.cli.main import tito
from tito_core.engines.scripted import ScriptedEngine
from tito_core.engines.sglang import SGLangEngine
from tito_core.errors import EngineError, FamilyError
from tito_core.families.registry import Registry, default_registry
from tito_core.verify.live import verify_live
from tito_core.verify.report import Failure, Report


@cache
def codec(revision: str = "open") -> Codec:
    return Codec.of(default_registry.family("deepseekv32"), vocabulary="r1", revision=revision)


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "load", lambda self, family, revision=None, **_: codec(revision or "open"))


def declaring(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """The family with other fields, as long as the test runs."""
    one = codec()
    declared = one.family.model_copy(update=fields)
    loaded = copy(one.loaded)
    monkeypatch.setattr(loaded, "declaration", declared)
    other = Codec(loaded, one.encoder, one.template, one.revision, one.origin)
    monkeypatch.setattr(Registry, "load", lambda self, family, **_: other)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving(Fake(model(codec()))) as made:
        yield made


def verify(fake: Fake, **options: Any) -> Report:
    with SGLangEngine(fake.url, retries=0, concurrency=4) as engine:
        return verify_live(
            "deepseekv32",
            engine,
            **{"vocabulary": "r1", "sessions": 4, "concurrency": 2, "max_tokens": 4096, **options},
        )


def telling(**info: Any) -> Callable[[], Answer]:
    return lambda: {"version": "0.5.23", **info}


def raising(cause: Exception) -> Callable[[], Answer]:
    def answer() -> Answer:
        raise cause

    return answer


def only(report: Report) -> Failure:
    (failure,) = report.failures
    return failure


def test_sessions_hold_and_what_the_engine_did_is_reported(fake: Fake) -> None:
    fake.usual = model(codec(), spec_accept_length=2.5, weight_version="v7")
    report = verify(fake, sessions=6)
    assert (report.failures, report.warnings, report.exit_code) == ((), (), 0)
    assert [(check.name, check.ok) for check in report.checks] == [
        ("engine", True),
        ("render", True),
        ("canonical", True),
    ]
    sampled, rendered, compared = (check.conversations for check in report.checks)
    assert (sampled, rendered) == (report.sessions.turns, 6)
    assert 6 * 6 < compared <= sampled
    assert (report.sessions.driven, report.sessions.passed) == (6, 6)
    assert report.sessions.actions["tool_results"] + report.sessions.actions["tool_results_then_user"] > 0
    assert set(report.sessions.mismatches.values()) == {0}
    engine = report.engine
    assert engine is not None
    assert (engine.kind, engine.url, engine.accepted, engine.weight_versions) == ("sglang", fake.url, 2.5, ("v7",))
    assert (engine.cut, engine.early, engine.assistant_text, len(engine.mismatches)) == (0, 0, 0.0, 6)
    assert sum(row.turns for row in engine.turns) == report.sessions.turns
    assert engine.turns[0].shared == 0
    assert all(row.prompt > row.shared > 0 for row in engine.turns[1:])
    assert all(row.cached == row.shared for row in engine.turns), "what else the engine had cached is no reuse"
    assert Report.model_validate_json(report.model_dump_json()) == report
    renders = [body for _, body in fake.seen if "input_ids" not in body][1:]
    assert {bool(body["tools"]) for body in renders} == {True, False}
    assert {body["chat_template_kwargs"]["thinking"] for body in renders} == {True, False}
    assert all(1 <= len(body["messages"]) <= 2 and body["messages"][-1]["role"] == "user" for body in renders)


def test_the_messages_are_those_of_the_engine_s_own_parsers(fake: Fake) -> None:
    inner = model(codec())

    def act(path: str, body: Answer) -> Answer:
        made = inner(path, body)
        if "input_ids" in body:
            made["choices"][0]["message"] = {"role": "assistant", "content": "not what was sampled"}
        return made

    fake.usual = act
    failure = only(verify(fake, append_roles=["user"]))
    turns = verify(fake, append_roles=["user"], threshold=1.0).checks[-1].conversations
    assert turns >= 24
    assert (failure.check, failure.what) == (
        "canonical",
        f"{turns} of {turns} turns (100%, at most 20% are allowed) were sampled in other ids than their text has: harmless to tito, "
        "which keeps them, but far from what the model was trained on; see the temperature, the engine's numerics and its "
        "speculation, or allow more",
    )
    assert verify(fake, append_roles=["user"], threshold=1.0).failures == ()


def rendering(**changes: Any) -> Callable[[str, Answer], Answer]:
    """A server whose own render heeds these in place of what it is sent, and that samples as ever."""
    inner, own = model(codec()), model(codec(changes.pop("revision", "open")))

    def act(path: str, body: Answer) -> Answer:
        if "input_ids" in body:
            return inner(path, body)
        edited = {**body, **changes}
        for key, change in changes.items():
            if callable(change):
                edited[key] = change(body[key])
        return own(path, edited)

    return act


WHAT = "our first prompt is not the one that the server renders of the same messages (expected)"


@pytest.mark.parametrize(
    ("changes", "likely"),
    [
        (
            {"chat_template_kwargs": {"thinking": False}},
            "the server's is ours with thinking=False: it was sent thinking=True, and does not heed it",
        ),
        ({"tools": None}, "the server's is ours with no tools: it was sent them, and does not print them"),
        (
            {"messages": lambda sent: [{"role": "system", "content": "Effort: high"}, *sent]},
            "it stands before or around the first message: see the tool block, or the server's effort text",
        ),
        (
            {"messages": lambda sent: [*sent[:-1], {**sent[-1], "content": "changed"}]},
            "it stands in the content of message 0 (user): another vocabulary, or content that is changed",
        ),
        (
            {"tools": lambda sent: sent and [{**tool, "function": {**tool["function"], "name": "x"}} for tool in sent]},
            "it stands in the tools: the server prints them elsewhere, or other fields of them",
        ),
    ],
)
def test_a_server_that_renders_otherwise(fake: Fake, changes: dict[str, Any], likely: str) -> None:
    fake.usual = rendering(**changes)
    report = verify(fake, sessions=6)
    failure = only(report)
    assert (failure.check, report.exit_code) == ("render", 1)
    assert failure.what.startswith(f"{WHAT}: first id that differs {failure.first_index}: got ")
    assert failure.what.endswith(f"; {likely}")
    assert failure.expected_ids != failure.actual_ids
    assert failure.expected_text != failure.actual_text
    assert failure.conversation is not None
    assert report.sessions.passed == 6


def test_a_server_of_another_revision(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up revision that prints a system message first, since the family's own print first prompts alike."""
    loud = {"role": "system", "content": "Loud."}
    declaring(monkeypatch, revisions=(codec().revision, codec().revision.model_copy(update={"name": "loud"})))
    prompt = Codec.prompt

    def printed(self: Codec, messages: Any, **options: Any) -> Any:
        return prompt(self, [loud, *messages] if self.revision.name == "loud" else messages, **options)

    monkeypatch.setattr(Codec, "prompt", printed)
    fake.usual = rendering(messages=lambda sent: [loud, *sent])
    assert only(verify(fake)).what.endswith("; the server's is ours with revision 'loud': load that one")
    fake.usual = rendering(messages=lambda sent: [loud, *sent], tools=None, chat_template_kwargs={"thinking": True})
    ends = {line.what.split("; ")[-1] for line in verify(fake, sessions=8).failures}
    assert all(end.startswith("the server's is ours with revision 'loud': load that one") for end in ends)


def test_a_server_of_another_vocabulary(fake: Fake) -> None:
    fake.usual = lambda path, body: {"choices": [{"prompt_token_ids": [5, 10**7]}]}
    report = verify(fake, append_roles=["user"])
    failure = next(failure for failure in report.failures if failure.check == "render")
    assert failure.what.startswith("the server renders ids that this vocabulary lacks (")
    assert failure.what.endswith("); verify with the server's own")


def test_a_run_that_never_called_a_tool_proves_nothing(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ScriptedEngine.reply
    monkeypatch.setattr(ScriptedEngine, "reply", lambda self, tools, *rest: reply(self, [], *rest))
    report = verify(fake)
    said = "4 sessions answer tool calls, and the engine made none: this proves nothing about them"
    assert (only(report).check, only(report).what, report.exit_code) == ("sessions", said, 1)
    assert verify(fake, append_roles=["user", "system"]).failures == ()


def test_turns_that_are_cut_end_a_session_or_are_closed(fake: Fake) -> None:
    report = verify(fake, max_tokens=2, append_roles=["user"], threshold=1.0)
    said = "nothing was appended in 4 sessions, each ended with its first turn: this proves nothing"
    assert (only(report).check, only(report).what) == ("sessions", said)
    report = verify(fake, max_tokens=2, append_roles=["user"], truncation="close", threshold=1.0)
    assert (report.failures, report.exit_code) == ((), 0)
    assert report.engine is not None
    assert report.engine.cut > 20


def test_early_stops_and_lost_reuse_are_warned_of(fake: Fake) -> None:
    inner = model(codec(), spec_accept_length=3.0, cached_tokens=1)

    def act(path: str, body: Answer) -> Answer:
        made = inner(path, body)
        if "input_ids" in body and len(fake.seen) % 2:
            choice = made["choices"][0]
            choice.update(response_token_ids=[1], message={"role": "assistant", "content": ""}, finish_reason="stop")
            choice["meta_info"]["output_token_logprobs"] = [[-0.5, 1, ""]]
        return made

    fake.usual = act
    report = verify(fake, append_roles=["user"], threshold=1.0)
    reuse, early = report.warnings
    engine = report.engine
    assert engine is not None
    assert reuse.startswith("with speculation the engine had only ")
    assert early == (
        f"{engine.early} of {report.sessions.turns} turns stopped within 3 ids: a draft model or a kernel may make false "
        "ends; compare with a profile without speculation"
    )
    fake.usual = model(codec(), cached_tokens=1)
    assert verify(fake, append_roles=["user"], threshold=1.0).warnings == ()


def dying(after: int) -> Callable[[Fake], None]:
    def install(fake: Fake) -> None:
        inner = fake.usual

        def act(path: str, body: Answer) -> Answer:
            if sum("input_ids" in seen for _, seen in fake.seen) > after:
                raise Reset
            return inner(path, body)

        fake.usual = act

    return install


def test_an_engine_that_is_lost_in_mid_session_loses_no_turn(fake: Fake) -> None:
    dying(9)(fake)
    report = verify(fake, sessions=64, concurrency=1)
    failure = only(report)
    assert (failure.check, report.exit_code) == ("engine", 3)
    assert failure.what.startswith(
        f"session {report.sessions.driven - 1}: EngineError: sglang at {fake.url} could not be "
    )
    assert "Every committed turn is kept" in failure.what
    assert report.sessions.turns == 9
    assert report.sessions.driven < 3
    assert failure.conversation is not None
    assert [message["role"] for message in failure.conversation["messages"]].count("assistant") >= 1


def test_an_engine_that_fails_one_answer_breaks_one_session_and_a_known_issue_explains_it(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue: dict[str, Any] = {
        "name": "nextn",
        "summary": "It can't load.",
        "matches": "fuse_qkv",
        "advice": "Serve plain.",
    }
    others = KnownIssue(**{**issue, "name": "other"}, engines=("vllm",)), KnownIssue(**{**issue, "matches": "else"})
    parsers = {"sglang": codec().family.parsers["sglang"], "vllm": Parsers()}
    declaring(monkeypatch, parsers=parsers, known_issues=(*others, KnownIssue(**issue, engines=("sglang",))))
    inner = model(codec())

    def act(path: str, body: Answer) -> Answer:
        if len(fake.seen) == 6:
            raise Status(500, {"message": "no fuse_qkv here"})
        return inner(path, body)

    fake.usual = act
    report = verify(fake, concurrency=1)
    failure = only(report)
    assert (failure.check, failure.known_issue, report.exit_code) == ("engine", "nextn: It can't load. Serve plain.", 1)
    assert failure.what.endswith(
        "failed (HTTP 500): no fuse_qkv here; its log says why (3 turn(s) of this session were committed, and are kept)"
    )
    assert (report.sessions.driven, report.sessions.passed) == (4, 3)


def test_a_server_of_other_parsers_is_refused_before_any_session(fake: Fake) -> None:
    fake.info = telling(reasoning_parser="deepseek-v3", tool_call_parser="deepseekv32")
    assert verify(fake).exit_code == 0
    fake.seen.clear()
    fake.info = telling(reasoning_parser="deepseek-v3", tool_call_parser="deepseekv31")
    with pytest.raises(FamilyError) as caught:
        verify(fake)
    assert str(caught.value) == (
        "sglang reads reasoning with the parser deepseek-v3 and tool calls with deepseekv31, and deepseekv32 is read with "
        "deepseek-v3 and deepseekv32; start it with --reasoning-parser deepseek-v3 --tool-call-parser deepseekv32"
    )
    assert not any("input_ids" in body for _, body in fake.seen)
    fake.info = telling(reasoning_parser=None, tool_call_parser=None)
    said = says("--engine", fake.url, "--vocabulary", "r1")
    assert (said.exit_code, said.stdout) == (3, "")
    assert said.stderr.splitlines()[-1] == (
        "error: sglang reads reasoning with the parser none and tool calls with none, and deepseekv32 is read with "
        "deepseek-v3 and deepseekv32; start it with --reasoning-parser deepseek-v3 --tool-call-parser deepseekv32"
    )


def test_where_our_own_parser_makes_the_messages_the_server_may_have_any(fake: Fake) -> None:
    fake.info = telling(reasoning_parser=None, tool_call_parser=None)
    with SGLangEngine(fake.url, endpoint="generate") as engine:
        assert engine.parsers() is None
    with SGLangEngine(fake.url) as engine:
        assert engine.parsers() == Parsers()


@pytest.mark.parametrize(
    "info",
    [
        telling(),
        telling(tool_call_parser="deepseekv31"),
        telling(reasoning_parser=None, tool_call_parser=["deepseekv31"]),
        raising(Status(500, {"message": "no"})),
        raising(Status(401, {"message": "no"})),
        raising(Raw(b"pong")),
    ],
)
def test_a_server_that_does_not_tell_its_parsers_is_taken_as_it_is(fake: Fake, info: Callable[[], Answer]) -> None:
    fake.info = info
    assert verify(fake, sessions=2, append_roles=["user"]).exit_code == 0


def test_a_server_that_is_lost_before_any_session(fake: Fake) -> None:
    fake.info = raising(Reset())
    with pytest.raises(EngineError, match=r"could not be reached, or broke off, 1 time\(s\)"):
        verify(fake)


def test_an_engine_that_is_not_there_is_no_report() -> None:
    with serving(Fake(model(codec()))) as gone:
        pass
    with pytest.raises(EngineError, match="could not be reached, or broke off, 1 time"):
        verify(gone)


def says(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(tito, ["verify", "--family", "deepseekv32", *arguments], env=environment)


def test_the_command(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fake.usual = model(codec(), spec_accept_length=2.0)
    said = says(
        *("--engine", fake.url, "--vocabulary", "r1", "--sessions", "4", "--concurrency", "2", "--max-tokens", "4096"),
        *("--api-key-env", "KEY", "--json", "out.json"),
        KEY="secret",
    )
    assert said.exit_code == 0, said.output
    report = Report.model_validate(json.loads(Path("out.json").read_text()))
    assert report.engine is not None
    turns = report.sessions.turns
    reuse = [
        f"turn {number} {row.cached / row.shared:.0%}" for number, row in enumerate(report.engine.turns) if row.shared
    ]
    lines = said.stdout.splitlines()
    assert [line for line in lines if line.startswith(("  engine  ", "  reused", "  accepted", "  turns"))][-4:] == [
        f"  engine      sglang at {fake.url}, weights default",
        f"  reused      {', '.join(reuse)} (cached, of the ids before the append)",
        "  accepted    2.00 ids a step",
        f"  turns       {turns} turns of at most 4096 ids: 0 cut, 0 early stops, 0% in other ids than their text (at most 20%)",
    ]
    assert fake.headers[0]["authorization"] == "Bearer secret"


def test_the_command_says_that_the_engine_was_lost(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dying(3)(fake)
    said = says(
        "--engine", fake.url, "--vocabulary", "r1", "--sessions", "2", "--concurrency", "1", "--max-tokens", "4096"
    )
    assert said.exit_code == 3
    assert said.stdout.splitlines()[-1].startswith("The engine was lost after ")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (
            ["--max-tokens", "5"],
            2,
            "Error: --max-tokens is about a live engine: name it with --engine URL, or start it with --launch.",
        ),
        (
            ["--engine", "http://x", "--conversations", "5"],
            2,
            "Error: --conversations is about the run without an engine: leave out one of the two.",
        ),
        (
            ["--engine", "http://x"],
            2,
            "Error: --engine serves one vocabulary: name it with --model DIR, or with --vocabulary r1 or v4.",
        ),
        (
            ["--engine", "http://x", "--vocabulary", "r1", "--api-key-env", "TITO_NO_SUCH"],
            2,
            "Error: Invalid value for '--api-key-env': the environment has no TITO_NO_SUCH",
        ),
        (
            ["--engine", "x", "--vocabulary", "r1"],
            3,
            "error: the engine's URL is 'x'; it looks like http://127.0.0.1:30000",
        ),
        (
            ["--engine", "http://127.0.0.1:9", "--vocabulary", "r1"],
            3,
            "error: sglang at http://127.0.0.1:9 could not be reached, or broke off, 4 time(s) (ConnectError: All connection "
            "attempts failed); see whether it runs, and its log. Every committed turn is kept",
        ),
    ],
)
def test_the_command_refuses(arguments: list[str], code: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tito_core.engines.http.random.uniform", lambda one, two: 0.0)
    said = says(*arguments)
    assert (said.exit_code, said.stderr.splitlines()[-1], said.stdout) == (code, text, "")
