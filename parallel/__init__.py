"""Ways to say how a network is split, as `mindspore.parallel`."""

from mspc.parallel.algo_parameters import get_algo_parameters, reset_algo_parameters, set_algo_parameters
from mspc.parallel.auto_parallel import AutoParallel
from mspc.parallel.layout import Layout
from mspc.parallel.shard import shard

__all__ = [
    "AutoParallel", "Layout", "get_algo_parameters", "reset_algo_parameters", "set_algo_parameters", "shard",
]  # fmt: skip
