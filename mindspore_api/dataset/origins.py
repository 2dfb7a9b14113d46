"""Base classes that tell scripts the kind of a data set's source."""

from __future__ import annotations

from mspc.mindspore_api.dataset.pipeline import Dataset


class VisionBaseDataset(Dataset):
    """Data set of images."""


class TextBaseDataset(Dataset):
    """Data set of texts."""


class UnionBaseDataset(VisionBaseDataset, TextBaseDataset):
    """Data set of any content."""


class SourceDataset(Dataset):
    """Data set that reads its rows itself, as the first step of a pipeline."""


class MappableDataset(SourceDataset):
    """Data set with rows that can be read by number."""
