"""The timeline of a pipeline: when each stage runs which micro-batch, and the copies and stored values beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

from mspc.analysis.cost.machine import H200, Machine
from mspc.analysis.cost.nodes import seconds
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import FROM_HOST, TO_HOST, WORK, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.control.structural import MakeTuple, TupleGetItem, taken_elements
from mspc.ops.tensor.host_memory import AwaitHost, HostCopy, ToHost
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
)  # fmt: skip
from mspc.passes.lib.stage_placement import chosen_schedule
from mspc.passes.lib.stage_programs import work_of
from mspc.passes.lib.timed_order import TimedWork
from mspc.passes.lib.timeline import Copied, ScheduleTimeline, Task, TaskCopies


def kept_of_chunks(graph: Graph) -> dict[int, float]:
    """For each chunk of a stage the bytes that gradients read of its forward work on the first micro-batch, and of what
    came from another stage for that."""
    calls = {(kind, chunk): node for node in graph.nodes if WORK in node.attrs
             for kind, chunk, number in (work_of(node),) if number == 0}  # fmt: skip
    kept: dict[int, dict[Node, int]] = {}
    for (kind, chunk), node in calls.items():
        if kind == FORWARD:
            kept.setdefault(chunk, {})
            continue
        forward = calls.get((FORWARD, chunk))
        if forward is None:
            continue
        received = {each for each in forward.inputs if isinstance(each, Node) and isinstance(each.op, ReceiveFromStage)}
        for value in node.inputs:
            if isinstance(value, Node) and (_is_of(value, forward) or value in received):
                kept.setdefault(chunk, {})[value] = value.type.nbytes
    return {chunk: float(sum(values.values())) for chunk, values in kept.items()}


def _is_of(value: Node, call: Node) -> bool:
    return taken_elements(value.op) is not None and value.inputs[0] is call


def call_of(value: Value) -> Node | None:
    """The work on a micro-batch of which a value is a result; None of others."""
    made = value.inputs[0] if isinstance(value, Node) and isinstance(value.op, TupleGetItem) else None
    return made if isinstance(made, Node) and WORK in made.attrs else None


class CopiedValues:
    """The copies of a stage's program, which are told of in the order of its nodes. tasks: what each has of them."""

    def __init__(self, graph: Graph) -> None:
        self.tasks: dict[Task, TaskCopies] = {}
        self._ahead = TaskCopies()
        """Of the next work, up to the node that was told of last."""
        self._copied: dict[Value, Copied] = {}
        self._back: dict[Value, Copied] = {}

    def copy(self, node: Node, seconds: float) -> bool:
        """A copy, one way; whether it is of what work on a micro-batch has made."""
        if isinstance(node.op, ToHost):
            call = call_of(node.inputs[0])
            if call is None:
                return False
            task = work_of(call)
            left = self.tasks.setdefault(task, TaskCopies()).left
            self._copied[node] = (*task[1:], len(left))
            left.append((self._copied[node], seconds))
            return True
        copied = self._copied.get(_left(node))
        if copied is None:
            return False
        self._back[node] = copied
        self._ahead.ahead.append((copied, seconds))
        return True

    def ahead(self, node: Node) -> None:
        """A node that is no copy: it waits for one, works, or does neither."""
        if isinstance(node.op, AwaitHost):
            copied = self._copied.get(_left(node))
            self._ahead.ahead += [] if copied is None else [(copied, 0.0)]
        elif WORK in node.attrs:
            own = self.tasks.setdefault(work_of(node), TaskCopies())
            own.ahead = self._ahead.ahead
            own.read = [self._back[value] for value in _read(node) if value in self._back]
            self._ahead = TaskCopies()


def _left(node: Node) -> Value:
    """The copy to the host that a node waits for or brings back."""
    value: Value = node
    while isinstance(value, Node) and isinstance(value.op, HostCopy) and not isinstance(value.op, ToHost):
        value = value.inputs[0]
    return value


