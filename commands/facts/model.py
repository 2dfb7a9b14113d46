"""Facts of a compile, a dump or a plan, as data classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from mspc.commands.report.facts import CollectiveRow, MemoryRow, StepTimes
from mspc.ir.graph import Node
from mspc.ir.late_dataclass import dataclass
from mspc.ir.opaque import OpaqueOp
from mspc.ir.text.facts import PHASES
from mspc.runtime.program import PlanEntries

EQUALS = " = "
"""Separator between the type of a constant and its value."""
Texts = tuple[str, ...]


@dataclass(frozen=True)
class OperatorFact:
    """An operator of a rank's graph; members of fused ones are operators of their own.

    label: `MatMul 'matmul'`. inputs, outputs: types of the rank's tensors; constants also have EQUALS and the value or
    its digest. sharding: the strategy or the layouts, if the text contains them. line: of the user's source.
    attributes: None if the text does not contain them. sources: the operator or the parameter from which every operand
    comes, through any collectives; () if unknown.
    """

    phase: str
    scope: str
    operator: str
    label: str
    inputs: Texts
    outputs: Texts
    sharding: str
    line: str
    attributes: str | None
    sources: Texts = ()


@dataclass(frozen=True)
class SentTensor:
    """One of the tensors that a collective sends. parameter: that of which it is the gradient, or "". cell: from which
    it comes. bytes: sent by a rank for it, counted as in its collective's row."""

    parameter: str
    cell: str
    bytes: int


@dataclass(frozen=True)
class CollectiveFact:
    """A collective of a rank. outputs: types of its results. seconds: predicted; None if unknown. attributes: those
    that change its result."""

    row: CollectiveRow
    scope: str
    tensors: tuple[SentTensor, ...]
    outputs: Texts
    seconds: float | None
    attributes: str = ""


@dataclass
class ScopeTotals:
    """Sums over the nodes of one cell, with their gradients. sent: tensors of the cell that collectives send. seconds:
    predicted, without overlap of nodes; None if unknown."""

    nodes: int = 0
    sent: int = 0
    bytes_sent: int = 0
    seconds: float | None = None


@dataclass(frozen=True)
class RankFacts:
    """The work of ranks of one kind in a step; figures and names are those of `ranks[0]`.

    memory, times: None if unknown. idle: the share of a step in which their stage of a pipeline does not work, None
    without stages."""

    ranks: tuple[int, ...]
    operators: tuple[OperatorFact, ...]
    collectives: tuple[CollectiveFact, ...]
    scopes: Mapping[str, ScopeTotals]
    memory: MemoryRow | None
    peak_bytes: int | None
    times: StepTimes | None
    idle: float | None = None

    @cached_property
    def bytes_sent(self) -> int:
        """Bytes that a rank sends in one step; a loop with a length known only at run time counts as one iteration."""
        return sum(collective.row.bytes for collective in self.collectives)


@dataclass(frozen=True)
class TensorFact:
    """An input, parameter or output: global type, type of a rank's slice, layout, the origin of its first value, and
    the operator that computes an output; "" for unknown facts."""

    name: str
    kind: str
    type: str
    slice: str
    layout: str
    initial: str = ""
    source: str = ""


@dataclass(frozen=True)
class StageFacts:
    """One stage of a pipeline. idle: the share of a step in which it does not work; keeps: the most micro-batches it
    holds at once; both None without a schedule. operators: of one of its ranks."""

    idle: float | None
    keeps: int | None
    operators: tuple[OperatorFact, ...]


@dataclass(frozen=True)
class PipelineFacts:
    """A network in several stages, limited to the stages in the folder.

    count: of stages. schedule: its name, and micro_batches, chunks: of all stages; "" and 0 if there is none. step:
    predicted seconds, including the waits between stages, None without a schedule. stages: by their numbers. borders:
    by (source, target), the messages of a step, and the bytes that a rank sends in them.
    """

    count: int
    schedule: str
    micro_batches: int
    chunks: int
    step: float | None
    stages: Mapping[int, StageFacts]
    borders: Mapping[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class CompileFacts:
    """All facts of one compile, dump or plan.

    name: as the user named it. plan: its decisions; None if unknown. kinds: of ranks; empty for a plan. foreign:
    MindSpore wrote it. pipeline: None for a network in one stage, and if unknown.
    """

    name: str
    ranks: int | None
    mode: str
    plan: PlanEntries | None
    tensors: tuple[TensorFact, ...] = ()
    kinds: tuple[RankFacts, ...] = ()
    foreign: bool = False
    pipeline: PipelineFacts | None = None
    notes: list[str] = field(default_factory=list[str])

    @property
    def step(self) -> float | None:
        """Predicted seconds of a step, including the waits between stages; None if unknown."""
        if self.pipeline is not None and self.pipeline.step is not None:
            return self.pipeline.step
        return max((kind.times.step for kind in self.kinds if kind.times is not None), default=None)


def cell_of(scope: str) -> str:
    """Return the forward scope of a node: its own, or that of the node of which it is the gradient."""
    return scope.removeprefix(GRADIENTS)


FORWARD, BACKWARD, UPDATE = PHASES
GRADIENTS, OPTIMIZER = "Gradients/", "/optimizer-"
"""Prefix of the scopes of gradients, also in MindSpore, and a part of the scopes of updates in MindSpore's dumps."""


def phase_of(node: Node) -> str:
    """Return the phase of a node; for nodes of MindSpore, which have none, it is derived from the scope."""
    if not isinstance(node.op, OpaqueOp) or node.phase != FORWARD:
        return node.phase
    if node.scope.startswith(GRADIENTS):
        return BACKWARD
    return UPDATE if OPTIMIZER in node.scope else FORWARD
