"""Names that scripts import from the files of MindSpore's `ops.function` and `ops.auto_generate`: the names of `ops`,
and the functions of `mint` with their names in those files (`max_ext` is `mint.max`, `chunk_view` is `ops.chunk`)."""

from __future__ import annotations

from mspc.mindspore_api import ops
from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__, names=ops.__dir__)
