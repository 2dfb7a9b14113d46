"""Im2Col writes out as columns what windows look at, and Col2Im adds such columns up to an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float
from mspc.ops.convolution.base import Shape
from mspc.ops.convolution.padded import padded, views
from mspc.ops.convolution.pooling_kernels import spread_windows
from mspc.ops.convolution.window import Window, numbers, paddings, result_lengths
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.operator_arguments import plain

Gradients = Sequence[Value | None]


class _Columns(Op, abstract=True):
    linear_in = (0,)

    def given(self) -> tuple[Any, Any, Any, Any]:
        """(sizes, strides, dilations, padding) as they were given."""
        raise NotImplementedError

    def along(self) -> tuple[Window, Window]:
        """The window along height and width. Raises MspcError for bad attributes."""
        size, stride, dilation, pad = self.given()
        found = zip(
            numbers(self.name, "kernel size", size, 2), numbers(self.name, "stride", stride, 2),
            numbers(self.name, "dilation", dilation, 2), paddings(self.name, pad, 2), strict=True,
        )  # fmt: skip
        first, second = (Window(n, step, spread, *pair) for n, step, spread, pair in found)
        return first, second

    def sides(self, lengths: Shape) -> tuple[str, str]:
        """The rule's sides of images of these sizes and of columns."""
        along = self.along()
        counts = result_lengths(self.name, lengths, along)
        columns = f"k={math.prod(w.size for w in along)}! l={math.prod(counts)}!"
        return f"n c p0={lengths[0]}! p1={lengths[1]}!", f"n c {columns}"

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        return super().infer(*types)


class Im2Col(_Columns):
    """[n, c, places of a window, positions] of images [n, c, h, w]."""

    ksizes: Any = 1
    strides: Any = 1
    dilations: Any = 1
    pads: Any = 0
    samples = (
        sample((4, 4, 6, 5), ksizes=(3, 2), strides=(1, 2), pads=1),
        sample((2, 4, 7, 7), ksizes=2, dilations=(2, 3)),
    )

    def given(self) -> tuple[Any, Any, Any, Any]:
        return self.ksizes, self.strides, self.dilations, self.pads

    def rule(self, x: TensorType) -> str:
        if len(x.shape) != 4:
            raise MspcError(f"Im2Col: the image must have 4 dimensions, but its shape is {x.shape}")
        if 0 in x.shape[2:]:
            raise MspcError(f"Im2Col: the image of shape {x.shape} is empty")
        return " -> ".join(self.sides(x.shape[2:]))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        op = Col2Im(self.ksizes, self.dilations, self.pads, self.strides, x.shape[2:])
        return (b.emit(op, dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        along = self.along()
        counts = result_lengths(self.name, x.shape[2:], along)
        image = xp.ascontiguousarray(padded(xp, x, along))
        window = math.prod(w.size for w in along)
        return xp.array(views(xp, image, along, counts)).reshape(*x.shape[:2], window, math.prod(counts))


class Col2Im(_Columns):
    """Images [n, c, *output_size] whose places are the sums of what columns [n, c, places of a window, positions] have
    for them. Called as `Col2Im(...)(x, output_size)`."""

    kernel_size: Any = 1
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1
    output_size: Any = ()
    samples = (sample((4, 4, 6, 21), kernel_size=(3, 2), padding=1, stride=(1, 2), output_size=(7, 5)),)

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 2:
            return self, args
        return replace(self, output_size=plain(args[1])), args[:1]

    def given(self) -> tuple[Any, Any, Any, Any]:
        return self.kernel_size, self.stride, self.dilation, self.padding

    def rule(self, x: TensorType) -> str:
        lengths = numbers(self.name, "output_size", self.output_size, 2)
        if len(x.shape) != 4:
            raise MspcError(f"Col2Im: the columns must have 4 dimensions, but their shape is {x.shape}")
        image, columns = self.sides(lengths)
        along = self.along()
        expected = math.prod(w.size for w in along), math.prod(result_lengths(self.name, lengths, along))
        if x.shape[2:] != expected:
            raise MspcError(
                f"Col2Im: the columns have shape {x.shape}, but an image of {lengths} has {expected[0]} places of a "
                f"window and {expected[1]} positions"
            )
        return f"{columns} -> {image}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Im2Col(self.kernel_size, self.stride, self.dilation, self.padding), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        lengths, along = numbers(self.name, "output_size", self.output_size, 2), self.along()
        counts = result_lengths(self.name, lengths, along)
        columns = x.reshape(*x.shape[:2], *(w.size for w in along), *counts)
        return spread_windows(be.xp, columns, lengths, along)
