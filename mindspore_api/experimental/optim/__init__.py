"""`mindspore.experimental.optim` has optimizers with PyTorch's arguments, and schedulers of learning rates."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
