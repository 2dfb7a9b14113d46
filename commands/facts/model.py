"""These classes hold the facts of a compile, a dump or a plan; they are data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from mspc.commands.report.facts import CollectiveRow, MemoryRow
from mspc.ir.graph import Node
from mspc.ir.late_dataclass import dataclass
from mspc.ir.opaque import OpaqueOp
from mspc.ir.text.facts import PHASES

EQUALS = " = "
"""Between the type of a constant and its value."""
Texts = tuple[str, ...]


@dataclass(frozen=True)
class OperatorFact:
    """An operator of a rank's graph; members of fused ones are operators of their own.

    label: `MatMul 'matmul'`. inputs, outputs: types of the rank's tensors, of constants with EQUALS and the value, or
    its digest. sharding: the strategy or the layouts, if the text holds them. line: of the user's source. attributes:
    None if the text does not have them. sources: the operator or the parameter that every operand comes from, whatever
    collectives are between; () if the text does not say.
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
    """One of the tensors that a collective moves. parameter: whose gradient it is, or "". cell: that it comes from.
    bytes: that a rank sends of it, as those of its collective's row."""

    parameter: str
    cell: str
    bytes: int


@dataclass(frozen=True)
class CollectiveFact:
    """A collective of a rank. outputs: types of its results. seconds: predicted; None if nothing tells. attributes:
    those that change what it computes."""

    row: CollectiveRow
    scope: str
    tensors: tuple[SentTensor, ...]
    outputs: Texts
    seconds: float | None
    attributes: str = ""


@dataclass
class ScopeTotals:
    """Sums over the nodes of one cell, their gradients included. sent: tensors that collectives take from here.
    seconds: predicted, of every node by itself; None if the text says too little."""

    nodes: int = 0
    sent: int = 0
    bytes_sent: int = 0
    seconds: float | None = None


@dataclass(frozen=True)
class StepTimes:
    """Predicted seconds of a step: all of it, what is computed, and the communication that nothing hides."""

    step: float
    compute: float
    exposed: float


@dataclass(frozen=True)
class RankFacts:
    """What ranks of one kind do in a step; figures and names are of `ranks[0]`.

    memory, times: None if the text does not say enough. idle: the part of a step in which their stage of a pipeline
    does not work, None if there are no stages."""

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
        """Bytes that a rank sends in one step; in loops whose turns only the run counts those of one turn."""
        return sum(collective.row.bytes for collective in self.collectives)


@dataclass(frozen=True)
class TensorFact:
    """An input, parameter or output: global type, type of a rank's slice, layout, how its first value is made, and the
    operator that an output comes from; "" for what is not known."""

    name: str
    kind: str
    type: str
    slice: str
    layout: str
    initial: str = ""
    source: str = ""


@dataclass(frozen=True)
class PlannedMemory:
    """What a plan does for memory beside sharding operators: cells that are computed again, layouts of the parameters
    that are stored otherwise than operators read them, and those of them that are gathered again. offload: what is kept
    on the host."""

    recompute: Texts = ()
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    gather_again: Texts = ()
    offload: Texts = ()


@dataclass(frozen=True)
class StageFacts:
    """One stage of a pipeline. idle: the part of a step in which it does not work; keeps: micro-batches at most at
    once; None if there is no schedule. operators: of one of its ranks."""

    idle: float | None
    keeps: int | None
    operators: tuple[OperatorFact, ...]


@dataclass(frozen=True)
class PipelineFacts:
    """A network in several stages, as far as the folder has them.

    count: of stages. schedule: its name, and micro_batches, chunks: of all stages; "" and 0 if there is none. step:
    predicted seconds with the waits of stages for each other, None without a schedule. stages: by their numbers.
    borders: by (source, target) the messages of a step, and the bytes that a rank sends in them.
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
    """All that is known of one compile, dump or plan.

    name: as the user named it. layouts: of operators by their names in plans, a text for every operand; None if
    nothing is known of them. kinds: of ranks; empty for a plan. foreign: MindSpore wrote it. memory: None if
    nothing tells. pipeline: None of a network in one stage, and if nothing tells.
    """

    name: str
    ranks: int | None
    mode: str
    layouts: Mapping[str, Texts] | None
    tensors: tuple[TensorFact, ...] = ()
    kinds: tuple[RankFacts, ...] = ()
    foreign: bool = False
    memory: PlannedMemory | None = None
    pipeline: PipelineFacts | None = None
    notes: list[str] = field(default_factory=list[str])

    @property
    def step(self) -> float | None:
        """Predicted seconds of a step, those in which stages wait for each other among them; None if nothing
        tells."""
        if self.pipeline is not None and self.pipeline.step is not None:
            return self.pipeline.step
        return max((kind.times.step for kind in self.kinds if kind.times is not None), default=None)


def cell_of(scope: str) -> str:
    """The scope of the forward nodes that a node belongs to: its own, or that of what it is the gradient of."""
    return scope.removeprefix(GRADIENTS)


FORWARD, BACKWARD, UPDATE = PHASES
GRADIENTS, OPTIMIZER = "Gradients/", "/optimizer-"
"""What begins the scopes of gradients, MindSpore's too, and what is in those of updates in MindSpore's dumps."""


def phase_of(node: Node) -> str:
    """The phase that a node says; of MindSpore's nodes, which say none, the one that the scope tells."""
    if not isinstance(node.op, OpaqueOp) or node.phase != FORWARD:
        return node.phase
    if node.scope.startswith(GRADIENTS):
        return BACKWARD
    return UPDATE if OPTIMIZER in node.scope else FORWARD
