"""Devices, streams and events, under the names of `runtime` and of `hal`."""

from __future__ import annotations

import pytest

import mspc.dataset as ds
from mspc import hal, runtime


def test_devices() -> None:
    assert [hal.is_available("CPU"), hal.device_count("CPU"), runtime.device_count("CPU")] == [True, 1, 1]


def test_settings_of_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    assert ds.config.get_seed() == 5489
    ds.config.set_seed(ds.config.get_seed())
    assert ds.config.get_iterator_mode() == {"do_copy": False, "parallel_convert": False}
    ds.config.set_iterator_mode(do_copy=True)
    assert ds.config.get_iterator_mode()["do_copy"] is True
    ds.config.set_debug_mode(True)
    said = capsys.readouterr().err
    assert "set_iterator_mode() changes nothing here" in said
    assert "errors of pipelines name their stage always" in said
