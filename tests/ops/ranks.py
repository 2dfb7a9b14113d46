"""Runs an operator as the ranks do: as each rank's own form of it, or as the operators that it expands to."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.runtime.comm.local import LocalComm, World
from tests.graphs import Builder, Constant, Graph, Layout, Op, RankPlacement, TensorType, Value, element_types
from tests.ops.backend import BACKEND, NumPy

Run = tuple[tuple[Any, ...], tuple[TensorType, ...], list[Any]]
"""Results of a rank, their types as the operator says them, and the operands afterwards."""


def on_ranks(
    op: Op, ranks: int, types: Sequence[TensorType], ins: Sequence[Layout], out_types: Sequence[TensorType],
    outs: Sequence[Layout], inputs: Sequence[Any],
) -> list[Run]:  # fmt: skip
    """Every rank's part of `op(*inputs)`; types and inputs are global."""
    forms: list[tuple[RankPlacement, list[TensorType]]] = []
    local = [t.with_shape(layout.local_shape(t.shape)) for t, layout in zip(types, ins, strict=True)]
    for rank in range(ranks):
        forms.append((RankPlacement(rank, tuple(types), tuple(ins), tuple(out_types), tuple(outs)), local))
    several = [_expanded(op, placement, own) for placement, own in forms] if expands(op) else []
    if any(parts is not None for parts in several):
        return _together(several, inputs, ins)
    done: dict[Any, Run] = {}
    inferred: dict[Op, tuple[TensorType, ...]] = {}
    found: list[Run] = []
    for rank, (placement, own) in enumerate(forms):
        form = op.localize(placement)
        key = (form, tuple(layout.slice_index(rank) for layout in ins))
        if key not in done:
            operands = _slices(inputs, ins, rank)
            if form not in inferred:  # operands have one type on all ranks
                inferred[form] = element_types(form.infer(*own))
            done[key] = _results(form.kernel(BACKEND)(*operands)), inferred[form], operands
        found.append(done[key])
    return found


def expands(op: Op) -> bool:
    """Whether the operator may be several on a rank."""
    return type(op).expand is not Op.expand


def _slices(inputs: Sequence[Any], ins: Sequence[Layout], rank: int) -> list[Any]:
    return [np.array(x[layout.slices_for(rank, x.shape)]) for x, layout in zip(inputs, ins, strict=True)]


def _results(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)


def _expanded(op: Op, placement: RankPlacement, types: Sequence[TensorType]) -> Any:
    """(operands, nodes, result) of an operator that expands, else None."""
    builder = Builder(Graph(""))
    operands = [Value(type) for type in types]
    result = op.expand(builder, placement, operands)
    return None if result is None else (operands, builder.nodes, result)


def _together(several: Sequence[Any], inputs: Sequence[Any], ins: Sequence[Layout]) -> list[Run]:
    """All ranks run the operators that theirs became, and meet in collectives."""

    def main(comm: LocalComm) -> Run:
        operands, nodes, result = several[comm.rank]
        arrays = _slices(inputs, ins, comm.rank)
        values: dict[Value, Any] = dict(zip(operands, arrays, strict=True))
        backend = NumPy(comm)
        for node in nodes:
            read = [v.value if isinstance(v, Constant) else values[v] for v in node.inputs]
            values[node] = node.op.kernel(backend)(*read)
        return _results(values[result]), element_types(result.type), arrays

    return World(len(several)).run(main)
