"""Functions of `mint.nn.functional`; compiled as those of `mint`."""

from __future__ import annotations

from mspc.api.index.module import answers

__getattr__, __dir__ = answers("mint.nn.functional")
