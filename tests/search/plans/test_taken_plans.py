"""Usual plans that a search takes in place of its own, on the mesh that it was to take."""

from __future__ import annotations

from mspc.ir.layout import Layout
from mspc.plans.files.plan_file import PlanFile
from mspc.search.plans.row import SEARCH, PlanResult, UsualPlans, adopt_faster


def plan(name: str, step: float, mesh: str = "") -> PlanResult:
    return PlanResult(name, 8, mesh, step, step, 0.0, 0.0, 0.0, 0, 0.0, None, 0, 0)


def sharded(*mesh: int) -> PlanFile:
    """A file in which one operator is sharded over every axis of a mesh."""
    return PlanFile(8, {"MatMul-op0": (Layout.of(mesh, [[axis] for axis in range(len(mesh))]),)})


def taken_on(mesh: str) -> tuple[str, float]:
    """The plan that a search for a mesh takes, and its step."""
    usual = UsualPlans([plan("crossed", 1.0), plan("along", 2.0)], {"crossed": sharded(2, 4), "along": sharded(8)})
    plans, files = [plan(SEARCH, 3.0, mesh)], {SEARCH: sharded(8)}
    adopt_faster(plans, files, usual, mesh)
    (found,) = plans
    assert (found.name, found.mesh) == (SEARCH, mesh)
    assert files[SEARCH] == usual.files[found.taken_from]
    return found.taken_from, found.step


def test_the_fastest_that_lies_on_the_mesh_is_taken() -> None:
    assert taken_on("") == taken_on("2x4") == taken_on("2x2x2") == ("crossed", 1.0)
    assert taken_on("4x2") == taken_on("8") == ("along", 2.0)


def test_a_search_that_is_as_fast_keeps_its_own() -> None:
    plans, files = [plan(SEARCH, 2.0)], {SEARCH: sharded(8)}
    adopt_faster(plans, files, UsualPlans([plan("along", 2.0)], {"along": sharded(8)}), "")
    assert plans == [plan(SEARCH, 2.0)]
