"""A toy family whose stop tokens are also the next message's openers, with a vocabulary of bytes.

A message is its opener and its text. A model ends its turn with the opener of whoever it thinks comes next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from chats import Json
from chats import codec as deepseek
from tito_core import Boundary, Codec, ControlToken, Encoder, Message, Rendered, Segments
from tito_core.families.family import Template
from tito_core.prompts.template import Parts
from tito_core.tokens.codec import Origin
from token_path import toy_tokenizer

OPENERS: Final = {"system": 256, "user": 257, "tool": 258, "assistant": 259}
"""Ids of the control tokens, which follow those of the bytes."""
END: Final = 260
SHARED: Final = (OPENERS["user"], OPENERS["tool"])


class Openers:
    def render(self, messages: Sequence[Message], *, tools: Sequence[Any], kwargs: Mapping[str, Any]) -> Rendered:
        parts = Parts()
        for index, message in enumerate(messages):
            parts.template(f"<|{message.role}|>", index, message.role)
            parts.content(message.content, index, message.role)
        if messages[-1].role != "assistant":
            parts.template("<|assistant|>", len(messages) - 1, messages[-1].role)
        return parts.rendered()


@cache
def codec() -> Codec:
    """DeepSeek's declaration with another boundary, template and vocabulary."""
    names = [f"<|{name}|>" for name in (*OPENERS, "end")]
    loaded = deepseek().loaded._declaring(
        boundary=Boundary(stop=("<|user|>", "<|tool|>", "<|end|>"), shared=("<|user|>", "<|tool|>")),
        control_tokens=tuple(ControlToken(text=name) for name in names),
        segments=Segments(delimiters=tuple(names), headers=("<|assistant|>",)),
        response_parser=None,
    )
    encoder = Encoder.from_json(toy_tokenizer([], names))
    revision = loaded.declaration.revision(None)
    template = Template.of_encoder("shared_boundary:Openers")
    return Codec(loaded, encoder, template, revision, Origin("toy", "toy", encoder.sha256, None, ()))


def printed(messages: Sequence[Json]) -> list[int]:
    """Ids of a conversation, up to and without what ends its last message."""
    ids = [one for message in messages for one in (OPENERS[message["role"]], *(message["content"] or "").encode())]
    return ids if messages[-1]["role"] == "assistant" else [*ids, OPENERS["assistant"]]
