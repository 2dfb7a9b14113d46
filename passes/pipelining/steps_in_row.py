"""How long a step takes among many: each stage begins its next step as soon as it has ended the one before.

Steps in a row overlap: a stage that ends early begins the next step while others still work on this one. A step maps
the times at which stages become free to those at which they are free again; with the best such times, those that all
move on by the same, a step takes as long as the longest circle of waits through it. From any others the longest time of
a stage from begin to end is no less, so one step tells whether an order is better than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mspc.passes.pipelining.schedules.action import (
    BACKWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    actions_of,
)  # fmt: skip
from mspc.passes.pipelining.schedules.dependence import makes, reads
from mspc.passes.pipelining.timeline import Awaited, Durations, Messages

STEPS = 6
"""So many steps in a row until times are taken as those of any step: stages have come to their distances by then."""
Order = list[list[int]]
"""For every stage its actions by number."""
INFINITE = float("inf")


class StepsInRow:
    """The actions of a schedule by number, and what they take. The schedule has one action at a time."""

    def __init__(
        self, known: Schedule, durations: Durations, message: Messages, behind: Mapping[int, float] | None,
        awaited: Awaited | None,
    ) -> None:  # fmt: skip
        self.stages = known.stages
        self.actions = [part for entries in known.entries for part in actions_of(entries)]
        self.numbers = {action: number for number, action in enumerate(self.actions)}
        self.durations = [_time(durations, action) for action in self.actions]
        maker = {value: number for number, action in enumerate(self.actions) for value in makes(action)}
        self.sources = [-1] * len(self.actions)
        """The action of another chunk that makes what each reads, -1 for none, and the message's time between them."""
        self.ways = [0.0] * len(self.actions)
        for number, action in enumerate(self.actions):
            for value in reads(action, known.chunks):
                if value[1] != action.chunk:
                    self.sources[number] = maker[value]
                    apart = known.placement[value[1]] != known.placement[action.chunk]
                    each = message.get((value[1], action.chunk), 0.0) if isinstance(message, Mapping) else message
                    self.ways[number] = each if apart else 0.0
        self.behind = [(behind or {}).get(stage, 0.0) for stage in range(self.stages)]
        self.awaited = [
            [(source, -1 if action is None else self._of(action)) for source, action in (awaited or {}).get(stage, ())]
            for stage in range(self.stages)
        ]

    def _of(self, action: Action) -> int:
        return self.numbers.get(action, self.numbers.get(Action(BACKWARD, action.chunk, action.micro_batch), -1))

    def order(self, schedule: Schedule) -> Order:
        """The actions of stages by number, of a schedule with the same ones."""
        return [[self.numbers[action] for action in actions_of(each)] for each in schedule.entries]

    def step(self, order: Order, free: Sequence[float]) -> tuple[list[float], list[float]]:
        """(when stages are free behind a step, when actions end). free: when they are free before it. Infinite where
        the order comes to a stop."""
        ends = [INFINITE] * len(self.actions)
        now, places = list(free), [0] * self.stages
        waiting = [-1] * len(self.actions)
        durations, sources, ways = self.durations, self.sources, self.ways
        running = list(range(self.stages))
        while running:
            stage = running.pop()
            time, place, own = now[stage], places[stage], order[stage]
            count = len(own)
            while place < count:
                number = own[place]
                source = sources[number]
                if source >= 0:
                    there = ends[source]
                    if there == INFINITE:
                        waiting[source] = stage
                        break
                    there += ways[number]
                    if there > time:
                        time = there
                time += durations[number]
                ends[number] = time
                if waiting[number] >= 0:
                    running.append(waiting[number])
                place += 1
            now[stage], places[stage] = time, place
        if any(place < len(own) for place, own in zip(places, order, strict=True)):
            return [INFINITE] * self.stages, ends
        last = list(now)
        for stage, needed in enumerate(self.awaited):
            sent = [ends[action] if action >= 0 else last[source] for source, action in needed]
            now[stage] = max([now[stage], *sent]) + self.behind[stage]
        return now, ends

    def makespan(self, order: Order) -> float:
        """Of a step that runs alone."""
        return max(self.step(order, [0.0] * self.stages)[0], default=0.0)

    def among_many(
        self, order: Order, free: Sequence[float] | None = None, turns: int = STEPS, enough: float = 0.0
    ) -> tuple[float, list[float]]:
        """(the time of a step among many, when stages are free before one). free: where to begin. turns: steps that are
        looked at, until one takes no longer than is `enough`: the time is that at most."""
        free = [0.0] * self.stages if free is None else free
        best, least = list(free), INFINITE
        for _ in range(turns):
            ended, _ = self.step(order, free)
            longest = max(map(float.__sub__, ended, map(float, free)), default=0.0)
            if longest >= INFINITE:
                return INFINITE, best
            if longest < least:
                best, least = list(free), longest
            if least <= enough:
                break
            earliest = min(ended)
            free = [each - earliest for each in ended]
        return least, best


def _time(durations: Durations, action: Action) -> float:
    if action.kind == BACKWARD and (action.chunk, BACKWARD) not in durations:
        parts = (INPUT_GRADIENT, WEIGHT_GRADIENT)
        return sum(durations.get((action.chunk, kind), 0.0) for kind in parts)
    return float(durations.get((action.chunk, action.kind), 0.0))
