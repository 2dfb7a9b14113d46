"""What a page holds of the graphs that nodes run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.known_machines import H200
from mspc.commands.view.dump import read_dump
from mspc.commands.view.facts import page_facts
from mspc.commands.view.page import html_of
from tests.browser import browser, why_not
from tests.commands.test_loops_in_tables import looped
from tests.ir.regions import LOOP, PROGRAM


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
