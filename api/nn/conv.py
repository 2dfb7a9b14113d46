"""Convolutions as layers."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.common.initial_values import HeUniform, Uniform
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.arguments import flag, parameter, positive
from mspc.api.nn.cell import Cell
from mspc.ir.types import FLOAT32


class _Convolution(Cell):
    """Weights [out, in / group, *kernel_size], or [in, out / group, *kernel_size] where transposed, and a bias."""

    def __init__(
        self, in_channels: Any, out_channels: Any, kernel_size: tuple[int, ...], stride: tuple[int, ...],
        pad_mode: Any, padding: Any, dilation: tuple[int, ...], group: Any, has_bias: Any, weight_init: Any,
        bias_init: Any, dtype: Any, transposed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        self.in_channels = positive(name, "in_channels", in_channels)
        self.out_channels = positive(name, "out_channels", out_channels)
        self.group = positive(name, "group", group)
        if in_channels % group or out_channels % group:
            raise ApiValueError(
                f"{name}: in_channels {in_channels} and out_channels {out_channels} must be multiples of group {group}"
            )
        if pad_mode not in ("same", "valid", "pad"):
            raise ApiValueError(f"{name}: pad_mode must be 'same', 'valid' or 'pad', not {pad_mode!r}")
        self.kernel_size, self.stride, self.dilation = kernel_size, stride, dilation
        self.pad_mode, self.padding = pad_mode, _padding(name, padding, len(kernel_size), pad_mode)
        self.has_bias = flag(name, "has_bias", has_bias)
        pair = (in_channels, out_channels // group) if transposed else (out_channels, in_channels // group)
        weight_init = HeUniform(math.sqrt(5)) if weight_init is None else weight_init
        self.weight = parameter(weight_init, (*pair, *kernel_size), dtype, "weight")
        if has_bias:
            bound = 1 / math.sqrt(pair[1] * math.prod(kernel_size))
            bias_init = Uniform(bound) if bias_init is None else bias_init
            self.bias = parameter(bias_init, (out_channels,), dtype, "bias")
            self.bias_add = ops.BiasAdd()

    def attributes(self, channels: int) -> dict[str, Any]:
        """Attributes of the operator, whose weights have `channels` in front."""
        return {
            "out_channel": channels, "kernel_size": self.kernel_size, "pad_mode": self.pad_mode, "pad": self.padding,
            "stride": self.stride, "dilation": self.dilation, "group": self.group,
        }  # fmt: skip

    def extend_repr(self) -> str:
        sizes = f"input_channels={self.in_channels}, output_channels={self.out_channels}"
        moves = f"kernel_size={self.kernel_size}, stride={self.stride}, pad_mode={self.pad_mode}"
        more = f"padding={self.padding}, dilation={self.dilation}"
        return f"{sizes}, {moves}, {more}, group={self.group}, has_bias={self.has_bias}"


class Conv2d(_Convolution):
    """A convolution of images [n, in_channels, h, w] to [n, out_channels, h', w'].

    Args:
        kernel_size, stride, dilation: one integer, or one for height and one for width.
        pad_mode: "same" (zeros around, so that the result has the size of the image over the stride), "valid" (none),
            or "pad" (`padding`: one integer, or four for top, bottom, left and right).
        group: groups of channels that are convolved each by itself.
        weight_init, bias_init: an initializer, its name, a number or a Tensor; None draws both uniformly as in He et
            al. 2015 with slope sqrt(5).
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, pad_mode: str = "same",
        padding: Any = 0, dilation: Any = 1, group: int = 1, has_bias: bool = False, weight_init: Any = None,
        bias_init: Any = None, data_format: str = "NCHW", dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        sizes = [_sizes("Conv2d", what, value, 2) for what, value in
                 (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation))]  # fmt: skip
        _check_format("Conv2d", data_format, "NCHW")
        super().__init__(in_channels, out_channels, sizes[0], sizes[1], pad_mode, padding, sizes[2], group, has_bias,
                         weight_init, bias_init, dtype)  # fmt: skip
        self.conv2d = ops.Conv2D(**self.attributes(out_channels))

    def construct(self, x: Any) -> Any:
        out = self.conv2d(x, self.weight)
        if self.has_bias:
            out = self.bias_add(out, self.bias)
        return out


