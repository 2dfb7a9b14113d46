"""Parameters and initial values.

A network's copy of a parameter stays when the parameter is overwritten after it, as outside of a network.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, ParameterTuple, Tensor, nn, ops
from mspc.compiler.in_memory import compile_in_memory
from mspc.mindspore_api import common
from tests.compiled_scripts import Config, compile_call

initializer = common.initializer.initializer


def test_set_data_checks_shape_and_kind():
    w = Parameter(Tensor(np.zeros((2, 2)), ms.float32), "w")
    with pytest.raises(ValueError, match=r"parameter 'w' has shape \(2, 2\), the new values \(2,\)"):
        w.set_data(Tensor([1.0, 2.0]))
    n = Parameter(Tensor([1], ms.int32), "n")
    with pytest.raises(TypeError, match="parameter 'n' is Int32, the new values are Float32"):
        n.set_data(Tensor([1.0]))


def test_seed_must_be_a_small_integer():
    with pytest.raises(ValueError, match=r"set_seed\(-1\): the seed must be from 0 to 4294967295"):
        ms.set_seed(-1)
    with pytest.raises(TypeError, match="set_seed: seed must be an integer"):
        ms.set_seed("1")


def test_set_seed_seeds_numpy():
    ms.set_seed(3)
    first = np.random.rand()
    ms.set_seed(3)
    assert np.random.rand() == first
    assert ms.get_seed() == 3


def test_value_is_a_tensor_of_the_present_values():
    w = Parameter(Tensor([1.0, 2.0]), "w")
    drawn = Parameter(initializer("ones", (2,)), "drawn")
    found = w.value()
    assert type(found) is type(w.value().value()) is type(drawn.value()) is Tensor
    assert drawn.value().asnumpy().tolist() == [1, 1]
    ops.assign(w, Tensor([5.0, 6.0]))
    w[0] = 9.0
    w.set_data(Tensor([7.0, 8.0]))
    assert found.asnumpy().tolist() == [1, 2]
    found = w.value()
    found[0] = 100.0
    assert (found.asnumpy().tolist(), w.asnumpy().tolist()) == ([100, 8], [7, 8])
    x = Tensor([1.0, 2.0])
    assert x.value() is x


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_value_does_not_follow_training(mode: int):
    ms.set_context(mode=mode)

    class Scales(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(Tensor([2.0]), "w")
            self.fixed = Tensor([4.0])

        def construct(self, x):
            return x * self.w.value() + x.value() * self.fixed.value()

    net = Scales()
    optimizer = nn.SGD(net.trainable_params(), 0.5)
    before = net.w.value()
    step = nn.TrainOneStepCell(net, optimizer)
    assert step(Tensor([3.0])).asnumpy().tolist() == [18]
    between = net.w.value()
    assert step(Tensor([3.0])).asnumpy().tolist() == [13.5]
    assert [t.asnumpy().tolist() for t in (before, between, net.w.value())] == [[2], [0.5], [-1]]


OLD, NEW = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
COPIES = {
    "copy": lambda w: w.copy(),
    "clone": lambda w: w.clone(),
    "contiguous": lambda w: w.contiguous(),
    "cast": lambda w: ops.cast(w, ms.float32),
    "astype": lambda w: w.astype(ms.float32),
    "float": lambda w: w.float(),
    "slice": lambda w: w[:],
    "plus": lambda w: +w,
    "sum": lambda w: sum([w]),
    "dropout": lambda w: nn.Dropout(p=0.5)(w),
    "dropout of nothing": lambda w: ops.dropout(w, p=0.0),
    "Identity": lambda w: nn.Identity()(w),
    "Tensor": lambda w: Tensor(w),
    "own gradient": lambda w: ops.HookBackward(lambda grads: grads)(w),
    "array": lambda w: ms.numpy.array(w),
}


class Overwritten(nn.Cell):
    """Hands out a copy of a weight, and overwrites the weight."""

    def __init__(self, copied: Any) -> None:
        super().__init__()
        self.w = Parameter(Tensor(OLD))
        self.copied = copied

    def construct(self, x: Any) -> Any:
        old = self.copied(self.w)
        ops.assign(self.w, x)
        return old, old + self.w


def test_a_copy_stays_outside_of_a_network() -> None:
    w = Parameter(Tensor(OLD))
    found = [ms.numpy.copy(w), ms.numpy.array(w), w.copy()]
    ops.assign(w, Tensor(NEW))
    for copied in found:
        np.testing.assert_array_equal(copied.asnumpy(), OLD)


def test_what_hands_a_parameter_on_is_the_parameter() -> None:
    """Names, lists and functions of the script."""
    for handed in (lambda w: w, lambda w: [w][0], lambda w: w if w.shape else w + 1):
        net = Overwritten(handed)
        assert net(Tensor(NEW))[0].asnumpy().all()


def test_a_copy_that_nobody_needs_goes() -> None:
    """A weight that is not overwritten ahead of its readers is read where it is."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(Tensor(OLD))

        def construct(self, x: Any) -> Any:
            y = x * self.w[:].float()
            ops.assign(self.w, x)
            return y

    graph = compile_call(Net(), [Tensor(NEW)], Config()).rank_graph(0)
    assert [node.op.name for node in graph.nodes] == ["Mul", "Assign"]


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_stays(name: str) -> None:
    net = Overwritten(COPIES[name])
    for old, new in ((OLD, NEW), (NEW, 2 * NEW)):
        found, total = net(Tensor(new))
        np.testing.assert_array_equal(found.asnumpy(), old)
        np.testing.assert_array_equal(total.asnumpy(), old + new)


