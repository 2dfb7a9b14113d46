"""Float8: scales, quantization, and matmuls of quantized operands, which give wide results.

A quantized tensor is q with x = q * scale. There is one scale for a tensor, or one for every block of it: then x is
reshaped so that each block has dimensions of its own, of which the scale has 1 element. Numbers beyond the largest one
saturate, as NVIDIA's conversions do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import EIGHTS, FLOAT8_E4M3, FLOAT32, FLOAT64, HALVES, DType, TensorType
from mspc.ops.bases import Elementwise, Unary
from mspc.ops.cpu.blocks import saturated
from mspc.ops.device import Array, Device, Launch, c_type, in_order
from mspc.ops.math.arithmetic import Mul
from mspc.ops.math.matmul import BatchMatMul, MatrixProduct
from mspc.ops.op import ArrayBackend, NotDifferentiable, sample
from mspc.sharding.rules import broadcast_rule

_AFTER = NotDifferentiable("products are quantized after gradients were taken")
_SMALLEST = 2.0**-126
"""The smallest scale, a normal number of Float32."""


class Float8Scale(Unary):
    """The scale of a tensor from its largest magnitude, so that this becomes the largest number of `dst_type`; 1 if
    there is none yet. power_of_two: the next power of two above, as MXFP8 has it."""

    dst_type: DType = FLOAT8_E4M3
    power_of_two: bool = False
    float_only = True
    bprop = _AFTER
    samples = (
        sample((8, 16), low=0.0, gradient=False),
        sample((8,), low=0.0, gradient=False, power_of_two=True),
    )

    def check(self, *types: TensorType) -> None:
        super().check(*types)
        _require_eight(self.name, self.dst_type)

    def result_dtype(self, *types: TensorType) -> DType:
        return FLOAT64 if types[0].dtype == FLOAT64 else FLOAT32

    def compute(self, xp: Any, amax: Any) -> Any:
        dtype = self.result_dtype(TensorType(FLOAT64 if amax.dtype == np.float64 else FLOAT32, ())).numpy
        scale = xp.maximum(amax.astype(dtype) / dtype.type(EIGHTS[self.dst_type]), dtype.type(_SMALLEST))
        if self.power_of_two:
            part, exponent = xp.frexp(scale)
            scale = xp.where(xp.isfinite(scale), xp.ldexp(dtype.type(1), exponent - (part == 0.5)), scale)
        return xp.where(amax > 0, scale, 1).astype(dtype)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on the type
        function = "power_of_two_from" if self.power_of_two else ""
        return f"{function}(float8_scale<R>({{0}}, {EIGHTS[self.dst_type]}))"


class Quantize(Elementwise):
    """x / scale, rounded to `dst_type`; numbers beyond its largest one saturate, NaN stays."""

    dst_type: DType = FLOAT8_E4M3
    one_type = False
    float_only = True
    follows_neighbours = True
    in_place = False
    bprop = _AFTER
    samples = (
        sample((8, 16), (), low=0.1, gradient=False),
        sample((4, 2, 2, 8), (4, 1, 2, 1), low=0.1, gradient=False),
    )

    def rule(self, x: TensorType, scale: TensorType) -> str:
        return broadcast_rule((x.shape, scale.shape))

    def check(self, *types: TensorType) -> None:
        super().check(*types)
        _require_eight(self.name, self.dst_type)

    def result_dtype(self, *types: TensorType) -> DType:
        return self.dst_type

    def compute(self, xp: Any, x: Any, scale: Any) -> Any:
        with np.errstate(invalid="ignore", over="ignore"):
            return saturated(x / scale, self.dst_type)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on dst_type
        return f"wide(narrow<{c_type(self.dst_type)}>((float)({{0}} / {{1}})))"


class ScaledMatMul(MatrixProduct):
    """x @ y of quantized operands, multiplied by their scales, in `dst_type`; transposes as in BatchMatMul.

    A scale without dimensions is one of the tensor. Otherwise its last two dimensions count the blocks along those of
    the operand. Products are summed in Float32, or in Float64 for a result of it. Sharding k leaves partial sums.
    """

    dst_type: DType = FLOAT32
    linear_in = ()
    promotes = ""
    one_type = False
    requests = ()
    widens = False
    bprop = _AFTER
    samples = (
        sample((8, 16), (16, 8), (), (), dst_type=FLOAT64, dtypes=("Float8E4M3", "Float8E4M3", "Float64", "Float64")),
        sample(
            (16, 8), (8, 16), (2, 2), (2, 2), transpose_a=True, transpose_b=True, dst_type=FLOAT64,
            dtypes=("Float8E4M3", "Float8E5M2", "Float64", "Float64"),
        ),
        sample(
            (2, 8, 16), (16, 8), (), (), dst_type=FLOAT64,
            dtypes=("Float8E5M2", "Float8E4M3", "Float64", "Float64"),
        ),
    )  # fmt: skip

    def rule(self, x: TensorType, y: TensorType, x_scale: TensorType, y_scale: TensorType) -> str:
        dims, _, out = BatchMatMul(self.transpose_a, self.transpose_b).rule(x, y).partition(" -> ")
        operands = [operand.split() for operand in dims.split(", ")]
        blocks: dict[str, int] = {}
        for names, operand, scale in zip(operands, (x, y), (x_scale, y_scale), strict=True):
            if not scale.shape:
                continue
            if len(scale.shape) != 2 or len(operand.shape) != 2:
                raise MspcError(f"{self.name}: a scale has no dimensions or 2, as its operand has; not {scale.shape}")
            for name, size, count in zip(names, operand.shape, scale.shape, strict=True):
                if not count or size % count or blocks.setdefault(name, count) != count:
                    raise MspcError(
                        f"{self.name}: operands of shapes {x.shape} and {y.shape} have no blocks that fit scales of "
                        f"shapes {x_scale.shape} and {y_scale.shape}"
                    )
        split = {name: f"({name}={count} {name}_)" for name, count in blocks.items()}
        sides = [" ".join(split.get(name, name) for name in names) for names in operands]
        pairs = zip(operands, (x_scale, y_scale), strict=True)
        scales = [" ".join(names) if scale.shape else "" for names, scale in pairs]
        made = " ".join(split.get(name, name) for name in out.split())
        return f"{', '.join((*sides, *scales))} -> {made}"

    def check(self, *types: TensorType) -> None:
        for operand in types[:2]:
            _require_eight(self.name, operand.dtype)

    def result_dtype(self, *types: TensorType) -> DType:
        return self.dst_type

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        multiplied = super().kernel(be)
        wide = np.float64 if self.dst_type == FLOAT64 else np.float32
        dtype = self.dst_type.numpy

        def kernel(x: Any, y: Any, x_scale: Any, y_scale: Any) -> Any:
            left, right = _dequantized(x, x_scale, wide), _dequantized(y, y_scale, wide)
            made = multiplied(left, right)
            for scale in (x_scale, y_scale):
                made = made if scale.ndim else made * scale.astype(wide)
            return made.astype(dtype, copy=False)

        return kernel

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return None

    def launch(  # type: ignore[override]  # more operands than MatMul has
        self, device: Device, out: Any, x: Array, y: Array, x_scale: Array, y_scale: Array
    ) -> Launch | None:
        quick = device.scaled_matmul(x, y, x_scale, y_scale, out, self.transpose_a, self.transpose_b)
        if quick is not None:
            return quick
        dtype = (self.dst_type if self.dst_type in (*HALVES, FLOAT64) else FLOAT32).numpy
        room = device.scratch((x.size + y.size) * dtype.itemsize)
        left = room[: x.size * dtype.itemsize].view(dtype).reshape(x.shape)
        right = room[x.size * dtype.itemsize : (x.size + y.size) * dtype.itemsize].view(dtype).reshape(y.shape)
        product = device.matmul(left, right, out, self.transpose_a, self.transpose_b)
        return in_order(_widened(device, x, x_scale, left), _widened(device, y, y_scale, right), product)


def _widened(device: Device, x: Array, scale: Array, out: Array) -> Launch | None:
    """Return the launch of a quantized array multiplied by its scales."""
    if scale.ndim:
        block = tuple(n // max(count, 1) for n, count in zip(x.shape, scale.shape, strict=True))
        shape = block_dims(x.shape, block)
        x, out, scale = x.reshape(shape), out.reshape(shape), scale.reshape(scale.shape[0], 1, scale.shape[1], 1)
    return Mul().launch(device, out, x, scale)


def _require_eight(name: str, dtype: DType) -> None:
    if dtype not in EIGHTS:
        raise MspcError(f"{name}: {dtype} is no element type of 8 bits; use {' or '.join(map(str, EIGHTS))}",
                        kind=TypeError, code="E0304")  # fmt: skip


def _dequantized(x: Any, scale: Any, dtype: Any) -> Any:
    """Return an operand in a wide type, multiplied by the scales of its blocks if there are any."""
    wide = x.astype(dtype)
    if scale.ndim:
        for axis, (size, count) in enumerate(zip(x.shape, scale.shape, strict=True)):
            scale = scale.repeat(size // max(count, 1), axis)
        wide *= scale.astype(dtype)
    return wide


def block_dims(shape: Sequence[int], block: Sequence[int]) -> tuple[int, ...]:
    """Return the shape in which each block of a matrix has dimensions of its own."""
    return tuple(n for size, own in zip(shape, block, strict=True) for n in (size // own, own))


def fits(shape: Sequence[int], block: Sequence[int]) -> bool:
    """Whether a tensor consists of whole blocks; () is one block of any size."""
    return not block or (len(shape) == len(block) and not any(n % own for n, own in zip(shape, block, strict=True)))
