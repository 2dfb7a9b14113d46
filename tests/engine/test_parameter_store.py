"""First values that are drawn ahead are those that are drawn in their turn."""

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.commands.run import run_script
from mspc.engine import parameter_store
from mspc.engine.calls import CompiledCall
from mspc.engine.parameter_store import EarlyDraws
from mspc.ir.graph import Parameter as GraphParameter
from mspc.mindspore_api import call_handler
from mspc.mindspore_api.common.initializers import InitialValue
from tests.graphs import FLOAT32, Graph, Layout, MspcError, TensorType
from tests.texts import IMPORTS

SHAPE = (64, 8)


@pytest.fixture(autouse=True)
def small_tensors_are_drawn_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_store, "MIN_THREADED_ELEMENTS", 1)
    monkeypatch.setattr(parameter_store, "MIN_EARLY_ELEMENTS", 16)
    monkeypatch.setattr(parameter_store, "thread_count", lambda: 3)


def wanted(*inits: Any, layout: Layout | None = None) -> list[tuple[Any, GraphParameter]]:
    found: list[tuple[Any, GraphParameter]] = []
    for number, init in enumerate(inits):
        parameter = Parameter(ms.common.initializer.initializer(init, SHAPE, ms.float32), name=f"p{number}")
        of_graph = GraphParameter(f"p{number}", TensorType(FLOAT32, SHAPE), "parameter")
        if layout is not None:
            of_graph.type, of_graph.global_type = TensorType(FLOAT32, layout.local_shape(SHAPE)), of_graph.type
            of_graph.layout = layout
        found.append((parameter, of_graph))
    return found


def test_values_are_those_that_the_initializer_makes() -> None:
    entries = wanted("normal", "he_uniform", "xavier_uniform", "truncatedNormal", "uniform")
    ahead = EarlyDraws(entries, 0)
    for parameter, _ in entries:
        found = ahead.take(parameter)
        np.testing.assert_array_equal(found, parameter.initial.fill())
        assert ahead.take(parameter) is None
    ahead.close()


def test_a_rank_draws_its_slice() -> None:
    entries = wanted("normal", "normal", layout=Layout.of((4,), [(0,), ()]))
    ahead = EarlyDraws(entries, 3)
    for parameter, _ in entries:
        np.testing.assert_array_equal(ahead.take(parameter), parameter.initial.fill()[48:])
    ahead.close()


def test_what_costs_nothing_or_is_the_scripts_own_is_left() -> None:
    class Own(ms.common.initializer.Initializer):
        def _initialize(self, arr: Any) -> None:
            raise AssertionError

    entries = [*wanted("zeros", Own(), "normal", "normal"), (Parameter(Tensor(np.ones(SHAPE, np.float32))), None)]
    entries[-1] = (entries[-1][0], entries[0][1])
    ahead = EarlyDraws(entries, 0)
    assert [ahead.take(parameter) is None for parameter, _ in entries] == [True, True, False, False, True]
    ahead.close()


def test_no_more_than_a_limit_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes = 64 * 8 * 4
    monkeypatch.setattr(parameter_store, "MAX_BYTES", 2 * nbytes)
    drawn: list[int] = []
    fill = InitialValue.fill
    monkeypatch.setattr(InitialValue, "fill", lambda self, *slices: drawn.append(1) or fill(self, *slices))
    entries = wanted(*["normal"] * 5)
    ahead = EarlyDraws(entries, 0)
    for number, (parameter, _) in enumerate(entries):
        assert ahead.take(parameter) is not None
        assert len(drawn) <= min(5, number + 3)
    ahead.close()
    monkeypatch.setattr(parameter_store, "MAX_BYTES", 1)
    entries = wanted(*["normal"] * 3)
    ahead = EarlyDraws(entries, 0)
    assert all(ahead.take(parameter) is not None for parameter, _ in entries)
    ahead.close()


def test_errors_come_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = wanted("normal", "normal")
    ahead = EarlyDraws(entries, 0)
    ahead.close()
    fill = InitialValue.fill

    def refused(self: InitialValue, *slices: Any) -> Any:
        if self is entries[1][0].initial:
            raise MspcError("it is refused")
        return fill(self, *slices)

    monkeypatch.setattr(InitialValue, "fill", refused)
    ahead = EarlyDraws(entries, 0)
    assert ahead.take(entries[0][0]) is not None
    with pytest.raises(MspcError, match="it is refused"):
        ahead.take(entries[1][0])
    ahead.close()


def test_few_values_need_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_store, "MIN_THREADED_ELEMENTS", 1 << 20)
    entries = wanted("normal", "normal")
    assert EarlyDraws(entries, 0).take(entries[0][0]) is None


