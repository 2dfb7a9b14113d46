"""A call after a change of the script computes with the script as it is: in PyNative mode the network is compiled
again, in graph mode, as in MindSpore, it is not, and a warning says so."""

import random
import types
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.engine.calls import RankCalls
from mspc.mindspore_api import state

X = np.array([1.0, 2.0, -3.0], np.float32)
FACTOR = 2.0
TABLE = {"factor": 2.0, "rows": [1.0, 2.0]}


def doubled(x: Any) -> Any:
    return x * 2


def tripled(x: Any) -> Any:
    return x * 3


def six_times(self: Any, x: Any) -> Any:
    return x * 6


class Settings:
    kind = "plain"

    def __init__(self) -> None:
        self.factor = 2.0
        self.inner = types.SimpleNamespace(offset=1.0, names=["a"])

    @property
    def twice(self) -> float:
        return self.factor * 2


class Slots:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 2.0


class Line(nn.Cell):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def construct(self, x: Any) -> Any:
        return x * self.factor


class Net(nn.Cell):
    shared = 1.5

    def __init__(self, use: Callable[..., Any]) -> None:
        super().__init__()
        self.number, self.text, self.flag, self.nothing = 2, "relu", True, None
        self.values, self.table, self.kinds = [1.0, 2.0], {"a": 1.0, "b": {"c": 2.0}}, {"x"}
        self.settings, self.slots = Settings(), Slots()
        self.function: Any = doubled
        self.line = Line(2.0)
        self.lines = nn.CellList([Line(2.0), Line(3.0)])
        self.sequence = nn.SequentialCell([Line(2.0), nn.ReLU()])
        self.constant = Tensor([1.0, 2.0, 3.0], ms.float32)
        self.array = np.array([1.0, 2.0, 3.0], np.float32)
        self.w = Parameter(Tensor([2.0], ms.float32), name="w")
        self.dense = nn.Dense(3, 3, weight_init="ones", bias_init="ones")
        self.use = use

    def construct(self, x: Any) -> Any:
        return self.use(self, x)


def every_cell(n: Any, x: Any) -> Any:
    for line in n.lines:
        x = line(x)
    return x


def put(name: str, value: Any) -> Callable[[Any], None]:
    return lambda n: setattr(n, name, value)


