"""Schedules of pipelines: for every stage the order of its actions on micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

from mspc.ir.diagnostics import MspcError, all_of, did_you_mean
from mspc.ir.late_dataclass import dataclass

GPIPE, ONE_FORWARD_ONE_BACKWARD, INTERLEAVED = "gpipe", "1f1b", "interleaved"
ZERO_BUBBLE_H1, ZERO_BUBBLE_2P = "zero_bubble_h1", "zero_bubble_2p"
ZERO_BUBBLE_V, DUAL_PIPE_V = "zero_bubble_v", "dual_pipe_v"
"""The schedules by the names that scripts give them."""
# Chunks are numbered as values flow: with v chunks on each of p stages there are p v of them.


FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "F", "B", "I", "W"
KINDS = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT_GRADIENT: "gradient for inputs",
    WEIGHT_GRADIENT: "gradient for weights",
}
"""The kinds of actions and their names. A backward is both gradients in one go."""
GRADIENTS = (BACKWARD, INPUT_GRADIENT)
"""The kinds that hand a gradient on to the chunk before."""
RELEASES = (BACKWARD, WEIGHT_GRADIENT)
"""The kinds that are the last to read the values stored by the forward."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a stage. kind: one of KINDS. chunk, micro_batch: numbers from 0."""

    kind: str
    chunk: int
    micro_batch: int

    def __str__(self) -> str:
        """Return the action as tables write it: `3F0` is the forward of chunk 3 on micro-batch 0."""
        return f"{self.chunk}{self.kind}{self.micro_batch}"


@dataclass(frozen=True)
class Schedule:
    """The order of work of every stage.

    name: as users write it; of a table, its file. micro_batches: how many, at least 1. placement: the stage of every
    chunk. entries: for every stage its actions, in order.
    """

    name: str
    micro_batches: int
    placement: tuple[int, ...]
    entries: tuple[tuple[Action, ...], ...]

    @property
    def stages(self) -> int:
        return len(self.entries)

    @property
    def chunks(self) -> int:
        """Those of all stages together."""
        return len(self.placement)

    def chunks_of(self, stage: int) -> list[int]:
        """Return the chunks that a stage has, in order."""
        return [chunk for chunk, place in enumerate(self.placement) if place == stage]


# A forward reads the activation of the previous chunk; a backward, or a gradient for inputs, its own forward's stored
# values and the gradient of the next chunk, if there is one; a gradient for weights the gradient for inputs.


Made = tuple[str, int, int]
"""A value by the kind of the action that makes it, its chunk and its micro-batch; of a backward, which makes both
gradients, the kinds are INPUT_GRADIENT and WEIGHT_GRADIENT."""


def reads(action: Action, chunks: int) -> tuple[Made, ...]:
    """Return the values that there must be before an action. chunks: of the whole pipeline."""
    kind, chunk, number = action.kind, action.chunk, action.micro_batch
    if kind == FORWARD:
        return ((FORWARD, chunk - 1, number),) if chunk else ()
    if kind == WEIGHT_GRADIENT:
        return ((INPUT_GRADIENT, chunk, number),)
    own = (FORWARD, chunk, number)
    return (own, (INPUT_GRADIENT, chunk + 1, number)) if chunk + 1 < chunks else (own,)


def makes(action: Action) -> tuple[Made, ...]:
    """Return the values that there are after an action."""
    if action.kind == BACKWARD:
        return tuple((kind, action.chunk, action.micro_batch) for kind in (INPUT_GRADIENT, WEIGHT_GRADIENT))
    return ((action.kind, action.chunk, action.micro_batch),)


def check_counts(
    name: str, stages: int, micro_batches: int, chunks: int, known: int | None = None, of: str = ""
) -> None:
    """Raise MspcError if a number is not positive, or the schedule has another number of chunks a stage. known: its
    only number of chunks, or None. of: a note on the alternative."""
    for what, number in (("stages", stages), ("micro-batches", micro_batches), ("chunks a stage", chunks)):
        if number < 1:
            raise MspcError(f"a schedule is for at least one of {what}, not for {number}", kind=ValueError)
    if known is not None and chunks != known:
        has = f"{known} chunk{'s' if known > 1 else ''} a stage"
        raise MspcError(f"the schedule {name!r} has {has}, not {chunks}", notes=[of] if of else [], kind=ValueError)


