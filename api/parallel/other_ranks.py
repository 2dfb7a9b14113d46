"""This module finds checkpoints of other ranks that hold the same as one that is lost."""

from __future__ import annotations

import os
import re

from mspc.api import state
from mspc.api.errors import ApiTypeError
from mspc.api.parallel.checkpoint_transform import strategy_path
from mspc.checkpoint.sliced import layouts_in, ranks_of

__all__ = ["get_ckpt_path_with_strategy"]
_OF_A_RANK = re.compile(r"rank_\d+")


def get_ckpt_path_with_strategy(cur_ckpt_path: str, cur_strategy_path: str) -> str | None:
    """The file of this rank, or of another one that holds the same slices of all parameters.

    Args:
        cur_ckpt_path: the file that the rank needs, with `rank_R` in its name or in that of a folder. Without it, it is
            the file itself.
        cur_strategy_path: a strategy file, which says how parameters were sharded.

    Returns:
        The first of these files that is there, ranks in their order; None where there is none.

    Raises:
        TypeError: a path is no string. ValueError: there is no such strategy file, or it is none.
    """
    if not isinstance(cur_ckpt_path, str):
        raise ApiTypeError(f"get_ckpt_path_with_strategy: cur_ckpt_path must be a string, not {cur_ckpt_path!r}")
    rank = state.current().rank
    own = re.search(rf"rank_{rank}(?!\d)", cur_ckpt_path)
    if own and os.path.isfile(cur_ckpt_path):
        return cur_ckpt_path
    layouts = layouts_in(strategy_path("get_ckpt_path_with_strategy", "cur_strategy_path", cur_strategy_path))
    ranks = ranks_of(layouts)
    alike = [r for r in range(ranks)
             if all(each.slice_index(r) == each.slice_index(rank % ranks) for each in layouts.values())]  # fmt: skip
    paths = [_OF_A_RANK.sub(f"rank_{other}", cur_ckpt_path) for other in alike]
    return next((path for path in paths if os.path.isfile(path)), None)
