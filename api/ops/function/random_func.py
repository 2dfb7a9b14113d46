"""These functions sample random numbers: the same on any number of ranks, others in every step."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import shape_of_sizes
from mspc.api.ops.seeds import seeds_of
from mspc.ir.types import FLOAT32


def rand(*size: Any, dtype: Any = None, seed: Any = None) -> Any:
    """Numbers sampled uniformly from [0, 1), Float32 unless `dtype` is given."""
    found = ops.UniformReal(*seeds_of(seed))(shape_of_sizes("rand", size))
    return found if dtype is None else ops.cast(found, dtype)


def standard_normal(shape: Any, seed: Any = None) -> Any:
    """Numbers of the normal distribution with mean 0 and deviation 1, Float32. Box and Muller 1958."""
    sizes = shape_of_sizes("standard_normal", (shape,))
    first, second = ops.UniformReal(*seeds_of(seed, 1))(sizes), ops.UniformReal(*seeds_of(seed, 2))(sizes)
    return ops.sqrt(ops.log(1.0 - first) * -2.0) * ops.cos(second * (2.0 * math.pi))


def randn(*size: Any, dtype: Any = None, seed: Any = None) -> Any:
    """Numbers of the normal distribution with mean 0 and deviation 1, Float32 unless `dtype` is given."""
    found = standard_normal(shape_of_sizes("randn", size), seed)
    return found if dtype is None else ops.cast(found, dtype)


def uniform(shape: Any, minval: Any, maxval: Any, seed: Any = None, dtype: Any = FLOAT32) -> Any:
    """Numbers sampled uniformly from [minval, maxval)."""
    share = ops.UniformReal(*seeds_of(seed))(shape_of_sizes("uniform", (shape,)))
    return ops.cast(share * (maxval - minval) + minval, dtype)


def bernoulli(input: Any, p: float | TensorLike = 0.5, seed: Any = None) -> Any:
    """1 with probability p, else 0, for every element of `input`, of its type."""
    samples = ops.UniformReal(*seeds_of(seed))(input.shape)
    return ops.cast(samples < p, input.dtype)


def random_gamma(shape: Any, alpha: TensorLike, seed: Any = None) -> Any:
    """Numbers of the gamma distribution of shape parameter alpha and rate 1, of alpha's element type, in the shape
    [*shape, *alpha's shape]; they are drawn in Float32."""
    sizes = shape if isinstance(shape, (tuple, list)) else shape.tolist()
    result_shape = (*shape_of_sizes("random_gamma", (tuple(sizes),)), *alpha.shape)
    samples = ops.Gamma(*seeds_of(seed))(result_shape, ops.cast(alpha, FLOAT32), ops.ones((1,), FLOAT32))
    return ops.cast(samples, alpha.dtype)
