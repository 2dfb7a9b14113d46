"""`parameter_plan` of `shard()` says how the parameters of a cell are sharded, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ir.layout import NamedLayout

Plan = tuple[tuple[Any, Any], ...]
"""(Parameter, strategy) in the order of the dict."""


def checked_plan(cell: Any, plan: Any, label: str) -> Plan:
    """The plan with the parameters themselves. Names are those of the parameters or paths of attributes, with "self."
    before them or not.

    Raises:
        TypeError: no dict of tuples or Layouts. ValueError: a parameter that the cell does not have, or a strategy that
            does not fit its shape.
    """
    if plan is None:
        return ()
    if not isinstance(plan, Mapping):
        raise ApiTypeError(f"{label}: parameter_plan must be a dict, not {plan!r}")
    known: dict[str, Any] = {}
    for path, parameter in cell.parameters_and_names():
        known.setdefault(parameter.name, parameter)
        known[path] = parameter
    found: list[tuple[Any, Any]] = []
    for name, strategy in cast("Mapping[Any, Any]", plan).items():
        strategy = _checked_strategy(name, strategy, label)
        parameter = known.get(name.removeprefix("self."))
        if parameter is None:
            raise ApiValueError(
                f"{label}: parameter_plan names {name!r}, which is no parameter of {type(cell).__name__}",
                [f"its parameters are {', '.join(known)}" if known else "it has none"],
            )
        _check_fit(name, strategy, tuple(parameter.shape), label)
        found.append((parameter, strategy))
    return tuple(found)


def _checked_strategy(name: Any, strategy: Any, label: str) -> Any:
    """A tuple of ints or a Layout, which may be in a tuple of its own."""
    if isinstance(strategy, tuple) and len(strategy) == 1 and isinstance(strategy[0], NamedLayout):
        strategy = strategy[0]
    cuts: Any = strategy.strategy if isinstance(strategy, NamedLayout) else strategy
    if not isinstance(name, str) or not isinstance(cuts, tuple) or not all(_is_shard_count(shards) for shards in cuts):
        raise ApiTypeError(
            f"{label}: parameter_plan maps names to tuples of integers or Layouts, not {name!r} to {strategy!r}",
            ['write {"self.weight": (2, 4)}'],
        )
    return strategy


def _is_shard_count(shards: Any) -> bool:
    return isinstance(shards, int) and not isinstance(shards, bool) and shards > 0


def _check_fit(name: str, strategy: Any, shape: tuple[int, ...], label: str) -> None:
    cuts: tuple[int, ...] = strategy.strategy if isinstance(strategy, NamedLayout) else strategy
    if len(cuts) != len(shape):
        raise ApiValueError(
            f"{label}: the strategy {cuts} of parameter {name!r} has {len(cuts)} entries for {len(shape)} dimensions",
            [f"its shape is {shape}"],
        )
    for dimension, (size, shards) in enumerate(zip(shape, cuts, strict=True)):
        if size % shards:
            raise ApiValueError(
                f"{label}: dimension {dimension} of parameter {name!r} is {size}, which {shards} does not divide",
                [f"its shape is {shape}, the strategy {cuts}"],
            )


def checked_layout(layout: Any) -> NamedLayout:
    """The placement of one tensor. Raises TypeError for anything else."""
    if not isinstance(layout, NamedLayout):
        raise ApiTypeError(
            f"reshard takes the layout of a tensor, not {layout!r}", ['write Layout((2, 4), ("dp", "mp"))("dp", "mp")']
        )
    return layout
