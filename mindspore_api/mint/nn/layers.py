"""Cells with PyTorch's arguments."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import FLOAT32
from mspc.mindspore_api import nn, ops
from mspc.mindspore_api.common.initializers import HeUniform, Normal, Uniform
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.mint.functions import not_in_place
from mspc.mindspore_api.mint.nn import functional
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import channel_groups, flag, number, parameter, positive
from mspc.mindspore_api.nn.function_cells import FunctionCell


class Linear(Cell):
    """x @ weight.T + bias; weight is [out_features, in_features], sampled uniformly as in He et al. 2015."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, weight_init: Any = None, bias_init: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_features = positive("Linear", "in_features", in_features)
        self.out_features = positive("Linear", "out_features", out_features)
        dtype = FLOAT32 if dtype is None else dtype
        weight_init = HeUniform(5**0.5) if weight_init is None else weight_init
        self.weight = parameter(weight_init, (out_features, in_features), dtype, "weight")
        self.bias = None
        if bias:
            bias_init = Uniform(in_features**-0.5) if bias_init is None else bias_init
            self.bias = parameter(bias_init, (out_features,), dtype, "bias")

    def construct(self, input: Any) -> Any:
        return functional.linear(input, self.weight, self.bias)


class GELU(Cell):
    """x times the normal distribution function at x; by the tanh formula for approximate="tanh"."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ApiValueError(f"GELU: approximate {approximate!r} is neither 'none' nor 'tanh'")
        self.approximate = approximate

    def construct(self, input: Any) -> Any:
        return functional.gelu(input, approximate=self.approximate)


class Softmax(FunctionCell):
    """exp(x) divided by its sum along `dim`; None means 0 for 0, 1 or 3 dimensions, else 1."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__(functional.softmax, dim)


class LogSoftmax(FunctionCell):
    """Logarithm of the softmax along `dim`; None means 0 for 0, 1 or 3 dimensions, else 1."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__(functional.log_softmax, dim)


class Embedding(Cell):
    """Rows of a table [num_embeddings, embedding_dim] at the indices.

    Args:
        padding_idx: a row that is 0 at the start, and gets no gradient. _weight: the table; by default sampled from the
            normal distribution of deviation 1. _freeze: whether it is not trained.

    Raises ValueError if max_norm, scale_grad_by_freq or sparse is set; norm_type belongs to max_norm.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: Any = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False, _weight: Any = None,
        _freeze: bool = False, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = (
            positive("Embedding", "num_embeddings", num_embeddings),
            positive("Embedding", "embedding_dim", embedding_dim),
        )
        if max_norm is not None or scale_grad_by_freq or sparse:
            raise ApiValueError("Embedding: max_norm, scale_grad_by_freq and sparse are not supported")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ApiValueError(f"Embedding: padding_idx {padding_idx} is no row of {num_embeddings}")
        kind = FLOAT32 if dtype is None else dtype
        self.weight = parameter(Normal(1.0) if _weight is None else _weight, sizes, kind, "weight")
        if padding_idx is not None and _weight is None:
            rows = self.weight.asnumpy().copy()
            rows[padding_idx] = 0
            self.weight.set_data(Tensor(rows))
        self.weight.requires_grad = not _freeze
        self.padding_idx = padding_idx

    def construct(self, input: Any) -> Any:
        return functional.embedding(input, self.weight, self.padding_idx)


class LayerNorm(Cell):
    """x normalised to mean 0 and variance 1 over its last dimensions, those of normalized_shape, times weight, plus
    bias. With elementwise_affine False both are missing, with `bias` False only the bias."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.sizes = tuple(positive("LayerNorm", "normalized_shape", n) for n in sizes)
        kind = FLOAT32 if dtype is None else dtype
        self.weight = parameter("ones", self.sizes, kind, "weight") if elementwise_affine else None
        self.bias = parameter("zeros", self.sizes, kind, "bias") if elementwise_affine and bias else None
        self.layer_norm = ops.LayerNorm(-len(sizes), -len(sizes), eps)

    def construct(self, input: Any) -> Any:
        weight = ops.ones(self.sizes, input.dtype) if self.weight is None else self.weight
        bias = ops.zeros(self.sizes, input.dtype) if self.bias is None else self.bias
        out, _, _ = self.layer_norm(input, weight, bias)
        return out


class Dropout(nn.Dropout):
    """In training, elements set to 0 with probability p, the others divided by 1 - p; else the input."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        not_in_place("Dropout", inplace)
        super().__init__(p=p)


class ReLU6(nn.ReLU6):
    """min(max(0, x), 6)."""

    def __init__(self, inplace: bool = False) -> None:
        not_in_place("ReLU6", inplace)
        super().__init__()


