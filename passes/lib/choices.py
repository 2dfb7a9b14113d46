"""Choices of an operator: the strategies its rule allows, and the constraints that a script puts on layouts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import cast

from mspc.analysis.aliasing import Updates, aliased_operands, last_reads
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Value, element_types, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout, common_mesh, on_mesh
from mspc.ir.types import TupleType, Type
from mspc.ops.collective.collectives import LayoutChange
from mspc.ops.control.structural import is_constraint
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast
from mspc.sharding.rules import Dim, Rule

# An operator's sharding gives every factor of its rule some axes of a mesh. The layouts of its inputs and results
# follow, partial ones included. Nothing here knows an operator by name.


Source = tuple[tuple[Dim, ...], Layout]
"""Dimensions of a tensor in a rule, and a layout that it has or should have."""


@dataclass(frozen=True, slots=True)
class ShardingChoice:
    """One way to shard an operator.

    inputs: the layout needed of every input (partial if a linear operator lets a partial sum pass). outputs: the
    layout of every result tensor. work: points of the operator's iteration space that one rank computes.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    work: float

    def layout(self, type: Type) -> Layout | tuple[Layout, ...]:
        """Return the placement of a result of this type: one layout, or one for every element of a tuple."""
        return self.outputs if isinstance(type, TupleType) else self.outputs[0]


def rule_of(node: Node) -> Rule | None:
    """Return the node's rule, or None for structural operators and changes of layout, which have none."""
    op = node.op
    if not isinstance(op, Op) or type(op).rule is Op.rule or isinstance(op, LayoutChange):
        return None
    try:
        return op.parsed_rule(*operand_types(node))
    except MspcError as error:
        if error.location is not None:
            raise
        raise node.error(error.message, error.notes, error.kind or ValueError) from None


def make_choice(
    rule: Rule, mesh: tuple[int, ...], axes: Sequence[Axes], passing: int = -1, passed: Axes = (),
    reduction: str = "sum",
) -> ShardingChoice:  # fmt: skip
    """Return the choice that shards factor f over `axes[f]`.

    `passed` are axes over which input `passing` (all inputs if it is -1) stays partial, and so does the result.
    """
    ins, outs = rule.layouts(mesh, axes, passed, reduction)
    if passed:
        dims = [[tuple(a for f in dim for a in axes[f]) for dim in tensor] for tensor in rule.inputs]
        ins = tuple(
            Layout.of(mesh, dims[i], passed, reduction) if passing in (i, -1) else layout
            for i, layout in enumerate(ins)
        )
    shards = math.prod(mesh[a] for f in axes for a in f)
    return ShardingChoice(ins, outs, math.prod(rule.sizes) / shards)


def operandwise_choice(op: Op, operands: Sequence[Layout], ranks: int) -> ShardingChoice:
    """Return the choice of an `operandwise` operator that takes its operands in any layout and gives a scalar: the
    result is partial over all axes that shard any of them (over all ranks if their meshes cross)."""
    mesh: tuple[int, ...] | None = (ranks,)
    for layout in operands:
        mesh = None if mesh is None else common_mesh(mesh, layout.mesh)
    sharded = [layout for layout in operands if any(layout.dims)]
    if mesh is None:
        out = Layout.of((ranks,), (), (0,), op.reduction)
    else:
        axes = {a for layout in sharded for dim in on_mesh(layout, mesh)[0] for a in dim}
        out = Layout.of(mesh, (), axes, op.reduction)
    return ShardingChoice(tuple(operands), (out,), 0.0)


@lru_cache(maxsize=16384)
def merge(rule: Rule, sources: tuple[Source, ...], ranks: int) -> tuple[tuple[int, ...], tuple[Axes, ...]]:
    """Return (mesh, axes of every factor) that follow from `sources`, of which the first has priority. A later source
    adds shardings without contradiction: axes not yet used, on factors not yet sharded. A source with a mesh that
    crosses the others' is passed over."""
    composite = any(len(dim) > 1 for dims in (*rule.inputs, *rule.outputs) for dim in dims)
    mesh: tuple[int, ...] = (ranks,)
    selected: list[Source] = []
    for source in sources:
        finer = common_mesh(mesh, source[1].mesh)
        if finer is not None:
            mesh = finer
            selected.append(source)
    if composite:
        mesh = primes(mesh) or (1,)
    axes: list[Axes] = [()] * len(rule.names)
    used: set[int] = set()
    for dims, layout in selected:
        placed, _ = on_mesh(layout, mesh)
        before = list(axes)
        for dim, wanted in zip(dims, placed, strict=True):
            _shard_dimension(rule, mesh, dim, wanted, before, axes, used)
    _drop_minor_shardings(rule, mesh, axes)
    return mesh, tuple(axes)


