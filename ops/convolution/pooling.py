"""Pooling takes the greatest or the mean of what a window looks at, channel by channel; its gradients are here, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float, require_same
from mspc.ops.convolution.memory_format import Shape
from mspc.ops.convolution.pooling_base import THREE, TWO, Pooling, PoolingBackward, PoolingForward, alike, pooled_shape
from mspc.ops.convolution.pooling_kernels import greatest, greatest_gradient, spread, summed
from mspc.ops.cuda.pooling import launch_greatest, launch_greatest_gradient, launch_mean, launch_mean_gradient
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, sample
from mspc.ops.operator_arguments import shape_of
from mspc.sharding.borders import is_sharded

Gradients = Sequence[Value | None]


class _MaxPool(PoolingForward, abstract=True):
    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(alike(self, _MAX_GRADIENTS[self.dims]), x, out, dout),)

    def launch_on(self, device: Device, inputs: Sequence[Array], out: Array) -> Launch | None:
        (x,) = inputs
        return launch_greatest(device, x, out, self.exact(x.shape[2:]))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        return greatest(be.xp, x, self.exact(x.shape[2:]), self.counts(x.shape[2:]))


class _MaxPoolGrad(PoolingBackward, abstract=True):
    """The gradient goes to the first place of a window that holds the greatest value."""

    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")

    def infer(self, *types: Any) -> Any:
        require_same(self.name, *types)
        return super().infer(*types)

    def rule(self, x: TensorType, out: TensorType, dout: TensorType) -> str:
        image, result = self.sides(x.shape)
        return f"{image}, {result}, {result} -> {image}"

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        if not is_sharded(placement.in_layouts[0]):
            return None
        return self.on_slice(b, placement, inputs, placement.in_types[0].shape, 1)

    def launch_on(self, device: Device, inputs: Sequence[Array], out: Array) -> Launch | None:
        x, found, dout = inputs
        return launch_greatest_gradient(device, x, found, dout, out, self.exact(x.shape[2:]))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, out, dout = inputs
        return greatest_gradient(be.xp, x, out, dout, self.exact(x.shape[2:]))


class _AvgPool(PoolingForward, abstract=True):
    """count_include_pad: places outside of the image count as zeros. divisor_override: what sums are divided by; 0 and
    None: by the places that count."""

    count_include_pad: bool = False
    divisor_override: int | None = None
    omitted = (*Pooling.omitted, "count_include_pad", "divisor_override")

    def rule(self, x: TensorType) -> str:
        return " -> ".join(mean_sides(self, x.shape))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(alike(self, _MEAN_GRADIENTS[self.dims], input_size=x.shape, **_means(self)), dout),)

    def launch_on(self, device: Device, inputs: Sequence[Array], out: Array) -> Launch | None:
        (x,) = inputs
        shares = divisors(device.xp, self, x.shape[2:], out.dtype)
        return launch_mean(device, x, shares, out, self.exact(x.shape[2:]))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        total = summed(be.xp, x, self.exact(x.shape[2:]), self.counts(x.shape[2:]))
        return total / divisors(be.xp, self, x.shape[2:], x.dtype)


class _AvgPoolGrad(PoolingBackward, abstract=True):
    """The gradient of an image of shape `input_size`."""

    count_include_pad: bool = False
    divisor_override: int | None = None
    input_size: tuple[int, ...] = ()
    sizes_of = ("input_size",)
    omitted = _AvgPool.omitted

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 2:
            return self, args
        size = shape_of(self.name, "input_size", args[0])
        return replace(self, input_size=size), args[1:]

    def rule(self, dout: TensorType) -> str:
        image, result = mean_sides(self, self.input_size)
        expected = (*self.input_size[:2], *self.counts(self.input_size[2:]))
        if dout.shape != expected:
            raise MspcError(
                f"{self.name}: the gradient has shape {dout.shape}, but images {self.input_size} make {expected}"
            )
        return f"{result} -> {image}"

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        return super().infer(*types)

    def bprop(self, b: Builder, dout: Value, out: Value, second: Value) -> Gradients:
        return (b.emit(alike(self, _MEANS[self.dims], **_means(self)), second),)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        if not is_sharded(placement.in_layouts[0]):
            return None
        return self.on_slice(b, placement, inputs, self.input_size, 0)

    def localize(self, placement: RankPlacement) -> Op:
        size = placement.out_layouts[0].local_shape(self.input_size)
        return replace(self, input_size=size)

    def launch_on(self, device: Device, inputs: Sequence[Array], out: Array) -> Launch | None:
        (dout,) = inputs
        lengths = self.input_size[2:]
        return launch_mean_gradient(
            device, dout, divisors(device.xp, self, lengths, dout.dtype), out, self.exact(lengths)
        )

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (dout,) = inputs
        lengths = self.input_size[2:]
        share = dout / divisors(be.xp, self, lengths, dout.dtype)
        return spread(be.xp, share, lengths, self.exact(lengths))


Mean = _AvgPool | _AvgPoolGrad


def mean_sides(op: Mean, image: Shape) -> tuple[str, str]:
    """`Pooling.sides` of a mean. Where windows may end outside of padding that counts, the image is not sharded."""
    override: Any = op.divisor_override
    if override is not None and (isinstance(override, bool) or not isinstance(override, int) or override < 0):
        raise MspcError(f"{op.name}: divisor_override must be a positive integer, 0 or None, not {override!r}")
    found = Pooling.sides(op, image)
    if not (op.ceil_mode and op.count_include_pad):
        return found
    counts = op.counts(image[2:])
    places = " ".join(f"p{d}={n}!" for d, n in enumerate(image[2:]))
    return f"n c {places}", "n c " + " ".join(f"q{d}={n}!" for d, n in enumerate(counts))


def divisors(xp: Any, op: Mean, lengths: Sequence[int], dtype: Any) -> Any:
    """What the sum at every position is divided by, [*counts]: the places that count."""
    if op.divisor_override:
        return xp.asarray(op.divisor_override, dtype)
    found: Any = None
    for window, length, count in zip(op.along(lengths), lengths, op.counts(lengths), strict=True):
        places = np.arange(count)[:, None] * window.stride - window.before + np.arange(window.size) * window.dilation
        low, high = (-window.before, length + window.after) if op.count_include_pad else (0, length)
        counted = np.maximum(((places >= low) & (places < high)).sum(axis=1), 1)
        found = counted if found is None else found[..., None] * counted
    return xp.asarray(found, dtype)


def _means(op: Mean) -> dict[str, Any]:
    return {"count_include_pad": op.count_include_pad, "divisor_override": op.divisor_override}


_COUNTED: dict[str, Any] = {
    "kernel_size": 3, "strides": 2, "pad_mode": "pad", "pad": 1, "ceil_mode": True, "count_include_pad": True,
}  # fmt: skip


class MaxPool(_MaxPool):
    """The greatest value of every window over height and width."""

    samples = tuple(sample(x, **given) for x, given in TWO)


class MaxPool3D(_MaxPool):
    """The greatest value of every window over depth, height and width."""

    arguments = (
        "kernel_size", "strides", "pad_mode", "pad_list=pad", "ceil_mode", "data_format"
    )  # fmt: skip
    dims = 3
    samples = tuple(sample(x, **given) for x, given in THREE)


class MaxPoolGrad(_MaxPoolGrad):
    """The gradient of MaxPool's images, from them, the result and its gradient."""

    samples = tuple(
        sample(x, pooled_shape(MaxPool, x, given), pooled_shape(MaxPool, x, given), **given) for x, given in TWO
    )


