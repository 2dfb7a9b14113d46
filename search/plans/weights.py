"""Finds the weights of matmuls, whatever is computed of them before: casts, scales, dropout, reshapes, transposes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mspc.ir.graph import Constant, Node, Parameter, Value


class WeightValues:
    """The values that are computed from parameters of the network and constants alone.

    A value that depends on an input of the network is an activation. All operators are alike here, so that none can
    hide a weight.
    """

    def __init__(self) -> None:
        self._known: dict[Value, Parameter] = {}

    def add(self, nodes: Iterable[Node], outside: Mapping[Value, Value]) -> None:
        """Note nodes, which come after all that they read. outside: for parameters of regions what is given for them.
        """
        for node in nodes:
            read = [value for value in node.inputs if not isinstance(value, Constant) and not _reads_nothing(value)]
            found = [self.of(value, outside) for value in read]
            known = [weight for weight in found if weight is not None]
            if known and len(known) == len(found) and not node.regions:
                self._known[node] = max(known, key=lambda weight: weight.type.nbytes)

    def of(self, value: Value, outside: Mapping[Value, Value]) -> Parameter | None:
        """The parameter that a value is, or is computed from: the largest of several. None for an activation."""
        while value in outside:
            value = outside[value]
        if isinstance(value, Parameter):
            return value if value.kind == "parameter" else None
        return self._known.get(value)


def _reads_nothing(value: Value) -> bool:
    return isinstance(value, Node) and not value.inputs and not value.regions
