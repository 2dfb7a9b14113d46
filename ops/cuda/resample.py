"""This CUDA kernel resamples images: every place of the result is a weighted sum of places of the image around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.types import dtype_of
from mspc.ops.cuda.move import put_values
from mspc.ops.device import Array, Device, Launch


def resample(device: Device, name: str, matrices: Sequence[Any], inner: int, x: Array, out: Array) -> Launch | None:
    """Launch of out = the matrices [places of the result, places of the image], one a dimension, applied to x.

    The dimensions of an image lie side by side. inner: elements that lie behind them and belong to one place.
    """
    dtype = dtype_of(x.dtype)
    if math.prod(x.shape) >= 2**31 or not dtype.is_float:
        return None
    wide = np.float64 if dtype.name == "Float64" else np.float32
    parts = [_support(matrix) for matrix in matrices]
    firsts = np.concatenate([first for first, _ in parts]).astype(np.int32)
    weights = np.concatenate([rows.reshape(-1) for _, rows in parts]).astype(wide)
    lines = [f"const Index i = at % {inner}; Index rest = at / {inner};", "A total = 0;"]
    loops: list[str] = []
    index = "rest"
    for d in reversed(range(len(matrices))):
        count, width = parts[d][1].shape
        begin, weight = sum(len(first) for first, _ in parts[:d]), sum(rows.size for _, rows in parts[:d])
        lines.append(f"const Index q{d} = rest % {count}; rest /= {count}; const int f{d} = firsts[{begin} + q{d}];")
        lines.append(f"const A* const w{d} = weights + {weight} + q{d} * {width};")
    for d, matrix in enumerate(matrices):
        width, length = parts[d][1].shape[1], matrix.shape[1]
        share = f"s{d - 1} * w{d}[k{d}]" if d else f"w{d}[k{d}]"
        loops.append(f"for (int k{d} = 0; k{d} < {width} && f{d} + k{d} < {length}; ++k{d}) {{ const A s{d} = {share};")
        index = f"({index} * {length} + f{d} + k{d})"
    share = f"s{len(matrices) - 1}"
    lines += [*loops, f"total += {share} * (A)wide(x[{index} * {inner} + i]);", "}" * len(loops)]
    common = f"typedef {'double' if wide is np.float64 else 'float'} A;\n"
    text = f"[&] {{ {' '.join(lines)} return narrow<R>(total); }}()"
    operands = [("x", x), ("firsts", device.xp.asarray(firsts)), ("weights", device.xp.asarray(weights))]
    return put_values(device, name, out, text, operands, common=common)


def _support(matrix: Any) -> tuple[Any, Any]:
    """(the first place with a weight, [places of the result, most weights]) of a matrix."""
    given = matrix != 0
    first = np.argmax(given, axis=1)
    last = matrix.shape[1] - np.argmax(given[:, ::-1], axis=1)
    width = max(1, int((last - first).max()))
    places = first[:, None] + np.arange(width)
    rows = np.take_along_axis(matrix, np.minimum(places, matrix.shape[1] - 1), axis=1)
    return first, np.where(places < last[:, None], rows, 0)
