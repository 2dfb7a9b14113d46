"""Images are resampled to another size, or to the means of as many windows as one asks for: every row and column of the
result is a weighted sum of the image's, given by a matrix.

Height and width are not sharded: what a place of the result needs lies anywhere in the image.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float
from mspc.ops.convolution.memory_format import SECOND, ImageOperator, Shape, last_order
from mspc.ops.convolution.window import listed
from mspc.ops.cpu.products import multiplied
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import REGISTRY, ArrayBackend, Op, RankPlacement, sample
from mspc.ops.operator_arguments import shape_of

Gradients = Sequence[Value | None]


class Resampling(ImageOperator, abstract=True):
    """Images are resampled along their dimensions, channel by channel."""

    omitted = ("data_format",)

    def lengths(self, image: Shape) -> Shape:
        """Sizes of the result of an image of these sizes. Raises MspcError for bad attributes."""
        raise NotImplementedError

    def weights(self, length: int, count: int) -> Any:
        """The matrix [count, length] of one dimension, Float64."""
        raise NotImplementedError

    def sides(self, image: Shape) -> tuple[str, str]:
        """The rule's sides of image and result."""
        if len(image) != self.dims + 2:
            raise MspcError(f"{self.name}: the image must have {self.dims + 2} dimensions, but its shape is {image}")
        if 0 in image[2:]:
            raise MspcError(f"{self.name}: the image of shape {image} is empty along height or width")
        format: str = self.attributes().get("data_format", "")
        if format not in ("", SECOND[self.dims]):
            raise MspcError(f"{self.name}: data_format must be {SECOND[self.dims]!r}, not {format!r}")
        counts = self.lengths(image[2:])
        places = " ".join(f"p{d}={n}!" for d, n in enumerate(image[2:]))
        return f"n c {places}", "n c " + " ".join(f"q{d}={n}!" for d, n in enumerate(counts))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def apply(self, xp: Any, x: Any, image: Shape, back: bool) -> Any:
        """The matrices along all dimensions of an image of these sizes, or their transposes."""
        matmul = multiplied if xp is np else xp.matmul
        for d, (length, count) in enumerate(zip(image, self.lengths(image), strict=True)):
            matrix = xp.asarray(_matrix(self, length, count), x.dtype)
            transposed = xp.moveaxis(x, d + 2, -1)
            x = xp.moveaxis(matmul(transposed, matrix if back else matrix.T), -1, d + 2)
        return xp.ascontiguousarray(x)

    def launched(self, device: Device, x: Array, out: Array, image: Shape, back: bool) -> Launch | None:
        """`apply` on a GPU, of arrays that lie with their channels second or last."""
        from mspc.ops.cuda.resample import resample  # late: only a GPU needs it

        matrices = [_matrix(self, n, count) for n, count in zip(image, self.lengths(image), strict=True)]
        turned = [matrix.T for matrix in matrices] if back else matrices
        if x.flags.c_contiguous and out.flags.c_contiguous:
            return resample(device, "resample", turned, 1, x, out)
        order = last_order(self.dims + 2)
        return resample(device, "resample", turned, x.shape[1], x.transpose(order), out.transpose(order))


@functools.lru_cache(maxsize=256)
def _matrix(op: Any, length: int, count: int) -> Any:
    return op.weights(length, count)


class Forward(Resampling, abstract=True):
    """Its gradient's name is its own and `Grad`."""

    linear_in = (0,)

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        return super().infer(*types)

    def rule(self, x: TensorType) -> str:
        return " -> ".join(self.sides(x.shape))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        backward: Any = REGISTRY[f"{self.name}Grad"]
        return (b.emit(backward(**self.attributes(), input_size=x.shape), dout),)

    def kernel_on(self, be: ArrayBackend) -> Callable[..., Any]:
        return lambda x: self.apply(be.xp, x, x.shape[2:], back=False)

    def launch_on(self, device: Device, inputs: Sequence[Array], out: Array) -> Launch | None:
        return self.launched(device, inputs[0], out, inputs[0].shape[2:], back=False)


