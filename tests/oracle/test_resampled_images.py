"""Resizing, columns, grids, boxes and blocks of images against PyTorch: values and every gradient."""

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


@pytest.mark.parametrize(
    ("mode", "size"),
    [
        ("nearest", 5),
        ("linear", 17),
        ("nearest-exact", 12),
        ("area", 4),
        ("nearest", (9, 3)),
        ("bilinear", (9, 3)),
        ("nearest-exact", (7, 20)),
        ("area", (3, 5)),
        ("nearest", (3, 9, 4)),
        ("trilinear", (3, 9, 4)),
        ("nearest-exact", (5, 4, 6)),
        ("area", (3, 2, 1)),
    ],
)
def test_other_sizes(mode: str, size: Any) -> None:
    x = BY_DIMS[len(size) if isinstance(size, tuple) else 1]
    for align in (False, True) if "linear" in mode else (None,):

        def theirs(a: Any, c: Any = align) -> Any:
            return F.interpolate(a, size, None, mode, c)

        same(lambda a, c=align: ops.interpolate(a, size, None, mode, c), theirs, [x])
        same(nn.Upsample(size, None, mode, align), theirs, [x])
        same(mint.nn.Upsample(size, None, mode, align), theirs, [x])
        same(lambda a, c=align: mint.nn.functional.interpolate(a, size, None, mode, c), theirs, [x])


def test_cubic_resizing() -> None:
    """By centres MindSpore's weights are those that PyTorch has with antialias; they are the same where images grow."""
    for size in ((11, 13), (6, 20)):
        same(
            lambda a, s=size: ops.interpolate(a, s, None, "bicubic", False),
            lambda a, s=size: F.interpolate(a, s, None, "bicubic", False, antialias=True),
            [IMAGE],
        )
        same(
            lambda a, s=size: ops.ResizeBicubic(True)(a, s),
            lambda a, s=size: F.interpolate(a, s, None, "bicubic", True),
            [IMAGE],
        )


def test_resizing_by_other_names() -> None:
    def theirs(a: Any) -> Any:
        return F.interpolate(a, (12, 16), None, "bilinear", False)

    same(lambda a: ops.ResizeBilinearV2(False, True)(a, (12, 16)), theirs, [IMAGE])
    same(lambda a: ops.upsample(a, None, 2, "bilinear"), theirs, [IMAGE])
    same(lambda a: nn.ResizeBilinear(True)(a, scale_factor=2), theirs, [IMAGE])
    same(mint.nn.UpsamplingBilinear2d((7, 9)), torch.nn.UpsamplingBilinear2d((7, 9)), [IMAGE])
    same(mint.nn.UpsamplingNearest2d(scale_factor=3), torch.nn.UpsamplingNearest2d(scale_factor=3), [IMAGE])
    same(
        lambda a: ops.ResizeTrilinear((2, 3, 5), True)(a),
        lambda a: F.interpolate(a, (2, 3, 5), None, "trilinear", True),
        [VOLUME],
    )
    same(lambda a: ops.ResizeNearest3D((2, 3, 5))(a), lambda a: F.interpolate(a, (2, 3, 5)), [VOLUME])


@pytest.mark.parametrize(
    ("kernel", "dilation", "padding", "stride"), [(2, 1, 0, 2), ((3, 2), (1, 2), (1, 0), 1), (3, 1, 1, (2, 3))]
)
def test_columns(kernel: Any, dilation: Any, padding: Any, stride: Any) -> None:
    given = (kernel, dilation, padding, stride)
    columns = F.unfold(torch.tensor(IMAGE), *given).numpy()
    for mine in (
        lambda a: ops.unfold(a, *given),
        mint.nn.Unfold(*given),
        lambda a: mint.nn.functional.unfold(a, *given),
    ):
        same(mine, lambda a: F.unfold(a, *given), [IMAGE])
    for mine in (
        lambda a: ops.fold(a, (6, 8), *given),
        mint.nn.Fold((6, 8), *given),
        lambda a: mint.nn.functional.fold(a, (6, 8), *given),
    ):
        same(mine, lambda a: F.fold(a, (6, 8), *given), [columns])
    grouped = ops.Im2Col(kernel, stride, dilation, padding)(Tensor(IMAGE))
    assert np.array_equal(grouped.asnumpy().reshape(columns.shape), columns)
    back = ops.Col2Im(kernel, dilation, padding, stride)(grouped, (6, 8))
    near(back.asnumpy(), F.fold(torch.tensor(columns), (6, 8), *given).numpy(), "image")


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_patches_stand_place_by_place(padding: str) -> None:
    mine = nn.Unfold([1, 3, 2, 1], [1, 2, 1, 1], [1, 1, 1, 1], padding)(Tensor(IMAGE)).asnumpy()
    whole = np.pad(IMAGE, ((0, 0), (0, 0), (0, 1), (0, 1))) if padding == "same" else IMAGE
    columns = F.unfold(torch.tensor(whole), (3, 2), stride=(2, 1)).numpy()
    expected = columns.reshape(2, 4, 6, -1).transpose(0, 2, 1, 3).reshape(2, 24, *mine.shape[2:])
    assert np.array_equal(mine, expected)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grids(mode: str, padding: str, align: bool) -> None:
    grid, deep = floats(5, 2, 5, 3, 2, low=-1.8, high=1.8), floats(6, 2, 2, 3, 2, 3, low=-1.8, high=1.8)
    for x, at, op in ((IMAGE, grid, ops.GridSampler2D), (VOLUME, deep, ops.GridSampler3D)):
        for mine in (
            lambda a, g: ops.grid_sample(a, g, mode, padding, align),
            op(mode, padding, align),
            lambda a, g: mint.nn.functional.grid_sample(a, g, mode, padding, align),
        ):
            same(mine, lambda a, g: F.grid_sample(a, g, mode, padding, align), [x, at])


