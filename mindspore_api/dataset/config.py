"""`dataset.config` has settings of data pipelines: their seed, how many workers share a stage, how far they read
ahead."""

from __future__ import annotations

import enum
import random
from typing import Any

import numpy as np

from mspc.mindspore_api import state
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.setting_kind import checked, place_of_caller, say_once
from mspc.mindspore_api.settings import DATASET

_KEY = "dataset"
UNSEEDED = 5489
"""The seed that stands for none, as in MindSpore."""


def set_seed(seed: int) -> None:
    """Seed of all that is random in pipelines, none for 5489, and of NumPy's and Python's generators. Raises TypeError
    for no integer, ValueError for a negative or too large seed."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ApiTypeError(f"dataset.config.set_seed({seed!r}): the seed must be an integer")
    if not 0 <= seed < 2**32:
        raise ApiValueError(f"dataset.config.set_seed({seed!r}): the seed must be from 0 to 4294967295")
    state.current().dataset_seed = None if seed == UNSEEDED else seed
    np.random.seed(seed)
    random.seed(seed)


def get_seed() -> int:
    """The seed of pipelines; 5489, with which every pipeline draws otherwise, before `set_seed`."""
    found = state.current().dataset_seed
    return UNSEEDED if found is None else found


def set_num_parallel_workers(num: int) -> None:
    """How many threads share a stage that says nothing itself; what they make does not depend on it. Raises
    TypeError or ValueError for no positive number."""
    _set("num_parallel_workers", num)


def get_num_parallel_workers() -> int:
    """What `set_num_parallel_workers` has set, or MindSpore's default."""
    return _get("num_parallel_workers")


def set_prefetch_size(size: int) -> None:
    """How many rows, or batches, are read ahead, up to 256 MiB of them. Raises TypeError or ValueError for no positive
    number."""
    _set("prefetch_size", size)


def get_prefetch_size() -> int:
    """What `set_prefetch_size` has set, or MindSpore's default."""
    return _get("prefetch_size")


def set_enable_shared_mem(enable: bool) -> None:
    """Whether workers share memory; says that it changes nothing. Raises TypeError for no bool."""
    _set("enable_shared_mem", enable)


def get_enable_shared_mem() -> bool:
    """What `set_enable_shared_mem` has set, or MindSpore's default."""
    return _get("enable_shared_mem")


def set_numa_enable(enable: bool) -> None:
    """Whether workers stay with one part of the memory; says that it changes nothing. Raises TypeError for no bool."""
    _set("numa_enable", enable)


def get_numa_enable() -> bool:
    """What `set_numa_enable` has set, or MindSpore's default."""
    return _get("numa_enable")


def set_enable_watchdog(enable: bool) -> None:
    """Whether workers that hang are looked for; says that it changes nothing. Raises TypeError for no bool."""
    _set("enable_watchdog", enable)


def get_enable_watchdog() -> bool:
    """What `set_enable_watchdog` has set, or MindSpore's default."""
    return _get("enable_watchdog")


def set_multiprocessing_timeout_interval(interval: int) -> None:
    """After how many seconds a slow worker is spoken of; says that it changes nothing. Raises
    TypeError or ValueError for no positive number."""
    _set("multiprocessing_timeout_interval", interval)


def get_multiprocessing_timeout_interval() -> int:
    """What `set_multiprocessing_timeout_interval` has set, or MindSpore's default."""
    return _get("multiprocessing_timeout_interval")


def set_monitor_sampling_interval(interval: int) -> None:
    """How often pipelines are watched, in milliseconds; says that it changes nothing. Raises
    TypeError or ValueError for no positive number."""
    _set("monitor_sampling_interval", interval)


def get_monitor_sampling_interval() -> int:
    """What `set_monitor_sampling_interval` has set, or MindSpore's default."""
    return _get("monitor_sampling_interval")


class ErrorSamplesMode(enum.IntEnum):
    """What becomes of rows that cannot be made."""

    RETURN = 0
    REPLACE = 1
    SKIP = 2


def set_enable_autotune(enable: bool, filepath_prefix: str | None = None) -> None:
    """Whether a pipeline chooses its workers; says that it changes nothing, and writes no file that begins with
    filepath_prefix. Raises TypeError for no bool."""
    _set("enable_autotune", enable)


def set_iterator_mode(do_copy: bool = False, parallel_convert: bool = False) -> None:
    """How iterators hand arrays out; says that do_copy and parallel_convert change nothing."""
    state.current().general["iterator_mode"] = {"do_copy": do_copy, "parallel_convert": parallel_convert}
    if do_copy or parallel_convert:
        why = "an array that was handed out is not written again"
        say_once("iterator_mode", f"{place_of_caller()}dataset.config.set_iterator_mode() changes nothing here: {why}")