def test_a_network_begins_with_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def outputs() -> Any:
        ms.set_seed(5)
        net = nn.SequentialCell(nn.Dense(8, 64), nn.ReLU(), nn.Dense(64, 64), nn.Dense(64, 4))
        found = net(Tensor(np.ones((2, 8), np.float32))).asnumpy()
        return [found, *(parameter.asnumpy() for parameter in net.get_parameters())]

    ahead = outputs()
    call_handler.install(None)
    monkeypatch.setattr(parameter_store, "MIN_THREADED_ELEMENTS", 1 << 30)
    for one, other in zip(ahead, outputs(), strict=True):
        np.testing.assert_array_equal(one, other)


# A rank that stores a slice of a parameter holds nothing else of it, however the script made the parameter.


SIZE = 1024
GLOBAL_BYTES = SIZE * SIZE * 4
BESIDES = GLOBAL_BYTES // 2
"""Bytes of what else ranks hold: their graphs and scripts, half as much as this. No second copy goes into them."""
RANKS = 4
SCRIPT = f"""
import gc
import tracemalloc
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter
from mindspore.common.initializer import initializer, Initializer
from mindspore.communication import get_rank, init

init()
ms.set_auto_parallel_context(parallel_mode="MODE", device_num={RANKS}, dataset_strategy="DATA")


class Drawn(Initializer):
    def draw(self, generator, shape):
        return generator.standard_normal(shape, np.float32)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [{SIZE}, {SIZE}]), "w")
        self.v = Parameter(initializer("zeros", [{SIZE}]), "v", requires_grad=False)
        self.matmul = ops.MatMul().shard(((1, 1), (1, {RANKS})))

    def construct(self, x):
        return self.matmul(x, self.w)


net = Net()
BEFORE
for _ in range(2):
    net(Tensor(np.ones((4, {SIZE})), ms.float32))
AFTER
gc.collect()
print(get_rank(), tracemalloc.get_traced_memory()[0], net.w[0, 0], net.w.shape, net.w.dtype)
"""
WAYS = [
    ("", ""),
    ("net.w.set_data(initializer('uniform', net.w.shape))", ""),
    ("net.w.set_data(initializer(Drawn(), net.w.shape))", ""),
    ("net.w.set_data(np.ones(net.w.shape, np.float32))", ""),
    ("net.w.asnumpy()", ""),
    ("net.w[0] = 3", ""),
    ("net.w.set_dtype(ms.float16); net.w.set_dtype(ms.float32)", ""),
    ("", "net.w.set_data(initializer('uniform', net.w.shape))"),
    ("", "net.w.set_data(initializer(Drawn(), net.w.shape))"),
    ("", "net.w.set_data(np.ones(net.w.shape, np.float32))"),
    (
        "ms.save_checkpoint(net, f'w{get_rank()}'); ms.load_checkpoint(f'w{get_rank()}.safetensors', net)",
        "",
    ),
]
"""The work of a script before its first step, and after its last."""