def weight(number: float, name: str | None = "w") -> Parameter:
    return Parameter(Tensor([number], ms.float32), name=name)


class Line(nn.Cell):
    """One weight, whose value says which cell it is."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.w = weight(number, None)

    def construct(self, x: Any) -> Any:
        return x * self.w


def lines(count: int, kind: Any = nn.CellList) -> Any:
    return kind([Line(i) for i in range(count)])


def cell_of(make: Callable[[nn.Cell], None]) -> nn.Cell:
    cell = nn.Cell()
    make(cell)
    return cell


def reverse(c: Any) -> None:
    c.l = lines(3)
    c.l = c.l[::-1]


def insert(c: Any) -> None:
    c.l = lines(1)
    c.l.insert(0, Line(5))
    c.l[0] = Line(7)
    c.l.insert(1, Line(8))


def delete(c: Any) -> None:
    c.l = lines(4)
    del c.l[1:3]
    c.l.extend([Line(6)])
    c.l.insert(-1, Line(7))
    c.l[-1] = Line(8)


def share(c: Any) -> None:
    c.l = lines(3)
    c.m = c.l[1:]


def inner(c: Any) -> None:
    c.net = nn.SequentialCell(lines(3))
    del c.net[0][0]
    c.net[0].append(Line(9))


def sequence(c: Any) -> None:
    c.l = lines(4, nn.SequentialCell)
    del c.l[1]
    c.l[0] = Line(9)
    c.l.append(Line(8))


def reversed_sequence(c: Any) -> None:
    c.l = lines(3, nn.SequentialCell)
    c.l = c.l[::-1]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (reverse, {"l.0.w": 2, "l.1.w": 1, "l.2.w": 0}),
        (insert, {"l.0.w": 7, "l.1.w": 8, "l.2.w": 0}),
        (delete, {"l.0.w": 0, "l.1.w": 3, "l.2.w": 7, "l.3.w": 8}),
        (share, {"l.0.w": 0, "m.0.w": 1, "m.1.w": 2}),
        (inner, {"net.0.0.w": 1, "net.0.1.w": 2, "net.0.2.w": 9}),
        (sequence, {"l.0.w": 9, "l.1.w": 2, "l.2.w": 3, "l.3.w": 8}),
        (reversed_sequence, {"l.2.w": 2, "l.1.w": 1, "l.0.w": 0}),
    ],
)
def test_names_follow_the_places_of_cells(make: Any, names: dict[str, int]) -> None:
    found = [(parameter.name, int(parameter.asnumpy()[0])) for parameter in cell_of(make).get_parameters()]
    assert found == list(names.items())


class Twice(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.a = weight(1)
        self.b = weight(2)
        self.c = weight(3, "third")

    def construct(self, x: Any) -> Any:
        return x * self.a + self.b + self.c


@pytest.mark.parametrize(
    ("use", "places"),
    [
        (lambda: nn.Adam(Twice().trainable_params()), "Twice.a and Twice.b"),
        (lambda: nn.SGD([{"params": Twice().trainable_params()}]), "Twice.a and Twice.b"),
        (lambda: ParameterTuple([weight(1), weight(2)]), "element 0 and element 1"),
        (lambda: cell_of(lambda c: setattr(c, "ws", [weight(1), weight(2)])), r"Cell.ws\[0\] and Cell.ws\[1\]"),
        (lambda: ms.save_checkpoint(Twice(), "x"), "Twice.a and Twice.b"),
        (lambda: ms.save_checkpoint(Twice().trainable_params(), "x"), "element 0 and element 1"),
    ],
)
def test_two_parameters_of_one_name_are_refused(use: Callable[[], Any], places: str) -> None:
    with pytest.raises(ValueError, match=f"two parameters are called 'w': {places}"):
        use()


def test_parameters_dict_warns_about_two_of_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(Twice().parameters_dict()) == ["w", "third"]
    assert "two parameters are called 'w': Twice.a and Twice.b" in capsys.readouterr().err


def test_a_call_names_parameters_by_their_attributes(tmp_path: Path) -> None:
    network = Twice()
    network(Tensor([1.0]))
    assert [parameter.name for parameter in network.get_parameters()] == ["a", "b", "c"]
    network.a.set_data(Tensor([5.0]))
    ms.save_checkpoint(network, str(tmp_path / "net.ckpt"))
    other = Twice()
    assert ms.load_param_into_net(other, ms.load_checkpoint(str(tmp_path / "net.ckpt"))) == ([], [])
    assert [float(p.asnumpy()[0]) for p in other.get_parameters()] == [5.0, 2.0, 3.0]


@pytest.mark.parametrize("suffix", ["ckpt", "safetensors"])
def test_load_checkpoint_has_the_order_of_the_file(suffix: str, tmp_path: Path) -> None:
    path = str(tmp_path / f"net.{suffix}")
    names = ["z", "b.2", "b.10", "a"]
    ms.save_checkpoint([{"name": name, "data": Tensor([1.0])} for name in names], path)
    assert list(ms.load_checkpoint(path)) == (names if suffix == "ckpt" else sorted(names))  # safetensors sort names


# Assignments --------------------------------------------------------------------------------------


def test_a_parameter_that_is_assigned_a_tensor_stays_a_parameter() -> None:
    layer = nn.Dense(2, 2, weight_init="ones", bias_init="zeros")
    kept = layer.weight
    layer.weight = Tensor(np.full((2, 2), 3.0, np.float32))
    layer.bias = ops.assign(layer.bias, Tensor([1.0, 2.0]))
    layer.bias += 1
    assert layer.weight is kept
    assert [parameter.name for parameter in layer.trainable_params()] == ["weight", "bias"]
    step = nn.TrainOneStepCell(nn.WithLossCell(layer, nn.MSELoss()), nn.SGD(layer.trainable_params(), 0.5))
    x, y = np.ones((1, 2), np.float32), np.zeros((1, 2), np.float32)
    step(Tensor(x), Tensor(y))
    bias = np.array([2.0, 3.0])
    np.testing.assert_allclose(layer.bias.asnumpy(), bias - 0.5 * (6 + bias), rtol=1e-6)
    layer.bias = Tensor([0.0, 0.0])
    np.testing.assert_allclose(layer(Tensor(x)).asnumpy(), x @ layer.weight.asnumpy().T, rtol=1e-6)


def test_a_shared_parameter_that_is_assigned_stays_shared() -> None:
    first, second = nn.Dense(2, 2), nn.Dense(2, 2)
    second.weight = first.weight
    second.weight = Tensor(np.full((2, 2), 4.0, np.float32))
    assert first.weight is second.weight
    assert first.weight.asnumpy().tolist() == [[4, 4], [4, 4]]


@pytest.mark.parametrize("value", [3.0, "x", np.zeros((1,), np.float32)])
def test_a_parameter_takes_tensors_only(value: Any) -> None:
    line = Line(1)
    with pytest.raises(TypeError, match=r"Line\.w is a parameter: it takes a Tensor or a Parameter, not"):
        line.w = value
    line.w = None
    assert (line.w, list(line.get_parameters())) == (None, [])


def test_a_parameter_refuses_a_tensor_of_another_shape() -> None:
    with pytest.raises(ValueError, match="has shape"):
        Line(1).w = Tensor([1.0, 2.0])


X = Tensor(np.ones((2, 2), np.float32))


class Step(nn.TrainOneStepCell):
    """Hands out the learning rate from a copy of its own, as public trainers do."""

    def __init__(self, network: Any, optimizer: Any) -> None:
        super().__init__(network, optimizer)
        self.learning_rate = copy.deepcopy(self.optimizer.learning_rate)

    def construct(self, x: Any) -> Any:
        return super().construct(x), self.learning_rate


class Sum(nn.Cell):
    def __init__(self, dtype: Any = ms.float32) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.linspace(0.5, 1.5, 4).reshape(2, 2), dtype), name="w")

    def construct(self, x: Any) -> Any:
        return (x * self.w).sum()


def test_parameters_of_one_name_are_called_by_their_attributes() -> None:
    network = Sum()
    step = Step(network, nn.Momentum(network.trainable_params(), 0.125, 0.9))
    loss, rate = step(X)
    assert (float(loss.asnumpy()), float(rate.asnumpy())) == (4.0, 0.125)
    states = ("global_step", "learning_rate", "momentum", "moments.w")
    names = ["w", "learning_rate", *(f"optimizer.{state}" for state in states)]  # MindSpore 2.10 gives these
    assert [parameter.name for parameter in step.get_parameters()] == names


def test_numbers_need_no_cuts_and_tile_takes_those_of_its_input() -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.add = ops.Add().shard(((2, 1), (2, 1)))
            self.mul = ops.Mul().shard(((2, 1), (2, 1)))
            self.sub = ops.Sub()
            self.tile = ops.Tile().shard(((2,),))
            self.one = Tensor(1.0, ms.float32)
            self.places = Parameter(Tensor(np.arange(4), ms.float32), name="places")

        def construct(self, x: Any) -> Any:
            return self.mul(self.add(0, x), self.sub(self.one, 0)) + self.tile(self.places, (8, 1))

    before = ms.mindspore_api.state.swap(ms.mindspore_api.state.Session())
    try:
        ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, full_batch=True)
        facts = compile_in_memory(Net(), [Tensor(np.ones((8, 4), np.float32))])
        assert facts.parameter_layouts["places"][0] == [2, 2]
        wrong = Net()
        wrong.add.shard(((2, 1, 1), (2, 1)))
        with pytest.raises(ms.MspcError, match="3 numbers"):
            compile_in_memory(nn.SequentialCell(Doubled(wrong)), [Tensor(np.ones((8, 4), np.float32))])
    finally:
        ms.mindspore_api.state.swap(before)


class Doubled(nn.Cell):
    """Adds what is no number of the script."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def construct(self, x: Any) -> Any:
        return self.net.add(x, x)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("states", [ms.float16, ms.float32])
