"""Timeline of a pipeline: the times of each stage's work on micro-batches, with host copies and saved values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from mspc.analysis.cost.machine import H200, Machine
from mspc.analysis.cost.nodes import seconds
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import FROM_HOST, TO_HOST, WORK, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.ops.tensor.host_memory import AwaitHost, HostCopy, ToHost
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    Action,
)  # fmt: skip
from mspc.passes.lib.stage_placement import chosen_schedule
from mspc.passes.lib.stage_programs import work_of
from mspc.passes.lib.timeline import Copied, ScheduleTimeline, Task, TaskCopies, timeline


def call_of(value: Value) -> Node | None:
    """Return the work on a micro-batch that a value is a result of, or None."""
    made = value.inputs[0] if isinstance(value, Node) and isinstance(value.op, TupleGetItem) else None
    return made if isinstance(made, Node) and WORK in made.attrs else None


class CopiedValues:
    """Host copies of a stage's program, collected in node order. tasks: the copies of each task."""

    def __init__(self, graph: Graph) -> None:
        self.tasks: dict[Task, TaskCopies] = {}
        self._ahead = TaskCopies()
        """Copies of the next work, up to the last reported node."""
        self._copied: dict[Value, Copied] = {}
        self._back: dict[Value, Copied] = {}

    def copy(self, node: Node, seconds: float) -> bool:
        """Record a copy in either direction. Return whether the copied value is a result of work on a micro-batch."""
        if isinstance(node.op, ToHost):
            call = call_of(node.inputs[0])
            if call is None:
                return False
            task = work_of(call)
            left = self.tasks.setdefault(task, TaskCopies()).left
            self._copied[node] = (*task[1:], len(left))
            left.append((self._copied[node], seconds))
            return True
        copied = self._copied.get(_host_copy_of(node))
        if copied is None:
            return False
        self._back[node] = copied
        self._ahead.ahead.append((copied, seconds))
        return True

    def ahead(self, node: Node) -> None:
        """Record a node that is not a copy: it waits for one, works on a micro-batch, or neither."""
        if isinstance(node.op, AwaitHost):
            copied = self._copied.get(_host_copy_of(node))
            self._ahead.ahead += [] if copied is None else [(copied, 0.0)]
        elif WORK in node.attrs:
            own = self.tasks.setdefault(work_of(node), TaskCopies())
            own.ahead = self._ahead.ahead
            own.read = [self._back[value] for value in _read(node) if value in self._back]
            self._ahead = TaskCopies()


def _host_copy_of(node: Node) -> Value:
    """Return the copy to the host that a node waits for or copies back."""
    value: Value = node
    while isinstance(value, Node) and isinstance(value.op, HostCopy) and not isinstance(value.op, ToHost):
        value = value.inputs[0]
    return value


def _read(node: Node) -> Iterator[Value]:
    """Yield the values that a node reads, including tuple elements and the bases of views."""
    values = [*node.inputs]
    while values:
        value = values.pop(0)
        yield value
        if isinstance(value, Node) and (value.op.is_view or isinstance(value.op, MakeTuple)):
            values += value.inputs


class CopyClocks:
    """Clocks of the copy streams, in seconds. `_now`: time at the end of the last work on a micro-batch."""

    def __init__(self) -> None:
        self._now = 0.0
        self._streams: dict[str, float] = {}
        self._over: dict[Value, float] = {}

    def copy(self, node: Node, seconds: float, after: float) -> None:
        """Add a copy that may start `after` seconds after the last work."""
        stream = str(node.attrs["stream"])
        begin = max(self._streams.get(stream, 0.0), self._now + after)
        self._over[node] = self._streams[stream] = begin + seconds

    def waited(self, node: Node, after: float) -> float:
        """Return the seconds that a node, ready `after` seconds after the last work, waits for the copies that it
        reads."""
        ready = max((self._over.get(value, 0.0) for value in node.inputs), default=0.0)
        if node.op.is_view and ready:
            self._over[node] = ready
            return 0.0
        return max(0.0, ready - self._now - after)

    def worked(self, seconds: float) -> None:
        """Advance the clock to the end of another work, `seconds` after the last one."""
        self._now += seconds

    @property
    def after(self) -> float:
        """Seconds from the end of the last work to the end of all copies."""
        return max(0.0, *(end - self._now for end in self._streams.values())) if self._streams else 0.0


