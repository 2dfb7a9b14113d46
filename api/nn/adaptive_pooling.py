"""These cells pool images to a size that is given."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.nn.cell import Cell


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


class AdaptiveMaxPool1d(Cell):
    """The greatest values of `output_size` windows that cover [n, c, l]."""

    def __init__(self, output_size: int) -> None:
        super().__init__()
        self.output_size = output_size

    def construct(self, input: Any) -> Any:
        return ops.adaptive_max_pool1d(input, self.output_size)


class AdaptiveMaxPool2d(Cell):
    """The greatest values of as many windows as the result has places, which cover images [n, c, h, w].

    Args:
        output_size: one integer, or one for height and one for width; None keeps the size.
        return_indices: the result is a pair, with the places of the values in their image behind them.
    """

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def construct(self, input: Any) -> Any:
        return ops.adaptive_max_pool2d(input, self.output_size, self.return_indices)


class AdaptiveMaxPool3d(Cell):
    """AdaptiveMaxPool2d over depth, height and width."""

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def construct(self, input: Any) -> Any:
        return ops.adaptive_max_pool3d(input, self.output_size, self.return_indices)
