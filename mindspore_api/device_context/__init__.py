"""`mindspore.device_context`: settings per kind of device; `set_context` has them too."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
