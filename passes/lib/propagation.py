"""Propagation of layouts forward and backward through the operators of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_layouts, element_types
from mspc.ir.layout import Axes, Layout
from mspc.ir.text.families import gradient_names
from mspc.ir.types import StackType
from mspc.ops.control.regions import MakeStack
from mspc.ops.control.structural import Depend, Handed, Joined, StopGradient, TupleGetItem, is_constraint
from mspc.ops.math.arithmetic import AddN
from mspc.ops.math.elementwise import Abs
from mspc.ops.math.float8 import Quantize
from mspc.ops.op import Op
from mspc.passes.lib.choices import GIVEN, ShardingChoice, Source, choices, make_choice, merge, multiplies
from mspc.passes.lib.layout_search import PlanTotal, Search, State, best_plan, restore, state_of
from mspc.passes.lib.placement import (
    batch_choice,
    batch_choices,
    busiest,
    bytes_between,
    is_master,
    operand_layouts,
    scatter_bytes,
    sent_inside,
    stored,
    structural_layout,
    work_of,
)
from mspc.sharding.rules import Rule


def shard_batch(search: Search, forward: list[Node]) -> None:
    """Shard every operator along the batch, or as its neighbours are if that costs less; casts of parameters and their
    quantization follow their readers, and magnitudes what they are of."""
    quantizing = {node: not isinstance(node.op, Quantize) for node in _quantizing(forward)}
    unset: list[Node] = []
    casts: list[Node] = []
    for node in forward:
        if search.rules[node] is None:
            structural_layout(node, search.ranks)
        elif node.in_layouts is None:
            (casts if node in quantizing or is_master(stored(node)) else unset).append(node)
    UnsetLayouts(search, unset).place()
    magnitudes = [node for node in casts if quantizing.get(node)]
    for node in (*(node for node in reversed(casts) if not quantizing.get(node)), *magnitudes):
        search.choose(node, "its neighbours")
    search.structure(forward)


def shard_asked(search: Search, forward: list[Node]) -> None:
    """Shard the operators of data parallel cells along the batch; those that follow their neighbours are left to
    that."""
    for node in forward:
        rule, op = search.rules[node], cast(Op, node.op)
        if node.attrs.get("strategy_gen_mode") != "data_parallel" or rule is None or node.in_layouts is not None:
            continue
        if not (op.follows_neighbours or op.operandwise or is_master(stored(node))):
            search.take(node, batch_choice(node, rule, search.ranks), "batch")


def spread(search: Search, forward: list[Node]) -> None:
    """Propagate shardings from decided operators until nothing is left to reach.

    Downstream before upstream or upstream before downstream, whichever sends fewer bytes; if that is hardly a
    difference, whichever computes less on a rank, as norms and residuals do that are sharded along the sequence.
    """
    configured = any(node.in_layouts is not None and search.rules[node] is not None for node in forward)
    begin = [state_of(node) for node in forward]
    found: list[tuple[float, float, list[State], list[Any]]] = []
    for direction in (_decide_downstream, _decide_upstream) if configured else (_decide_downstream,):
        _spread_from(search, forward, direction)
        sources = [node.attrs.get("strategy_from") for node in forward]
        work = sum(work_of(node, search.rules[node]) for node in forward)
        found.append((round(bytes_of(search, forward), 1), work, [state_of(node) for node in forward], sources))
        restore(forward, begin)
    most = min(nbytes for nbytes, *_ in found) * AS_GOOD
    _, _, states, sources = min((each for each in found if each[0] <= most), key=lambda each: (each[1], each[0]))
    restore(forward, states)
    for node, source in zip(forward, sources, strict=True):
        if source is not None:
            node.attrs["strategy_from"] = source
    costs = UnsetLayouts(search, ())
    for node in forward:
        if isinstance(node.layout, Layout) and node.layout.partial and costs.moves(node) > MIN_SAVED_BYTES:
            _hand_on(search, costs, node)
    if computes_gradients(search.graph):
        backward = BackwardLayouts(search)
        backward.improve_chains([node for node in forward if node.attrs.get("strategy_from") not in GIVEN])


def _spread_from(search: Search, forward: list[Node], first: Way) -> None:
    known: set[Value] = {
        node for node in forward if node.in_layouts is not None and node.attrs.get("strategy_from") != FOR_UPDATE
    }
    if not known:
        data = [p for p in search.graph.parameters if p.kind == "input"]
        if all(isinstance(p.layout, Layout) and p.layout.is_replicated for p in data):
            # Without a strategy all ranks would compute the same on the global batch.
            for node in forward:
                rule = search.rules[node]
                if rule is not None and rule.outputs[0] and any(v in data for v in node.inputs):
                    search.take(node, batch_choice(node, rule, search.ranks), "the data")
        known = {*data, *(node for node in forward if node.in_layouts is not None)}
    directions = (first, _decide_upstream if first is _decide_downstream else _decide_downstream)
    changed = True
    while changed:
        changed = False
        for direction in directions:
            changed |= direction(search, forward, known)
        if not changed:
            left = [node for node in forward if search.rules[node] is not None and node.in_layouts is None]
            if left:
                search.choose(left[0], "the data")
                known.add(left[0])
                changed = True
    search.structure(forward)


Way = Callable[[Search, list[Node], set[Value]], bool]


def _decide_downstream(search: Search, forward: list[Node], known: set[Value]) -> bool:
    """Decide on operators that read known values, in run order; return whether there were any."""
    changed = False
    for node in forward:
        if search.rules[node] is None:
            if structural_layout(node, search.ranks) and any(v in known for v in node.inputs):
                known.add(node)
        elif node.in_layouts is None and any(v in known for v in node.inputs):
            search.choose(node, _origin(node.inputs))
            known.add(node)
            changed = True
    return changed


def _decide_upstream(search: Search, forward: list[Node], known: set[Value]) -> bool:
    """Decide on operators that known ones read, last first; return whether there were any."""
    changed = False
    for node in reversed(forward):
        users = [user for user, _ in search.traffic.users.get(node, ()) if user in known]
        if node in known or not users:
            continue
        if search.rules[node] is None:
            known.add(node)
            changed = True
        elif node.in_layouts is None:
            search.choose(node, _origin(users), upstream=True)
            known.add(node)
            changed = True
    return changed


def _origin(around: Iterable[Value]) -> str:
    """Return in words the decided neighbour from which a sharding came."""
    for value in around:
        if isinstance(value, Node) and value.in_layouts is not None:
            return value.label
    return "the data"


class BackwardLayouts:
    """The search for layouts of nodes outside the forward graph. products: operators that compute more than once with
    their operands' elements. mirrors: how operators keep to the layouts of the forward graph, see `place`."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.graph, self.ranks, self.traffic = search.graph, search.ranks, search.traffic
        self.rules, self.wanted = search.rules, search.wanted
        self.parameters = {parameter.name: parameter for parameter in self.graph.parameters}
        self.mirrors = ""
        self.products = {
            node
            for node in self.graph.nodes
            if node.phase != "forward" and (rule := self.rules[node]) is not None and multiplies(rule, node)
        }

    def place(self, nodes: list[Node]) -> None:
        """Let backward operators follow their operands in three ways, and take the best.

        One looks for the fewest bytes at each operator, which may scatter sums, work on the slices and change layouts
        many times. The others go back to the layouts of the forward graph wherever they can, one with sums complete.
        """
        values = [*nodes, *self.graph.parameters]
        begin = [state_of(value) for value in values]
        found: list[tuple[PlanTotal, list[State]]] = []
        for self.mirrors in ("whole", "partial", ""):
            for node in nodes:
                self.follow_operands(node)
            for parameter in self.graph.parameters:
                if parameter.layout is None:
                    parameter.layout = Layout.replicated(self.ranks, len(parameter.shape))
            self.improve([node for node in nodes if node.phase == "backward"])
            found.append((self.total(nodes), [state_of(value) for value in values]))
            restore(values, begin)
        restore(values, best_plan(found))

    def total(self, nodes: Iterable[Node]) -> PlanTotal:
        """Return the costs of the graph with its present layouts, and the work of `nodes`."""
        values = (*self.graph.nodes, *self.graph.parameters)
        spent = [*map(self.traffic.of_value, values), *map(self.traffic.of_sum, self.graph.nodes)]
        work = sum(work_of(node, self.rules[node]) for node in nodes if node in self.products)
        return PlanTotal(sum(spent) + sent_inside(self.graph.nodes), sum(nbytes > 0 for nbytes in spent), work)

    def follow_operands(self, node: Node) -> None:
        """Take the layouts that cost the fewest bytes from the operands' own; an update those of its parameter."""
        rule = self.rules[node]
        if rule is None:
            first = node.inputs[0] if isinstance(node.op, Depend | StopGradient) else None
            if isinstance(first, Parameter) and first.layout is None:
                wanted = self.wanted.get(node)  # nothing has read the parameter yet
                first.layout = Layout.replicated(self.ranks, len(first.shape)) if wanted is None else wanted
            structural_layout(node, self.ranks)
            return
        if node.in_layouts is not None:
            return
        op = cast(Op, node.op)
        on_slices = update_choice(node, rule, op, self.ranks) if op.mutates else None
        if on_slices is not None:
            self.search.take(node, on_slices, "")
        elif op.operandwise:
            self.search.take_operandwise(node, "")
        elif self.leads_to_update(node, rule, op):
            source = (rule.outputs[0], self.wanted[node])
            self.search.take(node, make_choice(rule, *merge(rule, (source,), self.ranks)), "")
        else:
            options = self.options(node, rule)
            if self.mirrors:
                options = self.mirrored(node, options)
            scored = [(self.search.score(node, option), option.work, i) for i, option in enumerate(options)]
            self.search.take(node, options[min(scored)[2]], "")
        store_operands(node)

    def mirrored(self, node: Node, options: tuple[ShardingChoice, ...]) -> tuple[ShardingChoice, ...]:
        """Return the choices that give the gradient of a forward value the value's own sharding, if there are any."""
        forward = node.forward
        if forward is None:
            return options
        if isinstance(node.op, AddN):
            wanted = forward.layout  # a sum of terms is the gradient of the result itself
            is_tensor = not isinstance(node.type, StackType)
            if isinstance(forward.op, MakeStack) and isinstance(wanted, Layout) and is_tensor:
                wanted = Layout.of(wanted.mesh, ((), *wanted.dims))  # that of a stack is that of its entries
        elif forward.in_layouts is not None and node.forward_input >= 0:
            wanted = _gradient_layout(forward, node.forward_input)
        else:
            return options
        same = tuple(o for o in options if o.outputs[0].without_partial() == wanted)
        rule = self.rules[node]
        if not same and isinstance(node.op, AddN) and isinstance(wanted, Layout) and rule is not None:
            # Where a term is sharded finer than the result, no choice from the operands goes back to the result's.
            same = (make_choice(rule, *merge(rule, ((rule.outputs[0], wanted),), self.ranks)),)
        complete = tuple(o for o in same if not o.outputs[0].partial) if self.mirrors == "whole" else ()
        return complete or same or options

    def leads_to_update(self, node: Node, rule: Rule, op: Op) -> bool:
        """Return whether a node runs on a parameter's slices: element by element it makes an operand of an update, and
        no partial operand goes through it that nobody needs complete before."""
        if node.phase != "update" or node not in self.wanted or not rule.is_elementwise:
            return False
        return not any(
            layout is not None and layout.partial and i in op.linear_in and not self.needed_complete(node.inputs[i])
            for i, layout in enumerate(operand_layouts(node))
        )

    def needed_complete(self, value: Value) -> bool:
        """Return whether a reader of a value cannot take it in partial sums. One that could then reads the complete
        value too: of two sums that are rounded otherwise a quotient, as of an optimizer's moments, may be far off."""
        return any(
            self.rules.get(user) is not None and isinstance(op := user.op, Op)
            and (bool(op.mutates) or not (op.additive or index in op.linear_in))
            for user, index in self.traffic.users.get(value, ())
        )  # fmt: skip

    def options(self, node: Node, rule: Rule) -> tuple[ShardingChoice, ...]:
        """Choices of a backward operator; if it multiplies matrices, those that shard it as far as its forward one."""
        hints = self.search.reader_hints(node, rule)
        forward = node.forward
        if len(rule.outputs) == 1:
            wanted: list[Layout | None] = []
            if forward is not None and node.forward_input >= 0 and forward.in_layouts is not None:
                wanted.append(_gradient_layout(forward, node.forward_input))
            if forward is not None and node.attrs.get("recomputed") and isinstance(forward.layout, Layout):
                wanted.append(forward.layout)
            for name in gradient_names(node):
                if name not in self.parameters:
                    raise node.error(f"{node.label}: gradient_for names {name!r}, which is no parameter")
                layout = self.parameters[name].layout
                wanted.append(layout if isinstance(layout, Layout) else None)
            hints += [
                (rule.outputs[0], layout.without_partial())
                for layout in wanted
                if layout is not None and len(layout.dims) == len(rule.outputs[0])
            ]
        hints = list(dict.fromkeys(hints))
        options = choices(cast(Op, node.op), rule, operand_layouts(node), tuple(hints), self.ranks)
        if forward is not None and node.forward_input >= 0 and is_master(stored(forward)):
            # The gradient of a parameter is summed in the parameter's own element type, by default.
            wide = bool(self.graph.attrs.get("gradient_fp32_sync", True))
            options = tuple(o for o in options if bool(o.inputs[0].partial) == wide) or options
        if node not in self.products:
            return options
        options = tuple(dict.fromkeys((*options, *self.as_forward(node, rule))))
        work = [option.work * busiest(node, option.inputs) for option in options]
        limit = min(work)
        if forward is not None and forward.in_layouts is not None:
            limit = max(limit, work_of(forward, self.rules[forward]) * busiest(forward, forward.in_layouts))
        return tuple(option for option, own in zip(options, work, strict=True) if own <= limit)

    def as_forward(self, node: Node, rule: Rule) -> tuple[ShardingChoice, ...]:
        """Return the choice for several gradients at once that gives each the layout of its value, if there is one: if
        operands were kept otherwise than the forward operator reads them, none of theirs leads there."""
        forward = node.forward
        if forward is None or forward.in_layouts is None or len(rule.outputs) < 2:
            return ()
        made: list[Source] = []
        for each in self.search.followers.get(node, ()):
            if isinstance(each.op, TupleGetItem) and each.forward is forward and each.forward_input >= 0:
                layout = forward.in_layouts[each.forward_input]
                if layout is not None and len(layout.dims) == len(rule.outputs[each.op.index]):
                    made.append((rule.outputs[each.op.index], layout.without_partial()))
        return (make_choice(rule, *merge(rule, tuple(made), self.ranks)),) if made else ()

    def improve(self, nodes: list[Node]) -> None:
        """Revisit backward operators, last first, while a different choice saves bytes."""
        for _ in range(3):
            changed = False
            for node in reversed(nodes):
                rule = self.rules[node]
                if rule is None or node.in_layouts is None or not self.cost_around(node):
                    continue
                changed |= self.reconsider(node, rule)
            if not changed:
                return

    def improve_chains(self, nodes: Sequence[Node]) -> None:
        """Revisit operators, then chains of them, while that saves bytes."""
        free = frozenset(node for node in nodes if node.in_layouts is not None and self.rules[node] is not None)
        for _ in range(ROUNDS):
            self.improve(list(nodes))
            changed = False
            for node in filter(free.__contains__, reversed(nodes)):
                for index, value in enumerate(node.inputs):
                    for upstream in (True, False) if self.traffic.of_value(value) > MIN_SAVED_BYTES else ():
                        changed |= self.move_chain(node, index, upstream, free)
            if not changed:
                return

    def move_chain(self, reader: Node, index: int, upstream: bool, free: Collection[Node]) -> bool:
        """Make an operand in the layout of its reader, then its own operands, and so on, or let the reader take the
        operand's layout, then its own readers; keep as many of the changes as save the most bytes. Return whether any
        does."""
        replaced: dict[Node, State] = {}
        saved, best, kept = 0.0, 0.0, 0
        moved = self.traffic.of_edge(reader, index)
        while saved >= -moved:  # beyond that a chain has made more traffic than it may avoid
            value, wanted = reader.inputs[index], cast("tuple[Layout, ...]", reader.in_layouts)[index]
            node = cast(Node, value if upstream else reader)
            if node not in free or node in replaced or value.layout == wanted:
                break
            rule = cast(Rule, self.rules[node])
            fits = [option for option in self.options(node, rule)
                    if (option.outputs[0] == wanted if upstream else option.inputs[index] == value.layout)]  # fmt: skip
            if upstream and not wanted.partial and len(rule.outputs) == 1:
                fits.append(make_choice(rule, *merge(rule, ((rule.outputs[0], wanted),), self.ranks)))
            if not fits:
                break
            replaced[node] = state_of(node)
            before = self.cost_around(node)
            self.take_cheapest(node, fits)
            saved += before - self.cost_around(node)
            if saved > best + MIN_SAVED_BYTES:
                best, kept = saved, len(replaced)
            edges = [(node, at) for at in range(len(node.inputs))] if upstream else self.traffic.users.get(node, ())
            edges = [(user, at) for user, at in edges if user in free]
            if not edges:
                break
            reader, index = max(edges, key=lambda edge: self.traffic.of_edge(*edge))
        for node in [*replaced][kept:][::-1]:
            self.search.put_back(node, replaced[node])
        return kept > 0

    def cost_around(self, node: Node) -> float:
        """Bytes that depend on the node's layouts: for its operands, its result and its readers."""
        total = self.traffic.of_value(node) + self.traffic.of_sum(node)
        around = (*dict.fromkeys(node.inputs), *self.search.followers.get(node, ()))
        total += sum(self.traffic.of_value(v) for v in around)
        for user, _ in self.traffic.users.get(node, ()):
            total += self.traffic.of_sum(user)
        return total

    def reconsider(self, node: Node, rule: Rule) -> bool:
        """Take another choice if it saves bytes; True if one did."""
        before, cost = state_of(node), self.cost_around(node)
        self.take_cheapest(node, self.options(node, rule))
        if self.cost_around(node) < cost - 1e-6:
            return True
        self.search.put_back(node, before)
        return False

    def take_cheapest(self, node: Node, options: Sequence[ShardingChoice]) -> None:
        """Take the first choice with the fewest bytes around a node."""
        source, costs = str(node.attrs.get("strategy_from", "")), list[float]()
        for option in options:
            self.search.take(node, option, source)
            costs.append(self.cost_around(node))
        self.search.take(node, options[costs.index(min(costs))], source)


