"""Functions and cells of images against PyTorch, by all their names: values, every gradient, and places of maxima."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from mspc import Tensor, mint, nn, ops

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near, same  # noqa: E402  # it imports PyTorch
from tests.shares import is_taken  # noqa: E402

F, M = torch.nn.functional, mint.nn.functional
LINE, IMAGE, VOLUME = floats(1, 2, 4, 9), floats(2, 2, 4, 6, 8), floats(3, 2, 4, 4, 6, 3)
BY_DIMS = {1: LINE, 2: IMAGE, 3: VOLUME}
Call = Callable[..., Any]


class Twins(NamedTuple):
    """Calls of mspc that give the result of one of PyTorch."""

    name: str
    theirs: Call
    mine: Sequence[Call]
    arrays: Sequence[np.ndarray]


def called(home: Any, name: str, *given: Any, **named: Any) -> Call:
    return lambda *x: getattr(home, name)(*x, *given, **named)


def with_more(cell: Any, *given: Any, **named: Any) -> Call:
    return lambda *x: cell(*x, *given, **named)


def functions(name: str, arrays: Any, *given: Any, others: Sequence[Call] = (), **named: Any) -> Twins:
    """A function of `mint.nn.functional`, with PyTorch's name and arguments, and other names of it."""
    arrays = list(arrays) if isinstance(arrays, tuple | list) else [arrays]
    mine = called(M, name, *given, **named), *others
    return Twins(f"{name}{given}", called(F, name, *given, **named), mine, arrays)


def cells(name: str, x: np.ndarray, *given: Any, homes: Sequence[Any] = (nn, mint.nn)) -> Twins:
    theirs = getattr(torch.nn, name)(*given)
    return Twins(f"{name}{given}", theirs, [getattr(home, name)(*given) for home in homes], [x])


def first(call: Call) -> Call:
    """The call with the first of several results alone."""
    return lambda *x: found[0] if isinstance(found := call(*x), tuple) else found


def margins() -> Iterator[Twins]:
    """nn.ConstantPad2d nn.ReflectionPad2d nn.ZeroPad2d mint.nn.ConstantPad2d mint.nn.ReflectionPad2d
    mint.nn.ZeroPad2d"""
    for (dims, x), mode in product(BY_DIMS.items(), ("reflect", "replicate", "circular")):
        padding = (2, 1, 0, 3, 1, 1)[: 2 * dims]
        yield functions("pad", x, padding, mode, others=[called(ops, "pad", padding, mode)])
    for kind, padding in product(("Reflection", "Constant", "Zero"), (1, (2, 1, 0, 3))):
        yield cells(f"{kind}Pad2d", BY_DIMS[2], padding, *([1.5] if kind == "Constant" else []))


def pools() -> Iterator[Twins]:
    """mint.nn.MaxPool2d"""
    windows = [(2, None, 0, 1, False), (3, 2, 1, 1, False), ((3, 2), (1, 2), (1, 0), 1, True), (2, 1, 0, 2, False)]
    for size, stride, padding, dilation, ceil in windows:
        yield functions("max_pool2d", IMAGE, size, stride, padding, dilation, ceil, True, others=[
            called(ops, "max_pool2d", size, stride, padding, dilation, True, ceil),
            ops.MaxPoolWithArgmaxV2(size, stride, padding, dilation, ceil),
            nn.MaxPool2d(size, stride, "pad", padding, dilation, True, ceil),
            mint.nn.MaxPool2d(size, stride, padding, dilation, True, ceil),
        ])  # fmt: skip
    yield Twins("places of lines", called(F, "max_pool1d", 3, 2, 1, return_indices=True),
                [nn.MaxPool1d(3, 2, "pad", 1, return_indices=True)], [LINE])  # fmt: skip
    yield Twins("places of volumes", called(F, "max_pool3d", 2, 1, 1, return_indices=True), [
        nn.MaxPool3d(2, 1, "pad", 1, return_indices=True), ops.MaxPool3DWithArgmax(2, 1, 1),
        called(ops, "max_pool3d", 2, 1, 1, 1, False, True)], [VOLUME])  # fmt: skip
    yield Twins("max_pool3d", called(F, "max_pool3d", 3, 2, 1, 1, True), [called(ops, "max_pool3d", 3, 2, 1, 1, True)],
                [VOLUME])  # fmt: skip
    for output in (3, (2, 5), (None, 3), 1):
        yield functions("adaptive_max_pool2d", IMAGE, output, True, others=[
            called(ops, "adaptive_max_pool2d", output, True), ops.AdaptiveMaxPool2D(output),
            nn.AdaptiveMaxPool2d(output, True),
        ])  # fmt: skip
    yield cells("AdaptiveMaxPool2d", IMAGE[0], 3, homes=[nn])
    yield functions("adaptive_max_pool1d", LINE, 4, others=[called(ops, "adaptive_max_pool1d", 4)])
    sizes = (2, None, 1)
    yield Twins("adaptive_max_pool3d", called(F, "adaptive_max_pool3d", sizes, True), [
        called(ops, "adaptive_max_pool3d", sizes, True), lambda a: ops.AdaptiveMaxPool3D()(a, sizes)],
        [VOLUME])  # fmt: skip
    for name, given, x in (
        ("avg_pool1d", (3, 2, 1), LINE), ("avg_pool2d", (2,), IMAGE), ("avg_pool2d", (3, 1, 1, False, False), IMAGE),
        ("avg_pool3d", (2,), VOLUME), ("adaptive_avg_pool1d", (4,), LINE), ("adaptive_avg_pool2d", ((None, 3),), IMAGE),
        ("adaptive_avg_pool3d", (2,), VOLUME),
    ):  # fmt: skip
        yield functions(name, x, *given)