class SiLU(nn.SiLU):
    """x * sigmoid(x)."""

    def __init__(self, inplace: bool = False) -> None:
        not_in_place("SiLU", inplace)
        super().__init__()


class ELU(nn.ELU):
    """x if it is positive, alpha (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        not_in_place("ELU", inplace)
        super().__init__(alpha)


class BCEWithLogitsLoss(nn.BCEWithLogitsLoss):
    """Binary cross entropy of sigmoid(input) and targets, times weight; targets of 1 have the additional weight
    pos_weight."""

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction, weight, pos_weight)


_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolution(Cell):
    """Class attributes:
    dims: dimensions of the image.
    """

    dims: int = 2

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        channels = channel_groups(name, in_channels, out_channels, "groups", groups)
        self.in_channels, self.out_channels, self.groups = channels
        if padding_mode not in _MODES:
            raise ApiValueError(
                f"{name}: padding_mode must be one of {', '.join(map(repr, _MODES))}, not {padding_mode!r}"
            )
        self.kernel_size = _sizes(name, "kernel_size", kernel_size, self.dims)
        self.stride = _sizes(name, "stride", stride, self.dims)
        self.dilation = _sizes(name, "dilation", dilation, self.dims)
        self.padding = padding if isinstance(padding, str) else _sizes(name, "padding", padding, self.dims, least=0)
        self.padding_mode = padding_mode
        dtype = FLOAT32 if dtype is None else dtype
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = parameter(HeUniform(math.sqrt(5)), shape, dtype, "weight")
        self.bias: Parameter | None = None
        if flag(name, "bias", bias):
            bound = 1 / math.sqrt(math.prod(shape[1:]))
            self.bias = parameter(Uniform(bound), (out_channels,), dtype, "bias")
        if isinstance(padding, str) and padding not in ("valid", "same"):
            raise ApiValueError(f"{name}: padding must be integers, 'valid' or 'same', not {padding!r}")
        if padding == "same" and any(n > 1 for n in self.stride):
            raise ApiValueError(f"{name}: padding='same' takes a stride of 1 alone, not {stride!r}")
        maker = ops.Conv3D if self.dims == 3 else ops.Conv2D
        flat = (1,) if self.dims == 1 else ()
        order = [self.margins()[2 * d : 2 * d + 2] for d in reversed(range(self.dims))]
        pad = (0,) * (2 * len(flat)) + tuple(n for pair in order for n in pair)
        self.conv = maker(
            out_channels, (*flat, *self.kernel_size), 1, "pad", pad if padding_mode == "zeros" else 0,
            (*flat, *self.stride), (*flat, *self.dilation), groups,
        )  # fmt: skip
        self.bias_add = ops.BiasAdd(data_format="NCDHW") if self.dims == 3 else ops.BiasAdd()

    def margins(self) -> Any:
        """Return the padding for `functional.pad`: two numbers per dimension, the last one first."""
        if self.padding == "valid":
            return (0, 0) * self.dims
        if self.padding == "same":
            totals = [spread * (size - 1) for size, spread in zip(self.kernel_size, self.dilation, strict=True)]
            return tuple(n for total in reversed(totals) for n in (total // 2, total - total // 2))
        return tuple(n for pad in reversed(self.padding) for n in (pad, pad))

    def convolved(self, x: Any, weight: Any) -> Any:
        """Return x convolved, plus the bias, if there is one."""
        out = self.conv(x, weight)
        if self.bias is not None:
            out = self.bias_add(out, self.bias)
        return out

    def inside_margins(self, x: Any) -> Any:
        """Return x with margins, unless these are zeros."""
        if self.padding_mode == "zeros":
            return x
        return functional.pad(x, self.margins(), self.padding_mode)

    def extend_repr(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        return f"{sizes}, padding={self.padding}, dilation={self.dilation}, groups={self.groups}"


def _sizes(name: str, what: str, value: Any, dims: int, least: int = 1) -> tuple[int, ...]:
    """Return one integer per dimension. Raise TypeError or ValueError for anything else."""
    found = tuple(value) if isinstance(value, tuple | list) else (value,) * dims
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in found):
        raise ApiTypeError(f"{name}: {what} must be an integer or {dims} of them, not {value!r}")
    if len(found) != dims or any(n < least for n in found):
        raise ApiValueError(f"{name}: {what} must be {dims} integers of at least {least}, not {value!r}")
    return found


class Conv1d(_Convolution):
    """A convolution of [n, in_channels, l]; arguments as Conv2d's."""

    dims = 1

    def construct(self, input: Any) -> Any:
        x = ops.expand_dims(self.inside_margins(input), 2)
        return ops.squeeze(self.convolved(x, ops.expand_dims(self.weight, 2)), 2)


