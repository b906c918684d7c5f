"""Random interleavings of prepare, commit, failure and retry, against a model that keeps lists of its own.

The model's ids are `tokenizers` on the published print and those that its engine sampled; where a request continues is
found by comparing the client's own messages. After every step the session must hold what the model does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from _pytest.outcomes import Failed
from hypothesis import Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from chats import TOOL, Json, assistant, call, codec, result, user
from mutants import Mutant, in_effect
from tito_core import Completion, Request, Session
from tito_core.errors import CompletionError, SessionError, TitoError, TruncatedTurnError
from token_path import EOS, engine_ids
from v32_upstream import upstream_text


@dataclass
class Stored:
    """A turn of the model: its parent's place, its prompt's messages, the reply, and the ids of prompt and completion."""

    parent: int | None
    prompt: list[Json]
    reply: Json
    ids: list[int]
    sampled: list[int]
    logprobs: list[float]
    cut: bool

    @property
    def conversation(self) -> list[Json]:
        return [*self.prompt, self.reply]


@dataclass
class Sent:
    """A request in flight: what the session made, and what the model expects of it."""

    request: Request
    parent: int | None
    prompt: list[Json]
    ids: list[int]
    tip: Stored | None


def text(messages: list[Json]) -> str:
    made = upstream_text(messages, [TOOL], thinking=True)
    assert made is not None
    return made


ACTS = (*["ask_and_answer"] * 5, "ask", "ask", "answer", "answer", "retry", "lose", "fail", "ask_wrongly")


class Forest(RuleBasedStateMachine):
    linear = False
    session: Session

    @initialize()
    def open(self) -> None:
        self.session = codec().session(thinking=True, linear=self.linear)
        self.turns: list[Stored] = []
        self.flight: list[Sent] = []
        self.count = 0

    @rule(data=st.data(), act=st.sampled_from(ACTS))
    def act(self, data: st.DataObject, act: str) -> None:
        """One rule for all: hypothesis leaves rules out at random, and most sessions would never get anywhere."""
        if act in ("answer", "lose", "fail") and not self.flight:
            act = "ask"
        if act in ("retry", "ask_wrongly") and not self.turns:
            act = "ask"
        if act == "ask_and_answer":
            self.ask(data)
            act = "answer" if self.flight else "ask"
        getattr(self, act)(data)

    def ask(self, data: st.DataObject) -> None:
        """Another request: after some turn or none, with something appended."""
        base = data.draw(st.sampled_from([*self.turns[::-1], *self.turns[-2:] * 2, None]) if self.turns else st.none())
        said = data.draw(st.sampled_from("xa"))
        more = data.draw(st.sampled_from(([], [], [assistant(said)], [user(said), assistant("z")], [user(said)])))
        if base is None:
            self._prepare([*([] if more[:1] == [assistant(said)] else more), user(said)])
        elif base.reply.get("tool_calls"):
            self._prepare([*base.conversation, result("c", said)])
        else:
            self._prepare([*base.conversation, *more, user(said)])

    def retry(self, data: st.DataObject) -> None:
        """The request of a turn again."""
        self._prepare(data.draw(st.sampled_from(self.turns)).prompt)

    def answer(self, data: st.DataObject) -> None:
        """The engine answers one of the requests in flight."""
        reply = data.draw(st.sampled_from(("a", "b", "a", "b", "call", "cut")))
        split = data.draw(st.booleans())
        sent = data.draw(st.sampled_from(self.flight))
        self.flight.remove(sent)
        completion, message = self._completion(reply, split)
        if self.linear and sent.tip is not (self.turns[-1] if self.turns else None):
            self._refused(SessionError, lambda: self.session.commit(sent.request, completion))
            return
        turn = self.session.commit(sent.request, completion)
        if self.linear:
            del self.turns[0 if sent.parent is None else sent.parent + 1 :]
        sampled = np.asarray(completion.ids).tolist()
        logprobs = np.asarray(completion.logprobs).tolist()
        self.turns.append(
            Stored(sent.parent, sent.prompt, message, sent.ids + sampled, sampled, logprobs, reply == "cut")
        )
        assert turn.number == len(self.turns) - 1

    def lose(self, data: st.DataObject) -> None:
        """The engine dies with a request."""
        self.flight.remove(data.draw(st.sampled_from(self.flight)))

    def fail(self, data: st.DataObject) -> None:
        """An answer that can't be stored; the request may be answered again."""
        wrong = data.draw(st.sampled_from(("abort", "over", "unknown", "prompt", "stored", "stop")))
        sent = data.draw(st.sampled_from(self.flight))
        good, _ = self._completion("a", False)
        ids, size = np.asarray(good.ids), len(good.ids)
        made = {
            "abort": lambda: replace(good, finish_reason="abort"),
            "over": lambda: replace(good, ids=[*ids, 5], logprobs=[-1.0] * (size + 1)),
            "unknown": lambda: replace(good, ids=[2**30], logprobs=[-1.0]),
            "prompt": lambda: replace(good, prompt_ids=sent.ids[:-1]),
            "stop": lambda: replace(good, stop="never said"),
            "stored": lambda: replace(good, id=self.session.turns[0].completion.id) if self.turns else None,
        }[wrong]()
        if made is not None:
            kinds = (CompletionError, SessionError)
            self._refused(kinds, lambda: self.session.commit(sent.request, made))

    def ask_wrongly(self, data: st.DataObject) -> None:
        """A request that no session takes."""
        wrong = data.draw(st.sampled_from(("answered", "role", "result", "tools", "mode")))
        base = data.draw(st.sampled_from(self.turns)).conversation
        messages, more = {
            "answered": (base, {}),
            "role": ([*base, {"role": "developer", "content": "D"}], {}),
            "result": ([*base, result("other", "R")], {}),
            "tools": ([user("x")], {"tools": []}),
            "mode": ([user("x")], {"chat_template_kwargs": {"thinking": False}}),
        }[wrong]
        arguments: Any = {"tools": [TOOL], **more}
        self._refused(TitoError, lambda: self.session.prepare(messages, **arguments))

    @invariant()
    def holds_what_the_model_does(self) -> None:
        """Every committed turn is there, with the ids it was committed with, after its parent's."""
        turns = self.session.turns
        assert [turn.ids.tolist() for turn in turns] == [one.ids for one in self.turns]
        assert [turn.parent and turn.parent.number for turn in turns] == [one.parent for one in self.turns]
        for one in self.turns:
            if one.parent is not None:
                before = self.turns[one.parent].ids
                assert one.ids[: len(before)] == before
        parents = {one.parent for one in self.turns}
        places = [place for place in range(len(self.turns)) if place not in parents]
        assert [leaf.number for leaf in self.session.leaves] == places

    @invariant()
    def trains_each_sampled_id_once(self) -> None:
        seen: set[int] = set()
        parents = {one.parent for one in self.turns}
        places = [place for place in range(len(self.turns)) if place not in parents]
        samples = self.session.samples(select="leaves")
        assert len(samples) == len(places)
        for place, sample in zip(places, samples, strict=True):
            leaf = self.turns[place]
            mask, logprobs = [0] * len(leaf.ids), [0.0] * len(leaf.ids)
            at: int | None = place
            while at is not None:
                one = self.turns[at]
                end, start = len(one.ids), len(one.ids) - len(one.sampled)
                logprobs[start:end] = one.logprobs
                mask[start:end] = [int(at not in seen)] * (end - start)
                seen.add(at)
                at = one.parent
            assert sample.tokens.tolist() == leaf.ids
            assert sample.loss_mask.tolist() == mask
            assert sample.logprobs.tolist() == logprobs
        assert len(seen) == len(self.turns)

    def _prepare(self, messages: list[Json]) -> None:
        deepest = [
            place
            for place, one in enumerate(self.turns)
            if len(one.conversation) < len(messages) and messages[: len(one.conversation)] == one.conversation
        ]
        parent = max(deepest, key=lambda place: (len(self.turns[place].conversation), place), default=None)
        if self.linear and self.turns and not self._in_line(parent, messages):
            self._refused(SessionError, lambda: self.session.prepare(messages, tools=[TOOL]))
            return
        if parent is not None and self.turns[parent].cut:
            self._refused(TruncatedTurnError, lambda: self.session.prepare(messages, tools=[TOOL]))
            return
        before = self.session.turns
        request = self.session.prepare(messages, tools=[TOOL])
        assert self.session.turns is before
        whole, ids = text(messages), []
        if parent is not None:
            stood = text(self.turns[parent].conversation)
            assert whole.startswith(stood)
            whole, ids = whole[len(stood) :], self.turns[parent].ids
        expected = [*ids, *engine_ids("r1", whole).tolist()]
        assert request.ids.tolist() == expected
        assert (request.parent and request.parent.number) == parent
        self.flight.append(Sent(request, parent, messages, expected, self.turns[-1] if self.turns else None))

    def _in_line(self, parent: int | None, messages: list[Json]) -> bool:
        """Whether a linear session takes the request: it continues the last turn, or takes that one back."""
        tip = self.turns[-1]
        place = len(tip.prompt)
        if parent == len(self.turns) - 1:
            return True
        if parent != tip.parent or (len(messages) > place and messages[place]["role"] == "assistant"):
            return False
        return parent is not None or messages == tip.prompt

    def _completion(self, reply: str, split: bool) -> tuple[Completion, Json]:
        """A completion of the print of a message, its text perhaps in single characters, as sampling has it."""
        self.count += 1
        message = assistant(reply)
        if reply == "call":
            message = assistant("", tool_calls=[call("c")])
        body = text([user("0"), message])[len(text([user("0")])) :].removesuffix("<｜end▁of▁sentence｜>")
        if reply == "cut":
            message = assistant("", "cut off")
            body = "cut off"
        ids = [
            one for piece in (body if split and reply in "ab" else [body]) for one in engine_ids("r1", piece).tolist()
        ]
        if reply != "cut":
            ids.append(EOS)
        logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32) - self.count / 1024
        finish: Any = {"call": "tool_calls", "cut": "length"}.get(reply, "stop")
        return Completion(ids, logprobs, finish, message=message, id=f"c{self.count}"), message

    def _refused(self, kind: Any, act: Any) -> None:
        """Refused, with every byte of the session as it was."""
        turns = self.session.turns
        before = [(turn.ids.tobytes(), np.asarray(turn.completion.logprobs).tobytes()) for turn in turns]
        with pytest.raises(kind):
            act()
        assert self.session.turns is turns
        assert [(turn.ids.tobytes(), np.asarray(turn.completion.logprobs).tobytes()) for turn in turns] == before


