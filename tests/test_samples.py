"""Samples: which lines are kept, which ids train, and what is cut with them.

What must train is known from the completions that a test made; where it stands, from the published print.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import shared_boundary
import tito_core
from chats import TOOL, Json, assistant, call, codec, result, said, step, user
from tito_core import Completion, Sample, Session, Turn
from tito_core.errors import CompletionError, SessionError

THINK = 128798


def trained(sample: Sample) -> list[int]:
    made: list[int] = sample.tokens[sample.loss_mask == 1].tolist()
    return made


def ids(*texts: str) -> list[int]:
    return [one for text in texts for one in said(assistant(text)).ids]


def branched() -> Session:
    """A turn, and two answers to different messages after it; the second went on."""
    session = codec().session()
    messages = [user("q")]
    step(session, messages, assistant("a"))
    step(session, [*messages, user("left")], assistant("b"))
    told = [*messages, user("right")]
    step(session, told, assistant("c"))
    step(session, [*told, user("u")], assistant("d"))
    return session


def retried() -> Session:
    """A turn, three answers to one message after it of which the second went on, and that one's two."""
    session = codec().session()
    messages = [user("q")]
    step(session, messages, assistant("a"))
    messages.append(user("u"))
    for text in ("b", "c", "d"):
        step(session, [*messages], assistant(text))
    messages += [assistant("c"), user("v")]
    for text in ("e", "f"):
        step(session, [*messages], assistant(text))
    return session


def test_one_sample_a_leaf_and_what_they_share_trains_in_the_first() -> None:
    session = branched()
    one, two = session.samples(select="leaves")
    assert [one.leaf, two.leaf] == [1, 3]
    assert [trained(one), trained(two)] == [ids("a", "b"), ids("c", "d")]
    assert [[turn.trains for turn in sample.turns] for sample in (one, two)] == [[True, True], [False, True, True]]
    shared = session.turns[0]
    assert one.tokens[: shared.end].tolist() == two.tokens[: shared.end].tolist() == shared.ids.tolist()
    assert one.logprobs[: shared.end].tolist() == two.logprobs[: shared.end].tolist()
    assert not two.loss_mask[: shared.end].any()


def test_a_retry_that_was_superseded_is_dropped() -> None:
    session = retried()
    (sample,) = session.samples()
    assert sample.leaf == 5
    assert trained(sample) == ids("a", "c", "f")
    assert [sample.leaf for sample in session.samples(select="leaves")] == [1, 3, 4, 5]
    assert [sample.leaf for sample in session.samples(select="latest")] == [5]


def test_a_first_prompt_is_never_dropped() -> None:
    session = codec().session()
    for text in ("a", "b"):
        step(session, [user("q")], assistant(text))
    step(session, [user("q"), assistant("b"), user("u")], assistant("c"))
    assert [trained(sample) for sample in session.samples()] == [ids("a"), ids("b", "c")]
    assert [sample.leaf for sample in session.samples(select="latest")] == [0, 2]


def test_branches_are_no_retries_of_each_other() -> None:
    session = branched()
    assert [(sample.leaf, trained(sample)) for sample in session.samples()] == [(1, ids("a", "b")), (3, ids("c", "d"))]
    again = [user("q"), assistant("a"), user("left")]
    step(session, again, assistant("e"))
    assert [(sample.leaf, trained(sample)) for sample in session.samples()] == [(3, ids("a", "c", "d")), (4, ids("e"))]
    step(session, [*again, user("v")], assistant("f"))
    step(session, [user("q"), assistant("a"), user("right")], assistant("g"))
    assert [sample.leaf for sample in session.samples()] == [3, 5]


def test_retries_that_both_went_on_are_refused() -> None:
    session = retried()
    step(session, [user("q"), assistant("a"), user("u"), assistant("d"), user("w")], assistant("g"))
    for _ in range(2):
        with pytest.raises(SessionError) as error:
            session.samples()
        assert str(error.value) == (
            "turns 2 and 3 answer the same prompt and both went on, so neither is a retry that the other superseded; pass "
            "select='leaves' for a sample of each, select='latest' for the newest, or a function that chooses"
        )
        assert error.value.where == {"turns": (2, 3)}


def test_turns_after_prompts_that_only_match_are_no_retries_of_each_other() -> None:
    session = codec().session()
    messages = [user("q")]
    step(session, messages, assistant("a"))
    for arguments in ('{"x": 1, "y": 2}', '{"y": 2, "x": 1}'):
        theirs = assistant("", tool_calls=[call("a", arguments)])
        step(session, [*messages, user("u"), theirs, result("a", "R")], assistant("b"))
    assert session.turns[1].ids.tolist() != session.turns[2].ids.tolist()
    assert [sample.leaf for sample in session.samples()] == [1, 2]


