"""Regions bound to the memory of a GPU's step, and their environment.

A region's values have memory like those of a step. Its parameters are the operands' memory, so that it is prepared for
every node that runs it. Loops that take too long are ended here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.cuda.text import address
from mspc.ops.device import Array, Launch
from mspc.runtime.gpu.launches import Backend, Constants, Launches, Storage, count_of, with_host_query
from mspc.runtime.gpu.progress import HostQuery, communicates, wait_for
from mspc.runtime.memory import MemoryPlan
from mspc.runtime.memory_plan import device_bytes_inside, plan_memory
from mspc.runtime.regions.region import too_long

# Loops that the GPU ends early: after their time limit, or because the host no longer waits. Their results are invalid,
# and later updates change nothing.


class EndedLoops:
    """State of the ended loops of one step.

    array: Int64 of two elements on the GPU: number of the loop that took too long, from 1 (0 for none, -1 if all loops
    must end), and its number of iterations. are_limited: loops have a time limit. slots: steps in flight, see
    `executor`. device: see `GpuDevice`. limit: seconds that a loop may take, 0 for no limit.
    """

    def __init__(self, device: Any, limit: float) -> None:
        self.array = device.empty((2,), "int64")
        self._device, self._limit = device, limit
        self.slots: Sequence[Any] = ()
        self._loops: list[tuple[Node, bool]] = []
        self.are_limited = False
        self._left: tuple[Any, Any] | None = None
        """The number that the GPU was sent to leave all loops, and the event after it."""
        self._clear()
        device.ended_loops.add(self)

    def number_of(self, node: Node, has_condition: bool, limited: bool) -> int:
        """Return the number of a new loop that the GPU decides."""
        self._loops.append((node, has_condition))
        self.are_limited = self.are_limited or limited
        return len(self._loops)

    @property
    def has_loops(self) -> bool:
        """Whether the GPU decides any loop."""
        return bool(self._loops)

    def tell(self, record: Any) -> None:
        """Copy the array to `record` on the host, on the current stream, if loops have a time limit."""
        if self.are_limited:
            self._device.receive(self.array, record)

    def has_ended(self, record: Any) -> bool:
        """Return whether a loop took too long in the step after which `tell` filled this array."""
        return self.are_limited and bool(record[0])

    def error(self, record: Any) -> tuple[ExecutionError, Node]:
        """Return the error of a loop that took too long, and its node. record: contents of the array."""
        node, has_condition = self._loops[int(record[0]) - 1]
        return too_long(self._limit, int(record[1]), has_condition), node

    def cause(self, error: Exception, node: Node | None) -> tuple[Exception, Node | None]:
        """Return the error and node of a loop that the GPU ended before, which caused the host's error, or else the
        host's error and node. Later steps run normally."""
        if not self.are_limited:
            return error, node
        record, device = np.zeros(2, np.int64), self._device
        with device.stream("compute"):
            device.receive(self.array, record)
        device.synchronize()
        if record[0] <= 0:
            return error, node
        self._forget()
        return self.error(record)

    def fail(self, failure: Exception) -> None:
        """Wait for the steps in flight: those with an ended loop have failed, later ones run normally."""
        self._forget()
        for slot in self.slots:
            if slot.done is not None and self.has_ended(slot.ended):
                slot.done, slot.failed = None, failure

    def leave(self) -> None:
        """End all loops running on the GPU, because the host no longer waits for their steps. Updates after an ended
        loop change nothing, in other graphs, too."""
        deciding: list[EndedLoops] = [each for each in self._device.ended_loops if each.has_loops]
        if not deciding:
            return
        for each in self._device.ended_loops:
            for slot in each.slots:
                if slot.done is not None:
                    slot.done, slot.failed = None, ExecutionError("the step was interrupted")
        for each in deciding:
            if each._left is None:
                # Pinned host memory, for a copy in parallel to the running graph.
                number = self._device.pinned((2,), "int64")
                number[:] = -1, 0
                with self._device.stream("copy"):
                    self._device.send(number, each.array)
                    each._left = number, self._device.signal()

    def wait_for_aborted(self) -> None:
        """Wait for aborted loops and the work after them; later loops run to their end."""
        for each in list(self._device.ended_loops):
            if each._left is not None:
                wait_for(self._device, each._left[1])
                with self._device.stream("compute"):
                    wait_for(self._device, self._device.signal(), interruptible=True)
                each._forget()

    def _forget(self) -> None:
        self._device.synchronize()
        self._clear()
        with self._device.stream("compute"):
            self._device.send(np.zeros(1, np.int32), self._device.stop)
        self._device.synchronize()
        self._left = None

    def _clear(self) -> None:
        """Clear the state in stream order."""
        with self._device.stream("compute"):
            self._device.send(np.zeros(2, np.int64), self.array)


