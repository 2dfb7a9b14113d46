"""Rows of the batch: which values are sharded along it, and which rows of them a rank has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value, element_types, operand_types
from mspc.ir.layout import Layout
from mspc.ir.text.families import gradient_names
from mspc.ir.text.fragments import read_layouts
from mspc.ir.text.source_text import Malformed
from mspc.ops.collective.base import Collective
from mspc.ops.control.structural import Back, Depend, Enter, MakeTuple, RegionBoundary, TupleGetItem, carried_values
from mspc.ops.random.words import draws_by_place
from mspc.ops.tensor.reshape import Reshape
from mspc.passes.lib.choices import merge, rule_of
from mspc.sharding.rules import Dim, Rule

# The slices of a value that are a rank's own rows follow from the fed dimension by the operators' factor rules: if `x`
# is fed as `(2) [0, -]`, `MatMul(%x, %w)` has rows `(2) [0, -]`, its transpose `(2) [-, 0]`, and a sum over the rows,
# or `ReLU(%w)`, none. An operator may need a dimension unsharded that still is the batch.


RowLayouts = tuple[Layout | None, ...]
"""For every tensor of a value the slices that are the ranks' own rows, None if it has none."""

ROWS = "rows"
"""Attribute of a gradient: the rows of the value that it belongs to, which no rule tells of one made of constants."""


def own_rows(graph: Graph, wanted: Iterable[Value], nodes: Sequence[Node] | None = None) -> dict[Value, Layout]:
    """Return the slices that are the ranks' own rows, of those `wanted` tensors that have such slices.

    nodes: the graph's if a pass has not yet put them there. A gradient has the layout of its value: a parameter's is
    nobody's rows, even if computed row by row.
    """
    ranks = int(graph.attrs.get("ranks", 1))
    found: dict[Value, RowLayouts] = {}
    named: dict[str, RowLayouts] = {}
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
    """Return the wanted values and all values that decide their rows."""
    needed = set(wanted)
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.inputs)
            owner = _differentiated_value(node)
            if owner is not None:
                needed.add(owner)
    return needed


def _differentiated_value(node: Node) -> Value | None:
    """Return the value of which a node made by differentiation is the gradient, if known."""
    if node.forward is None or node.forward_input < 0 or node.forward_input >= len(node.forward.inputs):
        return None
    value = node.forward.inputs[node.forward_input]
    return value if value.type == node.type else None


def _of_node(node: Node, found: dict[Value, RowLayouts], named: dict[str, RowLayouts], ranks: int) -> RowLayouts:
    if ROWS in node.attrs:
        return (_attribute_rows(node, ranks),)
    names = gradient_names(node)
    if names:
        first, *others = [named.get(name, (None,)) for name in names]
        return first if all(other == first for other in others) else (None,)
    owner = _differentiated_value(node)
    if owner is not None:
        return found.get(owner, (None,))
    none: RowLayouts = (None,) * len(element_types(node.type))
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
    return _through(_rule_without_frozen(rule), layouts)


def _attribute_rows(node: Node, ranks: int) -> Layout:
    """Return the rows that the node's attribute names. Raise MspcError if its text does not fit."""
    text = str(node.attrs[ROWS])
    try:
        (layout,) = read_layouts(text)
    except (Malformed, ValueError):
        layout = None
    fits = isinstance(layout, Layout) and layout.ranks == ranks and len(layout.dims) == len(node.shape)
    if not isinstance(layout, Layout) or not fits or not layout.divides(node.shape):
        raise node.error(f"{node.label}: {ROWS} is {text!r}, which is no layout of {node.type}")
    return layout


def _through(rule: Rule, layouts: RowLayouts) -> RowLayouts:
    """Return the rows of the results if all of the sharding arrives there; if operands are sharded differently the
    first counts."""
    sources = tuple((dims, layout) for dims, layout in zip(rule.inputs, layouts, strict=True) if layout is not None)
    first = sources[0][1]
    _, results = rule.layouts(*merge(rule, sources, first.ranks))
    complete = (layout.without_partial() for layout in results)
    return tuple(r if math.prod(r.strategy) == math.prod(first.strategy) else None for r in complete)


