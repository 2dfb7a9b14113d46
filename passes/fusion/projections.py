"""Finds the three products that give an attention its query, key and value, and all that reads their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from mspc.analysis.aliasing import first_changes
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.math.matmul import BiasAdd, MatMul
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_kernel import Shape
from mspc.ops.nn.attention_order import HEADS_BEHIND
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Reshape
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.cleanup.simplify import live_values

Attention = FlashAttentionScore | FlashAttentionScoreGrad | FlashAttentionScoreShiftGrad
Moved = Reshape | Cast | StridedSlice
"""Operators that a network may repeat for every product; their one operand decides."""
Users = dict[Value, list[tuple[Node, int]]]


class NoMatch(Exception):
    """There are no three products of one operand, or something needs their results apart."""


@dataclass(frozen=True)
class ProjectionGraph:
    """The graph as it was. live: what is needed. users: the readers among them. changed: where a parameter's value
    first changes."""

    index: dict[Value, int]
    live: set[Value]
    users: Users
    results: set[Value]
    changed: dict[Value, int]

    @staticmethod
    def of(graph: Graph) -> ProjectionGraph:
        live = live_values(graph)
        users: Users = {}
        for node in graph.nodes:
            for place, value in enumerate(node.inputs if node in live else ()):
                users.setdefault(value, []).append((node, place))
        index: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
        return ProjectionGraph(index, live, users, set(graph.results), first_changes(graph))

    def readers(self, value: Value) -> list[tuple[Node, int]]:
        """Raises NoMatch for what the graph returns."""
        if value in self.results:
            raise NoMatch
        return self.users.get(value, [])


@dataclass
class Source:
    """Where query, key or value comes from: a product, and what adds its bias if it has one, perhaps in another element
    type; dtype: of the operand itself."""

    product: Node
    adds: Node | None
    transposed: bool
    dtype: DType

    @property
    def adding(self) -> DType:
        """The element type in which the bias is added, if there is one."""
        return (self.adds or self.product).tensor_type.dtype


@dataclass
class AttentionReaders:
    """What reads a gradient of an attention: products by which operand, and sums, each for query, key and value.

    node: the gradient of the attention. total: the sum of the products for x. behind: for each of these the reshapes
    and casts between it and the sum.
    """

    node: Node
    inputs: list[Node]
    weights: list[Node]
    biases: list[Node]
    total: Node | None = None
    behind: list[list[Node]] = field(default_factory=list["list[Node]"])


@dataclass
class ProjectionMatch:
    """Three products that can be one. attentions: all that read them, in run order. layout: the new one of these."""

    sources: list[Source]
    attentions: list[Node]
    shape: Shape
    layout: str
    backward: dict[Node, AttentionReaders]

    @property
    def products(self) -> list[Node]:
        return [source.product for source in self.sources]

    @property
    def transposed(self) -> bool:
        return self.sources[0].transposed

    @property
    def dtypes(self) -> tuple[DType, DType, DType]:
        """Of the products, where biases are added, of query, key and value."""
        source = self.sources[0]
        return source.product.tensor_type.dtype, source.adding, source.dtype

    @property
    def weight_axis(self) -> int:
        """The dimension of the weights that is one of columns."""
        op = self.products[0].op
        assert isinstance(op, MatMul)
        return 0 if op.transpose_b else 1


def matched(facts: ProjectionGraph, operands: Sequence[Value], attentions: list[Node]) -> ProjectionMatch:
    if not attentions or len(set(operands)) != 3:
        raise NoMatch
    op = attention_of(attentions[0])
    by_head = op.input_layout == "BNSD"
    sources = [_source(facts, value, attentions, by_head) for value in operands]
    product = sources[0].product
    for source in sources[1:]:
        other = source.product
        if other.op != product.op or other.tensor_type.dtype != product.tensor_type.dtype:
            raise NoMatch
        if not _same(other.inputs[0], product.inputs[0]):
            raise NoMatch
        if (source.adds is None) != (sources[0].adds is None) or source.transposed != sources[0].transposed:
            raise NoMatch
        if (source.adding, source.dtype) != (sources[0].adding, sources[0].dtype):
            raise NoMatch
    shape = op.shape_of(operands)
    if shape.queries != shape.keys or shape.depth != shape.value_depth or by_head != sources[0].transposed:
        raise NoMatch
    for source, heads in zip(sources, (shape.heads, shape.key_heads, shape.key_heads), strict=True):
        if source.product.shape != (shape.batch * shape.queries, heads * shape.depth):
            raise NoMatch
    gradients = [node for node in attentions if isinstance(node.op, FlashAttentionScoreGrad)]
    backward = {node: _backward(facts, node, sources) for node in gradients}
    match = ProjectionMatch(sources, attentions, shape, "BSND" if by_head else op.input_layout, backward)
    _check_unchanged(facts, match)
    return match


def attention_of(node: Node) -> Attention:
    assert isinstance(node.op, Attention)
    return node.op


def _source(facts: ProjectionGraph, value: Value, attentions: Sequence[Node], by_head: bool) -> Source:
    """What gives an operand of attentions; nothing else reads it or what is in between."""
    if any(reader not in attentions or place > 2 for reader, place in facts.readers(value)):
        raise NoMatch
    transposed, adds, operand, below = False, None, value, value
    while isinstance(value, Node):
        if value is not below and [reader for reader, _ in facts.readers(value)] != [below]:
            raise NoMatch
        op, below = value.op, value
        if isinstance(op, MatMul) and not op.transpose_a:
            return Source(value, adds, transposed, operand.tensor_type.dtype)
        if isinstance(op, Transpose) and by_head and adds is None and tuple(op.perm) == HEADS_BEHIND and not transposed:
            transposed = True
        elif isinstance(op, BiasAdd | Add) and adds is None and _adds_bias(value):
            adds = value
        elif isinstance(op, Cast):
            if value.tensor_type.dtype != (adds or operand).tensor_type.dtype:
                raise NoMatch
        elif not isinstance(op, Reshape):
            raise NoMatch
        value = value.inputs[0]
    raise NoMatch


def _adds_bias(node: Node) -> bool:
    """Whether a vector is added along the last dimension."""
    x, bias = node.inputs
    if isinstance(node.op, BiasAdd) and node.op.channel(len(x.shape)) != len(x.shape) - 1:
        return False
    return x.type == node.type and bias.type == TensorType(x.tensor_type.dtype, x.shape[-1:])


def _backward(facts: ProjectionGraph, node: Node, sources: Sequence[Source]) -> AttentionReaders:
    """Everything that reads the gradients of query, key and value."""
    found: list[dict[str, Node]] = [{}, {}, {}]
    for reader, _ in facts.readers(node):
        if not isinstance(reader.op, TupleGetItem):
            raise NoMatch
        index = reader.op.index
        for name, user in _gradient_readers(facts, reader, sources[index], sources[index].transposed):
            if name in found[index]:
                raise NoMatch
            found[index][name] = user
    if any(set(one) != set(found[0]) for one in found):
        raise NoMatch
    listed = {name: [one[name] for one in found] for name in found[0]}
    backward = AttentionReaders(node, listed.get("x", []), listed.get("w", []), listed.get("bias", []))
    if backward.inputs:
        sums = [_to_sum(facts, product) for product in backward.inputs]
        backward.total = sums[0][1]
        backward.behind = [chain for chain, _ in sums]
        operators = [[step.op for step in chain] for chain in backward.behind]
        if any(total is not backward.total for _, total in sums) or any(ops != operators[0] for ops in operators):
            raise NoMatch
    return backward


def _gradient_readers(
    facts: ProjectionGraph, value: Node, source: Source, by_head: bool
) -> Iterator[tuple[str, Node]]:
    """("x", "w" or "bias", node) for what reads a gradient, which is the product for x, for the weight or a sum."""
    op, (x, w), shape = source.product.op, source.product.inputs, source.product.shape
    assert isinstance(op, MatMul)
    types = (source.product.tensor_type.dtype, source.adding)
    for reader, place in facts.readers(value):
        of = reader.op
        if by_head:
            if not isinstance(of, Transpose) or tuple(of.perm) != HEADS_BEHIND:
                raise NoMatch
            yield from _gradient_readers(facts, reader, source, False)
        elif isinstance(of, Reshape) or (isinstance(of, Cast) and reader.tensor_type.dtype in types):
            yield from _gradient_readers(facts, reader, source, False)
        elif isinstance(of, ReduceSum) and value.shape[-1] == shape[1] and _sums_rows(of, len(value.shape)):
            if value.tensor_type.dtype != source.adding:
                raise NoMatch
            yield "bias", reader
        elif not isinstance(of, MatMul) or value.type != source.product.type:
            raise NoMatch
        elif of == MatMul(False, not op.transpose_b) and place == 0 and _same(reader.inputs[1], w):
            yield "x", reader
        elif of == MatMul(True, False) and place == int(not op.transpose_b) and _same(reader.inputs[1 - place], x):
            yield "w", reader
        else:
            raise NoMatch


def _sums_rows(op: ReduceSum, rank: int) -> bool:
    """Whether all dimensions but the last are summed and go."""
    axis = op.axis if isinstance(op.axis, tuple) else (op.axis,)
    return not op.keep_dims and sorted(a % rank for a in axis) == list(range(rank - 1))


def _to_sum(facts: ProjectionGraph, product: Node) -> tuple[list[Node], Node]:
    """(the reshapes and casts behind a product, the sum in which they end)."""
    chain: list[Node] = []
    at = product
    while True:
        readers = facts.readers(at)
        if len(readers) != 1:
            raise NoMatch
        at = readers[0][0]
        if isinstance(at.op, AddN) and len(at.inputs) > 1:
            return chain, at
        if not isinstance(at.op, Reshape | Cast):
            raise NoMatch
        chain.append(at)


def _same(one: Value, other: Value) -> bool:
    """Whether two values are equal: one value, or the same cast, reshape or slice of equal values."""
    if one is other:
        return True
    if not (isinstance(one, Node) and isinstance(other, Node) and one.op == other.op):
        return False
    return isinstance(one.op, Moved) and _same(one.inputs[0], other.inputs[0])


def _check_unchanged(facts: ProjectionGraph, match: ProjectionMatch) -> None:
    """No parameter that is read changes before the last of the nodes that read it: they move."""
    nodes = [*match.products, *match.attentions, *(source.adds for source in match.sources if source.adds is not None)]
    for back in match.backward.values():
        nodes += [*back.inputs, *back.weights, *back.biases]
    last = max(facts.index[node] for node in nodes)
    for value in [value for node in nodes for value in node.inputs]:
        while isinstance(value, Node) and isinstance(value.op, Moved):
            value = value.inputs[0]
        if facts.changed.get(value, last) < last:
            raise NoMatch
