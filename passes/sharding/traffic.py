"""Counts what a placement costs: bytes that the redistributions between operators make a rank send.

The same accounting serves the pass that chooses layouts and the one that inserts redistributions: every value
is brought once to each layout that somebody needs, from the cheapest copy that exists by then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Value, element_layouts, operand_types
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import AllReduce, ReduceScatter
from mspc.ops.math.arithmetic import AddN
from mspc.ops.op import Op
from mspc.passes.communication.redistribution_plan import plan
from mspc.passes.sharding.choices import ShardingChoice, exchanges
from mspc.passes.sharding.placement import stored
from mspc.sharding.factors import Rule

MESSAGE = 1e-3
COLLECTIVE = 1e-2
"""What a message and a collective count, in bytes: too little to outweigh any."""


class Traffic:
    """Costs over one graph whose nodes get their layouts step by step."""

    def __init__(self, graph: Graph) -> None:
        self.users = graph.users()
        self._readers = {
            value: [(node, index, isinstance(node.op, AddN)) for node, index in users
                    if "unused" not in node.attrs and not (isinstance(node.op, Op) and index in node.op.exchanged)]
            for value, users in self.users.items()
        }
        self.required: dict[Value, Layout] = {}
        """Layouts in which the caller wants the graph's results."""

    def move(self, value: Value, target: Layout) -> float:
        """Bytes to bring a value to `target` given what its decided readers already need."""
        return cheapest_source(value, self.needs(value), target)[0]

    def spared(self, node: Node, index: int, option: ShardingChoice) -> float:
        """Bytes of `move` that exchanging rows of an operand spares, which lies in slices of its rows."""
        value, made = node.inputs[index], option.outputs[0]
        gathered = self.move(value, option.inputs[index])
        own = value.layout
        if not gathered or not isinstance(own, Layout) or own.partial or made.partial or isinstance(value, Constant):
            return 0.0
        held, result = _slice_bytes(value.tensor_type, own), _slice_bytes(node.tensor_type, made)
        return max(0.0, gathered - cast(Op, node.op).exchanged_bytes(held, result))

    def needs(self, value: Value) -> list[Layout]:
        """The distinct layouts that decided readers need, in run order; sums take their terms as they are."""
        found: list[Layout] = []
        for node, index, adds in self._readers.get(value, ()):
            in_layouts = node.in_layouts
            if in_layouts is None or (adds and _added_first(node, value)):
                continue
            layout = in_layouts[index]
            if layout is not None and layout not in found:
                found.append(layout)
        required = self.required.get(value)
        if required is not None and required not in found:
            found.append(required)
        return found

    def of_value(self, value: Value) -> float:
        """Bytes spent to bring a value to all its readers."""
        own = value.layout
        if own is None or isinstance(own, tuple) or isinstance(value, Constant):
            return 0.0
        total = 0.0
        have: list[Layout] = []
        for target in self.needs(value):
            if target != own:
                total += cheapest_source(value, have, target)[0]
                have.append(target)
        return total

    def of_sum(self, node: Node) -> float:
        """Bytes spent inside an AddN: terms of one layout are added first and redistributed once."""
        if not isinstance(node.op, AddN) or node.in_layouts is None:
            return 0.0
        target = node.in_layouts[0]
        assert target is not None
        layouts = [v.layout for v in node.inputs]
        groups = {
            v.layout: v.tensor_type
            for v in node.inputs
            if isinstance(v.layout, Layout) and v.layout != target and layouts.count(v.layout) > 1
        }
        return sum(bytes_between(layout, target, type) for layout, type in groups.items())


def _slice_bytes(type: TensorType, layout: Layout) -> float:
    return math.prod(layout.local_shape(type.shape)) * type.dtype.itemsize


def _added_first(node: Node, value: Value) -> bool:
    """Whether `value` is a term of a sum that is added to others of its layout before the sum is redistributed."""
    return [other.layout for other in node.inputs].count(value.layout) > 1


def bytes_between(source: Layout, target: Layout, type: TensorType) -> float:
    """Mean bytes that a rank sends, with a trifle per message and collective so that of equal plans the shorter
    wins; infinite where there is no way (a final value does not become partial again)."""
    return 0.0 if source == target else _bytes(source, target, type.shape, type.dtype.itemsize)


