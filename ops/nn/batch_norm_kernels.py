"""The kernels of BatchNorm take some channels of all images at a time, which stay in the cache for all passes over
them.

Every channel is worked by itself, so the number of threads changes no bit. Images are [batch, channels, elements];
means and variances are numbers of the channels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ops.cpu.blocks import BLOCK, SHARED
from mspc.ops.cpu.threads import in_parallel, thread_count

LONG = 4096
"""Elements of a channel in one image from which a row is worth a loop of its own."""

Work = Callable[..., None]
"""`work(channels, *scratch)`: scratch is contiguous arrays [batch, channels, elements] of as many channels, in which
passes run faster than in the images."""


def by_channel(x: Any) -> Any:
    """x as [batch, channels, elements]."""
    return x.reshape(x.shape[0], x.shape[1], math.prod(x.shape[2:]))


def in_channels(xp: Any, images: Any, work: Work, scratch: int = 0) -> None:
    """Do the work for all channels of the images, as many at a time as the cache holds. scratch: arrays of them."""
    batch, channels, elements = images.shape
    step = max(1, BLOCK // max(batch * elements, 1)) if xp is np else max(channels, 1)

    def part(begin: int, end: int) -> None:
        spare = [xp.empty(batch * min(step, end - begin) * elements, images.dtype) for _ in range(scratch)]
        for first in range(begin, end, step):
            stop = min(first + step, end)
            size = batch * (stop - first) * elements
            work(slice(first, stop), *(array[:size].reshape(batch, stop - first, elements) for array in spare))

    threads = min(thread_count(), -(-channels // step)) if xp is np and images.size >= SHARED else 1
    if threads <= 1:
        part(0, channels)
        return
    share = -(-channels // threads // step) * step
    in_parallel([functools.partial(part, i, min(i + share, channels)) for i in range(0, channels, share)])


def _along(xp: Any, values: Any, images: Any) -> Any:
    """Numbers of channels against the images: short rows are spared loops of their own."""
    elements = images.shape[2]
    return values[:, None] if elements >= LONG else xp.repeat(values, elements).reshape(values.size, elements)


def _sum(images: Any) -> Any:
    """The sum of every channel."""
    return images.sum(axis=0).sum(axis=1)


def _product_sum(xp: Any, x: Any, y: Any) -> Any:
    """The sum of x * y of every channel."""
    if xp is not np:
        return _sum(x * y)
    return np.einsum("bce,bce->ce", x, y).sum(axis=1)  # no array of products between


def _over(xp: Any, total: Any, count: int) -> Any:
    return total / xp.asarray(max(count, 1), total.dtype)


def _inverse(xp: Any, variance: Any, epsilon: float) -> Any:
    return 1 / xp.sqrt(variance + xp.asarray(epsilon, variance.dtype))


def channel_mean(xp: Any, x: Any, count: int) -> Any:
    """The sum of every channel over `count`."""
    images = by_channel(x)
    out = xp.empty(x.shape[1:2], x.dtype)

    def work(chosen: slice) -> None:
        out[chosen] = _over(xp, _sum(images[:, chosen]), count)

    in_channels(xp, images, work)
    return out


def channel_variance(xp: Any, x: Any, mean: Any, count: int) -> Any:
    """The sum of the squared distances from the mean over `count`."""
    images = by_channel(x)
    out = xp.empty(x.shape[1:2], x.dtype)

    def work(chosen: slice, scratch: Any) -> None:
        xp.subtract(images[:, chosen], _along(xp, mean[chosen].astype(x.dtype, copy=False), images), out=scratch)
        out[chosen] = _over(xp, _product_sum(xp, scratch, scratch), count)

    in_channels(xp, images, work, scratch=1)
    return out


def channel_statistics(xp: Any, x: Any) -> Any:
    """[1, 2, channels]: mean and variance of every channel."""
    images = by_channel(x)
    count = images.shape[0] * images.shape[2]
    out = xp.empty((1, 2, images.shape[1]), x.dtype)
    mean, variance = out[0]

    def work(chosen: slice, scratch: Any) -> None:
        some = images[:, chosen]
        mean[chosen] = _over(xp, _sum(some), count)
        xp.subtract(some, _along(xp, mean[chosen], images), out=scratch)
        variance[chosen] = _over(xp, _product_sum(xp, scratch, scratch), count)

    in_channels(xp, images, work, scratch=1)
    return out


def joined(statistics: Any) -> tuple[Any, Any]:
    """(mean, variance) of all elements from those of parts of equal size, [parts, 2, channels]."""
    means, variances = statistics[:, 0], statistics[:, 1]
    mean = means.mean(axis=0)
    apart = means - mean
    return mean, (variances + apart * apart).mean(axis=0)


def normalised(
    xp: Any, x: Any, mean: Any, variance: Any, epsilon: float, gamma: Any, beta: Any, out: Any = None
) -> Any:
    """x normalised, times gamma, plus beta."""
    images = by_channel(x)
    out = xp.empty(x.shape, x.dtype) if out is None else out
    results = by_channel(out)
    factor = gamma * _inverse(xp, variance, epsilon)

    def work(chosen: slice, apart: Any) -> None:
        xp.subtract(images[:, chosen], _along(xp, mean[chosen], images), out=apart)
        apart *= _along(xp, factor[chosen], images)
        xp.add(apart, _along(xp, beta[chosen], images), out=results[:, chosen])

    in_channels(xp, images, work, scratch=1)
    return out


def normalised_by_own(
    xp: Any, x: Any, epsilon: float, gamma: Any, beta: Any, out: Any = None
) -> tuple[Any, Any, Any]:
    """(x normalised by its own statistics, times gamma, plus beta; mean; variance)."""
    images = by_channel(x)
    out = xp.empty(x.shape, x.dtype) if out is None else out
    results, count = by_channel(out), math.prod(x.shape) // max(x.shape[1], 1)
    mean, variance = xp.empty(x.shape[1:2], x.dtype), xp.empty(x.shape[1:2], x.dtype)

    def work(chosen: slice, apart: Any) -> None:
        some = images[:, chosen]
        mean[chosen] = _over(xp, _sum(some), count)
        xp.subtract(some, _along(xp, mean[chosen], images), out=apart)
        variance[chosen] = _over(xp, _product_sum(xp, apart, apart), count)
        apart *= _along(xp, gamma[chosen] * _inverse(xp, variance[chosen], epsilon), images)
        xp.add(apart, _along(xp, beta[chosen], images), out=results[:, chosen])

    in_channels(xp, images, work, scratch=1)
    return out, mean, variance


def moving_update(moving: Any, found: Any, momentum: float) -> None:
    """Overwrite moving statistics with their new values."""
    moving[...] = moving * (1 - momentum) + found * momentum


def unbiased(variance: Any, count: int) -> Any:
    """The estimate for all that the `count` elements were drawn from."""
    return variance * (count / (count - 1)) if count > 1 else variance


def gradient_sums(xp: Any, dout: Any, x: Any, mean: Any, variance: Any, epsilon: float) -> tuple[Any, Any]:
    """Sums of every channel: of the gradient times the normalised x, and of the gradient."""
    rows, images = by_channel(dout), by_channel(x)
    inverse = _inverse(xp, variance, epsilon)
    dgamma, dbeta = (xp.empty(x.shape[1:2], inverse.dtype) for _ in range(2))

    def work(chosen: slice, apart: Any) -> None:
        xp.subtract(images[:, chosen], _along(xp, mean[chosen], images), out=apart)
        dgamma[chosen] = _product_sum(xp, apart, rows[:, chosen]) * inverse[chosen]
        dbeta[chosen] = _sum(rows[:, chosen])

    in_channels(xp, images, work, scratch=1)
    return dgamma, dbeta


def gradient_input(
    xp: Any, dout: Any, x: Any, gamma: Any, mean: Any, variance: Any, sums: Sequence[Any], epsilon: float, count: int,
    out: Any = None,
) -> Any:  # fmt: skip
    """The gradient of x; `sums` are those of all elements, none where the statistics were given."""
    rows, images = by_channel(dout), by_channel(x)
    out = xp.empty(x.shape, x.dtype) if out is None else out
    results, inverse = by_channel(out), _inverse(xp, variance, epsilon)
    factor, shares = gamma * inverse, [_over(xp, value, count) for value in sums]

    def work(chosen: slice, apart: Any) -> None:
        scale = _along(xp, factor[chosen], images)
        if not shares:
            xp.multiply(rows[:, chosen], scale, out=results[:, chosen])
            return
        dgamma, dbeta = (share[chosen] for share in shares)
        xp.subtract(images[:, chosen], _along(xp, mean[chosen], images), out=apart)
        apart *= _along(xp, -inverse[chosen] * dgamma, images)
        apart += rows[:, chosen]
        apart -= _along(xp, dbeta, images)
        xp.multiply(apart, scale, out=results[:, chosen])

    in_channels(xp, images, work, scratch=1)
    return out


def own_gradients(
    xp: Any, dout: Any, x: Any, gamma: Any, mean: Any, variance: Any, epsilon: float, out: Any = None
) -> tuple[Any, Any, Any]:
    """(gradient of x, of gamma, of beta) where the statistics are those of x: `gradient_sums` and `gradient_input` in
    one pass over memory."""
    rows, images = by_channel(dout), by_channel(x)
    out = xp.empty(x.shape, x.dtype) if out is None else out
    results, inverse = by_channel(out), _inverse(xp, variance, epsilon)
    count = math.prod(x.shape) // max(x.shape[1], 1)
    dgamma, dbeta = (xp.empty(x.shape[1:2], inverse.dtype) for _ in range(2))

    def work(chosen: slice, apart: Any) -> None:
        some = rows[:, chosen]
        xp.subtract(images[:, chosen], _along(xp, mean[chosen], images), out=apart)
        dgamma[chosen] = _product_sum(xp, apart, some) * inverse[chosen]
        dbeta[chosen] = _sum(some)
        apart *= _along(xp, -inverse[chosen] * _over(xp, dgamma[chosen], count), images)
        apart += some
        apart -= _along(xp, _over(xp, dbeta[chosen], count), images)
        xp.multiply(apart, _along(xp, gamma[chosen] * inverse[chosen], images), out=results[:, chosen])

    in_channels(xp, images, work, scratch=1)
    return out, dgamma, dbeta
