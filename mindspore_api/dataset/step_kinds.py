"""Data sets have kinds by what was called last: `isinstance(data.batch(8), BatchDataset)`."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api.dataset.nodes.base import PipelineNode
from mspc.mindspore_api.dataset.nodes.batching import Batched
from mspc.mindspore_api.dataset.nodes.mapping import Mapped
from mspc.mindspore_api.dataset.nodes.selection import Repeated, Shuffled, Zipped
from mspc.mindspore_api.dataset.pipeline import Dataset


class _NodeKind(type):
    """A class whose instances are the data sets that a node of one kind gives."""

    node: type[PipelineNode]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Dataset) and isinstance(instance._node, cls.node)


class BatchDataset(metaclass=_NodeKind):
    """What `batch` and `padded_batch` give."""

    node = Batched


class MapDataset(metaclass=_NodeKind):
    """What `map` gives."""

    node = Mapped


class RepeatDataset(metaclass=_NodeKind):
    """What `repeat` gives."""

    node = Repeated


class ShuffleDataset(metaclass=_NodeKind):
    """What `shuffle` gives."""

    node = Shuffled


class ZipDataset(metaclass=_NodeKind):
    """What `zip` gives."""

    node = Zipped
