"""Measures by which ranks hold less are chosen with stages: parameters in slices, and cells that are computed again."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mspc.analysis.cost.machine import H200
from mspc.commands.compile import CompileOptions, find_call
from mspc.commands.report.plan_summary import summary_lines
from mspc.ir.diagnostics import MspcError
from mspc.output.programs import config_of
from mspc.plans.files.plan_file import read_plan
from mspc.search.plans.alternatives import PlanRequest
from mspc.search.stages.costing import CostedUnits, UnitMeasurement, compiled_row, predicted_row
from mspc.search.stages.network import StagedNetwork
from mspc.search.stages.problem import Way, equal_parts
from tests.search.stages.held_less_network import script
from tests.search.stages.test_searched_stages import searched, step_of

RANKS, PARTS = 4, 4


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[StagedNetwork, dict[str, CostedUnits]]:
    """The network and the costs of its units in two stages, by what ranks hold less."""
    file = tmp_path_factory.mktemp("held") / "net.py"
    file.write_text(script(), encoding="utf-8")
    captured = find_call(str(file), CompileOptions(RANKS)).captured
    network = StagedNetwork(captured, PlanRequest(RANKS, H200).config(captured))
    measured = UnitMeasurement(network, 2, PARTS, H200, memory=True)
    costs = {"all": measured.costs()}
    costs["slices"] = measured.with_slices(costs["all"])
    costs["again"] = measured.with_recomputation(costs["all"])
    costs["both"] = measured.with_recomputation(costs["slices"])
    return network, costs


@pytest.mark.share(3)
@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 3), ("zero_bubble_h1", 1)])
@pytest.mark.parametrize("held", ["all", "slices", "again", "both"])
def test_what_is_foreseen_is_compiled(
    known: tuple[StagedNetwork, dict[str, CostedUnits]], held: str, schedule: str, chunks: int
) -> None:
    network, costs = known
    again = held in ("again", "both")
    way = Way(2, schedule, PARTS, chunks, 0, held in ("slices", "both"), again)
    if again and way.splits_gradients:
        pytest.skip("gradients of weights are not apart where cells are computed again")
    boundaries = equal_parts(6, way.parts)
    said = predicted_row("x", network, costs[held], way, boundaries)
    row, file = compiled_row("x", network, way, boundaries, H200, costs[held].layouts)
    assert said.step == pytest.approx(row.step, rel=0.03)
    assert said.nbytes == pytest.approx(row.nbytes, rel=0.01)
    # The estimate may be more: sums of gradients, and buffers, are not all there where most is kept.
    assert 0.95 * row.memory <= said.memory <= 1.35 * row.memory
    assert (row.cut_further, said.cut_further) == ((12, 12) if way.slices else (0, 0))
    assert len(row.recompute) == (6 if again else 0)
    assert bool(file.parameters) == way.slices
    assert said.degrees == replace(row.degrees, operations=0.0, samples=0)
    assert said.degrees.data * said.degrees.tensor == RANKS // way.stages
    (line,) = summary_lines([said], H200)
    assert f"DP {said.degrees.data} x TP {said.degrees.tensor} x PP 2 x CP 1 x EP 1, " in line


def test_each_holds_less(known: tuple[StagedNetwork, dict[str, CostedUnits]]) -> None:
    network, costs = known

    @cache
    def memory(held: str) -> int:
        way = Way(2, "gpipe", PARTS, 1, 0, held in ("slices", "both"), held in ("again", "both"))
        return compiled_row("x", network, way, equal_parts(6, 2), H200, costs[held].layouts)[0].memory

    assert memory("both") < min(memory("slices"), memory("again"))
    assert max(memory("slices"), memory("again")) < memory("all")
    again = costs["again"].costs
    entering = 1024 // PARTS // 2 * 128 * 4  # bytes; norms have several results, and none of them is kept
    assert np.all((again.saved + again.entry)[:-1] <= entering)  # behind the last one is more
    assert np.all(costs["all"].costs.saved > 4 * entering)


def test_a_limit_chooses_what_fits_and_its_plan_is_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    file, plans = tmp_path / "net.py", tmp_path / "plans"
    file.write_text(script(), encoding="utf-8")
    free = searched(str(file), tmp_path, stages=(2,), top=9)
    least = min(int(str(row["memory"])) for row in free)
    limit = least * 9 // 10
    capsys.readouterr()
    rows = searched(str(file), tmp_path, stages=(2,), top=9, memory=limit, out=plans)
    told = capsys.readouterr().out
    own = rows[0]
    assert own["name"] == "search"
    assert own["recompute"]
    assert "cells again" in told
    assert "computes 6 cells again" in told
    assert all(int(str(row["memory"])) <= limit for row in rows)
    written = read_plan(plans / str(own["file"]))
    assert len(written.recompute) == 6
    assert step_of(str(file), plans / str(own["file"])) == pytest.approx(own["step"])


def test_slices_are_taken_where_they_spare_time(tmp_path: Path) -> None:
    """Updates take most of the step of so few rows, and each rank has half of them."""
    file, plan = tmp_path / "net.py", tmp_path / "plan.toml"
    file.write_text(script(64), encoding="utf-8")
    rows = searched(str(file), tmp_path, stages=(2,), top=9, out=plan)
    without = [row for row in rows if not row["cut_further"]]
    assert rows[0]["cut_further"] == 12 or all(row["step"] >= rows[0]["step"] for row in without)
    assert step_of(str(file), plan) == pytest.approx(rows[0]["step"])


@pytest.mark.thorough
def test_a_plan_that_holds_less_trains_as_one_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mspc.commands.run import run_script

    file, plan, plain = tmp_path / "net.py", tmp_path / "plan.toml", tmp_path / "plain.py"
    file.write_text(script(256), encoding="utf-8")
    plain.write_text(script(256, '').replace('semi_auto_parallel', 'stand_alone'), encoding="utf-8")
    least = min(int(str(row["memory"])) for row in searched(str(file), tmp_path, stages=(2,), top=9))
    searched(str(file), tmp_path, stages=(2,), memory=least * 9 // 10, out=plan)
    assert read_plan(plan).parameters or read_plan(plan).recompute
    capsys.readouterr()
    run_script(plain, ranks=1, simulate=True)
    alone = re.findall(r"\d+\.\d+", capsys.readouterr().out)
    settings = f", full_batch=True, strategy_ckpt_config={{'load_file': {str(plan)!r}}}"
    file.write_text(script(256, settings), encoding="utf-8")
    run_script(file, ranks=4, simulate=True)
    staged = re.findall(r"\d+\.\d+", capsys.readouterr().out)
    losses = [float(loss) for loss in alone]
    assert [float(loss) for loss in dict.fromkeys(staged)] == pytest.approx(losses, rel=1e-5)


def test_what_never_fits_says_the_smallest_of_all(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(script(), encoding="utf-8")
    with pytest.raises(MspcError, match=r"no plan fits 1,000 bytes: the smallest predicted one takes \d+") as refused:
        searched(str(file), tmp_path, stages=(2,), memory=1000)
    captured = find_call(str(file), CompileOptions(RANKS)).captured
    assert config_of(captured, RANKS).ranks == RANKS
    assert "parameters in slices, cells computed again" in str(refused.value)


@pytest.mark.thorough
def test_operators_that_are_taken_out_of_micro_batches_keep_their_names(tmp_path: Path) -> None:
    """A transposed weight is the same in all micro-batches, so that it is transposed once, ahead of them."""
    file, plans = tmp_path / "net.py", tmp_path / "plans"
    text = script().replace("[4 * WIDTH, WIDTH]", "[WIDTH, 4 * WIDTH]")
    text = text.replace("self.last(inside, self.down)", "self.last(inside, ops.transpose(self.down, (1, 0)))")
    file.write_text(text, encoding="utf-8")
    rows = searched(str(file), tmp_path, stages=(2,), top=9, out=plans)
    assert {"search", "equal stages, GPipe"} <= {row["name"] for row in rows}
    for row in rows:
        assert step_of(str(file), plans / str(row["file"])) == pytest.approx(row["step"]), row["name"]
    operators = read_plan(plans / str(rows[0]["file"])).operators
    assert [name.rpartition("/")[2] for name in operators if "Transpose" in name] == ["Transpose-op0"] * 6
