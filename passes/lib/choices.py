"""Choices of an operator: the strategies its rule allows, and the constraints that a script puts on layouts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from functools import lru_cache
from typing import Any, cast

from mspc.analysis.aliasing import Updates, aliased_operands, last_reads
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Value, element_types, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout, common_mesh, on_mesh
from mspc.ir.text.fragments import read_layouts
from mspc.ir.text.source_text import Malformed
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
    # After a reduce-scatter of partial sums their axes shard one dimension.
    scattered = [
        (dims, Layout.of(layout.mesh, [(*a, *layout.partial) if d == at else a for d, a in enumerate(layout.dims)]))
        for dims, layout in zip(rule.inputs, operands, strict=True)
        if layout is not None and layout.partial
        for at in range(len(layout.dims))
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


# Facts in a graph's header that plans and searches write ----------------------------------------------


# The front end hands a plan to `shard_by_plan` in a graph's header:
#     plan_file : "plan.toml"
#     plan_operators : (("Default/network-Net/MatMul-op0", "(2, 4) [0, -]", "(2, 4) [-, 1]"))
#     plan_places : (("Default/network-Net/MatMul", 1))
#     %0 = MatMul(%para1_x, %para2_w) {place: Default/network-Net/MatMul-op0}
# `plan_places` counts the operators of every cell and kind that were read: passes count their new ones from there.
# `shard_by_plan` takes all of it out of the graph.


PLAN_FILE, PLACES = "plan_file", "plan_places"
OPERATORS, RESULTS, PARAMETERS = "plan_operators", "plan_results", "plan_parameters"
RECOMPUTE, GATHER_AGAIN, LOOPS = "plan_recompute", "plan_gather_again", "plan_loops"
OFFLOADED, OFFLOADED_STATES = "plan_offload", "plan_offload_states"
KEYS = (
    PLAN_FILE, OPERATORS, RESULTS, PARAMETERS, RECOMPUTE, GATHER_AGAIN, LOOPS, OFFLOADED, OFFLOADED_STATES, PLACES,
)  # fmt: skip


@dataclass(frozen=True)
class NotedPlan:
    """A plan in a graph's header. file: its origin, for messages. places: of the operators that were read, by cell and
    kind, how many there were. The rest as in a plan file."""

    file: str
    operators: Mapping[str, tuple[Layout, ...]]
    results: Mapping[str, tuple[Layout, ...]]
    parameters: Mapping[str, Layout]
    recompute: tuple[str, ...] = ()
    gather_again: tuple[str, ...] = ()
    loops: Mapping[str, tuple[Layout, ...]] = field(default_factory=dict[str, tuple[Layout, ...]])
    offload: tuple[str, ...] = ()
    offload_states: bool = False
    places: Counter[str] = field(default_factory=Counter[str])


def note_plan(graph: Graph, plan: NotedPlan, places: Mapping[Node, str]) -> None:
    """Write a plan into a graph that was read. places: the names of the operators."""
    noted: dict[str, Any] = {
        OPERATORS: _entries(plan.operators),
        RESULTS: _entries(plan.results),
        PARAMETERS: tuple((name, str(layout)) for name, layout in plan.parameters.items()),
        RECOMPUTE: plan.recompute,
        GATHER_AGAIN: plan.gather_again,
        LOOPS: _entries(plan.loops),
        OFFLOADED: plan.offload,
        OFFLOADED_STATES: plan.offload_states,
        PLACES: tuple(kinds_of(places.values()).items()),
    }
    graph.attrs |= {PLAN_FILE: plan.file} | {key: value for key, value in noted.items() if value}
    for node, place in places.items():
        node.place = place


def noted_plan(graph: Graph) -> NotedPlan | None:
    """Return the plan that a graph carries, or None. Raise MspcError if its texts are no layouts of the graph's
    ranks."""
    if PLAN_FILE not in graph.attrs:
        return None
    said = {key: graph.attrs.get(key, ()) for key in KEYS}
    ranks = int(graph.attrs.get("ranks", 1))
    stored = {name: layouts for name, *layouts in said[PARAMETERS]}
    return NotedPlan(
        str(said[PLAN_FILE]),
        {name: _layouts(OPERATORS, name, texts, ranks) for name, *texts in said[OPERATORS]},
        {name: _layouts(RESULTS, name, texts, ranks) for name, *texts in said[RESULTS]},
        {name: layout for name, texts in stored.items() for layout in _layouts(PARAMETERS, name, texts, ranks)},
        said[RECOMPUTE],
        said[GATHER_AGAIN],
        {name: _layouts(LOOPS, name, texts, ranks) for name, *texts in said[LOOPS]},
        said[OFFLOADED],
        bool(said[OFFLOADED_STATES]),
        Counter(dict(said[PLACES])),
    )


def forget_plan(graph: Graph) -> None:
    """Take a plan out of a graph."""
    for key in KEYS:
        graph.attrs.pop(key, None)
    for node in graph.all_nodes():
        node.place = ""


def kinds_of(places: Iterable[str]) -> Counter[str]:
    """Return how many operators of each cell and kind there are among those with these names."""
    return Counter(place.rpartition("-op")[0] for place in places)


def made_places(nodes: Iterable[Node], named: Container[Node], count: Counter[str]) -> Iterator[tuple[Node, str]]:
    """Yield (node, name) of the forward operators among some that are not `named`, which passes have put in the place
    of others: they go on counting, and `count` with them."""
    for node in nodes:
        if node.phase == "forward" and node not in named:
            kind = kind_of(node)
            yield node, f"{kind}-op{count[kind]}"
            count[kind] += 1


def kind_of(node: Node) -> str:
    """Return the cell and the kind of an operator, which its name in plans begins with."""
    return f"{node.scope or 'Default'}/{node.op.name}"


def _entries(layouts: Mapping[str, Sequence[Layout]]) -> tuple[tuple[str, ...], ...]:
    return tuple((name, *map(str, of)) for name, of in layouts.items())


def _layouts(key: str, name: str, texts: Sequence[str], ranks: int) -> tuple[Layout, ...]:
    try:
        found = [layout for text in texts for layout in read_layouts(text)]
    except Malformed as error:
        raise MspcError(f"{key}: a layout of {name}: {error}") from None
    for layout in found:
        if not isinstance(layout, Layout) or layout.ranks != ranks:
            raise MspcError(f"{key}: {name} has the layout {layout}, which is none of {ranks} ranks")
    return tuple(found)


SHARD, FILE, PLAN = "shard()", "the strategy file", "the plan"
GIVEN = (SHARD, FILE, PLAN)
"""Those who go before all that is found."""


_KEY = "search_"
MINIMAL_MEMORY = -1
"""In place of a limit of memory: the plan that takes the least."""

MILLION = 1_000_000
"""The number of parts of the sum that a search minimises, to express a possible saving."""
OPERATIONS = 1e9
"""The number of operations of matmuls that `compute` is the cost of."""


SEARCHES = ("dynamic_programming", "recursive_programming")
"""The values of `search_mode` for which all operators are decided together."""


@dataclass(frozen=True)
class Terms:
    """Terms of a search; 0 and "" if they do not count.

    latency: the cost of a collective by itself, as bytes sent. touch: the same for a thousand bytes that operators read
    or write. compute, compute_half: the same for a billion operations of recomputed matmuls, of elements of four bytes
    and of two. memory: bytes that a plan may take on a rank, or `MINIMAL_MEMORY`. hosts: ranks of a host; network:
    the cost of a byte between hosts, in thousandths of one inside of a host, for a rank's card. mesh: the only mesh of
    layouts, as "8x4". milliseconds: the time after which it takes the best plan so far, as soon as there is one.
    """

    latency: int = 0
    touch: int = 0
    compute: int = 0
    compute_half: int = 0
    memory: int = 0
    hosts: int = 0
    network: int = 0
    mesh: str = ""
    milliseconds: int = 0

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> Terms:
        """Return the terms in a graph's header."""
        return cls(**{f.name: attrs[_KEY + f.name] for f in fields(cls) if _KEY + f.name in attrs})

    def attributes(self) -> dict[str, Any]:
        """Return the attributes for a graph's header."""
        found = {_KEY + f.name: getattr(self, f.name) for f in fields(self)}
        return {key: value for key, value in found.items() if value}

    @property
    def axes(self) -> tuple[int, ...]:
        """The sizes of the mesh that the settings name; () if they name none."""
        return tuple(map(int, self.mesh.split("x"))) if self.mesh else ()


def wants_search(graph: Graph) -> bool:
    """Return whether the layouts of all operators of a graph are to be decided on together, by its header."""
    return graph.attrs.get("mode") == "auto_parallel" and graph.attrs.get("search_mode") in SEARCHES
