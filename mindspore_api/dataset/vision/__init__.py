"""`mindspore.dataset.vision`: operations on images; arrays are [height, width, channels] by default."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
