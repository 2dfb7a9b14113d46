"""The uses of a step's bytes: parameters, states of optimizers, gradients, activations, temporary buffers."""

from pathlib import Path

import pytest

from mspc.ir.graph import Graph, Value
from mspc.ops.fused.updates import GroupedUpdate
from mspc.runtime import memory_classes
from mspc.runtime.memory import MemoryPlan
from mspc.runtime.memory_plan import plan_memory
from tests.compiled_scripts import compiled_text

RANKS = 4
NUMBERS = 64
"""Bytes of counters, powers and scales."""
NET = '''
import sys
import numpy as np
import mspc as ms
from mspc import Parameter, Tensor, nn, ops

optimizer, step, mode = sys.argv[1:]
ms.set_auto_parallel_context(
    parallel_mode=mode, gradients_mean=True, enable_parallel_optimizer=mode != "data_parallel",
    parallel_optimizer_config={"parallel_optimizer_threshold": 0},
)

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 16, 3, pad_mode="same"), nn.BatchNorm2d(16)
        self.first, self.norm, self.last = nn.Dense(1024, 64), nn.LayerNorm((64,)), nn.Dense(64, 8)

    def construct(self, x):
        x = ops.relu(self.bn(self.conv(x)))
        return self.last(ops.gelu(self.norm(self.first(ops.reshape(x, (x.shape[0], -1))))))

class Step(nn.Cell):
    def __init__(self, network, optimizer):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.weights = network, optimizer, optimizer.parameters
        self.gradients = ops.GradOperation(get_by_list=True)
        self.sums = self.weights.clone(prefix="sums", init="zeros")
        self.count = Parameter(Tensor(0, ms.int32), requires_grad=False)

    def construct(self, x, y):
        loss = self.network(x, y)
        return self.step(loss, self.gradients(self.network, self.weights)(x, y))

class Clipped(Step):
    def step(self, loss, gradients):
        return ops.depend(loss, self.optimizer(ops.clip_by_global_norm(gradients, 1.0)))

class Accumulated(Step):
    def step(self, loss, gradients):
        for i in range(len(self.sums)):
            loss = ops.depend(loss, ops.assign_add(self.sums[i], gradients[i]))
        loss = ops.depend(loss, ops.assign_add(self.count, Tensor(1, ms.int32)))
        if self.count % 4 == 0:
            loss = ops.depend(loss, self.optimizer(self.sums))
            for i in range(len(self.sums)):
                loss = ops.depend(loss, ops.assign(self.sums[i], ops.zeros_like(self.sums[i])))
        return loss

net = nn.WithLossCell(Net(), nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
update = getattr(nn, optimizer)(net.trainable_params(), 1e-3, *[0.9] * (optimizer == "Momentum"))
x, y = Tensor(np.zeros((32, 3, 8, 8), np.float32)), Tensor(np.zeros(32, np.int32))
cell = {
    "plain": lambda: nn.TrainOneStepCell(net, update), "clipped": lambda: Clipped(net, update),
    "accumulated": lambda: Accumulated(net, update),
    "scaled": lambda: nn.TrainOneStepWithLossScaleCell(net, update, nn.DynamicLossScaleUpdateCell(1024.0, 2, 100)),
    "none": lambda: net,
}[step]()
cell.set_train(step != "none")(x, y)
'''


def planned(folder: Path, *arguments: str) -> tuple[Graph, MemoryPlan]:
    graph = compiled_text(folder, NET, RANKS, *arguments).rank_graph(0)
    return graph, plan_memory(graph)


def _bytes(graph: Graph, *begins: str, trained: bool = False) -> int:
    """Bytes of parameters by the begins of their names, or of those that the network trains."""
    own = [p for p in graph.parameters if not p.name.startswith("sums.")]
    chosen = [p for p in own if p.trainable] if trained else [p for p in graph.parameters if p.name.startswith(begins)]
    return sum(parameter.type.nbytes for parameter in chosen)


