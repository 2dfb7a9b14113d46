"""`reshard`: the same tensor in another layout."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import checked_layout


def reshard(tensor: Any, layout: Any) -> Any:
    """Return `tensor`, sharded by `layout` (a Layout called with axis names) from here on. Raise TypeError if it is no
    layout of a tensor."""
    return ops.ShardingConstraint().shard((checked_layout(layout),))(tensor)