def _shard_dimension(
    rule: Rule, mesh: tuple[int, ...], dim: Dim, wanted: Axes, before: list[Axes], axes: list[Axes], used: set[int]
) -> None:
    """Give the factors of one dimension as many of the wanted axes as are free and fit."""
    position = 0
    for f in dim:
        if f in rule.frozen:
            return
        if before[f]:
            if wanted[position : position + len(before[f])] != before[f]:
                return
            position += len(before[f])
        elif axes[f]:
            return
        else:
            shards = 1
            while position < len(wanted) and wanted[position] not in used:
                size = mesh[wanted[position]]
                if rule.sizes[f] % (shards * size):
                    break
                shards *= size
                used.add(wanted[position])
                axes[f] = (*axes[f], wanted[position])
                position += 1
        if math.prod(mesh[a] for a in axes[f]) != rule.sizes[f]:
            return


def _drop_minor_shardings(rule: Rule, mesh: tuple[int, ...], axes: list[Axes]) -> None:
    """Drop shardings of a minor factor if its major factors are not sharded to single elements: they would not be
    slices."""
    changed = True
    while changed:
        changed = False
        for dims in (*rule.inputs, *rule.outputs):
            for dim in dims:
                complete = True
                for f in dim:
                    if axes[f] and not complete:
                        axes[f] = ()
                        changed = True
                    complete = complete and math.prod(mesh[a] for a in axes[f]) == rule.sizes[f]


def composite_conflict(rule: Rule, mesh: tuple[int, ...], axes: Sequence[Axes]) -> bool:
    """Return whether a dimension made of several factors would not be sharded into contiguous slices."""
    legal = list(axes)
    _drop_minor_shardings(rule, mesh, legal)
    return legal != list(axes)


@lru_cache(maxsize=4096)
def primes(mesh: tuple[int, ...]) -> tuple[int, ...]:
    """Return the prime factors of every size of a mesh, ascending; () if all are 1."""
    found: list[int] = []
    for size in mesh:
        divisor = 2
        while size > 1:
            while size % divisor == 0:
                found.append(divisor)
                size //= divisor
            divisor += 1
    return tuple(found)


@lru_cache(maxsize=16384)
def choices(
    op: Op, rule: Rule, operands: tuple[Layout | None, ...], hints: tuple[Source, ...], ranks: int
) -> tuple[ShardingChoice, ...]:
    """Return the choices worth weighing for an operator, without repetition, in a fixed order.

    Every operand's layout leads once and the others follow; every hint (a layout that the result should have, or that
    the corresponding forward operator used) leads once. Partial operands of linear operators may pass.
    """
    sources: list[Source] = [
        (dims, layout.without_partial())
        for dims, layout in zip(rule.inputs, operands, strict=True)
        if layout is not None and dims
    ]
    orders: list[tuple[Source, ...]] = []
    scattered = [
        (dims, variant)
        for dims, layout in zip(rule.inputs, operands, strict=True)
        if layout is not None and layout.partial
        for variant in _scattered_layouts(layout)
    ]
    leaders = [*hints, *sources, *scattered]
    for leader in leaders:
        rest = [s for s in sources if s is not leader]
        orders += [(leader, *rest), (leader, *reversed(rest))]
    found: dict[ShardingChoice, None] = {}
    for mesh, axes in dict.fromkeys(merge(rule, order, ranks) for order in orders or [()]):
        for choice in _partial_variants(op, rule, mesh, axes, operands):
            found[choice] = None
        found[make_choice(rule, mesh, axes)] = None
    return tuple(found)


def _scattered_layouts(layout: Layout) -> list[Layout]:
    """Return the layouts of a partial value after a reduce-scatter: the partial axes shard one of its dimensions."""
    return [
        Layout.of(layout.mesh, [(*axes, *layout.partial) if d == at else axes for d, axes in enumerate(layout.dims)])
        for at in range(len(layout.dims))
    ]


def _partial_variants(
    op: Op, rule: Rule, mesh: tuple[int, ...], axes: tuple[Axes, ...], operands: Sequence[Layout | None]
) -> Iterable[ShardingChoice]:
    """Return variants in which partial sums go through a linear operator."""
    partial = [
        (i, o) for i, o in enumerate(operands) if o is not None and o.is_partial and o.reduction in ("sum", "mean")
    ]
    if not partial:
        return
    if op.additive:
        first = partial[0][1]
        if len(partial) < len(operands) or any(o.partial != first.partial or o.mesh != first.mesh or
                                               o.reduction != first.reduction for _, o in partial):  # fmt: skip
            return
        partial = [(-1, first)]
    for i, layout in partial:
        if i >= 0 and i not in op.linear_in:
            continue
        finer = common_mesh(mesh, layout.mesh)
        if finer is None:
            continue
        _, passed = on_mesh(layout, finer)
        fine_axes = _refine(mesh, finer, axes)
        taken = {a for f in fine_axes for a in f}
        own = any(fine_axes[f] for f in rule.reduced)
        if taken & set(passed) or (own and rule.reduction != layout.reduction):
            continue
        yield make_choice(rule, finer, fine_axes, i, passed, layout.reduction)


