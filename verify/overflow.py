"""Pretends an overflow where a network looks for one: one number of one tensor, so that one rank may see it alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.optim.optimizer import AllFinite

Array = Any


@dataclass(frozen=True)
class Poke:
    """An infinity in the last element of an operand of the operator that carries `number` under `mark`.

    layout: that operand's on the ranks; None where each has its own. shape: of the global operand.
    """

    mark: str
    number: int
    operand: int
    shape: tuple[int, ...]
    layout: Layout | None

    def on_one_device(self, node: Node, operands: list[Array]) -> list[Array]:
        """The operands as one device reads them."""
        return self._at(operands) if node.attrs.get(self.mark) == self.number else operands

    def on_rank(self, rank: int, graphs: Sequence[Graph]) -> Callable[[Node, list[Array]], list[Array]]:
        """The same for the slices of a rank. graphs: of all ranks. Of several stages those have the infinity that
        compute the operand, and they send it to others."""
        if self.layout is not None:
            slices = self.layout.slices_for(rank, self.shape)
            if any(s.stop != n for s, n in zip(slices, self.shape, strict=True)):
                return lambda _, operands: operands
        operands = [self._operand_of(graph) for graph in graphs]
        sent = {
            (op.sr_tag, op.distance) for target, op in enumerate(operands)
            if isinstance(op, ReceiveFromStage) and target - op.distance == rank
        }  # fmt: skip
        computes = not isinstance(operands[rank], ReceiveFromStage)

        def poked(node: Node, given: list[Array]) -> list[Array]:
            if isinstance(node.op, SendToStage) and (node.op.sr_tag, node.op.distance) in sent:
                return [_with_infinity(given[0])]
            return self.on_one_device(node, given) if computes else given

        return poked

    def _operand_of(self, graph: Graph) -> object:
        """The operator that makes the operand in a rank's graph, None where that does not look for an overflow."""
        looking = next((node for node in graph.nodes if node.attrs.get(self.mark) == self.number), None)
        value = None if looking is None else looking.inputs[self.operand]
        return value.op if isinstance(value, Node) else None

    def _at(self, operands: list[Array]) -> list[Array]:
        changed = list(operands)
        changed[self.operand] = _with_infinity(changed[self.operand])
        return changed


def _with_infinity(array: Array) -> Array:
    changed = np.array(array)
    if changed.size:
        changed.reshape(-1)[-1] = np.inf
    return changed


def pokes(graph: Graph, mark: str) -> list[Poke]:
    """Where to pretend an overflow in the graph of all ranks: in the first operand, the last, and that of which a rank
    holds the least part, of every operator that looks for one."""
    found: list[Poke] = []
    for node in graph.nodes:
        if not isinstance(node.op, AllFinite) or mark not in node.attrs:
            continue
        layouts = [v.layout if isinstance(v.layout, Layout) else None for v in node.inputs]
        most_sharded = max(range(len(layouts)), key=lambda i: _parts(layouts[i]))
        for index in sorted({0, most_sharded, len(layouts) - 1}):
            shape = element_types(node.inputs[index].type)[0].shape
            found.append(Poke(mark, node.attrs[mark], index, shape, layouts[index]))
    return found


def _parts(layout: Layout | None) -> int:
    return 1 if layout is None else math.prod(layout.strategy)
