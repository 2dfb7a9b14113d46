"""`mindspore.experimental.optim`: optimizers with PyTorch's arguments, and learning rate schedulers."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
