"""Model, callbacks, checkpoints. The launcher is a stub: it counts down losses."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Model, Parameter, Tensor, mint, nn, ops
from mspc.communication import init
from mspc.dataset import GeneratorDataset
from mspc.ir.layout import Layout
from mspc.mindspore_api import call_handler
from mspc.parallel import AutoParallel
from mspc.train import CheckpointConfig, LossMonitor, ModelCheckpoint
from tests.errors import failure_of
from tests.mindspore_api.nn.training import Training, floats


class Losses:
    """Returns 1, 1/2, 1/3, ... or what it is given."""

    def __init__(self, losses=None):
        self.losses = losses
        self.calls = []

    def call(self, target, args):
        self.calls.append((target, args))
        n = len(self.calls)
        return Tensor(np.float32(self.losses[n - 1] if self.losses else 1 / n))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor([[1.0, 2.0]]), "w")

    def construct(self, x):
        return x * self.w


def data(steps=3):
    def rows():
        for i in range(steps):
            yield np.full((2, 2), i, np.float32), np.zeros((2, 2), np.float32)

    return GeneratorDataset(rows, ["x", "y"])


def model(**settings):
    net = Net()
    return net, Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9), **settings)


def test_the_step_is_built_from_network_loss_and_optimizer():
    recorder = Losses()
    call_handler.install(recorder)
    net, trained = model()
    trained.train(1, data(2))
    step, args = recorder.calls[0]
    assert isinstance(step, nn.TrainOneStepCell)
    assert isinstance(step.network, nn.WithLossCell)
    assert step.network.backbone_network is net
    assert step.training
    assert [a.array[0, 0] for a in args] == [0, 0]
    assert recorder.calls[1][1][0].array[0, 0] == 1
    assert [p.name for p in net.get_parameters()] == ["w"]


def test_auto_parallel_networks_stay_outermost():
    init()
    recorder = Losses()
    call_handler.install(recorder)
    net = Net()
    parallel = AutoParallel(net)
    parallel.dataset_strategy("full_batch")
    Model(parallel, nn.MSELoss(), nn.SGD(net.trainable_params())).train(1, data(1))
    target = recorder.calls[0][0]
    assert isinstance(target, AutoParallel)
    assert target.parallel_settings["dataset_strategy"] == "full_batch"
    assert target.network.network.backbone_network is net
    assert target.network.network.backbone_network.training


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_a_loss_that_is_no_number_stops(loss, capsys):
    call_handler.install(Losses([1.0, float(loss)]))
    error = failure_of(lambda: model()[1].train(1, data(3), LossMonitor()))
    assert error.message == f"epoch: 1 step: 2, loss is {loss}: training stops"
    assert error.exit_status == 1
    assert capsys.readouterr().out == "epoch: 1 step: 1, loss is 1.0\n"


def test_checkpoints_hold_all_parameters_under_epoch_and_step(tmp_path):
    call_handler.install(Losses())
    folder = tmp_path / "0"
    config = CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2, append_info=["epoch_num", {"a": 1.5}])
    callback = ModelCheckpoint("CKP", str(folder), config)
    model()[1].train(2, data(3), [callback])
    assert sorted(p.name for p in folder.iterdir()) == ["CKP-2_1.safetensors", "CKP-2_3.safetensors"]
    assert callback.latest_ckpt_file_name == str(folder / "CKP-2_3.safetensors")
    loaded = ms.load_checkpoint(callback.latest_ckpt_file_name)
    assert sorted(loaded) == ["a", "epoch_num", "global_step", "learning_rate", "moments.w", "momentum", "w"]
    assert loaded["w"].asnumpy().tolist() == [[1, 2]]
    assert (loaded["epoch_num"].item(), loaded["a"].item()) == (2, 1.5)


def test_the_last_step_is_always_saved(tmp_path):
    call_handler.install(Losses())
    config = CheckpointConfig(save_checkpoint_steps=10)
    model()[1].train(1, data(3), ModelCheckpoint("m", tmp_path, config))
    assert [p.name for p in tmp_path.iterdir()] == ["m-1_3.safetensors"]


def test_saving_and_loading(tmp_path):
    net = Net()
    ms.save_checkpoint(net, str(tmp_path / "deep" / "net"))
    net.w.set_data(Tensor([[5.0, 6.0]]))
    loaded = ms.load_checkpoint(str(tmp_path / "deep" / "net"))
    assert ms.load_param_into_net(net, loaded) == ([], [])
    assert net.w.asnumpy().tolist() == [[1, 2]]
    ms.save_checkpoint(
        [{"name": "w", "data": Tensor([[7.0, 8.0]])}, {"name": "z", "data": Tensor(1)}], str(tmp_path / "b")
    )
    ms.load_checkpoint(str(tmp_path / "b"), net)
    assert net.w.asnumpy().tolist() == [[7, 8]]
    assert ms.load_param_into_net(net, {"z": Tensor(1)}) == (["w"], ["z"])
    assert list(ms.load_checkpoint(str(tmp_path / "b"), filter_prefix="w")) == ["z"]
    assert list(ms.load_checkpoint(str(tmp_path / "b"), choice_func=lambda name: name == "w")) == ["w"]


def test_checkpoints_fit_wrapped_and_bare_networks(tmp_path):
    class Holder(nn.Cell):
        def __init__(self):
            super().__init__()
            self.net = Net()

    bare, wrapped = Net(), Holder()
    assert ms.load_param_into_net(wrapped, {"w": Tensor([[3.0, 4.0]])}) == ([], [])
    assert wrapped.net.w.asnumpy().tolist() == [[3, 4]]
    assert ms.load_param_into_net(bare, {"net.w": Tensor([[5.0, 6.0]])}) == ([], [])
    assert bare.w.asnumpy().tolist() == [[5, 6]]


SHAPES = {"w": (4, 2), "v": (3,), "row": (1, 4), "s": ()}
X = floats(1, 8, 4)


class ConstantNet(nn.Cell):
    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        for i, (name, shape) in enumerate(SHAPES.items()):
            setattr(self, name, Parameter(Tensor(floats(2 + i, *shape)), name))
        self.form = form

    def construct(self, x: Any) -> Any:
        return self.form(self, x)


class Clipped(nn.Cell):
    """A step whose gradients are scaled together."""

    def __init__(self, net: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.net, self.optimizer = net, optimizer
        self.gradient = ms.value_and_grad(net, None, optimizer.parameters)

    def construct(self, x: Any) -> Any:
        loss, gradients = self.gradient(x)
        gradients = ops.clip_by_global_norm(gradients, 0.5)
        return ops.depend(loss, self.optimizer(gradients)), gradients


FORMS = {
    "a term": lambda net, x: ops.reduce_mean(ops.matmul(x, net.w)) + ops.reduce_mean(net.w),
    "two terms": lambda net, x: ops.matmul(x, net.w).sum() + net.w.sum() + net.w.mean() * 2.0,
    "through ReLU": lambda net, x: ops.relu(net.w).sum() + net.w.mean() + ops.matmul(x, net.w).mean(),
    "all of it": lambda net, x: net.w.mean() + net.v.sum() + x.mean(),
    "one scalar twice": lambda net, x: net.s + net.s * 2.0 + x.mean() * net.s,
    "alike": lambda net, x: net.v.mean() + net.s + x.mean(),
    "unstacked": lambda net, x: (ops.Unstack(0)(net.row)[0] * x).sum(),
    "split": lambda net, x: (ops.Split(0, 1)(net.row)[0] * x).sum(),
}


def trained(form: Callable[..., Any], step: Any, batch: np.ndarray, ranks: int, mode: str) -> Training:
    net = ConstantNet(form)
    optimizer = nn.Momentum(net.trainable_params(), 1.0, 0.5)
    training = Training(step(net, optimizer), [batch.shape], ranks, mode)
    training.found = training.run([[batch]])  # type: ignore[attr-defined]
    return training


def returning(net: nn.Cell, optimizer: nn.Cell) -> nn.Cell:
    return nn.TrainOneStepCell(net, optimizer, return_grad=True)


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
@pytest.mark.parametrize("step", [returning, Clipped])
@pytest.mark.parametrize("name", FORMS)
def test_a_step_equals_one_device(name: str, step: Any, mode: str) -> None:
    one = trained(FORMS[name], step, X, 1, "stand_alone")
    many = trained(FORMS[name], step, X, 2, mode)
    for parameter in SHAPES:
        np.testing.assert_allclose(many.states[0][parameter], one.states[0][parameter], 1e-5, 1e-5)
    (_, expected), (_, found) = one.found[0], many.found[0]  # type: ignore[attr-defined]
    if step is returning:
        assert list(found) == list(SHAPES)
    pairs = zip(*(list(each.values()) if isinstance(each, dict) else each for each in (expected, found)), strict=True)
    for (a, b), value in zip(pairs, many.compiled.graph.results[1:], strict=True):
        mine = a[value.layout.slices_for(0, np.shape(a))] if isinstance(value.layout, Layout) else a
        np.testing.assert_allclose(b, mine, 1e-5, 1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_data_parallel_ranks_add_constants_too(name: str) -> None:
    many = trained(FORMS[name], returning, X, 2, "data_parallel")
    halves = [trained(FORMS[name], returning, half, 1, "stand_alone") for half in np.split(X, 2)]
    for parameter in SHAPES:
        start = many.start[parameter]
        expected = sum(start - half.states[0][parameter] for half in halves)
        np.testing.assert_allclose(start - many.states[0][parameter], expected, 1e-4, 1e-5)


MASKS_X = np.ones((8, 32), np.float32)


class Masks(nn.Cell):
    """Six masks: of two calls of a function, of a layer called twice, of a primitive called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Dropout(p=0.5)
        self.operator = ops.Dropout(0.5, 3, 4)

    def construct(self, x: Any) -> Any:
        first, second = self.operator(x)[0], self.operator(x)[0]
        return ops.dropout(x), mint.nn.functional.dropout(x), self.layer(x), self.layer(x), first, second