Seconds = Callable[[Node], float]
"""Time of a node in seconds; for a sent message, its time in transit."""


def stage_times(
    graphs: Sequence[Graph], machine: Machine = H200, own: Seconds | None = None, way: Seconds | None = None
) -> ScheduleTimeline:  # fmt: skip
    """Return the timeline of a step. graphs: one rank's graph per stage. machine: for predicted times. own: times of
    nodes, such as measured ones, in place of the machine's; for a message, the time its sender is busy. way: transit
    times of messages. Raise MspcError if there are no micro-batches."""
    if own is None and way is None:
        return timeline_of(graphs[0].attrs, [predicted_times(graph, machine) for graph in graphs])
    rates = _rates(machine.under(graphs[0].attrs))
    programs = [StageTimes.of(graph, own or rates, way or rates, sends=own is not None) for graph in graphs]
    return timeline_of(graphs[0].attrs, programs)


def predicted_times(graph: Graph, machine: Machine) -> StageTimes:
    """Return the times of a stage's program on a machine."""
    rates = _rates(machine.under(graph.attrs))
    return StageTimes.of(graph, rates, rates, sends=False)


def _rates(machine: Machine) -> Seconds:
    """Return a function for times of nodes at the rates of a machine. The time of a shared graph is computed once."""
    return partial(seconds, machine=machine, known={})


def timeline_of(attrs: Mapping[str, Any], programs: Sequence[StageTimes]) -> ScheduleTimeline:
    """Return the timeline of a program with this header. programs: times of every stage. Raise MspcError like
    `stage_times`."""
    micro_batches = 1 + max((number for each in programs for number in each.micro_batches), default=-1)
    if not micro_batches:
        raise MspcError(
            "the program has no stages that work on micro-batches, and so no schedule",
            notes=["set pipeline_stages, and put the network into a PipelineCell"],
        )
    if micro_batches > sum(len(each) for program in programs for each in program.times.values()):
        raise MspcError(f"the program works on micro-batch {micro_batches - 1}, and not on all of those before it")
    schedule = chosen_schedule(attrs, micro_batches)
    times = {key: program.mean(*key) for program in programs for key in program.times}
    every = {(chunk, kind): times.get((chunk, kind), 0.0) for chunk in range(schedule.chunks) for kind in KINDS}
    for chunk in range(schedule.chunks):
        every[chunk, BACKWARD] = every[chunk, BACKWARD] or every[chunk, INPUT_GRADIENT] + every[chunk, WEIGHT_GRADIENT]
    messages = {
        (chunk, reader): time
        for program in programs
        for (chunk, reader, stage), time in program.messages.items()
        if 0 <= reader < schedule.chunks and schedule.placement[reader] == stage
    }
    after = {stage: program.after for stage, program in enumerate(programs)}
    awaited = {
        stage: [(source, programs[source].results.get((stage, tag))) for source, tag in sorted(program.awaited)]
        for stage, program in enumerate(programs)
    }
    copies = {task: own for program in programs for task, own in program.copies.items()}
    return timeline(schedule, every, messages, after, awaited, copies)