def test_every_sampled_id_trains_once_over_all_samples() -> None:
    for session in (branched(), retried()):
        samples = session.samples(select="leaves")
        every = sorted(one for turn in session.turns for one in turn.completion.ids)
        assert sorted(one for sample in samples for one in trained(sample)) == every
        for sample in samples:
            sampled = np.zeros(len(sample.tokens), dtype=bool)
            for turn in sample.turns:
                sampled[turn.start : turn.end] = True
            told = [place for span in sample.spans for place in range(span.start, span.end)]
            assert told == np.flatnonzero(~sampled).tolist()
            assert not sample.loss_mask[~sampled].any()
            assert not sample.logprobs[~sampled].any()


def test_the_mask_follows_who_produced_an_id_whatever_it_spells() -> None:
    session = codec().session()
    messages = [user("<think>")]
    for reply in (assistant("<think>unclosed"), assistant("</think>"), assistant("<think>", "<think>")):
        step(session, messages, reply)
        messages.append(user("go on"))
    (sample,) = session.samples()
    assert int(sample.loss_mask.sum()) == sum(turn.sampled for turn in session.turns)
    given = [turn.kept + len(turn.new) - turn.sampled - 1 for turn in session.turns]
    assert [(int(sample.tokens[place]), int(sample.loss_mask[place])) for place in given] == [(THINK, 0)] * 3
    ends = [turn.end - 1 for turn in session.turns]
    assert [(int(sample.tokens[place]), int(sample.loss_mask[place])) for place in ends] == [(1, 1)] * 3


def test_a_boundary_token_that_was_dropped_trains_nowhere() -> None:
    """Where the next message has another opener than was sampled: the turn after it keeps one id less of it."""
    session = codec().session()
    messages = [user("q")]
    parent = with_rows(session, messages, assistant("a"), 1)
    child = with_rows(session, [*messages, user("u")], assistant("b"), 1)
    opener = 7
    new = np.concatenate(([opener], child.new)).astype(np.int32)
    rows = np.array([[opener, parent.end - 1], *child.completion.extras["experts"][1:].tolist()])
    completion = child.completion.stored(new[-child.sampled :], {"experts": rows})
    forged = dataclasses.replace(child, kept=parent.end - 1, new=new, completion=completion)
    forged.parent.completion.extras.pop("topk")  # type: ignore[union-attr, attr-defined]
    session._turns = (parent, forged)
    (sample,) = session.samples()
    kept = parent.completion.ids[:-1]
    assert trained(sample) == [*kept, *child.completion.ids]
    assert sample.tokens.tolist() == [*parent.ids[:-1], *new]
    assert sample.logprobs[sample.turns[0].start : sample.turns[0].end].tolist() == list(
        parent.completion.logprobs[:-1]
    )
    assert sample.extras["experts"][:, 0].tolist() == sample.tokens.tolist()[:-1]
    assert session.sampled()[0][1] == parent.end - 1


def test_a_stop_token_that_one_branch_drops_trains_in_the_one_that_keeps_it() -> None:
    session = shared_boundary.codec().session()
    messages = [user("q")]
    opener = shared_boundary.OPENERS["user"]
    first = Completion([97, opener], [-1.0, -2.0], "stop", message=assistant("a"))
    session.commit(session.prepare(messages), first)
    messages.append(assistant("a"))
    for text in ("first", "second"):
        more = [{"role": "system", "content": text}, user("u")]
        session.commit(session.prepare([*messages, *more]), Completion([98], [-1.0], "length", message=assistant("b")))
    session.commit(session.prepare([*messages, user("v")]), Completion([99], [-1.0], "length", message=assistant("c")))
    dropping, again, keeping = session.samples(select="leaves")
    assert [trained(sample) for sample in (dropping, again, keeping)] == [[97, 98], [98], [opener, 99]]
    assert [[turn.trains for turn in sample.turns] for sample in (dropping, again, keeping)] == [
        [True, True],
        [False, True],
        [True, True],
    ]
    keeping, dropping, again = session.samples(select=lambda turns: [turns[3], turns[1], turns[2]])
    assert [trained(sample) for sample in (keeping, dropping, again)] == [[97, opener, 99], [98], [98]]
    cut = session.samples(select="leaves", max_tokens=session.turns[0].end)
    assert [trained(sample) for sample in cut] == [[97, opener], [], []]


