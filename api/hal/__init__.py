"""`mindspore.hal` has the older names of `mindspore.runtime`: devices, their memory, and streams of work on them."""

from __future__ import annotations

from mspc.api.index.module import answers

__getattr__, __dir__ = answers(__name__)
