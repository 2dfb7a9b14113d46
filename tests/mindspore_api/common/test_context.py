"""Options of scripts and what is frozen for the compiler."""

from __future__ import annotations

import pytest

import mspc as ms
from mspc.ir.layout import NamedLayout
from mspc.mindspore_api.context import freeze
from mspc.mindspore_api.state import Session


def test_values_reach_the_compiler():
    ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU", save_graphs=True, save_graphs_path="g")
    ms.set_auto_parallel_context(
        parallel_mode=ms.ParallelMode.AUTO_PARALLEL, search_mode="sharding_propagation", device_num=8,
        gradients_mean=True, enable_parallel_optimizer=True,
        parallel_optimizer_config={"parallel_optimizer_threshold": 0, "optimizer_weight_shard_size": 2},
        comm_fusion={"allreduce": {"mode": "size", "config": 32}}, all_reduce_fusion_config=[2, 4],
    )  # fmt: skip
    frozen = freeze()
    assert (frozen.parallel_mode, frozen.search_mode, frozen.device_num) == ("auto_parallel", "sharding_propagation", 8)
    assert (frozen.save_graphs, frozen.save_graphs_path, frozen.device_target) == (2, "g", "GPU")
    assert (frozen.optimizer_threshold, frozen.optimizer_shard_size) == (0, 2)
    assert frozen.comm_fusion == (("allreduce", (("mode", "size"), ("config", 32))),)
    assert frozen.all_reduce_fusion_config == (2, 4)
    assert frozen.gradients_mean
    hash(frozen)


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


def test_the_launcher_decides_ranks(session: Session):
    ms.set_auto_parallel_context(device_num=4, global_rank=3)
    assert (ms.get_auto_parallel_context("device_num"), ms.get_auto_parallel_context("global_rank")) == (4, 0)
    session.launched, session.size, session.rank = True, 8, 5
    assert (ms.get_auto_parallel_context("device_num"), ms.get_auto_parallel_context("global_rank")) == (8, 5)
    assert freeze().device_num == 4


def test_what_waits_outside_of_device_memory_is_read_back_and_changes_nothing(capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        ms.set_offload_context({"offload_param": "CPU", "aio_block_size": "0.5GB", "enable_aio": True})
    warnings = capsys.readouterr().err
    assert warnings.count("offload() of cells and optimizers moves values to the host") == 2  # once for every entry
    found = ms.get_offload_context()
    assert (found["offload_param"], found["aio_block_size"], found["hbm_ratio"]) == ("cpu", 1 << 29, 1.0)
