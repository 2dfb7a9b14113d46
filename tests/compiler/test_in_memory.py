"""Compiling a cell without running it, as programs of MindSpore ask for it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Symbol, Tensor, nn, ops
from mspc import dataset as ds
from mspc.common.api import CellGraphExecutor, _cell_graph_executor
from mspc.compiler.config import Config, feed
from mspc.compiler.pipeline import RankDumps
from mspc.mindspore_api import context
from mspc.mindspore_api.context import FrozenContext
from mspc.sharding.groups import group_name
from tests.errors import error_of
from tests.graphs import FLOAT32, Layout, MspcError, TensorType

SHARDED: dict[str, Any] = {"parallel_mode": "semi_auto_parallel", "device_num": 8, "dataset_strategy": "full_batch"}


class Network(nn.Cell):
    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(shape=(16, 8), dtype=ms.float32, init="ones"), "w")
        self.product = ops.MatMul().shard(strategy)
        self.active = ops.ReLU()

    def construct(self, x: Any) -> Any:
        return self.active(self.product(x, self.weight))


def compiled(strategy: Any, **settings: Any) -> tuple[Network, str]:
    context.set_auto_parallel_context(**(SHARDED | settings))
    network = Network(strategy)
    phase, fresh = _cell_graph_executor.compile(network, Tensor(shape=(4, 16), dtype=ms.float32, init="ones"))
    assert fresh
    return network, phase


def test_what_is_known_of_a_network_that_was_compiled() -> None:
    network, phase = compiled(((2, 2), (2, 2)))
    strategies = _cell_graph_executor._get_shard_strategy(network)
    assert strategies["Default/MatMul-op0"] == [[2, 2], [2, 2]]
    assert strategies == _cell_graph_executor._graph_executor.get_strategy(phase)
    assert _cell_graph_executor._get_num_parallel_ops(network) == len(strategies) == 2
    assert network.parameter_layout_dict["w"] == ([2, 2, 2], [1, 0], [8, 4], 0, True, "")
    operators = _cell_graph_executor._graph_executor.get_parallel_graph_info(phase)["@graph_0"]
    assert operators["MatMul-0"]["inputs"][1] == "w"
    assert any(name.startswith(("AllReduce", "ReduceScatter")) for name in operators)
    (result,) = operators["Return-0"]["inputs"]
    assert result in operators


@pytest.mark.parametrize(("size", "group_of"), [(-1, (0, 2, 4, 6)), (2, (0, 2)), (None, ())])
def test_a_parameter_that_replicas_share_names_the_group_that_gathers_it(
    size: int | None, group_of: tuple[int, ...]
) -> None:
    config = {"parallel_optimizer_threshold": 0} | ({"optimizer_weight_shard_size": size} if size else {})
    context.set_auto_parallel_context(
        **SHARDED, enable_parallel_optimizer=size is not None, parallel_optimizer_config=config
    )
    network = Network(((4, 1), (1, 2)))
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
    _cell_graph_executor.compile(step, Tensor(shape=(4, 16), dtype=ms.float32, init="ones"))
    mesh, cuts, shape, _, _, group = step.parameter_layout_dict["w"]
    assert (mesh, cuts, shape) == ([4, 2], [-1, 0], [16, 4])
    assert group == (group_name(group_of) if group_of else "")


def test_strategies_are_written_where_the_script_wants_them(tmp_path: Path) -> None:
    file = tmp_path / "strategies.ckpt"
    assert Network(None).parameter_layout_dict == {}
    compiled(((2, 2), (2, 2)), strategy_ckpt_save_file=str(file))
    assert list(ms.build_searched_strategy(str(file))) == ["w"]
    assert [path.name for path in tmp_path.iterdir()] == ["strategies.ckpt"]


def test_nothing_is_run_and_nothing_is_said_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    network, _ = compiled(((8, 1), (1, 1)), dataset_strategy="data_parallel")
    assert network.parameter_layout_dict["w"][2] == [16, 8]
    assert capsys.readouterr() == ("", "")


def test_a_network_is_refused_as_it_would_be_where_it_runs() -> None:
    with pytest.raises(MspcError, match="MatMul 'product'") as refused:
        compiled(((2, 3), (2, 2)))
    assert isinstance(refused.value, RuntimeError)


def test_what_asks_for_gradients_is_compiled_as_a_cell_is() -> None:
    context.set_auto_parallel_context(**SHARDED)
    network = Network(((2, 2), (2, 2)))
    asked = ms.grad(lambda x: network(x).sum(), None, network.trainable_params())
    _, fresh = _cell_graph_executor.compile(asked, Tensor(shape=(4, 16), dtype=ms.float32, init="ones"))
    assert fresh
    assert [[2, 2], [2, 2]] in _cell_graph_executor._get_shard_strategy(asked).values()


def test_phases_stay_apart_and_unknown_ones_are_refused() -> None:
    strategies = ((2, 2), (2, 2)), ((1, 2), (2, 4)), ((2, 2), (2, 2))
    first, second, again = (compiled(strategy)[1] for strategy in strategies)
    assert first == again != second
    assert all(phase.startswith("predict.") for phase in (first, second))
    assert _cell_graph_executor.get_strategy(first) != _cell_graph_executor.get_strategy(second)
    with pytest.raises(KeyError, match=r"'predict.0' is no phase of a compile") as refused:
        _cell_graph_executor.get_strategy("predict.0")
    assert str(refused.value).endswith("note: give the first result of compile()")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3,), {}, "compile takes a Cell or a function, not int"),
        ((abs,), {"phase": 3}, "phase must be a string, not 3"),
        ((abs,), {"converts": True}, "compile has no argument 'converts'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        CellGraphExecutor().compile(*arguments, **options)


def test_the_layouts_that_a_model_predicts_with() -> None:
    context.set_auto_parallel_context(**SHARDED)
    data = Tensor(shape=(4, 16), dtype=ms.float32, init="ones")
    model = ms.Model(Network(((2, 2), (2, 2))))
    assert model.infer_predict_layout(data) == {"w": ([2, 2, 2], [1, 0], [8, 4], 0, True, "")}
    with pytest.raises(TypeError, match=r"Model.infer_predict_layout takes Tensors, not int"):
        model.infer_predict_layout(3)
    with pytest.raises(TypeError, match=r"infer_predict_layout: skip_backend_compile must be True or False, not 1"):
        model.infer_predict_layout(data, skip_backend_compile=1)  # type: ignore[arg-type]  # that is the test
    context.set_context(mode=context.PYNATIVE_MODE)
    with pytest.raises(RuntimeError, match=r"Model.infer_predict_layout needs graph mode"):
        model.infer_predict_layout(data)


def test_the_layouts_that_a_model_trains_with() -> None:
    network = Network(((2, 2), (2, 2)))
    data = ds.NumpySlicesDataset((np.ones((8, 16), np.float32), np.ones((8, 8), np.float32)), ["x", "y"]).batch(4)
    model = ms.Model(network, nn.MSELoss(), nn.Momentum(network.trainable_params(), 0.1, 0.9))
    with pytest.raises(RuntimeError, match=r"Model.infer_train_layout needs semi_auto_parallel or auto_parallel mode"):
        model.infer_train_layout(data)
    context.set_auto_parallel_context(**SHARDED)
    found = model.infer_train_layout(data)
    sharded = ([2, 2, 2], [1, 0], [8, 4], 0, True, "")
    assert (found["w"], found["moments.w"]) == (sharded, sharded)
    model.build(data, epoch=2)
    part = np.ones((8, 4), np.float16)
    ms.load_param_into_net(network, {"w": part})
    with pytest.raises(MspcError, match="parameter 'w': only this rank's own slice was loaded"):
        network.weight.asnumpy()
    with pytest.raises(ValueError, match=r"parameter 'w' has shape \(16, 8\), the checkpoint \(4, 8\)"):
        ms.load_param_into_net(network, {"w": part.reshape(4, 8)})
    for arguments, kind, message in (
        ((data, False), ValueError, r"Model.infer_train_layout: dataset_sink_mode must be True"),
        ((data, 1), TypeError, r"Model.infer_train_layout: dataset_sink_mode must be True or False, not 1"),
        ((data, True, 0), ValueError, r"Model.infer_train_layout: sink_size 0 must be -1 or a positive integer"),
        ((data.batch(9, drop_remainder=True),), ValueError, r"Model.infer_train_layout: the data set has no batch"),
        ((data.project(["x"]),), ValueError, r"a row of the data set has 1 columns"),
    ):
        with pytest.raises(kind, match=message):
            model.infer_train_layout(*arguments)


@pytest.mark.parametrize(("marked", "cuts"), [(False, [[1, 8]]), (True, [[8, 1]])])
def test_a_cell_that_is_to_be_data_parallel_is_sharded_along_the_batch(marked: bool, cuts: list[list[int]]) -> None:
    class Inside(nn.Cell):
        def construct(self, x: Any) -> Any:
            return ops.exp(x)

    class Outside(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.inside = Inside()
            self.sin, self.cos = ops.Sin().shard(((1, 8),)), ops.Cos()

        def construct(self, x: Any) -> Any:
            return self.inside(self.sin(x)), self.cos(self.sin(x))

    context.set_auto_parallel_context(parallel_mode="auto_parallel", device_num=8, dataset_strategy="full_batch")
    network = Outside()
    if marked:
        network.inside.set_data_parallel()
    _cell_graph_executor.compile(network, Tensor(shape=(8, 8), dtype=ms.float32, init="ones"))
    found = _cell_graph_executor._get_shard_strategy(network)
    assert found["Default/inside-Inside/Exp-op0"] == cuts
    assert found["Default/Cos-op0"] == [[1, 8]]


def test_set_data_parallel_is_for_graph_mode() -> None:
    context.set_context(mode=context.PYNATIVE_MODE)
    with pytest.raises(ValueError, match="set_data_parallel needs graph mode"):
        nn.Cell().set_data_parallel()


@pytest.mark.parametrize("paddings", [(2, 2), Tensor([2, 2])])
def test_paddings_have_an_entry_in_a_strategy(paddings: Any) -> None:
    class Padded(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.pad = ops.PadV3().shard(((4, 1), (1,), ()))
            self.value = Tensor(0.5)

        def construct(self, x: Any) -> Any:
            return self.pad(x, paddings, self.value)

    context.set_auto_parallel_context(**(SHARDED | {"device_num": 4}))
    network = Padded()
    _cell_graph_executor.compile(network, Tensor(shape=(4, 16), dtype=ms.float32, init="ones"))
    assert _cell_graph_executor._get_shard_strategy(network)["Default/PadV3-op0"][0] == [4, 1]


@pytest.mark.parametrize(("cuts", "found"), [((2, 4), [2, 4]), ((8,), [1, 1]), ((2, 2, 2), [1, 1])])
def test_a_strategy_that_fits_no_cast_changes_nothing(cuts: tuple[int, ...], found: list[int]) -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.cast = ops.Cast().shard((cuts,))

        def construct(self, x: Any) -> Any:
            return self.cast(x, ms.float16)

    context.set_auto_parallel_context(**SHARDED)
    net = Net()
    _cell_graph_executor.compile(net, Tensor(shape=(8, 16), dtype=ms.float32, init="ones"))
    assert _cell_graph_executor._get_shard_strategy(net)["Default/Cast-op0"] == [found]


def unknown(*shape: Any) -> Tensor:
    return Tensor(shape=shape, dtype=ms.float32)


DECLARED = [
    (unknown(Symbol(divisor=4), 16), (4, 16)),
    (unknown(Symbol(divisor=4, remainder=2, min=9), 16), (10, 16)),
    (unknown(Symbol(divisor=2, max=7, min=5), 16), (6, 16)),
    (unknown(Symbol(), 16), (2, 16)),  # 1 row is not divided by 2
    (unknown(None, 16), (8, 16)),
    (unknown(-1, None), (16, 16)),
]


@pytest.mark.parametrize(("declared", "shape"), DECLARED)
def test_sizes_that_are_unknown_are_some_for_which_the_network_compiles(
    declared: Tensor, shape: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    context.set_auto_parallel_context(**SHARDED)
    network = Network(((2, 2), (2, 2)))
    network.set_inputs(declared)
    _cell_graph_executor.compile(network, declared)
    assert f"unknown sizes are taken as {shape}: the graph is of these" in capsys.readouterr().err
    assert network.parameter_layout_dict["w"] == ([2, 2, 2], [1, 0], [8, 4], 0, True, "")


def test_a_last_size_may_be_that_of_a_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    nn.Dense(23, 7).compile(unknown(None, None))
    assert "taken as (1, 23)" in capsys.readouterr().err


def test_symbols_take_steps_of_one_number_together(capsys: pytest.CaptureFixture[str]) -> None:
    class Shifted(nn.Cell):
        def construct(self, tokens: Any, more: Any) -> Any:
            return tokens[:, :-1] + more[0] + more[1]

    rows = Symbol(divisor=8, unique=True)
    longer, length = Symbol(divisor=16, remainder=1), Symbol(divisor=16)
    Shifted().compile(unknown(rows, longer), (unknown(rows, length), unknown(length)))
    assert "taken as (8, 17), [(8, 16), (16,)]" in capsys.readouterr().err


def test_declared_sizes_for_which_nothing_compiles_say_what_was_tried() -> None:
    context.set_auto_parallel_context(**SHARDED)
    with pytest.raises(ValueError, match="dimension 1 of input 0 says 3") as refused:
        _cell_graph_executor.compile(Network(((2, 2), (2, 2))), unknown(Symbol(divisor=2), 3))
    assert refused.value.notes[-1] == "unknown sizes were taken as (2, 3), and as others"


X = TensorType(FLOAT32, (4, 6))


@pytest.mark.parametrize(
    ("fusion", "nbytes"),
    [
        ((), 64 << 20),
        ((("openstate", False),), 0),
        ((("openstate", True), ("allreduce", (("mode", "auto"), ("config", None)))), 64 << 20),
        ((("openstate", True), ("allreduce", (("mode", "size"), ("config", 32)))), 32 << 20),
    ],
)
def test_bucket_of_gradients(fusion: tuple, nbytes: int) -> None:
    assert Config.from_context(FrozenContext(comm_fusion=fusion), 8).gradient_bucket == nbytes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"parallel_mode": "data_parallel", "dataset_strategy": "full_batch"},
            "data_parallel mode takes no full_batch: every rank trains on its own rows",
        ),
        (
            {"enable_parallel_optimizer": True, "optimizer_shard_size": 16},
            "optimizer_weight_shard_size is 16, but there are 8 ranks",
        ),
    ],
)
def test_settings_that_exclude_each_other(settings: dict, message: str) -> None:
    error = error_of(Config.from_context, FrozenContext(**settings), 8)
    assert (error.kind, error.message) == (RuntimeError, message)


@pytest.mark.parametrize(
    ("mode", "strategy", "graph", "total", "layout"),
    [
        ("semi_auto_parallel", "data_parallel", (32, 6), (32, 6), "(8) [0, -]"),
        ("semi_auto_parallel", "full_batch", (4, 6), (4, 6), "(8) [-, -]"),
        ("auto_parallel", ((2, 2),), (8, 12), (8, 12), "(2, 2, 2) [0, 1]"),
        ("data_parallel", "data_parallel", (4, 6), (32, 6), "(8) [0, -]"),
        ("stand_alone", "data_parallel", (4, 6), (4, 6), "(8) [-, -]"),
    ],
)
def test_how_an_argument_arrives(mode: str, strategy: object, graph: tuple, total: tuple, layout: str) -> None:
    (fed,) = feed(Config(ranks=8, mode=mode, dataset_strategy=strategy), [X])
    assert (fed.graph_type.shape, fed.global_type.shape, str(fed.layout)) == (graph, total, layout)
    assert isinstance(fed.layout, Layout)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (((2, 1), (1, 1)), "dataset_strategy has 2 entries, but the network is called with 1 tensors"),
        (((3, 1),), "dataset_strategy of input 0 is (3, 1), whose product does not divide 8 ranks"),
        (((2,),), "dataset_strategy of input 0 has 1 entries for 2 dimensions"),
    ],
)
def test_a_dataset_strategy_that_does_not_fit(strategy: tuple, message: str) -> None:
    error = error_of(feed, Config(ranks=8, mode="semi_auto_parallel", dataset_strategy=strategy), [X])
    assert (error.kind, error.message) == (RuntimeError, message)


NAMES = ("slice_to_rank", "fuse_large_rows", "fuse_elementwise", "execute")


@pytest.mark.parametrize("changed", [False, True])
def test_a_pass_that_may_do_nothing_shares_a_number(changed: bool) -> None:
    dumps = RankDumps(NAMES, 9, "fuse_gradients")
    optional = ("09_fuse_large_rows", "slice_to_rank") if changed else None
    ahead = "fuse_large_rows" if changed else "slice_to_rank"
    assert [dumps.file_and_before(name, changed) for name in NAMES] == [
        ("step_parallel_end", "fuse_gradients"), optional, ("10_fuse_elementwise", ahead),
        ("11_execute", "fuse_elementwise"),
    ]  # fmt: skip
