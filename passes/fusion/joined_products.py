"""Finds products of one operand with several weights, the products of their gradients, and sums for their biases."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from itertools import product as choices
from typing import Any, cast

from mspc.analysis.aliasing import first_changes
from mspc.ir.graph import STAGE, Constant, Graph, Node, Parameter, Value
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ir.varying import OpKey
from mspc.ops.collective.base import Collective
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import along_rows, by_element, closes, divides, moves_elements
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.math.matmul import BiasAdd, MatMul
from mspc.ops.nn.activation import GeLU, GeLUGrad
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Cast, ReduceSum, Reshape
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.base import live_values, runs_anyway
from mspc.passes.fusion.fusion_groups import FARTHEST, MAX_LINES
from mspc.passes.fusion.pack_attention import Attention

Repeated = Reshape | Cast | StridedSlice
"""Operators that a network may repeat for every product; their one operand decides."""
Users = dict[Value, list[tuple[Node, int]]]


@dataclass
class AlikeProducts:
    """Matmuls of one operand with different weights, in the order in which they are joined.

    adds: the nodes that add a bias to each, if all have one. attention: they are query, key and value of one attention,
    with nothing but reshapes, casts, biases and transposes in between.
    """

    products: list[Node]
    adds: list[Node]
    attention: bool = False

    def some(self, which: Sequence[int]) -> AlikeProducts:
        """Return the products with these indices."""
        return AlikeProducts([self.products[i] for i in which], [self.adds[i] for i in which] if self.adds else [])

    @property
    def op(self) -> MatMul:
        op = self.products[0].op
        assert isinstance(op, MatMul)
        return op

    @property
    def x(self) -> Value:
        return self.products[0].inputs[0]

    @property
    def weights(self) -> list[Value]:
        return [product.inputs[1] for product in self.products]

    @property
    def weight_axis(self) -> int:
        """The dimension of the weights that is one of columns."""
        return 0 if self.op.transpose_b else 1

    @property
    def columns(self) -> list[int]:
        return [product.shape[1] for product in self.products]


@dataclass
class AlikeGradients:
    """The readers of the gradients of such matmuls, each list in their order or empty.

    bases: the gradients, before they are reshaped and cast. inputs, weights: the matmuls for the operand and for the
    weights. sums: those for biases. total: the sum of `inputs`; behind: for each of them the reshapes and casts between
    it and the sum. others: gradients that something else reads, too.
    """

    bases: list[Value]
    inputs: list[Node] = field(default_factory=list[Node])
    weights: list[Node] = field(default_factory=list[Node])
    sums: list[Node] = field(default_factory=list[Node])
    total: Node | None = None
    behind: list[list[Node]] = field(default_factory=list["list[Node]"])
    others: set[Value] = field(default_factory=set[Value])

    def some(self, which: Sequence[int]) -> AlikeGradients:
        """Return the gradients of the products with these indices."""
        inputs, weights, sums = (
            [nodes[i] for i in which] if nodes else [] for nodes in (self.inputs, self.weights, self.sums)
        )
        behind = [self.behind[i] for i in which] if self.behind else []
        return AlikeGradients([self.bases[i] for i in which], inputs, weights, sums, self.total, behind, self.others)


class ProductGraph:
    """The matmuls of a graph as it was, and the readers of values.

    index: positions of the nodes. live: values that are needed. users: their readers. changed: the first change of each
    parameter. multiplied: matmuls by operand 0 or 1. taken: matmuls of gradients that were found.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.index: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
        self.live = live_values(graph.nodes, graph.results, runs_anyway)
        self.results = set(graph.results)
        self.changed = first_changes(graph)
        self.users: Users = {}
        self.multiplied: dict[Hashable, list[Node]] = {}
        self.taken: set[Node] = set()
        for node in graph.nodes:
            if node not in self.live:
                continue
            for place, value in enumerate(node.inputs):
                self.users.setdefault(value, []).append((node, place))
                if isinstance(node.op, MatMul):
                    self.multiplied.setdefault((content(value), place), []).append(node)

    @cached_property
    def fences(self) -> list[int]:
        """The positions of nodes that change parameters."""
        return [i for i, node in enumerate(self.graph.nodes) if node.op.mutates]

    @cached_property
    def collectives(self) -> list[int]:
        return [i for i, node in enumerate(self.graph.nodes) if isinstance(node.op, Collective)]

    def only_reader(self, value: Value) -> Node | None:
        users = self.users.get(value, ())
        return users[0][0] if len(users) == 1 and value not in self.results else None

    # Products that can be one

    def groups(self) -> Iterator[AlikeProducts]:
        """Yield the products of attentions first, then others that are near each other."""
        alike: dict[Hashable, list[Node]] = {}
        for node in self.graph.nodes:
            if node in self.live and isinstance(node.op, MatMul) and not node.op.transpose_a:
                types = node.tensor_type.dtype, node.inputs[1].tensor_type.dtype
                stage = node.attrs.get(STAGE)  # what several stages compute cannot be one
                alike.setdefault((node.op, content(node.inputs[0]), types, stage), []).append(node)
        found = {product: key for key, products in alike.items() for product in products}
        for products in self._of_attentions():
            if all(product in found for product in products) and len({found[p] for p in products}) == 1:
                yield self._with_biases(products, True)
                for product in products:
                    alike[found.pop(product)].remove(product)
        for products in alike.values():
            for run in self._near(products):
                if len(run) > 1:
                    yield self._with_biases(run, False)

    def _near(self, products: Sequence[Node]) -> Iterator[list[Node]]:
        """Yield runs of matmuls near each other, with different weights."""
        run: list[Node] = []
        known: set[Hashable] = set()
        for product in products:
            weight = content(product.inputs[1])
            if run and (self.index[product] - self.index[run[0]] > FARTHEST or weight in known):
                yield run
                run, known = [product], {weight}
                continue
            run.append(product)
            known.add(weight)
        yield run

    def _of_attentions(self) -> Iterator[list[Node]]:
        for node in self.graph.nodes:
            if node in self.live and isinstance(node.op, FlashAttentionScore) and not node.op.packed:
                found = [product for value in node.inputs[:3] if (product := _multiplied(value)) is not None]
                if len({*found}) == 3 and len({content(product.inputs[1]) for product in found}) == 3:
                    yield found

    def _with_biases(self, products: list[Node], attention: bool) -> AlikeProducts:
        adds = [self._adds(product) for product in products]
        present = [node for node in adds if node is not None]
        types = {(node.tensor_type.dtype, node.inputs[1].tensor_type.dtype) for node in present}
        whole = len(present) == len(products) and len(types) == 1
        return AlikeProducts(products, present if whole else [], attention)

    def _adds(self, product: Node) -> Node | None:
        """Return the node that adds a bias to a matmul that nothing else reads."""
        value = product
        while (reader := self.only_reader(value)) is not None and isinstance(reader.op, Reshape | Cast):
            value = reader
        if reader is not None and adds_bias(reader) and reader.inputs[0] is value:
            return reader if value.shape[-1] == product.shape[1] else None
        return None

    # Products of gradients

    def gradients(self, group: AlikeProducts) -> AlikeGradients | None:
        """Return the readers of the gradients of these matmuls, each once, or None."""
        op, x, place = group.op, content(group.x), group.weight_axis
        of_weights: dict[Hashable, Node] = {}
        for node in self.multiplied.get((x, 1 - place), ()):
            if node.op == MatMul(True, False) and node not in self.taken:
                of_weights.setdefault(content(node.inputs[place]), node)
        inputs: list[Node] = []
        weights: list[Node] = []
        for product in group.products:
            back = MatMul(False, not op.transpose_b)
            found = [
                node for node in self.multiplied.get((content(product.inputs[1]), 1), ())
                if node.op == back and node not in self.taken and node.inputs[0].type == product.type
                and node.tensor_type.dtype == group.x.tensor_type.dtype
            ]  # fmt: skip
            both = [node for node in found if content(node.inputs[0]) in of_weights]
            if len(both or found) == 1:
                inputs += both or found
                weights += [of_weights[content(node.inputs[0])] for node in both]
        if not inputs:
            weights = self._alone(group, list(of_weights.values()))
        count = len(group.products)
        if len(inputs) != count and len(weights) != count:
            return None
        inputs, weights = (nodes if len({*nodes}) == count else [] for nodes in (inputs, weights))
        slopes = [node.inputs[0] for node in inputs] or [node.inputs[place] for node in weights]
        if not slopes:
            return None
        made = AlikeGradients([_base(value) for value in slopes], inputs, weights)
        types = {value.tensor_type.dtype for value in made.bases}
        if len({*made.bases}) < count or len(types) > 1:
            return None
        self._add_up(group, made)
        self._find_total(made)
        self.taken.update(made.inputs, made.weights)
        return made

    def _alone(self, group: AlikeProducts, found: list[Node]) -> list[Node]:
        """Return the matmuls for the weights alone, if the operand needs no gradient; those of attentions in its
        order."""
        place = group.weight_axis
        found.sort(key=lambda node: -self.index[node])
        if group.attention:
            by_operand = {_operand(node.inputs[place]): node for node in found}
            found = [by_operand[i] for i in range(3) if i in by_operand]
        chosen: list[Node] = []
        for product in group.products:
            alike = [node for node in found if node not in chosen and node.inputs[place].type == product.type]
            chosen += alike[:1]
        return chosen if len(found) == len(group.products) else []

    def _add_up(self, group: AlikeProducts, made: AlikeGradients) -> None:
        found: list[list[Node]] = []
        for base, columns in zip(made.bases, group.columns, strict=True):
            sums: list[Node] = []
            for reader in self._through(base):
                if isinstance(reader.op, ReduceSum) and _sums_rows(reader, columns):
                    sums.append(reader)
                elif reader not in made.inputs and reader not in made.weights:
                    made.others.add(base)
            if base in self.results:
                made.others.add(base)
            found.append(sums)
        adding = {node.inputs[0].tensor_type.dtype for sums in found for node in sums}
        if all(len(sums) == 1 for sums in found) and len(adding) == 1:
            made.sums = [node for sums in found for node in sums]
        else:
            made.others.update(base for base, sums in zip(made.bases, found, strict=True) if sums)

    def _through(self, value: Value) -> Iterator[Node]:
        """Return the readers of a value through reshapes and casts."""
        waiting = [value]
        while waiting:
            inner: list[Value] = []
            for reader, _ in self.users.get(waiting.pop(), ()):
                if isinstance(reader.op, Reshape | Cast) and reader not in self.results:
                    inner.append(reader)
                else:
                    yield reader
            waiting += reversed(inner)

    def _find_total(self, made: AlikeGradients) -> None:
        """Drop the matmuls for the operand unless one sum adds all of them."""
        for product in made.inputs:
            chain: list[Node] = []
            at: Node | None = self.only_reader(product)
            while at is not None and isinstance(at.op, Reshape | Cast):
                chain.append(at)
                at = self.only_reader(at)
            same = not made.behind or [node.op for node in chain] == [node.op for node in made.behind[0]]
            if at is None or not isinstance(at.op, AddN) or made.total not in (None, at) or not same:
                made.others.update(made.bases)
                made.inputs, made.total, made.behind = list[Node](), None, list["list[Node]"]()
                return
            made.total = at
            made.behind.append(chain)

    # What may move

    def may_wait(self, nodes: Sequence[Node]) -> bool:
        """Return True if these nodes can be made at the position of the last, before the readers of the others."""
        first, last = (pick(self.index[node] for node in nodes) for pick in (min, max))
        if last - first > 2 * FARTHEST or any(first < i < last for i in self.fences):
            return False
        waiting: set[Value] = {*nodes}
        for node in self.graph.nodes[first:last]:
            if node not in waiting and not waiting.isdisjoint(node.inputs):
                if node.op.has_side_effect and not isinstance(node.op, Collective):
                    return False
                waiting.add(node)
        between = [self.graph.nodes[i] for i in self.collectives if first < i < last]
        waits = [node in waiting for node in between]
        return all(waits) or not any(waits)

    def unchanged(self, nodes: Iterable[Node]) -> bool:
        """No parameter that is read changes before the last of the nodes."""
        nodes = list(nodes)
        last = max(self.index[node] for node in nodes)
        for value in [value for node in nodes for value in node.inputs]:
            while isinstance(value, Node) and isinstance(value.op, Repeated):
                value = value.inputs[0]
            if isinstance(value, Parameter) and self.changed.get(value, last) < last:
                return False
        return True


