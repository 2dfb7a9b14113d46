"""The content of a page equals the dump: values are read back out of it and held against the graphs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200
from mspc.analysis.cost.nodes import moved_bytes, sent_bytes
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.commands.view.dump import Dump, read_dump
from mspc.commands.view.facts import page_facts
from mspc.commands.view.graph_columns import members_of
from mspc.commands.view.origins import Origins
from mspc.commands.view.page import html_of
from mspc.commands.view.page_tables import NodeTables
from mspc.commands.view.stages import memory_facts
from mspc.ir.diagnostics import Location
from mspc.ir.layout import Layout
from mspc.ir.text.parser import parse
from mspc.ops.collective.base import Collective
from mspc.ops.op import REGISTRY
from mspc.runtime.memory_plan import plan_memory
from mspc.runtime.program import load_program
from tests.commands.view.reading import check_equal, compiled, elements, read_back
from tests.test_conformance import CASES

SMALLEST = 600_000
"""Bytes of the quick start's page at most."""
LARGE = ("conv_auto", "transformer_dynamic_programming", "transformer_propagate")
"""Shared cases that take a second."""
FEW = 20
"""Nodes of a graph that may be little but exchanges, whose pieces are no slices."""

ROWS = """
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, dataset_strategy="full_batch")
conv = nn.Conv2d(3, 8, 3)
conv.conv2d.shard(((2, 1, 2, 1), (1, 1, 1, 1)))
conv(Tensor(np.ones((4, 3, 8, 8), np.float32)))
"""


