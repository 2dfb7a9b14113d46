"""Small training programs for the tests of the GPU runtime, compiled for one rank."""

from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from tests.compiled_scripts import Config, compile_call


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class FeedForward(nn.Cell):
    """Two products with a bias, GeLU and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = Parameter(Tensor(drawn(8, 16)), "w1"), Parameter(Tensor(drawn(16)), "b1")
        self.w2 = Parameter(Tensor(drawn(16, 8, seed=1)), "w2")
        self.bias, self.gelu = ops.BiasAdd(), ops.GeLU()

    def construct(self, x: Any) -> Any:
        return ops.matmul(self.gelu(self.bias(ops.matmul(x, self.w1), self.b1)), self.w2) + x


class Attention(nn.Cell):
    """One pre-norm layer with four heads, computed in bfloat16 or float32."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind
        self.gamma, self.beta = Parameter(Tensor(np.ones(32, np.float32))), Parameter(Tensor(drawn(32)))
        self.wq, self.wk, self.wv, self.wo = (Parameter(Tensor(drawn(32, 32, seed=i) / 6)) for i in range(4))
        self.norm, self.softmax = ops.LayerNorm(-1, -1, 1e-5), ops.Softmax(-1)
        self.scores, self.weigh = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()

    def heads(self, x: Any) -> Any:
        return ops.transpose(ops.reshape(x, (2, 8, 4, 8)), (0, 2, 1, 3))

    def construct(self, x: Any) -> Any:
        y, _, _ = self.norm(x, self.gamma, self.beta)
        y = ops.cast(y, self.kind)
        query = self.heads(ops.matmul(y, ops.cast(self.wq, self.kind)))
        key = self.heads(ops.matmul(y, ops.cast(self.wk, self.kind)))
        value = self.heads(ops.matmul(y, ops.cast(self.wv, self.kind)))
        weights = self.softmax(self.scores(query, key) * 0.35)
        mixed = ops.reshape(ops.transpose(self.weigh(weights, value), (0, 2, 1, 3)), (16, 32))
        return ops.cast(ops.matmul(mixed, ops.cast(self.wo, self.kind)), ms.float32) + x


class LongConvolution(nn.Cell):
    """Rows convolved with a filter of their length, through the frequencies of both."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = Parameter(Tensor(drawn(8)), "filter")

    def construct(self, x: Any) -> Any:
        return ops.irfft(ops.rfft(x, 16) * ops.rfft(self.filter, 16), 16)[..., :8]


class Classifier(nn.Cell):
    """An embedding, Dense layers, dropout and a mean over the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 16)
        self.dense, self.head = nn.Dense(16, 16, activation="relu"), nn.Dense(16, 5)
        self.dropout = nn.Dropout(p=0.25)

    def construct(self, x: Any) -> Any:
        return self.head(self.dropout(self.dense(self.table(x).mean(axis=1))))


class Images(nn.Cell):
    """Convolutions, normalisations, pooling, a residual and a mean over height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm1 = nn.Conv2d(4, 8, 3, 2, pad_mode="same"), nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        self.body, self.norm2 = nn.Conv2d(8, 8, 3, pad_mode="pad", padding=1), nn.BatchNorm2d(8)
        self.wide, self.norm3 = nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16)
        self.apart = nn.Conv2d(16, 16, 3, 2, pad_mode="pad", padding=1, group=16, has_bias=True)
        self.mean = nn.AvgPool2d(2, 1, pad_mode="same")
        self.relu, self.head = nn.ReLU(), nn.Dense(16, 5)

    def construct(self, x: Any) -> Any:
        x = self.pool(self.relu(self.norm1(self.stem(x))))
        x = self.relu(self.norm2(self.body(x)) + x)
        x = self.relu(self.norm3(self.wide(x)))
        return self.head(ops.mean(self.mean(self.apart(x)), (2, 3)))


class Tables(nn.Cell):
    """Lookups in tables of several sizes, by columns of one tensor, in several ways; one is looked up twice."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.CellList([nn.Embedding(n, 8) for n in (12, 12, 40)])
        self.written, self.gather = Parameter(Tensor(drawn(13, 8)), "written"), ops.Gather()
        self.twice = Parameter(Tensor(drawn(20, 8, seed=1)), "twice")
        self.head = nn.Dense(8, 5)

    def construct(self, x: Any) -> Any:
        found = [cell(x[:, i]) for i, cell in enumerate(self.cells)]
        found.append(self.gather(self.written, x[:, 3], 0))
        found.append(ops.gather(self.twice, x[:, 0], 0) * ops.gather(self.twice, x[:, 1], 0))
        return self.head(ops.tanh(ops.addn(found)))


