"""`mindspore.mint.linalg`: functions of matrices whose arguments stand as in PyTorch."""

from __future__ import annotations

from mspc.api.index.module import answers

__getattr__, __dir__ = answers(__name__)
