"""Stand-ins answer as a value would, and ranks of one kind are those that would answer the same."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import Constant
from mspc.ir.varying import Looks, RankField, Varying, VaryingConstant, ascending, constant_bytes

HERE, THERE = RankField(0, 0, "rank_list"), RankField(1, 0, "rank_list")


def held(looks: Looks, here: Any, there: Any = None) -> bool:
    values = {HERE: here, THERE: there, RankField(0, 0, "rank_list", ascending=True): here and tuple(sorted(here))}
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
        (lambda group: operator.add(group, (2,)), (0, 1), (1, 0)),
        (lambda group: operator.add((2,), group), (0, 1), (1, 0)),
        (lambda group: group * 2, (0, 1), (1, 0)),
        (lambda group: group < (0, 2), (0, 1), (0, 0)),
        (lambda group: group.index(1), (0, 1), (1, 0)),
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


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: n + 2, lambda n: 2 + n, lambda n: n - 2, lambda n: 2 - n, lambda n: n * 2, lambda n: 2 * n,
        lambda n: n / 2, lambda n: 2 / n, lambda n: n // 2, lambda n: 9 // n, lambda n: n % 2, lambda n: 9 % n,
        lambda n: divmod(n, 2), lambda n: divmod(9, n), lambda n: n**2, lambda n: 2**n, lambda n: n < 3,
        lambda n: n <= 3, lambda n: n > 3, lambda n: n >= 3, lambda n: 3 < n, lambda n: -n, lambda n: +n, abs, int,
        float, range, lambda n: n + n, lambda n: max(n, 8), lambda n: slice(n, None).indices(9), lambda n: bool(n),
        lambda n: np.arange(n).tolist(), lambda n: n.bit_length(),
    ],
)  # fmt: skip
def test_what_is_computed_with_a_number_holds_for_ranks_that_have_it(compute: Any) -> None:
    looks = Looks()
    found, wanted = compute(Varying(HERE, 7, looks)), compute(7)
    assert found == wanted
    assert type(found) is type(wanted)
    looks.close()
    assert looks.hold_for(lambda _: 7)
    assert not looks.hold_for(lambda _: 8)


def test_python_s_own_hooks_are_no_question() -> None:
    looks = Looks()
    assert not hasattr(Varying(HERE, (0, 1), looks), "__array__")
    looks.close()
    assert held(looks, (7, 8))


def test_nobody_asks_when_the_questions_are_closed() -> None:
    looks = Looks()
    group = Varying(HERE, (0, 1), looks)
    looks.close()
    with pytest.raises(AssertionError, match="after ranks were distinguished"):
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
