"""Places tuples, operators sharded along the batch, and the caller's results, which follow from the graph alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_types
from mspc.ir.layout import Axes, Layout
from mspc.ir.types import TupleType
from mspc.ops.collective.collectives import Redistribute
from mspc.ops.control.borders import Back, Handed
from mspc.ops.control.constraint import is_constraint
from mspc.ops.control.loops import MakeStack, TurnCount
from mspc.ops.control.structural import Depend, MakeTuple, TupleGetItem
from mspc.ops.tensor.cast import Cast
from mspc.passes.sharding.batch import own_rows
from mspc.passes.sharding.choices import ShardingChoice, composite_conflict, make_choice
from mspc.sharding.factors import Rule


def operand_layouts(node: Node) -> tuple[Layout | None, ...]:
    """What is known of the operands; constants and undecided parameters put up no layout."""
    return tuple(
        v.layout if isinstance(v.layout, Layout) and not isinstance(v, Constant) else None for v in node.inputs
    )


def structural_layout(node: Node, ranks: int) -> bool:
    """Give a tuple, an element or an ordering the layout of what it holds; True once it is known."""
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
    elif isinstance(node.op, Redistribute):  # an out_strategy's, which stands already where layouts are decided again
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

    The main input is the first with the most dimensions that is neither parameter nor constant. Where that would
    not give slices of the result (of a tensor that is repeated) the result's first dimension is sharded instead.
    """
    order = sorted(
        range(len(rule.inputs)),
        key=lambda i: (
            _is_state(node.inputs[i]),
            -len(rule.inputs[i]),
            i,
        ),
    )
    replicated: list[Axes] = [()] * len(rule.names)
    for dims in (rule.inputs[order[0]], rule.outputs[0]) if order else ():
        factor = dims[0][0] if dims and dims[0] else -1
        if factor < 0 or factor in rule.frozen:
            break
        choice = _shard_factor(rule, factor, ranks)
        if choice is not None:
            return choice
    return make_choice(rule, (1, ranks), replicated)


def batch_choices(node: Node, rule: Rule, ranks: int) -> tuple[ShardingChoice, ...]:
    """`batch_choice` and, where that leaves a partial result (of a table, or of a sum over what it shards), the
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
    """One factor sharded over as many ranks as possible; None where that would not give slices of every tensor."""
    shards = math.gcd(rule.sizes[factor], ranks)
    axes: list[Axes] = [(0,) if f == factor else () for f in range(len(rule.names))]
    if factor in rule.frozen or composite_conflict(rule, (shards, ranks // shards), axes):
        return None
    return make_choice(rule, (shards, ranks // shards), axes)


def _is_state(value: Value) -> bool:
    value = stored(value) or value
    return isinstance(value, Constant) or (isinstance(value, Parameter) and value.kind != "input")


def stored(value: Value) -> Parameter | None:
    """The parameter that `value` is, or is in another element type or held to a constraint; None for all else."""
    while isinstance(value, Node) and (isinstance(value.op, Cast) or is_constraint(value)):
        value = value.inputs[0]
    return value if isinstance(value, Parameter) else None


def is_master(parameter: Parameter | None) -> bool:
    """Whether this is a parameter that operators may read in another element type than it is stored in."""
    return parameter is not None and parameter.kind == "parameter"


def result_layouts(graph: Graph) -> dict[Value, Layout]:
    """How the caller receives the results: replicated, or, where the header says `outputs: batch`, what is its own
    rows."""
    ranks = int(graph.attrs.get("ranks", 1))
    tensors = [value for value in graph.results if element_types(value.type) == (value.type,)]
    shaped = [value for value in tensors if value.shape] if graph.attrs.get("outputs") == "batch" else []
    rows = own_rows(graph, shaped) if shaped else {}
    return {value: rows.get(value) or Layout.replicated(ranks, len(value.shape)) for value in tensors}
