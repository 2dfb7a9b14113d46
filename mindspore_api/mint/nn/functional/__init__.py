"""`mindspore.mint.nn.functional` has functions that are compiled as those of `mint` are."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