def test_calls_draw_apart() -> None:
    ms.set_seed(5)
    cell = Masks().set_train()
    training = Training(cell, [MASKS_X.shape])
    found = [mask for step in training.run([(MASKS_X,), (MASKS_X,)]) for mask in step]
    for one, other in itertools.combinations(found, 2):
        assert (one != other).any()
    assert all(0.3 < np.mean(mask > 0) < 0.7 for mask in found)
    sharded = Training(cell, [MASKS_X.shape], 4, "semi_auto_parallel").run([(MASKS_X,), (MASKS_X,)])
    for one, other in zip(found, [mask for step in sharded for mask in step], strict=True):
        np.testing.assert_array_equal(one, other)


def test_calls_outside_of_a_network_draw_apart() -> None:
    ms.set_seed(5)
    first, second = ops.dropout(Tensor(MASKS_X)).asnumpy(), ops.dropout(Tensor(MASKS_X)).asnumpy()
    assert (first != second).any()
    ms.set_seed(5)
    np.testing.assert_array_equal(ops.dropout(Tensor(MASKS_X)).asnumpy(), first)
    same = [ops.dropout(Tensor(MASKS_X), seed=7).asnumpy() for _ in range(2)]
    np.testing.assert_array_equal(*same)


def test_a_gradient_has_the_mask_of_its_loss() -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(Tensor(MASKS_X), "w")

        def construct(self, x: Any) -> Any:
            return (ops.dropout(self.w) * 3.0 + ops.dropout(self.w) * x).sum()

    class Step(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.both = ms.value_and_grad(self.net, None, self.net.trainable_params())

        def construct(self, x: Any) -> Any:
            plain = self.net(x)
            loss, gradients = self.both(x)
            return plain, loss, gradients[0]

    plain, loss, gradient = Training(Step(), [MASKS_X.shape]).run([(MASKS_X,)])[0]
    assert plain == loss == pytest.approx(gradient.sum(), rel=1e-6)
    assert sorted(np.unique(gradient)) == [0.0, 2.0, 6.0, 8.0]


def test_uniform_numbers_of_two_calls_differ() -> None:
    class Net(nn.Cell):
        def construct(self, x: Any) -> Any:
            return x + ops.UniformReal()((8, 32)), x + ops.UniformReal()((8, 32))

    first, second = Training(Net(), [MASKS_X.shape]).run([(MASKS_X,)])[0]
    assert (first != second).any()


@pytest.mark.parametrize("p", [1.0, -0.5, "x"])
def test_a_probability_is_one(p: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        ops.dropout(Tensor(MASKS_X), p)
    said = "must be a number, not 'x'" if p == "x" else f"is {p}, not in [0, 1)"
    assert said in str(raised.value)


RECOMPUTED_X = floats(1, 8, 16)


class Inside(nn.Cell):
    """One operator of several results behind another operator."""

    def __init__(self, primitive: Any, use: Callable[..., Any]) -> None:
        super().__init__()
        self.w, self.gamma, self.beta = (
            Parameter(Tensor(floats(5 + i, *shape)), name)
            for i, (name, shape) in enumerate({"w": (16, 16), "gamma": (16,), "beta": (16,)}.items())
        )
        self.primitive, self.use = primitive, use
        self.set_train()

    def construct(self, x: Any) -> Any:
        return self.use(self, ops.sin(ops.matmul(x, self.w)))


class Loss(nn.Cell):
    def __init__(self, net: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, x: Any) -> Any:
        return (ops.tanh(self.net(x)) * x.sum()).sum()


def normed(net: Any, x: Any) -> Any:
    return net.primitive(x, net.gamma, net.beta)[0]


def normed_in_two_ways(net: Any, x: Any) -> Any:
    y, mean, _ = net.primitive(x, net.gamma, net.beta)
    return ops.sin(y) * mean


def first(net: Any, x: Any) -> Any:
    return net.primitive(x)[0]


def second(net: Any, x: Any) -> Any:
    return ops.exp(net.primitive(x)[1])


def product(net: Any, x: Any) -> Any:
    one, other = net.primitive(x)
    return ops.sin(one) * ops.exp(other)


def ordered(net: Any, x: Any) -> Any:
    return ops.sin(net.primitive(x)[0])


CASES = [
    (lambda: ops.LayerNorm(1, 1, 1e-5), normed, ((1, 1), (1,), (1,))),
    (lambda: ops.LayerNorm(1, 1, 1e-5), normed, ((2, 1), (1,), (1,))),
    (lambda: ops.LayerNorm(1, 1, 1e-5), normed_in_two_ways, ((1, 1), (1,), (1,))),
    (lambda: ops.Dropout(0.5), first, ((1, 1),)),
    (lambda: ops.Dropout(0.5), first, ((2, 1),)),
    (lambda: ops.Dropout(0.5), first, ((1, 2),)),
    (lambda: ops.ArgMaxWithValue(1), second, ((1, 1),)),
    (lambda: ops.ArgMaxWithValue(0), second, ((1, 2),)),
    (lambda: ops.Split(1, 2), product, ((1, 1),)),
    (lambda: ops.Split(0, 2), product, ((1, 1),)),
    (lambda: ops.Split(0, 2), product, ((1, 2),)),
    (lambda: lambda x: mint.sort(x, dim=0), ordered, None),
    (lambda: lambda x: mint.sort(x, dim=1), ordered, None),
]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("make", "use", "strategy"), CASES)
def test_recomputed_results_are_those_of_one_device(make: Any, use: Any, strategy: Any, ranks: int) -> None:
    found: list[list[np.ndarray]] = []
    for sharded in (False, True):
        primitive = make()
        if sharded and strategy is not None:
            primitive.shard(strategy)
        net = Inside(primitive, use)
        net.recompute()
        cell = nn.ForwardValueAndGrad(Loss(net), [net.w, net.gamma, net.beta], get_by_list=True)
        training = Training(
            cell, [RECOMPUTED_X.shape], *((ranks, "semi_auto_parallel") if sharded else (1, "stand_alone"))
        )
        loss, gradients = training.run([[RECOMPUTED_X]])[0]
        found.append([np.asarray(array) for array in (loss, *gradients)])
        assert any(node.attrs.get("recomputed") for node in training.compiled.graph.nodes)
    layouts = [value.layout for value in training.compiled.graph.results]
    for one, many, layout in zip(*found, layouts, strict=True):
        mine = one[layout.slices_for(0, one.shape)] if isinstance(layout, Layout) else one
        np.testing.assert_allclose(many, mine, 1e-4, 1e-4)
