"""Networks as graphs: names, scopes, source spans, parameters, constants, strategies, phases, warnings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpret import run_global

from mspc import nn, ops
from mspc.communication import init
from mspc.compiler.frontend.trace import Leaf, Traced, trace
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Node
from mspc.ir.text.printer import print_graph
from mspc.ir.types import FLOAT16, FLOAT32, INT32, TensorType
from mspc.mindspore_api import state
from mspc.mindspore_api.common.gradient import jit, value_and_grad
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.parallel.auto_parallel import AutoParallel
from mspc.mindspore_api.parallel.layout import Layout, shard
from mspc.mindspore_api.state import Session
from mspc.ops.op import REGISTRY

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


def line_of(text: str) -> int:
    return Path(__file__).read_text().splitlines().index(text) + 1


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


def test_nodes_carry_names_instances_and_scopes() -> None:
    traced = made(WithLoss(Net()), X, X)
    assert [(n.op.name, n.name, n.instance, n.scope) for n in traced.graph.nodes[:3]] == [
        ("MatMul", "out", "matmul", "Default/net-Net"),
        ("Add", "", "", "Default/net-Net"),
        ("ReLU", "out", "relu", "Default/net-Net"),
    ]
    assert traced.graph.nodes[3].scope == "Default/loss-MSELoss"
    assert traced.graph.name == "WithLoss_construct"


def test_nodes_carry_the_call_stack() -> None:
    traced = made(WithLoss(Net()), X, X)
    matmul, square = traced.graph.nodes[0], traced.graph.nodes[4]
    assert [(f.file, f.line, f.text[f.column - 1 : f.end_column - 1]) for f in matmul.frames] == [
        (
            "test_frontend_networks.py",
            line_of("        out = self.matmul(x, self.w)"),
            "self.matmul(x, self.w)",
        ),
        ("test_frontend_networks.py", line_of("        return self.loss(self.net(x), y)"), "self.net(x)"),
    ]
    # Lines of the functional operators are left out, those of cells stand under mspc's name.
    assert [f.file for f in square.frames] == ["mspc/mindspore_api/nn/loss.py", "test_frontend_networks.py"]
    assert square.frames[0].text.strip() == "return self.get_loss(ops.square(logits - labels))"


def test_parameters_come_after_the_inputs_in_the_order_of_use() -> None:
    traced = made(WithLoss(Net()), X, X)
    assert [(p.name, p.kind, p.trainable) for p in traced.graph.parameters] == [
        ("x", "input", False), ("y", "input", False), ("net.w", "parameter", True), ("net.bias",
        "parameter", True),
    ]  # fmt: skip
    assert list(traced.parameters) == ["net.w", "net.bias"]


def test_star_arguments_are_numbered() -> None:
    class Many(nn.Cell):
        def construct(self, x, *inputs):
            return x + inputs[0] + inputs[1]

    assert [p.name for p in made(Many(), X, X, X).graph.parameters] == ["x", "inputs0", "inputs1"]


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


def test_strategies_stand_on_their_node() -> None:
    matmul = made(Net()).graph.nodes[0]
    assert matmul.in_strategy == ((2, 4), (4, 1))
    assert matmul.out_strategy is None


def test_layouts_stand_on_their_node() -> None:
    layout = Layout((2, 4), ("dp", "mp"))
    relu = ops.ReLU().shard((layout("dp", "mp"),))
    (strategy,) = made(lambda x: relu(x)).graph.nodes[0].in_strategy or ()
    assert strategy.strategy == (2, 4)


def test_strategies_are_counted_where_they_do_not_count() -> None:
    traced = made(Net(), sharded=False)
    assert traced.graph.nodes[0].in_strategy is None
    assert traced.ignored_strategies == 1


def test_attributes_of_primitives_reach_the_node() -> None:
    relu = ops.ReLU().add_prim_attr("keep", True)
    assert made(lambda x: relu(x)).graph.nodes[0].attrs == {"keep": True}


class Stack(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks = nn.CellList([Net() for _ in range(2)])
        self.tail = nn.SequentialCell(nn.ReLU(), nn.Dense(8, 2))

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return self.tail(x)


def test_lists_of_cells_show_in_scopes_and_parameter_names() -> None:
    traced = made(Stack())
    assert [n.scope for n in traced.graph.nodes if n.op.name == "MatMul"] == [
        "Default/blocks-CellList/0-Net", "Default/blocks-CellList/1-Net",
        "Default/tail-SequentialCell/1-Dense",
    ]  # fmt: skip
    assert [p.name for p in traced.graph.parameters] == [
        "x", "blocks.0.w", "blocks.0.bias", "blocks.1.w", "blocks.1.bias", "tail.1.weight", "tail.1.bias",
    ]  # fmt: skip


class Masked(nn.Cell):
    def __init__(self):
        super().__init__()
        self.mask = Tensor(np.tril(np.ones((8, 8), np.float32)))
        self.table = np.arange(32, dtype=np.float32)
        self.one = Tensor(1.0, FLOAT32)

    def construct(self, x):
        return x @ self.mask + self.table.reshape(4, 8) * self.one


class HoldsMasked(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Masked()

    def construct(self, x):
        return self.inner(x) + self.inner.mask[0]


def test_large_constants_become_parameters_with_their_path() -> None:
    traced = made(HoldsMasked())
    found = {p.name: (p.kind, p.shape) for p in traced.graph.parameters}
    assert found["inner.mask"] == ("constant", (8, 8))
    assert set(traced.constants) == {name for name, (kind, _) in found.items() if kind == "constant"}
    np.testing.assert_array_equal(traced.constants["inner.mask"], np.tril(np.ones((8, 8))))
    x = np.random.default_rng(0).random((4, 8), np.float32)
    mask = np.tril(np.ones((8, 8), np.float32))
    (result,) = run_global(traced.graph, {"x": x} | traced.constants)[:1]
    np.testing.assert_allclose(result, x @ mask + np.arange(32).reshape(4, 8) + mask[0], rtol=1e-6)


def test_small_constants_stand_in_the_node() -> None:
    node = made(Masked()).graph.nodes[-1]
    constants = [v for n in (node, *made(Masked()).graph.nodes) for v in n.inputs if isinstance(v, Constant)]
    assert all(c.value.size <= 16 for c in constants)
    assert "inner.one" not in made(HoldsMasked()).constants


def test_results_keep_their_structure() -> None:
    traced = made(lambda x: {"a": x, "b": (x + 1, None, [2, x * 2])})
    assert traced.structure == {"a": Leaf(0), "b": (Leaf(1), None, [2, Leaf(2)])}
    assert traced.rebuild("xyz") == {"a": "x", "b": ("y", None, [2, "z"])}
    assert traced.graph.returns_tuple


def test_single_result_is_no_tuple() -> None:
    traced = made(lambda x: x)
    assert traced.graph.results == traced.graph.parameters
    assert not traced.graph.returns_tuple


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


def test_strategies_of_a_function() -> None:
    layout = Layout((2, 4), ("dp", "mp"))
    function = shard(lambda a, b: a + b, (layout("dp", "mp"), layout("dp", "None")))
    traced = made(lambda x: function(x, x))
    assert operators(traced) == ["ShardingConstraint", "ShardingConstraint", "Add"]
    assert [n.in_strategy[0].strategy for n in traced.graph.nodes[:2] if n.in_strategy] == [(2, 4), (2, 1)]
    assert [p.name for p in made(function, X, X).graph.parameters] == ["a", "b"]


def test_strategies_for_tensors_that_are_not_there_are_refused() -> None:
    function = shard(lambda a: a, ((4, 1), (4, 1)))
    with pytest.raises(MspcError, match="in_strategy has 2 entries, but there are 1 tensors"):
        made(lambda x: function(x))


def test_assigning_a_parameter_is_an_update() -> None:
    class Counter(nn.Cell):
        def __init__(self):
            super().__init__()
            self.count = Parameter(Tensor(0, INT32), "count", requires_grad=False)

        def construct(self, x):
            self.count = self.count + 1
            return x

    traced = made(Counter())
    assert [(n.op.name, n.phase) for n in traced.graph.nodes] == [("Add", "forward"), ("Assign", "update")]


def test_recompute_marks_what_is_inside() -> None:
    net = WithLoss(Net())
    net.net.recompute()
    marked = [n.op.name for n in made(net, X, X).graph.nodes if n.attrs.get("recompute")]
    assert marked == ["MatMul", "Add", "ReLU"]


def test_to_float_casts_inputs_and_parameters() -> None:
    net = Net()
    net.to_float(FLOAT16)
    traced = made(net)
    (result,) = traced.graph.results
    assert result.type == TensorType(FLOAT16, (4, 8))
    assert operators(traced).count("Cast") == 3


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


def test_cells_in_closures_are_called_after_their_variable() -> None:
    net, loss = Net(), nn.MSELoss()

    def forward(x, y):
        return loss(net(x), y)

    traced = made(forward, X, X)
    assert traced.graph.nodes[0].scope == "Default/net-Net"
    assert traced.graph.nodes[-1].scope == "Default/loss-MSELoss"
    assert traced.graph.name == "forward"


def test_training_step_updates_after_the_gradients() -> None:
    net = Net()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    step = nn.TrainOneStepCell(WithLoss(net), optimizer)
    traced = made(step, X, X)
    names = operators(traced)
    assert names.count("MatMul") == 1
    assert names.count("Gradient") == 1
    updates = [n for n in traced.graph.nodes if n.op.name == "ApplyMomentum"]
    assert [n.phase for n in updates] == ["update", "update"]
    assert all(n.scope == "Default/optimizer-Momentum" for n in updates)
    assert traced.graph.nodes[-1].op.name == "Depend"
    assert [p.name for p in traced.graph.parameters[:4]] == ["inputs0", "inputs1", "net.w", "net.bias"]
    assert {"moments.w", "learning_rate", "momentum", "global_step"} <= set(traced.parameters)


@pytest.fixture
def session() -> Iterator[Session]:
    """A fresh session for scripts' calls."""
    fresh = Session()
    before = state.swap(fresh)
    yield fresh
    state.swap(before)


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


