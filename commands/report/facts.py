"""What the table of a compile says: operators, parameters, collectives, totals. Data only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mspc.compiler.driver import Compiled
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_layouts, element_types
from mspc.ir.location import Frames
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import Collective, LayoutChange, LocalSlice
from mspc.ops.control.structural import Depend, MakeTuple, TupleGetItem
from mspc.runtime.memory_plan import plan_memory

STRUCTURAL = (Depend, MakeTuple, TupleGetItem, Collective, LayoutChange)
FULL_RING = 2
"""An all-reduce is a reduce-scatter and an all-gather."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class OperatorRow:
    """A forward operator: its strategy, one tuple per input, and where that came from."""

    operator: str
    instance: str
    strategy: tuple[Shape, ...]
    origin: str
    line: str


@dataclass(frozen=True)
class ParameterRow:
    """An input, parameter or constant: its whole shape, a rank's slice, bytes of the slice."""

    name: str
    kind: str
    dtype: str
    shape: Shape
    slice: Shape
    bytes: int


@dataclass(frozen=True)
class CollectiveRow:
    """A collective of one rank: its group, the bytes that the rank sends in one step, and why it is there."""

    operator: str
    ranks: Shape
    bytes: int
    phase: str
    parameter: str
    reason: str
    line: str


@dataclass(frozen=True)
class SliceRow:
    """A slice that the compiler inserted: what a rank holds before and after, and why; nothing is sent."""

    shape: Shape
    slice: Shape
    phase: str
    reason: str
    line: str


@dataclass(frozen=True)
class Totals:
    """Sums for one rank and one step. peak_bytes: all memory that a planned step takes."""

    operators: int
    collectives: int
    bytes_sent: int
    parameter_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class MemoryRow:
    """Bytes of a rank's planned step, see `MemoryPlan`. step: all that is neither parameter, input nor constant; never
    less than `lower_bound`. gradients, activations: the most of it that is alive at once."""

    weights: int
    states: int
    inputs: int
    constants: int
    step: int
    lower_bound: int
    gradients: int
    activations: int


@dataclass
class Report:
    """The whole table. `rank` is the rank whose collectives and sizes are listed."""

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
    notes: list[str] = field(default_factory=list[str])

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_report(compiled: Compiled, graph: Graph, rank: int) -> Report:
    """The report of a compile; `graph` is the execute graph of `rank`."""
    collectives = [_collective(node) for node in graph.nodes if isinstance(node.op, Collective)]
    parameters = [_parameter(parameter) for parameter in graph.parameters]
    kept = sum(row.bytes for row in parameters if row.kind != "input")
    plan = plan_memory(graph)
    return Report(
        compile_id=compiled.compile_id,
        mode=compiled.config.mode,
        ranks=compiled.config.ranks,
        rank=rank,
        operators=[
            _operator(node, compiled.config.sharded)
            for node in compiled.graph.nodes
            if node.phase == "forward" and not isinstance(node.op, STRUCTURAL)
        ],
        parameters=parameters,
        collectives=collectives,
        slices=[_slice(node) for node in compiled.graph.nodes if isinstance(node.op, LocalSlice)],
        totals=Totals(
            len(graph.nodes), len(collectives), sum(c.bytes for c in collectives), kept, plan.peak
        ),
        memory=MemoryRow(
            plan.weights, plan.states, plan.inputs, plan.constants,
            plan.arena, plan.lower_bound, plan.gradients, plan.activations,
        ),
    )


def bytes_sent(node: Node) -> int:
    """Bytes that a rank sends for one collective of its graph under ring algorithms."""
    operand = sum(value.type.nbytes for value in node.inputs)
    group = len(getattr(node.op, "rank_list", ()))
    name = node.op.name
    if name in ("NeighborExchange", "Send"):
        return operand
    if group <= 1 or name in ("Receive", "Barrier"):
        return 0
    if name == "AllGather":
        return (group - 1) * operand
    rounds = FULL_RING if name == "AllReduce" else 1
    return rounds * (group - 1) * operand // group


def peak_bytes(graph: Graph) -> int:
    """Most bytes alive at once when values are freed after their last reader; updates happen in place.

    Of a tuple the elements are freed one by one, each after the last reader of what takes it out.
    """
    last: dict[Value, int] = {}
    for index, node in enumerate(graph.nodes):
        for value in node.inputs:
            last[value] = index
    for value in graph.results:
        last[value] = len(graph.nodes)
    made = {node for node in graph.nodes if node in last and not isinstance(node.op, (Depend, TupleGetItem, MakeTuple))}
    ends = {(node, i): last[node] for node in made for i in range(len(element_types(node.type)))}
    for node in graph.nodes:
        if isinstance(node.op, TupleGetItem) and node.inputs[0] in made:
            key = (node.inputs[0], node.op.index)
            ends[key] = max(ends[key], last.get(node, 0))
    dying: dict[int, int] = {}
    for (node, i), index in ends.items():
        dying[index] = dying.get(index, 0) + element_types(node.type)[i].nbytes
    alive = peak = sum(parameter.type.nbytes for parameter in graph.parameters)
    for index, node in enumerate(graph.nodes):
        alive += node.type.nbytes if node in made else 0
        peak = max(peak, alive)
        alive -= dying.get(index, 0)
    return peak


def _operator(node: Node, sharded: bool) -> OperatorRow:
    strategy = tuple(cut for value in node.inputs for cut in _cuts(value)) if sharded else ()
    return OperatorRow(
        node.op.name, node.instance, strategy, str(node.attrs.get("strategy_from", "")), _line(node.frames)
    )


def _cuts(value: Value) -> list[Shape]:
    if isinstance(value, Constant):
        return [(1,) * len(value.shape)]
    return [layout.strategy for layout in element_layouts(value.layout)]


def _parameter(parameter: Parameter) -> ParameterRow:
    whole = parameter.global_type or parameter.type
    assert isinstance(whole, TensorType)
    assert isinstance(parameter.type, TensorType)
    return ParameterRow(
        parameter.name, parameter.kind, str(whole.dtype), whole.shape, parameter.shape, parameter.type.nbytes
    )


def _collective(node: Node) -> CollectiveRow:
    return CollectiveRow(
        node.op.name,
        tuple(getattr(node.op, "rank_list", ())),
        bytes_sent(node),
        node.phase,
        str(node.attrs.get("mirror_user_id", "")),
        str(node.attrs.get("reason", "")),
        _line(node.frames),
    )


def _slice(node: Node) -> SliceRow:
    source, target = node.inputs[0].tensor_layout, node.tensor_layout
    return SliceRow(
        source.local_shape(node.shape),
        target.local_shape(node.shape),
        node.phase,
        str(node.attrs.get("reason", "")),
        _line(node.frames),
    )


def _line(frames: Frames) -> str:
    """`net.py:45`, of the innermost line of the user's own files where there is one."""
    for frame in frames:
        if not frame.file.startswith("mspc/"):
            return f"{frame.file}:{frame.line}"
    return f"{frames[0].file}:{frames[0].line}" if frames else ""
