"""Fourier transforms need these functions: other sizes, frequencies that count twice, and the frequency 0 in the
middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.operator_arguments import axes_in, ints_of, plain, split_call
from mspc.sharding.rules import factor_names, sized

Gradients = Sequence[Value | None]


def replicated_along(shape: Sequence[int], axes: Sequence[int]) -> str:
    """The rule of an operator that gives a tensor of the same shape; its dimensions `axes` must not be sharded."""
    names = [name + "!" * (d in axes) for d, name in enumerate(factor_names(len(shape)))]
    return f"{' '.join(names)} -> {' '.join(names)}"


class FitSizes(Op):
    """x with the dimensions `axes` as long as `sizes` says: truncated at their ends, or filled up with zeros there."""

    axes: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    takes_complex = True
    linear_in = (0,)

    def rule(self, x: TensorType) -> str:
        rank = len(x.shape)
        names = factor_names(2 * rank)
        left, right = list(names[:rank]), list(names[:rank])
        for axis, size in zip(self.axes, self.sizes, strict=True):
            if size != x.shape[axis]:
                for side, name, n in ((left, names[axis], x.shape[axis]), (right, names[rank + axis], size)):
                    token = sized(name, n)
                    side[axis] = token if token == "1" else f"{token}!"
        return f"{' '.join(left)} -> {' '.join(right)}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(FitSizes(self.axes, tuple(x.shape[axis] for axis in self.axes)), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        shape = list(x.shape)
        for axis, size in zip(self.axes, self.sizes, strict=True):
            shape[axis] = size
        common = tuple(slice(0, min(n, m)) for n, m in zip(x.shape, shape, strict=True))
        made = be.xp.zeros(shape, x.dtype)
        made[common] = x[common]
        return made

    samples = (
        sample((4, 6), axes=(1,), sizes=(4,)),
        sample((4, 6, 2), axes=(2, 0), sizes=(5, 2)),
        sample((4,), axes=(0,), sizes=(1,), dtypes=("Complex128",), gradient=False),
    )


class DoubledFrequencies(Op):
    """x with twice those of its frequencies along `axis` that stand for a second one, of a transform of `points` real
    numbers: all but the first and, of an even number of points, the last."""

    axis: int = 0
    points: int = 1
    takes_complex = True
    linear_in = (0,)

    def rule(self, x: TensorType) -> str:
        return replicated_along(x.shape, (self.axis,))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(self, dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        made = be.xp.array(inputs[0])
        twice = (*[slice(None)] * self.axis, slice(1, (self.points + 1) // 2))
        made[twice] *= 2
        return made

    samples = (sample((4, 3), axis=1, points=4), sample((3, 4), axis=0, points=5))


class FFTShift(Op):
    """x rolled along the dimensions `dim` (() for all), so that the first element comes to their middle. Called as
    `FFTShift()(x, dim)`."""

    dim: tuple[int, ...] = ()
    takes_complex = True
    linear_in = (0,)

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("dim",), optional=1)
        dim = plain(found.get("dim"))
        return replace(self, dim=() if dim is None else ints_of(self.name, "dim", dim)), tensors

    def steps(self, size: int) -> int:
        """By how many places a dimension is rolled."""
        return size // 2

    def rule(self, input: TensorType) -> str:
        return replicated_along(input.shape, axes_in(self.name, self.dim, len(input.shape)))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        back = FFTShift if isinstance(self, IFFTShift) else IFFTShift
        return (b.emit(back(self.dim), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        axes = axes_in(self.name, self.dim, x.ndim)
        return be.xp.roll(x, tuple(self.steps(x.shape[axis]) for axis in axes), axes) if axes else x.copy()

    samples = (sample((4, 5), dim=(1,)), sample((3, 2, 4)), sample((5, 4), dim=(-2,)))


class IFFTShift(FFTShift):
    """What `FFTShift` has rolled as it was before."""

    samples = FFTShift.samples

    def steps(self, size: int) -> int:
        return -(size // 2)
