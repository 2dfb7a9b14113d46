"""Networks as graphs: names, scopes, source spans, parameters, constants, strategies, phases, warnings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpret import run_global

from mspc import nn, ops
from mspc.communication import init
from mspc.compiler.frontend.trace import Traced, trace
from mspc.mindspore_api.common.gradient import jit, value_and_grad
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.parallel.auto_parallel import AutoParallel
from mspc.mindspore_api.parallel.layout import Layout, shard
from mspc.mindspore_api.state import Session
from tests.graphs import FLOAT32, MspcError, Node, TensorType

HERE = str(Path(__file__).parent)
X = TensorType(FLOAT32, (4, 8))


def weight(*shape: int, name: str | None = None) -> Parameter:
    return Parameter(Tensor(np.full(shape, 0.5, np.float32)), name)


def made(target: Any, *types: TensorType, **options: Any) -> Traced:
    traced = trace(target, types or (X,), script_folder=HERE, **options)
    traced.graph.verify()
    return traced


def operators(traced: Traced) -> list[str]:
    return [node.op.name for node in traced.graph.nodes]


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = weight(8, 8, name="w")
        self.bias = weight(8)
        self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu = ops.ReLU()

    def construct(self, x):
        out = self.matmul(x, self.w)
        out = self.relu(out + self.bias)
        return out


class WithLoss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.loss = nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.net(x), y)


def test_nested_and_constant_arguments() -> None:
    def network(x, pair, flag, number=2):
        return x + pair[0] * number if flag else pair[1]

    traced = trace(network, [X, (X, ((4, 8), "float32")), True, 3.0])
    assert [p.name for p in traced.graph.parameters] == ["x", "pair0", "pair1"]
    assert operators(traced) == ["Mul", "Add"]


def test_input_with_the_name_of_a_parameter_keeps_both() -> None:
    w = weight(8, name="x")

    def network(x):
        return x * w

    assert [(p.name, p.kind) for p in made(network).graph.parameters] == [
        ("x_input", "input"),
        ("x", "parameter"),
    ]


def test_layouts_stand_on_their_node() -> None:
    layout = Layout((2, 4), ("dp", "mp"))
    relu = ops.ReLU().shard((layout("dp", "mp"),))
    (strategy,) = made(lambda x: relu(x)).graph.nodes[0].in_strategy or ()
    assert strategy.strategy == (2, 4)


def test_attributes_of_primitives_reach_the_node() -> None:
    relu = ops.ReLU().add_prim_attr("keep", True)
    assert made(lambda x: relu(x)).graph.nodes[0].attrs == {"keep": True}


def test_a_strategy_of_a_reshape_that_changes_nothing_is_ignored_with_a_warning() -> None:
    reshape = ops.Reshape().shard(((16, 1),))
    traced = made(lambda x: reshape(x, (-1, 8)))
    assert all(node.in_strategy is None for node in traced.graph.nodes)
    (warning,) = traced.warnings
    assert "Reshape changes nothing, so its strategy ((16, 1),) is ignored" in warning


def test_functions_of_auto_generate_take_all_arguments_by_position() -> None:
    from mspc.ops.auto_generate.gen_ops_def import add_ext, mean_ext, sub_ext

    traced = made(lambda x: mean_ext(sub_ext(add_ext(x, x, 3), x, 2.0), 1, True), X)
    values = np.arange(32, dtype=np.float32).reshape(4, 8)
    (found,) = run_global(traced.graph, {"x": values})
    np.testing.assert_allclose(found, 2 * values.mean(1, keepdims=True))


def test_strategies_of_a_cell_shard_its_inputs_and_outputs() -> None:
    net = WithLoss(Net())
    net.net.shard(((4, 1),), ((1, 2),))
    traced = made(net, X, X)
    marks = [(i, n.in_strategy) for i, n in enumerate(traced.graph.nodes) if n.instance == "shard"]
    assert marks == [(0, ((4, 1),)), (4, ((1, 2),))]
    unsharded = made(net, X, X, sharded=False)
    assert "Cast" not in operators(unsharded)
    assert unsharded.ignored_strategies == 3


def test_strategies_for_tensors_that_are_not_there_are_refused() -> None:
    function = shard(lambda a: a, ((4, 1), (4, 1)))
    with pytest.raises(MspcError, match="in_strategy has 2 entries, but there are 1 tensors"):
        made(lambda x: function(x))


class Base(nn.Cell):
    def construct(self, x):
        return x + 1

    def factor(self):
        return 2


class Derived(Base):
    def __init__(self):
        super().__init__()
        self.function = jit(lambda x: x * 3)

    @property
    def rate(self):
        return 0.5

    @staticmethod
    def fixed(x):
        return x - 1

    def construct(self, x):
        out = super().construct(x) * self.factor() * self.rate
        return self.function(self.fixed(out)) + self.helper(x)

    @jit
    def helper(self, x):
        return x / 4


def test_super_methods_properties_and_jit() -> None:
    x = np.random.default_rng(0).random((4, 8), np.float32)
    (result,) = run_global(made(Derived()).graph, {"x": x})
    np.testing.assert_allclose(result, ((x + 1) * 2 * 0.5 - 1) * 3 + x / 4, rtol=1e-6)


def test_functional_training_step_inside_auto_parallel(session: Session) -> None:
    init()
    net, loss_fn = Net(), nn.MSELoss()
    optimizer = nn.SGD(net.trainable_params(), 0.1)

    def forward(data, target):
        logits = net(data)
        return loss_fn(logits, target), logits

    gradient = value_and_grad(forward, None, optimizer.parameters, has_aux=True)

    def train_step(inputs, targets):
        (loss, _), grads = gradient(inputs, targets)
        optimizer(grads)
        return loss

    traced = made(AutoParallel(train_step, parallel_mode="semi_auto"), X, X)
    assert traced.graph.name == "train_step"
    assert [p.name for p in traced.graph.parameters[:2]] == ["inputs", "targets"]
    assert [n.phase for n in traced.graph.nodes if n.op.name == "SGD"] == ["update", "update"]
    (result,) = traced.graph.results
    assert isinstance(result, Node)
    assert result.op.name == "ReduceMean"
