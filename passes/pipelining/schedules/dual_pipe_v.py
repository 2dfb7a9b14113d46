"""DualPipe-V: stages with two chunks, there and back, which run a forward of one and a backward of the other at once.

DualPipe is from the report on DeepSeek-V3 (arXiv 2412.19437); the half of it in which stage i has chunks i and
2 p - 1 - i needs each parameter on one stage only. It is 1F1B of 2 p stages folded in the middle: chunk k has 2 p - k
micro-batches on the way, so a stage keeps 2 p + 1 chunks' micro-batches. Where a gradient is waited for, gradients for
weights come apart and later. A stage is idle for (p - 1) (F&B + B - 3 W), times of one chunk, F&B that of both at once.

The numbers of turns follow from when values arrive if every action takes one unit: on stage i the first forward of the
second chunk comes 2 (p - 1 - i) + 1 units behind that of the first, its first gradient 2 (i + 1) units later, and the
first gradient of the first chunk 3 (p - 1 - i) units behind that one.
"""

from __future__ import annotations

from mspc.passes.pipelining.schedules.action import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Entry,
    Overlapped,
    Schedule,
)  # fmt: skip
from mspc.passes.pipelining.schedules.counts import check_counts, there_and_back

NAME = "dual_pipe_v"


def schedule(stages: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """The schedule of so many micro-batches. Raises MspcError where a stage has not two chunks."""
    check_counts(NAME, stages, micro_batches, chunks, known=2)
    entries = (_Stage(stages, stage, micro_batches).entries() for stage in range(stages))
    return Schedule(NAME, micro_batches, there_and_back(stages), tuple(entries))


class _Stage:
    """The order of one stage as it is written; turns for which no micro-batch is left are passed over."""

    def __init__(self, stages: int, stage: int, micro_batches: int) -> None:
        self.stages, self.stage, self.micro_batches = stages, stage, micro_batches
        self.there, self.back = stage, 2 * stages - 1 - stage
        self.forwards = {self.there: 0, self.back: 0}
        self.backwards = {self.there: 0, self.back: 0}
        self.late: list[Action] = []
        """Gradients for weights that are still to be computed, the oldest first."""
        self.found: list[Entry] = []

    def entries(self) -> tuple[Entry, ...]:
        there, back = self.there, self.back
        behind = self.stages - 1 - self.stage
        for _ in range(2 * behind):
            self._forward(there)
        for _ in range(self.stage + 1):
            self._forward(there)
            self._forward(back)
        for _ in range(behind):
            self._input_gradient(back)
            self._weight_gradient()
            self._forward(back)
        while self.forwards[there] < self.micro_batches:
            self._both(there, back)
            self._both(back, there)
        for _ in range(behind):
            self._backward(back)
            self._both(back, there)
        for turn in range(self.stage + 1):
            step = self._backward if turn < (self.stage + 1) // 2 else self._input_gradient
            step(back)
            step(there)
        for _ in range(behind):
            self._weight_gradient()
            self._input_gradient(there)
        self._rest()
        return tuple(self.found)

    def _forward(self, chunk: int) -> None:
        number = self.forwards[chunk]
        if number < self.micro_batches:
            self.found.append(Action(FORWARD, chunk, number))
            self.forwards[chunk] += 1

    def _backward(self, chunk: int, kind: str = BACKWARD) -> bool:
        number = self.backwards[chunk]
        if number == self.micro_batches:
            return False
        self.found.append(Action(kind, chunk, number))
        self.backwards[chunk] += 1
        return True

    def _input_gradient(self, chunk: int) -> None:
        if self._backward(chunk, INPUT_GRADIENT):
            self.late.append(Action(WEIGHT_GRADIENT, chunk, self.backwards[chunk] - 1))

    def _weight_gradient(self) -> None:
        if self.late:
            self.found.append(self.late.pop(0))

    def _both(self, forward: int, backward: int) -> None:
        """A forward of one chunk and a backward of the other, at once where both are left."""
        ahead, behind = self.forwards[forward], self.backwards[backward]
        if ahead < self.micro_batches and behind < self.micro_batches:
            self.found.append(Overlapped(Action(FORWARD, forward, ahead), Action(BACKWARD, backward, behind)))
            self.forwards[forward] += 1
            self.backwards[backward] += 1
        else:
            self._forward(forward)
            self._backward(backward)

    def _rest(self) -> None:
        """What fewer micro-batches than the turns above leave."""
        for chunk in (self.back, self.there):
            while self.backwards[chunk] < self.micro_batches:
                self._input_gradient(chunk)
        while self.late:
            self._weight_gradient()
