"""Optimizers of a script's own, which ask what MindSpore's `Optimizer` knows: rates, decays and groups. The sums of
weights after three steps are those of MindSpore 2.10.
An optimizer that is launched by itself: its gradients are replicated, its parameters and states sharded where a
strategy says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ops.collective.collectives import Collective
from mspc.ops.op import REGISTRY

X = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
signed = ops.MultitypeFuncGraph("signed")


@signed.register("Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Bool", "Bool")
def _update(
    beta1: Any, beta2: Any, rate: Any, decay: Any, parameter: Any, moment: Any, gradient: Any, decays: Any, own: Any
) -> Any:
    if not own:
        return gradient
    value = parameter * (1 - rate * decay) if decays else parameter
    value = value - rate * ops.sign(beta1 * moment + (1 - beta1) * gradient)
    value = ops.depend(value, ops.assign(parameter, value))
    return ops.depend(value, ops.assign(moment, beta2 * moment + (1 - beta2) * gradient))


class Signed(nn.Optimizer):
    """Steps by the sign of a running mean, spelled as public code spells its optimizers."""

    def __init__(self, params: Any, learning_rate: Any, weight_decay: Any = 0.0, loss_scale: float = 1.0) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.betas = Tensor([0.9], ms.float32), Tensor([0.99], ms.float32)
        self.moments = self._parameters.clone(prefix="moment", init="zeros")

    def construct(self, gradients: Any) -> Any:
        gradients = self.scale_grad(self.gradients_centralization(self.flatten_gradients(gradients)))
        decay, rate = self.get_weight_decay(), self.get_lr()
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        rest = (self._parameters, self.moments, gradients, self.decay_flags, self.optim_filter)
        if not self.is_group:
            result = self.hyper_map(ops.partial(signed, *self.betas, rate, decay), *rest)
        elif self.is_group_lr:
            result = self.hyper_map(ops.partial(signed, *self.betas), rate, decay, *rest)
        else:
            result = self.hyper_map(ops.partial(signed, *self.betas, rate), decay, *rest)
        if self.use_parallel:
            self.broadcast_params(result)
        return result


class Rolling(nn.Optimizer):
    """Momentum, as the tutorials write it."""

    def __init__(self, params: Any, learning_rate: Any, weight_decay: float = 0.0, loss_scale: float = 1.0) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.moments = self.parameters.clone(prefix="moments", init="zeros")

    def construct(self, gradients: Any) -> Any:
        gradients = self.scale_grad(self.decay_weight(gradients))
        rate = self.get_lr()
        for i in range(len(self.parameters)):
            ops.assign(self.moments[i], self.moments[i] * 0.9 + gradients[i])
            ops.assign(self.parameters[i], self.parameters[i] - self.moments[i] * rate)
        return self.parameters


class Decay(nn.Cell):
    def construct(self, step: Any) -> Any:
        return Tensor(0.1, ms.float32)


def grouped(params: list[Any], **settings: Any) -> list[dict[str, Any]]:
    return [{"params": params[:2], **settings}, {"params": params[2:]}]


SCHEDULE = nn.ExponentialDecayLR(0.1, 0.5, 2)
CASES: list[tuple[Callable[[list[Any]], Any], list[float]]] = [
    (lambda p: Signed(p, SCHEDULE, 0.05, 2.0), [0.05905, -4.5229, 0.05216, 1.16567, -2.61342, 0.17566]),
    (lambda p: Signed(grouped(p, weight_decay=0.2), 0.01, 0.05),
     [0.26326, -4.49492, 0.47275, 0.98283, -2.24082, 0.32108]),
    (lambda p: Signed(grouped(p, lr=0.1), 0.01, 0.05), [0.2609, -4.45451, 0.51274, 0.98283, -2.18083, 0.34108]),
    (lambda p: Signed(p, 0.01, Decay(), 2.0), [0.26326, -4.49492, 0.47358, 0.98424, -2.23111, 0.31946]),
    (lambda p: Rolling(p, [0.05, 0.01, 0.02], 0.0, 2.0), [0.26485, -4.522, 0.46857, 1.13837, -2.36382, 0.22986]),
    (lambda p: Rolling(grouped(p, weight_decay=0.2), 0.05, 0.1, 2.0),
     [0.25012, -4.27048, 0.45356, 1.10949, -2.30104, 0.22092]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "sums"), CASES)
def test_own_optimizers_step_as_in_mindspore(make: Callable[[list[Any]], Any], sums: list[float]) -> None:
    net = nn.SequentialCell(nn.Dense(3, 4), nn.LayerNorm((4,)), nn.Dense(4, 2))
    rng = np.random.default_rng(0)
    for parameter in net.get_parameters():
        parameter.set_data(Tensor(rng.standard_normal(parameter.shape).astype(np.float32)))
    optimizer = make(net.trainable_params())
    forward = ms.value_and_grad(lambda x: ops.square(net(x)).mean(), None, optimizer.parameters)
    for _ in range(3):
        _, gradients = forward(Tensor(X))
        optimizer(gradients)
    np.testing.assert_allclose([p.asnumpy().sum() for p in net.get_parameters()], sums, atol=2e-5)


def test_what_an_optimizer_knows_of_itself() -> None:
    net = nn.Dense(2, 2)
    plain = Rolling(net.trainable_params(), 0.1, 0.5, 4.0)
    assert (plain.is_group, plain.is_group_lr, plain.dynamic_lr, plain.need_scale) == (False, False, False, True)
    assert (plain.weight_decay.item(), plain.decay_flags, plain.param_length) == (2.0, (True, True), 2)
    groups = [{"params": [net.weight], "lr": [0.1, 0.2]}, {"params": [net.bias], "weight_decay": 0.0}]
    some = Rolling(groups, 0.1, 0.5)
    assert (some.is_group, some.is_group_lr, some.dynamic_lr, some.need_scale) == (True, True, True, False)
    assert (some.decay_flags, some.exec_weight_decay, some.dynamic_weight_decay) == ((True, False), True, False)


def test_an_optimizer_that_lars_drives_scales_and_decays_nothing_itself() -> None:
    inner = Rolling(nn.Dense(2, 2).trainable_params(), 0.1, 0.5, 4.0)
    assert (inner.need_scale, inner.exec_weight_decay) == (True, True)
    outer = nn.LARS(inner)
    assert (inner.need_scale, inner.loss_scale, inner.exec_weight_decay) == (False, 1.0, False)
    assert (outer.loss_scale, set(outer.weight_decays)) == (4.0, {0.5})


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
@pytest.mark.parametrize("strategy", ["data_parallel", "full_batch", ((4, 1), (4, 1))])
@pytest.mark.parametrize("parallel", [False, True])
def test_optimizer_parallel_cuts_what_is_updated(mode: str, strategy: object, parallel: bool) -> None:
    net = nn.Dense(8, 16)
    optimizer = nn.Adam(net.trainable_params(), 0.1)
    gradients = tuple(Tensor(np.ones(p.shape, np.float32)) for p in optimizer.parameters)
    config = Config(
        ranks=4, mode=mode, dataset_strategy=strategy, parallel_optimizer=parallel, parallel_optimizer_threshold=0
    )  # type: ignore[arg-type]  # a str or a tuple
    compiled = compile_call(optimizer, (gradients,), config)
    graph = compiled.rank_graph(0)
    shapes = {p.name: p.shape for p in graph.parameters if p.shape}
    rows = 4 if parallel else 16
    assert shapes["gradients0"] == (16, 8)
    assert shapes["weight"] == shapes["moment1.weight"] == shapes["moment2.weight"] == (rows, 8)
    assert shapes["bias"] == shapes["moment1.bias"] == (rows,)
    assert not any(isinstance(node.op, Collective) for node in graph.nodes)
    assert graph.results == [] == parse(print_graph(graph), REGISTRY).graphs[0].results
    assert compiled.traced.rebuild([]) == ((True, True, True), (True, True, True))


def test_what_an_optimizer_computes_besides_its_updates_is_handed_out() -> None:
    class Telling(nn.SGD):
        def construct(self, gradients: Any) -> Any:
            norm = ops.sqrt(ops.reduce_sum(ops.square(gradients[0])))
            return norm, super().construct(gradients)

    net = nn.Dense(2, 3)
    optimizer = Telling(net.trainable_params(), 0.1)
    gradients = tuple(Tensor(np.ones(p.shape, np.float32)) for p in optimizer.parameters)
    compiled = compile_call(optimizer, (gradients,), Config())
    assert [value.shape for value in compiled.graph.results] == [()]
    assert compiled.traced.rebuild([1.5]) == (1.5, (True, True))
