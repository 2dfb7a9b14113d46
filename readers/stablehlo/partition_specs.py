"""A plan as PartitionSpecs of JAX: Python code that puts the arguments of a step on devices as ranks store them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.layout import Layout
from mspc.ops.device import source_text
from mspc.readers.pytorch.placed import mesh_with
from mspc.readers.stablehlo.network import StableHloNetwork
from mspc.readers.stablehlo.shardings import finer_axes


def partition_specs(graph: Graph, network: StableHloNetwork, compile_id: str) -> str:
    """Return the code for the parameters and inputs of a compiled graph. Raise MspcError if their layouts lie on no
    common mesh."""
    layouts = {each.name: each.layout for each in graph.parameters if each.layout is not None}
    ranks = next((layout.ranks for layout in layouts.values()), 1)
    axes = [
        (math.prod(layout.mesh[k + 1 :]), size)
        for layout in layouts.values() for k, size in enumerate(layout.mesh) if size > 1
    ]  # fmt: skip
    try:
        sizes = mesh_with(axes, ranks)
    except ValueError:
        raise MspcError("--out-jax: the layouts of the plan lie on no common mesh") from None
    names = axis_names(sizes, network.module.meshes)
    lines: list[str] = []
    for origin, argument in zip(network.module.main.origins, network.arguments, strict=True):
        layout = layouts.get(argument.name)
        name = origin.name if origin is not None and origin.name else argument.name
        if layout is not None:
            lines.append(f"    {name!r}: {spec_of(layout, sizes, names)},\n")
    mesh = dict(zip(names, sizes, strict=True))
    values = {"file": network.module.file, "compile_id": compile_id, "mesh": mesh, "specs": "".join(lines)}
    return source_text("readers/stablehlo/partition_specs.py.txt", **values)


def axis_names(sizes: Sequence[int], meshes: Mapping[str, Sequence[tuple[str, int]]]) -> list[str]:
    """Return the names of a mesh's axes: those of the text's mesh of the same sizes, else new ones."""
    for axes in meshes.values():
        if [size for _, size in axes if size > 1] == [size for size in sizes if size > 1] and len(axes) == len(sizes):
            return [name for name, _ in axes]
    return [f"axis{k}" for k in range(len(sizes))]


def spec_of(layout: Layout, sizes: Sequence[int], names: Sequence[str]) -> str:
    """Return a layout as a PartitionSpec over the axes of a finer mesh."""
    axes = [[repr(name) for name in own] for own in finer_axes(layout, sizes, names)]
    entries = ["None" if not own else own[0] if len(own) == 1 else f"({', '.join(own)})" for own in axes]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"
