"""Parameters of one name in a cell that is called; strategies of numbers and of Tile; updates of mixed types."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.in_memory import compile_in_memory

X = Tensor(np.ones((2, 2), np.float32))


class Step(nn.TrainOneStepCell):
    """Hands out the learning rate from a copy of its own, as public trainers do."""

    def __init__(self, network: Any, optimizer: Any) -> None:
        super().__init__(network, optimizer)
        self.learning_rate = copy.deepcopy(self.optimizer.learning_rate)

    def construct(self, x: Any) -> Any:
        return super().construct(x), self.learning_rate


class Sum(nn.Cell):
    def __init__(self, dtype: Any = ms.float32) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.linspace(0.5, 1.5, 4).reshape(2, 2), dtype), name="w")

    def construct(self, x: Any) -> Any:
        return (x * self.w).sum()


def test_parameters_of_one_name_are_called_by_their_attributes() -> None:
    network = Sum()
    step = Step(network, nn.Momentum(network.trainable_params(), 0.125, 0.9))
    loss, rate = step(X)
    assert (float(loss.asnumpy()), float(rate.asnumpy())) == (4.0, 0.125)
    states = ("global_step", "learning_rate", "momentum", "moments.w")
    names = ["w", "learning_rate", *(f"optimizer.{state}" for state in states)]  # MindSpore 2.10 gives these
    assert [parameter.name for parameter in step.get_parameters()] == names


def test_numbers_need_no_cuts_and_tile_takes_those_of_its_input() -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.add = ops.Add().shard(((2, 1), (2, 1)))
            self.mul = ops.Mul().shard(((2, 1), (2, 1)))
            self.sub = ops.Sub()
            self.tile = ops.Tile().shard(((2,),))
            self.one = Tensor(1.0, ms.float32)
            self.places = Parameter(Tensor(np.arange(4), ms.float32), name="places")

        def construct(self, x: Any) -> Any:
            return self.mul(self.add(0, x), self.sub(self.one, 0)) + self.tile(self.places, (8, 1))

    before = ms.mindspore_api.state.swap(ms.mindspore_api.state.Session())
    try:
        ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, full_batch=True)
        facts = compile_in_memory(Net(), [Tensor(np.ones((8, 4), np.float32))])
        assert facts.parameter_layouts["places"][0] == [2, 2]
        wrong = Net()
        wrong.add.shard(((2, 1, 1), (2, 1)))
        with pytest.raises(ms.MspcError, match="3 numbers"):
            compile_in_memory(nn.SequentialCell(Doubled(wrong)), [Tensor(np.ones((8, 4), np.float32))])
    finally:
        ms.mindspore_api.state.swap(before)


class Doubled(nn.Cell):
    """Adds what is no number of the script."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def construct(self, x: Any) -> Any:
        return self.net.add(x, x)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("states", [ms.float16, ms.float32])
@pytest.mark.parametrize("gradient", [ms.float16, ms.float32])
def test_adam_with_weight_decay_and_other_types(states: Any, gradient: Any, is_compiled: bool) -> None:
    """The rule written down in Float32, parameters rounded to Float16 once."""
    network = Sum(ms.float16)

    class Mixed(nn.AdamWeightDecay):
        """States of a type of their own, and beta1 as a tensor of one element, as public code has them."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, 0.125, 0.9, 0.999, 1e-6, 0.01)
            self.beta1 = Tensor(np.array([0.9]), ms.float32)
            for name in ("moments1", "moments2"):
                made = [Parameter(Tensor(np.full((2, 2), 0.02), states), name=f"{name}.w")]
                setattr(self, name, ms.ParameterTuple(made))

    optimizer = Mixed(network.trainable_params())
    given = np.linspace(-1, 1, 4).reshape(2, 2)
    start = network.w.asnumpy().astype(np.float32)
    (optimizer if is_compiled else optimizer.construct)((Tensor(given, gradient),))
    g = given.astype(np.float16).astype(np.float32)
    first = np.full((2, 2), 0.02, states.numpy).astype(np.float32)
    m = 0.9 * first + np.float32(0.1) * g
    v = 0.999 * first + np.float32(0.001) * g * g
    expected = start - 0.125 * (m / (np.sqrt(v) + 1e-6) + 0.01 * start)
    assert network.w.dtype == ms.float16
    np.testing.assert_allclose(network.w.asnumpy(), expected, rtol=1e-3)
    tolerance = 1e-6 if states == ms.float32 else 1e-3
    assert optimizer.moments1[0].dtype == states
    np.testing.assert_allclose(optimizer.moments1[0].asnumpy(), m, rtol=tolerance)
    np.testing.assert_allclose(optimizer.moments2[0].asnumpy(), v, rtol=tolerance)


class OwnBackward(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.square = ops.Mul().shard(((2, 1), (2, 1)))

    def construct(self, x: Any) -> Any:
        return self.square(x, x)

    def bprop(self, x: Any, out: Any, dout: Any) -> Any:
        return (2 * x * dout,)


def test_a_mistake_beside_a_gradient_of_the_script_is_the_only_one_named() -> None:
    own = OwnBackward()
    first, second = (Parameter(Tensor(np.ones((2, 2), np.float32)), name="w") for _ in range(2))

    def step(x: Any) -> Any:
        return ms.grad(lambda y: (own(y) * first * second).sum())(x)

    before = ms.mindspore_api.state.swap(ms.mindspore_api.state.Session())
    try:
        ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=2, full_batch=True)
        with pytest.raises(ms.MspcError, match="two parameters are called 'w'") as refused:
            compile_in_memory(step, [X])
        assert "no sharding rule" not in str(refused.value)
    finally:
        ms.mindspore_api.state.swap(before)