def test_a_sample_ends_with_the_last_turn_that_fits_whole() -> None:
    session = codec().session()
    messages = [user("a rather long question")]
    for text in ("a", "b", "c"):
        step(session, messages, assistant(text))
        messages.append(user("u"))
    first, second, third = session.turns
    (whole,) = session.samples()
    for most, size, turns, status in (
        (10**9, third.end, 3, "complete"),
        (third.end, third.end, 3, "complete"),
        (third.end - 1, second.end, 2, "truncated"),
        (second.end, second.end, 2, "truncated"),
        (first.end, first.end, 1, "truncated"),
        (first.end - 1, first.end - first.sampled, 0, "truncated"),
        (2, 2, 0, "truncated"),
    ):
        (sample,) = session.samples(max_tokens=most)
        assert (len(sample.tokens), len(sample.turns), sample.status) == (size, turns, status)
        assert sample.tokens.tolist() == whole.tokens[:size].tolist()
        assert sample.loss_mask.tolist() == whole.loss_mask[:size].tolist()
        assert sample.logprobs.tolist() == whole.logprobs[:size].tolist()
        covered = [place for span in sample.spans for place in range(span.start, span.end)]
        assert covered == np.flatnonzero(sample.loss_mask == 0).tolist()
    for wrong in (0, -1, 1.5, "5", True):
        with pytest.raises(SessionError) as error:
            session.samples(max_tokens=wrong)  # type: ignore[arg-type]
        assert str(error.value) == (
            f"max_tokens is {wrong!r}; it must be a number of ids, 1 or more, or None for no limit"
        )


def test_a_cut_trains_each_id_of_the_turns_that_fit_once() -> None:
    session = branched()
    for most in range(1, session.turns[3].end + 1):
        samples = session.samples(max_tokens=most)
        held = {turn.number for sample in samples for turn in sample.turns}
        assert held == {turn.number for turn in session.turns if turn.end <= most}
        sampled = [one for number in sorted(held) for one in session.turns[number].completion.ids]
        assert sorted(one for sample in samples for one in trained(sample)) == sorted(sampled)
        assert all(len(sample.tokens) <= most for sample in samples)
        assert {sample.status for sample in samples if not sample.turns} <= {"truncated"}


def with_rows(session: Session, messages: list[Json], reply: Json, lag: int) -> Turn:
    """A turn whose engine returned for each id of prompt and completion, less `lag`, a row that is the id and its place."""
    request, done = session.prepare(messages), said(reply)
    whole = np.concatenate((request.ids, done.ids))
    rows = np.stack((whole, np.arange(len(whole))), axis=1)[: len(whole) - lag]
    turn = session.commit(request, dataclasses.replace(done, extras={"experts": rows, "topk": rows[:, 0]}))
    messages.append(reply)
    return turn


@pytest.mark.parametrize("lag", [0, 1])
def test_extras_are_cut_with_the_tokens(lag: int) -> None:
    session = codec().session()
    messages = [user("q")]
    for text in ("a", "b", "c"):
        with_rows(session, messages, assistant(text), lag)
        messages.append(user("u"))
    other = [*messages[:2], user("other")]
    with_rows(session, other, assistant("d"), lag)
    assert sum(len(turn.completion.extras["topk"]) for turn in session.turns) < session.turns[2].end + len(
        session.turns[3].new
    ) + 2 * len(session.turns)
    ends = [turn.end for turn in session.turns]
    for most in (None, ends[1], ends[1] - 1):
        for sample in session.samples(max_tokens=most, select="leaves"):
            size = len(sample.tokens)
            assert len(sample.loss_mask) == len(sample.logprobs) == size
            assert sample.extras["experts"].tolist() == [
                [one, place] for place, one in enumerate(sample.tokens.tolist()[: size - lag])
            ]
            assert sample.extras["topk"].tolist() == sample.tokens.tolist()[: size - lag]
    (none,) = session.samples(max_tokens=3, select="latest")
    assert none.extras["topk"].tolist() == none.tokens.tolist()[: 3 - lag]


def test_extras_that_are_not_the_ids_rows_are_refused() -> None:
    session = codec().session()
    messages = [user("q")]
    request, done = session.prepare(messages), said(assistant("a"))
    whole = len(request.ids) + len(done.ids)
    for rows in (whole - 2, whole + 1, len(done.ids)):
        with pytest.raises(CompletionError) as error:
            session.commit(request, dataclasses.replace(done, extras={"experts": np.zeros((rows, 4))}, id="c"))
        assert str(error.value) == (
            f"completion c has {rows} rows of 'experts' for {len(request.ids)} ids of the prompt and {len(done.ids)} sampled "
            f"ones; ask the engine for {whole}, or for all but the last"
        )
    with_rows(session, messages, assistant("a"), 1)
    messages.append(user("u"))
    with pytest.raises(
        CompletionError, match=r"^completion .* has the extras \(rows short, shape of a row, type\) \{\}, and"
    ):
        session.commit(session.prepare(messages), said(assistant("b")))
    assert len(session.turns) == 1
    with pytest.raises(CompletionError) as error:
        Completion([1], [-1.0], "stop", extras={"experts": [[1]]}, id="c")  # type: ignore[dict-item]
    assert str(error.value) == (
        "completion c has extras that are not arrays of rows; map a name to an array, one row an id"
    )


def test_extras_of_a_completion_that_is_cut_at_its_stop() -> None:
    session = codec().session(overrun="trim")
    request, done = session.prepare([user("q")]), said(assistant("a"))
    over = np.concatenate((done.ids, [5, 6]))
    rows = np.concatenate((request.ids, over))[:-1]
    session.commit(
        request, Completion(over, [-1.0] * len(over), "stop", message=assistant("a"), extras={"experts": rows})
    )
    (sample,) = session.samples()
    assert sample.extras["experts"].tolist() == sample.tokens.tolist()[:-1]


