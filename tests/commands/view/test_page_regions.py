"""The content of a page about the graphs that nodes run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200
from mspc.commands.view.dump import read_dump
from mspc.commands.view.facts import page_facts
from mspc.commands.view.page import html_of
from tests.browser import browser, why_not
from tests.commands.test_loops_in_tables import looped
from tests.commands.view.reading import compiled
from tests.ir.regions import LOOP, PROGRAM
from tests.ir.test_mindspore_dumps import LOOP_DUMP

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
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
    return page_facts(read_dump(folder / "net.ir"), H200)


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
    facts = page_facts(read_dump(compiled(tmp_path / "net.py", tmp_path / "graphs", 4)), H200)
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
