"""Norms and their gradients as operators element by element, with means along rows."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.types import DType
from mspc.ops.math.arithmetic import Add, Mul, Sub
from mspc.ops.math.elementwise import Rsqrt
from mspc.ops.math.reduce import ReduceMean
from mspc.ops.tensor.cast import as_dtype


def normalised(
    b: Builder, x: Value, mean: Value, variance: Value, epsilon: float, kind: DType
) -> tuple[Value, Value]:  # fmt: skip
    """x with mean 0 and variance 1, and what x less its mean was multiplied by."""
    raised = b.emit(Add(), as_dtype(b, variance, kind), b.constant(epsilon, kind))
    inverse = b.emit(Rsqrt(), raised)
    apart = b.emit(Sub(), as_dtype(b, x, kind), as_dtype(b, mean, kind))
    return b.emit(Mul(), apart, inverse), inverse


def layer_norm_gradient(
    b: Builder, inputs: Sequence[Value], axes: tuple[int, ...], epsilon: float
) -> tuple[Value, Value]:
    """Emit (the gradient in x, the normalised x) of LayerNorm over `axes` from (dout, x, mean, variance, gamma)."""
    dout, x, mean, variance, gamma = inputs
    kind, mean_of = x.tensor_type.dtype, ReduceMean(True, axes)
    hat, inverse = normalised(b, x, mean, variance, epsilon, kind)
    scaled = b.emit(Mul(), dout, as_dtype(b, gamma, kind))
    along = b.emit(Mul(), hat, b.emit(mean_of, b.emit(Mul(), scaled, hat)))
    apart = b.emit(Sub(), b.emit(Sub(), scaled, b.emit(mean_of, scaled)), along)
    return b.emit(Mul(), apart, inverse), hat
