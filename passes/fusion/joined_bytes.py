"""Weighs whether products of one operand are to be one, by bytes: what it saves, and what has to be copied for it.

A product takes a time that does not depend on its size, in which it fills the multiprocessors and empties them again:
so much is saved for every product less. Products for the gradient of the operand need not be written one by one, to be
added up. On the other side, parts of a joined result that no fused kernel reads are copied, and so are gradients that
no fused kernel makes; where a kernel makes several gradients of the same operands, it would read these for every one.
Gradients of weights are copied, too: updates and collectives read them one by one.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import product as choices
from typing import Any, cast

from mspc.ir.graph import Constant, Node, Parameter, Value
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import along_rows, by_element, closes, divides, moves_elements
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.nn.activation import GeLU, GeLUGrad
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.passes.fusion.alike_products import AlikeGradients, AlikeProducts, ProductGraph, adds_bias
from mspc.passes.fusion.attention_parts import Attention
from mspc.passes.fusion.groups import MOST_LINES

START = 15 << 20
"""Bytes that could be moved while a product fills and empties a GPU: 5e-6 s of an H100. Of 8192 rows of 1024 BFloat16
the products with 1024, 256 and 256 columns take 30, 12.5 and 12 us, and the one with 1536 columns 42."""
HELD = 3
"""Bytes moved that one held for longer is worth."""
PACK = 16
"""Bytes at whose multiples the parts of a row should begin."""


@dataclass(frozen=True)
class Joins:
    """Which products are to be one: forward, those for the gradient of the operand, those for the weights'."""

    forward: bool = False
    inputs: bool = False
    weights: bool = False


def best(
    graph: ProductGraph, group: AlikeProducts, gradients: AlikeGradients | None, may: Joins
) -> tuple[Joins, float]:
    """What saves most of what may be joined, and how many bytes."""
    fewer = len(group.products) - 1
    forward = fewer * START - _copied_parts(graph, group) if may.forward else 0.0
    again = _gradient_bytes(graph, group, gradients) if gradients is not None else 0.0
    x = fewer * (START + 2 * group.x.type.nbytes)
    own = sum(2 * value.type.nbytes for value in gradients.bases) if gradients is not None else 0
    apart = sum(2 * node.type.nbytes for node in gradients.weights) if gradients is not None else 0
    joined, single = _weight_bytes(graph, group)
    alone = graph.is_read_alone(group)
    found, most = Joins(), 0.0
    for of in choices((False, True), repeat=3):
        joins = Joins(*of)
        if joins.forward > may.forward or joins.inputs > may.inputs or joins.weights > may.weights:
            continue
        saved = joins.forward * forward + joins.inputs * x + joins.weights * (fewer * START - apart)
        if joins.inputs or joins.weights:
            saved -= again
            if gradients is not None and (not joins.inputs, not joins.weights) != (
                not gradients.inputs, not gradients.weights,
            ):  # fmt: skip
                saved -= own  # read one by one as well
        if joins.forward or joins.inputs:
            saved -= joined
            if not joins.forward or alone or (gradients is not None and bool(gradients.inputs) and not joins.inputs):
                saved -= single
        if saved > most:
            found, most = joins, saved
    return found, most


def free_parts(graph: ProductGraph, group: AlikeProducts) -> list[int]:
    """The products whose parts of a joined result need not be copied."""
    return [i for i in range(len(group.products)) if _aligned(group) and _is_taken_in(graph, _part(group, i))]


def _part(group: AlikeProducts, index: int) -> Node:
    return group.adds[index] if group.adds else group.products[index]


def _copied_parts(graph: ProductGraph, group: AlikeProducts) -> float:
    """What the parts of the result cost: copies, and what is held for another part that the gradients read."""
    parts = [_part(group, i) for i in range(len(group.products))]
    whole = group.attention or _aligned(group)
    cost = sum(2 * v.type.nbytes for v in parts if not whole or not _is_taken_in(graph, v, group.attention))
    late = [any(user.phase != "forward" for user in _readers(graph, v)) for v in parts]
    if any(late) and parts[0].phase == "forward":
        cost += sum(HELD * v.type.nbytes for v, needed in zip(parts, late, strict=True) if not needed)
    return cost


