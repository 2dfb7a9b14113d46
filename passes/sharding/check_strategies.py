"""Checks the strategies that the user gave and turns them into layouts on their operators.

Input:  `MatMul(%x, %w) {instance name: matmul} primitive_attrs: {in_strategy: ((2, 4), (4, 1))}`
Output: the same node with `{in_layouts: (2, 4) [0, 1]; (2, 4) [1, -]} {layout: (2, 4) [0, -] sum[1]}`.

The mesh of an operator is the list of its factors' shard counts, in the order of the operator's largest input, and the
left-over ranks as last axis (MindSpore's repeated calculation). All mistakes are reported together.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any, cast

from mspc.ir.diagnostics import MspcError, raise_all
from mspc.ir.graph import Constant, Graph, Node, Parameter, operand_types
from mspc.ir.layout import INTERLEAVED, Axes, Layout, NamedLayout, spread
from mspc.ops.collective.collectives import Redistribute
from mspc.ops.control.custom import GradientPlaceholder, OwnGradient
from mspc.ops.control.regions import MakeStack, RegionOp, TurnCount
from mspc.ops.control.structural import Depend, Gradient, MakeTuple, StopGradient, TupleGetItem
from mspc.ops.op import Op
from mspc.passes.base import GLOBAL, Pass
from mspc.passes.lib.choices import composite_conflict, make_choice, rule_of
from mspc.passes.lib.placement import sources_of
from mspc.passes.lib.strategies import decompose_nodes, differing_readers, insert_out_layouts, out_layout, ranks_error
from mspc.sharding.rules import Dim, Rule

STRUCTURAL = (MakeTuple, TupleGetItem, Depend, StopGradient, Gradient, Redistribute, RegionOp, MakeStack, TurnCount)


class CheckStrategies(Pass):
    """Attach the layouts of configured operators; report every invalid strategy."""

    needs = (GLOBAL,)

    def run(self, graph: Graph) -> bool:
        after, errors = _attach_all(graph, int(graph.attrs.get("ranks", 1)))
        raise_all(errors)
        insert_out_layouts(graph, after)
        return any(node.in_layouts is not None for node in graph.nodes)


def strategy_mistakes(graph: Graph, ranks: int) -> list[MspcError]:
    """Return the mistakes in the strategies of a graph that may be unfinished, with operators that may not be
    decomposed."""
    _, mistakes = decompose_nodes(graph, sharded=True)
    return [*mistakes.values(), *_attach_all(graph, ranks, mistakes)[1]]


def _attach_all(graph: Graph, ranks: int, besides: Container[Node] = ()) -> tuple[dict[Node, Layout], list[MspcError]]:
    """Attach the layouts of given strategies, except to `besides`: (layouts for out_strategies, mistakes)."""
    errors: list[MspcError] = []
    used: set[int] = set()
    after: dict[Node, Layout] = {}
    for node in graph.nodes:
        if node in besides:
            continue
        try:
            rule = rule_of(node)
            if rule is None:
                _check_ruleless(node)
            elif node.in_strategy is not None:
                used.add(_attach(node, rule, ranks))
                if node.out_strategy is not None:
                    wanted = out_layout(node, ranks)
                    if wanted is not None:
                        after[node] = wanted
            elif node.out_strategy is not None:
                raise node.error(f"{node.label}: an out_strategy needs an in_strategy beside it", code="E0408")
        except MspcError as error:
            errors.append(error)
    if errors:
        from mspc.passes.lib.strategies import with_one_cause_once  # late: few compiles have mistakes

        errors = with_one_cause_once(errors, used, ranks)
    return after, [*errors, *differing_readers(graph)]


def _check_ruleless(node: Node) -> None:
    if node.in_strategy is not None:
        raise node.error(f"{node.label} takes no strategy", code="E0407")
    if not isinstance(node.op, (*STRUCTURAL, OwnGradient, GradientPlaceholder)):  # the last two are gone after `grad`
        raise node.error(
            f"{node.label} has no sharding rule, so no semi-automatic or automatic parallel network can have it",
            notes=["`mspc ops` lists the operators that have one"], code="E0407",
        )


def _attach(node: Node, rule: Rule, ranks: int) -> int:
    """Attach the layouts of the node's strategy and return the number of ranks that it uses. Raise MspcError for a
    mistake."""
    op = cast(Op, node.op)
    strategy = spread(node.in_strategy or ())
    named = [s for s in strategy if isinstance(s, NamedLayout)]
    dims = op.layout_dims(rule) if named else op.strategy_dims(rule)
    if not dims and len(strategy) == 1 and len(rule.outputs) == 1:  # it makes a tensor: the strategy is of its result
        dims = (rule.outputs[0],)
    while len(strategy) < len(dims) and not dims[len(strategy)]:
        strategy.append(())
    if node.attrs.get("skip_redistribution"):
        strategy = _with_replicated_dimensions(rule, dims, strategy)
    if len(strategy) != len(dims):
        raise node.error(
            f"{node.label}: the strategy has {len(strategy)} entries, but the operator has {len(dims)} tensor inputs",
            notes=[f"give one tuple per input, for example {_text([(1,) * len(tensor) for tensor in dims])}"],
            code="E0403",
        )
    if named:
        mesh, axes = _from_layouts(node, rule, dims, strategy, named[0].device_matrix, ranks)
    else:
        mesh, axes = _from_tuples(node, rule, dims, strategy, ranks)
    if composite_conflict(rule, mesh, axes):
        raise node.error(
            f"{node.label}: the strategy {_text(strategy)} does not shard the result into contiguous slices"
        )
    choice = make_choice(rule, mesh, axes)
    node.in_layouts = choice.inputs
    node.layout = choice.layout(node.type)
    return math.prod(mesh if named else mesh[:-1])  # the last axis of a tuple's mesh are ranks that repeat


def _with_replicated_dimensions(rule: Rule, dims: Sequence[tuple[Dim, ...]], strategy: Sequence[Any]) -> list[Any]:
    """Return the strategy with 1 for dimensions that must not be sharded.

    MindSpore's `skip_redistribution` lets every rank take its own slice apart, as if that were the tensor; here it is
    gathered, so that the result is one device's.
    """
    found: list[Any] = []
    for tensor, entry in zip(dims, strategy, strict=False):
        counts = entry.tensor_map if isinstance(entry, NamedLayout) else entry
        stays = [len(factors) == 1 and factors[0] in rule.frozen for factors in tensor]
        if len(counts) == len(stays) and any(stays):
            replicated = -1 if isinstance(entry, NamedLayout) else 1
            counts = tuple(replicated if stay else shards for shards, stay in zip(counts, stays, strict=True))
            entry = replace(entry, tensor_map=counts) if isinstance(entry, NamedLayout) else counts
        found.append(entry)
    return [*found, *strategy[len(found) :]]


def _from_tuples(
    node: Node, rule: Rule, dims: tuple[tuple[Dim, ...], ...], strategy: Sequence[tuple[int, ...]], ranks: int
) -> tuple[tuple[int, ...], list[Axes]]:
    counts: dict[int, int] = {}
    places: dict[int, str] = {}
    shapes = [t.shape for t in operand_types(node)]
    from_right = getattr(node.op, "entries_from_right", False)
    for i, (tensor, given) in enumerate(zip(dims, strategy, strict=True)):
        lead = len(tensor) - len(given) if from_right and len(given) == len(shapes[i]) else 0
        entry = (1,) * lead + given
        if not tensor and i < len(node.inputs):
            sources = sources_of(node.inputs[i])
            if all(isinstance(each, Constant) or (isinstance(each, Node) and each.inputs) for each in sources):
                entry = ()  # a number has nothing to shard, and scripts begin sums with 0
        if len(entry) != len(tensor):
            shape = f", whose shape is {shapes[i]}" if i < len(shapes) else ""
            raise node.error(
                f"{node.label}: the strategy of input {i} is {entry}, which has {len(entry)} numbers for "
                f"{len(tensor)} dimensions{shape}",
                notes=[f"give one number per dimension, for example {(1,) * len(tensor)}"], code="E0403",
            )
        for d, (factors, shards) in enumerate(zip(tensor, entry, strict=True)):
            where = f"dimension {d} of input {i}"
            size = math.prod(rule.sizes[f] for f in factors)
            _check_shards(node, rule, factors, size, shards, (i, d))
            rest = shards
            for f in factors:
                part = math.gcd(rest, rule.sizes[f])
                rest //= part
                if f in counts and counts[f] != part:
                    raise node.error(
                        f"{node.label}: {where} is sharded into {part} slices, but {places[f]} into {counts[f]}, and "
                        f"both are the same dimension of the operator",
                        notes=[f"shard both into {counts[f]}, or both into {part}"], code="E0405",
                    )
                counts[f], places[f] = part, where
                if rest > 1 and part != rule.sizes[f]:
                    raise node.error(f"{node.label}: {where} cannot be sharded into {shards} slices", code="E0404")
    order = _mesh_order(rule)
    used = math.prod(counts.values())
    if used > ranks or ranks % used:
        problem = f"uses {used} ranks, which does not divide {ranks}"
        if used > ranks:
            problem = f"needs {used} ranks, but there are {ranks}"
        message = f"the strategy {_text(strategy)} {problem}"
        raise ranks_error(node, used, message, f"the product of its numbers must divide {ranks}")
    mesh = (*(counts.get(f, 1) for f in order), ranks // used)
    axes: list[Axes] = [()] * len(rule.names)
    for position, f in enumerate(order):
        if mesh[position] > 1:
            axes[f] = (position,)
    return mesh, axes


def _check_shards(node: Node, rule: Rule, factors: Dim, size: int, shards: object, place: tuple[int, int]) -> None:
    where = f"dimension {place[1]} of input {place[0]}"
    if not isinstance(shards, int) or isinstance(shards, bool) or shards < 1:
        raise node.error(
            f"{node.label}: {where} is sharded into {shards!r} slices; give an integer of at least 1", code="E0406"
        )
    frozen = next((place for place, f in enumerate(factors) if f in rule.frozen), len(factors))
    parts = math.prod(rule.sizes[f] for f in factors[:frozen])
    if frozen < len(factors) and parts % shards:
        _raise_own_mistake(node, place, shards, where, parts)
    if shards > 1 and frozen < len(factors) and parts == 1:
        raise node.error(
            f"{node.label}: {where} must not be sharded, but the strategy shards it into {shards} slices",
            notes=["use 1 there"], code="E0404",
        )
    if frozen < len(factors) and parts % shards:
        raise node.error(
            f"{node.label}: {where} is {parts} parts that must not be sharded, and {shards} does not divide {parts}",
            notes=[f"shard it into {', '.join(str(n) for n in range(1, parts + 1) if parts % n == 0)} slices"],
            code="E0404",
        )
    if shards > 1 and not factors:
        raise node.error(
            f"{node.label}: {where} has size 1 and cannot be sharded into {shards} slices",
            notes=["use 1 there"],
            code="E0404",
        )
    if size % shards:
        from mspc.passes.lib.strategies import uneven_error  # late, as above

        raise uneven_error(node, where, size, shards)


def _raise_own_mistake(node: Node, place: tuple[int, int], shards: int, where: str, parts: int) -> None:
    """Raise MspcError if the operator has a more specific error for a sharding than its rule."""
    told = cast(Op, node.op).sharding_mistake(operand_types(node), *place, shards)
    if told:
        ways = ", ".join(str(n) for n in range(1, parts + 1) if parts % n == 0)
        raise node.error(
            f"{node.label}: {where} {told}",
            notes=[f"shard it into {ways} slices" if parts > 1 else "use 1 there"],
        )


def _mesh_order(rule: Rule) -> list[int]:
    """Return factors in the order of MindSpore's device matrix: the dimensions of the largest input first."""
    order: list[int] = []
    for dims in sorted(rule.inputs, key=len, reverse=True):
        order += [f for dim in dims for f in dim if f not in order]
    return order + [f for f in range(len(rule.names)) if f not in order]


