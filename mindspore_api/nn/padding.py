"""Layers that add margins to tensors."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import number


class Pad(Cell):
    """x with margins around it.

    Args:
        paddings: (before, after) of every dimension.
        mode: "CONSTANT" for zeros, "REFLECT" to mirror at the last elements, "SYMMETRIC" to mirror at the edge after
            them.
    """

    def __init__(self, paddings: Any, mode: str = "CONSTANT") -> None:
        super().__init__()
        if mode not in ("CONSTANT", "REFLECT", "SYMMETRIC"):
            raise ApiValueError(f"Pad: mode must be 'CONSTANT', 'REFLECT' or 'SYMMETRIC', not {mode!r}")
        if not isinstance(paddings, tuple) or not all(isinstance(pair, tuple) for pair in paddings):
            raise ApiTypeError(f"Pad: paddings must be a tuple of pairs, not {paddings!r}")
        self.paddings, self.mode = paddings, mode
        self.pad = ops.Pad(paddings) if mode == "CONSTANT" else ops.MirrorPad(mode)

    def construct(self, x: Any) -> Tensor:
        if self.mode == "CONSTANT":
            return self.pad(x)
        return self.pad(x, self.paddings)


class _Pad2d(Cell):
    """Margins of the last two dimensions, (before, after) of the last and then of the other, by a mode of `ops.pad`."""

    mode: str = "constant"

    def __init__(self, padding: Any) -> None:
        super().__init__()
        name, given = type(self).__name__, (padding,) * 4 if isinstance(padding, int) else padding
        if not isinstance(given, tuple) or not all(isinstance(n, int) and not isinstance(n, bool) for n in given):
            raise ApiTypeError(f"{name}: padding must be an integer or a tuple of 4, not {padding!r}")
        if len(given) != 4:
            raise ApiValueError(f"{name}: padding must be an integer or a tuple of 4, not {padding!r}")
        self.padding = given
        self.value: float | None = 0.0 if self.mode == "constant" else None

    def construct(self, x: Any) -> Tensor:
        return ops.pad(x, self.padding, self.mode, self.value)

    def extend_repr(self) -> str:
        return f"padding={self.padding}"


class ConstantPad2d(_Pad2d):
    """Margins of `value`: `padding` is one integer, or left, right, top and bottom."""

    def __init__(self, padding: Any, value: Any) -> None:
        super().__init__(padding)
        self.value = number("ConstantPad2d", "value", value, least=float("-inf"))


class ZeroPad2d(_Pad2d):
    """Margins of zeros: `padding` is one integer, or left, right, top and bottom."""


class ReflectionPad2d(_Pad2d):
    """Margins that mirror images about their borders: one integer, or left, right, top and bottom."""

    mode = "reflect"
