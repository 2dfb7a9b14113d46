"""Data of the table of a compile: operators, parameters, collectives, totals."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING

from mspc.analysis.cost.machine import H200, Machine
from mspc.analysis.cost.nodes import sent_bytes
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import Frames
from mspc.ir.graph import Constant, Graph, Node, Parameter, element_layouts
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import LayoutChange, LocalSlice
from mspc.ops.control.structural import Depend, MakeTuple, TupleGetItem, TupleGetItems
from mspc.ops.op import Op, has_gpu_kernel
from mspc.runtime.memory import MemoryPlan
from mspc.runtime.memory_plan import plan_memory

if TYPE_CHECKING:
    from mspc.ops.control.regions import Times

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


@dataclass(frozen=True)
class Totals:
    """Sums for one rank and one step. peak_bytes: all memory of a planned step. runs: of operators, with repetitions in
    loops. bytes_a_turn: sent in one iteration of loops with a length known only at run time; not in `bytes_sent`."""

    operators: int
    collectives: int
    bytes_sent: int
    parameter_bytes: int
    peak_bytes: int
    runs: int = 0
    bytes_a_turn: int = 0


@dataclass(frozen=True)
class MemoryRow:
    """Bytes of a rank's planned step, see `MemoryPlan`. step: all except parameters, inputs and constants; never less
    than `lower_bound`. gradients, activations, temporary: the most of each that is alive at once, see
    `runtime.memory_classes`. states_on_host, values_on_host: in host memory, not contained in the others."""

    weights: int
    states: int
    inputs: int
    constants: int
    step: int
    lower_bound: int
    gradients: int
    activations: int
    temporary: int
    states_on_host: int = 0
    values_on_host: int = 0

    @property
    def on_host(self) -> int:
        return self.states_on_host + self.values_on_host


@dataclass(frozen=True)
class StepTimes:
    """Predicted seconds of a step: in total, of computation, and of communication that is not hidden."""

    step: float
    compute: float
    exposed: float


def step_times(graph: Graph, machine: Machine) -> StepTimes:
    """Return the predicted times of a rank's graph."""
    time = StreamTimeline(graph, machine)
    return StepTimes(time.total, time.compute, time.total - time.compute)


@dataclass
class PlainRow:
    """Nodes of one operator without a GPU kernel: their number, and their first source lines."""

    operator: str
    nodes: int
    lines: list[str]

    @property
    def sentence(self) -> str:
        more = ", ..." if len(self.lines) == MAX_LINES else ""
        return f"{self.operator} ({self.nodes} nodes: {', '.join(self.lines)}{more})"


@dataclass
class Report:
    """The complete table. rank: that of the listed collectives and sizes. without_kernels: for a GPU."""

    compile_id: str
    mode: str
    ranks: int
    rank: int
    operators: list[OperatorRow]
    parameters: list[ParameterRow]
    collectives: list[CollectiveRow]
    slices: list[SliceRow]
    totals: Totals
    memory: MemoryRow
    without_kernels: list[PlainRow] = field(default_factory=list["PlainRow"])
    times: StepTimes | None = None
    """Predicted for H200s, of a captured step."""
    notes: list[str] = field(default_factory=list[str])


def make_report(compiled: Compiled, graph: Graph, rank: int, timed: bool = False) -> Report:
    """Return the report of a compile; `graph` is the execute graph of `rank`. timed: whether to predict times."""
    ran = ran_nodes(graph)
    collectives = [collective_row(node, times) for node, times in ran if isinstance(node.op, Collective)]
    parameters = [_parameter(parameter) for parameter in graph.parameters]
    stored = sum(row.bytes for row in parameters if row.kind != "input")
    inside = None
    if compiled.config.device == "GPU":
        from mspc.runtime.memory_plan import device_bytes_inside  # late: few compiles are for GPUs

        inside = device_bytes_inside
    plan = plan_memory(graph, inside=inside, early=inside is not None)
    return Report(
        compile_id=compiled.compile_id, mode=compiled.config.mode, ranks=compiled.config.all_ranks, rank=rank,
        operators=[
            _operator(node, compiled.config.sharded, times)
            for node, times in ran_nodes(compiled.graph)
            if node.phase == "forward" and not isinstance(node.op, STRUCTURAL)
        ],
        parameters=parameters, collectives=collectives,
        slices=[_slice(node) for node in _all_nodes(compiled.graph) if isinstance(node.op, LocalSlice)],
        totals=Totals(
            operators=len(ran), collectives=sum(c.runs for c in collectives), parameter_bytes=stored,
            bytes_sent=sum(c.bytes for c in collectives if not c.a_turn), peak_bytes=plan.peak,
            runs=sum(1 if times is None else times.count for _, times in ran),
            bytes_a_turn=sum(c.bytes for c in collectives if c.a_turn),
        ),
        memory=memory_row(plan),
        without_kernels=without_kernels(graph) if compiled.config.device == "GPU" else [],
        times=step_times(graph, H200) if timed else None,
    )  # fmt: skip


