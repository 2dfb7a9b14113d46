"""The content of a page equals the dump: values are read back out of it and held against the graphs.

The content of a page about the graphs that nodes run.
"""

import hashlib
import itertools
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.nodes import moved_bytes, sent_bytes
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.commands.facts.compiled import CompileFacts
from mspc.commands.facts.equal_ranks import kinds_of, own_numbers
from mspc.commands.facts.memory import memory_blocks
from mspc.commands.facts.origins import Origins
from mspc.commands.view.dump import ranges, read_dump
from mspc.commands.view.graph_columns import members_of, strides_of_axes, strides_of_members
from mspc.commands.view.page import html_of
from mspc.commands.view.page_tables import NodeTables
from mspc.commands.view.proof import page_facts
from mspc.compiler.pipeline import STEPS
from mspc.ir.layout import Layout, group_of
from mspc.ir.provenance import FRONTEND
from mspc.runtime.memory_plan import plan_memory
from mspc.runtime.program import Program, load_program
from tests.browser import browser, why_not
from tests.commands.test_loops_in_tables import looped
from tests.commands.view.reading import check_equal, compiled, elements, read_back
from tests.graphs import REGISTRY, Collective, Location, MspcError, parse
from tests.ir.regions import LOOP, PROGRAM
from tests.ir.test_mindspore_dumps import LOOP_DUMP
from tests.test_conformance import CASES
from tests.texts import IMPORTS

SMALLEST = 600_000
"""Bytes of the quick start's page at most."""
LARGE = ("conv_auto", "transformer_dynamic_programming", "transformer_propagate")
"""Shared cases that take a second."""
FEW = 20
"""Nodes of a graph that may be little but exchanges, whose pieces are no slices."""

ROWS = IMPORTS + """
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, dataset_strategy="full_batch")
conv = nn.Conv2d(3, 8, 3)
conv.conv2d.shard(((2, 1, 2, 1), (1, 1, 1, 1)))
conv(Tensor(np.ones((4, 3, 8, 8), np.float32)))
"""


