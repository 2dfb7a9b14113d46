"""Convolutions whose groups have one input channel each run place by place of the window, not as matrix products."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ops.convolution.columns import blocks, gathered, met, taps
from mspc.ops.convolution.window import Window
from mspc.ops.cpu.products import share_out


def depthwise(xp: Any, x: Any, weight: Any, along: Sequence[Window], counts: Sequence[int], out: Any) -> Any:
    """`convolve` for such weights [out channels, 1, *sizes]."""
    channels = x.shape[1]
    scaled = _by_place(weight, channels, len(counts))

    def work(batch: slice) -> None:
        image = gathered(xp, x[batch])
        total = xp.zeros((channels, scaled.shape[2], *counts, image.shape[-1]), out.dtype)
        for factor, place in zip(scaled, taps(along), strict=True):
            inside, looked = met(along, place, x.shape[2:], counts)
            target = total[(slice(None), slice(None), *inside)]
            xp.add(target, image[(slice(None), *looked)][:, None] * factor, out=target)
        out[batch] = xp.moveaxis(total.reshape(-1, *total.shape[2:]), -1, 0)

    batches = _blocks(xp, x.shape[0], along, counts)
    share_out([functools.partial(work, batch) for batch in batches], out.size * len(scaled))
    return out


def depthwise_input_gradient(xp: Any, dout: Any, weight: Any, along: Sequence[Window], out: Any) -> Any:
    """`input_gradient` for such weights."""
    channels, lengths, counts = out.shape[1], out.shape[2:], dout.shape[2:]
    scaled = _by_place(weight, channels, len(counts))

    def work(batch: slice) -> None:
        given = gathered(xp, dout[batch])
        given = given.reshape(channels, -1, *given.shape[1:])
        total = xp.zeros((channels, *lengths, given.shape[-1]), out.dtype)
        for factor, place in zip(scaled, taps(along), strict=True):
            inside, looked = met(along, place, lengths, counts)
            target = total[(slice(None), *looked)]
            for each in range(given.shape[1]):
                xp.add(target, given[(slice(None), each, *inside)] * factor[:, each], out=target)
        out[batch] = xp.moveaxis(total, -1, 0)

    batches = _blocks(xp, out.shape[0], along, counts)
    share_out([functools.partial(work, batch) for batch in batches], dout.size * len(scaled))
    return out


def depthwise_weight_gradient(xp: Any, dout: Any, x: Any, along: Sequence[Window], out: Any) -> Any:
    """`weight_gradient` for such weights."""
    channels, lengths, counts = x.shape[1], x.shape[2:], dout.shape[2:]
    places = list(taps(along))
    batches = _blocks(xp, x.shape[0], along, counts)
    sums = xp.empty((len(batches), channels, out.shape[0] // channels, len(places)), out.dtype)

    def work(number: int) -> None:
        image, given = gathered(xp, x[batches[number]]), gathered(xp, dout[batches[number]], stays=True)
        given = given.reshape(channels, -1, *given.shape[1:])
        for index, place in enumerate(places):
            inside, looked = met(along, place, lengths, counts)
            products = given[(slice(None), slice(None), *inside)] * image[(slice(None), *looked)][:, None]
            sums[number, :, :, index] = products.reshape(*products.shape[:2], -1).sum(axis=2)

    share_out([functools.partial(work, number) for number in range(len(batches))], dout.size * len(places))
    out[...] = sums.sum(axis=0).reshape(out.shape)
    return out


def _blocks(xp: Any, batch: int, along: Sequence[Window], counts: Sequence[int]) -> list[slice]:
    """`blocks`, where arithmetic with strides has long runs: these are the images' or the positions'."""
    together = blocks(xp, batch, along, counts)
    if xp is np and along[-1].stride > 1 and counts[-1] > together[0].stop:
        return [slice(i, i + 1) for i in range(batch)]
    return together


def _by_place(weight: Any, channels: int, dims: int) -> Any:
    """[places of the window, channels, results of each, 1, ...]: what the channels are multiplied by at every place."""
    each = weight.shape[0] // channels
    window = math.prod(weight.shape[2:])
    return weight.reshape(channels, each, window).transpose(2, 0, 1).reshape(window, channels, each, *[1] * (dims + 1))
