"""In semi-automatic mode, gives operators without a strategy layouts: along the batch or as their neighbours have them.

Operators that read each other make a region, which ends at operators with a strategy, at parameters and at results. A
region is sharded along the batch, or every operator as its operands lie, or as its readers want it, whichever makes
ranks send the fewest bytes; then single operators are revisited for as long as that saves any. Three things stay as
they are along the batch: regions that touch no operator with a strategy, the slices in which parameters are stored,
and how much a product of matrices computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import cast

from mspc.ir.graph import Constant, Node, Parameter, Value, element_layouts, element_types
from mspc.ir.layout import Layout
from mspc.ops.control.borders import Handed
from mspc.ops.op import Op
from mspc.passes.sharding.choices import ShardingChoice, choices, multiplies
from mspc.passes.sharding.layout_plans import State, restore, state_of
from mspc.passes.sharding.layout_search import Search
from mspc.passes.sharding.placement import batch_choices, is_master, operand_layouts, stored
from mspc.passes.sharding.traffic import bytes_between, scatter_bytes, work_of
from mspc.sharding.factors import Rule

BATCH, NEIGHBOURS = "batch", "its neighbours"
"""Where a layout came from, in words."""
ROUNDS = 3
"""How often single operators are revisited."""
AS_GOOD = 1.001
"""Of the plans that send hardly more bytes than the cheapest the one with the least work is taken."""
LEAST = 1e-3
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
        """The operators that read each other, also through tuples, in run order."""
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
        """Whether an operator with a layout gives operands to the region or reads its results."""
        for node in region:
            around = [*self.users(node), *(v for v in node.inputs if isinstance(v, Node))]
            if any(other.in_layouts is not None and self.search.rules[other] is not None for other in around):
                return True
        return False

    def users(self, node: Node) -> list[Node]:
        """The forward operators that read a node or an element of it."""
        shown = (node, *self.search.followers.get(node, ()))
        found = [user for value in shown for user, _ in self.traffic.users.get(value, ())]
        return [user for user in dict.fromkeys(found) if user.phase == "forward"]

    def shard_batch(self, region: Sequence[Node]) -> None:
        """Shard along the batch; operators that only move data follow what is around them."""
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
        for decide in (self.shard_batch, self.follow, self.follow_readers):
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

    def follow_readers(self, region: Sequence[Node]) -> None:
        self.follow(reversed(region))

    def follow(self, nodes: Iterable[Node]) -> None:
        """Every operator takes what costs the fewest bytes as far as others are decided."""
        for node in nodes:
            if cast(Op, node.op).operandwise:
                self.search.take_operandwise(node, NEIGHBOURS)
            else:
                self.take(node, self.cheapest(node, self.options(node)))

    def improve(self, region: Sequence[Node]) -> None:
        """Revisit operators, last first, while another choice saves bytes; then what their operands come from."""
        for _ in range(ROUNDS):
            changed = False
            for node in reversed(region):
                if not cast(Op, node.op).operandwise and self.cost((node,)) > LEAST:
                    before = (node.in_layouts, node.layout)
                    self.take(node, self.cheapest(node, self.options(node)))
                    changed |= before != (node.in_layouts, node.layout)
            if not changed:
                break
        for node in reversed(region):
            for index, value in enumerate(node.inputs):
                if value in self.chosen and self.moves(value) > LEAST:
                    self.move_upstream(node, index)

    def move_upstream(self, reader: Node, index: int) -> None:
        """Make an operand in the layout in which it is read, then what that is made of, and so on through the region;
        keep as much of it as saves the most bytes. An operator on the way may have made much of little, as a mask of
        classes of their numbers."""
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
            if saved > best + LEAST:
                best, kept = saved, len(replaced)
            bytes_of_operands = [self.moves(v) if v in self.chosen else 0.0 for v in node.inputs]
            most = max(bytes_of_operands, default=0.0)
            if most <= LEAST:
                break
            reader, index = node, bytes_of_operands.index(most)
        for node, option in reversed(replaced[kept:]):
            self.take(node, option)

    def options(self, node: Node) -> list[ShardingChoice]:
        """The choices for an operator that leave undecided parameters replicated where the batch is sharded, and a
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
        """Whether an undecided parameter may be read so: as the batch has it, or in slices where that replicates it."""
        of_batch = {option.inputs[index] for option in self.batch[node]}
        return layout in of_batch or node.inputs[index] in self.replicated_parameters(node)

    def replicated_parameters(self, node: Node) -> dict[Parameter, Layout]:
        """The undecided parameters of an operator that are stored replicated, and how they lie then; it may read slices
        of those that it does not change."""
        found: dict[Parameter, Layout] = {}
        for i in self.open_parameters(node):
            value, of_batch = node.inputs[i], {option.inputs[i] for option in self.batch[node]}
            changes = i in cast(Op, node.op).mutates
            if isinstance(value, Parameter) and not changes and all(layout.is_replicated for layout in of_batch):
                found[value] = self.batch[node][0].inputs[i]
        return found

    def slice_bytes(self, node: Node) -> float:
        """Bytes that bring the gradients of slices to where parameters are stored replicated."""
        found = 0.0
        replicated = self.replicated_parameters(node)
        for value, layout in zip(node.inputs, node.in_layouts or (), strict=True):
            if isinstance(value, Parameter) and value in replicated and value.trainable and layout is not None:
                found += value.tensor_type.nbytes * (1 - 1 / math.prod(layout.strategy))
        return found

    def cheapest(self, node: Node, options: Sequence[ShardingChoice]) -> ShardingChoice:
        """The option with the fewest bytes around the node; of equal ones that with the least work, then the first."""
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
        """Bytes that depend on the nodes' layouts: there, inside and, for what has a gradient, back."""
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
    """Bytes of what `gradient_bytes` takes to be scattered, where the value itself is on every rank that adds to its
    gradient, so that this is gathered, too. graded: values that have a gradient."""
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
