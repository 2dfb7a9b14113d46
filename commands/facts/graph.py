"""Facts of one graph: of a rank, of all ranks between two passes, or of a dump of MindSpore."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from mspc.analysis.cost.machine import H200, Machine
from mspc.analysis.cost.nodes import seconds
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.commands.facts.memory import MemoryRow, memory_row
from mspc.commands.facts.rows import STRUCTURAL, CollectiveRow, collective_row, source_line
from mspc.ir.graph import WORK, Constant, Graph, Node, OpLike, Parameter, Value, element_layouts, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.opaque import OpaqueOp
from mspc.ir.text.facts import PHASES
from mspc.ir.types import TensorType, Type
from mspc.ops.collective.base import Collective
from mspc.ops.control.regions import ONCE, Times, nodes_with_times
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, step_types, steps_of
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.fused.updates import GroupedUpdate
from mspc.ops.op import REGISTRY
from mspc.ops.optim.optimizer import Update
from mspc.runtime.memory import MemoryPlan
from mspc.runtime.memory_plan import device_bytes_inside, plan_memory

NO_WORK = frozenset({"Depend", "MakeTuple", "TupleGetItem", "Load", "UpdateState", "call", "J", "RefToEmbed",
                     "EnvironGet", "EnvironSet", "EnvironAdd", "_VirtualDataset", "partial"})  # fmt: skip
"""Operators of MindSpore's dumps that order, pack or name values."""
DIGITS = 8
"""Digits of the digest of a constant."""
OF_GROUPS = frozenset({"group", "group_back", "rank_list", "rank_id", "mesh", "axes", "sr_tag", "share"})
"""Attributes of collectives for groups and messages, which are compared by their ranks, and for costs."""
_PLACE = re.compile(r"(?:/Grad_\w+)?/\w+-op\d+\Z")
"""End of MindSpore's scopes: the operator, and in gradients also the operator's gradient scope."""
_MADE_NAME = re.compile(r"_op_\d+\w*\Z")
"""End of the instance names of nodes that MindSpore inserts."""
_GROUP = re.compile(r"(\d{1,7})-\d+\Z")
"""A group's name, which begins with the number of its ranks."""


