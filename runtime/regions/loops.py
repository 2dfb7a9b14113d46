"""The kernel of a loop, which puts what is carried into the slots of its body and takes it out again.

Results that show a parameter which the body overwrites are copied behind every turn, as the next one writes there.
Large results of a turn go where they are needed: what is kept of every turn to its row, what is carried to one of two
places in turns, so that no turn asks for memory.
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
from mspc.runtime.comm.interface import same_way
from mspc.runtime.faults.record import LOOPS_AT, MOST_LOOPS, TURNS_AT, RegionFailure
from mspc.runtime.plan import own, parts_of
from mspc.runtime.regions.region import Region, in_places
from mspc.runtime.regions.ways import check_lengths, too_long, went

Array = Any


class _InTurns:
    """Two places of a result that is carried: a turn reads one and writes to the other.

    number: of the result. pair: the places, from the first turn's on.
    """

    def __init__(self, number: int, place: RegionResultBuffer, body: Region) -> None:
        self.number = number
        self.place = place
        self.pair: list[Array] = [None, None]
        self._body = body
        self._spare: Array = None

    def begin(self, out: Sequence[Array], turns: int) -> None:
        """Ahead of a loop. turns: -1 where nobody has counted them; else the last turn's place is the result's own."""
        own = self._body.room(self.number) if self._spare is None else self._spare
        self._spare = own if out else None
        self.pair = [out[self.number] if out else self._body.room(self.number), own]
        if turns >= 0 and turns % 2 == 0:
            self.pair.reverse()

    def end(self, result: Array) -> None:
        """Behind a loop with this result, which is handed out: the other place is there for the next one."""
        if self._spare is None:
            self._spare = self.pair[1] if np.may_share_memory(result, self.pair[0]) else self.pair[0]
        self.pair = [None, None]


class LoopKernel:
    """The kernel of a loop; `run` is it.

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
        self._known = op.known_turns([value.type for value in node.inputs])
        self._limit = backend.loop_limit if self._known < 0 else 0.0
        self._check = same_way(node, backend.comm, partial(went, node)) if self._known < 0 else None
        self._in_turns, self._anew, self._rows = self._places()

    def run(self, *operands: Array, out: Sequence[Array] = ()) -> tuple[Array, ...]:
        """All turns. out: places for the results. Raises RegionFailure, or ExecutionError for what is wrong with the
        loop itself."""
        op = self._op
        begin, end = op.first, op.first + op.carried + op.scanned
        if op.mutates:
            operands = self._apart(operands, range(begin, end))
        carried, scanned = list(operands[begin : begin + op.carried]), operands[begin + op.carried : end]
        for places in self._in_turns:
            places.begin(out, self._known)
        for region in self._regions:
            region.slots[op.leading + end - begin : len(region.graph.parameters)] = operands[end:]
        if self._condition is not None:
            stacks: list[Any] = [[] for _ in self._stacked]
            turns = self._turns(count(), carried, scanned, stacks)
            if self._check is not None:
                self._check(turns)
        else:
            turns = self._known if self._known >= 0 else max(0, int(operands[0]))
            self._check_count(turns, scanned)
            stacks = list(out[op.carried :]) or [_room(type, self._known, turns) for type in self._stacked]
            self._turns(range(turns - 1, -1, -1) if op.reverse else range(turns), carried, scanned, stacks)
        for region in self._regions:
            region.forget()
        counted = (np.array(turns, np.int64),) if isinstance(op, While) and op.tells_turns else ()
        for places in self._in_turns:
            places.end(carried[places.number])
        found = (*carried, *counted, *stacks)
        return in_places(found, out) if out else found

    def _places(
        self,
    ) -> tuple[list[_InTurns], list[tuple[int, RegionResultBuffer]], list[tuple[int, RegionResultBuffer]]]:
        """Where the body's results go: to two places in turns, to a new array in every turn, as something may show the
        one of a turn for longer, and to rows."""
        body, op = self._body, self._op
        in_turns: list[_InTurns] = []
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
                in_turns.append(_InTurns(number, place, body))
        return in_turns, anew, rows

    def _turns(
        self, numbers: Iterable[int], carried: list[Array], scanned: Sequence[Array], stacks: Sequence[Any]
    ) -> int:
        """The turns of these numbers, while the condition holds where there is one, and the number of the next one;
        `carried` is changed, `stacks` filled."""
        body, condition, backend, cursor = self._body, self._condition, self._backend, self._cursor
        slots, leading, copied = body.slots, self._op.leading, body.overwrites
        many, behind = len(carried), leading + len(carried) + len(scanned)
        around, limit, started = backend.turns, self._limit, time.monotonic() if self._limit else 0.0
        at = TURNS_AT + min(len(around), MOST_LOOPS - 1)
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
                        place.out = body.room(number)
                    for place, stack in rows:
                        place.out = stack[turn, ...]
                results = body.run()
                for i in copied:
                    results[i] = own(results[i])
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

    def _apart(self, operands: Sequence[Array], places: Iterable[int]) -> tuple[Array, ...]:
        """The operands, where those at these places share no memory with what the loop overwrites."""
        found, written = list(operands), self._op.mutates
        for i in places:
            if i not in written and any(
                np.may_share_memory(part, other)
                for part in parts_of(found[i])
                for k in written
                for other in parts_of(found[k])
            ):
                found[i] = own(found[i])
        return tuple(found)


def _room(type: TensorType, known: int, turns: int) -> Any:
    """Where every turn's entry goes: an array where the number of turns was known ahead, else a list, as for stacks."""
    if known >= 0 and not isinstance(type, StackType):
        return np.empty((known, *type.shape), type.dtype.numpy)
    return [None] * turns
