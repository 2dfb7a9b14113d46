"""Kernels on Float8, Float16 and BFloat16 widen their operands to Float32, and round results once.

NumPy's own functions round after every step, sum in the narrow type, or make Float32 of BFloat16. This is decided when
a kernel is bound: a backend with `halves` False has none, and its kernels stay bare array functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from mspc.ir.types import EIGHTS, DType, TensorType, TupleType, dtype_of

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
