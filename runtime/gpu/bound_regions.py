"""A graph that a node of a GPU's step runs, and what it finds around it.

A region's values have places as those of a step have; its parameters are what holds the operands, so that it is
prepared for every node that runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.cuda.random import RANDOM
from mspc.ops.cuda.source import address
from mspc.ops.device import Array, Launch
from mspc.runtime.gpu.ended_loops import EndedLoops
from mspc.runtime.gpu.launches import Backend, Constants, Held, Launches, count_of, like
from mspc.runtime.gpu.on_host import HostQuery
from mspc.runtime.gpu.progress import communicates, wait_for
from mspc.runtime.memory import MemoryPlan
from mspc.runtime.memory_plan import plan_memory
from mspc.runtime.region_memory import device_bytes_inside


@dataclass(frozen=True)
class RegionContext:
    """What a node that runs graphs finds around it.

    device: see `GpuDevice`; its `step` is the number that tells apart what is drawn here. key: of which it is mixed, by
    itself of the step and the turns of the `depth` loops around; without any it is the step's number. calls: numbers of
    nodes around that share their graphs.
    launches: makes the launch of a node that runs graphs, see `regions.region_launch`.
    host: a communicator of arrays on the host. ended: of the loops that the GPU decides on. loop_limit: seconds that a
    loop may take whose turns nobody has counted ahead; 0: any time. mark: makes of a collective's launch one that tells
    that this rank has come there.
    """

    device: Any
    backend: Backend
    constants: Constants
    launches: Callable[..., Launch]
    host: Any
    ended: EndedLoops
    loop_limit: float = 0.0
    key: Array = None
    mark: Callable[[Launch], Launch] | None = None
    depth: int = 0
    calls: tuple[int, ...] = ()
    plans: dict[tuple[Graph, int, int, bool], MemoryPlan] = field(
        default_factory=dict[tuple[Graph, int, int, bool], MemoryPlan]
    )

    def plan(self, graph: Graph, first: int = 0, carried: int = 0, outside: bool = False) -> MemoryPlan:
        """The plan of a graph, whose first results take the places of so many parameters from `first` on; `outside`:
        there are places for its results."""
        key = graph, first, carried, outside
        if key not in self.plans:
            replaced = dict(zip(graph.parameters[first : first + carried], graph.results, strict=False))
            self.plans[key] = plan_memory(graph, inside=device_bytes_inside, carried=replaced, outside=outside)
        return self.plans[key]

    def in_turns(self, key: Array) -> tuple[RegionContext, list[Launch]]:
        """What a loop's regions find, where the key is mixed of the one here and the number of the turn, and what has
        to run behind that."""
        return self._inside(key, self.depth + 1, self.calls)

    def in_call(self, number: int) -> tuple[RegionContext, list[Launch]]:
        """What the regions of a node find that draws other numbers than others which run them; and what has to run."""
        return self._inside(self.key, self.depth, (*self.calls, number))

    def in_micro_batch(self, number: int) -> tuple[RegionContext, list[Launch]]:
        """As `in_turns`, of the turn that a stage's work on a micro-batch is."""
        key = self.device.zeros((1,), "int64")
        kernel = self.device.kernel(_calls_source([-number]), "number_of_calls")
        inside, mixes = self.in_turns(key)
        return inside, [partial(kernel, 1, 1, (self.key, np.int32(self.depth > 0), key)), *mixes]

    def _inside(self, key: Array, depth: int, calls: tuple[int, ...]) -> tuple[RegionContext, list[Launch]]:
        if not calls:
            return replace(self, device=_Drawing(self.device, key), key=key, depth=depth), []
        number = self.device.zeros((1,), "int64")
        kernel = self.device.kernel(_calls_source(calls), "number_of_calls")
        mix = partial(kernel, 1, 1, (key, np.int32(depth > 0), number))
        return replace(self, device=_Drawing(self.device, number), key=key, depth=depth, calls=calls), [mix]


def _calls_source(calls: Sequence[int]) -> str:
    """See `random.words.number_of_run`."""
    mixes = " ".join(f"key = mixed(key + {-number % 2**64}ull + GOLDEN);" for number in calls)
    return (
        f'{RANDOM} extern "C" __global__ void number_of_calls(const long long* from, int inside, long long* number) '
        f"{{ u64 key = inside ? (u64)from[0] : mixed((u64)from[0] + GOLDEN); {mixes} number[0] = (long long)key; }}"
    )


