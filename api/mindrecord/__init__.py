"""Files of records, as `mindspore.mindrecord`: pages of rows beside an index in SQLite."""

from mspc.api.mindrecord.filereader import FileReader
from mspc.api.mindrecord.filewriter import FileWriter

__all__ = ["FileReader", "FileWriter"]