def content(value: Value) -> Hashable:
    """Equal for values that hold the same: one value, or casts and slices of one alike, in one shape."""
    steps: list[Hashable] = []
    at = value
    while isinstance(at, Node) and isinstance(at.op, Repeated):
        if not isinstance(at.op, Reshape):
            steps.append((OpKey(at.op), at.inputs[0].shape if isinstance(at.op, StridedSlice) else ()))
        at = at.inputs[0]
    return at, tuple(steps), value.shape if isinstance(value.type, TensorType) else ()


def adds_bias(node: Node) -> bool:
    """Return whether a vector is added along the last dimension."""
    if not isinstance(node.op, BiasAdd | Add):
        return False
    x, bias = node.inputs
    if isinstance(node.op, BiasAdd) and node.op.channel(len(x.shape)) != len(x.shape) - 1:
        return False
    return x.type == node.type and bias.type == TensorType(x.tensor_type.dtype, x.shape[-1:])


def _multiplied(value: Value) -> Node | None:
    """Return the matmul that an attention's operand comes from."""
    while isinstance(value, Node):
        if isinstance(value.op, MatMul):
            return value
        if not isinstance(value.op, Reshape | Cast | Transpose) and not adds_bias(value):
            return None
        value = value.inputs[0]
    return None


def _operand(value: Value) -> int:
    """Return the attention operand that a value is the gradient of, or -1."""
    while isinstance(value, Node) and isinstance(value.op, Reshape | Cast | Transpose):
        value = value.inputs[0]
    if not isinstance(value, Node) or not isinstance(value.op, TupleGetItem):
        return -1
    of = value.inputs[0]
    return value.op.index if isinstance(of, Node) and isinstance(of.op, FlashAttentionScoreGrad) else -1


