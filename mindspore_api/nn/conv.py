"""Convolution layers."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from mspc.ir.types import FLOAT32
from mspc.mindspore_api import checks, ops
from mspc.mindspore_api.common.initializers import HeUniform, Uniform
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import channel_groups, check_format, flag, parameter, positive


class _Convolution(Cell):
    """Weights [out, in / group, *kernel_size], or [in, out / group, *kernel_size] if transposed, and a bias.

    Class attributes:
        dims: dimensions of the image. A line is treated as an image of one row.
        transposed: the layer is the gradient of a convolution.
        attribute: name of the operator in the cell, by which scripts shard it. operator: its class in `ops`.
    """

    dims: int = 2
    transposed: bool = False
    attribute: ClassVar[str]
    operator: ClassVar[str]

    def __init__(
        self, in_channels: Any, out_channels: Any, kernel_size: Any, stride: Any, pad_mode: Any, padding: Any,
        dilation: Any, group: Any, has_bias: Any, weight_init: Any, bias_init: Any, dtype: Any, output_padding: Any = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        channels = channel_groups(name, in_channels, out_channels, "group", group)
        self.in_channels, self.out_channels, self.group = channels
        if pad_mode not in ("same", "valid", "pad"):
            raise ApiValueError(f"{name}: pad_mode must be 'same', 'valid' or 'pad', not {pad_mode!r}")
        self.kernel_size = self._sizes("kernel_size", kernel_size)
        self.stride = self._sizes("stride", stride)
        self.dilation = self._sizes("dilation", dilation)
        padding = (0, 0, checks.whole(f"{name}: padding", padding), padding) if self.dims == 1 else padding
        self.pad_mode, self.padding = pad_mode, _padding(name, padding, len(self.kernel_size), pad_mode)
        self.output_padding = _more(name, output_padding, self.stride, self.dilation, pad_mode)
        self.has_bias = flag(name, "has_bias", has_bias)
        self._draw(_flat(weight_init) if self.dims == 1 else weight_init, bias_init, dtype)
        setattr(self, self.attribute, getattr(ops, self.operator)(**self.attributes()))

    def _draw(self, weight_init: Any, bias_init: Any, dtype: Any) -> None:
        pair = (self.out_channels, self.in_channels // self.group)
        if self.transposed:
            pair = (self.in_channels, self.out_channels // self.group)
        weight_init = HeUniform(math.sqrt(5)) if weight_init is None else weight_init
        self.weight = parameter(weight_init, (*pair, *self.kernel_size), dtype, "weight")
        self.bias: Parameter | None = None
        if self.has_bias:
            bound = 1 / math.sqrt(pair[1] * math.prod(self.kernel_size))
            bias_init = Uniform(bound) if bias_init is None else bias_init
            self.bias = parameter(bias_init, (self.out_channels,), dtype, "bias")
            self.bias_add = ops.BiasAdd()

    def _sizes(self, what: str, value: Any) -> tuple[int, ...]:
        """Return one integer of at least 1 per dimension. Raise TypeError or ValueError for anything else."""
        name = type(self).__name__
        if self.dims == 1:
            return 1, positive(name, what, value)
        given: Any = tuple(value) if isinstance(value, list) else value
        found = given if isinstance(given, tuple) else (given,) * self.dims
        if len(found) != self.dims:
            raise ApiValueError(f"{name}: {what} must be one integer or {self.dims} of them, not {value!r}")
        return tuple(positive(name, what, n) for n in found)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the operator."""
        return {
            "out_channel": self.in_channels if self.transposed else self.out_channels,
            "kernel_size": self.kernel_size, "pad_mode": self.pad_mode, "pad": self.padding,
            "stride": self.stride, "dilation": self.dilation, "group": self.group,
        }  # fmt: skip

    def with_bias(self, out: Any) -> Any:
        """Return the result plus the bias, if there is one."""
        if self.has_bias:
            out = self.bias_add(out, self.bias)
        return out

    def construct(self, x: Any) -> Tensor:
        return self.with_bias(getattr(self, self.attribute)(x, self.weight))

    def grown(self, lengths: Any) -> Any:
        """Return the sizes of a transposed convolution's result."""
        return tuple([_grown(n, d, self) for d, n in enumerate(lengths)])

    def extend_repr(self) -> str:
        sizes = f"input_channels={self.in_channels}, output_channels={self.out_channels}"
        moves = f"kernel_size={self.kernel_size}, stride={self.stride}, pad_mode={self.pad_mode}"
        more = f"padding={self.padding}, dilation={self.dilation}"
        return f"{sizes}, {moves}, {more}, group={self.group}, has_bias={self.has_bias}"


