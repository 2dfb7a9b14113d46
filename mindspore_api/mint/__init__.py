"""`mindspore.mint`: functions with PyTorch's argument order."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