@lru_cache(maxsize=16384)
def _bytes(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> float:
    try:
        found = plan(source, target, shape, itemsize)
    except MspcError:
        return math.inf
    return found.nbytes + MESSAGE * found.messages + COLLECTIVE * found.collectives


def cheapest_source(value: Value, have: list[Layout], target: Layout) -> tuple[float, Layout | None]:
    """(bytes, layout to start from) to bring `value` to `target` from its own layout or a copy in `have`."""
    own = value.layout
    if isinstance(value, Constant) or not isinstance(own, Layout) or own == target:
        return 0.0, own if isinstance(own, Layout) else None
    type = value.tensor_type
    best, start = bytes_between(own, target, type), own
    for layout in have:
        if layout.partial and layout != target:
            continue
        bytes_sent = 0.0 if layout == target else bytes_between(layout, target, type)
        if bytes_sent < best:
            best, start = bytes_sent, layout
    return best, start


def scatter_bytes(layout: Layout, shape: tuple[int, ...], itemsize: int) -> float:
    """The least that combining a partial value costs: a reduce-scatter over its partial axes."""
    group = layout.size_of(layout.partial)
    return ReduceScatter.sent_bytes(math.prod(layout.local_shape(shape)) * itemsize, group)


def gradient_bytes(node: Node, option: ShardingChoice, rule: Rule | None) -> float:
    """An estimate of what the gradients of a forward operator will send: a gradient is partial over every axis that
    shards what its input does not have; a parameter's is reduced to all its holders, another may be scattered."""
    assert rule is not None
    if not option.work:
        return 0.0  # no elements
    total_shards = math.prod(rule.sizes) / option.work
    found = 0.0
    for value, layout in zip(node.inputs, option.inputs, strict=True):
        type = value.tensor_type
        if isinstance(value, Constant) or not type.dtype.has_gradient:
            continue
        parameter = stored(value)
        if parameter is not None and not parameter.trainable:
            continue
        own = math.prod(layout.strategy)
        group = total_shards / own
        bytes_held = type.nbytes / own
        found += (ReduceScatter if parameter is None else AllReduce).sent_bytes(bytes_held, group)
    return found


def sent_inside(nodes: Iterable[Node]) -> float:
    """Bytes that a rank sends inside of operators, sharded as they are: borders of windows, statistics of a batch."""
    found: dict[Any, float] = {}
    for node in nodes:
        nbytes = _inside(node)
        if nbytes:
            bordered = cast(Op, node.op).bordered
            found[node if bordered is None else (node.inputs[bordered], nbytes)] = nbytes
    return sum(found.values())


def _inside(node: Node) -> float:
    if not exchanges(node):
        return 0.0
    layouts = node.in_layouts or tuple(layout for value in node.inputs for layout in element_layouts(value.layout))
    if None in layouts:
        return 0.0
    return cast(Op, node.op).moved_bytes(operand_types(node), cast("tuple[Layout, ...]", layouts))


def busiest(node: Node, layouts: Sequence[Layout | None]) -> float:
    """How many times the mean over all ranks the one computes that has the most to do, for operands that lie so."""
    if not isinstance(node.op, Op) or None in layouts:
        return 1.0
    return node.op.uneven(operand_types(node), cast("Sequence[Layout]", layouts)).busiest


def work_of(node: Node, rule: Rule | None) -> float:
    """Points of the iteration space that one rank computes, from the layouts that the node has."""
    if rule is None or node.in_layouts is None:
        return 0.0
    return _work(rule, (*node.in_layouts, *element_layouts(node.layout)))


@lru_cache(maxsize=16384)
def _work(rule: Rule, layouts: tuple[Layout | None, ...]) -> float:
    shard_counts: dict[int, int] = {}
    for dims, layout in zip((*rule.inputs, *rule.outputs), layouts, strict=True):
        assert layout is not None
        for dim, shards in zip(dims, layout.strategy, strict=True):
            for f in dim:
                part = math.gcd(shards, rule.sizes[f])
                shard_counts[f] = max(shard_counts.get(f, 1), part)
                shards //= part
    return math.prod(rule.sizes) / math.prod(shard_counts.values())
