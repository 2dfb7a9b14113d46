"""MindSpore's lists of steps between layouts: taken on arrays, and against lists that MindSpore 2.10.0 has made."""

import math
import random

import numpy as np
import pytest

from mspc import Tensor
from mspc.ir.layout import Layout
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.parallel import _tensor as listed

BY_MINDSPORE = [
    (((8,), (0, -1), (32, 256)), ((4, 2), (1, -1), (32, 256)), 8, 0,
     [("Reshape", [1, 4, 256]), ("AllConcat", [0, 1, 1]), ("Reshape", [8, 256])]),
    (((2, 2, 2), (2, 1, 0), (32, 64, 128)), ((8, 1, 1), (2, 1, 0), (32, 64, 128)), 8, 1,
     [("Reshape", [1, 2, 8, 32, 64]), ("AllConcat", [1, 3, 3]),
      ("StridedSlice", [0, 0, 0, 0, 0, 1, 1, 8, 64, 64, 1, 1, 1, 1, 1]), ("AllConcat", [0, 1, 4]),
      ("StridedSlice", [0, 0, 4, 0, 0, 1, 1, 8, 64, 128, 1, 1, 1, 1, 1]), ("Reshape", [4, 64, 128])]),
    (((8, 1), (1, -1), (32, 64)), ((1, 8), (-1, 0), (32, 64)), 8, 0,
     [("AllConcat", [0, 1, 2, 3, 4, 5, 6, 7, 0]), ("StridedSlice", [0, 0, 32, 8, 1, 1])]),
    (((2, 2, 2), (2, -1, 1), (48, 48, 24)), ((4, 2), (0, 1, -1), (48, 48, 24)), 8, 0,
     [("Reshape", [24, 2, 24, 12]), ("AllConcat", [0, 4, 0]),
      ("StridedSlice", [0, 0, 0, 0, 48, 1, 24, 12, 1, 1, 1, 1]), ("AllConcat", [0, 2, 3]),
      ("StridedSlice", [0, 0, 0, 0, 48, 1, 12, 24, 1, 1, 1, 1]),
      ("StridedSlice", [0, 0, 0, 0, 24, 1, 12, 24, 1, 1, 1, 1]), ("Reshape", [24, 12, 24])]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "ranks", "rank", "steps"), BY_MINDSPORE)
def test_steps_are_those_of_mindspore(source, target, ranks, rank, steps):
    assert listed._transform_tensor_by_layout(source, target, list(range(ranks)), rank) == steps


def _layout(draw, ranks, shape):
    mesh = draw.choice({8: [(8,), (2, 4), (4, 2), (2, 2, 2)], 12: [(12,), (3, 4), (2, 3, 2), (4, 3)]}[ranks])
    free, tensor_map = list(range(len(mesh))), []
    for size in shape:
        axis = draw.choice([-1, *free])
        axis = axis if axis < 0 or size % mesh[-1 - axis] == 0 else -1
        free = [a for a in free if a != axis]
        tensor_map.append(axis)
    return mesh, tensor_map, shape


def _slices(layout, global_tensor):
    mesh, tensor_map, shape = layout
    placed = Layout.of(mesh, [() if axis < 0 else (len(mesh) - 1 - axis,) for axis in tensor_map])
    return {rank: global_tensor.reshape(shape)[placed.slices_for(rank, shape)] for rank in range(math.prod(mesh))}


@pytest.mark.parametrize("seed", range(12))
def test_steps_on_arrays_give_the_slices_of_the_other_layout(seed):
    draw = random.Random(seed)
    ranks = draw.choice([8, 12])
    shape = [draw.choice([8, 12, 24]) for _ in range(draw.choice([1, 2, 3]))]
    other = [shape[0] * shape[1], *shape[2:]] if len(shape) > 1 and seed % 4 == 0 else shape
    source, target = _layout(draw, ranks, shape), _layout(draw, ranks, other)
    global_tensor = np.arange(math.prod(shape))
    for rank, expected in _slices(target, global_tensor).items():
        steps = listed._get_needed_rank_transform_operator_map_by_layouts(source, target, range(ranks), rank)
        slices = {r: part for r, part in _slices(source, global_tensor).items() if r in steps}
        assert listed._get_needed_rank_list_by_layouts(source, target, range(ranks), rank) == sorted(slices)
        listed._apply_tensor_transform_operators(
            listed._generate_transform_operator_stack(steps, rank), slices, ranks
        )
        np.testing.assert_array_equal(slices[rank], expected)


