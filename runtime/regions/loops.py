"""Kernel of a loop: moves carried values into the slots of its body and back.

Results that alias a parameter which the body overwrites are copied after every iteration, because the next one writes
there. Large results of an iteration are written to their final memory: stacked results to their row, carried ones to
one of two alternating buffers, so that no iteration allocates memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from mspc.ir.graph import Node
from mspc.ir.types import StackType, TensorType
from mspc.ops.control.regions import Loop, While
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.buffers import RegionResultBuffer
from mspc.runtime.comm.interface import path_check
from mspc.runtime.faults.record import LOOPS_AT, MAX_LOOPS, TURNS_AT, RegionFailure
from mspc.runtime.plan import copy_value, parts_of
from mspc.runtime.regions.region import Region, check_lengths, path_text, store_results, too_long

Array = Any


class _DoubleBuffer:
    """Two alternating buffers of a carried result: an iteration reads one and writes the other.

    number: of the result. pair: the buffers, from the first iteration on.
    """

    def __init__(self, number: int, place: RegionResultBuffer, body: Region) -> None:
        self.number = number
        self.place = place
        self.pair: list[Array] = [None, None]
        self._body = body
        self._spare: Array = None

    def begin(self, out: Sequence[Array], turns: int) -> None:
        """Prepare for a loop. turns: number of iterations, or -1 if unknown; if known, the last iteration writes to the
        result's own memory."""
        own = self._body.new_result(self.number) if self._spare is None else self._spare
        self._spare = own if out else None
        self.pair = [out[self.number] if out else self._body.new_result(self.number), own]
        if turns >= 0 and turns % 2 == 0:
            self.pair.reverse()

    def end(self, result: Array) -> None:
        """End a loop with this result, which is returned to the caller: the other buffer remains for the next loop."""
        if self._spare is None:
            self._spare = self.pair[1] if np.may_share_memory(result, self.pair[0]) else self.pair[0]
        self.pair = [None, None]


