"""Checks of the values of settings: each takes a name and a value and returns the value to store."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from mspc.ir.diagnostics import all_of
from mspc.ir.layout import INTERLEAVED, NamedLayout
from mspc.mindspore_api.errors import ApiKeyError, ApiTypeError, ApiValueError
from mspc.ops.operator_arguments import describe

Check = Callable[[str, Any], Any]
"""Raises TypeError or ValueError, naming the setting, for a value that it cannot have."""


def one_of(*choices: Any) -> Check:
    def check(key: str, value: Any) -> Any:
        if value not in choices:
            raise ApiValueError(f"{key}={value!r} is not one of {', '.join(map(repr, choices))}")
        return value

    return check


def boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ApiTypeError(f"{key} must be True or False, not {value!r}")
    return value


def text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ApiTypeError(f"{key} must be a string, not {value!r}")
    return value


def mapping(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ApiTypeError(f"{key} must be a dict, not {value!r}")
    return dict(value)


def switch_or_names(key: str, value: Any) -> bool | str:
    """Return True, False, or a text of names."""
    return value if isinstance(value, str) else boolean(key, value)


def whole(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiTypeError(f"{key} must be an integer, not {value!r}")
    return value


def integer(low: int, high: int | None = None) -> Check:
    def check(key: str, value: Any) -> int:
        if whole(key, value) < low or (high is not None and value > high):
            limits = f"from {low} to {high}" if high is not None else f"at least {low}"
            raise ApiValueError(f"{key}={describe(value)} must be {limits}")
        return value

    return check


def integers(key: str, value: Any) -> list[int]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(i, int) for i in value):
        raise ApiTypeError(f"{key} must be a list of integers, not {value!r}")
    return list(value)


def anything(key: str, value: Any) -> Any:
    return value


def gigabytes(key: str, value: Any) -> str:
    if not re.fullmatch(r"\d+(\.\d+)?\s*GB", text(key, value)):
        raise ApiValueError(f"{key} {value!r} is not written like '28GB'")
    return value


def gigabytes_in_bytes(key: str, value: Any) -> int:
    return int(float(gigabytes(key, value).removesuffix("GB")) * (1 << 30))


SCHEDULES = ("gpipe", "1f1b", "zero_bubble_h1", "zero_bubble_2p", "zero_bubble_v", "dual_pipe_v")
"""Orders in which the stages of a pipeline work; the first two, and the V, are MindSpore's names."""
_SEQUENCES = ("seqpipe", "seqvpp", "seqsmartvpp")


TABLES = ".csv"
"""Suffix of files with a table of such an order."""


def schedule(key: str, value: Any) -> str:
    """Return the name of a pipeline schedule, or of the file of a table that defines one."""
    if text(key, value) in _SEQUENCES:
        raise ApiValueError(
            f"{key}={value!r} cuts sequences into parts, and micro-batches are the only parts here",
            ["write '1f1b', with pipeline_interleave=True if ranks have several parts of the network"],
        )
    if value not in SCHEDULES and not value.endswith(TABLES):
        raise ApiValueError(f"{key}={value!r} is no schedule; there are {all_of(value, SCHEDULES)}", code="E0504")
    return value


def share(key: str, value: Any) -> float:
    """Return a number above 0 and at most 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ApiTypeError(f"{key} must be a number, not {value!r}")
    if not 0 < value <= 1:
        raise ApiValueError(f"{key}={value} must be above 0 and at most 1")
    return float(value)


def prefetch(key: str, value: Any) -> str | int:
    """Return "Auto", or a number of operators from 1 on."""
    if isinstance(value, str):
        return one_of("Auto")(key, value)
    return integer(1)(key, value)


def host_or_disk(key: str, value: Any) -> str:
    """Return "cpu" or "disk", given in upper or lower case."""
    return one_of("cpu", "disk")(key, text(key, value).lower())


def known_keys(*known: str) -> Check:
    def check(key: str, value: Any) -> dict[str, Any]:
        for name in mapping(key, value):
            if name not in known:
                raise ApiValueError(f"{key} has no entry {name!r}; it takes {', '.join(known)}")
        return dict(value)

    return check


def save_graphs(key: str, value: Any) -> int:
    if isinstance(value, bool):
        return 2 if value else 0
    return integer(0, 3)(key, value)


def dataset_strategy(key: str, value: Any) -> str | tuple[Any, ...]:
    """Return "data_parallel", "full_batch", or one tuple of ints (or layout) for every input of the network."""
    if isinstance(value, str):
        return one_of("data_parallel", "full_batch")(key, value)
    if not isinstance(value, tuple):
        raise ApiTypeError(f"{key} must be a string or a tuple with one tuple or Layout per input, not {value!r}")
    for entry in value:
        if isinstance(entry, NamedLayout):
            if entry.interleaved > 1:
                raise ApiValueError(f"{key} takes no Layout with an axis {INTERLEAVED!r}")
            continue
        if not isinstance(entry, tuple) or not all(isinstance(shards, int) and shards > 0 for shards in entry):
            raise ApiTypeError(
                f"{key}: {entry!r} is neither a tuple of positive integers nor a Layout",
                ["write one entry per input, for example ((8, 1), (8, 1))"],
            )
    return value


_FUSED = ("openstate", "allreduce", "allgather", "reducescatter")


FUSED_BY_DEFAULT: dict[str, Any] = {"openstate": True} | {name: {"mode": "auto", "config": None} for name in _FUSED[1:]}
"""Default of `comm_fusion`."""


def comm_fusion(key: str, value: Any) -> dict[str, Any]:
    """Return {"openstate": bool, "allreduce": {"mode": "auto" | "size" | "index", "config": ...}, ...}."""
    example = [f'write {key}={{"allreduce": {{"mode": "size", "config": 32}}}}']
    for name, entry in mapping(key, value).items():
        if name == "openstate":
            boolean(f"{key}['openstate']", entry)
            continue
        if name not in _FUSED:
            raise ApiKeyError(f"{key} has no entry {name!r}; it takes {', '.join(_FUSED)}")
        what = f"{key}[{name!r}]"
        given = mapping(what, entry)
        if set(given) != {"mode", "config"}:
            raise ApiKeyError(f"{what} must have the keys 'mode' and 'config', not {list(given)}", example)
        modes = {"auto": "None", "size": "a number of MB"} | ({"index": "a list"} if name == "allreduce" else {})
        mode, config = given["mode"], given["config"]
        if mode not in modes:
            raise ApiKeyError(f"{what}: mode {mode!r} is not one of {', '.join(map(repr, modes))}", example)
        if mode == "size":
            integer(0)(f"{what}['config']", config)
        elif mode == "index":
            integers(f"{what}['config']", config)
        elif config is not None:
            raise ApiTypeError(f"{what}: config is {config!r}; mode 'auto' takes None", example)
    return dict(value)
