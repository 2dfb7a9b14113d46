"""Share one sum between sums over the same dimensions of products that differ only by factors constant along these.

Input:  `%1 = ReduceSum(%dy) {axis: (0, 1, 2)}` and `%3 = ReduceMean(%2) {axis: (1, 2)}` of `%2 = Mul(%dy, %gamma)`,
        with images %dy [n, h, w, channels] and a scale of channels: a group norm's gradients in its shift and its image
Output: `%1 = ReduceSum(%dy) {axis: (1, 2)}`, [n, channels]; `ReduceSum(%1) {axis: (0)}` for the first, and `%1` times
        `%gamma` and 1 / (h w) for the second

This saves a pass over memory for every sum but one. The places of a sum are neighbouring dimensions that are
not the last: along rows a kernel adds up its registers anyway. Sums over more places, such as those of all images, add
up the others' results. Factors of a sum's operand are found through views.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import NamedTuple

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Builder, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.fused.body import by_element, reshapes
from mspc.ops.math.arithmetic import Mul
from mspc.ops.math.reduce import ReduceMean
from mspc.ops.tensor.reshape import ReduceSum, as_shape
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead

MAX_FACTORS = 64
"""Factors into which a value is taken apart."""
FEWEST = 16
"""Places of a sum that is worth sharing: what is left of an operand is small beside it."""


class Places(NamedTuple):
    """The part [before, along, behind] of a tensor's elements in memory order; `along` is summed."""

    before: int
    along: int
    behind: int

    def cut(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the first summed dimension of `shape` and the first one after them; None if the boundaries are inside
        dimensions."""
        sizes = [math.prod(shape[:d]) for d in range(len(shape) + 1)]
        if self.before not in sizes or self.before * self.along not in sizes:
            return None
        return sizes.index(self.before), sizes.index(self.before * self.along)


@dataclass
class _Product:
    """The factors of a sum's operand.

    roots: factors of all its elements. scales: (a factor that does not change along the places, the shape that it was
    broadcast to).
    """

    roots: list[Value] = field(default_factory=list[Value])
    scales: list[tuple[Value, tuple[int, ...]]] = field(default_factory=list[tuple[Value, tuple[int, ...]]])

    def key(self) -> object:
        """Return a key equal for products of the same roots in any order."""
        return frozenset(Counter(map(_key, self.roots)).items())


@dataclass(eq=False)
class _Shared:
    """A sum along `places` from which others are found. first: the first of these. factors: of the operands of all."""

    places: Places
    first: Node
    factors: dict[Node, _Product]


class ShareSums(Pass):
    def run(self, graph: Graph) -> bool:
        found = _shared(graph)
        if not found:
            return False
        of = {node: shared for shared in found for node in shared.factors}
        begins = _begins(graph, found)
        nodes: list[Node] = []
        b = Builder(graph, nodes)
        totals: dict[_Shared, Node] = {}
        replaced: dict[Value, Value] = {}
        for node in graph.nodes:
            if node not in of:
                nodes.append(node)
                continue
            begin = len(nodes)
            b.like(node)
            b.phase, b.forward = node.phase, node.forward
            for shared in begins.get(node, ()):
                first = shared.first
                totals[shared] = _total(b, first.inputs[0].shape, shared.factors[first].roots, shared.places)
            shared = of[node]
            replaced[node] = _scaled(b, totals[shared], node, shared.places, shared.factors[node])
            for each in nodes[begin:]:
                each.attrs["fused"] = node.attrs.get("fused", (node.label,))
        graph.nodes = nodes
        graph.replace(replaced)
        remove_dead(graph)
        return True


def _begins(graph: Graph, found: Sequence[_Shared]) -> dict[Node, list[_Shared]]:
    """Return the nodes before which each sum is emitted. A sum that shares an input with an earlier sum is emitted next
    to it, if its operands are there: one pass then makes both."""
    position: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
    updates = Updates(graph)
    begins: dict[Node, list[_Shared]] = defaultdict(list)
    for shared in sorted(found, key=lambda each: position[each.first]):
        product = shared.factors[shared.first]
        roots = set(product.roots)
        made = max(position.get(root, -1) for root in roots)
        beside = (
            first for first, others in begins.items()
            if made < position[first] and any(
                shared.places == other.places and not roots.isdisjoint(other.factors[other.first].roots)
                for other in others
            )
            and not updates.between(product.roots, position[first], position[shared.first])
        )  # fmt: skip
        begins[next(beside, shared.first)].append(shared)
    return begins


def _shared(graph: Graph) -> list[_Shared]:
    """Return the sums that share a pass."""
    alike: dict[object, list[tuple[Node, Places]]] = defaultdict(list)
    for node in graph.nodes:
        if (places := _places(node)) is not None:
            alike[places.before * places.along, places.behind, node.tensor_type.dtype].append((node, places))
    position = {node: i for i, node in enumerate(graph.nodes)}
    updates = Updates(graph)
    found: list[_Shared] = []
    taken: set[Node] = set()
    for sums in alike.values():
        for finest in sorted({places for _, places in sums}, reverse=True):
            groups: dict[object, dict[Node, _Product]] = defaultdict(dict)
            for node, places in sums:
                if node not in taken and finest.before % places.before == 0:
                    product = _product(node.inputs[0], finest)
                    groups[product.key()][node] = product
            for group in groups.values():
                first, product = next(iter(group.items()))
                kept = {node: each for node, each in group.items()
                        if not updates.between(_read(product), position[first], position[node])}  # fmt: skip
                own = any(places == finest for node, places in sums if node in kept)
                if len(kept) > 1 and own and finest.cut(first.inputs[0].shape) is not None:
                    found.append(_Shared(finest, first, kept))
                    taken.update(kept)
    return found


def _places(node: Node) -> Places | None:
    """Return the summed places of a node, if these are neighbouring dimensions before others."""
    if not isinstance(node.op, ReduceSum | ReduceMean) or not isinstance(node.type, TensorType):
        return None
    kind = node.inputs[0].tensor_type
    if kind.dtype.itemsize < 4 or not kind.dtype.is_float:
        return None
    axes = node.op.axes(kind.rank) or tuple(range(kind.rank))
    summed = [d for d in axes if kind.shape[d] != 1]
    if not summed:
        return None
    begin, end = min(summed), max(summed) + 1
    places = Places(*(math.prod(part) for part in (kind.shape[:begin], kind.shape[begin:end], kind.shape[end:])))
    apart = any(kind.shape[d] != 1 and d not in axes for d in range(begin, end))
    return None if apart or places.behind == 1 or places.along < FEWEST else places


def _product(value: Value, places: Places) -> _Product:
    """Return the factors of a value; one that cannot be split is a single factor."""
    found = _Product()
    size = value.tensor_type.size
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Node) and reshapes(each.op):
            waiting.append(each.inputs[0])
            continue
        if not isinstance(each, Node) or not isinstance(each.op, Mul):
            found.roots.append(each)
            continue
        scales = [factor for factor in each.inputs if factor.tensor_type.size < size]
        if len(scales) > 1 or not all(_is_scale(factor, each.shape, places) for factor in scales):
            found.roots.append(each)
            continue
        found.scales += [(factor, each.shape) for factor in scales]
        waiting += [factor for factor in reversed(each.inputs) if factor not in scales]
        if len(found.roots) + len(waiting) > MAX_FACTORS:  # squares of squares have more than can be listed
            return _Product(roots=[value])
    return found


def _is_scale(factor: Value, shape: tuple[int, ...], places: Places) -> bool:
    cut = places.cut(shape)
    return cut is not None and all(n == 1 for n in _aligned(factor.shape, shape)[cut[0] : cut[1]])


def _aligned(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (len(target) - len(shape)) + shape


def _key(root: Value) -> object:
    """Return a key equal for values that the same operator makes element by element of the same operands."""
    if isinstance(root, Node) and by_element(root.op) and not getattr(root.op, "has_side_effect", False):
        return root.op, tuple(map(id, root.inputs))
    return id(root)


def _read(product: _Product) -> Iterable[Value]:
    for root in product.roots:
        yield root
        if isinstance(root, Node):
            yield from root.inputs


def _total(b: Builder, shape: tuple[int, ...], roots: Sequence[Value], places: Places) -> Node:
    first, *others = (as_shape(b, root, shape) for root in roots)
    for other in others:
        first = b.emit(Mul(), first, other)
    cut = places.cut(shape)
    assert cut is not None
    return b.emit(ReduceSum(axis=tuple(range(*cut))), first)


def _scaled(b: Builder, total: Value, node: Node, places: Places, product: _Product) -> Value:
    """Emit a node's result from the shared sum."""
    for scale, shape in product.scales:
        cut = places.cut(shape)
        assert cut is not None
        aligned = _aligned(scale.shape, shape)
        left = (*shape[: cut[0]], *shape[cut[1] :])
        total = b.emit(Mul(), as_shape(b, total, left), as_shape(b, scale, (*aligned[: cut[0]], *aligned[cut[1] :])))
    own = _places(node)
    assert own is not None
    if own.before != places.before:
        apart = (own.before, places.before // own.before, places.behind)
        total = b.emit(ReduceSum(axis=(1,)), as_shape(b, total, apart))
    if isinstance(node.op, ReduceMean):
        total = b.emit(Mul(), total, b.constant(1 / own.along, node.tensor_type.dtype))
    return as_shape(b, total, node.shape)
