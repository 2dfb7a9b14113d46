"""Settings of data pipelines (`dataset.config`): seed, number of workers per node, number of rows read in advance."""

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
"""The seed that means "no seed", as in MindSpore."""


def set_seed(seed: int) -> None:
    """Set the seed of random operations in pipelines, and of NumPy's and Python's generators. With 5489 pipelines use
    the seed of `mindspore.set_seed`. Raise TypeError for no integer, ValueError for a negative or too large seed."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ApiTypeError(f"dataset.config.set_seed({seed!r}): the seed must be an integer")
    if not 0 <= seed < 2**32:
        raise ApiValueError(f"dataset.config.set_seed({seed!r}): the seed must be from 0 to 4294967295")
    state.current().dataset_seed = None if seed == UNSEEDED else seed
    np.random.seed(seed)
    random.seed(seed)


def get_seed() -> int:
    """Return the seed of pipelines, or 5489 before `set_seed`; pipelines then use the seed of `mindspore.set_seed`."""
    found = state.current().dataset_seed
    return UNSEEDED if found is None else found


def set_num_parallel_workers(num: int) -> None:
    """Set the number of threads for nodes without their own setting. Results do not depend on it. Raise TypeError or
    ValueError for no positive number."""
    _set("num_parallel_workers", num)


def get_num_parallel_workers() -> int:
    """Return the value of `set_num_parallel_workers`, or MindSpore's default."""
    return _get("num_parallel_workers")


def set_prefetch_size(size: int) -> None:
    """Set the number of rows, or batches, to read in advance, up to 256 MiB. Raise TypeError or ValueError for no
    positive number."""
    _set("prefetch_size", size)


def get_prefetch_size() -> int:
    """Return the value of `set_prefetch_size`, or MindSpore's default."""
    return _get("prefetch_size")


def set_enable_shared_mem(enable: bool) -> None:
    """Set whether workers share memory; a warning says that it changes nothing. Raise TypeError for no bool."""
    _set("enable_shared_mem", enable)


def get_enable_shared_mem() -> bool:
    """Return the value of `set_enable_shared_mem`, or MindSpore's default."""
    return _get("enable_shared_mem")


def set_numa_enable(enable: bool) -> None:
    """Set whether workers are bound to a NUMA node; a warning says that it changes nothing. Raise TypeError for no
    bool."""
    _set("numa_enable", enable)


def get_numa_enable() -> bool:
    """Return the value of `set_numa_enable`, or MindSpore's default."""
    return _get("numa_enable")


def set_enable_watchdog(enable: bool) -> None:
    """Set whether hanging workers are detected; a warning says that it changes nothing. Raise TypeError for no bool."""
    _set("enable_watchdog", enable)


def get_enable_watchdog() -> bool:
    """Return the value of `set_enable_watchdog`, or MindSpore's default."""
    return _get("enable_watchdog")


def set_multiprocessing_timeout_interval(interval: int) -> None:
    """Set after how many seconds a slow worker is reported; a warning says that it changes nothing. Raise TypeError or
    ValueError for no positive number."""
    _set("multiprocessing_timeout_interval", interval)


def get_multiprocessing_timeout_interval() -> int:
    """Return the value of `set_multiprocessing_timeout_interval`, or MindSpore's default."""
    return _get("multiprocessing_timeout_interval")


def set_monitor_sampling_interval(interval: int) -> None:
    """Set how often pipelines are sampled, in milliseconds; a warning says that it changes nothing. Raise TypeError or
    ValueError for no positive number."""
    _set("monitor_sampling_interval", interval)


def get_monitor_sampling_interval() -> int:
    """Return the value of `set_monitor_sampling_interval`, or MindSpore's default."""
    return _get("monitor_sampling_interval")


class ErrorSamplesMode(enum.IntEnum):
    """Treatment of rows that cannot be made."""

    RETURN = 0
    REPLACE = 1
    SKIP = 2


def set_enable_autotune(enable: bool, filepath_prefix: str | None = None) -> None:
    """Set whether a pipeline tunes its number of workers; a warning says that it changes nothing. No file with the
    prefix filepath_prefix is written. Raise TypeError for no bool."""
    _set("enable_autotune", enable)


def set_iterator_mode(do_copy: bool = False, parallel_convert: bool = False) -> None:
    """Set how iterators return arrays; a warning says that do_copy and parallel_convert change nothing."""
    state.current().general["iterator_mode"] = {"do_copy": do_copy, "parallel_convert": parallel_convert}
    if do_copy or parallel_convert:
        why = "an array that was handed out is not written again"
        say_once("iterator_mode", f"{place_of_caller()}dataset.config.set_iterator_mode() changes nothing here: {why}")