@lru_cache(maxsize=16384)
def _rule_without_frozen(rule: Rule) -> Rule:
    """Return the rule without factors that must not be sharded: rows remain rows if an operator reads all of them."""
    return replace(rule, frozen=frozenset()) if rule.frozen else rule


def with_rows(b: Builder, values: Sequence[Value], gradients: Sequence[Value]) -> list[Value]:
    """Return the gradients of `values`, with a note on those of values that have rows. One that is also the gradient of
    a value in another layout is given a node of its own."""
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


# The place of the batch's rows in the values of a graph that every rank runs on rows of its own, as (dimension, outer):
# if `x` is fed in rows, `%0 = MatMul(%x, %w)` has (0, 1), `%1 = Transpose(%0)` (1, 1), and `Reshape(%1) {shape: (-1,)}`
# (0, n): along dimension 0 in n parts.


Rows = tuple[int, int]
"""(dimension, outer): the dimension holds `outer` equal parts one after the other, each of which begins with rows."""
FIRST: Rows = (0, 1)
Places = tuple[Rows | None, ...]
"""The places of the rows of every tensor of a value."""


class FedRows:
    """The rows of the values of a graph whose regions are open. given: those of inputs, and of values that no operand
    tells about."""

    def __init__(self, graph: Graph, given: Mapping[Value, Rows]) -> None:
        self.graph, self.given = graph, dict(given)
        self.places: dict[Value, Places] = {}
        self.free: set[Value] = set()
        """Values made of nothing but random numbers and constants, without rows as far as operands tell."""
        self.fixed: set[Value] = set()
        """Those made of constants alone."""
        self._of_one_row = _nodes_of_one_row(graph, given)
        self._next_turn = carried_values(graph)
        borders = (node.op for node in graph.nodes if isinstance(node.op, RegionBoundary))
        self._of_micro_batches = {border.owner for border in borders if getattr(border.op, "micro_batches", False)}
        self._forward_all()
        while turned := self._loop_rows():  # rows that a loop's first iteration lacks and all others have
            self.given |= turned
            self._forward_all()
        known = -1
        while known < len(self.places):  # again, as rows of a loop's result are those its iterations begin with
            known = len(self.places)
            for node in reversed(graph.nodes):
                self._backward(node)
            known = known if self._next_turn else len(self.places)

    def of(self, value: Value) -> Rows | None:
        """Return the rows of a value, of its first tensor if it has several."""
        return next(iter(self.places.get(value, ())), None)

    def may_be_rows(self, node: Node) -> bool:
        """Return whether dimension 0 of a drawn tensor can be the batch: it has the size of the inputs' and is no
        dimension of a parameter, or of anything else that has no rows."""
        shape = element_types(node.type)[0].shape
        sizes = {v.shape[rows[0]] for v, rows in self.given.items() if isinstance(v, Parameter)}
        if not shape or sizes != {shape[0]} or node not in self.free:
            return False
        places: dict[Value, Places] = {node: (FIRST,) * len(element_types(node.type))}
        for reader in self.graph.nodes:
            if not any(value in places for value in reader.inputs):
                continue
            ruled = not isinstance(reader.op, TupleGetItem | MakeTuple | Depend | Collective)
            if not ruled or (rule := rule_of(reader)) is None:
                places[reader] = self._through(reader, places)
                continue
            factors = [_factor(rule, rule.inputs[i], rows) for i, rows in _flat(reader, places)]
            for value, start in zip(reader.inputs, _starts(reader), strict=False):
                held = value not in places and not self._is_made(value)
                if held and any(f is not None and f[0] in dim for f in factors for dim in rule.inputs[start]):
                    return False
            places[reader] = self._through(reader, places)
        return True

    def _forward_all(self) -> None:
        self.places = {value: (rows,) for value, rows in self.given.items()}
        self.free, self.fixed = set(), set()
        for node in self.graph.nodes:
            self._forward(node)

    def _loop_rows(self) -> dict[Value, Rows]:
        """Return the rows of values that a loop carries, which have them from the second iteration on."""
        results = ((enter, self.of(result)) for enter, result in self._next_turn.items() if enter not in self.places)
        return {enter: rows for enter, rows in results if rows is not None}

    def _forward(self, node: Node) -> None:
        if node in self.given:
            self.places[node] = (self.given[node],) * len(element_types(node.type))
            return
        found = self._through(node, self.places)
        if any(found):
            self.places[node] = found
        elif all(self._is_made(v) or self._is_aside(node, i) for i, v in enumerate(node.inputs)):
            random = draws_by_place(node.op) or any(v in self.free for v in node.inputs)
            (self.free if random else self.fixed).add(node)

    def _is_made(self, value: Value) -> bool:
        return isinstance(value, Constant) or value in self.free or value in self.fixed

    def _is_aside(self, node: Node, index: int) -> bool:
        """Return whether an operand of a drawing operator shares no dimension with the result, as the parameter of a
        distribution."""
        if not draws_by_place(node.op) or (rule := rule_of(node)) is None:
            return False
        random = {factor for dim in rule.outputs[0] for factor in dim}
        return all(random.isdisjoint(dim) for dim in rule.inputs[index])

    def _backward(self, node: Node) -> None:
        """Return the rows of a node's random operands, by those of its result and other operands."""
        result = self._next_turn.get(node)
        if result in self.free and result not in self.places and node in self.places:
            self.places[result] = self.places[node]
        wanted = [i for i, v in enumerate(node.inputs) if v in self.free and v not in self.places]
        if not wanted or not (node in self.places or any(v in self.places for v in node.inputs)):
            return
        if isinstance(node.op, TupleGetItem):
            (rows,) = self.places.get(node, (None,))
            if rows is not None:
                self.places[node.inputs[0]] = (rows,) * len(element_types(node.inputs[0].type))
            return
        if isinstance(node.op, Depend):
            self.places[node.inputs[0]] = self.places.get(node, (None,))
            return
        if isinstance(node.op, Back):
            self.places |= dict.fromkeys((node.inputs[i] for i in wanted), self.places.get(node, (None,)))
            return
        if isinstance(node.op, MakeTuple | Collective) or (rule := rule_of(node)) is None:
            return
        outs = enumerate(self.places.get(node, ()))
        factors = [_factor(rule, rule.outputs[i], rows) for i, rows in outs if rows is not None]
        factors += [_factor(rule, rule.inputs[i], rows) for i, rows in _flat(node, self.places)]
        starts = _starts(node)
        for index in wanted:
            dims = rule.inputs[starts[index]]
            rows = next((r for f in factors if f is not None and (r := _place(rule, dims, f)) is not None), None)
            if rows is None and isinstance(node.inputs[index], Node):
                rows = self._same_rows(node, node.inputs[index])
            if rows is not None:
                self.places[node.inputs[index]] = (rows,) * len(element_types(node.inputs[index].type))

    def _same_rows(self, node: Node, operand: Value) -> Rows | None:
        """Return the rows of an operand that a rule does not name, if a rank has one row: they are in the dimension of
        the result's. So a mask of shape (1, 1) has a row for each of (1, 8)."""
        rows = self.of(node)
        if rows is None or len(operand.shape) != len(node.shape):
            return None
        return rows if operand.shape[rows[0]] == node.shape[rows[0]] == 1 else None

    def _through(self, node: Node, places: Mapping[Value, Places]) -> Places:
        """Return the rows of a node's results by those of its operands."""
        none: Places = (None,) * len(element_types(node.type))
        flat = _flat(node, places)
        if not flat or isinstance(node.op, Collective):
            return none
        if isinstance(node.op, TupleGetItem):
            return (dict(flat).get(node.op.index),)
        if isinstance(node.op, MakeTuple | Depend):
            found = dict(flat)
            return tuple(found.get(i) for i in range(len(none)))
        if isinstance(node.op, Back):
            return (flat[0][1],)
        if isinstance(node.op, Enter) and node.op.owner in self._of_micro_batches and flat[0][1] == FIRST:
            return (FIRST,)  # a micro-batch is a part of every rank's rows
        rule = rule_of(node)
        if rule is None:
            first = places.get(node.inputs[0], none)
            return first if node.type == node.inputs[0].type else none
        results: list[Rows | None] = []
        for number, type in enumerate(element_types(node.type)):
            found = (_result(rule, index, number, rows) for index, rows in flat)
            place = next((rows for rows in found if rows is not None), None)
            if place is not None and node in self._of_one_row and node.op.is_view:
                dimension, outer = place  # (2, 4) reshaped to (1, 8) has its row in dimension 0
                while outer == 1 and dimension and type.shape[dimension - 1] == 1:
                    dimension -= 1
                place = dimension, outer
            results.append(place or next(filter(None, (_by_size(node, type.shape, i, r) for i, r in flat)), None))
        return tuple(results)


