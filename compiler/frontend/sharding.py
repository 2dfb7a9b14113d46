"""Compiles strategies of complete cells and functions: `cell.shard(...)` and `shard(fn, ...)`.

They shard the tensors that go in and out. Such a tensor passes through a ShardingConstraint; the operators inside take
their strategies from it by propagation. Parameters that a plan names are read in the same way.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Sequence
from typing import Any

from mspc.compiler.frontend.state import Tracer
from mspc.ir.graph import Value
from mspc.ops.control.structural import constrained

INSTANCE = "shard"
"""Instance name of the operators that carry the strategies."""


def is_sharded_function(fn: Any) -> bool:
    """Whether `fn` is what `shard(function, strategies)` gives: the function beside its strategies."""
    return hasattr(fn, "fn") and hasattr(fn, "in_strategy") and hasattr(fn, "parameter_plan")


def shard_values(tracer: Tracer, values: Any, strategy: tuple[Any, ...] | None, what: str) -> Any:
    """`values`, a sequence or a single tensor, with one entry of the strategy for every tensor in order.

    Raises:
        MspcError: there are more entries than tensors.
    """
    if strategy is None:
        return values
    if not tracer.sharded:
        tracer.keep(strategy)
        tracer.ignored.add(id(strategy))
        return values
    several = isinstance(values, list | tuple)
    items: Sequence[Any] = values if several else [values]
    tensors = [i for i, value in enumerate(items) if tracer.is_tensor(value)]
    if len(strategy) > len(tensors):
        raise tracer.error(f"{what} has {len(strategy)} entries, but there are {len(tensors)} tensors")
    found = list(items)
    for i, entry in zip(tensors, strategy, strict=False):
        found[i] = marked(tracer, tracer.value(found[i]), entry)
    return type(values)(found) if several else found[0]


def marked(tracer: Tracer, value: Value, entry: Any) -> Value:
    """`value` through a ShardingConstraint that carries the strategy `entry`."""
    return constrained(tracer.builder, value, entry, INSTANCE)


@contextlib.contextmanager
def planned(tracer: Tracer, plan: Sequence[tuple[Any, Any]]) -> Generator[None]:
    """While a cell is traced, its parameters are read with the strategies that its `parameter_plan` gives them."""
    if not plan or not tracer.sharded:
        yield
        return
    before = tracer.parameter_readers
    readers = {id(parameter): functools.partial(marked, tracer, entry=entry) for parameter, entry in plan}
    tracer.parameter_readers = {**before, **readers}
    try:
        yield
    finally:
        tracer.parameter_readers = before


@contextlib.contextmanager
def within(tracer: Tracer, fn: Any) -> Generator[None]:
    """While what `shard()` gave is traced, its parameters are read by its plan.

    Raises:
        MspcError: another one calls it, in PyNative mode. The rule is MindSpore's.
    """
    if tracer.in_shard and fn.in_pynative:
        raise tracer.error(
            "a function that shard() gave calls another one, which PyNative mode does not take",
            ["shard one of them, or set_context(mode=GRAPH_MODE) before both are made"],
            kind=RuntimeError,
        )
    before, tracer.in_shard = tracer.in_shard, True
    try:
        with planned(tracer, fn.parameter_plan):
            yield
    finally:
        tracer.in_shard = before