@pytest.mark.parametrize("target", [WithLoss(Net()), Stack(), HoldsMasked()], ids=["loss", "stack", "masked"])
def test_text_of_the_graph_reads_back(target: nn.Cell) -> None:
    types = [X, X] if isinstance(target, WithLoss) else [X]
    from mspc.ir.text.parser import parse

    text = print_graph(made(target, *types).graph)
    assert print_graph(parse(text, REGISTRY, frames=True).graphs[0]) == text


def test_same_network_gives_the_same_text() -> None:
    assert print_graph(made(Stack()).graph) == print_graph(made(Stack()).graph)


class WrongLoss(WithLoss):
    def construct(self, x, y):
        return self.loss(self.net(x), y[:, 1:])


def test_mistake_below_the_user_is_shown_at_the_users_line() -> None:
    with pytest.raises(MspcError) as caught:
        made(WrongLoss(Net()), X, X)
    line = line_of("        return self.loss(self.net(x), y[:, 1:])")
    inner = (Path(nn.__file__).parent / "loss.py").read_text().splitlines()
    called = inner.index("        return self.get_loss(ops.square(logits - labels))") + 1
    assert caught.value.render() == (
        f"test_frontend_networks.py:{line}:16: error: "
        "Sub: dimension 1 of input 1 is 7, but dimension 1 of input 0 says 8\n"
        "            return self.loss(self.net(x), y[:, 1:])\n"
        "                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        f"  in mspc/mindspore_api/nn/loss.py:{called}:41: return self.get_loss(ops.square(logits - labels))\n"
        "  note: the shapes are (4, 8), (4, 7)"
    )
