"""Options of scripts and what is frozen for the compiler."""

from __future__ import annotations

import pytest

import mspc as ms
from mspc.ir.layout import NamedLayout
from mspc.mindspore_api.context import FrozenContext, freeze
from mspc.mindspore_api.state import Session


def test_defaults_are_stand_alone():
    assert freeze() == FrozenContext()
    assert ms.get_auto_parallel_context("parallel_mode") == "stand_alone"
    assert ms.get_context("mode") == ms.GRAPH_MODE


def test_values_reach_the_compiler():
    ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU", save_graphs=True, save_graphs_path="g")
    ms.set_auto_parallel_context(
        parallel_mode=ms.ParallelMode.AUTO_PARALLEL,
        search_mode="sharding_propagation",
        device_num=8,
        gradients_mean=True,
        enable_parallel_optimizer=True,
        parallel_optimizer_config={"parallel_optimizer_threshold": 0, "optimizer_weight_shard_size": 2},
        comm_fusion={"allreduce": {"mode": "size", "config": 32}},
        all_reduce_fusion_config=[2, 4],
    )
    frozen = freeze()
    assert (frozen.parallel_mode, frozen.search_mode, frozen.device_num) == (
        "auto_parallel",
        "sharding_propagation",
        8,
    )
    assert (frozen.save_graphs, frozen.save_graphs_path, frozen.device_target) == (2, "g", "GPU")
    assert (frozen.optimizer_threshold, frozen.optimizer_shard_size) == (0, 2)
    assert frozen.comm_fusion == (("allreduce", (("mode", "size"), ("config", 32))),)
    assert frozen.all_reduce_fusion_config == (2, 4)
    assert frozen.gradients_mean
    hash(frozen)


def test_reset_restores_defaults():
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
    ms.reset_auto_parallel_context()
    assert freeze() == FrozenContext()


def test_full_batch_and_dataset_strategy_agree():
    ms.set_auto_parallel_context(full_batch=True)
    assert freeze().dataset_strategy == "full_batch"
    assert freeze().full_batch
    ms.set_auto_parallel_context(dataset_strategy="data_parallel")
    assert not ms.get_auto_parallel_context("full_batch")
    ms.set_auto_parallel_context(dataset_strategy=((8, 1), (1,)))
    assert freeze().dataset_strategy == ((8, 1), (1,))
    layout = ms.Layout((2, 4), ("a", "b"))("a", "None")
    ms.set_auto_parallel_context(dataset_strategy=(layout, layout))
    assert freeze().dataset_strategy == (NamedLayout((2, 4), ("a", "b"), (1, -1)),) * 2


def test_what_is_not_said_of_comm_fusion_is_read_as_its_default():
    auto = {"mode": "auto", "config": None}
    whole = {"openstate": True, "allreduce": auto, "allgather": auto, "reducescatter": auto}
    assert ms.get_auto_parallel_context("comm_fusion") == whole
    sized = {"mode": "size", "config": 3}
    ms.set_auto_parallel_context(comm_fusion={"allreduce": sized})
    assert ms.get_auto_parallel_context("comm_fusion") == whole | {"allreduce": sized}


