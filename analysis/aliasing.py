"""Analysis of values that share memory with others, and of updates of parameters in place.

Passes that reorder nodes and runtimes that share memory must respect both. Operators declare it: `is_view`,
`may_alias`, `mutates`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

from mspc.ir.graph import Graph, Node, Parameter, Value, element_types
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, DType, StackType, TensorType, Type
from mspc.ir.varying import OpKey
from mspc.ops.control.structural import Depend, extracted_elements
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import Cast

if TYPE_CHECKING:
    from mspc.ops.control.regions import RegionOp


class Updates:
    """Positions of the updates of parameters, for values that may alias a parameter's memory."""

    def __init__(self, graph: Graph) -> None:
        self.numbers: dict[Value, list[int]] = {}
        self.shown: dict[Value, frozenset[Value]] = {}
        self.first = len(graph.nodes)
        self._changed: dict[Value, list[int]] = {}
        self._regions: dict[Graph, frozenset[Value]] = {}
        for number, node in enumerate(graph.nodes):
            for parameter in self.written(node) if node.op.mutates else ():
                self.numbers.setdefault(parameter, []).append(number)
                self.first = min(self.first, number)

    def written(self, node: Node) -> set[Value]:
        """Return the parameters that the node updates."""
        return {p for index in node.op.mutates for p in self.parameters(node.inputs[index])}

    def changes(self, value: Value) -> bool:
        """Return whether any parameter is updated whose memory the value may alias."""
        return any(parameter in self.numbers for parameter in self.parameters(value))

    def between(self, values: Iterable[Value], start: int, stop: int) -> bool:
        """Return whether memory of one of the values is updated after position `start`, and at `stop` or before."""
        if stop < self.first:
            return False
        for value in values:
            numbers = self._updates_of(value)
            if numbers and bisect_right(numbers, start) < bisect_right(numbers, stop):
                return True
        return False

    def last_before(self, values: Iterable[Value], stop: int) -> int:
        """Return the position of the last update before `stop` of memory of one of the values, or -1."""
        last = -1
        for value in values:
            numbers = self._updates_of(value)
            at = bisect_left(numbers, stop)
            last = max(last, numbers[at - 1] if at else -1)
        return last

    def _updates_of(self, value: Value) -> Sequence[int]:
        """Return the ascending positions of updates of parameters whose memory the value may alias."""
        known = self._changed.get(value)
        if known is None:
            parameters = self.parameters(value)
            known = sorted({number for parameter in parameters for number in self.numbers.get(parameter, ())})
            self._changed[value] = known
        return known

    @iterative
    def parameters(self, value: Value) -> Generator[Any, frozenset[Value], frozenset[Value]]:
        """Return the parameters whose memory the value may alias: the value itself, through operators that may return
        views of their operands, or as the result of an update."""
        if isinstance(value, Parameter):
            return frozenset((value,))
        if not isinstance(value, Node):
            return frozenset()
        known = self.shown.get(value)
        if known is None:
            shown: set[Value] = set()
            for index in aliased_operands(value, self._regions):
                operand = value.inputs[index]
                if isinstance(operand, Parameter):
                    shown.add(operand)
                else:
                    shown |= yield self, operand
            known = self.shown[value] = frozenset(shown)
        return known


def aliased_operands(node: Node, known: dict[Graph, frozenset[Value]] | None = None) -> Sequence[int]:
    """Return the operands whose memory the result of the node may alias. known: a cache for graphs that several nodes
    run, of the parameters that their results may alias."""
    known = {} if known is None else known
    return _shown_by_regions(node, known) if node.regions else node.op.aliased_operands(len(node.inputs))


def _shown_by_regions(node: Node, known: dict[Graph, frozenset[Value]]) -> Sequence[int]:
    """Return these operands of an operator that runs graphs: operands that pass through a loop of no iterations, and
    those whose parameters a result of the region may alias."""
    op = cast("RegionOp", node.op)
    found = set(op.passed_operands)
    for number, region in enumerate(node.regions):
        shown = known.get(region)
        if shown is None:
            updates = Updates(region)
            shown = known[region] = frozenset(p for value in region.results for p in updates.parameters(value))
        if not shown:
            continue
        parameters = region.parameters
        for operand, inside in enumerate(op.places(number, [value.type for value in node.inputs])):
            if any(parameters[place] in shown for place in inside):
                found.add(operand)
    return sorted(found)


