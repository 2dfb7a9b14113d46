"""Parameters that several stages of a pipeline read."""

from __future__ import annotations

from typing import Any

from mspc.api.errors import ApiTypeError
from mspc.api.nn.cell import Cell


def sync_pipeline_shared_parameters(net: Any) -> None:
    """Accepted: there is nothing to send. All stages that read a parameter begin with the same value of it, and every
    update adds up the gradients of all of them.

    Raises:
        TypeError: `net` is no Cell.
    """
    if not isinstance(net, Cell):
        raise ApiTypeError(f"sync_pipeline_shared_parameters: net must be a Cell, not {type(net).__name__}")