@pytest.mark.parametrize("gradient", [ms.float16, ms.float32])
def test_adam_with_weight_decay_and_other_types(states: Any, gradient: Any, is_compiled: bool) -> None:
    """The rule written down in Float32, parameters rounded to Float16 once."""
    network = Sum(ms.float16)

    class Mixed(nn.AdamWeightDecay):
        """States of a type of their own, and beta1 as a tensor of one element, as public code has them."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, 0.125, 0.9, 0.999, 1e-6, 0.01)
            self.beta1 = Tensor(np.array([0.9]), ms.float32)
            for name in ("moments1", "moments2"):
                made = [Parameter(Tensor(np.full((2, 2), 0.02), states), name=f"{name}.w")]
                setattr(self, name, ms.ParameterTuple(made))

    optimizer = Mixed(network.trainable_params())
    given = np.linspace(-1, 1, 4).reshape(2, 2)
    start = network.w.asnumpy().astype(np.float32)
    (optimizer if is_compiled else optimizer.construct)((Tensor(given, gradient),))
    g = given.astype(np.float16).astype(np.float32)
    first = np.full((2, 2), 0.02, states.numpy).astype(np.float32)
    m = 0.9 * first + np.float32(0.1) * g
    v = 0.999 * first + np.float32(0.001) * g * g
    expected = start - 0.125 * (m / (np.sqrt(v) + 1e-6) + 0.01 * start)
    assert network.w.dtype == ms.float16
    np.testing.assert_allclose(network.w.asnumpy(), expected, rtol=1e-3)
    tolerance = 1e-6 if states == ms.float32 else 1e-3
    assert optimizer.moments1[0].dtype == states
    np.testing.assert_allclose(optimizer.moments1[0].asnumpy(), m, rtol=tolerance)
    np.testing.assert_allclose(optimizer.moments2[0].asnumpy(), v, rtol=tolerance)


class OwnBackward(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.square = ops.Mul().shard(((2, 1), (2, 1)))

    def construct(self, x: Any) -> Any:
        return self.square(x, x)

    def bprop(self, x: Any, out: Any, dout: Any) -> Any:
        return (2 * x * dout,)


def test_a_mistake_beside_a_gradient_of_the_script_is_the_only_one_named() -> None:
    own = OwnBackward()
    first, second = (Parameter(Tensor(np.ones((2, 2), np.float32)), name="w") for _ in range(2))

    def step(x: Any) -> Any:
        return ms.grad(lambda y: (own(y) * first * second).sum())(x)

    before = ms.mindspore_api.state.swap(ms.mindspore_api.state.Session())
    try:
        ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=2, full_batch=True)
        with pytest.raises(ms.MspcError, match="two parameters are called 'w'") as refused:
            compile_in_memory(step, [X])
        assert "no sharding rule" not in str(refused.value)
    finally:
        ms.mindspore_api.state.swap(before)
