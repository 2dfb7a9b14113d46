"""Checks the strategies that the user gave and turns them into layouts on their operators.

Input:  `MatMul(%x, %w) {instance name: matmul} primitive_attrs: {in_strategy: ((2, 4), (4, 1))}`
Output: the same node with `{in_layouts: (2, 4) [0, 1]; (2, 4) [1, -]} {layout: (2, 4) [0, -] sum[1]}`.

The mesh of an operator is the list of its factors' cuts, in the order of the operator's largest input, and the
left-over ranks as last axis (MindSpore's repeated calculation). All mistakes are reported together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError, raise_all
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.layout import Axes, Layout, common_mesh, on_mesh
from mspc.ir.named_layout import NamedLayout, spread
from mspc.ops.collective.collectives import Redistribute
from mspc.ops.control.structural import Depend, Gradient, MakeTuple, StopGradient, TupleGetItem
from mspc.ops.op import Op
from mspc.passes.base import Pass
from mspc.passes.needs import WHOLE, Need
from mspc.passes.sharding.choices import composite_conflict, make_choice, operand_types, rule_of
from mspc.passes.sharding.decomposition import decompose_nodes
from mspc.passes.sharding.shared_parameters import differing_readers
from mspc.sharding.factors import Dim, Rule

STRUCTURAL = (MakeTuple, TupleGetItem, Depend, StopGradient, Gradient, Redistribute)


@dataclass(frozen=True)
class CheckStrategies(Pass):
    """Attach the layouts of configured operators; report every strategy that cannot be."""

    needs: ClassVar[tuple[Need, ...]] = (WHOLE,)

    def run(self, graph: Graph) -> bool:
        after, errors = _attach_all(graph, int(graph.attrs.get("ranks", 1)))
        raise_all(errors)
        _insert_out_layouts(graph, after)
        return any(node.in_layouts is not None for node in graph.nodes)


def strategy_mistakes(graph: Graph, ranks: int) -> list[MspcError]:
    """What is wrong with the strategies of a graph that may be unfinished, and whose operators may be whole yet."""
    _, mistakes = decompose_nodes(graph, sharded=True)
    return [*mistakes.values(), *_attach_all(graph, ranks, mistakes)[1]]


def _attach_all(
    graph: Graph, ranks: int, besides: Container[Node] = ()
) -> tuple[dict[Node, Layout], list[MspcError]]:
    """Attach layouts where strategies are given, not to `besides`: (layouts that out_strategies ask for, mistakes)."""
    errors: list[MspcError] = []
    after: dict[Node, Layout] = {}
    for node in graph.nodes:
        if node in besides:
            continue
        try:
            rule = rule_of(node)
            if rule is None:
                _check_ruleless(node)
            elif node.in_strategy is not None:
                _attach(node, rule, ranks)
                if node.out_strategy is not None:
                    wanted = _out_layout(node, ranks)
                    if wanted is not None:
                        after[node] = wanted
            elif node.out_strategy is not None:
                raise node.error(f"{node.label}: an out_strategy needs an in_strategy beside it")
        except MspcError as error:
            errors.append(error)
    return after, [*errors, *differing_readers(graph)]


def _check_ruleless(node: Node) -> None:
    if node.in_strategy is not None:
        raise node.error(f"{node.label} takes no strategy")
    if not isinstance(node.op, STRUCTURAL):
        raise node.error(
            f"{node.label} has no sharding rule, so it cannot stand in a semi-automatic or automatic parallel network",
            notes=["`mspc ops` lists the operators that have one"],
        )


def _attach(node: Node, rule: Rule, ranks: int) -> None:
    op = cast(Op, node.op)
    strategy = spread(node.in_strategy or ())
    named = [s for s in strategy if isinstance(s, NamedLayout)]
    dims = op.layout_dims(rule) if named else op.strategy_dims(rule)
    while len(strategy) < len(dims) and not dims[len(strategy)]:
        strategy.append(())
    if node.attrs.get("skip_redistribution"):
        strategy = _with_whole_parts(rule, dims, strategy)
    if len(strategy) != len(dims):
        raise node.error(
            f"{node.label}: the strategy has {len(strategy)} entries, but the operator has {len(dims)} tensor inputs",
            notes=[f"give one tuple per input, for example {_example(dims)}"],
        )
    if named:
        mesh, axes = _from_layouts(node, rule, dims, strategy, named[0].device_matrix, ranks)
    else:
        mesh, axes = _from_tuples(node, rule, dims, strategy, ranks)
    if composite_conflict(rule, mesh, axes):
        raise node.error(f"{node.label}: the strategy {_text(strategy)} does not cut the result into contiguous slices")
    choice = make_choice(rule, mesh, axes)
    node.in_layouts = choice.inputs
    node.layout = choice.layout(node.type)


def _with_whole_parts(rule: Rule, dims: Sequence[tuple[Dim, ...]], strategy: Sequence[Any]) -> list[Any]:
    """The strategy without cuts of dimensions that must stay whole. MindSpore's `skip_redistribution` lets every rank
    take its own slice apart, as if that were the tensor; here it is gathered, so that the result is one device's."""
    found: list[Any] = []
    for tensor, entry in zip(dims, strategy, strict=False):
        cuts = entry.tensor_map if isinstance(entry, NamedLayout) else entry
        stays = [len(factors) == 1 and factors[0] in rule.frozen for factors in tensor]
        if len(cuts) == len(stays) and any(stays):
            uncut = -1 if isinstance(entry, NamedLayout) else 1
            cuts = tuple(uncut if whole else cut for cut, whole in zip(cuts, stays, strict=True))
            entry = replace(entry, tensor_map=cuts) if isinstance(entry, NamedLayout) else cuts
        found.append(entry)
    return [*found, *strategy[len(found) :]]


