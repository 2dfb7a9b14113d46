"""`mindspore.runtime` has settings of device memory, which are checked and change nothing, as a warning says; it waits
for a GPU, tells the memory taken there, and says which device a script wants."""

from __future__ import annotations

from typing import Any, NamedTuple

from mspc.api import call_handler, state
from mspc.api.context import set_context
from mspc.api.errors import ApiTypeError
from mspc.api.hal.stream import (
    Event,
    Stream,
    StreamCtx,
    communication_stream,
    current_stream,
    default_stream,
    set_cur_stream,
)
from mspc.api.setting_kind import checked, say_once
from mspc.api.settings import DEVICE_MEMORY
from mspc.ops.operator_arguments import describe

__all__ = [
    "Event", "Stream", "StreamCtx", "communication_stream", "current_stream", "default_stream",
    "dispatch_threads_num", "empty_cache", "get_current_device", "launch_blocking", "max_memory_allocated",
    "max_memory_reserved", "memory_allocated", "memory_reserved", "memory_stats", "memory_summary",
    "reset_max_memory_allocated", "reset_max_memory_reserved", "reset_peak_memory_stats", "set_cpu_affinity",
    "set_cur_stream", "set_deterministic", "set_device", "set_kernel_launch_capture", "set_kernel_launch_group",
    "set_memory", "synchronize",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


def asked_device() -> dict[str, Any]:
    """What the script has set of its device: `device` ("cpu", "gpu", "" where it says nothing), `how` it said that,
    `index` of the device or None, whether runs must be `deterministic`, and the lines that say so: `place`,
    `index_place`.

    "Ascend" says nothing here: such a script runs on what there is.
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
    """Limits of device memory, each as "28GB"; says that they change nothing.

    Raises:
        TypeError, ValueError: a size is not written like that.
    """
    sizes = {"init_size": init_size, "increase_size": increase_size, "max_size": max_size}
    levels = {"optimize_level": optimize_level, "huge_page_reserve_size": huge_page_reserve_size}
    checked("runtime.set_memory", DEVICE_MEMORY, sizes | levels)


def set_device(device_target: str, device_id: int = 0) -> None:
    """Choose a device, as `set_context(device_target=..., device_id=...)`. Raises ValueError for
    an unknown one.
    """
    set_context(device_target=device_target, device_id=device_id)


class CurrentDevice(NamedTuple):
    """Kind and number of a device."""

    device_target: str
    device_id: int


def get_current_device() -> CurrentDevice:
    """What device the script asks for, else the CPU."""
    asked = asked_device()
    return CurrentDevice((asked["device"] or "cpu").upper(), asked["index"] or 0)


def set_deterministic(deterministic: bool) -> None:
    """Whether a run must give the same numbers every time, as `set_context(deterministic="ON")`. Raises TypeError for
    what is neither True nor False."""
    if not isinstance(deterministic, bool):
        raise ApiTypeError(f"set_deterministic(): deterministic must be True or False, not {describe(deterministic)}")
    set_context(deterministic="ON" if deterministic else "OFF")


def _changes_nothing(name: str, why: str) -> None:
    say_once(f"runtime.{name}", f"runtime.{name}() changes nothing here: {why}")


def launch_blocking() -> None:
    """Says that it changes nothing: errors name their operator also where steps are replayed."""
    _changes_nothing("launch_blocking", "errors name their operator also where steps are replayed")


def empty_cache() -> None:
    """Says that it changes nothing: networks take their memory once."""
    _changes_nothing("empty_cache", "the memory of a network is planned when it is compiled, and taken once")


def set_cpu_affinity(
    enable_affinity: bool, affinity_cpu_list: Any = None, module_to_cpu_dict: Any = None, bind_file: Any = None
) -> None:
    """Says that it changes nothing, whatever enable_affinity, affinity_cpu_list, module_to_cpu_dict and bind_file are:
    the launcher binds ranks to cores."""
    _changes_nothing("set_cpu_affinity", "mpirun and `mspc launch` bind ranks to cores")


def dispatch_threads_num(threads_num: int) -> None:
    """Says that it changes nothing, whatever threads_num is: one thread starts the kernels of a rank."""
    _changes_nothing("dispatch_threads_num", "one thread starts the kernels of a rank")


def set_kernel_launch_group(thread_num: int = 2, kernel_group_num: int = 8) -> None:
    """Says that it changes nothing, whatever thread_num and kernel_group_num are: one thread starts kernels."""
    _changes_nothing("set_kernel_launch_group", "one thread starts the kernels of a rank")


def set_kernel_launch_capture(enable_capture_graph: bool, op_capture_skip: Any = None) -> None:
    """Says that it changes nothing, whatever enable_capture_graph and op_capture_skip are: steps on GPUs are captured
    where they can be."""
    _changes_nothing("set_kernel_launch_capture", "steps on a GPU are captured and replayed wherever they can be")


def synchronize() -> None:
    """Wait for all steps under way on a GPU; raises what they raise. On the CPU results are complete when a call
    returns."""
    found = call_handler.installed()
    if found is not None:
        found.synchronize()


def max_memory_allocated(*_: Any) -> int:
    """Bytes of the GPU that this rank's networks have taken at most; 0 on the CPU."""
    found = call_handler.installed()
    return 0 if found is None else found.most_memory()


def max_memory_reserved() -> int:
    """The same as `max_memory_allocated`: what is taken is used."""
    return max_memory_allocated()


def memory_allocated() -> int:
    """The same as `max_memory_allocated`: networks give nothing back before the script ends."""
    return max_memory_allocated()


def memory_reserved() -> int:
    """The same as `max_memory_allocated`."""
    return max_memory_allocated()


def memory_stats() -> dict[str, int]:
    """Bytes taken by this rank's networks on a GPU; none on the CPU, as in MindSpore."""
    most = max_memory_allocated()
    return {"total_reserved_memory": most, "total_allocated_memory": most, "max_allocated_memory": most} if most else {}


def memory_summary() -> str:
    """`memory_stats` as lines of text."""
    lines = [f"{name}: {count} bytes" for name, count in memory_stats().items()]
    return "\n".join(lines) or "no memory of a GPU is taken"


def reset_peak_memory_stats() -> None:
    """Says that it changes nothing: the memory of networks grows alone."""
    _changes_nothing("reset_peak_memory_stats", "networks keep the memory that they took, which is what is counted")


def reset_max_memory_allocated() -> None:
    """See `reset_peak_memory_stats`."""
    reset_peak_memory_stats()


def reset_max_memory_reserved() -> None:
    """See `reset_peak_memory_stats`."""
    reset_peak_memory_stats()