def _base(value: Value) -> Value:
    """Return the value before reshapes and at most one cast."""
    changed = False
    while isinstance(value, Node) and isinstance(value.op, Reshape | Cast):
        if isinstance(value.op, Cast):
            if changed:
                return value
            changed = True
        value = value.inputs[0]
    return value


def _sums_rows(node: Node, columns: int) -> bool:
    op, shape = node.op, node.inputs[0].shape
    assert isinstance(op, ReduceSum)
    return not op.keep_dims and shape[-1] == columns and sorted(op.axes(len(shape))) == list(range(len(shape) - 1))


# Weighs whether products of one operand are to be one, by bytes: what it saves, and what has to be copied for it.
#
# A product takes a time that does not depend on its size, in which it fills the multiprocessors and empties them
# again: so much is saved for every product less. Products for the gradient of the operand need not be written one by
# one, to be added up. On the other side, parts of a joined result that no fused kernel reads are copied, and so are
# gradients that no fused kernel makes; where a kernel makes several gradients of the same operands, it would read
# these for every one. Gradients of weights are copied, too: updates and collectives read them one by one.


START = 15 << 20
"""Bytes that could be moved while a product fills and empties a GPU: 5e-6 s of an H100. Of 8192 rows of 1024 BFloat16
the products with 1024, 256 and 256 columns take 30, 12.5 and 12 us, and the one with 1536 columns 42."""
HELD = 3
"""Bytes moved that one held for longer is worth."""
PACK = 16
"""Bytes at whose multiples the parts of a row should begin."""