def _gradient_layout(forward: Node, index: int) -> Layout | None:
    """Return the layout to which the gradient of an operand goes back: the one in which the operator reads it, or its
    own if ranks exchange its rows."""
    assert forward.in_layouts is not None
    own = forward.inputs[index].layout
    if index in cast(Op, forward.op).exchanged and isinstance(own, Layout):
        return own.without_partial()
    return forward.in_layouts[index]


# Propagation decides on one operator after another, each of which brings a sum no fewer bytes than the one before it,
# so it does not see a sum over several experts a few operators later. Here partial sums go on through linear operators
# to fewer elements: `%3 = Mul(%2)` at `(4) [-, -] sum[0]`, `%4 = Gather(%3)` at `(4) [-, -]`, `%5 = ReduceSum(%4)` of
# half the size; then `%4` and `%5` become `sum[0]` too.


def _hand_on(search: Search, costs: UnsetLayouts, value: Node) -> None:
    replaced: list[tuple[Node, ShardingChoice]] = []
    saved, best, kept = 0.0, 0.0, 0
    while True:
        found = _reader(search, costs, value)
        if found is None:
            break
        node, option = found
        assert node.in_layouts is not None
        assert isinstance(node.layout, Layout)
        operands = cast("tuple[Layout, ...]", node.in_layouts)
        replaced.append((node, ShardingChoice(operands, (node.layout,), option.work)))
        around = dict.fromkeys((*node.inputs, node))
        before = sum(map(costs.moves, around))
        search.place(node, option.inputs, option.layout(node.type))
        saved += before - sum(map(costs.moves, around))
        if saved > best + MIN_SAVED_BYTES:
            best, kept = saved, len(replaced)
        value = node
    for node, option in reversed(replaced[kept:]):
        search.place(node, option.inputs, option.layout(node.type))