@pytest.fixture(scope="module")
def quickstart(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(root / "samples/quickstart/net.py", tmp_path_factory.mktemp("view") / "graphs", 8)


@pytest.fixture(scope="module")
def dump(quickstart: Path) -> Dump:
    return read_dump(quickstart)


@pytest.fixture(scope="module")
def facts(dump: Dump) -> dict[str, Any]:
    return read_back(page_facts(dump, H200))


def test_sources_below_the_current_folder_have_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tables = NodeTables()
    for file in (str(tmp_path / "model.py"), "/else/model.py", "net.py"):
        tables.stack((Location(file, 1, 1, 2, "x"),))
    assert tables.as_dict()["strings"] == ["model.py", "x", "/else/model.py", "net.py"]


@pytest.mark.share(4)
@pytest.mark.parametrize("case", CASES)
def test_mindspores_dumps_are_shown_as_they_are(case: str, conformance: Path) -> None:
    path = conformance / "dumps" / f"{case}.begin.ir"
    path = path if path.is_file() else conformance / "dumps" / f"{case}.execute.ir"
    facts = read_back(page_facts(read_dump(path), H200))
    assert facts["dialect"] == "mindspore"
    module = parse(path.read_text(), REGISTRY, str(path))
    assert [graph["name"] for graph in facts["graphs"]] == [graph.name for graph in module.graphs]
    assert facts["graphs"][facts["main"]]["name"] == module.entry
    for shown, graph in zip(facts["graphs"], module.graphs, strict=True):
        check_equal(facts, shown, graph)


@pytest.mark.share(4)
@pytest.mark.parametrize("case", CASES)
def test_shared_cases_are_shown_as_they_are_compiled(
    case: str, conformance: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """No dumps are written: the graph of all ranks, and layouts with it, is the one that the program leads to."""
    if case in LARGE and not pytestconfig.getoption("--every-case"):
        pytest.skip("it takes a second; --every-case compares it")
    script = conformance / "cases" / f"{case}.py"
    ranks = None if "device_num=" in script.read_text() else 8
    folder = compiled(script, tmp_path / "graphs", ranks, level=0, kinds_only=True)
    dump = read_dump(folder)
    facts = read_back(page_facts(dump, H200))
    assert dump.notes == []
    assert dump.plan is not None
    for shown, graph in zip(facts["graphs"], [*dump.programs, dump.plan], strict=True):
        check_equal(facts, shown, graph)
    _check_groups(facts, folder)
    if dump.mode != "data_parallel":  # whose graph of all ranks has a rank's own types
        for shown, graph in zip(facts["graphs"], dump.programs, strict=False):
            _check_origins(facts, shown, graph, dump)


def _check_groups(facts: dict[str, Any], folder: Path) -> None:
    """The groups of every rank that was written, by rule, are those in its own file."""
    for rank in load_program(folder).execute:
        (path,) = (folder / f"rank_{rank}").glob("*_execute_*.ir")
        graph = parse(path.read_text(), REGISTRY, str(path)).main
        shown = next(
            facts["graphs"][program["graph"]] for program in facts["programs"]
            if any(first <= rank <= last and (rank - first) % step == 0 for first, last, step in program["ranks"])
        )  # fmt: skip
        for index, node in enumerate(graph.nodes):
            if isinstance(node.op, Collective) and "group" in shown["collectives"][str(index)]:
                group = shown["collectives"][str(index)]["group"]
                assert members_of(group, rank) == tuple(sorted(node.op.members))


def _check_origins(facts: dict[str, Any], shown: dict[str, Any], graph: Any, dump: Dump) -> None:
    """A rank's slice is what its layout in the graph of all ranks leaves of the global tensor."""
    assert dump.plan is not None
    found = 0
    for index, node in enumerate(graph.nodes):
        at = shown["origin"][index]
        global_node = dump.plan.nodes[at] if at >= 0 else None
        if global_node is None or not isinstance(global_node.layout, Layout) or not hasattr(node.type, "shape"):
            continue
        assert global_node.tensor_layout.local_shape(global_node.shape) == node.shape, node
        found += 1
    assert found >= len(graph.nodes) // 3 or len(graph.nodes) < FEW


def test_a_folder_is_shown_as_it_is(dump: Dump, facts: dict[str, Any]) -> None:
    assert dump.plan is not None
    assert (facts["ranks"], facts["mode"], facts["compile_id"]) == (8, "auto_parallel", dump.compile_id)
    assert facts["programs"] == [{"graph": 0, "ranks": [[0, 7, 1]], "count": 8, "own": {}}]
    assert facts["plan"] == 1
    for shown, graph in zip(facts["graphs"], [*dump.programs, dump.plan], strict=True):
        check_equal(facts, shown, graph)


def test_layouts_need_no_dumps(root: Path, facts: dict[str, Any], tmp_path: Path) -> None:
    folder = compiled(root / "samples/quickstart/net.py", tmp_path / "graphs", 8, level=0, kinds_only=True)
    assert read_back(page_facts(read_dump(folder), H200)) == facts


def test_layouts_of_a_compile_by_a_plan_need_no_dumps(root: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        'ranks = 8\n[operators]\n"Default/network-WithLossCell/_backbone-Net/ReLU-op0" = ["(4, 2) [0, 1]"]\n'
    )
    script, plan = root / "samples/quickstart/net.py", tmp_path / "plan.toml"
    folder = compiled(script, tmp_path / "graphs", 8, level=0, strategies=plan, kinds_only=True)
    dump = read_dump(folder)
    assert dump.plan is not None
    (relu,) = (node for node in dump.plan.nodes if node.label == "ReLU 'relu'")
    assert (str(relu.layout), relu.attrs["strategy_from"]) == ("(4, 2) [0, 1]", "the plan")


def test_a_convolution_over_rows_of_other_ranks_has_the_layout_of_its_result(tmp_path: Path) -> None:
    """It stands behind what brings these rows, which are slices of nothing."""
    (tmp_path / "net.py").write_text(ROWS)
    dump = read_dump(compiled(tmp_path / "net.py", tmp_path / "out", only_ranks=(0,)))
    assert dump.plan is not None
    origins = Origins(dump.programs[0], dump.plan)
    found = {node.op.name: at for node, at in zip(dump.programs[0].nodes, origins.of, strict=True)}
    assert str(dump.plan.nodes[found["Conv2D"]].layout) == "(2, 2) [0, -, 1, -]"
    assert found["NeighborExchange"] == -1


def test_every_element_of_nodes_that_are_several_has_its_layout(dump: Dump, facts: dict[str, Any]) -> None:
    (graph, _), strings = facts["graphs"], facts["strings"]
    names = [strings[op] for op in graph["nodes"]["op"]]
    update = str(names.index("GroupedUpdate"))
    assert dump.plan is not None
    assert [dump.plan.nodes[at].op.name for at in graph["origins"][update]] == ["ApplyMomentum"] * 2
    assert all(at >= 0 for i, at in enumerate(graph["origin"]) if names[i] != "GroupedUpdate")


def test_bytes_times_and_memory_are_those_of_the_analyses(dump: Dump, facts: dict[str, Any]) -> None:
    (graph,), shown = dump.programs, facts["graphs"][0]
    timeline, plan = StreamTimeline(graph), plan_memory(graph)
    assert shown["schedule"]["total"] == timeline.total
    assert shown["schedule"]["moved"] == [moved_bytes(node) for node in graph.nodes]
    assert shown["memory"]["sizes"]["peak"] == plan.peak
    for index, facts_of_one in shown["collectives"].items():
        assert facts_of_one["bytes"] == pytest.approx(sent_bytes(graph.nodes[int(index)]), rel=1e-4)
    for node, begin, seconds in zip(graph.nodes, shown["schedule"]["begin"], shown["schedule"]["seconds"], strict=True):
        assert (begin is None) == (node not in timeline.spans)
        if begin is not None:
            assert (begin, seconds) == pytest.approx(timeline.spans[node], rel=1e-4)


def test_what_lives_at_once_is_what_the_plan_says(dump: Dump, facts: dict[str, Any]) -> None:
    (graph,), memory = dump.programs, facts["graphs"][0]["memory"]
    alive = [
        sum(nbytes for _, nbytes, first, last, _ in memory["blocks"] if first <= index <= last)
        for index in range(len(graph.nodes))
    ]
    assert max(alive) == memory["sizes"]["lower_bound"]
    for index in range(len(graph.nodes)):
        there = sorted(row[:2] for row in memory["blocks"] if row[2] <= index <= row[3])
        assert all(a[0] + a[1] <= b[0] for a, b in pairwise(there)), index


TUPLES = """
import mspc as ms
import numpy as np
from mspc import Tensor, nn, ops

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.bn, self.dense = nn.BatchNorm2d(8), nn.Dense(8, 4).to_float(ms.float16)

    def construct(self, x):
        return self.dense(ops.mean(ops.relu(self.bn(x)), (2, 3))).astype(ms.float32)

net = Net()
step = nn.TrainOneStepCell(
    nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")),
    nn.Momentum(net.trainable_params(), 0.1, 0.9),
)
step(Tensor(np.zeros((4, 8, 16, 16), np.float32)), Tensor(np.zeros(4, np.int32)))
"""


def test_of_tuples_every_element_lives_until_it_is_read(tmp_path: Path) -> None:
    """The result of BatchNorm is read early, its statistics late; copies of weights in halves stand all the time."""
    (tmp_path / "net.py").write_text(TUPLES)
    (graph,) = read_dump(compiled(tmp_path / "net.py", tmp_path / "graphs", 1)).programs
    memory, plan = memory_facts(graph), plan_memory(graph)
    alive = [
        sum(nbytes for _, nbytes, first, last, _ in memory["blocks"] if first <= index <= last)
        for index in range(len(graph.nodes))
    ]
    assert plan.lower_bound - 32 * len(graph.nodes) <= max(alive) <= plan.lower_bound


def test_nodes_that_are_several_lead_to_what_they_are_made_of(dump: Dump, facts: dict[str, Any]) -> None:
    assert dump.plan is not None
    shown = facts["graphs"][0]
    for index, members in shown["members"].items():
        names = [dump.plan.nodes[at].op.name for at in members]
        lines = [facts["strings"][number] for number in shown["body"][index]]
        assert len(names) == len(lines)
        assert all(name in line for name, line in zip(names, lines, strict=True))


def test_the_next_best_layouts_are_those_of_the_search(dump: Dump, facts: dict[str, Any]) -> None:
    """As it is stands first; for a network of this size the search's own plans with one operator sharded otherwise."""
    assert dump.plan is not None
    names = {dump.plan.nodes[int(index)].label: rows for index, rows in facts["ways"].items()}
    rows = names["MatMul 'matmul'"]
    assert len(rows) == 3
    assert rows[0][1] == 0.0
    assert [Layout.of(*facts["layouts"][n][:2]).strategy for n in rows[0][0]] == [(2, 4), (4, 1)]
    assert set(names) >= {"MatMul 'matmul'", "MatMul 'matmul2'", "ReLU 'relu'", "Sub"}


def test_the_quick_starts_page_is_small_and_needs_nothing_else(facts: dict[str, Any]) -> None:
    page = html_of(facts)
    assert len(page.encode()) <= SMALLEST
    named = [value for _, attributes in elements(page) for name, value in attributes.items() if name in ("src", "href")]
    assert named == []


def test_collectives_of_mindspores_dumps_have_the_bytes_that_diff_knows(tmp_path: Path) -> None:
    """8 x 32 numbers of four bytes: a ring of four sends 2 x 3/4 of them; of eight that a group's name counts 7/8 of
    eight times as many in an AllGather."""
    tensor, wide = "(<Tensor[Float32], (8, 32)>)", "(<Tensor[Float32], (64, 32)>)"
    (tmp_path / "mindspore.ir").write_text(
        f"#IR entry      : @net\n#IR dialect    : mindspore\n#Total params  : 1\n\n%para1_x: {tensor[1:-1]}\n\n"
        "subgraph @net() {\n"
        f'  %0(out) = AllReduce(%para1_x) primitive_attrs: {{op: "sum", group: "4-1", rank_list: (0, 2, 4, 6)}}\n'
        f"      : {tensor} -> {tensor}\n      # Fullname with scope: (Default/net/AllReduce-op0)\n"
        f'  %1(out) = AllGather(%0) primitive_attrs: {{group: "8-77"}}\n      : {tensor} -> {wide}\n'
        f"      # Fullname with scope: (Default/net/AllGather-op1)\n  Return(%1)\n      : {wide}\n}}\n"
    )
    dump = read_dump(tmp_path / "mindspore.ir")
    shown = page_facts(dump, H200)["graphs"][0]["collectives"]
    total = 8 * 32 * 4
    assert [(shown[i]["size"], shown[i]["bytes"]) for i in (0, 1)] == [(4, total * 2 * 3 // 4), (8, total * 7)]
