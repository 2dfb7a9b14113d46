"""`mindspore.boost` has training steps that put the gradients of several steps together."""

from __future__ import annotations

from mspc.api.index.module import answers

__getattr__, __dir__ = answers(__name__)
