"""Depthwise convolutions as tests write them, and what they are in NumPy."""

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from mspc.ops.device import Sliding

KINDS = ("forward", "image", "weight")
"""The result that is made of the other two, see `Device.convolution`."""


def _count(length: int, size: int, window: Sliding) -> int:
    return (length + window.before + window.after - (size - 1) * window.dilation - 1) // window.stride + 1


class Case(NamedTuple):
    """[images, rows, columns, channels], the window, and how it slides over rows and columns."""

    image: tuple[int, int, int, int]
    window: tuple[int, int]
    rows: Sliding
    columns: Sliding
    multiplier: int = 1

    @property
    def counts(self) -> tuple[int, int]:
        """Positions along rows and columns."""
        rows, columns = map(_count, self.image[1:3], self.window, (self.rows, self.columns))
        return rows, columns

    @property
    def result(self) -> tuple[int, int, int, int]:
        return self.image[0], *self.counts, self.image[3] * self.multiplier


def plain(kind: str, case: Case, first: Any, second: Any) -> Any:
    """The result that is made of the other two, in Float64; the image with zeros beside it."""
    (k0, k1), (down, across), (n0, n1) = case.window, (case.rows, case.columns), case.image[1:3]
    made = np.zeros({"forward": case.result, "image": case.image, "weight": (case.result[3], k0, k1)}[kind])
    for a, b, p, q in product(range(k0), range(k1), range(case.counts[0]), range(case.counts[1])):
        y = p * down.stride - down.before + a * down.dilation
        x = q * across.stride - across.before + b * across.dilation
        if not (0 <= y < n0 and 0 <= x < n1):
            continue
        if kind == "forward":
            made[:, p, q] += np.repeat(first[:, y, x], case.multiplier, axis=-1) * second[:, a, b]
        elif kind == "image":
            made[:, y, x] += first[:, p, q] * second[:, a, b]
        else:
            made[:, a, b] += (first[:, p, q] * np.repeat(second[:, y, x], case.multiplier, axis=-1)).sum(axis=0)
    return made


def shapes_of(case: Case) -> dict[str, tuple[int, ...]]:
    """The layouts of image, weight and result, channels last."""
    return {"image": case.image, "weight": (case.result[3], *case.window), "result": case.result}


def seen(arrays: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Image, weight and result as `Device.convolution` has them."""
    image, result = (arrays[name].transpose(0, 3, 1, 2) for name in ("image", "result"))
    return image, arrays["weight"][:, None], result


def same(size: int, dilation: int = 1, stride: int = 1) -> Sliding:
    return Sliding((size - 1) * dilation // 2, (size - 1) * dilation // 2, stride, dilation)
