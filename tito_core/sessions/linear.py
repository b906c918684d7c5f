"""The rule of a linear session: one line of turns, which takes one turn back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tito_core.errors import SessionError
from tito_core.prompts.messages import Message
from tito_core.sessions.matching import difference
from tito_core.sessions.turn import Turn
from tito_core.tokens.codec import Codec

__all__ = ["check"]

_RULE = "a request continues the last turn, or takes it back; open another session for another conversation"


def check(
    codec: Codec, same: Callable[[Message, Message], bool], tip: Turn, parent: Turn | None, sent: Sequence[Any]
) -> None:
    """Raises SessionError where a request neither continues the last turn, `tip`, nor takes it back.

    It takes it back where it ends before the turn's own message, or goes another way before it: an assistant's message in
    that place is the turn, edited, and never a way back over it. `parent` is the turn that the request would continue.
    """
    if parent is tip:
        return
    made = codec.normalise(sent)
    place = tip.length - 1
    edited = len(made) > place and made[place].role == "assistant"
    if parent is tip.parent and not edited and (parent is not None or len(made) == place):
        if parent is not None or all(map(same, tip.messages, made)):
            return
    stored = tip.conversation()
    pairs = zip(stored, made, strict=False)
    shared = next((at for at, pair in enumerate(pairs) if not same(*pair)), len(made))
    if shared == len(made):
        raise SessionError(
            f"the request ends after message {shared - 1}, and this session's last turn with message {place}: it takes "
            f"back more than one turn; {_RULE}",
            index=shared,
            role=None,
        )
    raise SessionError(
        f"message {shared} ({made[shared].role}) is not what this session stores there: "
        f"{difference(stored[shared], made[shared])}; {_RULE}",
        index=shared,
        role=made[shared].role,
    )