def _reader(search: Search, costs: UnsetLayouts, value: Node) -> tuple[Node, ShardingChoice] | None:
    """Return the one operator that reads a partial value complete, with the choice in which it takes it partial; None
    if it cannot, would multiply more, has a given strategy, or has another operand whose gradient needs the value
    complete."""
    readers = [(user, index) for user, index in search.traffic.users.get(value, ()) if user.phase == "forward"]
    if len(readers) != 1:
        return None
    node, index = readers[0]
    rule, op = search.rules.get(node), node.op
    if rule is None or not isinstance(op, Op) or op.operandwise or node.attrs.get("strategy_from") in GIVEN:
        return None
    if node.in_layouts is None or not isinstance(node.layout, Layout) or node.layout.partial:
        return None
    others = [other for number, other in enumerate(node.inputs) if number != index]
    if any(other in costs.graded for other in others):
        return None
    for option in choices(op, rule, operand_layouts(node), (), search.ranks):
        more = option.work > work_of(node, rule) and multiplies(rule, node)
        if option.inputs[index] == value.layout and not more:
            return node, option
    return None


# Operators that read each other make a region, which ends at operators with a strategy, at parameters and at results. A
# region is sharded along the batch, or every operator as its operands are, or as its readers want it, whichever makes
# ranks send the fewest bytes; then single operators are revisited while that saves bytes. Three things stay as they are
# along the batch: regions that touch no operator with a strategy, the slices in which parameters are stored, and the
# work of matmuls.


