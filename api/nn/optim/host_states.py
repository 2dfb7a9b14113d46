"""Optimizers whose states live in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api.common.parameter import Parameter
from mspc.api.errors import ApiRuntimeError
from mspc.api.setting_kind import checked
from mspc.api.settings import OFFLOADED_CELLS

__all__: tuple[str, ...] = ()


def keep_on_host(optimizer: Any, trained: Sequence[Parameter], backward_prefetch: Any) -> None:
    """Let states of the shapes of trained parameters live on the host: they are on the device while their parameters
    are updated, and no longer. Counters and learning rates stay, though they may have such a shape.

    Args:
        backward_prefetch: how many updates ahead of their own states are fetched; "Auto": 2.

    Raises:
        ValueError, TypeError: it is neither "Auto" nor an integer from 1 on. RuntimeError: there are no states.
    """
    name = f"{type(optimizer).__name__}.offload"
    found = checked(name, OFFLOADED_CELLS, {"backward_prefetch": backward_prefetch})["backward_prefetch"]
    rates = optimizer.learning_rate if isinstance(optimizer.learning_rate, tuple) else (optimizer.learning_rate,)
    stays = {id(parameter) for parameter in (*trained, optimizer.global_step, *rates)}
    shapes = {parameter.shape for parameter in trained}
    states = [p for p in optimizer.get_parameters() if id(p) not in stays and p.ndim and p.shape in shapes]
    if not states:
        raise ApiRuntimeError(f"{name}(): the optimizer has no states that could be kept on the host")
    for state in states:
        state.on_host = 0 if found == "Auto" else found
    optimizer.revision += 1
