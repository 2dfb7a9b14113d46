"""`mindspore.runtime`: devices, their memory, and streams, which do not order any work here."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from mspc.mindspore_api import call_handler, state
from mspc.mindspore_api.context import set_context
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.setting_kind import checked, place_of_caller, say_once
from mspc.mindspore_api.settings import DEVICE_MEMORY
from mspc.ops.operator_arguments import describe

__all__ = [
    "DeviceProperties", "Event", "Stream", "StreamCtx", "communication_stream", "current_stream", "default_stream",
    "device_count", "dispatch_threads_num", "empty_cache", "get_arch_list", "get_current_device",
    "get_device_capability", "get_device_name", "get_device_properties", "is_available", "is_initialized",
    "launch_blocking", "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved",
    "memory_stats", "memory_summary", "reset_max_memory_allocated", "reset_max_memory_reserved",
    "reset_peak_memory_stats", "set_cpu_affinity", "set_cur_stream", "set_deterministic", "set_device",
    "set_kernel_launch_capture", "set_kernel_launch_group", "set_memory", "synchronize",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


def asked_device() -> dict[str, Any]:
    """Return the script's settings of its device: `device` ("cpu", "gpu", "" if none is set), `how` it was set, `index`
    of the device or None, whether runs must be `deterministic`, and the lines of these settings: `place`,
    `index_place`.

    "Ascend" is ignored: such a script runs on any device.
    """
    session = state.current()
    target = session.general.get("device_target", "")
    places = session.set_at
    found: dict[str, Any] = {"device": "", "how": "", "index": session.general.get("device_id")}
    found["index_place"] = places.get("device_id")
    found["deterministic"] = session.general.get("deterministic") == "ON"
    if target in ("CPU", "GPU"):
        return {
            **found, "device": target.lower(), "how": f'device_target="{target}"', "place": places.get("device_target")
        }  # fmt: skip
    if not target and session.backend == "nccl":
        return {**found, "device": "gpu", "how": 'init("nccl")', "place": places.get("init")}
    return found


def set_memory(
    init_size: str = "2GB", increase_size: str = "2GB", max_size: str = "1024GB", optimize_level: str = "O0",
    huge_page_reserve_size: str = "0GB",
) -> None:  # fmt: skip
    """Check limits of device memory, each as "28GB"; a warning says that they change nothing. Raise TypeError or
    ValueError if a size has another format."""
    sizes = {"init_size": init_size, "increase_size": increase_size, "max_size": max_size}
    levels = {"optimize_level": optimize_level, "huge_page_reserve_size": huge_page_reserve_size}
    checked("runtime.set_memory", DEVICE_MEMORY, sizes | levels)


def set_device(device_target: str, device_id: int = 0) -> None:
    """Choose a device, as `set_context(device_target=..., device_id=...)`. Raise ValueError for an unknown one."""
    set_context(device_target=device_target, device_id=device_id)


class CurrentDevice(NamedTuple):
    """Kind and number of a device."""

    device_target: str
    device_id: int


def get_current_device() -> CurrentDevice:
    """Return the device that the script requests, or the CPU."""
    asked = asked_device()
    return CurrentDevice((asked["device"] or "cpu").upper(), asked["index"] or 0)


def set_deterministic(deterministic: bool) -> None:
    """Choose whether every run must give the same numbers, as `set_context(deterministic="ON")`. Raise TypeError unless
    it is True or False."""
    set_context(deterministic="ON" if deterministic else "OFF")


def _changes_nothing(name: str, why: str) -> None:
    say_once(f"runtime.{name}", f"runtime.{name}() changes nothing here: {why}")


def launch_blocking() -> None:
    """Warn that it changes nothing: errors name their operator even if steps are replayed."""
    _changes_nothing("launch_blocking", "errors name their operator also in replayed steps")


def empty_cache() -> None:
    """Warn that it changes nothing: networks allocate their memory once."""
    _changes_nothing("empty_cache", "the memory of a network is planned when it is compiled, and taken once")


def set_cpu_affinity(
    enable_affinity: bool, affinity_cpu_list: Any = None, module_to_cpu_dict: Any = None, bind_file: Any = None
) -> None:
    """Warn that it changes nothing, whatever enable_affinity, affinity_cpu_list, module_to_cpu_dict and bind_file are:
    the launcher binds ranks to cores."""
    _changes_nothing("set_cpu_affinity", "mpirun and `mspc launch` bind ranks to cores")


def dispatch_threads_num(threads_num: int) -> None:
    """Warn that it changes nothing, whatever threads_num is: one thread starts the kernels of a rank."""
    _changes_nothing("dispatch_threads_num", "one thread starts the kernels of a rank")


def set_kernel_launch_group(thread_num: int = 2, kernel_group_num: int = 8) -> None:
    """Warn that it changes nothing, whatever thread_num and kernel_group_num are: one thread starts kernels."""
    _changes_nothing("set_kernel_launch_group", "one thread starts the kernels of a rank")


def set_kernel_launch_capture(enable_capture_graph: bool, op_capture_skip: Any = None) -> None:
    """Warn that it changes nothing, whatever enable_capture_graph and op_capture_skip are: steps on GPUs are captured
    if possible."""
    _changes_nothing("set_kernel_launch_capture", "steps on a GPU are captured and replayed wherever they can be")


def synchronize() -> None:
    """Wait for all steps under way on a GPU; raises their errors. On the CPU results are complete when a call
    returns."""
    found = call_handler.installed()
    if found is not None:
        found.synchronize()


def max_memory_allocated(*_: Any) -> int:
    """Return the peak bytes of GPU memory of this rank's networks; 0 on the CPU."""
    found = call_handler.installed()
    return 0 if found is None else found.most_memory()