BATCH, NEIGHBOURS = "batch", "its neighbours"
"""The origin of a layout, in words."""
ROUNDS = 3
"""How often single operators are revisited."""
AS_GOOD = 1.001
"""Of the plans that send hardly more bytes than the cheapest the one with the least work is taken."""
MIN_SAVED_BYTES = 1e-3
"""Bytes that another choice must save."""


class UnsetLayouts:
    """The search for the layouts of `unset` operators, given in run order.

    graded: values that have a gradient. batch: an operator's choices along the batch, the usual one first.
    chosen: how each operator is sharded so far.
    """

    def __init__(self, search: Search, unset: Sequence[Node]) -> None:
        self.search, self.traffic = search, search.traffic
        self.unset = dict.fromkeys(unset)
        self.graded = {
            node.forward.inputs[node.forward_input]
            for node in search.graph.nodes
            if node.forward is not None and 0 <= node.forward_input < len(node.forward.inputs)
        }
        self.batch = {node: batch_choices(node, self.rule(node), search.ranks) for node in unset}
        self.chosen: dict[Node, ShardingChoice] = {}

    def place(self) -> None:
        """Give every operator its layouts."""
        for region in self.regions():
            if self.touches_configured(region):
                self.settle(region)
            else:
                self.shard_batch(region)
        for node in self.unset:
            self.search.replicated |= self.replicated_parameters(node) | self.search.replicated

    def rule(self, node: Node) -> Rule:
        rule = self.search.rules[node]
        assert rule is not None
        return rule

    def regions(self) -> list[list[Node]]:
        """Return the operators that read each other, also through tuples, in run order."""
        root: dict[Value, Value] = {}

        def find(value: Value) -> Value:
            while root[value] is not value:
                root[value] = value = root[root[value]]
            return value

        for node in self.search.graph.nodes:
            joins = self.search.rules[node] is None and not isinstance(node.op, Handed)
            if node in self.unset or (node.phase == "forward" and joins):
                root[node] = node
                for value in node.inputs:
                    if value in root:
                        root[find(value)] = node
        found: dict[Value, list[Node]] = {}
        for node in self.unset:
            found.setdefault(find(node), []).append(node)
        return list(found.values())

    def touches_configured(self, region: Sequence[Node]) -> bool:
        """Return whether an operator with a layout gives operands to the region or reads its results."""
        for node in region:
            around = [*self.users(node), *(v for v in node.inputs if isinstance(v, Node))]
            if any(other.in_layouts is not None and self.search.rules[other] is not None for other in around):
                return True
        return False

    def users(self, node: Node) -> list[Node]:
        """Return the forward operators that read a node or an element of it."""
        shown = (node, *self.search.followers.get(node, ()))
        found = [user for value in shown for user, _ in self.traffic.users.get(value, ())]
        return [user for user in dict.fromkeys(found) if user.phase == "forward"]

    def shard_batch(self, region: Sequence[Node]) -> None:
        """Shard along the batch; operators that only move data follow their neighbours."""
        waiting: list[Node] = []
        for node in region:
            if cast(Op, node.op).follows_neighbours or cast(Op, node.op).operandwise:
                waiting.append(node)
            else:
                self.take(node, self.cheapest(node, self.batch[node]))
        for node in waiting:
            self.search.structure([value for value in node.inputs if isinstance(value, Node)])  # elements of tuples
            self.search.choose(node, NEIGHBOURS)

    def settle(self, region: Sequence[Node]) -> None:
        """Take the cheapest of the three plans; of those as good that with the least work, then the first."""
        values = [*region, *dict.fromkeys(f for node in region for f in self.search.followers.get(node, ()))]
        begin = [state_of(value) for value in values]
        found: list[tuple[float, float, list[State], dict[Node, str]]] = []
        for decide in (self.shard_batch, self.follow, lambda region: self.follow(reversed(region))):
            decide(region)
            self.improve(region)
            sources = {node: str(node.attrs["strategy_from"]) for node in region}
            work = sum(self.chosen[node].work for node in region if node in self.chosen)
            found.append((self.cost(region), work, [state_of(value) for value in values], sources))
            restore(values, begin)
        most = min(cost for cost, *_ in found) * AS_GOOD
        _, _, states, sources = min((plan for plan in found if plan[0] <= most), key=lambda plan: plan[1])
        restore(values, states)
        for node, source in sources.items():
            node.attrs["strategy_from"] = source

    def follow(self, nodes: Iterable[Node]) -> None:
        """Let every operator take the choice with the fewest bytes as far as others are decided."""
        for node in nodes:
            if cast(Op, node.op).operandwise:
                self.search.take_operandwise(node, NEIGHBOURS)
            else:
                self.take(node, self.cheapest(node, self.options(node)))

    def improve(self, region: Sequence[Node]) -> None:
        """Revisit operators, last first, while another choice saves bytes; then their operands."""
        for _ in range(ROUNDS):
            changed = False
            for node in reversed(region):
                if not cast(Op, node.op).operandwise and self.cost((node,)) > MIN_SAVED_BYTES:
                    before = (node.in_layouts, node.layout)
                    self.take(node, self.cheapest(node, self.options(node)))
                    changed |= before != (node.in_layouts, node.layout)
            if not changed:
                break
        for node in reversed(region):
            for index, value in enumerate(node.inputs):
                if value in self.chosen and self.moves(value) > MIN_SAVED_BYTES:
                    self.move_upstream(node, index)

    def move_upstream(self, reader: Node, index: int) -> None:
        """Make an operand in the layout of its reader, then its own operands, and so on through the region; keep as
        much of it as saves the most bytes. An operator on the way may enlarge tensors, as one-hot masks."""
        replaced: list[tuple[Node, ShardingChoice]] = []
        saved, best, kept = 0.0, 0.0, 0
        while True:
            node, wanted = reader.inputs[index], (reader.in_layouts or ())[index]
            if not isinstance(node, Node) or node not in self.chosen or cast(Op, node.op).operandwise:
                break
            fits = [option for option in self.options(node) if option.layout(node.type) == wanted]
            if not fits or node.layout == wanted:
                break
            replaced.append((node, self.chosen[node]))
            before = self.cost((node,))
            self.take(node, self.cheapest(node, fits))
            saved += before - self.cost((node,))
            if saved > best + MIN_SAVED_BYTES:
                best, kept = saved, len(replaced)
            bytes_of_operands = [self.moves(v) if v in self.chosen else 0.0 for v in node.inputs]
            most = max(bytes_of_operands, default=0.0)
            if most <= MIN_SAVED_BYTES:
                break
            reader, index = node, bytes_of_operands.index(most)
        for node, option in reversed(replaced[kept:]):
            self.take(node, option)

    def options(self, node: Node) -> list[ShardingChoice]:
        """Return the choices for an operator that leave undecided parameters replicated if the batch is sharded, and a
        product no larger; those along the batch first."""
        rule, batch = self.rule(node), self.batch[node]
        hints = tuple(self.search.reader_hints(node, rule))
        others = choices(cast(Op, node.op), rule, operand_layouts(node), hints, self.search.ranks)
        product = multiplies(rule, node)
        selected = [
            option for option in others
            if all(self.may_read(node, i, option.inputs[i]) for i in self.open_parameters(node))
            and not (product and option.work > batch[0].work)
        ]  # fmt: skip
        current = self.chosen.get(node)
        first = [current] if current is not None and node.in_layouts == current.inputs else []
        return list(dict.fromkeys((*first, *batch, *selected)))

    def open_parameters(self, node: Node) -> list[int]:
        """Operands that are parameters of which nobody has decided how they are stored."""
        return [i for i, v in enumerate(node.inputs) if is_master(stored(v)) and v.layout is None]

    def may_read(self, node: Node, index: int, layout: Layout) -> bool:
        """Return whether an undecided parameter may be read so: as the batch has it, or in slices if that replicates
        it."""
        of_batch = {option.inputs[index] for option in self.batch[node]}
        return layout in of_batch or node.inputs[index] in self.replicated_parameters(node)

    def replicated_parameters(self, node: Node) -> dict[Parameter, Layout]:
        """Return the undecided parameters of an operator that are stored replicated, and how they lie then; it may read
        slices of those that it does not change."""
        found: dict[Parameter, Layout] = {}
        for i in self.open_parameters(node):
            value, of_batch = node.inputs[i], {option.inputs[i] for option in self.batch[node]}
            changes = i in cast(Op, node.op).mutates
            if isinstance(value, Parameter) and not changes and all(layout.is_replicated for layout in of_batch):
                found[value] = self.batch[node][0].inputs[i]
        return found

    def slice_bytes(self, node: Node) -> float:
        """Return the bytes that bring the gradients of slices to parameters stored replicated."""
        found = 0.0
        replicated = self.replicated_parameters(node)
        for value, layout in zip(node.inputs, node.in_layouts or (), strict=True):
            if isinstance(value, Parameter) and value in replicated and value.trainable and layout is not None:
                found += value.tensor_type.nbytes * (1 - 1 / math.prod(layout.strategy))
        return found

    def cheapest(self, node: Node, options: Sequence[ShardingChoice]) -> ShardingChoice:
        """Return the option with the fewest bytes around the node; of equal ones that with the least work, then the
        first."""
        if len(options) == 1:
            return options[0]
        found: list[tuple[float, float, int]] = []
        before = state_of(node)
        for i, option in enumerate(options):
            self.take(node, option)
            found.append((round(self.cost((node,)), 1), option.work, i))
        self.search.put_back(node, before)
        return options[min(found)[2]]

    def take(self, node: Node, option: ShardingChoice) -> None:
        self.chosen[node] = option
        self.search.take(node, option, BATCH if option in self.batch[node] else NEIGHBOURS)

    def cost(self, nodes: Sequence[Node]) -> float:
        """Return the bytes that depend on the nodes' layouts: forward, inside and, for values with a gradient, back."""
        values: dict[Value, None] = {}
        total = 0.0
        for node in nodes:
            values.update(dict.fromkeys((*node.inputs, node, *self.search.followers.get(node, ()))))
            if node.in_layouts is not None and node in self.chosen:
                total += self.search.inside(node, self.chosen[node])
                total += self.slice_bytes(node) if self.search.trains else 0.0
        return total + sum(map(self.moves, values))

    def moves(self, value: Value) -> float:
        """Bytes spent to bring a value to its readers, and its gradient back; a partial value that nobody wants yet
        will be scattered."""
        own = value.layout
        if isinstance(value, Constant) or not isinstance(own, Layout):
            return 0.0
        (type,) = element_types(value.type)
        needed = self.traffic.needs(value)
        if not needed:
            return scatter_bytes(own, type.shape, type.dtype.itemsize) if own.partial else 0.0
        total = self.traffic.of_value(value)
        if value in self.graded:
            back = own.without_partial()
            total += sum(bytes_between(layout.without_partial(), back, type) for layout in needed)
        return total


