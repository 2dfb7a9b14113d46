"""How a random network ends: a loss, the gradients of its weights, clipped or not, and the updates of an optimizer."""

import random
from typing import Any, Protocol

import numpy as np

from mspc.ops.control.structural import Gradient, TupleGetItem
from tests.graphs import FLOAT64, REGISTRY, Builder, Graph, Node, Parameter, TensorType, Value, dtype_of

OPTIMIZERS = ("SGD", "ApplyMomentum", "Adam", "AdamWeightDecay")
"""Operators that are optimizers: their operands say what they take."""
NUMBERS = {
    "learning_rate": 0.1, "lr": 0.01, "momentum": 0.9, "beta1": 0.9, "beta2": 0.99, "beta1_power": 0.9,
    "beta2_power": 0.99, "epsilon": 1e-2, "decay": 0.1,
}  # fmt: skip
"""The scalars among these operands."""
SCATTERS = ("ScatterAdd", "ScatterSub", "ScatterMax", "ScatterMin", "ScatterUpdate")


class Grown(Protocol):
    """The parts and the work of a network while it grows; see `tests/networks.py`."""

    rng: random.Random
    random: np.random.Generator
    builder: Builder
    graph: Graph
    feeds: dict[str, np.ndarray]

    @property
    def weights(self) -> list[Parameter]: ...

    def parameter(self, name: str, type: TensorType, low: float, high: float, kind: str = ...) -> Parameter: ...

    def drawn(self, type: TensorType, low: float, high: float) -> np.ndarray: ...

    def op(self, name: str, *inputs: Value, **fields: object) -> Node: ...


class _Updates:
    """Emits what stands behind the gradients, without strategies, as optimizers do."""

    def __init__(self, network: Grown) -> None:
        self.network = network
        self.builder = network.builder

    def op(self, name: str, *inputs: Value, **fields: object) -> Node:
        return self.builder.emit(REGISTRY[name](**fields), *inputs)

    def number(self, value: float) -> Value:
        return self.builder.constant(value, FLOAT64)

    def state(self, weight: Parameter, title: str) -> Parameter:
        made = self.network.parameter(f"{title}.{weight.name}", weight.tensor_type, 0.1, 0.5)
        made.trainable = False
        return made

    def norm(self, values: list[Any]) -> Value:
        """The root of the sum of squares, and of 1."""
        sums: list[Value] = []
        for value in values:
            square, axes = self.op("Square", value), tuple(range(len(value.shape)))
            sums.append(self.op("ReduceSum", square, axis=axes) if axes else square)
        total = self.op("AddN", *sums) if len(sums) > 1 else sums[0]
        return self.op("Sqrt", self.op("Add", total, self.number(1.0)))

    def moved(self, weight: Parameter, step: Value) -> None:
        self.op("AssignSub", weight, self.op("Mul", step, self.number(0.1)))

    # Optimizers

    def plain(self, weight: Parameter, gradient: Value) -> None:
        self.moved(weight, gradient)

    def accumulated(self, weight: Parameter, gradient: Value) -> None:
        self.moved(weight, self.op("AssignAdd", self.state(weight, "sums"), gradient))

    def one_operator(self, weight: Parameter, gradient: Value) -> None:
        cls: Any = REGISTRY[self.optimizer]
        inputs: list[Value] = [weight]
        for index, name in enumerate(cls.operands[1:], 1):
            if index in cls.scalars:
                inputs.append(self.number(NUMBERS[name]))
            else:
                inputs.append(gradient if name == "gradient" else self.state(weight, name))
        self.builder.emit(self.network.rng.choice([cls(**s.fields) for s in cls.samples]), *inputs)

    def root_mean_square(self, weight: Parameter, gradient: Value) -> None:
        mean, keep = self.state(weight, "mean_square"), self.number(0.9)
        new = self.op("Add", self.op("Mul", mean, keep), self.op("Square", gradient))
        held = self.op("Assign", mean, new)
        self.moved(weight, self.op("RealDiv", gradient, self.op("Sqrt", self.op("Add", held, self.number(0.1)))))

    def trusted(self, weight: Parameter, gradient: Value) -> None:
        """Steps scaled by the norms of a weight and of its step, as layer-wise optimizers do."""
        moment = self.state(weight, "moment")
        held = self.op("Assign", moment, self.op("Add", self.op("Mul", moment, self.number(0.9)), gradient))
        step = self.op("Add", held, self.op("Mul", weight, self.number(0.01)))
        trust = self.op("RealDiv", self.norm([weight]), self.norm([step]))
        self.moved(weight, self.op("Mul", step, trust))

    def scattered(self, values: Value) -> None:
        """Rows of a table that is no weight change by what the chain holds."""
        name, network = self.network.rng.choice(SCATTERS), self.network
        count = values.shape[0]
        table = network.parameter("table", TensorType(FLOAT64, (16, values.shape[1])), 0.1, 0.9)
        table.trainable = False
        rows = network.parameter("rows", TensorType(dtype_of("Int32"), (count,)), 0, 16, "input")
        if name == "ScatterUpdate":  # which of two rows stays is nowhere promised
            table.type = TensorType(FLOAT64, (2 * count, values.shape[1]))
            network.feeds["table"] = network.drawn(table.tensor_type, 0.1, 0.9)
            network.feeds["rows"] = network.random.permutation(2 * count)[:count].astype("int32")
        self.op(name, table, rows, values)

    def all(self, weights: list[Parameter], gradients: list[Value]) -> None:
        rng = self.network.rng
        if rng.random() < 0.3:
            norm = self.norm(gradients)
            gradients = [self.op("RealDiv", gradient, norm) for gradient in gradients]
        self.optimizer = rng.choice(OPTIMIZERS)
        ways = [self.plain, self.accumulated, self.root_mean_square, self.trusted, *[self.one_operator] * 4]
        update = rng.choice(ways)
        for weight, gradient in zip(weights, gradients, strict=True):
            update(weight, gradient)


def finish(network: Grown, last: Value) -> None:
    """A scalar loss of a value of two dimensions, the gradients of all weights, and their updates."""
    rng, b = network.rng, network.builder
    scaled = network.op("Tanh", last)
    loss = network.op(rng.choice(["ReduceMean", "ReduceSum"]), scaled, axis=(0, 1))
    network.graph.results = [loss, scaled] if rng.random() < 0.5 else [loss]
    weights = network.weights
    gradients = b.emit(Gradient(), loss, *weights) if weights else None
    b.phase = "update"
    updates = _Updates(network)
    if gradients is not None:
        updates.all(weights, [b.emit(TupleGetItem(i), gradients) for i in range(len(weights))])
    if rng.random() < 0.1:
        updates.scattered(scaled)
