"""Tensor parallel layers in Float64 whose collectives can go in pieces, with sequences sharded or not.

    python -m tests.passes.communication.pieces_networks SEED COUNT

draws so many networks, and prints those whose ranks compute something else with pieces than one device.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.pipeline import rank_passes
from mspc.compiler.rank_graphs import copied
from mspc.ir.types import FLOAT64, TensorType
from mspc.passes.base import find_pass
from tests.compiled_scripts import Compiled, Config, compile_call
from tests.interpret import random_feeds, run_global, run_on_ranks

WIDTH, HIDDEN = 16, 32


class Linear(nn.Cell):
    """x [texts, words, inputs] times a matrix, which may lie as PyTorch has it, and a bias."""

    def __init__(self, draw: Any, ins: int, outs: int, strategy: Any, turned: bool, bias: Any = None) -> None:
        super().__init__()
        shape = (outs, ins) if turned else (ins, outs)
        x, w = strategy
        self.weight = Parameter(Tensor(draw(shape) * 0.2), name="weight")
        self.product = ops.MatMul(transpose_b=turned).shard((x, w[::-1] if turned else w))
        self.bias = Parameter(Tensor(draw((outs,))), name="bias") if bias else None
        self.add = ops.Add().shard(bias) if bias else None

    def construct(self, x: Any) -> Any:
        found = self.product(ops.reshape(x, (-1, x.shape[-1])), self.weight)
        if self.bias is not None:
            found = self.add(found, self.bias)
        return ops.reshape(found, (*x.shape[:-1], found.shape[-1]))


class Block(nn.Cell):
    """Two layers up, one of them opened by the other or by GeLU, and one down, with a residual behind a norm.

    kind: "sequence" shards hidden states along the sequence, "sums" along nothing.
    """

    def __init__(self, draw: Any, tensor: int, kind: str, gelu: bool, turned: bool) -> None:
        super().__init__()
        up, down = ((1, 1), (1, tensor)), ((1, tensor), (tensor, 1))
        bias = ((1, tensor), (tensor,)) if gelu else None
        self.gate = Linear(draw, WIDTH, HIDDEN, up, turned, bias)
        self.up = None if gelu else Linear(draw, WIDTH, HIDDEN, up, turned)
        self.down = Linear(draw, HIDDEN, WIDTH, down, turned)
        states = (1, tensor, 1) if kind == "sequence" else (1, 1, 1)
        self.square, self.add = ops.Mul().shard((states, states)), ops.Add().shard((states, states))

    def construct(self, x: Any) -> Any:
        rows = self.square(x, x)
        gate = self.gate(rows)
        inside = ops.gelu(gate) if self.up is None else ops.silu(gate) * self.up(rows)
        return self.add(x, self.down(inside))


class Blocks(nn.Cell):
    """Blocks one behind the other, or as turns of a loop over halves of the words, or in a branch."""

    def __init__(self, *blocks: Block, region: str = "") -> None:
        super().__init__()
        self.blocks, self.region = nn.CellList(blocks), region

    def construct(self, x: Any) -> Any:
        if self.region == "loop":
            i = ops.zeros((), ms.int32)
            while i < 2:
                x = self.blocks[0](x)
                i = i + 1
        elif self.region == "branch":
            if x.sum() > 0:
                x = self.blocks[0](x)
            else:
                x = self.blocks[1](x)
        else:
            for block in self.blocks:
                x = block(x)
        return ops.square(x).mean()


@dataclass(frozen=True)
class Case:
    """A network. number: of pieces. region: "loop", "branch", "stages", or "" for none."""

    tensor: int = 2
    number: int = 2
    kind: str = "sequence"
    gelu: bool = False
    turned: bool = False
    region: str = ""
    recompute: bool = False
    batch: int = 2
    words: int = 16

    @property
    def stages(self) -> int:
        return 2 if self.region == "stages" else 1

    def compiled(self, **settings: Any) -> Compiled:
        """The training step, for GPUs."""
        draw = np.random.default_rng(1).standard_normal
        blocks = [Block(draw, self.tensor, self.kind, self.gelu, self.turned) for _ in range(2)]
        network: nn.Cell = Blocks(*blocks, region=self.region)
        for number, block in enumerate(blocks):
            if self.recompute:
                block.recompute()
            if self.region == "stages":
                block.pipeline_stage = number
        trained = network.trainable_params()
        if self.region == "stages":
            network = nn.PipelineCell(network, 2)
        step = nn.TrainOneStepCell(network, nn.Momentum(trained, 0.1, 0.9))
        config = Config(
            ranks=self.tensor, mode="semi_auto_parallel", dataset_strategy="full_batch", device="GPU",
            pipeline_stages=self.stages, **settings,
        )  # fmt: skip
        return compile_call(step, [TensorType(FLOAT64, (self.batch, self.words, WIDTH))], config)


def compare(case: Case) -> int:
    """Return the number of collectives that are marked to go in pieces.

    Raises AssertionError if the ranks' numbers differ from one device's by more than rounding. The bits may differ:
    BLAS adds up in an order that depends on the shapes of a matmul and on the processor.
    """
    graph = case.compiled().graph
    names = rank_passes("GPU", case.stages)[1:]
    feeds = {name: 0.3 * array if array.dtype.kind == "f" else array for name, array in random_feeds(graph).items()}
    one = run_global(copied(graph), feeds)
    find_pass("choose_pieces", {"number": case.number}).run(graph)
    marked = [node.attrs["pieces"] for node in graph.all_nodes() if "pieces" in node.attrs]
    assert set(marked) <= {case.number}
    for a, b in zip(one, run_on_ranks(graph, feeds, names), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10 * np.abs(a).max())
    return len(marked)


def drawn(seed: int) -> Case:
    """A network by chance."""
    draw = np.random.default_rng(seed)
    tensor = int(draw.choice([2, 4]))
    return Case(
        tensor=tensor, number=int(draw.choice([2, 4])), kind=str(draw.choice(["sequence", "sums"])),
        gelu=bool(draw.integers(2)), turned=bool(draw.integers(2)),
        region=str(draw.choice(["", "", "loop", "branch", "stages"])), recompute=bool(draw.integers(2)),
        batch=2 * int(draw.integers(1, 4)), words=tensor * int(draw.integers(1, 7)),
    )  # fmt: skip


def main(seed: int, count: int) -> None:
    for number in range(seed, seed + count):
        case = drawn(number)
        try:
            print(number, case, compare(case))
        except Exception as error:
            print(number, case, "FAILS", type(error).__name__, str(error)[:300])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
