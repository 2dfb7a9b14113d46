"""Ways to say how a network is split, as `mindspore.parallel`."""

from mspc.api.parallel.algo_parameters import get_algo_parameters, reset_algo_parameters, set_algo_parameters
from mspc.api.parallel.auto_parallel import AutoParallel
from mspc.api.parallel.checkpoint_transform import (
    build_searched_strategy,
    load_distributed_checkpoint,
    merge_sliced_parameter,
    rank_list_for_transform,
    restore_group_info_list,
    transform_checkpoint_by_rank,
    transform_checkpoints,
)
from mspc.api.parallel.layout import Layout
from mspc.api.parallel.shard import shard
from mspc.api.parallel.strategy_files import set_op_strategy_config

__all__ = [
    "AutoParallel", "Layout", "build_searched_strategy", "get_algo_parameters", "load_distributed_checkpoint",
    "merge_sliced_parameter", "rank_list_for_transform", "reset_algo_parameters", "restore_group_info_list",
    "set_algo_parameters", "set_op_strategy_config", "shard", "transform_checkpoint_by_rank", "transform_checkpoints",
]  # fmt: skip
