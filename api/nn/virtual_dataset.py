"""These cells lie between a network and its data set in MindSpore's networks, under its names."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.nn.cell import Cell

__all__: tuple[str, ...] = ()


class VirtualDataset(Cell):
    """Hands tensors on as a tuple, every one sharded as `shard` says; without `shard` they come as they are."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.parts: tuple[Any, ...] = ()

    def shard(self, in_strategy: Any, *args: Any, **kwargs: Any) -> Any:
        """Shard the tensors, one tuple or Layout for each, and return self."""
        self.parts = tuple(ops.ShardingConstraint().shard((strategy,)) for strategy in in_strategy or ())
        return self

    def add_prim_attr(self, name: str, value: Any) -> Any:
        """Accepted: there is no operator that would show it."""
        return self

    def construct(self, *tensors: Any) -> Any:
        if not self.parts:
            return tensors
        return tuple([part(tensor) for part, tensor in zip(self.parts, tensors, strict=True)])


class VirtualDatasetCell(Cell):
    """A network behind a VirtualDataset."""

    def __init__(self, backbone: Any) -> None:
        super().__init__(auto_prefix=False)
        self._backbone = backbone
        self._virtual_dataset = VirtualDataset()

    def construct(self, *inputs: Any) -> Any:
        return self._backbone(*self._virtual_dataset(*inputs))


class VirtualDatasetCellTriple(VirtualDatasetCell):
    """A network of three inputs behind a VirtualDataset."""

    def construct(self, a: Any, b: Any, c: Any) -> Any:
        return self._backbone(*self._virtual_dataset(a, b, c))
