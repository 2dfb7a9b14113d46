"""Operators as users hold them."""

from __future__ import annotations

import re

import pytest

import mspc as ms
from mspc import Tensor, ops
from mspc.mindspore_api.ops.primitive import Primitive

layout = ms.Layout((2, 2, 2), ("dp", "sp", "mp"))


def test_shard_keeps_tuples_and_layouts():
    matmul = ops.MatMul()
    assert matmul.shard(((2, 4), (4, 1))) is matmul
    assert (matmul.in_strategy, matmul.out_strategy) == (((2, 4), (4, 1)), None)
    matmul.shard(((2, 4), (4, 1)), ((8, 1),))
    assert (matmul.in_strategy, matmul.out_strategy) == (((2, 4), (4, 1)), ((8, 1),))
    x, w = layout("mp", ("sp", "dp")), layout(("sp", "dp"), "None")
    assert matmul.shard((x, w)).in_strategy == (x, w)
    assert ops.OneHot().shard(((8, 1), (), ())).in_strategy == ((8, 1), (), ())


@pytest.mark.parametrize(
    ("strategy", "error", "message", "note"),
    [
        (
            (2, 4),
            TypeError,
            "MatMul.shard: in_strategy: entry 0 is 2, not a tuple of ints or a Layout",
            "write ((2, 4),)",
        ),
        (
            "data",
            TypeError,
            "MatMul.shard: in_strategy must be a tuple of tuples or of Layouts, not 'data'",
            "write one tuple per tensor, for example ((2, 4), (4, 1))",
        ),
        (
            [(2, 4), (4, 1)],
            TypeError,
            "MatMul.shard: in_strategy must be a tuple of tuples or of Layouts, not [(2, 4), (4, 1)]",
            "write one tuple per tensor, for example ((2, 4), (4, 1))",
        ),
        (
            ((2, 4), [4, 1]),
            TypeError,
            "MatMul.shard: in_strategy: entry 1 is [4, 1], not a tuple of ints or a Layout",
            "write one tuple per tensor, for example ((2, 4), (4, 1))",
        ),
        (
            ((2, 4), (0, 1)),
            ValueError,
            "MatMul.shard: in_strategy: entry 1 shards a dimension into 0 slices; 1 is the least",
            None,
        ),
        (
            ((2, 4), (4, 1.5)),
            TypeError,
            "MatMul.shard: in_strategy: entry 1 holds 1.5, not a number of slices",
            "write one tuple per tensor, for example ((2, 4), (4, 1))",
        ),
        (
            ((2, 4), layout("dp", "sp")),
            ValueError,
            "MatMul.shard: in_strategy mixes tuples and Layouts: ((2, 4), {device_matrix: (2, 2, 2), "
            "tensor_map: (2, 1), alias_name: (dp, sp, mp)})",
            "use one kind",
        ),
    ],
)
def test_what_is_no_strategy_is_named(strategy, error, message, note):
    with pytest.raises(error) as caught:
        ops.MatMul().shard(strategy)
    assert caught.value.message == message
    assert caught.value.notes == ((note,) if note else ())
    assert caught.value.location.text.strip() == "ops.MatMul().shard(strategy)"


def test_out_strategy_needs_in_strategy():
    with pytest.raises(ValueError, match="out_strategy needs an in_strategy"):
        ops.MatMul().shard(None, ((8, 1),))


def test_unknown_attributes_and_operators_are_named():
    with pytest.raises(
        TypeError, match=re.escape("MatMul got an unexpected keyword argument 'transpose'")
    ) as caught:
        ops.MatMul(transpose=True)
    assert caught.value.notes == ("MatMul takes transpose_a, transpose_b",)
    with pytest.raises(AttributeError, match="ops has no operator 'MatMull'"):
        ops.MatMull()
    with pytest.raises(AttributeError, match="ops has no function 'rellu'"):
        ops.rellu(1)
    with pytest.raises(AttributeError, match="MatMul has no attribute 'axis'"):
        ops.MatMul().axis  # noqa: B018  # the access is what is tested
    with pytest.raises(TypeError, match="Primitive has no operator"):
        Primitive()


def test_attributes_of_dumps():
    add = ops.Add().add_prim_attr("recompute_comm_op", True).recompute()
    assert add.attrs == {"recompute_comm_op": True, "recompute": True}


def test_files_of_operators_do_not_hide_functions():
    import mspc.ops.tensor.moving
    import mspc.ops.tensor.reshape  # noqa: F401

    assert ops.shape(Tensor([1.0])) == (1,)
    assert isinstance(ops.reshape, Primitive)
