"""Pretends an overflow where a network looks for one: one number of one tensor, so that one rank may see it alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.optim.all_finite import AllFinite

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
        return self._at(node, operands) if node.attrs.get(self.mark) == self.number else operands

    def on_rank(self, rank: int) -> Callable[[Node, list[Array]], list[Array]]:
        """The same for the slices of a rank."""
        if self.layout is None:
            return self.on_one_device
        slices = self.layout.slices_for(rank, self.shape)
        holds = all(s.stop == n for s, n in zip(slices, self.shape, strict=True))
        return self.on_one_device if holds else lambda _, operands: operands

    def _at(self, node: Node, operands: list[Array]) -> list[Array]:
        changed = list(operands)
        array = np.array(changed[self.operand])
        if array.size:
            array.reshape(-1)[-1] = np.inf
        changed[self.operand] = array
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
