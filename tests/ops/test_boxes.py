"""Boxes: numbers of MindSpore 2.10 on a CPU, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, ops
from mspc.ir.diagnostics import MspcError


def boxes(rows: Any) -> Tensor:
    return Tensor(np.array(rows, np.float32))


def test_overlaps() -> None:
    given = boxes([[0, 0, 3, 3], [1, 1, 4, 5]]), boxes([[0, 0, 2, 2]])
    np.testing.assert_allclose(ops.IOU()(*given).asnumpy(), [[0.5625, 0.16]], rtol=1e-6)
    np.testing.assert_allclose(ops.IOU("iof")(*given).asnumpy(), [[1.0, 0.44444445]], rtol=1e-6)


@pytest.mark.parametrize(("box", "inside"), [
    ((0, 0, 39, 19), True), ((5, 3, 6, 4), True),
    ((-1, 0, 39, 19), False), ((0, -1, 39, 19), False), ((0, 0, 40, 19), False), ((0, 0, 39, 20), False),
])  # fmt: skip
def test_boxes_of_an_image_lie_inside_of_it(box: tuple[int, ...], inside: bool) -> None:
    """Of 10 rows and 20 columns at twice the size; the last place is one less than the size."""
    metas = Tensor(np.array([10, 20, 2], np.float32))
    assert ops.CheckValid()(boxes([box, (0, 0, 1, 1)]), metas).asnumpy().tolist() == [inside, True]


def test_distances_and_back() -> None:
    anchors, true = boxes([[2, 2, 2, 3]] * 2), boxes([[1, 2, 1, 4]] * 2)
    found = ops.BoundingBoxEncode()(anchors, true)
    np.testing.assert_allclose(found.asnumpy(), [[-1, 0.25, 0, 0.4054651]] * 2, rtol=1e-6)
    np.testing.assert_allclose(ops.BoundingBoxDecode((9, 9))(anchors, found).asnumpy(), true.asnumpy(), rtol=1e-6)
    far = ops.BoundingBoxDecode((768, 1280))(boxes([[4, 1, 2, 1], [2, 2, 2, 3]]), boxes([[3, 1, 2, 2], [1, 2, 1, 4]]))
    expected = [[4.194528, 0, 0, 5.194528], [2.1408591, 0, 3.8591409, 60.59815]]
    np.testing.assert_allclose(far.asnumpy(), expected, rtol=1e-6)


def test_the_best_of_boxes_that_overlap_is_left() -> None:
    given = boxes([[0, 0, 10, 10, 0.6], [1, 1, 10, 10, 0.9], [20, 20, 30, 30, 0.5]])
    found, places, left = ops.NMSWithMask(0.5)(given)
    assert found.asnumpy().tolist() == given.asnumpy()[[1, 0, 2]].tolist()
    assert (places.asnumpy().tolist(), left.asnumpy().tolist()) == ([0, 1, 2], [True, False, True])


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ops.IOU("x")(boxes([[0, 0, 1, 1]]), boxes([[0, 0, 1, 1]])), "IOU: mode must be 'iou' or 'iof', not 'x'"),
    (lambda: ops.IOU()(boxes([[0, 0, 1]]), boxes([[0, 0, 1, 1]])),
     "IOU: input 0 must be boxes [n, 4], but its shape is (1, 3)"),
    (lambda: ops.NMSWithMask()(boxes([[0, 0, 1, 1]])),
     "NMSWithMask: input 0 must be boxes [n, 5], but its shape is (1, 4)"),
    (lambda: ops.BoundingBoxEncode(stds=(1, 1, 0, 1))(boxes([[0, 0, 1, 1]]), boxes([[0, 0, 1, 1]])),
     "BoundingBoxEncode: stds must not be 0, but they are (1, 1, 0, 1)"),
    (lambda: ops.BoundingBoxDecode((0, 3))(boxes([[0, 0, 1, 1]]), boxes([[0, 0, 1, 1]])),
     "BoundingBoxDecode: max_shape must be two positive integers, not (0, 3)"),
])  # fmt: skip
def test_what_is_refused(call: Any, message: str) -> None:
    with pytest.raises(MspcError) as caught:
        call()
    assert caught.value.message == message


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_a_box_without_an_end_holds_nothing(place: int) -> None:
    box = [0.0, 0, 0, 3, 3]
    box[place] = (np.nan, np.inf, -np.inf)[place % 3]
    found = ops.ROIAlign(2, 2, 0.5, place - 1)(Tensor(np.ones((1, 2, 4, 4), np.float32)), boxes([box]))
    assert not found.asnumpy().any()


def test_a_box_of_no_image() -> None:
    with pytest.raises(ValueError, match="ROIAlign: box 0 is of image nan, but there are 1"):
        ops.ROIAlign(2, 2, 0.5)(Tensor(np.ones((1, 2, 4, 4), np.float32)), boxes([[np.nan, 0, 0, 3, 3]]))
