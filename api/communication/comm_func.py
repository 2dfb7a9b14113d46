"""Collectives as functions, as `mindspore.communication.comm_func`."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.communication.group import GlobalComm


def barrier(group: Any = GlobalComm.WORLD_COMM_GROUP) -> None:
    """Every rank of the group waits here for all others, in a compiled function."""
    ops.Barrier(group)()