def _from_tuples(
    node: Node, rule: Rule, dims: tuple[tuple[Dim, ...], ...], strategy: Sequence[tuple[int, ...]], ranks: int
) -> tuple[tuple[int, ...], list[Axes]]:
    cuts: dict[int, int] = {}
    places: dict[int, str] = {}
    shapes = [t.shape for t in operand_types(node)]
    for i, (tensor, entry) in enumerate(zip(dims, strategy, strict=True)):
        if len(entry) != len(tensor):
            shape = f", whose shape is {shapes[i]}" if i < len(shapes) else ""
            raise node.error(
                f"{node.label}: the strategy of input {i} is {entry}, which has {len(entry)} numbers for "
                f"{len(tensor)} dimensions{shape}",
                notes=[f"give one number per dimension, for example {(1,) * len(tensor)}"],
            )
        follows = i in cast(Op, node.op).followers
        for d, (factors, cut) in enumerate(zip(tensor, entry, strict=True)):
            where = f"dimension {d} of input {i}"
            size = math.prod(rule.sizes[f] for f in factors)
            _check_cut(node, rule, factors, size, cut, (i, d))
            if cut == 1 and follows:
                continue
            rest = cut
            for f in factors:
                part = math.gcd(rest, rule.sizes[f])
                rest //= part
                if f in cuts and cuts[f] != part:
                    raise node.error(
                        f"{node.label}: {where} is cut {part} ways, but {places[f]} is cut {cuts[f]} ways, and both "
                        f"are the same dimension of the operator",
                        notes=[f"cut both {cuts[f]} ways, or both {part} ways"],
                    )
                cuts[f], places[f] = part, where
                if rest > 1 and part != rule.sizes[f]:
                    raise node.error(f"{node.label}: {where} cannot be cut {cut} ways")
    order = _mesh_order(rule)
    used = math.prod(cuts.values())
    if used > ranks or ranks % used:
        problem = (
            f"needs {used} ranks, but there are {ranks}"
            if used > ranks
            else f"uses {used} ranks, which does not divide {ranks}"
        )
        raise node.error(
            f"{node.label}: the strategy {_text(strategy)} {problem}",
            notes=[f"the product of its cuts must divide {ranks}"],
        )
    mesh = (*(cuts.get(f, 1) for f in order), ranks // used)
    axes: list[Axes] = [()] * len(rule.names)
    for position, f in enumerate(order):
        if mesh[position] > 1:
            axes[f] = (position,)
    return mesh, axes


def _check_cut(node: Node, rule: Rule, factors: Dim, size: int, cut: object, place: tuple[int, int]) -> None:
    where = f"dimension {place[1]} of input {place[0]}"
    if not isinstance(cut, int) or isinstance(cut, bool) or cut < 1:
        raise node.error(f"{node.label}: {where} is cut {cut!r} ways; give an integer of at least 1")
    frozen = next((place for place, f in enumerate(factors) if f in rule.frozen), len(factors))
    parts = math.prod(rule.sizes[f] for f in factors[:frozen])
    if frozen < len(factors) and parts % cut:
        _raise_own_mistake(node, place, cut, where, parts)
    if cut > 1 and frozen < len(factors) and parts == 1:
        raise node.error(
            f"{node.label}: {where} must stay whole, but the strategy cuts it {cut} ways", notes=["use 1 there"]
        )
    if frozen < len(factors) and parts % cut:
        raise node.error(
            f"{node.label}: {where} is {parts} parts that must stay whole each, and {cut} does not divide {parts}",
            notes=[f"cut it {', '.join(str(n) for n in range(1, parts + 1) if parts % n == 0)} ways"],
        )
    if cut > 1 and not factors:
        raise node.error(f"{node.label}: {where} has size 1 and cannot be cut {cut} ways", notes=["use 1 there"])
    if size % cut:
        legal = [n for n in range(1, size + 1) if size % n == 0][:8]
        raise node.error(
            f"{node.label}: {where} is {size}, which {cut} does not divide",
            notes=[f"cut it {', '.join(map(str, legal[:-1]))} or {legal[-1]} ways" if legal[1:] else "use 1 there"],
        )


def _raise_own_mistake(node: Node, place: tuple[int, int], cut: int, where: str, parts: int) -> None:
    """Raises MspcError where the operator can say more of a cut than its rule."""
    told = cast(Op, node.op).cut_mistake(operand_types(node), *place, cut)
    if told:
        ways = ", ".join(str(n) for n in range(1, parts + 1) if parts % n == 0)
        raise node.error(f"{node.label}: {where} {told}", notes=[f"cut it {ways} ways" if parts > 1 else "use 1 there"])


def _mesh_order(rule: Rule) -> list[int]:
    """Factors in the order of MindSpore's device matrix: the dimensions of the largest input first."""
    order: list[int] = []
    for dims in sorted(rule.inputs, key=len, reverse=True):
        order += [f for dim in dims for f in dim if f not in order]
    return order + [f for f in range(len(rule.names)) if f not in order]


def _from_layouts(
    node: Node,
    rule: Rule,
    dims: tuple[tuple[Dim, ...], ...],
    strategy: Sequence[object],
    mesh: tuple[int, ...],
    ranks: int,
) -> tuple[tuple[int, ...], list[Axes]]:
    if math.prod(mesh) != ranks:
        raise node.error(
            f"{node.label}: the layout's device matrix {mesh} has {math.prod(mesh)} ranks, but there are {ranks}",
            notes=[f"the product of its sizes must be {ranks}"],
        )
    axes: list[Axes] = [()] * len(rule.names)
    places: dict[int, str] = {}
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
        for d, (factors, wanted) in enumerate(zip(tensor, entry.axes, strict=True)):
            where = f"dimension {d} of input {i}"
            cut = math.prod(mesh[a] for a in wanted)
            _check_cut(node, rule, factors, math.prod(rule.sizes[f] for f in factors), cut, (i, d))
            if not factors or (not wanted and i in cast(Op, node.op).followers):
                continue
            for f, own in zip(factors, _axes_of_factors(node, rule, factors, (mesh, wanted), where), strict=True):
                if f in places and axes[f] != own:
                    raise node.error(
                        f"{node.label}: {where} and {places[f]} are the same dimension of the operator, but their "
                        f"layouts differ"
                    )
                axes[f], places[f] = own, where
    flat = [a for f in axes for a in f if mesh[a] > 1]
    if len(flat) != len(set(flat)):
        raise node.error(f"{node.label}: one axis of the layout cuts two different dimensions of the operator")
    return mesh, axes


def _axes_of_factors(
    node: Node, rule: Rule, factors: Dim, cut: tuple[tuple[int, ...], Axes], where: str
) -> list[Axes]:
    """The axes of every factor of a dimension, the first ones of the most significant.

    cut: the mesh, and the axes along which the dimension is cut.
    """
    mesh, rest = cut
    found: list[Axes] = []
    for f in factors:
        size, n = rule.sizes[f], len(rest)
        while size % math.prod(mesh[a] for a in rest[:n]):
            n -= 1
        if n < len(rest) and math.prod(mesh[a] for a in rest[:n]) != size:
            raise node.error(
                f"{node.label}: {where} is {size} parts one after the other, and the axis of size {mesh[rest[n]]} cuts "
                f"across them",
                notes=[f"let axes come first whose product is {size}"],
            )
        found.append(rest[:n])
        rest = rest[n:]
    return found


def _out_layout(node: Node, ranks: int) -> Layout | None:
    """The layout that out_strategy asks for: the natural one, or a reduced scatter of the partial result. None where
    there are several results, which can only have their natural ones, and only with MindSpore's `self_define_shard`."""
    entries = node.out_strategy or ()
    if node.attrs.get("self_define_shard") and isinstance(node.layout, tuple) and len(entries) == len(node.layout):
        _check_natural(node, node.layout, entries)
        return None
    if len(entries) != 1 or not isinstance(node.layout, Layout):
        raise node.error(f"{node.label}: an out_strategy needs one entry, for the operator's one result")
    natural = node.layout.without_partial()
    entry = entries[0]
    if isinstance(entry, NamedLayout):
        if entry.ranks != ranks:
            raise node.error(
                f"{node.label}: the out layout's device matrix {entry.device_matrix} needs {entry.ranks} ranks"
            )
        return _following(node, _checked(node, entry.to_layout()))
    wanted = tuple(entry)
    if len(wanted) != len(node.shape):
        raise node.error(
            f"{node.label}: the out_strategy {wanted} has {len(wanted)} numbers for {len(node.shape)} dimensions"
        )
    if wanted == natural.strategy:
        return natural
    dims: list[Axes] = []
    free = list(node.layout.partial)
    for d, cut in enumerate(wanted):
        axes = list(node.layout.dims[d])
        while node.layout.size_of(axes) < cut and free:
            axes.append(free.pop(0))
        if node.layout.size_of(axes) != cut:
            legal = f"the result is cut {natural.strategy}"
            if node.layout.partial:
                parts = node.layout.size_of(node.layout.partial)
                legal += f", or one dimension {parts} times more, its {parts} partial sums scattered"
            raise node.error(
                f"{node.label}: the out_strategy {wanted} does not follow from the in_strategy", notes=[legal]
            )
        dims.append(tuple(axes))
    return _checked(node, Layout.of(node.layout.mesh, dims))


def _check_natural(node: Node, natural: Sequence[Layout], entries: Sequence[Any]) -> None:
    """Raise MspcError where the out_strategy of an operator with several results is not what follows anyway."""
    for i, (layout, entry) in enumerate(zip(natural, entries, strict=True)):
        wanted = entry.strategy if isinstance(entry, NamedLayout) else tuple(entry)
        if wanted != layout.without_partial().strategy:
            raise node.error(
                f"{node.label}: the out_strategy cuts result {i} {wanted}, but it is cut {layout.strategy}",
                notes=["of several results each can only be cut as it follows from the in_strategy"],
            )


def _following(node: Node, wanted: Layout) -> Layout:
    """`wanted` where the operator can hand it out: it cuts the result as the natural layout does, but that partial sums
    may be scattered along any dimension, and repetitions that no input has (Tile) may be cut too."""
    natural = node.tensor_layout
    if wanted.strategy == natural.strategy:
        return wanted
    rule = rule_of(node)
    mesh = common_mesh(natural.mesh, wanted.mesh)
    if rule is not None and mesh is not None:
        old, parts = on_mesh(natural, mesh)
        new, _ = on_mesh(wanted, mesh)
        kept = [tuple(a for a in axes if a not in parts) for axes in new]
        if all(
            axes[len(axes) - len(before) :] == before
            and _repetitions(rule, dim) % math.prod(mesh[a] for a in axes[: len(axes) - len(before)]) == 0
            for dim, axes, before in zip(rule.outputs[0], kept, old, strict=True)
        ):
            return wanted
    raise node.error(
        f"{node.label}: the out layout {wanted} does not follow from the in_strategy",
        notes=[f"the result is laid out {natural}" + ", its partial sums may be scattered" * bool(natural.partial)],
    )


def _repetitions(rule: Rule, dim: Dim) -> int:
    """How often a dimension of the result repeats what the inputs hold: its first factors that no input has."""
    known = {f for dims in rule.inputs for other in dims for f in other}
    return math.prod(rule.sizes[f] for f in itertools.takewhile(lambda f: f not in known, dim))


def _checked(node: Node, layout: Layout) -> Layout:
    if len(layout.dims) != len(node.shape) or not layout.divides(node.shape):
        raise node.error(
            f"{node.label}: the out_strategy cuts the result {layout.strategy}, which does not divide {node.shape}"
        )
    return layout


def _insert_out_layouts(graph: Graph, after: dict[Node, Layout]) -> None:
    """Put a redistribution behind every operator whose out_strategy is not its natural layout."""
    if not after:
        return
    nodes: list[Node] = []
    replaced: dict[Value, Value] = {}
    builder = Builder(graph, nodes)
    for node in graph.nodes:
        node.inputs = [replaced.get(v, v) for v in node.inputs]
        nodes.append(node)
        target = after.get(node)
        if target is None or target == node.layout:
            continue
        assert isinstance(node.layout, Layout)
        moved = builder.like(node).emit(Redistribute(source=node.layout, target=target), node, name=node.name)
        moved.phase = node.phase
        moved.in_layouts, moved.layout = (node.layout,), target
        moved.attrs["reason"] = f"out_strategy of {node.label}: {node.layout} to {target}"
        replaced[node] = moved
    graph.nodes = nodes
    graph.results = [replaced.get(v, v) for v in graph.results]


def _text(strategy: Sequence[object]) -> str:
    return "(" + ", ".join(str(s) for s in strategy) + ("," if len(strategy) == 1 else "") + ")"


def _example(dims: tuple[tuple[Dim, ...], ...]) -> str:
    return _text([(1,) * len(tensor) for tensor in dims])