# name: (what construct computes, a change, the same in NumPy after the change)
CASES: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], Callable[[], Any]]] = {
    "number": (lambda n, x: x * n.number, put("number", 5), lambda: X * 5),
    "number of another type": (lambda n, x: x.astype(ms.int32) * n.number, put("number", 2.0), lambda: X * 2),
    "text": (lambda n, x: x if n.text == "relu" else -x, put("text", "none"), lambda: -X),
    "flag": (lambda n, x: x if n.flag else -x, put("flag", False), lambda: -X),
    "None": (lambda n, x: x if n.nothing is None else x * n.nothing, put("nothing", 4.0), lambda: X * 4),
    "list": (lambda n, x: x * n.values[1], lambda n: n.values.__setitem__(1, 7.0), lambda: X * 7),
    "longer list": (lambda n, x: x * len(n.values), lambda n: n.values.append(0.0), lambda: X * 3),
    "dict": (lambda n, x: x * n.table["a"], lambda n: n.table.update(a=6.0), lambda: X * 6),
    "nested dict": (lambda n, x: x * n.table["b"]["c"], lambda n: n.table["b"].update(c=6.0), lambda: X * 6),
    "set": (lambda n, x: x if "y" in n.kinds else -x, lambda n: n.kinds.add("y"), lambda: X),
    "object": (lambda n, x: x * n.settings.factor, lambda n: setattr(n.settings, "factor", 8.0), lambda: X * 8),
    "nested object": (
        lambda n, x: x + n.settings.inner.offset, lambda n: setattr(n.settings.inner, "offset", 3.0), lambda: X + 3,
    ),
    "object in its place": (
        lambda n, x: x + n.settings.inner.offset,
        lambda n: setattr(n.settings, "inner", types.SimpleNamespace(offset=4.0)), lambda: X + 4,
    ),
    "slots": (lambda n, x: x * n.slots.factor, lambda n: setattr(n.slots, "factor", 9.0), lambda: X * 9),
    "property": (lambda n, x: x * n.settings.twice, lambda n: setattr(n.settings, "factor", 5.0), lambda: X * 10),
    "class attribute": (lambda n, x: x * n.shared, lambda n: setattr(type(n), "shared", 2.5), lambda: X * 2.5),
    "class attribute of an object": (
        lambda n, x: x if n.settings.kind == "plain" else -x, lambda n: setattr(Settings, "kind", "other"), lambda: -X,
    ),
    "attribute that hides the class's": (lambda n, x: x * n.shared, put("shared", 3.5), lambda: X * 3.5),
    "function": (lambda n, x: n.function(x), put("function", tripled), lambda: X * 3),
    "cell": (lambda n, x: n.line(x), put("line", Line(4.0)), lambda: X * 4),
    "attribute of a cell": (lambda n, x: n.line(x), lambda n: setattr(n.line, "factor", 5.0), lambda: X * 5),
    "cell of a list": (every_cell, lambda n: n.lines.__setitem__(0, Line(4.0)), lambda: X * 12),
    "longer list of cells": (every_cell, lambda n: n.lines.append(Line(4.0)), lambda: X * 24),
    "cell of a sequence": (
        lambda n, x: n.sequence(x), lambda n: n.sequence.__setitem__(0, Line(-1.0)), lambda: np.maximum(-X, 0),
    ),
    "construct": (
        lambda n, x: n.line(x), lambda n: setattr(n.line, "construct", types.MethodType(six_times, n.line)),
        lambda: X * 6,
    ),
    "attribute of mspc's cell": (
        lambda n, x: n.dense(x), lambda n: setattr(n.dense, "has_bias", False), lambda: np.full(3, X.sum()),
    ),
    "constant": (lambda n, x: x * n.constant, put("constant", Tensor([2.0, 2.0, 2.0])), lambda: X * 2),
    "element of a constant": (
        lambda n, x: x * n.constant, lambda n: n.constant.__setitem__(0, 5.0), lambda: X * [5, 2, 3],
    ),
    "array": (lambda n, x: x * Tensor(n.array), lambda n: n.array.__setitem__(0, 5.0), lambda: X * [5, 2, 3]),
    "parameter in its place": (
        lambda n, x: x * n.w, put("w", Parameter(Tensor([5.0], ms.float32), name="v")), lambda: X * 5,
    ),
    "global": (lambda n, x: x * FACTOR, lambda n: globals().update(FACTOR=4.0), lambda: X * 4),
    "global in a comprehension": (
        lambda n, x: [x * FACTOR for _ in range(1)][-1], lambda n: globals().update(FACTOR=4.0), lambda: X * 4,
    ),
    "global dict": (lambda n, x: x * TABLE["rows"][0], lambda n: TABLE["rows"].insert(0, 9.0), lambda: X * 9),
    "global function": (lambda n, x: doubled(x), lambda n: globals().update(doubled=tripled), lambda: X * 3),
    "training": (lambda n, x: x if n.training else -x, lambda n: n.set_train(), lambda: X),
    "missing attribute": (
        lambda n, x: x * getattr(n, "late", 1.0), put("late", 3.0), lambda: X * 3,
    ),
    "__dict__ of a subclass": (
        lambda n, x: x * n.settings.factor, lambda n: vars(n.settings).update(factor=3.0), lambda: X * 3,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def script() -> Generator[None]:
    """A script of its own, and the globals and classes as they were."""
    before = state.swap(state.Session())
    names, shared, kind = {n: globals()[n] for n in ("FACTOR", "doubled")}, Net.shared, Settings.kind
    rows = list(TABLE["rows"])  # type: ignore[call-overload]  # a list
    yield
    globals().update(names)
    TABLE["rows"] = rows
    Net.shared, Settings.kind = shared, kind
    state.swap(before)


def outputs(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    use, change, want = CASES[name]
    net = Net(use)
    first = net(Tensor(X)).asnumpy()
    change(net)
    return first, net(Tensor(X)).asnumpy(), want()


@pytest.mark.parametrize("name", CASES)
def test_pynative_mode_follows_a_change(name: str) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    first, second, want = outputs(name)
    np.testing.assert_allclose(second, want, rtol=1e-6)
    assert first.dtype != second.dtype or not np.array_equal(first, second)


def test_graph_mode_warns_once(capsys: pytest.CaptureFixture[str]) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Net(CASES["number"][0])
    first = net(Tensor(X)).asnumpy()
    for number in (5, 6):
        net.number = number
        np.testing.assert_array_equal(net(Tensor(X)).asnumpy(), first)
    said = capsys.readouterr().err
    assert said.count("Net.number has changed since Net was compiled") == 1
    assert "test_changed_attributes.py" in said


def test_a_captured_variable_is_followed() -> None:
    factor = 2.0
    table = [1.0]

    def function(x: Any) -> Any:
        return x * factor + table[0]

    compiled = ms.jit(function)
    assert compiled(Tensor(X)).asnumpy().tolist() == (X * 2 + 1).tolist()
    factor = 3.0
    table[0] = 4.0
    assert compiled(Tensor(X)).asnumpy().tolist() == (X * 3 + 4).tolist()


def compiles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Targets that are compiled from here on."""
    found: list[Any] = []
    build = RankCalls.build

    def counted(self: RankCalls, target: Any, *rest: Any) -> Any:
        found.append(target)
        return build(self, target, *rest)

    monkeypatch.setattr(RankCalls, "build", counted)
    return found


def test_equal_values_are_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(lambda n, x: x * n.number + n.table["b"]["c"] + n.values[0])
    found = compiles(monkeypatch)
    net(Tensor(X))
    net.number, net.table, net.values[0], net.text = 4 // 2, {"a": 1.0, "b": {"c": 2.0}}, float("1"), "other"
    net(Tensor(X))
    net.number = 3
    net(Tensor(X))
    net.number = 2
    net(Tensor(X))
    assert len(found) == 2  # the first graph holds again


def test_training_steps_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Layers(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.SequentialCell([nn.Dense(3, 3), nn.BatchNorm1d(3), nn.Dropout(p=0.5), nn.ReLU()])

        def construct(self, x: Any) -> Any:
            return self.layers(x)

    net = Layers()
    found = compiles(monkeypatch)
    rate = nn.exponential_decay_lr(0.1, 0.9, 10, 2, 2)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), rate))
    x = Tensor(np.ones((4, 3), np.float32))
    for turn in range(4):
        step.set_train()
        step(x, x)
        net.set_train(False)
        net(x)
        net.layers[0].weight.set_data(Tensor(np.full((3, 3), float(turn), np.float32)))
    assert len(found) == 2


def test_a_property_without_a_fixed_value_is_not_compared() -> None:
    class Drawn:
        @property
        def value(self) -> Any:
            return random.random()

    class Draws(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.drawn = Drawn()

        def construct(self, x: Any) -> Any:
            return x * self.drawn.value

    net = Draws()
    assert net(Tensor(X)).asnumpy().tolist() == net(Tensor(X)).asnumpy().tolist()


@pytest.mark.parametrize(
    "draw", [lambda: np.random.rand(), lambda: random.randint(0, 9), lambda: np.random.default_rng(0).random()]
)
def test_random_numbers_of_numpy_and_python_are_warned_about(
    draw: Callable[[], float], capsys: pytest.CaptureFixture[str]
) -> None:
    class Draws(nn.Cell):
        def construct(self, x: Any) -> Any:
            return ops.tanh(x) * draw()

    Draws()(Tensor(X))
    assert "draws a random number once, when the network is compiled" in capsys.readouterr().err
