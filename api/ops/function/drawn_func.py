"""Functions that draw more than one kind of random number: integers, orders, choices, and the tails of distributions.
A seed is a number, a Generator, or None for numbers of the script's own seed."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.arguments import axis_of, element_type, least, whole_shape
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.method_table import tensor_method
from mspc.api.ops.seeds import seeds_of
from mspc.ir.types import FLOAT32, INT32, INT64

_SMALLEST = 2.0**-25
"""Below the least number above 0 that is drawn: logarithms are taken of it instead of 0."""


_NEVER = 1e-38
"""Stands for a weight of 0: it is drawn where nothing else is left."""


def _even(shape: Any, seed: Any, which: int = 0) -> Any:
    """Numbers drawn evenly from [0, 1); `which` tells the draws of one seed apart."""
    return ops.UniformReal(*seeds_of(seed, which))(shape)


def _gumbel(shape: Any, seed: Any) -> Any:
    """Numbers of Gumbel's distribution."""
    return -ops.Log()(-ops.Log()(ops.Maximum()(_even(shape, seed), _SMALLEST)))


def rand_like(input: TensorLike, seed: Any = None, *, dtype: Any = None) -> Any:
    """Numbers drawn evenly from [0, 1), of the shape of the input, and of its type unless `dtype` is given."""
    return ops.rand(*input.shape, dtype=input.dtype if dtype is None else dtype, seed=seed)


def randn_like(input: TensorLike, seed: Any = None, *, dtype: Any = None) -> Any:
    """Numbers of the normal distribution with mean 0 and deviation 1, of the shape of the input, and of its type unless
    `dtype` is given."""
    return ops.randn(*input.shape, dtype=input.dtype if dtype is None else dtype, seed=seed)


def randint(low: int, high: int, size: Any, seed: Any = None, *, dtype: Any = None) -> Any:
    """Integers drawn evenly from low to high, without high, Int64 unless `dtype` is given."""
    least("randint", "high", high, low + 1)
    whole = ops.cast(ops.Floor()(_even(whole_shape("randint", (size,)), seed) * (high - low)), INT64)
    found = ops.Minimum()(whole, high - low - 1) + low
    return found if dtype is None else ops.cast(found, element_type(dtype))


def randint_like(input: TensorLike, low: int, high: int, seed: Any = None, *, dtype: Any = None) -> Any:
    """Integers drawn evenly from low to high, without high, of the shape of the input, and of its type unless `dtype`
    is given."""
    return randint(low, high, input.shape, seed, dtype=input.dtype if dtype is None else dtype)


def randperm(n: int, seed: Any = 0, offset: int = 0, dtype: Any = INT64) -> Any:
    """The integers from 0 to n, without n, in an order drawn at random. seed and offset choose it."""
    least("randperm", "n", n, 0)
    drawn = _even((n,), seed if seed else None, offset)
    return ops.cast(ops.argsort(drawn), element_type(dtype))


def shuffle(x: TensorLike, seed: Any = None) -> Any:
    """The slices along dimension 0 in an order drawn at random."""
    return ops.Gather()(x, ops.argsort(_even((x.shape[0],), seed)), 0)


@tensor_method()
def multinomial(input: TensorLike, num_samples: int, replacement: bool = True, seed: Any = None) -> Any:
    """num_samples places of each row of weights, drawn in proportion to these, Int32; without replacement each place is
    drawn once at most. Gumbel's maxima choose them."""
    least("multinomial", "num_samples", num_samples, 1)
    scores = ops.Log()(ops.Maximum()(ops.cast(input, FLOAT32), _NEVER))
    if not replacement:
        _, places = ops.TopK(True)(scores + _gumbel(input.shape, seed), num_samples)
        return ops.cast(places, INT32)
    drawn = _gumbel((*input.shape[:-1], num_samples, input.shape[-1]), seed)
    return ops.Argmax(-1, INT32)(ops.ExpandDims()(scores, -2) + drawn)


def multinomial_with_replacement(
    x: TensorLike, seed: int, offset: int, numsamples: int, replacement: bool = False
) -> Any:
    """numsamples places of each row of weights, drawn in proportion to these, Int64. replacement: places may come again
    whatever it says, as in MindSpore."""
    return ops.cast(multinomial(x, numsamples, True, seed + offset if seed + offset else None), INT64)


@tensor_method()
def random_categorical(logits: TensorLike, num_sample: int, seed: Any = 0, dtype: Any = INT64) -> Any:
    """num_sample places of each row, drawn in proportion to the exponentials of its elements."""
    drawn = _gumbel((*logits.shape[:-1], num_sample, logits.shape[-1]), seed if seed else None)
    return ops.cast(ops.Argmax(-1, INT32)(ops.ExpandDims()(ops.cast(logits, FLOAT32), -2) + drawn), element_type(dtype))


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
    apart = _even(whole_shape("standard_laplace", (shape,)), seed) - 0.5
    return -ops.Sign()(apart) * ops.Log()(ops.Maximum()(1 - 2 * ops.Abs()(apart), _SMALLEST))


def laplace(shape: Any, mean: Any, lambda_param: Any, seed: Any = None) -> Any:
    """Numbers of Laplace's distribution with this mean and scale."""
    return standard_laplace(shape, seed) * lambda_param + mean


def bernoulli_ext(input: TensorLike, *, generator: Any = None) -> Any:
    """1 with the probability that stands at each place of the input, else 0."""
    return ops.cast(_even(input.shape, generator) < input, input.dtype)


def choice_with_mask(input_x: TensorLike, count: int = 256, seed: Any = None) -> Any:
    """(places of elements that are true, drawn evenly, which of them are there); see RandomChoiceWithMask."""
    return ops.RandomChoiceWithMask(count, *seeds_of(seed, 0))(input_x)


@tensor_method()
def cauchy(input: TensorLike, median: float = 0.0, sigma: float = 1.0) -> Any:
    """Numbers of Cauchy's distribution, of the shape of the input."""
    return median + sigma * ops.Tan()((_even(input.shape, None) - 0.5) * 3.141592653589793)


@tensor_method()
def log_normal(input: TensorLike, mean: float = 1.0, std: float = 2.0) -> Any:
    """Numbers whose logarithms have this mean and deviation, of the shape and type of the input."""
    return ops.cast(ops.Exp()(ops.standard_normal(input.shape) * std + mean), input.dtype)
