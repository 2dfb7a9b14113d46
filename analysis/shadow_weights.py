"""Shadow weights are copies of parameters that updates keep up to date: the halves in which a network reads its Float32
weights.

Input:  `%0 = Cast(%w) {dst_type: BFloat16}`, `%1 = MatMul(%x, %0)`, ..., `%9 = ApplyMomentum(%w, ...)`
Output: `%0 = Cast(%w) {kept: true}`: the update of a step can leave the value that `%0` has in the next one.

A copy is `Cast(%w)`, or a `Concat` of parameters and of such casts. It can be stored where each of its parameters is
written once in the graph, by an update whose kernel writes copies too, and where everything that reads the copy runs
before these updates. What a graph computes does not depend on the attribute: a runtime that does not know it runs the
nodes at every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import field

from mspc.analysis.lifetimes import last_reads, viewed_operands
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, DType
from mspc.ir.varying import OpKey
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import Cast

SHADOW = "kept"
"""The attribute of the nodes that make such copies."""
_PACK = 4
"""Elements of a Float32 tensor that an update goes through at once."""
_MOST = 1 << 32
"""Elements of a parameter: where rows of some lie apart, the update counts all in 32 bits."""


@dataclass(frozen=True, slots=True)
class CopiedRegion:
    """The place of a parameter in a copy: element (r, c) of its rows of `columns` elements is element
    begin + r * pitch + c of the copy. update: the node that writes the parameter, as its operand `operand`."""

    parameter: Parameter
    update: Node
    operand: int
    begin: int
    columns: int
    pitch: int


@dataclass(frozen=True)
class ShadowWeights:
    """The copies of parameters in a graph. copies: the nodes whose results can be stored. inner: casts that only these
    nodes read."""

    copies: dict[Node, tuple[CopiedRegion, ...]] = field(default_factory=dict[Node, "tuple[CopiedRegion, ...]"])
    inner: dict[Node, None] = field(default_factory=dict[Node, None])

    def nodes(self) -> set[Node]:
        """All nodes that need not run while the copies are up to date."""
        return {*self.copies, *self.inner}


def mark_shadow_weights(graph: Graph) -> bool:
    """Set the attribute on all nodes that make copies which can be stored; a node that would recompute such a copy is
    replaced by it. True where there are any such nodes."""
    found = shadow_weights(graph, graph.nodes)
    nodes = found.nodes()
    for node in nodes:
        node.attrs[SHADOW] = True
    known = {_content(node): node for node in found.copies}
    others = [node for node in graph.nodes if node not in nodes] if known else []
    again = {node: known[_content(node)] for node in others if _content(node) in known}
    if again:
        numbers, reach, readers = _numbers(graph), _reach(graph), _readers(graph)
        limits = {node: _overwritten(pieces, numbers) for node, pieces in found.copies.items()}
        gone: dict[Value, Value] = {
            node: copy for node, copy in again.items() if reach.get(node, numbers[node]) < limits[copy]
        }
        casts = {v for node in again if node in gone for v in node.inputs if readers[v] == 1}
        graph.nodes = [node for node in graph.nodes if node not in gone and node not in casts]
        graph.replace(gone)
    return bool(nodes)


def marked_shadow_weights(graph: Graph) -> ShadowWeights:
    """The copies that the attribute names, as far as they can still be stored in the graph as it is now."""
    return shadow_weights(graph, [node for node in graph.nodes if node.attrs.get(SHADOW)])


def shadow_weights(graph: Graph, among: Iterable[Node]) -> ShadowWeights:
    """The copies made by nodes of `among` that can be stored; at most one of every parameter."""
    made = [node for node in among if isinstance(node.op, Cast | Concat)]
    writers = _writers(graph) if made else {}
    if not writers:
        return ShadowWeights()
    numbers, reach, readers = _numbers(graph), _reach(graph), _readers(graph)
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
    """Equal for nodes that make the same copy."""
    if not isinstance(node.op, Cast | Concat):
        return None
    read = ((OpKey(v.op), v.inputs[0]) if isinstance(v, Node) and isinstance(v.op, Cast) else v for v in node.inputs)
    return OpKey(node.op), *read


def _numbers(graph: Graph) -> dict[Node, int]:
    return {node: number for number, node in enumerate(graph.nodes)}


def _overwritten(pieces: Iterable[CopiedRegion], numbers: Mapping[Node, int]) -> int:
    """The number of the first update that writes to a copy."""
    return min(numbers[piece.update] for piece in pieces)


def _writers(graph: Graph) -> dict[Value, tuple[Node, int]]:
    """For every parameter that is written once, by an update that writes copies too: the update and its operand."""
    found: dict[Value, tuple[Node, int]] = {}
    others: set[Value] = set()
    for node in graph.nodes:
        op = node.op
        if not isinstance(op, Op):
            continue
        for index in op.mutates:
            value = node.inputs[index]
            if not isinstance(value, Parameter):
                return {}  # it may show any parameter
            if value in found or index not in op.copied:
                others.add(value)
            found[value] = node, index
    return {value: writer for value, writer in found.items() if value not in others}


def _reach(graph: Graph) -> dict[Value, int]:
    """For every value that is read the number of the last node that reads its memory."""
    return last_reads(graph, viewed_operands)


def _readers(graph: Graph) -> Counter[Value]:
    """How often every value is read or returned."""
    return Counter(value for values in (graph.results, *(node.inputs for node in graph.nodes)) for value in values)


def _pieces(node: Node, writers: dict[Value, tuple[Node, int]], readers: Mapping[Value, int]) -> list[CopiedRegion]:
    """The places of parameters in the node's result; [] where it is no copy of parameters."""
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
        if not 0 < type.size < _MOST or not _copied_exactly(type.dtype, node.tensor_type.dtype):
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
    """Whether an update that holds a new value of the one type can write it as the other, as Cast would."""
    return source == target or (source == FLOAT32 and target in (FLOAT16, BFLOAT16))
