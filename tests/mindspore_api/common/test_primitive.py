"""Operators as users hold them.

Functions that a compiled function calls as they are, and functions that are operators.
"""

import re
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.compiler.frontend.trace import trace
from mspc.mindspore_api.ops.primitive import Primitive
from mspc.ops.primitive import _primexpr, constexpr
from tests.errors import error_of

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
        ((2, 4), TypeError, "MatMul.shard: in_strategy: entry 0 is 2, not a tuple of ints or a Layout",
         "write ((2, 4),)"),
        ("data", TypeError, "MatMul.shard: in_strategy must be a tuple of tuples or of Layouts, not 'data'",
         "write one tuple per tensor, for example ((2, 4), (4, 1))"),
        ([(2, 4), (4, 1)], TypeError,
         "MatMul.shard: in_strategy must be a tuple of tuples or of Layouts, not [(2, 4), (4, 1)]",
         "write one tuple per tensor, for example ((2, 4), (4, 1))"),
        (((2, 4), [4, 1]), TypeError, "MatMul.shard: in_strategy: entry 1 is [4, 1], not a tuple of ints or a Layout",
         "write one tuple per tensor, for example ((2, 4), (4, 1))"),
        (((2, 4), (0, 1)), ValueError,
         "MatMul.shard: in_strategy: entry 1 shards a dimension into 0 slices; 1 is the least", None),
        (((2, 4), (4, 1.5)), TypeError, "MatMul.shard: in_strategy: entry 1 holds 1.5, not a number of slices",
         "write one tuple per tensor, for example ((2, 4), (4, 1))"),
        (
            ((2, 4), layout("dp", "sp")),
            ValueError,
            "MatMul.shard: in_strategy mixes tuples and Layouts: ((2, 4), {device_matrix: (2, 2, 2), "
            "tensor_map: (2, 1), alias_name: (dp, sp, mp)})",
            "use one kind",
        ),
    ],
)  # fmt: skip
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
    with pytest.raises(TypeError, match=re.escape("MatMul got an unexpected keyword argument 'transpose'")) as caught:
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


ONES = Tensor(np.ones(3, np.float32))


@constexpr
def total(count: int) -> int:
    return sum([i for i in {i: i for i in range(count)}])


@ops.constexpr(name="table", reuse_result=False)
def made(count: int) -> Tensor:
    return Tensor(np.arange(count, dtype=np.float32))


@ms.constexpr(get_instance=False)
def later(count: int) -> int:
    return count + 1


LATER = later()


class Times(nn.Cell):
    def __init__(self) -> None:
        super().__init__()

        def times(x: Any) -> Any:
            return x * 100

        self.times = ops.Morph(times, lambda shapes: shapes, lambda types: types)
        self.times.add_prim_attr("self_define_shard", True)

    def construct(self, x: Any) -> Any:
        return self.times(x) + made(3) * total(4) + LATER(1)


def test_what_is_known_is_computed_as_it_is() -> None:
    net = Times()
    np.testing.assert_array_equal(net(ONES).asnumpy(), [102, 108, 114])
    np.testing.assert_array_equal(ms.grad(net)(ONES).asnumpy(), [100, 100, 100])
    assert total(4) == 6


def test_a_morph_is_cut_as_a_function_is() -> None:
    morph = ops.Morph(lambda x: x * 2).shard(((2,),), ((2,),))
    traced = trace(lambda x: morph(x), [Tensor(np.ones(4, np.float32))])
    assert [node.op.name for node in traced.graph.nodes] == ["ShardingConstraint", "Mul", "ShardingConstraint"]


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ops.Morph(5), "Morph: fn must be a function, not 5"),
    (lambda: ops.Morph(abs, "x"), "Morph: infer_shape must be a function, not 'x'"),
    (lambda: ops.constexpr(5), "constexpr takes a function, not 5"),
    (lambda: ops.constexpr(abs, name=3), "constexpr: name must be a string, not 3"),
    (lambda: trace(lambda x: total(x), [ONES]), "total() takes only values known at compile time, not tensors"),
    (lambda: trace(lambda x: made(x), [ONES]), "table() takes only values known at compile time, not tensors"),
])  # fmt: skip
def test_messages(call: Any, message: str) -> None:
    assert error_of(call).message == message


def test_primexpr_is_called_at_compile_time_too() -> None:
    @_primexpr
    def halves(count: int) -> tuple[int, ...]:
        found = []
        while count > 1:
            count //= 2
            found.append(count)
        return tuple(found)

    class Net(nn.Cell):
        def construct(self, x: Any) -> Any:
            return ops.reshape(x, (*halves(x.shape[0])[:1], -1))

    assert Net()(Tensor(np.ones(8, np.float32))).shape == (4, 2)
