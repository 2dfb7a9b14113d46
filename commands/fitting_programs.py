"""Programs of ranks in a folder fit together, and to the network: all store and read what that does."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Parameter
from mspc.ir.layout import Layout
from mspc.runtime.program import Program

FEW = 3


def check_fit(program: Program, one: Graph, graphs: Sequence[Graph], fed: Sequence[Layout]) -> None:
    """Raises MspcError where a rank's program is none of the network's. one: the network on one device. fed: how its
    inputs are sliced, where the programs do not say it."""
    known = {p.name: p for p in one.parameters}
    layouts = dict(zip((p.name for p in one.parameters if p.kind == "input"), fed, strict=False))
    for rank, graph in enumerate(graphs):
        where = f"{program.folder / program.execute[rank]}: rank {rank}"
        if len(graph.results) != len(one.results):
            raise MspcError(f"{where} has {len(graph.results)} results, and the network has {len(one.results)}")
        for parameter in graph.parameters:
            own = known.get(parameter.name)
            if own is None or own.kind != parameter.kind:
                names = {p.name for p in graph.parameters}
                others = [name for name, p in known.items() if p.kind == parameter.kind and name not in names][:FEW]
                raise MspcError(
                    f"{where} has the {parameter.kind} {parameter.name!r}, and the network has no such one",
                    notes=[f"it has {', '.join(map(repr, others))}, which this rank lacks"] if others else [],
                )
            _check_size(where, parameter, own, layouts.get(parameter.name))


def _check_size(where: str, parameter: Parameter, own: Parameter, fed: Layout | None) -> None:
    layout = parameter.layout if fed is None else None
    shape = own.shape
    if isinstance(layout, Layout):
        if len(layout.dims) != len(shape):
            raise MspcError(f"{where}: {parameter.name!r} has the layout {layout}, and {len(shape)} dimensions")
        shape = layout.local_shape(shape)
    if parameter.shape != shape or parameter.tensor_type.dtype != own.tensor_type.dtype:
        wanted = own.tensor_type.with_shape(shape)
        raise MspcError(f"{where} has {parameter.name!r} as {parameter.type}, and the network's is {wanted} there")