class _LineConvolution(_Convolution):
    """A convolution of a line, as of an image of one row."""

    dims = 1

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, pad_mode: str = "same",
        padding: int = 0, dilation: int = 1, group: int = 1, has_bias: bool = False, weight_init: Any = None,
        bias_init: Any = None, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, kernel_size, stride, pad_mode, padding, dilation, group, has_bias,
                         weight_init, bias_init, dtype)  # fmt: skip


class Conv2d(_Convolution):
    """A convolution of images [n, in_channels, h, w] to [n, out_channels, h', w'].

    Args:
        kernel_size, stride, dilation: one integer, or one for height and one for width.
        pad_mode: "same" (zeros around, so that the result has the size of the image over the stride), "valid" (none),
            or "pad" (`padding`: one integer, or four for top, bottom, left and right).
        group: number of groups of channels with separate convolutions.
        weight_init, bias_init: an initializer, its name, a number or a Tensor; None draws both uniformly as in He et
            al. 2015 with slope sqrt(5).
    """

    attribute, operator = "conv2d", "Conv2D"

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, pad_mode: str = "same",
        padding: Any = 0, dilation: Any = 1, group: int = 1, has_bias: bool = False, weight_init: Any = None,
        bias_init: Any = None, data_format: str = "NCHW", dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        check_format("Conv2d", data_format, "NCHW")
        super().__init__(in_channels, out_channels, kernel_size, stride, pad_mode, padding, dilation, group, has_bias,
                         weight_init, bias_init, dtype)  # fmt: skip


class Conv1d(_LineConvolution):
    """A convolution of [n, in_channels, l] to [n, out_channels, l']; arguments as Conv2d's, integers each."""

    attribute, operator = "conv2d", "Conv2D"

    def construct(self, x: Any) -> Tensor:
        return ops.squeeze(super().construct(ops.expand_dims(x, 2)), 2)


class Conv3d(_Convolution):
    """A convolution of [n, in_channels, d, h, w]; arguments as Conv2d's with depth in front."""

    dims = 3
    attribute, operator = "conv3d", "Conv3D"

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, pad_mode: str = "same",
        padding: Any = 0, dilation: Any = 1, group: int = 1, has_bias: bool = False, weight_init: Any = None,
        bias_init: Any = None, data_format: str = "NCDHW", dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        check_format("Conv3d", data_format, "NCDHW")
        super().__init__(in_channels, out_channels, kernel_size, stride, pad_mode, padding, dilation, group, has_bias,
                         weight_init, bias_init, dtype)  # fmt: skip


class Conv2dTranspose(_Convolution):
    """The gradient of a convolution as a layer: images [n, in_channels, h, w] grow by the stride.

    Args:
        output_padding: rows and columns of zeros at the bottom and on the right, with pad_mode "pad".
    """

    transposed = True
    attribute, operator = "conv2d_transpose", "Conv2DTranspose"

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, pad_mode: str = "same",
        padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, group: int = 1, has_bias: bool = False,
        weight_init: Any = None, bias_init: Any = None, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, kernel_size, stride, pad_mode, padding, dilation, group, has_bias,
                         weight_init, bias_init, dtype, output_padding)  # fmt: skip

    def construct(self, x: Any) -> Tensor:
        rows, columns = self.output_padding
        height, width = self.grown(x.shape[2:])
        size = (x.shape[0], self.out_channels, height - rows, width - columns)
        out = self.with_bias(self.conv2d_transpose(x, self.weight, size))
        return ops.Pad(((0, 0), (0, 0), (0, rows), (0, columns)))(out) if rows or columns else out


