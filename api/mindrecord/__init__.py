"""Files of records, as `mindspore.mindrecord`: pages of rows beside an index in SQLite."""

from mspc.api.mindrecord.converters import (
    Cifar10ToMR,
    Cifar100ToMR,
    CsvToMR,
    ImageNetToMR,
    MnistToMR,
    TFRecordToMR,
)
from mspc.api.mindrecord.encryption import set_dec_mode, set_enc_key, set_enc_mode
from mspc.api.mindrecord.filereader import FileReader
from mspc.api.mindrecord.filewriter import FileWriter

__all__ = [
    "Cifar10ToMR", "Cifar100ToMR", "CsvToMR", "FileReader", "FileWriter", "ImageNetToMR", "MnistToMR", "TFRecordToMR",
    "set_dec_mode", "set_enc_key", "set_enc_mode",
]  # fmt: skip
