"""Data sets, as `mindspore.dataset`: sources of rows and steps over them, in Python."""

from mspc.api.dataset import config, text, transforms, vision
from mspc.api.dataset.annotated import CelebADataset, CocoDataset, ManifestDataset, VOCDataset
from mspc.api.dataset.images import (
    Cifar10Dataset,
    Cifar100Dataset,
    FashionMnistDataset,
    ImageFolderDataset,
    KMnistDataset,
    MnistDataset,
)
from mspc.api.dataset.kinds import BatchDataset, MapDataset, RepeatDataset, ShuffleDataset, ZipDataset
from mspc.api.dataset.origins import (
    MappableDataset,
    SourceDataset,
    TextBaseDataset,
    UnionBaseDataset,
    VisionBaseDataset,
)
from mspc.api.dataset.pipeline import Dataset
from mspc.api.dataset.pipeline import zip_datasets as zip
from mspc.api.dataset.records import MindDataset
from mspc.api.dataset.samplers import (
    DistributedSampler,
    IterSampler,
    PKSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Shuffle,
    SubsetRandomSampler,
    SubsetSampler,
    WeightedRandomSampler,
)
from mspc.api.dataset.schema import Schema
from mspc.api.dataset.sources import GeneratorDataset, NumpySlicesDataset
from mspc.api.dataset.stages.batching import BatchInfo
from mspc.api.dataset.text_files import CSVDataset, TextFileDataset
from mspc.api.dataset.tf_records import TFRecordDataset

__all__ = [
    "BatchDataset",
    "BatchInfo",
    "CSVDataset",
    "CelebADataset",
    "Cifar10Dataset",
    "Cifar100Dataset",
    "CocoDataset",
    "Dataset",
    "DistributedSampler",
    "FashionMnistDataset",
    "GeneratorDataset",
    "ImageFolderDataset",
    "IterSampler",
    "KMnistDataset",
    "ManifestDataset",
    "MapDataset",
    "MappableDataset",
    "MindDataset",
    "MnistDataset",
    "NumpySlicesDataset",
    "PKSampler",
    "RandomSampler",
    "RepeatDataset",
    "Sampler",
    "Schema",
    "SequentialSampler",
    "Shuffle",
    "ShuffleDataset",
    "SourceDataset",
    "SubsetRandomSampler",
    "SubsetSampler",
    "TFRecordDataset",
    "TextBaseDataset",
    "TextFileDataset",
    "UnionBaseDataset",
    "VOCDataset",
    "VisionBaseDataset",
    "WeightedRandomSampler",
    "ZipDataset",
    "config",
    "text",
    "transforms",
    "vision",
    "zip",
]
