"""group_lookups: which lookups and sums of rows stay apart, and texts of groups."""

from __future__ import annotations

import pytest

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Parameter, Value
from mspc.ir.types import BFLOAT16, FLOAT32, INT32, INT64, DType, TensorType
from mspc.ops.fused.grouped_rows import GroupedLookups, GroupedRowSums
from mspc.ops.math.arithmetic import Neg
from mspc.ops.optim.optimizer import AssignAdd
from mspc.ops.tensor.embedding import Gather, GatherGrad
from mspc.ops.tensor.reshape import Cast
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.fusion import rewriter


class Tables:
    """A graph that adds rows up."""

    def __init__(self) -> None:
        self.graph = Graph("tables")
        self.builder = Builder(self.graph)

    def given(self, dtype: DType, *shape: int, kind: str = "input") -> Parameter:
        name = f"p{len(self.graph.parameters)}"
        self.graph.parameters.append(Parameter(name, TensorType(dtype, shape), kind))
        return self.graph.parameters[-1]

    def sum(self, rows: Value | None = None, ids: Value | None = None, size: int = 8) -> Value:
        rows = self.given(FLOAT32, 6, 4) if rows is None else rows
        return self.builder.emit(GatherGrad(size), rows, self.given(INT32, 6) if ids is None else ids)

    def lookup(self, size: int = 8, cast: DType | None = None) -> Value:
        found = self.builder.emit(Gather(), self.given(FLOAT32, size, 4), self.given(INT32, 6))
        return found if cast is None else self.builder.emit(Cast(cast), found)

    def members(self, *results: Value) -> list[int]:
        """How many members each group has."""
        self.graph.results = list(results)
        made = run_passes(self.graph, parse_passes("group_lookups"))
        made.verify()
        return [
            len(node.op.sums if isinstance(node.op, GroupedRowSums) else node.op.lookups)
            for node in made.nodes
            if isinstance(node.op, GroupedRowSums | GroupedLookups)
        ]


def test_tables_of_all_sizes_are_a_group() -> None:
    make = Tables()
    assert make.members(*[make.sum(size=n) for n in (3, 8, 100)]) == [3]


def test_lookups_and_sums_are_no_group() -> None:
    make = Tables()
    found = [make.lookup(), make.sum(), make.lookup(20), make.sum()]
    assert make.members(*found) == [2, 2]


def test_lookups_with_casts_are_a_group_of_their_own() -> None:
    make = Tables()
    found = [make.lookup(cast=BFLOAT16), make.lookup(), make.lookup(9, cast=BFLOAT16), make.lookup(cast=INT32)]
    assert make.members(*found) == [2, 2]


def test_who_reads_a_cast_closes_the_group_of_its_lookup() -> None:
    make = Tables()
    first = make.builder.emit(Neg(), make.lookup(cast=BFLOAT16))
    assert make.members(first, *[make.lookup(cast=BFLOAT16) for _ in range(3)]) == [3]


@pytest.mark.parametrize("kind", ["wider", "more", "half", "integers"])
def test_others_stay_apart(kind: str) -> None:
    make = Tables()
    rows = {"wider": (FLOAT32, 6, 5), "more": (FLOAT32, 7, 4), "half": (BFLOAT16, 6, 4)}.get(kind, (FLOAT32, 6, 4))
    ids = make.given(INT64 if kind == "integers" else INT32, rows[1])
    assert make.members(make.sum(), make.sum(make.given(*rows), ids)) == []


def test_what_depends_on_a_member_is_of_another_group() -> None:
    make = Tables()
    first, second = make.sum(size=6), make.sum()
    third = make.sum(make.builder.emit(Neg(), first))
    assert make.members(second, third, make.sum()) == [2, 2]


def test_a_member_that_was_read_does_not_close_later_groups() -> None:
    make = Tables()
    first = make.sum()
    read = make.builder.emit(Neg(), first)
    second = make.sum()
    again = make.builder.emit(Neg(), first)
    assert make.members(read, again, second, make.sum()) == [2]


def test_integers_that_change_are_read_before() -> None:
    make = Tables()
    ids = make.given(INT32, 6, kind="parameter")
    first = make.sum(ids=ids)
    make.builder.emit(AssignAdd(), ids, make.given(INT32, 6))
    assert make.members(first, make.sum(ids=ids)) == []


def test_not_much_waits_for_the_last_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriter, "HELD", 2 * 6 * 4 * 4)
    make = Tables()
    rows = make.given(FLOAT32, 6, 4)
    found = [make.sum(make.builder.emit(Neg(), rows)) for _ in range(5)]
    assert make.members(*found) == [3, 2]


@pytest.mark.parametrize(
    ("sums", "message"),
    [
        ((), "GroupedRowSums has no members; it needs at least one"),
        (("Neg()",), "Neg does not add rows up by integers"),
        (("GatherGrad(x0, size=4, axis=0, offset=0, total=0)",),
         "'GatherGrad(x0, size=4, axis=0, offset=0, total=0)' names operands; write GatherGrad(key=value) alone"),
    ],
)
def test_bad_groups_are_named(sums: tuple[str, ...], message: str) -> None:
    with pytest.raises(MspcError) as raised:
        GroupedRowSums(sums)
    assert raised.value.message == message


def test_bad_groups_of_lookups_are_named() -> None:
    with pytest.raises(MspcError, match=r"^error: GroupedLookups has no members; it needs at least one$"):
        GroupedLookups(())
    with pytest.raises(MspcError, match=r"^error: Neg does not look rows up by integers$"):
        GroupedLookups(("Neg()",))
    types = TensorType(FLOAT32, (6, 4)), TensorType(INT32, (6,))
    with pytest.raises(MspcError, match=r"GroupedLookups takes 4 tensors, not 2"):
        GroupedLookups.of([Gather(), Gather()], None).infer(*types)
    with pytest.raises(MspcError, match=r"GroupedLookups: Float32 is not rounded to Int32"):
        GroupedLookups.of([Gather()], INT32).infer(*types)


def test_operands_that_do_not_fit_are_named() -> None:
    op = GroupedRowSums.of([GatherGrad(4), GatherGrad(5)])
    with pytest.raises(MspcError, match=r"GroupedRowSums takes 4 tensors, not 2"):
        op.infer(TensorType(FLOAT32, (6, 4)), TensorType(INT32, (6,)))
