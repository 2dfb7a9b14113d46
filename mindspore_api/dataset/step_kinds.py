"""Classes for the last step of a data set: `isinstance(data.batch(8), BatchDataset)`."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api.dataset.nodes.batching import Batched
from mspc.mindspore_api.dataset.nodes.mapping import Mapped
from mspc.mindspore_api.dataset.nodes.pipeline_node import PipelineNode
from mspc.mindspore_api.dataset.nodes.selection import Repeated, Shuffled, Zipped
from mspc.mindspore_api.dataset.pipeline import Dataset


class _NodeKind(type):
    """Metaclass: instances are the data sets with a last node of one class."""

    node: type[PipelineNode]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Dataset) and isinstance(instance._node, cls.node)


class BatchDataset(metaclass=_NodeKind):
    """Result of `batch`."""

    node = Batched


class MapDataset(metaclass=_NodeKind):
    """Result of `map`."""

    node = Mapped


class RepeatDataset(metaclass=_NodeKind):
    """Result of `repeat`."""

    node = Repeated


class ShuffleDataset(metaclass=_NodeKind):
    """Result of `shuffle`."""

    node = Shuffled


class ZipDataset(metaclass=_NodeKind):
    """Result of `zip`."""

    node = Zipped
