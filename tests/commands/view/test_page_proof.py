"""The page shows what `mspc verify --scale` has found.

The next best layouts cost what the search's own tables say, summed up over the step.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200
from mspc.cli import app
from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_scale
from mspc.commands.view.alternatives import next_ways
from mspc.commands.view.dump import Dump, read_dump
from mspc.commands.view.page import html_of
from mspc.commands.view.proof import page_facts, read_proof
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.passes.lib.layout_search import Search
from mspc.search.layouts.cheapest import mesh_of
from mspc.search.model.model import CostModel
from mspc.search.plans.alternatives import LARGE
from mspc.search.solver.elimination import Elimination
from tests import browser
from tests.commands.view.reading import QUIET, compiled

Case = tuple[Path, Path]


@pytest.fixture(scope="module")
def right(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """(a compile's folder, what is found of it)."""
    folder = tmp_path_factory.mktemp("right")
    graphs = compiled(root / "samples/quickstart/net.py", folder / "graphs", 8)
    verify_scale(str(graphs), CompileOptions(json=folder / "report.json", loudness=QUIET), 3)
    return graphs, folder / "report.json"


@pytest.fixture(scope="module")
def wrong(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The same where the maximum is taken in place of a sum."""
    folder = tmp_path_factory.mktemp("wrong")
    graphs = compiled(root / "samples/quickstart/net.py", folder / "graphs", 8)
    for path in graphs.glob("rank_*/*_execute_*.ir"):
        path.write_text(path.read_text().replace('op: "sum"', 'op: "max"', 1))
    with pytest.raises(ExecutionError):
        verify_scale(str(graphs), CompileOptions(json=folder / "report.json", loudness=QUIET), 0)
    return graphs, folder / "report.json"


def test_what_is_equal(right: Case) -> None:
    found = read_proof(right[1], read_dump(right[0]))
    assert (found["equal"], found["ranks"], found["kinds"], found["seed"], found["steps"]) == (True, 8, 1, 3, 2)
    assert found["compared"] == 2 * len(found["values"])  # each of two steps
    assert all(same and not where for *_, same, where in found["values"])
    assert (found["said"], found["place"], found["node"]) == ([], "", None)
    assert {name for names, _, _ in found["sizes"] for name in names} >= {"w", "w2"}


def test_what_is_wrong(wrong: Case) -> None:
    dump = read_dump(wrong[0])
    found = read_proof(wrong[1], dump)
    report = json.loads(wrong[1].read_text())
    assert found["said"][0] == "10 of 16 values of 8 ranks of 1 kind differ from one device"
    number, place = found["node"]
    assert dump.programs[number].nodes[place].label == report["first"]["operator"]
    same = [row[5] for row in found["values"]]
    assert same == sorted(same)
    assert [row[6][0] for row in found["values"] if not row[5]] == [1] * same.count(False)


def test_the_command_writes_it(right: Case, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    app(["view", str(right[0]), "--proof", str(right[1]), "--out", str(out), "-q"], standalone_mode=False)
    facts = json.loads(out.read_text(encoding="utf-8").split('id="facts">')[1].split("</script>")[0])
    assert facts["proof"]["equal"] is True


def refused(report: Any, graphs: Path, tmp_path: Path) -> str:
    path = tmp_path / "report.json"
    path.write_text(report if isinstance(report, str) else json.dumps(report))
    with pytest.raises(MspcError) as caught:
        read_proof(path, read_dump(graphs))
    assert caught.value.exit_status == 2
    return caught.value.message.replace(str(path), "report.json")


def test_what_is_no_report_of_this_compile(right: Case, tmp_path: Path) -> None:
    graphs, path = right
    report = json.loads(path.read_text())
    assert refused("[1", graphs, tmp_path).startswith("report.json is no report of a proof: ")
    assert refused({"equal": True}, graphs, tmp_path) == "report.json is no report of mspc verify --scale"
    assert refused(report | {"ranks": 4}, graphs, tmp_path) == (
        "report.json is of another compile: it is of 4 ranks, this is of 8"
    )
    another = "report.json is of another compile: it is of abc"
    assert refused(report | {"compile_id": "abc"}, graphs, tmp_path).startswith(another)
    assert refused(report | {"values": [{}]}, graphs, tmp_path).startswith("report.json is damaged: ")
    assert refused(report | {"first": 3}, graphs, tmp_path).startswith("report.json is damaged: ")
    (file,) = (graphs / "rank_0").glob("*_execute_*.ir")
    with pytest.raises(MspcError, match="for the folder of a compile"):
        read_proof(path, read_dump(file))
    with pytest.raises(MspcError, match="there is no report"):
        read_proof(tmp_path / "none.json", read_dump(graphs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"difference": "a"}, "difference is 'a', not a whole number"),
        ({"tolerance": 10**400}, "tolerance is 1000"),
        ({"step": float("nan")}, "step is nan, not a whole number from 0 to "),
        ({"ranks": 1.5}, "ranks is 1.5, not a whole number from 0 to "),
        ({"same": 0}, "same is 0, not true or false"),
        ({"same": False, "rank": 0, "element": [float("inf")]}, "element is inf, not a whole number from 0 to "),
        ({"same": False, "rank": None, "element": []}, "rank is None, not a whole number from -1 to "),
        ({"same": False, "rank": 0}, "there is no 'element'"),
    ],
)
def test_a_damaged_value_is_refused(right: Case, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    report = json.loads(right[1].read_text())
    report["values"][0] |= change
    assert refused(report, right[0], tmp_path).startswith(f"report.json is damaged: {message}")


def test_a_report_without_a_time_or_with_other_sizes(right: Case, tmp_path: Path) -> None:
    report = json.loads(right[1].read_text())
    assert refused(report | {"seconds": float("inf")}, right[0], tmp_path) == "report.json is damaged: seconds is inf"
    assert refused(report | {"seed": True}, right[0], tmp_path).startswith("report.json is damaged: seed is True, not")
    report["sizes"][0]["real"] = [float("nan")]
    assert refused(report, right[0], tmp_path).startswith("report.json is damaged: real is nan, not a whole number")


@pytest.mark.skipif(bool(browser.why_not()), reason=browser.why_not())
def test_a_reader_comes_from_the_failure_to_its_node(wrong: Case, chromium: Any, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(html_of(page_facts(read_dump(wrong[0]), H200, proof=wrong[1])), encoding="utf-8")
    page = chromium.new_page()
    page.goto(f"file://{file}")
    page.wait_for_selector("html[data-ready]")
    assert "Not equal to one device" in page.locator(".pane").inner_text()
    page.locator(".failure button").click()
    assert "ReduceScatter" in page.locator("aside h2").first.inner_text()
    page.close()


NETWORK = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops, Tensor, Parameter

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, dataset_strategy="full_batch")

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = ops.MatMul().shard(((2, 2), (2, 1)))
        self.second = ops.MatMul().shard(((1, 1), (1, 4)))
        self.w = Parameter(Tensor(np.ones((64, 32), np.float32)), name="w")
        self.v = Parameter(Tensor(np.ones((32, 16), np.float32)), name="v")

    def construct(self, x):
        return self.second(self.first(x, self.w), self.v)

Net()(Tensor(np.ones((8, 64), np.float32)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("alternatives")
    (place / "net.py").write_text(NETWORK)
    return compiled(place / "net.py", place / "graphs", only_ranks=(0,))


def model_of(dump: Dump) -> CostModel:
    """The search's problem with nothing decided, as `next_ways` has left the graph."""
    assert dump.configured is not None
    search = Search(dump.configured)
    search.structure([node for node in dump.configured.nodes if node.phase == "forward"])
    return CostModel(search, mesh_of(search))  # (2, 2), of which the layouts that stand are made, too


def test_what_a_way_costs_more_is_the_difference_of_two_complete_plans(folder: Path) -> None:
    dump = read_dump(folder)
    assert dump.configured is not None
    assert dump.decided is not None
    ways = next_ways(dump.configured, dump.decided, H200)
    model = model_of(dump)
    stand: dict[int, int] = {}
    for node, decided in zip(dump.configured.nodes, dump.decided.nodes, strict=True):
        if node in model.of:
            choices = model.variables[model.of[node]].choices
            (stand[model.of[node]],) = (i for i, choice in enumerate(choices) if choice.inputs == decided.in_layouts)
    stored = {parameter.name: parameter.layout for parameter in dump.decided.parameters}
    for parameter in dump.configured.parameters:
        if parameter in model.of:
            numbers = model.variables[model.of[parameter]].outputs[0]
            (stand[model.of[parameter]],) = (
                i for i, n in enumerate(numbers) if model.layout(parameter, int(n)) == stored[parameter.name]
            )
    values = [stand.get(variable, 0) for variable in range(len(model.variables))]
    elimination = Elimination([variable.size for variable in model.variables], model.factors)
    bandwidth = H200.link.bandwidth.at(LARGE)
    told = 0
    for number, rows in ways.items():
        variable = model.of[dump.configured.nodes[number]]
        assert rows[0].operands == dump.decided.nodes[number].in_layouts
        for way in rows[1:]:
            costs = []
            for i, choice in enumerate(model.variables[variable].choices):
                if choice.inputs == way.operands:
                    changed = [*values[:variable], i, *values[variable + 1 :]]
                    costs.append(elimination.cost(changed) - elimination.cost(values))
            assert way.seconds == pytest.approx(min(costs) / bandwidth, abs=1e-12)
            told += 1
    assert told >= 4
    assert sorted(len(rows) for rows in ways.values()) == [3, 3]


def test_the_search_is_not_beaten_by_more_than_it_could_save(folder: Path) -> None:
    """A product whose operand is sharded otherwise than the one before leaves it: the way that spares the exchange
    costs less."""
    dump = read_dump(folder)
    assert dump.configured is not None
    assert dump.decided is not None
    ways = next_ways(dump.configured, dump.decided, H200)
    assert any(way.seconds < 0 for rows in ways.values() for way in rows[1:])
    assert all(a.seconds <= b.seconds for rows in ways.values() for a, b in pairwise(rows[1:]))


def test_graphs_that_do_not_go_together_tell_nothing(folder: Path) -> None:
    dump = read_dump(folder)
    assert dump.configured is not None
    assert dump.plan is not None
    assert next_ways(dump.configured, dump.plan, H200) == {}
