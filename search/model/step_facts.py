"""Collects what a search wants to know of a training step: which values have gradients, how often parameters are
there."""

from __future__ import annotations

import math
from typing import Any, cast

from mspc.ir.graph import OFFLOAD, Constant, Node, Parameter, Value, element_types, operand_types
from mspc.ops.control.borders import MARKS, Back
from mspc.ops.control.structural import MakeTuple, StopGradient, TupleGetItem
from mspc.ops.op import NotDifferentiable
from mspc.passes.lib.choices import ShardingChoice
from mspc.passes.lib.layout_search import Search
from mspc.passes.lib.placement import is_master


def touched(node: Node, choice: ShardingChoice) -> float:
    """Bytes of a rank's slices of what an operator reads and writes; none where nothing has to run, as at the borders
    of loops."""
    if node.op.is_view or isinstance(node.op, MARKS):
        return 0.0
    types = (*operand_types(node), *element_types(node.type))
    layouts = (*choice.inputs, *choice.outputs)
    return sum(type.nbytes / math.prod(layout.strategy) for type, layout in zip(types, layouts, strict=True))


def copies(search: Search) -> dict[Value, int]:
    """How many tensors of its size a trained parameter brings: itself, its gradient, and states of the optimizer that
    live on the device."""
    found: dict[Value, int] = {}
    for node in search.graph.nodes:
        changed = [node.inputs[i] for i in node.op.mutates] if node.phase == "update" else []
        for value in changed[:1]:
            found[value] = 1 + sum(other.type == value.type and OFFLOAD not in other.attrs for other in changed)
    return found


def graded(search: Search) -> set[Value]:
    """The values that have a gradient: parameters that are trained, and what is computed from them, in an earlier turn
    of a loop, too."""
    found: set[Value] = {p for p in search.graph.parameters if is_master(p) and p.trainable}
    count = -1
    while count != len(found):
        count = len(found)
        for node in search.graph.nodes:
            without = isinstance(cast(Any, node.op).bprop, NotDifferentiable)
            passing = isinstance(node.op, (TupleGetItem, MakeTuple, *MARKS))
            stopped = isinstance(node.op, StopGradient) or (without and not passing)
            if node.phase == "forward" and not stopped and any(value in found for value in node.inputs):
                found.add(node)
            if isinstance(node.op, Back) and node in found and isinstance(node.inputs[0], Node):
                found.add(node.inputs[0])
        if not search.is_open:
            break
    return found


def is_state(value: Value) -> bool:
    """Whether a value is a parameter or a constant, which lies where it is wanted."""
    return isinstance(value, Constant) or (isinstance(value, Parameter) and value.kind != "input")
