"""A GPU's marks, the wait for a step, and the message of a GPU that is full; the GPU is played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import ExecutionError, shown_bytes
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.collective.point_to_point import Send
from mspc.runtime.faults.stopped import END, packed
from mspc.runtime.gpu.progress import GpuProgress, communicates, out_of_memory
from tests.runtime.graphs import GraphMaker, Plus


class Device:
    """Runs the one kernel there is as its C++ says."""

    def __init__(self) -> None:
        self.step = np.array([0], np.int64)
        self.memory: Any = None
        self.comm: Any = SimpleNamespace()

    def pinned(self, shape: Any, dtype: Any) -> Any:
        self.memory = np.full(shape, -1, dtype)
        return self.memory

    def kernel(self, source: str, name: str) -> Any:
        assert "| step[0] << 24" in source

        def put_mark(grid: int, block: int, arguments: Any) -> None:
            place, step, where = arguments
            assert (grid, block) == (1, 1)
            assert (type(place), int(place)) == (np.uint64, self.memory.ctypes.data)
            assert type(where) is np.int64
            self.memory[0] = int(where) | int(step[0]) << 24

        return put_mark


def test_marks_say_graph_step_and_node() -> None:
    device, watch = Device(), SimpleNamespace(marks=None)
    progress = GpuProgress(device, watch)
    assert watch.marks() == 0
    progress.graph = 2
    log: list[int] = []
    launch, end = progress.before(7, lambda: log.append(watch.marks())), progress.mark()
    progress.graph = 5
    for step in (1, 2):
        device.step[0] = step
        launch()
        assert log[-1] == packed(2, step, 7)
        end()
        assert watch.marks() == packed(2, step, END)


def test_one_rank_marks_nothing() -> None:
    progress = GpuProgress(SimpleNamespace(), None)
    launch = lambda: None  # noqa: E731
    assert progress.before(3, launch) is launch
    progress.mark()()


def test_the_wait_looks_for_errors_of_nccl() -> None:
    device = Device()
    progress = GpuProgress(device, None)
    progress.wait(SimpleNamespace(done=True))
    looks: list[int] = []

    def check() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise ExecutionError("NCCL fails between ranks 0, 1: gone")

    device.comm = SimpleNamespace(check=check)
    with pytest.raises(ExecutionError, match="NCCL fails between ranks 0, 1: gone"):
        progress.wait(SimpleNamespace(done=False))


def test_nodes_that_wait_for_others_are_known() -> None:
    make = GraphMaker()
    x = make.parameter("x", (2,))
    y = make.node(AllReduce(rank_list=(0, 1)), x)
    z = make.node(AllReduce(rank_list=(0,)), y)
    nodes = [y, z, make.node(Send(dest_rank=1), z), make.node(Plus(), z, z)]
    assert [communicates(node) for node in nodes] == [True, False, True, False]


def test_out_of_memory_names_node_bytes_and_peak() -> None:
    make = GraphMaker()
    node = make.node(Plus(), make.parameter("x", (2, 3)), make.parameter("y", (2, 3)), instance="big")
    held = {"parameters and optimizer states": 5 << 30, "scratch": 1500}
    message, notes = out_of_memory(node, 3 << 20, 40 << 30, held, 1, 1)
    assert message == (
        "out of memory on GPU 1 (rank 1): Plus 'big' (Tensor[Float32] (2, 3)) needs 3.0 MiB (3,145,728 bytes); "
        "the plan's peak is 40.0 GiB (42,949,672,960 bytes)"
    ).replace("Tensor[Float32] (2, 3)", str(node.type))
    assert notes == [
        "parameters and optimizer states: 5.0 GiB (5,368,709,120 bytes)",
        "scratch: 1.5 KiB (1,500 bytes)",
        "use more ranks, a smaller batch, or shard larger tensors over the ranks",
    ]
    assert out_of_memory(None, 10, 20, {}, 0, 0)[0] == (
        "out of memory on GPU 0 (rank 0): the step needs 10 bytes; the plan's peak is 20 bytes"
    )
    assert shown_bytes(1023) == "1,023 bytes"
