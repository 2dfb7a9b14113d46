"""These operators make complex numbers and take their parts. A gradient is that of the real and of the imaginary part
as one complex number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import FLOAT32, DType, TensorType, complex_of, real_of
from mspc.ops.bases import require_float
from mspc.ops.math.arithmetic import Add, DivNoNan, Mul, Neg, Sub, gradients
from mspc.ops.math.elementwise import Square
from mspc.ops.math.trigonometry import Cos, Sin
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.tensor.creation import ZerosLike
from mspc.sharding.rules import broadcast_rule

Gradients = Sequence[Value | None]


class _ComplexPart(Op, abstract=True):
    """A real number of a complex one, element by element; of a real number as of one without an imaginary part."""

    takes_complex = True
    linear_in = (0,)

    def rule(self, input: TensorType) -> str:
        return broadcast_rule((input.shape,))

    def result_dtype(self, *types: TensorType) -> DType:
        return real_of(types[0].dtype)


def _as_operand(b: Builder, x: Value, real: Value, imag: Value) -> Value:
    """The gradient of an operand that may be a real number."""
    return b.emit(Complex(), real, imag) if x.tensor_type.dtype.is_complex else real


class Real(_ComplexPart):
    """The real part."""


    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (_as_operand(b, x, dout, b.emit(ZerosLike(), dout)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.array(inputs[0].real)

    samples = (sample((8, 16)), sample((4,), dtypes=("Complex128",), gradient=False))


class Imag(_ComplexPart):
    """The imaginary part; 0 of a real number."""


    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        none = b.emit(ZerosLike(), dout)
        return (_as_operand(b, x, none, dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.array(inputs[0].imag)

    samples = (sample((8, 16), gradient=False), sample((4,), dtypes=("Complex128",), gradient=False))


class ComplexAbs(_ComplexPart):
    """The absolute value sqrt(re * re + im * im); its gradient at 0 is 0."""

    linear_in = ()

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        share = b.emit(DivNoNan(), dout, out)
        real, imag = (b.emit(Mul(), share, b.emit(part(), x)) for part in (Real, Imag))
        return (_as_operand(b, x, real, imag),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.abs(inputs[0])

    samples = (sample((8, 16), low=0.5), sample((4,), dtypes=("Complex128",), gradient=False))


class Angle(_ComplexPart):
    """The angle atan2(im, re) in radians; its gradient at 0 is 0."""

    linear_in = ()

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        real, imag = b.emit(Real(), x), b.emit(Imag(), x)
        share = b.emit(DivNoNan(), dout, b.emit(Add(), b.emit(Square(), real), b.emit(Square(), imag)))
        return (_as_operand(b, x, b.emit(Neg(), b.emit(Mul(), share, imag)), b.emit(Mul(), share, real)),)

    def result_dtype(self, *types: TensorType) -> DType:
        dtype = types[0].dtype
        return real_of(dtype) if dtype.is_float or dtype.is_complex else FLOAT32

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        found = be.xp.angle(x)
        return found.astype(be.xp.float32) if x.dtype.kind in "biu" else found

    samples = (sample((8, 16), low=0.5), sample((4,), dtypes=("Complex128",), gradient=False))


class _Pair(Op, abstract=True):
    """A complex number of two real ones of one element type, broadcast against each other."""

    promotes: ClassVar[str] = "common"

    def rule(self, x: TensorType, y: TensorType) -> str:
        return broadcast_rule((x.shape, y.shape))

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, *types)
        if types[0].dtype != types[1].dtype or types[0].dtype.itemsize < 4:
            raise MspcError(
                f"{self.name}: inputs are {types[0].dtype} and {types[1].dtype}, not both Float32 or Float64",
                kind=TypeError,
            )
        return inferred

    def result_dtype(self, *types: TensorType) -> DType:
        return complex_of(types[0].dtype)


class Complex(_Pair):
    """real + i * imag."""

    additive = True

    def bprop(self, b: Builder, real: Value, imag: Value, out: Value, dout: Value) -> Gradients:
        return gradients(b, real, imag, b.emit(Real(), dout), b.emit(Imag(), dout))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        real, imag = inputs
        out = be.xp.empty(be.xp.broadcast_shapes(real.shape, imag.shape), complex_dtype(be, real))
        out.real, out.imag = real, imag
        return out

    samples = (sample((8, 16), (8, 16), gradient=False), sample((8, 1), (16,), gradient=False))


class Polar(_Pair):
    """abs * (cos(angle) + i * sin(angle))."""

    linear_in = (0,)

    def bprop(self, b: Builder, abs: Value, angle: Value, out: Value, dout: Value) -> Gradients:
        real, imag = b.emit(Real(), dout), b.emit(Imag(), dout)
        cos, sin = b.emit(Cos(), angle), b.emit(Sin(), angle)
        along = b.emit(Add(), b.emit(Mul(), real, cos), b.emit(Mul(), imag, sin))
        across = b.emit(Sub(), b.emit(Mul(), imag, cos), b.emit(Mul(), real, sin))
        return gradients(b, abs, angle, along, b.emit(Mul(), across, abs))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        size, angle = inputs
        return Complex().run(be, size * be.xp.cos(angle), size * be.xp.sin(angle))

    samples = (sample((8, 16), (8, 16), gradient=False), sample((8, 1), (16,), gradient=False))


def complex_dtype(be: ArrayBackend, array: Any) -> Any:
    """The complex type of an array's numbers for the backend."""
    return be.xp.complex128 if array.dtype.itemsize >= 8 and array.dtype.kind == "f" else be.xp.complex64