@dataclass
class StageTimes:
    """Times of a stage's program, in seconds. times: every run of a chunk's graph of a kind, including its preparation.
    messages: all messages that a chunk sends for one micro-batch, by the chunk, its neighbour in that direction, and
    the receiving stage. after: the nodes after the last micro-batch. awaited: messages from other stages that these
    need, by stage and tag. results: messages sent for this purpose, by the same keys, with the preceding action.
    copies: to and from the host, of results of work on micro-batches."""

    times: dict[tuple[int, str], list[float]] = field(default_factory=dict[tuple[int, str], "list[float]"])
    messages: dict[tuple[int, int, int], float] = field(default_factory=dict[tuple[int, int, int], float])
    micro_batches: set[int] = field(default_factory=set[int])
    after: float = 0.0
    awaited: set[tuple[int, int]] = field(default_factory=set["tuple[int, int]"])
    results: dict[tuple[int, int], Action | None] = field(default_factory=dict["tuple[int, int]", "Action | None"])
    copies: dict[Task, TaskCopies] = field(default_factory=dict[Task, TaskCopies])

    def mean(self, chunk: int, kind: str) -> float:
        """Return the mean time of a kind of work on one micro-batch; 0 if there is none."""
        found = self.times.get((chunk, kind), ())
        return sum(found) / len(found) if found else 0.0

    @staticmethod
    def of(graph: Graph, own: Seconds, way: Seconds, sends: bool) -> StageTimes:
        """Return the times of a graph. sends: `own` includes the times of sending and of copies to the host."""
        made, beside, last = StageTimes(), CopyClocks(), None
        values = None if sends else CopiedValues(graph)
        for node in graph.nodes:
            op = node.op
            if values is not None and node.attrs.get("stream") in (TO_HOST, FROM_HOST):
                if not values.copy(node, own(node)):
                    beside.copy(node, own(node), made.after)
                continue
            made.after += beside.waited(node, made.after)
            if isinstance(op, ReceiveFromStage):
                made.awaited |= {(op.stage, op.sr_tag)} if op.micro_batch < 0 else set()
                continue
            if isinstance(op, SendToStage):
                made._send(node, op, way(node))
                if op.micro_batch < 0:
                    made.results[op.stage, op.sr_tag] = last
                made.after += own(node) if sends else 0.0
            elif not op.is_view:
                made.after += own(node)
            if values is not None:
                values.ahead(node)
            if WORK in node.attrs:  # includes the nodes since the previous work
                kind, chunk, number = work_of(node)
                last = Action(kind, chunk, number)
                made.times.setdefault((chunk, kind), []).append(made.after)
                made.micro_batches.add(number)
                beside.worked(made.after)
                made.after = 0.0
        made.after = max(made.after, beside.after)
        made.copies = {} if values is None else values.tasks
        return made

    def _send(self, node: Node, op: SendToStage, time: float) -> None:
        made = call_of(node.inputs[0])
        if op.micro_batch == 0 and made is not None:
            kind, chunk, _ = work_of(made)
            key = chunk, chunk + (1 if kind == FORWARD else -1), op.stage
            self.messages[key] = self.messages.get(key, 0.0) + time

    def like(self, chunks: Mapping[int, int], stage: int, other: int, placement: Sequence[int]) -> StageTimes:
        """Return the times of stage `other`, which runs the same work on its chunks as `stage`. chunks: the chunks of
        `other` by those of `stage`. placement: stage of every chunk."""
        messages: dict[tuple[int, int, int], float] = {}
        for (chunk, reader, target), time in self.messages.items():
            towards = chunks[chunk] + reader - chunk
            if 0 <= towards < len(placement) and 0 <= reader < len(placement) and placement[reader] == target:
                messages[chunks[chunk], towards, placement[towards]] = time
        awaited = {(stage if each == other else each, tag) for each, tag in self.awaited}
        results = {
            (stage if each == other else each, tag): last and Action(last.kind, chunks[last.chunk], last.micro_batch)
            for (each, tag), last in self.results.items()
        }
        times = {(chunks[chunk], kind): time for (chunk, kind), time in self.times.items()}
        copies = {(k, chunks[chunk], number): own.like(chunks) for (k, chunk, number), own in self.copies.items()}
        return StageTimes(times, messages, self.micro_batches, self.after, awaited, results, copies)
