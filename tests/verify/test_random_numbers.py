"""Random numbers are checked by themselves: what is right passes, and every property is seen to fail."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.types import FLOAT32, TensorType, dtype_of
from mspc.ops.op import REGISTRY, Op, load_operators
from mspc.ops.random.dropout import Dropout
from mspc.verify.random_numbers import wrong_random_numbers


def rows_of(op: Op, shapes: Any, dtypes: Any = ()) -> list[str]:
    """The names of what is wrong with the numbers of an operator."""
    kinds = dtypes or ("Float32",) * len(shapes)
    inputs: list[Value] = [
        Parameter(f"x{i}", TensorType(dtype_of(kind), shape), "input")
        for i, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
    ]
    if op.name == "DropoutGenMask":
        inputs = [Constant(np.float32(0.6), FLOAT32)]
    graph = Graph("draws")
    graph.nodes = [Node(op, inputs, TensorType(FLOAT32, ()), "", "")]
    return [row.name for row in wrong_random_numbers(graph)]


def test_right_numbers_pass() -> None:
    load_operators()
    count = 0
    for name in REGISTRY:
        for each in REGISTRY[name].samples:
            with contextlib.suppress(TypeError):
                op = REGISTRY[name](**each.fields)
                count += op.draws
                assert not op.draws or rows_of(op, each.shapes, each.dtypes) == [], name
    assert count > 15


@pytest.mark.parametrize("size", [64, 4096])
def test_every_property_fails_if_it_is_broken(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    right = Dropout.run

    def without(**fixed: Any) -> Any:
        def run(self: Dropout, be: Any, *inputs: Any) -> Any:
            for name, value in fixed.items():
                setattr(be, name, value)
            return right(self, be, *inputs)

        return run

    def kept_more(self: Dropout, be: Any, *inputs: Any) -> Any:
        mask = right(self, be, *inputs)[1]
        mask = mask | right(self, be.__class__(be.comm, step=be.step + 1000, turns=be.turns), *inputs)[1]
        return inputs[0] * mask / np.float32(self.keep_prob), mask

    def unscaled(self: Dropout, be: Any, *inputs: Any) -> Any:
        return inputs[0] * right(self, be, *inputs)[1], right(self, be, *inputs)[1]

    for run, said in (
        (without(step=1), "equal for every step"), (without(turns=()), "equal for every iteration"),
        (without(calls=()), "equal for every call"), (kept_more, "the part that is kept"),
        (unscaled, "the scale of what is kept"),
    ):  # fmt: skip
        monkeypatch.setattr(Dropout, "run", run)
        found = rows_of(Dropout(0.5, 3), [(size,)])
        assert any(said in name for name in found), (said, found)
