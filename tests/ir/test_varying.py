"""Stand-ins answer as a value would, and ranks of one kind are those that would answer the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import Constant
from mspc.ir.varying import Looks, Slot, Varying, VaryingConstant, ascending, constant_bytes

HERE, THERE = Slot(0, 0, "rank_list"), Slot(1, 0, "rank_list")


def held(looks: Looks, here: Any, there: Any = None) -> bool:
    values = {HERE: here, THERE: there, Slot(0, 0, "rank_list", ascending=True): here and tuple(sorted(here))}
    return looks.hold_for(lambda slot: values[slot])


def test_what_nobody_asks_may_differ() -> None:
    looks = Looks()
    group = Varying(HERE, (0, 1), looks)
    assert isinstance(group, tuple)
    assert not isinstance(group, list)
    looks.close()
    assert held(looks, (7, 8, 9))


@pytest.mark.parametrize(
    ("ask", "same", "other"),
    [
        (len, (4, 5), (4, 5, 6)),
        (bool, (4, 5), ()),
        (tuple, (0, 1), (0, 2)),
        (lambda group: group[0], (0, 1), (1, 0)),
        (lambda group: group == (0, 1), (0, 1), (4, 5)),
        (lambda group: (0, 1) == group, (0, 1), (4, 5)),
        (lambda group: group != (2, 3), (4, 5), (2, 3)),
        (lambda group: 1 in group, (0, 1), (0, 2)),
        (lambda group: f"{group}", (0, 1), (0, 2)),
        (lambda group: ascending(group) == (0, 1), (1, 0), (1, 2)),
        (lambda group: max(group), (0, 1), (0, 2)),
        (lambda group: tuple(group), (0, 1), (False, True)),
    ],
)
def test_a_question_holds_for_ranks_that_answer_the_same(ask: Any, same: Any, other: Any) -> None:
    looks = Looks()
    answer = ask(Varying(HERE, (0, 1), looks))
    assert answer == ask((0, 1))
    looks.close()
    assert held(looks, (0, 1))
    assert held(looks, same)
    assert not held(looks, other)


def test_two_values_are_alike_or_not() -> None:
    for here, there in (((0, 1), (0, 1)), ((0, 1), (0, 2))):
        looks = Looks()
        alike = Varying(HERE, here, looks) == Varying(THERE, there, looks)
        assert alike == (here == there)
        looks.close()
        assert held(looks, (6, 7), (6, 7)) == alike
        assert held(looks, (6, 7), (6, 8)) != alike


def test_equal_hashes_would_be_an_answer() -> None:
    with pytest.raises(TypeError, match="cannot be hashed"):
        hash(Varying(HERE, (0, 1), Looks()))


def test_nobody_asks_when_the_questions_are_closed() -> None:
    looks = Looks()
    group = Varying(HERE, (0, 1), looks)
    looks.close()
    with pytest.raises(AssertionError, match="told apart already"):
        tuple(group)


def test_constants_are_compared_by_their_bytes() -> None:
    looks = Looks()
    one, two = Constant(np.array([1, 2])), Constant(np.array([1, 3]))
    stand_in = VaryingConstant(HERE, one, looks)
    assert stand_in.type == one.type
    assert stand_in.same_as(one)
    assert not stand_in.same_as(two)
    looks.close()
    assert held(looks, constant_bytes(one))
    assert not held(looks, constant_bytes(two))
