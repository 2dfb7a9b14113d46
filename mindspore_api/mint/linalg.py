"""`mindspore.mint.linalg` has functions of matrices with the arguments of PyTorch."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
