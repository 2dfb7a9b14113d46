"""Which built-in exception a mistake is as well: scripts catch them as they catch MindSpore's.

TypeError: an argument of the wrong type, too many or too few of them. ValueError: a wrong value or shape. RuntimeError:
strategies, and what a compiled function cannot do. IndexError, KeyError, AttributeError, NameError, ZeroDivisionError
and AssertionError as in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.diagnostics import ErrorGroup, MspcError

X = Tensor(np.ones((8, 4), np.float32))
INTEGERS = Tensor(np.ones((8, 4), np.int32))


class Net(nn.Cell):
    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.ones((4, 2), np.float32)), "w")
        self.form = form

    def construct(self, x: Any) -> Any:
        return self.form(self, x)


def raising(error: Any) -> Callable[..., Any]:
    def form(net: Any, x: Any) -> Any:
        raise error

    return form


def asserting(net: Any, x: Any) -> Any:
    assert x.shape[0] == 3, "three rows"
    return x


def unpacking(net: Any, x: Any) -> Any:
    one, other = (x, x, x)
    return one + other


def unknown_at_compile_time(net: Any, x: Any) -> Any:
    return x if all([x.sum() > 0, x.max() > 0]) else -x


def importing(net: Any, x: Any) -> Any:
    import os

    return x * len(os.sep)


IN_CONSTRUCT: list[tuple[type[Exception], Callable[..., Any]]] = [
    (TypeError, lambda net, x: ops.AlltoAll(split_count=1, split_dim=(0, 1), concat_dim=0)(x)),
    (TypeError, lambda net, x: ops.ReLU()("x")),
    (TypeError, lambda net, x: ops.relu(None)),
    (TypeError, lambda net, x: ops.MatMul()(x)),
    (TypeError, lambda net, x: ops.ReLU()(bogus=x)),
    (TypeError, lambda net, x: ops.reduce_sum(x, "0")),
    (TypeError, lambda net, x: ops.reshape(x, 1.5)),
    (TypeError, lambda net, x: ops.cast(x, "nothing")),
    (TypeError, lambda net, x: ops.Softmax()(ops.cast(x, ms.int32))),
    (TypeError, lambda net, x: "a" + 1),
    (TypeError, lambda net, x: x()),
    (TypeError, lambda net, x: (lambda one, other: one)(x)),
    (ValueError, lambda net, x: ops.matmul(x, x)),
    (ValueError, lambda net, x: x + net.w),
    (ValueError, lambda net, x: ops.reshape(x, (3, 3))),
    (ValueError, lambda net, x: ops.reduce_sum(x, 5)),
    (ValueError, lambda net, x: ops.transpose(x, (0, 0))),
    (ValueError, lambda net, x: ops.Split(0, 3)(x)),
    (ValueError, lambda net, x: ops.concat((x, net.w))),
    (ValueError, lambda net, x: ops.assign(net.w, x)),
    (ValueError, lambda net, x: ms.grad(lambda y: y.sum(), 3)(x)),
    (ValueError, lambda net, x: int("a") * x),
    (ValueError, unpacking),
    (IndexError, lambda net, x: x[9]),
    (IndexError, lambda net, x: x[0, 0, 0]),
    (IndexError, lambda net, x: [x][3]),
    (KeyError, lambda net, x: {"a": x}["b"]),
    (AttributeError, lambda net, x: net.nothing(x)),
    (AttributeError, lambda net, x: x.nothing()),
    (NameError, lambda net, x: nothing(x)),  # type: ignore[name-defined]  # noqa: F821
    (ZeroDivisionError, lambda net, x: x * (1 // (x.shape[0] - 8))),
    (AssertionError, asserting),
    (ValueError, raising(ValueError("no"))),
    (TypeError, raising(TypeError)),
    (IndexError, raising(IndexError("no"))),
    (NotImplementedError, raising(NotImplementedError("no"))),
    (RuntimeError, raising(OSError("no"))),
    (RuntimeError, unknown_at_compile_time),
    (RuntimeError, importing),
    (RuntimeError, lambda net, x: ops.ReLU().shard(((2, 1),))(x)),
    (RuntimeError, lambda net, x: ops.ReLU().shard(((1,),))(x)),
    (RuntimeError, lambda net, x: ops.MatMul().shard(((1, 1),))(x, net.w)),
]


@pytest.mark.parametrize(("kind", "form"), IN_CONSTRUCT)
def test_mistakes_in_construct(kind: type[Exception], form: Callable[..., Any]) -> None:
    with pytest.raises(MspcError) as caught:
        compile_call(Net(form), [X], Config(mode="semi_auto_parallel"))
    assert caught.value.kind is kind
    assert isinstance(caught.value, kind)
    assert caught.value.location is not None


OUTSIDE: list[tuple[type[Exception], Callable[[], Any]]] = [
    (TypeError, lambda: ops.AlltoAll(split_count=2, split_dim=(0, 1), concat_dim=0)),
    (TypeError, lambda: ops.AlltoAll(split_count="2", split_dim=0, concat_dim=0)),
    (TypeError, lambda: ops.AllReduce(op=3)),
    (TypeError, lambda: ops.AllReduce(group=3)),
    (TypeError, lambda: ops.MatMul(transpose_a=3)),
    (TypeError, lambda: ops.MatMul(nothing=3)),
    (TypeError, lambda: ops.Dropout("0.5")),
    (TypeError, lambda: ops.MatMul().shard(3)),
    (TypeError, lambda: nn.Dense("a", 3)),
    (TypeError, lambda: ops.Softmax()(INTEGERS)),
    (ValueError, lambda: ops.MatMul()(X, X)),
    (ValueError, lambda: ops.AllReduce(op="median")(X)),
    (ValueError, lambda: ops.MatMul().shard(((0, 1), (1, 1)))),
    (ValueError, lambda: nn.Dense(0, 3)),
    (IndexError, lambda: X[9]),
]


@pytest.mark.parametrize(("kind", "call"), OUTSIDE)
def test_mistakes_outside(kind: type[Exception], call: Callable[[], Any]) -> None:
    with pytest.raises(MspcError) as caught:
        call()
    assert caught.value.kind is kind


def two_mistakes(net: Any, x: Any) -> Any:
    one = ops.matmul(x, x)
    other = ops.relu(None)
    return one, other


def test_a_group_is_of_its_first_error() -> None:
    with pytest.raises(ErrorGroup) as caught:
        compile_call(Net(two_mistakes), [X], Config())
    assert caught.value.kind is ValueError
