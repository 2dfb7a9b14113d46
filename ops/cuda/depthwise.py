"""These CUDA kernels convolve every channel of an image by itself, and compute the gradients, where channels come last.

Products are those of Float32 (of Float64, for its own), rounded once at the end. Places beside an image count as
zeros. Nothing is added up by atomics, and the order is the same at every run on one kind of GPU. In the gradient of the
weights a value of the image that is not finite may spread to places of the window that do not meet it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.types import dtype_of
from mspc.ops.cuda.depthwise_kernels import (
    COMMON,
    FORWARD,
    IMAGE_GRADIENT,
    WEIGHT_GRADIENT,
    WEIGHT_TOTALS,
    WINDOW,
)
from mspc.ops.cuda.depthwise_tiles import THREADS, Depthwise, TileSizes
from mspc.ops.cuda.depthwise_wide_kernels import WIDE_FORWARD, WIDE_IMAGE_GRADIENT, WINDOW_ROWS
from mspc.ops.cuda.source import constants
from mspc.ops.device import Array, Device, Launch, Sliding

_TYPES = ("Float16", "BFloat16", "Float32", "Float64")
_PIECE, _WIDE_TILE = 7, 8
"""Where a window does not fit into registers, columns of it that are looked at at once, and those of a tile."""
_SHARED = 48 << 10
"""Bytes of shared memory that a block has."""
_SIDE_BY_SIDE, _DEEP = 32, 8
"""Weights, and threads for each of them, of a block that adds up what others found."""


def depthwise(
    device: Device, kind: str, image: Array, weight: Array, result: Array, windows: Sequence[Sliding]
) -> list[Launch]:
    """Launches of a convolution of single channels, each of other tiles, the likely fastest first; none where there is
    no kernel for it. For the arguments see `Device.convolution`."""
    work = work_of(device, kind, image, weight, result, windows)
    if work is None:
        return []
    made = {"forward": result, "image": image, "weight": weight}[kind]
    if not made.size:
        return [lambda: None]
    if not all(array.size for array in (image, weight, result)):
        return [lambda: made.fill(0)]
    found = [launch_of(work, sizes) for sizes in chosen(work)]
    return found or _wide(work)


def work_of(
    device: Device, kind: str, image: Array, weight: Array, result: Array, windows: Sequence[Sliding]
) -> Depthwise | None:
    """What there is to do; None where these kernels cannot do it."""
    arrays = (image, weight, result)
    if image.ndim != 4 or any(array.dtype != image.dtype for array in arrays):
        return None
    dtype = dtype_of(image.dtype)
    channels, made = image.shape[1], weight.shape[0]
    if dtype.name not in _TYPES or weight.shape[1] != 1 or not channels or made % channels:
        return None
    if made != channels and (channels == 1 or kind == "image"):
        return None
    seen, found = image.transpose(0, 2, 3, 1), result.transpose(0, 2, 3, 1)
    if not all(array.flags.c_contiguous for array in (seen, weight, found)):
        return None
    flat = weight.reshape(made, *weight.shape[2:])
    return Depthwise(device, kind, seen, flat, found, (windows[0], windows[1]), dtype)


def chosen(work: Depthwise) -> list[TileSizes]:
    """The sizes of least cost, by which no others were faster by more than 2 % (24 convolutions on an H100); none where
    a window does not fit."""
    found = work.choices()
    return [min(found, key=lambda sizes: sizes.cost)] if found else []


def launch_of(work: Depthwise, sizes: TileSizes) -> Launch:
    """The kernels with these sizes."""
    source = work.source() + constants(**sizes.constants) + COMMON
    if work.kind == "weight":
        return _weight_gradient(work, sizes, source)
    if work.kind == "forward":
        kernel = work.device.kernel(source + WINDOW + FORWARD, "depthwise")
        arguments = work.image, work.weight, work.result
    else:
        kernel = work.device.kernel(source + WINDOW + IMAGE_GRADIENT, "depthwise_image_gradient")
        arguments = work.result, work.weight, work.image
    return lambda: kernel(sizes.blocks, THREADS, arguments)


def _weight_gradient(work: Depthwise, sizes: TileSizes, source: str) -> Launch:
    """Sums of blocks in scratch memory, and then their sum."""
    first = work.device.kernel(source + WEIGHT_GRADIENT, "depthwise_weight_gradient")
    second = work.device.kernel(source + constants(COUNT=work.weight.size) + WEIGHT_TOTALS, "depthwise_weight_totals")
    partial: Any = work.device.scratch(sizes.constants["SHARES"] * work.weight.size * 4 * work.words)
    given, totals = (work.result, work.image, partial), (partial, work.weight)

    def launch() -> None:
        first(sizes.blocks, THREADS, given)
        second(-(-work.weight.size // _SIDE_BY_SIDE), _SIDE_BY_SIDE * _DEEP, totals)

    return launch


def _wide(work: Depthwise) -> list[Launch]:
    """For windows that do not fit into registers, forward and the gradient of the image."""
    height, width = work.weight.shape[1:]
    if work.lanes * (width | 1) * 4 * work.words > _SHARED:
        return []
    if work.kind == "image" and all(window.stride == 1 for window in work.windows):
        # The same as a convolution of the result's gradient with the window from its end.
        turned = [
            window._replace(before=(size - 1) * window.dilation - window.before)
            for size, window in zip((height, width), work.windows, strict=True)
        ]
        work = work._replace(kind="forward", image=work.result, result=work.image, windows=(turned[0], turned[1]))
        return [_wide_launch(work, True)]
    return [_wide_launch(work, False)]


def _wide_launch(work: Depthwise, flipped: bool) -> Launch:
    sizes = work.wide_sizes(_WIDE_TILE)
    source = work.source() + constants(**sizes.constants, PIECE=_PIECE, FLIPPED=flipped) + COMMON + WINDOW_ROWS
    if work.kind == "forward":
        kernel = work.device.kernel(source + WIDE_FORWARD, "depthwise_wide")
        arguments = work.image, work.weight, work.result
    else:
        kernel = work.device.kernel(source + WIDE_IMAGE_GRADIENT, "depthwise_wide_image_gradient")
        arguments = work.result, work.weight, work.image
    return lambda: kernel(sizes.blocks, THREADS, arguments)
