"""Functions of `mint` with more than one expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.ops.checked import TensorLike
from mspc.mindspore_api.ops.function_arguments import Shape, axis_of, ints, least, shape_of_sizes
from mspc.mindspore_api.setting_kind import place_of_caller, say_once
from mspc.ops.operator_arguments import describe


def norm(input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the norm along `dim`, None for all, of the elements as `dtype`: the Euclidean norm for "fro" or 2, else
    the p-th root of the sum of p-th powers, or the sum of singular values for "nuc"."""
    x = as_dtype(input, dtype)
    if p == "fro":
        return ops.vector_norm(x, 2, dim, keepdim)
    if p == "nuc":
        return ops.norm(x, p, tuple(range(len(x.shape))) if dim is None else dim, keepdim)
    return ops.vector_norm(x, p, dim, keepdim)


def as_dtype(input: Any, dtype: Any) -> Any:
    return input if dtype is None else ops.cast(input, dtype)


def on_device(name: str, device: Any) -> None:
    """Warn once that the argument `device` changes nothing."""
    if device is not None:
        say_once(
            f"mint {name} device",
            f"{place_of_caller()}mint.{name}(device={device!r}) changes nothing: tensors are where the run is, "
            "see set_context(device_target=...)",
        )


def limits(name: str, given: Sequence[Any]) -> tuple[int, int, Any]:
    """Return (low, high, size) from arguments (high, size) or (low, high, size). Raise TypeError for other
    arguments."""
    if len(given) not in (2, 3) or any(isinstance(n, bool) or not isinstance(n, int) for n in given[:-1]):
        raise ApiTypeError(f"{name}(): it takes (high, size) or (low, high, size), not {describe(tuple(given))}")
    return (0, *given) if len(given) == 2 else tuple(given)  # type: ignore[return-value]  # three


def sample_shape(name: str, mean: Any, std: Any, size: Any) -> Shape:
    """Return the shape of the samples: `size`, or the broadcast shape of mean and deviation. Raise ValueError if both
    are numbers and no size is given."""
    if size is not None:
        return shape_of_sizes(name, ints(name, "size", size))
    shapes = [x.shape for x in (mean, std) if hasattr(x, "shape")]
    if not shapes:
        raise ApiValueError(f"{name}(): size must be given if mean and std are numbers")
    return np.broadcast_shapes(*shapes)


def not_in_place(name: str, inplace: Any) -> None:
    """Warn once that a function does not change its input."""
    if inplace:
        say_once(
            f"mint {name} inplace",
            f"{place_of_caller()}{name}(inplace=True) does not change its input: use its result",
        )


def implicit_dim(rank: int) -> int:
    """Return the default dimension of a softmax: 0 for 0, 1 or 3 dimensions, else 1, as in PyTorch."""
    return 0 if rank in (0, 1, 3) else 1


def randint(*limits_and_size: Any, generator: Any = None, dtype: Any = None, device: Any = None) -> Any:
    """Return integers sampled uniformly: `randint(high, size)` from 0, `randint(low, high, size)` from low to high,
    excluding high; Int64 unless `dtype` is given."""
    on_device("randint", device)
    low, high, size = limits("randint", limits_and_size)
    return ops.randint(low, high, size, generator, dtype=dtype)


def randint_like(input: TensorLike, *between: int, dtype: Any = None, device: Any = None) -> Any:
    """Return integers sampled uniformly below `high`, or from low to high, excluding high, of the shape of the input,
    and of its type unless `dtype` is given."""
    on_device("randint_like", device)
    low, high, size = limits("randint_like", (*between, input.shape))
    return ops.randint(low, high, size, dtype=input.dtype if dtype is None else dtype)


def normal(
    mean: float | TensorLike = 0.0, std: float | TensorLike = 1.0, size: Any = None,
    generator: Any = None,
) -> Any:  # fmt: skip
    """Return numbers of the normal distribution with this mean and deviation, numbers or tensors; of the shape `size`,
    or of the tensors' shape by default."""
    shape = sample_shape("normal", mean, std, size)
    return ops.normal(shape, mean, std, generator)


def narrow(input: Any, dim: int, start: int, length: int) -> Any:
    """Return `length` elements from `start` along `dim`, counted from the end if it is negative. Raise ValueError if
    there is no such dimension, or it has too few elements."""
    axis = axis_of("narrow", dim, len(input.shape))
    return ops.narrow(input, axis, start + input.shape[axis] if start < 0 else start, length)


def kthvalue(input: TensorLike, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Return (the k-th smallest elements along `dim`, counted from 1, their indices)."""
    least("kthvalue", "k", k, 1)
    values, places = ops.SortExt()(input, dim, False, True)
    found = narrow(values, dim, k - 1, 1), narrow(places, dim, k - 1, 1)
    return found if keepdim else (ops.Squeeze(dim)(found[0]), ops.Squeeze(dim)(found[1]))
