"""Cost model of a graph's layouts: variables for operators and parameters, and tables of costs.

The model counts a complete step. Every value is redistributed to its readers. In training, every gradient is
redistributed the same way back, from operators that are sharded like the forward ones (`Domain.gradients`). A value
with several readers may be redistributed once for all of them, and its gradients may be added in that layout.

The operators of a loop body are decided once, and their costs count once per iteration. The same holds for the values
that they read from the current iteration, and for the parameters that represent those of all iterations. The carried
values are redistributed to the layouts that the next iteration needs, so that all iterations start with equal layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from itertools import product as product_of
from typing import Any, cast

import numpy as np

from mspc.ir.graph import OFFLOAD, Constant, Node, Parameter, Value, element_layouts, element_types, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout, common_mesh, on_mesh
from mspc.ir.types import TensorType, Type
from mspc.ops.collective.collectives import Redistribute
from mspc.ops.control.structural import MARKS, Back, MakeTuple, StopGradient, TupleGetItem
from mspc.ops.op import NotDifferentiable, Op
from mspc.passes.lib.choices import (
    OPERATIONS,
    ShardingChoice,
    Terms,
    composite_conflict,
    exchanges,
    make_choice,
    merge,
    multiplies,
    points_of,
)
from mspc.passes.lib.layout_search import Search, other_rule
from mspc.passes.lib.loop_layouts import LoopTurns
from mspc.passes.lib.placement import COLLECTIVE, is_master, scatter_bytes
from mspc.search.model.distances import Hosts, LayoutTable
from mspc.search.solver.elimination import Factor, Table
from mspc.sharding.rules import Rule

Numbers = Any
"""Numbers of layouts in a `LayoutTable`, one per choice."""
Source = tuple[Value, int]
"""Producer of a tensor, and the index of the tensor among the producer's results."""


@dataclass(frozen=True, eq=False)
class Variable:
    """One decision: on an operator, on the stored layout of a parameter, or on a copy of a value.

    choices: of an operator. outputs: layouts of every result tensor. returned: the same without partial sums, as needed
    for the gradients. operands, gradients: the layouts of an operator's operands and of their gradients. again: for
    every stored layout of a parameter, whether it is gathered again for gradients; () if it never is.
    """

    outputs: tuple[Numbers, ...]
    returned: tuple[Numbers, ...] = ()
    operands: tuple[Numbers, ...] = ()
    gradients: tuple[Numbers, ...] = ()
    choices: tuple[ShardingChoice, ...] = ()
    again: tuple[bool, ...] = ()

    @property
    def size(self) -> int:
        return len(self.outputs[0])


@dataclass(frozen=True, eq=False)
class Use:
    """One reader of a tensor. writes: the reader updates the tensor, which must be stored in the layout needed. runs:
    reads per step."""

    variable: int
    needs: Numbers
    gradients: Numbers
    writes: bool = False
    runs: int = 1


@dataclass(frozen=True, eq=False)
class Domain:
    """Choices of an operator. gradients: for every choice, the layouts of the operands' gradients if the operator's own
    gradient has the layout of its result. A gradient is partial over each axis that shards a dimension its operand
    lacks."""

    choices: tuple[ShardingChoice, ...]
    gradients: tuple[tuple[Layout, ...], ...]


MAX_PASSING_CHOICES = 400
"""Maximum number of choices of an operator including those that pass partial sums through."""
ALL_OPERANDS = -1
"""In place of an operand index: partial sums pass if all operands are partial over the same ranks."""


@lru_cache(maxsize=4096)
def domain_of(rule: Rule, mesh: tuple[int, ...], product: bool, passing: tuple[int, ...] = ()) -> Domain:
    """Return the choices of an operator. A matmul uses as many ranks as its best choice; other operators may be
    computed redundantly. Axes of one dimension are in ascending order. passing: operands in which the operator is
    linear, so that their partial sums may pass through it."""
    factors = [f for f in range(len(rule.names)) if f not in rule.frozen and rule.sizes[f] > 1]
    found: dict[ShardingChoice, tuple[Layout, ...]] = {}
    assignments = _assignments(rule, mesh, factors)
    for axes in assignments:
        choice = make_choice(rule, mesh, axes)
        found.setdefault(choice, gradients_of(rule, mesh, axes))
    if passing and len(found) <= MAX_PASSING_CHOICES:
        found |= _passing_choices(rule, mesh, assignments, passing)
    if product:
        found = _with_least_work(found)
    return Domain(tuple(found), tuple(found.values()))


