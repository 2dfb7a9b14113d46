"""`mindspore.parallel.nn`: sequential micro-batches, and the Transformers of MindSpore 1."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
