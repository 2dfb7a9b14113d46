"""Shards parameters that replicas would update alike once more, so that each updates a slice (optimizer parallel).

The additional sharding is on dimension 0, over the ranks that hold the same slice. Reading the parameter then
gathers it, and its gradient is scattered to the slices; optimizer states follow the parameter. Facts: MindSpore's
`enable_parallel_optimizer` with `parallel_optimizer_threshold` (KB, default 64), `optimizer_weight_shard_size` and
`optimizer_level`. By its `level3` what is gathered is not stored until the gradients: they gather it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mspc.ir.graph import Graph, Parameter, Value
from mspc.ir.layout import Axes, Layout

EVERYTHING = "level3"
"""The level of optimizer parallel by which parameters are stored in slices between their readers, too."""
THRESHOLD = 64
"""KB below which a parameter stays as it is."""


def shard_parameters(graph: Graph) -> None:
    """Shard the graph's trainable parameters further, where its header asks for optimizer parallel.

    One that is updated and that no operator reads (its gradient was computed by another graph) has no layout yet: all
    ranks are its replicas.
    """
    if not graph.attrs.get("parallel_optimizer"):
        return
    threshold = int(graph.attrs.get("parallel_optimizer_threshold", THRESHOLD))
    size = int(graph.attrs.get("optimizer_weight_shard_size", -1))
    sharded: set[Value] = set()
    for parameter, layout in sharded_further(graph, threshold, size):
        if any(layout.dims) and layout != parameter.layout:
            parameter.layout = layout
            sharded.add(parameter)
    if graph.attrs.get("optimizer_level") == EVERYTHING:
        gather_again(graph, sharded)


def gather_again(graph: Graph, parameters: Collection[Value]) -> None:
    """Let gradients of what reads these parameters gather them once more."""
    read = set(parameters)
    for node in graph.nodes:
        if node.phase == "forward" and not read.isdisjoint(node.inputs):
            node.attrs["gathers_again"] = True
            if len(node.inputs) == 1:
                read.add(node)  # it is converted, and gathered then


def sharded_further(graph: Graph, threshold: int = THRESHOLD, size: int = -1) -> Iterator[tuple[Parameter, Layout]]:
    """The parameters that may be sharded once more, with the layouts that they have then, which may be those that they
    have. threshold: KB below which one stays as it is. size: ranks that share one, -1 for all that would hold the
    same."""
    ranks = int(graph.attrs.get("ranks", 1))
    updated = {node.inputs[i] for node in graph.nodes if node.phase == "update" for i in node.op.mutates}
    for parameter in graph.parameters:
        layout = parameter.layout
        if layout is None and parameter in updated:
            layout = Layout.replicated(ranks, len(parameter.shape))
        if parameter.kind != "parameter" or not parameter.trainable or not isinstance(layout, Layout):
            continue
        if parameter.attrs.get("parallel_optimizer", True) and parameter.type.nbytes >= threshold * 1024:
            yield parameter, _shard(parameter, layout, size)


def why_not_sharded(graph: Graph) -> str:
    """Why optimizer parallel leaves a graph's parameters as they are; "" where their size alone does not tell."""
    trained = [p for p in graph.parameters if p.kind == "parameter" and p.trainable]
    if not any(node.phase == "update" for node in graph.nodes) or not trained:
        return "no parameter is trained"
    threshold = int(graph.attrs.get("parallel_optimizer_threshold", THRESHOLD))
    if all(parameter.type.nbytes < threshold * 1024 for parameter in trained):
        return f"all parameters that are trained are below the threshold of {threshold} KiB"
    return ""


def _shard(parameter: Parameter, layout: Layout, size: int) -> Layout:
    """The layout with dimension 0 sharded over `size` neighbouring replicas (-1: all of them), where they divide it."""
    shape = parameter.shape
    axes = layout.unused
    replicas = layout.size_of(axes)
    wanted = replicas if size == -1 else size
    if not shape or wanted <= 1 or replicas % wanted:
        return layout
    mesh, dims, taken = _split(layout, axes, wanted)
    if not taken:
        return layout
    sharded = Layout.of(mesh, [(*dims[0], *taken), *dims[1:]])
    return sharded if sharded.divides(shape) else layout


def _split(layout: Layout, axes: Axes, wanted: int) -> tuple[tuple[int, ...], list[Axes], Axes]:
    """(mesh, dims, axes): the fastest of the unused axes with `wanted` ranks, one of them split where it must be."""
    taken: list[int] = []
    for a in reversed(axes):
        if wanted == 1:
            break
        if wanted % layout.mesh[a] == 0:
            wanted //= layout.mesh[a]
            taken.insert(0, a)
        elif layout.mesh[a] % wanted == 0:
            mesh = (*layout.mesh[:a], layout.mesh[a] // wanted, wanted, *layout.mesh[a + 1 :])
            dims = [tuple(x + (x > a) for x in d) for d in layout.dims]
            return mesh, dims, (a + 1, *(x + 1 for x in taken))
        else:
            return layout.mesh, list(layout.dims), ()
    return layout.mesh, list(layout.dims), tuple(taken)
