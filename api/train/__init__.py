"""Model, callbacks, checkpoints, metrics, as `mindspore.train`."""

from __future__ import annotations

from mspc.api.members import Members

_members = Members(__name__, amp="mspc.api.amp", metrics="mspc.api.train.metrics")
__getattr__ = _members.find
__dir__ = _members.names