class LoopKernel:
    """Kernel of a loop, run by `run`.

    Args:
        regions: prepared, in the order of the node's. cursor: see `Executor`.
    """

    def __init__(self, node: Node, op: Loop, regions: Sequence[Region], backend: NumPyBackend, cursor: Any) -> None:
        self._label = node.label
        self._op = op
        self._backend, self._cursor = backend, cursor
        self._regions = regions
        self._body = regions[-1]
        self._condition = regions[0] if isinstance(op, While) else None
        self._stacked = [value.tensor_type for value in self._body.graph.results[op.carried :]]
        self._known = op.known_iterations([value.type for value in node.inputs])
        self._limit = backend.loop_limit if self._known < 0 else 0.0
        self._check = path_check(node, backend.comm, partial(path_text, node)) if self._known < 0 else None
        self._in_turns, self._anew, self._rows = self._places()

    def run(self, *operands: Array, out: Sequence[Array] = ()) -> tuple[Array, ...]:
        """Run all iterations. out: memory for the results. Raise RegionFailure, or ExecutionError if the loop itself is
        invalid."""
        op = self._op
        begin, end = op.first, op.first + op.carried + op.scanned
        if op.mutates:
            operands = self._without_overlaps(operands, range(begin, end))
        carried, scanned = list(operands[begin : begin + op.carried]), operands[begin + op.carried : end]
        for places in self._in_turns:
            places.begin(out, self._known)
        for region in self._regions:
            region.slots[op.leading + end - begin : len(region.graph.parameters)] = operands[end:]
        if self._condition is not None:
            stacks: list[Any] = [[] for _ in self._stacked]
            turns = self._iterate(count(), carried, scanned, stacks)
            if self._check is not None:
                self._check(turns)
        else:
            turns = self._known if self._known >= 0 else max(0, int(operands[0]))
            self._check_count(turns, scanned)
            stacks = list(out[op.carried :]) or [_stack_storage(type, self._known, turns) for type in self._stacked]
            self._iterate(range(turns - 1, -1, -1) if op.reverse else range(turns), carried, scanned, stacks)
        for region in self._regions:
            region.forget()
        if self._backend.taken is not None and turns:
            self._backend.taken.add(self._body.graph)
        counted = (np.array(turns, np.int64),) if isinstance(op, While) and op.returns_count else ()
        for places in self._in_turns:
            places.end(carried[places.number])
        found = (*carried, *counted, *stacks)
        return store_results(found, out) if out else found

    def _places(
        self,
    ) -> tuple[list[_DoubleBuffer], list[tuple[int, RegionResultBuffer]], list[tuple[int, RegionResultBuffer]]]:
        """Return the destinations of the body's results: double buffers; a new array in every iteration, if something
        may alias an iteration's result for longer; and rows of stacks."""
        body, op = self._body, self._op
        in_turns: list[_DoubleBuffer] = []
        anew: list[tuple[int, RegionResultBuffer]] = []
        rows: list[tuple[int, RegionResultBuffer]] = []
        copied = [False] * op.carried + [self._known >= 0 and not isinstance(t, StackType) for t in self._stacked]
        kept = {p for shown, copy in zip(body.shown, copied, strict=True) if not copy for p in shown}
        for number, place in body.handed.items():
            if number >= op.carried:
                (rows if copied[number] else anew).append((number, place))
            elif body.graph.parameters[op.leading + number] in kept:
                anew.append((number, place))
            else:
                in_turns.append(_DoubleBuffer(number, place, body))
        return in_turns, anew, rows

    def _iterate(
        self, numbers: Iterable[int], carried: list[Array], scanned: Sequence[Array], stacks: Sequence[Any]
    ) -> int:
        """Run the iterations with these numbers, while the condition holds if there is one. Return the number of the
        iteration at which the condition failed, or the last number, -1 if there was none. `carried` is changed,
        `stacks` filled."""
        body, condition, backend, cursor = self._body, self._condition, self._backend, self._cursor
        slots, leading, copied = body.slots, self._op.leading, body.overwrites
        many, behind = len(carried), leading + len(carried) + len(scanned)
        around, limit, started = backend.turns, self._limit, time.monotonic() if self._limit else 0.0
        at = TURNS_AT + min(len(around), MAX_LOOPS - 1)
        in_turns, anew, parity = self._in_turns, self._anew, 0
        rows = [(place, stacks[number - many]) for number, place in self._rows]
        there = [number - many for number, _ in self._rows]
        handed = bool(body.handed)
        turn = -1
        cursor[LOOPS_AT] = len(around) + 1
        try:
            for turn in numbers:
                backend.turns = (*around, turn)
                cursor[at] = turn
                values = [*carried, *[array[turn] for array in scanned]] if scanned else carried
                if condition is not None:
                    condition.slots[:behind] = values
                    if not condition.run()[0]:
                        break
                if limit and time.monotonic() - started > limit:
                    raise too_long(limit, turn, condition is not None)
                if leading:
                    slots[0] = np.int64(turn)
                slots[leading:behind] = values
                if handed:
                    for places in in_turns:
                        places.place.out = places.pair[parity]
                    parity ^= 1
                    for number, place in anew:
                        place.out = body.new_result(number)
                    for place, stack in rows:
                        place.out = stack[turn, ...]
                results = body.run()
                for i in copied:
                    results[i] = copy_value(results[i])
                carried[:] = results[:many]
                for number, entry in enumerate(results[many:]):
                    if condition is not None:
                        stacks[number].append(entry)
                    elif number not in there:
                        stacks[number][turn] = entry
        except RegionFailure as failure:
            failure.turns.append((self._label, turn))
            raise
        finally:
            backend.turns = around
            cursor[LOOPS_AT] = len(around)
        return turn

    def _check_count(self, turns: int, scanned: Sequence[Array]) -> None:
        if self._check is not None:
            self._check(turns)
        check_lengths(self._label, turns, scanned)

    def _without_overlaps(self, operands: Sequence[Array], places: Iterable[int]) -> tuple[Array, ...]:
        """Return the operands, with copies of those at `places` that share memory with an operand that the loop
        overwrites."""
        found, written = list(operands), self._op.mutates
        for i in places:
            if i not in written and any(
                np.may_share_memory(part, other)
                for part in parts_of(found[i])
                for k in written
                for other in parts_of(found[k])
            ):
                found[i] = copy_value(found[i])
        return tuple(found)


def _stack_storage(type: TensorType, known: int, turns: int) -> Any:
    """Return storage for the entries of all iterations: an array if the number of iterations is known before the run,
    else a list, as for stacks."""
    if known >= 0 and not isinstance(type, StackType):
        return np.empty((known, *type.shape), type.dtype.numpy)
    return [None] * turns
