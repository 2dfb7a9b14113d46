"""`mspc search --stages`: what is chosen is what its plan compiles to, and mistakes are one message each."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mspc.analysis.cost.machine import H200
from mspc.commands.compile import CompileOptions, compile_target, find_call
from mspc.commands.search import SearchOptions, search_target
from mspc.engine.strategy_files import sharded_by_file
from mspc.ir.diagnostics import MspcError
from mspc.output.programs import config_of
from mspc.plans.files.plan_file import read_plan
from mspc.search.plans.alternatives import PlanRequest
from mspc.search.stages.costing import UnitMeasurement, step_seconds
from mspc.search.stages.network import StagedNetwork
from tests.compiled_scripts import QUIET, compile_call
from tests.errors import error_of
from tests.pipelining.staged_script import HEAD
from tests.search.stages.held_less_network import script

STEP = """
STAGES = {stages}
settings({settings})
net = staged({cells})
{cell}
step = nn.TrainOneStepCell(cell, nn.Adam(net.trainable_params(), 1e-2))
x, y = batch({rows})
for _ in range(2):
    print(step(x, y))
"""
CUT = "cell = nn.PipelineCell(net, 4)"
LAYERS = "self.layers = nn.CellList([Layer() for _ in range(7)])"
TURNS = "for layer in self.layers:\n            x = layer(x)\n        return ((x - y) ** 2).mean()"
FREE = {"stages": 1, "settings": "parallel_mode='auto_parallel'", "cells": "", "cell": CUT, "rows": 8}
OWN = FREE | {"stages": 2, "settings": ""}


def written(folder: Path, **parts: object) -> str:
    script = folder / "net.py"
    script.write_text(HEAD.replace("init()", "STAGES = 1\ninit()", 1) + STEP.format(**parts), encoding="utf-8")
    return str(script)


def searched(script: str, folder: Path, *, ranks: int = 4, **options: object) -> list[dict[str, object]]:
    """The rows of a search, by its JSON."""
    out = folder / "rows.json"
    search_target(script, SearchOptions(CompileOptions(ranks, json=out, loudness=QUIET), (ranks,), **options))  # type: ignore[arg-type]
    return json.loads(out.read_text(encoding="utf-8"))["plans"]


def step_of(script: str, plan: Path) -> float:
    """The step of what a script and a plan compile to on 4 ranks."""
    launch = find_call(script, CompileOptions(4)).captured
    captured = replace(launch, context=sharded_by_file(launch.context, plan))
    return step_seconds(compile_call(captured.target, captured.args, config_of(captured, 4)), H200)


@pytest.mark.parametrize("free", [False, True])
def test_a_plan_compiles_to_its_row(tmp_path: Path, free: bool) -> None:
    script = written(tmp_path, **FREE)
    plans = tmp_path / "plans"
    rows = searched(script, tmp_path, stages=(2,), top=9, free=free, out=plans)
    assert {"search", "equal stages, 1F1B", "equal stages, GPipe"} <= {row["name"] for row in rows}
    assert rows[0]["name"] == "search"
    for row in rows:
        assert step_of(script, plans / str(row["file"])) == pytest.approx(row["step"]), row["name"]
        assert rows[0]["step"] <= row["step"]


def test_layers_that_are_one_graph_are_cut_into_runs(tmp_path: Path) -> None:
    text = Path(written(tmp_path, **FREE)).read_text(encoding="utf-8")
    text = text.replace("    def __init__(self, width=8):", "    @ms.lazy_inline\n    def __init__(self, width=8):")
    text = text.replace("self.first, self.second, self.last = Layer(), Layer(), Layer()", LAYERS)
    text = text.replace("return ((self.last(self.second(self.first(x))) - y) ** 2).mean()", TURNS)
    text = text.replace("net = staged()", "net = Net()")
    script = tmp_path / "net.py"
    script.write_text(text, encoding="utf-8")
    rows = searched(str(script), tmp_path, stages=(2,), top=9, out=tmp_path / "plans")
    one = next(row for row in rows if row["name"] == "equal stages, 1F1B")
    assert (one["cells"], one["step"]) == ([4, 3], pytest.approx(one["foreseen"], rel=0.2))
    plan = read_plan(tmp_path / "plans" / str(one["file"]))
    assert plan.stages is not None
    scope = "Default/network-PipelineCell/network-Net/layers-CellList"
    assert plan.stages.cells == {f"{scope}/[0..3]-Layer": 0, f"{scope}/[4..6]-Layer": 1}
    assert {f"{scope}/[0..3]-Layer/MatMul-op0", f"{scope}/[4..6]-Layer/MatMul-op0"} <= plan.operators.keys()
    assert step_of(str(script), tmp_path / "plans" / str(one["file"])) == pytest.approx(one["step"])


def test_a_plan_trains_as_one_device_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mspc.commands.run import run_script

    plan = tmp_path / "plan.toml"
    searched(written(tmp_path, **FREE), tmp_path, stages=(2,), out=plan)
    capsys.readouterr()
    run_script(Path(written(tmp_path, **FREE)), ranks=1, simulate=True)
    alone = re.findall(r"\d+\.\d+", capsys.readouterr().out)
    named = f"parallel_mode='auto_parallel', strategy_ckpt_config={{'load_file': {str(plan)!r}}}"
    run_script(Path(written(tmp_path, **FREE | {"settings": named})), ranks=4, simulate=True)
    staged = re.findall(r"\d+\.\d+", capsys.readouterr().out)
    losses = [float(loss) for loss in alone]
    assert [float(loss) for loss in dict.fromkeys(staged)] == pytest.approx(losses, rel=1e-10)
    assert len(losses) == 2


def test_a_plan_names_the_cells_of_stages_and_operators_of_micro_batches(tmp_path: Path) -> None:
    searched(written(tmp_path, **FREE), tmp_path, stages=(2,), out=tmp_path / "plan.toml")
    plan = read_plan(tmp_path / "plan.toml")
    assert plan.ranks == 2
    assert plan.stages is not None
    assert (plan.stages.count, plan.stages.micro_batches) == (2, 4)
    scope = "Default/network-PipelineCell/network-Net"
    cells = {f"{scope}/{name}-Layer" for name in ("first", "second", "last")}
    assert set(plan.stages.cells) == cells
    assert f"{scope}/first-Layer/MatMul-op0" in plan.operators


def test_the_stages_of_a_script_stay(tmp_path: Path) -> None:
    script = written(tmp_path, **OWN | {"cells": "0, 1, 1"})
    rows = searched(script, tmp_path, out=tmp_path / "kept.toml")
    assert {row["stages"] for row in rows} == {2}
    assert next(row for row in rows if row["name"] == "search")["cells"] == [1, 2]
    plan = read_plan(tmp_path / "kept.toml").stages
    assert plan is not None
    assert [chunk for _, chunk in plan.cells.items()] == [0, 1, 1]


def test_a_plan_without_stages_takes_those_of_the_script_back(tmp_path: Path) -> None:
    script, plan = written(tmp_path, **OWN), tmp_path / "plan.toml"
    rows = searched(script, tmp_path, stages=(1, 2), out=plan)
    assert (rows[0]["name"], rows[0]["stages"]) == ("search", 1)
    launch = find_call(script, CompileOptions(4)).captured
    captured = replace(launch, context=sharded_by_file(launch.context, plan))
    config = config_of(captured, 4)
    assert (config.pipeline_stages, config.ranks) == (1, 4)
    compile_call(captured.target, captured.args, config)


def test_another_number_of_micro_batches_is_refused_where_the_plan_is_compiled(tmp_path: Path) -> None:
    script, plan = written(tmp_path, **FREE), tmp_path / "plan.toml"
    rows = searched(script, tmp_path, stages=(2,), micro_batches=(8,), out=plan)
    assert {row["micro_batches"] for row in rows} == {8}
    with pytest.raises(MspcError, match="the plan is for 8 micro-batches, and micro_size is 4") as raised:
        compile_target(script, CompileOptions(4, strategies=plan, out=tmp_path / "out", loudness=QUIET))
    assert raised.value.location is not None
    assert raised.value.location.text.strip() == CUT


def test_a_network_without_micro_batches_is_searched_as_if_it_had_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    script, plan = written(tmp_path, **FREE | {"cell": "cell = net"}), tmp_path / "plan.toml"
    with pytest.raises(MspcError, match="the script trains in no micro-batches"):
        searched(script, tmp_path, stages=(2,))
    searched(script, tmp_path, stages=(2,), micro_batches=(4,), out=plan)
    assert "rows with stages are of it as if it had one" in capsys.readouterr().out
    with pytest.raises(MspcError, match="the plan is for 2 stages and 4 micro-batches, and there are none") as raised:
        compile_target(script, CompileOptions(4, strategies=plan, out=tmp_path / "out", loudness=QUIET))
    assert raised.value.location is not None
    compile_target(
        written(tmp_path, **FREE), CompileOptions(4, strategies=plan, out=tmp_path / "out", loudness=QUIET)
    )  # fmt: skip


def test_a_shape_that_states_the_batch_is_explained_by_the_micro_batches(tmp_path: Path) -> None:
    script = Path(written(tmp_path, **FREE | {"cell": "cell = net"}))
    text = script.read_text(encoding="utf-8")
    assert text.count("self.first(x)") == 1
    script.write_text(text.replace("self.first(x)", "self.first(ops.reshape(x, (8, 8)))"), encoding="utf-8")
    error = error_of(searched, str(script), tmp_path, stages=(2,), micro_batches=(4,))
    assert error.location is not None
    assert error.notes[-1] == "with 4 micro-batches: a shape that states the rows of the batch must use -1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": (3,)}, "--stages 3 does not divide 4 ranks"),
        ({"stages": (4,)}, "--stages 4 is more than the network has units, which are 3"),
        ({"stages": (2,), "micro_batches": (3,)}, "--micro-batches 3 does not divide the 8 rows of the batch"),
        ({"stages": (2,), "micro_batches": (1,)}, "--stages 2 is more than there are micro-batches, which are 1"),
        ({"stages": (2,), "memory": 1000}, r"no plan fits 1,000 bytes: the smallest predicted one takes \d+"),
        ({"stages": (1, 2), "explain": "MatMul-op0"}, "--explain tells of the layouts within a stage, and stages of"),
        ({"stages": (3,), "explain": "MatMul-op0"}, "--stages 3 does not divide 4 ranks"),
        ({"stages": (2,), "micro_batches": (4,), "explain": "MatMul-op0"}, "the script's own micro-batches"),
        ({"stages": (2,), "meshes": ("2x2",)}, "--mesh 2x2 is of the 4 ranks of one stage, and --stages is 2 of 4"),
        ({"stages": (), "meshes": ("3",)}, "--mesh 3 is of the 3 ranks of one stage, and --stages is up to"),
        ({"micro_batches": (4,), "meshes": ("2x2",)}, "looks for stages of any number of ranks"),
    ],
)
def test_mistakes_are_one_message(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(MspcError, match=message):
        searched(written(tmp_path, **FREE), tmp_path, **options)


def test_a_mesh_is_of_the_ranks_of_one_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, plans = written(tmp_path, **FREE), tmp_path / "plans"
    for mesh in ("4", "2x2"):
        rows = searched(script, tmp_path, ranks=8, stages=(1, 2), meshes=(mesh,), out=plans)
        assert {row["stages"] for row in rows} == {2}
        assert {row["mesh"] for row in rows} == {mesh, ""}  # pairs of products have none
        assert f"layouts are those that the search finds on a mesh of {mesh} in every stage" in capsys.readouterr().out
        for row in rows:
            compile_target(script, CompileOptions(8, strategies=plans / str(row["file"]), out=tmp_path / "out",
                                                  loudness=QUIET))  # fmt: skip
            layouts = (plans / str(row["file"])).read_text(encoding="utf-8")
            found = set(re.findall(r'"\(([0-9, ]+)\) ', layouts))
            assert found <= ({"4"} if row["mesh"] == "4" else {"4", "2, 2"})
            assert found


def test_an_operator_is_explained_for_the_ranks_of_one_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    script, told = written(tmp_path, **FREE), list[str]()
    for options, ranks in (({"stages": (2,)}, 8), ({}, 4)):
        compiling = CompileOptions(ranks, loudness=QUIET)
        search_target(script, SearchOptions(compiling, (ranks,), explain="first-Layer/MatMul-op0", **options))  # type: ignore[arg-type]
        told.append(capsys.readouterr().out)
    assert "ways to shard it, cheapest first" in told[0]
    assert told[0] == told[1]


def test_plans_that_are_no_plans_of_stages_are_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    for text, message in (
        ("count = 0", "count is 0, not a number from 1"),
        ("count = 2\nmicro_batches = 4\n[stages.cells]\nnet = 2", "'net' is of 2, and there are stages 0 to 1"),
        ("count = 2", r"\[stages\] does not say micro_batches, not a number from 1"),
        ("counts = 2", "has no key 'counts'"),
    ):
        plan.write_text(f"ranks = 2\n[stages]\n{text}\n[operators]\n", encoding="utf-8")
        with pytest.raises(MspcError, match=message):
            read_plan(plan)


def test_a_plan_for_a_cell_that_is_not_there_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    cells = '"Default/network-PipelineCell/network-Net/firt-Layer" = 0'
    plan.write_text(
        f'ranks = 2\n[stages]\ncount = 2\nmicro_batches = 4\n[stages.cells]\n{cells}\n[operators]\n', encoding="utf-8"
    )  # fmt: skip
    with pytest.raises(MspcError, match=r"the plan has a stage for .*/firt-Layer, and there is no such cell"):
        compile_target(written(tmp_path, **FREE), CompileOptions(4, strategies=plan, out=tmp_path / "out"))


MAKES = "cell = nn.PipelineCell(Net(), 4)"


def unit_searched(tmp_path: Path, marks: str, free: bool = False) -> StagedNetwork:
    """The network with more lines of the script behind the one that makes it."""
    file = tmp_path / "net.py"
    file.write_text(script().replace(MAKES, f"net = Net()\n{marks}cell = nn.PipelineCell(net, 4)"))
    captured = find_call(str(file), CompileOptions(4)).captured
    return StagedNetwork(captured, PlanRequest(4, H200).config(captured), free)


def kinds_of(network: StagedNetwork) -> list[int]:
    """The first of the first units that each is like."""
    kinds = [unit.kind for unit in network.units]
    return [kinds.index(kind) for kind in kinds[:5]]


def test_frozen_layers_have_costs_of_their_own(tmp_path: Path) -> None:
    freeze = "for p in net.layers[1].get_parameters():\n    p.requires_grad = False\n"
    network = unit_searched(tmp_path, freeze)
    assert kinds_of(network) == [0, 1, 0, 0, 0]
    costs = UnitMeasurement(network, 2, 4, H200, memory=True).costs().costs
    assert costs.totals[1] == 0
    assert all(costs.totals[[0, 2, 3, 4, 5]] > 0)
    assert costs.backward[1] < costs.backward[2]


@pytest.mark.parametrize("asked", ["recompute()", "offload()", "offload(3)"])
def test_marked_layers_have_costs_of_their_own(asked: str, tmp_path: Path) -> None:
    assert kinds_of(unit_searched(tmp_path, f"net.layers[1].{asked}\n")) == [0, 1, 0, 0, 0]
    assert kinds_of(unit_searched(tmp_path, f"for layer in net.layers:\n    layer.{asked}\n")) == [0, 0, 0, 0, 0]


def test_layers_keep_the_strategies_that_the_script_gives_each(tmp_path: Path) -> None:
    network = unit_searched(tmp_path, "net.layers[1].first.shard(((1, 2), (2, 1)))\n")
    assert kinds_of(network) == [0, 1, 0, 0, 0]
    given = UnitMeasurement(network, 2, 4, H200).costs().layouts.strategies or {}
    of_first = [entry.operands for name, entry in given.items() if name.endswith("-Layer/MatMul-op0")]
    assert of_first == [((2, 1), (1, 1)), ((1, 2), (2, 1)), *[((2, 1), (1, 1))] * 4]
    free = unit_searched(tmp_path, "net.layers[1].first.shard(((1, 2), (2, 1)))\n", free=True)
    assert kinds_of(free) == [0, 0, 0, 0, 0]


def test_branches_in_stages_are_refused_at_their_line(tmp_path: Path) -> None:
    branch = "        if inside.mean() > 0:\n            inside = ops.matmul(inside, self.up.T @ self.up)\n"
    text = script().replace("        return self.add(x,", f"{branch}        return self.add(x,")
    (tmp_path / "net.py").write_text(text)
    captured = find_call(str(tmp_path / "net.py"), CompileOptions(4)).captured
    network = StagedNetwork(captured, PlanRequest(4, H200).config(captured))
    with pytest.raises(MspcError, match="the search does not weigh values that only a run knows") as caught:
        network.loop  # noqa: B018  # which reads the network
    assert caught.value.location is not None
    assert text.splitlines()[caught.value.location.line - 1].strip() == "if inside.mean() > 0:"
