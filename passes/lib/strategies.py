"""Strategies that scripts write: their checks, their errors, and the operators that replace one under a strategy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError, listed
from mspc.ir.graph import OFFLOAD, Builder, Graph, Node, Parameter, Value
from mspc.ir.layout import Axes, Layout, NamedLayout, common_mesh, on_mesh
from mspc.ir.types import TupleType
from mspc.ops.collective.collectives import Redistribute
from mspc.ops.control.structural import TupleGetItem, is_constraint
from mspc.ops.op import Op, RequestedSharding
from mspc.passes.base import rewrite_nodes
from mspc.passes.lib.choices import rule_of
from mspc.sharding.rules import Dim, Rule


def out_layout(node: Node, ranks: int) -> Layout | None:
    """Return the layout that out_strategy asks for: the natural one, or a reduced scatter of the partial result. None
    if there are several results, which can only have their natural ones, and only with MindSpore's
    `self_define_shard`."""
    entries = node.out_strategy or ()
    if node.attrs.get("self_define_shard") and isinstance(node.layout, tuple) and len(entries) == len(node.layout):
        _check_natural(node, node.layout, entries)
        return None
    if len(entries) != 1 or not isinstance(node.layout, Layout):
        raise node.error(f"{node.label}: an out_strategy needs one entry, for the operator's one result", code="E0408")
    natural = node.layout.without_partial()
    entry = entries[0]
    if isinstance(entry, NamedLayout):
        if entry.ranks != ranks:
            raise node.error(
                f"{node.label}: the out layout's device matrix {entry.device_matrix} needs {entry.ranks} ranks",
                code="E0408",
            )
        return _natural_layout_as_wanted(node, _checked(node, entry.to_layout()))
    wanted = tuple(entry)
    if len(wanted) != len(node.shape):
        raise node.error(
            f"{node.label}: the out_strategy {wanted} has {len(wanted)} numbers for {len(node.shape)} dimensions",
            code="E0408",
        )
    if wanted == natural.strategy:
        return natural
    dims: list[Axes] = []
    free = list(node.layout.partial)
    for d, shards in enumerate(wanted):
        axes = list(node.layout.dims[d])
        while node.layout.size_of(axes) < shards and free:
            axes.append(free.pop(0))
        if node.layout.size_of(axes) != shards:
            legal = f"the result is sharded {natural.strategy}"
            if node.layout.partial:
                parts = node.layout.size_of(node.layout.partial)
                legal += f", or one dimension {parts} times more, its {parts} partial sums scattered"
            raise node.error(
                f"{node.label}: the out_strategy {wanted} does not follow from the in_strategy",
                notes=[legal],
                code="E0408",
            )
        dims.append(tuple(axes))
    return _checked(node, Layout.of(node.layout.mesh, dims))


def _check_natural(node: Node, natural: Sequence[Layout], entries: Sequence[Any]) -> None:
    """Raise MspcError if the out_strategy of an operator with several results differs from the natural one."""
    for i, (layout, entry) in enumerate(zip(natural, entries, strict=True)):
        wanted = entry.strategy if isinstance(entry, NamedLayout) else tuple(entry)
        if wanted != layout.without_partial().strategy:
            raise node.error(
                f"{node.label}: the out_strategy shards result {i} {wanted}, but it is sharded {layout.strategy}",
                notes=["of several results each can only be sharded as it follows from the in_strategy"], code="E0408",
            )


def _natural_layout_as_wanted(node: Node, wanted: Layout) -> Layout:
    """Return `wanted` if the operator can give it: it shards the result as the natural layout does, but partial sums
    may be scattered along any dimension, and repetitions that no input has (Tile) may be sharded too."""
    natural = node.tensor_layout
    if wanted.strategy == natural.strategy:
        return wanted
    rule = rule_of(node)
    mesh = common_mesh(natural.mesh, wanted.mesh)
    if rule is not None and mesh is not None:
        old, parts = on_mesh(natural, mesh)
        new, _ = on_mesh(wanted, mesh)
        remaining = [tuple(a for a in axes if a not in parts) for axes in new]
        if all(
            axes[len(axes) - len(before) :] == before
            and _repetitions(rule, dim) % math.prod(mesh[a] for a in axes[: len(axes) - len(before)]) == 0
            for dim, axes, before in zip(rule.outputs[0], remaining, old, strict=True)
        ):
            return wanted
    raise node.error(
        f"{node.label}: the out layout {wanted} does not follow from the in_strategy",
        notes=[f"the result is laid out {natural}" + ", its partial sums may be scattered" * bool(natural.partial)],
        code="E0408",
    )


def _repetitions(rule: Rule, dim: Dim) -> int:
    """Return how often a dimension of the result repeats the inputs: its first factors that no input has."""
    known = {f for dims in rule.inputs for other in dims for f in other}
    return math.prod(rule.sizes[f] for f in itertools.takewhile(lambda f: f not in known, dim))


def _checked(node: Node, layout: Layout) -> Layout:
    if len(layout.dims) != len(node.shape) or not layout.divides(node.shape):
        raise node.error(
            f"{node.label}: the out_strategy shards the result {layout.strategy}, which does not divide {node.shape}",
            code="E0408",
        )
    return layout


def insert_out_layouts(graph: Graph, after: dict[Node, Layout]) -> None:
    """Put a redistribution after every operator whose out_strategy is not its natural layout."""

    def visit(b: Builder, node: Node) -> Node | None:
        target = after.get(node)
        if target is None or target == node.layout:
            return None
        assert isinstance(node.layout, Layout)
        b.nodes.append(node)
        redistributed = b.like(node).emit(Redistribute(source=node.layout, target=target), node, name=node.name)
        redistributed.phase = node.phase
        redistributed.in_layouts, redistributed.layout = (node.layout,), target
        redistributed.attrs["reason"] = f"out_strategy of {node.label}: {node.layout} to {target}"
        return redistributed

    if after:
        rewrite_nodes(graph, visit)


def decompose_nodes(graph: Graph, sharded: bool) -> tuple[bool, dict[Node, MspcError]]:
    """Return (whether anything was changed, mistakes by operator); an operator with a mistake stays as it is.

    sharded: whether operators without a strategy are asked too, which may need one.
    """
    ranks = int(graph.attrs.get("strategies_for", graph.attrs.get("ranks", 1)))
    candidates = {node for node in graph.nodes if _may_decompose(node, sharded, ranks)}
    errors: dict[Node, MspcError] = {}
    if not candidates:
        return False, errors
    names = {(node.inputs[0], node.op.index): node.name for node in graph.nodes if isinstance(node.op, TupleGetItem)}

    def visit(b: Builder, node: Node) -> list[Value] | None:
        found = _decomposition(b, node, errors, ranks) if node in candidates else None
        for index, value in enumerate(found or ()):
            name = names.get((node, index), "") if isinstance(node.type, TupleType) else node.name
            if isinstance(value, Node):
                value.name = name or value.name
        return found

    return rewrite_nodes(graph, visit), errors


def _may_decompose(node: Node, sharded: bool, ranks: int) -> bool:
    op = node.op
    if not isinstance(op, Op) or type(op).decompose is Op.decompose:
        return False
    if not (op.is_several or sharded or node.in_strategy is not None):
        return False
    return op.asks(_asked(node, ranks), ranks)


def _asked(node: Node, ranks: int) -> RequestedSharding:
    return RequestedSharding(node.in_strategy, node.out_strategy, node.attrs, ranks)


def _decomposition(b: Builder, node: Node, errors: dict[Node, MspcError], ranks: int) -> list[Value] | None:
    """Return the results of the operators that replace `node`, which have its scope, source line and attributes."""
    assert isinstance(node.op, Op)
    start = len(b.nodes)
    b.like(node).phase = node.phase
    try:
        results = node.op.decompose(b, _asked(node, ranks), node.inputs)
    except MspcError as error:
        del b.nodes[start:]
        errors[node] = error if error.location is not None else node.error(error.message, error.notes)
        return None
    if results is None:
        return None
    for made in b.nodes[start:]:
        made.instance = made.instance or node.instance
        if type(made.op) is type(node.op):
            made.attrs |= {name: value for name, value in node.attrs.items() if name not in node.op.requests}
        else:
            made.attrs |= {name: node.attrs[name] for name in ("recompute", OFFLOAD) if name in node.attrs}
    return list(results)


MAX_PLACES = 5
"""Places of further strategies that an error names."""


class RanksError(MspcError):
    """A strategy that does not divide the number of ranks. used: the ranks that it uses."""

    class_code = "E0402"
    used: int = 1


class UnevenError(MspcError):
    """A dimension whose size the number of slices does not divide."""

    class_code = "E0401"
    size: int = 1
    shards: int = 1


def ranks_error(node: Node, used: int, message: str, note: str) -> RanksError:
    """Return the error of a strategy that uses `used` ranks, which do not divide those that there are."""
    error: Any = RanksError(f"{node.label}: {message}", notes=[note], frames=node.frames, kind=RuntimeError)
    error.used = used
    return error


def uneven_error(node: Node, where: str, size: int, shards: int) -> UnevenError:
    """Return the error of a dimension that does not divide into equal slices."""
    message = f"{node.label}: {where} is {size}, which {shards} does not divide"
    error: Any = UnevenError(message, notes=[_divisors_note(size)], frames=node.frames, kind=RuntimeError)
    error.size, error.shards = size, shards
    return error


def with_one_cause_once(errors: list[MspcError], used: set[int], ranks: int) -> list[MspcError]:
    """Join errors that have one cause, the number of ranks, and name numbers of ranks that would be right.

    used: ranks that strategies without a mistake use.
    """
    hidden: set[int] = set()
    unfit = [error for error in errors if isinstance(error, RanksError)]
    if unfit:
        step = math.lcm(*used, *(error.used for error in unfit))
        unfit[0].notes += (f"all strategies of the network divide {step} ranks, and multiples of {step}",)
        unfit[0].notes += _further_places(unfit, f"do not divide {ranks} either")
        hidden |= {id(error) for error in unfit[1:]}
    for shards in sorted({error.shards for error in errors if isinstance(error, UnevenError)}):
        if ranks % shards:
            continue  # such a number does not come from the number of ranks: each is a mistake of its own
        alike = [error for error in errors if isinstance(error, UnevenError) and error.shards == shards]
        if len(alike) == 1:
            continue
        common = _divisors_note(math.gcd(*(error.size for error in alike)), ", which fits all of these strategies")
        alike[0].notes = (common, *_further_places(alike, f"shard into {shards} slices, too"))
        hidden |= {id(error) for error in alike[1:]}
    return [error for error in errors if id(error) not in hidden]


def _further_places(errors: Sequence[MspcError], text: str) -> tuple[str, ...]:
    """Return a note with the places of all errors but the first."""
    first = str(errors[0].location)
    places = [place for place in dict.fromkeys(str(e.location) for e in errors if e.location) if place != first]
    return (f"strategies at {listed(places, MAX_PLACES)} {text}",) if places else ()


def _divisors_note(size: int, more: str = "") -> str:
    """Return into how many slices a dimension may be sharded."""
    legal = [n for n in range(1, size + 1) if size % n == 0][:8]
    if not legal[1:]:
        return "use 1 there"
    return f"shard it into {', '.join(map(str, legal[:-1]))} or {legal[-1]} slices{more}"


# The rule is MindSpore's: it refuses a parameter with readers of different strategies. Slices of one number that two
# operators place on other ranks are redistributed, as those of a table that is also the head of a network.


def differing_readers(graph: Graph) -> Iterator[MspcError]:
    """Yield a mistake for every operator whose strategy shards a parameter unlike that of an operator before it.

    Operators without a strategy follow the stored layout, and a ShardingConstraint asks for a change of layout, so
    that neither counts.
    """
    first: dict[Parameter, tuple[Node, Layout]] = {}
    for node in graph.nodes:
        if node.in_layouts is None or is_constraint(node):
            continue
        for value, layout in zip(node.inputs, node.in_layouts, strict=True):
            if not isinstance(value, Parameter) or value.kind != "parameter" or layout is None:
                continue
            before, known = first.setdefault(value, (node, layout))
            if layout.strategy != known.strategy:
                yield node.error(
                    f"{node.label}: its strategy shards the parameter {value.name} {layout.strategy}, but that of "
                    f"{before.label} {known.strategy}",
                    notes=["a parameter is stored once: give all its readers strategies that shard it alike, "
                           "or read it through reshard"],
                )  # fmt: skip
