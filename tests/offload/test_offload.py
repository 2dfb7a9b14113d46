"""States and activations in the host's memory: the same bits, memory that falls by what lives there, and mistakes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from mspc.analysis.cost.machine import H200, HOST_COPIES, KNOWN_MACHINES
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.diff import diff_targets
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import FROM_HOST, OFFLOAD, TO_HOST, Graph
from mspc.ops.tensor.host_memory import AssignOnHost, AwaitHost, FromHost, ToHost
from mspc.runtime.memory_plan import peak_of, plan_memory
from mspc.verify.scale.memory_use import MemoryCheck
from tests.compiled_scripts import Compiled, Config, compile_call, compiled_script, verify_target
from tests.executors import Executor, NumPyBackend, OneRank
from tests.judged_seeds import EQUAL
from tests.offload.drawn_combinations import KINDS, Combination
from tests.sharded_beside_one import beside_one_device
from tests.shares import share_of

ROWS, WIDTH, LAYERS = 64, 32, 5
SCRIPT = f"""
import sys
import mindspore as ms, numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.communication import init

MODE, STATES, PREFETCH, ROWS, WIDTH = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
init()
if MODE.startswith("level"):
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, enable_parallel_optimizer=True,
        parallel_optimizer_config={{"optimizer_level": MODE, "parallel_optimizer_threshold": 0}})
if MODE == "stages":
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, pipeline_stages=2,
        pipeline_config={{"pipeline_scheduler": "gpipe"}})
ms.set_seed(1)

