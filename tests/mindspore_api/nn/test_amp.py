"""Mixed precision and loss scaling: the compiled step against Float32 and against steps written by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training import Training, floats

import mspc
from mspc import Model, Parameter, Tensor, amp, nn, ops
from mspc.compiler.frontend.trace import trace
from mspc.mindspore_api.context import set_context
from mspc.passes.base import parse_passes, run_passes
from tests.graphs import BFLOAT16, FLOAT16, FLOAT32, ExecutionError, Graph, Node, TensorType, print_graph

X, Y = floats(3, 8, 16), floats(4, 8, 8)
SHAPES = [(8, 16), (8, 8)]
SHARDED: list[dict[str, Any]] = [
    {"ranks": 4, "mode": "semi_auto_parallel"},
    {"ranks": 4, "mode": "semi_auto_parallel", "parallel_optimizer": True, "parallel_optimizer_threshold": 0},
    {"ranks": 4, "mode": "auto_parallel"},
]
SPREAD = [{}, *SHARDED, {"ranks": 4, "mode": "data_parallel", "gradients_mean": True}]


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = Parameter(Tensor(floats(1, 16, 32, scale=0.2)), "w1")
        self.w2 = Parameter(Tensor(floats(2, 32, 8, scale=0.2)), "w2")
        self.first = ops.MatMul().shard(((2, 2), (2, 1)))
        self.relu = ops.ReLU()
        self.second = ops.MatMul()

    def construct(self, x):
        return self.second(self.relu(self.first(x, self.w1)), self.w2)


OPTIMIZERS = {
    "momentum": lambda weights: nn.Momentum(weights, 0.1, 0.9, weight_decay=0.01),
    "nesterov": lambda weights: nn.Momentum(weights, 0.1, 0.9, use_nesterov=True),
    "sgd": lambda weights: nn.SGD(weights, 0.1, momentum=0.9),
    "adam": lambda weights: nn.Adam(weights, 0.01),
    "adam_weight_decay": lambda weights: nn.AdamWeightDecay(weights, 0.01, weight_decay=0.01),
}


def train_cell(level: str, optimizer: str = "momentum", **settings: Any) -> nn.Cell:
    net = Net()
    return amp.build_train_network(net, OPTIMIZERS[optimizer](net.trainable_params()), nn.MSELoss(), level, **settings)


def dynamic(scale: float, window: int = 1000) -> amp.DynamicLossScaleManager:
    return amp.DynamicLossScaleManager(scale, 2, window)


def traced(cell: Any, *shapes: tuple[int, ...], passes: str = "simplify") -> Graph:
    graph = trace(cell, [TensorType(FLOAT32, shape) for shape in shapes]).graph
    return run_passes(graph, parse_passes(passes))


def types_of(graph: Graph) -> list[tuple[str, str]]:
    return [(n.op.name, str(n.tensor_type.dtype)) for n in graph.nodes if isinstance(n.type, TensorType)]


def by_hand(half: Any, steps: int) -> tuple[list[float], np.ndarray]:
    """(losses, first weight) of gradient descent with the rounding that O2 asks for, in plain NumPy."""

    def round_(a: np.ndarray) -> np.ndarray:
        return a.astype(half).astype(np.float32)

    w1, w2 = floats(1, 16, 32, scale=0.2), floats(2, 32, 8, scale=0.2)
    losses = []
    for _ in range(steps):
        x, h1, h2 = round_(X), round_(w1), round_(w2)
        hidden = np.maximum(round_(x @ h1), 0)
        out = round_(hidden @ h2)
        losses.append(float(np.mean((out - Y) ** 2)))
        d_out = round_(2 * (out - Y) / out.size)
        d_hidden = round_(d_out @ h2.T) * (hidden > 0)
        w2 = w2 - 0.1 * round_(hidden.T @ d_out)
        w1 = w1 - 0.1 * round_(x.T @ d_hidden)
    return losses, w1


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_numbers_equal_a_step_written_by_hand(dtype: Any) -> None:
    net = Net()
    step = amp.build_train_network(net, nn.SGD(net.trainable_params(), 0.1), nn.MSELoss(), "O2", dtype=dtype,
                                   loss_scale_manager=None)  # fmt: skip
    training = Training(step, SHAPES)
    losses = [float(loss) for loss in training.run([(X, Y)] * 4)]
    expected, w1 = by_hand(dtype.numpy, 4)
    rounding = 2.0**-7 if dtype == BFLOAT16 else 2.0**-10
    np.testing.assert_allclose(losses, expected, rounding)
    np.testing.assert_allclose(training.states[-1]["w1"], w1, atol=rounding)
    assert training.states[-1]["w1"].dtype == np.float32


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_scaling_by_a_power_of_two_changes_no_bit(optimizer: str) -> None:
    plain, scaled = (Training(train_cell("O0", optimizer, **kw), SHAPES)
                     for kw in ({}, {"loss_scale_manager": dynamic(1024.0, 2)}))  # fmt: skip
    losses = plain.run([(X, Y)] * 4)
    found = scaled.run([(X, Y)] * 4)
    assert [float(loss) for loss, _, _ in found] == [float(loss) for loss in losses]
    assert [(bool(overflow), float(scale)) for _, overflow, scale in found] == [
        (False, 1024.0), (False, 2048.0), (False, 2048.0), (False, 4096.0)
    ]  # fmt: skip
    for name, array in plain.states[-1].items():
        np.testing.assert_array_equal(scaled.states[-1][name], array)


@pytest.mark.parametrize(
    ("optimizer", "spread"), [*(("adam", spread) for spread in SPREAD), *((name, SHARDED[1]) for name in OPTIMIZERS)],
    ids=lambda value: value.get("mode", "one") if isinstance(value, dict) else value,
)
def test_an_overflow_changes_nothing_but_the_scale(optimizer: str, spread: dict[str, Any]) -> None:
    training = Training(train_cell("O2", optimizer, loss_scale_manager=dynamic(2.0**19)), SHAPES, **spread)
    found = training.run([(X, Y)] * 6)
    overflows = [bool(overflow) for _, overflow, _ in found]
    assert overflows[0]
    assert not overflows[-1]
    scale = 2.0**19
    before = training.start
    for overflow, (_, _, now), after in zip(overflows, found, training.states, strict=True):
        changed = {name for name in before if before[name].tobytes() != after[name].tobytes()}
        if overflow:
            scale /= 2
            assert changed == {"scale_sense", "current_iterator_step", "last_overflow_iterator_step"}
        else:
            assert {"w1", "w2", "global_step", "current_iterator_step"} <= changed
        assert float(now) == float(after["scale_sense"]) == scale
        before = after
    assert int(training.states[-1]["current_iterator_step"]) == 7
    assert int(training.states[-1]["global_step"][0]) == overflows.count(False)


@pytest.mark.parametrize("spread", SHARDED, ids=lambda s: str(len(s)) + s["mode"])
def test_ranks_train_as_one_device(spread: dict[str, Any]) -> None:
    one = Training(train_cell("O2", loss_scale_manager=dynamic(256.0)), SHAPES)
    many = Training(train_cell("O2", loss_scale_manager=dynamic(256.0)), SHAPES, **spread)
    alone, together = one.run([(X, Y)] * 3), many.run([(X, Y)] * 3)
    np.testing.assert_allclose([float(r[0]) for r in together], [float(r[0]) for r in alone], 1e-3)
    np.testing.assert_allclose(many.states[-1]["w1"], one.states[-1]["w1"], atol=1e-3)
    assert all(float(rank[i][0][0]) == float(together[i][0]) for rank in many.ranks_found for i in range(3))


def test_the_flag_is_one_element_and_gradients_are_reduced_once_in_float32() -> None:
    for spread in SHARDED[:2]:
        graph = Training(train_cell("O2"), SHAPES, **spread).compiled.graph
        reduced = [n for n in graph.nodes if n.op.name in ("AllReduce", "ReduceScatter") and n.phase == "update"]
        flags = [n for n in reduced if n.inputs[0].op.name == "AllFinite"]
        assert [(n.op.name, n.type) for n in flags] == [("AllReduce", flags[0].type)]
        assert flags[0].tensor_type.size == 1
        gradients = [n for n in reduced if n not in flags]
        assert all(v.tensor_type.dtype == FLOAT32 for n in gradients for v in n.inputs)
        assert sum(len(n.inputs) for n in gradients) == 2
        gathered = [n for n in graph.nodes if n.op.name == "AllGather" and isinstance(n.inputs[0], Node)
                    and n.inputs[0].op.name == "Cast"]  # fmt: skip
        assert all(n.tensor_type.dtype == FLOAT16 for n in gathered)
        assert bool(gathered) == ("parallel_optimizer" in spread)


class Normed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(16, 8, activation="relu")
        self.norm = nn.LayerNorm((8,))
        self.matmul = ops.MatMul(transpose_b=True)
        self.table = Parameter(Tensor(floats(5, 4, 8)), "table")
        self.bias = Tensor(floats(6, 4))

    def construct(self, x):
        return self.matmul(self.norm(self.dense(x)), self.table) + self.bias


def test_o2_keeps_normalizations_wide() -> None:
    found = types_of(traced(amp.auto_mixed_precision(Normed(), "O2"), (8, 16)))
    assert ("MatMul", "Float16") in found
    assert found[-1] == ("Cast", "Float32")
    assert ("MatMul", "Float32") not in found
    graph = traced(amp.auto_mixed_precision(Normed(), "O2"), (8, 16))
    norms = [n for n in graph.nodes if n.op.name == "LayerNorm"]
    assert {v.tensor_type.dtype for n in norms for v in n.inputs} == {FLOAT32}
    assert next(n for n in graph.nodes if n.op.name == "Add").tensor_type.dtype == FLOAT16


def test_o3_is_half_throughout_and_returns_float32() -> None:
    found = types_of(traced(amp.auto_mixed_precision(Normed(), "O3", mspc.bfloat16), (8, 16)))
    assert {kind for name, kind in found[:-1]} == {"BFloat16"}
    assert found[-1] == ("Cast", "Float32")


def test_o1_narrows_the_white_list_alone() -> None:
    found = types_of(traced(amp.auto_mixed_precision(Normed(), "O1"), (8, 16)))
    assert [kind for name, kind in found if name in ("MatMul", "BiasAdd", "ReLU")] == ["Float16"] * 4
    assert [kind for name, kind in found if name == "Add"] == ["Float32"]


def test_auto_follows_its_lists() -> None:
    class Logits(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(Tensor(floats(1, 16, 4)), "w")

        def construct(self, x):
            return ops.softmax(x @ self.w).tanh()

    cell = amp.auto_mixed_precision(Logits(), "auto")
    assert [(n, k) for n, k in types_of(traced(cell, (8, 16))) if n != "Cast"] == [
        ("MatMul", "Float16"), ("Softmax", "Float32"), ("Tanh", "Float32"),
    ]  # fmt: skip


def test_auto_rounds_operands_of_attention() -> None:
    class Heads(nn.Cell):
        def construct(self, x):
            return ops.flash_attention_score(x, x, x, head_num=2, input_layout="BSH")

    graph = traced(amp.auto_mixed_precision(Heads(), "auto", mspc.bfloat16), (2, 4, 16))
    assert {v.type for n in graph.nodes if n.op.name == "FlashAttentionScore" for v in n.inputs} == {
        TensorType(BFLOAT16, (2, 4, 16))
    }


def test_custom_lists() -> None:
    white = amp.custom_mixed_precision(Normed(), white_list=[ops.MatMul])
    kinds = dict(types_of(traced(white, (8, 16))))
    assert (kinds["MatMul"], kinds["ReLU"]) == ("Float16", "Float32")
    black = amp.custom_mixed_precision(Normed(), black_list=[ops.ReLU])
    kinds = dict(types_of(traced(black, (8, 16))))
    assert (kinds["MatMul"], kinds["ReLU"]) == ("Float16", "Float32")
    assert amp.get_black_list() == [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm]
    assert nn.Dense in amp.get_white_list()


def test_to_float_casts_inputs_parameters_and_constants() -> None:
    cell = Normed().to_float(mspc.float16)
    graph = traced(cell, (8, 16))
    assert {str(v.tensor_type.dtype) for n in graph.nodes if n.op.name != "Cast" for v in n.inputs
            if isinstance(v.type, TensorType)} == {"Float16"}  # fmt: skip
    assert all(p.tensor_type.dtype == FLOAT32 for p in graph.parameters)


def test_the_forward_part_is_not_computed_twice() -> None:
    class Loss(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(Tensor(floats(1, 16, 4)), "w")

        def construct(self, x):
            return ops.reduce_sum(x @ self.w)

    net = Loss()
    step = amp.build_train_network(net, nn.SGD(net.trainable_params(), 0.1), level="O2")
    graph = traced(step, (8, 16), passes="grad,simplify")
    assert [n.op.name for n in graph.nodes if n.phase == "forward"].count("MatMul") == 1
    assert graph.results[0].tensor_type.dtype == FLOAT16


def test_parameters_in_lists_and_updates_of_half_cells() -> None:
    class Lists(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weights = [Parameter(Tensor(floats(1, 16, 4)), "a"), Parameter(Tensor(floats(2, 4, 4)), "b")]
            self.seen = Parameter(Tensor(np.zeros((4, 4), np.float32)), "seen", requires_grad=False)

        def construct(self, x):
            for weight in self.weights:
                x = x @ weight
            self.seen += ops.matmul(x.T, x)
            return x

    graph = traced(Lists().to_float(mspc.float16), (8, 16))
    assert {k for n, k in types_of(graph) if n == "MatMul"} == {"Float16"}
    update = next(n for n in graph.nodes if getattr(n.op, "mutates", ()))
    assert [v.tensor_type.dtype for v in update.inputs] == [FLOAT32, FLOAT32]
    assert update.inputs[0] is graph.parameter("seen")


def test_a_small_o2_graph(update_goldens: bool) -> None:
    net = nn.Dense(4, 2)
    step = amp.build_train_network(net, nn.SGD(net.trainable_params(), 0.1), nn.MSELoss(), "O2")
    graph = traced(step, (8, 4), (8, 2), passes="grad,simplify")
    lines = [line for line in print_graph(graph).splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines) + "\n"
    golden = Path(__file__).parent / "amp_o2.ir"
    if update_goldens:
        golden.write_text(text)
    assert text == golden.read_text()


# A step written by the user, as MindSpore's guides show it ----------------------------------------------------


class OwnStep(nn.TrainOneStepWithLossScaleCell):
    def construct(self, *inputs):
        loss = self.network(*inputs)
        status, scaling_sens = self.start_overflow_check(loss, self.scale_sense)
        filled = ops.ones_like(loss) * ops.cast(scaling_sens, loss.dtype)
        grads = self.grad(self.network, self.weights)(*inputs, filled)
        grads = [g * ops.reciprocal(scaling_sens) for g in grads]
        grads = self.grad_reducer(grads)
        cond = self.get_overflow_status(status, grads)
        overflow = self.process_loss_scale(cond)
        if not overflow:
            loss = ops.depend(loss, self.optimizer(grads))
        return loss, cond


@pytest.mark.parametrize("spread", [{}, SHARDED[1]], ids=["one", "ranks"])
def test_a_step_of_the_users_own(spread: dict[str, Any]) -> None:
    def cell(kind: Any) -> Any:
        net = Net()
        loss = nn.WithLossCell(net.to_float(mspc.float16), nn.MSELoss())
        return kind(loss, nn.Momentum(net.trainable_params(), 0.1, 0.9), nn.DynamicLossScaleUpdateCell(2**19, 2, 1000))

    own, ours = (Training(cell(kind), SHAPES, **spread) for kind in (OwnStep, nn.TrainOneStepWithLossScaleCell))
    mine, theirs = own.run([(X, Y)] * 4), ours.run([(X, Y)] * 4)
    assert [(float(a[0]), bool(a[1])) for a in mine] == [(float(b[0]), bool(b[1])) for b in theirs]
    assert any(bool(a[1]) for a in mine)
    np.testing.assert_array_equal(own.states[-1]["w1"], ours.states[-1]["w1"])


def test_a_fixed_scale_stays() -> None:
    training = Training(train_cell("O2", loss_scale_manager=amp.FixedLossScaleManager(2.0**19)), SHAPES)
    found = training.run([(X, Y)] * 2)
    assert [(bool(o), float(s)) for _, o, s in found] == [(True, 2.0**19)] * 2
    assert training.states[-1]["w1"].tobytes() == training.start["w1"].tobytes()


def test_a_scale_that_the_optimizer_takes_out() -> None:
    def cell(scale: float) -> Any:
        net = Net()
        optimizer = nn.SGD(net.trainable_params(), 0.1, loss_scale=scale)
        manager = amp.FixedLossScaleManager(scale, drop_overflow_update=False)
        return amp.build_train_network(net, optimizer, nn.MSELoss(), "O0", loss_scale_manager=manager)

    one, other = (Training(cell(scale), SHAPES) for scale in (1.0, 512.0))
    one.run([(X, Y)] * 2), other.run([(X, Y)] * 2)
    np.testing.assert_array_equal(one.states[-1]["w1"], other.states[-1]["w1"])


def test_scalers_outside_of_a_network() -> None:
    scaler = amp.DynamicLossScaler(1024.0, 2, 2)
    assert float(scaler.scale(Tensor([2.0])).asnumpy()[0]) == 2048.0
    assert [float(t.asnumpy()[0]) for t in scaler.unscale((Tensor([1024.0]), Tensor([512.0])))] == [1.0, 0.5]
    scales = []
    for finite in (False, True, True, True):
        scaler.adjust(Tensor(np.array(finite)))
        scales.append(float(scaler.scale_value.array))
    assert scales == [512.0, 512.0, 1024.0, 1024.0]
    assert int(scaler.counter.array) == 1
    static = amp.StaticLossScaler(4.0)
    assert float(static.unscale(Tensor([2.0])).asnumpy()[0]) == 0.5
    good, bad = Tensor([1.0, 2.0]), Tensor([1.0, np.inf])
    assert bool(amp.all_finite((good,)).asnumpy())
    assert not bool(amp.all_finite((good, bad)).asnumpy())


def test_managers_count_steps() -> None:
    manager = amp.DynamicLossScaleManager(16.0, 4, 2)
    scales = []
    for overflow in (True, True, True, False, False, False):
        manager.update_loss_scale(overflow)
        scales.append(manager.get_loss_scale())
    assert scales == [4.0, 1.0, 1.0, 1.0, 4.0, 4.0]
    assert amp.FixedLossScaleManager().get_loss_scale() == 128.0
    assert amp.DynamicLossScaleManager().get_loss_scale() == 2.0**24
    assert amp.FixedLossScaleManager(drop_overflow_update=False).get_update_cell() is None


def test_model_builds_the_step_of_its_level() -> None:
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = Model(net, nn.MSELoss(), optimizer, amp_level="O2").train_network
    assert isinstance(step, nn.TrainOneStepWithLossScaleCell)
    assert float(step.scale_sense.array) == 2.0**24
    step = Model(Net(), nn.MSELoss(), optimizer, amp_level="O3").train_network
    assert type(step) is nn.TrainOneStepCell
    manager = amp.FixedLossScaleManager(8.0)
    step = Model(Net(), nn.MSELoss(), optimizer, amp_level="O3", loss_scale_manager=manager).train_network
    assert float(step.scale_sense.array) == 8.0
    plain = Model(Net(), nn.MSELoss(), optimizer, amp_level="auto").train_network
    assert type(plain) is nn.TrainOneStepCell
    set_context(device_target="GPU")
    chosen = Model(Net(), nn.MSELoss(), optimizer, amp_level="auto").train_network
    assert isinstance(chosen, nn.TrainOneStepWithLossScaleCell)


def test_keep_batchnorm_fp32_replaces_the_levels() -> None:
    net = Normed()
    step = amp.build_train_network(net, nn.SGD(net.trainable_params(), 0.1), level="O2", keep_batchnorm_fp32=False)
    graph = traced(step.network, (8, 16))
    norms = [[str(t.dtype) for t in n.type.elements] for n in graph.nodes if n.op.name == "LayerNorm"]
    assert norms == [["Float16", "Float32", "Float32"]] * len(norms) != []


@pytest.mark.parametrize("spread", SPREAD, ids=lambda s: s.get("mode", "one"))
def test_an_infinite_loss_leaves_its_step_out(spread: dict[str, Any]) -> None:
    training = Training(train_cell("O2", loss_scale_manager=dynamic(4.0)), SHAPES, **spread)
    found = training.run([(X, Y), (X, Y * np.float32(1e30)), (X, Y)])
    assert [(bool(np.isfinite(loss)), bool(overflow), float(scale)) for loss, overflow, scale in found] == [
        (True, False, 4.0), (False, True, 2.0), (True, False, 2.0)
    ]  # fmt: skip
    for name in ("w1", "w2", "global_step"):
        np.testing.assert_array_equal(training.states[0][name], training.states[1][name])
        assert (training.states[1][name] != training.states[2][name]).any()


def test_a_monitor_tells_of_an_infinite_loss_that_changed_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    monitor = mspc.train.LossMonitor()
    param = mspc.train.callback.CallbackParam(
        cur_epoch_num=1, cur_step_num=2, batch_num=5,
        net_outputs=(Tensor(np.float32(np.inf)), Tensor(True), Tensor(2.0)),
    )
    monitor.step_end(mspc.train.RunContext(param))
    assert capsys.readouterr().out == "epoch: 1 step: 2, loss is inf\n"
    param["net_outputs"] = (Tensor(np.float32(np.inf)), Tensor(False), Tensor(2.0))
    with pytest.raises(ExecutionError, match="epoch: 1 step: 2, loss is inf: training stops"):
        monitor.step_end(mspc.train.RunContext(param))


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_auto_takes_the_widest_where_a_product_meets_a_bias(activation: Any, has_bias: bool) -> None:
    net = nn.SequentialCell(nn.Dense(16, 8, has_bias=has_bias, activation=activation), nn.LayerNorm((8,)))
    weights = {p.name: p.asnumpy() for p in net.get_parameters()}
    graph = traced(amp.auto_mixed_precision(net, "auto"), (8, 16))
    kinds = dict(types_of(graph))
    assert kinds["MatMul"] == "Float16"
    assert kinds.get("BiasAdd", "Float32") == "Float32"
    plain = nn.Dense(16, 8, Tensor(weights["0.weight"]), Tensor(weights["0.bias"]) if has_bias else None, has_bias,
                     activation)  # fmt: skip
    expected = nn.LayerNorm((8,)).construct(plain.construct(Tensor(X))).asnumpy()
    np.testing.assert_allclose(net.construct(Tensor(X)).asnumpy(), expected, atol=1e-5)
    training = Training(net, [(8, 16)])
    (found,) = training.run([(X,)])
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_operators_of_a_black_list_meet_halves() -> None:
    net = nn.Dense(16, 8)
    cell = amp.custom_mixed_precision(net, black_list=[ops.MatMul])
    assert dict(types_of(traced(cell, (8, 16))))["BiasAdd"] == "Float32"


def test_branches_with_updates_merge_what_they_assign() -> None:
    class Counting(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.high = Parameter(Tensor(0, mspc.int32), "high", requires_grad=False)
            self.low = Parameter(Tensor(0, mspc.int32), "low", requires_grad=False)

        def construct(self, x):
            total = ops.reduce_sum(x)
            if total > 0:
                self.high += 1
                y = x * 2.0
            else:
                self.low += 1
                y = -x
            return y

    training = Training(Counting(), [(2,)])
    ups, downs = np.array([1, 2], np.float32), np.array([-1, -2], np.float32)
    found = training.run([(ups,), (downs,), (downs,)])
    assert [y.tolist() for y in found] == [[2, 4], [1, 2], [1, 2]]
    assert {n: int(a) for n, a in training.states[-1].items()} == {"high": 1, "low": 2}


@pytest.mark.parametrize(
    ("level", "convolution", "normalized", "pooled"),
    [("O0", "Float32", "Float32", "Float32"), ("O1", "Float16", "Float32", "Float32"),
     ("O2", "Float16", "Float32", "Float16"), ("O3", "Float16", "Float16", "Float16"),
     ("auto", "Float16", "Float32", "Float32")],
)  # fmt: skip
def test_batch_normalization_is_wide_between_half_convolutions(
    level: str, convolution: str, normalized: str, pooled: str
) -> None:
    images = floats(1, 4, 3, 8, 8) + 3
    means: list[Any] = []
    for own in ("O0", level):
        mspc.set_seed(1)
        net = nn.SequentialCell(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten(), nn.Dense(64, 5)
        )
        training = Training(mspc.amp.auto_mixed_precision(net, own).set_train(), [(4, 3, 8, 8)])
        assert training.run([[images]])[0].dtype == np.float32
        means.append(training.states[-1]["1.moving_mean"])
    nodes = training.graphs[0].nodes
    kinds = {node.op.name: getattr(node.inputs[0].type, "dtype", "") for node in nodes if node.inputs}
    assert [str(kinds[name]) for name in ("Conv2D", "BatchNorm", "MaxPool")] == [convolution, normalized, pooled]
    assert np.abs(means[0]).min() > 1e-3
    np.testing.assert_allclose(means[1], means[0], rtol=1e-2)