@lru_cache(maxsize=16384)
def _refine(mesh: tuple[int, ...], finer: tuple[int, ...], axes: tuple[Axes, ...]) -> tuple[Axes, ...]:
    dims, _ = on_mesh(Layout(mesh, axes), finer)
    return dims


def exchanges(node: Node) -> bool:
    """Return whether ranks may exchange something inside of an operator: borders of windows, statistics of a batch."""
    return isinstance(node.op, Op) and type(node.op).moved_bytes is not Op.moved_bytes


def multiplies(rule: Rule, node: Node) -> bool:
    """Return whether an operator computes more than once with its operands' elements, as products of matrices do; not
    if it finds rows by integers, whatever it could find."""
    if _looks_up(rule, node):
        return False
    largest = max((t.size for value in (node, *node.inputs) for t in element_types(value.type)), default=0)
    return points_of(rule) > largest


def _looks_up(rule: Rule, node: Node) -> bool:
    """Return whether integers index an operand, and no two other operands of different elements are combined."""
    types = operand_types(node)
    if not cast(Op, node.op).index_limits(*types):
        return False
    outs = {f for dims in rule.outputs for dim in dims for f in dim}
    combined = Counter(
        f for type, dims in zip(types, rule.inputs, strict=True) if not type.dtype.is_integer
        for f in {f for dim in dims for f in dim} - outs
    )  # fmt: skip
    return max(combined.values(), default=0) < 2


@lru_cache(maxsize=4096)
def points_of(rule: Rule) -> int:
    """Elements that an operator combines with each other. Factors of one input alone, or of results alone, lie beside
    each other: a concatenation has those of its operands and of its result."""
    outs = {f for dims in rule.outputs for dim in dims for f in dim}
    readers = Counter(f for dims in rule.inputs for f in {f for dim in dims for f in dim})
    own = {f for f in range(len(rule.names)) if not readers[f] or (readers[f] == 1 and f not in outs)}
    tensors = (*rule.inputs, *rule.outputs)
    apart = max((math.prod(rule.sizes[f] for dim in dims for f in dim if f in own) for dims in tensors), default=1)
    return math.prod(size for f, size in enumerate(rule.sizes) if f not in own) * apart


def options_of(
    node: Node, rule: Rule, layouts: tuple[Layout, ...], results: Sequence[Layout] | None, ranks: int
) -> list[ShardingChoice]:
    """Return the choices for an operator that layouts of its operands and results lead to. The first is the one of a
    plan that does not name results."""
    op = cast(Op, node.op)
    if op.operandwise:
        return [operandwise_choice(op, list(layouts), ranks)]
    taken = tuple((d, layout.without_partial()) for d, layout in zip(rule.inputs, layouts, strict=True) if d)
    found = [make_choice(rule, *merge(rule, taken, ranks))]
    if any(layout.partial for layout in layouts):
        passing = choices(op, rule, layouts, (), ranks)
        found = [*(option for option in passing if option.inputs == layouts), *found]
    if results is not None:
        made = tuple((d, layout.without_partial()) for d, layout in zip(rule.outputs, results, strict=True) if d)
        found.append(make_choice(rule, *merge(rule, (*taken, *made), ranks)))
        found += choices(op, rule, layouts, made, ranks)
    return found


def release_constraints(graph: Graph) -> bool:
    """Let every reader of a constraint read its operand, and return whether there was a constraint.

    Constraints stay without readers, to be visible among the operators' strategies, until a rank's graph is made. One
    that is read after an update of its parameter becomes a copy: its readers want the former value.
    """
    if not any(map(is_constraint, graph.nodes)):
        return False
    updates = Updates(graph)
    reads = last_reads(graph, aliased_operands)
    replaced: dict[Value, Value] = {}
    for number, node in enumerate(graph.nodes):
        node.inputs = [replaced.get(v, v) for v in node.inputs]
        if node.forward is not None and node.forward in replaced:
            source = replaced[node.forward]
            node.forward = source if isinstance(source, Node) else None
        if not is_constraint(node):
            continue
        value = node.inputs[0]
        if updates.changes(value) and updates.between((value,), number, reads.get(node, -1)):
            node.op = Cast(dst_type=value.tensor_type.dtype)
            continue
        replaced[node] = value
        node.attrs["unused"] = True
    graph.results = [replaced.get(v, v) for v in graph.results]
    return True


def is_released(value: Value) -> bool:
    """Return whether a value is a constraint that nobody reads any more."""
    return is_constraint(value) and isinstance(value, Node) and "unused" in value.attrs
