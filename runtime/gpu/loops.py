"""The launch of a loop on a GPU.

What is carried lies in the places of the node's results: a turn reads it there, and leaves there what the next one
reads. The GPU counts the turns itself, so that one captured turn serves for all; entries of what is scanned are copied
to places of their own, as those of every turn would have others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from mspc.ir.graph import Node
from mspc.ir.types import StackType
from mspc.ops.control.regions import Loop, While
from mspc.ops.cuda.random import RANDOM
from mspc.ops.cuda.source import WORDS, address
from mspc.ops.device import Array, Launch, nothing
from mspc.runtime.comm.control_flow import same_way
from mspc.runtime.gpu.bound_regions import BoundRegion, RegionContext, Told, own_copy, taken
from mspc.runtime.gpu.decided import LoopLaunches, decided, loop_by_gpu
from mspc.runtime.gpu.launches import Held, Several, run_each
from mspc.runtime.gpu.on_host import HostQuery
from mspc.runtime.gpu.replayed import in_parts
from mspc.runtime.region_memory import DEVICE_ALIGNMENT, device_bytes_of_entries
from mspc.runtime.regions.ways import check_lengths, too_long, went

MOST_UNROLLED = 2048
"""Launches of all turns up to which a loop whose turns are counted is part of the step's own CUDA graph."""
_THREADS, _MOST_BLOCKS = 256, 1024
_TURN = f"""{RANDOM}
extern "C" __global__ void set_turn(long long* turn, long long value) {{ turn[0] = value; }}
extern "C" __global__ void next_turn(long long* turn, long long by, const long long* outer, int inside,
                                     long long* own) {{
    const long long at = turn[0] + by;
    turn[0] = at;
    const u64 key = inside ? (u64)outer[0] : mixed((u64)outer[0] + GOLDEN);
    own[0] = (long long)mixed(key + (u64)at + GOLDEN);
}}
"""
_ENTRY = """
struct alignas(16) Sixteen {{ u64 at[2]; }};
extern "C" __global__ void copy_entry(const {word}* from, {word}* to, const long long* turn, long long count) {{
    const {word}* source = from + {read} * turn[0] * count;
    {word}* target = to + {written} * turn[0] * count;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count;
         i += (long long)gridDim.x * blockDim.x) target[i] = source[i];
}}
"""


def loop_launch(
    around: RegionContext, node: Node, op: Loop, operands: Sequence[Held], out: Sequence[Held], memory: Array
) -> Launch:  # fmt: skip
    """See `regions.region_launch`."""
    made = _LoopOnGpu(around, node, op, operands, out, memory)
    if made.is_captured:
        return made.whole
    by_host = made.run_while if isinstance(op, While) else made.run_for
    return HostQuery(by_host) if made.by_gpu is None else decided(around.device, node, by_host, made.by_gpu)


