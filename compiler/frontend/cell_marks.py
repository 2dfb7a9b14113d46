"""Settings of cells applied to their operators: stages, recomputation, offload, mixed precision, and `shard`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from mspc.compiler.frontend.state import Tracer
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import OFFLOAD, OFFLOAD_INSIDE, STAGE, Node, Value
from mspc.ir.temporary import temporarily
from mspc.ir.types import DType, TensorType, dtype_of
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.cell import Cell
from mspc.ops.control.structural import constrained


def scope_of(tracer: Tracer, scope: str, cell: Cell) -> str:
    """Return the scope of a cell called in another one."""
    label = tracer.cell_names.get(id(cell), "")
    return f"{scope}/{f'{label}-' if label else ''}{type(cell).__name__}"


def stage_of(tracer: Tracer, scope: str, cell: Cell) -> int | None:
    """Return the stage of a cell called in `scope`, with a plan its chunk, or None."""
    if tracer.planned.plan is None:
        return cell.pipeline_stage
    return tracer.planned.chunk_of(scope_of(tracer, scope, cell))


def note_stage(tracer: Tracer, cell: Cell, stage: int, nodes: Iterable[Node]) -> None:
    """Assign the stage of a cell to its operators, except those of inner cells with a stage of their own. Raise
    MspcError if there is no such stage."""
    if stage >= tracer.stages and tracer.planned.plan is None:
        raise MspcError(
            f"{type(cell).__name__} is of stage {stage}, and there are stages 0 to {tracer.stages - 1}",
            cell.pipeline_stage_place, [f"pipeline_stages is {tracer.stages}"], kind=ValueError, code="E0502",
        )  # fmt: skip
    for node in nodes:
        node.attrs.setdefault(STAGE, stage)


def mark(tracer: Tracer, cell: Cell, first: int) -> None:
    """Apply the flags of a cell to its nodes, from number `first` on. Flags of inner cells take precedence."""
    flags, asked = cell.get_flags(), dict[str, Any]()
    if flags.get("recompute"):
        asked["recompute"] = f"{tracer.builder.scope}, call {first}"
        options = flags.get("recompute_options") or {}
        if not options.get("mp_comm_recompute", True):
            asked["keeps_communication"] = True
        if options.get("parallel_optimizer_comm_recompute"):
            asked["gathers_again"] = True
    if flags.get("strategy_gen_mode"):
        asked["strategy_gen_mode"] = flags["strategy_gen_mode"]
    if flags.get(OFFLOAD) or flags.get(OFFLOAD_INSIDE):
        own = f", {flags.get(OFFLOAD_INSIDE)}"
        if flags.get(OFFLOAD):
            own = f"{scope_of(tracer, tracer.builder.scope, cell)}, {flags[OFFLOAD]}"
        for made in tracer.builder.nodes[first:]:
            if made.phase == "forward" and str(made.attrs.get(OFFLOAD, ", ")).startswith(", "):
                made.attrs[OFFLOAD] = own
    stage = stage_of(tracer, tracer.builder.scope, cell) if tracer.stages > 1 else None
    if stage is not None:
        note_stage(tracer, cell, stage, tracer.builder.nodes[first:])
    for made in tracer.builder.nodes[first:] if asked else ():
        if made.phase == "forward":
            decided = {"recompute": False} if made.attrs.get("recompute") is False else {}
            made.attrs |= asked | decided


def as_float(tracer: Tracer, value: Any, dtype: DType) -> Any:
    """Return `value` with its floating-point tensors cast to `dtype`, also in tuples and dicts."""
    if isinstance(value, tuple | list):
        items = [as_float(tracer, item, dtype) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: as_float(tracer, item, dtype) for key, item in value.items()}
    if isinstance(value, Tensor | np.ndarray):
        if not dtype_of(value.dtype).is_float or dtype_of(value.dtype) == dtype:
            return value
        return tracer.cast(tracer.value(value), dtype)
    if not isinstance(value, Value) or not isinstance(value.type, TensorType) or not value.type.dtype.is_float:
        return value
    return tracer.cast(value, dtype)


def attribute_as_float(tracer: Tracer, found: Any, dtype: DType, name: str) -> Any:
    """Return a cell's parameter as its operators read it. A constant tensor is rounded once, at compile time."""
    if isinstance(found, Parameter):
        return tracer.cast(tracer.value(found), dtype) if found.dtype.is_float else found
    kind = dtype_of(found.dtype)
    if not kind.is_float or kind == dtype:
        return found
    key = (id(found), dtype)
    if key not in tracer.rounded:
        tracer.keep(found)
        array = found.array if isinstance(found, Tensor) else found
        tracer.rounded[key] = Tensor(np.asarray(array).astype(dtype.numpy))
        tracer.tensor_names[id(tracer.rounded[key])] = name
    return tracer.rounded[key]


INSTANCE = "shard"
"""Instance name of the operators that carry the strategies."""


def is_sharded_function(fn: Any) -> bool:
    """Return whether `fn` is the result of `shard(function, strategies)`: a function with its strategies."""
    return hasattr(fn, "fn") and hasattr(fn, "in_strategy") and hasattr(fn, "parameter_plan")


def shard_values(tracer: Tracer, values: Any, strategy: tuple[Any, ...] | None, what: str) -> Any:
    """Apply one entry of the strategy to each tensor in `values`, a sequence or a single tensor, in order. Raise
    MspcError if there are more entries than tensors."""
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
    """Pass `value` through a ShardingConstraint with the strategy `entry`."""
    return constrained(tracer.builder, value, entry, INSTANCE)


@contextlib.contextmanager
def planned(tracer: Tracer, plan: Sequence[tuple[Any, Any]]) -> Generator[None]:
    """Inside the context, read a cell's parameters with the strategies of its `parameter_plan`."""
    if not plan or not tracer.sharded:
        yield
        return
    readers = {id(parameter): functools.partial(marked, tracer, entry=entry) for parameter, entry in plan}
    with temporarily(tracer, parameter_readers={**tracer.parameter_readers, **readers}):
        yield


@contextlib.contextmanager
def within(tracer: Tracer, fn: Any) -> Generator[None]:
    """Inside the context, read the parameters of a function made by `shard()` by its plan. Raise MspcError if another
    such function calls it, in PyNative mode. The rule is MindSpore's."""
    if tracer.in_shard and fn.in_pynative:
        raise tracer.error(
            "a function that shard() gave calls another one, which PyNative mode does not take",
            ["shard one of them, or set_context(mode=GRAPH_MODE) before both are made"],
            kind=RuntimeError,
        )
    with temporarily(tracer, in_shard=True), planned(tracer, fn.parameter_plan):
        yield
