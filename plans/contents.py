"""Makes the contents of strategy and group files from a graph whose layouts are decided on."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.graph import Graph, Parameter
from mspc.ir.layout import Layout
from mspc.ops.collective.base import Collective
from mspc.plans.files.parameter_layouts import sharding_of
from mspc.plans.files.strategy_file import ParameterCut


def sharded_parameters(graph: Graph, trainable_only: bool) -> dict[str, ParameterCut]:
    """How the parameters of a graph lie on ranks, by name."""
    chosen = [p for p in graph.parameters if p.trainable or not trainable_only]
    return {p.name: sharding_of(layout) for p, layout in _laid_out(chosen)}


def ranks_alike(graph: Graph, ranks: int, rank: int) -> list[int]:
    """The ranks whose slices of all parameters, states of the optimizer among them, are those of one rank: where its
    checkpoint is lost, theirs take its place."""
    layouts = {layout for _, layout in _laid_out(graph.parameters)}
    found = range(ranks)
    return [other for other in found if all(each.slice_index(other) == each.slice_index(rank) for each in layouts)]


def groups_of(rank_graph: Graph, rank: int) -> dict[str, tuple[int, ...]]:
    """The groups that a rank communicates in, by name."""
    ops = [node.op for node in rank_graph.nodes if isinstance(node.op, Collective)]
    return {op.group: op.ranks for op in ops if op.group and rank in op.ranks}


def _laid_out(parameters: Sequence[Parameter]) -> list[tuple[Parameter, Layout]]:
    return [(p, p.layout) for p in parameters if p.kind == "parameter" and isinstance(p.layout, Layout)]