class Conv1dTranspose(_LineConvolution):
    """Conv2dTranspose of [n, in_channels, l]; arguments are integers."""

    transposed = True
    attribute, operator = "conv2d_transpose", "Conv2DTranspose"

    def construct(self, x: Any) -> Tensor:
        size = (x.shape[0], self.out_channels, 1, _grown(x.shape[2], 1, self))
        out = self.conv2d_transpose(ops.expand_dims(x, 2), self.weight, size)
        return ops.squeeze(self.with_bias(out), 2)


class Conv3dTranspose(_Convolution):
    """Conv2dTranspose of [n, in_channels, d, h, w]."""

    dims = 3
    transposed = True
    attribute, operator = "conv3d_transpose", "Conv3DTranspose"

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, pad_mode: str = "same",
        padding: Any = 0, dilation: Any = 1, group: int = 1, output_padding: Any = 0, has_bias: bool = False,
        weight_init: Any = None, bias_init: Any = None, data_format: str = "NCDHW", dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        check_format("Conv3dTranspose", data_format, "NCDHW")
        super().__init__(in_channels, out_channels, kernel_size, stride, pad_mode, padding, dilation, group, has_bias,
                         weight_init, bias_init, dtype, output_padding)  # fmt: skip

    def construct(self, x: Any) -> Tensor:
        size = (x.shape[0], self.out_channels, *self.grown(x.shape[2:]))
        return self.with_bias(self.conv3d_transpose(x, self.weight, size))


def _grown(length: Any, dimension: Any, cell: Any) -> Any:
    """Return the length of a transposed convolution's result along a dimension."""
    stride, kernel = cell.stride[dimension], cell.dilation[dimension] * (cell.kernel_size[dimension] - 1) + 1
    if cell.pad_mode == "same":
        return length * stride
    if cell.pad_mode == "valid":
        return length * stride + max(kernel - stride, 0)
    pad = cell.padding[2 * dimension] + cell.padding[2 * dimension + 1]
    return (length - 1) * stride - pad + kernel + cell.output_padding[dimension]


def _padding(name: str, value: Any, dims: int, pad_mode: str) -> tuple[int, ...]:
    """Return two integers of at least 0 per dimension, 0 unless pad_mode is "pad"."""
    given: Any = tuple(value) if isinstance(value, list) else value
    found = given if isinstance(given, tuple) else (given,) * (2 * dims)
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in found):
        raise ApiTypeError(f"{name}: padding must be an integer or a tuple of {2 * dims}, not {value!r}")
    if len(found) != 2 * dims or any(n < 0 for n in found):
        raise ApiValueError(f"{name}: padding must be an integer or {2 * dims} of them, 0 or more, not {value!r}")
    if pad_mode != "pad" and any(found):
        raise ApiValueError(f"{name}: padding must be 0 when pad_mode is {pad_mode!r}, not {value!r}")
    return found


def _flat(weight_init: Any) -> Any:
    """Return initial weights [out, in, kernel] as those of images with one row."""
    return weight_init.expand_dims(2) if getattr(weight_init, "ndim", 0) == 3 else weight_init


def _more(name: str, value: Any, stride: tuple[int, ...], dilation: tuple[int, ...], pad_mode: str) -> tuple[int, ...]:
    """Return output_padding per dimension, smaller than stride or dilation. Raise ValueError for anything else."""
    found = value if isinstance(value, tuple) else (value,) * len(stride)
    fits = len(found) == len(stride) and all(isinstance(n, int) and n >= 0 for n in found)
    if not fits or any(n and n >= max(s, d) for n, s, d in zip(found, stride, dilation, strict=True)):
        limits = f"stride {stride} or dilation {dilation}"
        raise ApiValueError(f"{name}: output_padding must be below {limits}, not {value!r}")
    if any(found) and pad_mode != "pad":
        raise ApiValueError(f"{name}: output_padding must be 0 when pad_mode is {pad_mode!r}, not {value!r}")
    return found
