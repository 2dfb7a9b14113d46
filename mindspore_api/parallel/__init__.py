"""`mindspore.parallel`: how a script states the sharding of its network."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