def test_rewards_and_metadata() -> None:
    session = branched()
    one, _, three, four = (turn.completion.id for turn in session.turns)
    samples = session.samples(
        select="leaves", rewards={one: 1.0, four: -0.5}, metadata={"task": "t", "session": "theirs", "family": None}
    )
    assert [[turn.reward for turn in sample.turns] for sample in samples] == [[1.0, None], [1.0, None, -0.5]]
    assert [turn.completion for turn in samples[1].turns] == [one, three, four]
    for sample in samples:
        assert sample.metadata == {"task": "t", "session": session.id, "family": "deepseekv32"}
    with pytest.raises(SessionError) as error:
        session.samples(rewards={"nobody": 1.0})
    assert str(error.value) == (
        "rewards names the completion 'nobody', which this session does not hold; its keys are the ids of completions"
    )
    (first, *_) = session.samples(select="leaves", rewards={one: 1, three: None, four: np.float64(0.5)})
    assert [turn.reward for turn in first.turns] == [1, None]


@pytest.mark.parametrize("reward", [np.float32(0.5), np.float16(0.5), np.float64(0.5), np.int64(2), Fraction(1, 2)])
def test_a_reward_of_any_kind_of_number_is_kept_as_a_plain_one(reward: Any) -> None:
    session = branched()
    (theirs,) = session.samples(select="latest", rewards={session.turns[0].completion.id: reward})

    def setting(samples: Sequence[Sample], rewards: Any, metadata: Any) -> list[Sample]:
        return [
            dataclasses.replace(one, turns=tuple(dataclasses.replace(turn, reward=reward) for turn in one.turns))
            for one in samples
        ]

    (own,) = session.samples(select="latest", finish=setting)
    for sample in (theirs, own):
        assert (type(sample.turns[0].reward), sample.turns[0].reward) == (float, float(reward))
        (again,) = tito_core.from_jsonl(tito_core.to_jsonl([sample]))
        assert again.turns == sample.turns


@pytest.mark.parametrize("reward", ["1", float("nan"), np.float32("-inf"), np.bool_(True), np.ones(1), 10**400, [1.0]])
def test_a_reward_is_a_finite_number(reward: Any) -> None:
    session = branched()
    identity = session.turns[0].completion.id
    with pytest.raises(SessionError) as error:
        session.samples(select="leaves", rewards={identity: reward})
    assert str(error.value) == (
        f"rewards gives completion {identity} {reward!r:.80}, a {type(reward).__name__}; it must be a finite number, or "
        "None for none"
    )

    def setting(samples: Sequence[Sample], rewards: Any, metadata: Any) -> list[Sample]:
        return [
            dataclasses.replace(one, turns=tuple(dataclasses.replace(turn, reward=reward) for turn in one.turns))
            for one in samples
        ]

    with pytest.raises(SessionError, match=r"answered a sample of turn 3 whose turns are not those that it was given$"):
        session.samples(select="latest", finish=setting)


@pytest.mark.parametrize("ended", ["timeout", SessionError, 0, False])
def test_what_ended_a_session_is_an_error(ended: Any) -> None:
    with pytest.raises(SessionError) as error:
        branched().samples(select="leaves", error=ended)
    assert str(error.value) == (
        f"error is {ended!r}, a {type(ended).__name__}; it must be the exception that ended the session, or None"
    )


def test_a_turn_of_a_sample_says_where_it_comes_from() -> None:
    session = codec().session()
    messages = [user("q")]
    for number, version in enumerate(("v1", None, 7)):
        meta = {} if version is None else {"weight_version": version}
        request = session.prepare(messages)
        session.commit(request, dataclasses.replace(said(assistant(f"a{number}")), meta=meta))
        messages += [assistant(f"a{number}"), user("u")]
    (sample,) = session.samples()
    assert [turn.weight_version for turn in sample.turns] == ["v1", None, "7"]
    assert [turn.finish_reason for turn in sample.turns] == ["stop"] * 3
    times = [time for turn in sample.turns for time in (turn.requested, turn.committed)]
    assert times == sorted(times)
    assert times[0] > 1e9
    for kept, told in zip(session.turns, sample.turns, strict=True):
        assert (told.number, told.completion) == (kept.number, kept.completion.id)
        assert sample.tokens[told.start : told.end].tolist() == kept.completion.ids.tolist()  # type: ignore[union-attr]


def newest_first(turns: Sequence[Turn]) -> list[Turn]:
    parents = {turn.parent for turn in turns}
    return [turn for turn in reversed(turns) if turn not in parents]


def nothing_trains(samples: Sequence[Sample], rewards: Any, metadata: Any) -> list[Sample]:
    return [dataclasses.replace(sample, loss_mask=sample.loss_mask * 0, metadata=metadata) for sample in samples]