def _read(node: Node) -> Iterator[Value]:
    """What a node reads, out of tuples and behind views."""
    values = [*node.inputs]
    while values:
        value = values.pop(0)
        yield value
        if isinstance(value, Node) and (value.op.is_view or isinstance(value.op, MakeTuple)):
            values += value.inputs


def is_copy(node: Node) -> bool:
    """Whether a node copies to the host or back, beside others."""
    return node.attrs.get("stream") in (TO_HOST, FROM_HOST)


class CopiesBeside:
    """The clocks of the streams of copies. now: seconds of the program up to the last work on a micro-batch."""

    def __init__(self) -> None:
        self._now = 0.0
        self._streams: dict[str, float] = {}
        self._over: dict[Value, float] = {}

    def copy(self, node: Node, seconds: float, behind: float) -> None:
        """A copy that may begin so many seconds behind the last work."""
        stream = str(node.attrs["stream"])
        begin = max(self._streams.get(stream, 0.0), self._now + behind)
        self._over[node] = self._streams[stream] = begin + seconds

    def waited(self, node: Node, behind: float) -> float:
        """Seconds that a node waits for copies which could begin so many behind the last work."""
        ready = max((self._over.get(value, 0.0) for value in node.inputs), default=0.0)
        if node.op.is_view and ready:
            self._over[node] = ready
            return 0.0
        return max(0.0, ready - self._now - behind)

    def worked(self, seconds: float) -> None:
        """So long behind the last work another one is over."""
        self._now += seconds

    @property
    def behind(self) -> float:
        """Seconds behind the last work until all copies are over."""
        return max(0.0, *(end - self._now for end in self._streams.values())) if self._streams else 0.0


Seconds = Callable[[Node], float]
"""The time of a node: of a message that is sent how long it is on its way."""


def stage_times(
    graphs: Sequence[Graph], machine: Machine = H200, own: Seconds | None = None, way: Seconds | None = None
) -> ScheduleTimeline:  # fmt: skip
    """The timeline of a step.

    Args:
        graphs: of one rank of every stage. machine: of which times are predicted. own: the times of nodes, which may be
        measured, in the place of the machine's; of a message what its sender does. way: how long messages are on their
        way.

    Raises:
        MspcError: there are no micro-batches.
    """
    if own is None and way is None:
        schedule, work = predicted_work(graphs, machine)
        return work.line(schedule)
    rates = _rates(machine.under(graphs[0].attrs))
    programs = [StageTimes.of(graph, own or rates, way or rates, sends=own is not None) for graph in graphs]
    return timeline_of(graphs[0].attrs, programs)


def predicted_work(graphs: Sequence[Graph], machine: Machine) -> tuple[Schedule, TimedWork]:
    """The schedule of a program, and what its actions take on a machine. graphs: of one rank of every stage. Raises
    MspcError as `stage_times` does."""
    schedule, work = work_of_programs(graphs[0].attrs, [predicted_times(graph, machine) for graph in graphs])
    kept = {chunk: found for graph in graphs for chunk, found in kept_of_chunks(graph).items()}
    return schedule, replace(work, kept=kept)


def predicted_times(graph: Graph, machine: Machine) -> StageTimes:
    """What the program of a stage takes on a machine."""
    rates = _rates(machine.under(graph.attrs))
    return StageTimes.of(graph, rates, rates, sends=False)


def _rates(machine: Machine) -> Seconds:
    """The times of nodes by the rates of a machine, those of a graph that many nodes run found once."""
    return partial(seconds, machine=machine, known={})


def timeline_of(attrs: Mapping[str, Any], programs: Sequence[StageTimes]) -> ScheduleTimeline:
    """The timeline of a program with this header. programs: of every stage. Raises MspcError as `stage_times` does."""
    schedule, work = work_of_programs(attrs, programs)
    return work.line(schedule)


