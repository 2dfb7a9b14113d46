"""Collectives on numbers made for them: none is called wrong, and each that is wrong is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, ReduceScatter
from mspc.runtime.comm.local import LocalComm
from mspc.verify.judged_collectives import collectives

RANKS = 6
DTYPES = ("Float64", "Float32", "Float16", "BFloat16", "Int64", "Int8", "UInt8", "Bool")


def graph(rank: int) -> Graph:
    """Every collective of every element type, in groups of three that are not neighbours."""
    b = Builder(Graph("all"))
    group = tuple(range(rank % 2, RANKS, 2))
    for name in DTYPES:
        x = Parameter(name, TensorType(dtype_of(name), (6, 3)), "input")
        b.graph.parameters.append(x)
        for op in ("sum", "max", "min", "prod"):
            b.emit(AllReduce(op=op, rank_list=group), x)
            b.emit(AllReduce(op=op, rank_list=group), x, x)
            b.emit(ReduceScatter(op=op, rank_list=group), x)
        b.emit(AllGather(axis=1, rank_list=group), x)
        b.emit(AlltoAll(split_count=3, split_dim=1, concat_dim=0, rank_list=group), x)
    return b.graph


def test_none_is_called_wrong() -> None:
    assert collectives(RANKS, graph) == []
    assert collectives(2, lambda rank: Graph("none")) == []


@pytest.mark.parametrize("method", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_one_rank_that_gets_something_else_is_found(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = getattr(LocalComm, method)

    def wrong(self: LocalComm, array: Any, *args: Any, **options: Any) -> Any:
        found = ordinary(self, array, *args, **options)
        return np.roll(found, 1, 0) if self.rank == 4 else found

    monkeypatch.setattr(LocalComm, method, wrong)
    rows = collectives(RANKS, graph)
    assert {row.name.split()[0].lower() for row in rows} == {method.replace("_", "")}
    assert {row.name[-6:] for row in rows} == {"rank 4"}
