"""`mindspore.dataset` in Python has data sets: sources of rows, and operations that are applied to them one by one."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
