"""Random sampling, and ranges of numbers."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import FLOAT32, INT32, INT64
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.generator import seeds_of
from mspc.mindspore_api.ops.checked import TensorLike
from mspc.mindspore_api.ops.function_arguments import axis_of, element_type, least, no_such, shape_of_sizes


def rand(*size: Any, dtype: Any = None, seed: Any = None) -> Any:
    """Return numbers sampled uniformly from [0, 1), Float32 unless `dtype` is given."""
    found = ops.UniformReal(*seeds_of(seed))(shape_of_sizes("rand", size))
    return found if dtype is None else ops.cast(found, dtype)


def standard_normal(shape: Any, seed: Any = None) -> Any:
    """Return numbers of the normal distribution with mean 0 and deviation 1, Float32. Box and Muller 1958."""
    sizes = shape_of_sizes("standard_normal", (shape,))
    first, second = ops.UniformReal(*seeds_of(seed, 1))(sizes), ops.UniformReal(*seeds_of(seed, 2))(sizes)
    return ops.sqrt(ops.log(1.0 - first) * -2.0) * ops.cos(second * (2.0 * math.pi))


def randn(*size: Any, dtype: Any = None, seed: Any = None) -> Any:
    """Return numbers of the normal distribution with mean 0 and deviation 1, Float32 unless `dtype` is given."""
    found = standard_normal(shape_of_sizes("randn", size), seed)
    return found if dtype is None else ops.cast(found, dtype)


def uniform(shape: Any, minval: Any, maxval: Any, seed: Any = None, dtype: Any = FLOAT32) -> Any:
    """Return numbers sampled uniformly from [minval, maxval)."""
    share = ops.UniformReal(*seeds_of(seed))(shape_of_sizes("uniform", (shape,)))
    return ops.cast(share * (maxval - minval) + minval, dtype)


def bernoulli(input: Any, p: float | TensorLike = 0.5, seed: Any = None) -> Any:
    """Return 1 with probability p, else 0, for every element of `input`, in its type."""
    samples = ops.UniformReal(*seeds_of(seed))(input.shape)
    return ops.cast(samples < p, input.dtype)


_SMALLEST = 2.0**-25
"""Replacement of 0 in logarithms, below the smallest positive number that is drawn."""


_NEVER = 1e-38
"""Replaces a weight of 0: it is drawn only if nothing else is left."""


def uniform_samples(shape: Any, seed: Any, which: int = 0) -> Any:
    """Return numbers sampled uniformly from [0, 1); `which` distinguishes the draws of one seed."""
    return ops.UniformReal(*seeds_of(seed, which))(shape)


def _gumbel(shape: Any, seed: Any) -> Any:
    """Return numbers of the Gumbel distribution."""
    return -ops.Log()(-ops.Log()(ops.Maximum()(uniform_samples(shape, seed), _SMALLEST)))


def randint(low: int, high: int, size: Any, seed: Any = None, *, dtype: Any = None) -> Any:
    """Return integers sampled uniformly from low to high, excluding high, Int64 unless `dtype` is given."""
    least("randint", "high", high, low + 1)
    scaled = ops.cast(ops.Floor()(uniform_samples(shape_of_sizes("randint", (size,)), seed) * (high - low)), INT64)
    found = ops.Minimum()(scaled, high - low - 1) + low
    return found if dtype is None else ops.cast(found, element_type(dtype))


def randperm(n: int, seed: Any = 0, offset: int = 0, dtype: Any = INT64) -> Any:
    """Return the integers from 0 to n, excluding n, in a random order chosen by seed and offset."""
    least("randperm", "n", n, 0)
    noise = uniform_samples((n,), seed if seed else None, offset)
    return ops.cast(ops.argsort(noise), element_type(dtype))


def multinomial(input: TensorLike, num_samples: int, replacement: bool = True, seed: Any = None) -> Any:
    """Return num_samples indices for each row of weights, sampled in proportion to these, Int32; without replacement
    each index is sampled at most once. Gumbel maxima choose them."""
    least("multinomial", "num_samples", num_samples, 1)
    scores = ops.Log()(ops.Maximum()(ops.cast(input, FLOAT32), _NEVER))
    if not replacement:
        _, places = ops.TopK(True)(scores + _gumbel(input.shape, seed), num_samples)
        return ops.cast(places, INT32)
    noise = _gumbel((*input.shape[:-1], num_samples, input.shape[-1]), seed)
    return ops.Argmax(-1, INT32)(ops.ExpandDims()(scores, -2) + noise)


def random_categorical(logits: TensorLike, num_sample: int, seed: Any = 0, dtype: Any = INT64) -> Any:
    """Return num_sample indices for each row, sampled in proportion to the exponentials of its elements."""
    noise = _gumbel((*logits.shape[:-1], num_sample, logits.shape[-1]), seed if seed else None)
    return ops.cast(ops.Argmax(-1, INT32)(ops.ExpandDims()(ops.cast(logits, FLOAT32), -2) + noise), element_type(dtype))


def gumbel_softmax(logits: TensorLike, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Any:
    """Return the softmax along `dim` of logits with Gumbel noise, divided by tau; for hard 1 at its greatest element
    and 0 elsewhere, with the gradient of the softmax."""
    axis = axis_of("gumbel_softmax", dim, len(logits.shape))
    soft = ops.Softmax(axis)((logits + ops.cast(_gumbel(logits.shape, None), logits.dtype)) / tau)
    if not hard:
        return soft
    place = ops.Argmax(axis, INT32)(soft)
    one = ops.cast(ops.one_hot(place, logits.shape[axis], 1.0, 0.0, axis), soft.dtype)
    return one - ops.stop_gradient(soft) + soft


def range(start: int | float, end: int | float, step: int | float, maxlen: int = 1000000) -> Any:
    """Return numbers from start up to but excluding end, by step. Raise ValueError if there are more than maxlen."""
    found = ops.arange(start, end, step)
    if found.size > maxlen:
        no_such("range", "maxlen", maxlen, f"at least {found.size}, how many numbers there are")
    return found
