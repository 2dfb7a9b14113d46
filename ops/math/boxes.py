"""These operators take boxes in images, [n, 4] as x1, y1, x2, y2, and tell how much they overlap, and how one differs
from another.
"""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import BOOL, INT32, TensorType, TupleType
from mspc.ops.bases import require_float, require_same
from mspc.ops.convolution.window import listed
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample

_FOUR = (0.0, 0.0, 0.0, 0.0)
_ONES = (1.0, 1.0, 1.0, 1.0)
_TARGETS = NotDifferentiable("boxes are what a network is to find; MindSpore has none either")


def _require_boxes(name: str, *types: TensorType, columns: int = 4) -> None:
    for index, operand in enumerate(types):
        if len(operand.shape) != 2 or operand.shape[1] != columns:
            raise MspcError(f"{name}: input {index} must be boxes [n, {columns}], but its shape is {operand.shape}")


def _numbers(name: str, what: str, value: Any) -> tuple[float, ...]:
    found = listed(value, 4)
    if len(found) != 4 or any(isinstance(n, bool) or not isinstance(n, int | float) for n in found):
        raise MspcError(f"{name}: {what} must be four numbers, not {value!r}")
    return found


class IOU(Op):
    """[m, n]: the area that boxes [n, 4] and true boxes [m, 4] share over that of both (mode "iou"), or over that of
    the true box ("iof"). A box holds its last pixel, so that its sides are x2 - x1 + 1."""

    mode: str = "iou"
    bprop = _TARGETS
    samples = (
        sample((4, 4), (8, 4), low=0, high=9, gradient=False),
        sample((4, 4), (2, 4), low=0, high=9, gradient=False, mode="iof"),
    )

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        require_same(self.name, *types)
        return super().infer(*types)

    def rule(self, anchor_boxes: TensorType, gt_boxes: TensorType) -> str:
        if self.mode not in ("iou", "iof"):
            raise MspcError(f"IOU: mode must be 'iou' or 'iof', not {self.mode!r}")
        _require_boxes(self.name, anchor_boxes, gt_boxes)
        return "n f!, m f! -> m n"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        boxes, true = inputs
        shared = _shared(be.xp, true, boxes)
        total = _areas(true)[:, None]
        if self.mode == "iou":
            total = total + _areas(boxes)[None] - shared
        return shared / total


def _areas(boxes: Any) -> Any:
    return (boxes[:, 2] - boxes[:, 0] + 1) * (boxes[:, 3] - boxes[:, 1] + 1)


def _shared(xp: Any, rows: Any, columns: Any, last: int = 1) -> Any:
    """The area that each of `rows` shares with each of `columns`; last: what a side has beside its ends' distance."""
    low = xp.maximum(rows[:, None, :2], columns[None, :, :2])
    high = xp.minimum(rows[:, None, 2:4], columns[None, :, 2:4])
    sides = xp.maximum(high - low + last, 0)
    return sides[..., 0] * sides[..., 1]


def _middles(xp: Any, boxes: Any) -> tuple[Any, Any]:
    """(centres, sides) [n, 2] of boxes that hold their last pixels."""
    return (boxes[:, :2] + boxes[:, 2:]) * 0.5, boxes[:, 2:] - boxes[:, :2] + 1


class BoundingBoxEncode(Op):
    """How boxes [n, 4] differ from anchors [n, 4]: the centre's distance over the anchor's sides and the logarithm of
    the sides' ratio, less `means`, over `stds`. Girshick et al. 2014."""

    means: Any = _FOUR
    stds: Any = _ONES
    bprop = _TARGETS
    samples = (sample((8, 4), (8, 4), low=0.1, high=0.9, gradient=False, stds=(0.1, 0.1, 0.2, 0.2)),)

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        require_same(self.name, *types)
        return super().infer(*types)

    def rule(self, anchor_box: TensorType, groundtruth_box: TensorType) -> str:
        _numbers(self.name, "means", self.means)
        if not all(_numbers(self.name, "stds", self.stds)):
            raise MspcError(f"{self.name}: stds must not be 0, but they are {self.stds!r}")
        _require_boxes(self.name, anchor_box, groundtruth_box)
        return "n f!, n f! -> n f!"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        (centre, sides), (wanted, size) = (_middles(xp, boxes) for boxes in inputs)
        found = xp.concatenate([(wanted - centre) / sides, xp.log(size / sides)], axis=1)
        means, stds = (xp.asarray(_numbers(self.name, "", n), found.dtype) for n in (self.means, self.stds))
        return (found - means) / stds


