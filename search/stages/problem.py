"""What a search for borders between stages is about: units in a row with their costs, and ways to run them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.schedules import (
    DUAL_PIPE_V,
    GPIPE,
    INTERLEAVED,
    ONE_FORWARD_ONE_BACKWARD,
    SCHEDULES,
    THERE_AND_BACK,
    WITH_SPLIT_GRADIENTS,
    ZERO_BUBBLE_2P,
    ZERO_BUBBLE_H1,
    ZERO_BUBBLE_V,
    Schedule,
)
from mspc.search.stages.host_bytes import HostBytes

Numbers = np.ndarray
"""Float64, one of every unit."""
ONE_CHUNK = (ONE_FORWARD_ONE_BACKWARD, GPIPE, ZERO_BUBBLE_H1, ZERO_BUBBLE_2P)
TWO_CHUNKS = (ZERO_BUBBLE_V, DUAL_PIPE_V)
IN_ROUNDS = INTERLEAVED
MOST_CHUNKS = 4
"""Chunks of a stage at most, in rounds."""


@dataclass(frozen=True)
class ApartCosts:
    """Costs of units that run one by one, as those of schedules that have gradients of inputs and of weights apart do,
    even where equal ones are one graph else. forward: seconds. kept, held, work, sent: as of `UnitCosts`. late: what of
    `kept` gradients of weights read; between: what gradients of inputs keep of a micro-batch for these."""

    forward: Numbers
    kept: Numbers
    held: Numbers
    work: Numbers
    sent: Numbers
    late: Numbers
    between: Numbers


@dataclass(frozen=True)
class UnitCosts:
    """Costs of units in the order of the values, for one number of ranks a stage and one of micro-batches.

    forward, backward: seconds for one micro-batch. inputs, weights: of the two gradients where they are apart. rest:
    seconds of a step that belong to no micro-batch, as the optimizer's. kept: bytes that one micro-batch keeps for
    gradients. held: bytes of parameters, their states and gradients, and what else is there from micro-batch to
    micro-batch; totals: those of them that sums of gradients are, which begin with the first micro-batch's. work: bytes
    of buffers beside that, at most. entry: bytes that a micro-batch keeps of what comes to a chunk that begins with the
    unit. message: seconds from each unit to the next one, with one entry less than the others. sent: bytes in a step,
    beside messages between stages; there: what a stage that ends with the unit sends on in a step, back: what one that
    begins with it sends back. apart: of units that run one by one. loops: (first, number) of equal units that are one
    graph; one that is alone in its chunk runs by itself. host: what may live in the host's memory; None for nothing.
    """

    forward: Numbers
    backward: Numbers
    inputs: Numbers
    weights: Numbers
    rest: Numbers
    kept: Numbers
    held: Numbers
    work: Numbers
    message: Numbers
    sent: Numbers
    entry: Numbers
    there: Numbers
    back: Numbers
    totals: Numbers
    apart: ApartCosts
    loops: tuple[tuple[int, int], ...] = ()
    host: HostBytes | None = None

    def alone(self, way: Way, joint: Numbers, apart: Numbers, first: np.ndarray, end: np.ndarray) -> Numbers:
        """What chunks from unit `first` to `end` cost by themselves beside what their units do together: they may have
        one alone of a loop. joint, apart: costs of units in a loop and by themselves."""
        found = np.zeros(np.broadcast_shapes(first.shape, end.shape))
        for is_alone, unit in self.units_alone(way, first, end):
            found += np.where(is_alone, (apart - joint)[unit], 0.0)
        return found

    def units_alone(self, way: Way, first: np.ndarray, end: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each loop whether these chunks have one of its units, and which."""
        for begin, count in () if way.is_apart else self.loops:
            own = np.maximum(first, begin)
            yield np.minimum(end, begin + count) - own == 1, np.minimum(own, self.count - 1)

    def forward_of(self, way: Way) -> Numbers:
        """The seconds of forward operators by a schedule."""
        return self.apart.forward if way.is_apart else self.forward

    def kept_of(self, way: Way) -> Numbers:
        """The bytes that one micro-batch keeps by a schedule."""
        return self.apart.kept if way.is_apart else self.kept

    def late_of(self, way: Way) -> Numbers:
        """The bytes of these that are kept until the gradients of weights by a schedule that has those apart."""
        return self.apart.late if way.is_apart else np.zeros(self.count)

    def between_of(self, way: Way) -> Numbers:
        """The bytes that it keeps of a micro-batch between its two gradients."""
        return self.apart.between if way.is_apart else np.zeros(self.count)

    def work_of(self, way: Way) -> Numbers:
        """The bytes of buffers by a schedule."""
        return self.apart.work if way.is_apart else self.work

    def held_of(self, way: Way) -> Numbers:
        """The bytes that are held all the time by a schedule."""
        return self.apart.held if way.is_apart else self.held

    def sent_of(self, way: Way) -> Numbers:
        """The bytes that are sent in a step by a schedule."""
        return self.apart.sent if way.is_apart else self.sent

    def backward_of(self, way: Way) -> Numbers:
        """The seconds of both gradients in one go by a schedule: one that has them apart elsewhere runs both graphs."""
        return self.inputs + self.weights if way.is_apart else self.backward

    @property
    def count(self) -> int:
        return len(self.forward)

    def only(self, units: Numbers) -> UnitCosts:
        """The same with values of these units on the host alone, a bool of each."""
        return self if self.host is None else replace(self, host=self.host.only(units))