def work_of_programs(attrs: Mapping[str, Any], programs: Sequence[StageTimes]) -> tuple[Schedule, TimedWork]:
    """The schedule of a program with this header, and what its actions take. programs, raises: as of `timeline_of`."""
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
    behind = {stage: program.behind for stage, program in enumerate(programs)}
    awaited = {
        stage: [(source, programs[source].results.get((stage, tag))) for source, tag in sorted(program.awaited)]
        for stage, program in enumerate(programs)
    }
    copies = {task: own for program in programs for task, own in program.copies.items()}
    return schedule, TimedWork(every, messages, behind, awaited, copies)


@dataclass
class StageTimes:
    """What a stage's program takes. times: of every run of a chunk's graph of a kind, with what is done for it.
    messages: of all that a chunk sends for one micro-batch, by the chunk, its neighbour in the direction, and the stage
    to which it is sent. behind: of what follows the last micro-batch; awaited: what it needs from other stages then, by
    the stage and the message's tag; results: what it sends them for that, by the same, with the action ahead of it.
    copies: to the host and back, of values that work on micro-batches makes."""

    times: dict[tuple[int, str], list[float]] = field(default_factory=dict[tuple[int, str], "list[float]"])
    messages: dict[tuple[int, int, int], float] = field(default_factory=dict[tuple[int, int, int], float])
    micro_batches: set[int] = field(default_factory=set[int])
    behind: float = 0.0
    awaited: set[tuple[int, int]] = field(default_factory=set["tuple[int, int]"])
    results: dict[tuple[int, int], Action | None] = field(default_factory=dict["tuple[int, int]", "Action | None"])
    copies: dict[Task, TaskCopies] = field(default_factory=dict[Task, TaskCopies])

    def mean(self, chunk: int, kind: str) -> float:
        """The time of a kind of work on one micro-batch, 0 where there is none."""
        found = self.times.get((chunk, kind), ())
        return sum(found) / len(found) if found else 0.0

    @staticmethod
    def of(graph: Graph, own: Seconds, way: Seconds, sends: bool) -> StageTimes:
        """sends: `own` tells what sending takes a stage, and copies to the host."""
        made, beside, last = StageTimes(), CopiesBeside(), None
        values = None if sends else CopiedValues(graph)
        for node in graph.nodes:
            op = node.op
            if values is not None and is_copy(node):
                if not values.copy(node, own(node)):
                    beside.copy(node, own(node), made.behind)
                continue
            made.behind += beside.waited(node, made.behind)
            if isinstance(op, ReceiveFromStage):
                made.awaited |= {(op.stage, op.sr_tag)} if op.micro_batch < 0 else set()
                continue
            if isinstance(op, SendToStage):
                made._send(node, op, way(node))
                if op.micro_batch < 0:
                    made.results[op.stage, op.sr_tag] = last
                made.behind += own(node) if sends else 0.0
            elif not op.is_view:
                made.behind += own(node)
            if values is not None:
                values.ahead(node)
            if WORK in node.attrs:  # what has been done since the last one is done for it
                kind, chunk, number = work_of(node)
                last = Action(kind, chunk, number)
                made.times.setdefault((chunk, kind), []).append(made.behind)
                made.micro_batches.add(number)
                beside.worked(made.behind)
                made.behind = 0.0
        made.behind = max(made.behind, beside.behind)
        made.copies = {} if values is None else values.tasks
        return made

    def _send(self, node: Node, op: SendToStage, time: float) -> None:
        made = call_of(node.inputs[0])
        if op.micro_batch == 0 and made is not None:
            kind, chunk, _ = work_of(made)
            key = chunk, chunk + (1 if kind == FORWARD else -1), op.stage
            self.messages[key] = self.messages.get(key, 0.0) + time

    def like(self, chunks: Mapping[int, int], stage: int, other: int, placement: Sequence[int]) -> StageTimes:
        """The times of stage `other`, which does to its chunks what `stage` does to its own. chunks: these, by those of
        `stage`. placement: the stages of chunks."""
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
        return StageTimes(times, messages, self.micro_batches, self.behind, awaited, results, copies)
