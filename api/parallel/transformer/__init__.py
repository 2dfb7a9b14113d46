"""`mindspore.parallel._transformer` has transformers that are sharded over rows of the batch and over heads."""

from __future__ import annotations

from mspc.api.index.module import answers

__getattr__, __dir__ = answers(__name__)
