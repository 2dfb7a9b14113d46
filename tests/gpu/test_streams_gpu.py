"""Streams of a step see memory that was made beside them."""

from typing import Any

import numpy as np
import pytest

from tests.gpu.arrays import fetched, opened

_DELAY = """
extern "C" __global__ void delay(long long cycles) { long long end = clock64() + cycles; while (clock64() < end); }
"""


def test_zeros_do_not_clear_what_a_stream_writes() -> None:
    device = opened()
    delay = device.kernel(_DELAY, "delay")
    device.load_kernels()
    delay(1, 1, (np.int64(100_000_000),))  # on the stream to which CuPy gives what names none
    with device.stream("compute"):
        array = device.zeros((4,), "int64")
        device.send(np.arange(4) + 1, array)
    device.synchronize()
    assert fetched(device, array).tolist() == [1, 2, 3, 4]


def test_zeros_are_there_behind_what_had_their_memory() -> None:
    device = opened()
    delay = device.kernel(_DELAY, "delay")
    device.load_kernels()
    with device.stream("compute"):
        ones = device.empty((4,), "int64")
        device.send(np.ones(4, np.int64), ones)
        gone = device.empty((4,), "int64")
        place = gone.data.ptr
        delay(1, 1, (np.int64(100_000_000),))
        device.copy(ones, gone)
        del gone
        array = device.zeros((4,), "int64")
    assert array.data.ptr == place, "the pool hands the memory out again"
    device.synchronize()
    assert fetched(device, array).tolist() == [0] * 4


def test_a_capture_that_fails_leaves_nothing_to_wait_for() -> None:
    device = opened()
    delay = device.kernel(_DELAY, "delay")
    sent: list[Any] = []

    def work() -> None:
        device.on_side_stream("message", lambda: delay(1, 1, (np.int64(1000),)))
        if not sent:
            raise ValueError("no part of a graph")
        device.rejoin()

    with device.stream("compute"):
        with pytest.raises(ValueError, match="no part of a graph"):
            device.capture(work)
        sent.append(True)
        work()
        device.capture(work)()
    device.synchronize()
