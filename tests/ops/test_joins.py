"""The claim of `Op.joins`: an operator's results over groups of operands, joined, are its result over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mspc.compiler.frontend.layers import JOINED
from mspc.ops.math.arithmetic import Sub
from mspc.ops.op import REGISTRY, Op, load_operators
from tests.ops.backend import BACKEND

load_operators()
NAMES = sorted(name for name, cls in REGISTRY.items() if cls.joins in JOINED)


def over(op: Op, operands: Sequence[Any]) -> Any:
    """The result over any number of operands: of an operator with two, over one behind the other."""
    if op.operandwise or op.name == "AddN":
        return op.kernel(BACKEND)(*operands)
    found = operands[0]
    for operand in operands[1:]:
        found = op.kernel(BACKEND)(found, operand)
    return found


def operands_of(op: Op) -> list[Any]:
    generator = np.random.default_rng(7)
    if op.joins in ("all", "any") and not op.operandwise:
        return list(generator.integers(0, 2, (5, 4)) > 0)
    found = list(generator.integers(-3, 4, (5, 4)).astype(np.float32))
    if op.operandwise:
        found[3][1] = np.inf
    return found


@pytest.mark.parametrize("name", NAMES)
def test_results_over_groups_give_that_over_all(name: str) -> None:
    op = REGISTRY[name]()
    operands = operands_of(op)
    groups = [[operands[0], operands[3]], [operands[4]], [operands[2], operands[1]]]
    parts = np.stack([over(op, group) for group in groups])
    join, reduce = JOINED[op.joins]
    wanted = over(op, operands)
    np.testing.assert_array_equal(reduce(axis=(0,)).kernel(BACKEND)(parts), wanted)
    np.testing.assert_array_equal(over(join(), list(parts)), wanted)
    if not op.operandwise:
        np.testing.assert_array_equal(over(op, operands[:1]), operands[0])


def test_usual_operators_join() -> None:
    assert {"Add", "AddN", "Mul", "Maximum", "Minimum", "LogicalAnd", "LogicalOr", "AllFinite"} <= set(NAMES)
    assert not Sub.joins
