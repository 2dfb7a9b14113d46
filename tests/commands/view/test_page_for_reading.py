"""That a page can be read: widths, contrast, keys, large graphs; ranks with programs of their own beside each other."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.view.page import ViewOptions, facts_of, html_of
from tests import browser
from tests.commands.view.reading import QUIET

CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
TABS = ("network", "graph", "collectives", "step", "memory", "costs", "parameters", "source", "ranks")
TURNED = {
    "HIDDEN = 2, 64": "HIDDEN = 3, 64",
    "        self.reshape = ops.Reshape()\n        self.layers": """        self.reshape = ops.Reshape()
        turned = Layout((2, 2, 2), ("a", "b", "c"))
        self.there = ops.ReLU().shard(((8, 1),))
        self.turn = ops.ReLU().shard((turned(("c", "b", "a"), "None"),))
        self.layers""",
    "characters, 0), self.position)": "characters, 0), self.turn(self.there(self.position)))",
}
MANY = 600
"""Nodes of one scope."""
SMALLEST = 11
"""Pixels of letters that can be read."""

pytestmark = pytest.mark.skipif(bool(browser.why_not()), reason=browser.why_not())


@pytest.fixture(scope="module")
def facts(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A transformer on 8 ranks, whose rows are once shared out in another order: ranks that keep theirs send nothing,
    so there are two programs."""
    sample = root / "samples/transformer"
    folder = tmp_path_factory.mktemp("net")
    script = (sample / "net.py").read_text(encoding="utf-8")
    for old, new in TURNED.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    (folder / "net.py").write_text(script, encoding="utf-8")
    shutil.copy(sample / "text.txt", folder)
    found = facts_of(str(folder / "net.py"), ViewOptions(CompileOptions(ranks=8, loudness=QUIET)))
    assert len(found["programs"]) == 2
    return found


