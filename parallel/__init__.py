"""Ways to say how a network is split, as `mindspore.parallel`."""

from mspc.parallel.auto_parallel import AutoParallel
from mspc.parallel.layout import Layout
from mspc.parallel.shard import shard

__all__ = ["AutoParallel", "Layout", "shard"]
