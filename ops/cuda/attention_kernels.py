"""Attention kernels for a GPU: softmax and its gradient by rows of scores, and copies of operands into order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.ops.cuda.text import macros
from mspc.ops.device import Array, Device, Launch, c_type, source_text
from mspc.ops.nn.attention_kernel import LARGE, Scores, Shape, draws_source, seed_of

THREADS = 128
_ALIGNED = 256
_COPIED = 256
LOWEST = {"float16": -65504.0, "bfloat16": -1.7e38}
"""The value of a masked score if the fused kernel takes no masks: the softmax makes 0 of it; minus infinity could make
NaN of a query that looks at no key."""


@dataclass(frozen=True)
class Attention:
    """Operands on a GPU: query, key, value (and the gradient of the result) by head, the statistics."""

    shape: Shape
    scores: Scores
    operands: Sequence[Array]
    statistics: Array


def aligned_bytes(nbytes: int) -> int:
    """Return the bytes that an array of `nbytes` bytes takes in scratch memory."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


@dataclass(frozen=True)
class Scratch:
    """Offset in scratch memory of an array, or the array itself if it needs no copy."""

    shape: tuple[int, ...]
    dtype: Any
    offset: int
    array: Array = None


class ScratchLayout:
    """Assigns consecutive offsets in the device's scratch memory to arrays."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._size = 0
        self._memory: Array = None

    def take(self, shape: tuple[int, ...], dtype: Any) -> Scratch:
        part = Scratch(shape, np.dtype(dtype), self._size)
        nbytes = math.prod(shape) * part.dtype.itemsize
        self._size += aligned_bytes(nbytes)
        return part

    def by_head(self, view: Array) -> Scratch:
        """Return scratch for a view by head in dimension order; the array itself if it is in order."""
        if view.flags.c_contiguous:
            return Scratch(view.shape, view.dtype, -1, view)
        part = self.take(view.shape, view.dtype)
        return Scratch(part.shape, part.dtype, part.offset, view)

    def make(self) -> None:
        """Allocate the scratch memory, once all offsets are assigned."""
        self._memory = self._device.scratch(max(1, self._size))

    def at(self, part: Scratch) -> Array:
        if part.offset < 0:
            return part.array
        nbytes = math.prod(part.shape) * part.dtype.itemsize
        return self._memory[part.offset : part.offset + nbytes].view(part.dtype).reshape(part.shape)


class AttentionKernels:
    """The kernels for one attention's element types, ready to be launched."""

    def __init__(self, device: Device, attention: Attention) -> None:
        self._device = device
        self._attention = attention
        scores, dtype = attention.scores, attention.operands[0].dtype
        self.narrow = dtype
        self.wide = np.dtype("float64" if dtype == np.float64 else "float32")
        self._shift = scores.shift if scores.shift is not None else attention.statistics
        self._key_shift = scores.key_shift if scores.key_shift is not None else attention.statistics
        self._mask_type = "unsigned char" if scores.mask is None else c_type(dtype_of(scores.mask.dtype))

    def _kernel(self, name: str, gradient: str) -> Any:
        scores = self._attention.scores
        double = self.wide == np.float64
        element, wide = c_type(dtype_of(self.narrow)), "double" if double else "float"
        text = macros(
            E=element, W=wide, F=c_type(dtype_of(self._shift.dtype)), M=self._mask_type,
            H=c_type(dtype_of(self._key_shift.dtype)), G=gradient or element,
            SHIFTED=(scores.shift is not None) | 4 * (scores.key_shift is not None),
            MASKED=int(scores.mask is not None), EXP="exp" if double else "expf", LOG="log" if double else "logf",
            LARGE=LARGE, INFINITE="__int_as_float(0x7f800000)",
        )  # fmt: skip
        text += draws_source(scores.draws, wide)
        return self._device.kernel(text + source_text("ops/cuda/attention.cu"), name)

    def launch(self, name: str, count: int, *arguments: Any, gradient: str = "") -> Launch:
        """Return the launch of a kernel with one thread for each of `count` elements."""
        kernel = self._kernel(name, gradient)
        grid = max(1, -(-count // _COPIED))

        return partial(kernel, grid, _COPIED, arguments)

    def rows(self, name: str, *arrays: Array, factor: float | None = None) -> Launch:
        """Return the launch of a kernel with one block for each row of the scores."""
        shape, scores = self._attention.shape, self._attention.scores
        gradient = ""
        if factor is not None and arrays[3].dtype == self.wide:
            gradient = "double" if self.wide == np.float64 else "float"
        kernel = self._kernel(name, gradient)
        low, high = scores.low, scores.high
        arguments = [
            *arrays, np.int32(shape.heads), np.int32(shape.queries), np.int32(shape.keys),
            self.wide.type(scores.scale), *([] if factor is None else [self.wide.type(factor)]),
            *addends(self._attention),
            np.int64(-1 << 40 if low is None else low), np.int64(1 << 40 if high is None else high),
            self._device.step, seed_of(scores.draws),
        ]  # fmt: skip
        count = shape.batch * shape.heads * shape.queries
        threads = min(THREADS, -(-shape.keys // 32) * 32)

        return partial(kernel, count, threads, arguments)

    def addend(self) -> tuple[Array, Launch | None]:
        """Return the tensor a fused kernel adds to the scores, [batch or 1, heads or 1, queries, keys] in the operands'
        type, and the launch that fills it, if any."""
        shape, scores = self._attention.shape, self._attention.scores
        parts = [part for part in (scores.shift, scores.mask) if part is not None]
        full = (
            max(part.shape[0] for part in parts), max(part.shape[1] for part in parts), shape.queries, shape.keys
        )  # fmt: skip
        shift = scores.shift
        if scores.mask is None and shift.shape == full and shift.dtype == self.narrow:
            return shift, None
        made = self._device.scratch(math.prod(full) * self.narrow.itemsize).view(self.narrow).reshape(full)
        lowest = self.wide.type(LOWEST[self.narrow.name])
        launch = self.launch(
            "attention_addend", made.size, made, np.int64(made.size), np.int32(full[1]), np.int32(full[2]),
            np.int32(full[3]), lowest, *addends(self._attention),
        )  # fmt: skip
        return made, launch

    def ordered(self, part: Scratch, room: ScratchLayout) -> tuple[Array, list[Launch]]:
        """Return (the array in the order of its dimensions, the launch that copies it there)."""
        array = room.at(part)
        return (array, []) if part.offset < 0 else (array, [self._copy(part.array, array)])

    def back(self, part: Scratch, room: ScratchLayout) -> list[Launch]:
        """Return the launch that copies a result from scratch order to its destination."""
        return [] if part.offset < 0 else [self._copy(room.at(part), part.array)]

    def _copy(self, source: Array, target: Array) -> Launch:
        _, heads, rows, columns = source.shape
        strides = [np.int64(s // array.itemsize) for array in (source, target) for s in array.strides[:3]]
        return self.launch(
            "attention_copy", source.size, first_row(source), first_row(target), np.int64(source.size),
            np.int32(heads), np.int32(rows), np.int32(columns), *strides,
        )  # fmt: skip

    def sum(self, gradient: Array, out: Array) -> Launch:
        shape = self._attention.shape
        wanted = (1,) * (4 - out.ndim) + tuple(out.shape)
        sizes = (shape.batch, shape.heads, shape.queries, shape.keys, *wanted)
        name = "double" if self.wide == np.float64 else "float"
        return self.launch(
            "attention_sum", out.size, gradient, out, np.int64(out.size), *map(np.int32, sizes), gradient=name
        )


def addends(attention: Attention) -> list[Any]:
    """Return shift, mask and the addend of each key, with their strides in elements, 0 along repeated dimensions. The
    statistics replace a missing one, which is not read."""
    arguments: list[Any] = []
    scores = attention.scores
    every = (0, 1, 2, 3)
    for array, dimensions in ((scores.shift, every), (scores.mask, every), (scores.key_shift, (0, 1, 3))):
        if array is None:
            arguments += [attention.statistics, *[np.int64(0)] * len(dimensions)]
            continue
        strides = [0 if array.shape[d] == 1 else array.strides[d] // array.itemsize for d in dimensions]
        arguments += [array, *map(np.int64, strides)]
    return arguments


def first_row(array: Array) -> Array:
    """Return the start of a view by head, for kernels that get its strides: rows are contiguous, it need not be."""
    return array[:1, :1, :1]


# A kernel that joins the results of two slices of the keys for the same queries: one thread for each element.


_JOIN_THREADS = 256


def launch_join(device: Device, layout: str, inputs: Sequence[Array], out: Sequence[Array]) -> Launch:
    """Fill out, from (attention, statistics, other attention, other statistics); see `JoinAttention`."""
    one, of_one, other, of_other = inputs
    batch, heads, queries, _ = of_one.shape
    double = of_one.dtype == np.float64
    depth = one.size // max(1, of_one.size)
    text = macros(
        A=c_type(dtype_of(one.dtype)), B=c_type(dtype_of(other.dtype)), W="double" if double else "float",
        EXP="exp" if double else "expf", LOG="log" if double else "logf", INFINITE="(W)__int_as_float(0x7f800000)",
    )  # fmt: skip
    kernel = device.kernel(text + source_text("ops/cuda/join_attention.cu"), "join_attention")
    row = heads * depth
    steps = {
        "BNSD": (queries * row, queries * depth, depth), "SBH": (row, depth, batch * row),
    }.get(layout, (queries * row, depth, row))  # fmt: skip
    sizes = [np.int64(n) for n in (one.size, heads, queries, depth, *steps)]
    grid = max(1, -(-one.size // _JOIN_THREADS))

    return partial(kernel, grid, _JOIN_THREADS, [one, of_one, other, of_other, *out, *sizes])
