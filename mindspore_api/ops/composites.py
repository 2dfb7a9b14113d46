"""Classes of MindSpore's operators that are several operators or functions in mspc."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from mspc.ir.types import BOOL, FLOAT32, INT32, INT64, dtype_of
from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.ops.composite_table import CompositeMarks
from mspc.mindspore_api.setting_kind import place_of_caller, say_once
from mspc.ops.operator_arguments import describe


class Partial:
    """A function with its first arguments given. Called as `Partial()(function, *arguments)`; the arguments may be
    tensors."""

    def __call__(self, function: Any, *arguments: Any, **named: Any) -> Any:
        return functools.partial(function, *arguments, **named)


class FloatStatus(CompositeMarks):
    """1 if a tensor has an infinity or a NaN, else 0; of shape (1,), Float32."""

    def __init__(self) -> None:
        self.all_finite = ops.AllFinite()

    def __call__(self, x: Any) -> Any:
        return ops.Reshape()(ops.Cast()(ops.LogicalNot()(self.all_finite(x)), FLOAT32), (1,))


class _StatusWord(CompositeMarks):
    """An operator on the eight numbers in which an Ascend device records overflows. No device does so here: the numbers
    stay zeros, as a warning says."""

    def __init__(self) -> None:
        name = type(self).__name__
        say_once(
            "NPU status",
            f"{place_of_caller()}{name} finds no overflow here: no device notes them; gradients are looked at by "
            "ops.AllFinite(), ops.FloatStatus() or TrainOneStepWithLossScaleCell.get_overflow_status()",
        )

    def __call__(self, status: Any) -> Any:
        return ops.zeros_like(status)


class NPUAllocFloatStatus(_StatusWord):
    """Eight zeros, Float32."""

    def __call__(self) -> Any:
        return ops.zeros((8,), FLOAT32)


class NPUGetFloatStatus(_StatusWord):
    """Eight zeros. Called with the result of `NPUAllocFloatStatus()()`."""


class NPUClearFloatStatus(_StatusWord):
    """Eight zeros. Called with the result of `NPUAllocFloatStatus()()`."""


class NPUGetFloatStatusV2(_StatusWord):
    """Eight zeros. Called with eight zeros."""


class NPUClearFloatStatusV2(_StatusWord):
    """Eight zeros. Called with eight zeros."""


class DropoutExt(CompositeMarks):
    """(input with elements set to 0 with probability p and the others divided by 1 - p, the mask). Called as
    `DropoutExt()(input, p, seed, offset)`.

    seed and offset, if known when the network is compiled, choose the mask. None draws it from the script's seed, and
    so do tensors, because their contents are unknown then.
    """

    def __init__(self) -> None:
        self.in_strategy: Any = None

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> DropoutExt:
        """Set the strategy of x, and return the operator; out_strategy follows from that. Entries after that of x,
        those of seed and offset, change nothing."""
        self.in_strategy = in_strategy if in_strategy is None else tuple(in_strategy)[:1]
        return self

    def __call__(self, input: Any, p: float = 0.5, seed: Any = None, offset: Any = None) -> Any:
        if isinstance(p, bool) or not isinstance(p, (int, float)):
            raise ApiTypeError(f"DropoutExt: p must be a number, not {describe(p)}")
        seeds = (seed, offset or 0) if isinstance(seed, int) else (0, 0)
        return ops.Dropout(1 - p, *seeds).shard(self.in_strategy)(input)


class _DropoutExtEach(DropoutExt):
    """DropoutExt for names that scripts import as one shared operator; `shard` returns a new one."""

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> DropoutExt:
        return DropoutExt().shard(in_strategy, out_strategy)


dropout_ext_op = _DropoutExtEach()


def make_range(start: int, limit: int | None = None, delta: int = 1) -> Any:
    """Return integers from start, or from 0 to start if it is the only argument, below limit, as a tuple."""
    for name, value in (("start", start), ("limit", limit), ("delta", delta)):
        if isinstance(value, bool) or not (isinstance(value, int) or (value is None and name == "limit")):
            raise ApiTypeError(f"make_range: {name} must be an integer, not {describe(value)}")
    if delta == 0:
        raise ApiValueError("make_range: delta must not be 0")
    return tuple(range(start) if limit is None else range(start, limit, delta))


def identity(x: Any) -> Any:
    """Return the argument."""
    return x


def add_flags(fn: Any = None, **flags: Any) -> Any:
    """Add flags to a cell, or return a decorator that does so; on a function they change nothing. Raise TypeError if
    `fn` is neither."""
    if fn is None:
        return functools.partial(add_flags, **flags)
    if hasattr(fn, "add_flags"):
        return fn.add_flags(**flags)
    if not callable(fn):
        raise ApiTypeError(f"add_flags takes a Cell or a function, not {describe(fn)}")
    say_once("add_flags", f"{place_of_caller()}add_flags() changes nothing here: flags of functions are not read")
    return fn


class _Summary:
    """Records a value for a summary of the training. Nothing is written, as a warning says. Called as `(name,
    value)`."""

    def __init__(self) -> None:
        say_once(
            "summaries",
            f"{place_of_caller()}{type(self).__name__} changes nothing here: no summary is written; callbacks see the "
            "loss",
        )

    def __call__(self, name: str, value: Any) -> None:
        return None


class ScalarSummary(_Summary):
    """Notes a number."""


class TensorSummary(_Summary):
    """Notes a tensor."""


class ImageSummary(_Summary):
    """Notes images."""


class HistogramSummary(_Summary):
    """Notes how values are distributed."""


class _Sharded:
    """Stores a strategy until it is called."""

    def __init__(self) -> None:
        self.in_strategy: Any = None

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Any:
        """Set the strategy of the tensors, and return the operator; out_strategy follows from that."""
        self.in_strategy = in_strategy
        return self


class Index(_Sharded):
    """The elements `x[indices]` for a tuple of integer tensors, one for each of the first dimensions. Called as
    `Index()(x, indices)`. A strategy has an entry for x, and a tuple of entries for the indices. Raise TypeError if
    indices are no tuple; ValueError if they are sharded, and have different shapes."""

    def __call__(self, x: Any, indices: Any) -> Any:
        if not isinstance(indices, tuple | list):
            raise ApiTypeError(f"Index: indices must be a tuple of tensors, not {describe(indices)}")
        if self.in_strategy is None:
            return x[tuple(indices)]
        shapes = [index.shape for index in indices]
        if any(shape != shapes[0] for shape in shapes):
            raise ApiValueError(f"Index: with a strategy all indices have one shape, not {shapes}")
        inside = [ops.select(i < 0, i + size, i) for i, size in zip(indices, x.shape, strict=False)]
        entry = self.in_strategy[1][0] if len(self.in_strategy) > 1 else (1,) * len(shapes[0])
        gather = ops.GatherNd().shard((self.in_strategy[0], (*entry, 1))).add_prim_attr("self_define_shard", True)
        return gather(x, ops.stack(inside, -1))


class GroupNorm(_Sharded):
    """(every image's channels in groups, each normalised to mean 0 and variance 1, times weight, plus bias; the means
    and 1 / sqrt(variance + eps) of the groups [images, groups]). Called as `GroupNorm()(x, num_groups, weight, bias,
    eps)`. The first entry of a strategy shards the images of x. Raise ValueError if the channels are no multiple of
    num_groups."""

    def __call__(self, x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        if self.in_strategy is not None:
            x = ops.ShardingConstraint().shard(self.in_strategy[:1])(x)
        images, channels = x.shape[:2]
        if channels % num_groups:
            raise ApiValueError(f"GroupNorm: {channels} channels are no multiple of num_groups {num_groups}")
        each = channels // num_groups * math.prod(x.shape[2:])
        rows = ops.reshape(x, (images, num_groups, each))
        mean = ops.mean(rows, -1, True)
        scale = ops.rsqrt(ops.mean(ops.square(rows - mean), -1, True) + eps)
        out = ops.reshape((rows - mean) * scale, x.shape)
        channel = (channels,) + (1,) * (len(x.shape) - 2)
        if weight is not None:
            out = out * ops.reshape(weight, channel)
        if bias is not None:
            out = out + ops.reshape(bias, channel)
        return out, ops.reshape(mean, (images, num_groups)), ops.reshape(scale, (images, num_groups))


# Functions of operators with arguments of their own: ops-elsewhere.txt has a row for each.


def inverse_permutation(order: Sequence[int]) -> tuple[int, ...]:
    """Return the index of each number in a permutation, which is known when the network is compiled. Raise ValueError
    if it is no permutation."""
    if sorted(order) != list(range(len(order))):
        raise ApiValueError(f"InvertPermutation: {tuple(order)} is no permutation of 0 to {len(order) - 1}")
    return tuple([list(order).index(place) for place in range(len(order))])


def normal_numbers(shape: Any, seed: int = 0, seed2: int = 0) -> Any:
    """Return numbers of the normal distribution with mean 0 and deviation 1, Float32; with the same seeds a run draws
    the same numbers. Box and Muller 1958."""
    radius, angle = [ops.UniformReal(seed, seed2 * 2 + i if seed or seed2 else 0)(tuple(shape)) for i in (1, 2)]
    return ops.sqrt(ops.log(1.0 - radius) * -2.0) * ops.cos(angle * (2.0 * math.pi))


def uniform_integers(shape: Any, minval: Any, maxval: Any, seed: int = 0, seed2: int = 0) -> Any:
    """Return integers from minval to below maxval, Int32."""
    sampled = ops.floor(ops.UniformReal(seed, seed2)(tuple(shape)) * ops.cast(maxval - minval, FLOAT32))
    return ops.cast(sampled, INT32) + minval


def nll_loss_and_weight(
    logits: Any, labels: Any, weight: Any, reduction: str = "mean", ignore_index: int = -100
) -> tuple[Any, Any]:
    """Return (the loss of logarithms of probabilities [n, classes], the sum of the labels' weights); weight has one
    number for each class."""
    counted = ops.cast(ops.not_equal(labels, ignore_index), weight.dtype)
    inside = ops.select(ops.equal(labels, ignore_index), ops.zeros_like(labels), labels)
    total = ops.reduce_sum(ops.gather(weight, inside, 0) * counted)
    return ops.nll_loss(logits, labels, weight, ignore_index, reduction), total


def scalar_cast(input_scalar: Any, dtype: Any) -> Any:
    """Return a Python number as another kind of number. Raise TypeError if it is no number known when the network is
    compiled."""
    if not isinstance(input_scalar, bool | int | float):
        raise ApiTypeError(f"ScalarCast: input_scalar must be a number, not {describe(input_scalar)}")
    kind = dtype_of(dtype)
    return bool(input_scalar) if kind == BOOL else float(input_scalar) if kind.is_float else int(input_scalar)


def scatter_along(input: Any, dim: int, index: Any, src: Any, reduce: int = 0) -> Any:
    """Return the input with elements of src written, or added with reduce 1, at their index along dim."""
    if reduce not in (0, 1):
        raise ApiValueError(f"Scatter: reduce must be 0 or 1, not {describe(reduce)}")
    return ops.tensor_scatter_elements(input, index, src, dim, ("none", "add")[reduce])


def search_sorted(
    sorted_sequence: Any, values: Any, sorter: Any = None, dtype: Any = INT64, right: bool = False
) -> Any:
    """Return `ops.searchsorted` in one of two element types. Raise TypeError for another one."""
    if dtype_of(dtype) not in (INT32, INT64):
        raise ApiTypeError(f"SearchSorted: dtype must be int32 or int64, not {describe(dtype)}")
    return ops.searchsorted(sorted_sequence, values, out_int32=dtype_of(dtype) == INT32, right=right, sorter=sorter)


def deviation_and_mean(x: Any, axis: Any = (), unbiased: bool = True, keep_dims: bool = False) -> tuple[Any, Any]:
    """Return (the deviation over an axis or several, all for (), the mean)."""
    axis = None if isinstance(axis, tuple | list) and not axis else axis
    return ops.std(x, axis, int(unbiased), keep_dims), ops.mean(x, axis, keep_dims)


def resize_nearest(image: Any, size: Any, align_corners: bool = False, half_pixel_centers: bool = False) -> Any:
    """Return the image in a size. Raise ValueError if half_pixel_centers is True."""
    if half_pixel_centers:
        raise ApiValueError("ResizeNearestNeighborV2: half_pixel_centers=True is not supported")
    return ops.ResizeNearestNeighbor(tuple(size), align_corners)(image)
