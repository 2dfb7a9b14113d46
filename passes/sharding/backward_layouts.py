"""Gives backward operators and updates layouts, which follow their operands and the forward graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from mspc.ir.graph import Node, Parameter, Value, element_layouts
from mspc.ir.layout import Layout
from mspc.ir.text.families import gradient_names
from mspc.ir.types import StackType
from mspc.ops.control.loops import MakeStack
from mspc.ops.control.structural import Depend, TupleGetItem
from mspc.ops.math.arithmetic import AddN
from mspc.ops.op import Op
from mspc.passes.sharding.choices import ShardingChoice, Source, choices, make_choice, merge, multiplies
from mspc.passes.sharding.layout_plans import PlanTotal, State, best_plan, restore, state_of
from mspc.passes.sharding.layout_search import Search
from mspc.passes.sharding.parameter_layouts import settle_rest, store_operands
from mspc.passes.sharding.placement import is_master, operand_layouts, stored, structural_layout
from mspc.passes.sharding.traffic import busiest, sent_inside, work_of
from mspc.passes.sharding.update_layouts import elementwise, update_choice
from mspc.sharding.factors import Rule


class BackwardLayouts:
    """The search for what is not of the forward graph.

    products: operators that compute more than once with their operands' elements. mirrors: how operators keep to the
    layouts of the forward graph, see `place`.
    """

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
            settle_rest(self.graph, self.ranks)
            self.improve([node for node in nodes if node.phase == "backward"])
            found.append((self.total(nodes), [state_of(value) for value in values]))
            restore(values, begin)
        restore(values, best_plan(found))

    def total(self, nodes: Iterable[Node]) -> PlanTotal:
        """What the graph costs with all layouts as they are; the work of `nodes`."""
        values = (*self.graph.nodes, *self.graph.parameters)
        spent = [*map(self.traffic.of_value, values), *map(self.traffic.of_sum, self.graph.nodes)]
        work = sum(work_of(node, self.rules[node]) for node in nodes if node in self.products)
        return PlanTotal(sum(spent) + sent_inside(self.graph.nodes), sum(nbytes > 0 for nbytes in spent), work)

    def follow_operands(self, node: Node) -> None:
        """Take the layouts that cost the fewest bytes where the operands lie; an update those of its parameter."""
        rule = self.rules[node]
        if rule is None:
            if isinstance(node.op, Depend) and isinstance(first := node.inputs[0], Parameter) and first.layout is None:
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
        """Those that give the gradient of a forward value the value's own sharding, if there are any."""
        forward = node.forward
        if forward is None:
            return options
        if isinstance(node.op, AddN):
            wanted = forward.layout  # a sum of terms is the gradient of the result itself
            is_tensor = not isinstance(node.type, StackType)
            if isinstance(forward.op, MakeStack) and isinstance(wanted, Layout) and is_tensor:
                wanted = Layout.of(wanted.mesh, ((), *wanted.dims))  # that of a stack is that of its entries
        elif forward.in_layouts is not None and node.forward_input >= 0:
            wanted = _lies(forward, node.forward_input)
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
        """Whether a node runs on a parameter's slices: element by element it makes what an update reads, and no partial
        operand goes through it that nobody needs complete before."""
        if node.phase != "update" or node not in self.wanted or not elementwise(rule):
            return False
        return not any(
            layout is not None and layout.partial and i in op.linear_in and not self.needed_complete(node.inputs[i])
            for i, layout in enumerate(operand_layouts(node))
        )

    def needed_complete(self, value: Value) -> bool:
        """Whether a reader of a value cannot take it in partial sums. One that could then reads the complete value too:
        of two sums that are rounded otherwise a quotient, as of an optimizer's moments, may be far off."""
        return any(
            self.rules.get(user) is not None and isinstance(op := user.op, Op)
            and (bool(op.mutates) or not (op.additive or index in op.linear_in))
            for user, index in self.traffic.users.get(value, ())
        )  # fmt: skip

    def options(self, node: Node, rule: Rule) -> tuple[ShardingChoice, ...]:
        """Choices of a backward operator; where it multiplies matrices, those that shard it as far as its forward
        one."""
        hints = self.search.reader_hints(node, rule)
        forward = node.forward
        if len(rule.outputs) == 1:
            wanted: list[Layout | None] = []
            if forward is not None and node.forward_input >= 0 and forward.in_layouts is not None:
                wanted.append(_lies(forward, node.forward_input))
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
            # The gradient of a parameter is summed in the parameter's own element type, unless told otherwise.
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
        """The choice for several gradients at once that gives each the layout of what it is of, if there is one: where
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

    def cost_around(self, node: Node) -> float:
        """Bytes that depend on the node's layouts: for its operands, its result and its readers."""
        total = self.traffic.of_value(node) + self.traffic.of_sum(node)
        around = (*dict.fromkeys(node.inputs), *self.search.followers.get(node, ()))
        total += sum(self.traffic.of_value(v) for v in around)
        for user, _ in self.traffic.users.get(node, ()):
            total += self.traffic.of_sum(user)
        return total

    def reconsider(self, node: Node, rule: Rule) -> bool:
        """Take another choice where it saves bytes; True where one did."""
        before = state_of(node)
        best, chosen = self.cost_around(node) - 1e-6, None
        for option in self.options(node, rule):
            if (option.inputs, option.outputs) == (before[1], element_layouts(before[2])):
                continue
            self.search.take(node, option, "")
            now = self.cost_around(node)
            if now < best:
                best, chosen = now, option
        self.search.put_back(node, before)
        if chosen is None:
            return False
        self.search.take(node, chosen, "")
        return True


def _lies(forward: Node, index: int) -> Layout | None:
    """The layout to which the gradient of an operand goes back: that in which the operator reads it, or in which it
    lies where ranks exchange its rows."""
    assert forward.in_layouts is not None
    own = forward.inputs[index].layout
    if index in cast(Op, forward.op).exchanged and isinstance(own, Layout):
        return own.without_partial()
    return forward.in_layouts[index]