def memory_reserved() -> int:
    """Return the result of `max_memory_allocated`: all memory of networks is in use until the script ends."""
    return max_memory_allocated()


max_memory_reserved = memory_allocated = memory_reserved


def memory_stats() -> dict[str, int]:
    """Return the bytes of this rank's networks on a GPU; an empty dict on the CPU, as in MindSpore."""
    most = max_memory_allocated()
    return {"total_reserved_memory": most, "total_allocated_memory": most, "max_allocated_memory": most} if most else {}


def memory_summary() -> str:
    """Return `memory_stats` as lines of text."""
    lines = [f"{name}: {count} bytes" for name, count in memory_stats().items()]
    return "\n".join(lines) or "no memory of a GPU is taken"


def reset_peak_memory_stats() -> None:
    """Warn that it changes nothing: the memory of networks only grows."""
    _changes_nothing("reset_peak_memory_stats", "networks hold their memory, and that is counted")


reset_max_memory_allocated = reset_max_memory_reserved = reset_peak_memory_stats


class DeviceProperties(NamedTuple):
    """Facts about a device."""

    name: str
    total_memory: int


def _target(function: str, device_target: Any) -> str:
    found = state.current().general.get("device_target") or "CPU" if device_target is None else device_target
    if found not in ("CPU", "GPU", "Ascend"):
        raise ApiValueError(f"{function}(): device_target must be 'CPU', 'GPU' or 'Ascend', not {describe(found)}")
    return found


def device_count(device_target: str | None = None) -> int:
    """Return the number of devices of a kind: 1 CPU, the GPUs that a rank may use, no Ascend."""
    target = _target("device_count", device_target)
    return _gpus() if target == "GPU" else int(target == "CPU")


def is_available(device_target: str) -> bool:
    """Return whether there is a device of this kind."""
    return device_count(device_target) > 0


is_initialized = is_available
"""No device is initialized by a script."""


def _check(function: str, device_id: int, device_target: str | None) -> str:
    target = _target(function, device_target)
    if not 0 <= device_id < device_count(target):
        raise ApiValueError(f"{function}(): there is no {target} {device_id}")
    return target


def get_device_name(device_id: int, device_target: str | None = None) -> str:
    """Return the name of a device; "CPU" for a CPU. Raise ValueError if there is no such device."""
    if _check("get_device_name", device_id, device_target) == "CPU":
        return "CPU"
    known = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))[device_id : device_id + 1]
    lines = [line for path in known for line in path.read_text().splitlines() if line.startswith("Model:")]
    return lines[0].partition(":")[2].strip() if lines else "GPU"