def first_changes(graph: Graph) -> dict[Value, int]:
    """Return the position of the first node that changes a parameter, by parameter."""
    found: dict[Value, int] = {}
    for number, node in enumerate(graph.nodes):
        for index in node.op.mutates:
            for value in _entries(node, index) if index < len(node.inputs) else ():
                found.setdefault(value, number)
    return found


def updated_parameters(graph: Graph) -> dict[int, tuple[Parameter, ...]]:
    """Return the parameters that nodes write, by position of the node, ascending."""
    found: dict[int, tuple[Parameter, ...]] = {}
    for number, node in enumerate(graph.nodes):
        written = [value for index in node.op.mutates if index < len(node.inputs) for value in _entries(node, index)]
        parameters = tuple(value for value in written if isinstance(value, Parameter))
        if parameters:
            found[number] = parameters
    return found


def _entries(node: Node, index: int) -> Sequence[Value]:
    """Return the operand, or the entries of a stack of which the node overwrites every one."""
    value = node.inputs[index]
    return value.inputs if isinstance(value, Node) and isinstance(value.type, StackType) else (value,)


def source(value: Value) -> Value:
    """Return the value that `Depend` nodes pass through unchanged."""
    while isinstance(value, Node) and isinstance(value.op, Depend):
        value = value.inputs[0]
    return value


def last_reads(graph: Graph, aliased: Callable[[Node], Iterable[int]]) -> dict[Value, int]:
    """Return the position of the last node that reads the memory of a value, for every value that is read or returned.

    aliased: the operands of a node whose memory its result shares, so that a reader of the result reads them too. A
    returned value is read after all nodes.
    """
    last: dict[Value, int] = dict.fromkeys(graph.results, len(graph.nodes))
    for number in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[number]
        through = set(aliased(node))
        for index, value in enumerate(node.inputs):
            until = last.get(node, number) if index in through else number
            last[value] = max(last.get(value, 0), until)
    return last


def viewed_operands(node: Node) -> Iterable[int]:
    """Return the operands whose memory is the node's result, for `last_reads` if every other node makes its own."""
    return node.op.aliased_operands(len(node.inputs)) if node.op.is_view else ()


def results_over(graph: Graph) -> list[list[Node]]:
    """Return for every node the nodes whose results have no reader after it, possibly itself. Results of the graph are
    never over."""
    last: dict[Value, int] = {}
    for number, node in enumerate(graph.nodes):
        last[node] = number
        last |= dict.fromkeys((value for value in node.inputs if isinstance(value, Node)), number)
    found: list[list[Node]] = [[] for _ in graph.nodes]
    returned = set(graph.results)
    for value, number in last.items():
        if isinstance(value, Node) and value not in returned:
            found[number].append(value)
    return found


def most_alive(
    order: Sequence[int], operands: Sequence[Sequence[int]], views: Sequence[bool], sizes: Sequence[int],
    results: Iterable[int],
) -> int:  # fmt: skip
    """Return the most bytes of nodes' results alive at once. order: the nodes by number, as they run. operands: for
    every node the nodes whose results it reads. views: whether a node's result is memory of its operands. sizes: bytes
    of its result. results: nodes whose results are needed after all nodes."""
    last = [-1] * len(order)
    for position in range(len(order) - 1, -1, -1):
        i = order[position]
        until = max(position, last[i]) if views[i] else position
        for k in operands[i]:
            if last[k] < until:
                last[k] = until
    for i in results:
        last[i] = len(order)
    dying = [0] * (len(order) + 1)
    alive = most = 0
    for position, i in enumerate(order):
        size = sizes[i]
        if size:
            alive += size
            dying[max(last[i], position)] += size
            most = max(most, alive)
        alive -= dying[position]
    return most


# Shadow weights are copies of parameters that updates keep up to date: the halves in which a network reads its Float32
# weights.
#
# Input:  `%0 = Cast(%w) {dst_type: BFloat16}`, `%1 = MatMul(%x, %0)`, ..., `%9 = ApplyMomentum(%w, ...)`
# Output: `%0 = Cast(%w) {kept: true}`: the update of a step can leave the value that `%0` has in the next one.
#
# A copy is `Cast(%w)`, or a `Concat` of parameters and of such casts. It can be stored if each of its parameters is
# written once in the graph, by an update whose kernel also writes copies, and if every reader of the copy runs before
# these updates. The attribute does not change the result of a graph: a runtime that ignores it runs the nodes at every
# step.