def test_optimizer_parallel_takes_the_replicas_of_the_last_axes():
    construct = listed._construct_tensor_layout_for_opt_shard
    assert construct((8, 4, 2), (1, -1), 3, 4, (16, 64)) == ([4, 2, 4, 2], [1, 2, 0, -1], [4, 2, 2, 64])
    assert construct((2, 2, 2), (2, 1), 1, -1, (16, 16)) == ([2, 2, 2], [2, 0, 1], [2, 8, 16])
    assert construct((4, 2, 4, 2), ([2, 3], -1), 8, 4, (32, 8)) == ([4, 2, 2, 2, 2], [[3, 4], 1, 0, -1], [8, 2, 2, 8])
    assert construct((4, 2), (1, 0), 1, 0, (16, 16)) == ((4, 2), (1, 0), [16, 16])


def test_slices_of_tensors():
    global_tensor = Tensor(np.arange(12).reshape(4, 3))
    assert listed._load_tensor(global_tensor, (2, 3), (1, -1), rank_id=4).asnumpy().tolist() == [[6, 7, 8], [9, 10, 11]]
    slices = Tensor(global_tensor.asnumpy()[[0, 1, 0, 1, 2, 3, 2, 3]])
    assert listed._reshape_param_data(slices, (2, 2), (1, -1)).asnumpy().tolist() == global_tensor.asnumpy().tolist()


@pytest.mark.parametrize(("source", "target", "rank", "message"), [
    (((8,), (0,), (12,)), ((8,), (0,), (12,)), 0,
     "a dimension of size 12 cannot be sharded 8 ways; the shape is (12,)"),
    (((8,), (0,), (16,)), ((8,), (0,), (8,)), 0, "a tensor of shape (16,) cannot become one of shape (8,)"),
    (((4,), (0,), (16,)), ((8,), (0,), (16,)), 0, "a mesh of 4 ranks does not fit the 8 ranks of the list"),
    (((8,), (1,), (16,)), ((8,), (0,), (16,)), 0, "the tensor map (1,) does not fit the device matrix (8,)"),
    (((8,), (0, 0), (16,)), ((8,), (0,), (16,)), 0, "the tensor map (0, 0) is not of the 1 dimensions of (16,)"),
    (((8,), (0,), (16,)), ((8,), (-1,), (16,)), 9, "rank 9 is not among (0, 1, 2, 3, 4, 5, 6, 7)"),
])  # fmt: skip
def test_layouts_that_do_not_fit_are_refused(source, target, rank, message):
    with pytest.raises(ApiValueError) as error:
        listed._transform_tensor_by_layout(source, target, range(8), rank)
    assert error.value.message == f"_transform_tensor_by_layout: {message}"


def test_other_numbers_of_ranks():
    assert listed._construct_from_to_tensor_layout((8, 8), (4,), (0, -1), (8, 8), (8,), (0, -1)) == (
        ([2, 4], [0, -1], [8, 8]), ([8], [0, -1], [8, 8]))  # fmt: skip
    with pytest.raises(ApiValueError) as error:
        listed._construct_from_to_tensor_layout((8,), (4,), (0,), (8,), (6,), (0,), "w")
    assert error.value.message == "a layout of w on 4 ranks is none on 6: neither is a multiple"
    with pytest.raises(ApiValueError) as error:
        listed._construct_tensor_layout_for_opt_shard((2, 2), (1, 0), 1, 4, (8, 8))
    assert error.value.message == (
        "_construct_tensor_layout_for_opt_shard: the parameter cannot be sharded 4 ways further: 1 rank holds each "
        "slice of (1, 0) on (2, 2)"
    )