@dataclass(frozen=True)
class Way:
    """A way to run stages. schedule: its name. chunks: of each stage. tensor: ranks that share a product in pairs of
    products, 0 for layouts that the search finds. slices: parameters and their states are stored in slices over ranks
    that would hold the same. again: cells are computed again for gradients. states, values: states of optimizers, and
    what gradients read of units, live in the memory of the host."""

    stages: int
    schedule: str
    micro_batches: int
    chunks: int = 1
    tensor: int = 0
    slices: bool = False
    again: bool = False
    states: bool = False
    values: bool = False

    @property
    def made(self) -> Schedule:
        """The order of work. Raises MspcError where there is none for these numbers."""
        return SCHEDULES[self.schedule](self.stages, self.micro_batches, self.chunks)

    @property
    def order(self) -> Way:
        """What counts for the order of work."""
        return Way(self.stages, self.schedule, self.micro_batches, self.chunks)

    @property
    def parts(self) -> int:
        """Chunks of all stages together."""
        return self.stages * self.chunks

    @property
    def is_apart(self) -> bool:
        """Whether gradients of inputs and of weights are apart."""
        return self.schedule in WITH_SPLIT_GRADIENTS

    @property
    def scheduler(self) -> str:
        """The schedule as scripts and plans name it, who say by the chunks that it is interleaved."""
        return ONE_FORWARD_ONE_BACKWARD if self.schedule == IN_ROUNDS else self.schedule

    @property
    def name(self) -> str:
        """For people."""
        several = f", {self.chunks} chunks" if self.chunks > 1 and self.schedule not in THERE_AND_BACK else ""
        return self.schedule + several

    @property
    def held_less_by(self) -> str:
        """What ranks do to hold less, as messages go on with it; "" for nothing."""
        ways = ["parameters in slices"] * self.slices + ["cells computed again"] * self.again
        ways += ["states on the host"] * self.states + ["values on the host"] * self.values
        return "".join(f", {way}" for way in ways)


def ways_of(
    stages: int, micro_batches: int, units: int, tensor: int = 0, slices: bool = False, again: bool = False,
    states: bool = False,
) -> list[Way]:  # fmt: skip
    """The ways for these numbers: every stage has work, and there are no fewer micro-batches than stages. Where cells
    are computed again, gradients of weights are not apart: what they read would be kept until then."""
    if micro_batches < stages or stages > units:
        return []
    found = [Way(stages, name, micro_batches) for name in ONE_CHUNK]
    rounds = range(2, MOST_CHUNKS + 1)
    found += [Way(stages, IN_ROUNDS, micro_batches, chunks) for chunks in rounds if stages * chunks <= units]
    if 2 * stages <= units:
        found += [Way(stages, name, micro_batches, 2) for name in TWO_CHUNKS]
    found = [replace(way, tensor=tensor, slices=slices, again=again, states=states) for way in found]
    return [way for way in found if not (again and way.is_apart)]


Borders = tuple[int, ...]
"""The first unit of every chunk but the first, ascending; every chunk has one."""


def equal_parts(units: int, parts: int) -> Borders:
    """Borders with as many units in each part, as nearly as can be; larger parts come first."""
    size, larger = divmod(units, parts)
    return tuple(size * i + min(i, larger) for i in range(1, parts))
