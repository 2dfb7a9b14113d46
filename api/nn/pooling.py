"""Pooling as layers."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.api.nn.cell import Cell


class _Pooling(Cell):
    def __init__(self, kernel_size: Any, stride: Any, pad_mode: Any, padding: Any, data_format: Any, form: str) -> None:
        super().__init__()
        name = type(self).__name__
        if data_format != form:
            raise ApiValueError(f"{name}: data_format must be {form!r}, not {data_format!r}")
        if str(pad_mode).lower() not in ("same", "valid", "pad"):
            raise ApiValueError(f"{name}: pad_mode must be 'same', 'valid' or 'pad', not {pad_mode!r}")
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.pad_mode, self.padding = str(pad_mode).lower(), padding

    def extend_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, pad_mode={self.pad_mode.upper()}"


class MaxPool2d(_Pooling):
    """The greatest value of every window of images [n, c, h, w] or [c, h, w].

    Args:
        kernel_size, stride, dilation: one integer, or one for height and one for width.
        pad_mode: "valid", "same", or "pad" with `padding`.
        ceil_mode: windows may end outside of the image.
    """

    def __init__(
        self, kernel_size: Any = 1, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0, dilation: Any = 1,
        return_indices: bool = False, ceil_mode: bool = False, data_format: str = "NCHW",
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, pad_mode, padding, data_format, "NCHW")
        _check_indices("MaxPool2d", return_indices)
        self.max_pool = ops.MaxPool(kernel_size, self.stride, self.pad_mode, "NCHW", padding, dilation, ceil_mode)

    def construct(self, x: Any) -> Any:
        single = len(x.shape) == 3
        if single:
            x = ops.expand_dims(x, 0)
        out = self.max_pool(x)
        if single:
            out = ops.squeeze(out, 0)
        return out


class MaxPool1d(_Pooling):
    """The greatest value of every window of [n, c, l]; arguments are integers."""

    def __init__(
        self, kernel_size: int = 1, stride: int = 1, pad_mode: str = "valid", padding: int = 0, dilation: int = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, pad_mode, padding, "NCL", "NCL")
        _check_indices("MaxPool1d", return_indices)
        self.max_pool = ops.MaxPool(
            (1, kernel_size), (1, self.stride), self.pad_mode, "NCHW", (0, 0, padding, padding), (1, dilation),
            ceil_mode,
        )  # fmt: skip

    def construct(self, x: Any) -> Any:
        return ops.squeeze(self.max_pool(ops.expand_dims(x, 2)), 2)


class MaxPool3d(_Pooling):
    """The greatest value of every window of [n, c, d, h, w]; arguments as MaxPool2d's."""

    def __init__(
        self, kernel_size: Any = 1, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0, dilation: Any = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, pad_mode, padding, "NCDHW", "NCDHW")
        _check_indices("MaxPool3d", return_indices)
        self.max_pool = ops.MaxPool3D(kernel_size, self.stride, self.pad_mode, "NCDHW", padding, dilation, ceil_mode)

    def construct(self, x: Any) -> Any:
        return self.max_pool(x)


class AvgPool2d(_Pooling):
    """The mean of every window of images [n, c, h, w] or [c, h, w]; arguments as MaxPool2d's.

    Args:
        count_include_pad: zeros of `padding` count. divisor_override: what sums are divided by instead.
    """

    def __init__(
        self, kernel_size: Any = 1, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
        data_format: str = "NCHW",
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, pad_mode, padding, data_format, "NCHW")
        counted = count_include_pad and self.pad_mode == "pad"
        self.avg_pool = ops.AvgPool(
            kernel_size, self.stride, self.pad_mode, "NCHW", padding, 1, ceil_mode, counted, divisor_override
        )

    def construct(self, x: Any) -> Any:
        single = len(x.shape) == 3
        if single:
            x = ops.expand_dims(x, 0)
        out = self.avg_pool(x)
        if single:
            out = ops.squeeze(out, 0)
        return out


class AvgPool1d(_Pooling):
    """The mean of every window of [n, c, l]; arguments are integers."""

    def __init__(
        self, kernel_size: int = 1, stride: int = 1, pad_mode: str = "valid", padding: int = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, pad_mode, padding, "NCL", "NCL")
        counted = count_include_pad and self.pad_mode == "pad"
        self.avg_pool = ops.AvgPool(
            (1, kernel_size), (1, self.stride), self.pad_mode, "NCHW", (0, 0, padding, padding), 1, ceil_mode, counted
        )

    def construct(self, x: Any) -> Any:
        return ops.squeeze(self.avg_pool(ops.expand_dims(x, 2)), 2)


class AvgPool3d(_Pooling):
    """The mean of every window of [n, c, d, h, w]; arguments as AvgPool2d's."""

    def __init__(
        self, kernel_size: Any = 1, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, pad_mode, padding, "NCDHW", "NCDHW")
        counted = count_include_pad and self.pad_mode == "pad"
        self.avg_pool = ops.AvgPool3D(
            kernel_size, self.stride, self.pad_mode, "NCDHW", padding, 1, ceil_mode, counted, divisor_override
        )

    def construct(self, x: Any) -> Any:
        return self.avg_pool(x)


class AdaptiveAvgPool1d(Cell):
    """Means of `output_size` windows that cover [n, c, l]."""

    def __init__(self, output_size: int) -> None:
        super().__init__()
        self.output_size = output_size
        self.adaptive = ops.AdaptiveAvgPool2D((1, output_size))

    def construct(self, input: Any) -> Any:
        return ops.squeeze(self.adaptive(ops.expand_dims(input, 2)), 2)


class AdaptiveAvgPool2d(Cell):
    """Means of as many windows as the result has places, which cover images [n, c, h, w].

    Args:
        output_size: one integer, or one for height and one for width; None keeps the size.
    """

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size
        self.adaptive = ops.AdaptiveAvgPool2D(output_size)

    def construct(self, input: Any) -> Any:
        if len(input.shape) == 3:
            return ops.squeeze(self.adaptive(ops.expand_dims(input, 0)), 0)
        return self.adaptive(input)


class AdaptiveAvgPool3d(Cell):
    """AdaptiveAvgPool2d over depth, height and width."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size
        self.adaptive = ops.AdaptiveAvgPool3D(output_size)

    def construct(self, input: Any) -> Any:
        return self.adaptive(input)


class Upsample(Cell):
    """Images of another size.

    Args:
        size, scale_factor: the size of the result, or that over the image's; one of both.
        mode: "nearest" or "bilinear".
    """

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool = False,
        recompute_scale_factor: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def construct(self, x: Any) -> Any:
        return ops.interpolate(
            x, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )


def _check_indices(name: str, wanted: Any) -> None:
    if wanted:
        raise ApiValueError(f"{name}: return_indices=True is not supported; the values are returned alone")
