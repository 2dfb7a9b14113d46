"""Questions that people ask of a compile, answered by clicks in a real browser: three at most for each."""

import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.report.tables import size_text
from mspc.commands.view.dump import read_dump
from mspc.commands.view.page import ViewOptions, facts_of, html_of
from mspc.commands.view.proof import page_facts
from tests import browser
from tests.commands.view.reading import QUIET, compiled

CLICKS = 3
MANY = 100_000
"""Nodes of a hostile dump."""
PATIENCE = 20_000
"""Milliseconds in which a page that does not freeze answers, on a machine with other work."""
COLLECTIVE_BOX = "AllGather\n(8, 16), 384 B sentAllGather(8, 16), 384 B sent"
"""The title of a box and what stands in it."""
EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"

pytestmark = pytest.mark.skipif(bool(browser.why_not()), reason=browser.why_not())


@dataclass
class Reader:
    """Somebody who reads a page. clicks: that they have needed."""

    page: Any
    file: Path
    clicks: int = 0

    def open(self, link: str = "") -> None:
        self.clicks = 0
        self.page.goto("about:blank")
        self.page.goto(f"file://{self.file}{link}")
        self.page.wait_for_selector("html[data-ready]", timeout=PATIENCE)

    def click(self, selector: str) -> None:
        self.clicks += 1
        assert self.clicks <= CLICKS
        self.page.locator(selector).first.click()

    def tab(self, name: str) -> None:
        self.click(f"role=tab[name='{name}']")

    def node(self, number: int) -> None:
        self.click(f"[data-path='%{number}']")

    def until(self, condition: str) -> None:
        """Wait for something to hold. The page's policy lets playwright's own waiting evaluate nothing."""
        end = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return " ".join(self.page.locator(selector).first.inner_text().split())

    @property
    def told(self) -> str:
        """The text beside the network on the chosen node."""
        return self.text("aside")

    @property
    def shown(self) -> str:
        return self.text(".pane")


