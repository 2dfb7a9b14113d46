"""Choice of the device for a rank's graphs, from the command line, the script or the hardware, and construction of its
executors.

CUDA is loaded only if a GPU is used: otherwise only the driver is queried for the number of GPUs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

from mspc.ir.diagnostics import Location, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.runtime.placed_arrays import Array, GpuMemory, SharedMemory

AUTO, CPU, GPU = "auto", "cpu", "gpu"
RANK_LOCAL_MODES = ("stand_alone", "hybrid_parallel")
"""Modes in which every rank may run a different graph: the script handles slices and collectives by rank."""
_INSTALL = "pip install -e '.[gpu]' in a checkout of mspc brings CuPy; it needs an NVIDIA driver"
_ON_CPU = "or run it on the CPU with mspc run --device cpu"


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Device options of the command line.

    device: auto, cpu or gpu. deterministic: the same bits in every run. timeout: seconds for which a rank may be
    stopped, or make no progress, before a rank that others wait for counts as missing; 0 for the default.
    """

    device: str = AUTO
    deterministic: bool = False
    timeout: float = 0.0

    def arguments(self) -> list[str]:
        """Return the options as arguments for the ranks that mpirun starts."""
        found = [] if self.device == AUTO else ["--device", self.device]
        found += ["--deterministic"] if self.deterministic else []
        return [*found, "--timeout", f"{self.timeout:g}"] if self.timeout else found


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """Device settings of a script.

    device: cpu, gpu, or "" if not set. how: the script's own words. index: of the GPU, None for the local rank. place,
    index_place: lines of these settings.
    """

    device: str = ""
    how: str = ""
    index: int | None = None
    deterministic: bool = False
    place: Location | None = None
    index_place: Location | None = None


class Probe:
    """Devices and libraries of this machine."""

    def gpus(self) -> tuple[int, str]:
        """Return the number of visible GPUs, and the reason if it is 0."""
        import ctypes  # on a machine that may have a GPU, once

        try:
            cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return 0, "there is no NVIDIA driver on this machine"
        code = cuda.cuInit(0)
        if code == 100:
            return 0, "no GPU is visible here"
        if code:
            return 0, f"the NVIDIA driver fails to start (CUDA error {code})"
        count = ctypes.c_int()
        cuda.cuDeviceGetCount(ctypes.byref(count))
        return count.value, "" if count.value else "no GPU is visible here"

    def begin(self, index: int) -> None:
        """Let the driver create its context of a GPU, which the device then uses. It takes some tenths of a second
        without Python's lock. A failure is reported when the device is opened."""
        import ctypes

        with contextlib.suppress(OSError):
            cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
            if not cuda.cuInit(0) and not cuda.cuDeviceGet(ctypes.byref(device), index):
                cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)

    def cupy(self) -> bool:
        """Return whether CuPy is installed."""
        return importlib.util.find_spec("cupy") is not None

    def nccl(self) -> bool:
        """Return whether CuPy finds NCCL; this loads CuPy."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return bool(getattr(importlib.import_module("cupy.cuda.nccl"), "available", True))
        except ImportError:
            return False


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Device of a rank. device: cpu or gpu. index: of the GPU. warning: text for the user, or ""."""

    device: str
    index: int = 0
    warning: str = ""


def choose_device(
    wanted: str, local_rank: int, local_size: int, asked: DeviceRequest | None = None, probe: Probe | None = None,
    size: int = 0,
) -> DeviceChoice:
    """Return the device of this process. wanted: auto, cpu or gpu, from the command line; overrides the script's
    `asked`. local_rank, local_size: rank and number of ranks on this host. size: number of all ranks. Raise MspcError
    with the missing part if a GPU is requested and not available."""
    asked = asked or DeviceRequest()
    probe = probe or Probe()
    device = wanted if wanted != AUTO else asked.device or AUTO
    if device == CPU:
        return DeviceChoice(CPU)
    count, why = probe.gpus()
    problem, notes = _gpu_problem(count, why, local_size, max(size, local_size), probe)
    index, bad_index = local_rank, False
    if not problem and asked.index is not None and local_size == 1:
        index = asked.index
        if index >= count:
            bad_index = True
            problem, notes = f"device_id={index} is none of the {_gpus(count)} visible here", []
    if not problem:
        return DeviceChoice(GPU, index)
    if device == GPU:
        how, place = ("--device gpu", None) if wanted == GPU else (asked.how, asked.place)
        place = asked.index_place if bad_index else place
        raise MspcError(f"{how} asks for a GPU, but {problem}", place, [*notes, _ON_CPU], code="E0851")
    return DeviceChoice(CPU, 0, f"this runs on the CPU: {_gpus(count)} would be here, but {problem}" if count else "")


def _gpu_problem(count: int, why: str, local_size: int, size: int, probe: Probe) -> tuple[str, list[str]]:
    if not count:
        return why, [_INSTALL]
    if not probe.cupy():
        return "CuPy is not installed", [_INSTALL]
    if local_size > count:
        few = f"start at most {count} rank{'s' * (count > 1)} on this host: every rank takes a GPU of its own"
        return f"{local_size} ranks on this host share {_gpus(count)}", [few]
    if size > 1 and not probe.nccl():
        return f"CuPy finds no NCCL, which {size} ranks need", ["pip install nvidia-nccl-cu13, or -cu12, as for CuPy"]
    return "", []


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