class Conv2d(_Convolution):
    """A convolution of images [n, in_channels, h, w] to [n, out_channels, h', w'], or of one image without n.

    Args:
        kernel_size, stride, dilation: one integer, or one for height and one for width.
        padding: the same, or "valid" for none, or "same" for the size of the image.
        padding_mode: the content of the padding: "zeros", or "reflect", "replicate" or "circular" of the image.
        groups: number of groups of channels with separate convolutions.
    """

    def construct(self, input: Any) -> Any:
        if len(input.shape) == 3:
            return ops.squeeze(self.convolved(self.inside_margins(ops.expand_dims(input, 0)), self.weight), 0)
        return self.convolved(self.inside_margins(input), self.weight)


class Conv3d(_Convolution):
    """A convolution of [n, in_channels, d, h, w]; arguments as Conv2d's with depth in front."""

    dims = 3

    def construct(self, input: Any) -> Any:
        return self.convolved(self.inside_margins(input), self.weight)


class _BatchNorm(Cell):
    """Class attributes:
    ranks: dimensions that the input may have.
    """

    ranks: tuple[int, ...] = ()

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
        track_running_stats: bool = True, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        self.num_features = positive(name, "num_features", num_features)
        self.eps = number(name, "eps", eps, above=0.0)
        self.momentum = number(name, "momentum", momentum)
        self.affine = flag(name, "affine", affine)
        self.track_running_stats = flag(name, "track_running_stats", track_running_stats)
        dtype, shape = FLOAT32 if dtype is None else dtype, (num_features,)
        self.weight: Parameter | None = parameter("ones", shape, dtype, "weight") if affine else None
        self.bias: Parameter | None = parameter("zeros", shape, dtype, "bias") if affine else None
        self.running_mean: Parameter | None = None
        self.running_var: Parameter | None = None
        if track_running_stats:
            self.running_mean = parameter("zeros", shape, dtype, "running_mean")
            self.running_var = parameter("ones", shape, dtype, "running_var")
            self.running_mean.requires_grad = self.running_var.requires_grad = False

    def construct(self, input: Any) -> Any:
        if len(input.shape) not in self.ranks:
            raise ApiValueError(
                f"{self.cls_name}: the input must have {' or '.join(map(str, self.ranks))} dimensions, "
                f"but its shape is {input.shape}"
            )
        batch = self.training or not self.track_running_stats
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, batch, self.momentum, self.eps
        )


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of [n, num_features] or [n, num_features, l]; arguments as BatchNorm2d's."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of images [n, num_features, h, w]: in training by the mean and variance of the global batch,
    over all ranks that share it, else by the running statistics.

    Args:
        eps: added to the variance.
        momentum: the share of the batch's statistics in the running ones.
        affine: whether there are weight and bias.
        track_running_stats: whether there are running statistics; without them the batch's are always used.
    """

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of [n, num_features, d, h, w]; arguments as BatchNorm2d's."""

    ranks = (5,)


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation over all ranks, as BatchNorm2d is here anyway."""

    ranks = (2, 3, 4, 5)

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        if process_group is not None:
            raise ApiValueError("SyncBatchNorm: process_group must be None: statistics are the global batch's")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype)


class GroupNorm(Cell):
    """An image's channels in `num_groups` groups, each normalised to mean 0 and variance 1, times weight, plus bias."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_groups = positive("GroupNorm", "num_groups", num_groups)
        if positive("GroupNorm", "num_channels", num_channels) % num_groups:
            raise ApiValueError(f"GroupNorm: num_channels {num_channels} must be a multiple of num_groups {num_groups}")
        self.eps, dtype = number("GroupNorm", "eps", eps, above=0.0), FLOAT32 if dtype is None else dtype
        self.weight: Parameter | None = parameter("ones", (num_channels,), dtype, "weight") if affine else None
        self.bias: Parameter | None = parameter("zeros", (num_channels,), dtype, "bias") if affine else None

    def construct(self, input: Any) -> Any:
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class MaxPool2d(nn.MaxPool2d):
    """The greatest value of every window of images; `stride` is `kernel_size` by default."""

    def __init__(
        self, kernel_size: Any = 1, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, "pad", padding, dilation, return_indices, ceil_mode)


class AvgPool2d(nn.AvgPool2d):
    """The mean of every window of images; `stride` is `kernel_size` by default."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, "pad", padding, ceil_mode, count_include_pad, divisor_override)
