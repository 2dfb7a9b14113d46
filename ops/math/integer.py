"""These operators compute on integers: bit by bit, shifts, greatest common divisors, and division that truncates
towards 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import BOOL, UINT8, DType, TensorType
from mspc.ops.bases import Binary, require_same
from mspc.ops.math.arithmetic import Mod
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.sharding.rules import broadcast_rule

Gradients = Sequence[Value | None]
_SHIFTS = (
    sample((8, 16), (8, 16), dtypes=("Int32", "Int32"), low=0, high=9, gradient=False),
    sample((8, 16), (16,), dtypes=("UInt8", "UInt8"), low=0, high=7, gradient=False),
)
_INTEGER = NotDifferentiable("its result is an integer")
_SAMPLES = (
    sample((8, 16), (8, 16), dtypes=("Int32", "Int32"), low=0, high=99, gradient=False),
    sample((8, 16), (16,), dtypes=("Int64", "Int64"), low=-9, high=9, gradient=False),
)


class _Bitwise(Binary, abstract=True):
    bprop = _INTEGER
    samples = _SAMPLES

    def check(self, *types: TensorType) -> None:
        require_same(self.name, *types)
        for index, operand in enumerate(types):
            if operand.dtype.is_float:
                raise MspcError(
                    f"{self.name}: input {index} is {operand.dtype}, not an integer or Bool tensor",
                    kind=TypeError,
                )


class BitwiseAnd(_Bitwise):
    """The bits that both have."""

    array_function = "bitwise_and"
    cuda = "{0} & {1}"


class BitwiseOr(_Bitwise):
    """The bits that one of both has."""

    array_function = "bitwise_or"
    cuda = "{0} | {1}"


class BitwiseXor(_Bitwise):
    """The bits that exactly one has."""

    array_function = "bitwise_xor"
    cuda = "{0} ^ {1}"


class _Shift(_Bitwise, abstract=True):
    """Shifts by the number of bits or more leave no digit."""

    left: ClassVar[bool] = False

    def check(self, *types: TensorType) -> None:
        super().check(*types)
        if types[0].dtype == BOOL:
            raise MspcError(f"{self.name}: input 0 is Bool, not an integer tensor", kind=TypeError)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, count) = be.xp, inputs
        return (xp.left_shift if self.left else xp.right_shift)(x, count)


class LeftShift(_Shift):
    """x with its bits `other` places higher."""

    left = True
    cuda = "(unsigned long long){1} < 8 * sizeof(T) ? {0} << {1} : T(0)"
    samples = _SHIFTS


class RightShift(_Shift):
    """x with its bits `other` places lower; a negative number keeps its sign."""

    cuda = "(unsigned long long){1} < 8 * sizeof(T) ? {0} >> {1} : T({0} < T(0) ? -1 : 0)"
    samples = _SHIFTS


class Gcd(_Bitwise):
    """The greatest common divisor, which is not negative."""

    array_function = "gcd"
    cuda = (
        "[&] { auto a = {0} < T(0) ? T(0) - {0} : {0}, b = {1} < T(0) ? T(0) - {1} : {1}; "
        "while (b != T(0)) { auto c = a % b; a = b; b = c; } return a; }()"
    )


class PopulationCount(Op):
    """How many bits of a number are 1, UInt8; of a negative one those of its two's complement."""

    bprop = _INTEGER
    samples = (
        sample((8, 16), dtypes=("Int16",), low=-99, high=99, gradient=False),
        sample((8,), dtypes=("Int64",), low=-9, high=9, gradient=False),
    )

    def rule(self, input: TensorType) -> str:
        if not input.dtype.is_integer:
            raise MspcError(f"{self.name}: input 0 is {input.dtype}, not an integer tensor", kind=TypeError)
        return broadcast_rule((input.shape,))

    def result_dtype(self, *types: TensorType) -> DType:
        return UINT8

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        bits = x.view(f"u{x.dtype.itemsize}").astype(xp.uint64)
        count = xp.zeros(x.shape, xp.uint8)
        for place in range(8 * x.dtype.itemsize):
            count += ((bits >> xp.uint64(place)) & xp.uint64(1)).astype(xp.uint8)
        return count


class TruncateDiv(Binary):
    """The quotient truncated towards 0; its derivative is 0."""

    takes_bool = False
    cuda = "over({0}, {1})"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        return None, None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, y = inputs
        if x.dtype.kind == "f":
            return be.xp.trunc(be.xp.divide(x, y))
        return (x - be.xp.fmod(x, y)) // y

    samples = (
        sample((8, 16), (16,), low=0.5),
        sample((8, 16), (8, 1), dtypes=("Int32", "Int32"), low=1, high=9),
    )


class TruncateMod(Mod):
    """The remainder of the division truncated towards 0; the sign is that of x."""

    samples = Mod.samples
