"""Compiled functions are called with arrays of NumPy's, their parts shared out to threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from mspc.ir.types import TensorType
from mspc.ops.cpu.loops.addresses import Addresses, Settled, address
from mspc.ops.cpu.loops.chain import Chain
from mspc.ops.cpu.pool import on_all_threads
from mspc.ops.cpu.scratch import scratch

SHARED = 1 << 16
"""Operations from which a second thread is worth its share: some 10 us."""

Kernel = Callable[..., Any]
Function = Callable[..., None]


def chain_kernel(be: Any, chain: Chain, function: Function, end: Function, types: Sequence[TensorType],
                 numbers: Sequence[Any] = ()) -> Kernel:  # fmt: skip
    """The kernel `function(*operands, out=None)` of a chain whose results have these types. numbers: arrays that are
    operands of the chain behind the kernel's own."""
    nest = chain.nest
    order = {"write": 0, "row": len(nest.writes), "sum": len(nest.writes) + len(nest.row_writes)}
    places = [len(nest.reads) + order[kind] + place for kind, place in chain.results]
    extra = len(nest.reads) + len(places)
    full = nest.contiguous
    repeated = {i for i in chain.operands if chain.operands.count(i) > 1}
    # An operand that is read at another place than its own must not lie where results do.
    reads = [
        (place, index, read.dtype.numpy, index in repeated or read.strides != full)
        for place, (index, read) in enumerate(zip(chain.operands, nest.reads, strict=True))
    ]
    seeds, step = np.array(chain.seeds, np.uint64), np.zeros(1, np.int64)
    addresses = Addresses(extra + 3)
    addresses.hold(extra + 1, seeds)
    addresses.hold(extra + 2, step)
    table, size, has_sums = addresses.table, nest.scratch_bytes, bool(nest.sums)
    run = shared(function, nest.parts, nest.operations)

    def placed(operands: Sequence[Any], targets: Sequence[Any]) -> None:
        for place, target in zip(places, targets, strict=True):
            addresses.put(place, target)
        given = (*operands, *numbers) if numbers else operands
        for place, index, dtype, apart in reads:
            array = given[index]
            if apart and any(np.may_share_memory(array, target) for target in targets):
                addresses.copied(place, np.array(array, dtype, order="C"))
            else:
                addresses.read(place, array, dtype)

    def called() -> None:
        if size:
            totals = scratch("compiled", (size,), np.uint8)  # a name, as nothing else holds a large one
            table[extra] = address(totals)
        if chain.seeds:
            step[0] = be.step
        run(table)
        if has_sums:
            end(table)

    settled = Settled()

    def kernel(*operands: Any, out: Any = None) -> Any:
        if settled.has(operands, out):
            called()
            return out
        outs = _results(types, out)
        targets = [t if t.flags.c_contiguous else np.empty(t.shape, t.dtype) for t in outs]
        placed(operands, targets)
        called()
        in_place = all(result is target for result, target in zip(outs, targets, strict=True))
        settled.note(operands, out if in_place and not addresses.copies else None)
        addresses.release()
        for result, target in zip(outs, targets, strict=True):
            if result is not target:
                np.copyto(result, target)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return kernel


def shared(function: Function, parts: int, operations: int, first: int = 0) -> Callable[[Any], None]:
    """`run(table)`: a function over so many parts from the first, on as many threads as pay for so many operations."""
    if operations < SHARED:
        return lambda table: function(table, first, first + parts)
    return on_all_threads(function, first, first + parts)


def _results(types: Sequence[TensorType], out: Any) -> Sequence[Any]:
    if out is None:
        return [np.empty(type.shape, type.dtype.numpy) for type in types]
    return cast("tuple[Any, ...]", out) if isinstance(out, tuple) else (out,)
