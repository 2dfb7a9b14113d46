"""Convolutions by a GPU's matrix products, where its library has none for the element type or for where arrays lie.

As on the CPU (`products.py`), weights times columns are the result. All that a launch writes lies where it did when the
launch was made, in scratch memory, so that it can be captured. Images are taken together as far as their columns stay
small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mspc.ops.convolution.columns import met, reach_of, taps
from mspc.ops.convolution.window import Window, clipped
from mspc.ops.device import Array, Device, Launch, in_order

COLUMNS = 256 << 20
"""Bytes of columns up to which images are taken together."""
_APART = 256
"""Bytes to which arrays in scratch memory are aligned."""

Shape = tuple[int, ...]


def convolution_by_products(
    device: Device, kind: str, image: Array, weight: Array, result: Array, along: Sequence[Window]
) -> Launch | None:
    """Launch of a convolution, or of one of its gradients; operands and `kind` as `Device.convolution` has them.

    None where the device has no such product. Groups of one input channel have none either: they are no products.
    """
    groups = image.shape[1] // max(weight.shape[1], 1)
    if not (image.size and weight.size and result.size) or (weight.shape[1] == 1 and groups > 1):
        return None
    column = 2 * image.shape[1] * math.prod(weight.shape[2:]) * math.prod(result.shape[2:]) * image.itemsize
    step = max(1, COLUMNS // column)
    launches: list[Launch | None] = []
    for first in range(0, image.shape[0], step):
        some = slice(first, first + step)
        part = _Part(device, image[some], weight, result[some], along, groups)
        launches.append(_MAKERS[kind](part, first > 0))
    return in_order(*launches)


class _Part:
    """Some of the images, and the matrices that are worked on, one for every group of channels.

    columns [places of the window and channels, positions]; matrix [out channels, places of the window and channels];
    product [out channels, positions]. wide: the places that are looked at, of all channels, [channels, images, ...].
    """

    def __init__(
        self, device: Device, image: Array, weight: Array, result: Array, along: Sequence[Window], groups: int
    ) -> None:
        self.device, self.image, self.weight, self.result = device, image, weight, result
        self.along, self.counts, self.groups = along, tuple(result.shape[2:]), groups
        self.reach = reach_of(along, self.counts)
        images, channels = image.shape[:2]
        window, positions = tuple(w.size for w in along), images * math.prod(self.counts)
        rows, made = weight.shape[1] * math.prod(window), weight.shape[0] // groups
        shapes: list[Shape] = [
            (channels, images, *(end - first for first, end in self.reach)), (groups, rows, positions),
            (groups, made, rows), (groups, made, positions),
        ]  # fmt: skip
        begins = [0]
        for shape in shapes:
            begins.append(begins[-1] - (-math.prod(shape) * image.itemsize // _APART) * _APART)
        memory = device.scratch(begins[-1])
        self.wide, self.columns, self.matrix, self.product = (
            memory[begin : begin + math.prod(shape) * image.itemsize].view(image.dtype).reshape(shape)
            for begin, shape in zip(begins, shapes, strict=False)
        )
        self.by_place = self.columns.reshape(channels, *window, images, *self.counts)

    def forward(self, again: bool) -> Launch | None:
        """Fill the result."""
        return in_order(
            self._gather, self._copying_weights,
            self._product(self.matrix, self.columns, self.product),
            lambda: _copy(self._of_result(), self.result),
        )  # fmt: skip

    def image_gradient(self, again: bool) -> Launch | None:
        """Fill the image."""
        return in_order(
            self._copying_weights, self._copying_result,
            self._product(self.matrix, self.product, self.columns, transpose_a=True), self._spread,
        )  # fmt: skip

    def weight_gradient(self, again: bool) -> Launch | None:
        """Fill the weights; again: add to what earlier images have left in them."""
        target = self.matrix.reshape(self.weight.shape)
        return in_order(
            *([lambda: _copy(self.weight, target)] if again else []), self._gather, self._copying_result,
            self._product(self.product, self.columns, self.matrix, transpose_b=True, adds=again),
            lambda: _copy(target, self.weight),
        )  # fmt: skip

    def _product(self, x: Array, y: Array, out: Array, transpose_a: bool = False, transpose_b: bool = False,
                 adds: bool = False) -> Launch | None:  # fmt: skip
        if self.groups == 1:
            x, y, out = x[0], y[0], out[0]
        return self.device.matmul(x, y, out, transpose_a, transpose_b, addend=out if adds else None)

    def _copying_weights(self) -> None:
        _copy(self.weight, self.matrix.reshape(self.weight.shape))

    def _copying_result(self) -> None:
        _copy(self.result, self._of_result())

    def _of_result(self) -> Array:
        """The product as the result has its dimensions."""
        made = self.product.reshape(self.result.shape[1], self.result.shape[0], *self.counts)
        return made.swapaxes(0, 1)

    def _there(self) -> tuple[Array, Array]:
        """The places that are there of those that are looked at: of the image, and of `wide`."""
        lengths = self.image.shape[2:]
        inner = [clipped(span, n) for span, n in zip(self.reach, lengths, strict=True)]
        of_image = (slice(None), slice(None), *(slice(low, high) for low, high in inner))
        of_wide = (slice(low - first, high - first) for (first, _), (low, high) in zip(self.reach, inner, strict=True))
        return self.image[of_image].swapaxes(0, 1), self.wide[(slice(None), slice(None), *of_wide)]

    def _gather(self) -> None:
        """Fill the columns from the image, with zeros where it has no places."""
        of_image, of_wide = self._there()
        if of_wide.shape != self.wide.shape:
            self.wide.fill(0)
        _copy(of_image, of_wide)
        for place, looked in self._taps():
            _copy(looked, self.by_place[(slice(None), *place)])

    def _spread(self) -> None:
        """Add the columns to the places of the image that they are of, which are zeros before."""
        self.wide.fill(0)
        for place, looked in self._taps():
            self.device.xp.add(looked, self.by_place[(slice(None), *place)], out=looked)
        of_image, of_wide = self._there()
        if of_image.size < self.image.size:
            self.image.fill(0)
        _copy(of_wide, of_image)

    def _taps(self) -> list[tuple[Shape, Array]]:
        """Every place of the window, and what all positions look at with it, in `wide`."""
        lengths = self.wide.shape[2:]
        inside = [Window(w.size, w.stride, w.dilation) for w in self.along]
        found: list[tuple[Shape, Array]] = []
        for place in taps(self.along):
            _, looked = met(inside, place, lengths, self.counts)
            found.append((place, self.wide[(slice(None), slice(None), *looked)]))
        return found


def _copy(source: Array, target: Array) -> None:
    target[...] = source


_MAKERS: dict[str, Callable[[_Part, bool], Launch | None]] = {
    "forward": _Part.forward, "image": _Part.image_gradient, "weight": _Part.weight_gradient,
}  # fmt: skip
