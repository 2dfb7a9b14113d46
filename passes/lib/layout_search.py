"""Search of one operator's layouts: of all its choices the one for which ranks send the fewest bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from mspc.ir.diagnostics import MspcError, raise_all
from mspc.ir.graph import Graph, Layouts, Node, Value, element_types, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.control.structural import RegionBoundary
from mspc.ops.op import Op
from mspc.passes.lib.choices import (
    ShardingChoice,
    Source,
    choices,
    exchanges,
    make_choice,
    merge,
    operandwise_choice,
    rule_of,
)
from mspc.passes.lib.placement import (
    Traffic,
    bytes_between,
    followers,
    gradient_bytes,
    operand_layouts,
    result_layouts,
    scatter_bytes,
    structural_layout,
)
from mspc.sharding.rules import Rule


class KnownRules(Mapping[Node, "Rule | None"]):
    """Rules by node, None if an operator has none. A node that has been given another operator, as attention in its
    other form, has the rule of that one."""

    def __init__(self) -> None:
        self._known: dict[Node, tuple[Any, Rule | None]] = {}

    def note(self, node: Node) -> None:
        """Know a node's rule from now on. Raise MspcError if the operator does not take its operands."""
        self._known[node] = node.op, rule_of(node)

    def __getitem__(self, node: Node) -> Rule | None:
        op, rule = self._known[node]
        if op is node.op:
            return rule
        self.note(node)
        return self._known[node][1]

    def __contains__(self, node: object) -> bool:
        return node in self._known

    def __iter__(self) -> Iterator[Node]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class Search:
    """The graph of a search for layouts.

    rules: of all operators, None if an operator has none. traffic: the costs of its layouts, as far as they are known.
    is_open: the graph's regions are open. wanted: the layouts in which updates need the values that lead to them, once
    parameters have theirs. replicated: the layouts of parameters that operators without a strategy may read in slices.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ranks = int(graph.attrs.get("ranks", 1))
        self.automatic = graph.attrs.get("mode") == "auto_parallel"
        self.is_open = any(isinstance(node.op, RegionBoundary) for node in graph.nodes)
        self.traffic = Traffic(graph)
        self.traffic.required = result_layouts(graph)
        self.trains = any(node.phase != "forward" for node in graph.nodes)
        self.rules = KnownRules()
        self.wanted: dict[Value, Layout] = {}
        self.replicated: dict[Value, Layout] = {}
        errors: list[MspcError] = []
        for node in graph.nodes:
            try:
                self.rules.note(node)
            except MspcError as error:
                errors.append(error)
        raise_all(errors)
        self.followers = followers(graph, self.rules)

    def reread(self) -> None:
        """Update users and results after operands were exchanged."""
        self.traffic.users = self.graph.users()
        self.traffic.required = result_layouts(self.graph)
        self.followers = followers(self.graph, self.rules)

    def include(self, nodes: Iterable[Node]) -> None:
        """Go on with nodes that the graph has been given since."""
        for node in nodes:
            self.rules.note(node)
        self.traffic = Traffic(self.graph)
        self.reread()

    def structure(self, nodes: Iterable[Node]) -> None:
        """Give tuples and orderings the layouts of their members, as far as those are known."""
        for node in nodes:
            if self.rules[node] is None and node.in_layouts is None:
                structural_layout(node, self.ranks)

    def restructure(self) -> None:
        """Give all that takes its layout from others the one that follows from them now, in an opened graph: there the
        layouts of one phase's operators reach those of another."""
        if not self.is_open:
            return
        following = {follower: None for found in self.followers.values() for follower in found}
        for node in self.graph.nodes:
            if node in following:
                node.layout = node.in_layouts = None
                structural_layout(node, self.ranks)

    def choose(self, node: Node, source: str, upstream: bool = False) -> None:
        """Take the choice that costs the fewest bytes now and, by estimate, in the backward graph.

        upstream: the result should lie as its readers want it; if the operands' own shardings do not lead there,
        those may change their layout instead of the result.
        """
        rule = self.rules[node]
        assert rule is not None
        if cast(Op, node.op).operandwise:
            self.take_operandwise(node, source)
            return
        hints = self.reader_hints(node, rule)
        known = (*hints, *self.update_hints(node, rule))
        options = choices(cast(Op, node.op), rule, operand_layouts(node), known, self.ranks)
        if upstream and hints:
            wanted = {layout for _, layout in hints}
            fitting = tuple(o for o in options if o.outputs[0].without_partial() in wanted)
            asked = (make_choice(rule, *merge(rule, (hint,), self.ranks)) for hint in hints)
            options = tuple(dict.fromkeys((*(fitting or options), *asked)))
        scored = [
            (self.score(node, option) + self.look_ahead(node, option), option.work, i)
            for i, option in enumerate(options)
        ]
        self.take(node, options[min(scored)[2]], source)

    def look_ahead(self, node: Node, option: ShardingChoice) -> float:
        """Return the fewest bytes that the undecided readers would add after this choice; automatic mode only."""
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
        """Layouts of the result that decided readers need."""
        if len(rule.outputs) != 1:
            return []
        return [(rule.outputs[0], layout) for layout in self.traffic.needs(node) if not layout.partial]

    def update_hints(self, node: Node, rule: Rule) -> list[Source]:
        """Layouts in which decided updates read the operands: a gradient that is clipped by its norm is summed once."""
        return [
            (dims, layout)
            for value, dims in zip(node.inputs, rule.inputs, strict=True)
            for user, index in self.traffic.users.get(value, ())
            if user.phase == "update" and (layout := (user.in_layouts or {index: None})[index]) is not None
        ]

    def score(self, node: Node, option: ShardingChoice) -> float:
        """Bytes that a choice makes a rank send: for its operands, its partial result, its readers, its gradients."""
        total = sum(self.traffic.move(v, layout) for v, layout in zip(node.inputs, option.inputs, strict=True))
        total -= sum(self.traffic.spared(node, index, option) for index in cast(Op, node.op).exchanged)
        total += self.inside(node, option)
        for type, layout in zip(element_types(node.type), option.outputs, strict=True):
            needed = self.traffic.needs(node)
            if needed:
                total += sum(bytes_between(layout, target, type) for target in needed)
            elif layout.partial:
                total += scatter_bytes(layout, type.shape, type.dtype.itemsize)
        return total

    def inside(self, node: Node, option: ShardingChoice) -> float:
        """Return the bytes of a choice apart from the node's neighbours: those sent inside of the operator, as many
        again inside of its gradient, and for the gradients themselves."""
        op, total = cast(Op, node.op), 0.0
        if exchanges(node):
            total += op.moved_bytes(operand_types(node), option.inputs)
        if self.trains and node.phase == "forward":
            total += total + gradient_bytes(node, option, self.rules[node])
        return total

    def take(self, node: Node, option: ShardingChoice, source: str) -> None:
        """Decide on a choice; `source` says in words which rule it comes from."""
        if isinstance(node.op, Op) and node.op.in_form(option.inputs) is not node.op:
            take_form(self.graph, node, option.inputs)
        self.place(node, option.inputs, option.layout(node.type))
        if node.phase == "forward":
            node.attrs["strategy_from"] = source

    def put_back(self, node: Node, state: State) -> None:
        """Give a node the operator and the layouts that it had, after others were tried; its gradients get operators to
        go with it."""
        op, operands, layout = state
        if node.op is not op:
            give_form(self.graph, node, op)
        self.place(node, operands, layout)

    def place(self, node: Node, operands: tuple[Layout | None, ...] | None, layout: Layouts) -> None:
        """Give a node its layouts, and with it tuples, elements and orderings that depend on it, and results of a
        region."""
        node.in_layouts, node.layout = operands, layout
        for follower in self.followers.get(node, ()):
            if follower.layout is not None or self.is_open:
                follower.in_layouts = follower.layout = None
                structural_layout(follower, self.ranks)

    def take_operandwise(self, node: Node, source: str) -> None:
        """Let an operator read its operands in their own layouts, partial ones in the layouts needed later."""
        layouts: list[Layout] = []
        for value, known in zip(node.inputs, operand_layouts(node), strict=True):
            replicated = Layout.replicated(self.ranks, len(value.shape))
            layouts.append(self.wanted.get(value) or (known.without_partial() if known is not None else replicated))
        self.take(node, operandwise_choice(cast(Op, node.op), layouts, self.ranks), source)