class Layer(nn.Cell):
    def __init__(self, stage):
        super().__init__()
        self.up, self.down = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm((WIDTH,))
        if PREFETCH != "none":
            self.offload(*([] if PREFETCH == "auto" else [int(PREFETCH)]))
        if MODE == "stages":
            self.pipeline_stage = stage
    def construct(self, x):
        return x + self.down(ops.gelu(self.up(self.norm(x))))

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer(i // 3) for i in range({LAYERS})])
    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return (x * x).mean()

net = Net()
cell = nn.PipelineCell(net, 8) if MODE == "stages" else net
optimizer = nn.Adam(net.trainable_params(), 1e-2)
if STATES == "host":
    optimizer.offload()
if MODE == "scaled":
    step = nn.TrainOneStepWithLossScaleCell(cell, optimizer, nn.DynamicLossScaleUpdateCell(1024, 2, 2))
else:
    step = nn.TrainOneStepCell(cell, optimizer)
step.set_train()(Tensor(shape=(ROWS, WIDTH), dtype=ms.float32))
"""


def compiled(folder: Path, mode: str, states: str, prefetch: str, rows: int = ROWS, width: int = WIDTH) -> Compiled:
    script = folder / "net.py"
    script.write_text(SCRIPT)
    ranks = 1 if mode in ("alone", "scaled") else 4
    given = [mode, states, prefetch, str(rows), str(width)]
    return compiled_script(script, ranks, *given)


def graph_of(folder: Path, *options: Any) -> Graph:
    return compiled(folder, *options).rank_graph(0)


def trained(made: Compiled, steps: int = 3) -> list[np.ndarray]:
    graph = made.rank_graph(0)
    values = {p.name: np.array(made.traced.parameters[p.name].array) for p in graph.parameters if p.kind != "input"}
    executor = Executor(graph, NumPyBackend(OneRank()), values)
    drawn = np.random.RandomState(1).randn(ROWS, WIDTH).astype(np.float32)
    found = [np.array(executor.run([drawn])[0]) for _ in range(steps)]
    return [*found, *(np.array(executor.parameter(name)) for name in sorted(values))]


@pytest.mark.parametrize("mode", ["alone", "scaled"])
def test_numbers_are_equal_bit_for_bit(mode: str, tmp_path: Path) -> None:
    wanted = trained(compiled(tmp_path, mode, "device", "none"))
    for states, prefetch in (("host", "auto"), ("host", "1")) if mode == "alone" else (("host", "2"),):
        found = trained(compiled(tmp_path, mode, states, prefetch))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_states_are_gone_from_the_device(tmp_path: Path) -> None:
    plain, made = (graph_of(tmp_path, "alone", states, "none", 4096, 1024) for states in ("device", "host"))
    before, after = plan_memory(plain), plan_memory(made)
    moved = sum(p.type.nbytes for p in made.parameters if OFFLOAD in p.attrs)
    assert before.states - after.states == moved == after.kept_on_host == after.on_host
    assert before.weights == after.weights
    # Those of up to four updates are there at once.
    largest = max(node.type.nbytes for node in made.nodes if isinstance(node.op, FromHost))
    assert after.arena <= before.arena + 4 * 2 * largest
    assert peak_of(made) == after.peak == before.peak - moved + after.arena - before.arena


def test_activations_are_gone_between_forward_and_backward(tmp_path: Path) -> None:
    plain, made = (graph_of(tmp_path, "alone", "device", prefetch, 8192, 16384) for prefetch in ("none", "auto"))
    before, after = plan_memory(plain), plan_memory(made)
    assert after.host_arena > before.arena // 3
    assert before.arena - after.arena > before.arena // 8
    timeline, alone = StreamTimeline(made, H200), StreamTimeline(plain, H200)
    assert timeline.copies > 0 == alone.copies
    assert timeline.total < 1.05 * alone.total, "copies run beside the step"


def test_a_prefetch_is_so_many_operators_ahead(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, "alone", "device", "3")
    ran = [node for node in graph.nodes if not node.op.is_view and node.attrs.get("stream") not in (TO_HOST, FROM_HOST)]
    ran = [node for node in ran if not isinstance(node.op, AwaitHost)]
    fetched = [node for node in graph.nodes if isinstance(node.op, FromHost)]
    assert fetched
    for node in fetched:
        place = graph.nodes.index(node)
        shown = {node}
        for other in graph.nodes[place:]:
            if other.op.is_view and not shown.isdisjoint(other.inputs):
                shown.add(other)
        reader = next(i for i, other in enumerate(ran) if not shown.isdisjoint(other.inputs))
        assert graph.nodes.index(ran[reader - 3]) > place > graph.nodes.index(ran[reader - 4])


@pytest.mark.parametrize("options", [
    ("alone", "host", "auto"), ("scaled", "host", "1"), ("level3", "host", "2"), ("stages", "host", "auto"),
])  # fmt: skip
def test_memory_is_read_and_written_in_order(options: tuple[str, str, str], tmp_path: Path) -> None:
    """Looked at byte by byte, stream by stream."""
    made = compiled(tmp_path, *options, 8192, 8192)
    for rank in range(made.config.all_ranks):
        graph = made.rank_graph(rank)
        names = {type(node.op) for node in graph.nodes}
        assert {FromHost, AssignOnHost} <= names
        assert rank > 1 or {ToHost, AwaitHost} <= names  # the last stage has nothing to wait for
        assert not list(MemoryCheck(graph, plan_memory(graph, early=True), early=True).misuses())


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["level3", "stages"])
def test_ranks_equal_one_device(mode: str, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(SCRIPT)
    options = CompileOptions(ranks=4, script_arguments=(mode, "host", "2", str(ROWS), str(WIDTH)))
    verify_target(str(script), options, seed=1)


def test_updates_run_where_their_gradients_are_known(tmp_path: Path) -> None:
    nodes = graph_of(tmp_path, "alone", "host", "none", 4096, 4096).nodes
    last = max(i for i, node in enumerate(nodes) if node.phase == "backward")
    updates = [i for i, node in enumerate(nodes) if node.op.mutates and not isinstance(node.op, AssignOnHost)]
    assert sum(i < last for i in updates) > len(updates) // 2


def test_machines_say_how_fast_copies_are() -> None:
    rates = [KNOWN_MACHINES[name].traffic[HOST_COPIES].at(1.0) for name in ("h200", "h100", "a100")]
    assert rates[0] == rates[1] > rates[2]
    assert KNOWN_MACHINES["a100"].moving_seconds(27e9, HOST_COPIES) == pytest.approx(1.0)


def test_cells_inside_of_a_cell_have_the_last_word() -> None:
    outer = nn.SequentialCell([nn.Sigmoid(), nn.Tanh(), nn.Dense(4, 4)])
    outer.offload(3)
    outer[1].offload(1)
    network = nn.WithLossCell(outer, nn.MSELoss())
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1)).set_train()
    found = compile_call(step, [Tensor(np.ones((2, 4), np.float32))] * 2, Config()).graph
    marks = {str(node.attrs[OFFLOAD]).rpartition("/")[2] for node in found.nodes if OFFLOAD in node.attrs}
    assert {mark.rpartition("-")[2] for mark in marks} == {"Tanh, 1", "SequentialCell, 3"}


@pytest.mark.parametrize(("layers", "wanted"), [(None, {"0", "1", "2"}), ([0, 2], {"0", "2"})])
def test_a_list_of_cells_names_its_layers(layers: Any, wanted: set[str]) -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.CellList([nn.SequentialCell([nn.Dense(4, 4), nn.Tanh()]) for _ in range(3)])
            self.layers.offload(2, layers)

        def construct(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    network = nn.WithLossCell(Net(), nn.MSELoss())
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1)).set_train()
    found = compile_call(step, [Tensor(np.ones((2, 4), np.float32))] * 2, Config()).graph
    marks = {str(node.attrs[OFFLOAD]) for node in found.nodes if OFFLOAD in node.attrs}
    assert {mark.rpartition("/")[2] for mark in marks} == {f"{number}-SequentialCell, 2" for number in wanted}
    assert {node.scope.split("/")[-2][0] for node in found.nodes if OFFLOAD in node.attrs} == wanted


@pytest.mark.parametrize("layers", [[0, 3], [-1], ["0"], [True]])
def test_layers_that_a_list_does_not_have_are_refused(layers: Any) -> None:
    cells = nn.CellList([nn.Dense(4, 4) for _ in range(3)])
    with pytest.raises(MspcError, match=r"CellList.offload: layers has .*, and the list has cells 0 to 2"):
        cells.offload(layers=layers)


def test_cells_of_one_that_is_not_called_keep_what_they_make() -> None:
    class Inner(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.flat = nn.Tanh(), nn.Flatten()

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.inner = nn.Dense(4, 4), nn.Dense(4, 4), Inner()
            self.inner.offload(1)

        def construct(self, x: Any) -> Any:
            return self.second(self.first(self.inner.flat(self.inner.act(self.first(x)))))

    network = nn.WithLossCell(Net(), nn.MSELoss())
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1)).set_train()
    nodes = compile_call(step, [Tensor(np.ones((2, 4), np.float32))] * 2, Config()).rank_graph(0).nodes
    assert [node.op.name for node in nodes if isinstance(node.op, ToHost | FromHost)] == ["ToHost", "FromHost"]


def test_an_operator_keeps_its_own_result() -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.tanh = ops.Tanh()._offload(1)
            self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 4)

        def construct(self, x: Any) -> Any:
            return self.second(self.first(self.tanh(self.first(x))))

    network = nn.WithLossCell(Net(), nn.MSELoss())
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1)).set_train()
    nodes = compile_call(step, [Tensor(np.ones((2, 4), np.float32))] * 2, Config()).rank_graph(0).nodes
    assert [node.op.name for node in nodes if isinstance(node.op, ToHost | FromHost)] == ["ToHost", "FromHost"]


def test_what_an_optimizer_refuses() -> None:
    weights = nn.Dense(3, 2).trainable_params()
    with pytest.raises(MspcError, match=r"Optimizer.offload\(\): the optimizer has no states that could be stored"):
        nn.Optimizer(0.1, weights).offload()
    with pytest.raises(MspcError, match="backward_prefetch=0 must be at least 1"):
        nn.Adam(weights, 0.1).offload(0)


def test_optimizers_of_mindspore_that_keep_moments_on_the_host() -> None:
    optimizer = nn.Adam(nn.Dense(3, 2).trainable_params(), use_offload=True)
    assert {p.name.split(".")[0] for p in optimizer.get_parameters() if p.on_host is not None} == {"moment1", "moment2"}


@pytest.mark.parametrize("make", [
    lambda weights: nn.Adam(weights, [0.1, 0.2]),
    lambda weights: nn.Adam([{"params": weights[:1], "lr": [0.3, 0.4]}, {"params": weights[1:]}], [0.1, 0.2]),
])  # fmt: skip
def test_counters_and_rates_of_the_shape_of_a_parameter_stay(make: Any) -> None:
    weights = [Parameter(Tensor(np.ones(size, np.float32)), name=f"w{size}") for size in (1, 2)]
    optimizer = make(weights)
    optimizer.offload()
    moved = {p.name for p in optimizer.get_parameters() if p.on_host is not None}
    assert moved == {"moment1.w1", "moment1.w2", "moment2.w1", "moment2.w2"}


def test_an_optimizer_within_another_keeps_its_states_on_the_host() -> None:
    optimizer = nn.LARS(nn.Momentum(nn.Dense(3, 2).trainable_params(), 0.1, 0.9))
    optimizer.offload(3)
    assert [p.on_host for p in optimizer.get_parameters() if p.name.startswith("moments.")] == [3, 3]


def test_differences_tell_what_lies_on_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(SCRIPT)
    for states in ("device", "host"):
        options = CompileOptions(1, out=tmp_path / states, script_arguments=("alone", states, "none", "8", "4"))
        compile_target(str(tmp_path / "net.py"), options)
    capsys.readouterr()
    diff_targets(str(tmp_path / "device"), str(tmp_path / "host"), CompileOptions())
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory: on the host ")]
    assert "       0 B " in line


def test_nothing_is_copied_without_gradients() -> None:
    network = nn.SequentialCell([nn.Dense(4, 4), nn.Flatten()])
    network[1].offload()
    network.offload()
    nodes = compile_call(network, [Tensor(np.ones((2, 4), np.float32))], Config()).rank_graph(0).nodes
    assert not any(isinstance(node.op, ToHost) for node in nodes)


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(share_of(4)))
def test_combinations_are_those_of_one_device(number: int, kind: str) -> None:
    outcome = beside_one_device(7000 + number, Combination(7000 + number, kind))
    assert outcome.kind == EQUAL, outcome.message
