"""`mindspore.nn` has cells, which are layers, losses, optimizers, and cells that train a network."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
