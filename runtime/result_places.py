"""Placement of a region's results in memory outside its arena, so that nothing is copied afterwards: in the memory of
the values that they replace in a loop's next iteration, or of the node's own results.

Input:  a call of a graph whose result `%9 = AddN(%total, %5)` replaces the operand `%total` Output: %9 is made in the
memory of the call's result, which may be that of the operand if it has no other reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import TensorType
from mspc.ops.op import Op
from mspc.runtime.memory import read_elsewhere, works_on
from mspc.runtime.memory_classes import Part, Parts


class ResultPlaces:
    """Parameters whose memory results may overwrite. parts: for every value the memory that it aliases."""

    def __init__(self, graph: Graph, parts: Parts) -> None:
        self._parts = parts
        self._last: dict[Part, int] = {}
        """Last position at which a parameter's memory is read; the end if a result aliases it."""
        for index, values in enumerate([*(node.inputs for node in graph.nodes), graph.results]):
            for value in values:
                self._last.update((part, index) for part in parts[value] if isinstance(part, Parameter))

    def place(
        self, index: int, node: Node, operands: Sequence[Value], own: Part, made: TensorType
    ) -> Parameter | None:  # fmt: skip
        """Return the parameter or placeholder in whose memory the node at `index` may make the result `own`, or
        None."""
        raise NotImplementedError

    def _replaceable(self, index: int, node: Node, operands: Sequence[Value], made: TensorType) -> Iterator[Parameter]:
        """Yield the operands that are parameters and that the node, as their last reader, may overwrite."""
        if not (isinstance(node.op, Op) and node.op.in_place):
            return
        for part in (part for value in operands for part in self._parts[value]):
            if not isinstance(part, Parameter) or self._last[part] > index:
                continue
            before, others = part.tensor_type, read_elsewhere(node)
            same_size = before.dtype == made.dtype and before.nbytes == made.nbytes
            if same_size and works_on(node, made.size) and all(part not in self._parts[value] for value in others):
                yield part


class CarriedResults(ResultPlaces):
    """Placement of the results of a loop's body. carried: for the body's parameters, the results that are their values
    in the next iteration."""

    def __init__(self, graph: Graph, carried: Mapping[Parameter, Value], parts: Parts) -> None:
        super().__init__(graph, parts)
        self._wanted = {parameter: parts[value] for parameter, value in carried.items()}

    def place(
        self, index: int, node: Node, operands: Sequence[Value], own: Part, made: TensorType
    ) -> Parameter | None:  # fmt: skip
        parameters = self._replaceable(index, node, operands, made)
        return next((each for each in parameters if self._wanted.get(each) == (own,)), None)


class OutsideResults(ResultPlaces):
    """Placement of results outside the graph's arena.

    Args:
        size_of: bytes of a part of memory; 0 if it must stay inside.

    places: for every result the placeholder for its memory outside, None if it has no memory of its own. replaces: for
    a result, the number of the graph's parameter that it may overwrite as well.
    """

    def __init__(self, graph: Graph, parts: Parts, size_of: Callable[[int], int]) -> None:
        super().__init__(graph, parts)
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

    def place(
        self, index: int, node: Node, operands: Sequence[Value], own: Part, made: TensorType
    ) -> Parameter | None:  # fmt: skip
        number = self._wanted.get(own)
        place = None if number is None else self.places[number]
        if number is None or place is None or place.tensor_type.dtype != made.dtype:
            return None
        for part in self._replaceable(index, node, operands, made):
            if part in self._numbers and self._numbers[part] not in self.replaces.values():
                self.replaces[number] = self._numbers[part]
                break
        return place
