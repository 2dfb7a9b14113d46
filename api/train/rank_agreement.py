"""A run exchanges with other ranks what it needs beside its network."""

from __future__ import annotations

from typing import Any

from mspc.api import state
from mspc.api.context import ParallelMode, freeze

__all__: tuple[str, ...] = ()


def share_a_run(network: Any) -> bool:
    """Whether several ranks work on one run of `network`, and not each on one of its own."""
    return state.current().size > 1 and freeze(network).parallel_mode != ParallelMode.STAND_ALONE


def feeds_own_rows(network: Any) -> bool:
    """Whether ranks have a loss of their own each, of their own rows."""
    modes = (ParallelMode.DATA_PARALLEL, ParallelMode.HYBRID_PARALLEL)
    return share_a_run(network) and freeze(network).parallel_mode in modes
