"""Optimizers are cells that turn gradients into new values of parameters."""

from __future__ import annotations

from mspc.api.members import Members

_members = Members(__name__)
__getattr__ = _members.find
__dir__ = _members.names
