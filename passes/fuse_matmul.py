"""Joins what follows a matrix product to it: cuBLASLt then writes memory once where two operators wrote it twice.

Input:  %1 = MatMul(%x, %w); %2 = GeLU(%1); later %9 = GeLUGrad(%8, %1, %2)
Output: %1 = FusedMatMul(%x, %w) {activation: "gelu", keeps_before: true}, whose second element GeLUGrad reads.

Joined are a bias and another tensor that are added, GeLU, and the product with GeLU's derivative of a product that
nobody else reads. A sum of several products becomes a chain in which each adds to the one before. Element types and
shapes must agree: what is broadcast stays where it is, except a bias.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import TensorType, Type
from mspc.ops.activation import GeLU, GeLUGrad
from mspc.ops.arithmetic import Add, AddN
from mspc.ops.fused_matmul import FusedMatMul
from mspc.ops.matmul import BatchMatMul, BiasAdd, MatMul
from mspc.ops.op import Op
from mspc.ops.structural import TupleGetItem
from mspc.passes.base import Pass
from mspc.passes.execute import Execute


@dataclass(frozen=True)
class FuseMatmul(Pass):
    """Replace products and what follows them by FusedMatMul."""

    def run(self, graph: Graph) -> bool:
        changed = Execute().run(graph)  # a reader that nobody needs would keep its product apart
        return _Joining(graph).run() or changed


class _Joining:
    """One walk over the nodes in their order; a product waits until its reader is met, and takes its place."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = graph.users()
        self.results = set(graph.results)
        self.gone: set[Node] = set()
        self.made: dict[Node, list[Node]] = {}
        self.replaced: dict[Value, Value] = {}
        self.products: set[Value] = set()
        self.changed_after = _first_changes(graph)

    def run(self) -> bool:
        for index, node in enumerate(self.graph.nodes):
            op = node.op
            if isinstance(op, MatMul | BatchMatMul):
                self.products.add(node)
            elif isinstance(op, BiasAdd):
                self._add(node, index, (0,))
            elif isinstance(op, Add) and len(node.inputs) == 2:
                self._add(node, index, (0, 1))
            elif isinstance(op, AddN):
                self._sum(node, index)
            elif isinstance(op, GeLU):
                self._activate(node)
            elif isinstance(op, GeLUGrad):
                self._multiply(node, index)
        if not self.made:
            return False
        nodes: list[Node] = []
        for node in self.graph.nodes:
            nodes.extend(self.made.get(node, ()))
            if node not in self.gone:
                nodes.append(node)
        self.graph.nodes = nodes
        self.graph.replace(self.replaced)
        return True

    # What is joined

    def _add(self, node: Node, index: int, candidates: tuple[int, ...]) -> None:
        for place in candidates:
            product, other = self._now(node.inputs[place]), node.inputs[1 - place]
            if not self._joinable(node.inputs[place], index) or product.type != node.type:
                continue
            op = _as_fused(product)
            if other.type == node.type and not op.addend and not op.bias and other is not node.inputs[place]:
                self._take(product, node, replace(op, addend=True), [*product.inputs, other])
                return
            if not op.bias and _is_bias(node, other.type):
                self._take(product, node, replace(op, bias=True), [*product.inputs, other])
                return

    def _sum(self, node: Node, index: int) -> None:
        joined = [v for v in dict.fromkeys(node.inputs) if self._joinable(v, index) and node.inputs.count(v) == 1]
        joined = [v for v in joined if not _as_fused(self._now(v)).addend and v.type == node.type]
        others = [v for v in node.inputs if v not in joined]
        if not joined or len(others) > 1 or (not others and len(joined) < 2):
            return
        total: Value = others[0] if others else self._now(joined.pop(0))
        for value in joined[:-1]:
            product = self._now(value)
            op = replace(_as_fused(product), addend=True)
            total = self._link(product, node, op, [*product.inputs[:2], total, *product.inputs[2:]])
        last = self._now(joined[-1])
        op = replace(_as_fused(last), addend=True)
        self._take(last, node, op, [*last.inputs[:2], total, *last.inputs[2:]])

    def _activate(self, node: Node) -> None:
        source = node.inputs[0]
        product = self._now(source)
        if not self._is_product(product) or _as_fused(product).activation or node.type != product.type:
            return
        kept = len(self._readers(source)) > 1 or source in self.results
        op = replace(_as_fused(product), activation="gelu", keeps_before=kept)
        place = self._place_of(product)
        assert isinstance(product, Node)
        if not kept:
            fused = self._new(op, product.inputs, node.type, product, node)
            self._put(product, place, [fused])
            self._forget(node, fused)
            return
        pair = self._new(op, product.inputs, op.infer(*[v.type for v in product.inputs]), product, node)
        first = self._new(TupleGetItem(0), [pair], node.type, node, node)
        second = self._new(TupleGetItem(1), [pair], product.type, product, product)
        self._put(product, place, [pair, first, second])
        self._forget(node, first)
        self._forget(product, second)
        self.replaced[source] = second

    def _multiply(self, node: Node, index: int) -> None:
        product = self._now(node.inputs[0])
        if not self._joinable(node.inputs[0], index) or _as_fused(product) != _plain(product):
            return
        before = node.inputs[1]
        if before.type != node.type or product.type != node.type or before is node.inputs[0]:
            return
        self._take(product, node, replace(_as_fused(product), activation="gelu_gradient"), [*product.inputs, before])

    # How

    def _now(self, value: Value) -> Node:
        """What stands for a value now; any node when it is none."""
        value = self.replaced.get(value, value)
        return value  # type: ignore[return-value]  # callers ask `_is_product` first

    def _is_product(self, value: Value) -> bool:
        return isinstance(value, Node) and (value in self.products)

    def _readers(self, value: Value) -> list[Node]:
        return [user for user, _ in self.users.get(value, ())]

    def _joinable(self, value: Value, index: int) -> bool:
        """Whether a product may move down to its one reader, at `index`: what it reads is still the same there."""
        product = self._now(value)
        if not self._is_product(product) or len(self._readers(value)) != 1 or value in self.results:
            return False
        if isinstance(product.op, FusedMatMul) and product.op.activation:
            return False
        return all(self.changed_after.get(v, index) >= index for v in product.inputs)

    def _new(self, op: Op, inputs: list[Value], type: Type, like: Node, last: Node) -> Node:
        """A node of the product's name at the last operator's lines, which lists what it does."""
        name = like.name if not isinstance(op, TupleGetItem) else last.name
        made = Node(op, inputs, type, name, like.instance, like.scope, last.frames, last.phase)
        made.attrs = {**like.attrs, **{k: v for k, v in last.attrs.items() if k not in like.attrs}}
        made.attrs.pop("fused", None)
        if not isinstance(op, TupleGetItem):
            made.attrs["fused"] = tuple(dict.fromkeys([*_names(like), *_names(last)]))
        if isinstance(op, FusedMatMul):
            self.products.add(made)
        return made

    def _link(self, product: Node, at: Node, op: FusedMatMul, inputs: list[Value]) -> Node:
        """A product that adds to a sum, in front of the sum's node."""
        made = self._new(op, inputs, at.type, product, product)
        self._drop(product)
        self.made.setdefault(at, []).append(made)
        return made

    def _take(self, product: Node, node: Node, op: FusedMatMul, inputs: list[Value]) -> None:
        """The product, with more joined to it, takes the place of its reader."""
        ordered = _ordered(op, inputs, product)
        made = self._new(op, ordered, node.type, product, node)
        self._drop(product)
        self.made.setdefault(node, []).append(made)
        self._forget(node, made)

    def _put(self, product: Node, place: Node, nodes: list[Node]) -> None:
        """New nodes in the place of a product that stays where it is."""
        held = self.made.get(place)
        if held is not None and product in held:
            at = held.index(product)
            held[at : at + 1] = nodes
        else:
            self.made[product] = nodes
            self.gone.add(product)
        self.products.discard(product)

    def _place_of(self, product: Node) -> Node:
        return next((at for at, held in self.made.items() if product in held), product)

    def _drop(self, product: Node) -> None:
        for held in self.made.values():
            if product in held:
                held.remove(product)
        self.gone.add(product)
        self.products.discard(product)

    def _forget(self, node: Node, made: Node) -> None:
        """`made` stands for `node` from now on."""
        self.gone.add(node)
        for value, now in list(self.replaced.items()):
            if now is node:
                self.replaced[value] = made
        self.replaced[node] = made


