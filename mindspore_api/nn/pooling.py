"""Pooling layers."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import check_format
from mspc.mindspore_api.nn.function_cells import FunctionCell


class _Pooling(Cell):
    """Pools [n, c, ...], or [c, ...] without a batch.

    Class attributes:
        dims: dimensions of the image. A line is pooled as an image of one row.
    """

    dims: int = 2

    def __init__(self, kernel_size: Any, stride: Any, pad_mode: Any, padding: Any) -> None:
        super().__init__()
        name = type(self).__name__
        if str(pad_mode).lower() not in ("same", "valid", "pad"):
            raise ApiValueError(f"{name}: pad_mode must be 'same', 'valid' or 'pad', not {pad_mode!r}")
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        for what in ("kernel_size", "stride"):
            sizes = getattr(self, what)
            if any(isinstance(size, int) and size < 1 for size in (sizes if isinstance(sizes, tuple) else (sizes,))):
                raise ApiValueError(f"{name}: {what} must be positive, not {sizes}")
        self.pad_mode, self.padding = str(pad_mode).lower(), padding

    def _flat(self, value: Any) -> Any:
        """Return a size along a line as that of an image with one row."""
        return (1, value) if self.dims == 1 else value

    def _window(self) -> tuple[Any, Any, str, str, Any]:
        """Return kernel_size, strides, pad_mode, data_format and pad of the operator."""
        padding = (0, 0, self.padding, self.padding) if self.dims == 1 else self.padding
        form = "NCDHW" if self.dims == 3 else "NCHW"
        return self._flat(self.kernel_size), self._flat(self.stride), self.pad_mode, form, padding

    def raised(self, x: Any) -> Any:
        """Return x with a batch dimension, and with a row dimension if it is a line."""
        if len(x.shape) == self.dims + 1:
            x = ops.expand_dims(x, 0)
        if self.dims == 1:
            x = ops.expand_dims(x, 2)
        return x

    def lowered(self, out: Any, rank: int) -> Any:
        """Undo `raised` on a result for a tensor of this rank."""
        if self.dims == 1:
            out = ops.squeeze(out, 2)
        if rank == self.dims + 1:
            out = ops.squeeze(out, 0)
        return out

    def extend_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, pad_mode={self.pad_mode.upper()}"


class _MaxPool(_Pooling):
    def __init__(
        self, kernel_size: Any = 1, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0, dilation: Any = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, pad_mode, padding)
        self.return_indices = return_indices
        size, step, mode, form, pad = self._window()
        spread = self._flat(dilation)
        if not return_indices:
            if self.dims == 3:
                self.max_pool = ops.MaxPool3D(size, step, mode, pad, ceil_mode, form, dilation=spread)
            else:
                self.max_pool = ops.MaxPool(size, step, mode, form, pad, spread, ceil_mode)
        elif mode != "pad":
            name = type(self).__name__
            raise ApiValueError(f"{name}: return_indices=True takes pad_mode 'pad' alone, not {pad_mode!r}")
        elif self.dims == 3:
            self.max_pool = ops.MaxPool3DWithArgmax(size, step, pad, spread, ceil_mode)
        else:
            self.max_pool = ops.MaxPoolWithArgmaxV2(size, step, pad, spread, ceil_mode)

    def construct(self, x: Any) -> Any:
        rank = len(x.shape)
        if self.return_indices:
            out, places = self.max_pool(self.raised(x))
            return self.lowered(out, rank), self.lowered(places, rank)
        return self.lowered(self.max_pool(self.raised(x)), rank)


class MaxPool1d(_MaxPool):
    """The greatest value of every window of [n, c, l] or [c, l]; arguments as MaxPool2d's, integers each."""

    dims = 1

    def __init__(
        self, kernel_size: int = 1, stride: int = 1, pad_mode: str = "valid", padding: int = 0, dilation: int = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, pad_mode, padding, dilation, return_indices, ceil_mode)


