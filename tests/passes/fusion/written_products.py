"""Networks with products of one operand by several weights, as people write them, and their graphs for GPUs."""

from collections.abc import Callable
from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.pipeline import rank_passes
from mspc.ir.graph import Graph
from mspc.passes.base import find_pass, run_passes
from tests.compiled_scripts import Config, compile_call

BATCH, SEQUENCE, WIDTH, HEADS, DEPTH = 4, 6, 16, 4, 4


class Turned(nn.Cell):
    """Attention in which query and key are turned and key and value have fewer heads."""

    def __init__(self, key_heads: int, bias: bool) -> None:
        super().__init__()
        self.key_heads = key_heads
        self.wq = nn.Dense(WIDTH, HEADS * DEPTH, has_bias=bias)
        self.wk = nn.Dense(WIDTH, key_heads * DEPTH, has_bias=bias)
        self.wv = nn.Dense(WIDTH, key_heads * DEPTH, has_bias=bias)
        angles = np.outer(np.arange(SEQUENCE), [1.0, 0.3, 1.0, 0.3]).astype(np.float32)
        self.cos, self.sin = Tensor(np.cos(angles)), Tensor(np.sin(angles))

    def turn(self, x: Any) -> Any:
        left, right = ops.split(x, DEPTH // 2, axis=-1)
        return x * self.cos.astype(x.dtype) + ops.cat((-right, left), axis=-1) * self.sin.astype(x.dtype)

    def heads(self, x: Any, heads: int) -> Any:
        return x.reshape(BATCH, SEQUENCE, heads, DEPTH).transpose(0, 2, 1, 3)

    def construct(self, x: Any) -> Any:
        q = self.turn(self.heads(self.wq(x), HEADS))
        k, v = self.turn(self.heads(self.wk(x), self.key_heads)), self.heads(self.wv(x), self.key_heads)
        k = ops.repeat_interleave(k, HEADS // self.key_heads, axis=1)
        v = ops.repeat_interleave(v, HEADS // self.key_heads, axis=1)
        shares = ops.softmax(ops.matmul(q, k.transpose(0, 1, 3, 2)) * 0.5, axis=-1)
        return ops.matmul(shares, v).transpose(0, 2, 1, 3).reshape(BATCH, SEQUENCE, WIDTH)


class Gated(nn.Cell):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.gate, self.value = nn.Dense(WIDTH, 24, has_bias=bias), nn.Dense(WIDTH, 24, has_bias=bias)
        self.out = nn.Dense(24, WIDTH, has_bias=False)

    def construct(self, x: Any) -> Any:
        return self.out(ops.silu(self.gate(x)) * self.value(x))


class Written(nn.Cell):
    """Products by `ops.matmul` of one operand in several shapes, of different widths."""

    def __init__(self) -> None:
        super().__init__()
        draw = np.random.default_rng(5).standard_normal
        self.first, self.second, self.third = (
            Parameter(Tensor((0.3 * draw((WIDTH, n))).astype(np.float32)), name=f"w{n}") for n in (16, 32, 48)
        )

    def construct(self, x: Any) -> Any:
        a = ops.tanh(ops.matmul(x.reshape(-1, WIDTH), self.first.astype(x.dtype)))
        b = ops.relu(ops.matmul(x.reshape(BATCH * SEQUENCE, WIDTH), self.second.astype(x.dtype)))
        c = ops.matmul(x.reshape(-1, WIDTH), self.third.astype(x.dtype)) * 0.5
        return (a + b[:, :16] * b[:, 16:] + c[:, 32:] - c[:, 16:32] * c[:, :16]).reshape(x.shape)


class Batched(nn.Cell):
    """A gate as `Gated`, by products of a batch with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        draw = np.random.default_rng(7).standard_normal
        self.gate, self.value, self.out = (
            Parameter(Tensor((0.3 * draw(shape)).astype(np.float32)), name=name)
            for name, shape in (("gate", (WIDTH, 24)), ("value", (WIDTH, 24)), ("out", (24, WIDTH)))
        )

    def construct(self, x: Any) -> Any:
        gate, value, out = (weight.astype(x.dtype) for weight in (self.gate, self.value, self.out))
        return ops.matmul(ops.silu(x @ gate) * ops.matmul(x, value), out)


class Crossed(nn.Cell):
    """Key and value from one sequence, the query from another."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Dense(WIDTH, WIDTH, has_bias=True) for _ in range(3))

    def construct(self, x: Any) -> Any:
        memory = ops.tanh(x)
        q, k, v = (
            layer(y).reshape(BATCH, SEQUENCE, HEADS, DEPTH).transpose(0, 2, 1, 3)
            for layer, y in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        shares = ops.softmax(ops.matmul(q, k.transpose(0, 1, 3, 2)) * 0.5, axis=-1)
        return ops.matmul(shares, v).transpose(0, 2, 1, 3).reshape(BATCH, SEQUENCE, WIDTH)


class Network(nn.Cell):
    """The layers one behind the other, with residual sums."""

    def __init__(self, *layers: nn.Cell, kind: Any = ms.float32, data: int = 1) -> None:
        super().__init__()
        self.layers, self.kind = nn.CellList(layers), kind
        self.gain = Parameter(Tensor(np.ones(WIDTH, np.float32)), name="gain")

    def construct(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + layer((x * self.gain).astype(self.kind)).astype(ms.float32)
        return ops.mean(ops.square(x))


NETWORKS: dict[str, tuple[Callable[[], list[nn.Cell]], int]] = {
    # For each the products that are spared by what a step joins.
    "one key head": (lambda: [Turned(1, False)], 6),
    "gated with a bias": (lambda: [Gated(True)], 3),
    "batched": (lambda: [Batched()], 3),
    "all": (lambda: [Turned(2, True), Gated(False), Written(), Crossed()], 18),
}  # fmt: skip


def compiled(name: str, kind: Any, recompute: bool = False, **settings: Any) -> Any:
    ms.set_seed(1)
    layers = NETWORKS[name][0]()
    for layer in layers:
        if kind != ms.float32:
            for cell in layer.cells():
                cell.to_float(kind)
        if recompute:
            layer.recompute()
    network = Network(*layers, kind=kind)
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.5))
    step.set_train()
    x = Tensor(np.random.default_rng(3).standard_normal((BATCH, SEQUENCE, WIDTH)).astype(np.float32))
    config = Config(device="GPU", **({"ranks": 1, "mode": "stand_alone"} | settings))
    return compile_call(step, [x], config), [x.asnumpy()]


def rank_graphs(found: Any, joined: bool) -> list[Graph]:
    graphs: list[Graph] = []
    for rank in range(found.config.ranks):
        names = [name for name in rank_passes("GPU") if joined or name != "join_products"]
        passes = [find_pass(name, {"rank": rank} if name == "slice_to_rank" else {}) for name in names]
        graphs.append(run_passes(found.graph, passes))
    return graphs


def products(graph: Graph) -> int:
    return sum(node.op.name in ("MatMul", "FusedMatMul") for node in graph.nodes)
