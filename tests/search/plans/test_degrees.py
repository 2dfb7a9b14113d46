"""Plans in the words of the field: degrees are those by which the script shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.api.state import Session
from mspc.commands.report.plan_summary import summary_lines
from mspc.compiler.driver import compile_call
from mspc.engine.capture import capture
from mspc.output.programs import config_of
from mspc.search.calibration.machine_file import machine_of
from mspc.search.plans.alternatives import PlanRequest
from mspc.search.plans.degrees import Degrees, are_most, degrees_of
from mspc.search.plans.figures import figures
from tests.runtime.graphs import GraphMaker

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
    captured = capture(NETWORKS / script, given.split(), Session.of_rank(0, 8))
    found = degrees_of(compile_call(captured.target, captured.args, config_of(captured, 8)))
    assert (found.data, found.tensor, found.context, found.expert) == wanted
    assert found.zero == (2 if script == "experts.py" else 0)
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


def test_most_parameters_are_those_of_most_bytes() -> None:
    make = GraphMaker()
    for name, shape in (("layers.0.w", (8, 8)), ("layers.1.w", (8, 8)), ("b", (8,)), ("c", (8,)), ("d", (8,))):
        make.parameter(name, shape, "parameter")
    assert are_most(["layers.[0..1].w"], make.graph)
    assert are_most(["layers.1.w", "b"], make.graph) is False
    assert are_most(["b", "c", "d"], make.graph) is False


def test_a_sentence() -> None:
    captured = capture(NETWORKS / "llama.py", "2 32 4 48 64 4 2 4 16".split(), Session.of_rank(0, 8))
    compiled = compile_call(captured.target, captured.args, config_of(captured, 8))
    machine = machine_of("")
    plan = figures("as configured", compiled, captured, PlanRequest(8, machine))
    assert plan.remarks.degrees == Degrees(4, 2, 1, 1, 0, plan.remarks.degrees.operations, "Float32", 64, "rows")
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
    script = tmp_path / "net.py"
    script.write_text(THREE_DIMENSIONS.format(lazy=lazy, batch=wanted[0], columns=wanted[1]), encoding="utf-8")
    captured = capture(script, [], Session.of_rank(0, 8))
    compiled = compile_call(captured.target, captured.args, config_of(captured, 8))
    assert any(node.regions for node in compiled.graph.nodes) == bool(lazy)
    found = degrees_of(compiled)
    assert (found.data, found.tensor, found.context, found.expert) == (*wanted, 1, 1)
