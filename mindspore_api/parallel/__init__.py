"""`mindspore.parallel` has the ways in which a script says how its network is sharded."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
