"""Operators as lines that a compiled loop can have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.types import TensorType
from mspc.ops.fused.body import BodyLine, along_rows, by_element, closes
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.op import Op


class Form(NamedTuple):
    """An operator as lines: `returns` are its results, `numbers` are operands behind its own."""

    steps: Sequence[BodyLine]
    returns: Sequence[int]
    numbers: Sequence[Any] = ()


def form_of_op(op: Op, types: Sequence[TensorType]) -> Form | None:
    """The operator on operands of these types as lines; None where it is none."""
    if isinstance(op, FusedElementwise):
        return Form(steps_of(op), op.returns)
    if op.mutates:
        return None
    if by_element(op) or along_rows(op) or closes(op):
        return Form([BodyLine(op, tuple(("x", i) for i in range(len(types))))], [0])
    return _emitted(op, types)


def _emitted(op: Op, types: Sequence[TensorType]) -> Form | None:
    """What an operator emits of itself as other operators."""
    graph = Graph("lines")
    inputs = [Parameter(f"x{i}", type, "input") for i, type in enumerate(types)]
    builder = Builder(graph)
    made = op.as_lines(builder, *inputs)
    if made is None and type(op).as_rows is not Op.as_rows:
        made = op.as_rows(builder, *inputs)
    if made is None:
        return None
    places: dict[Value, tuple[str, int]] = {value: ("x", i) for i, value in enumerate(inputs)}
    numbers: list[Any] = []
    steps: list[BodyLine] = []
    for node in graph.nodes:
        for value in node.inputs:
            if isinstance(value, Constant) and value not in places:
                places[value] = ("x", len(inputs) + len(numbers))
                numbers.append(np.asarray(value.value, value.tensor_type.dtype.numpy))
        steps.append(BodyLine(cast(Op, node.op), tuple(places[value] for value in node.inputs)))
        places[node] = ("t", len(steps) - 1)
    if not all(isinstance(value, Node) for value in made):
        return None
    return Form(steps, [places[value][1] for value in made], numbers)