def domain_of_forms(
    rule: Rule, other: Rule | None, mesh: tuple[int, ...], product: bool, passing: tuple[int, ...]
) -> Domain:
    """Return the choices by a rule, followed by those of the operator's other form, if there is one. The work of the
    latter is scaled to the points of the first rule, because the rules count points differently."""
    own = domain_of(rule, mesh, product, passing)
    if other is None:
        return own
    more = domain_of(other, mesh, product)
    points = math.prod(rule.sizes) / math.prod(other.sizes)
    found = dict(zip(own.choices, own.gradients, strict=True))
    known = {(choice.inputs, choice.outputs) for choice in found}
    for choice, gradients in zip(more.choices, more.gradients, strict=True):
        if (choice.inputs, choice.outputs) not in known:
            found[replace(choice, work=choice.work * points)] = gradients
    found = _with_least_work(found) if product else found
    return Domain(tuple(found), tuple(found.values()))


def _with_least_work(choices: Mapping[ShardingChoice, tuple[Layout, ...]]) -> dict[ShardingChoice, tuple[Layout, ...]]:
    least = min(choice.work for choice in choices)
    return {choice: gradients for choice, gradients in choices.items() if choice.work <= least * 1.0001}


def _passing_choices(
    rule: Rule, mesh: tuple[int, ...], assignments: list[tuple[Axes, ...]], passing: tuple[int, ...]
) -> dict[ShardingChoice, tuple[Layout, ...]]:
    """Return the choices that pass partial sums over axes that shard nothing; {} if there are too many. Gradients are
    complete along these axes."""
    found: dict[ShardingChoice, tuple[Layout, ...]] = {}
    for axes in assignments:
        if rule.reduction != "sum" and any(axes[f] for f in rule.reduced):
            continue  # partial means, or maxima, do not add up with partial sums
        free = [a for a in range(len(mesh)) if all(a not in sharding for sharding in axes)]
        for count in range(1, len(free) + 1):
            for passed, operand in product_of(combinations(free, count), passing):
                choice = make_choice(rule, mesh, axes, operand, passed)
                found.setdefault(choice, gradients_of(rule, mesh, axes))
        if len(found) > MAX_PASSING_CHOICES:
            return {}
    return found


def _assignments(rule: Rule, mesh: tuple[int, ...], factors: list[int]) -> list[tuple[Axes, ...]]:
    found: list[tuple[Axes, ...]] = [((),) * len(rule.names)]
    for axis, size in enumerate(mesh):
        for axes in list(found):
            for f in factors:
                if rule.sizes[f] % (size * math.prod(mesh[a] for a in axes[f])) == 0:
                    found.append((*axes[:f], (*axes[f], axis), *axes[f + 1 :]))
    return [axes for axes in found if not composite_conflict(rule, mesh, axes) and _ascending(rule, axes)]


def _ascending(rule: Rule, axes: tuple[Axes, ...]) -> bool:
    """Return whether the axes of every dimension ascend, so that there is one layout for every set of axes."""
    for dims in (*rule.inputs, *rule.outputs):
        for dim in dims:
            sharding = [a for f in dim for a in axes[f]]
            if sharding != sorted(sharding):
                return False
    return True


def gradients_of(rule: Rule, mesh: tuple[int, ...], axes: tuple[Axes, ...]) -> tuple[Layout, ...]:
    """Return the layouts of the gradients of an operator's operands; see `Domain`."""
    found: list[Layout] = []
    for dims in rule.inputs:
        own = {f for dim in dims for f in dim}
        partial = [a for f, sharding in enumerate(axes) if f not in own for a in sharding]
        found.append(Layout.of(mesh, [[a for f in dim for a in axes[f]] for dim in dims], partial))
    return tuple(found)


def are_partial_sums_available(choice: ShardingChoice, partial: Mapping[int, frozenset[Layout]]) -> bool:
    """Return whether the partial sums that a choice reads exist. No redistribution creates partial sums."""
    return all(
        not layout.partial or layout in partial.get(i, partial.get(ALL_OPERANDS, ()))
        for i, layout in enumerate(choice.inputs)
    )


HALF = 2
"""Bytes of an element for which matmuls have a separate rate."""