@pytest.mark.parametrize(
    ("select", "finish"),
    [
        (newest_first, nothing_trains),
        ("test_samples:newest_first", "test_samples:nothing_trains"),
        ("test_samples.newest_first", "test_samples.nothing_trains"),
    ],
)
def test_select_and_finish_can_be_replaced(select: Any, finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_samples", sys.modules[__name__])
    session = branched()
    one, two = session.samples(select=select)
    assert [trained(one), trained(two)] == [ids("a", "c", "d"), ids("b")]
    samples = session.samples(select=select, finish=finish, metadata={"mine": 1})
    assert [(trained(sample), sample.metadata) for sample in samples] == [([], {"mine": 1})] * 2


def _changed(**change: Callable[[Sample], Any]) -> Callable[..., list[Sample]]:
    def finish(samples: Sequence[Sample], rewards: Any, metadata: Any) -> list[Sample]:
        return [
            dataclasses.replace(sample, **{name: make(sample) for name, make in change.items()}) for sample in samples
        ]

    return finish


NAME = "_changed.<locals>.finish"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"select": lambda turns: None},
            "the select '<lambda>' answered None; it must answer a list of turns of the session",
        ),
        (
            {"select": lambda turns: [1]},
            "the select '<lambda>' answered [1]; it must answer a list of turns of the session",
        ),
        (
            {"select": lambda turns: [turns[1], turns[1]]},
            "the select '<lambda>' answered the turns [1, 1]; each must be one of the session's, and none twice",
        ),
        (
            {"select": lambda turns: branched().turns},
            "the select '<lambda>' answered the turns [0, 1, 2, 3]; each must be one of the session's, and none twice",
        ),
        ({"select": lambda turns: turns[99]}, "the select '<lambda>' failed: IndexError: tuple index out of range"),
        (
            {"select": "best"},
            "the select 'best' is none of retries, leaves, latest; name one of them, or pass a callable or its dotted path",
        ),
        ({"select": None}, "the select 'None' is a NoneType; it must be a function"),
        ({"finish": None}, "the finish 'None' is a NoneType; it must be a function"),
        ({"finish": 5}, "the finish '5' is a int; it must be a function"),
        ({"rewards": []}, "rewards is a list; it must be a mapping, or None for none"),
        ({"rewards": [("c", 1.0)]}, "rewards is a list; it must be a mapping, or None for none"),
        ({"metadata": "task"}, "metadata is a str; it must be a mapping, or None for none"),
        ({"metadata": 0}, "metadata is a int; it must be a mapping, or None for none"),
        (
            {"rewards": {"x": 1.0, 5: 1.0}},
            "rewards names the completion 'x', which this session does not hold; its keys are the ids of completions",
        ),
        ({"finish": list}, "the finish 'list' is called with 3 argument(s): too many positional arguments"),
        (
            {"finish": lambda samples, rewards, metadata: [3]},
            "the finish '<lambda>' answered [3]; it must answer a list of samples",
        ),
        (
            {"finish": lambda samples, rewards, metadata: samples},
            "the finish '<lambda>' answered samples of which two train completion X; each trains once",
        ),
        (
            {"finish": _changed(loss_mask=lambda sample: np.ones_like(sample.loss_mask))},
            f"the finish '{NAME}' answered a sample of turn 1 that trains ids which nobody sampled",
        ),
        (
            {"finish": _changed(loss_mask=lambda sample: sample.loss_mask[1:])},
            f"the finish '{NAME}' answered a sample of turn 1 whose arrays are not as long as its tokens",
        ),
        (
            {"finish": _changed(tokens=lambda sample: sample.tokens + 1)},
            f"the finish '{NAME}' answered a sample of turn 1 whose tokens are not those that it was given",
        ),
        (
            {"finish": _changed(leaf=lambda sample: 9)},
            f"the finish '{NAME}' answered a sample of turn 9 whose tokens are not those that it was given",
        ),
    ],
)
def test_select_and_finish_that_misbehave_are_named(arguments: Any, text: str) -> None:
    session = branched()
    with pytest.raises(SessionError) as error:
        session.samples(**{"select": "leaves", **arguments})
    assert str(error.value) == text.replace("completion X", f"completion {session.turns[0].completion.id}")


def _trains_in_place(samples: Sequence[Sample], rewards: Any, metadata: Any) -> Sequence[Sample]:
    for sample in samples:
        sample.loss_mask[:] = 1
    return samples


