"""Convolutions and their gradients, over images of two and of three dimensions.

Height and width may be cut: a rank then gets the places beside its slice from its neighbours before it convolves. The
gradients read the result's gradient with its borders, so that both of them share one exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.arguments import shape_of
from mspc.ops.bases import require_same
from mspc.ops.collective.exchange import exchanged
from mspc.ops.convolution.base import Convolution, Shape, local_groups
from mspc.ops.convolution.columns import convolve, input_gradient, weight_gradient
from mspc.ops.convolution.window import Window, clipped
from mspc.ops.op import ArrayBackend, Op, Placement, sample
from mspc.sharding.borders import Needed, Span, border_bytes, border_exchange, is_cut, own_span, place_of, request

Gradients = Sequence[Value | None]
BORDERS = "windows at the border of a slice look at the slices beside it"


class _Forward(Convolution, abstract=True):
    """x [batch, in channels, ...] by weights [out channels, in channels / group, *kernel_size]."""

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_same(self.name, *types)
        return inferred

    def rule(self, x: TensorType, weight: TensorType) -> str:
        image, window, result = self.sides(x.shape, weight.shape)
        return f"{image}, {window} -> {result}"

    def bprop(self, b: Builder, x: Value, weight: Value, out: Value, dout: Value) -> Gradients:
        dx = b.emit(_like(self, _INPUT_GRADIENTS[self.dims], input_size=x.shape), dout, weight)
        return dx, b.emit(_like(self, _WEIGHT_GRADIENTS[self.dims], filter_size=weight.shape), dout, x)

    def needed(self, type: TensorType, layout: Layout) -> Needed:
        """Which places of the image the holder of a slice of the result looks at."""
        along, counts = self.along(type.shape[2:]), self.counts(type.shape[2:])
        cuts = layout.strategy[2:]

        def places(d: int, part: int) -> Span:
            return clipped(along[d].places(own_span(counts[d], cuts[d], part)), type.shape[2 + d])

        return places

    def expand(self, b: Builder, placement: Placement, inputs: Sequence[Value]) -> Value | None:
        x, weight = inputs
        type, layout = placement.in_types[0], placement.in_layouts[0]
        if not is_cut(layout):
            return None
        needed = self.needed(type, layout)
        part = border_exchange(layout, type.shape, placement.rank, needed)
        image = exchanged(b, x, part, layout.ranks, BORDERS, request(layout, type.shape, needed))
        along: list[Window] = []
        counts, cuts = self.counts(type.shape[2:]), layout.strategy[2:]
        for d, (window, part) in enumerate(
            zip(self.along(type.shape[2:]), place_of(layout, placement.rank), strict=True)
        ):
            along.append(window.on_places(needed(d, part), own_span(counts[d], cuts[d], part)))
        group = local_groups(self.group, layout, placement.in_layouts[1])
        return b.emit(self.on_rank(along, weight.shape[0], group), image, weight)

    def localize(self, placement: Placement) -> Op:
        x, weight = placement.in_layouts
        shape = weight.local_shape(placement.in_types[1].shape)
        return _with(self, out_channel=shape[0], group=local_groups(self.group, x, weight))

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        return border_bytes(types[0], layouts[0], self.needed(types[0], layouts[0])) if is_cut(layouts[0]) else 0.0

    def operations(self, types: Sequence[TensorType]) -> float:
        return self.amount(types[0].shape, types[1].shape)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, weight = inputs
        counts = self.counts(x.shape[2:])
        out = be.xp.empty((x.shape[0], weight.shape[0], *counts), x.dtype)
        return convolve(be.xp, x, weight, self.along(x.shape[2:]), counts, self.group, out)


class _Backward(Convolution, abstract=True):
    """A gradient of `_Forward`: operand 0 is the gradient of its result."""

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_same(self.name, *types)
        return inferred

    def positions(self, layout: Layout, lengths: Sequence[int]) -> Needed:
        """Which positions of the result look at a slice of the image of these lengths."""
        along, counts = self.along(lengths), self.counts(lengths)
        cuts = layout.strategy[2:]

        def found(d: int, part: int) -> Span:
            return along[d].positions(own_span(lengths[d], cuts[d], part), counts[d])

        return found

    def cut_parts(
        self, b: Builder, dout: Value, layout: Layout, shape: Shape, lengths: Sequence[int], rank: int
    ) -> tuple[Value, list[Window]]:
        """The result's gradient with its borders, and the windows between it and the rank's slice of the image."""
        needed, cuts = self.positions(layout, lengths), layout.strategy[2:]
        part = border_exchange(layout, shape, rank, needed)
        wide = exchanged(b, dout, part, layout.ranks, BORDERS, request(layout, shape, needed))
        found = [
            window.on_places(own_span(length, cuts[d], part), needed(d, part))
            for d, (window, length, part) in enumerate(
                zip(self.along(lengths), lengths, place_of(layout, rank), strict=True)
            )
        ]
        return wide, found

    def check_result(self, dout: Shape, image: Shape, weight: Shape) -> None:
        """Raises MspcError where `dout` has not the shape of the forward operator's result."""
        expected = (image[0], weight[0], *self.counts(image[2:]))
        if dout != expected:
            raise MspcError(
                f"{self.name}: the gradient has shape {dout}, but images {image} and weights {weight} make {expected}"
            )