def bytes_of(search: Search, forward: Sequence[Node]) -> float:
    """Bytes that the layouts of the forward graph make a rank send, there and back."""
    costs = UnsetLayouts(search, ())
    total = sum(map(costs.moves, (*search.graph.parameters, *forward)))
    for node in forward:
        rule = search.rules[node]
        if rule is not None and node.in_layouts is not None:
            operands = cast("tuple[Layout, ...]", node.in_layouts)
            total += search.inside(node, ShardingChoice(operands, element_layouts(node.layout), work_of(node, rule)))
    return total + _gathered_gradients(search, forward, costs.graded)


def _gathered_gradients(search: Search, forward: Iterable[Node], graded: set[Value]) -> float:
    """Return the bytes that `gradient_bytes` takes to be scattered, if the value itself is on every rank that adds to
    its gradient, so that this is gathered too. graded: values that have a gradient."""
    found: dict[Value, float] = {}
    for node in forward:
        rule = search.rules[node]
        if rule is None or node.in_layouts is None or not math.prod(rule.sizes):
            continue
        shards = math.prod(rule.sizes) / work_of(node, rule)
        for value, layout in zip(node.inputs, node.in_layouts, strict=True):
            if value not in graded or stored(value) is not None or layout is None:
                continue
            own, held = math.prod(layout.strategy), value.layout
            if own < shards and isinstance(held, Layout) and math.prod(held.strategy) < shards:
                nbytes = value.tensor_type.nbytes / own
                found[value] = max(found.get(value, 0.0), nbytes * (1 - own / shards))
    return sum(found.values())


