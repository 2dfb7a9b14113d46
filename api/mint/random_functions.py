"""These functions of `mint` sample random numbers. They are compiled as those of `mint.functions`."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.mint.known_arguments import limits, on_device, sample_shape
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import element_type
from mspc.ir.types import FLOAT32


def rand(*size: Any, generator: Any = None, dtype: Any = None, device: Any = None) -> Any:
    """Numbers sampled uniformly from [0, 1), Float32 unless `dtype` is given."""
    on_device("rand", device)
    return ops.rand(*size, dtype=dtype, seed=generator)


def randn(*size: Any, generator: Any = None, dtype: Any = None, device: Any = None) -> Any:
    """Numbers of the normal distribution with mean 0 and deviation 1, Float32 unless `dtype` is given."""
    on_device("randn", device)
    return ops.randn(*size, dtype=dtype, seed=generator)


def randint(*limits_and_size: Any, generator: Any = None, dtype: Any = None, device: Any = None) -> Any:
    """Integers sampled uniformly: `randint(high, size)` from 0, `randint(low, high, size)` from low to high, without
    high; Int64 unless `dtype` is given."""
    on_device("randint", device)
    low, high, size = limits("randint", limits_and_size)
    return ops.randint(low, high, size, generator, dtype=dtype)


def rand_like(input: TensorLike, *, dtype: Any = None, device: Any = None) -> Any:
    """Numbers sampled uniformly from [0, 1), of the shape of the input, and of its type unless `dtype` is given."""
    on_device("rand_like", device)
    return ops.rand_like(input, dtype=dtype)


def randn_like(input: TensorLike, *, dtype: Any = None, device: Any = None) -> Any:
    """Numbers of the normal distribution with mean 0 and deviation 1, of the shape of the input, and of its type unless
    `dtype` is given."""
    on_device("randn_like", device)
    return ops.randn_like(input, dtype=dtype)


def randint_like(input: TensorLike, *between: int, dtype: Any = None, device: Any = None) -> Any:
    """Integers sampled uniformly below `high`, or from low to high, without high, of the shape of the input, and of its
    type unless `dtype` is given."""
    on_device("randint_like", device)
    low, high, size = limits("randint_like", (*between, input.shape))
    return ops.randint(low, high, size, dtype=input.dtype if dtype is None else dtype)


def normal(
    mean: float | TensorLike = 0.0, std: float | TensorLike = 1.0, size: Any = None,
    generator: Any = None,
) -> Any:  # fmt: skip
    """Numbers of the normal distribution with this mean and deviation, numbers or tensors; of the shape `size`, of the
    tensors' unless given."""
    shape = sample_shape("normal", mean, std, size)
    return ops.normal(shape, mean, std, generator)


def empty(*size: Any, dtype: Any = None, device: Any = None, pin_memory: bool = False) -> Any:
    """Zeros, Float32 unless `dtype` is given, for what is filled later. pin_memory: the memory is that of every
    tensor."""
    on_device("empty", device)
    return ops.zeros(sample_shape("empty", 0.0, 0.0, size), FLOAT32 if dtype is None else element_type(dtype))


def empty_like(input: TensorLike, *, dtype: Any = None, device: Any = None, pin_memory: bool = False) -> Any:
    """Zeros of the shape of the input, and of its type unless `dtype` is given. pin_memory: the memory is that of every
    tensor."""
    on_device("empty_like", device)
    return ops.zeros(input.shape, input.dtype if dtype is None else element_type(dtype))
