"""Kernels of NumPy on several threads: array functions on one cache-sized block of rows after the other, so that they
find their operands in the cache. Rows are processed independently: the number of threads changes no bit.
"""

from __future__ import annotations

import contextvars
import functools
import math
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from mspc.ir.text.limits import number_of
from mspc.ir.types import EIGHTS, DType, TensorType, TupleType, dtype_of

# Kernels share their work out to these threads.
#
# Calls go to threads through a queue: waking a thread is most of the cost of a small call, and a future's locks would
# double it.


Call = Callable[[], object]


def in_parallel(calls: Sequence[Call]) -> None:
    """Make all calls at the same time, the first one on this thread. Raise the error of the first to fail."""
    ended: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
    queue = _queue(max(1, thread_count() - 1), os.getpid())
    for number, call in enumerate(calls[1:]):
        # A thread takes over the context, which holds NumPy's settings for overflows.
        queue.put((contextvars.copy_context(), call, number, ended))
    try:
        calls[0]()
    finally:
        others = dict(ended.get() for _ in calls[1:])
    for number in range(len(others)):
        error = others[number]
        if error is not None:
            raise error


MAX_THREADS = 1 << 12


@functools.cache
def thread_count() -> int:
    """Return the number of threads of a kernel: those of BLAS, which is limited to a rank's share, else all cores."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        count = number_of(os.environ.get(name, ""), MAX_THREADS)
        if count:
            return count
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _queue(threads: int, process: int) -> SimpleQueue[Any]:
    """Return the queue of calls for this number of threads of this process; a forked process has its own."""
    queue: SimpleQueue[Any] = SimpleQueue()
    for number in range(threads):
        threading.Thread(target=_work, args=(queue,), name=f"mspc-kernel_{number}", daemon=True).start()
    return queue


def _work(queue: SimpleQueue[Any]) -> None:
    while True:
        context, call, number, ended = queue.get()
        try:
            context.run(call)
        except BaseException as error:  # it is raised by the thread that shared out the work
            ended.put((number, error))
        else:
            ended.put((number, None))
        del context, call, ended


BLOCK = 1 << 18
"""Elements of a block: 1 MiB of Float32. Smaller ones would fit a core's own cache, but the threads of several cores
would make calls one after the other: on two, BatchNorm takes a quarter less than with blocks of a quarter."""
SHARED = 1 << 18
"""Elements from which a second thread is worth waking (some 20 us)."""


def in_blocks(xp: Any, rows: int, size: int, work: Callable[[slice], None]) -> None:
    """Call `work(rows)` for cache-sized blocks that cover all `rows`. xp: NumPy, or another array module, for which all
    rows are one block. size: elements of all rows."""
    step = max(1, BLOCK * rows // max(size, 1)) if xp is np else max(rows, 1)

    def part(begin: int, end: int) -> None:
        for start in range(begin, end, step):
            work(slice(start, min(start + step, end)))

    shared_out(xp, rows, step, size, part)


def shared_out(xp: Any, rows: int, step: int, size: int, part: Callable[[int, int], None]) -> None:
    """Call `part(begin, end)` for ranges that cover all `rows`: once, or on several threads if `size` elements are
    enough. Ranges start at multiples of `step`."""
    threads = min(thread_count(), -(-rows // step)) if xp is np and size >= SHARED else 1
    if threads == 1:
        part(0, rows)
        return
    share = -(-rows // threads // step) * step
    in_parallel([functools.partial(part, begin, min(begin + share, rows)) for begin in range(0, rows, share)])


# Copies of large arrays are made on several threads: most of their time the system gives the copy its memory.


_LARGE = 1 << 22
"""Bytes from which a copy is shared out: about a millisecond's."""
_STEP = 1 << 20


def copied(array: Any) -> Any:
    """Return a copy of a NumPy array with its elements in the same order."""
    if array.nbytes < _LARGE or not array.flags.c_contiguous or array.dtype.hasobject:
        return np.array(array)
    found = np.empty(array.shape, array.dtype)
    source, target = array.reshape(-1), found.reshape(-1)

    def part(begin: int, end: int) -> None:
        target[begin:end] = source[begin:end]

    shared_out(np, source.size, _STEP, source.size, part)
    return found


# A kernel has scratch memory that it writes and reads again before it ends; its thread stores it, as fresh memory costs
# more than writing to it.


MAX_CACHED = 1 << 24
"""Most bytes of an array that is stored: larger ones come from the system."""


class _ScratchArrays(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}


_cached = _ScratchArrays()


