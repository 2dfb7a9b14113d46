"""Values of all layers may meet, as in a norm of all gradients: layers stay one graph, and train as inlined ones do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.frontend.trace import trace
from mspc.ir.compare import difference
from mspc.ir.graph import Graph
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ops.check_graph import check_graph
from mspc.ops.op import REGISTRY
from tests.compiler.frontend.test_folded_layers import ROWS, WIDTH, Network, loops, plainly, sharded
from tests.interpret import random_feeds, run_global, run_on_ranks, same


class Step(nn.Cell):
    """A step that changes the gradients on their way to the optimizer."""

    def __init__(self, mark: Any, change: Callable[[Any], Any], optimizer: str = "Momentum") -> None:
        super().__init__()
        self.network = Network(mark)
        self.head = Parameter(Tensor(np.full((WIDTH,), 0.5, np.float32)), name="head")
        self.weights = mspc.ParameterTuple([*self.network.trainable_params(), self.head])
        settings = {"momentum": 0.9} if optimizer == "Momentum" else {}
        self.optimizer = getattr(nn, optimizer)(self.weights, 0.05, **settings)
        self.grad = ops.GradOperation(get_by_list=True)
        self.change = change

    def loss(self, x: Any) -> Any:
        return self.network(x * self.head)

    def construct(self, x: Any) -> Any:
        loss = self.loss(x)
        grads = self.change(self.grad(self.loss, self.weights)(x))
        return ops.depend(loss, self.optimizer(grads))


def by_global_norm(grads: Any) -> Any:
    return ops.clip_by_global_norm(grads, 0.05)


def by_value(grads: Any) -> Any:
    return [ops.clip_by_value(g, -0.01, 0.01) for g in grads]


def by_norms(grads: Any) -> Any:
    return [ops.clip_by_norm(g, 0.02) for g in grads]


def by_sum_of_norms(grads: Any) -> Any:
    """A sum that is written as a sum."""
    total = sum([ops.reduce_sum(g * g) for g in grads])
    scale = 0.05 / ops.maximum(ops.sqrt(total), 0.05)
    return [g * scale for g in grads]


def by_largest(grads: Any) -> Any:
    largest = ops.reduce_max(ops.abs(grads[-1]))
    for g in grads[:-1]:
        largest = ops.maximum(largest, ops.reduce_max(ops.abs(g)))
    return [g / largest for g in grads]


def by_norm_of_norms(grads: Any) -> Any:
    total = ops.norm(ops.stack([ops.norm(g) for g in grads]))
    return [g * (0.05 / ops.maximum(total, 0.05)) for g in grads]


def by_all_elements(grads: Any) -> Any:
    largest = ops.reduce_max(ops.abs(ops.concat([g.reshape((-1,)) for g in grads])))
    return [g / largest for g in grads]


def where_finite(grads: Any) -> Any:
    finite = ops.AllFinite()(grads)
    return [ops.select(finite, g, ops.zeros_like(g)) for g in grads]


def unscaled_and_clipped(grads: Any) -> Any:
    """A value that is made before a meeting is read after it."""
    grads = [g * 0.25 for g in grads]
    finite = ops.AllFinite()(grads)
    clipped = ops.clip_by_global_norm([ops.select(finite, g, g * 0.0) for g in grads], 0.05)
    return clipped


MEETING: list[tuple[Any, list[str]]] = [
    (by_value, ["For", "Scan"]), (by_norms, ["For", "Scan"]), (by_global_norm, ["For", "Scan", "Scan"]),
    (by_sum_of_norms, ["For", "Scan", "Scan"]), (by_largest, ["For", "Scan", "Scan"]),
    (by_norm_of_norms, ["For", "Scan", "Scan"]), (by_all_elements, ["For", "Scan", "Scan"]),
    (where_finite, ["For", "Scan", "Scan"]), (unscaled_and_clipped, ["For", "Scan", "Scan", "Scan"]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "wanted"), MEETING)
def test_a_step_is_that_of_inlined_cells(change: Any, wanted: list[str]) -> None:
    graph = trace(Step(mspc.lazy_inline, change), [ROWS]).graph
    graph.verify()
    check_graph(graph)
    assert loops(graph) == wanted
    assert difference(graph, parse(print_graph(graph), REGISTRY).main) == ""
    x = Tensor(np.random.default_rng(5).normal(size=(8, WIDTH)).astype(np.float32))
    steps = [Step(mark, change) for mark in (plainly, mspc.lazy_inline)]
    for _ in range(3):
        plain, folded = (step(x).asnumpy() for step in steps)
        np.testing.assert_allclose(plain, folded, rtol=1e-6)
    for one, other in zip(*(step.weights for step in steps), strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-7, err_msg=one.name)


@pytest.mark.parametrize("change", [by_global_norm, where_finite, by_largest, by_norm_of_norms])
def test_ranks_train_as_one_device(change: Any) -> None:
    def traced() -> Graph:
        graph = trace(Step(mspc.lazy_inline, change), [ROWS]).graph
        graph.attrs |= {"mode": "semi_auto_parallel", "ranks": 8}
        return graph

    graph = traced()
    feeds = random_feeds(graph, 1)
    wanted = run_global(traced(), feeds)
    same(wanted, run_on_ranks(sharded(graph), feeds), 1e-5)


def with_loss_scale(network: nn.Cell) -> Any:
    manager = nn.DynamicLossScaleUpdateCell(1024, 2, 2)
    return nn.TrainOneStepWithLossScaleCell(network, nn.Adam(network.trainable_params(), 0.05), scale_sense=manager)


def accumulated(network: nn.Cell) -> Any:
    """The optimizer runs after every second step, with the sum of the gradients."""

    class Accumulated(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.network, self.optimizer = network, nn.Momentum(network.trainable_params(), 0.05, 0.9)
            self.weights = self.optimizer.parameters
            self.sums = self.weights.clone("sum", "zeros")
            self.count = Parameter(Tensor(0, mspc.int32), name="count", requires_grad=False)
            self.grad, self.each = ops.GradOperation(get_by_list=True), ops.HyperMap()

        def construct(self, x: Any) -> Any:
            loss = self.network(x)
            self.each(ops.assign_add, self.sums, self.grad(self.network, self.weights)(x))
            self.count += 1
            if self.count % 2 == 0:
                self.optimizer(self.sums)
                self.each(ops.assign, self.sums, self.each(ops.zeros_like, self.sums))
            return loss

    return Accumulated()


def averaged(network: nn.Cell) -> Any:
    """A moving average of the weights is kept beside them, and the norm of the gradients is returned."""

    class Averaged(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.network, self.optimizer = network, nn.AdamWeightDecay(network.trainable_params(), 0.05)
            self.weights = self.optimizer.parameters
            self.means = self.weights.clone("mean", "same")
            self.grad = ops.GradOperation(get_by_list=True)

        def construct(self, x: Any) -> Any:
            loss = self.network(x)
            grads = self.grad(self.network, self.weights)(x)
            loss = ops.depend(loss, self.optimizer(grads))
            for mean, weight in zip(self.means, self.weights, strict=True):
                ops.assign(mean, mean * 0.75 + weight * 0.25)
            return loss + 0.0 * ops.sqrt(ops.addn([ops.reduce_sum(ops.square(g)) for g in grads]))

    return Averaged()


def with_gradients(network: nn.Cell) -> Any:
    step = nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), 0.05), return_grad=True)
    return lambda x: step(x)[0]


def summed_up(network: nn.Cell) -> Any:
    """Gradients of parts of the batch."""
    parts = mspc.parallel.nn.GradAccumulation(network, 2)
    return nn.TrainOneStepCell(parts, nn.Adam(network.trainable_params(), 0.05))


@pytest.mark.parametrize("step_of", [with_loss_scale, accumulated, averaged, with_gradients, summed_up])
def test_usual_steps_train_as_with_inlined_cells(step_of: Any) -> None:
    x = Tensor(np.random.default_rng(5).normal(size=(8, WIDTH)).astype(np.float32))
    networks = [Network(mark) for mark in (plainly, mspc.lazy_inline)]
    steps = [step_of(network) for network in networks]
    if isinstance(steps[1], nn.Cell):
        assert loops(trace(step_of(Network(mspc.lazy_inline)), [ROWS]).graph)[:2] in (["For", "For"], ["For", "Scan"])
    for _ in range(4):
        plain, folded = ((found[0] if isinstance(found, tuple) else found).asnumpy() for found in (s(x) for s in steps))
        np.testing.assert_allclose(plain, folded, rtol=1e-6)
    for one, other in zip(*(network.trainable_params() for network in networks), strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-7, err_msg=one.name)


def test_what_is_overwritten_on_the_way_inlines_all() -> None:
    """A count that changes between what is done for two layers."""

    class Counting(Step):
        def __init__(self, mark: Any) -> None:
            super().__init__(mark, list)
            self.count = Parameter(Tensor(np.float32(0.0)), name="count", requires_grad=False)

        def construct(self, x: Any) -> Any:
            loss = self.loss(x)
            for i, (weight, g) in enumerate(zip(self.weights, self.grad(self.loss, self.weights)(x), strict=True)):
                if i % 2 == 0:
                    self.count += 1.0
                ops.assign(weight, weight - 0.01 * self.count * g)
            return loss

    assert loops(trace(Counting(mspc.lazy_inline), [ROWS]).graph) == []
