"""Operators with the arguments of `mindspore.mint`: call adapters of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import TensorType
from mspc.ops.bases import Binary, Unary, operator
from mspc.ops.cuda.text import number
from mspc.ops.index_map import IndexBlock, IndexMap, along
from mspc.ops.math.arithmetic import IsFinite, Mul, scaled
from mspc.ops.math.elementwise import UNARY_SAMPLES
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.math.reduce import ReduceMean
from mspc.ops.op import Gradients, Op, sample
from mspc.ops.operator_arguments import axis_in, int_of, ints_of, number_of, sequence_of, split_call
from mspc.ops.tensor.embedding import Gather
from mspc.ops.tensor.moving import Stack
from mspc.ops.tensor.reshape import REDUCE_SAMPLES, Cast, ReduceSum, Reshape, sum_to_shape
from mspc.ops.tensor.slicing import MovingOp
from mspc.sharding.rules import factor_names


class _ScaledBinary(Binary, abstract=True):
    """x + sign * alpha * y. Called as `Op()(x, y, alpha)`."""

    alpha: int | float = 1
    sign: ClassVar[int] = 1
    additive = True
    settings = (("alpha", number_of),)
    optional_settings = 1
    samples = (sample((8, 16), (8, 16)), sample((8, 16), (16,), alpha=0.5))

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        factor = self.sign * self.alpha
        dy = dout if factor == 1 else scaled(b, factor, dout)
        return sum_to_shape(b, dout, x.shape), sum_to_shape(b, dy, y.shape)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on alpha
        return f"{{0}} + {{1}} * {_factor(self.sign * self.alpha)}"

    def compute(self, xp: Any, x: Any, y: Any) -> Any:
        return (x + y * (self.sign * self.alpha)).astype(x.dtype)


def _factor(value: int | float) -> str:
    """Return a factor in an expression; integers stay integers."""
    return f"T({value})" if isinstance(value, int) else number(value)


AddExt = operator("AddExt", "x + alpha * y. Called as `AddExt()(x, y, alpha)`.", _ScaledBinary)
SubExt = operator("SubExt", "x - alpha * y. Called as `SubExt()(x, y, alpha)`.", _ScaledBinary, sign=-1)


class NanToNum(Unary):
    """x with NaN and infinities replaced. Called as `NanToNum()(x, nan, posinf, neginf)`. None means 0, and the largest
    and smallest values of the element type."""

    nan: float | None = None
    posinf: float | None = None
    neginf: float | None = None
    float_only = True
    samples = UNARY_SAMPLES

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("nan", "posinf", "neginf"), optional=3)
        numbers = {key: float(number_of(self.name, key, v)) for key, v in found.items() if v is not None}
        return replace(self, **numbers), tensors

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, b.emit(Cast(dst_type=x.tensor_type.dtype), b.emit(IsFinite(), x))),)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on the numbers
        return (
            f"{{0}} != {{0}} ? {number(self.nan or 0.0)} : {{0}} - {{0}} == T(0) ? {{0}} : {{0}} > T(0) ? "
            f"{'real<T>(greatest<E>())' if self.posinf is None else number(self.posinf)} : "
            f"{'real<T>(-greatest<E>())' if self.neginf is None else number(self.neginf)}"
        )

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.nan_to_num(inputs[0], nan=self.nan or 0.0, posinf=self.posinf, neginf=self.neginf)


def _reduction(op: Any, *args: Any) -> tuple[Op, tuple[Any, ...]]:
    """Return (operator, operands) of a call `op(input, dim, keepdim, dtype)`; no dim means all."""
    tensors, found = split_call(op.name, args, 1, ("dim", "keepdim", "dtype"), optional=3)
    dtype = found.get("dtype")
    if dtype is not None and dtype != getattr(tensors[0], "dtype", dtype):
        raise MspcError(f"{op.name}: dtype {dtype} is not supported", notes=["cast the result"], kind=TypeError)
    axis = found.get("dim")
    keep = bool(found.get("keepdim", False))
    return replace(op, keep_dims=keep, axis=() if axis is None else ints_of(op.name, "dim", axis)), tensors


class SumExt(ReduceSum):
    """Sum along dimensions. Called as `SumExt()(input, dim, keepdim)`."""

    operand_names = ("input", "dim", "keepdim", "dtype")
    samples = REDUCE_SAMPLES
    call = _reduction


class MeanExt(ReduceMean):
    """Mean along dimensions. Called as `MeanExt()(input, dim, keepdim)`."""

    operand_names = ("input", "dim", "keepdim", "dtype")
    float_only = True
    call = _reduction


class IndexSelect(Gather):
    """Slices of a tensor along `axis`. Called as `IndexSelect()(input, axis, index)`."""

    settings_at = 1
    samples = (
        sample((16, 8), (8,), dtypes=("Float64", "Int32"), low=0, high=16),
        sample((4, 16, 2), (8,), dtypes=("Float64", "Int64"), low=0, high=16, axis=1),
    )


class Embedding(Gather):
    """Rows of a table, as Gather, with the integers first. Called as `Embedding()(ids, weight)`.

    The operands of the node are (weight, ids). padding_idx, max_norm and the other arguments must have their defaults.
    """

    strategy_of = (1, 0)  # in the order of the call, as in MindSpore
    samples = Gather.samples[:2]

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        names = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")
        tensors, found = split_call(self.name, args, 2, names, optional=4)
        defaults = {"padding_idx": None, "max_norm": None, "norm_type": 2.0, "scale_grad_by_freq": False}
        for key, value in found.items():
            if value != defaults[key]:
                raise MspcError(f"Embedding: {key}={value!r} is not supported, only {defaults[key]}")
        return self, (tensors[1], tensors[0])


class MatMulExt(MatMul):
    """The matmul of two matrices, or of batches of them."""

    samples = (sample((8, 16), (16, 8)),)

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, _ = split_call(self.name, args, 2, ())
        return (self if all(len(tensor.shape) == 2 for tensor in tensors) else BatchMatMul()), tensors


class StackExt(Stack):
    """The tensors stacked along a new dimension. Called as `StackExt(dim)((a, b))`, or `()((a, b), dim)`."""

    arguments = ("dim=axis",)
    samples = (sample((8, 16), (8, 16)), sample((8, 4), (8, 4), axis=-1))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        _, found = split_call(self.name, args, 1, ("dim",), optional=1)
        axis = int_of(self.name, "dim", found.get("dim", self.axis))
        return replace(self, axis=axis), sequence_of(self.name, args[:1])


class RepeatInterleaveInt(MovingOp):
    """Every slice along `dim` `repeats` times in a row; without dim every element of x, in one dimension.

    Called as `RepeatInterleaveInt()(input, repeats, dim)`.
    """

    repeats: int = 1
    dim: int | None = None
    linear_in = (0,)
    kernel_name = "repeat_interleave"
    samples = (
        sample((8, 4), repeats=2, dim=0),
        sample((4, 8, 2), repeats=3, dim=-2),
        sample((8, 4), repeats=2),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("repeats", "dim", "output_size"), optional=2)
        dim = found.get("dim")
        made = replace(
            self,
            repeats=int_of(self.name, "repeats", found["repeats"]),
            dim=None if dim is None else int_of(self.name, "dim", dim),
        )
        return made, tensors

    def rule(self, x: TensorType) -> str:
        if self.repeats < 1:
            raise MspcError(f"{self.name}: repeats is {self.repeats}, not at least 1")
        names = factor_names(len(x.shape) + 1)
        again = f"{names.pop()}={self.repeats}!"
        if self.dim is None:
            return f"{' '.join(names)} -> ({' '.join((*names, again))})"
        axis = axis_in(self.name, self.dim, len(names))
        out = (*names[:axis], f"({names[axis]} {again})", *names[axis + 1 :])
        return f"{' '.join(names)} -> {' '.join(out)}"

    def index_map(self, *types: TensorType) -> IndexMap:
        shape = types[0].shape
        axis = len(shape) - 1 if self.dim is None else axis_in(self.name, self.dim, len(shape))
        source = tuple(along(d + (d > axis)) for d in range(len(shape)))
        return IndexMap((*shape[: axis + 1], self.repeats, *shape[axis + 1 :]), (IndexBlock(0, source),))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        axis = len(x.shape) - 1 if self.dim is None else axis_in(self.name, self.dim, len(x.shape))
        split = (*x.shape[: axis + 1], self.repeats, *x.shape[axis + 1 :])
        return (b.emit(ReduceSum(axis=(axis + 1,)), b.emit(Reshape(split), dout)),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.repeat(inputs[0], self.repeats, axis=self.dim)
