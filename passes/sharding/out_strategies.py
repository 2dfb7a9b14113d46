"""Checks what an out_strategy asks of an operator's results, and makes the redistribution that carries it out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.layout import Axes, Layout, common_mesh, on_mesh
from mspc.ir.named_layout import NamedLayout
from mspc.ops.collective.collectives import Redistribute
from mspc.passes.sharding.choices import rule_of
from mspc.sharding.factors import Dim, Rule


def out_layout(node: Node, ranks: int) -> Layout | None:
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
                f"{node.label}: the out_strategy shards result {i} {wanted}, but it is sharded {layout.strategy}",
                notes=["of several results each can only be sharded as it follows from the in_strategy"],
            )


def _following(node: Node, wanted: Layout) -> Layout:
    """`wanted` where the operator can hand it out: it shards the result as the natural layout does, but partial
    sums may be scattered along any dimension, and repetitions that no input has (Tile) may be sharded too."""
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
    )


def _repetitions(rule: Rule, dim: Dim) -> int:
    """How often a dimension of the result repeats what the inputs hold: its first factors that no input has."""
    known = {f for dims in rule.inputs for other in dims for f in other}
    return math.prod(rule.sizes[f] for f in itertools.takewhile(lambda f: f not in known, dim))


def _checked(node: Node, layout: Layout) -> Layout:
    if len(layout.dims) != len(node.shape) or not layout.divides(node.shape):
        raise node.error(
            f"{node.label}: the out_strategy shards the result {layout.strategy}, which does not divide {node.shape}"
        )
    return layout


def insert_out_layouts(graph: Graph, after: dict[Node, Layout]) -> None:
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
        redistributed = builder.like(node).emit(Redistribute(source=node.layout, target=target), node, name=node.name)
        redistributed.phase = node.phase
        redistributed.in_layouts, redistributed.layout = (node.layout,), target
        redistributed.attrs["reason"] = f"out_strategy of {node.label}: {node.layout} to {target}"
        replaced[node] = redistributed
    graph.nodes = nodes
    graph.results = [replaced.get(v, v) for v in graph.results]
