"""Compiled functions are called with arrays of NumPy's, their parts shared out to threads."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.types import TensorType
from mspc.ops.cpu.blocks import parts_of, scratch
from mspc.ops.cpu.loops.chain import Chain
from mspc.ops.cpu.thread_pool import on_all_threads
from mspc.ops.fused.body import BodyLine
from mspc.ops.random.words import number_of_run

# Addresses of arrays for compiled functions: a table that is filled again only if arrays change.
#
# A program's buffers are mostly the same at every step, and to ask NumPy for an address takes longer than a small loop.


class Addresses:
    """A table of addresses. `table` is the functions' argument."""

    def __init__(self, count: int) -> None:
        self.table = (ctypes.c_void_p * max(1, count))()
        self._known: list[Any] = [_nothing] * count
        self.copies: list[Any] = []
        self._held: list[Any] = []

    def put(self, place: int, array: Any) -> None:
        """Add a contiguous array, which may be written to; the table does not keep it alive."""
        if self._known[place]() is not array:
            self.table[place] = address(array)
            self._known[place] = weakref.ref(array)

    def hold(self, place: int, array: Any) -> None:
        """Add an array that stays alive as long as the table."""
        self.put(place, array)
        self._held.append(array)

    def read(self, place: int, array: Any, dtype: Any) -> None:
        """Add an array to read: contiguous in the table; a copy of it until `release` if it is not, has another element
        type, or is a number."""
        if self._known[place]() is array:
            return
        if isinstance(array, np.ndarray) and array.dtype == dtype and array.flags.c_contiguous:
            self.put(place, array)
        else:
            self.copied(place, np.ascontiguousarray(array, dtype))

    def copied(self, place: int, array: Any) -> None:
        """Add an array that stays alive until `release`."""
        self.table[place] = address(array)
        self._known[place] = _nothing
        self.copies.append(array)

    def release(self) -> None:
        """Let go of copies."""
        if self.copies:
            self.copies.clear()


class Settled:
    """The arrays of a call after which a table holds all that the next one needs, if that has the same ones."""

    def __init__(self) -> None:
        self._operands: list[Any] = []
        self._out: Any = None

    def note(self, operands: Sequence[Any], out: Any) -> None:
        """Return NumPy arrays, and reusable memory for results; None if the next call must check again."""
        self._out = out
        self._operands = [weakref.ref(array) for array in operands] if out is not None else []

    def has(self, operands: Sequence[Any], out: Any) -> bool:
        """Return whether these are the arrays of the call that was noted."""
        if out is None or out is not self._out:
            return False
        return all(known() is array for known, array in zip(self._operands, operands, strict=True))


def address(array: Any) -> int:
    """Return the address of an array of NumPy's."""
    return array.__array_interface__["data"][0]


def _nothing() -> None:
    """Return None for a place with no known array."""


SHARED = 1 << 16
"""Operations from which a second thread is worth its share: some 10 us."""

Kernel = Callable[..., Any]
Function = Callable[..., None]


def chain_kernel(be: Any, chain: Chain, function: Function, end: Function, types: Sequence[TensorType],
                 numbers: Sequence[Any] = ()) -> Kernel:  # fmt: skip
    """Return the kernel `function(*operands, out=None)` of a chain with results of these types. numbers: arrays that
    are operands of the chain after the kernel's own."""
    arrays = _Arrays(be, chain, numbers)
    run = shared(function, chain.nest.parts, chain.nest.operations)
    settled, table, has_sums = Settled(), arrays.addresses.table, bool(chain.nest.sums)

    def called() -> None:
        totals = arrays.refresh()  # a name, as nothing else holds large ones
        run(table)
        if has_sums:
            end(table)
        del totals

    def kernel(*operands: Any, out: Any = None) -> Any:
        if settled.has(operands, out):
            called()
            return out
        outs = _results(types, out)
        targets = [t if t.flags.c_contiguous else np.empty(t.shape, t.dtype) for t in outs]
        arrays.put(operands, targets)
        called()
        in_place = all(result is target for result, target in zip(outs, targets, strict=True))
        settled.note(operands, out if in_place and not arrays.addresses.copies else None)
        arrays.addresses.release()
        for result, target in zip(outs, targets, strict=True):
            if result is not target:
                np.copyto(result, target)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return kernel


def checking(kernel: Kernel, lines: Sequence[BodyLine]) -> Kernel:
    """Return the kernel with a check before it whether these lines take the operands that they read."""

    def checked(*operands: Any, out: Any = None) -> Any:
        for line in lines:
            line.op.check_operands(*[operands[index] for _, index in line.operands])
        return kernel(*operands, out=out)

    return checked


class _Arrays:
    """Arrays of a chain's function: operands, results, totals of parts, seeds and the step."""

    def __init__(self, be: Any, chain: Chain, numbers: Sequence[Any]) -> None:
        nest = chain.nest
        order = {"write": 0, "row": len(nest.writes), "sum": len(nest.writes) + len(nest.row_writes)}
        self._backend, self._numbers = be, numbers
        self._places = [len(nest.reads) + order[kind] + place for kind, place in chain.results]
        repeated = {i for i in chain.operands if chain.operands.count(i) > 1}
        # An operand that is read at another place than its own must not share memory with results.
        self._reads = [
            (place, index, read.dtype.numpy, index in repeated or read.strides != nest.contiguous)
            for place, (index, read) in enumerate(zip(chain.operands, nest.reads, strict=True))
        ]
        self._seeds, self._step = np.array(chain.seeds, np.uint64), np.zeros(1, np.uint64)
        self._extra, self._size = len(nest.reads) + len(self._places), nest.scratch_bytes
        self.addresses = Addresses(self._extra + 3)
        self.addresses.hold(self._extra + 1, self._seeds)
        self.addresses.hold(self._extra + 2, self._step)

    def put(self, operands: Sequence[Any], targets: Sequence[Any]) -> None:
        """Put the operands and results of a call."""
        for place, target in zip(self._places, targets, strict=True):
            self.addresses.put(place, target)
        given = (*operands, *self._numbers)
        for place, index, dtype, apart in self._reads:
            array = given[index]
            if apart and any(np.may_share_memory(array, target) for target in targets):
                self.addresses.copied(place, np.array(array, dtype, order="C"))
            else:
                self.addresses.read(place, array, dtype)

    def refresh(self) -> Any:
        """Write the arguments that change with every call; return memory that must stay alive until its end."""
        if len(self._seeds):
            self._step[0] = number_of_run(self._backend)
        if not self._size:
            return None
        totals = scratch("compiled", (self._size,), np.uint8)
        self.addresses.table[self._extra] = address(totals)
        return totals


def shared(function: Function, parts: int, operations: int, first: int = 0) -> Callable[[Any], None]:
    """Return `run(table)`: a function over `parts` parts, on as many threads as are worthwhile for this number of
    operations."""
    if operations < SHARED:
        return lambda table: function(table, first, first + parts)
    return on_all_threads(function, first, first + parts)


def _results(types: Sequence[TensorType], out: Any) -> Sequence[Any]:
    if out is None:
        return [np.empty(type.shape, type.dtype.numpy) for type in types]
    return parts_of(out)