class MaxPool2d(_MaxPool):
    """The greatest value of every window of images [n, c, h, w] or [c, h, w].

    Args:
        kernel_size, stride, dilation: one integer, or one for height and one for width.
        pad_mode: "valid", "same", or "pad" with `padding`.
        return_indices: the result is a pair of values and their indices in the image, Int64; for pad_mode "pad".
        ceil_mode: windows may end outside of the image.
    """

    def __init__(
        self, kernel_size: Any = 1, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0, dilation: Any = 1,
        return_indices: bool = False, ceil_mode: bool = False, data_format: str = "NCHW",
    ) -> None:  # fmt: skip
        check_format(type(self).__name__, data_format, "NCHW")
        super().__init__(kernel_size, stride, pad_mode, padding, dilation, return_indices, ceil_mode)


class MaxPool3d(_MaxPool):
    """The greatest value of every window of [n, c, d, h, w]; arguments as MaxPool2d's."""

    dims = 3


class _AvgPool(_Pooling):
    def __init__(
        self, kernel_size: Any = 1, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, pad_mode, padding)
        counted = count_include_pad and self.pad_mode == "pad"
        size, step, mode, form, pad = self._window()
        if self.dims == 3:
            self.avg_pool = ops.AvgPool3D(size, step, mode, pad, ceil_mode, counted, divisor_override, form)
        else:
            self.avg_pool = ops.AvgPool(size, step, mode, form, pad, 1, ceil_mode, counted, divisor_override)

    def construct(self, x: Any) -> Tensor:
        return self.lowered(self.avg_pool(self.raised(x)), len(x.shape))


class AvgPool1d(_AvgPool):
    """The mean of every window of [n, c, l] or [c, l]; arguments as AvgPool2d's, integers each."""

    dims = 1

    def __init__(
        self, kernel_size: int = 1, stride: int = 1, pad_mode: str = "valid", padding: int = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, pad_mode, padding, ceil_mode, count_include_pad)


class AvgPool2d(_AvgPool):
    """The mean of every window of images [n, c, h, w] or [c, h, w]; arguments as MaxPool2d's.

    Args:
        count_include_pad: include zeros of `padding` in the number of elements. divisor_override: the divisor of sums
            instead of that number.
    """

    def __init__(
        self, kernel_size: Any = 1, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
        data_format: str = "NCHW",
    ) -> None:  # fmt: skip
        check_format(type(self).__name__, data_format, "NCHW")
        super().__init__(kernel_size, stride, pad_mode, padding, ceil_mode, count_include_pad, divisor_override)


class AvgPool3d(_AvgPool):
    """The mean of every window of [n, c, d, h, w]; arguments as AvgPool2d's."""

    dims = 3


class AdaptiveAvgPool1d(FunctionCell):
    """Means of `output_size` windows that cover [n, c, l]."""

    def __init__(self, output_size: int) -> None:
        super().__init__(ops.adaptive_avg_pool1d, output_size)


class AdaptiveAvgPool2d(FunctionCell):
    """Means of windows that cover images [n, c, h, w], one for each element of the result.

    Args:
        output_size: one integer, or one for height and one for width; None keeps the size.
    """

    def __init__(self, output_size: Any) -> None:
        super().__init__(ops.adaptive_avg_pool2d, output_size)


class AdaptiveAvgPool3d(FunctionCell):
    """AdaptiveAvgPool2d over depth, height and width."""

    def __init__(self, output_size: Any) -> None:
        super().__init__(ops.adaptive_avg_pool3d, output_size)


class AdaptiveMaxPool2d(FunctionCell):
    """Maxima of windows that cover images [n, c, h, w], one for each element of the result.

    Args:
        output_size: one integer, or one for height and one for width; None keeps the size.
        return_indices: the result is a pair of values and their indices in the image.
    """

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(ops.adaptive_max_pool2d, output_size, return_indices)
