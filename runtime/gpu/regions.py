"""Launches of nodes with regions.

In a captured graph, the GPU evaluates conditions and unknown iteration counts itself. Otherwise the host reads them
from the GPU, and the step is not a single CUDA graph.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from mspc.ir.graph import MICRO_BATCH, Node
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import StackType
from mspc.ops.control.regions import If, Loop, While, spread
from mspc.ops.control.structural import CALL
from mspc.ops.cuda.text import WORDS, address
from mspc.ops.device import Array, Launch, nothing, source_text
from mspc.runtime.comm.interface import collectives_of, path_check
from mspc.runtime.gpu.bound_regions import BoundRegion, HostScalar, RegionContext, copy_storage, result_copies
from mspc.runtime.gpu.launches import LaunchSequence, Storage, needs_host, run_all, with_host_query
from mspc.runtime.gpu.progress import HostQuery
from mspc.runtime.memory_plan import DEVICE_ALIGNMENT, device_bytes_of_entries
from mspc.runtime.regions.region import check_lengths, path_text, too_long

# Control flow on the GPU within a CUDA graph: the number of iterations of a loop, and the branch of a condition.
#
# In a step that runs node by node the host decides instead (`_GpuLoop`, `_branch`).


def decided(device: Any, node: Node, by_host: Launch, by_gpu: Launch) -> HostQuery:
    """Return the launch of a node that the GPU decides within a captured graph, and the host otherwise."""

    def run() -> None:
        if device.capturing:
            by_gpu()
            return
        try:
            by_host()
        except Exception as error:
            if not hasattr(error, "node"):
                error.node = node  # type: ignore[attr-defined]  # for the message
            raise

    return HostQuery(run, decided=True)


def may_decide(around: RegionContext, node: Node, launches: Iterable[Launch]) -> bool:
    """Return whether the GPU may decide a node with these launches: the device has conditional nodes, no launch needs
    the host, and there is no communication inside, for which ranks compare their paths on the host."""
    if around.device.conditional is None or any(map(needs_host, launches)):
        return False
    return next(collectives_of([node]), None) is None


def choice_by_gpu(
    around: RegionContext, node: Node, condition: Array, ways: Sequence[Sequence[Launch]]
) -> Launch | None:
    """Return the launch of the first branch if the condition, a Bool on the GPU, holds, else of the second; None if the
    host has to decide."""
    device = around.device
    if not may_decide(around, node, [launch for way in ways for launch in way]) or not device.conditional.has_choices:
        return None
    choose = device.kernel(source_text("runtime/gpu/decisions.cu"), "choose")
    runs = [LaunchSequence(way) for way in ways]
    return lambda: device.conditional.choice(lambda handle: choose(1, 1, (handle, condition)), runs)


@dataclass(frozen=True)
class LoopLaunches:
    """Launches of a loop's iterations.

    before: before the first iteration, after the count is set. each: an iteration, and the preparation of the next one.
    after: after all iterations. number: Int64 array of one element: the number of the iteration. condition: a Bool on
    the GPU set by the preparation; None for counted iterations: `known` times or, if that is -1, by `total`, an Int64
    on the GPU.
    """

    before: Sequence[Launch]
    each: Sequence[Launch]
    after: Sequence[Launch]
    number: Array
    condition: Array = None
    total: Array = None
    known: int = -1
    reverse: bool = False


def loop_by_gpu(around: RegionContext, node: Node, begin: Sequence[Launch], loop: LoopLaunches) -> Launch | None:
    """Return the launch of all iterations of a loop; None if the host has to decide. begin: launches before the
    loop."""
    device, limit = around.device, around.loop_limit if loop.known < 0 else 0.0
    if not may_decide(around, node, (*begin, *loop.before, *loop.each, *loop.after)):
        return None
    if limit and around.host.size > 1:
        return None  # other ranks would continue with the invalid results of a stopped loop
    has_condition = loop.condition is not None
    begun, nothing = device.zeros((2,), "int64"), np.uint64(0)
    number = around.ended.number_of(node, has_condition, limited=limit > 0)
    total = nothing if loop.total is None else loop.total
    known = 0 if has_condition else loop.known
    start = device.kernel(source_text("runtime/gpu/decisions.cu"), "begin_turns")
    started = partial(start, 1, 1, (total, np.int64(known), np.int32(loop.reverse), loop.number, begun))
    go_on = device.kernel(source_text("runtime/gpu/decisions.cu"), "go_on_while" if has_condition else "go_on_for")
    first = loop.condition if has_condition else np.int32(loop.reverse)
    limits = (loop.number, begun, np.int64(limit * 1e9), np.int64(number), around.ended.array, device.stop)
    each = LaunchSequence(loop.each)

    def run() -> None:
        started()  # before anything may overwrite the number of iterations
        run_all([*begin, *loop.before])
        device.conditional.loop(lambda handle: go_on(1, 1, (handle, first, *limits)), each)
        run_all(loop.after)

    return run


# Captures of the launches between those that need the host.


FEWEST = 3
"""Minimum number of launches for which one CUDA graph takes less time."""


class Replayed:
    """Sequence of launches that do not need the host if captured.

    The first run executes them one by one, which loads and prepares everything, the second captures them, and later
    runs replay the capture. If they cannot be captured, the host decides control flow and the launches in between are
    captured; without control flow, they always run one by one. loaded: they have run before.
    """

    def __init__(self, device: Any, launches: Sequence[Launch], loaded: bool = False) -> None:
        self._device, self._launches = device, launches
        self._loaded = loaded
        self._replay: Launch | None = None
        self._decides = any(isinstance(launch, HostQuery) for launch in launches)
        self._eager = len(launches) < FEWEST and not self._decides

    def __call__(self) -> None:
        if self._replay is None and self._loaded and not self._eager:
            self._capture()
        if self._replay is not None:
            self._replay()
            return
        self._each()
        self._loaded = True

    def _capture(self) -> None:
        try:
            self._replay = self._device.capture(self._each)
        except Exception as error:
            if self._decides:
                parts = captured_parts(self._device, self._launches, loaded=True, by_host=True)
                self._replay = partial(run_all, parts)
                return
            self._eager = True
            node = getattr(error, "node", None)
            what = "a part of a step" if node is None else node.label
            warn_uncaptured(self._device, "makes launches one by one", what, error)

    def _each(self) -> None:
        run_all(self._launches)
        self._device.rejoin()


def warn_uncaptured(device: Any, does: str, what: str, error: Exception) -> None:
    """Warn that launches are not captured, with the fallback."""
    reason = f"{what} cannot be captured ({type(error).__name__}: {error})"
    print(f"warning: rank {device.comm.rank} {does}: {reason}", file=sys.stderr, flush=True)


def captured_parts(
    device: Any, launches: Sequence[Launch], loaded: bool = False, by_host: bool = False
) -> list[Launch]:  # fmt: skip
    """Return the launches, with runs between those that need the host captured. by_host: the host decides control
    flow."""
    found: list[Launch] = []
    between: list[Launch] = []
    for launch in launches:
        if needs_host(launch) or (by_host and isinstance(launch, HostQuery)):
            found += [Replayed(device, between, loaded)] if between else []
            found.append(launch)
            between = []
        else:
            between.append(launch)
    return found + ([Replayed(device, between, loaded)] if between else [])


def one_launch(device: Any, launches: Sequence[Launch]) -> Launch:
    """Return one launch of all, which can be captured with others if none needs the host then."""
    together = LaunchSequence(launches)
    if not any(isinstance(launch, HostQuery) for launch in launches):
        return together
    parts = captured_parts(device, launches)
    if any(map(needs_host, launches)):
        return HostQuery(partial(run_all, parts))
    return HostQuery(lambda: together() if device.capturing else run_all(parts), decided=True)


# Launch of a loop on a GPU.
#
# Carried values are in the memory of the node's results: an iteration reads them there, and writes the next values
# there. The GPU counts the iterations, so that one captured iteration serves for all; entries of scanned operands are
# copied to separate memory, as they differ between iterations.


MAX_UNROLLED = 2048
"""Maximum number of launches of all iterations for which a counted loop is part of the step's CUDA graph."""
_THREADS, _MAX_BLOCKS = 256, 1024


