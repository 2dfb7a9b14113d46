"""Placement of results of a graph in the memory of the results of the node that runs it, so that no copy is needed
afterwards.

Input:  a call of a graph whose result `%9 = AddN(%total, %5)` replaces the operand `%total`
Output: %9 is made in the memory of the call's result, which may be that of the operand if it has no other reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import TensorType
from mspc.runtime.carried_results import may_replace
from mspc.runtime.memory_classes import Part


class OutsideResults:
    """Places of results outside of the graph's arena.

    Args:
        parts: for every value the memory that it aliases. size_of: bytes of such a part; 0 if it must not be outside.

    places: for every result the stand-in for its memory outside, None if it has no memory of its own. replaces: for a
    result the number of the graph's parameter that it may overwrite as well.
    """

    def __init__(
        self, graph: Graph, parts: Mapping[Value, tuple[Part, ...]], size_of: Callable[[int], int]
    ) -> None:  # fmt: skip
        self._parts = parts
        self._numbers = {parameter: number for number, parameter in enumerate(graph.parameters)}
        self._wanted: dict[Part, int] = {}
        self.replaces: dict[int, int] = {}
        places: list[Parameter | None] = []
        for number, value in enumerate(graph.results):
            own = parts[value]
            if (
                isinstance(value.type, TensorType) and len(own) == 1 and isinstance(own[0], int)
                and own[0] not in self._wanted and size_of(own[0]) == value.type.nbytes > 0
            ):  # fmt: skip
                self._wanted[own[0]] = number
                places.append(Parameter(f"result_{number}", value.type))
            else:
                places.append(None)
        self.places = tuple(places)
        self._last: dict[Part, int] = {}
        for index, values in enumerate([*(node.inputs for node in graph.nodes), graph.results]):
            for value in values:
                self._last.update((part, index) for part in parts[value] if isinstance(part, Parameter))

    def place(
        self, index: int, node: Node, operands: Sequence[Value], own: Part, made: TensorType
    ) -> Parameter | None:  # fmt: skip
        """Return the stand-in for the outside memory of the result `own` of the node at `index`, or None if `own` is no
        result placed outside, or has another element type."""
        number = self._wanted.get(own)
        if number is None:
            return None
        place = self.places[number]
        assert place is not None
        if place.tensor_type.dtype != made.dtype:
            return None
        for part in (part for value in operands for part in self._parts[value]):
            if not isinstance(part, Parameter) or part not in self._numbers or self._last[part] > index:
                continue
            if self._numbers[part] not in self.replaces.values() and may_replace(node, part, self._parts, made):
                self.replaces[number] = self._numbers[part]
                break
        return place