def scratch(name: str, shape: Sequence[int], dtype: Any) -> Any:
    """Return a NumPy array with any content. The next call for the same name on the same thread may return its memory
    again."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size > MAX_CACHED:
        return np.empty(shape, dtype)
    found = _cached.arrays.get(name)
    if found is None or found.size < size:
        found = _cached.arrays[name] = np.empty(size, np.uint8)
    return found[:size].view(dtype).reshape(shape)


# Kernels on Float8, Float16 and BFloat16 widen their operands to Float32, and round results once ------
# NumPy's own functions round after every step, sum in the narrow type, or make Float32 of BFloat16. This is decided
# when a kernel is bound: a backend with `halves` False has none, and its kernels stay bare array functions.


Kernel = Callable[..., Any]
_NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


class Computing(Protocol):
    """The part of an operator's interface that this module uses; see `mspc.ops.op.Op`."""

    widens: ClassVar[bool]
    is_view: ClassVar[bool]
    mutates: ClassVar[tuple[int, ...]]

    def infer(self, *types: TensorType) -> Any: ...

    def kernel(self, be: Any) -> Kernel: ...


Binder = Callable[[Any, Any], Any]
"""A method of an operator that takes a backend and returns a kernel."""


def widening(bind: Binder) -> Binder:
    """Return `Op.kernel` with kernels that compute in Float32 if an operand is narrower."""

    @functools.wraps(bind)
    def kernel(self: Computing, be: Any) -> Any:
        inner = bind(self, be)
        if not _computes(self, be):
            return inner
        return functools.partial(_widened, self, inner)

    return kernel


def widening_into(bind: Binder) -> Binder:
    """Do the same for `Op.kernel_into`."""

    @functools.wraps(bind)
    def kernel_into(self: Computing, be: Any) -> Any:
        inner = bind(self, be)
        if inner is None or not _computes(self, be):
            return inner
        plain = self.kernel(be)

        def kernel(*inputs: Any, out: Any) -> Any:
            if any(map(is_half, (*inputs, *parts_of(out)))):
                return written(plain(*inputs), out)
            return inner(*inputs, out=out)

        return kernel

    return kernel_into


def written(made: Any, out: Any) -> Any:
    """Copy a kernel's result, an array or a tuple, to `out`, and return that."""
    for target, array in zip(parts_of(out), parts_of(made), strict=True):
        target[...] = array
    return out


def parts_of(value: Any) -> tuple[Any, ...]:
    """Return the arrays of a kernel's result."""
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)


def is_half(array: Any) -> bool:
    """Return whether the elements are Float8, Float16 or BFloat16 (most of which are no floats to NumPy)."""
    dtype = getattr(array, "dtype", None)
    return dtype is not None and dtype.itemsize <= 2 and (dtype.kind == "f" or dtype.name in _NARROW)


def _computes(op: Computing, be: Any) -> bool:
    return op.widens and not op.is_view and getattr(be, "halves", True)


def _widened(op: Computing, kernel: Kernel, *inputs: Any, **options: Any) -> Any:
    narrow = [i for i, array in enumerate(inputs) if is_half(array)]
    if not narrow:
        return kernel(*inputs, **options)
    if options.get("out") is not None:
        return written(_widened(op, kernel, *inputs), options["out"])
    wide = list(inputs)
    for i in narrow:
        wide[i] = inputs[i].astype(np.float32)
    made = kernel(*wide)
    for i in op.mutates:
        if i in narrow:
            inputs[i][...] = wide[i]
    types = tuple(TensorType(dtype_of(array.dtype), tuple(array.shape)) for array in inputs)
    found = tuple(
        _narrowed(array, dtype, inputs, wide)
        for array, dtype in zip(parts_of(made), _result_dtypes(op, types), strict=True)
    )
    return found if isinstance(made, tuple) else found[0]


def _narrowed(array: Any, dtype: Any, inputs: Any, wide: Any) -> Any:
    """Return a result in its element type; an operand's widened copy is the operand itself."""
    for i, copy in enumerate(wide):
        if copy is array:
            return inputs[i]
    if dtype.itemsize == 1 and dtype.name in _NARROW:
        return saturated(array, dtype_of(dtype))
    return array if array.dtype == dtype else array.astype(dtype)


def saturated(x: Any, dtype: DType) -> Any:
    """Return an array in a type of 8 bits; numbers beyond its largest one become that."""
    wide = x if x.dtype.kind == "f" and x.dtype.itemsize > 2 else x.real.astype(np.float32)
    return wide.clip(-EIGHTS[dtype], EIGHTS[dtype]).astype(dtype.numpy)


@functools.lru_cache(maxsize=4096)
def _result_dtypes(op: Computing, types: tuple[TensorType, ...]) -> tuple[Any, ...]:
    inferred = op.infer(*types)
    if isinstance(inferred, TupleType):
        return tuple(element.dtype.numpy for element in inferred.elements)
    assert isinstance(inferred, TensorType)
    return (inferred.dtype.numpy,)
