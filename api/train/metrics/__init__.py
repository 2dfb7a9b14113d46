"""`mindspore.train.metrics` has metrics of an evaluation, which are fed one batch after the other."""

from __future__ import annotations

from mspc.api.index.module import answers

__getattr__, __dir__ = answers(__name__)