@pytest.mark.parametrize("align", [False, True])
def test_affine_grids(align: bool) -> None:
    for size, theta in (((2, 3, 4, 5), floats(1, 2, 2, 3)), ((2, 3, 4, 1, 5), floats(2, 2, 3, 4))):
        same(
            lambda t, s=size: ops.affine_grid(t, s, align),
            lambda t, s=size: F.affine_grid(t, s, align_corners=align),
            [theta],
        )


def test_blocks_of_channels() -> None:
    same(lambda a: ops.pixel_shuffle(a, 2), lambda a: F.pixel_shuffle(a, 2), [IMAGE])
    same(nn.PixelShuffle(2), lambda a: F.pixel_shuffle(a, 2), [IMAGE[0]])
    same(mint.nn.PixelShuffle(2), lambda a: F.pixel_shuffle(a, 2), [IMAGE])
    same(lambda a: mint.nn.functional.pixel_shuffle(a, 2), lambda a: F.pixel_shuffle(a, 2), [IMAGE])
    same(lambda a: ops.pixel_unshuffle(a, 2), lambda a: F.pixel_unshuffle(a, 2), [IMAGE])
    same(nn.PixelUnshuffle(2), lambda a: F.pixel_unshuffle(a, 2), [IMAGE])
    same(lambda a: ops.channel_shuffle(a, 2), lambda a: F.channel_shuffle(a, 2), [IMAGE])
    same(nn.ChannelShuffle(2), lambda a: F.channel_shuffle(a, 2), [IMAGE])
    shuffled = lambda a: F.pixel_shuffle(a.reshape(2, 4, 1, 6, 8).transpose(1, 2).reshape(2, 4, 6, 8), 2)  # noqa: E731
    same(lambda a: ops.DepthToSpace(2)(a), shuffled, [IMAGE])
    same(lambda a: ops.SpaceToDepth(2)(ops.DepthToSpace(2)(a)), lambda a: a * 1, [IMAGE])


def test_blocks_are_those_of_mindspore() -> None:
    """Numbers of MindSpore 2.10 on a CPU."""
    deep = Tensor(np.arange(16, dtype=np.float32).reshape(1, 8, 1, 2))
    assert ops.DepthToSpace(2)(deep).asnumpy().tolist() == [
        [[[0, 4, 1, 5], [8, 12, 9, 13]], [[2, 6, 3, 7], [10, 14, 11, 15]]]
    ]
    wide = Tensor(np.arange(16, dtype=np.float32).reshape(1, 2, 2, 4))
    assert ops.SpaceToDepth(2)(wide).asnumpy().reshape(-1).tolist() == [
        0,
        2,
        8,
        10,
        1,
        3,
        9,
        11,
        4,
        6,
        12,
        14,
        5,
        7,
        13,
        15,
    ]


def test_transposed_convolution_as_a_function() -> None:
    arrays = [floats(1, 2, 4, 5, 6), floats(2, 4, 3, 3, 2), floats(3, 6)]
    for given in (((2, 1), 1, (1, 0), 2, 1), (1, 0, 0, 2, 2)):
        for mine in (ops.conv_transpose2d, mint.nn.functional.conv_transpose2d):
            same(
                lambda a, w, b, m=mine, g=given: m(a, w, b, *g),
                lambda a, w, b, g=given: F.conv_transpose2d(a, w, b, *g),
                arrays,
            )
