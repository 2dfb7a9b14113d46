"""A comprehension over items that are alike is read for two of them, and gives what reading every one gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.frontend import comprehensions
from mspc.compiler.frontend.comprehensions import RepeatedTurns
from mspc.compiler.frontend.trace import trace
from mspc.ir.text.printer import print_graph
from mspc.ir.types import FLOAT32, TensorType
from mspc.mindspore_api.nn.optim.optimizer import Optimizer

WIDTH = 8
ROWS = TensorType(FLOAT32, (4, WIDTH))
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {"weight_decay": 0.1}), ("Adam", {"use_amsgrad": True}), ("AdamWeightDecay", {"weight_decay": 0.1}),
    ("Momentum", {"momentum": 0.9}), ("SGD", {"weight_decay": 0.1}), ("RMSProp", {}), ("Adagrad", {}), ("FTRL", {}),
    ("Lamb", {"weight_decay": 0.1}),
    ("AdaFactor", {"relative_step": False}), ("AdaMax", {}),
]  # fmt: skip


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = nn.Dense(WIDTH, WIDTH), nn.LayerNorm((WIDTH,))

    def construct(self, x: Any) -> Any:
        return self.norm(self.dense(x))


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.CellList([Block() for _ in range(5)])

    def construct(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return (x * x).mean()


class Count:
    """How many turns were repeated."""

    def __init__(self) -> None:
        self.repeated = 0


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    found = Count()
    repeat = RepeatedTurns._repeat

    def counted(self: RepeatedTurns, *args: Any) -> Any:
        found.repeated += 1
        return repeat(self, *args)

    monkeypatch.setattr(RepeatedTurns, "_repeat", counted)
    return found


def texts(step: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The graph with turns that are repeated, and with all that are read."""
    one = print_graph(trace(step(), [ROWS]).graph)
    with monkeypatch.context() as patch:
        patch.setattr(comprehensions, "FEWEST", 10**9)
        return one, print_graph(trace(step(), [ROWS]).graph)


def training(optimizer: Any) -> nn.TrainOneStepCell:
    network = Network()
    return nn.TrainOneStepCell(network, optimizer(network.trainable_params()))


@pytest.mark.parametrize(("name", "settings"), OPTIMIZERS)
def test_an_optimizer_is_read_for_two_of_a_kind(
    name: str, settings: dict[str, Any], count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated, read = texts(
        lambda: training(lambda weights: getattr(nn, name)(weights, learning_rate=0.1, **settings)), monkeypatch
    )
    assert repeated == read
    # There are 5 matrices and 15 vectors, half of which a weight decay spares: 3 and 5 at least are repeated.
    assert count.repeated >= 8


def test_maps_over_parameters_are_repeated(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = ops.MultitypeFuncGraph("rule")

    @rule.register("Tensor", "Tensor", "Tensor", "Tensor")
    def update(rate: Any, weight: Any, moment: Any, gradient: Any) -> Any:
        after = moment * 0.9 + gradient
        return ops.depend(ops.assign(weight, weight - rate * after), ops.assign(moment, after))

    class Own(Optimizer):
        def __init__(self, weights: Any) -> None:
            super().__init__(0.1, weights)
            self.moments = self.states("moment")
            self.map_each = ops.HyperMap()

        def construct(self, gradients: Any) -> Any:
            return self.map_each(ops.partial(rule, self.learning_rate), self.parameters, self.moments, gradients)

    repeated, read = texts(lambda: training(Own), monkeypatch)
    assert repeated == read
    assert count.repeated >= 10


def test_groups_are_kinds_of_their_own(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    def grouped(weights: Any) -> Any:
        groups = [{"params": weights[:8], "lr": 0.5}, {"params": weights[8:], "weight_decay": 0.1}]
        return nn.Momentum(groups, 0.1, 0.9)

    repeated, read = texts(lambda: training(grouped), monkeypatch)
    assert repeated == read
    assert count.repeated > 0


class _Each(Optimizer):
    """Updates each parameter in one of the ways below."""

    def __init__(self, weights: Any) -> None:
        super().__init__(0.1, weights)
        self.first = self.parameters[0]
        self.count = Parameter(Tensor(np.zeros((), np.float32)), name="count", requires_grad=False)
        self.factors = {self.first.name: 2.0}
        self.numbers = [0.5, 0.25, 0.125] * 10
        self.assign = ops.Assign()
        self.dropout = ops.Dropout(0.5)

    def construct(self, gradients: Any) -> Any:
        return tuple([self.each(i, *row) for i, row in enumerate(zip(self.parameters, gradients, strict=True))])

    def by_name(self, i: int, weight: Any, gradient: Any) -> Any:
        return self.assign(weight, weight - (0.5 if "bias" in weight.name else 0.25) * gradient)

    def by_name_in_dict(self, i: int, weight: Any, gradient: Any) -> Any:
        return self.assign(weight, weight - self.factors.get(weight.name, 1.0) * gradient)

    def by_identity(self, i: int, weight: Any, gradient: Any) -> Any:
        return self.assign(weight, weight - (0.5 if weight is self.first else 0.25) * gradient)

    def by_membership(self, i: int, weight: Any, gradient: Any) -> Any:
        return self.assign(weight, weight - (0.5 if weight in (self.first,) else 0.25) * gradient)

    def by_place(self, i: int, weight: Any, gradient: Any) -> Any:
        return self.assign(weight, weight - self.numbers[i] * gradient)

    def by_text(self, i: int, weight: Any, gradient: Any) -> Any:
        return self.assign(weight, weight - float(len(f"{weight.name}")) * gradient)

    def by_draw(self, i: int, weight: Any, gradient: Any) -> Any:
        return self.assign(weight, weight - self.dropout(gradient)[0])

    def with_the_first(self, i: int, weight: Any, gradient: Any) -> Any:
        return self.assign(weight, weight - self.first.sum() * gradient)

    def with_a_count(self, i: int, weight: Any, gradient: Any) -> Any:
        self.count += 1.0
        return self.assign(weight, weight - self.count * gradient)


class _Rows(_Each):
    def construct(self, gradients: Any) -> Any:
        return tuple([self.each(0, *row) for row in zip(self.parameters, gradients, strict=True)])


BODIES = [name for name in vars(_Each) if name.startswith(("by_", "with_"))]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("base", [_Each, _Rows])
def test_what_differs_by_parameter_is_read_for_every_one(
    body: str, base: type[_Each], count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (body, base) == ("by_place", _Rows):
        pytest.skip("its place is the same for all")
    made: Any = type(body, (base,), {"each": getattr(_Each, body)})
    repeated, read = texts(lambda: training(made), monkeypatch)
    assert repeated == read
    if body != "with_the_first":
        assert count.repeated == 0


def test_a_gradient_takes_up_what_the_script_called() -> None:
    class Sums(nn.Cell):
        """The forward part of each call is in the graph once."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(Tensor(np.ones(WIDTH, np.float32)), name="weight")

        def cube(self, x: Any) -> Any:
            return ops.exp(x * self.weight).sum()

        def construct(self, x: Any) -> Any:
            rows = [x[0], x[1], x[2], x[3]]
            sums = [self.cube(row) for row in rows]
            return sum(sums), sum([ops.grad(self.cube)(row) for row in rows])

    graph = trace(Sums(), [ROWS]).graph
    assert [node.op.name for node in graph.nodes].count("Exp") == 4
