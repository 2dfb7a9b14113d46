"""Along each dimension, positions that windows of an image take are told with the places that they look at.

Positions of a convolution look at places of the image: one share. The gradient of an image is a convolution, too, of
the result's gradient: places of the image take the positions that looked at them. With a stride these are other places
of the window for every remainder that a place has: one share each. Dumoulin and Visin, arXiv 1603.07285, chapter 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mspc.ops.convolution.window import Window


class Share(NamedTuple):
    """Positions that meet the same places of the window.

    looked: what each looks at with a tap of offset 0, counted from the start of the line's slab. made: where each lies
    in the result. taps: for every place of the window that they meet its offset, and its number.
    """

    looked: range
    made: range
    taps: Sequence[tuple[int, int]]


class AxisPositions(NamedTuple):
    """All positions along one dimension.

    start: the place of the image at which the slab begins. Positions may be worked in chunks of a multiple of `step`,
    whose slabs begin `move` places further on for each `step`.
    """

    start: int
    step: int
    move: int
    shares: Sequence[Share]

    @property
    def extent(self) -> int:
        """Places of the slab."""
        return 1 + max(
            (share.looked[-1] + tap for share in self.shares for tap, _ in share.taps if share.looked), default=0
        )

    def within(self, length: int) -> bool:
        """Whether the slab has no place outside of an image of this length."""
        return self.start >= 0 and self.start + self.extent <= length


def of_result(window: Window, count: int) -> AxisPositions:
    """The first `count` positions of a convolution's result."""
    looked = range(0, count * window.stride, window.stride)
    taps = [(t * window.dilation, t) for t in range(window.size)]
    return AxisPositions(-window.before, 1, window.stride, [Share(looked, range(count), taps)])


def of_image(window: Window, count: int) -> AxisPositions:
    """The first `count` places of an image's gradient, each the sum over what looked at it."""
    stride = window.stride
    met = [
        [
            ((first + window.before - t * window.dilation) // stride, t)
            for t in reversed(range(window.size))
            if (first + window.before - t * window.dilation) % stride == 0
        ]
        for first in range(stride)
    ]
    start = min((offset for taps in met for offset, _ in taps), default=0)
    shares: list[Share] = []
    for first, taps in enumerate(met):
        made = range(first, count, stride)
        shares.append(Share(range(len(made)), made, [(offset - start, t) for offset, t in taps]))
    return AxisPositions(start, stride, 1, shares)