@dataclass(frozen=True)
class RegionContext:
    """Environment of a node with regions.

    device: see `GpuDevice`; its `step` is the number that random draws depend on here. key: hash of the step and the
    iterations of the `depth` enclosing loops; without loops the step's number. calls: numbers of enclosing nodes that
    share their graphs. launches: makes the launch of a node with regions, see `regions.region_launch`. host:
    communicator of arrays on the host. ended: of the loops that the GPU decides. loop_limit: seconds that a loop with
    an unknown number of iterations may take, 0 for no limit. mark: wraps a collective's launch to report that this rank
    has reached it.
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
        """Return the memory plan of a graph whose first results use the memory of `carried` parameters from `first` on.
        outside: the caller supplies memory for its results."""
        key = graph, first, carried, outside
        if key not in self.plans:
            replaced = dict(zip(graph.parameters[first : first + carried], graph.results, strict=False))
            self.plans[key] = plan_memory(graph, inside=device_bytes_inside, carried=replaced, outside=outside)
        return self.plans[key]

    def in_loop(self, key: Array) -> tuple[RegionContext, list[Launch]]:
        """Return the environment of a loop's regions, whose key also depends on the iteration, and the launch that
        computes the key."""
        return self._inside(key, self.depth + 1, self.calls)

    def in_call(self, number: int) -> tuple[RegionContext, list[Launch]]:
        """Return the environment of a node's regions with other random numbers than other nodes with these regions, and
        the launch that computes the key."""
        return self._inside(self.key, self.depth, (*self.calls, number))

    def in_micro_batch(self, number: int) -> tuple[RegionContext, list[Launch]]:
        """Return the same as `in_loop`, for a stage's work on a micro-batch as one iteration."""
        key = self.device.zeros((1,), "int64")
        kernel = self.device.kernel(_calls_source([-number]), "number_of_calls")
        inside, mixes = self.in_loop(key)
        return inside, [partial(kernel, 1, 1, (self.key, np.int32(self.depth > 0), key)), *mixes]

    def _inside(self, key: Array, depth: int, calls: tuple[int, ...]) -> tuple[RegionContext, list[Launch]]:
        if not calls:
            return replace(self, device=_DeviceWithStep(self.device, key), key=key, depth=depth), []
        number = self.device.zeros((1,), "int64")
        kernel = self.device.kernel(_calls_source(calls), "number_of_calls")
        mix = partial(kernel, 1, 1, (key, np.int32(depth > 0), number))
        return replace(self, device=_DeviceWithStep(self.device, number), key=key, depth=depth, calls=calls), [mix]


def _calls_source(calls: Sequence[int]) -> str:
    """See `random.words.number_of_run`."""
    mixes = " ".join(f"key = mixed(key + {-number % 2**64}ull + GOLDEN);" for number in calls)
    return (
        'extern "C" __global__ void number_of_calls(const long long* from, int inside, long long* number) '
        f"{{ u64 key = inside ? (u64)from[0] : mixed((u64)from[0] + GOLDEN); {mixes} number[0] = (long long)key; }}"
    )


class _DeviceWithStep:
    """Device whose random draws depend on another number than the step's."""

    def __init__(self, device: Any, step: Array) -> None:
        self._device = device
        self.step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


class _NamedLaunch:
    """Launch of a node that attaches the node to its errors."""

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
    """Region with the parameters `given`: its launches and the storage of its results. first, carried: see
    `RegionContext.plan`. out: requested storage of results."""

    def __init__(
        self, around: RegionContext, graph: Graph, given: Sequence[Storage], memory: Array, first: int = 0,
        carried: int = 0, out: Sequence[Storage] = (),
    ) -> None:  # fmt: skip
        plan = around.plan(graph, first, carried, bool(out))
        stored: dict[Value, Storage] = dict(zip(graph.parameters, given, strict=True))
        stored |= {value: around.constants.of(value) for value in plan.places if isinstance(value, Constant)}
        stored |= {place: _dense(around.device, held) for place, held in zip(plan.outside, out, strict=False) if place}
        made = Launches(
            graph, around.device, around.backend, plan, memory, stored, partial(around.launches, around)
        )  # fmt: skip
        self.launches: list[Launch] = []
        for node in graph.nodes:
            if node.op.is_view and node not in plan.copied:
                continue
            launch = made.of(node)[0]
            named = with_host_query(launch, _NamedLaunch(node, launch))
            self.launches.append(around.mark(named) if around.mark is not None and communicates(node) else named)
        self.results = [made.arrays(value)[0] for value in graph.results]


def _dense(device: Any, held: Storage) -> Storage:
    """Return contiguous storage for a result requested in `held`."""
    if isinstance(held, list) or held.flags.c_contiguous:
        return held
    return device.empty(held.shape, held.dtype)


class HostScalar:
    """Scalar on the GPU that the host reads: `fetch` is a launch, `wait` returns the number after it."""

    def __init__(self, device: Any, array: Array) -> None:
        self._device, self._array = device, array
        self._number = device.pinned((1,), array.dtype)

    def fetch(self) -> None:
        self._device.receive(self._array.reshape((1,)), self._number)

    def wait(self) -> Any:
        wait_for(self._device, self._device.signal())
        return self._number[0]


def result_copies(
    device: Any, results: Sequence[Storage], places: Sequence[Storage], goes_on: bool = False
) -> list[Launch]:  # fmt: skip
    """Return launches that copy a region's results to these places; a result may alias one of them. goes_on: the region
    runs again while they are needed, and refills its stacks."""
    first: list[Launch] = []
    then: list[Launch] = []
    for number, (result, place) in enumerate(zip(results, places, strict=True)):
        if isinstance(result, list):
            then.append(HostQuery(partial(_refill, device if goes_on else None, place, result)))
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


def _refill(device: Any, place: list[Storage], entries: list[Storage]) -> None:
    """Put entries into a stack, or copies of them made on a device if it is given."""
    place[:] = entries if device is None else copy_storage(device, entries, None)


def copy_storage(device: Any, value: Storage, spare: Storage) -> Storage:
    """Return a copy of an array, in the array `spare` if given, or of all entries of a stack."""
    if isinstance(value, list):
        spares = spare if isinstance(spare, list) else []
        return [copy_storage(device, entry, spares[i] if i < len(spares) else None) for i, entry in enumerate(value)]
    if spare is None or isinstance(spare, list):
        spare = device.empty(value.shape, value.dtype)
    device.copy(value, spare)
    return spare


def overlap(one: Array, other: Array) -> bool:
    """Return whether two arrays of the GPU share memory."""
    first, second = address(one), address(other)
    return bool(one.nbytes and other.nbytes) and first < second + other.nbytes and second < first + one.nbytes