class MaxPool3DGrad(_MaxPoolGrad):
    """The gradient of MaxPool3D's images."""

    dims = 3
    samples = tuple(
        sample(x, pooled_shape(MaxPool3D, x, given), pooled_shape(MaxPool3D, x, given), **given) for x, given in THREE
    )


class AvgPool(_AvgPool):
    """The mean of every window over height and width; padding does not count by default."""

    samples = tuple(sample(x, **given) for x, given in (*TWO, ((2, 2, 7, 8), _COUNTED)))


class AvgPool3D(_AvgPool):
    """The mean of every window over depth, height and width; padding counts by default."""

    count_include_pad: bool = True
    arguments = (
        "kernel_size", "strides", "pad_mode", "pad", "ceil_mode", "count_include_pad", "divisor_override",
        "data_format",
    )  # fmt: skip
    dims = 3
    samples = tuple(sample(x, **given) for x, given in THREE)


class AvgPoolGrad(_AvgPoolGrad):
    """The gradient of AvgPool's images."""

    samples = tuple(
        sample(pooled_shape(AvgPool, x, given), input_size=x, **given) for x, given in (*TWO, ((2, 2, 7, 8), _COUNTED))
    )


class AvgPool3DGrad(_AvgPoolGrad):
    """The gradient of AvgPool3D's images."""

    dims = 3
    samples = tuple(
        sample(pooled_shape(AvgPool3D, x, given), input_size=x, **given) for x, given in THREE
    )


_MAX_GRADIENTS: dict[int, type[_MaxPoolGrad]] = {2: MaxPoolGrad, 3: MaxPool3DGrad}
_MEAN_GRADIENTS: dict[int, type[_AvgPoolGrad]] = {2: AvgPoolGrad, 3: AvgPool3DGrad}
_MEANS: dict[int, type[_AvgPool]] = {2: AvgPool, 3: AvgPool3D}
