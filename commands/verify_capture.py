"""Captured steps of all ranks beside the captured step of one device, for `mspc verify --scale`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mspc.commands.captured import ranks_in
from mspc.commands.compile import CompileOptions, find_call
from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.layout import Layout
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.math.arithmetic import Mul
from mspc.output.dumps import NO_FILES, first_values
from mspc.output.programs import compile_for
from mspc.verify.scale.rank_kinds import RankKind, merged


def compiled_steps(folder: Path, options: CompileOptions) -> tuple[list[Graph], Sequence[Any]]:
    """Return (the program of every rank, the first values of rank 0)."""
    graphs: list[Graph] = []
    values: Sequence[Any] = ()
    for rank in range(ranks_in(folder)):
        found = find_call(str(folder), replace(options, only_ranks=(rank,)))
        compiled = compile_for(found.captured, found.ranks, NO_FILES).compiled
        graphs.append(compiled.rank_graph(rank))
        values = values or first_values(compiled.traced, compiled.graph)
    return graphs, values


def programs_of_captures(
    folder: Path, single: Path, options: CompileOptions
) -> tuple[Graph, list[RankKind], Sequence[Any], tuple[str, ...]]:
    """Return (the step of one device, the kinds of all ranks, the first values, notes for the user).

    Raises:
        MspcError: a file cannot be read, or tensors of the two do not fit each other.
    """
    from mspc.readers.pytorch import placed
    from mspc.readers.pytorch.captured import read_step

    if ranks_in(single) != 1:
        raise MspcError(
            f"{single} has {ranks_in(single)} ranks, and one device is needed to compare with",
            notes=["mspc capture script.py --ranks 1 --out DIR records one"],
        )
    (one,), values = compiled_steps(single, options)
    graphs, _ = compiled_steps(folder, options)
    shapes = {p.name: p.tensor_type.shape for p in one.parameters}
    steps = [read_step(folder / f"rank_{rank}.pt2") for rank in range(len(graphs))]
    mesh = placed.mesh_of(steps)
    batch: Layout | None = None
    for graph, step in zip(graphs, steps, strict=True):
        _check_names(graph, shapes, folder, single)
        for parameter in graph.parameters:
            layout = placed.layout(step, mesh, parameter.name, parameter.tensor_type.shape, shapes[parameter.name])
            parameter.layout = layout
            if parameter.kind == "input" and any(layout.dims):
                batch = layout
    notes: tuple[str, ...] = ()
    if batch is not None:
        axes = [axis for dim in batch.dims for axis in dim]
        groups = [batch.group(axes, rank) for rank in range(len(graphs))]
        for graph, group in zip(graphs, groups, strict=True):
            _average_results(graph, group)
        notes = (f"each rank's loss is that of its own rows: its mean over {len(groups[0])} ranks is compared",)
    return one, merged([RankKind((rank,), graph) for rank, graph in enumerate(graphs)]), values, notes


def _check_names(graph: Graph, shapes: Mapping[str, Any], folder: Path, single: Path) -> None:
    names = {parameter.name for parameter in graph.parameters}
    for others, where in ((names - shapes.keys(), single), (shapes.keys() - names, folder)):
        if others:
            raise MspcError(f"{where} has no parameter, state or input {min(others)!r}: it is another network")


def _average_results(graph: Graph, group: tuple[int, ...]) -> None:
    """Give the results of a rank's program as means over a group of ranks."""
    builder = Builder(graph)
    for place, value in enumerate(graph.results):
        total = builder.emit(AllReduce("sum", rank_list=group), value)
        graph.results[place] = builder.emit(Mul(), total, builder.constant(1.0 / len(group), value.tensor_type.dtype))
