"""Devices, streams and events, under the names of `runtime` and of `hal`."""

from __future__ import annotations

import mspc.dataset as ds
from mspc import hal, runtime


def test_devices() -> None:
    assert [hal.is_available("CPU"), hal.device_count("CPU"), runtime.device_count("CPU")] == [True, 1, 1]


def test_settings_of_pipelines() -> None:
    assert ds.config.get_seed() == 5489
    ds.config.set_seed(ds.config.get_seed())