class Conv1d(_Convolution):
    """A convolution of [n, in_channels, l] to [n, out_channels, l']; arguments as Conv2d's, integers each."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, pad_mode: str = "same",
        padding: int = 0, dilation: int = 1, group: int = 1, has_bias: bool = False, weight_init: Any = None,
        bias_init: Any = None, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        for what, value in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation)):
            positive("Conv1d", what, value)
        super().__init__(
            in_channels, out_channels, (1, kernel_size), (1, stride), pad_mode, _one_sided("Conv1d", padding),
            (1, dilation), group, has_bias, _flat(weight_init), bias_init, dtype,
        )  # fmt: skip
        self.conv2d = ops.Conv2D(**self.attributes(out_channels))

    def construct(self, x: Any) -> Any:
        out = self.conv2d(ops.expand_dims(x, 2), self.weight)
        if self.has_bias:
            out = self.bias_add(out, self.bias)
        return ops.squeeze(out, 2)


class Conv3d(_Convolution):
    """A convolution of [n, in_channels, d, h, w]; arguments as Conv2d's with depth in front."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, pad_mode: str = "same",
        padding: Any = 0, dilation: Any = 1, group: int = 1, has_bias: bool = False, weight_init: Any = None,
        bias_init: Any = None, data_format: str = "NCDHW", dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        sizes = [_sizes("Conv3d", what, value, 3) for what, value in
                 (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation))]  # fmt: skip
        _check_format("Conv3d", data_format, "NCDHW")
        super().__init__(in_channels, out_channels, sizes[0], sizes[1], pad_mode, padding, sizes[2], group, has_bias,
                         weight_init, bias_init, dtype)  # fmt: skip
        self.conv3d = ops.Conv3D(**self.attributes(out_channels))

    def construct(self, x: Any) -> Any:
        out = self.conv3d(x, self.weight)
        if self.has_bias:
            out = self.bias_add(out, self.bias)
        return out


class Conv2dTranspose(_Convolution):
    """The gradient of a convolution as a layer: images [n, in_channels, h, w] grow by the stride.

    Args:
        output_padding: rows and columns more on one side, with pad_mode "pad".
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, pad_mode: str = "same",
        padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, group: int = 1, has_bias: bool = False,
        weight_init: Any = None, bias_init: Any = None, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        sizes = [_sizes("Conv2dTranspose", what, value, 2) for what, value in
                 (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation))]  # fmt: skip
        super().__init__(in_channels, out_channels, sizes[0], sizes[1], pad_mode, padding, sizes[2], group, has_bias,
                         weight_init, bias_init, dtype, transposed=True)  # fmt: skip
        self.output_padding = _more("Conv2dTranspose", output_padding, sizes[1], sizes[2], pad_mode)
        self.conv2d_transpose = ops.Conv2DTranspose(**self.attributes(in_channels))

    def construct(self, x: Any) -> Any:
        n, _, h, w = x.shape
        height = _grown(h, 0, self)
        width = _grown(w, 1, self)
        out = self.conv2d_transpose(x, self.weight, (n, self.out_channels, height, width))
        if self.has_bias:
            out = self.bias_add(out, self.bias)
        return out


class Conv1dTranspose(_Convolution):
    """Conv2dTranspose of [n, in_channels, l]; arguments are integers."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, pad_mode: str = "same",
        padding: int = 0, dilation: int = 1, group: int = 1, has_bias: bool = False, weight_init: Any = None,
        bias_init: Any = None, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        for what, value in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation)):
            positive("Conv1dTranspose", what, value)
        super().__init__(
            in_channels, out_channels, (1, kernel_size), (1, stride), pad_mode, _one_sided("Conv1dTranspose", padding),
            (1, dilation), group, has_bias, _flat(weight_init), bias_init, dtype, transposed=True,
        )  # fmt: skip
        self.output_padding = (0, 0)
        self.conv2d_transpose = ops.Conv2DTranspose(**self.attributes(in_channels))

    def construct(self, x: Any) -> Any:
        n, _, length = x.shape
        size = (n, self.out_channels, 1, _grown(length, 1, self))
        out = self.conv2d_transpose(ops.expand_dims(x, 2), self.weight, size)
        if self.has_bias:
            out = self.bias_add(out, self.bias)
        return ops.squeeze(out, 2)