def sizes() -> Iterator[Twins]:
    """nn.ResizeBilinear mint.nn.Upsample"""
    for mode, size in (
        ("nearest", 5), ("linear", 17), ("nearest-exact", 12), ("area", 4), ("nearest", (9, 3)), ("bilinear", (9, 3)),
        ("nearest-exact", (7, 20)), ("area", (3, 5)), ("nearest", (3, 9, 4)), ("trilinear", (3, 9, 4)),
        ("nearest-exact", (5, 4, 6)), ("area", (3, 2, 1)),
    ):  # fmt: skip
        x = BY_DIMS[len(size) if isinstance(size, tuple) else 1]
        for align in (False, True) if "linear" in mode else (None,):
            given = size, None, mode, align
            others = [called(ops, "interpolate", *given), nn.Upsample(*given), mint.nn.Upsample(*given)]
            yield functions("interpolate", x, *given, others=others)
    # By centres MindSpore's cubic weights are those of PyTorch with antialias; they are the same where images grow.
    for size in ((11, 13), (6, 20)):
        yield Twins("bicubic", called(F, "interpolate", size, None, "bicubic", False, antialias=True),
                    [called(ops, "interpolate", size, None, "bicubic", False)], [IMAGE])  # fmt: skip
        yield Twins("ResizeBicubic", called(F, "interpolate", size, None, "bicubic", True),
                    [with_more(ops.ResizeBicubic(True), size)], [IMAGE])  # fmt: skip
    yield Twins("ResizeBilinear", called(F, "interpolate", (12, 16), None, "bilinear", False), [
        with_more(ops.ResizeBilinearV2(False, True), (12, 16)), called(ops, "upsample", None, 2, "bilinear"),
        with_more(nn.ResizeBilinear(True), scale_factor=2)], [IMAGE])  # fmt: skip
    yield Twins("ResizeTrilinear", called(F, "interpolate", (2, 3, 5), None, "trilinear", True),
                [ops.ResizeTrilinear((2, 3, 5), True)], [VOLUME])  # fmt: skip
    yield Twins("ResizeNearest3D", called(F, "interpolate", (2, 3, 5)), [ops.ResizeNearest3D((2, 3, 5))], [VOLUME])


COLUMNS = [(2, 1, 0, 2), ((3, 2), (1, 2), (1, 0), 1), (3, 1, 1, (2, 3))]
"""(kernel, dilation, padding, stride)"""


def moved() -> Iterator[Twins]:
    """nn.PixelShuffle nn.PixelUnshuffle mint.nn.PixelShuffle"""
    for given in COLUMNS:
        kernel, dilation, padding, stride = given
        im2col, col2im = ops.Im2Col(kernel, stride, dilation, padding), ops.Col2Im(kernel, dilation, padding, stride)
        columns, shape = F.unfold(torch.tensor(IMAGE), *given).numpy(), im2col(Tensor(IMAGE)).shape
        yield functions("unfold", IMAGE, *given, others=[
            called(ops, "unfold", *given), lambda x, op=im2col, like=columns: op(x).reshape(like.shape)])  # fmt: skip
        yield functions("fold", columns, (6, 8), *given, others=[
            called(ops, "fold", (6, 8), *given), lambda x, op=col2im, to=shape: op(x.reshape(to), (6, 8))])  # fmt: skip
    grid, deep = floats(5, 2, 5, 3, 2, low=-1.8, high=1.8), floats(6, 2, 2, 3, 2, 3, low=-1.8, high=1.8)
    for mode, padding, align in product(("bilinear", "nearest"), ("zeros", "border", "reflection"), (False, True)):
        given = mode, padding, align
        for x, at, op in ((IMAGE, grid, ops.GridSampler2D), (VOLUME, deep, ops.GridSampler3D)):
            yield functions("grid_sample", [x, at], *given, others=[called(ops, "grid_sample", *given), op(*given)])
    for align, (size, theta) in product((False, True), (((2, 3, 4, 5), (2, 2, 3)), ((2, 3, 4, 1, 5), (2, 3, 4)))):
        yield Twins("affine_grid", called(F, "affine_grid", size, align_corners=align),
                    [called(ops, "affine_grid", size, align)], [floats(1, *theta)])  # fmt: skip
    yield functions("pixel_shuffle", IMAGE, 2, others=[called(ops, "pixel_shuffle", 2), mint.nn.PixelShuffle(2)])
    yield cells("PixelShuffle", IMAGE[0], 2, homes=[nn])
    yield Twins("pixel_unshuffle", called(F, "pixel_unshuffle", 2),
                [called(ops, "pixel_unshuffle", 2), nn.PixelUnshuffle(2)], [IMAGE])  # fmt: skip
    yield Twins("channel_shuffle", called(F, "channel_shuffle", 2), [called(ops, "channel_shuffle", 2)], [IMAGE])


