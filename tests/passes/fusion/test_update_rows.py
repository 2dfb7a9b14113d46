"""update_rows: which updates take rows, which stay, and how texts of them are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import FLOAT32, INT32, TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.fused.grouped_rows import GroupedRowUpdate
from mspc.ops.fused.updates import FusedUpdate, unchanged_at_zero
from mspc.ops.math.arithmetic import Neg
from mspc.ops.optim.optimizer import SGD, AssignAdd, Update
from mspc.ops.tensor.embedding import GatherGrad, UnsortedSegmentSum
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.fusion.update_rows import UpdateRows
from mspc.passes.lib.unused_states import stateless_nodes
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.executor import Executor
from tests.passes.fusion.written import WrittenGraph

PLAIN = FusedUpdate(("Mul(x1, x2)", "Sub(x0, t0)"), (1,), (2,))
DECAYED = FusedUpdate(("Mul(x0, x3)", "Add(x1, t0)", "Mul(t1, x2)", "Sub(x0, t2)"), (3,), (2, 3))


class Table(WrittenGraph):
    """A graph that updates a parameter `w` by the sum of rows that `ids` name."""

    def __init__(self, axis: int = 0) -> None:
        super().__init__()
        turn = 1 - 2 * axis
        self.w, self.rate = self.parameter("w", (8, 4)[::turn], kind="parameter"), self.parameter("rate", ())
        self.ids = self.parameter("ids", (6,), INT32, "parameter")
        self.sum: Value = self.b.emit(GatherGrad(8, axis), self.parameter("rows", (6, 4)[::turn]), self.ids)

    def update(self, op: Update = PLAIN, *operands: Value) -> None:
        node = self.b.emit(op, *(operands or (self.w, self.sum, self.rate)))
        assert isinstance(node, Node)
        node.phase = "update"
        self.graph.results.append(node)

    def names(self) -> str:
        """The operators behind the pass."""
        made = run_passes(self.graph, parse_passes("update_rows"))
        made.verify()
        return " ".join(node.op.name for node in made.nodes)


def of_a_sum_that_others_read(table: Table) -> None:
    table.graph.results.append(table.b.emit(Neg(), table.sum))
    table.update()


def of_a_sum_that_is_a_result(table: Table) -> None:
    table.graph.results.append(table.sum)
    table.update()


def of_a_sum_over_ranks(table: Table) -> None:
    table.sum = table.b.emit(AllReduce(group="hccl_world_group", rank_list=(0, 1)), table.sum)
    table.update()


def that_changes_every_row(table: Table) -> None:
    table.update(DECAYED, table.w, table.sum, table.rate, table.rate)


def by_integers_that_change_before(table: Table) -> None:
    table.b.emit(AssignAdd(), table.ids, table.parameter("more", (6,), INT32))
    table.update()


@pytest.mark.parametrize(
    ("update", "axis", "left"),
    [
        (Table.update, 0, "GroupedRowUpdate TupleGetItem"),
        (Table.update, 1, "GatherGrad FusedUpdate"),
        (of_a_sum_that_others_read, 0, "GatherGrad Neg FusedUpdate"),
        (of_a_sum_that_is_a_result, 0, "GatherGrad FusedUpdate"),
        (of_a_sum_over_ranks, 0, "GatherGrad AllReduce FusedUpdate"),
        (that_changes_every_row, 0, "GatherGrad FusedUpdate"),
        (by_integers_that_change_before, 0, "GatherGrad AssignAdd FusedUpdate"),
    ],
)
def test_which_updates_take_the_rows(update: Callable[[Table], None], axis: int, left: str) -> None:
    table = Table(axis)
    update(table)
    assert table.names() == left


def test_sgd_without_momentum_takes_rows_at_a_run() -> None:
    """Parameters are those of the update with all states, to the bit."""
    found = []
    for by_rows in (False, True):
        table = Table()
        states = [table.parameter(name, (8, 4), kind="parameter") for name in ("accum", "stat")]
        momentum = table.parameter("momentum", (), kind="parameter")
        table.update(SGD(), table.w, table.sum, table.rate, states[0], momentum, states[1])
        graph = table.graph
        if by_rows:
            for stateless in stateless_nodes(graph, lambda scalar: 0.0):
                stateless.apply(stateless.node)
            assert UpdateRows().run(graph)
            assert [node.op.name for node in graph.nodes] == ["GroupedRowUpdate", "TupleGetItem"]
        draw = np.random.default_rng(3)
        held = {"w": draw.standard_normal((8, 4)), "accum": np.zeros((8, 4)), "stat": np.ones((8, 4)),
                "momentum": np.zeros(())}  # fmt: skip
        held = {name: value.astype(np.float32) for name, value in held.items()}
        held["ids"] = np.array([3, 1, 3, 7, 3, 1], np.int32)
        held["w"][0] = (-0.0, np.nan, np.inf, 0.0)
        rows = draw.standard_normal((6, 4)).astype(np.float32)
        Executor(graph, NumPyBackend(OneRank()), held).run([np.array(0.1, np.float32), rows])
        found.append(held["w"])
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize(
    ("body", "unchanged"),
    [
        (("Mul(x1, x2)", "Sub(x0, t0)"), True),
        (("Mul(x2, x1)", "Identity(t0)", "Sub(x0, t1)"), True),
        (("Sub(x0, x1)", "Mul(x1, x2)", "Sub(t0, t1)"), True),
        (("Neg(x2)", "Mul(x1, t0)", "Add(x0, t1)"), True),
        (("Neg(x1)", "Mul(t0, x2)", "Add(t1, x0)"), True),
        (("Cast(x1, dst_type=Float32)", "Mul(t0, x2)", "Sub(x0, t1)"), True),
        (("Mul(x1, x2)", "Add(x0, t0)"), False),  # -0 + +0 is +0
        (("Neg(x1)", "Mul(t0, x2)", "Sub(x0, t1)"), False),
        (("Mul(x1, x2)", "Sub(t0, x0)"), False),
        (("Mul(x1, x0)", "Mul(t0, x2)", "Sub(x0, t1)"), False),  # 0 * infinity is NaN
        (("RealDiv(x1, x2)", "Sub(x0, t0)"), False),
        (("Exp(x1)", "Mul(t0, x2)", "Sub(x0, t1)"), False),
        (("Mul(x0, x2)", "Sub(t0, x1)"), False),
    ],
)
def test_lines_say_where_an_update_changes_nothing(body: tuple[str, ...], unchanged: bool) -> None:
    update = FusedUpdate(body, (len(body) - 1,), (2,))
    assert unchanged_at_zero(update, 1) == unchanged
    if unchanged:
        held = np.array([-0.0, 0.0, 1.5, -3e-42, np.inf, -np.inf, 3e38], np.float32)
        for rate in (0.0, 0.1, 3e38):
            made = np.array(held)
            update.run(NumPyBackend(OneRank()), made, np.zeros_like(held), np.array(rate, np.float32))
            assert made.tobytes() == held.tobytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sums": ()}, "GroupedRowUpdate has no members; it needs at least one"),
        ({"sums": ("Neg()",)}, "Neg does not add rows up by integers"),
        ({"update": "Add()"}, "GroupedRowUpdate: 'Add()' is no FusedUpdate(key=value) without operands"),
        ({"gradient": 0}, "GroupedRowUpdate: operand 0 of LINE can be no gradient"),
        ({"gradient": 2}, "GroupedRowUpdate: operand 2 of LINE can be no gradient"),
        ({"update": DECAYED}, "GroupedRowUpdate: LINE changes parameters although operand 1 is 0"),
    ],
)
def test_bad_groups_are_named(fields: dict[str, Any], message: str) -> None:
    good = GroupedRowUpdate.of(PLAIN, 1, [GatherGrad(8)])
    if isinstance(fields.get("update"), FusedUpdate):
        with pytest.raises(MspcError) as raised:
            GroupedRowUpdate.of(fields["update"], 1, [GatherGrad(8)])
        assert message.partition("LINE")[2] in raised.value.message
        return
    with pytest.raises(MspcError) as raised:
        GroupedRowUpdate(**({"update": good.update, "gradient": 1, "sums": good.sums} | fields))
    assert raised.value.message == message.replace("LINE", good.update)


def test_operands_that_do_not_fit_are_named() -> None:
    op = GroupedRowUpdate.of(PLAIN, 1, [UnsortedSegmentSum(8)])
    w, rows, ids, rate = (TensorType(FLOAT32, (8, 4)), TensorType(FLOAT32, (6, 4)), TensorType(INT32, (6,)),
                          TensorType(FLOAT32, ()))  # fmt: skip
    assert [type.shape for type in op.infer(w, rows, ids, rate).elements] == [(8, 4)]
    with pytest.raises(MspcError, match=r"GroupedRowUpdate takes 4 tensors, not 3"):
        op.infer(w, rows, ids)
    with pytest.raises(MspcError, match=r"GatherGrad does not add up along the first axis"):
        GroupedRowUpdate.of(PLAIN, 1, [GatherGrad(8, 1)]).infer(
            TensorType(FLOAT32, (4, 8)), TensorType(FLOAT32, (4, 6)), ids, rate
        )