class Line(Forest):
    linear = True


RULES = settings(max_examples=25, stateful_step_count=25, deadline=None, database=None)
TestForest = Forest.TestCase
TestForest.settings = RULES
TestLine = Line.TestCase
TestLine.settings = RULES


FAULTS = (
    ("the oldest of equals", "matching:closest", "turn.number\n", "-turn.number\n"),
    ("any content", "matching:_spelled", 'raw["content"] != stored.content', "False"),
    ("any role", "matching:_spelled", 'raw["role"] != "assistant"', "False"),
    ("shared ids train twice", "samples:once", "mask[turn.start : turn.end] = 0", "pass"),
    ("one id too many trains", "samples:sampled", "turn.end - turn.sampled", "turn.end - turn.sampled - 1"),
    ("one id too few is kept", "session:Session.commit", "kept=ledger.kept", "kept=ledger.kept - (parent is not None)"),
    ("stored twice", "session:Session._admit", "if turn.completion.id == completion.id:", "if False:"),
    ("stale is stored", "session:Session._admit", "tip is not request.tip:", "tip is None:"),
    ("an edited reply is a way back", "linear:check", "and not edited", "and True"),
    ("another first prompt is a way back", "linear:check", "or len(made) == place", "or True"),
)
IN_LINE = {"stale is stored", "an edited reply is a way back", "another first prompt is a way back"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "function", "old", "new"), FAULTS, ids=[name for name, *_ in FAULTS])
def test_the_machine_finds_a_fault(name: str, function: str, old: str, new: str) -> None:
    mutant = Mutant(name, "", f"tito_core.sessions.{function}", old, new)
    machine = Line if name in IN_LINE else Forest
    once = settings(
        RULES, phases=[Phase.generate], derandomize=True, max_examples=1000, print_blob=False, verbosity=Verbosity.quiet
    )
    with in_effect(mutant), pytest.raises((AssertionError, Failed, TitoError, ValueError, ExceptionGroup)):
        run_state_machine_as_test(machine, settings=once)
