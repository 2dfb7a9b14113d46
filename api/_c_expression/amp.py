"""Stands for MindSpore's C++ library of mixed precision in blocks of code. Packages import its names; nothing pushes a
strategy, as `amp.auto_mixed_precision` gives networks their precision."""

from __future__ import annotations

from enum import Enum
from typing import Any

from mspc.api.errors import ApiRuntimeError

__all__ = ["AmpLevel", "create_amp_strategy", "get_curr_amp_strategy", "pop_amp_strategy", "push_amp_strategy"]


class AmpLevel(Enum):
    """Levels of mixed precision, as `auto_mixed_precision` names them."""

    AmpO0, AmpO1, AmpO2, AmpO3, AmpAuto = "O0", "O1", "O2", "O3", "auto"


def get_curr_amp_strategy() -> None:
    """Return None: no strategy is in effect."""


def push_amp_strategy(*arguments: Any) -> None:
    """Refuse. Raises RuntimeError."""
    raise ApiRuntimeError("push_amp_strategy: use amp.auto_mixed_precision(network, level) instead")


create_amp_strategy = push_amp_strategy


def pop_amp_strategy() -> None:
    """Do nothing, as nothing was pushed."""
