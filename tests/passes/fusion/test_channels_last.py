"""channels_last and recompute_elementwise: random graphs compute the same, and what neither golden case shows."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mspc.passes.base import parse_passes, run_passes
from tests.graphs import FLOAT16, FLOAT32, Builder, Graph, Value
from tests.passes.fusion.test_fuse_elementwise import fused, names, new_graph, op, random_graph, run
from tests.shares import share_of

BATCH, CHANNELS, LENGTHS = 2, 3, (4, 5)


def random_images(seed: int) -> Graph:
    """Convolutions with what may be between them, over images whose dimensions all differ."""
    draw = random.Random(seed)
    shape = (BATCH, CHANNELS, *LENGTHS)
    graph, b, parameters = new_graph(
        x=("input", shape), w=("parameter", (CHANNELS, CHANNELS, 3, 3)), p=("parameter", (CHANNELS, CHANNELS, 1, 1)),
        c=("parameter", (CHANNELS, 1, 1)), r=("parameter", (5,)), k=("parameter", (CHANNELS,)),
    )  # fmt: skip
    x, w, p, c, r, k = parameters
    images: list[Value] = [x]
    others: list[Value] = [r]
    for _ in range(draw.randint(3, 14)):
        one, other = draw.choice(images[-3:]), draw.choice(images)
        kind = draw.randrange(24)
        if kind < 2:
            wide = {"out_channel": CHANNELS, "kernel_size": 3, "pad_mode": "same"}
            images.append(b.emit(op("Conv2D", **wide), one, w))
        elif kind == 2:
            images.append(b.emit(op("Conv2D", out_channel=CHANNELS, kernel_size=1), one, p))
        elif kind == 3:
            images.append(b.emit(op(draw.choice(("ReLU", "Tanh"))), one))
        elif kind == 4:
            images.append(b.emit(op(draw.choice(("Add", "Mul"))), one, draw.choice((other, c, r))))
        elif kind == 5:
            name = draw.choice(("MaxPool", "AvgPool"))
            images.append(b.emit(op(name, kernel_size=3, strides=1, pad_mode="same"), one))
        elif kind == 6:
            axis = draw.choice(((1,), (2, 3), (0, 2, 3), (3,), (0, 1), ()))
            others.append(b.emit(op("ReduceSum", axis=axis, keep_dims=draw.random() < 0.5), one))
        elif kind == 7:
            axis = draw.choice((1, 2, 3))
            joined = b.emit(op("Concat", axis=axis), one, other)
            begin = [0, 0, 0, 0]
            begin[axis] = draw.randrange(shape[axis])
            end = [a + n for a, n in zip(begin, shape, strict=True)]
            sliced = op("StridedSlice", begin=tuple(begin), end=tuple(end), strides=(1,) * 4)
            images.append(b.emit(sliced, joined))
        elif kind == 8:
            mean = b.emit(op("ReduceMean", axis=(2, 3), keep_dims=True), one)
            images.append(b.emit(op("Add"), b.emit(op("BroadcastTo", shape=shape), mean), other))
        elif kind == 11:
            channels_behind = draw.random() < 0.3
            bias = r if channels_behind else k
            images.append(b.emit(op("BiasAdd", data_format="NHWC" if channels_behind else "NCHW"), one, bias))
        elif kind == 12:
            behind = b.emit(op("Transpose", perm=(0, 2, 3, 1)), one)
            if draw.random() < 0.5:
                behind = b.emit(op("Mul"), behind, k)
            images.append(b.emit(op("Transpose", perm=(0, 3, 1, 2)), behind))
            others.append(b.emit(op("ReLU"), behind))
        elif kind == 13:
            turned = b.emit(op("Transpose", perm=draw.choice(((0, 1, 3, 2), (0, 3, 1, 2), (0, 2, 3, 1)))), one)
            others.append(b.emit(op("ReduceSum", axis=(1,)), b.emit(op("ReLU"), turned)))
        elif kind == 14:
            images.append(group_norm(b, one, draw.random() < 0.5))
        elif kind == 15:
            rows = b.emit(op("Reshape", shape=(BATCH, CHANNELS, -1)), one)
            tokens = b.emit(op("Transpose", perm=(0, 2, 1)), rows)
            tokens = b.emit(op("Mul"), b.emit(op("Softmax", axis=draw.choice((1, 2))), tokens), k)
            back = b.emit(op("Transpose", perm=(0, 2, 1)), tokens)
            images.append(b.emit(op("Reshape", shape=shape), back))
        elif kind == 16:
            images.append(b.emit(op(draw.choice(("Softmax", "LogSoftmax")), axis=draw.choice((1, -1))), one))
        elif kind == 17:
            images.append(b.emit(op("ReverseV2", axis=draw.choice(((1,), (2, 3), (0, 1)))), one))
        elif kind == 18:
            margins = ((0, 0), draw.choice(((0, 0), (1, 0))), (1, 2), (0, 1))
            made = op("Pad", paddings=margins)
            inner = b.emit(op("StridedSlice", begin=(0, margins[1][0], 1, 0), end=(BATCH, 9, 5, 5), strides=(1,) * 4),
                           b.emit(made, one))  # fmt: skip
            images.append(inner)
        elif kind == 19:
            halves = b.emit(op("Split", axis=draw.choice((0, 2)), output_num=2), one)
            images.append(b.emit(op("Concat", axis=halves.op.axis), *(get(b, halves, i) for i in (1, 0))))
        elif kind == 20:
            name = draw.choice(("ResizeNearestNeighbor", "ResizeBilinear"))
            images.append(b.emit(op(name, size=LENGTHS), b.emit(op(name, size=(3, 7)), one)))
        elif kind == 21:
            pieces = b.emit(op("Unstack", axis=draw.choice((0, 1, 3))), one)
            axis = pieces.op.axis
            images.append(b.emit(op("Stack", axis=axis), *(get(b, pieces, i) for i in reversed(range(shape[axis])))))
        elif kind == 22:  # channels become places: a pixel shuffle of an image twice beside itself
            wide = b.emit(op("Concat", axis=1), *[one] * 4)
            parts = b.emit(op("Reshape", shape=(BATCH, CHANNELS, 2, 2, *LENGTHS)), wide)
            large = b.emit(op("Transpose", perm=(0, 1, 4, 2, 5, 3)), parts)
            large = b.emit(op("Reshape", shape=(BATCH, CHANNELS, 8, 10)), large)
            images.append(b.emit(op("MaxPool", kernel_size=2, strides=2), b.emit(op("ReLU"), large)))
        elif kind == 23:
            axis = draw.choice((1, 2))
            part = op("StridedSlice", begin=(0,) * axis + (1,), end=(*(BATCH, CHANNELS, 9)[:axis], 2),
                      strides=(1,) * (axis + 1), shrink_axis_mask=1 << axis)  # fmt: skip
            sliced = b.emit(op("ReLU"), b.emit(part, one))
            images.append(b.emit(op("StridedSliceGrad", **part.attributes(), shape=shape), sliced))
        elif kind == 9:
            others.append(b.emit(op("Reshape", shape=(BATCH, -1)), one))
        else:
            sizes = {"out_channel": CHANNELS, "kernel_size": 3, "pad_mode": "same"}
            gradient = b.emit(op("Conv2DBackpropFilter", **sizes, filter_size=w.shape), one, other)
            others.append(b.emit(op("ReLU"), gradient))
            images.append(b.emit(op("Conv2DBackpropInput", **sizes, input_size=shape), one, w))
    graph.results = [images[-1], draw.choice(images), draw.choice(others), others[-1]]
    return graph


def get(b: Builder, value: Value, index: int) -> Value:
    return b.emit(op("TupleGetItem", index=index), value)


def group_norm(b: Builder, image: Value, gradient: bool) -> Value:
    """Three channels as one group, normalised together with all places; or the gradient of that in x."""
    rows = b.emit(op("Reshape", shape=(BATCH, 1, -1)), image)
    each = rows.shape[2]
    one, zero = (b.emit(op("BroadcastTo", shape=(each,)), b.constant(n, rows.tensor_type.dtype)) for n in (1.0, 0.0))
    norm = b.emit(op("LayerNorm", begin_norm_axis=2, begin_params_axis=2, epsilon=0.1), rows, one, zero)
    y, mean, variance = (get(b, norm, i) for i in range(3))
    if gradient:
        y = b.emit(op("LayerNormGrad", begin_norm_axis=2, epsilon=0.1), y, rows, mean, variance, one)
    return b.emit(op("Reshape", shape=image.shape), y)


@settings(max_examples=share_of(120), deadline=None)
@given(st.integers(0, 1 << 40))
def test_random_images_compute_the_same(seed: int) -> None:
    expected = run(fused(random_images(seed), "execute"))
    found = run(fused(random_images(seed), "execute,channels_last,fuse_elementwise,recompute_elementwise,execute"))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * max(1, float(np.abs(a).max())))


@settings(max_examples=share_of(100), deadline=None)
@given(st.integers(0, 1 << 40))
def test_recomputed_values_have_the_same_bits(seed: int) -> None:
    expected = run(fused(random_graph(seed), "execute,fuse_elementwise,execute"))
    found = run(fused(random_graph(seed), "execute,fuse_elementwise,recompute_elementwise,execute"))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_graphs_without_convolutions_stay() -> None:
    graph = random_graph(5)
    before = [node.op for node in graph.nodes]
    run_passes(graph, parse_passes("channels_last,split_batch_norm"))
    assert [node.op for node in graph.nodes] == before


def test_what_goes_along_channels_alone_stays_itself() -> None:
    """It is no line of a kernel of rows, but a node that is read."""
    graph, b, (x,) = new_graph(x=("input", (BATCH, CHANNELS, *LENGTHS)))
    graph.results = [b.emit(op("LogSoftmax", axis=1), x)]
    (node,) = run_passes(graph, parse_passes("fuse_rows,fuse_elementwise,recompute_elementwise")).nodes
    assert node.op == op("LogSoftmax", axis=1)


def test_what_only_a_view_is_left_of_is_that_view() -> None:
    """The rest of a kernel, which its readers compute again: a copy would be for nothing."""
    graph, b, (x, w) = new_graph(x=("input", (6, 4, 5)), w=("parameter", (6, 1, 5)))
    total = b.emit(op("ReduceSum", axis=(1,)), b.emit(op("Exp"), x))
    shown = b.emit(op("Reshape", shape=(6, 1, 5)), total)
    square = b.emit(op("Square"), b.emit(op("Neg"), shown))
    b.phase = "backward"
    graph.results = [shown, b.emit(op("Sub"), b.emit(op("Neg"), w), square)]
    expected = run(graph)
    found = fused(graph, "fuse_rows,fuse_elementwise")
    assert names(found) == ["FusedElementwise"] * 3
    found = fused(found, "recompute_elementwise")
    assert names(found) == ["FusedElementwise", "Reshape", "FusedElementwise"]
    for one, other in zip(run(found), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_value_that_is_read_in_both_orders_is_moved_once() -> None:
    """The image of two convolutions, of which two products read rows."""
    graph, b, (x, w, p) = new_graph(
        x=("input", (BATCH, CHANNELS, *LENGTHS)), w=("parameter", (CHANNELS, CHANNELS, 3, 3)), p=("parameter", (5, 5))
    )
    wide = op("Conv2D", out_channel=CHANNELS, kernel_size=3, pad_mode="same")
    image = b.emit(op("ReLU"), b.emit(wide, x, w))
    rows = b.emit(op("Reshape", shape=(BATCH * CHANNELS * LENGTHS[0], LENGTHS[1])), image)
    graph.results = [b.emit(wide, image, w), *(b.emit(op("MatMul", transpose_b=t), rows, p) for t in (True, False))]
    expected = run(graph)
    made = run_passes(graph, parse_passes("channels_last,execute"))
    assert [node.op.name for node in made.nodes].count("Transpose") == 4  # of x, the weights, the image and the result
    for found, wanted in zip(run(made), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_an_updated_weight_is_moved_again() -> None:
    """A convolution behind the update of its weights reads the new ones."""
    graph, b, (x, w) = new_graph(x=("input", (BATCH, CHANNELS, *LENGTHS)), w=("parameter", (CHANNELS, CHANNELS, 3, 3)))
    wide = op("Conv2D", out_channel=CHANNELS, kernel_size=3, pad_mode="same")
    rows = b.emit(op("ExpandDims", axis=0), w)  # what shows the weights, of which one is sent through a convolution
    first = b.emit(wide, x, b.emit(op("Squeeze", axis=0), rows))
    changed = b.emit(op("Assign"), w, b.emit(op("Mul"), w, b.constant(3.0, w.tensor_type.dtype)))
    second = b.emit(op("Depend"), x, changed)
    graph.results = [first, b.emit(wide, second, w), b.emit(op("ReLU"), rows)]
    expected = run(graph)
    found = run(run_passes(graph, parse_passes("channels_last,execute")))
    for a, c in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-5)


def test_slices_of_nothing_are_empty() -> None:
    graph, b, (x, w) = new_graph(x=("input", (BATCH, CHANNELS, *LENGTHS)), w=("parameter", (CHANNELS, CHANNELS, 3, 3)))
    image = b.emit(op("Conv2D", out_channel=CHANNELS, kernel_size=3, pad_mode="same"), x, w)
    nothing = op("StridedSlice", begin=(0, 0, 2), end=(BATCH, CHANNELS, 2), strides=(1, 1, 1))
    graph.results = [image, b.emit(op("ReLU"), b.emit(nothing, image))]
    made = run_passes(graph, parse_passes("channels_last,execute"))
    assert run(made)[1].shape == (BATCH, CHANNELS, 0, LENGTHS[1])


def test_statistics_of_an_image_that_was_fed_read_it_with_its_channels_last() -> None:
    """Its operand is no node that changes: there are two of it."""
    graph, b, (x, w, *moving) = new_graph(
        x=("input", (BATCH, CHANNELS, *LENGTHS)), w=("parameter", (CHANNELS, CHANNELS, 3, 3)),
        mean=("parameter", (CHANNELS,)), variance=("parameter", (CHANNELS,)),
    )  # fmt: skip
    image = b.emit(op("Conv2D", out_channel=CHANNELS, kernel_size=3, pad_mode="same"), x, w)
    statistics = b.emit(op("BatchStatistics"), x, *moving)
    graph.results = [image, *(b.emit(op("TupleGetItem", index=i), statistics) for i in range(2))]
    expected = run(graph)
    made = run_passes(graph, parse_passes("channels_last"))
    made.verify()
    (found,) = [node for node in made.nodes if node.op.name == "BatchStatistics"]
    assert found.inputs[0].shape == (BATCH, *LENGTHS, CHANNELS)
    for a, c in zip(expected, run(made), strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-5)


def test_an_image_that_a_script_transposes_itself_is_not_moved() -> None:
    """A bias, a norm over channels between two transposes, a sum with the image, another convolution: a block of
    ConvNeXt."""
    graph, b, (x, w, k) = new_graph(
        x=("input", (BATCH, CHANNELS, *LENGTHS)), w=("parameter", (CHANNELS, CHANNELS, 3, 3)),
        k=("parameter", (CHANNELS,)),
    )  # fmt: skip
    wide = op("Conv2D", out_channel=CHANNELS, kernel_size=3, pad_mode="same")
    first = b.emit(op("BiasAdd"), b.emit(wide, x, w), k)
    rows = b.emit(op("Softmax", axis=-1), b.emit(op("Transpose", perm=(0, 2, 3, 1)), first))
    back = b.emit(op("Transpose", perm=(0, 3, 1, 2)), b.emit(op("Mul"), rows, k))
    graph.results = [b.emit(wide, b.emit(op("Add"), first, back), w)]
    expected = run(graph)
    changed = run_passes(graph, parse_passes("channels_last,execute"))
    names = [node.op.name for node in changed.nodes]
    assert names.count("Transpose") == 3  # of x, of the weights, and of the result
    np.testing.assert_allclose(run(changed)[0], expected[0], rtol=1e-5)


def test_what_is_compared_for_equality_has_the_same_bits() -> None:
    """The gradient of a maximum looks for it among what it was chosen from: that is computed again from what its own
    kernel read, never from the rounded halves that it has stored."""
    graph, b, (x, w) = new_graph(x=("input", (6, 5, 4)), w=("input", (6, 5, 4)))
    half = b.emit(op("Square"), b.emit(op("Cast", dst_type=FLOAT16), x))
    wide = b.emit(op("Cast", dst_type=FLOAT32), half)
    most = b.emit(op("ReduceMax", keep_dims=True, axis=(1,)), wide)
    b.phase = "backward"
    chosen = b.emit(op("Select"), b.emit(op("Equal"), wide, most), w, b.emit(op("Neg"), w))
    graph.results = [half, chosen, most]
    found = fused(graph, "fuse_rows,fuse_elementwise,recompute_elementwise")
    (equal,) = (node for node in found.nodes if "Equal" in str(node.op))
    assert all(value.tensor_type.dtype == FLOAT32 for value in equal.inputs)


def test_means_of_channels_do_not_keep_an_image_from_being_read_again() -> None:
    """An image less its means is not stored for a second kernel, though the means wait for it beside the image."""
    shape = (8, 8, 64)
    graph, b, (x, dy, m) = new_graph(x=("input", shape), dy=("input", shape), m=("input", (64,)))
    image = b.emit(op("MatMul"), b.emit(op("Reshape", shape=(64, 64)), x), b.emit(op("Reshape", shape=(64, 64)), dy))
    mean = b.emit(op("Exp"), m)
    b.phase = "backward"
    apart = b.emit(op("Sub"), image, mean)
    total = b.emit(op("ReduceSum", axis=(0,)), b.emit(op("Mul"), apart, b.emit(op("Reshape", shape=(64, 64)), dy)))
    scale = b.emit(op("MatMul"), b.emit(op("Reshape", shape=(1, 64)), total), image)
    graph.results = [b.emit(op("Mul"), apart, scale)]
    expected = run(graph)
    graph = fused(graph, "fuse_rows,fuse_elementwise,recompute_elementwise")
    kernels = [node for node in graph.nodes if node.op.name == "FusedElementwise"]
    assert [value.shape for value in kernels] == [(64,), (64, 64)]
    for a, c in zip(run(graph), expected, strict=True):
        np.testing.assert_array_equal(a, c)