class Cuda:
    """Factory of devices and executors on GPUs, which loads their modules at first use."""

    def open(self, index: int, deterministic: bool, host: Any, watch: Any) -> Any:
        """Return the GPU with its communicator and progress."""
        from mspc.runtime.gpu.device import GpuDevice
        from mspc.runtime.gpu.nccl import NcclComm
        from mspc.runtime.gpu.progress import GpuProgress

        device = GpuDevice(index, deterministic=deterministic)
        device.comm = NcclComm(device.xp, host)
        device.comm.device = device
        device.progress = GpuProgress(device, watch)  # type: ignore[attr-defined]  # None until a job has one
        return device

    def executor(
        self, graph: Any, device: Any, values: Mapping[str, Array], cursor: Any, host: Any, loop_limit: float
    ) -> Any:  # fmt: skip
        """See `GpuExecutor`."""
        from mspc.runtime.gpu.executor import GpuExecutor

        return GpuExecutor(graph, device, values, cursor, host, loop_limit)


class Hardware:
    """Device of one rank, chosen at its first graph and never changed. simulated: all ranks are in this process, on the
    CPU. warn: prints a line for the user."""

    def __init__(
        self, wishes: DeviceOptions | None = None, local_rank: int = 0, local_size: int = 1, simulated: bool = False,
        warn: Callable[[str], None] | None = None, probe: Probe | None = None, cuda: Any = None,
    ) -> None:  # fmt: skip
        self.wishes = wishes or DeviceOptions()
        self.memory = SharedMemory()
        self.choice: DeviceChoice | None = None
        self.device: Any = None
        self._local = (local_rank, local_size)
        self.local_rank = local_rank
        self._simulated = simulated
        self._warn: Callable[[str], None] = warn or (lambda _: None)
        self._probe = probe or Probe()
        self._cuda = cuda or Cuda()

    def choose(self, asked: DeviceRequest, size: int) -> None:
        """Choose a device, once; `agree` must follow on all ranks. Raise MspcError if it is not available, or a script
        requests a different one later."""
        wanted = self.wishes.device
        if self._simulated:
            if self.choice is None and (wanted == GPU or (wanted == AUTO and asked.device == GPU)):
                how = "--device gpu" if wanted == GPU else asked.how
                self._warn(f"--simulate runs all ranks on the CPU; {how} does not count")
            self.choice = DeviceChoice(CPU)
            return
        if self.choice is None:
            self.choice = choose_device(wanted, *self._local, asked, self._probe, size)
            if self.choice.warning:
                self._warn(self.choice.warning)
            if self.choice.device == GPU:  # in parallel to the script's first compile
                Thread(target=self._probe.begin, args=(self.choice.index,), name="mspc GPU", daemon=True).start()
        elif wanted == AUTO and asked.device and asked.device != self.choice.device:
            before = {CPU: "CPU", GPU: "GPU"}[self.choice.device]
            raise MspcError(
                f"{asked.how} comes too late: earlier networks of this script run on the {before}",
                asked.place,
                ["set the device before the first network is called"],
            )

    def agree(self, host: Any) -> None:
        """Check that all ranks have chosen one kind of device; all ranks call this together. Raise MspcError if they
        have not."""
        assert self.choice is not None
        if host.size == 1 or self._simulated:
            return
        import numpy as np

        kinds = host.all_gather(np.array([self.choice.device == GPU]), tuple(range(host.size)), 0).tolist()
        if len(set(kinds)) > 1:
            gpu, cpu = kinds.index(True), kinds.index(False)
            raise MspcError(
                f"rank {gpu} runs on a GPU and rank {cpu} on the CPU; all must run on one kind of device",
                notes=["mspc run --device cpu runs all on the CPU; --device gpu names what a rank lacks for a GPU"],
            )

    def prepare(self, deterministic: bool, host: Any, watch: Any) -> None:
        """Open the chosen device, once."""
        assert self.choice is not None
        if self.choice.device == GPU and self.device is None:
            deterministic = deterministic or self.wishes.deterministic
            self.device = self._cuda.open(self.choice.index, deterministic, host, watch)
            self.memory = GpuMemory(self.device)

    def executor(
        self, graph: Any, host: Any, values: Mapping[str, Array], cursor: Any = None, number: int = 0,
        tf32: bool = False,
    ) -> Any:  # fmt: skip
        """Return the executor of a rank's graph. host: communicator of arrays on the host. values: of parameters, as
        returned by `memory.place`, and of constants. number: of the graph in this job. Raise MspcError if the graph
        cannot run here."""
        if self.device is None:
            from mspc.runtime.backend import NumPyBackend
            from mspc.runtime.executor import Executor

            backend = NumPyBackend(host.for_graph(number), loop_limit=self.wishes.timeout)
            return Executor(graph, backend, values, cursor)
        device, together = self.device, graph.attrs.get("mode") not in RANK_LOCAL_MODES
        device.tf32 = tf32
        device.progress.graph = number
        device.comm.prepare_for(graph, together)
        executor = self._cuda.executor(
            graph, device, values, cursor, host.for_graph(number), self.wishes.timeout
        )  # fmt: skip
        assert isinstance(self.memory, GpuMemory)
        self.memory.executors.append(executor)
        if together and host.size > 1:
            # A rank that is still compiling kernels must not count as missing in the first step.
            host.barrier(tuple(range(host.size)))
        return executor

    def release(self, executor: Any) -> None:
        """Wait for the steps of an executor that is no longer used, and drop it."""
        self.memory.finish()
        if isinstance(self.memory, GpuMemory):
            self.memory.executors.remove(executor)
