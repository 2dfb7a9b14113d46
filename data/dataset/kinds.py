"""Kinds of data sets, by what was asked for last: `isinstance(data.batch(8), BatchDataset)`."""

from __future__ import annotations

from typing import Any

from mspc.data.dataset.pipeline import Dataset
from mspc.data.dataset.stages.base import Stage
from mspc.data.dataset.stages.batching import Batched
from mspc.data.dataset.stages.choosing import Repeated, Shuffled, Zipped
from mspc.data.dataset.stages.mapping import Mapped


class _Kind(type):
    """A class whose instances are the data sets that a stage of one kind gives."""

    stage: type[Stage]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Dataset) and isinstance(instance._stage, cls.stage)


class BatchDataset(metaclass=_Kind):
    """What `batch` and `padded_batch` give."""

    stage = Batched


class MapDataset(metaclass=_Kind):
    """What `map` gives."""

    stage = Mapped


class RepeatDataset(metaclass=_Kind):
    """What `repeat` gives."""

    stage = Repeated


class ShuffleDataset(metaclass=_Kind):
    """What `shuffle` gives."""

    stage = Shuffled


class ZipDataset(metaclass=_Kind):
    """What `zip` gives."""

    stage = Zipped