def multiplied() -> Iterator[Twins]:
    arrays = [floats(1, 2, 4, 5, 6), floats(2, 4, 3, 3, 2), floats(3, 6)]
    for given in (((2, 1), 1, (1, 0), 2, 1), (1, 0, 0, 2, 2), (2, 1, 2, 2, 3)):
        yield functions("conv_transpose2d", arrays, *given, others=[called(ops, "conv_transpose2d", *given)])
    weight, bias = floats(5, 6, 4, 3, 3), floats(6, 6)
    for given in ((1, 1), (2, (1, 0), 1), (1, "same", 2), (1, "valid")):
        yield functions("conv2d", [IMAGE, weight, bias], *given)
    for given in ((2, 1), (1, "same")):
        yield functions("conv1d", [LINE, weight[..., 0]], None, *given)
    yield functions("conv3d", [VOLUME, floats(7, 2, 4, 3, 2, 3)], None, 1, (1, 0, 1))
    for name, given in (("group_norm", (2,)), ("normalize", ()), ("normalize", (1.0, -1)), ("hardtanh", (-0.3, 0.4))):
        yield functions(name, IMAGE, *given)
    yield functions("batch_norm", IMAGE, None, None, training=True)


@pytest.mark.parametrize("family", [margins, pools, sizes, moved, multiplied], ids=lambda family: family.__name__)
def test_every_name_is_pytorchs(family: Callable[[], Iterator[Twins]]) -> None:
    """Gradients are those of the first name, and of a share of the others, which call the same operator."""
    for number, twins in enumerate(family()):
        found = twins.theirs(*map(torch.tensor, twins.arrays))
        for place, mine in enumerate(twins.mine):
            grads = () if place and not is_taken(number + place, 3) else None
            try:
                same(first(mine), first(twins.theirs), twins.arrays, grads=grads)
                if isinstance(found, tuple):
                    near(mine(*map(Tensor, twins.arrays))[1].asnumpy(), found[1].numpy(), "places")
            except AssertionError as error:
                error.add_note(f"of {twins.name}, {mine}")
                raise


def test_mirrors() -> None:
    """nn.Pad"""
    pairs = ((0, 0), (0, 0), (3, 1), (2, 5))
    same(lambda a: ops.MirrorPad("REFLECT")(a, pairs), lambda a: F.pad(a, (2, 5, 3, 1), "reflect"), [IMAGE])
    x = floats(1, 3, 4)
    mine = ops.MirrorPad("SYMMETRIC")(Tensor(x), ((3, 1), (2, 4)))
    assert np.array_equal(mine.asnumpy(), np.pad(x, ((3, 1), (2, 4)), "symmetric"))
    assert np.array_equal(nn.Pad(((3, 1), (2, 4)), "SYMMETRIC")(Tensor(x)).asnumpy(), mine.asnumpy())
    same(nn.Pad(pairs, "REFLECT"), lambda a: F.pad(a, (2, 5, 3, 1), "reflect"), [IMAGE])
    same(nn.Pad(pairs), lambda a: F.pad(a, (2, 5, 3, 1)), [IMAGE])


def test_places_of_ties_and_of_nan() -> None:
    x = np.array([[[[1.0, 1, 0, 2], [1, 1, 2, 2], [np.nan, 3, np.nan, np.nan], [4, 3, -np.inf, 0]]]])
    mine = ops.max_pool2d(Tensor(x), 2, return_indices=True)
    theirs = F.max_pool2d(torch.tensor(x), 2, return_indices=True)
    assert np.array_equal(mine[1].asnumpy()[0, 0, 0], theirs[1].numpy()[0, 0, 0])
    assert np.array_equal(mine[0].asnumpy(), theirs[0].numpy(), equal_nan=True)
    low = np.full((1, 1, 2, 2), -np.inf)
    found = ops.max_pool2d(Tensor(low), 3, 1, 1, return_indices=True)[1].asnumpy()
    assert found.min() >= 0, "a place of padding"


@pytest.mark.parametrize("size", [None, (7, 9)])
def test_unpooling(size: Any) -> None:
    _, places = F.max_pool2d(torch.tensor(IMAGE), 2, return_indices=True)
    x, at = floats(7, 2, 4, 3, 4), Tensor(places.numpy())
    for mine in (
        called(ops, "max_unpool2d", at, 2, output_size=size), called(M, "max_unpool2d", at, 2, output_size=size),
        *([] if size else [with_more(ops.MaxUnpool2D(2), at)]),
    ):  # fmt: skip
        same(mine, called(F, "max_unpool2d", places, 2, output_size=size), [x])
