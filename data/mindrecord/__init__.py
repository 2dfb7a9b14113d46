"""`mindspore.mindrecord`: files of records, which are pages of rows with an index in SQLite beside them."""

from __future__ import annotations

from mspc.api.members import Listed

_members = Listed(
    __name__,
    {
        "converters": "Cifar10ToMR Cifar100ToMR CsvToMR ImageNetToMR MnistToMR TFRecordToMR",
        "encryption": "set_dec_mode set_enc_key set_enc_mode",
        "filereader": "FileReader",
        "filewriter": "FileWriter",
    },
)
__getattr__ = _members.find
__dir__ = _members.names
