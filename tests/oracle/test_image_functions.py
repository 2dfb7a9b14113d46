"""Margins, response normalisation and places of maxima against PyTorch: values and every gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, mint, nn, ops

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near, same  # noqa: E402  # it imports PyTorch

F = torch.nn.functional
LINE, IMAGE, VOLUME = floats(1, 2, 4, 9), floats(2, 2, 4, 6, 8), floats(3, 2, 4, 4, 6, 3)
BY_DIMS = {1: LINE, 2: IMAGE, 3: VOLUME}


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_margins(dims: int, mode: str) -> None:
    padding = (2, 1, 0, 3, 1, 1)[: 2 * dims]
    same(lambda a: ops.pad(a, padding, mode), lambda a: F.pad(a, padding, mode), [BY_DIMS[dims]])
    same(lambda a: mint.nn.functional.pad(a, padding, mode), lambda a: F.pad(a, padding, mode), [BY_DIMS[dims]])


def test_mirrors() -> None:
    pairs = ((0, 0), (0, 0), (3, 1), (2, 5))
    same(lambda a: ops.MirrorPad("REFLECT")(a, pairs), lambda a: F.pad(a, (2, 5, 3, 1), "reflect"), [IMAGE])
    x = floats(1, 3, 4)
    mine = ops.MirrorPad("SYMMETRIC")(Tensor(x), ((3, 1), (2, 4)))
    assert np.array_equal(mine.asnumpy(), np.pad(x, ((3, 1), (2, 4)), "symmetric"))
    assert np.array_equal(nn.Pad(((3, 1), (2, 4)), "SYMMETRIC")(Tensor(x)).asnumpy(), mine.asnumpy())
    same(nn.Pad(pairs, "REFLECT"), lambda a: F.pad(a, (2, 5, 3, 1), "reflect"), [IMAGE])
    same(nn.Pad(pairs), lambda a: F.pad(a, (2, 5, 3, 1)), [IMAGE])


@pytest.mark.parametrize("padding", [1, (2, 1, 0, 3, 1, 1)])
@pytest.mark.parametrize(
    "name",
    [
        "ReflectionPad1d",
        "ReflectionPad2d",
        "ReflectionPad3d",
        "ReplicationPad1d",
        "ReplicationPad2d",
        "ReplicationPad3d",
        "ConstantPad1d",
        "ConstantPad2d",
        "ConstantPad3d",
        "ZeroPad1d",
        "ZeroPad2d",
        "ZeroPad3d",
    ],
)
def test_cells_of_margins(name: str, padding: Any) -> None:
    """nn.ConstantPad1d nn.ConstantPad2d nn.ConstantPad3d nn.ReflectionPad1d nn.ReflectionPad2d nn.ReflectionPad3d
    nn.ReplicationPad1d nn.ReplicationPad2d nn.ReplicationPad3d nn.ZeroPad2d mint.nn.ConstantPad1d mint.nn.ConstantPad2d
    mint.nn.ConstantPad3d mint.nn.ReflectionPad1d mint.nn.ReflectionPad2d mint.nn.ReflectionPad3d
    mint.nn.ReplicationPad1d mint.nn.ReplicationPad2d mint.nn.ReplicationPad3d mint.nn.ZeroPad1d mint.nn.ZeroPad2d
    mint.nn.ZeroPad3d"""
    dims = int(name[-2])
    given = padding if isinstance(padding, int) else padding[: 2 * dims]
    arguments = (given, 1.5) if "Constant" in name else (given,)
    theirs = getattr(torch.nn, name)(*arguments)
    for module in (nn, mint.nn):
        if module is mint.nn or name not in ("ZeroPad1d", "ZeroPad3d"):
            same(getattr(module, name)(*arguments), theirs, [BY_DIMS[dims]])


@pytest.mark.parametrize(
    ("depth", "alpha", "beta", "bias"), [(1, 1e-2, 0.75, 1.0), (5, 1.0, 0.5, 2.0), (0, 0.3, 1.5, 1.0)]
)
def test_response_norm(depth: int, alpha: float, beta: float, bias: float) -> None:
    size = 2 * depth + 1

    def theirs(a: Any) -> Any:
        return F.local_response_norm(a, size, alpha * size, beta, bias)

    same(lambda a: ops.lrn(a, depth, bias, alpha, beta), theirs, [IMAGE])
    same(lambda a: ops.LRN(depth, bias, alpha, beta)(a), theirs, [IMAGE])
    same(nn.LRN(depth, bias, alpha, beta), theirs, [IMAGE])


WINDOWS = [(2, None, 0, 1, False), (3, 2, 1, 1, False), ((3, 2), (1, 2), (1, 0), 1, True), (2, 1, 0, 2, False)]


def pair(mine: Any, theirs: Any, x: np.ndarray) -> None:
    """Values with gradients, and places."""
    same(lambda a: mine(a)[0], lambda a: theirs(a)[0], [x])
    places = mine(Tensor(x))[1].asnumpy()
    near(places, theirs(torch.tensor(x))[1].numpy(), "places")


@pytest.mark.parametrize(("size", "stride", "padding", "dilation", "ceil"), WINDOWS)
def test_max_pool_with_places(size: Any, stride: Any, padding: Any, dilation: int, ceil: bool) -> None:
    def theirs(a: Any) -> Any:
        return F.max_pool2d(a, size, stride, padding, dilation, ceil, True)

    pair(lambda a: ops.max_pool2d(a, size, stride, padding, dilation, True, ceil), theirs, IMAGE)
    pair(lambda a: mint.nn.functional.max_pool2d(a, size, stride, padding, dilation, ceil, True), theirs, IMAGE)
    pair(ops.MaxPoolWithArgmaxV2(size, stride, padding, dilation, ceil), theirs, IMAGE)
    pair(nn.MaxPool2d(size, stride, "pad", padding, dilation, True, ceil), theirs, IMAGE)
    pair(mint.nn.MaxPool2d(size, stride, padding, dilation, True, ceil), theirs, IMAGE)


def test_places_of_ties_and_of_nan() -> None:
    x = np.array(
        [[[[1.0, 1.0, 0.0, 2.0], [1.0, 1.0, 2.0, 2.0], [np.nan, 3.0, np.nan, np.nan], [4.0, 3.0, -np.inf, 0.0]]]]
    )
    mine, theirs = (
        ops.max_pool2d(Tensor(x), 2, return_indices=True),
        F.max_pool2d(torch.tensor(x), 2, return_indices=True),
    )
    assert np.array_equal(mine[1].asnumpy()[0, 0, 0], theirs[1].numpy()[0, 0, 0])
    assert np.array_equal(mine[0].asnumpy(), theirs[0].numpy(), equal_nan=True)
    low = np.full((1, 1, 2, 2), -np.inf)
    found = ops.max_pool2d(Tensor(low), 3, 1, 1, return_indices=True)[1].asnumpy()
    assert found.min() >= 0, "a place of padding"


def test_places_of_lines_and_volumes() -> None:
    pair(
        nn.MaxPool1d(3, 2, "pad", 1, return_indices=True), lambda a: F.max_pool1d(a, 3, 2, 1, return_indices=True), LINE
    )
    for mine in (
        nn.MaxPool3d(2, 1, "pad", 1, return_indices=True),
        ops.MaxPool3DWithArgmax(2, 1, 1),
        lambda a: ops.max_pool3d(a, 2, 1, 1, 1, False, True),
    ):
        pair(mine, lambda a: F.max_pool3d(a, 2, 1, 1, return_indices=True), VOLUME)
    same(lambda a: ops.max_pool3d(a, 3, 2, 1, 1, True), lambda a: F.max_pool3d(a, 3, 2, 1, 1, True), [VOLUME])


@pytest.mark.parametrize("output", [3, (2, 5), (None, 3), 1])
def test_adaptive_maxima(output: Any) -> None:
    def theirs(a: Any) -> Any:
        return F.adaptive_max_pool2d(a, output, return_indices=True)

    pair(lambda a: ops.adaptive_max_pool2d(a, output, True), theirs, IMAGE)
    pair(lambda a: mint.nn.functional.adaptive_max_pool2d(a, output, True), theirs, IMAGE)
    pair(ops.AdaptiveMaxPool2D(output), theirs, IMAGE)
    pair(nn.AdaptiveMaxPool2d(output, True), theirs, IMAGE)
    pair(mint.nn.AdaptiveMaxPool2d(output, True), theirs, IMAGE)
    same(nn.AdaptiveMaxPool2d(output), torch.nn.AdaptiveMaxPool2d(output), [IMAGE[0]])


def test_adaptive_maxima_of_lines_and_volumes() -> None:
    same(lambda a: ops.adaptive_max_pool1d(a, 4), lambda a: F.adaptive_max_pool1d(a, 4), [LINE])
    same(nn.AdaptiveMaxPool1d(4), lambda a: F.adaptive_max_pool1d(a, 4), [LINE])
    pair(mint.nn.AdaptiveMaxPool1d(4, True), lambda a: F.adaptive_max_pool1d(a, 4, return_indices=True), LINE)
    for mine in (
        lambda a: ops.adaptive_max_pool3d(a, (2, None, 1), True),
        nn.AdaptiveMaxPool3d((2, None, 1), True),
        lambda a: ops.AdaptiveMaxPool3D()(a, (2, None, 1)),
    ):
        same(lambda a, m=mine: m(a)[0], lambda a: F.adaptive_max_pool3d(a, (2, None, 1)), [VOLUME])
        judged = F.adaptive_max_pool3d(torch.tensor(VOLUME), (2, None, 1), return_indices=True)[1]
        near(mine(Tensor(VOLUME))[1].asnumpy(), judged.numpy().astype(np.int32), "places")


@pytest.mark.parametrize("size", [None, (7, 9)])
def test_unpooling(size: Any) -> None:
    _, places = F.max_pool2d(torch.tensor(IMAGE), 2, return_indices=True)
    x, at = floats(7, 2, 4, 3, 4), places.numpy()
    for mine in (
        lambda a, i: ops.max_unpool2d(a, i, 2, output_size=size),
        lambda a, i: nn.MaxUnpool2d(2)(a, i, size),
        lambda a, i: mint.nn.functional.max_unpool2d(a, i, 2, output_size=size),
    ):
        same(lambda a, m=mine: m(a, Tensor(at)), lambda a: F.max_unpool2d(a, places, 2, output_size=size), [x])
    same(lambda a: ops.MaxUnpool2D(2)(a, Tensor(at)), lambda a: F.max_unpool2d(a, places, 2), [x])
    same(lambda a: mint.nn.MaxUnpool2d(2)(a, Tensor(at)), lambda a: F.max_unpool2d(a, places, 2), [x])
