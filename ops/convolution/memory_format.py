"""The channels of these operators' images come second, as scripts have them, or last, as tensor cores want them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from mspc.ir.types import TensorType
from mspc.ops.device import Array, Device, Launch
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Op

Shape = tuple[int, ...]
SECOND = {2: "NCHW", 3: "NCDHW"}
LAST = {2: "NHWC", 3: "NDHWC"}
"""The attribute data_format by the dimensions of the image, where channels come second as the shapes say, and last."""


def last_order(rank: int) -> Shape:
    """The dimensions of (batch, channels, places) as (batch, places, channels)."""
    return 0, *range(2, rank), 1


def first_order(rank: int) -> Shape:
    """The dimensions of (batch, places, channels) as (batch, channels, places)."""
    return 0, rank - 1, *range(1, rank - 1)


class ImageOperator(Op, abstract=True):
    """With data_format "NHWC" or "NDHWC" all operands, weights too, and the result have dimension 1 at their end; such
    operators are in the graphs of ranks, where the pass channels_last makes them.

    Class attributes:
        dims: dimensions of the image. sizes_of: attributes that are shapes of an operand or of the result.
        makes_images: the result is an image; else it is weights, which others read as their shape says.
    """

    dims: ClassVar[int] = 2
    sizes_of: ClassVar[tuple[str, ...]] = ()
    makes_images: ClassVar[bool] = True

    @property
    def channels_last(self) -> bool:
        """Whether dimension 1 of all operands is at their end."""
        given: Any = self  # the attribute has its place in each operator's own order
        return given.data_format == LAST[self.dims]

    def with_channels_last(self) -> Self:
        """The operator on operands whose channels come last."""
        return self._ordered(LAST[self.dims], last_order(self.dims + 2))

    def with_channels_second(self) -> Self:
        """The operator on operands whose channels come second."""
        return self._ordered("", first_order(self.dims + 2))

    def _ordered(self, data_format: str, order: Shape) -> Self:
        sizes: dict[str, Shape] = {name: getattr(self, name) for name in self.sizes_of}
        reordered: dict[str, Any] = {name: tuple(size[d] for d in order) for name, size in sizes.items() if size}
        return replace(self, **reordered, **{"data_format": data_format})

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        found: Any = self.infer(*types)
        if self.channels_last or not isinstance(found, TensorType):
            return None
        order = last_order(self.dims + 2)
        operands = tuple(MemoryOrder.of(type.shape, order) for type in types)
        return Reordered(self.with_channels_last(), operands, (MemoryOrder.of(found.shape, order),), self.makes_images)

    def made_in(self, order: MemoryOrder, types: Sequence[TensorType]) -> Reordered | None:
        image = last_order(self.dims + 2)
        if self.wants_channels_last or self.channels_last or order.memory != MemoryOrder.of(order.shape, image).memory:
            return None
        return self.reordered(types, ())

    def in_order(self, types: Sequence[TensorType]) -> list[TensorType]:
        """The operands' types with their channels second."""
        if not self.channels_last or any(len(type.shape) != self.dims + 2 for type in types):
            return list(types)
        order = first_order(self.dims + 2)
        return [type.with_shape(tuple(type.shape[d] for d in order)) for type in types]

    def infer(self, *types: Any) -> Any:
        if not self.channels_last:
            return super().infer(*types)
        found = self.with_channels_second().infer(*self.in_order(types))
        return found.with_shape(tuple(found.shape[d] for d in last_order(self.dims + 2)))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        if not self.channels_last:
            return self.kernel_on(be)
        run = self.with_channels_second().kernel_on(be)
        first, last = first_order(self.dims + 2), last_order(self.dims + 2)

        def kernel(*inputs: Any) -> Any:
            found = run(*(be.xp.ascontiguousarray(x.transpose(first)) for x in inputs))
            return be.xp.ascontiguousarray(found.transpose(last))

        return kernel

    def kernel_on(self, be: ArrayBackend) -> Callable[..., Any]:
        """See `Op.kernel`: of arrays whose channels come second."""
        return super().kernel(be)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        if not self.channels_last:
            return self.launch_on(device, list(inputs), out)
        order = first_order(self.dims + 2)
        plain = self.with_channels_second()
        return plain.launch_on(device, [array.transpose(order) for array in inputs], out.transpose(order))

    def launch_on(self, device: Device, inputs: Sequence[Array], out: Array) -> Launch | None:
        """See `Op.launch`: arrays whose channels come second in their shape, if not in memory; None: there is none."""
        return None
