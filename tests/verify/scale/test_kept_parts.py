"""Kinds of ranks: ranks that keep a part of their slice in an exchange are of one kind with those that keep none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import of_script
from mspc.commands.verify_folder import ToProve
from mspc.ops.collective.collectives import NeighborExchange

STEP = """
module @jit_step attributes {mhlo.num_partitions = 16 : i32} {
  sdy.mesh @mesh = <["a"=8, "b"=2]>
  func.func public @main(
      %w: tensor<32xf32> {tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>} loc("w"),
      %x: tensor<32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b", "a"}]>} loc("x")) -> (tensor<32xf32>) {
    %0 = sdy.sharding_constraint %x <@mesh, [{"a"}]> : tensor<32xf32>
    %1 = stablehlo.add %w, %0 : tensor<32xf32>
    return %1 : tensor<32xf32>
  }
}
"""


@pytest.fixture
def given(tmp_path: Path) -> ToProve:
    path = tmp_path / "step.mlir"
    path.write_text(STEP)
    return of_script(str(path), CompileOptions(loudness=Loudness(quiet=True)))


def test_ranks_that_keep_a_part_are_of_one_kind_with_others(given: ToProve) -> None:
    (kind,) = given.kinds
    (exchange,) = (node for node in kind.graph.nodes if isinstance(node.op, NeighborExchange))
    ops: Any = kind.ops_of(exchange.op)
    keeping = [rank for rank, op in zip(kind.ranks, ops, strict=True) if rank in op.recv_rank_ids]
    assert (kind.mesh, keeping) == ((8, 2), [0, 15])
    assert all(len(op.recv_rank_ids) == len(op.send_rank_ids) == 2 for op in ops)
    assert given.proved(0).same


@pytest.mark.parametrize("rank", [0, 5])
def test_parts_in_the_wrong_order_are_found(rank: int, given: ToProve) -> None:
    (kind,) = given.kinds
    (exchange,) = (node for node in kind.graph.nodes if isinstance(node.op, NeighborExchange))
    ops: list[Any] = list(kind.ops[id(exchange.op)])
    ops[rank] = replace(ops[rank], recv_rank_ids=ops[rank].recv_rank_ids[::-1])
    kind.ops[id(exchange.op)] = tuple(ops)
    found = given.proved(0)
    assert not found.same
    assert found.first is not None
    assert found.first.ranks == (rank,)
