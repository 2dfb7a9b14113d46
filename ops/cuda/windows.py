"""CUDA kernels of pooling over images of up to three dimensions, and of its gradients; channels are second or last in
memory.

A thread makes some adjacent channels of one position. A gradient is gathered: each position of the image reads the
windows that contain it, so that there are no atomics and the order is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.types import dtype_of
from mspc.ops.convolution.window import Window
from mspc.ops.cuda.text import WORDS, accumulating_type, definitions, index_type, lanes_of, macros
from mspc.ops.device import Array, Device, Launch, in_order, source_text

_BLOCK = 256
_MAX_TAPS = 255
"""Maximum number of taps whose numbers fit into a byte, with one value for none."""
_DIMS = 3


def launch_max(device: Device, x: Array, out: Array, along: Sequence[Window]) -> Launch | None:
    """Return the launch of the maximum of every window; NaN if it contains one."""
    return _launch(device, "greatest", x, out, along, (x,), out)


def launch_max_gradient(
    device: Device, x: Array, found: Array, dout: Array, out: Array, along: Sequence[Window]
) -> Launch | None:
    """Return the launch in which the gradient of an output goes to the first position of its window with the
    maximum."""
    last = _channels_last((x, found, dout, out))
    if last is None:
        return None
    kind = np.uint8 if _taps(along) <= _MAX_TAPS else np.uint16
    memory = device.scratch(found.size * np.dtype(kind).itemsize).view(kind)
    chosen = memory[: found.size].reshape(_as_stored(found, last).shape)
    if last:
        chosen = chosen.transpose(0, found.ndim - 1, *range(1, found.ndim - 1))
    first = _launch(device, "chosen_places", x, found, along, (x, found), chosen)
    return in_order(first, _launch(device, "greatest_gradient", out, found, along, (chosen, dout), out))


def launch_mean(device: Device, x: Array, shares: Array, out: Array, along: Sequence[Window]) -> Launch | None:
    """Return the launch of sums of windows over `shares`, one number or one for each position."""
    return _launch(device, "mean", x, out, along, (x, shares), out, single=shares.size == 1)


def launch_mean_gradient(
    device: Device, dout: Array, shares: Array, out: Array, along: Sequence[Window]
) -> Launch | None:
    """Return the launch of the gradients of all windows that contain a place, each over its share."""
    return _launch(device, "mean_gradient", out, dout, along, (dout, shares), out, single=shares.size == 1)


def _launch(device: Device, name: str, image: Array, result: Array, along: Sequence[Window], given: Sequence[Array],
            out: Array, single: bool = False) -> Launch | None:  # fmt: skip
    """Return the kernel `name` over the positions of `out`, which is the image or the result."""
    arrays = [array for array in (*given, out) if array.ndim == image.ndim]
    last = _channels_last(arrays)
    if last is None:
        return None
    if not out.size:
        return lambda: None
    dtype = dtype_of(image.dtype)
    channels = image.shape[1]
    lanes = lanes_of(dtype.itemsize, channels, *arrays) if last else 1
    missing = _DIMS - len(along)
    sizes: dict[str, Any] = {"LAST": last, "CHANNELS": channels, "V": lanes, "SINGLE": single}
    for d in range(_DIMS):
        own = along[d - missing] if d >= missing else None
        sizes |= {
            f"IN{d}": image.shape[2 + d - missing] if own else 1,
            f"OUT{d}": result.shape[2 + d - missing] if own else 1,
            f"SIZE{d}": own.size if own else 1,
            f"STRIDE{d}": own.stride if own else 1,
            f"DILATION{d}": own.dilation if own else 1,
            f"BEFORE{d}": own.before if own else 0,
        }
    threads = math.prod(out.shape) // lanes
    few, type = _taps(along) <= _MAX_TAPS, accumulating_type(dtype)
    source = definitions(
        T=dtype, A=type, Tap=f"unsigned {'char' if few else 'short'}", NONE=255 if few else 65535,
        Index=index_type(max(image.size, result.size)), **sizes, THREADS=threads,
    )  # fmt: skip
    source += macros(LOWEST=f"({_LOWEST[type]})") + source_text(f"ops/cuda/window_{name}.cu")
    kernel = device.kernel(source, name)
    arguments = tuple(_as_stored(array, last) if array.ndim == image.ndim else array for array in (*given, out))

    return partial(kernel, -(-threads // _BLOCK), _BLOCK, arguments)


def _channels_last(arrays: Sequence[Array]) -> bool | None:
    """Return True if channels come last in memory, False if second; None if neither is true of all arrays."""
    if all(array.flags.c_contiguous for array in arrays):
        return False
    return True if all(_as_stored(array, True).flags.c_contiguous for array in arrays) else None


def _as_stored(array: Array, last: bool) -> Array:
    return array.transpose(0, *range(2, array.ndim), 1) if last else array


def _taps(along: Sequence[Window]) -> int:
    return math.prod(window.size for window in along)


_LOWEST = {"float": "-__int_as_float(0x7f800000)", "double": "-__longlong_as_double(0x7ff0000000000000ll)"}


# These CUDA kernels make channels of the places within a stride, and the reverse, for images whose channels come last.
#
# A convolution of stride s looks at places s * m + r of the padded image for r in [0, s): with these as channels of
# place m it has no stride, and an image of few channels has enough of them for tensor cores.


_PACK = 16
"""Bytes that a thread writes."""


def fold(device: Device, source: Array, target: Array, stride: int, before: tuple[int, int]) -> Launch:
    """Set target[n, (r0 * stride + r1) * channels + c, i, j] = source[n, c, stride * i + r0 - before0, ...]; 0 outside
    of the source and after its last channel. Arrays are [n, c, h, w] with channels last in memory."""
    lanes = _PACK // target.itemsize
    threads = target.size // lanes
    text = _constants(source, target, stride, threads) + definitions(V=lanes, B0=before[0], B1=before[1])
    text += source_text("ops/cuda/fold.cu")
    kernel = device.kernel(text, "fold")
    arguments = (_stored(source), _stored(target))
    return lambda: kernel(-(-threads // _BLOCK), _BLOCK, arguments)


def unfold(device: Device, source: Array, target: Array, stride: int) -> Launch:
    """Return the reverse of `fold` without padding: target[n, c, stride * i + r0, ...] = source[n, ..., i, j]."""
    text = _constants(target, source, stride, target.size) + source_text("ops/cuda/unfold.cu")
    kernel = device.kernel(text, "unfold")
    arguments = (_stored(source), _stored(target))
    return lambda: kernel(-(-target.size // _BLOCK), _BLOCK, arguments)


def _stored(array: Array) -> Array:
    return array.transpose(0, 2, 3, 1)


def _constants(plain: Array, folded: Array, stride: int, threads: int) -> str:
    sizes: dict[str, Any] = {"C": plain.shape[1], "H": plain.shape[2], "W": plain.shape[3], "S": stride}
    sizes |= {"FC": folded.shape[1], "FH": folded.shape[2], "FW": folded.shape[3], "THREADS": threads}
    return definitions(T=WORDS[plain.itemsize], Index=index_type(max(plain.size, folded.size)), **sizes)
