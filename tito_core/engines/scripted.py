"""An engine that needs no model: it says what it is told, in ids that a model might have sampled.

Deterministic from its seed. The ids decode to the text that the template prints for the message, and are often not
the canonical ones: a token is now and then replaced by shorter ones of the same bytes, as sampling does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tito_core.errors import EngineError
from tito_core.families.family import ThinkingDecision
from tito_core.prompts.messages import Message
from tito_core.prompts.template import Rendered, Span
from tito_core.responses.completion import Completion
from tito_core.sessions.turn import Request
from tito_core.tokens.append import FinishReason, Ids
from tito_core.tokens.codec import Codec
from tito_core.tokens.encoder import Encoder

__all__ = ["ScriptedEngine"]

_WORDS: Final = (
    "the", "file", "holds", "four", "lines", "we", "should", "read", "it", "again", "naïve", "café", "你好", "数据",
    "👩‍👩‍👧", "🙂", "é", "\n", "\n\n", "  ", "x = 1", "{}", "42", "3.14", "return", "(None)", "…", "—", "Ω",
)  # fmt: skip
_SPLIT: Final = 0.15
_SHOWN: Final = 16
"""How many characters an error shows of two texts before they part, and after."""


class ScriptedEngine:
    """Says messages in sampled-looking ids, for one codec. Not safe to share between threads.

    `stopped` is the share of its own replies that a stop string ends, without a stop token, and `otherwise` that which
    ends on another stop token than the template prints, where the family has several.
    """

    def __init__(
        self,
        codec: Codec,
        seed: int = 0,
        *,
        canonical: bool = False,
        stopped: float = 0.0,
        garbled: float = 0.0,
        silent: float = 0.0,
        otherwise: float = 0.0,
    ) -> None:
        self._codec = codec
        self._random = random.Random(seed)
        self._canonical, self._stopped, self._garbled, self._silent = canonical, stopped, garbled, silent
        self._otherwise = otherwise if codec.family.boundary.stop[1:] else 0.0

    def complete(self, request: Request, *, max_tokens: int = 4096, calling: bool = True) -> Completion:
        """Samples a reply of its own to a request: thoughts where thinking is on, calls where tools were offered.

        A share of `stopped` ends by a stop string, a share of `garbled` loses the end of its calls. Where the family reads
        its completions back itself, what was garbled or cut brings no message, and neither does a share of `silent`.
        """
        names = [tool.name for tool in request.tools] if calling else []
        message = self.reply(names, request.decision, "tool" in self._codec.append_roles.roles)
        reads = self._codec.family.response_parser is not None
        garbled = reads and bool(message.get("tool_calls")) and self._random.random() < self._garbled
        made = self.say(
            message,
            request.decision,
            max_tokens=max_tokens,
            stop="" if self._stopped and self._random.random() < self._stopped else None,
            without=self._random.randint(1, 12) if garbled else 0,
            ending=self._ending(),
        )
        cut = made.finish_reason == "length"
        if reads and (garbled or cut or self._random.random() < self._silent):
            return replace(made, message=None)
        return replace(made, message={**message, "tool_calls": []}) if cut else made

    def reply(self, tools: Sequence[str], decision: ThinkingDecision, calling: bool = True) -> dict[str, Any]:
        """An assistant message of the engine's own choice, in the chat-completions format."""
        message: dict[str, Any] = {"role": "assistant", "content": self._text(12)}
        if decision.enabled and self._random.random() < 0.9:
            message["reasoning_content"] = self._text(20)
        if tools and calling and self._random.random() < 0.6:
            several = self._codec.append_roles.parallel
            message["tool_calls"] = [
                {
                    "id": f"call_{self._random.getrandbits(32):08x}",
                    "type": "function",
                    "function": {"name": self._random.choice(list(tools)), "arguments": json.dumps(self._arguments())},
                }
                for _ in range(self._random.choice((1, 1, 2, 3)) if several else 1)
            ]
        return message

    def say(
        self,
        message: dict[str, Any] | Message,
        decision: ThinkingDecision,
        *,
        max_tokens: int = 4096,
        stop: str | None = None,
        without: int = 0,
        ending: str | None = None,
    ) -> Completion:
        """A completion whose text is the template's print of `message`.

        Cut after `max_tokens` ids. With `stop`, a stop string ended it, an unnamed one where it is empty: the stop token
        was not sampled. `without`: so many ids before the stop token were not sampled either. `ending`: the stop token
        that is sampled in place of the printed one.
        """
        ids = self._sampled(message, decision)
        ids = np.concatenate((ids[: max(1, len(ids) - 1 - without)], ids[-1:])) if without else ids
        finish: FinishReason = "tool_calls" if _calls(message) else "stop"
        stops = [self._codec.encoder.token_id(token) for token in self._codec.family.boundary.stop]
        if stop is not None and int(ids[-1]) in stops and len(ids) > 1:
            ids = ids[:-1]
        elif ending is not None and int(ids[-1]) in stops:
            ids[-1] = dict(zip(self._codec.family.boundary.stop, stops, strict=True))[ending] or ids[-1]
        if len(ids) > max_tokens:
            ids, finish = ids[:max_tokens], "length"
        logprobs = np.array([-self._random.random() for _ in range(len(ids))], dtype=np.float32)
        identity = f"scripted-{self._random.getrandbits(64):016x}"
        return Completion(ids, logprobs, finish, stop=stop or None, message=message, id=identity)

    def _ending(self) -> str | None:
        if self._otherwise and self._random.random() < self._otherwise:
            return self._random.choice(self._codec.family.boundary.stop[1:])
        return None

    def _sampled(self, message: dict[str, Any] | Message, decision: ThinkingDecision) -> Ids:
        asked = Message("user", "0")
        before = self._codec.render([asked], decision=decision).text
        whole = self._codec.render([asked, message], decision=decision)
        if not whole.text.startswith(before):
            pairs = enumerate(zip(before, whole.text, strict=False))
            alike = next((place for place, (one, other) in pairs if one != other), len(whole.text))
            start = max(0, alike - _SHOWN)
            raise EngineError(
                f"{self._codec.family.name} ends a prompt with {before[start:]!r}, and prints "
                f"{whole.text[start : alike + _SHOWN]!r} there once it is answered, so there is no text that a model would have "
                "sampled; its template must print an answer, a thought that is empty too, behind all that a prompt ends with"
            )
        cut = len(before)
        spans = tuple(
            span._replace(start=max(span.start, cut) - cut, end=span.end - cut)
            for span in whole.spans
            if span.end > cut
        )
        text = whole.text[cut:]
        glue = self._codec.family.boundary.glue
        if glue and text.endswith(glue):
            text = text[: -len(glue)]
            spans = tuple(
                Span(*span)._replace(end=min(span.end, len(text))) for span in spans if span.start < len(text)
            )
        ids = self._codec.encode(Rendered(text, spans)).ids
        return ids if self._canonical else self._resplit(ids)

    def _resplit(self, ids: Ids) -> Ids:
        encoder = self._codec.encoder
        table = _plain_tokens(encoder)
        made: list[int] = []
        for one in ids.tolist():
            if one in encoder.added_ids or self._random.random() >= _SPLIT:
                made.append(one)
            else:
                made += self._pieces(encoder.token_bytes(one), table)
        return np.array(made, dtype=np.int32)

    def _pieces(self, data: bytes, table: dict[bytes, int]) -> list[int]:
        pieces: list[int] = []
        while data:
            size = self._random.randint(1, len(data))
            while data[:size] not in table:
                size -= 1
            pieces.append(table[data[:size]])
            data = data[size:]
        return pieces

    def _text(self, most: int) -> str:
        return " ".join(self._random.choice(_WORDS) for _ in range(self._random.randint(0, most)))

    def _arguments(self) -> dict[str, Any]:
        values = ("text", "naïve ☕", "", 1, 1.5, True, None, [1, "two"], {"k": "v"})
        return {key: self._random.choice(values) for key in ("path", "query", "n")[: self._random.randint(0, 3)]}


def _calls(message: dict[str, Any] | Message) -> bool:
    return bool(message.tool_calls if isinstance(message, Message) else message.get("tool_calls"))


@lru_cache(maxsize=4)
def _plain_tokens(encoder: Encoder) -> dict[bytes, int]:
    """Bytes to id for the tokens that plain text can become, the single bytes among them."""
    return encoder.plain_tokens()