def _from_layouts(
    node: Node, rule: Rule, dims: tuple[tuple[Dim, ...], ...], strategy: Sequence[object], mesh: tuple[int, ...],
    ranks: int,
) -> tuple[tuple[int, ...], list[Axes]]:  # fmt: skip
    if math.prod(mesh) != ranks:
        raise ranks_error(
            node, math.prod(mesh),
            f"the layout's device matrix {mesh} has {math.prod(mesh)} ranks, but there are {ranks}",
            f"the product of its sizes must be {ranks}",
        )  # fmt: skip
    axes: list[Axes] = [()] * len(rule.names)
    places: dict[int, str] = {}
    named: dict[int, str] = {}
    for i, (tensor, entry) in enumerate(zip(dims, strategy, strict=True)):
        if not isinstance(entry, NamedLayout):
            if entry == () and not tensor:
                continue
            raise node.error(
                f"{node.label}: the strategy mixes layouts and tuples", notes=["use one kind for all inputs"]
            )
        if entry.device_matrix != mesh:
            raise node.error(f"{node.label}: input {i} is laid out on {entry.device_matrix}, input 0 on {mesh}")
        if len(entry.axes) != len(tensor):
            raise node.error(
                f"{node.label}: the layout of input {i} names {len(entry.axes)} dimensions, "
                f"but the input has {len(tensor)}"
            )
        _check_interleaved(node, rule, tensor, entry, i)
        for d, (factors, wanted) in enumerate(zip(tensor, entry.axes, strict=True)):
            where = f"dimension {d} of input {i}"
            shards = math.prod(mesh[a] for a in wanted)
            _check_shards(node, rule, factors, math.prod(rule.sizes[f] for f in factors), shards, (i, d))
            if not factors:
                continue
            wanted = tuple(a for a in wanted if mesh[a] > 1)  # others shard nothing, whichever factor they are of
            for f, own in zip(factors, _axes_of_factors(node, rule, factors, (mesh, wanted), where), strict=True):
                if f in places and axes[f] != own:
                    raise node.error(
                        f"{node.label}: {where} and {places[f]} are the same dimension of the operator, but their "
                        f"layouts differ",
                        notes=[f"{where} is along {_axes(entry, own)}, {places[f]} along {_axes(entry, axes[f])}"],
                    )
                axes[f], places[f] = own, where
            named |= dict(zip(range(len(mesh)), entry.alias_name, strict=False))
    _check_used_once(node, axes, places, named)
    return mesh, axes


