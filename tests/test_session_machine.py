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

import shared_boundary
from chats import TOOL, Json, assistant, call, codec, result, user
from mutants import Mutant, in_effect
from tito_core import Codec, Completion, Request, Session
from tito_core.errors import CompletionError, SessionError, TitoError, TruncatedTurnError
from token_path import EOS, engine_ids
from v32_upstream import upstream_text


@dataclass
class Stored:
    """A turn of the model: its parent's place and how many of its ids are kept, its prompt's messages, the reply, and the
    ids of prompt and completion."""

    parent: int | None
    kept: int
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
    kept: int
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

    def codec(self) -> Codec:
        return codec()

    @initialize()
    def open(self) -> None:
        self.session = self.codec().session(thinking=True, linear=self.linear)
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
            Stored(sent.parent, sent.kept, sent.prompt, message, sent.ids + sampled, sampled, logprobs, reply == "cut")
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
                assert one.ids[: one.kept] == self.turns[one.parent].ids[: one.kept]
        parents = {one.parent for one in self.turns}
        places = [place for place in range(len(self.turns)) if place not in parents]
        assert [leaf.number for leaf in self.session.leaves] == places

    @invariant()
    def trains_each_sampled_id_once(self) -> None:
        seen: set[tuple[int, int]] = set()
        ends: dict[int, int] = {}
        parents = {one.parent for one in self.turns}
        places = [place for place in range(len(self.turns)) if place not in parents]
        samples = self.session.samples(select="leaves")
        assert len(samples) == len(places)
        for place, sample in zip(places, samples, strict=True):
            leaf = self.turns[place]
            mask, logprobs = [0] * len(leaf.ids), [0.0] * len(leaf.ids)
            at: int | None = place
            end = len(leaf.ids)
            while at is not None:
                one = self.turns[at]
                start = len(one.ids) - len(one.sampled)
                logprobs[start:end] = one.logprobs[: end - start]
                mask[start:end] = [int((at, spot) not in seen) for spot in range(start, end)]
                seen.update((at, spot) for spot in range(start, end))
                ends[at] = max(end, ends.get(at, 0))
                at, end = one.parent, one.kept
            assert sample.tokens.tolist() == leaf.ids
            assert sample.loss_mask.tolist() == mask
            assert sample.logprobs.tolist() == logprobs
        assert len(seen) == sum(len(one.sampled) - len(one.ids) + ends[at] for at, one in enumerate(self.turns))

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
        expected, kept = self._joined(None if parent is None else self.turns[parent], messages)
        assert request.ids.tolist() == expected
        assert (request.parent and request.parent.number) == parent
        self.flight.append(Sent(request, parent, kept, messages, expected, self.turns[-1] if self.turns else None))

    def _joined(self, parent: Stored | None, messages: list[Json]) -> tuple[list[int], int]:
        """The ids of a prompt, and how many of its parent's stand at its start."""
        whole = text(messages)
        if parent is None:
            return engine_ids("r1", whole).tolist(), 0
        stood = text(parent.conversation)
        assert whole.startswith(stood)
        return [*parent.ids, *engine_ids("r1", whole[len(stood) :]).tolist()], len(parent.ids)

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


class Opening(Forest):
    """A family whose stop token is the next message's opener: kept where it is, dropped where another comes."""

    def codec(self) -> Codec:
        return shared_boundary.codec()

    def _joined(self, parent: Stored | None, messages: list[Json]) -> tuple[list[int], int]:
        ids = shared_boundary.printed(messages)
        if parent is None:
            return ids, 0
        suffix = ids[len(shared_boundary.printed(parent.conversation)) :]
        if parent.ids[-1] not in shared_boundary.SHARED:
            return [*parent.ids, *suffix], len(parent.ids)
        return [*parent.ids[:-1], *suffix], len(parent.ids) - (suffix[0] != parent.ids[-1])

    def _completion(self, reply: str, split: bool) -> tuple[Completion, Json]:
        done, message = super()._completion(reply, split)
        message = {**message, "content": reply}
        stop = shared_boundary.OPENERS["tool" if split else "user"]
        if self.count % 4 == 0:
            stop = shared_boundary.END
        ids = [*shared_boundary.printed([message])[1:], *([] if reply == "cut" else [stop])]
        logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32) - self.count / 1024
        return replace(done, ids=ids, logprobs=logprobs, message=message), message


RULES = settings(max_examples=25, stateful_step_count=25, deadline=None, database=None)
TestForest = Forest.TestCase
TestForest.settings = RULES
TestLine = Line.TestCase
TestLine.settings = RULES
TestOpening = Opening.TestCase
TestOpening.settings = RULES


FAULTS = (
    ("the oldest of equals", "matching:closest", "turn.number\n", "-turn.number\n"),
    ("any content", "matching:_spelled", 'raw["content"] != stored.content', "False"),
    ("any role", "matching:_spelled", 'raw["role"] != "assistant"', "False"),
    ("shared ids train twice", "samples:once", "mask[turn.start : turn.start + before] = 0", "pass"),
    (
        "an id that was dropped before never trains",
        "samples:once",
        "turn.start + before] = 0",
        "turn.end] = 0 if before else 1",
    ),
    ("one id too many trains", "samples:sampled", "turn.end - turn.sampled", "turn.end - turn.sampled - 1"),
    ("one id too few is kept", "session:Session.commit", "kept=ledger.kept", "kept=ledger.kept - (parent is not None)"),
    ("stored twice", "session:Session._admit", "if turn.completion.id == completion.id:", "if False:"),
    ("stale is stored", "session:Session._admit", "tip is not request.tip:", "tip is None:"),
    ("an edited reply is a way back", "linear:check", "and not edited", "and True"),
    ("another first prompt is a way back", "linear:check", "or len(made) == place", "or True"),
)
OF_OPENERS = {"an id that was dropped before never trains"}
IN_LINE = {"stale is stored", "an edited reply is a way back", "another first prompt is a way back"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "function", "old", "new"), FAULTS, ids=[name for name, *_ in FAULTS])
def test_the_machine_finds_a_fault(name: str, function: str, old: str, new: str) -> None:
    mutant = Mutant(name, "", f"tito_core.sessions.{function}", old, new)
    machine = Line if name in IN_LINE else Opening if name in OF_OPENERS else Forest
    once = settings(
        RULES, phases=[Phase.generate], derandomize=True, max_examples=1000, print_blob=False, verbosity=Verbosity.quiet
    )
    with in_effect(mutant), pytest.raises((AssertionError, Failed, TitoError, ValueError, ExceptionGroup)):
        run_state_machine_as_test(machine, settings=once)
