"""Scripts ask where the rows of a data set come from by the classes that its class derives from."""

from __future__ import annotations

from typing import Any

from mspc.data.dataset.nodes.base import PipelineNode
from mspc.data.dataset.nodes.batching import Batched
from mspc.data.dataset.nodes.mapping import Mapped
from mspc.data.dataset.nodes.selection import Repeated, Shuffled, Zipped
from mspc.data.dataset.pipeline import Dataset


class VisionBaseDataset(Dataset):
    """A data set of images."""


class TextBaseDataset(Dataset):
    """A data set of texts."""


class UnionBaseDataset(VisionBaseDataset, TextBaseDataset):
    """A data set of anything."""


class SourceDataset(Dataset):
    """A data set that reads its rows itself, ahead of all steps over them."""


class MappableDataset(SourceDataset):
    """A data set whose rows can be read by their number."""


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
