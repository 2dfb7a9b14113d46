"""A GPU for the commands, played on the CPU: its memory is out of NumPy's sight, work waits until somebody waits."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from mspc.runtime.device_choice import Probe
from mspc.runtime.pending import Pending
from tests.executors import Executor, NumPyBackend


class Machine(Probe):
    """A machine with four GPUs, CuPy and NCCL."""

    def gpus(self) -> tuple[int, str]:
        return 4, ""

    def cupy(self) -> bool:
        return True

    def nccl(self) -> bool:
        return True


class DeviceArray:
    """Memory on the device."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.memory = np.empty(shape, dtype)
        self.shape, self.dtype = self.memory.shape, self.memory.dtype

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("an array on the GPU was taken for NumPy's")


class Device:
    """Work is put off until the queue is emptied."""

    def __init__(self, index: int, deterministic: bool, log: list[Any]) -> None:
        self.index, self.deterministic, self.log, self.tf32 = index, deterministic, log, False
        self.queue: list[Callable[[], None]] = []
        self.progress = SimpleNamespace(graph=-1)
        self.pool = SimpleNamespace(total_bytes=lambda: 4096)
        self.writers = SimpleNamespace(outside=lambda array: None)
        self.comm = SimpleNamespace(prepare_for=lambda graph, together: log.append(("groups", together)))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        return DeviceArray(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        made = DeviceArray(shape, dtype)
        made.memory[...] = 0
        return made

    def send(self, host: Any, array: DeviceArray) -> None:
        assert type(host) is np.ndarray
        assert host.flags.c_contiguous
        np.copyto(array.memory, host, casting="no")

    def receive(self, array: DeviceArray, host: Any) -> None:
        np.copyto(host, array.memory, casting="no")

    def stream(self, name: str) -> Any:
        assert name == "compute"
        return contextlib.nullcontext()

    def synchronize(self) -> None: ...

    def drain(self) -> None:
        while self.queue:
            self.queue.pop(0)()


class PlayedExecutor:
    """An executor whose parameters are on the device and whose steps run when somebody waits for them."""

    def __init__(self, graph: Any, device: Device, values: Any, cursor: Any, host: Any) -> None:
        self.device = device
        taken = {name: v.memory if isinstance(v, DeviceArray) else v for name, v in values.items()}
        self.inner = Executor(graph, NumPyBackend(host), taken, cursor)
        self.graph, self.inputs, self.trains, self.step = graph, self.inner.inputs, self.inner.trains, 0
        self.earlier_steps = 0
        kinds = {p.kind for p in graph.parameters if isinstance(values.get(p.name), DeviceArray)}
        device.log.append(("executor", device.progress.graph, device.tf32, sorted(kinds)))

    def run(self, inputs: Any, origins: Any = ()) -> list[Pending]:
        self.step += 1
        copies = [np.array(array) for array in inputs]
        results: list[Any] = []
        self.device.queue.append(lambda: results.extend(self.inner.run(copies)))

        def arrive(i: int) -> Any:
            self.device.drain()
            return np.asarray(results[i])

        types = [value.tensor_type for value in self.graph.results]
        return [Pending(t.shape, t.dtype.numpy, lambda i=i: arrive(i)) for i, t in enumerate(types)]

    def set_step_count(self, steps: int) -> None:
        self.earlier_steps = steps

    def parameter(self, name: str) -> Any:
        self.finish()
        return np.array(self.inner.parameter(name))

    def finish(self) -> None:
        self.device.drain()


class PlayedCuda:
    """In place of `mspc.runtime.device_choice.Cuda`; `log` says what was made."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def open(self, index: int, deterministic: bool, host: Any, watch: Any) -> Device:
        self.log.append(("open", index, deterministic))
        return Device(index, deterministic, self.log)

    def executor(self, graph: Any, device: Device, values: Any, cursor: Any, host: Any, _: float) -> PlayedExecutor:
        return PlayedExecutor(graph, device, values, cursor, host)
