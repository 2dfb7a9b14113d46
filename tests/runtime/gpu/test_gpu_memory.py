"""Memory of a GPU, as the engine sees it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from mspc.runtime.device_choice import GpuMemory


def test_what_the_host_holds_is_not_fetched_from_the_gpu() -> None:
    constant = np.arange(3)
    assert GpuMemory(SimpleNamespace()).fetch(constant) is constant  # the device would be asked to receive it
