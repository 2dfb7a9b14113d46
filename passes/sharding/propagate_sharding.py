"""Gives every operator a sharding that the user left without one, and every parameter its slice.

Semi-automatic mode: forward operators without a strategy are cut along the batch (operators that only move data follow
their neighbours). Automatic mode (sharding propagation): shardings spread from the configured operators and the data to
their neighbours, downstream first, each operator taking what costs the fewest bytes. In both modes a parameter
is stored
as its first reader needs it, configured readers first; backward operators follow their operands, updates follow their
parameter. Then backward operators are revisited for as long as that saves bytes and costs no matrix work.

Input:  nodes with `in_layouts` where the user gave strategies. Output: all nodes and parameters with layouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from mspc.ir.diagnostics import MspcError, raise_all
from mspc.ir.graph import Graph, Layouts, Node, Parameter, Value, element_layouts, element_types
from mspc.ir.layout import Layout
from mspc.ops.control.structural import Gradient
from mspc.ops.math.arithmetic import AddN
from mspc.ops.op import Op
from mspc.passes.base import Pass
from mspc.passes.sharding.choices import Choice, Source, choices, make_choice, merge, operandwise_choice, rule_of
from mspc.passes.sharding.constraints import is_constraint, release_constraints
from mspc.passes.sharding.layout_plans import State, Total, best_plan, restore, state_of
from mspc.passes.sharding.parallel_optimizer import cut_parameters
from mspc.passes.sharding.placement import (
    batch_choice,
    followers,
    operand_layouts,
    result_layouts,
    stored,
    structural_layout,
)
from mspc.passes.sharding.traffic import Traffic, bytes_between, gradient_bytes, scatter_bytes, work_of
from mspc.passes.sharding.update_layouts import elementwise, update_choice, wanted_by_updates
from mspc.sharding.factors import Rule


@dataclass(frozen=True)
class PropagateSharding(Pass):
    """Decide the layouts of all nodes and parameters."""

    def run(self, graph: Graph) -> bool:
        for node in graph.nodes:
            if not isinstance(node.op, Op):
                raise MspcError(f"{node.label}: no operator is known under this name, so none can be sharded",
                                frames=node.frames)  # fmt: skip
            if isinstance(node.op, Gradient):
                raise MspcError(
                    f"{node.label} asks for gradients that are not there yet",
                    notes=["run grad before propagate_sharding"],
                    frames=node.frames,
                )
        _Propagation(graph).run()
        return True


class _Propagation:
    """The state of one run: rules, costs, and who has decided what."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ranks = int(graph.attrs.get("ranks", 1))
        self.automatic = graph.attrs.get("mode") == "auto_parallel"
        self.traffic = Traffic(graph)
        self.traffic.required = result_layouts(graph)
        self.trains = any(node.phase != "forward" for node in graph.nodes)
        self.parameters = {parameter.name: parameter for parameter in graph.parameters}
        self.rules: dict[Node, Rule | None] = {}
        self.wanted: dict[Value, Layout] = {}
        self.mirrors = ""
        """How backward operators keep to the layouts of the forward graph: see `place_backward`."""
        """Where updates need the values that lead to them element by element."""
        errors: list[MspcError] = []
        for node in graph.nodes:
            try:
                self.rules[node] = rule_of(node)
            except MspcError as error:
                errors.append(error)
        raise_all(errors)
        self.followers = followers(graph, self.rules)
        self.products = {
            node for node in graph.nodes if node.phase != "forward" and _multiplies(node, self.rules[node])
        }

    def run(self) -> None:
        for node in self.graph.nodes:
            if node.in_layouts is not None and "strategy_from" not in node.attrs:
                node.attrs["strategy_from"] = "shard()"
        forward = [node for node in self.graph.nodes if node.phase == "forward"]
        self.structure(forward)
        if self.automatic:
            self.spread(forward)
        else:
            self.cut_batch(forward)
        self.store_parameters(forward)
        if release_constraints(self.graph):
            self.traffic.users = self.graph.users()
            self.traffic.required = result_layouts(self.graph)
        self.wanted = wanted_by_updates(self.graph, self.rules, self.ranks)
        self.place_backward([node for node in self.graph.nodes if node.phase != "forward"])

    # Forward operators --------------------------------------------------------------------------------------------

    def structure(self, nodes: Iterable[Node]) -> None:
        """Tuples and orderings have the layouts of what they hold, as far as those are known."""
        for node in nodes:
            if self.rules[node] is None and node.in_layouts is None:
                structural_layout(node, self.ranks)

    def cut_batch(self, forward: list[Node]) -> None:
        waiting: list[Node] = []
        casts: list[Node] = []
        for node in forward:
            rule = self.rules[node]
            if rule is None:
                structural_layout(node, self.ranks)
            elif node.in_layouts is None and is_master(stored(node)):
                casts.append(node)
            elif node.in_layouts is None:
                if cast(Op, node.op).follows_neighbours or cast(Op, node.op).operandwise:
                    waiting.append(node)
                else:
                    self.take(node, batch_choice(node, rule, self.ranks), "batch")
        for node in (*waiting, *reversed(casts)):
            self.choose(node, "its neighbours")
        self.structure(forward)

    def spread(self, forward: list[Node]) -> None:
        """Sharding propagation: downstream from what is decided, then upstream, until nothing is left to reach."""
        reached = {node for node in forward if node.in_layouts is not None}
        if not reached:
            reached = {p for p in self.graph.parameters if p.kind == "input"}  # type: ignore[assignment]  # values too
        known: set[Value] = set(reached)
        changed = True
        while changed:
            changed = False
            for node in forward:
                if self.rules[node] is None:
                    if structural_layout(node, self.ranks) and any(v in known for v in node.inputs):
                        known.add(node)
                elif node.in_layouts is None and any(v in known for v in node.inputs):
                    self.choose(node, self.origin(node, node.inputs))
                    known.add(node)
                    changed = True
            for node in reversed(forward):
                users = [user for user, _ in self.traffic.users.get(node, ()) if user in known]
                if node in known or not users:
                    continue
                if self.rules[node] is None:
                    known.add(node)
                    changed = True
                elif node.in_layouts is None:
                    self.choose(node, self.origin(node, users), upstream=True)
                    known.add(node)
                    changed = True
            if not changed:
                left = [node for node in forward if self.rules[node] is not None and node.in_layouts is None]
                if left:
                    self.choose(left[0], "the data")
                    known.add(left[0])
                    changed = True
        self.structure(forward)

    def origin(self, node: Node, around: Iterable[Value]) -> str:
        """In words, from which decided neighbour a sharding came."""
        for value in around:
            if isinstance(value, Node) and value.in_layouts is not None:
                return value.label
        return "the data"

    def choose(self, node: Node, source: str, upstream: bool = False) -> None:
        """Take the choice that costs the fewest bytes now and, by estimate, in the backward graph."""
        rule = self.rules[node]
        assert rule is not None
        if cast(Op, node.op).operandwise:
            self.take_operandwise(node, source)
            return
        hints = self.reader_hints(node, rule)
        options = choices(cast(Op, node.op), rule, operand_layouts(node), tuple(hints), self.ranks)
        if upstream and hints:
            wanted = {layout for _, layout in hints}
            fitting = tuple(o for o in options if o.outputs[0].without_partial() in wanted)
            options = fitting or options
        scored = [
            (self.score(node, option) + self.look_ahead(node, option), option.work, i)
            for i, option in enumerate(options)
        ]
        self.take(node, options[min(scored)[2]], source)

    def look_ahead(self, node: Node, option: Choice) -> float:
        """The fewest bytes that the undecided readers would add after this choice; automatic mode only."""
        if not self.automatic:
            return 0.0
        before = (node.in_layouts, node.layout)
        node.in_layouts = option.inputs
        node.layout = option.layout(node.type)
        total = 0.0
        for user in dict.fromkeys(user for user, _ in self.traffic.users.get(node, ())):
            rule = self.rules[user]
            if user.phase != "forward" or rule is None or user.in_layouts is not None:
                continue
            options = choices(cast(Op, user.op), rule, operand_layouts(user), (), self.ranks)
            total += min(self.score(user, o) for o in options)
        node.in_layouts, node.layout = before
        return total

    def reader_hints(self, node: Node, rule: Rule) -> list[Source]:
        if len(rule.outputs) != 1:
            return []
        return [(rule.outputs[0], layout) for layout in self.traffic.needs(node) if not layout.partial]

    def score(self, node: Node, option: Choice) -> float:
        """Bytes that a choice makes a rank send: for its operands, its partial result, its readers, its gradients."""
        total = sum(self.traffic.move(v, layout) for v, layout in zip(node.inputs, option.inputs, strict=True))
        for type, layout in zip(element_types(node.type), option.outputs, strict=True):
            needed = self.traffic.needs(node)
            if needed:
                total += sum(bytes_between(layout, target, type) for target in needed)
            elif layout.partial:
                total += scatter_bytes(layout, type.shape, type.dtype.itemsize)
        if self.trains and node.phase == "forward":
            total += gradient_bytes(node, option, self.rules[node])
        return total

    def take(self, node: Node, option: Choice, source: str) -> None:
        self.place(node, option.inputs, option.layout(node.type))
        if node.phase == "forward":
            node.attrs["strategy_from"] = source

    def place(self, node: Node, operands: tuple[Layout | None, ...] | None, layout: Layouts) -> None:
        """Give a node its layouts; tuples, elements and orderings that had theirs from it before go along."""
        node.in_layouts, node.layout = operands, layout
        for follower in self.followers.get(node, ()):
            if follower.layout is not None:
                follower.in_layouts = follower.layout = None
                structural_layout(follower, self.ranks)

    # Parameters ---------------------------------------------------------------------------------------------------

    def store_parameters(self, forward: list[Node]) -> None:
        """A parameter is stored as its first configured reader needs it, or else its first reader.

        A configured operator that changes the parameter comes before all; one that would run on other slices than the
        stored ones loses its strategy, or its change would be lost.
        """
        configured = [node for node in self.graph.nodes if node.attrs.get("strategy_from") == "shard()"]
        changing = [node for node in configured if cast(Op, node.op).mutates]
        for node in (*changing, *configured, *forward):
            if node.in_layouts is not None:
                self.store_operands(node)
        cut_parameters(self.graph)
        for node in forward:
            self.narrow_slices(node)
        for node in changing:
            assert node.in_layouts is not None
            if any(node.inputs[i].layout != node.in_layouts[i] for i in cast(Op, node.op).mutates):
                self.place(node, None, None)

    def narrow_slices(self, node: Node) -> None:
        """A parameter that is stored in smaller slices than it is read in is cast slice by slice, so that it travels in
        the narrower element type."""
        value = node.inputs[0] if len(node.inputs) == 1 and not is_constraint(node) else None
        while isinstance(value, Node) and is_constraint(value):
            value = value.inputs[0]
        rule = self.rules[node]
        if not isinstance(value, Parameter) or stored(node) is not value or rule is None or node.in_layouts is None:
            return
        layout = value.layout
        if isinstance(layout, Layout) and layout != node.in_layouts[0] and _width(node) <= _width(value):
            self.take(node, make_choice(rule, *merge(rule, ((rule.inputs[0], layout),), self.ranks)),
                      str(node.attrs.get("strategy_from", "")))  # fmt: skip

    def store_operands(self, node: Node) -> None:
        assert node.in_layouts is not None
        for value, layout in zip(node.inputs, node.in_layouts, strict=True):
            if isinstance(value, Parameter) and value.layout is None and layout is not None:
                value.layout = layout.without_partial()

    def settle_rest(self) -> None:
        """Whatever nobody reads is whole on every rank."""
        for parameter in self.graph.parameters:
            if parameter.layout is None:
                parameter.layout = Layout.replicated(self.ranks, len(parameter.shape))

    def place_backward(self, nodes: list[Node]) -> None:
        """Let backward operators follow their operands in three ways, and keep the best.

        One looks for the fewest bytes at each operator, which may scatter sums, work on the pieces and change layouts
        many times. The others go back to the layouts of the forward graph wherever they can, one with sums complete.
        """
        values = [*nodes, *self.graph.parameters]
        begin = [state_of(value) for value in values]
        found: list[tuple[Total, list[State]]] = []
        for self.mirrors in ("whole", "partial", ""):
            for node in nodes:
                self.follow_operands(node)
            self.settle_rest()
            self.improve([node for node in nodes if node.phase == "backward"])
            found.append((self.total(nodes), [state_of(value) for value in values]))
            restore(values, begin)
        restore(values, best_plan(found))

    def total(self, nodes: Iterable[Node]) -> Total:
        """What the graph costs with all layouts as they are; the work of `nodes`."""
        values = (*self.graph.nodes, *self.graph.parameters)
        spent = [*map(self.traffic.of_value, values), *map(self.traffic.of_sum, self.graph.nodes)]
        work = sum(work_of(node, self.rules[node]) for node in nodes if node in self.products)
        return Total(sum(spent), sum(nbytes > 0 for nbytes in spent), work)

    # Backward operators and updates ---------------------------------------------------------------------------------

    def follow_operands(self, node: Node) -> None:
        rule = self.rules[node]
        if rule is None:
            structural_layout(node, self.ranks)
            return
        if node.in_layouts is not None:
            return
        op = cast(Op, node.op)
        if op.mutates:
            self.take(node, update_choice(node, rule, op, self.ranks), "")
        elif op.operandwise:
            self.take_operandwise(node, "")
        elif self.leads_to_update(node, rule, op):
            source = (rule.outputs[0], self.wanted[node])
            self.take(node, make_choice(rule, *merge(rule, (source,), self.ranks)), "")
        else:
            options = self.backward_options(node, rule)
            if self.mirrors:
                options = self.mirrored(node, options)
            scored = [(self.score(node, option), option.work, i) for i, option in enumerate(options)]
            self.take(node, options[min(scored)[2]], "")
        self.store_operands(node)

    def mirrored(self, node: Node, options: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """Those that give the gradient of a forward value the value's own cut, if there are any."""
        forward = node.forward
        if forward is None:
            return options
        if isinstance(node.op, AddN):
            wanted = forward.layout  # a sum of terms is the gradient of the result itself
        elif forward.in_layouts is not None and node.forward_input >= 0:
            wanted = forward.in_layouts[node.forward_input]
        else:
            return options
        same = tuple(o for o in options if o.outputs[0].without_partial() == wanted)
        rule = self.rules[node]
        if not same and isinstance(node.op, AddN) and isinstance(wanted, Layout) and rule is not None:
            # Where a term is cut finer than the result, no choice of the operands' own cuts goes back to the result's.
            same = (make_choice(rule, *merge(rule, ((rule.outputs[0], wanted),), self.ranks)),)
        whole = tuple(o for o in same if not o.outputs[0].partial) if self.mirrors == "whole" else ()
        return whole or same or options

    def leads_to_update(self, node: Node, rule: Rule, op: Op) -> bool:
        """Whether a node runs on a parameter's slices: element by element it makes what an update reads, and no partial
        operand goes through it that nobody needs whole before."""
        if node.phase != "update" or node not in self.wanted or not elementwise(rule):
            return False
        return not any(
            layout is not None and layout.partial and i in op.linear_in
            and not any(cast(Op, user.op).operandwise for user, _ in self.traffic.users.get(node.inputs[i], ()))
            for i, layout in enumerate(operand_layouts(node))
        )  # fmt: skip

    def take_operandwise(self, node: Node, source: str) -> None:
        """Let an operator look at its operands where they lie, at partial ones where they will be needed."""
        layouts: list[Layout] = []
        for value, known in zip(node.inputs, operand_layouts(node), strict=True):
            whole = Layout.replicated(self.ranks, len(value.shape))
            layouts.append(self.wanted.get(value) or (known.without_partial() if known is not None else whole))
        self.take(node, operandwise_choice(cast(Op, node.op), layouts, self.ranks), source)

    def backward_options(self, node: Node, rule: Rule) -> tuple[Choice, ...]:
        """Choices of a backward operator; where it multiplies matrices, those that cut it as far as its forward one."""
        hints = self.reader_hints(node, rule)
        forward = node.forward
        if len(rule.outputs) == 1:
            wanted: list[Layout | None] = []
            if forward is not None and node.forward_input >= 0 and forward.in_layouts is not None:
                wanted.append(forward.in_layouts[node.forward_input])
            if forward is not None and node.attrs.get("recomputed") and isinstance(forward.layout, Layout):
                wanted.append(forward.layout)
            for name in filter(None, str(node.attrs.get("gradient_for", "")).split(",")):
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
        limit = min(option.work for option in options)
        if forward is not None and forward.in_layouts is not None:
            limit = max(limit, work_of(forward, self.rules[forward]))
        return tuple(option for option in options if option.work <= limit)

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
        total = self.traffic.of_value(node) + self.traffic.of_sum(node)
        total += sum(self.traffic.of_value(v) for v in (*dict.fromkeys(node.inputs), *self.followers.get(node, ())))
        for user, _ in self.traffic.users.get(node, ()):
            total += self.traffic.of_sum(user)
        return total

    def reconsider(self, node: Node, rule: Rule) -> bool:
        before = (node.in_layouts, node.layout)
        best, chosen = self.cost_around(node) - 1e-6, None
        for option in self.backward_options(node, rule):
            if (option.inputs, option.outputs) == (before[0], element_layouts(before[1])):
                continue
            self.take(node, option, "")
            now = self.cost_around(node)
            if now < best:
                best, chosen = now, option
        self.place(node, *before)
        if chosen is None:
            return False
        self.take(node, chosen, "")
        return True


def _multiplies(node: Node, rule: Rule | None) -> bool:
    """Whether an operator computes more than once with its operands' elements, as products of matrices do."""
    values = (node, *node.inputs)
    largest = max((t.size for value in values for t in element_types(value.type)), default=0)
    return rule is not None and math.prod(rule.sizes) > largest


def is_master(parameter: Parameter | None) -> bool:
    """Whether this is a parameter that operators may read in another element type than it is stored in."""
    return parameter is not None and parameter.kind == "parameter"


def _width(value: Value) -> int:
    return value.tensor_type.dtype.itemsize
