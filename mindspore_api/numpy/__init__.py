"""`mindspore.numpy`: functions with NumPy's arguments and MindSpore's element types."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