def set_debug_mode(debug_mode_flag: bool, debug_hook_list: list[Any] | None = None) -> None:
    """Whether a pipeline is debugged; says that it changes nothing. Raises TypeError for no bool, ValueError for
    hooks."""
    if debug_hook_list:
        raise ApiValueError("dataset.config.set_debug_mode: debug_hook_list is not supported",
                            ["a function in map() sees every row"])  # fmt: skip
    _set("debug_mode", debug_mode_flag)


def set_auto_num_workers(enable: bool) -> None:
    """Whether a pipeline chooses its workers; says that it changes nothing. Raises TypeError or
    ValueError for another value."""
    _set("auto_num_workers", enable)


def get_auto_num_workers() -> bool:
    """What `set_auto_num_workers` has set, or MindSpore's default."""
    return _get("auto_num_workers")


def set_auto_offload(offload: bool) -> None:
    """Whether a device takes part in pipelines; says that it changes nothing. Raises TypeError or
    ValueError for another value."""
    _set("auto_offload", offload)


def get_auto_offload() -> bool:
    """What `set_auto_offload` has set, or MindSpore's default."""
    return _get("auto_offload")


def set_autotune_interval(interval: int) -> None:
    """After how many steps a pipeline chooses its workers anew; says that it changes nothing. Raises TypeError or
    ValueError for another value."""
    _set("autotune_interval", interval)


def get_autotune_interval() -> int:
    """What `set_autotune_interval` has set, or MindSpore's default."""
    return _get("autotune_interval")


def set_callback_timeout(timeout: int) -> None:
    """How many seconds a callback may take; says that it changes nothing. Raises TypeError or
    ValueError for another value."""
    _set("callback_timeout", timeout)


def get_callback_timeout() -> int:
    """What `set_callback_timeout` has set, or MindSpore's default."""
    return _get("callback_timeout")


def set_dynamic_shape(is_dynamic: bool) -> None:
    """Whether rows have several shapes; says that it changes nothing. Raises TypeError or
    ValueError for another value."""
    _set("dynamic_shape", is_dynamic)


def get_dynamic_shape() -> bool:
    """What `set_dynamic_shape` has set, or MindSpore's default."""
    return _get("dynamic_shape")


def set_error_samples_mode(error_samples_mode: Any) -> None:
    """What becomes of rows that cannot be made, an `ErrorSamplesMode`; says that it changes nothing. Raises TypeError
    or ValueError for another value."""
    _set("error_samples_mode", error_samples_mode)


def get_error_samples_mode() -> Any:
    """What `set_error_samples_mode` has set, or MindSpore's default."""
    return _get("error_samples_mode")


def set_fast_recovery(fast_recovery: bool) -> None:
    """Whether a pipeline that continues skips what it has handed out; says that it changes nothing. Raises TypeError or
    ValueError for another value."""
    _set("fast_recovery", fast_recovery)


def get_fast_recovery() -> bool:
    """What `set_fast_recovery` has set, or MindSpore's default."""
    return _get("fast_recovery")


def set_multiprocessing_start_method(start_method: str = "fork") -> None:
    """How worker processes are started; says that it changes nothing. Raises TypeError or
    ValueError for another value."""
    _set("multiprocessing_start_method", start_method)


def get_multiprocessing_start_method() -> str:
    """What `set_multiprocessing_start_method` has set, or MindSpore's default."""
    return _get("multiprocessing_start_method")


def set_video_backend(backend: str) -> None:
    """What takes videos apart; says that it changes nothing. Raises TypeError or ValueError for another value."""
    _set("video_backend", backend)


def get_video_backend() -> str:
    """What `set_video_backend` has set, or MindSpore's default."""
    return _get("video_backend")


def get_enable_autotune() -> bool:
    """What `set_enable_autotune` has set, or MindSpore's default."""
    return _get("enable_autotune")


def get_iterator_mode() -> dict[str, bool]:
    """What `set_iterator_mode` has set, or MindSpore's default."""
    return state.current().general.get("iterator_mode", {"do_copy": False, "parallel_convert": False})


def get_debug_mode() -> bool:
    """What `set_debug_mode` has set, or MindSpore's default."""
    return _get("debug_mode")


def set_sending_batches(batch_num: int) -> None:
    """How many batches go to a device at once; says that it changes nothing. Raises TypeError or ValueError for another
    value."""
    _set("sending_batches", batch_num)


def _set(name: str, value: Any) -> None:
    found = checked(f"dataset.config.set_{name}", DATASET, {name: value})
    state.current().general.setdefault(_KEY, {}).update(found)


def _get(name: str) -> Any:
    return state.current().general.get(_KEY, {}).get(name, DATASET[name].default)