class Backward(Resampling, abstract=True):
    """The gradient of an image of shape `input_size`."""

    input_size: tuple[int, ...] = ()
    linear_in = (0,)
    sizes_of = ("input_size",)

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        return super().infer(*types)

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 2:
            return self, args
        size = shape_of(self.name, "input_size", args[1])
        return replace(self, input_size=size), args[:1]

    def rule(self, dout: TensorType) -> str:
        image, result = self.sides(self.input_size)
        expected = (*self.input_size[:2], *self.lengths(self.input_size[2:]))
        if dout.shape != expected:
            raise MspcError(
                f"{self.name}: the gradient has shape {dout.shape}, but images {self.input_size} make {expected}"
            )
        return f"{result} -> {image}"

    def bprop(self, b: Builder, dout: Value, out: Value, second: Value) -> Gradients:
        given = self.attributes()
        del given["input_size"]
        return (b.emit(REGISTRY[self.name.removesuffix("Grad")](**given), second),)

    def localize(self, placement: RankPlacement) -> Op:
        size = placement.out_layouts[0].local_shape(self.input_size)
        return replace(self, input_size=size)

    def kernel_on(self, be: ArrayBackend) -> Callable[..., Any]:
        return lambda x: self.apply(be.xp, x, self.input_size[2:], back=True)

    def launch_on(self, device: Device, inputs: Sequence[Array], out: Array) -> Launch | None:
        return self.launched(device, inputs[0], out, self.input_size[2:], back=True)


def adaptive_lengths(operator: str, output_size: Any, image: Shape) -> Shape:
    """Sizes of the result of images of these sizes. Raises MspcError for a bad `output_size`."""
    sizes = listed(output_size, len(image))
    wrong = [n for n in sizes if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1)]
    if len(sizes) != len(image) or wrong:
        what = f"a positive integer, None, or {len(image)} of them"
        raise MspcError(f"{operator}: output_size must be {what}, not {output_size!r}")
    return tuple(n if size is None else size for n, size in zip(image, sizes, strict=True))


class _Adaptive(Resampling, abstract=True):
    """output_size: sizes of the result, None for that of the image; one integer for all."""

    output_size: Any = 1
    data_format: str = ""

    def lengths(self, image: Shape) -> Shape:
        return adaptive_lengths(self.name, self.output_size, image)

    def weights(self, length: int, count: int) -> Any:
        found = np.zeros((count, length))
        for i in range(count):
            first, end = i * length // count, -(-(i + 1) * length // count)
            found[i, first:end] = 1 / (end - first)
        return found


class AdaptiveAvgPool2D(_Adaptive, Forward):
    """Means of as many windows as the result has places, which cover the image."""

    samples = (sample((2, 4, 6, 8), output_size=(3, 2)), sample((2, 4, 5, 7), output_size=(None, 3)))


class AdaptiveAvgPool2DGrad(_Adaptive, Backward):
    """The gradient of AdaptiveAvgPool2D's images."""

    input_size: tuple[int, ...] = ()
    samples = (sample((2, 4, 3, 2), output_size=(3, 2), input_size=(2, 4, 6, 8)),)


class AdaptiveAvgPool3D(_Adaptive, Forward):
    """AdaptiveAvgPool2D over depth, height and width."""

    dims = 3
    samples = (sample((2, 2, 4, 4, 6), output_size=(2, 1, 4)),)


class AdaptiveAvgPool3DGrad(_Adaptive, Backward):
    """The gradient of AdaptiveAvgPool3D's images."""

    input_size: tuple[int, ...] = ()
    dims = 3
    samples = (sample((2, 2, 2, 1, 4), output_size=(2, 1, 4), input_size=(2, 2, 4, 4, 6)),)