@dataclass(frozen=True)
class UnevenCosts:
    """Rates for work that is not divided evenly. hosts: None if all ranks are on one host."""

    terms: Terms
    hosts: Hosts | None

    def of(self, op: Op, types: Sequence[TensorType], layouts: Sequence[Layout], nbytes: float) -> float:
        """Return the cost of an operator's uneven work, in bytes sent. nbytes: bytes sent inside the operator, counted
        elsewhere at the price within a host; the difference to the price between hosts is added here."""
        work = op.uneven(types, layouts)
        rate = self.terms.compute_half if types[0].dtype.itemsize == HALF else self.terms.compute
        found = work.operations / OPERATIONS * rate + work.rounds * self.terms.latency
        if work.axes and self.hosts is not None:
            found += nbytes * (self.hosts.pairs(work.mesh, work.axes) - 1)
        return found


# A gradient is sharded like its forward operator. Besides the gradients of operands, which `CostModel` redistributes, a
# backward operator may exchange halos of windows or statistics. It may also reduce partial sums that only it reads: the
# gradient of a maximum counts equal maxima.


class InternalBytes:
    """Bytes that operators send internally. of: the backward operators of every forward operator, if one of them
    exchanges or reduces. rules: of all operators. complete: for forward operators, the operands whose gradients are
    complete for any sharding. uneven: rates of the costs other than bytes."""

    def __init__(
        self, nodes: Sequence[Node], rules: Mapping[Node, Rule | None], ranks: int, uneven: UnevenCosts
    ) -> None:
        self.rules, self.ranks, self.uneven = rules, ranks, uneven
        self.of: dict[Node, list[Node]] = {}
        read_by: dict[Value, list[tuple[Node, int]]] = {}
        for node in nodes:
            if node.phase != "backward":
                continue
            for index, value in enumerate(node.inputs):
                read_by.setdefault(value, []).append((node, index))
            if node.forward is not None and rules[node] is not None:
                self.of.setdefault(node.forward, []).append(node)
        self.complete = self._complete(nodes)
        self._summing = {node for node in read_by if isinstance(node, Node) and self._sums(node, read_by[node])}
        self.of = {
            node: gradients for node, gradients in self.of.items()
            if any(exchanges(each) or each in self._summing for each in gradients)
        }  # fmt: skip

    def _complete(self, nodes: Sequence[Node]) -> dict[Node, frozenset[int]]:
        found: dict[Node, frozenset[int]] = {}
        for node in nodes:
            if not isinstance(node.op, TupleGetItem) or node.phase != "backward" or node.forward is None:
                continue
            made = node.inputs[0]
            rule = self.rules.get(made) if isinstance(made, Node) and made.forward is node.forward else None
            if rule is not None and node.forward_input >= 0 and not rule.reduced and node.op.index not in rule.summed:
                found[node.forward] = found.get(node.forward, frozenset()) | {node.forward_input}
        return found

    def _sums(self, node: Node, readers: list[tuple[Node, int]]) -> bool:
        """Return whether a backward operator reduces, and another backward operator of the same forward operator needs
        the complete sum."""
        rule = self.rules.get(node)
        if node.phase != "backward" or rule is None or not rule.reduced:
            return False
        return any(
            reader.forward is node.forward and not (op := cast(Op, reader.op)).additive and index not in op.linear_in
            for reader, index in readers
        )

    def key(self, node: Node) -> Any:
        """Return a key that is equal for operators that send the same bytes internally; None if the operator sends
        none."""
        if not exchanges(node) and node not in self.of:
            return None
        gradients = self.of.get(node, [])
        known = {value: index for index, value in enumerate((*node.inputs, node, *gradients))}
        return node.op, tuple(
            (each.op, each.type, each in self._summing, tuple(known.get(value, -1) for value in each.inputs))
            for each in gradients
        )

    def cost(self, node: Node, types: Sequence[TensorType], choice: ShardingChoice) -> float:
        """Return the bytes that a rank sends in an operator with operands of these types and in its gradients, for one
        choice, including uneven work, in bytes. If the operator neither sends nor is uneven, its gradients are assumed
        not to send and to be even, too; gradients that reduce are counted in any case."""
        form = cast(Op, node.op).in_form(choice.inputs)
        own = form.moved_bytes(types, choice.inputs)
        more = self.uneven.of(form, types, choice.inputs, own)
        gradients = self.of.get(node, [])
        if own or more or not self._summing.isdisjoint(gradients):
            more += self._of_gradients(node, form, gradients, choice, own)
        return own + more

    def _of_gradients(
        self, node: Node, form: Op, gradients: Sequence[Node], choice: ShardingChoice, own: float
    ) -> float:
        """Return the cost of the backward operators. form: the operator in the form of the choice. own: bytes that it
        sends."""
        results = [layout.without_partial() for layout in choice.outputs]
        placed: dict[Value, Layout] = dict(zip(node.inputs, choice.inputs, strict=False))
        placed[node] = results[0]
        alike: dict[Type, Layout] = {value.type: layout for value, layout in placed.items()}
        alike |= dict(zip(reversed(element_types(node.type)), reversed(results), strict=True))
        total, shared = 0.0, set[tuple[Value, float]]()
        if (bordered := cast(Op, node.op).bordered) is not None:
            shared.add((node.inputs[bordered], own))
        for each in gradients:
            # An unknown layout is taken from a value of the same type: a gradient has the layout of its value.
            op = cast(Op, each.op).like_forward(form)
            operands = [placed.get(value) or alike.get(value.type) for value in each.inputs]
            if exchanges(each) and None not in operands:
                layouts = cast("list[Layout]", operands)
                nbytes = op.moved_bytes(operand_types(each), layouts)
                total += self.uneven.of(op, operand_types(each), layouts, nbytes)
                sent = None if op.bordered is None else (each.inputs[op.bordered], nbytes)
                total += 0.0 if sent in shared else nbytes
                if sent is not None:
                    shared.add(sent)
            if each in self._summing:
                made = self._sums_of(each, operands)
                placed[each] = made[0]  # elements of several results are read, never the tuple
                total += sum(
                    scatter_bytes(layout, type.shape, type.dtype.itemsize)
                    for layout, type in zip(made, element_types(each.type), strict=True) if layout.partial
                )  # fmt: skip
        return total

    def _sums_of(self, node: Node, operands: Sequence[Layout | None]) -> tuple[Layout, ...]:
        """Return the layouts of the results of a reducing operator, given those of its operands."""
        rule = self.rules[node]
        assert rule is not None
        sources = tuple((dims, layout.without_partial()) for dims, layout in zip(rule.inputs, operands, strict=True)
                        if layout is not None and dims)  # fmt: skip
        return make_choice(rule, *merge(rule, sources, self.ranks)).outputs


