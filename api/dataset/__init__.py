"""Data sets, as `mindspore.dataset`: sources of rows and steps over them, in Python."""

from mspc.api.dataset import config, transforms, vision
from mspc.api.dataset.images import Cifar10Dataset, MnistDataset
from mspc.api.dataset.pipeline import Dataset
from mspc.api.dataset.sources import GeneratorDataset, NumpySlicesDataset

__all__ = [
    "Cifar10Dataset",
    "Dataset",
    "GeneratorDataset",
    "MnistDataset",
    "NumpySlicesDataset",
    "config",
    "transforms",
    "vision",
]
