"""`mindspore.experimental.optim`: optimizers with PyTorch's arguments, whose learning rates `lr_scheduler` changes."""

from __future__ import annotations

from mspc.api.members import Members

_members = Members(__name__)
__getattr__ = _members.find
__dir__ = _members.names
