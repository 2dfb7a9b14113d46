"""Modules with the launches of operators on a GPU, imported when a kernel is first launched."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mspc.ops.collective import gpu_launch
    from mspc.ops.cuda import elementwise, expert_rows, moves, norms, reductions, rows_by_number, scans, text, update

__all__ = [
    "elementwise", "expert_rows", "gpu_launch", "moves", "norms", "reductions", "rows_by_number",
    "scans", "text", "update",
]  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"mspc.ops.gpu has no kernels {name!r}")
    folder = "collective" if name == "gpu_launch" else "cuda"
    found = globals()[name] = importlib.import_module(f"mspc.ops.{folder}.{name}")
    return found
