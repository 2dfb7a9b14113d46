"""The levels of optimizer parallel: what ranks store in slices, what they gather when, and what it holds."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from mspc.runtime.memory_plan import peak_of
from mspc.search.plans.degrees import degrees_of
from tests.compiled_scripts import Compiled, CompileOptions, Config, compile_call, compiled_text, verify_target
from tests.executors import Executor, LocalComm, NumPyBackend, World
from tests.graphs import Collective, TensorType, dtype_of

RANKS = 4
ROWS, WIDTH, LAYERS = 64, 32, 6
SCRIPT = f"""
import sys
import mindspore as ms, numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer
from mindspore.communication import init
from mindspore.parallel.auto_parallel import AutoParallel

LEVEL, HALF, LAZY = sys.argv[1], sys.argv[2] == "half", "lazy" in sys.argv
ROWS, WIDTH = map(int, sys.argv[3:5])
ms.set_seed(1)
init()

def one_graph(constructor):
    return ms.lazy_inline(constructor) if LAZY else constructor

class Layer(nn.Cell):
    @one_graph
    def __init__(self):
        super().__init__()
        self.up = Parameter(initializer(Normal(0.1), [WIDTH, 2 * WIDTH]))
        self.down = Parameter(initializer(Normal(0.1), [2 * WIDTH, WIDTH]))
        self.first, self.second = ops.MatMul(), ops.MatMul()
    def construct(self, x):
        up, down, y = self.up, self.down, x
        if HALF:
            up, down, y = (ops.cast(each, ms.float16) for each in (up, down, y))
        return x + ops.cast(self.second(ops.tanh(self.first(y, up)), down), x.dtype)

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range({LAYERS})])
    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return (x * x).mean()

net = Net()
step = AutoParallel(nn.TrainOneStepCell(net, nn.AdamWeightDecay(net.trainable_params(), 1e-3)), "semi_auto")
step.dataset_strategy("full_batch")
if LEVEL != "none":
    step.hsdp(threshold=0, optimizer_level=LEVEL)
step(Tensor(np.random.RandomState(1).randn(ROWS, WIDTH), ms.float32))
"""
FORWARD, BACKWARD = 2 * LAYERS, 2 * LAYERS - 1
"""Weights; all but the first are read for gradients of inputs, too."""


def compiled(folder: Path, *given: str) -> Compiled:
    return compiled_text(folder, SCRIPT, RANKS, *given)


def sent(made: Compiled) -> Counter[tuple[str, str]]:
    found = (node for node in made.rank_graph(0).nodes if isinstance(node.op, Collective))
    return Counter((node.op.name, node.phase) for node in found)


@pytest.mark.parametrize("precision", ["full", "half"])
def test_collectives_of_the_levels(precision: str, tmp_path: Path) -> None:
    none, first, second, third = (
        sent(compiled(tmp_path, level, precision, "1024", str(WIDTH)))
        for level in ("none", "level1", "level2", "level3")
    )
    assert not none["AllGather", "forward"]
    assert first == second
    assert first["AllGather", "forward"] == third["AllGather", "forward"] == FORWARD
    assert (first["AllGather", "backward"], third["AllGather", "backward"]) == (0, BACKWARD)
    assert first["ReduceScatter", "update"] == third["ReduceScatter", "update"] == FORWARD


@pytest.mark.parametrize(("precision", "nbytes", "share"), [("full", 4, 2), ("half", 2, 5)])
def test_gathered_weights_are_freed_between_forward_and_gradients(
    precision: str, nbytes: int, share: int, tmp_path: Path
) -> None:  # fmt: skip
    """But for those that are gathered ahead; beside halves Float32 gradients wait for their sums."""
    first, third = (
        peak_of(compiled(tmp_path, level, precision, "512", "4096").rank_graph(0)) for level in ("level1", "level3")
    )
    gathered = LAYERS * 2 * 2 * 4096 * 4096 * nbytes
    assert first - third > gathered // share


@pytest.mark.parametrize("lazy", ["", "lazy"])
@pytest.mark.parametrize("level", ["level1", "level2", "level3"])
def test_levels_equal_one_device(level: str, lazy: str, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(SCRIPT.replace("init()", f"init()\nms.set_auto_parallel_context(device_num={RANKS})", 1))
    options = CompileOptions(ranks=RANKS, script_arguments=(level, "full", str(ROWS), str(WIDTH), lazy))
    verify_target(str(script), options, seed=1)


@pytest.mark.parametrize(("level", "zero"), [("none", 0), ("level1", 2), ("level2", 2), ("level3", 3)])
def test_a_summary_says_the_level(level: str, zero: int, tmp_path: Path) -> None:
    assert degrees_of(compiled(tmp_path, level, "full", str(ROWS), str(WIDTH))).zero == zero


class Sliced(nn.Cell):
    def construct(self, x: Any, ids: Any) -> Any:
        return ops.ReduceSum()(x[:, 0:1]), ops.Slice()(x, (1, 0), (2, 4)), x[0], x[-1:, ::2]


class Tiled(nn.Cell):
    def construct(self, x: Any, ids: Any) -> Any:
        return ops.Tile()(x, (2, 1)), ops.Tile()(x, (3, 1, 2)), ops.Tile()(ids, (1, 2))


class Language(nn.Cell):
    """Every token foretells the next."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Parameter(Tensor(np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)), "table")

    def construct(self, x: Any, ids: Any) -> Any:
        shown, wanted = ids[:, :-1], ids[:, 1:]
        logits = ops.matmul(ops.gather(self.table, shown, 0), ops.transpose(self.table, (1, 0)))
        return ops.cross_entropy(ops.reshape(logits, (-1, 8)), ops.reshape(wanted, (-1,)))


class Placed(nn.Cell):
    """Operators that count rows."""

    def construct(self, x: Any, ids: Any) -> Any:
        picked = ops.gather(x, Tensor(np.array([3, 0], np.int32)), 0)
        return picked, ops.Tril()(x), ops.GatherNd()(x, ids[:, :2])


def _types(rows: int) -> list[TensorType]:
    return [TensorType(dtype_of("float32"), (rows, 4)), TensorType(dtype_of("int32"), (rows, 6))]


def _run(cell: Any, rows: int, ranks: int, mode: str, arrays: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    compiled = compile_call(cell, _types(rows), Config(ranks=ranks, mode=mode))
    values = {name: np.array(parameter.array) for name, parameter in compiled.traced.parameters.items()}

    def main(comm: LocalComm) -> list[np.ndarray]:
        graph = compiled.rank_graph(comm.rank)
        stored = {p.name: compiled.traced.constants.get(p.name, values.get(p.name)) for p in graph.parameters}
        return Executor(graph, NumPyBackend(comm), stored).run(arrays[comm.rank])  # type: ignore[arg-type]  # no input is None

    return World(ranks).run(main)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("cell", [Sliced, Tiled, Language, Placed])
def test_every_rank_computes_with_its_own_rows(cell: Any, ranks: int) -> None:
    random = np.random.default_rng(0)
    fed = [
        [random.standard_normal((4, 4)).astype(np.float32), random.integers(0, 4, (4, 6)).astype(np.int32)]
        for _ in range(ranks)
    ]
    network = cell()
    found = _run(network, 4, ranks, "data_parallel", fed)
    for mine, rows in zip(found, fed, strict=True):
        (expected,) = _run(network, 4, 1, "stand_alone", [rows])
        for result, wanted in zip(mine, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-6)
