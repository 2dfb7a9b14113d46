"""This module checks that the types and layouts of a graph agree: a file that was changed by hand may hold anything."""

from __future__ import annotations

from operator import is_

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import PADDING, STAGE, STAGES, Graph, Layouts, Node, Parameter, element_layouts, element_types
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, Type
from mspc.ops.op import Op


def check_graph(graph: Graph, checked: dict[Node, tuple[object, ...]] | None = None) -> None:
    """Compare the type of every node of a known operator with the one that follows from its operands, and every layout
    with the number of ranks in the header and with the shape that it shards. Raise MspcError if they differ, or the
    operands do not fit the operator. checked: nodes of earlier calls with their facts; unchanged ones are skipped."""
    ranks = graph.attrs.get("ranks", 1)
    # Before stages are cut the header has the ranks of one stage, and a rank among those of all. A file may hold
    # anything for their number.
    stages = 1 if STAGE in graph.attrs else graph.attrs.get(STAGES, 1)
    if "rank" in graph.attrs and graph.attrs["rank"] >= ranks * (stages if type(stages) is int else 1):
        raise MspcError(f"{graph.name}: the header says rank {graph.attrs['rank']} of {ranks}")
    if STAGE in graph.attrs:
        ranks = _ranks_of_stage(graph, ranks)  # that layouts are of
    for each in graph.graphs():
        for parameter in each.parameters:
            _check_parameter(parameter, ranks)
        for node in each.nodes:
            types = [value.type for value in node.inputs]
            facts = (len(types), ranks, node.op, node.type, node.layout, node.in_layouts, *types)
            if checked is not None and not node.regions:
                if all(map(is_, checked.get(node, (None,)), facts)):
                    continue
                checked[node] = facts
            _check_type(node, types)
            _check_layouts(node, node.layout, node.type, ranks)
            for operand, layout in zip(types, node.in_layouts or (), strict=False):
                _check_layouts(node, layout, operand, ranks)


def _ranks_of_stage(graph: Graph, ranks: int) -> int:
    """Return the number of ranks of each stage of a pipeline. graph: of one rank. Raise MspcError if its header does
    not fit."""
    stage, stages = graph.attrs[STAGE], graph.attrs.get(STAGES, 1)
    if type(stages) is not int or stages < 1 or ranks % stages or stage != graph.attrs.get("rank", 0) * stages // ranks:
        raise MspcError(
            f"{graph.name}: the header says stage {stage} of {stages}, and rank {graph.attrs.get('rank', 0)} of {ranks}"
        )
    return ranks // stages


def _check_parameter(parameter: Parameter, ranks: int) -> None:
    own, layout = parameter.type, parameter.layout
    declared = parameter.global_type if parameter.global_type is not None else own
    if not isinstance(declared, TensorType) or not isinstance(layout, Layout):
        return
    padded = PADDING in parameter.attrs
    wrong = _misfit(layout, declared.shape, ranks, padded)
    label = f"{parameter.kind} {parameter.name!r}"
    if parameter.global_type is None and wrong:
        raise MspcError(f"{label}: the layout {layout} {wrong}")
    held = own.shape if isinstance(own, TensorType) and own.dtype == declared.dtype else None
    fits = held is not None and len(held) == len(declared.shape) and layout.holds(declared.shape, held, padded)
    if parameter.global_type is not None and (wrong or not fits):
        notes = [f"the layout {wrong}"] if wrong else []
        raise MspcError(f"{label}: {own} at {layout} is no slice of {declared}", notes=notes)


def _check_type(node: Node, types: list[Type]) -> None:
    if not isinstance(node.op, Op):
        return
    try:
        if node.regions or hasattr(node.op, "region_names"):
            from mspc.ops.control.regions import type_by_regions  # only if a graph has such nodes

            made = type_by_regions(node)
        else:
            made = node.op.infer(*types)  # type: ignore[misc]  # as in Builder.emit
    except MspcError as error:
        message = error.message.removeprefix(f"{node.op.name}: ")
        raise MspcError(f"{node.label}: {message}", notes=error.notes, frames=node.frames) from None
    if made != node.type:
        raise MspcError(
            f"{node.label}: the type {node.type} is written, its operands make {made}", frames=node.frames, code="E0905"
        )


def _check_layouts(node: Node, layouts: Layouts, type: Type, ranks: int) -> None:
    for layout, element in zip(element_layouts(layouts), element_types(type), strict=False):
        if layout is None:  # pyright: ignore[reportUnnecessaryComparison]  # some of a tuple's may be open
            continue
        if wrong := _misfit(layout, element.shape, ranks):
            raise MspcError(f"{node.label}: the layout {layout} {wrong}", frames=node.frames)


def _misfit(layout: Layout, shape: tuple[int, ...], ranks: int, padded: bool = False) -> str:
    """Return why a tensor of this shape cannot have this layout on this number of ranks, or "" if it can. padded: its
    slices are padded."""
    if layout.ranks != ranks:
        return f"is of {layout.ranks} ranks; the header says {ranks}"
    if len(layout.dims) != len(shape):
        return f"has {len(layout.dims)} dimensions, the tensor {len(shape)}"
    if not padded and not layout.divides(shape):
        return f"shards a tensor of shape {shape} into slices that are not equal"
    return ""
