"""CropAndResize and ROIAlign resize the parts of images that boxes name.

Every row and column of a part is a weighted sum of the image's, so that a part is a matrix for its rows times the image
times one for its columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.layout import Layout
from mspc.ir.types import DType, TensorType
from mspc.ops.bases import require_float, require_same
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, Placement, sample
from mspc.ops.operator_arguments import shape_of
from mspc.ops.tensor.embedding import require_integer

Gradients = Sequence[Value | None]
Shape = tuple[int, ...]


def between(xp: Any, places: Any, length: int, dtype: Any) -> tuple[Any, Any]:
    """(weights [places, length] of the pixels beside each place, how they grow with it); places lie within the line."""
    low = xp.clip(xp.floor(places), 0, length - 1).astype(xp.int64)
    high = xp.minimum(low + 1, length - 1)
    share = (places - low).astype(dtype)
    rows = xp.arange(places.shape[0])
    weights, growth = (xp.zeros((places.shape[0], length), dtype) for _ in range(2))
    weights[rows, low] += 1 - share
    weights[rows, high] += share
    growth[rows, low] -= 1
    growth[rows, high] += 1
    return weights, growth


class _Parts(Op, abstract=True):
    """first, images: which image is this rank's first of how many, 0 of 0 where it has all; boxes of other ranks'
    images give zeros here."""

    omitted = ("first", "images")

    if TYPE_CHECKING:  # behind the fields that users give
        first: int
        images: int

    def held(self, layout: Layout, shape: Shape, rank: int) -> Any:
        """The operator on a rank that holds a slice of images of this shape."""
        if not layout.dims[0]:
            return self
        return replace(cast(Any, self), first=layout.slices_for(rank, shape)[0].start, images=shape[0])

    def chosen(self, box_indices: Any, count: int) -> Iterator[tuple[int, int]]:
        """(box, the image that it names) for all boxes of this rank's `count` images. Raises MspcError for an image
        that there is not."""
        limit = self.images or count
        for box, number in enumerate(box_indices.tolist()):
            if not -1 < number < limit:
                shown = int(number) if math.isfinite(number) else number
                raise MspcError(f"{self.name}: box {box} is of image {shown}, but there are {limit}")
            image = int(number)
            if 0 <= image - self.first < count:
                yield box, image - self.first


class _Crop(_Parts, abstract=True):
    """method: "bilinear" or "nearest". extrapolation_value: what lies outside of an image."""

    method: str = "bilinear"
    extrapolation_value: float = 0.0
    crop_size: Any = (1, 1)
    first: int = 0
    images: int = 0

    def sizes(self) -> tuple[int, int]:
        """Height and width of the parts. Raises MspcError for bad attributes."""
        if self.method not in ("bilinear", "nearest"):
            raise MspcError(f"{self.name}: method must be 'bilinear' or 'nearest', not {self.method!r}")
        found = shape_of(self.name, "crop_size", self.crop_size)
        if len(found) != 2 or min(found) < 1:
            raise MspcError(f"{self.name}: crop_size must be two positive integers, not {self.crop_size!r}")
        return found[0], found[1]

    def check(self, image: Shape, boxes: TensorType, box_indices: TensorType) -> None:
        """Raises MspcError where images and boxes do not fit each other."""
        if len(image) != 4:
            raise MspcError(f"{self.name}: the images [n, h, w, c] must have 4 dimensions, but their shape is {image}")
        if 0 in image[:3]:
            raise MspcError(f"{self.name}: images of shape {image} are empty")
        if len(boxes.shape) != 2 or boxes.shape[1] != 4:
            raise MspcError(f"{self.name}: the boxes must have the shape [number, 4], not {boxes.shape}")
        if box_indices.shape != boxes.shape[:1]:
            raise MspcError(
                f"{self.name}: box_indices must be one number for each of {boxes.shape[0]} boxes, but their shape is "
                f"{box_indices.shape}"
            )

    def check_parts(self, dout: TensorType) -> None:
        """Raises MspcError where a gradient is not of parts of this size."""
        if len(dout.shape) != 4 or dout.shape[1:3] != self.sizes():
            raise MspcError(f"{self.name}: the gradient of parts {self.sizes()} has no shape {dout.shape}")

    def places(self, xp: Any, first: Any, end: Any, length: int, count: int) -> tuple[Any, Any]:
        """(where a part reads a line of this length, which of the places lie on it)."""
        if count > 1:
            found = first * (length - 1) + xp.arange(count) * ((end - first) * (length - 1) / (count - 1))
        else:
            found = 0.5 * (first + end) * (length - 1) + xp.zeros(1, first.dtype)
        inside = (found >= 0) & (found <= length - 1)
        return xp.where(inside, found, 0), inside

    def matrix(self, xp: Any, first: Any, end: Any, length: int, count: int, dtype: Any) -> tuple[Any, Any]:
        """(weights [count, length], growth of them) of one line of one box; those of places outside are 0."""
        places, inside = self.places(xp, first, end, length, count)
        if self.method == "nearest":
            places = xp.floor(places + 0.5)
        weights, growth = between(xp, places, length, dtype)
        if self.method == "nearest":
            growth = growth * 0
        return weights * inside[:, None], growth * inside[:, None]

    def both(self, xp: Any, box: Any, lengths: Sequence[int], dtype: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """`matrix` of rows and of columns for a box [y1, x1, y2, x2]."""
        height, width = self.sizes()
        rows = self.matrix(xp, box[0], box[2], lengths[0], height, dtype)
        return rows, self.matrix(xp, box[1], box[3], lengths[1], width, dtype)


class CropAndResize(_Crop):
    """Parts [boxes, *crop_size, c] of images [n, h, w, c]: boxes [number, 4] are y1, x1, y2, x2 from 0 to 1, and
    `box_indices` says of which image each is. Called as `CropAndResize(...)(x, boxes, box_indices, crop_size)`."""

    samples = (
        sample((2, 5, 6, 4), (4, 4), (4,), dtypes=("Float64", "Float64", "Int32"), low=0, high=2, crop_size=(3, 2)),
        sample((2, 5, 6, 4), (4, 4), (4,), dtypes=("Float64", "Float64", "Int32"), low=0, high=2, crop_size=(1, 4),
               method="nearest", extrapolation_value=2.0),
    )  # fmt: skip

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 4:
            return self, args
        return replace(self, crop_size=shape_of(self.name, "crop_size", args[3])), args[:3]

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, *types[:2])
        require_integer(self.name, 2, types[2])
        return inferred

    def result_dtype(self, *types: TensorType) -> DType:
        return types[1].dtype

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {2: types[0].shape[0]}

    def rule(self, x: TensorType, boxes: TensorType, box_indices: TensorType) -> str:
        height, width = self.sizes()
        self.check(x.shape, boxes, box_indices)
        return f"n h! w! c, b f!, b -> b q0={height}! q1={width}! c"

    def localize(self, placement: Placement) -> Op:
        return self.held(placement.in_layouts[0], placement.in_types[0].shape, placement.rank)

    def bprop(self, b: Builder, x: Value, boxes: Value, box_indices: Value, out: Value, dout: Value) -> Gradients:
        given = self.attributes()
        image = b.emit(CropAndResizeGradImage(**given, image_size=x.shape), dout, boxes, box_indices)
        return image, b.emit(CropAndResizeGradBoxes(**given), dout, x, boxes, box_indices), None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, boxes, box_indices) = be.xp, inputs
        height, width = self.sizes()
        out = xp.zeros((boxes.shape[0], height, width, x.shape[3]), boxes.dtype)
        outside = self.extrapolation_value
        for number, image in self.chosen(box_indices, x.shape[0]):
            (rows, _), (columns, _) = self.both(xp, boxes[number], x.shape[1:3], boxes.dtype)
            found = xp.matmul(columns, xp.tensordot(rows, x[image].astype(boxes.dtype), (1, 0)))
            if outside:
                missed = (rows.sum(axis=1) == 0)[:, None] | (columns.sum(axis=1) == 0)
                found = xp.where(missed[..., None], xp.asarray(outside, found.dtype), found)
            out[number] = found
        return out


class CropAndResizeGradImage(_Crop):
    """The gradient of CropAndResize's images, of shape `image_size`."""

    image_size: tuple[int, ...] = ()
    linear_in = (0,)
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (
        sample((4, 3, 2, 4), (4, 4), (4,), dtypes=("Float64", "Float64", "Int32"), low=0, high=2, crop_size=(3, 2),
               image_size=(2, 5, 6, 4)),
    )  # fmt: skip

    def rule(self, dout: TensorType, boxes: TensorType, box_indices: TensorType) -> str:
        self.check(self.image_size, boxes, box_indices)
        self.check_parts(dout)
        n, h, w, _ = self.image_size
        return f"b q0! q1! c, b f!, b -> n={n} h={h}! w={w}! c"

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {2: self.image_size[0]}

    def localize(self, placement: Placement) -> Op:
        layout = placement.out_layouts[0]
        mine = self.held(layout, placement.out_types[0].shape, placement.rank)
        return replace(mine, image_size=layout.local_shape(self.image_size))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (dout, boxes, box_indices) = be.xp, inputs
        out = xp.zeros(self.image_size, dout.dtype)
        for number, image in self.chosen(box_indices, out.shape[0]):
            (rows, _), (columns, _) = self.both(xp, boxes[number], out.shape[1:3], dout.dtype)
            out[image] += xp.matmul(columns.T, xp.tensordot(rows.T, dout[number], (1, 0)))
        return out


