"""`mindspore.device_context`: settings for each kind of device, which `set_context` has as well."""

from __future__ import annotations

from mspc.api.device_context import ascend, cpu, gpu

__all__ = ["ascend", "cpu", "gpu"]