class _InputGradient(_Backward, abstract=True):
    """The gradient of the image from that of the result and the weights; a transposed convolution.

    input_size: shape of the image.
    """

    input_size: tuple[int, ...] = ()

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 3:
            return self, args
        return _with(self, input_size=shape_of(self.name, "input_size", args[2])), args[:2]

    def rule(self, dout: TensorType, weight: TensorType) -> str:
        image, window, result = self.sides(self.input_size, weight.shape)
        self.check_result(dout.shape, self.input_size, weight.shape)
        return f"{result}, {window} -> {image}"

    def bprop(self, b: Builder, dout: Value, weight: Value, out: Value, second: Value) -> Gradients:
        again = b.emit(_like(self, _FORWARDS[self.dims]), second, weight)
        return again, b.emit(_like(self, _WEIGHT_GRADIENTS[self.dims], filter_size=weight.shape), dout, second)

    def expand(self, b: Builder, placement: Placement, inputs: Sequence[Value]) -> Value | None:
        layout = placement.in_layouts[0]
        if not is_cut(layout):
            return None
        (type, _), lengths = placement.in_types, self.input_size[2:]
        wide, along = self.cut_parts(b, inputs[0], layout, type.shape, lengths, placement.rank)
        local = _with(self, **self._local(placement))
        own = local.on_rank(along, local.out_channel, local.group, input_size=local.input_size)
        return b.emit(own, wide, inputs[1])

    def localize(self, placement: Placement) -> Op:
        return _with(self, **self._local(placement))

    def _local(self, placement: Placement) -> dict[str, Any]:
        weight = placement.in_layouts[1]
        return {
            "out_channel": weight.local_shape(placement.in_types[1].shape)[0],
            "group": local_groups(self.group, placement.out_layouts[0], weight),
            "input_size": placement.out_layouts[0].local_shape(self.input_size),
        }

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        needed = self.positions(layouts[0], self.input_size[2:])
        return border_bytes(types[0], layouts[0], needed) if is_cut(layouts[0]) else 0.0

    def operations(self, types: Sequence[TensorType]) -> float:
        return self.amount(self.input_size, types[1].shape)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        dout, weight = inputs
        lengths = self.input_size[2:]
        return input_gradient(be.xp, dout, weight, self.along(lengths), lengths, self.group)


class _WeightGradient(_Backward, abstract=True):
    """The gradient of the weights from that of the result and the image.

    filter_size: shape of the weights.
    """

    filter_size: tuple[int, ...] = ()

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 3:
            return self, args
        return _with(self, filter_size=shape_of(self.name, "filter_size", args[2])), args[:2]

    def rule(self, dout: TensorType, x: TensorType) -> str:
        image, _, result = self.sides(x.shape, self.filter_size)
        self.check_result(dout.shape, x.shape, self.filter_size)
        sizes = " ".join(f"s{d}={n}!" for d, n in enumerate(self.filter_size[2:]))
        lead = f"(g={self.group} o)" if self.group > 1 else "o"
        return f"{result}, {image} -> {lead} i {sizes}"

    def bprop(self, b: Builder, dout: Value, x: Value, out: Value, second: Value) -> Gradients:
        again = b.emit(_like(self, _FORWARDS[self.dims]), x, second)
        return again, b.emit(_like(self, _INPUT_GRADIENTS[self.dims], input_size=x.shape), dout, second)

    def expand(self, b: Builder, placement: Placement, inputs: Sequence[Value]) -> Value | None:
        layout, (type, x) = placement.in_layouts[0], placement.in_types
        if not is_cut(layout):
            return None
        wide, along = self.cut_parts(b, inputs[0], layout, type.shape, x.shape[2:], placement.rank)
        local = _with(self, **self._local(placement))
        own = local.on_rank(along, local.out_channel, local.group, filter_size=local.filter_size)
        return b.emit(own, wide, inputs[1])

    def localize(self, placement: Placement) -> Op:
        return _with(self, **self._local(placement))

    def _local(self, placement: Placement) -> dict[str, Any]:
        shape = placement.out_layouts[0].local_shape(self.filter_size)
        group = local_groups(self.group, placement.in_layouts[1], placement.out_layouts[0])
        return {"out_channel": shape[0], "group": group, "filter_size": shape}

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        needed = self.positions(layouts[0], types[1].shape[2:])
        return border_bytes(types[0], layouts[0], needed) if is_cut(layouts[0]) else 0.0

    def operations(self, types: Sequence[TensorType]) -> float:
        return self.amount(types[1].shape, self.filter_size)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        dout, x = inputs
        return weight_gradient(be.xp, dout, x, self.along(x.shape[2:]), self.group, self.filter_size)