def test_older_names_of_the_search_mode():
    ms.set_auto_parallel_context(auto_parallel_search_mode="dynamic_programming")
    assert freeze().search_mode == "dynamic_programming"
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(sharding_propagation=True)
    assert freeze().search_mode == "sharding_propagation"


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([1], TypeError, r"comm_fusion must be a dict, not \[1\]"),
        ({"all": 1}, KeyError, "comm_fusion has no entry 'all'; it takes openstate, allreduce, allgather, reduces"),
        ({"openstate": "True"}, TypeError, r"comm_fusion\['openstate'\] must be True or False, not 'True'"),
        ({"allgather": [1]}, TypeError, r"comm_fusion\['allgather'\] must be a dict, not \[1\]"),
        (
            {"allreduce": {"mode": "size"}},
            KeyError,
            r"comm_fusion\['allreduce'\] must have the keys 'mode' and 'config', not \['mode'\]",
        ),
        (
            {"allgather": {"mode": "index", "config": [1]}},
            KeyError,
            r"comm_fusion\['allgather'\]: mode 'index' is not one of 'auto', 'size'",
        ),
        (
            {"allreduce": {"mode": "size", "config": "3"}},
            TypeError,
            r"comm_fusion\['allreduce'\]\['config'\] must be an integer, not '3'",
        ),
        (
            {"allreduce": {"mode": "index", "config": 3}},
            TypeError,
            r"comm_fusion\['allreduce'\]\['config'\] must be a list of integers, not 3",
        ),
        (
            {"reducescatter": {"mode": "auto", "config": 3}},
            TypeError,
            r"comm_fusion\['reducescatter'\]: config is 3; mode 'auto' takes None",
        ),
    ],
)
def test_wrong_fusions(value, error, message):
    with pytest.raises(error, match=message):
        ms.set_auto_parallel_context(comm_fusion=value)
    ms.set_auto_parallel_context(
        comm_fusion={"openstate": True, "allreduce": {"mode": "index", "config": [1, 2]},
                     "allgather": {"mode": "auto", "config": None}}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("function", "values", "error", "message"),
    [
        (
            ms.set_auto_parallel_context,
            {"paralel_mode": "x"},
            ValueError,
            "set_auto_parallel_context has no key 'paralel_mode'",
        ),
        (
            ms.set_auto_parallel_context,
            {"parallel_mode": "semi"},
            ValueError,
            "parallel_mode='semi' is not one of 'stand_alone', 'data_parallel', 'hybrid_parallel', "
            "'semi_auto_parallel', 'auto_parallel'",
        ),
        (ms.set_auto_parallel_context, {"device_num": 0}, ValueError, "device_num=0 must be from 1 to 65536"),
        (
            ms.set_auto_parallel_context,
            {"device_num": "8"},
            TypeError,
            "device_num must be an integer, not '8'",
        ),
        (
            ms.set_auto_parallel_context,
            {"gradients_mean": 1},
            TypeError,
            "gradients_mean must be True or False, not 1",
        ),
        (
            ms.set_auto_parallel_context,
            {"dataset_strategy": "half"},
            ValueError,
            "dataset_strategy='half' is not one of 'data_parallel', 'full_batch'",
        ),
        (
            ms.set_auto_parallel_context,
            {"dataset_strategy": ((8, 0),)},
            TypeError,
            "dataset_strategy: (8, 0) is neither a tuple of positive integers nor a Layout",
        ),
        (
            ms.set_auto_parallel_context,
            {"parallel_optimizer_config": {"threshold": 1}},
            ValueError,
            "parallel_optimizer_config has no entry 'threshold'; it takes gradient_accumulation_shard, "
            "parallel_optimizer_threshold, optimizer_weight_shard_size, optimizer_level",
        ),
        (ms.set_context, {"save_graphs": 4}, ValueError, "save_graphs=4 must be from 0 to 3"),
        (ms.set_context, {"mode": 2}, ValueError, "mode=2 is not one of 0, 1"),
        (ms.set_context, {"device": "GPU"}, ValueError, "set_context has no key 'device'"),
        (
            ms.set_context,
            {"device_target": "TPU"},
            ValueError,
            "device_target='TPU' is not one of 'CPU', 'GPU', 'Ascend'",
        ),
    ],
)
def test_wrong_options_are_named_with_the_users_line(function, values, error, message):
    with pytest.raises(error) as caught:
        function(**values)
    assert caught.value.message == message
    assert caught.value.exit_status == 2
    assert caught.value.location.text.strip() == "function(**values)"


def test_a_wrong_key_names_the_nearest():
    with pytest.raises(ValueError, match="no key") as caught:
        ms.set_auto_parallel_context(paralel_mode="x")
    assert caught.value.notes == ("did you mean 'parallel_mode'?",)


def test_nothing_is_set_when_one_value_is_wrong():
    with pytest.raises(ValueError, match="device_num"):
        ms.set_auto_parallel_context(parallel_mode="data_parallel", device_num=-1)
    assert freeze().parallel_mode == "stand_alone"


def test_the_launcher_decides_ranks(session: Session):
    ms.set_auto_parallel_context(device_num=4, global_rank=3)
    assert (ms.get_auto_parallel_context("device_num"), ms.get_auto_parallel_context("global_rank")) == (4, 0)
    session.launched, session.size, session.rank = True, 8, 5
    assert (ms.get_auto_parallel_context("device_num"), ms.get_auto_parallel_context("global_rank")) == (8, 5)
    assert freeze().device_num == 4


def test_tf32_and_determinism_are_frozen():
    assert (freeze().matmul_allow_tf32, freeze().conv_allow_tf32, freeze().deterministic) == (False, True, False)
    ms.set_context(gpu_config={"matmul_allow_tf32": True, "conv_allow_tf32": False}, deterministic="ON")
    assert (freeze().matmul_allow_tf32, freeze().conv_allow_tf32, freeze().deterministic) == (True, False, True)


def test_what_waits_outside_of_device_memory_is_read_back_and_changes_nothing(capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        ms.set_offload_context({"offload_param": "CPU", "aio_block_size": "0.5GB", "enable_aio": True})
    warnings = capsys.readouterr().err
    assert warnings.count("offload() of cells and optimizers moves values to the host") == 2  # once for every entry
    found = ms.get_offload_context()
    assert (found["offload_param"], found["aio_block_size"], found["hbm_ratio"]) == ("cpu", 1 << 29, 1.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"offload_param": "gpu"}, "offload_param='gpu' is not one of 'cpu', 'disk'"),
        ({"offload_disk_size": "1"}, "offload_disk_size '1' is not written like '28GB'"),
        ({"hbm_ratio": 1.5}, "hbm_ratio=1.5 must be above 0 and at most 1"),
        ({"ratio": 1.0}, "set_offload_context has no key 'ratio'"),
    ],
)
def test_mistakes_in_what_waits_outside_of_device_memory(config: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        ms.set_offload_context(config)
