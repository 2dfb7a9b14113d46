"""Tries whether a wrong value would be right had a sum that it reads been taken over other ranks."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mspc.ir.graph import Node, Value
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.odd_ranks import ranks_in_words
from mspc.verify.scale.relations import added, ranks_along

Array = Any
LAST = 8
"""So many sums are remembered."""


class OtherRanks:
    """The last sums that were taken, with what was added up."""

    def __init__(self) -> None:
        self._sums: OrderedDict[Node, Sequence[Array]] = OrderedDict()

    def note(self, node: Node, operands: Sequence[Array]) -> None:
        """Remember what a sum is taken of."""
        self._sums[node] = operands
        while len(self._sums) > LAST:
            self._sums.popitem(last=False)

    def hint(
        self, node: Node, kind: RankKind, operands: Sequence[Array], is_right: Callable[[list[Array]], bool]
    ) -> str:
        """What sum would have to be taken over which ranks, "" where there is none. operands: of a wrong node.
        is_right: whether its value is with other ones."""
        for place, value in enumerate(node.inputs):
            source, number = _sum_of(value)
            if source is None or source not in self._sums:
                continue
            read = self._sums[source][number]
            for axes in _all_axes(kind):
                given = [*operands]
                given[place] = added(read, kind, axes)
                if is_right(given):
                    over = ranks_in_words(ranks_along(kind, axes))
                    return f"it would be right were {source.label} over {over}, and groups alike"
        return ""


def _sum_of(value: Value) -> tuple[Node | None, int]:
    """The sum that a value is a result of, and which."""
    number = 0
    if isinstance(value, Node) and isinstance(value.op, TupleGetItem):
        value, number = value.inputs[0], value.op.index
    return (value, number) if isinstance(value, Node) and isinstance(value.op, AllReduce) else (None, 0)


def _all_axes(kind: RankKind) -> Iterator[tuple[int, ...]]:
    wide = [axis for axis, n in enumerate(kind.mesh) if n > 1]
    for count in range(1, len(wide) + 1):
        yield from itertools.combinations(wide, count)
