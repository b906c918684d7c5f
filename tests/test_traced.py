"""Text that keeps the origin of each character: whatever is done to it, it reads as a plain string would, and every
character that it says is another's can be found there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tito_core.prompts.traced import LOST, TEMPLATE, Traced, concat

ALPHABET = "ab \n\r\t<>ßİ'\"\u2028"
SHORT = st.text(ALPHABET, max_size=8)
CHARS = st.none() | st.text(ALPHABET, min_size=1, max_size=2)
SOME = st.text(ALPHABET, min_size=1, max_size=2)
COUNT = st.integers(-1, 3)
PLACE = st.none() | st.integers(-9, 9)


def numbered(text: str) -> Traced:
    """A text whose every character has its place as its origin."""
    return concat(Traced(one, place) for place, one in enumerate(text))


def places(traced: str) -> list[int]:
    assert isinstance(traced, Traced)
    made = [origin for size, origin in traced._runs for _ in range(size)]
    assert len(made) == len(traced)
    return made


CUTS: dict[str, tuple[Any, ...]] = {
    "split": (st.tuples(CHARS, COUNT), st.tuples(SOME)),
    "rsplit": (st.tuples(CHARS, COUNT), st.tuples(SOME)),
    "splitlines": (st.tuples(st.booleans()), st.tuples()),
    "partition": (st.tuples(SOME),),
    "rpartition": (st.tuples(SOME),),
    "strip": (st.tuples(CHARS), st.tuples()),
    "lstrip": (st.tuples(CHARS), st.tuples()),
    "rstrip": (st.tuples(CHARS), st.tuples()),
    "removeprefix": (st.tuples(SHORT),),
    "removesuffix": (st.tuples(SHORT),),
    "__getitem__": (st.tuples(st.builds(slice, PLACE, PLACE, st.sampled_from([None, 1, 2, -1, -2]))),),
    "__iter__": (st.tuples(),),
    "__str__": (st.tuples(),),
}
"""What cuts a text: method to its arguments. Every character of the answer is the text's own."""


@pytest.mark.parametrize("method", CUTS)
@given(data=st.data())
def test_a_cut_keeps_every_characters_place(method: str, data: st.DataObject) -> None:
    text = data.draw(SHORT)
    arguments = data.draw(st.one_of(*CUTS[method]))
    expected, found = getattr(text, method)(*arguments), getattr(numbered(text), method)(*arguments)
    if isinstance(expected, str):
        expected, found = [expected], [found]
    expected, found = list(expected), list(found)
    assert found == expected
    cut = [place for part in found for place in places(part)]
    assert "".join(text[place] for place in cut) == "".join(expected)
    backwards = method == "__getitem__" and (arguments[0].step or 1) < 0
    assert cut == sorted(set(cut), reverse=backwards), "no character twice, and in order"


@given(SHORT, SHORT, st.integers(-1, 3))
def test_joins(left: str, right: str, times: int) -> None:
    one, other = numbered(left), Traced(right, TEMPLATE)
    for made, text, origins in (
        (one + other, left + right, [*range(len(left)), *[TEMPLATE] * len(right)]),
        (right + one, right + left, [*[LOST] * len(right), *range(len(left))]),
        (one * times, left * times, [*range(len(left))] * times),
        (times * one, left * times, [*range(len(left))] * times),
        (
            other.join([one, one]),
            right.join([left, left]),
            [*range(len(left)), *[TEMPLATE] * len(right), *range(len(left))],
        ),
    ):
        assert (made, places(made)) == (text, origins)


@given(SHORT, SOME | st.just(""), SHORT, st.integers(-1, 2))
def test_replacing(text: str, old: str, new: str, count: int) -> None:
    made = numbered(text).replace(old, Traced(new, TEMPLATE), count)
    assert made == text.replace(old, new, count)
    for place, (one, origin) in enumerate(zip(made, places(made), strict=True)):
        assert origin in (TEMPLATE, LOST) or text[origin] == one, place
        assert origin != LOST or not old


WHOLE = {
    "capitalize": (),
    "casefold": (),
    "center": (9,),
    "expandtabs": (3,),
    "ljust": (9,),
    "lower": (),
    "rjust": (9,),
    "swapcase": (),
    "title": (),
    "translate": ({97: Traced("xyz", 7)},),
    "upper": (),
    "zfill": (9,),
    "__mod__": ((),),
    "format": (),
}


@pytest.mark.parametrize("method", WHOLE)
@given(text=st.text("abßİ<\n", min_size=1, max_size=5))
def test_what_makes_other_characters_keeps_a_single_origin(method: str, text: str) -> None:
    """And of several origins none, where it can't be told which is whose: never the template's."""
    expected = getattr(text, method)(*WHOLE[method])
    made = getattr(Traced(text, 7), method)(*WHOLE[method])
    assert (made, set(places(made))) == (expected, {7})
    mixed = getattr(Traced("a", TEMPLATE) + Traced(text, 7), method)(*WHOLE[method])
    assert mixed == getattr("a" + text, method)(*WHOLE[method])
    assert set(places(mixed)) == {LOST} or places(mixed) == [TEMPLATE, *[7] * len(text)]


def test_every_method_that_makes_text_is_followed() -> None:
    """A string method that is not among Traced's own would answer a plain string, which is nobody's."""
    own = {name for name in vars(str) if not name.startswith("__") and isinstance(_result(name), (str, list, tuple))}
    assert own <= set(vars(Traced))


def _result(name: str) -> Any:
    for arguments in ((), ("a",), (1,), ("a", "b"), ({},)):
        try:
            return getattr("text", name)(*arguments)
        except (TypeError, ValueError):
            continue
    return None


def test_formatting_with_others_text_is_told_from_nobody() -> None:
    made = Traced("<%s>", TEMPLATE) % Traced("x", 3)
    assert (made, set(places(made))) == ("<x>", {LOST})
    assert places("a" + Traced("b", 1)) == [LOST, 1]


def test_it_is_its_text() -> None:
    made = Traced("role", 4)
    assert {"role": 1}[made] == 1
    assert made == "role"
    assert hash(made) == hash("role")
    assert str(made) is made
    assert Traced("", 4)._runs == ()
    assert places(made[1]) == [4]
    with pytest.raises(TypeError):
        made + 1
    with pytest.raises(IndexError):
        made[9]