class _LoopOnGpu:
    """What runs a loop. whole: all turns. is_captured: whether that may be captured with other launches. by_gpu: turns
    as long as the GPU finds that there are more; None: the host has to look."""

    def __init__(
        self, around: RegionContext, node: Node, op: Loop, operands: Sequence[Held], out: Sequence[Held], memory: Array
    ) -> None:  # fmt: skip
        self._label, self._op, self._out = node.label, op, out
        self._backend, self._limit = around.backend, around.loop_limit
        device = self._device = around.device
        self._turn, key = device.zeros((1,), "int64"), device.zeros((1,), "int64")
        self._at = 0
        """The number of the turn, for what is done by the host."""
        self._asks_apart = False
        """Whether a condition is no part of the turn ahead of it: it has to know its own turn."""
        self._known = op.known_turns([value.type for value in node.inputs])
        behind = op.first + op.carried + op.scanned
        self._scanned = operands[op.first + op.carried : behind]
        kernel = device.kernel(_TURN, "next_turn")
        by = np.int64(-1 if op.reverse else 1)
        arguments = self._turn, by, around.key, np.int32(around.depth > 0), key
        inside, mixes = around.in_turns(key)
        begins: list[Launch] = [partial(kernel, 1, 1, arguments), *mixes]
        self._begin = taken(device, operands[op.first : op.first + op.carried], out[: op.carried])
        self._told = Told(device, operands[0]) if op.first else None
        self._check = same_way(node, around.host, partial(went, node)) if self._known < 0 else None
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
            *taken(device, results[: op.carried], out[: op.carried], goes_on=True),
        ]
        if isinstance(op, While):
            condition = BoundRegion(inside, node.regions[0], given, own)
            self._holds = Told(device, condition.results[0])
            ask: list[Launch] = [*begins, *condition.launches]
            tell = [partial(device.copy, self._turn, out[op.carried].reshape((1,)))] if op.tells_turns else []
            turns = LoopLaunches(ask, [*turn, *ask], tell, self._turn, condition=condition.results[0])
            ask = [*ask, self._holds.fetch]
            self._ask = in_parts(device, ask)
            self._asks_apart = any(isinstance(launch, HostQuery) for launch in ask)
            if not self._asks_apart:
                turn += ask
        else:
            turn[:0] = begins
            turns = LoopLaunches(
                [], turn, [], self._turn, None, operands[0] if op.first else None, self._known, op.reverse
            )
        asks = any(isinstance(launch, HostQuery) for launch in (*turn, *self._begin))
        self.whole = Several(turn, max(0, self._known), [*self._begin, partial(self._start, self._known)])
        self.is_captured = self._known >= 0 and not asks and self.whole.count <= MOST_UNROLLED
        self._parts = in_parts(device, turn)
        # Whether there is an entry for every turn, the host looks at.
        looks = self._known < 0 and op.scanned and not isinstance(op, While)
        self.by_gpu = None if self.is_captured or looks else loop_by_gpu(around, node, self._begin, turns)

    @property
    def _stacks(self) -> Sequence[Held]:
        """What holds every turn's entry of what is kept."""
        return self._out[len(self._out) - self._op.stacked :]

    def _places(self, types: Sequence[Any], memory: Array) -> list[Held]:
        """Where the entries of a turn are."""
        found: list[Held] = []
        offset = 0
        for type in types:
            if isinstance(type, StackType):
                found.append([])
                continue
            found.append(self._device.view(memory, offset, type.shape, type.dtype.numpy))
            offset += -(-type.nbytes // DEVICE_ALIGNMENT) * DEVICE_ALIGNMENT
        return found

    # Entries

    def _read(self, stack: Held, place: Held) -> Launch:
        """Puts the turn's entry in its place."""
        if not isinstance(stack, list):
            return self._copied(stack, place, read=True)

        def read() -> None:
            entry = stack[self._at]
            if isinstance(place, list):
                place[:] = entry
            else:
                self._device.copy(entry, place)

        return HostQuery(read)

    def _write(self, place: Held, stack: Held) -> Launch:
        """Puts what the turn has overwritten back to where the entry is from."""
        if not isinstance(stack, list):
            return self._copied(place, stack, read=False)
        return HostQuery(lambda: None if isinstance(place, list) else self._device.copy(place, stack[self._at]))

    def _keep(self, result: Held, stack: Held) -> Launch:
        """Keeps what a turn has made."""
        if not isinstance(stack, list):
            return self._copied(result, stack, read=False)
        spare: list[Held] = []

        def keep() -> None:
            while len(spare) <= self._at:
                spare.append(None)
            while len(stack) <= self._at:
                stack.append(None)
            stack[self._at] = spare[self._at] = own_copy(self._device, result, spare[self._at])

        return HostQuery(keep)

    def _copied(self, source: Array, target: Array, read: bool) -> Launch:
        """Copies the turn's entry of `source` where it is read there, else to the turn's entry of `target`."""
        entry = target if read else source
        if not entry.nbytes:
            return nothing
        size = next(s for s in (16, 8, 4, 2, 1) if not (entry.nbytes | address(source) | address(target)) % s)
        text = _ENTRY.format(word=WORDS[size], read=int(read), written=int(not read))
        kernel = self._device.kernel(text, "copy_entry")
        many = entry.nbytes // size
        blocks = min(_MOST_BLOCKS, -(-many // _THREADS))
        return partial(kernel, blocks, _THREADS, (source, target, self._turn, np.int64(many)))

    # Turns

    def _set(self, array: Array, value: int) -> None:
        self._device.kernel(_TURN, "set_turn")(1, 1, (array, np.int64(value)))

    def _start(self, turns: int) -> None:
        """Ahead of the first of so many turns."""
        self._set(self._turn, turns if self._op.reverse else -1)

    def run_for(self) -> None:
        """All turns of a loop that is counted ahead."""
        turns = self._known
        if self._told is not None:
            self._told.fetch()
            turns = max(0, int(self._told.wait()))
            if self._check is not None:
                self._check(turns)
        check_lengths(self._label, turns, self._scanned)
        run_each(self._begin)
        self._start(turns)
        for stack in self._stacks:
            if isinstance(stack, list):
                stack[:] = [None] * turns
        self._turns(range(turns - 1, -1, -1) if self._op.reverse else range(turns))

    def run_while(self) -> None:
        """Turns while the condition holds."""
        run_each(self._begin)
        self._start(0)
        for stack in self._stacks:
            if isinstance(stack, list):
                stack.clear()
        turns = self._turns(count())
        if self._check is not None:
            self._check(turns)
        if isinstance(self._op, While) and self._op.tells_turns:
            self._set(self._out[self._op.carried].reshape((1,)), turns)

    def _turns(self, numbers: Iterable[int]) -> int:
        """Turns of these numbers, and how many there were."""
        around, begun, done = self._backend.turns, time.monotonic(), 0
        asks = isinstance(self._op, While)
        try:
            for done, number in enumerate(numbers):
                self._at = number
                self._backend.turns = (*around, number)
                if asks and (self._asks_apart or not number):
                    run_each(self._ask)
                if asks and not self._holds.wait():
                    return done
                if self._limit and self._known < 0 and time.monotonic() - begun > self._limit:
                    raise too_long(self._limit, done, asks)
                run_each(self._parts)
        finally:
            self._backend.turns = around
        return done