@pytest.fixture(scope="module")
def file(facts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(html_of(facts), encoding="utf-8")
    return file


@pytest.fixture
def page(chromium: Any, file: Path) -> Iterator[Any]:
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    _open(page, file)
    yield page
    page.close()


def _open(page: Any, file: Path, link: str = "") -> None:
    page.goto("about:blank")
    page.goto(f"file://{file}{link}")
    page.wait_for_selector("html[data-ready]")


def _tab(page: Any, name: str) -> None:
    page.locator(f"role=tab[name='{name}']").click()


def _chosen(page: Any) -> str:
    return " ".join(page.locator("aside h2").inner_text().split())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_the_contrast_that_reading_needs(page: Any, file: Path, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    _open(page, file, "#node=12")
    for tab in TABS:
        _tab(page, tab)
        if tab == "source":
            page.locator("table.code tr.choice").first.click()
        found = page.evaluate(f"({CONTRAST})()")
        assert found["seen"] > 40
        assert found["wrong"] == [], tab


@pytest.mark.parametrize("width", [800, 1400, 1920])
def test_columns_of_source_lines_hold_what_stands_in_them(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    _tab(page, "source")
    cells = "[...document.querySelectorAll('table.code tr > *')]"
    assert page.evaluate(f"{cells}.filter(c => !c.querySelector('pre') && c.scrollWidth > c.clientWidth).length") == 0
    assert page.evaluate(f"Math.min(...{cells}.filter(c => c.querySelector('pre')).map(c => c.clientWidth))") > 180
    figures = f"{cells}.filter(c => !c.querySelector('pre')).map(c => [document.createRange(), c])"
    tall = "map(([r, c]) => (r.selectNodeContents(c), r.getBoundingClientRect().height))"
    assert page.evaluate(f"Math.max(...{figures}.{tall})") < 26, "figures stand in one line"
    truncated = "[...document.querySelectorAll('table.code pre')].filter(p => p.scrollWidth > p.clientWidth)"
    assert page.evaluate(f"{truncated}.length") == 0, "the source is whole"


def test_digits_change_the_view_once_a_field_was_left(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("12")
    assert page.input_value("input[type=search]") == "12"
    page.keyboard.press("Escape")
    page.keyboard.press("5")
    assert "at the peak" in page.locator(".pane").inner_text()
    page.focus(".rank-field input")
    page.keyboard.press("Escape")
    page.keyboard.press("9")
    assert "different programs" in page.locator(".pane").inner_text()


def test_a_click_on_a_rank_of_another_program_keeps_what_is_chosen(page: Any, file: Path) -> None:
    _open(page, file, "#node=12")
    chosen = _chosen(page)
    page.locator(".layout button[aria-label^='rank 2']").first.click()
    assert _chosen(page).split("%")[0] == chosen.split("%")[0]
    assert page.input_value(".rank-field input") == "2"
    assert "Rank 2 holds" in page.locator("aside").inner_text()
    _tab(page, "network")
    assert page.locator(".row.selected").count() == 1
    _tab(page, "parameters")
    page.locator(".entry").nth(3).click()
    name = _chosen(page)
    page.fill(".rank-field input", "0")
    assert _chosen(page) == name


def test_what_only_one_program_has_stays_chosen_and_is_said_to_be_lacking(page: Any) -> None:
    _tab(page, "ranks")
    row = page.locator(".pair:has(.lacks) button.link").first
    row.click()
    chosen = _chosen(page)
    page.fill(".rank-field input", "0")
    assert _chosen(page) == chosen
    assert "lacks this node" in page.locator("aside .elsewhere").inner_text()


def test_programs_stand_beside_each_other_node_by_node(page: Any, facts: dict[str, Any]) -> None:
    first, second = (facts["graphs"][program["graph"]] for program in facts["programs"])
    counts = [len(graph["nodes"]["op"]) for graph in (first, second)]
    _tab(page, "ranks")
    text = page.locator(".beside-each-other .note").inner_text()
    both, different, one, other = (
        int(word) for word in text.replace(",", "").replace(";", "").split() if word.isdigit()
    )
    assert [both + one, both + other] == counts
    assert 0 < different < both
    assert page.locator(".pair").count() == different + one + other
    sent = page.locator("table.ranks tr:has(th:text-is('bytes sent in a step')) td").all_inner_texts()
    exact = [sum(row.get("bytes", 0) for row in graph["collectives"].values()) for graph in (first, second)]
    assert exact[0] != exact[1]
    assert sent == [f"{number:,.0f} B" for number in exact]  # they round to the same


def test_what_runs_beside_a_node_is_told(page: Any, file: Path, facts: dict[str, Any]) -> None:
    graph = facts["graphs"][0]
    begin, seconds = graph["schedule"]["begin"], graph["schedule"]["seconds"]
    streams = [facts["strings"][n] if n >= 0 else "" for n in graph["nodes"]["stream"]]

    def beside(i: int) -> set[int]:
        return {
            j for j in range(len(seconds))
            if seconds[j] and streams[j] != streams[i]
            and min(begin[i] + seconds[i], begin[j] + seconds[j]) - max(begin[i], begin[j]) > 1e-3 * seconds[i]
        }  # fmt: skip

    node = next(i for i in map(int, graph["collectives"]) if streams[i] and 1 < len(beside(i)) < 10)
    _open(page, file, f"#node={node}")
    told = page.locator(".beside li .number").all_inner_texts()
    assert {int(text.removeprefix("%")) for text in told} == beside(node)
    assert "of its time something runs on another stream" in page.locator(".beside").inner_text()


def test_memory_is_told_by_what_it_is_for(page: Any, facts: dict[str, Any]) -> None:
    memory = facts["graphs"][0]["memory"]
    assert len(memory["kinds"]) == len(memory["blocks"])
    _tab(page, "memory")
    rows = page.locator(".classes tbody tr").all_inner_texts()
    assert [row.split("\t")[0].strip() for row in rows] == ["activations", "gradients", "temporary buffers"]
    assert page.locator("path.arena").count() == 3


def test_a_scope_of_many_nodes_is_drawn_so_that_it_can_be_read(chromium: Any, tmp_path: Path) -> None:
    """Nodes that follow each other are one box, which opens; a link leads into the innermost."""
    lines = [f"  %{i} = ReLU(%{i - 1 if i else 'para1_x'})\n      : (<Tensor[Float32], (8, 32)>) -> (<Tensor[Float32], "
             "(8, 32)>)\n      # scope: (Default/net)\n" for i in range(MANY)]  # fmt: skip
    text = (
        "#IR entry      : @net\n#Total subgraph: 1\n#Total params  : 1\n\n%para1_x: <Tensor[Float32], (8, 32)>\n\n"
        f"subgraph @net() {{\n{''.join(lines)}  Return(%{MANY - 1})\n      : (<Tensor[Float32], (8, 32)>)\n}}\n"
    )
    (tmp_path / "many.ir").write_text(text)
    facts = copy.deepcopy(facts_of(str(tmp_path / "many.ir"), ViewOptions(CompileOptions(loudness=QUIET))))
    file = tmp_path / "page.html"
    file.write_text(html_of(facts), encoding="utf-8")
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    _open(page, file, "#tab=graph")
    assert 1 < page.locator(".box.fold").count() <= 30
    _check_letters(page)
    page.locator(".box.fold").nth(1).click()
    assert page.locator(".box.node").count() + page.locator(".box.fold").count() <= 60
    _check_letters(page)
    _open(page, file, "#node=345")
    _tab(page, "graph")
    assert page.locator(".box.selected").count() == 1
    assert page.locator("[data-box='%345']").count() == 1
    page.close()


def _check_letters(page: Any) -> None:
    page.wait_for_timeout(100)
    letters = page.evaluate(
        "[...document.querySelectorAll('.box .first')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)"
    )
    assert min(letters) >= SMALLEST