class Conv3dTranspose(_Convolution):
    """Conv2dTranspose of [n, in_channels, d, h, w]."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, pad_mode: str = "same",
        padding: Any = 0, dilation: Any = 1, group: int = 1, output_padding: Any = 0, has_bias: bool = False,
        weight_init: Any = None, bias_init: Any = None, data_format: str = "NCDHW", dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        sizes = [_sizes("Conv3dTranspose", what, value, 3) for what, value in
                 (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation))]  # fmt: skip
        _check_format("Conv3dTranspose", data_format, "NCDHW")
        super().__init__(in_channels, out_channels, sizes[0], sizes[1], pad_mode, padding, sizes[2], group, has_bias,
                         weight_init, bias_init, dtype, transposed=True)  # fmt: skip
        self.output_padding = _more("Conv3dTranspose", output_padding, sizes[1], sizes[2], pad_mode)
        self.conv3d_transpose = ops.Conv3DTranspose(**self.attributes(in_channels))

    def construct(self, x: Any) -> Any:
        n, _, d, h, w = x.shape
        size = (n, self.out_channels, _grown(d, 0, self), _grown(h, 1, self), _grown(w, 2, self))
        out = self.conv3d_transpose(x, self.weight, size)
        if self.has_bias:
            out = self.bias_add(out, self.bias)
        return out


def _grown(length: Any, dimension: Any, cell: Any) -> Any:
    """The length of a transposed convolution's result along a dimension."""
    stride, kernel = cell.stride[dimension], cell.dilation[dimension] * (cell.kernel_size[dimension] - 1) + 1
    if cell.pad_mode == "same":
        return length * stride
    if cell.pad_mode == "valid":
        return length * stride + max(kernel - stride, 0)
    pad = cell.padding[2 * dimension] + cell.padding[2 * dimension + 1]
    return (length - 1) * stride - pad + kernel + cell.output_padding[dimension]


def _sizes(name: str, what: str, value: Any, dims: int) -> tuple[int, ...]:
    """One integer of at least 1 per dimension. Raises TypeError or ValueError for anything else."""
    given: Any = tuple(value) if isinstance(value, list) else value
    found = given if isinstance(given, tuple) else (given,) * dims
    if len(found) != dims:
        raise ApiValueError(f"{name}: {what} must be one integer or {dims} of them, not {value!r}")
    return tuple(positive(name, what, n) for n in found)


def _padding(name: str, value: Any, dims: int, pad_mode: str) -> tuple[int, ...]:
    """Two integers of at least 0 per dimension, 0 unless pad_mode is "pad"."""
    given: Any = tuple(value) if isinstance(value, list) else value
    found = given if isinstance(given, tuple) else (given,) * (2 * dims)
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in found):
        raise ApiTypeError(f"{name}: padding must be an integer or a tuple of {2 * dims}, not {value!r}")
    if len(found) != 2 * dims or any(n < 0 for n in found):
        raise ApiValueError(f"{name}: padding must be an integer or {2 * dims} of them, 0 or more, not {value!r}")
    if pad_mode != "pad" and any(found):
        raise ApiValueError(f"{name}: padding must be 0 when pad_mode is {pad_mode!r}, not {value!r}")
    return found


def _one_sided(name: str, padding: Any) -> tuple[int, ...]:
    """The padding of a line that stands as the one row of an image."""
    if isinstance(padding, bool) or not isinstance(padding, int):
        raise ApiTypeError(f"{name}: padding must be an integer, not {padding!r}")
    return (0, 0, padding, padding)


def _flat(weight_init: Any) -> Any:
    """Initial weights [out, in, kernel] as those of images with one row."""
    return weight_init.expand_dims(2) if getattr(weight_init, "ndim", 0) == 3 else weight_init


def _more(name: str, value: Any, stride: tuple[int, ...], dilation: tuple[int, ...], pad_mode: str) -> tuple[int, ...]:
    """output_padding per dimension, smaller than stride or dilation. Raises ValueError for anything else."""
    found = value if isinstance(value, tuple) else (value,) * len(stride)
    fits = len(found) == len(stride) and all(isinstance(n, int) and n >= 0 for n in found)
    if not fits or any(n and n >= max(s, d) for n, s, d in zip(found, stride, dilation, strict=True)):
        limits = f"stride {stride} or dilation {dilation}"
        raise ApiValueError(f"{name}: output_padding must be below {limits}, not {value!r}")
    if any(found) and pad_mode != "pad":
        raise ApiValueError(f"{name}: output_padding must be 0 when pad_mode is {pad_mode!r}, not {value!r}")
    return found


def _check_format(name: str, given: Any, expected: str) -> None:
    if given != expected:
        raise ApiValueError(f"{name}: data_format must be {expected!r}, not {given!r}")
