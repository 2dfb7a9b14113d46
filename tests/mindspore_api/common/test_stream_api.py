"""Devices, streams and events, under the names of `runtime`, of `hal` and of `device_context`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
import mspc.dataset as ds
from mspc import Tensor, device_context, hal, ops, runtime
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError


def test_work_of_streams_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor(np.ones((2, 2), np.float32))
    first, second = hal.Stream(), runtime.Stream()
    with runtime.StreamCtx(first):
        assert runtime.current_stream() == first != second
        product = ops.matmul(x, x)
        event = first.record_event()
    assert hal.current_stream() == ms.default_stream()
    second.wait_event(event)
    second.wait_stream(first)
    event.wait()
    event.synchronize()
    first.synchronize()
    assert [event.query(), first.query()] == [True, True]
    assert (product + 1).asnumpy().tolist() == [[3, 3], [3, 3]]
    assert repr(hal.communication_stream()) == "Stream(device_name=CPU, device_id:0, stream id:1)"
    assert capsys.readouterr().err.count("streams and events have no effect") == 1


def test_time_between_events() -> None:
    first, last = (hal.Event(enable_timing=True) for _ in range(2))
    first.record()
    last.record()
    assert 0 <= first.elapsed_time(last) < 1000


def test_devices() -> None:
    assert [hal.is_available("CPU"), hal.device_count("CPU"), hal.get_device_name(0, "CPU")] == [True, 1, "CPU"]
    assert hal.get_device_properties(0, "CPU").total_memory > 1 << 20
    assert [device_context.ascend.is_available(), device_context.cpu.device_count()] == [False, 1]
    assert hal.get_device_capability(0, "CPU") == (0, 0)


def test_settings_of_a_kind_of_device(capsys: pytest.CaptureFixture[str]) -> None:
    device_context.gpu.op_precision.matmul_allow_tf32(True)
    device_context.gpu.op_tuning.conv_fprop_algo("performance")
    assert ms.get_context("gpu_config") == {"matmul_allow_tf32": True, "conv_fprop_algo": "performance"}
    device_context.ascend.op_precision.precision_mode("force_fp32")
    device_context.cpu.op_tuning.threads_num(3)
    said = capsys.readouterr().err
    assert "device_context.ascend.op_precision.precision_mode() changes nothing here: there is no Ascend" in said
    assert "set_context(runtime_num_threads=3) changes nothing here" in said


def test_settings_of_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    assert ds.config.get_seed() == 5489
    ds.config.set_seed(ds.config.get_seed())
    assert ds.config.get_iterator_mode() == {"do_copy": False, "parallel_convert": False}
    ds.config.set_iterator_mode(do_copy=True)
    assert ds.config.get_iterator_mode()["do_copy"] is True
    ds.config.set_error_samples_mode(ds.config.ErrorSamplesMode.SKIP)
    said = capsys.readouterr().err
    assert "set_iterator_mode() changes nothing here" in said
    assert "a row that cannot be made is an error always" in said


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: hal.device_count("TPU"), "device_count(): device_target must be 'CPU', 'GPU' or 'Ascend', not 'TPU'"),
    (lambda: hal.get_device_name(3, "CPU"), "get_device_name(): there is no CPU 3"),
    (lambda: hal.set_cur_stream(1), "set_cur_stream(): stream must be a Stream, not 1"),
    (lambda: hal.StreamCtx(1), "StreamCtx: ctx_stream must be a Stream or None, not 1"),
    (lambda: hal.Event().elapsed_time(hal.Event()),
     "Event.elapsed_time: both events must have enable_timing=True, and be recorded"),
    (lambda: ds.config.set_debug_mode(True, [1]), "dataset.config.set_debug_mode: debug_hook_list is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises((ApiRuntimeError, ApiTypeError, ApiValueError)) as caught:
        wrong()
    assert caught.value.message == message