def loop_launch(
    around: RegionContext, node: Node, op: Loop, operands: Sequence[Storage], out: Sequence[Storage], memory: Array
) -> Launch:  # fmt: skip
    """Return the launch of a loop, see `region_launch`."""
    made = _GpuLoop(around, node, op, operands, out, memory)
    if made.is_captured:
        return made.whole
    by_host = made.run_while if isinstance(op, While) else made.run_for
    return HostQuery(by_host) if made.by_gpu is None else decided(around.device, node, by_host, made.by_gpu)


class _GpuLoop:
    """Run of a loop. whole: all iterations. is_captured: `whole` may be captured with other launches. by_gpu:
    iterations while the GPU finds more; None if the host has to check."""

    def __init__(
        self, around: RegionContext, node: Node, op: Loop, operands: Sequence[Storage], out: Sequence[Storage],
        memory: Array,
    ) -> None:  # fmt: skip
        self._label, self._op, self._out = node.label, op, out
        self._backend, self._limit = around.backend, around.loop_limit
        device = self._device = around.device
        self._turn, key = device.zeros((1,), "int64"), device.zeros((1,), "int64")
        self._at = 0
        """The number of the iteration, for work done by the host."""
        self._asks_apart = False
        """Whether a condition is not evaluated at the end of the previous iteration: it must know its own iteration."""
        self._known = op.known_iterations([value.type for value in node.inputs])
        behind = op.first + op.carried + op.scanned
        self._scanned = operands[op.first + op.carried : behind]
        kernel = device.kernel(source_text("runtime/gpu/turns.cu"), "next_turn")
        by = np.int64(-1 if op.reverse else 1)
        arguments = self._turn, by, around.key, np.int32(around.depth > 0), key
        inside, mixes = around.in_loop(key)
        begins: list[Launch] = [partial(kernel, 1, 1, arguments), *mixes]
        self._begin = result_copies(device, operands[op.first : op.first + op.carried], out[: op.carried])
        self._total = HostScalar(device, operands[0]) if op.first else None
        self._check = path_check(node, around.host, partial(path_text, node)) if self._known < 0 else None
        body = node.regions[-1]
        entries = self._places([body.parameters[op.leading + op.carried + i].type for i in range(op.scanned)], memory)
        given = [*out[: op.carried], *entries, *operands[behind:]]
        own = memory[device_bytes_of_entries(node) :]
        made = BoundRegion(inside, body, [self._turn.reshape(())] * op.leading + given, own, op.leading, op.carried)
        results = made.results
        turn = [
            *map(self._read, self._scanned, entries),
            *made.launches,
            *(
                self._write(entry, target)
                for i, (entry, target) in enumerate(zip(entries, self._scanned, strict=True))
                if op.first + op.carried + i in op.mutates
            ),
            *(self._keep(result, place) for result, place in zip(results[op.carried :], self._stacks, strict=True)),
            *result_copies(device, results[: op.carried], out[: op.carried], goes_on=True),
        ]
        if isinstance(op, While):
            condition = BoundRegion(inside, node.regions[0], given, own)
            self._holds = HostScalar(device, condition.results[0])
            ask: list[Launch] = [*begins, *condition.launches]
            tell = [partial(device.copy, self._turn, out[op.carried].reshape((1,)))] if op.returns_count else []
            loop = LoopLaunches(ask, [*turn, *ask], tell, self._turn, condition=condition.results[0])
            ask = [*ask, self._holds.fetch]
            self._ask = captured_parts(device, ask)
            self._asks_apart = any(isinstance(launch, HostQuery) for launch in ask)
            if not self._asks_apart:
                turn += ask
        else:
            turn[:0] = begins
            total = operands[0] if op.first else None
            loop = LoopLaunches([], turn, [], self._turn, None, total, self._known, op.reverse)
        asks = any(isinstance(launch, HostQuery) for launch in (*turn, *self._begin))
        self.whole = LaunchSequence(turn, max(0, self._known), [*self._begin, partial(self._start, self._known)])
        self.is_captured = self._known >= 0 and not asks and self.whole.count <= MAX_UNROLLED
        self._parts = captured_parts(device, turn)
        # The host checks whether there is an entry for every iteration.
        looks = self._known < 0 and op.scanned and not isinstance(op, While)
        self.by_gpu = None if self.is_captured or looks else loop_by_gpu(around, node, self._begin, loop)

    @property
    def _stacks(self) -> Sequence[Storage]:
        """Arrays with one entry per iteration."""
        return self._out[len(self._out) - self._op.stacked :]

    def _places(self, types: Sequence[Any], memory: Array) -> list[Storage]:
        """Return the memory of one iteration's entries."""
        found: list[Storage] = []
        offset = 0
        for type in types:
            if isinstance(type, StackType):
                found.append([])
                continue
            found.append(self._device.view(memory, offset, type.shape, type.dtype.numpy))
            offset += -(-type.nbytes // DEVICE_ALIGNMENT) * DEVICE_ALIGNMENT
        return found

    # Entries

    def _read(self, stack: Storage, place: Storage) -> Launch:
        if not isinstance(stack, list):
            return self._copied(stack, place, read=True)

        def read() -> None:
            entry = stack[self._at]
            if isinstance(place, list):
                place[:] = entry
            else:
                self._device.copy(entry, place)

        return HostQuery(read)

    def _write(self, place: Storage, stack: Storage) -> Launch:
        """Return the launch that writes values overwritten by the iteration back to the entry's source."""
        if not isinstance(stack, list):
            return self._copied(place, stack, read=False)
        return HostQuery(lambda: None if isinstance(place, list) else self._device.copy(place, stack[self._at]))

    def _keep(self, result: Storage, stack: Storage) -> Launch:
        """Return the launch that stores a result of an iteration."""
        if not isinstance(stack, list):
            return self._copied(result, stack, read=False)
        spare: list[Storage] = []

        def keep() -> None:
            while len(spare) <= self._at:
                spare.append(None)
            while len(stack) <= self._at:
                stack.append(None)
            stack[self._at] = spare[self._at] = copy_storage(self._device, result, spare[self._at])

        return HostQuery(keep)

    def _copied(self, source: Array, target: Array, read: bool) -> Launch:
        """Return the launch that copies the iteration's entry from `source` if `read`, else to the entry of
        `target`."""
        entry = target if read else source
        if not entry.nbytes:
            return nothing
        size = next(s for s in (16, 8, 4, 2, 1) if not (entry.nbytes | address(source) | address(target)) % s)
        text = source_text("runtime/gpu/copy_entry.cu", word=WORDS[size], read=int(read), written=int(not read))
        kernel = self._device.kernel(text, "copy_entry")
        many = entry.nbytes // size
        blocks = min(_MAX_BLOCKS, -(-many // _THREADS))
        return partial(kernel, blocks, _THREADS, (source, target, self._turn, np.int64(many)))

    # Iterations

    def _set(self, array: Array, value: int) -> None:
        self._device.kernel(source_text("runtime/gpu/turns.cu"), "set_turn")(1, 1, (array, np.int64(value)))

    def _start(self, turns: int) -> None:
        """Prepare the first of `turns` iterations."""
        self._set(self._turn, turns if self._op.reverse else -1)

    def run_for(self) -> None:
        """Run all iterations of a loop with a known count."""
        turns = self._known
        if self._total is not None:
            self._total.fetch()
            turns = max(0, int(self._total.wait()))
            if self._check is not None:
                self._check(turns)
        check_lengths(self._label, turns, self._scanned)
        run_all(self._begin)
        self._start(turns)
        for stack in self._stacks:
            if isinstance(stack, list):
                stack[:] = [None] * turns
        self._iterate(range(turns - 1, -1, -1) if self._op.reverse else range(turns))

    def run_while(self) -> None:
        """Run iterations while the condition holds."""
        run_all(self._begin)
        self._start(0)
        for stack in self._stacks:
            if isinstance(stack, list):
                stack.clear()
        turns = self._iterate(count())
        if self._check is not None:
            self._check(turns)
        if isinstance(self._op, While) and self._op.returns_count:
            self._set(self._out[self._op.carried].reshape((1,)), turns)

    def _iterate(self, numbers: Iterable[int]) -> int:
        """Run the iterations with these numbers, and return how many ran."""
        around, begun, done = self._backend.turns, time.monotonic(), 0
        asks = isinstance(self._op, While)
        try:
            for done, number in enumerate(numbers):
                self._at = number
                self._backend.turns = (*around, number)
                if asks and (self._asks_apart or not number):
                    run_all(self._ask)
                if asks and not self._holds.wait():
                    return done
                if self._limit and self._known < 0 and time.monotonic() - begun > self._limit:
                    raise too_long(self._limit, done, asks)
                run_all(self._parts)
        finally:
            self._backend.turns = around
        return done


def region_launch(
    around: RegionContext, node: Node, operands: Sequence[Storage], out: Sequence[Storage], memory: Array
) -> Launch:  # fmt: skip
    """Return the launch of a node with regions. operands, out: storage of its operands and results. memory: bytes for
    values that are live while it runs."""
    backend = around.backend
    if MICRO_BATCH in node.attrs:
        number = int(node.attrs[MICRO_BATCH])
        inside, mixes = around.in_micro_batch(number)
    elif CALL in node.attrs:
        inside, mixes = around.in_call(int(node.attrs[CALL]))
    else:
        return _launch(around, node, operands, out, memory)
    launch = one_launch(around.device, [*mixes, _launch(inside, node, operands, out, memory)])
    if not isinstance(launch, HostQuery):
        return launch

    def run() -> None:
        calls, turns = backend.calls, backend.turns
        backend.calls = inside.calls
        backend.turns = (*turns, number) if MICRO_BATCH in node.attrs else turns
        try:
            launch()
        finally:
            backend.calls, backend.turns = calls, turns

    return with_host_query(launch, run)


def _launch(
    around: RegionContext, node: Node, operands: Sequence[Storage], out: Sequence[Storage], memory: Array
) -> Launch:
    if isinstance(node.op, Loop):
        return loop_launch(around, node, node.op, operands, out, memory)
    if isinstance(node.op, If):
        return _branch(around, node, operands, out, memory)
    region = BoundRegion(around, node.regions[0], spread(node, operands), memory, out=out)
    return one_launch(around.device, [*region.launches, *result_copies(around.device, region.results, out)])


def _branch(
    around: RegionContext, node: Node, operands: Sequence[Storage], out: Sequence[Storage], memory: Array
) -> Launch:  # fmt: skip
    device = around.device
    ways: list[list[Launch]] = []
    for graph in node.regions:
        region = BoundRegion(around, graph, operands[1:], memory, out=out)
        ways.append([*region.launches, *result_copies(device, region.results, out)])
    parts = [captured_parts(device, way) for way in ways]
    condition = HostScalar(device, operands[0])
    check = path_check(node, around.host, partial(path_text, node))

    def run() -> None:
        condition.fetch()
        way = bool(condition.wait())
        if check is not None:
            check(int(way))
        run_all(parts[0 if way else 1])

    by_gpu = choice_by_gpu(around, node, operands[0], ways)
    return HostQuery(run) if by_gpu is None else decided(device, node, run, by_gpu)
