"""Join the operators after a matmul to it: cuBLASLt then writes memory once instead of twice.

Input:  %1 = MatMul(%x, %w); %2 = GeLU(%1); later %9 = GeLUGrad(%8, %1, %2)
Output: %1 = FusedMatMul(%x, %w) {activation: "gelu", keeps_before: true}, whose second element GeLUGrad reads.

Joined are a bias and another tensor that are added, GeLU, and the product with GeLU's derivative of a product that
nobody else reads. A sum of several products becomes a chain in which each adds to the one before. Element types and
shapes must agree: a broadcast operand other than a bias is not joined. If a product of BFloat16 is widened for a
reduction over ranks, it is Float32 at once; so it may be if halves are widened for a sum: if the sum is moved,
multiplied, sent or handed on as it is, so that it would be written in Float32 in any case, as the total of a weight's
gradients over micro-batches. Else the sum is better part of the kernel that works on it, which reads halves.

A reader that nobody needs would keep its product apart, so the graph is cleaned first: once for all passes that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from mspc.analysis.aliasing import first_changes
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import BFLOAT16, FLOAT32, HALVES, TensorType, Type
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.math.matmul import BatchMatMul, BiasAdd, MatMul
from mspc.ops.nn.activation import GeLU, GeLUGrad
from mspc.ops.tensor.reshape import Cast
from mspc.passes.base import WHOLE, Pass
from mspc.passes.fusion.rewriter import Rewriter, fused, parts_of, successor
from mspc.passes.per_rank.execute import Execute


class FuseMatmul(Pass):
    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        changed = Execute().run(graph)
        for each in graph.graphs():
            changed |= _Products(each).run()
        return changed


class _Products(Rewriter):
    """One walk over the nodes in their order; a product waits until its reader is met, and takes its place."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.products: set[Value] = set()
        self.changed_after = first_changes(graph)

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
                if not self._sum(node, index) and len(node.inputs) == 2:
                    self._add(node, index, (0, 1))
            elif isinstance(op, Cast):
                self._widen(node, index)
            elif isinstance(op, GeLU):
                self._activate(node)
            elif isinstance(op, GeLUGrad):
                self._multiply(node, index)
        return self.apply()

    # What is joined

    def _add(self, node: Node, index: int, candidates: tuple[int, ...]) -> None:
        for place in candidates:
            value, other = node.inputs[place], node.inputs[1 - place]
            product = self._movable(value, index)
            op = _as_fused(product) if product is not None else None
            cast: Node | None = None
            if product is None and node in self._wanted_wide:
                cast, product = self._widened(value, index)
                op = replace(_plain(product), wide=True) if product is not None else None
            if product is None or op is None or (cast or product).type != node.type:
                continue
            # Of halves the sums are Float32 inside, and which comes first is nothing beside the rounding that goes.
            free = not op.bias or product.inputs[0].tensor_type.dtype in HALVES
            if other.type == node.type and not op.addend and free and other is not value:
                op = replace(op, addend=True)
            elif not op.bias and _is_bias(node, other.type):
                op = replace(op, bias=True)
            else:
                continue
            # A parameter that is unchanged until here may be read earlier.
            there = isinstance(other, Parameter) and self.changed_after.get(other, index) >= index
            early = cast is not None and there
            self._take(product, node, op, [*product.inputs, other], cast, early)
            return

    def _sum(self, node: Node, index: int) -> bool:
        """Join a sum of matmuls, except for one term at most; return False if it is none."""
        joined: dict[Value, Node] = {}
        for value in node.inputs:
            product = self._movable(value, index)
            if product is not None and not _as_fused(product).addend and value.type == node.type:
                joined[value] = product
        others = [v for v in node.inputs if v not in joined]
        if not joined or len(others) > 1 or (not others and len(joined) < 2):
            return False
        products = list(joined.values())
        total: Value = others[0] if others else products.pop(0)
        for product in products[:-1]:
            # In front of the sum's node, so that the next one can add to it.
            op = replace(_as_fused(product), addend=True)
            made = self._new(op, [*product.inputs[:2], total, *product.inputs[2:]], node.type, product, product)
            self._drop(product)
            self.put(node, [made])
            total = made
        last = products[-1]
        op = replace(_as_fused(last), addend=True)
        self._take(last, node, op, [*last.inputs[:2], total, *last.inputs[2:]])
        return True

    def _widen(self, node: Node, index: int) -> None:
        """Compute a BFloat16 matmul in Float32 if a reduction over ranks alone reads it, in Float32.

        Not one of Float16: it would be finite although a factor of the loss is too large, on several ranks only.
        """
        reader, value = self.only_reader(node), node.inputs[0]
        if reader is None or not reader.op.is_collective or value.tensor_type.dtype != BFLOAT16:
            return
        cast, product = self._widened(node, index)
        if cast is not None and product is not None:
            self._take(product, node, replace(_plain(product), wide=True), list(product.inputs))

    def _activate(self, node: Node) -> None:
        product = self._product(node.inputs[0])
        if product is None or _as_fused(product).activation or _as_fused(product).wide or node.type != product.type:
            return
        stored = self.only_reader(node.inputs[0]) is None
        op = replace(_as_fused(product), activation="gelu", keeps_before=stored)
        self.products.discard(product)
        if not stored:
            made = self._new(op, product.inputs, node.type, product, node)
            self.put_for(product, [made])
            self.replace(node, made)
            return
        pair = self._new(op, product.inputs, op.infer(*[v.type for v in product.inputs]), product, node)
        after, before = successor(pair, 0, node), successor(pair, 1, product)
        self.put_for(product, [pair, after, before])
        self.replace(node, after)
        self.replace(product, before)

    def _multiply(self, node: Node, index: int) -> None:
        value, before = node.inputs[:2]
        product = self._movable(value, index)
        if product is None or _as_fused(product) != _plain(product):
            return
        if before.type != node.type or product.type != node.type or before is value:
            return
        self._take(product, node, replace(_as_fused(product), activation="gelu_gradient"), [*product.inputs, before])

    # How

    def _product(self, value: Value) -> Node | None:
        """Return the product that replaces a value now, if one does."""
        now = self.now(value)
        return now if isinstance(now, Node) and now in self.products else None

    def _movable(self, value: Value, index: int) -> Node | None:
        """Return the matmul that a value is, if it may move to its only reader at `index`: its operands are unchanged
        there."""
        product = self._product(value)
        if product is None or self.only_reader(value) is None:
            return None
        if isinstance(product.op, FusedMatMul) and product.op.activation:
            return None
        same = all(self.changed_after.get(v, index) >= index for v in product.inputs)
        return product if same else None

    def _widened(self, value: Value, index: int) -> tuple[Node, Node] | tuple[None, None]:
        """Return the cast to Float32 that a value is, and its matmul of halves, if nothing else reads either."""
        if not isinstance(value, Node) or not isinstance(value.op, Cast) or self.only_reader(value) is None:
            return None, None
        product = self._movable(value.inputs[0], index)
        if product is None or value.op.dst_type != FLOAT32 or product.tensor_type.dtype not in HALVES:
            return None, None
        return (value, product) if _as_fused(product) == _plain(product) else (None, None)

    @cached_property
    def _wanted_wide(self) -> set[Value]:
        """Return the values that are moved, multiplied or sent unchanged, perhaps after one more sum."""
        found: set[Value] = set(self.results)
        for node in reversed(self.graph.nodes):
            readers = self.readers(node)
            if any(self._wants_wide(reader, found) for reader in readers) or (
                len(readers) == 1
                and isinstance(readers[0].op, Add)
                and readers[0].type == node.type
                and readers[0] in found
            ):
                found.add(node)
        return found

    def _wants_wide(self, reader: Node, wanted: set[Value]) -> bool:
        op = reader.op
        if op.is_view and isinstance(reader.type, TensorType):
            return reader in wanted
        return op.moves or op.is_collective or isinstance(op, MatMul | BatchMatMul)

    def _new(self, op: FusedMatMul, inputs: list[Value], type: Type, like: Node, last: Node,
             between: Sequence[Node] = ()) -> Node:  # fmt: skip
        """Return a node with the matmul's name and the last operator's lines."""
        made = fused(op, inputs, type, like, last, [part for node in (like, *between, last) for part in parts_of(node)])
        self.products.add(made)
        return made

    def _take(
        self, product: Node, node: Node, op: FusedMatMul, inputs: list[Value], cast: Node | None = None,
        early: bool = False,
    ) -> None:  # fmt: skip
        """Replace the reader, and a cast between, by the matmul with more joined to it. early: it keeps its position,
        so that its operands are freed early."""
        between = () if cast is None else (cast,)
        made = self._new(op, _ordered(op, inputs, product), node.type, product, node, between)
        for gone in between:
            self.drop(gone)
        if early:
            self.put_for(product, [made])
            self.products.discard(product)
            self.drop(node)
        else:
            self._drop(product)
            self.put(node, [made])
        self.replace(node, made)

    def _drop(self, product: Node) -> None:
        self.drop(product)
        self.products.discard(product)


def _plain(product: Node) -> FusedMatMul:
    op = product.op
    assert isinstance(op, MatMul | BatchMatMul | FusedMatMul)
    return FusedMatMul(op.transpose_a, op.transpose_b)


def _as_fused(product: Node) -> FusedMatMul:
    return product.op if isinstance(product.op, FusedMatMul) else _plain(product)


def _ordered(op: FusedMatMul, inputs: list[Value], product: Node) -> list[Value]:
    """Return x, y, addend, bias, before; the operand joined last is last in `inputs`."""
    had = _as_fused(product)
    if op.addend and not had.addend and had.bias:
        return [*inputs[:2], inputs[-1], *inputs[2:-1]]
    return inputs


def _is_bias(node: Node, type: Type) -> bool:
    assert isinstance(node.type, TensorType)
    if not isinstance(type, TensorType) or type.dtype != node.type.dtype or type.shape != node.type.shape[-1:]:
        return False
    return not isinstance(node.op, BiasAdd) or node.op.channel(len(node.type.shape)) == len(node.type.shape) - 1
