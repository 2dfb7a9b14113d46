"""`mindspore.device_context` has settings for each kind of device, which `set_context` has as well."""

from __future__ import annotations

from mspc.mindspore_api.index.module import answers

__getattr__, __dir__ = answers(__name__)
