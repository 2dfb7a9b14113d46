"""Recomputed operators with several results, sharded in another way than what comes before: the numbers of one
device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from training import Training, floats

from mspc import Parameter, Tensor, mint, nn, ops
from mspc.ir.layout import Layout

X = floats(1, 8, 16)


class Inside(nn.Cell):
    """One operator of several results behind another operator."""

    def __init__(self, primitive: Any, use: Callable[..., Any]) -> None:
        super().__init__()
        self.w, self.gamma, self.beta = (
            Parameter(Tensor(floats(5 + i, *shape)), name)
            for i, (name, shape) in enumerate({"w": (16, 16), "gamma": (16,), "beta": (16,)}.items())
        )
        self.primitive, self.use = primitive, use
        self.set_train()

    def construct(self, x: Any) -> Any:
        return self.use(self, ops.sin(ops.matmul(x, self.w)))


class Loss(nn.Cell):
    def __init__(self, net: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, x: Any) -> Any:
        return (ops.tanh(self.net(x)) * x.sum()).sum()


def normed(net: Any, x: Any) -> Any:
    return net.primitive(x, net.gamma, net.beta)[0]


def normed_in_two_ways(net: Any, x: Any) -> Any:
    y, mean, _ = net.primitive(x, net.gamma, net.beta)
    return ops.sin(y) * mean


def first(net: Any, x: Any) -> Any:
    return net.primitive(x)[0]


def second(net: Any, x: Any) -> Any:
    return ops.exp(net.primitive(x)[1])


def product(net: Any, x: Any) -> Any:
    one, other = net.primitive(x)
    return ops.sin(one) * ops.exp(other)


def ordered(net: Any, x: Any) -> Any:
    return ops.sin(net.primitive(x)[0])


CASES = [
    (lambda: ops.LayerNorm(1, 1, 1e-5), normed, ((1, 1), (1,), (1,))),
    (lambda: ops.LayerNorm(1, 1, 1e-5), normed, ((2, 1), (1,), (1,))),
    (lambda: ops.LayerNorm(1, 1, 1e-5), normed_in_two_ways, ((1, 1), (1,), (1,))),
    (lambda: ops.Dropout(0.5), first, ((1, 1),)),
    (lambda: ops.Dropout(0.5), first, ((2, 1),)),
    (lambda: ops.Dropout(0.5), first, ((1, 2),)),
    (lambda: ops.ArgMaxWithValue(1), second, ((1, 1),)),
    (lambda: ops.ArgMaxWithValue(0), second, ((1, 2),)),
    (lambda: ops.Split(1, 2), product, ((1, 1),)),
    (lambda: ops.Split(0, 2), product, ((1, 1),)),
    (lambda: ops.Split(0, 2), product, ((1, 2),)),
    (lambda: lambda x: mint.sort(x, dim=0), ordered, None),
    (lambda: lambda x: mint.sort(x, dim=1), ordered, None),
]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("make", "use", "strategy"), CASES)
def test_recomputed_results_are_those_of_one_device(make: Any, use: Any, strategy: Any, ranks: int) -> None:
    found: list[list[np.ndarray]] = []
    for sharded in (False, True):
        primitive = make()
        if sharded and strategy is not None:
            primitive.shard(strategy)
        net = Inside(primitive, use)
        net.recompute()
        cell = nn.ForwardValueAndGrad(Loss(net), [net.w, net.gamma, net.beta], get_by_list=True)
        training = Training(cell, [X.shape], *((ranks, "semi_auto_parallel") if sharded else (1, "stand_alone")))
        loss, gradients = training.run([[X]])[0]
        found.append([np.asarray(array) for array in (loss, *gradients)])
        assert any(node.attrs.get("recomputed") for node in training.compiled.graph.nodes)
    layouts = [value.layout for value in training.compiled.graph.results]
    for one, many, layout in zip(*found, layouts, strict=True):
        mine = one[layout.slices_for(0, one.shape)] if isinstance(layout, Layout) else one
        np.testing.assert_allclose(many, mine, 1e-4, 1e-4)