def _check_used_once(node: Node, axes: Sequence[Axes], places: dict[int, str], named: dict[int, str]) -> None:
    """Raise MspcError if an axis shards two dimensions of an operator. named: the names of axes."""
    first: dict[int, int] = {}
    for f, own in enumerate(axes):
        for a in own:
            if a in first:
                raise node.error(
                    f"{node.label}: axis {named[a]!r} of the layout shards two different dimensions of the operator: "
                    f"{places[first[a]]} and {places[f]}",
                    notes=["give one of them another axis, or None"],
                )
            first[a] = f


def _axes(layout: NamedLayout, axes: Axes) -> str:
    """Return axes by the names of a layout."""
    return ", ".join(repr(layout.alias_name[a]) for a in axes) or "no axis"


def _check_interleaved(node: Node, rule: Rule, tensor: tuple[Dim, ...], entry: NamedLayout, i: int) -> None:
    """Raise MspcError for parts that cannot run one after the other: of a parameter, which has no rows of a batch, and
    of a dimension that must not be sharded. The rule is MindSpore's."""
    at = entry.interleaved_at
    if entry.interleaved < 2 or at < 0:
        return
    value = node.inputs[i] if i < len(node.inputs) else None
    if isinstance(value, Parameter) and value.kind == "parameter":
        raise node.error(
            f"{node.label}: {INTERLEAVED} takes input {i}, the parameter {value.name}, in parts",
            notes=["name it for activations alone"],
        )
    if any(f in rule.frozen for f in tensor[at]):
        raise node.error(
            f"{node.label}: {INTERLEAVED} takes dimension {at} of input {i} in parts, which must not be sharded",
            notes=["name it for another dimension"], code="E0404",
        )


def _axes_of_factors(
    node: Node, rule: Rule, factors: Dim, placed: tuple[tuple[int, ...], Axes], where: str
) -> list[Axes]:
    """Return the axes of every factor of a dimension, the first ones of the most significant. placed: the mesh, and the
    axes that shard the dimension."""
    mesh, rest = placed
    found: list[Axes] = []
    for f in factors:
        size, n = rule.sizes[f], len(rest)
        while size % math.prod(mesh[a] for a in rest[:n]):
            n -= 1
        if n < len(rest) and math.prod(mesh[a] for a in rest[:n]) != size:
            raise node.error(
                f"{node.label}: {where} is {size} parts one after the other, and slices over the axis of size "
                f"{mesh[rest[n]]} would cross them",
                notes=[f"let axes come first whose product is {size}"],
            )
        found.append(rest[:n])
        rest = rest[n:]
    return found


def _text(strategy: Sequence[object]) -> str:
    return "(" + ", ".join(str(s) for s in strategy) + ("," if len(strategy) == 1 else "") + ")"
