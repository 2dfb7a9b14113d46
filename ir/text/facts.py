"""Table of the further facts of a file that mspc itself reads, and of their valid values. Other facts are stored
unchecked."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.limits import MAX_RANKS


@dataclass(frozen=True)
class Fact:
    """A check of a value in a file. what: description of the valid values in messages."""

    what: str
    fits: Callable[[Any], bool]


def _integer(least: int, most: int = 1 << 62) -> Fact:
    bounds = f"an integer from {least} to {most}" if most < 1 << 62 else f"an integer of at least {least}"
    return Fact(bounds, lambda value: type(value) is int and least <= value <= most)


def _of(kind: type, what: str) -> Fact:
    return Fact(what, lambda value: isinstance(value, kind))


_TEXT = _of(str, "a string")
_SWITCH = _of(bool, "true or false")
_TEXTS = Fact("a tuple of strings", lambda value: isinstance(value, tuple) and all(isinstance(v, str) for v in value))  # pyright: ignore[reportUnknownVariableType]  # of values of every kind

_ENTRIES = Fact(
    "a tuple of names, each with its texts",
    lambda value: isinstance(value, tuple) and all(_TEXTS.fits(entry) and entry for entry in value),  # pyright: ignore[reportUnknownVariableType]  # of values of every kind
)
_COUNTS = Fact(
    "a tuple of names, each with a number",
    lambda value: isinstance(value, tuple)
    and all(isinstance(e, tuple) and tuple(map(type, e)) == (str, int) for e in value),  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # of values of every kind
)
_MESH = re.compile("[1-9][0-9]{0,9}(x[1-9][0-9]{0,9}){0,7}", re.ASCII)

HEADER: Mapping[str, Fact] = {
    **dict.fromkeys(("mode", "outputs", "compile_id", "optimizer_level", "search_mode", "plan_file"), _TEXT),
    **dict.fromkeys((
        "matmul_allow_tf32", "gradients_mean", "gradient_fp32_sync", "force_fp32_communication", "parallel_optimizer",
        "recompute_cells", "plan_offload_states",
    ), _SWITCH),
    "ranks": _integer(1, MAX_RANKS),
    "rank": _integer(0, MAX_RANKS - 1),
    **dict.fromkeys((
        "gradient_bucket", "parallel_optimizer_threshold", "search_bound", "search_cost", "search_latency",
        "search_touch", "search_compute", "search_compute_half", "search_held", "search_network",
        "search_milliseconds",
    ), _integer(0)),
    **dict.fromkeys(("optimizer_weight_shard_size", "search_memory"), _integer(-1)),
    "search_open": _integer(0, 1_000_000),
    "search_hosts": _integer(0, MAX_RANKS),
    "search_mesh": Fact("sizes of axes as in 8x4", lambda v: isinstance(v, str) and bool(_MESH.fullmatch(v))),
    **dict.fromkeys(("plan_operators", "plan_results", "plan_parameters", "plan_loops"), _ENTRIES),
    **dict.fromkeys(("plan_recompute", "plan_gather_again", "plan_offload"), _TEXTS),
    "plan_places": _COUNTS,
}
"""Facts in the lines `key : value` above the parameters."""

NODE: Mapping[str, Fact] = {
    "fused": _TEXTS,
    "gradient_for": _TEXT,
    "reason": _TEXT,
    "rows": _TEXT,
    "strategy_from": _TEXT,
    "stream": _TEXT,
    "unused": _SWITCH,
    "kept": _SWITCH,
    "keeps_communication": _SWITCH,
    "gathers_again": _SWITCH,
}
"""Facts in `cnode_attrs` after a node."""

SWITCHES = frozenset(key for key, fact in NODE.items() if fact is _SWITCH)
"""Boolean facts; a node that replaces several nodes has such a fact if any of them had it."""

PHASES = ("forward", "backward", "update")
"""Valid values of `phase` in `cnode_attrs`."""


def mistake(facts: Mapping[str, Fact], key: str, value: Any) -> str:
    """Return a message about an invalid value of a fact, or "" if it is valid or the fact is unknown."""
    fact = facts.get(key)
    return "" if fact is None or fact.fits(value) else f"{key} is {shown(value)}, not {fact.what}"


def shown(value: Any, most: int = 60) -> str:
    """Return a value for a message, cut after `most` characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class AttributeField:
    """One field of an operator: its name, its annotation for human readers, and the check of a value."""

    name: str
    annotation: str
    fits: Check


@cache
def fields_of(cls: type) -> Mapping[str, AttributeField]:
    """Return the fields of an operator class by name, in the order of their declaration."""
    names = {field.name for field in dataclasses.fields(cls)}
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        annotations = inspect.get_annotations(base)
        own = {n: kind for n, kind in annotations.items() if n in names and not str(kind).startswith("ClassVar")}
        if own:  # annotations of class variables are not evaluated: there are far more, and each costs as much
            holder = types.SimpleNamespace(__annotations__=own)
            hints |= typing.get_type_hints(holder, vars(sys.modules[base.__module__]))
    return {
        f.name: AttributeField(f.name, f.type if isinstance(f.type, str) else str(f.type), check_of(hints[f.name]))
        for f in dataclasses.fields(cls)
    }


def check_of(annotation: Any) -> Check:
    """Return a check of values against an annotation; for unknown annotations it accepts any value."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return lambda value: value is None
    if annotation is float:
        return lambda value: isinstance(value, float | int) and not isinstance(value, bool)
    if annotation is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if origin is tuple:
        return _tuple_check(args)
    if annotation is tuple:
        return lambda value: isinstance(value, tuple)
    if origin in (typing.Union, types.UnionType):
        checks = [check_of(arg) for arg in args]
        return lambda value: any(check(value) for check in checks)
    if origin is typing.Literal:
        return lambda value: value in args
    if annotation in (bool, str) or (isinstance(annotation, type) and dataclasses.is_dataclass(annotation)):
        return lambda value: isinstance(value, annotation)
    return lambda value: True


def _tuple_check(args: tuple[Any, ...]) -> Check:
    if len(args) == 2 and args[1] is Ellipsis:
        check = check_of(args[0])
        return lambda value: isinstance(value, tuple) and all(map(check, cast("tuple[Any, ...]", value)))
    checks = [check_of(arg) for arg in args if arg != ()]

    def fits(value: Any) -> bool:
        members = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else None
        if members is None or len(members) != len(checks):
            return False
        return all(check(member) for check, member in zip(checks, members, strict=True))

    return fits
