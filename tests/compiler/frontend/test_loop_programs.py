"""Programs as people write them, whose loops tensors decide: graphs compute what Python does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interpret import run_global
from test_frontend_language import plain
from test_tensor_loops import close, traced_graph

import mspc
from mspc import ops
from mspc.mindspore_api.common.tensor import Tensor

CASES: list[Callable[..., Any]] = []


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    CASES.append(function)
    return function


@case
def walrus(x):
    while (s := x.sum()) < 10:
        x = x + s * 0.1 + 1
    return x, s


@case
def elements(x):
    pair = [x, 1]
    for j in range(ops.abs(x).sum().astype(mspc.int32)):
        pair[0] = pair[0] * 0.5 + j
        pair[1] = pair[1] + j
    return pair[0], pair[1]


@case
def nested_while_return(x):
    i = 0
    while i < 4:
        j = 0
        while j < 3:
            if x[0] + x[1] * j > 5:
                return x * j, i
            x = x + 0.5
            j += 1
        i += 1
        if x.max() > 20:
            break
    return x, i


@case
def zero_turns(x):
    k = 7
    while x.sum() > 1000:
        k = k + 1
        x = x * 2
    return x, k


@case
def helper(x):
    def f(v, n):
        for i in range(n):
            if v.sum() > i * 2:
                return v - i
            v = v + 1
        return v * 10
    return f(x, 3) + f(x * 2, 25)


@case
def dicts(x):
    d = {"a": x, "n": 0}
    while d["n"] < 3 + x.min():
        d = {"a": d["a"] * 0.5, "n": d["n"] + 1}
    return d["a"], d["n"]


@case
def comprehension(x):
    ys = [v * v if v.sum() > 0 else v for v in (x, x - 1, x * 2)]
    return ys[0] + ys[1] + ys[2]


@case
def tuple_swap(x):
    a, b = x, x + 1
    n = 0
    while n < 5 + x.min():
        a, b = b, a * 0.5 + b
        n += 1
    return a, b


@case
def lists_in_place_and_anew(x):
    xs = [x, x.sum()]
    if xs[1] < -4:
        return xs[0], xs[1], 0
    i = 0
    while x.sum() + i < 9:
        if x[0] > i:
            xs = [xs[0] * 0.5, xs[1] + 1]
        else:
            xs[1] = ops.tanh(xs[1])
        i = i + 1
        x = x + xs[1] * 0.1
    return xs[0], xs[1], i


@case
def or_value(x):
    n = x.sum().astype(mspc.int32)
    return x * (n or 5) + (n and 2)


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_a_program_gives_what_python_gives(function: Callable[..., Any]) -> None:
    traced = traced_graph(function)
    for values in ([2.0, 3.0], [3.0, -2.0], [-1.0, -2.0], [0.0, 0.0], [-3.0, 4.0], [0.5, 0.25], [1.25, 0.3]):
        x = np.array(values, np.float32)
        close(plain(traced.rebuild(run_global(traced.graph, {"x": x}))), plain(function(Tensor(x))))