@pytest.mark.parametrize(
    ("finish", "why"),
    [
        (_trains_in_place, "that trains ids which nobody sampled"),
        *(
            (_changed(loss_mask=make), f"whose loss_mask ({kind}) is not of whole numbers 0 and 1")
            for make, kind in (
                (lambda sample: -sample.loss_mask, "int8"),
                (lambda sample: sample.loss_mask * np.nan, "float64"),
                (lambda sample: sample.loss_mask.astype(float), "float64"),
                (lambda sample: sample.loss_mask * 3, "int8"),
            )
        ),
        *(
            (
                _changed(loss_mask=lambda sample, given=given: given(sample)),
                f"whose loss_mask is a {kind} that is no row of numbers; leave it, or make it an array",
            )
            for given, kind in (
                (lambda sample: None, "NoneType"),
                (lambda sample: sample.loss_mask[None], "ndarray"),
                (lambda sample: ["1"] * len(sample.tokens), "list"),
                (lambda sample: [[1], [1, 2]], "list"),
            )
        ),
        (_changed(logprobs=lambda sample: sample.logprobs - 1), "whose logprobs are not those that it was given"),
        (_changed(logprobs=lambda sample: sample.logprobs * np.nan), "whose logprobs are not those that it was given"),
        (_changed(logprobs=lambda sample: sample.logprobs[:, None]), "whose logprobs is a ndarray that is no row of "),
        *(
            (_changed(**{name: make}), f"whose {name} are not those that it was given")
            for name, make in (
                ("spans", lambda sample: sample.spans[:-1]),
                ("spans", lambda sample: (*sample.spans[:-1], sample.spans[-1]._replace(end=10**6))),
                ("spans", lambda sample: None),
                ("turns", lambda sample: sample.turns[:-1]),
                ("turns", lambda sample: (*sample.turns[:-1], dataclasses.replace(sample.turns[-1], end=10**6))),
                ("turns", lambda sample: (*sample.turns[:-1], dataclasses.replace(sample.turns[-1], completion="c"))),
                ("turns", lambda sample: (*sample.turns[:-1], dataclasses.replace(sample.turns[-1], reward="1"))),
                ("turns", lambda sample: (*sample.turns[:-1], dataclasses.replace(sample.turns[-1], trains=None))),
                ("turns", lambda sample: [None] * len(sample.turns)),
                ("turns", lambda sample: (None,) * len(sample.turns)),
            )
        ),
        (
            _changed(extras=lambda sample: {"experts": sample.extras["experts"] + 1}),
            "whose extras 'experts' are not those that it was given",
        ),
        (
            _changed(extras=lambda sample: {"experts": sample.extras["experts"].astype(float)}),
            "whose extras 'experts' are not those that it was given",
        ),
        (
            _changed(extras=lambda sample: {"mine": np.zeros(3)}),
            "whose extras are none: its extras 'mine' are float64 of the shape (3,), and must be numbers, a row for each of ",
        ),
        (
            _changed(extras=lambda sample: {"mine": np.zeros(len(sample.tokens), np.longdouble)}),
            f"whose extras are none: its extras 'mine' are {np.dtype(np.longdouble)} of the shape (",
        ),
        (
            _changed(extras=lambda sample: {"mine": [1]}),
            "whose extras are none: its extras 'mine' are a list, and must be",
        ),
        (
            _changed(extras=lambda sample: None),
            "whose extras are none: its extras are a NoneType, and must map names to ",
        ),
        (
            _changed(status=lambda sample: 5),
            "whose status and metadata are a int and a dict; they are a text and a mapping",
        ),
        (_changed(metadata=lambda sample: []), "whose status and metadata are a str and a list; they are a text and"),
        (_changed(tokens=lambda sample: None), "whose tokens is a NoneType that is no row of numbers; leave it"),
    ],
)
def test_what_a_finish_answers_is_held_against_what_was_sampled(finish: Any, why: str) -> None:
    session = codec().session()
    messages = [user("q")]
    for text in ("a", "b", "c", "d"):
        with_rows(session, messages, assistant(text), 1)
        messages.append(user("u"))
    with pytest.raises(SessionError) as error:
        session.samples(select="latest", finish=finish)
    assert str(error.value).startswith(f"the finish '{finish.__qualname__}' answered a sample of turn 3 {why}")


def test_a_finish_may_write_in_place_what_trains_less() -> None:
    def first_only(samples: Sequence[Sample], rewards: Any, metadata: Any) -> list[Sample]:
        samples[0].loss_mask[samples[0].turns[1].start :] = 0
        return [dataclasses.replace(one, loss_mask=one.loss_mask.tolist()) for one in samples]  # type: ignore[arg-type]

    (sample,) = branched().samples(select="latest", finish=first_only)
    assert (trained(sample), sample.loss_mask.dtype) == (ids("a"), np.int8)


def test_a_finish_may_set_what_is_its_own() -> None:
    def own(samples: Sequence[Sample], rewards: Any, metadata: Any) -> list[Sample]:
        return [
            dataclasses.replace(
                one,
                turns=tuple(dataclasses.replace(turn, reward=0.5, trains=False) for turn in one.turns),
                extras={"advantages": np.ones(len(one.tokens), np.float32)},
                status="mine",
            )
            for one in samples
        ]

    session = codec().session()
    with_rows(session, [user("q")], assistant("a"), 1)
    (sample,) = session.samples(finish=own)
    assert ([*sample.extras], sample.status, sample.turns[0].reward) == (["advantages"], "mine", 0.5)
    (kept,) = session.samples(finish=lambda samples, rewards, metadata: samples)
    assert [*kept.extras] == ["experts", "topk"]


