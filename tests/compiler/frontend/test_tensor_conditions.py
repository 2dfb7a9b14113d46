"""`if` on the contents of a tensor: the graph chooses what Python takes, for every function and operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interpret import run_global
from test_frontend_language import plain, same

import mspc
from mspc import Parameter, nn, ops
from mspc.compiler.frontend.trace import trace
from mspc.ir.types import FLOAT32
from mspc.mindspore_api.common.tensor import Tensor

CASES: list[Callable[..., Any]] = []


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    CASES.append(function)
    return function


@case
def numbers_and_names(x):
    out, scale = 3, 1.0
    if (x > 0).any():
        out = 1
    else:
        out = 2
        scale = 0.5
    return x * scale + out


@case
def logic(x):
    above, below = (x > 0).any(), (x < 0).any()
    flag = True
    if not above or (below and flag):
        x = x - 1
    return (x if above and below else -x) if flag else x


@case
def lists_and_dicts(x):
    found, named = [], {"x": x}
    for i in range(3):
        if x.sum() > i:
            found.append(x * i)
            named["x"] = x - i
        else:
            found.append(x + i)
        x = x + 0.5
    return found, named["x"]


@case
def a_list_of_one_way_that_changes_behind_it(x):
    kept = [x, x + 1]
    if x.sum() > 0:
        kept = [kept[0], ops.sin(kept[1])]
    else:
        return x * ops.cos(x)
    kept[1] = ops.tanh(kept[1])
    return kept[0] + kept[1]


@case
def checks(x):
    if x.sum() > 1000:
        raise ValueError("too large")
    assert x.sum() < 1000
    return x


@case
def numbers_as_truth(x):
    first = x[0]
    if first:
        return x / first
    return x


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_the_graph_takes_the_way_that_python_takes(function: Callable[..., Any]) -> None:
    traced = trace(function, [((2,), FLOAT32)])
    for values in ([2.0, 3.0], [3.0, -2.0], [-1.0, -2.0], [0.0, 0.0], [-3.0, 4.0], [0.5, 0.25]):
        x = np.array(values, np.float32)
        graph = plain(traced.rebuild(run_global(traced.graph, {"x": x})))
        same(graph, plain(function(Tensor(x))))


class Guarded(nn.Cell):
    """Counts in a Parameter how often it went one way, after the other way may have returned."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(np.array([1.0, 2.0], np.float32), "w")
        self.count = Parameter(np.zeros((), np.float32), "count", requires_grad=False)

    def construct(self, x):
        if ops.reduce_sum(x) > 3:
            return (x * self.w).sum()
        self.count += 1
        return (x * x * self.w).sum()


def test_gradients_and_updates_are_those_of_the_way_taken() -> None:
    net = Guarded()
    step = mspc.value_and_grad(net, None, [net.w])
    for values, gradient, count in (([2.0, 3.0], [2, 3], 0), ([1.0, 0.5], [1, 0.25], 1), ([4.0, 0.0], [4, 0], 1)):
        _, (found,) = step(Tensor(np.array(values, np.float32)))
        assert found.asnumpy().tolist() == gradient
        assert net.count.asnumpy() == count
