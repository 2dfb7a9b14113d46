"""Names of MindSpore's top level that ask of a device or of the compiler: what they answer, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import nn, ops, runtime
from mspc.ir.diagnostics import MspcError


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (ms.empty_cache, "runtime.empty_cache() changes nothing here"),
        (lambda: ms.set_cpu_affinity(True), "runtime.set_cpu_affinity() changes nothing here"),
        (ms.set_kernel_launch_group, "runtime.set_kernel_launch_group() changes nothing here"),
        (runtime.reset_max_memory_allocated, "runtime.reset_peak_memory_stats() changes nothing here"),
        (lambda: ms.set_recursion_limit(9), "set_recursion_limit() changes nothing here"),
        (lambda: ms.set_dump(nn.ReLU()), "set_dump() changes nothing here"),
        (lambda: ms.no_inline(abs), "no_inline() changes nothing here"),
        (lambda: ms.enable_dynamic(x=1)(abs), "enable_dynamic() changes nothing here"),
    ],
)
def test_what_changes_nothing_says_so_once(
    call: Callable[[], Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call()
    call()
    assert capsys.readouterr().err.count(said) == 1


def test_memory_is_counted_on_gpus_alone() -> None:
    assert ms.memory_stats() == {}
    assert ms.max_memory_reserved() == ms.memory_allocated() == ms.memory_reserved() == ms.max_memory_allocated() == 0


def test_devices() -> None:
    assert ms.get_current_device() == ("CPU", 0)
    ms.set_deterministic(True)
    assert ms.get_context("deterministic") == "ON"
    with pytest.raises(MspcError, match=r"set_deterministic: deterministic must be True or False, not 1"):
        ms.set_deterministic(1)
    assert ms.get_log_config() == {"GLOG_v": ms.get_level()}
    assert (ms.STRICT, ms.COMPATIBLE, ms.LAX) == (0, 1, 2)


def test_a_tensor_of_a_buffer() -> None:
    data = np.array([1.0, 2.0, 3.0], np.float32).tobytes()
    assert ms.frombuffer(data).asnumpy().tolist() == [1, 2, 3]
    assert ms.frombuffer(data, count=1, offset=4).asnumpy().tolist() == [2]
    with pytest.raises(MspcError, match=r"frombuffer\(\): buffer is smaller"):
        ms.frombuffer(data, count=9)


class Twice(nn.Cell):
    """A layer computed again for its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Dense(2, 2, "ones", has_bias=False)

    def construct(self, x: Any) -> Any:
        return ms.recompute(self.layer, x)


def test_recompute_of_a_cell_that_is_called() -> None:
    net = Twice()
    assert net(ops.ones((1, 2))).asnumpy().tolist() == [[2, 2]]
    assert net.layer.get_flags()["recompute"]
    with pytest.raises(MspcError, match=r"recompute\(\) takes a Cell, not 5"):
        ms.recompute(5)
