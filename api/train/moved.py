"""Functions that are found in `mindspore.train` and its `serialization`, and are defined in other modules."""

from __future__ import annotations

import importlib
from typing import Any

__all__: tuple[str, ...] = ()

MOVED = {
    **dict.fromkeys(
        ("build_searched_strategy", "load_distributed_checkpoint", "merge_sliced_parameter", "restore_group_info_list"),
        "mspc.api.parallel.checkpoint_transform",
    ),
    "get_ckpt_path_with_strategy": "mspc.api.parallel.other_ranks",
    "_get_merged_param_data": "mspc.api.train.whole_parameters",
    **dict.fromkeys(("export", "load"), "mspc.api.train.mindir"),
}
"""The modules, by the names of the functions."""


def find_moved(name: str) -> Any:
    """The function, by name: what defines it imports this package."""
    return getattr(importlib.import_module(MOVED[name]), name)
