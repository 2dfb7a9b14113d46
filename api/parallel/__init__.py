"""`mindspore.parallel`: the ways in which a script says how its network is sharded."""

from __future__ import annotations

import importlib
from typing import Any

from mspc.api.parallel.algo_parameters import get_algo_parameters, reset_algo_parameters, set_algo_parameters
from mspc.api.parallel.auto_parallel import AutoParallel
from mspc.api.parallel.layout import Layout
from mspc.api.parallel.operator_strategies import set_op_strategy_config
from mspc.api.parallel.shard import shard

_CHECKPOINTS = [
    "build_searched_strategy", "load_distributed_checkpoint", "merge_sliced_parameter", "rank_list_for_convert",
    "rank_list_for_transform", "restore_group_info_list", "transform_checkpoint_by_rank", "transform_checkpoints",
]  # fmt: skip
__all__ = [
    "AutoParallel", "Layout", "get_algo_parameters", "reset_algo_parameters", "set_algo_parameters",
    "set_op_strategy_config", "shard", *_CHECKPOINTS,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What few scripts need is imported when one does."""
    if name not in _CHECKPOINTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("mspc.api.parallel.checkpoint_transform"), name)
