"""Layers of a large network: weights are sampled when a rank needs them."""

from typing import Any

import mspc as ms
from mspc import Parameter, nn, ops
from mspc.common.initializer import initializer


class Layers(nn.Cell):
    """Layers up and down whose hidden states are sharded along the sequence, as of large networks."""

    def __init__(self, width: int, hidden: int, tensor: int, layers: int = 2) -> None:
        super().__init__()
        pairs = [((width, hidden), (hidden, width))] * layers
        self.ups = ms.ParameterTuple([self.weight(f"up{i}", up) for i, (up, _) in enumerate(pairs)])
        self.downs = ms.ParameterTuple([self.weight(f"down{i}", down) for i, (_, down) in enumerate(pairs)])
        rows = ((tensor, 1), (tensor, 1))
        self.square, self.add = ops.Mul().shard(rows), ops.Add().shard(rows)
        self.first = ops.MatMul().shard(((1, 1), (1, tensor)))
        self.second = ops.MatMul().shard(((1, tensor), (tensor, 1)))

    @staticmethod
    def weight(name: str, shape: tuple[int, int]) -> Parameter:
        return Parameter(initializer("normal", shape, ms.bfloat16), name=name)

    def construct(self, x: Any) -> Any:
        for up, down in zip(self.ups, self.downs, strict=True):
            x = self.add(x, self.second(ops.silu(self.first(self.square(x, x), up)), down))
        return ops.square(x).mean()