def _aligned(group: AlikeProducts) -> bool:
    size = group.products[0].tensor_type.dtype.itemsize
    return all(columns * size % PACK == 0 for columns in group.columns)


def _readers(graph: ProductGraph, value: Value) -> list[Node]:
    """The readers of a value through reshapes."""
    found: list[Node] = []
    waiting = [value]
    while waiting:
        for reader, _ in graph.users.get(waiting.pop(), ()):
            (waiting if isinstance(reader.op, Reshape) else found).append(reader)
    return found


@iterative
def _is_taken_in(graph: ProductGraph, value: Value, attention: bool = False) -> Generator[Any, bool, bool]:
    """Whether all that reads a value can read it as a part of a larger one: kernels that compute element by element or
    along rows, or move elements, and an attention whose three operands are parts. What a product would do with its
    result itself is a kernel of its own then."""
    readers = _readers(graph, value)
    if value in graph.results or not readers:
        return False
    for reader in readers:
        if len(readers) == 1 and isinstance(reader.op, GeLU | GeLUGrad | Add | AddN) and reader.type == value.type:
            return False
        if adds_bias(reader) and not (yield graph, reader):
            return False
        if not _fits_kernels(reader) and not (attention and isinstance(reader.op, Attention)):
            return False
    return True


def _fits_kernels(node: Node) -> bool:
    op = node.op
    return by_element(op) or moves_elements(op) or along_rows(op) or closes(op) or divides(op)


def _gradient_bytes(graph: ProductGraph, group: AlikeProducts, gradients: AlikeGradients) -> float:
    """What joining the gradients costs."""
    if group.attention and not gradients.others:
        return 0
    cost = 0.0
    shared: list[set[Value]] = []
    for base in gradients.bases:
        read = _sources(base) if base not in gradients.others and _aligned(group) else None
        if read is None:
            cost += 2 * base.type.nbytes
        else:
            shared.append(read)
    whole = set[Value]().union(*shared)
    return cost + sum(v.type.nbytes for read in shared for v in read) - sum(v.type.nbytes for v in whole)


def _sources(value: Value) -> set[Value] | None:
    """What a kernel that makes the value element by element reads; None where no such kernel does, or one along
    rows."""
    found: set[Value] = set()
    waiting, seen = [value], set[Value]()
    while waiting:
        at = waiting.pop()
        if at in seen or isinstance(at, Constant):
            continue
        seen.add(at)
        inside = isinstance(at, Node) and (by_element(at.op) or moves_elements(at.op) or isinstance(at.op, Reshape))
        if isinstance(at, Node) and (closes(at.op) or along_rows(at.op)) and at.phase != "forward":
            return None
        if isinstance(at, Node) and isinstance(at.op, TupleGetItem):
            of = at.inputs[0]
            if isinstance(of, Node) and divides(of.op):
                waiting += of.inputs
                continue
        if not inside or len(seen) > MOST_LINES:
            found.add(at)
        else:
            waiting += cast(Node, at).inputs
    return None if value in found else found


def _weight_bytes(graph: ProductGraph, group: AlikeProducts) -> tuple[int, int]:
    """What it costs to join the weights at every step, and what to make them one by one beside that.

    Updates keep joined parameters and their halves up to date at the price of writing them; copies in another type than
    the parameter's are there in any case.
    """
    joined = single = 0
    for value in group.weights:
        size = value.type.nbytes
        source = value.inputs[0] if isinstance(value, Node) and isinstance(value.op, Cast) else value
        kept = isinstance(source, Parameter) and source in graph.changed
        if source is not value:
            joined += 0 if kept else 2 * size
            single += source.type.nbytes + size
        else:
            joined += HELD * size if kept else 2 * size
    return joined, single

