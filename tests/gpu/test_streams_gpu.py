"""What the streams of a step see of memory that was made beside them."""

from __future__ import annotations

import numpy as np

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
