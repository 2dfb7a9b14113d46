"""`mindspore.common` has the Tensor, the Parameter, initializers, element types, and the seed."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