MORE_BYTES = 1.1
"""How many times the fewest bytes a plan of fewer messages may send."""


@dataclass(frozen=True)
class PlanTotal:
    """The costs of a plan for a rank: bytes sent, redistributions, points of the matmuls' iteration spaces."""

    nbytes: float
    moves: int
    work: float


State = tuple[Any, Any, Any]
"""A value's operator, whose form goes by the layouts, the layouts of its operands, and its own."""


def state_of(value: Value) -> State:
    return (value.op, value.in_layouts, value.layout) if isinstance(value, Node) else (None, None, value.layout)


def restore(values: Iterable[Value], states: Iterable[State]) -> None:
    for value, (op, operands, layout) in zip(values, states, strict=True):
        value.layout = layout
        if isinstance(value, Node):
            value.op, value.in_layouts = op, operands


def best_plan(found: Sequence[tuple[PlanTotal, list[State]]]) -> list[State]:
    """Choose one of several plans. The last looks for the fewest bytes at every operator alone; another is
    taken if it does no more work, and sends fewer bytes, or hardly more in fewer changes of layout, than that and
    than any other such plan."""
    *others, (fewest, free) = found
    good = [
        (plan.moves, plan.nbytes, i)
        for i, (plan, _) in enumerate(others)
        if plan.work <= fewest.work
        and (plan.nbytes <= fewest.nbytes or (plan.moves < fewest.moves and plan.nbytes <= MORE_BYTES * fewest.nbytes))
    ]
    if not good:
        return free
    least = min(nbytes for _, nbytes, _ in good)
    return found[min(plan for plan in good if plan[1] <= MORE_BYTES * least)[2]][1]


def other_rule(node: Node, ranks: int) -> Rule | None:
    """Return the rule of the other form of a node's operator, by which so many ranks may shard it, too; None without
    one."""
    types = operand_types(node)
    form = node.op.other_form(types, ranks) if isinstance(node.op, Op) else None
    return None if form is None else form.parsed_rule(*types)


def take_form(graph: Graph, node: Node, layouts: Sequence[Layout]) -> list[Node]:
    """Replace an operator by its form for these layouts of operands, and return the changed nodes."""
    op = node.op
    if not isinstance(op, Op) or (form := op.in_form(layouts)) is op:
        return []
    return give_form(graph, node, form)


def give_form(graph: Graph, node: Node, form: Op) -> list[Node]:
    """Give an operator a form, and its gradients theirs. The nodes whose operators changed."""
    node.op = form
    changed = [node]
    for other in graph.nodes:
        if other.forward is node and isinstance(other.op, Op):
            own = other.op.like_forward(form)
            if own is not other.op:
                other.op = own
                changed.append(other)
    return changed
