"""`mindspore.dataset` in Python: data sets are sources of rows, and operations that are applied to them one by one."""

from __future__ import annotations

from mspc.api.members import Listed

_members = Listed(
    __name__,
    {
        "annotated": "CelebADataset CocoDataset ManifestDataset VOCDataset",
        "images": "Cifar10Dataset Cifar100Dataset FashionMnistDataset ImageFolderDataset KMnistDataset MnistDataset",
        "kinds": "BatchDataset MapDataset RepeatDataset ShuffleDataset ZipDataset",
        "origins": "MappableDataset SourceDataset TextBaseDataset UnionBaseDataset VisionBaseDataset",
        "pipeline": "Dataset zip=zip_datasets",
        "records": "MindDataset",
        "samplers": (
            "DistributedSampler IterSampler PKSampler RandomSampler Sampler SequentialSampler Shuffle "
            "SubsetRandomSampler SubsetSampler WeightedRandomSampler"
        ),
        "schema": "Schema",
        "sources": "GeneratorDataset NumpySlicesDataset",
        "stages.batching": "BatchInfo",
        "text_files": "CSVDataset TextFileDataset",
        "tf_records": "TFRecordDataset",
    },
    "config",
    "text",
    "transforms",
    "vision",
)
__getattr__ = _members.find
__dir__ = _members.names