@pytest.fixture(scope="module")
def quickstart(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(root / "samples/quickstart/net.py", tmp_path_factory.mktemp("view") / "graphs", 8)


@pytest.fixture(scope="module")
def dump(quickstart: Path) -> CompileFacts:
    return read_dump(quickstart)


@pytest.fixture(scope="module")
def facts(dump: CompileFacts) -> dict[str, Any]:
    return read_back(page_facts(dump))


def test_sources_below_the_current_folder_have_relative_paths(own_folder: Path) -> None:
    tables = NodeTables()
    for file in (str(own_folder / "model.py"), "/else/model.py", "net.py"):
        tables.stack((Location(file, 1, 1, 2, "x"),))
    assert tables.as_dict()["strings"] == ["model.py", "x", "/else/model.py", "net.py"]


@pytest.mark.share(4)
@pytest.mark.parametrize("case", CASES)
def test_mindspores_dumps_are_shown_as_they_are(case: str, conformance: Path) -> None:
    path = conformance / "dumps" / f"{case}.begin.ir"
    path = path if path.is_file() else conformance / "dumps" / f"{case}.execute.ir"
    facts = read_back(page_facts(read_dump(path)))
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
    facts = read_back(page_facts(dump))
    assert dump.notes == []
    assert dump.global_graph is not None
    for shown, graph in zip(facts["graphs"], [*dump.programs, dump.global_graph], strict=True):
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


def _check_origins(facts: dict[str, Any], shown: dict[str, Any], graph: Any, dump: CompileFacts) -> None:
    """A rank's slice is what its layout in the graph of all ranks leaves of the global tensor."""
    assert dump.global_graph is not None
    found = 0
    for index, node in enumerate(graph.nodes):
        at = shown["origin"][index]
        global_node = dump.global_graph.nodes[at] if at >= 0 else None
        if global_node is None or not isinstance(global_node.layout, Layout) or not hasattr(node.type, "shape"):
            continue
        assert global_node.tensor_layout.local_shape(global_node.shape) == node.shape, node
        found += 1
    assert found >= len(graph.nodes) // 3 or len(graph.nodes) < FEW


def test_a_folder_is_shown_as_it_is(dump: CompileFacts, facts: dict[str, Any]) -> None:
    assert dump.global_graph is not None
    assert (facts["ranks"], facts["mode"], facts["compile_id"]) == (8, "auto_parallel", dump.compile_id)
    assert facts["programs"] == [{"graph": 0, "ranks": [[0, 7, 1]], "count": 8, "own": {}}]
    assert facts["plan"] == 1
    for shown, graph in zip(facts["graphs"], [*dump.programs, dump.global_graph], strict=True):
        check_equal(facts, shown, graph)


def test_nodes_of_ranks_name_the_pass_that_made_them(dump: CompileFacts) -> None:
    (graph,) = dump.programs
    made_by = {node.op.name: node.provenance for node in graph.nodes}
    assert {made.partition("/")[0] for made in made_by.values()} <= {FRONTEND, *(step.name for step in STEPS)}
    assert (made_by["ReLU"], made_by["AlltoAll"]) == (FRONTEND, "lower_redistribution/Redistribute")
    assert (made_by["ReluGrad"], made_by["GroupedUpdate"]) == ("grad", "fuse_updates/ApplyMomentum")


def test_layouts_need_no_dumps(root: Path, facts: dict[str, Any], tmp_path: Path) -> None:
    folder = compiled(root / "samples/quickstart/net.py", tmp_path / "graphs", 8, level=0, kinds_only=True)
    assert read_back(page_facts(read_dump(folder))) == facts


def test_layouts_of_a_compile_by_a_plan_need_no_dumps(root: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        'ranks = 8\n[operators]\n"Default/network-WithLossCell/_backbone-Net/ReLU-op0" = ["(4, 2) [0, 1]"]\n'
    )
    script, plan = root / "samples/quickstart/net.py", tmp_path / "plan.toml"
    folder = compiled(script, tmp_path / "graphs", 8, level=0, strategies=plan, kinds_only=True)
    dump = read_dump(folder)
    assert dump.global_graph is not None
    (relu,) = (node for node in dump.global_graph.nodes if node.label == "ReLU 'relu'")
    assert (str(relu.layout), relu.attrs["strategy_from"]) == ("(4, 2) [0, 1]", "the plan")


def test_a_convolution_over_rows_of_other_ranks_has_the_layout_of_its_result(tmp_path: Path) -> None:
    """It stands behind what brings these rows, which are slices of nothing."""
    (tmp_path / "net.py").write_text(ROWS)
    dump = read_dump(compiled(tmp_path / "net.py", tmp_path / "out", only_ranks=(0,)))
    assert dump.global_graph is not None
    origins = Origins(dump.programs[0], dump.global_graph)
    found = {node.op.name: at for node, at in zip(dump.programs[0].nodes, origins.of, strict=True)}
    assert str(dump.global_graph.nodes[found["Conv2D"]].layout) == "(2, 2) [0, -, 1, -]"
    assert found["NeighborExchange"] == -1


def test_every_element_of_nodes_that_are_several_has_its_layout(dump: CompileFacts, facts: dict[str, Any]) -> None:
    (graph, _), strings = facts["graphs"], facts["strings"]
    names = [strings[op] for op in graph["nodes"]["op"]]
    update = str(names.index("GroupedUpdate"))
    assert dump.global_graph is not None
    assert [dump.global_graph.nodes[at].op.name for at in graph["origins"][update]] == ["ApplyMomentum"] * 2
    assert all(at >= 0 for i, at in enumerate(graph["origin"]) if names[i] != "GroupedUpdate")


def test_bytes_times_and_memory_are_those_of_the_analyses(dump: CompileFacts, facts: dict[str, Any]) -> None:
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


def test_what_lives_at_once_is_what_the_plan_says(dump: CompileFacts, facts: dict[str, Any]) -> None:
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
    plan = plan_memory(graph)
    memory = memory_blocks(graph, plan)
    alive = [
        sum(nbytes for _, nbytes, first, last, _ in memory["blocks"] if first <= index <= last)
        for index in range(len(graph.nodes))
    ]
    assert plan.lower_bound - 32 * len(graph.nodes) <= max(alive) <= plan.lower_bound


def test_nodes_that_are_several_lead_to_what_they_are_made_of(dump: CompileFacts, facts: dict[str, Any]) -> None:
    assert dump.global_graph is not None
    shown = facts["graphs"][0]
    for index, members in shown["members"].items():
        names = [dump.global_graph.nodes[at].op.name for at in members]
        lines = [facts["strings"][number] for number in shown["body"][index]]
        assert len(names) == len(lines)
        assert all(name in line for name, line in zip(names, lines, strict=True))


def test_the_next_best_layouts_are_those_of_the_search(dump: CompileFacts, facts: dict[str, Any]) -> None:
    """As it is stands first; for a network of this size the search's own plans with one operator sharded otherwise."""
    assert dump.global_graph is not None
    names = {dump.global_graph.nodes[int(index)].label: rows for index, rows in facts["ways"].items()}
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
    shown = page_facts(dump)["graphs"][0]["collectives"]
    total = 8 * 32 * 4
    assert [(shown[i]["size"], shown[i]["bytes"]) for i in (0, 1)] == [(4, total * 2 * 3 // 4), (8, total * 7)]


SCRIPT = IMPORTS + """
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, dataset_strategy="full_batch")

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w, self.v = (Parameter(Tensor(np.ones((8, 8), np.float32)), name=name) for name in "wv")
        self.up, self.down = ops.MatMul().shard(((1, 1), (1, 4))), ops.MatMul().shard(((1, 4), (4, 1)))

    def construct(self, x, n):
        i = Tensor(0, ms.int32)
        while i < n:
            x = ops.tanh(self.down(self.up(x, self.w), self.v))
            i = i + 1
        return x

Net()(Tensor(np.ones((4, 8), np.float32)), Tensor(3, ms.int32))
"""


def facts_of(folder: Path, text: str) -> dict[str, Any]:
    (folder / "net.ir").write_text(text)
    return page_facts(read_dump(folder / "net.ir"))


def test_every_graph_is_there_once_with_what_runs_it(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, LOOP)
    names = ["net", "while_1_condition", "while_1_body", "if_2_then", "if_2_else"]
    assert [graph["name"] for graph in facts["graphs"]] == names
    assert facts["main"] == 0
    assert [graph.get("regions") for graph in facts["graphs"]] == [{0: [1, 2]}, None, {2: [3, 4]}, None, None]
    assert [graph.get("root") for graph in facts["graphs"]] == [None, 0, 0, 0, 0]
    runs = [facts["strings"][graph["runs"]] for graph in facts["graphs"][1:]]
    assert runs == ["once a turn", "once a turn", "at most once a turn", "at most once a turn"]


def test_a_graph_that_two_nodes_run_is_there_once(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, PROGRAM)
    names = [graph["name"] for graph in facts["graphs"]]
    assert names.count("layer") == 1
    number = names.index("layer")
    assert [facts["graphs"][0]["regions"][index] for index in (9, 11)] == [[number], [number]]
    assert facts["strings"][facts["graphs"][number]["runs"]] == "2 times"


def test_collectives_of_a_loop_have_the_bytes_of_the_step(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, looped(3))
    (behind,), (inside,) = (graph["collectives"].values() for graph in facts["graphs"])
    assert (behind["bytes"], inside["bytes"]) == (16, 48)
    assert inside["group"] == behind["group"]
    assert inside["seconds"] == pytest.approx(3 * behind["seconds"])


def test_nodes_of_a_loop_know_their_layouts_from_the_graph_of_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SCRIPT)
    facts = page_facts(read_dump(compiled(tmp_path / "net.py", tmp_path / "graphs", 4)))
    bodies = [graph for graph in facts["graphs"] if graph["name"] == "while_1_body"]
    (own,) = [graph for graph in bodies if graph["kind"] == "rank"]
    (all_ranks,) = [graph for graph in bodies if graph["kind"] == "plan"]
    assert facts["graphs"][own["planned"]] is all_ranks
    operators, planned = ([facts["strings"][i] for i in graph["nodes"]["op"]] for graph in (own, all_ranks))
    products = [i for i, name in enumerate(operators) if name == "MatMul"]
    assert len(products) == 2
    assert [planned[own["origin"][i]] for i in products] == ["MatMul", "MatMul"]
    layouts = [facts["layouts"][all_ranks["nodes"]["layout"][own["origin"][i]][0]] for i in products]
    assert [layout[1] for layout in layouts] == [[[], [0]], [[], []]]
    assert layouts[1][2] == [0]  # partial sums
    assert sum(len(graph["collectives"]) for graph in bodies) >= 1


def test_graphs_of_mindspore_are_there_side_by_side(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, LOOP_DUMP)
    assert [graph["name"] for graph in facts["graphs"]] == ["43_3_↵_main_174", "44_4_↻_main_204", "42_1_main_172"]
    assert facts["main"] == 2
    assert [graph.get("root") for graph in facts["graphs"]] == [None, None, None]
    called = facts["graphs"][2]["constants"][0]
    assert facts["strings"][called] == "@43_3_↵_main_174"


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_nodes_inside_of_a_loop_open_below_it(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(html_of(facts_of(tmp_path, LOOP)))
    with browser() as running:
        page = running.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        rows = page.locator("[role=treeitem]")
        rows.first.wait_for()
        assert rows.count() == 2
        page.click("[data-path='%0'] button")
        page.click("[data-path='%0@2%2'] button")
        assert rows.count() == 12
        page.click("[data-path='%0@2%2@3%0']")
        details = page.locator("aside").inner_text()
        assert "Mul" in details
        assert "@if_2_then (at most once a turn), which is run by" in details
        page.click("aside a:has-text('If')")
        assert page.url.endswith("#node=2.2")
        page.reload()
        rows.first.wait_for()
        assert page.locator("[aria-selected=true][data-path='%0@2%2']").count() == 1


TEXT = """#attrs         :
ranks : 4
rank : {rank}

subgraph @net() {{
  %0 = StridedSlice(%para1_x) primitive_attrs: {{begin: ({begin}, 0), end: (8, 8), strides: (1, 1)}}
  %1 = Concat(%0, Tensor(shape=[], dtype=Float32, value={value}))
  %2 = AllReduce(%1) primitive_attrs: {{op: "sum", group: "2-{rank}", rank_list: ({rank}, 9)}}
  %3 = NeighborExchange({operands}) primitive_attrs: {{send_rank_ids: (0, 1), rank_list: (0, 1, 2, 3)}}
}}
"""


def text(rank: int, **others: object) -> tuple[int, str]:
    return rank, TEXT.format(**{"rank": rank, "begin": 0, "value": 1.0, "operands": "%0, %1"} | others)


@pytest.mark.parametrize("mesh", [(8,), (2, 4), (2, 3, 4), (2, 2, 2, 2)])
def test_groups_along_any_axes_of_a_mesh(mesh: tuple[int, ...]) -> None:
    for count in range(len(mesh) + 1):
        for axes in itertools.combinations(range(len(mesh)), count):
            strides = strides_of_axes(mesh, axes)
            for rank in range(math.prod(mesh)):
                members = group_of(mesh, axes, rank)
                assert members_of(strides, rank) == members
                found = strides_of_members(members)
                assert found is not None
                assert members_of(found, rank) == members


@pytest.mark.parametrize("members", [(0, 1, 3), (3, 2, 1), (0, 0), (0, 1, 4, 6), (0, 2, 3, 4)])
def test_groups_without_a_rule(members: tuple[int, ...]) -> None:
    assert strides_of_members(members) is None


def program(folder: Path, texts: list[tuple[int, str]], kinds: dict[int, int]) -> Program:
    """A folder with these texts."""
    files = {rank: f"rank_{rank}.ir" for rank, _ in texts}
    digests = {files[rank]: hashlib.sha256(content.encode()).hexdigest() for rank, content in texts}
    for rank, content in texts:
        (folder / files[rank]).write_text(content)
    (folder / "program.json").write_text("{}")
    return Program(folder, "", 4, "auto_parallel", False, files, digests, kinds=kinds)


def test_ranks_are_of_the_kinds_that_the_program_says(tmp_path: Path) -> None:
    other = (1, text(1)[1].replace("Concat", "Stack"))
    (first, second), edited = kinds_of(program(tmp_path, [text(0), other], {0: 0, 1: 1, 2: 0, 3: 1}))
    assert (first.ranks, first.text, second.ranks, edited) == ([0, 2], text(0)[1], [1, 3], [])


def test_kinds_of_the_program_that_differ_in_numbers_alone_are_one(tmp_path: Path) -> None:
    (kind,), _ = kinds_of(program(tmp_path, [text(0), text(1, begin=4)], {0: 0, 1: 1, 2: 0, 3: 1}))
    assert kind.ranks == [0, 1, 2, 3]


def test_ranks_of_which_nothing_is_said_are_compared(tmp_path: Path) -> None:
    here = program(tmp_path, [text(0), text(1, begin=4), text(2), text(3, begin=4)], {})
    (first, second), _ = kinds_of(here)
    assert (first.ranks, second.ranks) == ([0, 2], [1, 3])
    (kind,), _ = kinds_of(here, numbers_count=False)
    assert kind.ranks == [0, 1, 2, 3]


def test_an_edited_file_is_a_kind_of_its_own(tmp_path: Path) -> None:
    here = program(tmp_path, [text(0), text(1), text(2)], {0: 0, 1: 0, 2: 0})
    (tmp_path / "rank_1.ir").write_text(text(1)[1].replace("Concat", "Stack"))
    os.utime(tmp_path / "rank_1.ir", (2**32, 2**32))
    (first, second), edited = kinds_of(here)
    assert (first.ranks, first.edited, second.ranks, second.edited) == ([0, 2], False, [1], True)
    assert edited == ["rank_1.ir"]


def test_a_file_of_another_compile_is_refused_however_old_it_is(tmp_path: Path) -> None:
    here = program(tmp_path, [text(0), text(1)], {0: 0, 1: 0})
    (tmp_path / "rank_1.ir").write_text(text(1)[1].replace("ranks : 4", 'compile_id : "abc"\nranks : 4'))
    os.utime(tmp_path / "rank_1.ir", (0, 0))
    with pytest.raises(MspcError, match=r"holds dumps of different compiles: rank_1\.ir is of compile abc"):
        kinds_of(here)


def test_numbers_of_a_ranks_own_are_told(tmp_path: Path) -> None:
    texts = [text(0), text(1, begin=4, value=2.0), text(2, operands="%1, %0"), text(3)]
    here = program(tmp_path, texts, dict.fromkeys(range(4), 0))
    (kind,), _ = kinds_of(here)
    assert own_numbers(here, kind.ranks, kind.text) == {
        "net": {
            0: {0: "begin: (0, 0)", 1: "begin: (4, 0)", 2: "begin: (0, 0)", 3: "begin: (0, 0)"},
            1: {0: "value: 1.0", 1: "value: 2.0", 2: "value: 1.0", 3: "value: 1.0"},
            3: {0: "operands: %0, %1", 1: "operands: %0, %1", 2: "operands: %1, %0", 3: "operands: %0, %1"},
        },
    }


def test_numbers_in_a_graph_that_a_node_runs_are_told_there(tmp_path: Path) -> None:
    graph = 'subgraph @"for 1"() {{\n  %0 = LocalSlice() primitive_attrs: {{begin: ({}, 0)}}\n'
    texts = [(rank, body + graph.format(4 * rank)) for rank, body in (text(0), text(1))]
    here = program(tmp_path, texts, {0: 0, 1: 0})
    (kind,), _ = kinds_of(here)
    assert own_numbers(here, kind.ranks, kind.text) == {"for 1": {0: {0: "begin: (0, 0)", 1: "begin: (4, 0)"}}}


def test_thousands_of_ranks_take_no_room() -> None:
    assert ranges(range(8192)) == [[0, 8191, 1]]
    assert ranges([*range(0, 16, 4), 20, 21]) == [[0, 12, 4], [20, 21, 1]]
    assert ranges([5]) == [[5, 5, 1]]
