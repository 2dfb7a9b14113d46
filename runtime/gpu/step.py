"""One step of a rank's graph on a GPU: values have planned memory, nodes are launches, and all of it is captured into
one CUDA graph that later steps replay.

Nodes run on the compute stream, or on the side stream named by their attribute `stream`: these wait for work launched
before them, and the first reader of their result waits for them (see `memory_plan` for the effect on memory).

Copies of parameters that updates maintain are made by nodes that run before a step, only if something else wrote to a
parameter since the previous step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mspc.analysis.aliasing import updated_parameters
from mspc.analysis.cost.machine import H200, ROUNDS
from mspc.analysis.cost.nodes import seconds
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.cuda.text import address
from mspc.ops.device import Array, Copy, Launch, c_type, nothing
from mspc.runtime.gpu.bound_regions import EndedLoops, RegionContext
from mspc.runtime.gpu.launches import Backend, Constants, Launches, Storage, needs_host
from mspc.runtime.gpu.peers import PeerLaunch
from mspc.runtime.gpu.progress import HostQuery, communicates
from mspc.runtime.gpu.regions import captured_parts, region_launch, warn_uncaptured
from mspc.runtime.gpu.stage_messages import StageMessages, stage_messages
from mspc.runtime.memory import COMMUNICATION, MESSAGES, MemoryPlan, side_stream
from mspc.runtime.plan import loss_values
from mspc.runtime.profile import HOST_STREAMS, NodeTiming

# Work of a step, and its stream.


@dataclass(frozen=True)
class StepWork:
    """Launch of a node in a step.

    index: in the graph; -1 for the runtime's own work. waits: indices of work on other streams that must be complete.
    signals: other work waits for this. plain: it runs through CuPy, not by a launch of its own. ahead: nodes that run
    again, on all ranks, need it before them.
    """

    index: int
    stream: str
    launch: Launch
    waits: tuple[int, ...] = ()
    signals: bool = False
    plain: bool = False
    ahead: bool = False


def stream_of(node: Node, one_stream: bool) -> str:
    """Return the stream of a node. one_stream: only copies to and from the host are on other streams than the main
    one."""
    stream = side_stream(node) or "compute"
    return "compute" if stream == MESSAGES or (one_stream and stream not in HOST_STREAMS) else stream


def with_copies_on_main_stream(works: list[StepWork]) -> list[StepWork]:
    """Return the work with copies to and from the host on the compute stream, if any work needs the host: a partial
    capture has no other streams."""
    found = any(needs_host(work.launch) for work in works)
    moved = {place for place, work in enumerate(works) if found and work.stream in HOST_STREAMS}
    return [
        replace(work, stream="compute" if place in moved else work.stream, signals=work.signals and place not in moved,
                waits=tuple(other for other in work.waits if other not in moved)) for place, work in enumerate(works)
    ]  # fmt: skip


# Estimate of the collectives that overlap with a node of the compute stream, and of the multiprocessors that they take.
#
# A matmul fills all multiprocessors at once. In parallel to a collective that occupies a few, its last blocks wait for
# the first to end, and it takes twice the time. A matmul made for the remaining multiprocessors is divided to fit.
#
# The estimate depends only on the graph and on fixed rates, so that all ranks run equal computations in the same way.


@dataclass(frozen=True, slots=True)
class _Flight:
    """Collective in flight: its position in the step, the multiprocessors that it occupies, and its end."""

    place: int
    blocks: int
    end: float


class Overlap:
    """Collectives of the stream "communication" that overlap with computation, tracked over a step's nodes in order.
    rounds: matmuls of Float32 are rounded to TF32."""

    def __init__(self, rounds: bool = False) -> None:
        self._machine = H200.under({ROUNDS: rounds})
        self._clock = 0.0
        self._flights: list[_Flight] = []

    @property
    def idle(self) -> bool:
        """Whether a collective launched now starts at once, because none is queued before it."""
        return all(flight.end <= self._clock for flight in self._flights)

    def begins(self, place: int, node: Node, blocks: int) -> None:
        """Add a collective launched as work `place` of the step, on `blocks` multiprocessors (0 if unknown)."""
        start = max([self._clock, *(flight.end for flight in self._flights)])
        self._flights.append(_Flight(place, blocks, start + seconds(node, self._machine)))

    def ends(self, place: int) -> None:
        """Remove the collective at `place` and earlier ones: the compute stream has waited for them."""
        self._flights = [flight for flight in self._flights if flight.place > place]

    def occupied(self, node: Node) -> int:
        """Return the multiprocessors that collectives occupy during at least half of the time of a node launched
        now."""
        if not self._flights:  # later collectives start after this node
            return 0
        begun, length = self._clock, seconds(node, self._machine)
        self._clock += length
        beside = [flight.blocks for flight in self._flights if flight.end - begun >= length / 2]
        return max(beside, default=0)


_COUNT = """
extern "C" __global__ void count_step(long long* own, long long* step) { step[0] = ++own[0]; }
"""
_CHECK = """
extern "C" __global__ void check_finite(const {type}* loss, int* stop) {{
    double value = wide(loss[0]);
    if (!(value - value == 0)) stop[0] = 1;
}}
"""
_DELAY = """
extern "C" __global__ void delay(long long cycles) { long long end = clock64() + cycles; while (clock64() < end); }
"""
DELAY_CYCLES = 150_000
"""GPU clock cycles by which launches are delayed while a step is timed, so that the host runs ahead and causes no
gaps."""


class GpuStep:
    """Launches of a graph. device: see `GpuDevice`. plan: memory of every value. stored: arrays of parameters.
    constants: of the program. host, loop_limit: see `bound_regions.RegionContext`. Raise the error of making a launch,
    with the node as `.node`."""

    def __init__(
        self, graph: Graph, device: Any, plan: MemoryPlan, stored: Mapping[Value, Array], constants: Constants,
        host: Any, loop_limit: float = 0.0,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.device = device
        self.plan = plan
        self.backend = Backend(device.comm, device.xp)
        ended = EndedLoops(device, loop_limit)
        self._around = RegionContext(
            device, self.backend, constants, region_launch, host, ended, loop_limit, device.step
        )
        arena = device.empty((max(1, plan.arena),), "uint8")
        self._launches = Launches(graph, device, self.backend, plan, arena, stored, self._of_regions)
        self._launches.leaves = True
        messages = self.messages = stage_messages(graph, device, arena, lambda node: self.arrays(node)[0])
        self.own_count = device.zeros((1,), "int64")
        updates = updated_parameters(graph)
        self.boundary = min(updates, default=len(graph.nodes))
        self.losses = loss_values(graph) if updates else []
        self.work: list[StepWork] = []
        self.anew: list[StepWork] = []
        """Work that makes the copies of parameters that the step's updates keep up to date."""
        self._written = [address(stored[p]) for p in dict.fromkeys(p for ps in updates.values() for p in ps)]
        shadows = plan.shadow_weights.copies.values()
        self._copied = [address(stored[piece.parameter]) for pieces in shadows for piece in pieces]
        self._fresh, self._token = False, object()
        self.current = -1
        self._replay: Callable[[], None] | None = None
        self._eager = False
        self._end: Launch | None = None
        with device.stream("compute"), device.choices.within(arena):
            self._build(messages)
            if device.progress is not None:
                self._end = device.progress.mark()
        device.load_kernels()

    @property
    def ended(self) -> EndedLoops:
        """State of the loops that the GPU decides."""
        return self._around.ended

    # Building

    def arrays(self, value: Value) -> tuple[Array, ...]:
        """Return the arrays of a value, one per tensor."""
        return self._launches.arrays(value)

    def _of_regions(self, node: Node, operands: list[Storage], out: list[Storage], memory: Array) -> Launch:
        progress, index = self.device.progress, self.current
        mark = None if progress is None else lambda launch: progress.before(index, launch)
        return region_launch(replace(self._around, mark=mark), node, operands, out, memory)

    def _build(self, messages: StageMessages | None) -> None:
        device, nodes = self.device, self.graph.nodes
        count = device.kernel(_COUNT, "count_step")
        self.work.append(StepWork(-1, "compute", lambda: count(1, 1, (self.own_count, device.step))))
        if messages is not None:
            self.work.append(StepWork(-1, "compute", messages.begin, ahead=True))
        copies = self._shadow_weights()
        signals = {other for others in self.plan.waits.values() for other in others}
        # Collectives through mailboxes take less time than switching streams.
        quick = self._quick([node for node in nodes if communicates(node)])
        # Nodes with regions communicate on the main stream, or need the host.
        one_stream = quick or any(node.regions or getattr(node.op, "runs_on_host", False) for node in nodes)
        placed: dict[Node, int] = {}
        overlap = Overlap(device.tf32)
        checked = False
        due = {} if messages is None else messages.due(self.graph, {self.boundary: self.losses})
        for index, node in enumerate(nodes):
            for received in due.get(index, ()):
                self._receive(received, messages)
            if index >= self.boundary and not checked:
                checked = True
                self._check_losses(nodes[:index], placed)
            self.current = index
            if self.plan.shows(node):
                continue
            if node in self.plan.shadow_weights.copies or node in self.plan.shadow_weights.inner:
                launch, plain = self._launches.of(node)
                self.anew.append(StepWork(index, "compute", launch, plain=plain))
                continue
            behind: StepWork | None = None
            if messages is not None and node in messages:
                # The reader of a message from another stage waits for it, see `_receive`.
                side, waits = side_stream(node), self._waits(node, placed)
                if side and device.progress is not None:
                    self.work.append(StepWork(-1, "compute", device.progress.mark(index)))
                placed[node] = len(self.work)
                launch = messages.launch(node) if side else nothing
                self.work.append(StepWork(index if side else -1, side or "compute", launch, waits, node in signals))
                continue
            stream = stream_of(node, one_stream)
            waits = self._waits(node, placed)
            for other in waits:
                if self.work[other].stream == COMMUNICATION:
                    overlap.ends(other)
            placed[node] = len(self.work)
            with device.stream(stream), device.beside(overlap.occupied(node) if stream == "compute" else 0):
                launch, plain = self._launches.of(node, copies.get(node))
                if stream == COMMUNICATION and not self._needed_next(index):
                    direct = isinstance(launch, PeerLaunch)
                    if direct and overlap.idle:  # queued after others it would get its multiprocessors late
                        behind = StepWork(-1, "compute", launch.awaited())
                    overlap.begins(placed[node], node, launch.blocks if direct else 0)
                if device.progress is not None and communicates(node) and not self._launches.is_deferred(node):
                    tells = isinstance(launch, PeerLaunch) or self._quick([node])
                    launch = device.progress.before(index, launch, tells)
            self.work.append(StepWork(index, stream, launch, waits, node in signals, plain))
            if behind is not None:
                self.work.append(behind)
        self.work = with_copies_on_main_stream(self.work) if one_stream else self.work
        self.current = -1

    def _waits(self, node: Node, placed: Mapping[Node, int]) -> tuple[int, ...]:
        found = (placed[other] for other in self.plan.waits.get(node, ()))
        return tuple(place for place in found if self.work[place].stream != "compute")

    def _receive(self, index: int, messages: StageMessages) -> None:
        """Let the compute stream wait for the message from another stage that the node at `index` receives."""
        launch = messages.launch(self.graph.nodes[index])
        if self.device.progress is not None:
            launch = self.device.progress.before(index, launch)
        self.work.append(StepWork(index, "compute", launch))

    def _needed_next(self, index: int) -> bool:
        """Return whether the next work of the compute stream waits for the collective at `index`."""
        for node in self.graph.nodes[index + 1 :]:
            if side_stream(node) or self.plan.shows(node):
                continue
            return self.graph.nodes[index] in self.plan.waits.get(node, ())
        return True

    def _quick(self, nodes: Sequence[Node]) -> bool:
        look = getattr(self.device.comm, "quick", None)
        return bool(nodes) and look is not None and look(nodes)

    def _check_losses(self, before: Sequence[Node], placed: Mapping[Node, int]) -> None:
        """Check losses before the first update: a non-finite one sets `device.stop`, and the updates change nothing."""
        known = set(before)
        for loss in self.losses:
            if isinstance(loss, Node) and loss not in known:
                continue
            (array,) = self.arrays(loss)
            source = _CHECK.format(type=c_type(loss.tensor_type.dtype))
            kernel = self.device.kernel(source, "check_finite")
            made = loss
            while isinstance(made, Node) and made.op.is_view:
                made = made.inputs[0]
            waits: tuple[int, ...] = ()
            if isinstance(made, Node) and self.work[placed[made]].stream != "compute":
                waits = (placed[made],)
                self.work[placed[made]] = replace(self.work[placed[made]], signals=True)
            self.work.append(StepWork(-1, "compute", partial(kernel, 1, 1, (array, self.device.stop)), waits))

    def _shadow_weights(self) -> dict[Node, dict[int, Copy]]:
        """Return, for every update, the copies that it writes, by operand."""
        found: dict[Node, dict[int, Copy]] = {}
        for node, pieces in self.plan.shadow_weights.copies.items():
            (place,), dtype = self.plan.places[node], node.tensor_type.dtype.numpy
            for piece in pieces:
                extent = piece.parameter.tensor_type.size // piece.columns * piece.pitch - piece.pitch + piece.columns
                begin = piece.begin * dtype.itemsize
                array = self.device.view(self._launches.memory(place), begin, (extent,), dtype)
                found.setdefault(piece.update, {})[piece.operand] = Copy(array, piece.columns, piece.pitch)
        return found

    # Running

    def run(self, number: int, counted: int) -> None:
        """Enqueue a step. The first one runs node by node, which loads and prepares everything; the second is captured;
        later ones replay it. counted: its number including those of earlier runs."""
        self.backend.step = counted
        with self.device.stream("compute"):
            self._renew()
            if self._replay is None and number > 1 and not self._eager:
                self._capture()
            if self._replay is not None:
                self._replay()
            else:
                self.enqueue()

    def _renew(self) -> None:
        """Make the copies of parameters that the step reads, unless those of the previous step are still valid."""
        if self._written and self.device.writers.begin(self._token, self._written, self._copied):
            self._fresh = False
        if not self._fresh:
            for work in self.anew:
                self.current = work.index
                work.launch()
            self._fresh = True
            self.current = -1

    def run_timed(self, counted: int) -> list[NodeTiming]:
        """Run the same step node by node, and return the timing of each node."""
        device = self.device
        self.backend.step = counted
        found: list[tuple[StepWork, Any, Any]] = []

        def around(work: StepWork, launch: Launch) -> None:
            begun = device.signal(timed=True)
            launch()
            found.append((work, begun, device.signal(timed=True)))

        delay = device.kernel(_DELAY, "delay")
        with device.stream("compute"):
            self._renew()
            delay(1, 1, (np.int64(DELAY_CYCLES * len(self.work)),))
            self.enqueue(around)
        device.synchronize()
        if not found:
            return []
        first, between = found[0][1], device.milliseconds
        return [
            NodeTiming(work.index, work.stream, between(first, begun), between(begun, ended), work.plain)
            for work, begun, ended in found
            if work.index >= 0
        ]

    def _capture(self) -> None:
        try:
            in_between = any(needs_host(work.launch) for work in self.work)
            self._eager = in_between and any(work.stream != "compute" for work in self.work)
            if self._eager:
                return
            self._replay = self._in_parts() if in_between else self._in_one()
        except Exception as error:
            self._eager = True
            label = self.graph.nodes[self.current].label if self.current >= 0 else "the step"
            warn_uncaptured(self.device, "runs every step operator by operator", label, error)

    @property
    def captured(self) -> bool:
        """Whether steps are replayed."""
        return self._replay is not None

    def _in_one(self) -> Launch:
        """Return a step that is one CUDA graph. If control flow on the GPU cannot be captured, the host decides in
        between."""
        try:
            return self.device.capture(self.enqueue)
        except Exception:
            if not any(isinstance(work.launch, HostQuery) for work in self.work):
                raise
            return self._in_parts(by_host=True)

    def _in_parts(self, by_host: bool = False) -> Launch:
        """Return a step whose captured parts alternate with work that needs the host. by_host: the host also decides
        control flow."""
        launches = [work.launch for work in self.work]
        launches += [] if self._end is None else [self._end]
        parts = captured_parts(self.device, launches, loaded=True, by_host=by_host)
        apart = [
            work for work in self.work if isinstance(work.launch, HostQuery) and (by_host or needs_host(work.launch))
        ]
        indices = [work.index for work in apart]

        def run() -> None:
            asking = iter(indices)
            for part in parts:
                self.current = next(asking) if isinstance(part, HostQuery) else -1
                part()
            self.current = -1

        return run

    def enqueue(self, around: Callable[[StepWork, Launch], None] | None = None) -> None:
        """Enqueue the step's work on the streams, in order; `around`, if given, is called instead of every launch."""
        device, call = self.device, around or (lambda _, launch: launch())
        events: dict[int, Any] = {}
        last: dict[str, Any] = {}
        for place, work in enumerate(self.work):
            self.current = work.index
            if work.stream == "compute":
                for other in work.waits:
                    device.wait(events[other])
                call(work, work.launch)
                continue
            begun = device.signal()
            with device.stream(work.stream):
                for event in (begun, *(events[other] for other in work.waits)):
                    device.wait(event)
                call(work, work.launch)
                last[work.stream] = device.signal()
            if work.signals:
                events[place] = last[work.stream]
        for event in last.values():
            device.wait(event)
        device.rejoin()
        if self._end is not None:
            self._end()
        self.current = -1
