"""The manager through which every pass runs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.check_graph import check_graph
from mspc.ops.math.elementwise import Exp
from mspc.passes.base import VERIFY, Pass, PassManager


@dataclass(frozen=True)
class Forget(Pass):
    """Lose the node that makes the result."""

    def run(self, graph: Graph) -> bool:
        graph.nodes.clear()
        return True


@dataclass(frozen=True)
class Mistype(Pass):
    """Write another type at the node that makes the result."""

    def run(self, graph: Graph) -> bool:
        graph.nodes[-1].type = TensorType(FLOAT32, (5,))
        return True


def small() -> Graph:
    graph = Graph("main")
    graph.parameters.append(Parameter("x", TensorType(FLOAT32, (4,))))
    graph.results = [Builder(graph).emit(Exp(), graph.parameters[0])]
    return graph


def test_a_broken_graph_names_the_pass() -> None:
    with pytest.raises(AssertionError, match="test_pass_manager leaves a broken graph: "):
        PassManager(verify="types").apply(Forget(), small())


def test_a_wrong_type_names_the_pass() -> None:
    with pytest.raises(AssertionError, match=r"test_pass_manager leaves a broken graph: .* its operands make"):
        PassManager(verify="types").apply(Mistype(), small())
    PassManager(verify="structure").apply(Mistype(), small())


@pytest.mark.parametrize(("stages", "is_refused"), [(2, False), (1, True), ("x", True), (None, True)])
def test_a_rank_is_one_of_all_stages_before_they_are_cut(stages: object, is_refused: bool) -> None:
    graph = small()
    graph.attrs |= {"ranks": 2, "rank": 3, "pipeline_stages": stages}
    if is_refused:
        with pytest.raises(MspcError, match="the header says rank 3 of 2"):
            check_graph(graph)
    else:
        check_graph(graph)


def test_checks_are_made_where_the_environment_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        PassManager().apply(Forget(), small())
    monkeypatch.delenv(VERIFY)
    _, changed = PassManager().apply(Forget(), small())
    assert changed


def test_passes_are_told_in_their_order() -> None:
    told: list[tuple[str, bool]] = []
    manager = PassManager(lambda name, graph, changed: told.append((name, changed)), verify="")
    manager.run(small(), [Forget(), Forget()])
    assert told == [("test_pass_manager", True)] * 2
