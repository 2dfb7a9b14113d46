"""Functions that stand in `mindspore.parallel` and are found in `mindspore.train` and its `serialization` as well."""

from __future__ import annotations

import importlib
from typing import Any

__all__: tuple[str, ...] = ()

MOVED = frozenset(
    ("build_searched_strategy", "load_distributed_checkpoint", "merge_sliced_parameter", "restore_group_info_list")
)


def find_moved(name: str) -> Any:
    """The function, by name: what defines it imports this package."""
    return getattr(importlib.import_module("mspc.api.parallel.checkpoint_transform"), name)
