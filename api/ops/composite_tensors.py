"""These classes of MindSpore's operators on tensors are a few operators here, sharded as the class is."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ops.operator_arguments import describe


class _Sharded:
    """Holds a strategy until it is called."""

    def __init__(self) -> None:
        self.in_strategy: Any = None

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Any:
        """Say how the tensors are sharded, and return the operator; out_strategy follows from that."""
        self.in_strategy = in_strategy
        return self


class Index(_Sharded):
    """The elements of x at places: `x[indices]` for a tuple of integer tensors, one for each of the first dimensions.
    Called as `Index()(x, indices)`. A strategy has an entry for x, and a tuple of them for the indices.

    Raises:
        TypeError: indices are no tuple. ValueError: they are sharded, and have different shapes.
    """

    def __call__(self, x: Any, indices: Any) -> Any:
        if not isinstance(indices, tuple | list):
            raise ApiTypeError(f"Index: indices must be a tuple of tensors, not {describe(indices)}")
        if self.in_strategy is None:
            return x[tuple(indices)]
        shapes = [index.shape for index in indices]
        if any(shape != shapes[0] for shape in shapes):
            raise ApiValueError(f"Index: with a strategy all indices have one shape, not {shapes}")
        inside = [ops.select(i < 0, i + size, i) for i, size in zip(indices, x.shape, strict=False)]
        entry = self.in_strategy[1][0] if len(self.in_strategy) > 1 else (1,) * len(shapes[0])
        gather = ops.GatherNd().shard((self.in_strategy[0], (*entry, 1))).add_prim_attr("self_define_shard", True)
        return gather(x, ops.stack(inside, -1))


class GroupNorm(_Sharded):
    """(every image's channels in groups, each normalised to mean 0 and variance 1, times weight, plus bias; the means
    and 1 / sqrt(variance + eps) of the groups [images, groups]). Called as
    `GroupNorm()(x, num_groups, weight, bias, eps)`. The first entry of a strategy shards the images of x.

    Raises:
        ValueError: the channels are no multiple of num_groups.
    """

    def __call__(self, x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        if self.in_strategy is not None:
            x = ops.ShardingConstraint().shard(self.in_strategy[:1])(x)
        images, channels = x.shape[:2]
        if channels % num_groups:
            raise ApiValueError(f"GroupNorm: {channels} channels are no multiple of num_groups {num_groups}")
        each = channels // num_groups * math.prod(x.shape[2:])
        rows = ops.reshape(x, (images, num_groups, each))
        mean = ops.mean(rows, -1, True)
        scale = ops.rsqrt(ops.mean(ops.square(rows - mean), -1, True) + eps)
        out = ops.reshape((rows - mean) * scale, x.shape)
        channel = (channels,) + (1,) * (len(x.shape) - 2)
        if weight is not None:
            out = out * ops.reshape(weight, channel)
        if bias is not None:
            out = out + ops.reshape(bias, channel)
        return out, ops.reshape(mean, (images, num_groups)), ops.reshape(scale, (images, num_groups))
