"""Finds products of one operand with several weights, the products of their gradients, and sums for their biases."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import cached_property

from mspc.analysis.aliasing import first_changes
from mspc.ir.graph import STAGE, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ir.varying import OpKey
from mspc.ops.collective.base import Collective
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.math.matmul import BiasAdd, MatMul
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.cleanup.simplify import live_values
from mspc.passes.fusion.groups import FARTHEST

Repeated = Reshape | Cast | StridedSlice
"""Operators that a network may repeat for every product; their one operand decides."""
Users = dict[Value, list[tuple[Node, int]]]


@dataclass
class AlikeProducts:
    """Products of one operand with different weights, in the order in which they are to be joined.

    adds: what adds a bias to each, if all have one. attention: whether they are query, key and value of one attention,
    with nothing but reshapes, casts, biases and transposes in between.
    """

    products: list[Node]
    adds: list[Node]
    attention: bool = False

    def some(self, which: Sequence[int]) -> AlikeProducts:
        """Those of some numbers."""
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
    """What reads the gradients of alike products, each list in their order or empty.

    bases: the gradients, before they are reshaped and cast. inputs, weights: the products for the operand and for the
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
        """Those of the products of some numbers."""
        inputs, weights, sums = (
            [nodes[i] for i in which] if nodes else [] for nodes in (self.inputs, self.weights, self.sums)
        )
        behind = [self.behind[i] for i in which] if self.behind else []
        return AlikeGradients([self.bases[i] for i in which], inputs, weights, sums, self.total, behind, self.others)


class ProductGraph:
    """The products of a graph as it was, and who reads what.

    index: positions of the nodes. live: what is needed. users: the readers among them. changed: where a parameter first
    changes. multiplied: products by what operand 0 or 1 holds. taken: products of gradients that were found.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.index: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
        self.live = live_values(graph)
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
        """Those of attentions first; of others those that lie near each other."""
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
        """Runs of products that lie near each other, with different weights."""
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
        """What adds a bias to a product that nothing else reads."""
        value = product
        while (reader := self.only_reader(value)) is not None and isinstance(reader.op, Reshape | Cast):
            value = reader
        if reader is not None and adds_bias(reader) and reader.inputs[0] is value:
            return reader if value.shape[-1] == product.shape[1] else None
        return None

    # Products of gradients

    def gradients(self, group: AlikeProducts) -> AlikeGradients | None:
        """What reads the gradients of these products, each once, if there is anything."""
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

    def is_read_alone(self, group: AlikeProducts) -> bool:
        """Whether products for the operand stay that read the weights one by one."""
        readers = [node for value in group.weights for node in self.multiplied.get((content(value), 1), ())]
        return any(node.op != group.op and node not in self.taken for node in readers)

    def _alone(self, group: AlikeProducts, found: list[Node]) -> list[Node]:
        """Products for the weights alone, where the operand needs no gradient; those of attentions in its order."""
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
        """Find the sums for biases, and other readers."""
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
        """The readers of a value through reshapes and casts."""
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
        """Without one sum of all, the products for the operand stay."""
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
        """Whether these nodes can be made at the place of the last, and what reads the others behind it."""
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
    """Whether a vector is added along the last dimension."""
    if not isinstance(node.op, BiasAdd | Add):
        return False
    x, bias = node.inputs
    if isinstance(node.op, BiasAdd) and node.op.channel(len(x.shape)) != len(x.shape) - 1:
        return False
    return x.type == node.type and bias.type == TensorType(x.tensor_type.dtype, x.shape[-1:])


def _multiplied(value: Value) -> Node | None:
    """The product of which an attention's operand is made."""
    while isinstance(value, Node):
        if isinstance(value.op, MatMul):
            return value
        if not isinstance(value.op, Reshape | Cast | Transpose) and not adds_bias(value):
            return None
        value = value.inputs[0]
    return None


def _operand(value: Value) -> int:
    """Of which operand of an attention a value is the gradient, -1 for none."""
    while isinstance(value, Node) and isinstance(value.op, Reshape | Cast | Transpose):
        value = value.inputs[0]
    if not isinstance(value, Node) or not isinstance(value.op, TupleGetItem):
        return -1
    of = value.inputs[0]
    return value.op.index if isinstance(of, Node) and isinstance(of.op, FlashAttentionScoreGrad) else -1


def _base(value: Value) -> Value:
    """What is reshaped, and cast once at most, to give a value."""
    changed = False
    while isinstance(value, Node) and isinstance(value.op, Reshape | Cast):
        if isinstance(value.op, Cast):
            if changed:
                return value
            changed = True
        value = value.inputs[0]
    return value


def _sums_rows(node: Node, columns: int) -> bool:
    """Whether all dimensions but the last, one of columns, are summed and go."""
    op, shape = node.op, node.inputs[0].shape
    assert isinstance(op, ReduceSum)
    return not op.keep_dims and shape[-1] == columns and sorted(op.axes(len(shape))) == list(range(len(shape) - 1))