def accessed_bytes(node: Node, choice: ShardingChoice) -> float:
    """Return the bytes of a rank's slices of an operator's operands and results; 0 if nothing runs, as at loop
    boundaries."""
    if node.op.is_view or isinstance(node.op, MARKS):
        return 0.0
    types = (*operand_types(node), *element_types(node.type))
    layouts = (*choice.inputs, *choice.outputs)
    return sum(type.nbytes / math.prod(layout.strategy) for type, layout in zip(types, layouts, strict=True))


def tensors_per_parameter(search: Search) -> dict[Value, int]:
    """Return, for every trained parameter, the number of tensors of its size: itself, its gradient, and the optimizer
    states on the device."""
    found: dict[Value, int] = {}
    for node in search.graph.nodes:
        changed = [node.inputs[i] for i in node.op.mutates] if node.phase == "update" else []
        for value in changed[:1]:
            found[value] = 1 + sum(other.type == value.type and OFFLOAD not in other.attrs for other in changed)
    return found


def values_with_gradients(search: Search) -> set[Value]:
    """Return the values that have a gradient: trained parameters and values computed from them, in earlier iterations
    of a loop, too."""
    found: set[Value] = {p for p in search.graph.parameters if is_master(p) and p.trainable}
    count = -1
    while count != len(found):
        count = len(found)
        for node in search.graph.nodes:
            without = isinstance(cast(Any, node.op).bprop, NotDifferentiable)
            passing = isinstance(node.op, (TupleGetItem, MakeTuple, *MARKS))
            stopped = isinstance(node.op, StopGradient) or (without and not passing)
            if node.phase == "forward" and not stopped and any(value in found for value in node.inputs):
                found.add(node)
            if isinstance(node.op, Back) and node in found and isinstance(node.inputs[0], Node):
                found.add(node.inputs[0])
        if not search.is_open:
            break
    return found


SHARED = 1 << 13
"""Maximum number of elements of the table of a value, its copy and a reader, up to which copies are separate
variables."""
SMALL, SHARED_IN_SMALL = 24, 1 << 16
"""Maximum number of operators of a small network, and its limit in place of `SHARED`."""
WORK_PRICE, MEMORY_PRICE = 1e-12, 1e-9
"""Costs of a point of the iteration space, and of a byte of a parameter's slice, in bytes sent. They only decide
between plans that send equally many bytes: fewer changes of layout first, then less memory and work."""
FEW = 40
"""Maximum number of choices of an additive operator that passes partial sums through. Otherwise residual sums along the
whole network would be partial everywhere."""
BOTH_WAYS = 3
"""Bytes accessed by an operator and its gradients together, as a multiple of those of the operator."""
NEVER = 1e18
"""Cost in bytes of forbidden choices."""

