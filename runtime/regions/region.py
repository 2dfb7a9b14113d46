"""Regions, prepared once and run many times, and the kernels of nodes that run them.

Its parameters are slots 0, 1, ... of its plan, which receive the operands' arrays without a copy: a parameter that the
region overwrites is the operand's memory. Results are arrays that no later run writes to, unless the caller supplies
the same memory again: large results are written to supplied memory if nothing else is a view of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from mspc.analysis.aliasing import aliased_operands
from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import MICRO_BATCH, Graph, Node, Value, Worklist, element_types
from mspc.ir.types import StackType, TensorType, TupleType
from mspc.ops.control.regions import If, Loop, While, spread
from mspc.ops.control.structural import CALL, TupleGetItem
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.buffers import RegionResultBuffer
from mspc.runtime.comm.interface import Check, path_check
from mspc.runtime.compiled_loops import is_worth_compiling
from mspc.runtime.faults.record import LOOPS_AT, MAX_LOOPS, TURNS_AT, RegionFailure
from mspc.runtime.plan import KernelFailed, RegionKernels, copy_value, hooked, parts_of, plan, run_instructions

Array = Any
Kernel = Callable[..., Any]
Call = Callable[..., Any]
"""Function that runs the kernel of a node, given its graph, its position there, the kernel and the operands."""


class Region:
    """Prepared region.

    slots: of its values, starting with its parameters', to be filled with the operands before `run`. overwrites:
    numbers of the results that alias a parameter which the region overwrites. handed: memory for results by number, to
    be set before `run`. shown: for every result, the parameters of which it may be a view. kernels: of its nodes with
    regions. compiles: see `plan`.
    """

    def __init__(self, graph: Graph, backend: NumPyBackend, kernels: RegionKernels, compiles: bool) -> None:
        self.graph = graph
        makers = placeable_results(graph)
        places = {number: RegionResultBuffer() for number in makers}
        handed = {makers[number]: place for number, place in places.items()}
        made = plan(graph, backend, kernels, handed, compiles)
        self.handed = {number: place for number, place in places.items() if place.used}
        self.shown = [made.updates.parameters(value) for value in graph.results]
        self.overwrites = [i for i, value in enumerate(graph.results) if made.updates.changes(value)]
        self.slots: list[Any] = [None] * made.slots
        for constant, slot in made.constants:
            self.slots[slot] = constant.value
        self._steps = self._plain = [*made.before_update, *made.after_update]
        self._call: Call | None = None
        self._running = [-1]
        self._results = made.result_slots
        self._free = made.free_at_end
        self._unset = [None] * len(graph.parameters)

    def run(self) -> list[Array]:
        """Return the results for the operands in the first slots. Raise RegionFailure if a kernel fails."""
        slots = self.slots
        try:
            run_instructions(self._steps, slots, self._running)
        except KernelFailed as failed:
            cause = failed.__cause__
            assert isinstance(cause, Exception)
            inner = isinstance(cause, RegionFailure)
            raise cause if inner else RegionFailure(self.graph, failed.index, cause) from cause
        results = [slots[slot] for slot in self._results]
        for slot in self._free:
            slots[slot] = None
        return results

    def hook(self, call: Call | None) -> None:
        """Run the kernels of the nodes by `call`; None to run them directly."""
        if call != self._call:
            self._call = call
            self._steps = self._plain if call is None else hooked(self._plain, partial(call, self.graph))

    def new_result(self, number: int) -> Array:
        """Allocate an array for a result."""
        type = self.graph.results[number].tensor_type
        return np.empty(type.shape, type.dtype.numpy)

    def forget(self) -> None:
        """Release operands and memory of results."""
        self.slots[: len(self._unset)] = self._unset
        for place in self.handed.values():
            place.out = None


def store_results(results: Sequence[Array], places: Sequence[Array]) -> tuple[Array, ...]:
    """Return the results in these arrays; results that are elsewhere are copied."""
    for result, place in zip(results, places, strict=True):
        if result is not place:
            place[...] = result
    return tuple(places)


def placeable_results(graph: Graph) -> dict[int, tuple[Node, int]]:
    """Return, for the numbers of results that may be written to supplied memory, (the node that makes them, the number
    among its results)."""
    return {number: _maker(graph.results[number]) for number in _alone(graph.results)}


def _maker(value: Value) -> tuple[Node, int]:
    """Return (the node that makes a value, the number of the value among its results)."""
    assert isinstance(value, Node)
    if isinstance(value.op, TupleGetItem) and isinstance(value.inputs[0], Node):
        return value.inputs[0], value.op.index
    return value, 0


def _alone(results: Sequence[Value]) -> list[int]:
    """Return the numbers of the results of nodes whose memory no other result may alias."""
    makers = [_maker(value) if isinstance(value, Node) else None for value in results]
    found: list[int] = []
    for number, maker in enumerate(makers):
        others = [value for i, value in enumerate(results) if i != number]
        if maker is not None and makers.count(maker) == 1 and not _may_alias(others, maker):
            found.append(number)
    return found


def _may_alias(values: Sequence[Value], maker: tuple[Node, int]) -> bool:
    """Return whether one of the values may be a view of a node's result."""
    waiting = Worklist(values)
    for value in waiting:
        if not isinstance(value, Node):
            continue
        if value is maker[0]:
            return True
        if isinstance(value.op, TupleGetItem) and value.inputs[0] is maker[0]:
            if value.op.index == maker[1]:
                return True
            continue
        waiting.add(value.inputs[i] for i in aliased_operands(value))
    return False