@dataclass(frozen=True)
class Joins:
    """Which products are to be one: forward, those for the gradient of the operand, those for the weights'."""

    forward: bool = False
    inputs: bool = False
    weights: bool = False


def best(
    graph: ProductGraph, group: AlikeProducts, gradients: AlikeGradients | None, may: Joins
) -> tuple[Joins, float]:
    """Return the joins that save most, and how many bytes."""
    fewer = len(group.products) - 1
    forward = fewer * START - _copied_parts(graph, group) if may.forward else 0.0
    again = _gradient_bytes(group, gradients) if gradients is not None else 0.0
    x = fewer * (START + 2 * group.x.type.nbytes)
    own = sum(2 * value.type.nbytes for value in gradients.bases) if gradients is not None else 0
    apart = sum(2 * node.type.nbytes for node in gradients.weights) if gradients is not None else 0
    joined, single = _weight_bytes(graph, group)
    # Products for the operand that stay read the weights one by one.
    readers = (node for value in group.weights for node in graph.multiplied.get((content(value), 1), ()))
    alone = any(node.op != group.op and node not in graph.taken for node in readers)
    found, most = Joins(), 0.0
    for of in choices((False, True), repeat=3):
        joins = Joins(*of)
        if joins.forward > may.forward or joins.inputs > may.inputs or joins.weights > may.weights:
            continue
        saved = joins.forward * forward + joins.inputs * x + joins.weights * (fewer * START - apart)
        if joins.inputs or joins.weights:
            saved -= again
            if gradients is not None and (not joins.inputs, not joins.weights) != (
                not gradients.inputs, not gradients.weights,
            ):  # fmt: skip
                saved -= own  # read one by one as well
        if joins.forward or joins.inputs:
            saved -= joined
            if not joins.forward or alone or (gradients is not None and bool(gradients.inputs) and not joins.inputs):
                saved -= single
        if saved > most:
            found, most = joins, saved
    return found, most


