"""This module knows who wrote last to the arrays of parameters on a GPU: what a step made of them holds until somebody
else writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ops.cuda.source import address
from mspc.ops.device import Array


class Writers:
    """The last writer of every array, by address; nothing is known of what nobody told.

    All that writes to parameters' arrays says so: steps by `begin`, everything else by `outside`.
    """

    def __init__(self) -> None:
        self._last: dict[int, Any] = {}
        self._latest: Any = None

    def outside(self, array: Array) -> None:
        """Something that is no step writes to the array."""
        self._last.pop(address(array), None)
        self._latest = None

    def begin(self, step: Any, written: Sequence[int], copied: Sequence[int]) -> bool:
        """A run of `step` begins, which writes to the arrays at the addresses `written`. Whether one of those at
        `copied`, some of them, has been written by others since its run before."""
        if self._latest is step:
            return False
        changed = any(self._last.get(array) is not step for array in copied)
        self._last.update(dict.fromkeys(written, step))
        self._latest = step
        return changed
