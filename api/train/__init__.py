"""`mindspore.train`: the Model, callbacks, checkpoints and metrics."""

from __future__ import annotations

from typing import Any

from mspc.api.members import Members

_members = Members(__name__, amp="mspc.api.amp", metrics="mspc.api.train.metrics")
__dir__ = _members.names


def __getattr__(name: str) -> Any:
    from mspc.api.train.moved import (  # where a name is asked for: this package opens without its parts
        MOVED,
        find_moved,
    )

    return find_moved(name) if name in MOVED else _members.find(name)