def free_parts(graph: ProductGraph, group: AlikeProducts) -> list[int]:
    """Return the matmuls whose parts of a joined result need not be copied."""
    return [i for i in range(len(group.products)) if _aligned(group) and _is_taken_in(graph, _part(group, i))]


def _part(group: AlikeProducts, index: int) -> Node:
    return group.adds[index] if group.adds else group.products[index]


def _copied_parts(graph: ProductGraph, group: AlikeProducts) -> float:
    """Return the cost of the result's parts: copies, and memory held for another part that the gradients read."""
    parts = [_part(group, i) for i in range(len(group.products))]
    whole = group.attention or _aligned(group)
    cost = sum(2 * v.type.nbytes for v in parts if not whole or not _is_taken_in(graph, v, group.attention))
    late = [any(user.phase != "forward" for user in _readers(graph, v)) for v in parts]
    if any(late) and parts[0].phase == "forward":
        cost += sum(HELD * v.type.nbytes for v, needed in zip(parts, late, strict=True) if not needed)
    return cost


def _aligned(group: AlikeProducts) -> bool:
    size = group.products[0].tensor_type.dtype.itemsize
    return all(columns * size % PACK == 0 for columns in group.columns)


def _readers(graph: ProductGraph, value: Value) -> list[Node]:
    found: list[Node] = []
    waiting = [value]
    while waiting:
        for reader, _ in graph.users.get(waiting.pop(), ()):
            (waiting if isinstance(reader.op, Reshape) else found).append(reader)
    return found


@iterative
def _is_taken_in(graph: ProductGraph, value: Value, attention: bool = False) -> Generator[Any, bool, bool]:
    """Return True if all readers of a value can read it as part of a larger one.

    These are kernels by element or along rows, moves of elements, and an attention with three such operands. An
    epilogue of the matmul is then a kernel of its own.
    """
    readers = _readers(graph, value)
    if value in graph.results or not readers:
        return False
    for reader in readers:
        if len(readers) == 1 and isinstance(reader.op, GeLU | GeLUGrad | Add | AddN) and reader.type == value.type:
            return False
        if adds_bias(reader) and not (yield graph, reader):
            return False
        fits_kernels = any(kind(reader.op) for kind in (by_element, moves_elements, along_rows, closes, divides))
        if not fits_kernels and not (attention and isinstance(reader.op, Attention)):
            return False
    return True


def _gradient_bytes(group: AlikeProducts, gradients: AlikeGradients) -> float:
    """Return the cost of joining the gradients in bytes."""
    if group.attention and not gradients.others:
        return 0
    cost = 0.0
    shared: list[set[Value]] = []
    for base in gradients.bases:
        read = _sources(base) if base not in gradients.others and _aligned(group) else None
        if read is None:
            cost += 2 * base.type.nbytes
        else:
            shared.append(read)
    whole = set[Value]().union(*shared)
    return cost + sum(v.type.nbytes for read in shared for v in read) - sum(v.type.nbytes for v in whole)


def _sources(value: Value) -> set[Value] | None:
    """Return the operands of the kernel that makes the value element by element; None if there is none, or one along
    rows."""
    found: set[Value] = set()
    waiting, seen = [value], set[Value]()
    while waiting:
        at = waiting.pop()
        if at in seen or isinstance(at, Constant):
            continue
        seen.add(at)
        inside = isinstance(at, Node) and (by_element(at.op) or moves_elements(at.op) or isinstance(at.op, Reshape))
        if isinstance(at, Node) and (closes(at.op) or along_rows(at.op)) and at.phase != "forward":
            return None
        if isinstance(at, Node) and isinstance(at.op, TupleGetItem):
            of = at.inputs[0]
            if isinstance(of, Node) and divides(of.op):
                waiting += of.inputs
                continue
        if not inside or len(seen) > MAX_LINES:
            found.add(at)
        else:
            waiting += cast(Node, at).inputs
    return None if value in found else found


def _weight_bytes(graph: ProductGraph, group: AlikeProducts) -> tuple[int, int]:
    """Return the cost of joining the weights at every step, and of making them one by one.

    Updates keep joined parameters and their halves up to date at the price of writing them; copies in a type other than
    the parameter's are there in any case.
    """
    joined = single = 0
    for value in group.weights:
        size = value.type.nbytes
        source = value.inputs[0] if isinstance(value, Node) and isinstance(value.op, Cast) else value
        kept = isinstance(source, Parameter) and source in graph.changed
        if source is not value:
            joined += 0 if kept else 2 * size
            single += source.type.nbytes + size
        else:
            joined += HELD * size if kept else 2 * size
    return joined, single
