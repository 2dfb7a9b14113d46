"""Chains of many operators: nothing goes through a graph by calls within calls, which Python ends after a thousand.

The limit is lowered here, so that short chains show it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import nn, ops
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_traced, trace_call
from mspc.ir.iterative import iterative
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.op import REGISTRY
from mspc.verify.scale.program_sizes import Divisors
from tests.mindspore_api.nn.training import Training, floats

LENGTH = 160
CALLS = 120
"""How deep calls may nest; a compile of a short network needs less than a hundred."""


@contextmanager
def few_calls() -> Generator[None]:
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + CALLS)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def terms(x: Any) -> Any:
    total = x
    for i in range(LENGTH):
        total = total + ops.sin(x * (i + 0.5))
    return total


def elements(x: Any) -> Any:
    for _ in range(LENGTH):
        x = ops.sin(x) * 1.5
    return x


def residuals(x: Any) -> Any:
    for _ in range(LENGTH // 4):
        x = x + ops.matmul(ops.tanh(x), x) * 0.1
    return x


def views(x: Any) -> Any:
    for _ in range(LENGTH // 4):
        x = ops.transpose(x.reshape(2, 8), (1, 0)).reshape(4, 4)
    return ops.matmul(x, x)


def casts(x: Any) -> Any:
    for _ in range(LENGTH // 2):
        x = (x.astype(ms.float16) * 0.5).astype(ms.float32)
    return x


def integers(x: Any) -> Any:
    place = ops.zeros((4,), ms.int32)
    for i in range(LENGTH):
        place = place + i % 2
    masked = place < 10_000
    for _ in range(LENGTH // 2):
        masked = ops.logical_not(masked)
    return ops.where(masked, x + place.astype(ms.float32), x)


def doubles(x: Any) -> Any:
    """Few values, and very many paths between them."""
    for _ in range(40):
        x = x * 0.5
        x = x + x
    for _ in range(40):
        x = x * x
    return ops.softmax(x + x)


def means(x: Any) -> Any:
    for _ in range(LENGTH // 4):
        x = x - x.mean(-1, keep_dims=True) + ops.softmax(x)
    return x


KINDS = [terms, elements, residuals, views, casts, integers, doubles, means]
X = floats(3, 4, 4, scale=0.5)


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_is_compiled_and_run(kind: Any) -> None:
    def gradient(x: Any) -> Any:
        return ms.grad(lambda x: kind(x).sum())(x)

    class Net(nn.Cell):
        def construct(self, x: Any) -> Any:
            return kind(x), gradient(x)

    with few_calls():
        alone = Training(Net(), [X.shape])
        read = parse(print_graph(alone.compiled.graph), REGISTRY).graphs[0]
        found = alone.run([(X,)])[0]
        ranks = Training(Net(), [X.shape], 2, "semi_auto_parallel").run([(X,)])[0]
        call = trace_call(Net(), describe_call([TensorType(FLOAT32, X.shape)], []), Config(device="GPU"))
        assert compile_traced(call).rank_graph(0).nodes
    assert len(read.nodes) == len(alone.compiled.graph.nodes)
    for one, many in zip(found, ranks, strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-4, atol=1e-4)
    if kind is terms:
        np.testing.assert_allclose(found[0], X + sum(np.sin(X * np.float32(i + 0.5)) for i in range(LENGTH)), atol=1e-2)


def test_sizes_that_follow_from_one_another() -> None:
    divisors = Divisors()
    unknowns = [divisors.new() for _ in range(5000)]
    for one, next_one in pairwise(unknowns):
        divisors.equal(one, next_one)
    assert divisors.resolved((*unknowns[0], *unknowns[7])) == unknowns[-1] * 2


def test_an_iterative_function_makes_a_call_once_and_hands_out_its_result() -> None:
    calls = []

    @iterative
    def total(value: Any, by: int) -> Generator[Any, int, int]:
        calls.append(value)
        if isinstance(value, int):
            return value * by
        found = 0
        for inner in value:
            found += yield inner, by
        return found

    nested: Any = (1, 2)
    for _ in range(3000):
        nested = (nested, nested)
    assert total(nested, 3) == 9 * 2**3000
    assert len(calls) == 3003