def too_long(limit: float, turns: int, has_condition: bool) -> ExecutionError:
    """Return the error of a loop that has run for more than `limit` seconds."""
    goes_on = "its condition still holds" if has_condition else "more turns are to come"
    return ExecutionError(
        f"it has run for more than {limit:g} s, {turns} turn{'s' * (turns != 1)} so far, and {goes_on}",
        notes=["mspc run --timeout SECONDS lets it run longer; without it a loop may take any time"],
    )


def path_text(node: Node, way: int) -> str:
    """Return the text about a rank's path: the condition `way` of a branch, or `way` iterations of a loop."""
    if isinstance(node.op, If):
        return f"has {'true' if way else 'false'} as the condition of {node.label}"
    turns = way
    counted = f"{turns} turn{'s' * (turns != 1)}"
    return f"has left {node.label} after {counted}" if isinstance(node.op, While) else f"has {counted} of {node.label}"


def check_lengths(label: str, turns: int, scanned: Iterable[Any]) -> None:
    """Raise ExecutionError if a scanned array or stack does not have an entry for every iteration."""
    for entries in scanned:
        if len(entries) != turns:
            raise ExecutionError(f"{label} has {turns} turns and scans a stack of {len(entries)} entries")


# Kernels of nodes with regions ------------------------------------------------------------------------


class Regions:
    """Prepared regions of one rank's graph; nodes with the same region share it. cursor: see `Executor`. compiles:
    nodes may run as compiled loops; None to decide by the size of the program."""

    def __init__(self, program: Graph, backend: NumPyBackend, cursor: Any, compiles: bool | None = None) -> None:
        self._compiles = is_worth_compiling(program, backend) if compiles is None else compiles
        self._backend = backend
        self._cursor = cursor
        self._made: dict[Graph, Region] = {}

    @property
    def prepared(self) -> Iterable[Region]:
        """All prepared regions."""
        return self._made.values()

    def kernels(self, nodes: Sequence[Node]) -> RegionKernels:
        """Return the kernels of the nodes with regions."""
        made = {index: self.kernel(node) for index, node in enumerate(nodes) if node.regions}
        return RegionKernels(made, {i: kernel for i, kernel in made.items() if is_planned(nodes[i], self._backend)})

    def kernel(self, node: Node) -> Kernel:
        """Return the kernel of a node with regions. Its argument `out`, if given, has memory for every result."""
        kernel = self._kernel(node)
        if MICRO_BATCH in node.attrs:
            return _numbered(kernel, self._backend, "turns", int(node.attrs[MICRO_BATCH]))
        number = node.attrs.get(CALL)
        return kernel if number is None else _numbered(kernel, self._backend, "calls", int(number))

    def _kernel(self, node: Node) -> Kernel:
        regions = [self._region(graph) for graph in node.regions]
        if isinstance(node.op, Loop):
            return LoopKernel(node, node.op, regions, self._backend, self._cursor).run
        if isinstance(node.op, If):
            return _choice(*regions, path_check(node, self._backend.comm, partial(path_text, node)), self._backend)
        return _call(node, *regions)

    def _region(self, graph: Graph) -> Region:
        if graph not in self._made:
            self._made[graph] = Region(graph, self._backend, self.kernels(graph.nodes), self._compiles)
        return self._made[graph]


def is_planned(node: Node, backend: NumPyBackend) -> bool:
    """Return whether memory is planned for the results of a node with regions: some are large, and none are stacks."""
    types = element_types(node.type)
    return max((t.nbytes for t in types), default=0) >= backend.planned_from and not any(
        isinstance(t, StackType) for t in types
    )


def _numbered(kernel: Kernel, backend: NumPyBackend, place: str, number: int) -> Kernel:
    """Return the kernel with random numbers that differ from those of other nodes with the same regions. place:
    "calls", or "turns" for a stage's work on a micro-batch, which draws the numbers of an iteration of the loop over
    micro-batches."""

    def run(*operands: Array, **places: Any) -> tuple[Array, ...]:
        around = getattr(backend, place)
        setattr(backend, place, (*around, number))
        try:
            return kernel(*operands, **places)
        finally:
            setattr(backend, place, around)

    return run


def _choice(then: Region, otherwise: Region, check: Check | None, backend: NumPyBackend) -> Kernel:
    def run(condition: Array, *operands: Array, out: Sequence[Array] = ()) -> tuple[Array, ...]:
        if check is not None:
            check(int(condition))
        region = then if condition else otherwise
        if backend.taken is not None:
            backend.taken.add(region.graph)
        return _run(region, operands, out)

    return run


def _call(node: Node, region: Region) -> Kernel:
    def run(*operands: Array, out: Sequence[Array] = ()) -> tuple[Array, ...]:
        return _run(region, operands, out)

    def run_spread(*operands: Any, out: Sequence[Array] = ()) -> tuple[Array, ...]:
        return _run(region, spread(node, operands), out)

    return run_spread if any(isinstance(value.type, TupleType) for value in node.inputs) else run


def _run(region: Region, operands: Sequence[Array], out: Sequence[Array]) -> tuple[Array, ...]:
    region.slots[: len(operands)] = operands
    for number, place in region.handed.items():
        place.out = out[number] if out else region.new_result(number)
    results = region.run()
    region.forget()
    return store_results(results, out) if out else tuple(results)


# Kernel of a loop -------------------------------------------------------------------------------------
# Moves carried values into the slots of its body and back.
# Results that alias a parameter which the body overwrites are copied after every iteration, because the next one
# writes there. Large results of an iteration are written to their final memory: stacked results to their row, carried
# ones to one of two alternating buffers, so that no iteration allocates memory.


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
    """Kernel of a loop, run by `run`. regions: prepared, in the order of the node's. cursor: see `Executor`."""

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