class CostModel:
    """Cost problem of one graph on one mesh. variables, factors: the input of `Elimination`. of: the variable of an
    operator or a parameter. about: for every factor its kind ("alone", "there", "back", ...) and its value. subject:
    the value of the next factor. counts_twice: costs that two readers share count for each, so that plans may cost less
    than the sum of the tables. limited: memory is limited, so that parameters may be sharded further than their readers
    need. turns: of the loops with open regions."""

    def __init__(self, search: Search, mesh: tuple[int, ...]) -> None:
        self.search, self.mesh = search, mesh
        self._tables: dict[Any, Table] = {}
        terms = Terms.of(search.graph.attrs)
        self.hosts = Hosts(terms.hosts, terms.network / 1000) if terms.network and search.ranks > terms.hosts else None
        self.latency = max(COLLECTIVE, float(terms.latency))
        self.touch = terms.touch / 1000
        self.variables: list[Variable] = []
        self.factors: list[Factor] = []
        self.about: list[tuple[str, Value]] = []
        self.limited = bool(terms.memory)
        self.counts_twice = False
        self.subject: Value
        self.of: dict[Value, int] = {}
        self._places: dict[int, LayoutTable] = {}
        self._domains: dict[Any, Variable] = {}
        self._sums: dict[int, frozenset[Layout]] = {}
        self._sources: dict[Value, Source | None] = {}
        self.turns = LoopTurns(search.graph)
        self._own_bytes = InternalBytes(search.graph.nodes, search.rules, search.ranks, UnevenCosts(terms, self.hosts))
        self.nodes = [node for node in search.graph.nodes if node.phase == "forward" and self._decides(node)]
        self.graded = values_with_gradients(search) if search.trains else set[Value]()
        tied: dict[Any, int] = {}
        for node in self.nodes:
            variable = self._operator(node)
            runs = self.turns.runs(node)
            # Parameters and constants are stored in the layout that their readers need.
            made = [v for v in node.inputs if isinstance(v, Node) or (isinstance(v, Parameter) and v.kind == "input")]
            key = (*map(self.source, made), self.search.rules[node], runs)
            if node.in_layouts is not None or variable.size**3 <= SHARED or len(key) < 3:
                self.of[node] = self.add(variable)
            else:  # equal operators, such as the three matmuls before an attention, share a variable
                self.of[node] = tied[key] if key in tied else tied.setdefault(key, self.add(variable))
        readings = self._readings()
        for source, readers in readings.items():
            self._stored(source[0], readers)
        for source, readers in readings.items():
            self._edges(source, readers)
        for node in self.nodes:
            self._alone(node)

    # Variables

    def layout(self, value: Value, number: int) -> Layout:
        """Return the layout of a tensor by its number."""
        return self._places[len(value.tensor_type.shape)].layouts[number]

    def number(self, value: Value, layout: Layout) -> int:
        """Return the number of a layout of a tensor."""
        return self._places[len(value.tensor_type.shape)].number(layout)

    def _decides(self, node: Node) -> bool:
        decided = self.search.rules[node] is not None and not cast(Op, node.op).operandwise
        return decided and node not in self.turns.kept

    def shared_factor(self, variables: tuple[int, ...], key: Any, made: Callable[[], Table]) -> Factor:
        """Return a factor; factors of equal keys share one table. If a variable occurs twice, the diagonal of the table
        is used."""
        order = sorted(range(len(variables)), key=lambda i: (variables[i], i))
        key = (key, tuple(order), tuple(variables.index(v) for v in variables))
        if key not in self._tables:
            table = np.transpose(made(), order)
            for i in range(len(order) - 1, 0, -1):
                if variables[order[i]] == variables[order[i - 1]]:
                    table = np.moveaxis(np.diagonal(table, axis1=i - 1, axis2=i), -1, i - 1)
            self._tables[key] = np.ascontiguousarray(table)
        return Factor(tuple(dict.fromkeys(variables[i] for i in order)), self._tables[key])

    def add(self, variable: Variable) -> int:
        """Add a variable and return its number."""
        self.variables.append(variable)
        return len(self.variables) - 1

    def _operator(self, node: Node) -> Variable:
        rule = self.search.rules[node]
        assert rule is not None
        if node.in_layouts is not None:
            operands = cast("tuple[Layout, ...]", node.in_layouts)
            choices = (ShardingChoice(operands, element_layouts(node.layout), 0.0),)
            sources = tuple((dims, layout) for dims, layout in zip(rule.inputs, operands, strict=True) if dims)
            gradients = gradients_of(rule, *merge(rule, sources, self.search.ranks))
            complete = self._own_bytes.complete.get(node, frozenset[int]())
            return self._numbered(choices, (_completed(gradients, complete),))
        product = multiplies(rule, node)
        partial = {} if product else self._partial(node)
        complete = self._own_bytes.complete.get(node, frozenset[int]())
        other = other_rule(node, self.search.ranks)
        key = (rule, other, product, tuple(partial.items()), complete)
        if key not in self._domains:
            domain = domain_of_forms(rule, other, self.mesh, product, tuple(partial))
            possible = [i for i, choice in enumerate(domain.choices) if are_partial_sums_available(choice, partial)]
            self._domains[key] = self._numbered(
                tuple(domain.choices[i] for i in possible),
                tuple(_completed(domain.gradients[i], complete) for i in possible),
            )
        return self._domains[key]

    def _partial(self, node: Node) -> dict[int, frozenset[Layout]]:
        """Return the partial layouts that may pass through an operator, by operand as in `domain_of`."""
        op = cast(Op, node.op)
        if op.additive:
            if len(domain_of(cast(Rule, self.search.rules[node]), self.mesh, False).choices) > FEW:
                return {}
            alike = frozenset[Layout].intersection(*(self._partial_sums(value) for value in node.inputs))
            return {ALL_OPERANDS: alike} if alike else {}
        found = {i: self._partial_sums(node.inputs[i]) for i in op.linear_in if i < len(node.inputs)}
        return {i: layouts for i, layouts in found.items() if layouts}

    def _partial_sums(self, value: Value) -> frozenset[Layout]:
        """Return the partial layouts that a tensor may have."""
        source, is_complete = self._origin(value)
        if source is None or is_complete or source[0] not in self.of or not isinstance(value.type, TensorType):
            return frozenset()
        numbers = self.variables[self.of[source[0]]].outputs[source[1]]
        known = self._sums.get(id(numbers))
        if known is None:
            layouts = self._places[len(value.type.shape)].layouts
            found = {layouts[int(n)] for n in numbers}
            known = frozenset(layout for layout in found if layout.partial and layout.reduction == "sum")
            self._sums[id(numbers)] = known
        return known

    def _numbered(self, choices: tuple[ShardingChoice, ...], gradients: tuple[tuple[Layout, ...], ...]) -> Variable:
        results, operands = range(len(choices[0].outputs)), range(len(choices[0].inputs))
        return Variable(
            tuple(self.numbers([c.outputs[i] for c in choices]) for i in results),
            tuple(self.numbers([c.outputs[i].without_partial() for c in choices]) for i in results),
            tuple(self.numbers([c.inputs[i] for c in choices]) for i in operands),
            tuple(self.numbers([g[i] for g in gradients]) for i in operands),
            choices,
        )

    def numbers(self, layouts: Sequence[Layout]) -> Numbers:
        """Return the numbers of layouts of equal rank."""
        places = self._places.setdefault(len(layouts[0].dims), LayoutTable(self.mesh, self.hosts))
        return np.array([places.number(layout) for layout in layouts])

    def _stored(self, value: Value, readers: Sequence[Use]) -> None:
        """Add the variable of a parameter. It is stored in the layout that one of its readers needs, unless its layout
        is fixed."""
        if value in self.of:
            return
        again: tuple[bool, ...] = ()
        if isinstance(value.layout, Layout):
            numbers = self.numbers([value.layout])
        else:
            wanted = dict.fromkeys(int(n) for reader in readers for n in reader.needs)
            further = (
                [_sharded_further(self, value, n) for n in wanted] if self.limited and value in self.graded else []
            )
            stored = list(dict.fromkeys([*wanted, *further]))
            read_back = any(user.phase == "backward" for user, _ in self.search.traffic.users.get(value, ()))
            twice = stored[len(wanted) :] if read_back else []
            again = (*(False for _ in stored), *(True for _ in twice)) if twice else ()
            numbers = np.array([*stored, *twice])
        self.of[value] = self.add(Variable((numbers,), (numbers,), again=again))

    # Readers of every tensor

    def _readings(self) -> dict[Source, list[Use]]:
        found: dict[Source, dict[Any, Use]] = {}
        for node in self.nodes:
            variable = self.of[node]
            numbers = self.variables[variable]
            for i, value in enumerate(node.inputs):
                source = self.source(value)
                if source is not None:
                    writes = i in cast(Op, node.op).mutates
                    runs = min(self.turns.runs(node), self.turns.made(source[0]))
                    reader = Use(variable, numbers.operands[i], numbers.gradients[i], writes, runs)
                    found.setdefault(source, {}).setdefault((variable, i), reader)
        for back, enter in self.turns.backs:  # an iteration also reads the values carried from the previous one
            source = self.source(back.inputs[1])
            if source is not None and enter in self.of:
                variable = self.of[enter]
                numbers = self.variables[variable]
                runs = min(self.turns.runs(back), self.turns.made(source[0]))
                reader = Use(variable, numbers.operands[0], numbers.gradients[0], runs=runs)
                found.setdefault(source, {})[back] = reader
        for value, layout in self.search.traffic.required.items():
            source = self.source(value)
            if source is not None and (source in found or source[0] in self.of):
                numbers = self.numbers([layout])
                reader = Use(self.add(Variable((numbers,), (numbers,))), numbers, numbers)
                found.setdefault(source, {})[reader] = reader
        return {source: list(readers.values()) for source, readers in found.items()}

    def source(self, value: Value) -> Source | None:
        """Return the producer of a tensor, found through tuples and orderings; None if any layout of the tensor is
        free."""
        if value not in self._sources:
            self._sources[value] = self._origin(value)[0]
        return self._sources[value]

    def _origin(self, value: Value) -> tuple[Source | None, bool]:
        """Return the `source`, and whether partial sums are reduced on the way from it, as by `StopGradient` and an
        out_strategy."""
        path: list[int] = []
        is_complete = False
        while isinstance(value, Node) and not self._decides(value):
            is_complete |= isinstance(value.op, (StopGradient, Redistribute))
            if isinstance(value.op, TupleGetItem):
                path.append(value.op.index)
                value = value.inputs[0]
            elif isinstance(value.op, MakeTuple) and path:
                value = value.inputs[path.pop()]
            elif value in self.turns.kept or (
                value.inputs and self.search.rules[value] is None and not isinstance(value.op, MakeTuple)
            ):
                value = value.inputs[0]
            else:
                return None, is_complete
        if isinstance(value, Constant) or (isinstance(value, Node) and value.phase != "forward"):
            return None, is_complete
        return (value, path.pop() if path else 0), is_complete

    # Costs

    def _alone(self, node: Node) -> None:
        """Add the unary costs of an operator's choices: bytes sent inside it, forward and backward, and work."""
        self.subject = node
        variable = self.variables[self.of[node]]
        inside = self._own_bytes.key(node)
        types = operand_types(node)
        rule = cast(Rule, self.search.rules[node])
        of_work = WORK_PRICE * points_of(rule) / max(1, math.prod(rule.sizes))  # concatenated operands are no matmul
        times = self.touch * (BOTH_WAYS if self.search.trains else 1)

        def made() -> Table:
            found = np.array([choice.work * of_work for choice in variable.choices])
            if times:
                found += times * np.array([accessed_bytes(node, choice) for choice in variable.choices])
            if inside is not None:
                found += np.array([self._own_bytes.cost(node, types, choice) for choice in variable.choices])
            return found

        key = ("alone", inside, types, node.type, of_work, id(variable))
        self.factor((self.of[node],), key, made, self.turns.runs(node))

    def _edges(self, source: Source, readers: Sequence[Use]) -> None:
        """Add the factors of one tensor and all its readers."""
        value, index = source
        self.subject = value
        own, variable, type = self.of[value], self.variables[self.of[value]], element_types(value.type)[index]
        outputs, returned = variable.outputs[index], variable.returned[index]
        if isinstance(value, Parameter) and not isinstance(value.layout, Layout):
            count = self.turns.made(value)
            self.factor(
                (own,), ("held", outputs.tobytes(), type), lambda: MEMORY_PRICE * self.slice_bytes(outputs, type), count
            )
        graded = value in self.graded and type.dtype.has_gradient
        back = COLLECTIVE if isinstance(value, Parameter) else self.latency  # gradients of parameters are sent together
        most = SHARED if len(self.nodes) > SMALL else SHARED_IN_SMALL
        for runs in dict.fromkeys(reader.runs for reader in readers):
            together = [reader for reader in readers if reader.runs == runs]
            largest = max(len(reader.needs) for reader in together)
            if 1 < len(together) and len(outputs) * largest**2 <= most:
                self._copied(own, outputs, "there", type, together, self.latency)
                if graded:
                    self._copied(own, returned, "back", type, together, back)
                continue
            self.counts_twice |= len(together) > 1
            for reader in together:
                self._direct(own, outputs, "there", type, reader, self.latency)
                if graded:
                    self._direct(own, returned, "back", type, reader, back)
        for reader in readers:
            if reader.writes:
                self.factor((own, reader.variable), ("writes", outputs.tobytes(), reader.needs.tobytes()),
                             lambda r=reader: np.where(outputs[:, None] == r.needs[None, :], 0.0, NEVER))  # fmt: skip

    def slice_bytes(self, outputs: Numbers, type: TensorType) -> Table:
        """Return the bytes of a rank's slice of a tensor for each of the layouts."""
        layouts: Sequence[Layout] = self._places[len(type.shape)].layouts
        return np.array([type.nbytes / math.prod(layouts[int(n)].strategy) for n in outputs])

    def _direct(self, own: int, at: Numbers, direction: str, type: TensorType, reader: Use, latency: float) -> None:
        there = reader.needs if direction == "there" else reader.gradients
        key = (direction, at.tobytes(), there.tobytes(), len(type.shape), type.nbytes, latency)
        self.factor((own, reader.variable), key, lambda: self.sent(direction, at, there, type, latency), reader.runs)

    def _copied(
        self, own: int, at: Numbers, direction: str, type: TensorType, readers: Sequence[Use], latency: float
    ) -> None:
        """Add a copy that all readers may read instead of the value; in the backward direction, a layout in which
        gradients are added."""
        wanted = [reader.needs if direction == "there" else reader.gradients for reader in readers]
        numbers = np.array(sorted({int(n) for need in wanted for n in need}))
        copy = self.add(Variable((numbers,), (numbers,)))
        size = (len(type.shape), type.nbytes, latency)
        self.factor((own, copy), (direction, at.tobytes(), numbers.tobytes(), *size),
                     lambda: self.sent(direction, at, numbers, type, latency), readers[0].runs)  # fmt: skip
        for reader, need in zip(readers, wanted, strict=True):

            def cheaper(need: Numbers = need) -> Table:
                direct, shared = (self.sent(direction, near, need, type, latency) for near in (at, numbers))
                shared = shared + COLLECTIVE * (numbers[:, None] != need[None, :])  # a tie goes to the direct way
                return np.minimum(direct[:, None, :], shared[None, :, :])

            key = (direction, at.tobytes(), numbers.tobytes(), need.tobytes(), *size)
            self.factor((own, copy, reader.variable), key, cheaper, reader.runs)

    def sent(self, direction: str, near: Numbers, far: Numbers, type: TensorType, latency: float) -> Table:
        """Return [near, far]: bytes sent to redistribute the value from its own layouts to those of readers, or its
        gradients back."""
        distances = self._places[len(type.shape)].distances()
        shares = distances[np.ix_(near, far)] if direction == "there" else distances[np.ix_(far, near)].T
        return np.minimum(shares * max(1, type.nbytes) + latency * (shares > 0), NEVER)  # no infinity times 0

    def factor(self, variables: tuple[int, ...], key: Any, made: Callable[[], Table], times: int = 1) -> None:
        """Add a factor of the costs of `subject`, which counts `times` times per step; see `shared_factor`."""
        self.factors.append(
            self.shared_factor(variables, (*key, times), lambda: made() * times if times != 1 else made())
        )
        self.about.append((key[0], self.subject))


def _completed(gradients: tuple[Layout, ...], complete: frozenset[int]) -> tuple[Layout, ...]:
    return tuple(layout.without_partial() if i in complete else layout for i, layout in enumerate(gradients))


def _sharded_further(model: CostModel, value: Value, number: int) -> int:
    """Return the number of a parameter's layout with its first dimension also sharded over the replicated axes, as many
    as divide it.
    """
    layout, type = model.layout(value, number), value.tensor_type
    mesh = common_mesh(model.mesh, layout.mesh) or layout.mesh
    dims, _ = on_mesh(layout, mesh)
    if not dims:
        return number
    first = list(dims[0])
    for axis in (a for a in range(len(mesh)) if all(a not in axes for axes in dims)):
        if type.shape[0] % math.prod(mesh[a] for a in (*first, axis)) == 0:
            first.append(axis)
    return int(model.numbers([Layout.of(mesh, [first, *dims[1:]])])[0])
