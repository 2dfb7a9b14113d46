"""`mindspore.communication`: which rank a script is, and how groups of ranks are made."""

from __future__ import annotations

from mspc.api.index.module import answers

__getattr__, __dir__ = answers(__name__)
