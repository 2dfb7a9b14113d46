"""Cast converts element types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.types import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, HALVES, DType, TensorType
from mspc.ops.bases import Unary
from mspc.ops.device import c_type
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.operator_arguments import dtype_arg, split_call


class Cast(Unary):
    """x with the element type `dst_type`; of a complex number the real part becomes a real one. Called as
    `Cast()(x, dtype)`."""

    takes_complex = True
    dst_type: DType = FLOAT32
    follows_neighbours = True
    widens = False

    @property
    def linear_in(self) -> tuple[int, ...]:  # type: ignore[override]  # depends on the target
        # Rounding to integers or halves is not linear.
        return (0,) if self.dst_type in (FLOAT32, FLOAT64, COMPLEX64, COMPLEX128) else ()

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("dtype",))
        return replace(self, dst_type=dtype_arg(self.name, "dtype", found["dtype"])), tensors

    def result_dtype(self, *types: TensorType) -> DType:
        return self.dst_type

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        source = x.tensor_type.dtype
        if source.has_gradient and not self.dst_type.has_gradient:
            return (None,)
        return (b.emit(Cast(dst_type=source), dout),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        dtype = self.dst_type.numpy

        def kernel(x: Any) -> Any:
            return (x.real if x.dtype.kind == "c" and dtype.kind != "c" else x).astype(dtype)

        return kernel

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on dst_type
        return f"wide(narrow<{c_type(self.dst_type)}>({{0}}))" if self.dst_type in HALVES else "{0}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    samples = (
        sample((8, 16), dst_type=FLOAT32, gradient=False),
        sample((8, 16), dst_type=FLOAT64),
        sample((8,), dst_type=FLOAT64, dtypes=("Int32",)),
    )


def as_dtype(b: Builder, value: Value, dtype: DType) -> Value:
    """`value` in an element type; itself where it has it."""
    return value if value.tensor_type.dtype == dtype else b.emit(Cast(dst_type=dtype), value)
