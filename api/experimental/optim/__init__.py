"""`mindspore.experimental.optim`: optimizers with PyTorch's arguments; `lr_scheduler` changes their learning rates."""

from __future__ import annotations

from mspc.api.members import Members

_members = Members(__name__)
__getattr__ = _members.find
__dir__ = _members.names
