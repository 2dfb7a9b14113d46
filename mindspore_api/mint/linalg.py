"""`mindspore.mint.linalg`: functions of matrices with PyTorch's arguments."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
