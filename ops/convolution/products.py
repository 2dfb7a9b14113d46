"""Convolutions and their gradients are computed here as matrix products of weights and columns.

Threads share out images, or channels where images are few. Every sum is made in one order, however many threads there
are: it is that of images and rows, whose pieces depend on shapes alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ops.convolution.columns import (
    blocks,
    chunks,
    columns,
    empty,
    gathered,
    is_point,
    multiplied,
    reach_of,
    spread,
)
from mspc.ops.convolution.depthwise import depthwise, depthwise_input_gradient, depthwise_weight_gradient
from mspc.ops.convolution.window import Window
from mspc.ops.cpu.products import product, share_out
from mspc.ops.cpu.threads import thread_count
from mspc.sharding.borders import Span

LONG_SUM = 512
"""Positions of an image from which its share of the weights' gradient is worth a product, and a pass over the sum."""


def convolve(
    xp: Any, x: Any, weight: Any, along: Sequence[Window], counts: Sequence[int], groups: int, out: Any
) -> Any:
    """Fill `out` [batch, out channels, *counts]: sums over the input channels of the group and the window.

    x: [batch, in channels, ...]. weight: [out channels, in channels / groups, *sizes]. `out` is contiguous.
    """
    if not out.size or not weight.size:  # an image without places is padding alone, which counts
        out[...] = 0
        return out
    if weight.shape[1] == 1 and groups > 1 and _finite(xp, weight):
        return depthwise(xp, x, weight, along, counts, out)
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    by_group = out.reshape(out.shape[0], groups, matrix.shape[1], *counts)
    flat = out.reshape(*by_group.shape[:3], -1)
    batches = blocks(xp, x.shape[0], along, counts)
    if xp is np and batches[0].stop == 1 and is_point(along, x.shape[2:]):
        product(matrix, x.reshape(x.shape[0], groups, matrix.shape[2], -1), flat)
        return out
    pieces = chunks(xp, groups * matrix.shape[2], counts, batches[0].stop)
    reach = reach_of(along, counts)

    def multiply(found: Any, batch: slice, rows: Span, made: Span) -> None:
        factor = matrix[:, slice(*made)]
        images = batch.stop - batch.start
        if images == 1 and xp is np:
            row = math.prod(counts[1:])
            target = flat[batch.start, :, slice(*made), rows[0] * row : rows[1] * row]
            np.matmul(factor, found, out=target)
            return
        results = multiplied(xp, factor, found).reshape(groups, made[1] - made[0], -1, *counts[1:], images)
        by_group[batch, :, slice(*made), slice(*rows)] = xp.moveaxis(results, -1, 0)

    def prepared(image: Any, rows: Span) -> Any:
        return columns(xp, image, along, counts, rows).reshape(groups, matrix.shape[2], -1)

    def piece(image: Any, batch: slice, rows: Span) -> None:
        multiply(prepared(image, rows), batch, rows, (0, matrix.shape[1]))

    def all_pieces(batch: slice) -> None:
        image = gathered(xp, x[batch], reach)
        for rows in pieces:
            piece(image, batch, rows)

    multiplications = out.size * matrix.shape[2]
    if len(batches) >= _threads(xp):
        share_out([functools.partial(all_pieces, batch) for batch in batches], multiplications)
        return out
    for batch in batches:
        image = gathered(xp, x[batch], reach)
        if len(pieces) >= _threads(xp):
            share_out([functools.partial(piece, image, batch, rows) for rows in pieces], multiplications)
            continue
        for rows in pieces:
            found = prepared(image, rows)
            parts = [functools.partial(multiply, found, batch, rows, made) for made in _parts(xp, matrix.shape[1])]
            share_out(parts, multiplications)
    return out


