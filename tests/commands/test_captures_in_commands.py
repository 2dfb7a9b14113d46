"""Captured steps as targets of compile, view, diff, check and the pytest fixture."""

import json
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.facts.reading import target_facts
from tests.captures import shared
from tests.serving import serve

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"right": shared("ranks", tmp_path_factory), "wrong": shared("wrong", tmp_path_factory)}


def test_collectives_have_reasons_dimensions_modules_and_lines(captures: dict[str, Path], tmp_path: Path) -> None:
    done = serve("compile", captures["right"], "--out", tmp_path / "out", "--json", tmp_path / "report.json", status=0)
    assert "sent per dimension: 1.9 KiB over data by 6 collectives, 1.0 KiB over tensor by 4 collectives" in done.stdout
    assert "predicted for H200s: step" in done.stdout
    assert "get_rank" not in done.stdout
    rows = json.loads((tmp_path / "report.json").read_text())["collectives"]
    assert all("captured_training.py:" in row["line"] and "layers" in row["reason"] for row in rows)
    found = {(row["operator"], row["dimension"], row["reason"]) for row in rows}
    assert found >= {
        ("AllGather", "data", "gathers layers.1.norm.weight and 5 more"),
        ("AllReduce", "tensor", "adds up partial sums of addmm in layers.0.down"),
        ("AllReduce", "tensor", "adds up partial sums of mm in layers.1.up in the backward pass"),
        ("ReduceScatter", "data", "averages gradients of layers.0.norm.weight and 5 more"),
    }


@pytest.mark.thorough
def test_view_and_diff(captures: dict[str, Path], tmp_path: Path) -> None:
    done = serve("view", captures["right"], "--out", tmp_path / "page.html", status=0)
    assert "10 collectives of 4 ranks" in done.stdout
    assert "averages gradients of layers.0.norm.weight" in (tmp_path / "page.html").read_text()
    done = serve("diff", captures["right"], captures["wrong"], "--json", "-", status=1)
    assert json.loads(done.stdout)["equal"] is False


def test_budgets_find_a_collective_that_a_change_adds(
    captures: dict[str, Path], tmp_path: Path, mspc_budget: Any
) -> None:
    baseline = tmp_path / "baseline.json"
    done = serve("check", captures["right"], "--write-baseline", baseline, status=0)
    done = serve("check", captures["wrong"], "--baseline", baseline, status=1)
    assert "6 AllReduces in a step; the limit is 4" in done.stdout
    assert "adds up partial sums" in done.stdout
    with pytest.raises(pytest.fail.Exception, match="breaks its budget"):
        mspc_budget(captures["wrong"], max_collectives={"AllReduce": 4})


@pytest.mark.thorough
def test_facts_are_of_all_ranks(captures: dict[str, Path]) -> None:
    facts = target_facts(str(captures["right"]), CompileOptions())
    assert sorted(rank for kind in facts.kinds for rank in kind.ranks) == [0, 1, 2, 3]
    assert all(kind.times is not None and kind.times.exposed > 0 for kind in facts.kinds)