def update_choice(node: Node, rule: Rule, op: Op, ranks: int) -> ShardingChoice | None:
    """Return the choice by which an update runs on the parameter's own slices; None if no parameter that it names has
    slices yet."""
    sources = [
        (rule.inputs[i], layout)
        for i in (*op.mutates, *range(len(node.inputs)))
        if isinstance(layout := node.inputs[i].layout, Layout) and isinstance(node.inputs[i], Parameter)
    ]
    return make_choice(rule, *merge(rule, tuple(sources[:1]), ranks)) if sources else None


def wanted_by_updates(graph: Graph, rules: Mapping[Node, Rule | None], ranks: int) -> dict[Value, Layout]:
    """Return the layouts of the operands of updates, and of values from which these are computed element by element.

    An optimizer that scales or clips a gradient, or only looks at it, then finds it reduced to the parameter's slices
    once, not reduced one way here and another way there. States of an optimizer made of small operators are such
    operands: nothing else decides on them, so they are stored in these layouts.
    """
    wanted: dict[Value, Layout] = {}
    while _spread(graph, rules, ranks, wanted):
        pass
    for node in graph.nodes:  # one that a whole parameter needs runs on slices of states: only its result is gathered
        rule, whole = rules[node], wanted.get(node)
        is_update = rule is not None and rule.is_elementwise and node.phase == "update"
        if is_update and whole is not None and not any(whole.dims):
            given = (wanted.get(v) if isinstance(v, Node) else v.layout for v in node.inputs if v.type == node.type)
            wanted[node] = next((each for each in given if isinstance(each, Layout) and any(each.dims)), whole)
    return wanted


