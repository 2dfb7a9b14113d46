"""Functions chosen by the kinds of their arguments, and mapped over tuples; called by a script here."""

from __future__ import annotations

import pytest

from mspc import Tensor, ops


def chooser():
    add = ops.MultitypeFuncGraph("add")
    add.register("Tensor", "Tensor")(lambda x, y: ("tensors", x + y))
    add.register("Number", "Number")(lambda x, y: ("numbers", x + y))
    add.register("Int", "Int")(lambda x, y: ("integers", x + y))
    add.register("Tuple", "None")(lambda x, y: ("tuple", x))
    return add


def test_the_last_function_that_fits_is_chosen():
    add = chooser()
    assert add(1, 2) == ("integers", 3)
    assert add(1, 2.5) == ("numbers", 3.5)
    assert add((1,), None) == ("tuple", (1,))
    assert add(Tensor(1.0), Tensor(2.0))[0] == "tensors"


def test_what_nobody_takes_is_refused():
    with pytest.raises(TypeError, match=r"MultitypeFuncGraph 'add' has no function for \(Tensor, str\)") as caught:
        chooser()(Tensor(1.0), "x")
    assert caught.value.notes == ("registered are Tensor, Tensor; Number, Number; Int, Int; Tuple, None",)
    with pytest.raises(TypeError, match="MultitypeFuncGraph 'add': there is no kind 'Tensors'"):
        ops.MultitypeFuncGraph("add").register("Tensors")


def test_maps_keep_the_structure():
    assert ops.HyperMap()(lambda x, y: x + y, (1, (2, 3)), [10, [20, 30]]) == (11, (22, 33))
    seen: list[int] = []
    assert ops.HyperMap(lambda x: seen.append(x) or -x, reverse=True)((1, (2, 3))) == (-1, (-2, -3))
    assert seen == [3, 2, 1]
    assert ops.Map(ops.partial(max, 2))((1, 3)) == (2, 3)
