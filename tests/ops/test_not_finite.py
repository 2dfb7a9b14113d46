"""NaN and infinity spread to what is computed of them and no further.

Erfinv: all digits near 0 and near 1, where the error function hardly changes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from mspc import Tensor, ops
from mspc.ops.convolution.argmax_pooling import AdaptiveMaxPool2D, MaxPoolWithArgmaxV2
from mspc.ops.convolution.resizing import (
    AdaptiveAvgPool2D,
    GridSampler2D,
    ResizeBicubic,
    ResizeBilinear,
    ResizeNearestNeighbor,
    ResizeTrilinear,
)
from mspc.ops.math.distance import Cdist
from mspc.ops.math.linear_algebra import Svd
from mspc.ops.op import Op
from tests.ops.simulate import BACKEND, results_of

MATRICES = np.random.default_rng(2).standard_normal((4, 3, 3)).astype(np.float32)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("op", [Svd(), Svd(compute_uv=False)], ids=str)
def test_other_matrices_stay_as_they_are(op: Op, bad: float) -> None:
    spoilt = MATRICES.copy()
    spoilt[1, 0, 2] = bad
    with np.errstate(all="ignore"):
        for found, expected in zip(results_of(op, [spoilt]), results_of(op, [MATRICES]), strict=True):
            if found.shape[:1] != (4,):
                continue
            np.testing.assert_array_equal(np.delete(found, 1, 0), np.delete(expected, 1, 0))
            assert not np.issubdtype(found.dtype, np.inexact) or np.isnan(found[1]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "op",
    [
        ResizeNearestNeighbor((7, 4)),
        ResizeBilinear((3, 9), half_pixel_centers=True),
        ResizeBicubic(size=(9, 3)),
        ops.ResizeNearestNeighborGrad(size=(4, 6), input_size=(2, 3, 8, 3)),
        AdaptiveAvgPool2D((3, 2)),
        ResizeTrilinear((3, 5, 4)),
    ],
    ids=str,
)
def test_images_of_other_sizes(op: Op, bad: float) -> None:
    """A place of the result is not finite if and only if it changes with the place of the image that is not."""
    x = np.random.default_rng(0).standard_normal((2, 3, *[4, 6, 5][: getattr(op, "dims", 2)]))
    place = (1, 2, *[1] * (x.ndim - 2))
    larger, spoilt = x.copy(), x.copy()
    larger[place] += 100
    spoilt[place] = bad
    with np.errstate(all="ignore"):
        plain, changed, found = map(op.kernel(BACKEND), (x, larger, spoilt))
    assert np.array_equal(np.isfinite(found), np.abs(plain - changed) < 1e-9)
    np.testing.assert_allclose(found[np.isfinite(found)], plain[np.isfinite(found)], rtol=1e-12)


def test_a_grid_outside_of_the_image_reads_nothing() -> None:
    x = np.ones((1, 1, 3, 3), np.float32)
    x[0, 0, 0, 0] = np.nan
    (found,) = results_of(GridSampler2D(), [x, np.full((1, 1, 2, 2), 3, np.float32)])
    assert not found.any()


def test_a_difference_that_is_nan_is_not_counted() -> None:
    x = np.array([[np.nan, 1.0, np.inf], [0.5, 1.0, 2.0]])
    (found,) = results_of(Cdist(p=0.0), [x, np.array([[0.0, 2.0, 2.0]])])
    np.testing.assert_array_equal(found, [[np.nan], [2.0]])


@pytest.mark.parametrize("op", [AdaptiveMaxPool2D(output_size=1), MaxPoolWithArgmaxV2(kernel_size=2)], ids=str)
def test_the_last_nan_of_a_window_is_its_greatest_value(op: Op) -> None:
    value, place = op.kernel(BACKEND)(np.array([[[[np.nan, 1.0], [np.nan, 5.0]]]]))
    assert np.isnan(value).all()
    assert place.item() == 2


def test_losses_with_margins_skip_nan() -> None:
    x = Tensor(np.array([[0.2, np.nan, 0.5, 1.0]], np.float32))
    for loss, target in ((ops.multi_margin_loss, [0]), (ops.multilabel_margin_loss, [[0, -1, 1, 1]])):
        assert loss(x, Tensor(target)).asnumpy() == pytest.approx((1.3 + 1.8) / 4)


def test_short_transforms_of_infinity_have_no_imaginary_part() -> None:
    found = ops.stft(Tensor(np.array([1.0, np.inf, 2.0, 3.0], np.float32)), 4, center=False).asnumpy()
    assert np.isinf(found[0, 0, 0])
    assert found[0, 0, 1] == 0


@pytest.mark.parametrize("x", [1e-300, 1e-9, 0.1, 0.5, 0.93, 0.935, 0.99, -0.3, -0.999])
def test_it_undoes_the_error_function(x: float) -> None:
    y = float(ops.erfinv(Tensor(np.array(x))).asnumpy())
    assert math.erf(y) == pytest.approx(x, rel=1e-14, abs=0)


@pytest.mark.parametrize("rest", [2.0**-10, 2.0**-30, 2.0**-52])
def test_near_1_it_counts_what_is_left(rest: float) -> None:
    up, down = (float(y) for y in ops.erfinv(Tensor(np.array([1 - rest, rest - 1]))).asnumpy())
    assert math.erfc(up) == pytest.approx(rest, rel=1e-13, abs=0)
    assert down == -up


def test_at_the_ends_and_beyond() -> None:
    x = np.array([0.0, 1.0, -1.0, 1.5, -2.0, np.nan, np.inf])
    with np.errstate(all="raise", under="ignore"):
        found = ops.erfinv(Tensor(x)).asnumpy()
    np.testing.assert_array_equal(found, [0, np.inf, -np.inf, np.nan, np.nan, np.nan, np.nan])