def _nodes_of_one_row(graph: Graph, given: Mapping[Value, Rows]) -> set[Value]:
    """Return the nodes that compute on one row of a rank, the only one that it feeds or that of a micro-batch."""
    fed = {value.shape[rows[0]] for value, rows in given.items() if isinstance(value, Parameter)}
    if fed == {1}:
        return set(graph.nodes)
    found: set[Value] = set()
    is_inside = False
    for node in graph.nodes:
        if isinstance(node.op, RegionBoundary) and getattr(node.op.op, "micro_batches", False):
            is_inside = not node.op.is_end and fed == {getattr(node.op.op, "turns", 0)}
        if is_inside:
            found.add(node)
    return found


def rows_beside(node: Node, rows: Rows) -> tuple[list[Rows | None], list[Rows | None]]:
    """Return the rows of operands and results by those of the first result; None for tensors without rows."""
    rule = rule_of(node)
    factor = None if rule is None else _factor(rule, rule.outputs[0], rows)
    if rule is None or factor is None:
        rank = len(element_types(node.type)[0].shape)
        counted = [rows[0] - rank + len(type.shape) for type in operand_types(node)]
        operands = [(d, rows[1]) if d >= 0 else None for d in counted]
        return list(operands), [rows] * len(element_types(node.type))
    return [_place(rule, dims, factor) for dims in rule.inputs], [_place(rule, dims, factor) for dims in rule.outputs]


