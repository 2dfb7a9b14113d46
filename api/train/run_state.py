"""The state of a run beside its parameters is its place in epochs, steps and data, and its random numbers, as JSON."""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np

from mspc.api import call_handler, state

__all__: tuple[str, ...] = ()

COUNTERS = ("initializers", "shuffles", "dropouts", "draws")
"""Counters of a session from which seeds are made."""
SEEDS = ("seed", "dataset_seed")
_WORDS = 624
"""Words of the state of a Mersenne twister."""


def state_of(param: Any) -> dict[str, Any]:
    """The state of a run, equal on all ranks, of what callbacks are told at the end of a step."""
    session, found = state.current(), call_handler.installed()
    batches = int(param.batch_num)
    counted = getattr(found, "steps", dict)()
    return {
        "epoch": int(param.cur_epoch_num),
        "step": (int(param.cur_step_num) - 1) % batches + 1,
        "batches": batches,
        "total_step": int(param.cur_step_num),
        "data": param.get("dataset_position"),
        "graph_steps": counted,
        "counters": {name: getattr(session, name) for name in COUNTERS},
        "seeds": {name: getattr(session, name) for name in SEEDS},
    }


def state_of_rank() -> dict[str, Any]:
    """The state of this rank alone: NumPy's and Python's generators."""
    name, keys, place, has_gauss, gauss = cast(tuple[Any, ...], np.random.get_state(legacy=True))
    version, numbers, next_gauss = random.getstate()
    found: dict[str, Any] = {"python": [version, np.array(numbers, ">u4").tobytes().hex(), next_gauss]}
    if name == "MT19937":
        found["numpy"] = [np.array(keys, ">u4").tobytes().hex(), int(place), int(has_gauss), float(gauss)]
    return found


def restore(saved: dict[str, Any], of_rank: dict[str, Any]) -> None:
    """Put back seeds, counters and generators. Raises ValueError, TypeError or KeyError for what is no such state."""
    session = state.current()
    for name in COUNTERS:
        setattr(session, name, _integer(saved["counters"][name]))
    for name in SEEDS:
        value = saved["seeds"][name]
        setattr(session, name, None if value is None else _integer(value))
    going_on = getattr(call_handler.current(), "go_on_from", None)
    if going_on is not None:
        going_on({str(key): _integer(value) for key, value in saved["graph_steps"].items()})
    if "numpy" in of_rank:
        keys, place, has_gauss, gauss = of_rank["numpy"]
        if not 0 <= _integer(place) <= _WORDS:  # NumPy would read beyond the words
            raise ValueError(f"place {place} of {_WORDS} random numbers")
        np.random.set_state(("MT19937", _words(keys), place, int(bool(has_gauss)), float(gauss)))
    if "python" in of_rank:
        version, numbers, next_gauss = of_rank["python"]
        next_gauss = None if next_gauss is None else float(next_gauss)
        random.setstate((version, tuple(map(int, _words(numbers))), next_gauss))


def _words(text: str) -> Any:
    return np.frombuffer(bytes.fromhex(text), ">u4").astype(np.uint32)


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no integer")
    return value
