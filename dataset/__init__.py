"""Data sets, as `mindspore.dataset`: sources of rows and steps over them, in Python."""

from mspc.dataset import transforms, vision
from mspc.dataset.pipeline import Dataset
from mspc.dataset.sources import GeneratorDataset, MnistDataset, NumpySlicesDataset

__all__ = ["Dataset", "GeneratorDataset", "MnistDataset", "NumpySlicesDataset", "transforms", "vision"]
