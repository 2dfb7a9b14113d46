"""Operators that fill arrays which are there already have their kernels here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.types import TensorType, TupleType, dtype_of
from mspc.ops.op import ArrayBackend, Op


class FilledOp(Op, abstract=True):
    """An operator whose kernel is `fill`."""

    def allocated(self, be: ArrayBackend, inputs: Sequence[Any]) -> tuple[Any, ...] | Any:
        """Empty results for these operands."""
        inferred = self.infer(*[TensorType(dtype_of(x.dtype), tuple(x.shape)) for x in inputs])
        if isinstance(inferred, TensorType):
            return be.xp.empty(inferred.shape, inferred.dtype.numpy)
        assert isinstance(inferred, TupleType)
        return tuple(be.xp.empty(t.shape, t.dtype.numpy) for t in inferred.elements)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        def kernel(*inputs: Any) -> Any:
            return self.fill(be, inputs, self.allocated(be, inputs))

        return kernel

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        def into(*inputs: Any, out: Any) -> Any:
            return self.fill(be, inputs, out)

        return into

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def fill(self, be: ArrayBackend, inputs: Sequence[Any], out: Any) -> Any:
        """Compute the results into `out` and return it."""
        raise NotImplementedError(self.name)
