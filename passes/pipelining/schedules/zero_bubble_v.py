"""ZB-V (arXiv 2401.10241, and 2405.15362): stages with two chunks, there and back, no idle time, the memory of 1F1B.

Stage i has chunks i and 2 p - 1 - i, so that the loss is on stage 0, where the first gradient is there at once. The
order is found by rules, as if forwards and both gradients took one unit each:

- A stage keeps at most 2 p chunks' micro-batches, which is as much as p of a whole stage; from its first
  gradient on the last place is for its second chunk, without which no gradient would come.
- Before its first gradient it runs forwards, those of the second chunk first, as many as it may keep.
- Then gradients for weights come first, which make room, then forwards, those of the second chunk first, then gradients
  for inputs, those of the earliest micro-batch first.
- Once the forwards of the second chunk have ended, gradients for inputs come before those for weights, which fill the
  time until the former can be computed.

No stage is idle between its first and last action where F = I = W and m >= 2 p - 1.
"""

from __future__ import annotations

from mspc.passes.pipelining.schedules.action import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
)  # fmt: skip
from mspc.passes.pipelining.schedules.counts import check_counts, there_and_back
from mspc.passes.pipelining.schedules.dependence import Made, makes, reads

NAME = "zero_bubble_v"
WARM_UP = (INPUT_GRADIENT, FORWARD, WEIGHT_GRADIENT)
STEADY = (WEIGHT_GRADIENT, FORWARD, INPUT_GRADIENT)
AT_THE_END = (INPUT_GRADIENT, FORWARD, WEIGHT_GRADIENT)
"""Which kind of action comes first in the three parts of a step."""


def schedule(stages: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """The schedule of so many micro-batches. Raises MspcError where a stage has not two chunks."""
    check_counts(NAME, stages, micro_batches, chunks, known=2)
    order = [_Stage(stages, stage, micro_batches) for stage in range(stages)]
    made: set[Made] = set()
    left = stages * micro_batches * len(STEADY) * chunks
    while left:
        chosen = [action for stage in order if (action := stage.choose(made))]
        if not chosen:
            raise AssertionError(f"no stage of {stages} has anything to do with {left} actions left")
        made.update(value for action in chosen for value in makes(action))
        left -= len(chosen)
    return Schedule(NAME, micro_batches, there_and_back(stages), tuple(tuple(stage.found) for stage in order))


class _Stage:
    """One stage as its order is found, a unit of time after the other."""

    def __init__(self, stages: int, stage: int, micro_batches: int) -> None:
        self.stages, self.micro_batches = stages, micro_batches
        self.there, self.back = stage, 2 * stages - 1 - stage
        self.counts = {(kind, chunk): 0 for kind in STEADY for chunk in (self.there, self.back)}
        """Micro-batches of which the action of a kind on a chunk is done."""
        self.kept = 0
        self.found: list[Action] = []

    def choose(self, made: set[Made]) -> Action | None:
        """What it does in this unit of time, given the values that there are; None where there is nothing to do."""
        for kind in self._kinds():
            chunks = (self.back, self.there)
            if kind != FORWARD:
                chunks = sorted(chunks, key=lambda chunk: (self.counts[kind, chunk], -chunk))
            for chunk in chunks:
                action = Action(kind, chunk, self.counts[kind, chunk])
                if action.micro_batch < self.micro_batches and self._may(action, made):
                    self._do(action)
                    return action
        return None

    def _kinds(self) -> tuple[str, ...]:
        if self.counts[FORWARD, self.back] == self.micro_batches:
            return AT_THE_END
        return STEADY if self.counts[INPUT_GRADIENT, self.back] else WARM_UP

    def _may(self, action: Action, made: set[Made]) -> bool:
        if action.kind == FORWARD:
            reserved = 1 if action.chunk == self.there and self.counts[INPUT_GRADIENT, self.back] else 0
            if self.kept + reserved >= 2 * self.stages:
                return False
        return made.issuperset(reads(action, 2 * self.stages))

    def _do(self, action: Action) -> None:
        self.counts[action.kind, action.chunk] += 1
        self.kept += {FORWARD: 1, INPUT_GRADIENT: 0, WEIGHT_GRADIENT: -1}[action.kind]
        self.found.append(action)