def get_device_properties(device_id: int, device_target: str | None = None) -> DeviceProperties:
    """Return (name, bytes of memory) of a CPU. Raise ValueError if there is no such device, or it is a GPU."""
    if _check("get_device_properties", device_id, device_target) == "GPU":
        raise ApiValueError("get_device_properties(): a GPU is not asked for them", ["nvidia-smi -q shows them"])
    return DeviceProperties("CPU", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def get_device_capability(device_id: int, device_target: str | None = None) -> tuple[int, int]:
    """Return (0, 0) for a CPU; only GPUs have a capability (major, minor). Raise ValueError if there is no such device,
    or it is a GPU."""
    get_device_properties(device_id, device_target)
    return 0, 0


def get_arch_list(device_target: str | None = None) -> list[str]:
    """Return the capabilities for which kernels are built in advance: none, because they are compiled for the GPU that
    runs them."""
    _target("get_arch_list", device_target)
    return []


def _gpus() -> int:
    return len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()])


_NUMBERS = itertools.count(2)
_KEY = "stream"


class _Synchronized:
    """A stream or an event, which is waited for with all steps."""

    def synchronize(self) -> None:
        """Wait for all steps under way; raises their errors."""
        synchronize()


class Stream(_Synchronized):
    """Stream of work; all of its work is always done. priority changes nothing."""

    def __init__(self, priority: int = 0, **kwargs: Any) -> None:
        unknown = next((name for name in kwargs if name not in ("stream", "stream_id", "device_id")), None)
        if unknown is not None:
            raise ApiTypeError(f"Stream: got an unexpected keyword argument {unknown!r}")
        self.id = kwargs.get("stream_id")
        if self.id is None:
            self.id = next(_NUMBERS)
            say_once(
                "streams",
                f"{place_of_caller()}streams and events have no effect: the work of a call is done when it "
                "returns, and steps run as their graph states",
            )

    @property
    def device_name(self) -> str:
        return state.current().general.get("device_target") or "CPU"

    @property
    def device_id(self) -> int:
        return state.current().general.get("device_id") or 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Stream(device_name={self.device_name}, device_id:{self.device_id}, stream id:{self.id})"

    def query(self) -> bool:
        """Return True: there is no work left."""
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that has happened."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Do nothing: the event has happened."""

    def wait_stream(self, stream: Stream) -> None:
        """Do nothing: the stream has no work left."""


class Event(_Synchronized):
    """Point in time. enable_timing: whether `elapsed_time` will be called; blocking changes nothing."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.enable_timing = enable_timing
        self.moment: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Record the current time, for any stream. Wait for all running steps if times are measured."""
        if self.enable_timing:
            synchronize()
        self.moment = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Do nothing: the event has happened."""

    def query(self) -> bool:
        """Return True: the event has happened."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to another. Raise RuntimeError if one of them has not been recorded,
        or was made without enable_timing."""
        if self.moment is None or end_event.moment is None or not (self.enable_timing and end_event.enable_timing):
            raise ApiRuntimeError("Event.elapsed_time: both events must have enable_timing=True, and be recorded")
        return (end_event.moment - self.moment) * 1000


def default_stream() -> Stream:
    """Return the stream of all work."""
    return Stream(stream_id=0)


def communication_stream() -> Stream:
    """Return the stream of collectives."""
    return Stream(stream_id=1)


def current_stream() -> Stream:
    """Return the stream that was set last, or the default stream."""
    return state.current().general.get(_KEY) or default_stream()


def set_cur_stream(stream: Stream) -> None:
    """Set the result of `current_stream`. Raise TypeError if it is no stream."""
    if not isinstance(stream, Stream):
        raise ApiTypeError(f"set_cur_stream(): stream must be a Stream, not {describe(stream)}")
    state.current().general[_KEY] = stream


class StreamCtx:
    """`with StreamCtx(stream):` makes it the current one; None changes nothing."""

    def __init__(self, ctx_stream: Stream | None) -> None:
        if ctx_stream is not None and not isinstance(ctx_stream, Stream):
            raise ApiTypeError(f"StreamCtx: ctx_stream must be a Stream or None, not {describe(ctx_stream)}")
        self.stream, self.before = ctx_stream, None

    def __enter__(self) -> None:
        self.before = current_stream()
        if self.stream is not None:
            set_cur_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            set_cur_stream(self.before)