def test_a_finish_may_not_write_into_extras() -> None:
    def overwrites(samples: Sequence[Sample], rewards: Any, metadata: Any) -> Sequence[Sample]:
        samples[0].extras["experts"][:] = 0
        return samples

    session = codec().session()
    with_rows(session, [user("q")], assistant("a"), 1)
    with pytest.raises(SessionError, match="overwrites' failed: ValueError: assignment destination is read-only$"):
        session.samples(finish=overwrites)


def test_a_session_without_turns_has_no_samples() -> None:
    assert codec().session().samples() == []


def test_statuses() -> None:
    session = codec().session()
    messages = [user("q")]
    step(session, messages, assistant("", tool_calls=[call("a")]), tools=[TOOL])
    assert session.samples()[0].status == "complete"
    failed = SessionError("ended early")
    assert [sample.status for sample in session.samples(error=failed)] == ["SessionError"]
    request = session.prepare([*messages, result("a", "R")])
    session.commit(request, Completion([5, 6], [-1.0, -1.0], "length", message=assistant("", "x")))
    (cut,) = session.samples()
    assert cut.status == "truncated"
    assert cut.turns[-1].finish_reason == "length"


def told(sample: Sample) -> tuple[Any, ...]:
    arrays = (sample.tokens, sample.loss_mask, sample.logprobs, *sample.extras.values())
    held = [(rows.dtype, rows.shape, rows.tobytes()) for rows in arrays]
    return held, list(sample.extras), sample.leaf, sample.spans, sample.turns, sample.status, dict(sample.metadata)


def many() -> list[Sample]:
    session = codec().session()
    messages = [user("naïve ☕")]
    for text in ("a", "b"):
        with_rows(session, messages, assistant(text), 1)
        messages.append(user("u"))
    with_rows(session, [*messages[:2], user("other")], assistant("c"), 1)
    rewards = {session.turns[1].completion.id: 0.1}
    return [
        *session.samples(select="leaves", rewards=rewards, metadata={"task": "☕", "deep": {"x": [1, None]}}),
        *branched().samples(select="leaves", max_tokens=3),
    ]


@pytest.mark.parametrize(
    ("out", "back"),
    [(tito_core.to_jsonl, tito_core.from_jsonl), (tito_core.to_safetensors, tito_core.from_safetensors)],
)
def test_samples_come_back_from_the_wire(out: Any, back: Any) -> None:
    samples = many()
    data = out(samples)
    assert [told(sample) for sample in back(data)] == [told(sample) for sample in samples]
    assert out(back(data)) == data
    assert back(out([])) == []
    with pytest.raises(
        SessionError, match=r"^a sample's metadata or reward is not JSON: Object of type object is not JSON"
    ):
        out([dataclasses.replace(samples[0], metadata={"x": object()})])
    with pytest.raises(SessionError, match=r"^a sample's metadata or reward is not JSON: 'utf-8' codec can't encode"):
        out([dataclasses.replace(samples[0], metadata={"x": "\ud800"})])
    with pytest.raises(
        SessionError, match=r"^a sample's metadata or reward is not JSON: the key 1 is a int, not a text; keep plain"
    ):
        out([dataclasses.replace(samples[0], metadata={"x": [{1: 2}]})])
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SessionError, match=r"^a sample's metadata or reward is not JSON: maximum recursion"):
        out([dataclasses.replace(samples[0], metadata={"x": deep})])
    versions: Any = ('"tito_samples": 1', '"tito_samples": 2')
    if isinstance(data, bytes):
        versions = (rb"\"version\": 1", rb"\"version\": 2")
    with pytest.raises(SessionError, match="is of version 2, and this tito reads version 1$"):
        back(data.replace(*versions))
    with pytest.raises(SessionError, match="is none, or is torn: "):
        back(data[: len(data) - 30])


REWARDED: Json = {
    "number": 0, "completion": "c", "start": 1, "end": 2, "requested": 0.0, "committed": 0.0, "finish_reason": "stop",
    "reward": "1",
}  # fmt: skip


