"""Ways to say how a network is split, as `mindspore.parallel`."""

from mspc.api.parallel.algo_parameters import get_algo_parameters, reset_algo_parameters, set_algo_parameters
from mspc.api.parallel.auto_parallel import AutoParallel
from mspc.api.parallel.layout import Layout
from mspc.api.parallel.shard import shard
from mspc.api.parallel.strategy_files import set_op_strategy_config

__all__ = [
    "AutoParallel", "Layout", "get_algo_parameters", "reset_algo_parameters", "set_algo_parameters",
    "set_op_strategy_config", "shard",
]  # fmt: skip