def _spread(graph: Graph, rules: Mapping[Node, Rule | None], ranks: int, wanted: dict[Value, Layout]) -> bool:
    """Add to `wanted`, from the last update to the first; return whether a parameter was decided on: an update of it
    that came before may now have wishes too."""
    decided = False
    for node in reversed(graph.nodes):
        rule = rules[node]
        op = node.op
        if rule is None or node.phase != "update" or not isinstance(op, Op) or node.in_layouts is not None:
            continue
        choice = update_choice(node, rule, op, ranks) if op.mutates else None
        if choice is None and node in wanted and (op.mutates or rule.is_elementwise):
            choice = make_choice(rule, *merge(rule, ((rule.outputs[0], wanted[node]),), ranks))
        if choice is None:
            continue
        for value, layout in zip(node.inputs, choice.inputs, strict=True):
            if isinstance(value, Node) and value.shape:
                wanted.setdefault(value, layout)
            elif isinstance(value, Parameter) and value.layout is None:
                value.layout, decided = layout, True
    return decided


FOR_UPDATE = "its update"
"""The source of the layout of a value that only an update reads; no other layout spreads from there."""


def place_updates(search: Search) -> None:
    """Decide first on updates of parameters with given layouts, if the program computes its gradients itself, as one of
    JAX does: these then lead to the slices that ranks store, rows that a loop stacks too."""
    graph, rules = search.graph, search.rules
    if not computes_gradients(graph):
        return
    store_configured(search)
    waiting: list[tuple[Value, Layout | None]] = [*wanted_by_updates(graph, rules, search.ranks).items()]
    while waiting:
        value, layout = waiting.pop(0)
        node = _row_of(value) if isinstance(value, Node) else None
        rule = rules.get(node) if node is not None else None
        if node is None or rule is None or layout is None or node.in_layouts is not None or not rule.outputs:
            continue
        choice = make_choice(rule, *merge(rule, ((rule.outputs[0], layout),), search.ranks))
        is_move = len(rule.inputs) == 1 and not rule.reduced and choice.outputs == (layout,)
        if is_move or (node.phase == "update" and rule.is_elementwise):
            search.take(node, choice, FOR_UPDATE)
            waiting += zip(node.inputs, choice.inputs, strict=True)


def computes_gradients(graph: Graph) -> bool:
    """Return whether a program computes its gradients itself. An optimizer that a script calls reads no parameter
    before its updates: its gradients have their callers' layouts."""
    trained = any(
        node.phase == "forward" and isinstance(value, Parameter) and value.kind == "parameter"
        for node in graph.nodes for value in node.inputs
    )  # fmt: skip
    return trained and not any(node.phase == "backward" for node in graph.nodes)


def _row_of(node: Node) -> Node | None:
    """Return the node that gives a loop its result, if the node is one of a loop, else the node."""
    joined = node.inputs[0] if isinstance(node.op, TupleGetItem) else None
    if not isinstance(joined, Node) or not isinstance(joined.op, Joined):
        return node
    assert isinstance(node.op, TupleGetItem)
    found = joined.inputs[node.op.index]
    return found if isinstance(found, Node) else None


def store_configured(search: Search) -> list[Node]:
    """Store parameters as configured operators need them, first those that change one; return these."""
    configured = [node for node in search.graph.nodes if node.attrs.get("strategy_from") in GIVEN]
    changing = [node for node in configured if cast(Op, node.op).mutates]
    for node in (*changing, *configured):
        if node.in_layouts is not None:
            store_operands(node)
    return changing


def store_parameters(search: Search, forward: list[Node]) -> None:
    """Store every parameter as its first configured reader needs it, or else its first reader. A configured operator
    that would change other slices than the stored ones loses its strategy, or its change would be lost."""
    changing = store_configured(search)
    quantizing = dict.fromkeys(_quantizing(forward))
    for node in (*(node for node in quantizing if isinstance(node.op, Quantize)), *forward):
        if node.in_layouts is not None:
            store_operands(node, search.replicated)
    shard_parameters(search.graph)
    for node in forward:
        _narrow_slices(search, node, node in quantizing)
    for node in changing:
        assert node.in_layouts is not None
        if any(node.inputs[i].layout != node.in_layouts[i] for i in cast(Op, node.op).mutates):
            search.place(node, None, None)


def _quantizing(forward: list[Node]) -> Iterator[Node]:
    """Yield the operators that quantize parameters, and those that find their magnitudes, for this step's scales or for
    later ones."""
    quantized = (node.inputs[0] for node in forward if isinstance(node.op, Quantize))
    weights = {value for value in quantized if is_master(stored(value))}
    magnitudes: set[Value] = set()
    for node in forward:
        value = node.inputs[0] if node.inputs else None
        if value in magnitudes or (value in weights and isinstance(node.op, Abs)):
            magnitudes.add(node)
            yield node
        elif value in weights and isinstance(node.op, Quantize):
            yield node


def _narrow_slices(search: Search, node: Node, quantizes: bool) -> None:
    """Cast a parameter slice by slice if it is stored in smaller slices than it is read in, so that it travels in the
    narrower element type. quantizes: the node is one of `_quantizing`."""
    value = node.inputs[0] if (len(node.inputs) == 1 or quantizes) and not is_constraint(node) else None
    while isinstance(value, Node) and is_constraint(value) and is_master(stored(value)):
        value = value.inputs[0]
    rule = search.rules[node]
    if rule is None or node.in_layouts is None or value is None:
        return
    if not quantizes and (not isinstance(value, Parameter) or stored(node) is not value):
        return
    layout = value.layout.without_partial() if isinstance(value.layout, Layout) else None
    if isinstance(layout, Layout) and layout != node.in_layouts[0] and _width(node) <= _width(value):
        search.take(node, make_choice(rule, *merge(rule, ((rule.inputs[0], layout),), search.ranks)),
                  str(node.attrs.get("strategy_from", "")))  # fmt: skip