def text_of(before: str, after: str, mode: str) -> str:
    text = SCRIPT.replace("BEFORE", before).replace("AFTER", after)
    return text.replace("MODE", mode or "semi_auto_parallel").replace("DATA", mode or "full_batch")


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All that the runs import is there already when the first of them is measured."""
    folder = tmp_path_factory.mktemp("imported")
    before, after = ("\n".join(texts) for texts in zip(*WAYS, strict=True))
    (folder / "train.py").write_text(text_of(before, after, ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_script(folder / "train.py", RANKS, simulate=True)


def held(script: Path, capsys: pytest.CaptureFixture[str], before: str, after: str = "", mode: str = "") -> list[int]:
    """Bytes that all ranks together hold when each of them has run."""
    script.write_text(text_of(before, after, mode))
    gc.freeze()  # every rank looks for garbage, among what is made from now on
    tracemalloc.start()
    start, _ = tracemalloc.get_traced_memory()
    run_script(script, RANKS, simulate=True)
    tracemalloc.stop()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert len({tuple(line[2:]) for line in lines}) == 1, "all ranks see the same values"
    return [int(line[1]) - start for line in lines]


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_ranks_hold_slices(before: str, after: str, own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = held(own_folder / "train.py", capsys, before, after)
    assert max(found) < GLOBAL_BYTES + BESIDES


def test_a_rank_holds_a_replicated_parameter_once(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = held(own_folder / "train.py", capsys, "", mode="data_parallel")
    assert max(found) < RANKS * GLOBAL_BYTES + BESIDES


# States of optimizers that a script's numbers leave unused take no memory, until the numbers change.


STEPS = 6


def losses(
    moments: dict[int, float], alike: bool, by_graph: bool = False, **options: Any
) -> tuple[list[float], nn.SGD]:
    """The losses of steps, before some of which the script gives the momentum another value.

    alike: every step is computed with the states in place. by_graph: a graph gives the values.
    """
    ms.set_seed(1)
    call_handler.install(None)
    net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 2))
    optimizer = nn.SGD(net.trainable_params(), 0.05, **options)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
    change = ms.jit(lambda value: ops.assign(optimizer.momentum, value)) if by_graph else optimizer.momentum.set_data
    data = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    found: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        if alike:
            patch.setattr(CompiledCall, "_without_unused_states", lambda self, graph: graph)
        for number in range(STEPS):
            if number in moments:
                change(Tensor(moments[number], ms.float32))
            found.append(float(step(Tensor(data), Tensor(data[:, :2])).asnumpy()))
    return found, optimizer


@pytest.mark.parametrize("moments", [{}, {0: 0.9}, {3: 0.9}, {2: 0.9, 4: 0.0}, {1: 0.0, 4: 0.5}])
@pytest.mark.parametrize("options", [{}, {"dampening": 0.5}, {"weight_decay": 0.1}], ids=str)
def test_losses_are_those_of_a_run_with_all_states(moments: dict[int, float], options: dict[str, float]) -> None:
    expected, _ = losses(moments, True, **options)
    found, optimizer = losses(moments, False, **options)
    assert found == expected
    is_used = any(moments.values())
    states = [*optimizer.accum, *optimizer.stat]
    assert all((state.store is not None) == is_used for state in states)
    assert all((state.asnumpy() == 1).all() for state in optimizer.stat) != is_used


@pytest.mark.parametrize("moments", [{0: 0.9}, {3: 0.9}, {0: 0.0, 2: 0.9, 4: 0.0}])
def test_a_momentum_that_a_graph_changes_is_not_relied_on(moments: dict[int, float]) -> None:
    expected, _ = losses(moments, True, by_graph=True)
    found, optimizer = losses(moments, False, by_graph=True)
    assert found == expected
    assert all(state.store is not None for state in optimizer.accum)


@pytest.mark.parametrize("moments", [{}, {3: 0.9}, {2: 0.9, 4: 0.0}])
def test_tables_are_updated_by_the_rows_that_are_looked_up(moments: dict[int, float]) -> None:
    """Until the momentum is another one than 0; the losses and tables are those of dense updates."""
    graphs: list[Graph] = []
    found = []
    for dense in (False, True):
        ms.set_seed(1)
        call_handler.install(None)
        net = nn.SequentialCell(nn.Embedding(50, 4), nn.Dense(4, 3))
        optimizer = nn.SGD(net.trainable_params(), 0.05)
        step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
        make = CompiledCall._without_unused_states

        def noted(self: CompiledCall, graph: Graph, make: Any = make, dense: bool = dense) -> Graph:
            graphs.append(graph if dense else make(self, graph))
            return graphs[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CompiledCall, "_without_unused_states", noted)
            for number in range(STEPS):
                if number in moments:
                    optimizer.momentum.set_data(Tensor(moments[number], ms.float32))
                ids = Tensor(np.array([3, 1, 3, number], np.int32))
                found.append(float(step(ids, Tensor(np.ones((4, 3), np.float32))).asnumpy()))
        found.append(net[0].embedding_table.asnumpy().tobytes())
    assert found[: STEPS + 1] == found[STEPS + 1 :]
    used = ["GroupedRowUpdate" in {node.op.name for node in graph.nodes} for graph in graphs]
    assert used == [True, *([False] if moments else []), False]


UNUSED_SCRIPT = IMPORTS + """
from mindspore.communication import get_rank, init

init()
ms.set_seed(2)
ms.set_auto_parallel_context(parallel_mode="MODE", gradients_mean=True, dataset_strategy=DATA)
net = nn.Dense(8, 8)
net.matmul.shard(((1, 1), (2, 1)))
optimizer = nn.SGD(net.trainable_params(), 0.1)
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
x = Tensor(np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32))
losses = [float(step(x, x).asnumpy()) for _ in range(2)]
optimizer.momentum.set_data(Tensor(0.9, ms.float32))
losses += [float(step(x, x).asnumpy()) for _ in range(3)]
ms.save_checkpoint(optimizer, "states-RANK.ckpt".replace("RANK", str(get_rank())))
stat = ms.load_checkpoint("states-RANK.ckpt".replace("RANK", str(get_rank())))["stat.weight"].asnumpy()
print(*[f"{loss:.6f}" for loss in losses], stat.sum())
"""


@pytest.mark.parametrize("mode", ["data_parallel", "semi_auto_parallel", "stand_alone"])
def test_ranks_change_their_graphs_together(
    mode: str, own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = own_folder / "states.py"
    data = '"data_parallel"' if mode == "data_parallel" else '"full_batch"'
    script.write_text(UNUSED_SCRIPT.replace("MODE", mode).replace("DATA", data))
    run_script(script, 2, simulate=True)
    found = capsys.readouterr().out.splitlines()
    monkeypatch.setattr(CompiledCall, "_without_unused_states", lambda self, graph: graph)
    run_script(script, 2, simulate=True)
    assert found == capsys.readouterr().out.splitlines()
    assert len(found) == 2