def _starts(node: Node) -> list[int]:
    """Return the number of the first tensor of every operand among all operands' tensors, and of all."""
    return list(accumulate((len(element_types(value.type)) for value in node.inputs), initial=0))


def _flat(node: Node, places: Mapping[Value, Places]) -> list[tuple[int, Rows]]:
    """Return (number of the tensor among all operands', its rows) of those that have rows."""
    return [
        (number, rows)
        for value, start in zip(node.inputs, _starts(node), strict=False)
        for number, rows in enumerate(places.get(value, ()), start)
        if rows is not None
    ]


def _result(rule: Rule, index: int, number: int, rows: Rows) -> Rows | None:
    factor = _factor(rule, rule.inputs[index], rows)
    return None if factor is None else _place(rule, rule.outputs[number], factor)


def _factor(rule: Rule, dims: Sequence[Dim], rows: Rows) -> Rows | None:
    """Return (factor, outer): the factor of a tensor's dimensions in which rows begin, `outer` times, or None, as for a
    dimension of size 1."""
    dimension, outer = rows
    before = 1
    for factor in dims[dimension]:
        size = rule.sizes[factor]
        if before == outer:
            return factor, 1
        if before * size > outer:
            inside, rest = divmod(outer, before)
            return None if rest or size % inside else (factor, inside)
        before *= size
    return None


def _place(rule: Rule, dims: Sequence[Dim], found: Rows) -> Rows | None:
    """Return the rows of a tensor that begin in a factor, or None if it lacks the factor."""
    factor, outer = found
    for dimension, dim in enumerate(dims):
        if factor in dim:
            return dimension, outer * math.prod(rule.sizes[f] for f in dim[: dim.index(factor)])
    return None


def _by_size(node: Node, shape: Sequence[int], index: int, rows: Rows) -> Rows | None:
    """Return the rows of a rank that has only one, if rules do not give them: they stay at their place among the
    elements if these keep their order, and in their dimension, counted from the last, if the result is one of the
    operand's."""
    source = operand_types(node)[index].shape
    dimension, outer = rows
    if source[dimension] != outer:  # a rule names it
        return None
    if node.op.is_view and math.prod(source) == math.prod(shape):
        begin = math.prod(source[:dimension]) * outer
        before = 1
        for place, size in enumerate(shape):
            if before == begin:
                return place, 1
            if before < begin < before * size and begin % before == 0:
                return place, begin // before
            before *= size
        return (len(shape) - 1, shape[-1]) if shape else None  # after all elements but its own
    place = dimension + len(shape) - len(source)
    return (place, outer) if 0 <= place < len(shape) and shape[place] == outer else None
