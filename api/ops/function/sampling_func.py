"""Functions that draw more than one kind of random number: integers, orders, choices, and the tails of distributions.
A seed is a number, a Generator, or None for numbers of the script's own seed."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import axis_of, element_type, least, shape_of_sizes
from mspc.api.ops.seeds import seeds_of
from mspc.ir.types import FLOAT32, INT32, INT64

_SMALLEST = 2.0**-25
"""Below the least number above 0 that is drawn: logarithms are taken of it instead of 0."""


_NEVER = 1e-38
"""Stands for a weight of 0: it is drawn where nothing else is left."""


def uniform_samples(shape: Any, seed: Any, which: int = 0) -> Any:
    """Numbers sampled uniformly from [0, 1); `which` tells the draws of one seed apart."""
    return ops.UniformReal(*seeds_of(seed, which))(shape)


def _gumbel(shape: Any, seed: Any) -> Any:
    """Numbers of Gumbel's distribution."""
    return -ops.Log()(-ops.Log()(ops.Maximum()(uniform_samples(shape, seed), _SMALLEST)))


def randint(low: int, high: int, size: Any, seed: Any = None, *, dtype: Any = None) -> Any:
    """Integers sampled uniformly from low to high, without high, Int64 unless `dtype` is given."""
    least("randint", "high", high, low + 1)
    scaled = ops.cast(ops.Floor()(uniform_samples(shape_of_sizes("randint", (size,)), seed) * (high - low)), INT64)
    found = ops.Minimum()(scaled, high - low - 1) + low
    return found if dtype is None else ops.cast(found, element_type(dtype))


def randperm(n: int, seed: Any = 0, offset: int = 0, dtype: Any = INT64) -> Any:
    """The integers from 0 to n, without n, in a random order. seed and offset choose it."""
    least("randperm", "n", n, 0)
    noise = uniform_samples((n,), seed if seed else None, offset)
    return ops.cast(ops.argsort(noise), element_type(dtype))


def multinomial(input: TensorLike, num_samples: int, replacement: bool = True, seed: Any = None) -> Any:
    """num_samples places of each row of weights, sampled in proportion to these, Int32; without replacement each place
    is sampled once at most. Gumbel's maxima choose them."""
    least("multinomial", "num_samples", num_samples, 1)
    scores = ops.Log()(ops.Maximum()(ops.cast(input, FLOAT32), _NEVER))
    if not replacement:
        _, places = ops.TopK(True)(scores + _gumbel(input.shape, seed), num_samples)
        return ops.cast(places, INT32)
    noise = _gumbel((*input.shape[:-1], num_samples, input.shape[-1]), seed)
    return ops.Argmax(-1, INT32)(ops.ExpandDims()(scores, -2) + noise)


def random_categorical(logits: TensorLike, num_sample: int, seed: Any = 0, dtype: Any = INT64) -> Any:
    """num_sample places of each row, sampled in proportion to the exponentials of its elements."""
    noise = _gumbel((*logits.shape[:-1], num_sample, logits.shape[-1]), seed if seed else None)
    return ops.cast(ops.Argmax(-1, INT32)(ops.ExpandDims()(ops.cast(logits, FLOAT32), -2) + noise), element_type(dtype))


def gumbel_softmax(logits: TensorLike, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Any:
    """The softmax along `dim` of logits with Gumbel's noise, divided by tau; for hard its greatest as 1 and others as
    0, with the gradient of the softmax."""
    axis = axis_of("gumbel_softmax", dim, len(logits.shape))
    soft = ops.Softmax(axis)((logits + ops.cast(_gumbel(logits.shape, None), logits.dtype)) / tau)
    if not hard:
        return soft
    place = ops.Argmax(axis, INT32)(soft)
    one = ops.cast(ops.one_hot(place, logits.shape[axis], 1.0, 0.0, axis), soft.dtype)
    return one - ops.stop_gradient(soft) + soft


def standard_laplace(shape: Any, seed: Any = None) -> Any:
    """Numbers of Laplace's distribution with mean 0 and scale 1, Float32."""
    apart = uniform_samples(shape_of_sizes("standard_laplace", (shape,)), seed) - 0.5
    return -ops.Sign()(apart) * ops.Log()(ops.Maximum()(1 - 2 * ops.Abs()(apart), _SMALLEST))
