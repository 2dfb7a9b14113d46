"""Rows of the table of a compile: operators, parameters, collectives, slices; and the source lines of all tables."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from mspc.analysis.cost.nodes import sent_bytes
from mspc.ir.diagnostics import Frames
from mspc.ir.graph import Constant, Graph, Node, Parameter, element_layouts
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import LayoutChange, LocalSlice
from mspc.ops.control.regions import ONCE, Times, nodes_with_times
from mspc.ops.control.structural import Depend, MakeTuple, TupleGetItem, TupleGetItems
from mspc.ops.op import Op, has_gpu_kernel

MAX_LINES = 3
"""Most lines of the script that are listed for an operator without a GPU kernel."""
STRUCTURAL = (Depend, MakeTuple, TupleGetItem, TupleGetItems, Collective, LayoutChange)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class OperatorRow:
    """A forward operator: its strategy, one tuple per input, the origin of that, the cells around it, and how often a
    step runs it, in the form of `Times.text`: "" if it runs once."""

    operator: str
    instance: str
    strategy: tuple[Shape, ...]
    origin: str
    line: str
    scope: str = ""
    times: str = ""


@dataclass(frozen=True)
class ParameterRow:
    """An input, parameter or constant: its global shape, a rank's slice, bytes of the slice."""

    name: str
    kind: str
    dtype: str
    shape: Shape
    slice: Shape
    bytes: int


@dataclass(frozen=True)
class CollectiveRow:
    """A collective of one rank: its group, the bytes that the rank sends in one step, its reason, and the cells around
    it.

    runs: how often a step runs it. a_turn: the number of iterations of a loop around it is known only at run time;
    `runs` and `bytes` are those of one iteration. times: as in `OperatorRow`. dimension: of a mesh, along which the
    group is; "" if unknown.
    """

    operator: str
    ranks: Shape
    bytes: int
    phase: str
    parameter: str
    reason: str
    line: str
    scope: str = ""
    runs: int = 1
    times: str = ""
    a_turn: bool = False
    dimension: str = ""


@dataclass(frozen=True)
class SliceRow:
    """A slice that the compiler inserted, without communication: a rank's shape before and after, and the reason."""

    shape: Shape
    slice: Shape
    phase: str
    reason: str
    line: str


@dataclass
class KernellessRow:
    """Nodes of one operator without a GPU kernel: their number, and their first source lines."""

    operator: str
    nodes: int
    lines: list[str]

    @property
    def sentence(self) -> str:
        more = ", ..." if len(self.lines) == MAX_LINES else ""
        return f"{self.operator} ({self.nodes} nodes: {', '.join(self.lines)}{more})"


def without_kernels(graph: Graph) -> list[KernellessRow]:
    """Return the operators that run through CuPy on a GPU, the most frequent first."""
    found: dict[str, list[str]] = {}
    for node in graph.all_nodes():
        if node.regions or not isinstance(node.op, Op) or isinstance(node.op, STRUCTURAL):
            continue
        if not has_gpu_kernel(node.op):
            found.setdefault(node.op.name, []).append(source_line(node.frames))
    rows = [KernellessRow(name, len(places), list(dict.fromkeys(places))[:MAX_LINES]) for name, places in found.items()]
    return sorted(rows, key=lambda row: -row.nodes)


def operator_rows(program: Graph, sharded: bool) -> list[OperatorRow]:
    """Return the rows of the forward operators of the graph of all ranks. sharded: whether its mode has strategies."""
    return [
        OperatorRow(
            node.op.name, node.instance, tuple(_strategy(node)) if sharded else (),
            str(node.attrs.get("strategy_from", "")), source_line(node.frames), node.scope, times.text,
        )
        for node, times in nodes_with_times(program)
        if node.phase == "forward" and not isinstance(node.op, STRUCTURAL)
    ]  # fmt: skip


def _strategy(node: Node) -> Iterator[Shape]:
    for value in node.inputs:
        if isinstance(value, Constant):
            yield (1,) * len(value.shape)
        else:
            yield from (layout.strategy for layout in element_layouts(value.layout))


def parameter_row(parameter: Parameter) -> ParameterRow:
    """Return the row of a parameter of a rank's graph."""
    all_ranks = parameter.global_type or parameter.type
    assert isinstance(all_ranks, TensorType)
    assert isinstance(parameter.type, TensorType)
    return ParameterRow(
        parameter.name, parameter.kind, str(all_ranks.dtype), all_ranks.shape, parameter.shape, parameter.type.nbytes
    )


def collective_row(node: Node, op: Collective, times: Times = ONCE) -> CollectiveRow:
    """Return the row of a collective. times: how often a step runs it."""
    return CollectiveRow(
        op.name, op.members, math.floor(sent_bytes(node)) * times.count, node.phase,
        str(node.attrs.get("mirror_user_id", "")), str(node.attrs.get("reason", "")), source_line(node.frames),
        node.scope, times.count, times.text, not times.known, dimension_of(op),
    )  # fmt: skip


def dimension_of(op: Collective) -> str:
    """Return the dimension that the name of a captured group begins with, before its ranks; "" if there is none."""
    name, _, ranks = str(getattr(op, "group", "")).rpartition(" ")
    return name if ranks == "-".join(map(str, op.members)) and name != "ranks" else ""


def slice_rows(program: Graph) -> list[SliceRow]:
    """Return the rows of the slices in the graph of all ranks."""
    return [
        SliceRow(
            node.inputs[0].tensor_layout.local_shape(node.shape), node.tensor_layout.local_shape(node.shape),
            node.phase, str(node.attrs.get("reason", "")), source_line(node.frames),
        )
        for node in program.all_nodes()
        if isinstance(node.op, LocalSlice)
    ]  # fmt: skip


def source_line(frames: Frames) -> str:
    """Return `net.py:45`, the innermost line in the user's own files, else the innermost line; "" without frames. The
    file is as in `shown_file`."""
    if not frames:
        return ""
    own = next((frame for frame in frames if not frame.file.startswith("mspc/")), frames[0])
    return f"{shown_file(own.file)}:{own.line}"


def shown_file(file: str) -> str:
    """Return the path of a source file, relative to the current folder if it is below it."""
    return file.removeprefix(f"{os.getcwd()}/")