@pytest.fixture(scope="module")
def said(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of the quick start's compile, and the table of that compile: the answers."""
    folder = tmp_path_factory.mktemp("browser")
    table = folder / "table.json"
    return compiled(root / "samples/quickstart/net.py", folder / "graphs", 8, json=table), json.loads(table.read_text())


@pytest.fixture(scope="module")
def table(said: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    return said[1]


@pytest.fixture(scope="module")
def reader(chromium: Any, said: tuple[Path, dict[str, Any]]) -> Iterator[Reader]:
    folder, _ = said
    file = folder.parent / "page.html"
    file.write_text(html_of(page_facts(read_dump(folder))), encoding="utf-8")
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
    yield Reader(page, file)
    page.close()
    assert wrong == []


def why_is_the_first_collective_here(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("collectives")
    reader.click(".entry")
    first, _, second = table["collectives"][0]["reason"].partition(", input ")
    assert f"This {table['collectives'][0]['operator']} is here because {first}, but input {second}." in reader.told


def which_line_asks_for_a_collective(reader: Reader, table: dict[str, Any]) -> None:
    reader.node(5)
    assert table["collectives"][2]["line"] == "net.py:40"
    assert "net.py:40 out = self.matmul2(out, self.weight2)" in reader.told


def what_bounds_a_step(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("lesson")
    assert f"the rank sends {size_text(table['totals']['bytes_sent'])}" in reader.shown
    assert "far from all limits" in reader.shown
    rows = [row.split("\t")[0] for row in reader.page.locator("table.lesson").first.inner_text().split("\n")[1:]]
    assert {"forward", "backward", "update"} <= set(rows)


def why_is_a_gradient_reduced(reader: Reader, table: dict[str, Any]) -> None:
    reader.node(18)
    reason = table["collectives"][-1]["reason"]
    assert reason.startswith("2 gradients in one bucket")
    assert f"This AllReduce is of {reason.replace(', input ', ', but input ')}" in reader.told


def who_takes_part_as_another_rank_sees_it(reader: Reader, table: dict[str, Any]) -> None:
    reader.node(18)
    reader.page.fill(".rank-field input", "6")
    assert "group 2, 6" in reader.told
    assert reader.page.locator(".group .member").all_inner_texts() == ["2", "6"]


def over_what_link_and_how_long(reader: Reader, table: dict[str, Any]) -> None:
    reader.node(2)
    assert "12.0 µs between ranks of one host, on NVIDIA H200" in reader.told


def how_much_does_a_collective_send(reader: Reader, table: dict[str, Any]) -> None:
    reader.node(2)
    assert f"{table['collectives'][1]['bytes']} B in a step" in reader.told


def how_much_does_a_rank_send(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("collectives")
    assert f"a rank sends {table['totals']['bytes_sent'] / 1024:.1f} KiB in a step" in reader.shown
    assert reader.shown.startswith(f"{len(table['collectives'])} collectives")


def how_much_memory_at_the_peak(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("memory")
    assert f"{table['totals']['peak_bytes'] / 1024:.1f} KiB at the peak" in reader.shown


def what_lives_at_the_peak(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("memory")
    assert reader.text(".living tbody tr") == "512 B 33.2 % temporary buffers %16 AllGather %16 to %17"


def how_long_is_a_step_and_what_hides(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("step")
    assert "18.0 µs are computed, 84.0 µs communicated, of which 1.8 % run beside" in reader.shown


def what_runs_when(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("step")
    box = reader.page.locator("canvas").bounding_box()
    reader.clicks += 1
    reader.page.mouse.click(box["x"] + 120, box["y"] + 45)
    assert reader.told.startswith("F AlltoAll %0")


def which_node_costs_most(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("costs")
    assert reader.text(".pane tbody tr").startswith("12.0 µs 11.8 %")


def what_bounds_a_product(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("costs")
    reader.click("circle.point")
    assert "FLOP in products" in reader.told


def how_is_a_parameter_sharded(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("parameters")
    reader.click(".entry:has-text('moments.w2')")
    assert "global Float32 (16, 16), 1.0 KiB" in reader.told
    assert "slice of a rank Float32 (4, 16), 256 B" in reader.told


def which_rank_holds_what(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("parameters")
    reader.click(".entry:has(b:text-is('w'))")
    reader.click(".layout button[aria-label^='rank 6']")
    assert "Rank 6 holds [16:24, :] of (32, 16)" in reader.told


def what_if_an_operator_were_sharded_otherwise(reader: Reader, table: dict[str, Any]) -> None:
    reader.node(4)
    rows = reader.page.locator(".ways tr").all_inner_texts()
    assert rows[0].startswith("as it is")
    assert [row.split("\t")[0].split()[-1] for row in rows[1:]] == ["more", "more"]


def what_if_a_collective_were_spared(reader: Reader, table: dict[str, Any]) -> None:
    reader.node(5)
    assert "The next best layouts" in reader.told
    assert "Sub: layouts of its operands" in reader.told


def what_flows_through_a_cell(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("graph")
    boxes = reader.page.locator(".box")
    assert [text for text in boxes.all_text_contents() if "AllGather" in text] == [COLLECTIVE_BOX] * 2
    reader.click(".box.collective")
    assert reader.told.startswith("F AlltoAll %0")
    reader.click(".path button:has-text('network-WithLossCell')")
    assert "_backbone-Net" in " ".join(boxes.all_text_contents())
    assert reader.page.locator(".edge").count() > 0


def what_becomes_of_a_line(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("source")
    reader.click("tr:has-text('self.matmul(x, self.weight)')")
    assert [" ".join(text.split()) for text in reader.page.locator(".chip").all_inner_texts()] == [
        "F AlltoAll %0", "F MatMul 'matmul' %1", "F ReduceScatter %2", "B AllGather %16", "B MatMul %17"
    ]  # fmt: skip


def which_ranks_run_the_same(reader: Reader, table: dict[str, Any]) -> None:
    reader.tab("ranks")
    assert reader.shown.startswith("8 ranks, 1 program: ")


def what_does_a_fused_node_consist_of(reader: Reader, table: dict[str, Any]) -> None:
    reader.click("[data-path='%6'] button.open")
    assert reader.text("[data-path='%6:1']") == "t1 = Square(t0) # Square"


def what_is_of_the_backward_pass(reader: Reader, table: dict[str, Any]) -> None:
    reader.click(".phases label:has-text('forward') input")
    reader.click(".phases label:has-text('update') input")
    marks = reader.page.locator(".row.node .phase").all_inner_texts()
    assert set(marks) == {"B"}
    assert len(marks) == 7


def where_is_a_gradient(reader: Reader, table: dict[str, Any]) -> None:
    reader.click("input[type=search]")
    reader.page.keyboard.type("relugrad")
    reader.page.keyboard.press("Enter")
    assert reader.told.startswith("B ReluGrad %15")
    assert reader.page.evaluate("location.hash") == "#node=15"


def who_reads_a_result(reader: Reader, table: dict[str, Any]) -> None:
    reader.node(3)
    assert "Read by %4 MatMul 'matmul2' %14 MatMul %15 ReluGrad" in reader.told


QUESTIONS: tuple[Callable[[Reader, dict[str, Any]], None], ...] = (
    why_is_the_first_collective_here, which_line_asks_for_a_collective, what_bounds_a_step, why_is_a_gradient_reduced,
    who_takes_part_as_another_rank_sees_it, over_what_link_and_how_long, how_much_does_a_collective_send,
    how_much_does_a_rank_send, how_much_memory_at_the_peak, what_lives_at_the_peak, how_long_is_a_step_and_what_hides,
    what_runs_when, which_node_costs_most, what_bounds_a_product, how_is_a_parameter_sharded, which_rank_holds_what,
    what_if_an_operator_were_sharded_otherwise, what_if_a_collective_were_spared, what_becomes_of_a_line,
    which_ranks_run_the_same, what_does_a_fused_node_consist_of, what_is_of_the_backward_pass, where_is_a_gradient,
    who_reads_a_result, what_flows_through_a_cell,
)  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.__name__)
def test_a_question_takes_three_clicks(
    question: Callable[[Reader, dict[str, Any]], None], reader: Reader, table: dict[str, Any]
) -> None:
    reader.open()
    question(reader, table)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_opens_with_an_overview(width: int, reader: Reader, table: dict[str, Any]) -> None:
    size = reader.page.viewport_size
    reader.page.set_viewport_size({"width": width, "height": 900})
    reader.open()
    overview = reader.page.locator("aside .overview")
    figures = dict(reversed(text.split("\n")[:2]) for text in overview.locator(".figures button").all_inner_texts())
    assert set(figures) == {"predicted step", "sent per rank", "collectives", "peak memory"}
    assert figures["sent per rank"] == size_text(table["totals"]["bytes_sent"])
    assert figures["peak memory"] == size_text(table["totals"]["peak_bytes"])
    assert figures["collectives"] == str(len(table["collectives"]))
    shown = overview.locator("ol li").all_inner_texts()
    assert len(shown) == 3
    assert all(any(row["reason"] in text for row in table["collectives"]) for text in shown)
    assert not reader.page.get_by_text("arrows walk through the network").is_visible()
    reader.page.get_by_text("Legend and keys").click()
    assert reader.page.get_by_text("arrows walk through the network").is_visible()
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= width
    overview.locator("ol button").first.click()
    assert reader.page.locator("aside .overview").count() == 0
    reader.page.set_viewport_size(size)


def test_a_link_leads_to_a_node(reader: Reader) -> None:
    reader.open("#node=plan.1")
    assert reader.told.startswith("F MatMul 'matmul' %1")
    assert "global Float32 (16, 16)" in reader.told
    assert reader.page.locator(".row.selected").get_attribute("data-path") == "%1"


def test_links_that_lead_nowhere_do_no_harm(reader: Reader) -> None:
    reader.open("#node=99999")
    for link in ("#node=<b>", "#param=none", "#tab=none", "#node=plan.x"):
        assert reader.told.startswith("Overview")
        reader.page.evaluate("link => { location.hash = link; }", link)
    assert reader.told.startswith("Overview")


def test_a_page_stands_in_a_frame_of_a_notebook(reader: Reader, tmp_path: Path) -> None:
    from mspc.commands.view.notebook import View

    file = tmp_path / "notebook.html"
    file.write_text(View(reader.file.read_text(encoding="utf-8"))._repr_html_(), encoding="utf-8")
    reader.page.goto(f"file://{file}")
    frame = reader.page.frame_locator("iframe")
    frame.locator("[data-path='%5']").click()
    assert "net.py:40" in frame.locator("aside").inner_text()


def test_a_hostile_dump_runs_nothing_and_does_not_freeze(chromium: Any, tmp_path: Path) -> None:
    """Names that are HTML, a text of a million characters, 100,000 nodes in one scope."""
    file = tmp_path / "page.html"
    file.write_text(html_of(_hostile(tmp_path)), encoding="utf-8")
    page = chromium.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    reader = Reader(page, file)
    reader.open("#node=0")
    assert EVIL in page.locator("aside").inner_text()
    page.fill("input[type=search]", "img src")
    page.wait_for_selector(".found li", timeout=PATIENCE)
    for tab in ("graph", "collectives", "source", "parameters", "network"):
        page.locator(f"role=tab[name='{tab}']").click()
    page.focus("[role=tree]")
    page.keyboard.press("End")
    page.wait_for_selector(f"[data-path='%{MANY - 1}']", timeout=PATIENCE)
    assert page.locator(".row").count() < 100
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, script[src]").count() == 0
    assert [url for url in asked if not url.startswith(("file:", "about:"))] == []
    page.close()


def _hostile(folder: Path) -> dict[str, Any]:
    quoted = json.dumps(EVIL)
    text = (
        "#IR entry      : @net\n#Total subgraph: 1\n#Total params  : 1\n\n"
        f"%para1_{quoted}: <Tensor[Float32], (8, 32)>\n\nsubgraph @net() {{\n"
        f"  %0({quoted}) = ReLU(%para1_{quoted}) {{instance name: {quoted}}} cnode_attrs: "
        f"{{reason: {json.dumps(EVIL + 'A' * 1_000_000)}}}\n"
        "      : (<Tensor[Float32], (8, 32)>) -> (<Tensor[Float32], (8, 32)>)\n"
        f"      # scope: ({json.dumps('Default/' + EVIL.replace('/', '|'))})\n"
        f"      # In file net.py(1)/{EVIL.replace('/', '|')}/ 1~5\n"
        "  Return(%0)\n      : (<Tensor[Float32], (8, 32)>)\n}\n"
    )
    (folder / "hostile.ir").write_text(text)
    facts = copy.deepcopy(facts_of(str(folder / "hostile.ir"), ViewOptions(CompileOptions(loudness=QUIET))))
    columns = facts["graphs"][0]["nodes"]
    for name, column in columns.items():
        columns[name] = column * MANY
    columns["inputs"] = [[max(-1, i - 1)] for i in range(MANY)]
    return facts
