"""Placement of results of a loop's body in the memory of the values that they replace, so that an iteration copies
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import TensorType
from mspc.ops.op import Op
from mspc.runtime.memory import read_elsewhere, works_on
from mspc.runtime.memory_classes import Part


class CarriedResults:
    """Places of carried results.

    Args:
        carried: for a body's parameters the results that are their values in the next iteration. parts: for every value
        the memory that it aliases.
    """

    def __init__(
        self, graph: Graph, carried: Mapping[Parameter, Value], parts: Mapping[Value, tuple[Part, ...]]
    ) -> None:  # fmt: skip
        self._parts = parts
        self._wanted = {parameter: parts[value] for parameter, value in carried.items()}
        self._last = dict.fromkeys(carried, -1)
        """Last position at which a parameter's memory is read; the end if a result aliases it."""
        for index, values in enumerate([*(node.inputs for node in graph.nodes), graph.results]):
            shown = {part for value in values for part in parts[value] if isinstance(part, Parameter)}
            self._last.update(dict.fromkeys(shown & self._last.keys(), index))

    def place(
        self, index: int, node: Node, operands: Sequence[Value], own: Part, made: TensorType
    ) -> Parameter | None:  # fmt: skip
        """Return the parameter, one of the operands, that the result `own` of the node at `index` may overwrite because
        nothing reads the old value any more; None if there is none."""
        for part in (part for value in operands for part in self._parts[value]):
            if not isinstance(part, Parameter) or self._wanted.get(part) != (own,) or self._last[part] > index:
                continue
            if may_replace(node, part, self._parts, made):
                return part
        return None


def may_replace(node: Node, part: Parameter, parts: Mapping[Value, tuple[Part, ...]], made: TensorType) -> bool:
    """Return whether a node may overwrite the memory of a parameter of which it is the last reader."""
    if not (isinstance(node.op, Op) and node.op.in_place):
        return False
    if any(part in parts[value] for value in read_elsewhere(node)):
        return False
    before = part.tensor_type
    return before.dtype == made.dtype and before.nbytes == made.nbytes and works_on(node, made.size)