class CropAndResizeGradBoxes(_Crop):
    """The gradient of CropAndResize's boxes."""

    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (
        sample((4, 3, 2, 4), (2, 5, 6, 4), (4, 4), (4,), dtypes=("Float64", "Float64", "Float64", "Int32"), low=0,
               high=2, crop_size=(3, 2)),
    )  # fmt: skip

    def result_dtype(self, *types: TensorType) -> DType:
        return types[2].dtype

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {3: types[1].shape[0]}

    def rule(self, dout: TensorType, x: TensorType, boxes: TensorType, box_indices: TensorType) -> str:
        self.check(x.shape, boxes, box_indices)
        self.check_parts(dout)
        return "b q0! q1! c, n h! w! c, b f!, b -> b f!"

    def localize(self, placement: Placement) -> Op:
        return self.held(placement.in_layouts[1], placement.in_types[1].shape, placement.rank)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (dout, x, boxes, box_indices) = be.xp, inputs
        out = xp.zeros(boxes.shape, boxes.dtype)
        for number, image in self.chosen(box_indices, x.shape[0]):
            pixels, given = x[image].astype(boxes.dtype), dout[number]
            (rows, steep), (columns, steep_columns) = self.both(xp, boxes[number], x.shape[1:3], boxes.dtype)
            down = (xp.matmul(columns, xp.tensordot(steep, pixels, (1, 0))) * given).sum(axis=(1, 2))
            across = (xp.matmul(steep_columns, xp.tensordot(rows, pixels, (1, 0))) * given).sum(axis=(0, 2))
            for at, moved, length in ((0, down, x.shape[1]), (1, across, x.shape[2])):
                count = moved.shape[0]
                end = xp.arange(count) / (count - 1) if count > 1 else xp.full(1, 0.5)
                out[number, at] = (moved * (1 - end)).sum() * (length - 1)
                out[number, at + 2] = (moved * end).sum() * (length - 1)
        return out


