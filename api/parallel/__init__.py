"""Ways to say how a network is split, as `mindspore.parallel`."""

from mspc.api.parallel.algo_parameters import get_algo_parameters, reset_algo_parameters, set_algo_parameters
from mspc.api.parallel.auto_parallel import AutoParallel
from mspc.api.parallel.layout import Layout
from mspc.api.parallel.shard import shard

__all__ = [
    "AutoParallel", "Layout", "get_algo_parameters", "reset_algo_parameters", "set_algo_parameters", "shard",
]  # fmt: skip