SHADOW = "kept"
"""Attribute of the nodes that make such copies."""
_PACK = 4
"""Elements of a Float32 tensor that an update processes at once."""
_MAX_ELEMENTS = 1 << 32
"""Limit of the elements of a parameter: if its rows are not contiguous, the update counts elements in 32 bits."""


@dataclass(frozen=True, slots=True)
class CopiedRegion:
    """Place of a parameter in a copy: element (r, c) of its rows of `columns` elements is element begin + r * pitch + c
    of the copy. update: the node that writes the parameter, as its operand `operand`."""

    parameter: Parameter
    update: Node
    operand: int
    begin: int
    columns: int
    pitch: int


@dataclass(frozen=True)
class ShadowWeights:
    """Copies of parameters in a graph. copies: the nodes whose results can be stored. inner: casts that only these
    nodes read."""

    copies: dict[Node, tuple[CopiedRegion, ...]] = field(default_factory=dict[Node, "tuple[CopiedRegion, ...]"])
    inner: dict[Node, None] = field(default_factory=dict[Node, None])

    def nodes(self) -> set[Node]:
        """Return all nodes that need not run while the copies are up to date."""
        return {*self.copies, *self.inner}


def mark_shadow_weights(graph: Graph) -> bool:
    """Set the attribute on all nodes that make copies which can be stored, and replace nodes that recompute such a
    copy. Return True if there are any such nodes."""
    found = shadow_weights(graph, graph.nodes)
    nodes = found.nodes()
    for node in nodes:
        node.attrs[SHADOW] = True
    known = {_content(node): node for node in found.copies}
    others = [node for node in graph.nodes if node not in nodes] if known else []
    again = {node: known[_content(node)] for node in others if _content(node) in known}
    if again:
        numbers, reach, readers = _numbers(graph), last_reads(graph, viewed_operands), _readers(graph)
        limits = {node: _overwritten(pieces, numbers) for node, pieces in found.copies.items()}
        gone: dict[Value, Value] = {
            node: copy for node, copy in again.items() if reach.get(node, numbers[node]) < limits[copy]
        }
        casts = {v for node in again if node in gone for v in node.inputs if readers[v] == 1}
        graph.nodes = [node for node in graph.nodes if node not in gone and node not in casts]
        graph.replace(gone)
    return bool(nodes)


def marked_shadow_weights(graph: Graph) -> ShadowWeights:
    """Return the copies marked by the attribute that can still be stored in the present graph."""
    return shadow_weights(graph, [node for node in graph.nodes if node.attrs.get(SHADOW)])


def shadow_weights(graph: Graph, among: Iterable[Node]) -> ShadowWeights:
    """Return the copies made by nodes of `among` that can be stored; at most one for each parameter."""
    made = [node for node in among if isinstance(node.op, Cast | Concat)]
    writers = _writers(graph) if made else {}
    if not writers:
        return ShadowWeights()
    numbers, reach, readers = _numbers(graph), last_reads(graph, viewed_operands), _readers(graph)
    found = ShadowWeights()
    taken: set[Parameter] = set()
    # A cast that only a Concat reads is a part of the Concat's copy.
    for node in (*(n for n in made if isinstance(n.op, Concat)), *(n for n in made if isinstance(n.op, Cast))):
        if node in found.inner:
            continue
        pieces = _pieces(node, writers, readers)
        parameters = [piece.parameter for piece in pieces]
        if not pieces or len({*parameters}) < len(parameters) or not taken.isdisjoint(parameters):
            continue
        if reach.get(node, numbers[node]) >= _overwritten(pieces, numbers):
            continue
        found.copies[node] = tuple(pieces)
        found.inner.update((v, None) for v in node.inputs if isinstance(v, Node))
        taken.update(parameters)
    return found


def _content(node: Node) -> Hashable:
    """Return a key that is equal for nodes that make the same copy; None for other operators."""
    if not isinstance(node.op, Cast | Concat):
        return None
    read = ((OpKey(v.op), v.inputs[0]) if isinstance(v, Node) and isinstance(v.op, Cast) else v for v in node.inputs)
    return OpKey(node.op), *read