def _names(node: Node) -> list[str]:
    return list(node.attrs["fused"]) if "fused" in node.attrs else [node.label]


def _plain(product: Node) -> FusedMatMul:
    op = product.op
    assert isinstance(op, MatMul | BatchMatMul | FusedMatMul)
    return FusedMatMul(op.transpose_a, op.transpose_b)


def _as_fused(product: Node) -> FusedMatMul:
    return product.op if isinstance(product.op, FusedMatMul) else _plain(product)


def _ordered(op: FusedMatMul, inputs: list[Value], product: Node) -> list[Value]:
    """x, y, addend, bias, before: what came last stands last in `inputs`."""
    had = _as_fused(product)
    if op.addend and not had.addend and had.bias:
        return [*inputs[:2], inputs[-1], *inputs[2:-1]]
    return inputs


def _is_bias(node: Node, type: Type) -> bool:
    assert isinstance(node.type, TensorType)
    if not isinstance(type, TensorType) or type.dtype != node.type.dtype or type.shape != node.type.shape[-1:]:
        return False
    return not isinstance(node.op, BiasAdd) or node.op.channel(len(node.type.shape)) == len(node.type.shape) - 1


def _first_changes(graph: Graph) -> dict[Value, int]:
    """The index of the first node that changes a parameter, by parameter."""
    found: dict[Value, int] = {}
    for index, node in enumerate(graph.nodes):
        mutates: tuple[int, ...] = getattr(node.op, "mutates", ())
        for place in mutates:
            if place < len(node.inputs):
                found.setdefault(node.inputs[place], index)
    return found
