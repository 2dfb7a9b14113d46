"""`mindspore.dataset.vision`: operations on images, arrays [height, width, channels] unless said otherwise."""

from __future__ import annotations

from mspc.api.index.module import answers

__getattr__, __dir__ = answers(__name__)
