"""Plans in the words of the field: degrees are those by which the script shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.report.plan_summary import summary_lines
from mspc.compiler.driver import compile_call
from mspc.engine.capture import capture
from mspc.mindspore_api.state import Session
from mspc.output.programs import config_of
from mspc.search.calibration.machine_file import machine_of
from mspc.search.plans.alternatives import PlanRequest
from mspc.search.plans.degrees import Degrees, degrees_of
from mspc.search.plans.figures import figures
from tests.compiled_scripts import compiled_script, compiled_text

NETWORKS = Path(__file__).resolve().parents[3] / "benchmarks" / "networks"


@pytest.mark.parametrize(
    ("script", "given", "wanted"),
    [
        ("llama.py", "2 32 4 48 64 4 2 4 16", (4, 2, 1, 1)),
        ("llama.py", "lazy 4 32 4 48 64 2 4 2 16", (2, 4, 1, 1)),
        ("long_llama.py", "1 64 4 4 128 256 1 4 2 64 1", (1, 2, 4, 1)),
        ("long_llama.py", "1 64 8 8 128 256 1 4 2 64 2", (1, 2, 4, 1)),
        ("long_llama.py", "1 64 8 8 128 256 2 4 1 64 4", (2, 1, 4, 1)),
        ("experts.py", "small-mixtral tables 4", (8, 1, 1, 4)),
        ("experts.py", "small-mixtral sorted 2", (8, 1, 1, 2)),
    ],
)
def test_degrees(script: str, given: str, wanted: tuple[int, ...]) -> None:
    found = degrees_of(compiled_script(NETWORKS / script, 8, *given.split()))
    assert (found.data, found.tensor, found.context, found.expert) == wanted
    assert found.zero == (3 if script == "experts.py" else 0), "weights of experts are gathered for gradients again"
    assert found.operations > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("1 64 4 4 128 256 1 4 2 64 1", "CP 4 (ring)"),
        ("1 64 8 8 128 256 1 4 2 64 2", "CP 4 (ring 2 x Ulysses 2)"),
        ("1 64 8 8 128 256 1 4 2 64 4", "CP 4 (Ulysses)"),
    ],
)
def test_ways_to_share_the_text(given: str, words: str) -> None:
    captured = capture(NETWORKS / "long_llama.py", given.split(), Session.of_rank(0, 8))
    compiled = compile_call(captured.target, captured.args, config_of(captured, 8))
    machine = machine_of("")
    plan = figures("as configured", compiled, captured, PlanRequest(8, machine))
    (line,) = summary_lines([plan], machine)
    assert f" x {words} x " in line


def test_a_sentence() -> None:
    captured = capture(NETWORKS / "llama.py", "2 32 4 48 64 4 2 4 16".split(), Session.of_rank(0, 8))
    compiled = compile_call(captured.target, captured.args, config_of(captured, 8))
    machine = machine_of("")
    plan = figures("as configured", compiled, captured, PlanRequest(8, machine))
    assert plan.degrees == Degrees(4, 2, 1, 1, 0, plan.degrees.operations, "Float32", 64, "rows")
    (line,) = summary_lines([plan], machine)
    assert line.startswith(
        "as configured on 8 ranks: DP 4 x TP 2 x PP 1 x CP 1 x EP 1, no ZeRO, no recompute; "
    )  # fmt: skip
    assert line.endswith(" KiB a rank")
    assert " rows per second, " in line


THREE_DIMENSIONS = """
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)


class Layer(nn.Cell):
    {lazy}
    def __init__(self):
        super().__init__()
        self.up, self.down = (Parameter(Tensor(np.ones(shape, np.float32))) for shape in ([4, 8], [8, 4]))
        self.product = ops.BatchMatMul().shard((({batch}, 1, 1), (1, {columns})))

    def construct(self, x):
        return x + ops.matmul(ops.tanh(self.product(x, self.up)), self.down)


net = nn.SequentialCell([Layer() for _ in range(3)])
nn.TrainOneStepCell(net, nn.SGD(net.trainable_params()))(Tensor(np.ones([16, 4, 4], np.float32)))
"""


@pytest.mark.parametrize("lazy", ["@ms.lazy_inline", ""], ids=["one graph", "inlined"])
@pytest.mark.parametrize("wanted", [(8, 1), (2, 4)])
def test_what_a_layer_keeps_for_its_gradients_is_no_weight(lazy: str, wanted: tuple[int, int], tmp_path: Path) -> None:
    """Nor is the first dimension of what it keeps, the batch, one of experts."""
    compiled = compiled_text(tmp_path, THREE_DIMENSIONS.format(lazy=lazy, batch=wanted[0], columns=wanted[1]), 8)
    assert any(node.regions for node in compiled.graph.nodes) == bool(lazy)
    found = degrees_of(compiled)
    assert (found.data, found.tensor, found.context, found.expert) == (*wanted, 1, 1)


UNLIKE = """
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones([64, 64], np.float32)))
        self.product = ops.MatMul().shard(((4, 1), (1, 2)))
        self.scores = ops.BatchMatMul(transpose_b=True).shard(((8, 1, 1, 1), (8, 1, 1, 1)))

    def construct(self, x):
        x = self.product(x, self.weight).reshape(16, 2, 4, 32)
        return self.scores(x, x).sum()


net = Net()
nn.TrainOneStepCell(net, nn.SGD(net.trainable_params()))(Tensor(np.ones([64, 64], np.float32)))
"""


def test_degrees_multiply_to_the_ranks(tmp_path: Path) -> None:
    """Attention is sharded by the batch over more ranks than the matmuls leave for it."""
    found = degrees_of(compiled_text(tmp_path, UNLIKE, 8))
    assert (found.data, found.tensor, found.context, found.replicas) == (4, 2, 1, 1)


LEVELS = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

level, dtype = sys.argv[1:]
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", device_num=4, full_batch=True, enable_parallel_optimizer=level != "none",
    parallel_optimizer_config={"parallel_optimizer_threshold": 0, "optimizer_level": level.replace("none", "level1")},
)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell([nn.Dense(64, 64) for _ in range(3)])
        for layer in self.layers:
            layer.matmul.shard(((4, 1), (1, 1)))

    def construct(self, x):
        return self.layers(x).sum()


net = Net().to_float(getattr(ms, dtype))
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params()))(Tensor(np.ones([64, 64], np.float32)))
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("level", "wanted"), [("none", 0), ("level1", 2), ("level3", 3)])
def test_the_level_of_zero_follows_from_layouts(level: str, wanted: int, dtype: str, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(LEVELS, encoding="utf-8")
    captured = capture(script, [level, dtype], Session.of_rank(0, 4))
    config = config_of(captured, 4)
    compiled = compile_call(captured.target, captured.args, config)
    gathered = sum(node.op.name == "AllGather" and node.phase == "backward" for node in compiled.graph.nodes)
    assert gathered == (2 if level == "level3" else 0), "all but the first layer"
    assert degrees_of(compiled).zero == wanted
