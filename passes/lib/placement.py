"""Layouts of operands and results as facts of nodes, and the bytes that ranks send between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_layouts, element_types, operand_types
from mspc.ir.layout import Axes, Layout
from mspc.ir.types import TensorType, TupleType
from mspc.ops.collective.collectives import AllReduce, Redistribute, ReduceScatter
from mspc.ops.control.regions import MakeStack, TurnCount
from mspc.ops.control.structural import Back, Depend, Handed, MakeTuple, TupleGetItem, is_constraint
from mspc.ops.math.arithmetic import AddN
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast
from mspc.passes.lib.batch_rows import own_rows
from mspc.passes.lib.choices import ShardingChoice, composite_conflict, exchanges, make_choice
from mspc.passes.lib.redistribution import plan
from mspc.sharding.rules import Rule


def readers_of(nodes: Sequence[Node]) -> dict[Value, list[Node]]:
    """Return the nodes that read each value, one as often as it does."""
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    return readers


def sources_of(value: Value) -> Iterator[Value]:
    """Yield a value and all values that it is computed from."""
    found, seen = [value], {value}
    for each in found:  # it becomes longer
        yield each
        more = [operand for operand in each.inputs if operand not in seen] if isinstance(each, Node) else []
        seen.update(more)
        found += more


def operand_layouts(node: Node) -> tuple[Layout | None, ...]:
    """Return the layouts of the operands; None for constants and undecided parameters, which allow any."""
    return tuple(
        v.layout if isinstance(v.layout, Layout) and not isinstance(v, Constant) else None for v in node.inputs
    )


def structural_layout(node: Node, ranks: int) -> bool:
    """Give a tuple, an element or an ordering the layout of its members; return whether it is known."""
    if node.layout is not None:
        return True
    if isinstance(node.op, MakeStack):
        node.layout = node.inputs[0].layout
    elif isinstance(node.op, MakeTuple):
        layouts = [v.layout for v in node.inputs]
        if all(isinstance(layout, Layout) for layout in layouts):
            node.layout = cast(tuple[Layout, ...], tuple(layouts))
    elif isinstance(node.op, TupleGetItem):
        layouts = node.inputs[0].layout
        if isinstance(layouts, tuple):
            node.layout = layouts[node.op.index]
    elif isinstance(node.op, Redistribute):  # of an out_strategy, if layouts are decided again
        node.in_layouts, node.layout = (node.op.source,), node.op.target
    elif isinstance(node.op, TurnCount):
        entries = node.inputs[0].layout
        if isinstance(entries, Layout):  # every rank has as many entries, whatever it has of each
            node.in_layouts, node.layout = (entries,), Layout.replicated(ranks, 0)
    elif isinstance(node.op, Back):
        before = node.inputs[0].layout
        if isinstance(before, Layout):
            node.layout = before
            node.in_layouts = (before, before)
    elif node.inputs:
        first = node.inputs[0]
        if isinstance(first, Constant):
            node.layout = Layout.replicated(ranks, len(first.shape))
        elif isinstance(first.layout, Layout) and not isinstance(node.op, Depend):
            node.layout = first.layout.without_partial()
            node.in_layouts = (node.layout,)
        else:
            node.layout = first.layout
    return node.layout is not None


def followers(graph: Graph, rules: Mapping[Node, Rule | None]) -> dict[Node, list[Node]]:
    """For operators with a rule the structural nodes (those without) that take their layout from them, in run order."""
    found: dict[Node, list[Node]] = {}
    origins: dict[Value, list[Node]] = {}
    of_elements: dict[Value, list[list[Node]]] = {}  # of tuples, since one element is taken out of them again
    for node in graph.nodes:
        if rules[node] is not None:
            origins[node] = [node]
            continue
        first = node.inputs[0] if node.inputs else None
        if isinstance(node.op, MakeTuple):
            elements = of_elements[node] = [origins.get(value, []) for value in node.inputs]
            origins[node] = [origin for each in elements for origin in each]
        elif isinstance(node.op, TupleGetItem) and first in of_elements:
            origins[node] = of_elements[first][node.op.index]
        elif first is not None and not isinstance(node.op, Handed):
            origins[node] = origins.get(first, [])
            if first in of_elements and isinstance(node.type, TupleType):
                of_elements[node] = of_elements[first]
        else:
            origins[node] = []
        for origin in dict.fromkeys(origins[node]):
            found.setdefault(origin, []).append(node)
    return found


def batch_choice(node: Node, rule: Rule, ranks: int) -> ShardingChoice:
    """Shard the first dimension of the operator's main input into as many slices as ranks allow, and nothing else.

    The main input is the first with the most dimensions that is neither parameter nor constant; an operator of
    parameters alone is replicated. If that would not give slices of the result (of a tensor that is repeated), the
    result's first dimension is sharded instead.
    """
    order = sorted(range(len(rule.inputs)), key=lambda i: (_is_state(node.inputs[i]), -len(rule.inputs[i]), i))
    replicated: list[Axes] = [()] * len(rule.names)
    main = node.inputs[order[0]] if order else None
    is_weight = main is not None and _is_state(main) and not isinstance(main, Constant)
    for dims in (rule.inputs[order[0]], rule.outputs[0]) if order and not is_weight else ():
        factor = dims[0][0] if dims and dims[0] else -1
        if factor < 0 or factor in rule.frozen:
            break
        choice = _shard_factor(rule, factor, ranks)
        if choice is not None:
            return choice
    return make_choice(rule, (1, ranks), replicated)


def batch_choices(node: Node, rule: Rule, ranks: int) -> tuple[ShardingChoice, ...]:
    """Return `batch_choice` and, if that leaves a partial result (of a table, or of a sum over sharded dimensions), the
    shardings of the first dimensions of inputs and result that are dimensions of the result."""
    first = batch_choice(node, rule, ranks)
    if not any(layout.partial for layout in first.outputs):
        return (first,)
    found = [first]
    for dims in (*rule.inputs, rule.outputs[0]):
        choice = _shard_factor(rule, dims[0][0], ranks) if dims and dims[0] else None
        if choice is not None and not any(layout.partial for layout in choice.outputs):
            found.append(choice)
    return tuple(dict.fromkeys(found))


def _shard_factor(rule: Rule, factor: int, ranks: int) -> ShardingChoice | None:
    """Return one factor sharded over as many ranks as possible, or None if that would not give slices of every
    tensor."""
    shards = math.gcd(rule.sizes[factor], ranks)
    axes: list[Axes] = [(0,) if f == factor else () for f in range(len(rule.names))]
    if factor in rule.frozen or composite_conflict(rule, (shards, ranks // shards), axes):
        return None
    return make_choice(rule, (shards, ranks // shards), axes)


def _is_state(value: Value) -> bool:
    value = stored(value) or value
    return isinstance(value, Constant) or (isinstance(value, Parameter) and value.kind != "input")


def stored(value: Value) -> Parameter | None:
    """Return the parameter that `value` is, or is in another element type or held to a constraint; None for all
    else."""
    while isinstance(value, Node) and (isinstance(value.op, Cast) or is_constraint(value)):
        value = value.inputs[0]
    return value if isinstance(value, Parameter) else None


def is_master(parameter: Parameter | None) -> bool:
    """Return whether this is a parameter that operators may read in another element type than it is stored in."""
    return parameter is not None and parameter.kind == "parameter"


def result_layouts(graph: Graph) -> dict[Value, Layout]:
    """Return how the caller receives the results: replicated, or, if the header says `outputs: batch`, its own rows."""
    ranks = int(graph.attrs.get("ranks", 1))
    tensors = [value for value in graph.results if element_types(value.type) == (value.type,)]
    shaped = [value for value in tensors if value.shape] if graph.attrs.get("outputs") == "batch" else []
    rows = own_rows(graph, shaped) if shaped else {}
    return {value: rows.get(value) or Layout.replicated(ranks, len(value.shape)) for value in tensors}


# The same accounting serves the pass that chooses layouts and the one that inserts redistributions: every value is
# brought once to each layout that somebody needs, from the cheapest copy that exists by then.


MESSAGE = 1e-3
COLLECTIVE = 1e-2
"""The weight of a message and of a collective in bytes: too little to outweigh any."""


class Traffic:
    """Costs over one graph whose nodes get their layouts step by step."""

    def __init__(self, graph: Graph) -> None:
        self.users = graph.users()
        self._readers = {
            value: [
                (node, index, isinstance(node.op, AddN))
                for node, index in users
                if "unused" not in node.attrs and not (isinstance(node.op, Op) and index in node.op.exchanged)
            ]
            for value, users in self.users.items()
        }
        self.required: dict[Value, Layout] = {}
        """Layouts in which the caller wants the graph's results."""

    def move(self, value: Value, target: Layout) -> float:
        """Return the bytes to bring a value to `target`, besides those that its decided readers already need."""
        return cheapest_source(value, self.needs(value), target)[0]

    def spared(self, node: Node, index: int, option: ShardingChoice) -> float:
        """Return the bytes of `move` that exchanging rows saves, if an operand is sharded along its rows."""
        value, made = node.inputs[index], option.outputs[0]
        gathered = self.move(value, option.inputs[index])
        own = value.layout
        if not gathered or not isinstance(own, Layout) or own.partial or made.partial or isinstance(value, Constant):
            return 0.0
        held, result = slice_bytes(value.tensor_type, own), slice_bytes(node.tensor_type, made)
        return max(0.0, gathered - cast(Op, node.op).exchanged_bytes(held, result))

    def needs(self, value: Value) -> list[Layout]:
        """Return the distinct layouts that decided readers need, in run order; sums take their terms as they are."""
        found: list[Layout] = []
        for node, index, adds in self._readers.get(value, ()):
            in_layouts = node.in_layouts
            if in_layouts is None or (adds and [other.layout for other in node.inputs].count(value.layout) > 1):
                continue
            layout = in_layouts[index]
            if layout is not None and layout not in found:
                found.append(layout)
        required = self.required.get(value)
        if required is not None and required not in found:
            found.append(required)
        return found

    def of_edge(self, reader: Node, index: int) -> float:
        """Return the bytes to bring one reader its operand."""
        target = reader.in_layouts[index] if reader.in_layouts is not None else None
        return 0.0 if target is None else cheapest_source(reader.inputs[index], [], target)[0]

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