def input_gradient(xp: Any, dout: Any, weight: Any, along: Sequence[Window], groups: int, out: Any) -> Any:
    """Fill `out` [batch, in channels, ...], the gradient of the image, from that of the result [batch, out channels,
    ...]: the columns' gradients, added up where columns share places. `out` is contiguous."""
    if not out.size or not weight.size or not dout.size:
        out[...] = 0
        return out
    if weight.shape[1] == 1 and groups > 1:
        return depthwise_input_gradient(xp, dout, weight, along, out)
    counts, lengths, window = dout.shape[2:], out.shape[2:], math.prod(weight.shape[2:])
    turned = weight.reshape(groups, weight.shape[0] // groups, -1).swapaxes(1, 2)
    by_group = out.reshape(out.shape[0], groups, weight.shape[1], *lengths)
    flat = out.reshape(*by_group.shape[:3], -1)
    batches = blocks(xp, dout.shape[0], along, counts)
    point = is_point(along, lengths)
    if xp is np and batches[0].stop == 1 and point:
        product(turned, dout.reshape(dout.shape[0], groups, turned.shape[2], -1), flat)
        return out
    pieces = chunks(xp, groups * turned.shape[1], counts, batches[0].stop)

    def work(batch: slice, part: Span) -> None:
        given = gathered(xp, dout[batch])
        factor = turned[:, part[0] * window : part[1] * window]
        images = given.shape[-1]
        if point and images == 1 and xp is np:
            target = flat[batch.start, :, slice(*part)]
            np.matmul(factor, given.reshape(groups, turned.shape[2], -1), out=target)
            return
        image = empty(xp, "image", (groups * (part[1] - part[0]), *lengths, images), out.dtype)
        image[...] = 0
        for rows in pieces:
            some = given[:, slice(*rows)].reshape(groups, turned.shape[2], -1)
            spread(xp, multiplied(xp, factor, some), image, along, counts, rows)
        by_group[batch, :, slice(*part)] = xp.moveaxis(image.reshape(groups, -1, *image.shape[1:]), -1, 0)

    parts = _parts(xp, weight.shape[1]) if len(batches) < _threads(xp) else [(0, weight.shape[1])]
    calls = [functools.partial(work, batch, part) for batch in batches for part in parts]
    share_out(calls, dout.size * turned.shape[1])
    return out


def weight_gradient(xp: Any, dout: Any, x: Any, along: Sequence[Window], groups: int, out: Any) -> Any:
    """Fill `out` [out channels, in channels / groups, *sizes], the gradient of the weights, from that of the result
    [batch, out channels, ...]. `out` is contiguous."""
    if not dout.size or not out.size:
        out[...] = 0
        return out
    if out.shape[1] == 1 and groups > 1 and _finite(xp, dout):
        return depthwise_weight_gradient(xp, dout, x, along, out)
    counts, window = dout.shape[2:], math.prod(out.shape[2:])
    by_group = x.reshape(x.shape[0], groups, out.shape[1], *x.shape[2:])
    matrix = out.reshape(groups, out.shape[0] // groups, -1)
    batches = blocks(xp, x.shape[0], along, counts, least=LONG_SUM)
    pieces = chunks(xp, groups * matrix.shape[2], counts, batches[0].stop)
    reach = reach_of(along, counts)
    given = [gathered(xp, dout[batch], stays=True) for batch in batches]

    def work(part: Span) -> None:
        target = matrix[:, :, part[0] * window : part[1] * window]
        begun = False
        for batch, result in zip(batches, given, strict=True):
            some = by_group[batch, :, slice(*part)]
            channels = groups * (part[1] - part[0])
            image = gathered(xp, some.reshape(some.shape[0], channels, *x.shape[2:]), reach)
            for rows in pieces:
                found = columns(xp, image, along, counts, rows).reshape(groups, target.shape[2], -1)
                left = result[:, slice(*rows)].reshape(groups, matrix.shape[1], -1)
                if begun:
                    xp.add(target, multiplied(xp, left, found.swapaxes(1, 2)), out=target)
                else:
                    target[...] = multiplied(xp, left, found.swapaxes(1, 2))
                begun = True

    calls = [functools.partial(work, part) for part in _parts(xp, out.shape[1])]
    share_out(calls, dout.size * matrix.shape[2])
    return out


def _finite(xp: Any, factors: Any) -> bool:
    """Whether padding, which a window place by place leaves out, gives nothing with these factors: 0 * inf is NaN.

    A GPU would be waited for, and has kernels of its own.
    """
    return xp is not np or bool(np.isfinite(factors).all())


def _threads(xp: Any) -> int:
    return thread_count() if xp is np else 1


def _parts(xp: Any, channels: int) -> list[Span]:
    """Channels in parts of much the same size, one for each thread."""
    number = min(_threads(xp), channels)
    bounds = [channels * i // number for i in range(number + 1)]
    return [(bounds[i], bounds[i + 1]) for i in range(number)]
