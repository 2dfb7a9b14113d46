"""When a stage of a pipeline works on which micro-batch: a rank's graph has no other stage, so that all of them are
taken to work as long as this one does. What a stage waits for others is time for copies to the host and back."""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ir.graph import STAGE, WORK, Graph, Node
from mspc.passes.pipelining.chosen_schedule import chosen_schedule, has_weights_apart, kinds_of
from mspc.passes.pipelining.host_pace import Task, TaskCopies, copies_of, leaving
from mspc.passes.pipelining.schedules.action import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    actions_of,
    parts_of,
)  # fmt: skip
from mspc.passes.pipelining.stage_program import work_of
from mspc.passes.pipelining.timeline import Timeline, timeline

Spans = Mapping[Node, tuple[float, float]]
"""The begin of nodes, and their seconds, with nothing to wait for."""


class StageClock:
    """The clock of a stage's program. leaving: its forwards of which what they keep may leave for the host."""

    def __init__(self, graph: Graph, spans: Spans) -> None:
        self._nodes, self._stage = graph.nodes, int(graph.attrs[STAGE])
        self._calls = {work_of(node): node for node in graph.nodes if WORK in node.attrs}
        self._ends: dict[Node, float] = {}
        """The end of the work before each."""
        end = spans[next(iter(self._calls.values()))][0]
        for call in self._calls.values():
            self._ends[call], end = end, sum(spans[call])
        self._schedule = chosen_schedule(graph.attrs, 1 + max(number for _, _, number in self._calls))
        self._own = self._schedule.chunks_of(self._stage)
        times: dict[tuple[int, str], list[float]] = {}
        for (kind, chunk, _), call in self._calls.items():
            times.setdefault((chunk, kind), []).append(sum(spans[call]) - self._ends[call])
        self._times = {key: sum(found) / len(found) for key, found in times.items()}
        self._is_apart = has_weights_apart(graph.attrs)
        on_way = (self._calls.get((FORWARD, *each)) for each in leaving(self._schedule, self._stage))
        self.leaving = {call for call in on_way if call is not None}

    def line(self, seconds: Mapping[Node, float], waits: bool = True) -> Timeline:
        """The timeline of all stages. seconds: in which what a forward has kept leaves, of each for which it does.
        waits: as of `copies_of`."""
        of_chunks: dict[int, float] = {}
        for call, time in seconds.items():
            of_chunks.setdefault(work_of(call)[1], time)
        durations: dict[tuple[int, str], float] = {}
        copies: dict[Task, TaskCopies] = {}
        for stage in range(self._schedule.stages):
            alike = dict(zip(self._schedule.chunks_of(stage), self._own, strict=True))
            for chunk, own in alike.items():
                for action in actions_of(self._schedule.entries[stage]):
                    kinds = kinds_of(action.kind, self._is_apart)
                    durations[chunk, action.kind] = sum(self._time(own, kind, stage == self._stage) for kind in kinds)
            own_seconds = {chunk: of_chunks.get(own, 0.0) for chunk, own in alike.items()}
            copies |= copies_of(self._schedule, stage, own_seconds, waits)
        return timeline(self._schedule, durations, overlap=None, copies=copies if of_chunks else None)

    def _time(self, chunk: int, kind: str, is_own: bool) -> float:
        """Seconds of work on a chunk, by this stage or another one: nobody waits for the gradients of what the first
        chunk reads, so that all of them are with those of weights."""
        if is_own or not self._is_apart or (chunk, INPUT_GRADIENT) in self._times or kind == FORWARD:
            return self._times.get((chunk, kind), 0.0)
        return self._times.get((chunk, WEIGHT_GRADIENT), 0.0) / 2

    def later(self, line: Timeline) -> list[float]:
        """By how much later each node of the graph begins by a timeline than with nothing to wait for."""
        begins: dict[Node, float] = {}
        for span in line.spans[self._stage]:
            begin = span.start
            for action in parts_of(span.entry):
                for kind in kinds_of(action.kind, self._is_apart):
                    call = self._calls.get((kind, action.chunk, action.micro_batch))
                    if call is not None:
                        begins[call] = begin
                        begin += self._times[action.chunk, kind]
        found: list[float] = []
        first = min(self._ends.values())
        shift = 0.0
        for place, node in enumerate(self._nodes):
            if node in begins:
                shift = max(shift, begins[node] + first - self._ends[node])
                found += [shift] * (place + 1 - len(found))
        return found + [shift] * (len(self._nodes) - len(found))
