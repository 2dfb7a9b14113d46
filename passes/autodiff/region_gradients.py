"""Differentiates nodes that run regions: each gets regions that also return what its gradient reads, and a node of its
own that runs their gradients.

`branch_gradients.py` and `loop_gradients.py` say how. Nodes that run the same graph, and whose gradients are wanted in
the same way, run the same graphs behind it, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Node, Value
from mspc.ir.types import TupleType
from mspc.ops.control.loops import Loop
from mspc.ops.control.regions import RegionOp, emit_regions, overwritten_parameters, with_effects
from mspc.ops.control.structural import CALL, TupleGetItem
from mspc.ops.tensor.broadcast import filled
from mspc.ops.tensor.cast import Cast
from mspc.passes.autodiff.branch_gradients import gradient_of_branches
from mspc.passes.autodiff.loop_gradients import gradient_of_loop
from mspc.passes.autodiff.region_plans import RegionGradient, Request
from mspc.passes.autodiff.stacks import zeros_like


class RegionGradients:
    """Emits the gradients of nodes that run regions, and remembers what it has made of which graph."""

    def __init__(self) -> None:
        self._known: dict[Request, RegionGradient | None] = {}

    def __call__(
        self, b: Builder, node: Node, douts: Sequence[Value | None], needed: set[Value]
    ) -> Sequence[Value | None]:
        """The gradients of the operands, as `reverse_mode.Differentiate`.

        Raises:
            MspcError: a gradient with respect to what a region overwrites is wanted.
        """
        op = node.op
        assert isinstance(op, RegionOp)
        body = len(node.regions) - 1  # what has no place in it decides about branches and turns alone
        wanted = tuple(i for i, value in enumerate(node.inputs) if value in needed and op.inside(body, i) is not None)
        for number in set(wanted) & set(op.mutates):
            _refuse(node, number)
        given = tuple(k for k, dout in enumerate(douts) if dout is not None)
        request = Request(op, node.regions, wanted, given)
        if request not in self._known:
            make = gradient_of_loop if isinstance(op, Loop) else gradient_of_branches
            self._known[request] = make(request, self)
        made = self._known[request]
        return [None] * len(node.inputs) if made is None else _emitted(b, node, douts, made)


def _refuse(node: Node, number: int) -> None:
    value = node.inputs[number]
    name = value.name or f"operand {number}"
    raise node.error(
        f"{node.label}: a gradient with respect to {name} is asked for, which the node overwrites",
        notes=[f"{_writer(node, number)} overwrites it; carry the value from turn to turn in a variable instead"],
        kind=ValueError,
    )


def _writer(node: Node, number: int) -> str:
    """The operator inside of the node's regions that overwrites an operand, with its line."""
    op = node.op
    assert isinstance(op, RegionOp)
    for place, region in enumerate(node.regions):
        inside = op.inside(place, number)
        if inside is None or inside not in set(overwritten_parameters(region)):
            continue
        for inner in region.nodes:
            for index in inner.op.mutates:
                if inner.inputs[index] is region.parameters[inside]:
                    if inner.regions:
                        return _writer(inner, index)
                    line = f" in {inner.frames[0].file}:{inner.frames[0].line}" if inner.frames else ""
                    return f"{inner.label}{line}"
    raise AssertionError(f"nothing overwrites operand {number} of {node.label}")


def _emitted(b: Builder, node: Node, douts: Sequence[Value | None], made: RegionGradient) -> list[Value | None]:
    """Give the node its regions, and emit the backward one."""
    node.regions = made.regions
    op = with_effects(made.op, node.inputs, made.regions)
    node.op = op  # type: ignore[assignment]  # fields, see RegionOp
    node.type = op.results_of(made.regions, [value.type for value in node.inputs])
    node.attrs["saved"] = made.note
    operands: list[Value] = []
    for kind, number in made.sources:
        if kind == "gradient":
            dout = douts[number]
            assert dout is not None
            operands.append(dout)
        elif kind == "result":
            operands.append(b.emit(TupleGetItem(number), node))
        elif kind == "operand":
            operands.append(node.inputs[number])
        elif kind == "wide zeros":
            value = node.inputs[number]
            total = made.backward_regions[-1].parameters[made.backward.inside(0, len(operands)) or 0].tensor_type
            operands.append(filled(b, 0.0, total) if total != value.type else zeros_like(b, value))
        else:
            assert isinstance(node.type, TupleType)
            operands.append(filled(b, 0.0, node.type.elements[number]))
    backward = emit_regions(b, made.backward, operands, made.backward_regions)
    if CALL in node.attrs:
        backward.attrs[CALL] = node.attrs[CALL]
    found: list[Value | None] = [None] * len(node.inputs)
    for operand, result in made.grads.items():
        grad: Value = b.emit(TupleGetItem(result), backward)
        value = node.inputs[operand]
        found[operand] = grad if grad.type == value.type else b.emit(Cast(value.tensor_type.dtype), grad)
    return found