def slice_bytes(type: TensorType, layout: Layout) -> float:
    """Return the bytes of a rank's slice of a tensor."""
    return math.prod(layout.local_shape(type.shape)) * type.dtype.itemsize


def bytes_between(source: Layout, target: Layout, type: TensorType) -> float:
    """Mean bytes that a rank sends, with a trifle per message and collective so that of equal plans the shorter wins;
    infinite if there is no way (a final value does not become partial again)."""
    return 0.0 if source == target else _bytes(source, target, type.shape, type.dtype.itemsize)


@lru_cache(maxsize=16384)
def _bytes(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> float:
    try:
        found = plan(source, target, shape, itemsize)
    except MspcError:
        return math.inf
    return found.nbytes + MESSAGE * found.messages + COLLECTIVE * found.collectives


def cheapest_source(value: Value, have: list[Layout], target: Layout) -> tuple[float, Layout | None]:
    """Return (bytes, layout to start from) to bring `value` to `target` from its own layout or a copy in `have`."""
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
    """Return the least that combining a partial value costs: a reduce-scatter over its partial axes."""
    group = layout.size_of(layout.partial)
    return ReduceScatter.sent_bytes(math.prod(layout.local_shape(shape)) * itemsize, group)


def gradient_bytes(node: Node, option: ShardingChoice, rule: Rule | None) -> float:
    """Estimate the bytes that the gradients of a forward operator will send: a gradient is partial over every axis that
    shards the operator but not its input; a parameter's is reduced to all its holders, another may be scattered."""
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
    """Return the work of the busiest rank as a multiple of the mean over all ranks, for operands with these layouts."""
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