def store_operands(node: Node, replicated: Mapping[Value, Layout] | None = None) -> None:
    """Parameters that the node reads and nobody has decided on yet lie as it needs them, or as `replicated` says."""
    assert node.in_layouts is not None
    for value, layout in zip(node.inputs, node.in_layouts, strict=True):
        if isinstance(value, Parameter) and value.layout is None and layout is not None:
            value.layout = (replicated or {}).get(value, layout).without_partial()


def _width(value: Value) -> int:
    return value.tensor_type.dtype.itemsize


# Parameters that replicas would update alike are sharded once more, so that each updates a slice (optimizer parallel).
# The additional sharding is on dimension 0, over the ranks that hold the same slice. Reading the parameter then gathers
# it, and its gradient is scattered to the slices; optimizer states follow the parameter. Facts: MindSpore's
# `enable_parallel_optimizer` with `parallel_optimizer_threshold` (KB, default 64), `optimizer_weight_shard_size` and
# `optimizer_level`. With `level3` gathered values are not stored for gradients: they are gathered again.


EVERYTHING = "level3"
"""The level of optimizer parallel by which parameters are stored in slices between their readers, too."""
THRESHOLD = 64
"""KB below which a parameter stays as it is."""


def shard_parameters(graph: Graph) -> None:
    """Shard the graph's trainable parameters further, if its header asks for optimizer parallel.

    One that is updated and that no operator reads (its gradient was computed by another graph) has no layout yet: all
    ranks are its replicas.
    """
    if not graph.attrs.get("parallel_optimizer"):
        return
    threshold = int(graph.attrs.get("parallel_optimizer_threshold", THRESHOLD))
    size = int(graph.attrs.get("optimizer_weight_shard_size", -1))
    sharded: set[Value] = set()
    for parameter, layout in sharded_further(graph, threshold, size):
        if any(layout.dims) and layout != parameter.layout:
            parameter.layout = layout
            sharded.add(parameter)
    if graph.attrs.get("optimizer_level") == EVERYTHING:
        gather_again(graph, sharded)


def gather_again(graph: Graph, parameters: Collection[Value]) -> None:
    """Let gradients that read these parameters gather them once more."""
    read = set(parameters)
    for node in graph.nodes:
        if node.phase == "forward" and not read.isdisjoint(node.inputs):
            node.attrs["gathers_again"] = True
            if len(node.inputs) == 1 or isinstance(node.op, Quantize):
                read.add(node)  # it is converted, and gathered then


def sharded_further(graph: Graph, threshold: int = THRESHOLD, size: int = -1) -> Iterator[tuple[Parameter, Layout]]:
    """Yield the parameters that may be sharded once more, with the layouts that they have then, which may be those that
    they have. threshold: KB below which one stays as it is. size: ranks that share one, -1 for all that would hold the
    same."""
    ranks = int(graph.attrs.get("ranks", 1))
    updated = {node.inputs[i] for node in graph.nodes if node.phase == "update" for i in node.op.mutates}
    for parameter in graph.parameters:
        layout = parameter.layout
        if layout is None and parameter in updated:
            layout = Layout.replicated(ranks, len(parameter.shape))
        if parameter.kind != "parameter" or not parameter.trainable or not isinstance(layout, Layout):
            continue
        if parameter.attrs.get("parallel_optimizer", True) and parameter.type.nbytes >= threshold * 1024:
            yield parameter, _shard(parameter, layout, size)


def why_not_sharded(graph: Graph) -> str:
    """Return why optimizer parallel does not shard a graph's parameters; "" if only their sizes decide."""
    trained = [p for p in graph.parameters if p.kind == "parameter" and p.trainable]
    if not any(node.phase == "update" for node in graph.nodes) or not trained:
        return "no parameter is trained"
    threshold = int(graph.attrs.get("parallel_optimizer_threshold", THRESHOLD))
    if all(parameter.type.nbytes < threshold * 1024 for parameter in trained):
        return f"all parameters that are trained are below the threshold of {threshold} KiB"
    return ""


def _shard(parameter: Parameter, layout: Layout, size: int) -> Layout:
    """Return the layout with dimension 0 sharded over `size` neighbouring replicas (-1: all of them), if they divide
    it."""
    shape = parameter.shape
    axes = layout.unused
    replicas = layout.size_of(axes)
    wanted = replicas if size == -1 else size
    if not shape or wanted <= 1 or replicas % wanted:
        return layout
    mesh, dims, taken = _split(layout, axes, wanted)
    if not taken:
        return layout
    sharded = Layout.of(mesh, [(*dims[0], *taken), *dims[1:]])
    return sharded if sharded.divides(shape) else layout


def _split(layout: Layout, axes: Axes, wanted: int) -> tuple[tuple[int, ...], list[Axes], Axes]:
    """Return (mesh, dims, axes): the fastest of the unused axes with `wanted` ranks, one of them split if it must
    be."""
    taken: list[int] = []
    for a in reversed(axes):
        if wanted == 1:
            break
        if wanted % layout.mesh[a] == 0:
            wanted //= layout.mesh[a]
            taken.insert(0, a)
        elif layout.mesh[a] % wanted == 0:
            mesh = (*layout.mesh[:a], layout.mesh[a] // wanted, wanted, *layout.mesh[a + 1 :])
            dims = [tuple(x + (x > a) for x in d) for d in layout.dims]
            return mesh, dims, (a + 1, *(x + 1 for x in taken))
        else:
            return layout.mesh, list(layout.dims), ()
    return layout.mesh, list(layout.dims), tuple(taken)
