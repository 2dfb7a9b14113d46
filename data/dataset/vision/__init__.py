"""`mindspore.dataset.vision` has operations on images, which are arrays [height, width, channels] unless stated
otherwise."""

from __future__ import annotations

from mspc.api.index.module import answers

__getattr__, __dir__ = answers(__name__)
