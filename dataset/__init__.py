"""Data sets, as `mindspore.dataset`: sources of rows and steps over them, in Python."""

from mspc.dataset import config, transforms, vision
from mspc.dataset.images import Cifar10Dataset, MnistDataset
from mspc.dataset.pipeline import Dataset
from mspc.dataset.sources import GeneratorDataset, NumpySlicesDataset

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