@dataclass(frozen=True)
class GraphFacts:
    """Facts of one graph, each computed when it is first read.

    foreign: MindSpore wrote it. of_one_rank: it is a rank's graph; memory and times of other graphs are None. ranks:
    those that run it; figures and names are those of the first. text: of the first one's file. on_gpu: memory is
    planned as on a GPU.
    """

    graph: Graph
    foreign: bool = False
    of_one_rank: bool = True
    machine: Machine = H200
    ranks: tuple[int, ...] = ()
    text: str = ""
    on_gpu: bool = False

    @property
    def rank(self) -> int:
        """The first rank that runs the graph; 0 if unknown."""
        return self.ranks[0] if self.ranks else 0

    @cached_property
    def _worked(self) -> list[tuple[Node, Times]]:
        """Nodes that compute or send something, and how often a step runs them."""
        return [(node, times) for node, times in nodes_with_times(self.graph) if not self._packs(node)]

    @cached_property
    def collectives(self) -> tuple[CollectiveFact, ...]:
        """All collectives, with those in the graphs that nodes run."""
        found = (self.collective(node, times) for node, times in self._worked)
        return tuple(fact for fact in found if fact is not None)

    @cached_property
    def operators(self) -> tuple[OperatorFact, ...]:
        """All operators but collectives and, since it runs a graph of its own, a stage's work on a micro-batch."""
        nodes = (node for node, _ in self._worked if self._collective_kind(node) is None and WORK not in node.attrs)
        return tuple(fact for node in nodes for fact in self._operators(node))

    @cached_property
    def scopes(self) -> dict[str, ScopeTotals]:
        """Sums over the nodes of every cell, with their gradients."""
        found: dict[str, ScopeTotals] = {}
        unit = 0.0 if self.of_one_rank else None
        rates = self.machine.under(self.graph.attrs)
        sent = iter(self.collectives)
        for node, times in self._worked:
            totals = found.setdefault(cell_of(self.scope(node)), ScopeTotals(seconds=unit))
            totals.nodes += 1
            if self._collective_kind(node) is not None:
                self._count(next(sent), found, unit)
            elif totals.seconds is not None and not node.op.is_view and not node.regions:
                totals.seconds += seconds(node, rates) * times.count
        return found

    @cached_property
    def bytes_sent(self) -> int:
        """Bytes that a rank sends in one step; a loop with a length known only at run time counts as one iteration."""
        return sum(collective.row.bytes for collective in self.collectives)

    @cached_property
    def runs(self) -> Counter[str]:
        """How often a step runs every collective operator."""
        found = Counter[str]()
        for fact in self.collectives:
            found[fact.row.operator] += fact.row.runs
        return found

    @cached_property
    def memory_plan(self) -> MemoryPlan:
        """Memory plan of a rank's step."""
        inside = device_bytes_inside if self.on_gpu else None
        return plan_memory(self.graph, inside=inside, early=self.on_gpu)

    @cached_property
    def timeline(self) -> StreamTimeline:
        """Predicted timeline of a rank's step."""
        return StreamTimeline(self.graph, self.machine)

    @property
    def memory(self) -> MemoryRow | None:
        """Memory of a rank's step."""
        return memory_row(self.memory_plan) if self.of_one_rank else None

    @property
    def times(self) -> StepTimes | None:
        """Predicted times of a rank's step."""
        time = self.timeline if self.of_one_rank else None
        return None if time is None else StepTimes(time.total, time.compute, time.total - time.compute)

    def _count(self, fact: CollectiveFact, scopes: dict[str, ScopeTotals], unit: float | None) -> None:
        """Add a collective to the totals of the cells from which its tensors come."""
        total = sum(tensor.bytes for tensor in fact.tensors)
        for tensor in fact.tensors:
            totals = scopes.setdefault(tensor.cell, ScopeTotals(seconds=unit))
            totals.sent += 1
            totals.bytes_sent += tensor.bytes
            if totals.seconds is not None and fact.seconds:
                totals.seconds += fact.seconds * (tensor.bytes / total if total else 1 / len(fact.tensors))

    def tensors(self) -> tuple[TensorFact, ...]:
        """Return the facts of the graph's parameters and inputs."""
        found: list[TensorFact] = []
        for parameter in self.graph.parameters:
            layout = "; ".join(str(layout) for layout in element_layouts(parameter.layout))
            global_type = "" if self.foreign else type_text(parameter.global_type or parameter.type)
            held = type_text(parameter.type) if self.foreign or self.of_one_rank else ""
            found.append(TensorFact(parameter.name, parameter.kind, global_type, held, layout))
        return tuple(found)

    def scope(self, node: Node) -> str:
        """Return the cells around a node."""
        return _PLACE.sub("", node.scope) if self.foreign else node.scope

    def _packs(self, node: Node) -> bool:
        if self.foreign:
            return node.op.name in NO_WORK
        return isinstance(node.op, STRUCTURAL) and not isinstance(node.op, Collective)

    def _collective_kind(self, node: Node) -> type[Collective] | None:
        """Return the class of a collective, None for other nodes."""
        if isinstance(node.op, Collective):
            return type(node.op)
        kind = REGISTRY.get(node.op.name) if self.foreign else None
        return kind if kind is not None and issubclass(kind, Collective) else None

    def collective(self, node: Node, times: Times = ONCE) -> CollectiveFact | None:
        """Return the facts of a collective, None for other nodes. times: how often a step runs it."""
        kind = self._collective_kind(node)
        if kind is None:
            return None
        if isinstance(node.op, Collective):
            row, sent = collective_row(node, node.op, times), node.op.sent_bytes
            ranks = len(node.op.members)
            time = seconds(node, self.machine) * row.runs if self.of_one_rank else None
        else:
            row, ranks = self._foreign_row(node, kind)
            sent, time = kind.sent_bytes, None
        names = row.parameter.split(", ")
        if len(names) != len(node.inputs):
            names = [row.parameter] * len(node.inputs)
        tensors = [
            SentTensor(
                name, cell_of(self.scope(_origin(value) or node)),
                int(sent(_nbytes(value.type), max(1, ranks))) * row.runs,
            )
            for name, value in zip(names, node.inputs, strict=True)
        ]  # fmt: skip
        tensors = tensors or [SentTensor(row.parameter, cell_of(self.scope(node)), row.bytes)]
        told = {k: v for k, v in node.op.attributes().items() if k not in OF_GROUPS and not self.foreign}
        return CollectiveFact(row, self.scope(node), tuple(tensors), _texts([node.type]), time, _attribute_text(told))

    def _foreign_row(self, node: Node, kind: type[Collective]) -> tuple[CollectiveRow, int]:
        """Return the row of a collective in a dump of MindSpore, and the size of its group."""
        told = node.op.attributes()
        ranks, size = _listed(node), self.ranks_of(node)
        sent = kind.sent_bytes(sum(_nbytes(value.type) for value in node.inputs), size)
        parameter = str(node.attrs.get("mirror_user_id", told.get("mirror_user_id", "")))
        row = CollectiveRow(node.op.name, ranks, int(sent), phase_of(node), parameter, "", source_line(node.frames))
        return row, size

    def ranks_of(self, node: Node) -> int:
        """Return the number of ranks in the group of a collective of MindSpore."""
        named = _GROUP.match(str(node.op.attributes().get("group", "")))
        return len(_listed(node)) or (int(named[1]) if named else self._world)

    @cached_property
    def _world(self) -> int:
        """Number of ranks, derived from the listed groups: a dump of MindSpore only names a group of all ranks."""
        return 1 + max((rank for node in self.graph.all_nodes() for rank in _listed(node)), default=0)

    def _operators(self, node: Node) -> Iterator[OperatorFact]:
        """Yield the operators of a node: one, or the members of a fused one."""
        operands = [_operand_text(value) for value in node.inputs]
        if isinstance(node.op, FusedElementwise):
            types = [type for value in node.inputs if isinstance(type := value.type, TensorType)]
            made = [(type_text(type),) for type in step_types(node.op, types)]
            left: dict[str, list[str]] = {}  # labels of the members by operator; equal labels occur once
            for label in map(str, node.attrs.get("fused", ())):
                left.setdefault(label.partition(" ")[0], []).append(label)
            known = list[str]()
            for line, output in zip(steps_of(node.op), made, strict=True):
                inputs = [(operands if kind == "x" else made)[index] for kind, index in line.operands]
                sources = [self.source(node.inputs[i]) if kind == "x" else known[i] for kind, i in line.operands]
                labels = left.get(line.op.name, [line.op.name])
                known.append(labels.pop(0) if len(labels) > 1 else labels[0])
                yield self._fact(node, known[-1], line.op, inputs, output, sources)
        elif isinstance(node.op, FusedMatMul) and "fused" in node.attrs:
            product, *others = map(str, node.attrs["fused"])
            output = (type_text(element_types(node.type)[0]),)
            yield self._fact(node, product, node.op.product(product), operands[:2], output, self._sources(node)[:2])
            for label in others:  # the text does not contain the operands of each
                yield self._fact(node, label, None, (), output)
        elif isinstance(node.op, GroupedUpdate):
            names = node.op.members([value.name for value in node.inputs])
            for (name, *_), inputs in zip(names, node.op.members(operands), strict=True):
                yield self._fact(node, f"{node.op.member.name} of {name}", node.op.member, inputs, inputs[0])
        else:
            kind = REGISTRY.get(node.op.name)
            changed = node.inputs[0] if node.inputs and kind is not None and issubclass(kind, Update) else None
            name = "" if _MADE_NAME.search(node.instance) else node.instance
            label = f"{node.op.name} '{name}'" if name else node.op.name
            if isinstance(changed, Parameter):
                label = f"{node.op.name} of {changed.name}"
            yield self._fact(node, label, node.op, operands, _texts([node.type]), self._sources(node))

    def _sources(self, node: Node) -> list[str]:
        return [self.source(value) for value in node.inputs]

    def source(self, value: Value) -> str:
        """Return the parameter or operator from which a tensor comes, "" if it is unknown."""
        place = ""
        while isinstance(value, Node) and value.inputs and (self._packs(value) or isinstance(value.op, Collective)):
            index = value.op.index if isinstance(value.op, TupleGetItem) else 0
            place = place or (f"[{index}]" if isinstance(value.op, TupleGetItem) else "")
            many = isinstance(value.op, MakeTuple | Collective) and len(value.inputs) > 1
            value = value.inputs[0] if not many else value.inputs[int(place[1:-1] or 0) % len(value.inputs)]
            place = "" if many else place
        if isinstance(value, Parameter):
            return value.name
        if not isinstance(value, Node) or self.foreign:
            return ""
        members = [str(each) for each in value.attrs.get("fused", ())] or [value.op.name]
        return f"{phase_of(value)} {cell_of(value.scope)}/{members[-1]}{place}"

    def _fact(
        self, node: Node, label: str, op: OpLike | None, inputs: Sequence[Texts], output: Texts,
        sources: Sequence[str] = (),
    ) -> OperatorFact:  # fmt: skip
        """Return the fact of one operator. op: None if its attributes are unknown."""
        sharding = "; ".join(str(layout) for layout in element_layouts(node.layout))
        strategy = node.strategy or node.in_strategy
        if not sharding and strategy is not None:
            sharding = " ".join(str(entry).replace(",)", ")") for entry in strategy)
        attributes = None if op is None or self.foreign else op.attributes()
        return OperatorFact(
            phase_of(node), self.scope(node), label.partition(" ")[0], label,
            tuple(text for texts in inputs for text in texts), output, sharding, source_line(node.frames),
            None if attributes is None else _attribute_text(attributes), () if self.foreign else tuple(sources),
        )  # fmt: skip


