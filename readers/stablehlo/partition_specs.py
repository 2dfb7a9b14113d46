"""A plan as PartitionSpecs of JAX: Python code that puts the arguments of a step on devices as ranks store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mspc.ir.graph import Graph
from mspc.ir.layout import Layout
from mspc.ops.device import source_text
from mspc.readers.stablehlo.network import StableHloNetwork
from mspc.readers.stablehlo.shardings import finer_axes, finest_mesh


def partition_specs(graph: Graph, network: StableHloNetwork, compile_id: str) -> str:
    """Return the code for the parameters and inputs of a compiled graph. Raise MspcError if their layouts lie on no
    common mesh."""
    layouts = {each.name: each.layout for each in graph.parameters if each.layout is not None}
    ranks = next((layout.ranks for layout in layouts.values()), 1)
    sizes = finest_mesh((layout.mesh for layout in layouts.values()), ranks)
    mesh = named_axes(sizes, network.module.meshes)
    lines: list[str] = []
    for origin, argument in zip(network.module.main.origins, network.arguments, strict=True):
        layout = layouts.get(argument.name)
        name = origin.name if origin is not None and origin.name else argument.name
        if layout is not None:
            lines.append(f"    {name!r}: {spec_of(layout, mesh)},\n")
    values = {"file": network.module.file, "compile_id": compile_id, "mesh": dict(mesh), "specs": "".join(lines)}
    return source_text("readers/stablehlo/partition_specs.py.txt", **values)


def named_axes(sizes: Sequence[int], meshes: Mapping[str, Sequence[tuple[str, int]]]) -> list[tuple[str, int]]:
    """Return names and sizes of a mesh's axes: the names are those of the text's mesh of the same sizes, else new."""
    for axes in meshes.values():
        if [size for _, size in axes if size > 1] == [size for size in sizes if size > 1] and len(axes) == len(sizes):
            return [*axes]
    return [(f"axis{k}", size) for k, size in enumerate(sizes)]


def spec_of(layout: Layout, mesh: Sequence[tuple[str, int]]) -> str:
    """Return a layout as a PartitionSpec over the axes of a finer mesh."""
    axes = finer_axes(layout, mesh)
    entries = [None if not own else own[0] if len(own) == 1 else tuple(own) for own in axes]
    while entries and entries[-1] is None:
        entries.pop()
    return f"P({', '.join(map(repr, entries))})"
