"""`mindspore.mindrecord` has files of records, which are pages of rows with an index in SQLite beside them."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