def in_rounds(stages: int, chunks: int) -> tuple[int, ...]:
    """Chunk k is on stage k modulo the number of stages. chunks: a stage's."""
    return tuple(range(stages)) * chunks


def there_and_back(stages: int) -> tuple[int, ...]:
    """Stage i has chunks i and 2 p - 1 - i: values go there and come back, as the letter V does."""
    return (*range(stages), *reversed(range(stages)))


def gpipe(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """GPipe (arXiv 1811.06965): all forwards, then all backwards.

    A stage is idle for (p - 1) (F + B) / v and keeps all m micro-batches. With several chunks a stage it is the looped
    schedule of arXiv 2211.05953, breadth first. Backwards are in the order of forwards, not in the reverse one of the
    paper's figure: neither is idle for longer, and so gradients are summed in the order that other schedules have.

    chunks: a stage's. Raise MspcError if a number is not positive.
    """
    check_counts(GPIPE, stages, micro_batches, chunks)
    entries: list[tuple[Action, ...]] = []
    for stage in range(stages):
        own = range(stage, stages * chunks, stages)
        forward = [Action(FORWARD, chunk, n) for chunk in own for n in range(micro_batches)]
        backward = [Action(BACKWARD, chunk, n) for chunk in reversed(own) for n in range(micro_batches)]
        entries.append((*forward, *backward))
    return Schedule(GPIPE, micro_batches, in_rounds(stages, chunks), tuple(entries))


def one_forward_one_backward(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """1F1B (arXiv 1806.03377 and 2006.09503): as soon as a stage has a gradient, forwards and backwards take turns.

    Stage i begins with p - 1 - i forwards, as many as it takes until the first gradient comes back. It is idle for
    (p - 1) (F + B), as in GPipe, but keeps p - i micro-batches in place of all.

    Raise MspcError if a stage has more than one chunk.
    """
    check_counts(
        ONE_FORWARD_ONE_BACKWARD, stages, micro_batches, chunks, known=1, of="'interleaved' is 1F1B with several"
    )
    entries: list[tuple[Action, ...]] = []
    for stage in range(stages):
        forward = [Action(FORWARD, stage, number) for number in range(micro_batches)]
        backward = [Action(BACKWARD, stage, number) for number in range(micro_batches)]
        entries.append(taking_turns(forward, backward, stages - 1 - stage))
    return Schedule(ONE_FORWARD_ONE_BACKWARD, micro_batches, in_rounds(stages, 1), tuple(entries))


def taking_turns(forward: list[Action], backward: list[Action], first: int) -> tuple[Action, ...]:
    """Return `first` forwards, then forwards and backwards in turn, then the remaining backwards."""
    found: list[Action] = list(forward[:first])
    for place, action in enumerate(backward, min(first, len(forward))):
        found += forward[place : place + 1]
        found.append(action)
    return tuple(found)


def interleaved(stages: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B (arXiv 2104.04473): 1F1B with v chunks a stage, which micro-batches pass in groups.

    A group of micro-batches passes all chunks of a stage before the next one begins. The paper's groups have p
    micro-batches; here there are m // p groups that differ by one micro-batch at most, because a group smaller than p
    would leave stages idle within a step. A stage is idle for (p - 1) (F + B) / v for every m >= p; F and B are the
    times of all its chunks together. Stage 0 stores (v - 1) g + 2 p - 1 micro-batches of chunks for a largest group g:
    (v + 1) p - 1 if p divides m.

    chunks: a stage's. Raise MspcError if a number is not positive.
    """
    check_counts(INTERLEAVED, stages, micro_batches, chunks)
    groups = groups_of(micro_batches, stages)
    longest = max(map(len, groups))
    entries: list[tuple[Action, ...]] = []
    for stage in range(stages):
        own = range(stage, stages * chunks, stages)
        forward = [Action(FORWARD, chunk, n) for group in groups for chunk in own for n in group]
        backward = [Action(BACKWARD, chunk, n) for group in groups for chunk in reversed(own) for n in group]
        # A micro-batch takes 2 (p - 1 - i) further actions from this stage to the last one and back.
        first = (chunks - 1) * longest + 2 * (stages - 1 - stage)
        entries.append(taking_turns(forward, backward, first))
    return Schedule(INTERLEAVED, micro_batches, in_rounds(stages, chunks), tuple(entries))


def groups_of(micro_batches: int, stages: int) -> list[range]:
    """Return the micro-batches in m // p groups, or one, that differ by one at most; larger ones come first."""
    count = max(1, micro_batches // stages)
    size, larger = divmod(micro_batches, count)
    starts = [size * number + min(number, larger) for number in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def with_delayed_weights(chunk: int, micro_batches: int, first: int, delay: int) -> tuple[Action, ...]:
    """Return the order of a stage that computes gradients for weights `delay` micro-batches later than those for
    inputs.

    Both handcrafted schedules of arXiv 2401.10241 have this form: a later stage delays gradients for weights longer and
    hands gradients for inputs back sooner; the delayed work fills the end, when earlier stages still wait for
    gradients. chunk: the stage's. first: forwards before the first gradient. It stores at most `first + delay`
    micro-batches.
    """
    found: list[Action] = [Action(FORWARD, chunk, number) for number in range(min(first, micro_batches))]
    for number in range(micro_batches):
        found.append(Action(INPUT_GRADIENT, chunk, number))
        if number >= delay:
            found.append(Action(WEIGHT_GRADIENT, chunk, number - delay))
        if number + first < micro_batches:
            found.append(Action(FORWARD, chunk, number + first))
    late = range(max(0, micro_batches - delay), micro_batches)
    return (*found, *(Action(WEIGHT_GRADIENT, chunk, number) for number in late))


def zero_bubble_h1(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """ZB-H1 (arXiv 2401.10241): 1F1B in whose idle time stages compute gradients for weights.

    Stage i begins with p - i forwards, as 1F1B does, and puts gradients for weights off by i micro-batches. So every
    stage stores p micro-batches, as many as stage 0 of 1F1B, and is idle for (p - 1) (F + I - W), where I is the time
    of the gradient for inputs: a third of 1F1B's where F = I = W. (With B = I + W it is the (p - 1) (F + B - 2 W) of
    ZB1P.)

    Raise MspcError if a stage has more than one chunk.
    """
    check_counts(ZERO_BUBBLE_H1, stages, micro_batches, chunks, known=1, of="'zero_bubble_v' has two")
    entries = (with_delayed_weights(i, micro_batches, stages - i, i) for i in range(stages))
    return Schedule(ZERO_BUBBLE_H1, micro_batches, in_rounds(stages, 1), tuple(entries))


def zero_bubble_2p(stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """ZB-2P (arXiv 2401.10241, there the handcrafted ZB-H2): no idle time, for twice the memory.

    Stage i begins with 2 (p - i) - 1 forwards, which last until the first gradient comes back, and puts gradients
    for weights off by 2 i micro-batches, which last until the stages before it have ended. So every stage stores 2 p
    - 1 micro-batches and is never idle between its first and last action if F = I = W and m >= 2 p - 1. Stages
    begin and end one after the other: if the optimizer's check is postponed, a stage begins its next step before
    others have ended this one.

    Raise MspcError if a stage has more than one chunk.
    """
    check_counts(ZERO_BUBBLE_2P, stages, micro_batches, chunks, known=1, of="'zero_bubble_v' has two")
    entries = (with_delayed_weights(i, micro_batches, 2 * (stages - i) - 1, 2 * i) for i in range(stages))
    return Schedule(ZERO_BUBBLE_2P, micro_batches, in_rounds(stages, 1), tuple(entries))


STEADY = (WEIGHT_GRADIENT, FORWARD, INPUT_GRADIENT)
AT_THE_ENDS = STEADY[::-1]
"""The kind of action that comes first in the middle of a step, and before and after that."""


def zero_bubble_v(stages: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """ZB-V (arXiv 2401.10241, and 2405.15362): stages with two chunks, there and back, no idle time, 1F1B's memory.

    Stage i has chunks i and 2 p - 1 - i, so that the loss is on stage 0, which has the first gradient at once. The
    order is found by rules, as if forwards and both gradients took one unit each:

    - A stage stores at most 2 p chunks' micro-batches, which is as much as p of a whole stage; from its first
      gradient on the last place is for its second chunk, without which no gradient would come.
    - Before its first gradient it runs forwards, those of the second chunk first, as many as it may store.
    - Then gradients for weights come first, which make room, then forwards, those of the second chunk first, then
      gradients for inputs, those of the earliest micro-batch first.
    - Once the forwards of the second chunk have ended, gradients for inputs come before those for weights, which fill
      the time until the former can be computed.

    No stage is idle between its first and last action if F = I = W and m >= 2 p - 1.

    Raise MspcError if a stage has not two chunks.
    """
    check_counts(ZERO_BUBBLE_V, stages, micro_batches, chunks, known=2)
    order = [_ZeroBubbleVStage(stages, stage, micro_batches) for stage in range(stages)]
    made: set[Made] = set()
    left = stages * micro_batches * len(STEADY) * chunks
    while left:
        chosen = [action for stage in order if (action := stage.choose(made))]
        if not chosen:
            raise AssertionError(f"no stage of {stages} has anything to do with {left} actions left")
        made.update(value for action in chosen for value in makes(action))
        left -= len(chosen)
    return Schedule(ZERO_BUBBLE_V, micro_batches, there_and_back(stages), tuple(tuple(stage.found) for stage in order))


class _ZeroBubbleVStage:
    """One stage as its order is found, a unit of time after the other."""

    def __init__(self, stages: int, stage: int, micro_batches: int) -> None:
        self.stages, self.micro_batches = stages, micro_batches
        self.there, self.back = stage, 2 * stages - 1 - stage
        self.counts = {(kind, chunk): 0 for kind in STEADY for chunk in (self.there, self.back)}
        """Micro-batches of which the action of a kind on a chunk is done."""
        self.kept = 0
        self.found: list[Action] = []

    def choose(self, made: set[Made]) -> Action | None:
        """Return its action in this unit of time, given the values made so far, or None."""
        is_steady = self.counts[INPUT_GRADIENT, self.back] and self.counts[FORWARD, self.back] < self.micro_batches
        for kind in STEADY if is_steady else AT_THE_ENDS:
            chunks = (self.back, self.there)
            if kind != FORWARD:
                chunks = sorted(chunks, key=lambda chunk: (self.counts[kind, chunk], -chunk))
            for chunk in chunks:
                action = Action(kind, chunk, self.counts[kind, chunk])
                if action.micro_batch < self.micro_batches and self._may(action, made):
                    self.counts[action.kind, action.chunk] += 1
                    self.kept += {FORWARD: 1, INPUT_GRADIENT: 0, WEIGHT_GRADIENT: -1}[action.kind]
                    self.found.append(action)
                    return action
        return None

    def _may(self, action: Action, made: set[Made]) -> bool:
        if action.kind == FORWARD:
            reserved = 1 if action.chunk == self.there and self.counts[INPUT_GRADIENT, self.back] else 0
            if self.kept + reserved >= 2 * self.stages:
                return False
        return made.issuperset(reads(action, 2 * self.stages))


def dual_pipe_v(stages: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """DualPipe-V: stages with two chunks, there and back; forwards of one alternate with backwards of the other.

    DualPipe is from the report on DeepSeek-V3 (arXiv 2412.19437); the half of it in which stage i has chunks i and 2
    p - 1 - i needs each parameter on one stage only. It is 1F1B of 2 p stages folded in the middle: chunk k has 2 p
    - k micro-batches on the way, so a stage keeps 2 p + 1 chunks' micro-batches. If a gradient is waited for,
    gradients for weights are separate and later. A stage is idle for at most (p - 1) (F + 2 B - 3 W), times of
    one chunk: a forward and a backward run one after the other here.

    The numbers of iterations follow from when values arrive if every action takes one unit: on stage i the first
    forward of the second chunk comes 2 (p - 1 - i) + 1 units after that of the first, its first gradient 2 (i + 1)
    units later, and the first gradient of the first chunk 3 (p - 1 - i) units after that one.

    Raise MspcError if a stage has not two chunks.
    """
    check_counts(DUAL_PIPE_V, stages, micro_batches, chunks, known=2)
    entries = (_DualPipeVStage(stages, stage, micro_batches).entries() for stage in range(stages))
    return Schedule(DUAL_PIPE_V, micro_batches, there_and_back(stages), tuple(entries))


class _DualPipeVStage:
    """The order of one stage as it is written; iterations for which no micro-batch is left are skipped."""

    def __init__(self, stages: int, stage: int, micro_batches: int) -> None:
        self.stages, self.stage, self.micro_batches = stages, stage, micro_batches
        self.there, self.back = stage, 2 * stages - 1 - stage
        self.forwards = {self.there: 0, self.back: 0}
        self.backwards = {self.there: 0, self.back: 0}
        self.late: list[Action] = []
        """Gradients for weights that are still to be computed, the oldest first."""
        self.found: list[Action] = []

    def entries(self) -> tuple[Action, ...]:
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
        for number in range(self.stage + 1):
            step = self._backward if number < (self.stage + 1) // 2 else self._input_gradient
            step(back)
            step(there)
        for _ in range(behind):
            self._weight_gradient()
            self._input_gradient(there)
        for chunk in (self.back, self.there):
            while self.backwards[chunk] < self.micro_batches:
                self._input_gradient(chunk)
        while self.late:
            self._weight_gradient()
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
        self._forward(forward)
        self._backward(backward)


SCHEDULES: dict[str, Callable[[int, int, int], Schedule]] = {
    GPIPE: gpipe,
    ONE_FORWARD_ONE_BACKWARD: one_forward_one_backward,
    INTERLEAVED: interleaved,
    ZERO_BUBBLE_H1: zero_bubble_h1,
    ZERO_BUBBLE_2P: zero_bubble_2p,
    ZERO_BUBBLE_V: zero_bubble_v,
    DUAL_PIPE_V: dual_pipe_v,
}
"""The function that makes a schedule for numbers of stages, of micro-batches and of chunks a stage, by its name."""
IN_PARTS = ("seqpipe", "seqvpp", "seqsmartvpp")
"""MindSpore's schedules that cut micro-batches along the sequence, too."""
WITH_SPLIT_GRADIENTS = frozenset((ZERO_BUBBLE_H1, ZERO_BUBBLE_2P, ZERO_BUBBLE_V, DUAL_PIPE_V))
"""Those that take gradients for inputs and for weights apart."""
THERE_AND_BACK = frozenset((ZERO_BUBBLE_V, DUAL_PIPE_V))
"""Those whose stages have two chunks each: values go through the stages and back."""


def check_name(name: str) -> None:
    """Raise MspcError if there is no schedule of a name, with the nearest ones, or if it is not supported."""
    if name in IN_PARTS:
        raise MspcError(
            f"the schedule {name!r} cuts micro-batches along the sequence, which mspc does not do",
            notes=["'1f1b', with interleaving for several chunks a stage, runs the same network"],
            kind=ValueError,
        )
    if name not in SCHEDULES:
        notes = [*did_you_mean(name, SCHEDULES), f"there are {all_of(name, SCHEDULES)}"]
        raise MspcError(f"there is no schedule {name!r}", notes=notes, kind=ValueError, code="E0504")


def named_schedule(
    name: str, stages: int, micro_batches: int, chunks: int | None = None, *, interleave: bool = False
) -> Schedule:
    """Return the schedule of a name.

    chunks: of every stage; None: as many as the schedule has, two if it may have any number. interleave: MindSpore's
    setting of that name: a stage has several chunks. With `1f1b` that is interleaved 1F1B.

    Raise MspcError if there is no such schedule, or it is not for these numbers.
    """
    check_name(name)
    if interleave and name == ONE_FORWARD_ONE_BACKWARD:
        name = INTERLEAVED
    if chunks is None:
        several = name in THERE_AND_BACK or name == INTERLEAVED or (interleave and name == GPIPE)
        chunks = 2 if several else 1
    return _made(name, stages, micro_batches, chunks)


@lru_cache(maxsize=64)  # every stage of a program asks for the same one
def _made(name: str, stages: int, micro_batches: int, chunks: int) -> Schedule:
    return SCHEDULES[name](stages, micro_batches, chunks)
