"""`shard`: a cell or function whose inputs are cut as said."""

from __future__ import annotations

from typing import Any

from mspc.ir.named_layout import NamedLayout
from mspc.nn.cell import Cell
from mspc.ops.primitive import check_strategy
from mspc.parallel.layout import Layout
from mspc.session.errors import ApiTypeError
from mspc.session.sharded import ShardedFunction

__all__ = ["Layout", "shard"]


def shard(fn: Any, in_strategy: Any, out_strategy: Any = None, parameter_plan: Any = None) -> ShardedFunction:
    """`fn`, its inputs cut by `in_strategy`, one tuple or Layout per tensor.

    Args:
        parameter_plan: how parameters of a Cell are cut, by name as "self.weight" or "weight".

    Raises:
        TypeError: `fn` is not callable, or a strategy is none. ValueError: a strategy is impossible.
    """
    if not isinstance(fn, Cell) and not callable(fn):
        raise ApiTypeError(f"shard takes a Cell or a function, not {type(fn).__name__}")
    if parameter_plan is not None and not isinstance(parameter_plan, dict):
        raise ApiTypeError(f"shard: parameter_plan must be a dict, not {parameter_plan!r}")
    plan: list[tuple[str, Any]] = []
    for name, strategy in (parameter_plan or {}).items():
        if not isinstance(name, str) or not isinstance(strategy, (tuple, NamedLayout)):
            raise ApiTypeError(
                f"shard: parameter_plan maps names to tuples or Layouts, not {name!r} to {strategy!r}"
            )
        plan.append((name.removeprefix("self."), strategy))
    return ShardedFunction(
        fn,
        check_strategy(in_strategy, "shard: in_strategy"),
        check_strategy(out_strategy, "shard: out_strategy"),
        tuple(plan),
    )
