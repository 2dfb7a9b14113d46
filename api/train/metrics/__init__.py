"""`mindspore.train.metrics`: metrics of an evaluation, which are fed one batch after the other."""

from __future__ import annotations

from mspc.api.members import Members

_members = Members(__name__)
__getattr__ = _members.find
__dir__ = _members.names
