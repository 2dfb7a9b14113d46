"""Tables and comparisons of dumps in which loops run collectives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Parameter, Value
from mspc.ir.text.printer import print_graph
from mspc.ir.types import FLOAT32, INT64, TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.regions import COUNT, For, emit_regions
from mspc.ops.control.structural import TupleGetItem
from tests.ir.test_mindspore_dumps import LOOP_DUMP

ROW = TensorType(FLOAT32, (4,))


def looped(turns: int) -> str:
    """The graph of rank 0 of 2, in which a loop adds a row over the ranks so often, with -1 as often as an operand
    says, and once more behind it."""
    body = Graph("for_1_body")
    body.parameters = [Parameter("turn", COUNT), Parameter("y", ROW)]
    body.results = [Builder(body).emit(AllReduce(rank_list=(0, 1)), body.parameters[1])]
    graph = Graph("net")
    graph.attrs = {"mode": "semi_auto_parallel", "ranks": 2, "rank": 0}
    graph.parameters = [Parameter("x", ROW)]
    builder = Builder(graph)
    operands: list[Value] = [*graph.parameters]
    if turns < 0:
        operands = [Constant(3, INT64), *operands]
    loop = emit_regions(builder, For(carried=1, turns=turns), operands, [body])
    summed = builder.emit(TupleGetItem(index=0), loop)
    graph.results = [builder.emit(AllReduce(rank_list=(0, 1)), summed)]
    graph.verify()
    return print_graph(graph)


@pytest.fixture
def dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for turns in (3, 4, -1):
        (tmp_path / f"turns{turns}.ir").write_text(looped(turns))
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    """(exit status, what is printed, with single blanks)"""
    done = CliRunner().invoke(app, [*arguments])
    return done.exit_code, " ".join(done.output.split())


def test_turns_that_differ_are_told_with_their_bytes(dumps: Path) -> None:
    status, printed = run("diff", "turns3.ir", "turns4.ir")
    assert status == 1
    assert "AllReduce of 48 bytes, 3 times over 0-1 AllReduce of 64 bytes, 4 times over 0-1" in printed
    run("diff", "turns3.ir", "turns4.ir", "--json", "found.json")
    (kind,) = json.loads((dumps / "found.json").read_text())["kinds"]
    (loop,) = kind["operators"]
    assert "turns: 3" in loop["first"]
    assert "turns: 4" in loop["second"]
    figures = {f["name"]: (f["first"], f["second"]) for f in kind["sums"][0]["figures"]}
    assert figures["collectives"] == (4, 5)
    assert figures["bytes sent"] == (64, 80)


def test_turns_that_only_the_run_counts_are_said_so(dumps: Path) -> None:
    status, printed = run("diff", "turns3.ir", "turns-1.ir")
    assert status == 1
    assert "AllReduce of 48 bytes, 3 times over 0-1" in printed
    assert "AllReduce of 16 bytes, once a turn over 0-1" in printed


def test_equal_loops_are_equal(dumps: Path) -> None:
    assert run("diff", "turns3.ir", "turns3.ir") == (0, "turns3.ir and turns3.ir are equal")


def test_a_budget_counts_what_a_loop_sends(dumps: Path) -> None:
    assert run("check", "turns3.ir", "--max-collectives", "AllReduce=4", "--max-bytes", "64")[0] == 0
    status, printed = run("check", "turns3.ir", "--max-collectives", "AllReduce=3", "--max-bytes", "63", "--all")
    assert status == 1
    assert "4 AllReduces in a step; the limit is 3" in printed
    assert "a step sends 64 B; the limit is 63 B" in printed
    assert "AllReduce 0-1 48 B 3 times - " in printed
    assert "AllReduce 0-1 16 B once - " in printed


def test_graphs_of_mindspore_that_call_each_other_are_compared(dumps: Path) -> None:
    (dumps / "one.ir").write_text(LOOP_DUMP)
    (dumps / "other.ir").write_text(LOOP_DUMP.replace("PrimFunc_Mul(", "PrimFunc_Add("))
    assert run("diff", "one.ir", "one.ir") == (0, "one.ir and one.ir are equal")
    status, printed = run("diff", "one.ir", "other.ir")
    assert status == 1
    assert "operators that differ: 2; types on rank 0" in printed