def _attribute_text(attributes: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in attributes.items())


def type_text(type: Type) -> str:
    """Return a type in the form of tables: `Float32 (2, 16)`."""
    return ", ".join(f"{tensor.dtype} {tensor.shape}" for tensor in element_types(type)) or str(type)


def _texts(types: Sequence[Type]) -> Texts:
    """Return the texts of tensors, those in tuples one by one. Other operands in MindSpore's dumps are attributes."""
    return tuple(type_text(tensor) for type in types for tensor in element_types(type))


def _operand_text(value: Value) -> Texts:
    """Return the text of an operand: its type, and the value of a constant or a digest of a large one."""
    texts = _texts([value.type])
    if not isinstance(value, Constant):
        return texts
    array = np.ascontiguousarray(value.value)
    shown = array.item() if array.size == 1 else hashlib.sha256(array.tobytes()).hexdigest()[:DIGITS]
    return (f"{texts[0]}{EQUALS}{shown}",)


def _origin(value: Value) -> Node | None:
    """Return the node from which a tensor comes, before any buckets in which it was sent; None for a parameter."""
    while isinstance(value, Node) and isinstance(value.op, TupleGetItem):
        bucket = value.inputs[0]
        if not isinstance(bucket, Node) or not isinstance(bucket.op, Collective) or len(bucket.inputs) < 2:
            break
        value = bucket.inputs[value.op.index]
    return value if isinstance(value, Node) else None


def _listed(node: Node) -> tuple[int, ...]:
    """Return the ranks of a collective's group if the text lists them, else ()."""
    return node.op.members if isinstance(node.op, Collective | OpaqueOp) else ()


def _nbytes(type: Type) -> int:
    return sum(tensor.nbytes for tensor in element_types(type))


# Facts of operators, collectives and tensors, as data classes ------------------------------------------------


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
class StepTimes:
    """Predicted seconds of a step: in total, of computation, and of communication that is not hidden."""

    step: float
    compute: float
    exposed: float


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
