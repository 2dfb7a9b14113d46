"""What collectives in pieces beside products save on GPUs: a training step with them and without, by turns.

    mpirun -n 2 python benchmarks/gpu/pieces.py [--layers 4 --width 8192 --hidden 4096 --rows 16384 --turns 5]

Layers in bfloat16 whose products are sharded over all ranks, with rows sharded between them. Rank 0 prints, for
`computation_communication_fusion_level` 0 and 3, the number of pieces, the median of a step beside what the compiler
predicts for an H200, and the last loss, in which both agree up to rounding.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.analysis.cost.timeline import Timeline
from mspc.api.call_handler import current
from mspc.common.initializer import initializer
from mspc.communication import get_group_size, get_rank, init
from mspc.ops.collective.base import Collective

LEVELS = (0, 3)


class Layers(nn.Cell):
    """Up, SiLU and down, with a residual behind a square."""

    def __init__(self, layers: int, width: int, hidden: int, ranks: int) -> None:
        super().__init__()
        self.ups = ms.ParameterTuple([self.weight(f"up{i}", width, hidden) for i in range(layers)])
        self.downs = ms.ParameterTuple([self.weight(f"down{i}", hidden, width) for i in range(layers)])
        rows = ((ranks, 1), (ranks, 1))
        self.gate, self.add = ops.Mul().shard(rows), ops.Add().shard(rows)
        self.first = ops.MatMul().shard(((1, 1), (1, ranks)))
        self.second = ops.MatMul().shard(((1, ranks), (ranks, 1)))

    @staticmethod
    def weight(name: str, rows: int, columns: int) -> Parameter:
        return Parameter(initializer("normal", (rows, columns), ms.bfloat16), name=name)

    def construct(self, x: Any) -> Any:
        for up, down in zip(self.ups, self.downs, strict=True):
            x = self.add(x, self.second(ops.silu(self.first(self.gate(x, ops.tanh(x)), up)), down))
        return ops.square(ops.cast(x, ms.float32)).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 4, "width": 8192, "hidden": 4096, "rows": 16384, "turns": 5, "steps": 10}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--device", default="GPU", help="CPU to try this script, which then shows nothing")
    given = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE, device_target=given.device)
    init()
    ranks = get_group_size()
    x = Tensor(np.random.default_rng(1).standard_normal((given.rows, given.width)).astype(np.float32), ms.bfloat16)
    steps: dict[int, nn.Cell] = {}
    told: dict[int, tuple[int, float]] = {}
    times: dict[int, list[float]] = {level: [] for level in LEVELS}
    losses: dict[int, float] = {}

    def choose(level: int) -> None:
        ms.set_auto_parallel_context(
            parallel_mode="semi_auto_parallel", dataset_strategy="full_batch",
            computation_communication_fusion_level=level,
        )  # fmt: skip

    for level in LEVELS:
        choose(level)
        ms.set_seed(1)
        network = Layers(given.layers, given.width, given.hidden, ranks)
        steps[level] = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 1e-3))
        for _ in range(4):
            steps[level](x).asnumpy()
        graph = list(current().compiled_calls.values())[-1].executor.graph
        pieces = sum("piece" in node.attrs and isinstance(node.op, Collective) for node in graph.nodes)
        told[level] = pieces, Timeline(graph).total
    for _ in range(given.turns):
        for level in LEVELS:
            choose(level)
            steps[level](x).asnumpy()
            begin = time.perf_counter()
            for _ in range(given.steps):
                loss = steps[level](x)
            losses[level] = float(loss.asnumpy())
            times[level].append((time.perf_counter() - begin) / given.steps)
    if get_rank() == 0:
        for level in LEVELS:
            pieces, predicted = told[level]
            print(
                f"level {level}: {pieces} pieces, {statistics.median(times[level]) * 1e3:.3f} ms a step "
                f"({min(times[level]) * 1e3:.3f} to {max(times[level]) * 1e3:.3f}), "
                f"predicted {predicted * 1e3:.3f} ms, loss {losses[level]:.6f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
