"""`mindspore.dataset.text` has operations on texts, which split them into tokens and look up the numbers of words."""

from __future__ import annotations

from mspc.api.index.module import answers

__getattr__, __dir__ = answers(__name__)