def _numbers(graph: Graph) -> dict[Node, int]:
    return {node: number for number, node in enumerate(graph.nodes)}


def _overwritten(pieces: Iterable[CopiedRegion], numbers: Mapping[Node, int]) -> int:
    """Return the position of the first update that writes to a copy."""
    return min(numbers[piece.update] for piece in pieces)


def _writers(graph: Graph) -> dict[Value, tuple[Node, int]]:
    """Return the update and its operand for every parameter that is written once, by an update that also writes
    copies."""
    found: dict[Value, tuple[Node, int]] = {}
    others: set[Value] = set()
    for node in graph.nodes:
        op = node.op
        if not isinstance(op, Op):
            continue
        for index in op.mutates:
            value = node.inputs[index]
            if not isinstance(value, Parameter):
                return {}  # it may alias any parameter
            if value in found or index not in op.copied:
                others.add(value)
            found[value] = node, index
    return {value: writer for value, writer in found.items() if value not in others}


def _readers(graph: Graph) -> Counter[Value]:
    """Return how often every value is read or returned."""
    return Counter(value for values in (graph.results, *(node.inputs for node in graph.nodes)) for value in values)


def _pieces(node: Node, writers: dict[Value, tuple[Node, int]], readers: Mapping[Value, int]) -> list[CopiedRegion]:
    """Return the places of parameters in the node's result, or [] if it is no copy of parameters."""
    joined = isinstance(node.op, Concat)
    found: list[CopiedRegion] = []
    begin = 0
    for value in node.inputs if joined else (node,):
        parameter = value
        if isinstance(value, Node) and isinstance(value.op, Cast) and (not joined or readers[value] == 1):
            parameter = value.inputs[0]
        if parameter not in writers or not isinstance(parameter, Parameter) or parameter.kind != "parameter":
            return []
        type = parameter.tensor_type
        if not 0 < type.size < _MAX_ELEMENTS or not _copied_exactly(type.dtype, node.tensor_type.dtype):
            return []
        columns, pitch, step = type.size, type.size, type.size
        if isinstance(node.op, Concat):
            axis = node.op.axis % max(1, len(type.shape))
            if axis:
                if len(type.shape) != 2:
                    return []
                columns, pitch, step = type.shape[1], node.shape[1], type.shape[1]
            if columns % _PACK:
                return []
        found.append(CopiedRegion(parameter, *writers[parameter], begin, columns, pitch))
        begin += step
    return found


def _copied_exactly(source: DType, target: DType) -> bool:
    """Return whether an update that has a new value of type `source` can write it as `target`, as Cast would."""
    return source == target or (source == FLOAT32 and target in (FLOAT16, BFLOAT16))


def elements(node: Node, known: dict[int, int] | None = None) -> int:
    """Return the elements of the largest tensor that a node reads, makes or avoids. known: sizes by `id` of the type,
    valid while the types are alive; it is filled here."""
    known = {} if known is None else known
    largest = spared = 0
    for value in (node, *node.inputs):
        size = known.get(id(value.type))
        if size is None:
            size = known[id(value.type)] = _largest(value.type)
        largest = max(largest, size)
    if isinstance(node.op, Op) and all(isinstance(value.type, TensorType) for value in node.inputs):
        spared = node.op.elements_between([value.tensor_type for value in node.inputs])
    return max(spared, largest)


def _largest(type: Type) -> int:
    return max((tensor.size for tensor in element_types(type)), default=0)


def step_elements(program: Graph) -> int:
    """Return the sum of `elements` over all nodes of a program's graphs, each as often as a step runs it. A node that
    only picks a result of a tuple reads nothing and does not count."""
    if not any(node.regions for node in program.nodes):
        return _of_nodes(program)
    from mspc.ops.control.regions import times_of  # late: most programs have no regions

    return sum(times.count * _of_nodes(graph) for graph, times in times_of(program).items())


def _of_nodes(graph: Graph) -> int:
    known: dict[int, int] = {}  # many calls of one graph have the same types
    return sum(elements(node, known) for node in graph.nodes if extracted_elements(node.op) is None)