def without_kernels(graph: Graph) -> list[PlainRow]:
    """Return the operators that run through CuPy on a GPU, the most frequent first."""
    found: dict[str, list[str]] = {}
    for node in _all_nodes(graph):
        if node.regions or not isinstance(node.op, Op) or isinstance(node.op, STRUCTURAL):
            continue
        if not has_gpu_kernel(node.op):
            found.setdefault(node.op.name, []).append(source_line(node.frames))
    rows = [PlainRow(name, len(places), list(dict.fromkeys(places))[:MAX_LINES]) for name, places in found.items()]
    return sorted(rows, key=lambda row: -row.nodes)


def _all_nodes(program: Graph) -> Iterator[Node]:
    return (node for graph in program.graphs() for node in graph.nodes)


def memory_row(plan: MemoryPlan) -> MemoryRow:
    """Return the figures of a plan."""
    return MemoryRow(
        plan.weights, plan.states, plan.inputs, plan.constants,
        plan.arena, plan.lower_bound, plan.gradients, plan.activations, plan.temporary,
        plan.kept_on_host, plan.host_arena,
    )  # fmt: skip


def ran_nodes(program: Graph) -> list[tuple[Node, Times | None]]:
    """Return every node of a program and of its graphs, and how often a step runs it; None if no node has regions."""
    if not any(node.regions for node in program.nodes):
        return [(node, None) for node in program.nodes]
    from mspc.ops.control.regions import nodes_with_times

    return list(nodes_with_times(program))


def _operator(node: Node, sharded: bool, times: Times | None) -> OperatorRow:
    strategy: list[Shape] = []
    for value in node.inputs if sharded else ():
        one = isinstance(value, Constant)
        layouts = [] if one else element_layouts(value.layout)
        strategy += [(1,) * len(value.shape)] if one else [layout.strategy for layout in layouts]
    return OperatorRow(
        node.op.name, node.instance, tuple(strategy), str(node.attrs.get("strategy_from", "")),
        source_line(node.frames), node.scope, "" if times is None else times.text,
    )  # fmt: skip


def _parameter(parameter: Parameter) -> ParameterRow:
    all_ranks = parameter.global_type or parameter.type
    assert isinstance(all_ranks, TensorType)
    assert isinstance(parameter.type, TensorType)
    return ParameterRow(
        parameter.name, parameter.kind, str(all_ranks.dtype), all_ranks.shape, parameter.shape, parameter.type.nbytes
    )


def collective_row(node: Node, times: Times | None = None) -> CollectiveRow:
    """Return the row of a collective. times: how often a step runs it, None for once."""
    runs = 1 if times is None else times.count
    return CollectiveRow(
        node.op.name,
        node.op.members if isinstance(node.op, Collective) else (),
        math.floor(sent_bytes(node)) * runs,
        node.phase,
        str(node.attrs.get("mirror_user_id", "")),
        str(node.attrs.get("reason", "")),
        source_line(node.frames),
        node.scope,
        runs,
        "" if times is None else times.text,
        times is not None and not times.known,
        dimension_of(node.op) if isinstance(node.op, Collective) else "",
    )


def dimension_of(op: Collective) -> str:
    """Return the dimension that the name of a captured group begins with, before its ranks; "" if there is none."""
    name, _, ranks = str(getattr(op, "group", "")).rpartition(" ")
    return name if ranks == "-".join(map(str, op.members)) and name != "ranks" else ""


def _slice(node: Node) -> SliceRow:
    source, target = node.inputs[0].tensor_layout, node.tensor_layout
    return SliceRow(
        source.local_shape(node.shape),
        target.local_shape(node.shape),
        node.phase,
        str(node.attrs.get("reason", "")),
        source_line(node.frames),
    )


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
