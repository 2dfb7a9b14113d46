"""`mindspore.device_context`: settings of each kind of device, as `set_context` has them."""

from __future__ import annotations

from mspc.api.device_context import ascend, cpu, gpu

__all__ = ["ascend", "cpu", "gpu"]