class Experts(nn.Cell):
    """Rows in the order of the experts that they go to, each times its expert's matrix, and rows by places in a
    table."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Parameter(Tensor(drawn(8, 4)), "router")
        self.up, self.down = Parameter(Tensor(drawn(4, 8, 16)), "up"), Parameter(Tensor(drawn(4, 16, 8)), "down")
        self.first, self.second = (ops.auto_generate.GroupedMatmul(3, 0) for _ in range(2))
        self.table, self.routing = Parameter(Tensor(drawn(1, 4, 3, 8)), "table"), ops.TopKRouter()

    def construct(self, x: Any) -> Any:
        weights, experts = ops.topk(ops.softmax(ops.matmul(x, self.router), -1), 2)
        rows, back = ops.moe_token_permute(x, experts)
        taken = ops.one_hot(experts.reshape(-1), 4, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        ends = ops.cumsum(taken.sum(0), 0).astype(ms.int64)
        hidden = self.first([rows], [self.up], None, None, None, None, None, ends)[0]
        found = self.second([ops.tanh(hidden)], [self.down], None, None, None, None, None, ends)[0]
        found = ops.moe_token_unpermute(found, back, weights)
        tokens, _ = self.routing(experts.reshape(1, -1, 2), 3, 4, 0)
        return found + (self.table * (tokens > 0).astype(ms.float32).expand_dims(-1)).sum((0, 1, 2))


class Descent(nn.Optimizer):
    """Gradient descent as a script writes it."""

    def construct(self, gradients: Any) -> Any:
        done = True
        for weight, gradient in zip(self.parameters, gradients):  # noqa: B905  # the compiler knows no strict
            done = ops.depend(done, ops.assign(weight, weight - self.get_lr() * gradient))
        return done


def _step(network: Any, loss: Any, optimizer: str = "momentum") -> Any:
    whole = nn.WithLossCell(network, loss)
    weights = whole.trainable_params()
    make = {
        "adam": lambda: nn.Adam(weights, 0.01), "momentum": lambda: nn.Momentum(weights, 0.1, 0.9),
        "sgd": lambda: nn.SGD(weights, 0.1), "descent": lambda: Descent(0.1, weights),
    }  # fmt: skip
    step = nn.TrainOneStepCell(whole, make[optimizer]())
    step.set_train()
    return step


def _rows(columns: int) -> list[Any]:
    return [Tensor(drawn(16, columns, seed=5)), Tensor(drawn(16, columns, seed=6))]


def _classes() -> list[Any]:
    generator = np.random.default_rng(7)
    return [Tensor(generator.integers(0, 12, (6, 4)).astype(np.int32)), Tensor(np.arange(6, dtype=np.int32) % 5)]


def _images() -> list[Any]:
    return [Tensor(drawn(6, 4, 20, 24, seed=8)), Tensor(np.arange(6, dtype=np.int32) % 5)]


SCRIPTS = {
    "feed_forward": lambda: (_step(FeedForward(), nn.MSELoss()), _rows(8)),
    "long_convolution": lambda: (_step(LongConvolution(), nn.MSELoss()), _rows(8)),
    "attention": lambda: (_step(Attention(ms.float32), nn.MSELoss(), "adam"), _rows(32)),
    "classifier": lambda: (
        _step(Classifier(), nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), "adam"), _classes(),
    ),
    "tables": lambda: (
        _step(Tables(), nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), "sgd"), _classes(),
    ),
    "tables, updated by hand": lambda: (
        _step(Tables(), nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), "descent"), _classes(),
    ),
    "experts": lambda: (_step(Experts(), nn.MSELoss()), _rows(8)),
    "images": lambda: (
        _step(Images(), nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")), _images(),
    ),
}  # fmt: skip


def compiled(name: str, device: str = "CPU") -> tuple[Any, dict[str, Any], list[Any]]:
    """(execute graph, values of its parameters, inputs) of a program."""
    ms.set_seed(1)
    target, args = SCRIPTS[name]()
    found = compile_call(target, args, Config(device=device))
    graph = found.rank_graph(0)
    values = {p.name: np.asarray(found.traced.constants[p.name]) for p in graph.parameters if p.kind == "constant"}
    values |= {p.name: found.traced.parameters[p.name].asnumpy() for p in graph.parameters if p.kind == "parameter"}
    return graph, values, [arg.asnumpy() for arg in args]
