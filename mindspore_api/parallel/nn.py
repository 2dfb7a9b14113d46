"""`mindspore.parallel.nn` has micro-batches one after another, and Transformers, which MindSpore 1 had here."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