@pytest.mark.parametrize(("optimizer", "step"), [("Momentum", "plain"), ("Adam", "clipped"), ("Lamb", "scaled")])
def test_gradients_are_as_large_as_what_is_trained(optimizer: str, step: str, tmp_path: Path) -> None:
    """The operands of BatchNorm, which mutates its statistics, are activations; scalars and steps of updates none."""
    graph, plan = planned(tmp_path, optimizer, step, "data_parallel")
    trained = _bytes(graph, trained=True)
    # One kernel takes the scale off the last gradients and makes what is added to both of Lamb's moments.
    both = _bytes(graph, "conv.", "bn.gamma", "bn.beta") if (optimizer, step) == ("Lamb", "scaled") else 0
    assert plan.gradients == trained + both
    assert 0 <= plan.weights - trained - _bytes(graph, "bn.moving") < NUMBERS
    moments = 1 if optimizer == "Momentum" else 2
    assert 0 <= plan.states - moments * trained < NUMBERS
    assert plan.activations > 32 // RANKS * 16 * 8 * 8 * 4  # what BatchNorm reads, at least


MANY = """
import mspc as ms
from mspc import nn
net = nn.SequentialCell([each for n in range(30) for each in (nn.Dense(4 + n % 7, 4 + (n + 1) % 7), nn.ReLU())])
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 1e-3))
step.set_train()(ms.ops.zeros((8, 4)), ms.ops.zeros((8, 6)))
"""


def test_sizes_are_asked_for_a_few_times_an_operand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many parameters one operator updates."""
    graph = compiled_text(tmp_path, MANY, 1).rank_graph(0)
    assert max(len(node.inputs) for node in graph.nodes if isinstance(node.op, GroupedUpdate)) >= 300
    asked: list[Value] = []
    size = memory_classes._size  # pyright: ignore[reportPrivateUsage]

    def counted(value: Value, place: int = 0) -> int:
        asked.append(value)
        return size(value, place)

    monkeypatch.setattr(memory_classes, "_size", counted)
    plan_memory(graph)
    assert len(asked) < 5 * sum(len(node.inputs) for node in graph.nodes)


def test_sums_of_gradients_are_kept_as_states_though_they_ask_for_gradients(tmp_path: Path) -> None:
    graph, plan = planned(tmp_path, "Adam", "accumulated", "data_parallel")
    trained = _bytes(graph, trained=True)
    assert _bytes(graph, "sums.") == trained
    assert plan.gradients == trained
    assert 0 <= plan.weights - trained - _bytes(graph, "bn.moving") < NUMBERS
    assert 0 <= plan.states - 3 * trained < NUMBERS
    plain = planned(tmp_path, "Adam", "plain", "data_parallel")[1]
    assert plan.activations == plain.activations


def test_of_sliced_states_the_parts_of_sums_over_ranks_are_gradients(tmp_path: Path) -> None:
    """Global gradients go into ReduceScatter, slices come out: of all parameters both, as they are made."""
    graph, plan = planned(tmp_path, "Adam", "plain", "semi_auto_parallel")
    slices = _bytes(graph, trained=True)
    whole = sum(p.global_type.nbytes for p in graph.parameters if p.trainable and p.global_type is not None)
    assert slices < whole / 2
    assert slices < plan.gradients <= whole + slices


def test_what_is_not_trained_has_neither_gradients_nor_states(tmp_path: Path) -> None:
    graph, plan = planned(tmp_path, "Adam", "none", "data_parallel")
    assert (plan.gradients, plan.states) == (0, 0)
    assert 0 < plan.activations <= plan.arena
    assert plan.weights == sum(p.type.nbytes for p in graph.parameters if p.kind != "input")


def test_every_result_is_of_a_class_and_the_classes_fit_the_arena(tmp_path: Path) -> None:
    graph, plan = planned(tmp_path, "Lamb", "clipped", "data_parallel")
    for node in graph.nodes:
        for name, place in zip(plan.classes.get(node, ()), plan.places[node], strict=False):
            assert (name == "") == (place.kind == "kept")
    assert max(plan.gradients, plan.activations, plan.temporary) <= plan.lower_bound
    assert plan.gradients + plan.activations + plan.temporary >= plan.lower_bound
