"""On GPUs the products of query, key and value are one in every stage, forward, backward and for the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.report.verbosity import Loudness
from mspc.commands.run import run_directory
from mspc.ir.graph import Graph
from mspc.runtime.program import load_program

SCRIPT = """\
import sys
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
from mindspore.communication import init
ms.set_context(device_target="GPU")
init()
scheduler, stages = sys.argv[1], int(sys.argv[2])
places = {"zero_bubble_v": [0, 1, 1, 0], "interleaved": [0, 1, 0, 1]}.get(scheduler, [0, 0, 1, 1])
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=stages,
    pipeline_config={"pipeline_interleave": places[1:3] == [1, 0],
                     "pipeline_scheduler": scheduler.replace("interleaved", "1f1b")})
draw = np.random.RandomState(3).randn
class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (
            Parameter(Tensor((0.1 * draw(16, 16)).astype(np.float32))) for _ in range(4))
    def heads(self, x, weight):
        return ops.transpose(ops.reshape(ops.matmul(ops.reshape(x, (-1, 16)), weight), (-1, 6, 2, 8)), (0, 2, 1, 3))
    def construct(self, x):
        scores = ops.matmul(self.heads(x, self.query), ops.transpose(self.heads(x, self.key), (0, 1, 3, 2)))
        mixed = ops.matmul(ops.softmax(scores * 0.5, axis=-1), self.heads(x, self.value))
        return x + ops.reshape(ops.matmul(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (-1, 16)), self.out), x.shape)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(4)])
        if stages > 1:
            for layer, stage in zip(self.layers, places):
                layer.pipeline_stage = stage
    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).mean()
cell = nn.PipelineCell(Net(), 4)
step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9))
step(Tensor(draw(8, 6, 16).astype(np.float32)))
"""


def trained(folder: Path, scheduler: str, stages: int) -> tuple[Path, dict[str, np.ndarray]]:
    """The folder of a compile for GPUs, and the parameters behind two steps of it on the CPU."""
    script = folder / "net.py"
    script.write_text(SCRIPT)
    out = folder / f"{scheduler}_{stages}"
    quiet = Loudness(False, True)
    arguments = scheduler, str(stages)
    compile_target(str(script), CompileOptions(stages, out=out, loudness=quiet, script_arguments=arguments))
    run_directory(out, synthetic=True, steps=2, save=out / "after.safetensors", simulate=True)
    return out, load_file(out / "after.safetensors")


def counts(graph: Graph, name: str) -> int:
    return sum(node.op.name == name for node in graph.nodes)


@pytest.mark.parametrize("scheduler", ["1f1b", "interleaved", "zero_bubble_v"])
def test_each_stage_joins_its_own_products(scheduler: str, tmp_path: Path) -> None:
    _, alone = trained(tmp_path, scheduler, 1)
    folder, found = trained(tmp_path, scheduler, 2)
    program = load_program(folder)
    for rank in range(2):
        graph = program.graph(rank, program.text(rank))
        assert counts(graph, "Concat") == 2  # of a layer's three weights, once for all micro-batches
        others = graph.graphs()[1:]
        assert not any(counts(each, "Concat") for each in others)
        # Of a layer: two products forward, two for its operand, which the first one has no gradient for, two for its
        # weights.
        assert sum(counts(each, "MatMul") + counts(each, "FusedMatMul") for each in others) == 2 * 6 - (rank == 0)
    for name, value in alone.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-6 * np.abs(value).max(), err_msg=name)
