"""Metrics of an evaluation, as `mindspore.train.metrics`: they are fed batch by batch."""

from __future__ import annotations

from mspc.api.members import Members

_members = Members(__name__)
__getattr__ = _members.find
__dir__ = _members.names
