"""Finds which slices of a value are a rank's own rows: where the dimension along which data are fed goes, by the
operators' factor rules.

Input: `x` fed as `(2) [0, -]`, `%0 = MatMul(%x, %w)`, `%1 = Transpose(%0) {perm: (1, 0)}`. Then the rows are in `%0`
as `(2) [0, -]` and in `%1` as `(2) [-, 0]`; a sum of `%0` over its rows, or `ReLU(%w)`, has none, whatever its size.
This is about what values mean, not about where operators run: one may need a dimension unsharded that still is the
batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.layout import Layout
from mspc.ir.text.families import gradient_names
from mspc.ir.text.fragments import read_layouts
from mspc.ir.text.source_text import Malformed
from mspc.ops.control.structural import Depend, MakeTuple, TupleGetItem
from mspc.ops.tensor.reshape import Reshape
from mspc.passes.sharding.choices import merge, rule_of
from mspc.sharding.factors import Rule

Rows = tuple[Layout | None, ...]
"""For every tensor of a value the slices that are the ranks' own rows, None where it has none."""

ROWS = "rows"
"""Attribute of a gradient: the rows of the value that it belongs to, which no rule tells of one made of constants."""


def own_rows(graph: Graph, wanted: Iterable[Value], nodes: Sequence[Node] | None = None) -> dict[Value, Layout]:
    """The slices that are the ranks' own rows, of those `wanted` tensors that have such slices. `nodes` are the
    graph's where a pass has not yet put them there.

    A gradient lies as the value that it belongs to: that of a parameter is nobody's rows, even if computed row by row.
    """
    ranks = int(graph.attrs.get("ranks", 1))
    found: dict[Value, Rows] = {}
    named: dict[str, Rows] = {}
    for parameter in graph.parameters:
        layout = parameter.layout
        is_sharded = parameter.kind == "input" and isinstance(layout, Layout) and any(layout.dims)
        named[parameter.name] = (layout if is_sharded and isinstance(layout, Layout) else None,)
        found[parameter] = named[parameter.name]
    wanted = list(wanted)
    nodes = graph.nodes if nodes is None else nodes
    needed = _sources(nodes, wanted)
    for node in nodes:
        if node in needed:
            found[node] = _of_node(node, found, named, ranks)
    rows = {value: found[value] for value in wanted if value in found}
    return {value: layouts[0] for value, layouts in rows.items() if len(layouts) == 1 and layouts[0] is not None}


def _sources(nodes: Sequence[Node], wanted: Iterable[Value]) -> set[Value]:
    """The wanted values and all that tell where their rows are."""
    needed = set(wanted)
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.inputs)
            owner = _differentiated(node)
            if owner is not None:
                needed.add(owner)
    return needed


def _differentiated(node: Node) -> Value | None:
    """The value that a node made by differentiation is the gradient of, where it is known."""
    if node.forward is None or node.forward_input < 0 or node.forward_input >= len(node.forward.inputs):
        return None
    value = node.forward.inputs[node.forward_input]
    return value if value.type == node.type else None


def _of_node(node: Node, found: dict[Value, Rows], named: dict[str, Rows], ranks: int) -> Rows:
    if ROWS in node.attrs:
        return (_noted(node, ranks),)
    names = gradient_names(node)
    if names:
        first, *others = [named.get(name, (None,)) for name in names]
        return first if all(other == first for other in others) else (None,)
    owner = _differentiated(node)
    if owner is not None:
        return found.get(owner, (None,))
    none: Rows = (None,) * len(element_types(node.type))
    operands = [found.get(value, (None,) * len(element_types(value.type))) for value in node.inputs]
    layouts = tuple(layout for rows in operands for layout in rows)
    if not any(layouts):
        return none
    if isinstance(node.op, TupleGetItem):
        return (layouts[node.op.index],)
    if isinstance(node.op, MakeTuple | Depend):
        return layouts[: len(none)]
    rule = rule_of(node)
    if rule is None:
        return operands[0] if node.type == node.inputs[0].type else none
    return _through(_thawed(rule), layouts)


def _noted(node: Node, ranks: int) -> Layout:
    """The rows that the node's attribute names. Raises MspcError where a text says nothing that fits."""
    text = str(node.attrs[ROWS])
    try:
        (layout,) = read_layouts(text)
    except (Malformed, ValueError):
        layout = None
    fits = isinstance(layout, Layout) and layout.ranks == ranks and len(layout.dims) == len(node.shape)
    if not isinstance(layout, Layout) or not fits or not layout.divides(node.shape):
        raise node.error(f"{node.label}: {ROWS} is {text!r}, which is no layout of {node.type}")
    return layout


def _through(rule: Rule, layouts: Rows) -> Rows:
    """The rows of the results, where all of the sharding arrives there; of operands sharded otherwise the first
    counts."""
    sources = tuple((dims, layout) for dims, layout in zip(rule.inputs, layouts, strict=True) if layout is not None)
    first = sources[0][1]
    _, results = rule.layouts(*merge(rule, sources, first.ranks))
    complete = (layout.without_partial() for layout in results)
    return tuple(r if math.prod(r.strategy) == math.prod(first.strategy) else None for r in complete)


@lru_cache(maxsize=16384)
def _thawed(rule: Rule) -> Rule:
    """The rule without factors that must not be sharded: rows remain rows where an operator reads all of them."""
    return replace(rule, frozen=frozenset()) if rule.frozen else rule


def with_rows(b: Builder, values: Sequence[Value], gradients: Sequence[Value]) -> list[Value]:
    """The gradients of `values`, with a note on those of values that have rows. One that is also the gradient of a
    value that lies otherwise is given a node of its own."""
    if not any(isinstance(value, Node) or getattr(value, "kind", "") == "input" for value in values):
        return list(gradients)
    rows = own_rows(b.graph, values, b.nodes)
    found: list[Value] = []
    for value, gradient in zip(values, gradients, strict=True):
        sharing = [rows.get(v) for v, g in zip(values, gradients, strict=True) if g is gradient]
        if value in rows and isinstance(gradient, Node):
            own = gradient if all(other == rows[value] for other in sharing) else b.emit(Reshape(value.shape), gradient)
            own.attrs[ROWS] = str(rows[value])
            gradient = own
        found.append(gradient)
    return found
