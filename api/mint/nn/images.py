"""These cells of `mint.nn` are for images: convolutions, normalisation and pooling, with the arguments of PyTorch."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import nn, ops
from mspc.api.common.initial_values import HeUniform, Uniform
from mspc.api.common.parameter import Parameter
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.mint.known_arguments import not_in_place
from mspc.api.mint.nn import functional
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import channel_groups, flag, number, parameter, positive
from mspc.ir.types import FLOAT32

_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolution(Cell):
    """Class attributes:
    dims: dimensions of the image. transposed: the layer is the gradient of a convolution.
    """

    dims: int = 2
    transposed: bool = False

    def __init__(
        self, in_channels: Any, out_channels: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
        groups: Any, bias: Any, padding_mode: Any, dtype: Any,
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
        pair = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = parameter(HeUniform(math.sqrt(5)), (*pair, *self.kernel_size), dtype, "weight")
        self.bias: Parameter | None = None
        if flag(name, "bias", bias):
            bound = 1 / math.sqrt(pair[1] * math.prod(self.kernel_size))
            self.bias = parameter(Uniform(bound), (out_channels,), dtype, "bias")

    def margins(self) -> Any:
        """Padding as `functional.pad` takes it: two numbers a dimension, the last one first."""
        if self.padding == "valid":
            return (0, 0) * self.dims
        if self.padding == "same":
            totals = [spread * (size - 1) for size, spread in zip(self.kernel_size, self.dilation, strict=True)]
            return tuple(n for total in reversed(totals) for n in (total // 2, total - total // 2))
        return tuple(n for pad in reversed(self.padding) for n in (pad, pad))

    def extend_repr(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        return f"{sizes}, padding={self.padding}, dilation={self.dilation}, groups={self.groups}"


def _sizes(name: str, what: str, value: Any, dims: int, least: int = 1) -> tuple[int, ...]:
    """One integer per dimension. Raises TypeError or ValueError for anything else."""
    found = tuple(value) if isinstance(value, tuple | list) else (value,) * dims
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in found):
        raise ApiTypeError(f"{name}: {what} must be an integer or {dims} of them, not {value!r}")
    if len(found) != dims or any(n < least for n in found):
        raise ApiValueError(f"{name}: {what} must be {dims} integers of at least {least}, not {value!r}")
    return found


class _ForwardConvolution(_Convolution):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode,
                         dtype)  # fmt: skip
        name = type(self).__name__
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

    def convolved(self, x: Any, weight: Any) -> Any:
        """x convolved, plus the bias, if there is one."""
        out = self.conv(x, weight)
        if self.bias is not None:
            out = self.bias_add(out, self.bias)
        return out

    def inside_margins(self, x: Any) -> Any:
        """x with margins, where these are no zeros."""
        if self.padding_mode == "zeros":
            return x
        return functional.pad(x, self.margins(), self.padding_mode)


class Conv1d(_ForwardConvolution):
    """A convolution of [n, in_channels, l]; arguments as Conv2d's."""

    dims = 1

    def construct(self, input: Any) -> Any:
        x = ops.expand_dims(self.inside_margins(input), 2)
        return ops.squeeze(self.convolved(x, ops.expand_dims(self.weight, 2)), 2)


class Conv2d(_ForwardConvolution):
    """A convolution of images [n, in_channels, h, w] to [n, out_channels, h', w'], or of one image without n.

    Args:
        kernel_size, stride, dilation: one integer, or one for height and one for width.
        padding: the same, or "valid" for none, or "same" for the size of the image.
        padding_mode: what the padding holds: "zeros", or "reflect", "replicate" or "circular" of the image.
        groups: groups of channels that are convolved each by itself.
    """

    def construct(self, input: Any) -> Any:
        if len(input.shape) == 3:
            return ops.squeeze(self.convolved(self.inside_margins(ops.expand_dims(input, 0)), self.weight), 0)
        return self.convolved(self.inside_margins(input), self.weight)


class Conv3d(_ForwardConvolution):
    """A convolution of [n, in_channels, d, h, w]; arguments as Conv2d's with depth in front."""

    dims = 3

    def construct(self, input: Any) -> Any:
        return self.convolved(self.inside_margins(input), self.weight)


class ConvTranspose2d(_Convolution):
    """The gradient of a convolution as a layer: images [n, in_channels, h, w] grow by the stride.

    Args:
        output_padding: rows and columns more on one side.
    """

    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, groups: int = 1, bias: bool = True, dilation: Any = 1, padding_mode: str = "zeros",
        dtype: Any = None,
    ) -> None:  # fmt: skip
        if padding_mode != "zeros" or isinstance(padding, str):
            raise ApiValueError("ConvTranspose2d: padding must be integers, and padding_mode 'zeros'")
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode,
                         dtype)  # fmt: skip
        self.output_padding = _sizes("ConvTranspose2d", "output_padding", output_padding, 2, least=0)

    def construct(self, input: Any) -> Any:
        return functional.conv_transpose2d(
            input, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )


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
        affine: there are weight and bias.
        track_running_stats: there are running statistics; else the batch's are taken always.
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
    """The greatest value of every window of images; `stride` is `kernel_size` unless given."""

    def __init__(
        self, kernel_size: Any = 1, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, "pad", padding, dilation, return_indices, ceil_mode)


class AvgPool2d(nn.AvgPool2d):
    """The mean of every window of images; `stride` is `kernel_size` unless given."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, "pad", padding, ceil_mode, count_include_pad, divisor_override)


class AvgPool3d(nn.AvgPool3d):
    """The mean of every window of [n, c, d, h, w]; `stride` is `kernel_size` unless given."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, "pad", padding, ceil_mode, count_include_pad, divisor_override)


class AdaptiveMaxPool1d(Cell):
    """The greatest values of `output_size` windows that cover [n, c, l], and with `return_indices` their places."""

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def construct(self, input: Any) -> Any:
        return functional.adaptive_max_pool1d(input, self.output_size, self.return_indices)


class ZeroPad1d(nn.ZeroPad2d):
    """Margins of zeros on the last dimension: one integer, or that before and that behind."""

    dims = 1


class ZeroPad3d(nn.ZeroPad2d):
    """Margins of zeros on the last three dimensions."""

    dims = 3


class UpsamplingNearest2d(nn.Upsample):
    """Images of another size, every place the nearest one of the image."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(nn.Upsample):
    """Images of another size by linear interpolation, corners on corners."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class Fold(Cell):
    """Images [n, c, *output_size] whose places are the sums of what columns have for them; see `functional.fold`."""

    def __init__(
        self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__()
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride

    def construct(self, input: Any) -> Any:
        return functional.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)


class Unfold(Cell):
    """What every window of images looks at as a column; see `functional.unfold`."""

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def construct(self, input: Any) -> Any:
        return functional.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


class Dropout2d(nn.Dropout2d):
    """Dropout of whole channels of images."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        not_in_place("Dropout2d", inplace)
        super().__init__(p)


class Hardtanh(Cell):
    """x within [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        not_in_place("Hardtanh", inplace)
        self.min_val, self.max_val = min_val, max_val

    def construct(self, input: Any) -> Any:
        return functional.hardtanh(input, self.min_val, self.max_val)