def set_debug_mode(debug_mode_flag: bool, debug_hook_list: list[Any] | None = None) -> None:
    """Set whether a pipeline is debugged; a warning says that it changes nothing. Raise TypeError for no bool,
    ValueError for hooks."""
    if debug_hook_list:
        raise ApiValueError("dataset.config.set_debug_mode: debug_hook_list is not supported",
                            ["a function in map() sees every row"])  # fmt: skip
    _set("debug_mode", debug_mode_flag)


def set_auto_num_workers(enable: bool) -> None:
    """Set whether a pipeline chooses its number of workers; a warning says that it changes nothing. Raise TypeError or
    ValueError for another value."""
    _set("auto_num_workers", enable)


def get_auto_num_workers() -> bool:
    """Return the value of `set_auto_num_workers`, or MindSpore's default."""
    return _get("auto_num_workers")


def set_auto_offload(offload: bool) -> None:
    """Set whether a device takes part in pipelines; a warning says that it changes nothing. Raise TypeError or
    ValueError for another value."""
    _set("auto_offload", offload)


def get_auto_offload() -> bool:
    """Return the value of `set_auto_offload`, or MindSpore's default."""
    return _get("auto_offload")


def set_autotune_interval(interval: int) -> None:
    """Set the number of steps between two tunings of the workers; a warning says that it changes nothing. Raise
    TypeError or ValueError for another value."""
    _set("autotune_interval", interval)


def get_autotune_interval() -> int:
    """Return the value of `set_autotune_interval`, or MindSpore's default."""
    return _get("autotune_interval")


def set_callback_timeout(timeout: int) -> None:
    """Set the timeout of callbacks in seconds; a warning says that it changes nothing. Raise TypeError or ValueError
    for another value."""
    _set("callback_timeout", timeout)


def get_callback_timeout() -> int:
    """Return the value of `set_callback_timeout`, or MindSpore's default."""
    return _get("callback_timeout")


def set_dynamic_shape(is_dynamic: bool) -> None:
    """Set whether rows have several shapes; a warning says that it changes nothing. Raise TypeError or ValueError for
    another value."""
    _set("dynamic_shape", is_dynamic)


def get_dynamic_shape() -> bool:
    """Return the value of `set_dynamic_shape`, or MindSpore's default."""
    return _get("dynamic_shape")


def set_error_samples_mode(error_samples_mode: Any) -> None:
    """Set the treatment of rows that cannot be made, an `ErrorSamplesMode`; a warning says that it changes nothing.
    Raise TypeError or ValueError for another value."""
    _set("error_samples_mode", error_samples_mode)


def get_error_samples_mode() -> Any:
    """Return the value of `set_error_samples_mode`, or MindSpore's default."""
    return _get("error_samples_mode")


def set_fast_recovery(fast_recovery: bool) -> None:
    """Set whether a resumed pipeline skips rows without computing them; a warning says that it changes nothing. Raise
    TypeError or ValueError for another value."""
    _set("fast_recovery", fast_recovery)


def get_fast_recovery() -> bool:
    """Return the value of `set_fast_recovery`, or MindSpore's default."""
    return _get("fast_recovery")


def set_multiprocessing_start_method(start_method: str = "fork") -> None:
    """Set how worker processes are started; a warning says that it changes nothing. Raise TypeError or ValueError for
    another value."""
    _set("multiprocessing_start_method", start_method)


def get_multiprocessing_start_method() -> str:
    """Return the value of `set_multiprocessing_start_method`, or MindSpore's default."""
    return _get("multiprocessing_start_method")


def set_video_backend(backend: str) -> None:
    """Set the decoder of videos; a warning says that it changes nothing. Raise TypeError or ValueError for another
    value."""
    _set("video_backend", backend)


def get_video_backend() -> str:
    """Return the value of `set_video_backend`, or MindSpore's default."""
    return _get("video_backend")


def get_enable_autotune() -> bool:
    """Return the value of `set_enable_autotune`, or MindSpore's default."""
    return _get("enable_autotune")


def get_iterator_mode() -> dict[str, bool]:
    """Return the value of `set_iterator_mode`, or MindSpore's default."""
    return state.current().general.get("iterator_mode", {"do_copy": False, "parallel_convert": False})


def get_debug_mode() -> bool:
    """Return the value of `set_debug_mode`, or MindSpore's default."""
    return _get("debug_mode")


def set_sending_batches(batch_num: int) -> None:
    """Set the number of batches sent to a device at once; a warning says that it changes nothing. Raise TypeError or
    ValueError for another value."""
    _set("sending_batches", batch_num)


def _set(name: str, value: Any) -> None:
    found = checked(f"dataset.config.set_{name}", DATASET, {name: value})
    state.current().general.setdefault(_KEY, {}).update(found)


def _get(name: str) -> Any:
    return state.current().general.get(_KEY, {}).get(name, DATASET[name].default)