class _Drawing:
    """A device where what is drawn depends on another number than that of the step."""

    def __init__(self, device: Any, step: Array) -> None:
        self._device = device
        self.step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


class _Named:
    """The launch of a node, of which what it raises bears the node, for the message."""

    def __init__(self, node: Node, launch: Launch) -> None:
        self._node, self._launch = node, launch
        self.count = count_of([launch])

    def __call__(self) -> None:
        try:
            self._launch()
        except Exception as error:
            if not hasattr(error, "node"):
                error.node = self._node  # type: ignore[attr-defined]  # for the message
            raise


class BoundRegion:
    """A region whose parameters are held by `given`: its launches, and what holds its results behind them.

    first, carried: see `Around.plan`. out: where results are wanted; those that a node makes lie there.
    """

    def __init__(
        self, around: RegionContext, graph: Graph, given: Sequence[Held], memory: Array, first: int = 0,
        carried: int = 0, out: Sequence[Held] = (),
    ) -> None:  # fmt: skip
        plan = around.plan(graph, first, carried, bool(out))
        stored: dict[Value, Held] = dict(zip(graph.parameters, given, strict=True))
        stored |= {value: around.constants.of(value) for value in plan.places if isinstance(value, Constant)}
        stored |= {place: _dense(around.device, held) for place, held in zip(plan.outside, out, strict=False) if place}
        made = Launches(
            graph, around.device, around.backend, plan, memory, stored, partial(around.launches, around)
        )  # fmt: skip
        runs = [node for node in graph.nodes if not node.op.is_view or node in plan.copied]
        self.launches = [self._marked(around, node, self._named(node, made.of(node)[0])) for node in runs]
        self.results = [made.arrays(value)[0] for value in graph.results]

    @staticmethod
    def _named(node: Node, launch: Launch) -> Launch:
        return like(launch, _Named(node, launch))

    @staticmethod
    def _marked(around: RegionContext, node: Node, launch: Launch) -> Launch:
        return around.mark(launch) if around.mark is not None and communicates(node) else launch


def _dense(device: Any, held: Held) -> Held:
    """Memory for a result that is wanted in `held`: other memory where there are gaps between rows."""
    if isinstance(held, list) or held.flags.c_contiguous:
        return held
    return device.empty(held.shape, held.dtype)


class Told:
    """A scalar of the GPU that the host reads: `fetch` is a launch, `wait` gives the number behind it."""

    def __init__(self, device: Any, array: Array) -> None:
        self._device, self._array = device, array
        self._number = device.pinned((1,), array.dtype)

    def fetch(self) -> None:
        self._device.receive(self._array.reshape((1,)), self._number)

    def wait(self) -> Any:
        wait_for(self._device, self._device.signal())
        return self._number[0]


def taken(
    device: Any, results: Sequence[Held], places: Sequence[Held], goes_on: bool = False
) -> list[Launch]:  # fmt: skip
    """Launches that leave a region's results in these places, one of which a result may show. goes_on: what made them
    runs again while they are needed, and fills its stacks anew."""
    first: list[Launch] = []
    then: list[Launch] = []
    for number, (result, place) in enumerate(zip(results, places, strict=True)):
        if isinstance(result, list):
            then.append(HostQuery(partial(_refill, device, place, result, goes_on)))
            continue
        if device.same(result, place):
            continue
        others = [other for i, other in enumerate(places) if i != number and not isinstance(other, list)]
        if any(overlap(result, other) for other in others):
            kept = device.empty(result.shape, result.dtype)
            first.append(partial(device.copy, result, kept))
            result = kept
        then.append(partial(device.copy, result, place))
    return first + then


def _refill(device: Any, place: list[Held], entries: list[Held], copies: bool) -> None:
    place[:] = own_copy(device, entries, None) if copies else entries


def own_copy(device: Any, value: Held, spare: Held) -> Held:
    """A copy of an array, in the array `spare` where that is one, or of all entries of a stack."""
    if isinstance(value, list):
        spares = spare if isinstance(spare, list) else []
        return [own_copy(device, entry, spares[i] if i < len(spares) else None) for i, entry in enumerate(value)]
    if spare is None or isinstance(spare, list):
        spare = device.empty(value.shape, value.dtype)
    device.copy(value, spare)
    return spare


def overlap(one: Array, other: Array) -> bool:
    """Whether two arrays of the GPU share memory."""
    first, second = address(one), address(other)
    return bool(one.nbytes and other.nbytes) and first < second + other.nbytes and second < first + one.nbytes
