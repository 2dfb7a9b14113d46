"""What scripts import from the files of MindSpore's `ops.function` and `ops.auto_generate`: the names of `ops`, and
those of `mint` under the names that its functions have there (`max_ext` is `mint.max`, `chunk_view` is `ops.chunk`)."""

from __future__ import annotations

from typing import Any

from mspc.api import mint, ops
from mspc.api.mint.nn import functional
from mspc.api.ops import extended_functions


def __getattr__(name: str) -> Any:
    stem, _, ending = name.rpartition("_")
    if ending == "ext" and hasattr(extended_functions, name):
        return getattr(extended_functions, name)
    places = {"ext": (mint, functional), "view": (mint, ops)}.get(ending, ())
    return next((getattr(place, stem) for place in places if hasattr(place, stem)), None) or getattr(ops, name)


def __dir__() -> list[str]:
    return dir(ops)
