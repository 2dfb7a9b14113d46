"""`mspc opt` on texts in which nodes run graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.opt import optimize
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.text.parser import parse
from mspc.ops.check_graph import check_graph
from mspc.ops.op import REGISTRY
from mspc.passes.base import pass_names
from tests.ir.regions import LOOP, PROGRAM
from tests.ir.test_mindspore_dumps import LOOP_DUMP

NEED_LAYOUTS = frozenset({"insert_redistribution", "slice_to_rank", "search_sharding"})
"""Passes that other passes must have gone ahead of."""


def read(text: str) -> Graph:
    graph = parse(text, REGISTRY).main
    graph.verify()
    check_graph(graph)
    return graph


@pytest.mark.parametrize("text", [LOOP, PROGRAM], ids=["loop", "program"])
def test_every_pass_leaves_a_sound_text(text: str, tmp_path: Path) -> None:
    file = tmp_path / "net.ir"
    file.write_text(text)
    assert optimize(file, "") == text
    for name in [name for name in pass_names() if name not in NEED_LAYOUTS]:
        read(optimize(file, name))


def test_what_nobody_reads_goes_out_of_a_loop(tmp_path: Path) -> None:
    """The numbers of turns of `while`, which the body counts, stay; a constant condition goes."""
    file = tmp_path / "net.ir"
    more = "%4 = Neg(%3)\n      : (<Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)\n  Return((%0, %3))"
    file.write_text(LOOP.replace("Return((%0, %3))", more))
    body = read(optimize(file, "simplify")).graphs()[2]
    assert [node.op.name for node in body.nodes] == ["Add", "Greater", "If", "TupleGetItem"]


def test_passes_do_not_run_on_graphs_of_mindspore(tmp_path: Path) -> None:
    file = tmp_path / "dump.ir"
    file.write_text(LOOP_DUMP)
    with pytest.raises(MspcError, match="holds 3 graphs of mindspore; passes run on graphs of mspc"):
        optimize(file, "simplify")
    assert "call(@43_3_" in optimize(file, "") or 'call(@"43_3_' in optimize(file, "")