_TWO: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((4, 4, 8, 8), (8, 4, 3, 3), {"pad_mode": "same"}),
    ((2, 4, 9, 8), (4, 4, 3, 2), {"stride": (2, 1), "pad_mode": "pad", "pad": (1, 2, 0, 1)}),
    ((2, 8, 8, 8), (8, 2, 3, 3), {"group": 4, "stride": 2, "pad_mode": "same"}),
    ((2, 4, 8, 4), (8, 1, 3, 1), {"group": 4, "dilation": (2, 1), "pad_mode": "pad", "pad": (2, 2, 0, 0)}),
    ((4, 4, 4, 4), (4, 4, 1, 1), {"stride": 2}),
)  # fmt: skip
_THREE: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((2, 4, 4, 4, 4), (4, 4, 3, 3, 3), {"pad_mode": "same"}),
    ((2, 2, 5, 4, 4), (4, 1, 2, 3, 2), {"group": 2, "stride": (1, 2, 1), "pad_mode": "pad", "pad": (0, 1, 1, 1, 0, 0)}),
)


def _attributes(weight: Shape, given: dict[str, Any]) -> dict[str, Any]:
    return {"out_channel": weight[0], "kernel_size": weight[2:], **given}


def _result(op: type[Convolution], image: Shape, weight: Shape, given: dict[str, Any]) -> Shape:
    return (image[0], weight[0], *op(**_attributes(weight, given)).counts(image[2:]))


class Conv2D(_Forward):
    """A convolution over height and width: images [n, c, h, w], weights [out channels, c / group, *kernel_size]."""

    samples: ClassVar[Any] = tuple(sample(x, w, **_attributes(w, given)) for x, w, given in _TWO)


class Conv3D(_Forward):
    """A convolution over depth, height and width."""

    dims: ClassVar[int] = 3
    samples: ClassVar[Any] = tuple(sample(x, w, **_attributes(w, given)) for x, w, given in _THREE)


class Conv2DBackpropInput(_InputGradient):
    """The gradient of Conv2D's images; also a transposed convolution of images [n, out channels, h, w]."""

    samples: ClassVar[Any] = tuple(
        sample(_result(Conv2D, x, w, given), w, input_size=x, **_attributes(w, given)) for x, w, given in _TWO
    )


class Conv3DBackpropInput(_InputGradient):
    """The gradient of Conv3D's images."""

    dims: ClassVar[int] = 3
    samples: ClassVar[Any] = tuple(
        sample(_result(Conv3D, x, w, given), w, input_size=x, **_attributes(w, given)) for x, w, given in _THREE
    )


class Conv2DTranspose(Conv2DBackpropInput):
    """A transposed convolution of images: Conv2DBackpropInput as scripts call it."""

    samples: ClassVar[Any] = Conv2DBackpropInput.samples[:2]


class Conv3DTranspose(Conv3DBackpropInput):
    """A transposed convolution of images of three dimensions."""

    samples: ClassVar[Any] = Conv3DBackpropInput.samples[:1]


class Conv2DBackpropFilter(_WeightGradient):
    """The gradient of Conv2D's weights."""

    samples: ClassVar[Any] = tuple(
        sample(_result(Conv2D, x, w, given), x, filter_size=w, **_attributes(w, given)) for x, w, given in _TWO
    )


class Conv3DBackpropFilter(_WeightGradient):
    """The gradient of Conv3D's weights."""

    dims: ClassVar[int] = 3
    samples: ClassVar[Any] = tuple(
        sample(_result(Conv3D, x, w, given), x, filter_size=w, **_attributes(w, given)) for x, w, given in _THREE
    )


_FORWARDS: dict[int, type[_Forward]] = {2: Conv2D, 3: Conv3D}
_INPUT_GRADIENTS: dict[int, type[_InputGradient]] = {2: Conv2DBackpropInput, 3: Conv3DBackpropInput}
_WEIGHT_GRADIENTS: dict[int, type[_WeightGradient]] = {2: Conv2DBackpropFilter, 3: Conv3DBackpropFilter}


def _like(op: Convolution, other: type[Any], **more: Any) -> Any:
    """An operator of another class with the attributes that all convolutions have."""
    return other(**{f.name: getattr(op, f.name) for f in fields(Convolution)}, **more)


def _with(op: Any, **given: Any) -> Any:
    return type(op)(**(op.attributes() | given))
