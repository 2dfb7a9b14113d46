"""Functions that a compiled function calls as they are, and functions that are operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.compiler.frontend.trace import trace
from mspc.ir.diagnostics import MspcError
from mspc.ops.primitive import _primexpr, constexpr

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
    with pytest.raises(MspcError) as raised:
        call()
    assert raised.value.message == message


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
