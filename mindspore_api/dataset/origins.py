"""Scripts ask where the rows of a data set come from by the classes that its class derives from."""

from __future__ import annotations

from mspc.mindspore_api.dataset.pipeline import Dataset


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
