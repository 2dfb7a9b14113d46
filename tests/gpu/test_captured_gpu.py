"""Memory in a captured graph is filled by a kernel, and the order of work is as before."""

import ctypes
from typing import Any

import numpy as np
import pytest

from mspc.runtime.gpu.graph_nodes import Fills
from tests.gpu.arrays import fetched, opened


@pytest.fixture(scope="module")
def device() -> Any:
    return opened()


def kinds(graph: int) -> list[int]:
    """The driver's numbers for the kinds of a graph's nodes."""
    driver, count, kind = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t(), ctypes.c_int()
    assert driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)) == 0
    nodes = (ctypes.c_void_p * count.value)()
    assert driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)) == 0
    found = []
    for node in nodes:
        assert driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)) == 0
        found.append(kind.value)
    return found


@pytest.mark.parametrize("nbytes", [4, 3, 1030, 1 << 20])
@pytest.mark.parametrize("value", [0, 255, 7])
def test_fills_between_copies(device: Any, nbytes: int, value: int, monkeypatch: Any) -> None:
    """A fill waits for the copy ahead of it, and the copy behind it for the fill; bytes beside it stay."""
    seen: list[tuple[list[int], list[int]]] = []
    replace = Fills.replace

    def look(self: Fills, graph: int) -> int:
        before = kinds(graph)
        changed = replace(self, graph)
        seen.append((before, kinds(graph)))
        return changed

    monkeypatch.setattr(Fills, "replace", look)
    with device.stream("compute"):
        ones, memory, out = (device.empty((nbytes + 8,), "uint8") for _ in range(3))
        device.send(np.full(nbytes + 8, 9, np.uint8), ones)

        def work() -> None:
            device.copy(ones, memory)
            memory[:nbytes].data.memset_async(value, nbytes, device.products.current())
            device.copy(memory, out)
            device.copy(ones, memory)

        replay = device.capture(work)
        for _ in range(3):
            replay()
            device.synchronize()
            assert fetched(device, out).tolist() == [value] * nbytes + [9] * 8
    ((before, after),) = seen
    assert before.count(2) == 1
    assert after.count(2) == 0
    assert sorted(after) == sorted([*(kind for kind in before if kind != 2), 0])


def test_more_than_a_kernel_should_fill_stays(device: Any, monkeypatch: Any) -> None:
    found: list[int] = []
    replace = Fills.replace
    monkeypatch.setattr(Fills, "replace", lambda self, graph: found.append(replace(self, graph)))
    with device.stream("compute"):
        memory = device.empty((1 << 21,), "uint8")
        replay = device.capture(lambda: memory.data.memset_async(3, memory.nbytes, device.products.current()))
        replay()
    device.synchronize()
    assert found == [0]
    assert set(fetched(device, memory).tolist()) == {3}
