"""Norms and their gradients as operators element by element, with means along rows."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.types import DType
from mspc.ops.math.arithmetic import Add, Mul, Sub
from mspc.ops.math.elementwise import Rsqrt
from mspc.ops.math.reduce import ReduceMean
from mspc.ops.tensor.broadcast import is_filled
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
    g = scaled(b, dout, gamma)
    along = b.emit(Mul(), hat, b.emit(mean_of, b.emit(Mul(), g, hat)))
    apart = b.emit(Sub(), b.emit(Sub(), g, b.emit(mean_of, g)), along)
    return b.emit(Mul(), apart, inverse), hat


def scaled(b: Builder, value: Value, gamma: Value) -> Value:
    """A value times gamma; nothing is done for one that is known to be 1, as that of a group norm."""
    return value if is_filled(gamma, 1) else b.emit(Mul(), value, as_dtype(b, gamma, value.tensor_type.dtype))
