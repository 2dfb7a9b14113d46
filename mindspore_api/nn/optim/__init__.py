"""Optimizers are cells that turn gradients into new values of parameters."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