class _Aligned(_Parts, abstract=True):
    """pooled_height, pooled_width: places of a part. spatial_scale: of the features over the images in which boxes are
    given. sample_num: reads per place along height and along width; 0: about one for every pixel of the place.
    roi_end_mode: 1 where a box's end is its last pixel, 0 where it is the edge behind."""

    pooled_height: int = 1
    pooled_width: int = 1
    spatial_scale: float = 1.0
    sample_num: int = 2
    roi_end_mode: int = 1
    first: int = 0
    images: int = 0

    def check(self, features: Shape, rois: TensorType) -> None:
        """Raises MspcError where features and boxes do not fit each other or the attributes."""
        for what, least in (("pooled_height", 1), ("pooled_width", 1), ("sample_num", 0), ("roi_end_mode", 0)):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise MspcError(f"{self.name}: {what} must be an integer of at least {least}, not {value!r}")
        if self.roi_end_mode > 1:
            raise MspcError(f"{self.name}: roi_end_mode must be 0 or 1, not {self.roi_end_mode}")
        if len(features) != 4:
            raise MspcError(f"{self.name}: the features must have 4 dimensions, but their shape is {features}")
        if 0 in (features[0], *features[2:]):
            raise MspcError(f"{self.name}: features of shape {features} are empty")
        if len(rois.shape) != 2 or rois.shape[1] != 5:
            raise MspcError(f"{self.name}: the boxes must have the shape [number, 5], not {rois.shape}")

    def line(self, xp: Any, first: float, end: float, length: int, count: int, dtype: Any) -> Any:
        """The weights [count, length] of one line of one box; none where it ends nowhere, as in MindSpore."""
        if not (math.isfinite(first) and math.isfinite(end)):
            return xp.zeros((count, length), dtype)
        first, end = first * self.spatial_scale, (end + self.roi_end_mode) * self.spatial_scale
        extent = end - first if self.roi_end_mode else max(end - first, 1.0)
        each = extent / count
        reads = self.sample_num or int(each // 1)
        if reads < 1:
            return xp.zeros((count, length), dtype)
        places = xp.asarray(first + (xp.arange(count * reads) + 0.5) * (each / reads))
        inside = (places >= -1) & (places <= length)
        weights, _ = between(xp, xp.clip(places, 0, length - 1), length, dtype)
        return (weights * inside[:, None]).reshape(count, reads, length).sum(axis=1) / reads

    def both(self, xp: Any, roi: Any, lengths: Sequence[int], dtype: Any) -> tuple[Any, Any]:
        """The matrices of rows and of columns for a box [image, x1, y1, x2, y2]."""
        _, left, top, right, bottom = (float(n) for n in roi.tolist())
        rows = self.line(xp, top, bottom, lengths[0], self.pooled_height, dtype)
        return rows, self.line(xp, left, right, lengths[1], self.pooled_width, dtype)


class ROIAlign(_Aligned):
    """The means of features [n, c, h, w] in the places of boxes [number, 5], which are the image's number, x1, y1, x2,
    y2: [number, c, pooled_height, pooled_width]. He et al. 2017."""

    linear_in = (0,)
    samples = (
        sample((2, 4, 5, 6), (4, 5), low=0, high=1.99, pooled_height=2, pooled_width=3, spatial_scale=2.0,
               gradient=False),
        sample((2, 4, 5, 6), (4, 5), low=0, high=1.99, pooled_height=2, pooled_width=1, sample_num=0, roi_end_mode=0,
               spatial_scale=3.0, gradient=False),
    )  # fmt: skip

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_float(self.name, *types)
        require_same(self.name, *types)
        return inferred

    def rule(self, features: TensorType, rois: TensorType) -> str:
        self.check(features.shape, rois)
        return f"n c h! w!, b f! -> b c q0={self.pooled_height}! q1={self.pooled_width}!"

    def localize(self, placement: Placement) -> Op:
        return self.held(placement.in_layouts[0], placement.in_types[0].shape, placement.rank)

    def bprop(self, b: Builder, features: Value, rois: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(ROIAlignGrad(**self.attributes(), xdiff_shape=features.shape), dout, rois), None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (features, rois) = be.xp, inputs
        out = xp.zeros((rois.shape[0], features.shape[1], self.pooled_height, self.pooled_width), features.dtype)
        for number, image in self.chosen(rois[:, 0], features.shape[0]):
            rows, columns = self.both(xp, rois[number], features.shape[2:], features.dtype)
            out[number] = xp.matmul(xp.matmul(rows, features[image]), columns.T)
        return out


class ROIAlignGrad(_Aligned):
    """The gradient of ROIAlign's features, of shape `xdiff_shape`."""

    xdiff_shape: tuple[int, ...] = ()
    linear_in = (0,)
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (
        sample((4, 4, 2, 3), (4, 5), low=0, high=1.99, pooled_height=2, pooled_width=3, spatial_scale=2.0,
               xdiff_shape=(2, 4, 5, 6)),
    )  # fmt: skip

    def rule(self, dout: TensorType, rois: TensorType) -> str:
        self.check(self.xdiff_shape, rois)
        parts = self.xdiff_shape[1], self.pooled_height, self.pooled_width
        if len(dout.shape) != 4 or dout.shape[1:] != parts:
            raise MspcError(f"{self.name}: the gradient of parts {parts} has no shape {dout.shape}")
        n, _, h, w = self.xdiff_shape
        return f"b c q0! q1!, b f! -> n={n} c h={h}! w={w}!"

    def localize(self, placement: Placement) -> Op:
        layout = placement.out_layouts[0]
        mine = self.held(layout, placement.out_types[0].shape, placement.rank)
        return replace(mine, xdiff_shape=layout.local_shape(self.xdiff_shape))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (dout, rois) = be.xp, inputs
        out = xp.zeros(self.xdiff_shape, dout.dtype)
        for number, image in self.chosen(rois[:, 0], out.shape[0]):
            rows, columns = self.both(xp, rois[number], out.shape[2:], dout.dtype)
            out[image] += xp.matmul(xp.matmul(rows.T, dout[number]), columns)
        return out