def test_what_is_no_payload() -> None:
    for text in ("{}", "[1]", '{"tito_samples": 1}', "nothing"):
        with pytest.raises(SessionError, match="^line 0 of the samples is none, or is torn: "):
            tito_core.from_jsonl(text)
    for data in (b"", b"12345678", b"\xff" * 40):
        with pytest.raises(SessionError, match="^the payload of samples is none, or is torn: "):
            tito_core.from_safetensors(data)
    lines = tito_core.to_jsonl(many()).splitlines()
    short = lines[0].replace('"loss_mask": [', '"loss_mask": [0, ')
    with pytest.raises(SessionError, match="its tokens, loss_mask and logprobs have other lengths"):
        tito_core.from_jsonl(short)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *(
            ({"tokens": one}, "its tokens are not a list of whole numbers")
            for one in ([1.5] * 3, ["1"] * 3, [True] * 3, [None] * 3, [[1]] * 3, 5, "abc", None)
        ),
        ({"tokens": [2**31, 1, 1]}, "OverflowError: "),
        ({"tokens": [10**400, 1, 1]}, "OverflowError: "),
        ({"tokens": [1, -1, 1]}, "its tokens hold -1, which is no id"),
        ({"loss_mask": [0, 0.5, 1]}, "its loss_mask are not a list of whole numbers"),
        ({"loss_mask": [0, True, 1]}, "its loss_mask are not a list of whole numbers"),
        ({"loss_mask": [0, 2, 1]}, "its loss_mask holds other numbers than 0 and 1"),
        ({"loss_mask": [0, -1, 1]}, "its loss_mask holds other numbers than 0 and 1"),
        ({"loss_mask": [0, 300, 1]}, "OverflowError: "),
        ({"logprobs": ["0"] * 3}, "its logprobs are not a list of numbers"),
        ({"logprobs": [float("nan")] * 3}, "it holds NaN"),
        ({"logprobs": [float("inf")] * 3}, "it holds Infinity"),
        ({"logprobs": [1e300, 0, 0]}, "its logprobs are not finite"),
        ({"metadata": {"x": float("nan")}}, "it holds NaN"),
        ({"metadata": []}, "its leaf, status and metadata are not a number, a text and a mapping"),
        ({"turns": [REWARDED]}, "its turn 0 has the reward '1', a str"),
        ({"leaf": "0"}, "its leaf, status and metadata are not a number, a text and a mapping"),
        ({"spans": [[0, 4, "template", 0, "user"]]}, "it holds a span or a turn from 0 to 4, which is none of its ids"),
        (
            {"spans": [["a", 1, "template", 0, "user"]]},
            "it holds a span or a turn from a to 1, which is none of its ids",
        ),
        (
            {"extras": {"x": {"dtype": "<i4", "shape": [1], "data": "AAAAAA=="}}},
            "its extras 'x' are int32 of the shape (1,), and must be numbers, a row for each of 3 ids or for all but the ",
        ),
        ({"extras": {"x": {"dtype": "O", "shape": [1], "data": "AAAAAAAAAAA="}}}, "ValueError: "),
        ({"extras": {"x": {"dtype": "<i4", "shape": [10**400], "data": "AAAAAA=="}}}, "is none, or is torn: "),
    ],
)
def test_a_line_that_holds_what_no_sample_has(change: Json, why: str) -> None:
    (sample,) = branched().samples(select="latest", max_tokens=3)
    line = tito_core.to_jsonl([sample])
    assert len(tito_core.from_jsonl(line)) == 1
    with pytest.raises(SessionError) as error:
        tito_core.from_jsonl(json.dumps({**json.loads(line), **change}))
    assert str(error.value).startswith("line 0 of the samples is none, or is torn: ")
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tokens": np.zeros(3, np.int64)}, "its tokens are int64 of the shape (3,), and must be one row of int32"),
        ({"tokens": np.full(3, -1, np.int32)}, "its tokens hold -1, which is no id"),
        (
            {"tokens": np.zeros((3, 1), np.int32)},
            "its tokens are int32 of the shape (3, 1), and must be one row of int32",
        ),
        ({"loss_mask": np.zeros(3)}, "its loss_mask are float64 of the shape (3,), and must be one row of int8"),
        ({"loss_mask": np.full(3, 2, np.int8)}, "its loss_mask holds other numbers than 0 and 1"),
        ({"logprobs": np.full(3, np.nan, np.float32)}, "its logprobs are not finite"),
        ({"logprobs": np.zeros(3)}, "its logprobs are float64 of the shape (3,), and must be one row of float32"),
        (
            {"extras": {"x": np.zeros(1)}},
            "its extras 'x' are float64 of the shape (1,), and must be numbers, a row for ",
        ),
    ],
)
def test_a_payload_that_holds_what_no_sample_has(change: Json, why: str) -> None:
    (sample,) = branched().samples(select="latest", max_tokens=3)
    data = tito_core.to_safetensors([dataclasses.replace(sample, **change)])
    with pytest.raises(SessionError) as error:
        tito_core.from_safetensors(data)
    assert str(error.value).startswith(f"the payload of samples is none, or is torn: ValueError: {why}")


def test_a_payload_that_nests_too_deep() -> None:
    deep = "[" * 100_000
    with pytest.raises(SessionError, match="^line 0 of the samples is none, or is torn: RecursionError"):
        tito_core.from_jsonl(deep)
    data = len(deep).to_bytes(8, "little") + deep.encode()
    with pytest.raises(SessionError, match="^the payload of samples is none, or is torn: RecursionError"):
        tito_core.from_safetensors(data)