class BoundingBoxDecode(Op):
    """The boxes that differ so from anchors: the reverse of BoundingBoxEncode, within an image of `max_shape` (height,
    width). wh_ratio_clip: sides grow and shrink at most by this ratio."""

    max_shape: Any = (1, 1)
    means: Any = _FOUR
    stds: Any = _ONES
    wh_ratio_clip: float = 0.016
    bprop = _TARGETS
    samples = (
        sample((8, 4), (8, 4), low=0.1, high=5, gradient=False, max_shape=(7, 9), stds=(0.1, 0.1, 0.2, 0.2)),
    )

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        require_same(self.name, *types)
        return super().infer(*types)

    def rule(self, anchor_box: TensorType, deltas: TensorType) -> str:
        given: Any = self.max_shape
        if len(given) != 2 or not all(isinstance(n, int) and n > 0 for n in given):
            raise MspcError(f"{self.name}: max_shape must be two positive integers, not {given!r}")
        for what in ("means", "stds"):
            _numbers(self.name, what, getattr(self, what))
        _require_boxes(self.name, anchor_box, deltas)
        return "n f!, n f! -> n f!"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (anchors, deltas) = be.xp, inputs
        means, stds = (xp.asarray(_numbers(self.name, "", n), deltas.dtype) for n in (self.means, self.stds))
        scaled = deltas * stds + means
        limit = abs(math.log(self.wh_ratio_clip))
        centre, sides = _middles(xp, anchors)
        middle = centre + sides * scaled[:, :2]
        size = sides * xp.exp(xp.clip(scaled[:, 2:], -limit, limit))
        edges = xp.asarray([self.max_shape[1] - 1, self.max_shape[0] - 1], deltas.dtype)
        ends = [xp.clip(middle + sign * (size * 0.5 - 0.5), 0, edges) for sign in (-1, 1)]
        return xp.concatenate(ends, axis=1)


class NMSWithMask(Op):
    """(boxes [n, 5] with a score behind, the best first; 0 to n, Int32; which are left): a box goes if one that is left
    and better shares more than `iou_threshold` of both areas with it."""

    iou_threshold: float = 0.5
    bprop = _TARGETS
    samples = (sample((8, 5), low=0, high=4, gradient=False, iou_threshold=0.2),)

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        boxes, places, left = self.parsed_rule(*types).output_shapes()
        return TupleType((TensorType(types[0].dtype, boxes), TensorType(INT32, places), TensorType(BOOL, left)))

    def rule(self, bboxes: TensorType) -> str:
        _require_boxes(self.name, bboxes, columns=5)
        return "n! f! -> n! f!, n!, n!"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (boxes,) = be.xp, inputs
        order = xp.argsort(-boxes[:, 4], kind="stable")
        best = boxes[order]
        areas = xp.maximum(best[:, 2] - best[:, 0], 0) * xp.maximum(best[:, 3] - best[:, 1], 0)
        shared = _shared(xp, best, best, last=0)
        total = areas[:, None] + areas[None] - shared
        overlap = shared > self.iou_threshold * total
        left = xp.ones(best.shape[0], bool)
        for row in range(best.shape[0]):
            left[row + 1 :] &= ~(overlap[row, row + 1 :] & left[row])
        return best, xp.arange(best.shape[0], dtype=xp.int32), left


