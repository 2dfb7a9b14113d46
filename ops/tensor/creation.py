"""Tensors of given numbers, ranges, and masks of triangles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Value
from mspc.ir.types import BOOL, FLOAT32, INT64, DType, TensorType, dtype_of
from mspc.ops import gpu
from mspc.ops.bases import Elementwise, Unary, operator
from mspc.ops.device import Array, Device, Launch, computing_type
from mspc.ops.math.arithmetic import Mul, Select, Sub
from mspc.ops.op import Gradients, Op, RankPlacement, sample
from mspc.ops.operator_arguments import dtype_arg, int_of, number_of, shape_of, size_of, split_call
from mspc.ops.tensor.reshape import ReduceSum, sum_to_shape
from mspc.sharding.rules import broadcast_rule, factor_names, sized


def shape_rule(shape: Sequence[int]) -> str:
    """Return the rule of a tensor of a given shape without operands."""
    return " -> " + " ".join(sized(name, n) for name, n in zip(factor_names(len(shape)), shape, strict=True))


class _WithoutOperands(Op, abstract=True):
    """An operator without operands."""

    def bprop(self, b: Builder, *out_and_gradient: Any) -> Gradients:
        return ()


class Fill(_WithoutOperands):
    """A tensor of one value. Called as `Fill()(type, shape, value)`."""

    type: DType = FLOAT32
    shape: tuple[int, ...] = ()
    value: bool | int | float = 0.0
    settings = (("type", dtype_arg), ("shape", shape_of), ("value", number_of))
    samples = (sample(shape=(8, 16), value=0.5), sample(shape=(8,), type=INT64, value=3), sample())

    def rule(self) -> str:
        return shape_rule(self.shape)

    def result_dtype(self, *types: TensorType) -> DType:
        try:
            np.full((), self.value, self.type.numpy)
        except OverflowError:
            raise MspcError(f"{self.name}: {self.value} is no number of {self.type}", kind=ValueError) from None
        return self.type

    def uniform(self) -> int | float | None:
        return self.value

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.full(self.shape, self.value, self.type.numpy)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return gpu.moves.put_values(device, "fill", out, gpu.moves.literal(self.value, self.type))

    def localize(self, placement: RankPlacement) -> Op:
        return replace(self, shape=placement.out_layouts[0].local_shape(self.shape))


class _OneNumber(Op, abstract=True):
    """All elements are `number`, 0 or 1."""

    number: ClassVar[int] = 0

    def uniform(self) -> int | float | None:
        return self.number

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        value = gpu.moves.literal(self.number, dtype_of(out.dtype))
        return gpu.moves.put_values(device, ("zeros", "ones")[self.number], out, value)


class _Uniform(_OneNumber, _WithoutOperands, abstract=True):
    """Called as `Op()(shape, dtype)`."""

    operand_names = ("shape", "dtype")
    shape: tuple[int, ...] = ()
    dtype: DType = FLOAT32

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 0, ("shape", "dtype"), optional=1)
        made = replace(
            self,
            shape=shape_of(self.name, "shape", found["shape"]),
            dtype=dtype_arg(self.name, "dtype", found.get("dtype") or self.dtype),
        )
        return made, tensors

    def rule(self) -> str:
        return shape_rule(self.shape)

    def result_dtype(self, *types: TensorType) -> DType:
        return self.dtype

    def localize(self, placement: RankPlacement) -> Op:
        return replace(self, shape=placement.out_layouts[0].local_shape(self.shape))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.full(self.shape, self.number, self.dtype.numpy)


_NUMBERS = (sample(shape=(8, 16)), sample(shape=(16,), dtype=INT64))
Zeros = operator("Zeros", "A tensor of zeros. Called as `Zeros()(shape, dtype)`.", _Uniform, samples=_NUMBERS)
Ones = operator("Ones", "A tensor of ones. Called as `Ones()(shape, dtype)`.", _Uniform, samples=_NUMBERS, number=1)


class _Like(_OneNumber, Unary, abstract=True):
    takes_complex = True

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (None,)


_LIKE = (sample((8, 16)), sample((8,), dtypes=("Int32",)))
ZerosLike = operator(
    "ZerosLike", "Zeros of the shape and element type of x.", _Like,
    array_function="zeros_like", cuda="T(0)", samples=_LIKE,
)  # fmt: skip
OnesLike = operator(
    "OnesLike", "Ones of the shape and element type of x.", _Like,
    array_function="ones_like", cuda="T(1)", samples=_LIKE, number=1,
)  # fmt: skip


class _Sequence(Op, abstract=True):
    """A vector of which a rank makes the numbers from `first` on: `count`, or all for -1."""

    if TYPE_CHECKING:  # fields of the subclasses, in MindSpore's order
        first: int = 0
        count: int = -1
    strategy_of = (-1,)  # as in MindSpore

    def localize(self, placement: RankPlacement) -> Op:
        (here,) = placement.out_layouts[0].slices_for(placement.rank, placement.out_types[0].shape)
        return replace(self, first=here.start, count=here.stop - here.start)


class Range(_Sequence, _WithoutOperands):
    """start, start + delta, ... below limit. Called as `Range()(start, limit, delta)`. maxlen: maximum length. first,
    count: see `_Sequence`."""

    maxlen: int = 1000000
    start: int | float = 0
    limit: int | float = 0
    delta: int | float = 1
    dtype: DType = INT64
    first: int = 0
    count: int = -1
    samples = (
        sample(limit=16),
        sample(start=2, limit=-14, delta=-2),
        sample(start=0.5, limit=4.5, delta=0.25, dtype=FLOAT32),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 0, ("start", "limit", "delta", "dtype"), optional=1)
        dtype = found.pop("dtype", None)
        numbers = {key: number_of(self.name, key, value) for key, value in found.items()}
        if dtype is None:
            dtype = FLOAT32 if any(isinstance(n, float) for n in numbers.values()) else INT64
        return replace(self, **numbers, dtype=dtype_arg(self.name, "dtype", dtype)), tensors

    def length(self) -> int:
        """Return the number of elements of the global tensor. Raise MspcError if there are none or too many."""
        if self.delta == 0:
            raise MspcError("Range: delta must not be 0")
        for name in ("start", "limit", "delta"):
            if not math.isfinite(getattr(self, name)):
                raise MspcError(f"Range: {name} must be finite, not {getattr(self, name)}")
        length = int(-((self.start - self.limit) // self.delta))
        if not 0 < length <= self.maxlen:
            raise MspcError(
                f"Range: from {self.start} to {self.limit} by {self.delta} there are "
                f"{max(length, 0)} numbers, not 1 to {self.maxlen}"
            )
        return length

    def rule(self) -> str:
        return shape_rule((self.length() if self.count < 0 else self.count,))

    def result_dtype(self, *types: TensorType) -> DType:
        return self.dtype

    def compute(self, xp: Any, *inputs: Any) -> Any:
        count = self.length() if self.count < 0 else self.count
        steps = xp.arange(self.first, self.first + count)
        return (steps * self.delta + self.start).astype(self.dtype.numpy)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        place = f"((long long)at + {self.first})"
        if isinstance(self.delta, int) and isinstance(self.start, int):
            number = f"{place} * {self.delta}ll + {self.start}ll"
        else:
            # Two roundings, as on the CPU.
            number = f"__dadd_rn(__dmul_rn((double){place}, {float(self.delta)}), {float(self.start)})"
        wide = "float" if self.dtype.itemsize == 2 and self.dtype.is_float else "R"
        return gpu.moves.put_values(device, "range", out, f"narrow<R>(({wide})({number}))")


class Eye(_WithoutOperands):
    """Ones on the diagonal of an n x m matrix. Called as `Eye()(n, m, type)`. k moves the diagonal to the
    right.
    """

    n: int = 1
    m: int = 1
    type: DType = FLOAT32
    k: int = 0
    settings = (("n", size_of), ("m", size_of), ("type", dtype_arg))
    samples = (sample(n=8, m=16), sample(n=8, m=8, type=INT64, k=1))

    def rule(self) -> str:
        return shape_rule((self.n, self.m))

    def result_dtype(self, *types: TensorType) -> DType:
        return self.type

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.eye(self.n, self.m, self.k, self.type.numpy)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        one, zero = gpu.moves.literal(1, self.type), gpu.moves.literal(0, self.type)
        place = f"(long long)(at % {self.m}) - (long long)(at / {self.m})"
        return gpu.moves.put_values(device, "eye", out, f"{place} == {self.k} ? {one} : {zero}")

    def localize(self, placement: RankPlacement) -> Op:
        rows, columns = placement.out_layouts[0].slices_for(placement.rank, (self.n, self.m))
        return replace(
            self,
            n=rows.stop - rows.start,
            m=columns.stop - columns.start,
            k=self.k + rows.start - columns.start,
        )


class LinSpace(_Sequence, _WithoutOperands):
    """num numbers from start to stop, both included. Called as `LinSpace()(start, stop, num)`.

    first, count: see `_Sequence`.
    """

    start: float = 0.0
    stop: float = 0.0
    num: int = 1
    first: int = 0
    count: int = -1
    samples = (sample(start=1.0, stop=4.0, num=16), sample(start=2.0, stop=-2.0, num=8))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 0, ("start", "stop", "num"))
        ends = (found["start"], found["stop"])
        if any(hasattr(end, "shape") and not isinstance(end, Constant | np.generic) for end in ends):
            return LinSpaceBetween(int_of(self.name, "num", found["num"])), ends
        made = replace(
            self,
            start=float(number_of(self.name, "start", found["start"])),
            stop=float(number_of(self.name, "stop", found["stop"])),
            num=int_of(self.name, "num", found["num"]),
        )
        return made, tensors

    def rule(self) -> str:
        if self.num < 1:
            raise MspcError(f"LinSpace: num is {self.num}, not at least 1")
        return shape_rule((self.num if self.count < 0 else self.count,))

    def result_dtype(self, *types: TensorType) -> DType:
        return FLOAT32

    def compute(self, xp: Any, *inputs: Any) -> Any:
        count = self.num if self.count < 0 else self.count
        places = xp.arange(self.first, self.first + count)
        step = (self.stop - self.start) / max(1, self.num - 1)
        return (places * step + self.start).astype(self.result_dtype().numpy)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        step = (self.stop - self.start) / max(1, self.num - 1)
        place = f"(double)((long long)at + {self.first})"
        value = f"(R)__dadd_rn(__dmul_rn({place}, {step}), {float(self.start)})"
        return gpu.moves.put_values(device, "lin_space", out, value)


class LinSpaceBetween(_Sequence):
    """num numbers from start to stop, which are tensors without dimensions; LinSpace becomes it for such operands.

    first, count: see `_Sequence`.
    """

    num: int = 1
    first: int = 0
    count: int = -1
    samples = (sample((), (), num=16), sample((), (), num=8))

    def rule(self, start: TensorType, stop: TensorType) -> str:
        for index, end in enumerate((start, stop)):
            if end.shape or not end.dtype.is_float:
                raise MspcError(f"LinSpace: input {index} is {end}, not a floating-point scalar")
        if self.num < 1:
            raise MspcError(f"LinSpace: num is {self.num}, not at least 1")
        return f", -> a={self.num if self.count < 0 else self.count}"

    def bprop(self, b: Builder, start: Value, stop: Value, out: Value, dout: Value) -> Gradients:
        dtype = dout.tensor_type.dtype
        share = b.emit(LinSpaceBetween(self.num), b.constant(0.0, dtype), b.constant(1.0, dtype))
        last = b.emit(ReduceSum(), b.emit(Mul(), dout, share))
        return b.emit(Sub(), b.emit(ReduceSum(), dout), last), last

    def compute(self, xp: Any, start: Any, stop: Any) -> Any:
        count = self.num if self.count < 0 else self.count
        places = xp.arange(self.first, self.first + count)
        return (places * ((stop - start) / max(1, self.num - 1)) + start).astype(start.dtype)

    def launch(self, device: Device, out: Any, start: Array, stop: Array) -> Launch | None:
        kind = computing_type(dtype_of(out.dtype))
        last = max(1, self.num - 1)
        ends = f"const {kind} from = ({kind})wide(*start), share = (({kind})wide(*stop) - from) / {last};"
        text = f"narrow<R>(({kind})((long long)at + {self.first}) * share + from)"
        return gpu.moves.put_values(device, "lin_space", out, text, [("start", start), ("stop", stop)], ends)


class _Triangle(Op, abstract=True):
    """A triangle of the last two dimensions; on a rank the diagonal counts from its slice."""

    diagonal: int = 0
    lower: ClassVar[bool] = True
    linear_in = (0,)

    def rule(self, x: TensorType) -> str:
        int_of(self.name, "diagonal", self.diagonal)
        if len(x.shape) < 2:
            raise MspcError(
                f"{self.name} needs at least 2 dimensions in input 0, whose shape is {x.shape}", code="E0303"
            )
        names = " ".join(factor_names(len(x.shape)))
        return f"{names} -> {names}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(type(self)(self.diagonal), dout),)

    def localize(self, placement: RankPlacement) -> Op:
        rows, columns = placement.in_layouts[0].slices_for(placement.rank, placement.in_types[0].shape)[-2:]
        return replace(self, diagonal=self.diagonal + rows.start - columns.start)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return (xp.tril if self.lower else xp.triu)(inputs[0], self.diagonal)

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        test = f"{'<=' if self.lower else '>='} {self.diagonal}"
        rows, columns = x.shape[-2:]
        text = f"(long long)(at % {columns}) - (long long)(at / {columns} % {rows}) {test} ? x[at] : narrow<R>(0)"
        return gpu.moves.put_values(device, "triangle", out, text, [("x", x)])


_TRIANGLES = (sample((8, 16)), sample((2, 8, 8), diagonal=-2), sample((8, 8), diagonal=3))
Tril = operator(
    "Tril", "x on and below the diagonal of the last two dimensions, 0 above; `diagonal` moves it up.", _Triangle,
    samples=_TRIANGLES,
)  # fmt: skip
Triu = operator(
    "Triu", "x on and above the diagonal of the last two dimensions, 0 below; `diagonal` moves it up.", _Triangle,
    samples=_TRIANGLES, lower=False,
)  # fmt: skip


class MaskedFill(Elementwise):
    """value if the mask is true, else x; value is a scalar."""

    cuda = "{1} ? {2} : {0}"

    def rule(self, x: TensorType, mask: TensorType, value: TensorType) -> str:
        return broadcast_rule((x.shape, mask.shape, value.shape))

    def check(self, *types: TensorType) -> None:
        if types[1].dtype != BOOL:
            raise MspcError(f"MaskedFill: input 1 is {types[1].dtype}, not Bool", kind=TypeError, code="E0304")
        if types[2].dtype != types[0].dtype:
            raise MspcError(f"MaskedFill: input 0 is {types[0].dtype} and input 2 is {types[2].dtype}", kind=TypeError)

    def bprop(self, b: Builder, x: Value, mask: Value, value: Value, out: Value, dout: Value) -> Gradients:
        zero = b.constant(0, dout.tensor_type.dtype)
        dx = b.emit(Select(), mask, zero, dout)
        dvalue = b.emit(Select(), mask, dout, zero)
        return sum_to_shape(b, dx, x.shape), None, sum_to_shape(b, dvalue, value.shape)

    def compute(self, xp: Any, x: Any, mask: Any, value: Any) -> Any:
        return xp.where(mask, value, x)

    samples = (
        sample((8, 16), (8, 16), (), dtypes=("Float64", "Bool", "Float64")),
        sample((2, 8, 8), (8, 8), (), dtypes=("Float64", "Bool", "Float64")),
    )
