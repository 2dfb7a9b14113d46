"""Runs a script of one rank on a GPU, emulated where there is none, and its graphs on the CPU beside it."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from mspc.commands.run import run_script
from mspc.runtime.device_choice import GPU, DeviceOptions, GpuMemory, Hardware, Probe
from tests.executors import Executor, GpuExecutor, NumPyBackend
from tests.gpu.emulated import EmulatedGpu


class OtherNumbers(Exception):
    """The GPU and the CPU do not have the same numbers of one graph."""


class OneGpu(Probe):
    """A machine with one GPU."""

    def gpus(self) -> tuple[int, str]:
        return 1, ""

    def begin(self, index: int) -> None: ...

    def cupy(self) -> bool:
        return True


class EmulatedMemory(GpuMemory):
    """Arrays of NumPy. own: those that play arrays on the GPU, by their addresses."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self.own: dict[int, np.ndarray] = {}

    def place(self, array: np.ndarray, on_host: bool = False) -> np.ndarray:
        placed = super().place(array, on_host)
        self.own[placed.ctypes.data] = placed
        return placed


class EmulatedHardware(Hardware):
    """An emulated GPU. tolerance: how far its numbers may be from the CPU's, relative to those above one."""

    def __init__(self, folder: Path, tolerance: float) -> None:
        super().__init__(DeviceOptions(GPU), probe=OneGpu())
        self._folder, self._tolerance = folder, tolerance

    def prepare(self, deterministic: bool, host: Any, watch: Any) -> None:
        if self.device is None:
            self.device = EmulatedGpu(self._folder)
            self.memory = EmulatedMemory(self.device)

    def executor(self, graph: Any, host: Any, values: Any, cursor: Any = None, number: int = 0,
                 tf32: bool = False) -> Any:  # fmt: skip
        assert isinstance(self.memory, EmulatedMemory)
        found = Beside(graph, self.memory, values, cursor, host.for_graph(number), self._tolerance)
        self.memory.executors.append(found)
        return found


class Beside(GpuExecutor):
    """Runs every step on the CPU too, from the same parameters, and compares what both make of it."""

    def __init__(self, graph: Any, memory: EmulatedMemory, values: Any, cursor: Any, host: Any,
                 tolerance: float) -> None:  # fmt: skip
        self._own, self._tolerance = memory.own, tolerance
        super().__init__(graph, memory.device, values, cursor, host)
        own = {name: np.array(value) for name, value in values.items()}
        self._cpu = Executor(graph, NumPyBackend(host), own, cursor)

    def _copied(self, value: np.ndarray) -> np.ndarray:
        return self._own[value.ctypes.data] if value.ctypes.data in self._own else super()._copied(value)

    def run(self, inputs: Any, origins: Any = ()) -> Any:
        names = [p.name for p in self.graph.parameters if p.kind == "parameter"]
        for name in names:
            self._cpu.replace(name, self.parameter(name))
        found = super().run(inputs, origins)
        pairs = [(f"result {i}", np.asarray(array), np.asarray(wanted))
                 for i, (array, wanted) in enumerate(zip(found, self._cpu.run(inputs), strict=True))]  # fmt: skip
        pairs += [(name, self.parameter(name), self._cpu.parameter(name)) for name in names]
        for name, array, wanted in pairs:
            far = np.abs(array.astype(float) - wanted) / (1 + np.abs(wanted))
            if not float(np.max(far, initial=0.0)) <= self._tolerance:
                raise OtherNumbers(f"step {self.step}: {name} of {self.graph.name} is {np.max(far):.2e} away")
        return found


def run_on_gpu(path: Path, tolerance: float) -> None:
    """As `mspc run` with a GPU does. Raises OtherNumbers, and what the script or mspc raises."""
    probe = Probe()
    real = bool(probe.gpus()[0]) and probe.cupy()

    def hardware(*_: object) -> Hardware:
        return Hardware(DeviceOptions(GPU)) if real else EmulatedHardware(path.parent, tolerance)

    with patch("mspc.engine.simulate.simulated_hardware", hardware):
        run_script(path, 1, simulate=True)
