"""Cells: layers, losses, optimizers and what trains them."""

from __future__ import annotations

from mspc.api.members import Members

_members = Members(__name__, optim="mspc.api.nn.optim", metrics="mspc.api.train.metrics")
__getattr__ = _members.find
__dir__ = _members.names
