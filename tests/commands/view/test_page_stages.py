"""The page's content for networks in stages: the schedule, the messages, and the values that each stage holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200
from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.view.dump import read_dump
from mspc.commands.view.page import ViewOptions, facts_of, html_of
from mspc.commands.view.proof import page_facts
from mspc.ir.graph import WORK
from mspc.output.stage_times import stage_times
from tests import browser
from tests.commands.view.reading import QUIET, compiled
from tests.pipelining.staged_script import HEAD

CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
CHAIN = """
net = staged(0, 1, 1)
"""
THERE_AND_BACK = """
class Returning(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = Layer(), Layer(), Layer(), Layer()
        for layer, stage in ((self.a, 0), (self.b, 1), (self.c, 1), (self.d, 0)):
            layer.pipeline_stage = stage

    def construct(self, x, y):
        return ((self.d(self.c(self.b(self.a(x)))) - y) ** 2).mean()


net = Returning()
"""
STEP = """
cell = nn.PipelineCell(net, 6)
step = nn.TrainOneStepCell(cell, nn.SGD(cell.trainable_params(), 0.1))
step(*batch(12))
"""


def script(folder: Path, schedule: str = "1f1b", stages: int = 2) -> Path:
    path = folder / "net.py"
    network = THERE_AND_BACK if schedule == "zero_bubble_v" else CHAIN
    asked = f'settings(pipeline_config={{"pipeline_scheduler": "{schedule}"}})\n' if stages > 1 else "settings()\n"
    path.write_text(f"STAGES = {stages}\n{HEAD}\n{asked}{network}{STEP}")
    return path


def facts(folder: Path, schedule: str = "1f1b", ranks: int = 4) -> dict[str, Any]:
    return facts_of(str(script(folder, schedule)), ViewOptions(CompileOptions(ranks=ranks, loudness=QUIET)))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble_v", "zero_bubble_h1"])
def test_blocks_are_those_of_the_timeline_and_name_the_work(schedule: str, tmp_path: Path) -> None:
    dump = read_dump(compiled(script(tmp_path, schedule), tmp_path / "out", 4))
    shown = page_facts(dump, H200)
    stages = shown["stages"]
    assert (stages["count"], stages["of"]) == (2, [0, 1])
    times = stage_times(dump.programs, H200)
    assert stages["heading"].startswith(f"{times.schedule.name}: 2 stages, ")
    assert stages["total"] == pytest.approx(times.makespan, rel=1e-4)
    for stage, row in enumerate(stages["rows"]):
        assert row["idle"] == pytest.approx(times.idle_share(stage), rel=1e-4)
        assert row["keeps"] == times.kept(stage)
        assert len(row["spans"]) == len(times.spans[stage])
        tail = times.tails[stage]
        start, end, waited, what = row["tail"]
        assert (start, end) == (pytest.approx(tail.start, rel=1e-4), pytest.approx(tail.end, rel=1e-4))
        assert (waited >= 0) == (tail.start > times.spans[stage][-1].end)
        assert shown["strings"][what].startswith("updates, and other work of no micro-batch: ")
        nodes = dump.programs[row["program"]].nodes
        works = {
            index: [node.attrs[key] for key in (WORK, "chunk", "micro_batch")]
            for index, node in enumerate(nodes) if WORK in node.attrs
        }  # fmt: skip
        for (begin, end, blocks, waited), span in zip(row["spans"], times.spans[stage], strict=True):
            assert (begin, end) == (pytest.approx(span.start, rel=1e-4), pytest.approx(span.end, rel=1e-4))
            assert (waited >= 0) == (span.awaited is not None)
            assert waited < 0 or shown["strings"][waited].startswith("waits ")
            own_action = span.action
            assert [block[:3] for block in blocks] == [[own_action.kind, own_action.chunk, own_action.micro_batch]]
            for kind, chunk, number, node in blocks:
                kinds = "BIW" if kind == "B" else kind
                alike = [i for i, (own, *rest) in works.items() if own in kinds and rest == [chunk, number]]
                assert node in alike if alike else node == -1  # nobody asks for the gradient of what is fed
                assert alike or begin == end


def test_messages_have_two_sides(tmp_path: Path) -> None:
    shown = facts(tmp_path)
    messages = [
        {(one["message"]["tag"], one["message"]["received"]): one["message"] for one in graph["collectives"].values()
         if "message" in one}
        for graph in shown["graphs"][:2]
    ]  # fmt: skip
    assert len(messages[0]) == len(messages[1]) == 13  # six there, six back, and the loss
    for (tag, received), message in messages[0].items():
        other = messages[1][tag, not received]
        assert (message["stage"], other["stage"]) == (1, 0)
        assert (message["away"], other["away"]) == (2, -2)
        assert message["bytes"] == other["bytes"]
        assert message["micro_batch"] == other["micro_batch"]


def test_without_all_stages_there_is_no_schedule(tmp_path: Path) -> None:
    options = CompileOptions(4, out=tmp_path / "out", only_ranks=(3,), loudness=QUIET)
    compile_target(str(script(tmp_path)), options)
    found = page_facts(read_dump(tmp_path / "out"), H200)
    assert found["stages"] == {"count": 2, "of": [1]}


def test_of_large_programs_one_is_shown_and_the_schedule_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = compiled(script(tmp_path), tmp_path / "out", 4)
    every = page_facts(read_dump(folder), H200)
    monkeypatch.setattr("mspc.commands.view.dump.MAX_NODES", 10)
    shown = page_facts(read_dump(folder), H200)
    assert [program["ranks"] for program in shown["programs"]] == [[[0, 1, 1]]]
    assert shown["notes"] == [
        "the page would be large with 2 programs of 2 stages: in full it shows 1 program; mspc compile --rank R writes "
        "others"
    ]
    assert [row["program"] for row in shown["stages"]["rows"]] == [0, -1]
    for row, other in zip(shown["stages"]["rows"], every["stages"]["rows"], strict=True):
        assert [span[:3] for span in row["spans"]] == [span[:3] for span in other["spans"]]
        assert row["sizes"] == every["graphs"][other["program"]]["memory"]["sizes"]


def test_one_stage_has_no_stages(tmp_path: Path) -> None:
    path = script(tmp_path, stages=1)
    assert facts_of(str(path), ViewOptions(CompileOptions(ranks=2, loudness=QUIET)))["stages"] is None


needs_browser = pytest.mark.skipif(bool(browser.why_not()), reason=browser.why_not())


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for schedule in ("1f1b", "zero_bubble_v"):
        folder = tmp_path_factory.mktemp(schedule)
        found[schedule] = folder / "page.html"
        found[schedule].write_text(html_of(json.loads(json.dumps(facts(folder, schedule)))), encoding="utf-8")
    return found


def opened(chromium: Any, file: Path, tab: str, **settings: Any) -> Any:
    page = chromium.new_page(viewport={"width": 1400, "height": 900}, **settings)
    page.goto(f"file://{file}#tab={tab}")
    page.wait_for_selector("html[data-ready]")
    return page


@needs_browser
def test_a_click_on_a_block_shows_its_work_as_a_rank_that_does_it(chromium: Any, pages: dict[str, Path]) -> None:
    page = opened(chromium, pages["1f1b"], "step")
    assert page.locator(".stages g.work").count() == 24
    assert page.locator(".stages text", has_text="idle").count() == 2
    page.locator(".stages g.work", has=page.locator("title", has_text="stage 1: backward of micro-batch 2")).click()
    assert page.locator("aside h2").inner_text().split()[:2] == ["B", "Call"]
    assert 'work: "B"' in page.locator("aside").inner_text()
    assert "micro_batch: 2" in page.locator("aside").inner_text()
    assert page.locator(".rank-field input").input_value() == "2"
    assert page.locator("aside .elsewhere").count() == 0
    page.locator("aside section", has_text="Runs").locator("a").first.click()
    assert "Inside of" in page.locator("aside").inner_text()
    page.close()


@needs_browser
def test_stages_open_without_rows_of_tuple_elements(chromium: Any, pages: dict[str, Path]) -> None:
    page = opened(chromium, pages["1f1b"], "network")
    names = page.locator("[role=treeitem].node .name").all_inner_texts()
    assert "Call" in names
    assert "TupleGetItem" not in names
    page.close()


@needs_browser
def test_messages_name_their_partner_and_lead_there(chromium: Any, pages: dict[str, Path]) -> None:
    page = opened(chromium, pages["1f1b"], "collectives")
    page.locator(".entry", has_text="ReceiveFromStage").first.click()
    told = " ".join(page.locator("aside").inner_text().split())
    assert "from rank 2 of stage 1" in told
    assert "Rank 0 hears from rank 2, and every other rank of its stage from the one that has its place" in told
    page.locator("aside dd a").first.click()
    assert page.locator("aside h2").inner_text().split()[1] == "SendToStage"
    page.close()


@needs_browser
def test_stages_hold_memory(chromium: Any, pages: dict[str, Path]) -> None:
    page = opened(chromium, pages["1f1b"], "memory")
    rows = page.locator(".stage-memory tbody tr")
    begins = [row.split()[:5] for row in rows.all_inner_texts()]
    assert begins == [["0", "0", "to", "1", "2"], ["1", "2", "to", "3", "1"]]
    rows.nth(1).click()
    assert "Program of stage 1, ranks 2, 3." in page.locator(".pane").inner_text()
    page.close()


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tab", ["step", "memory", "ranks"])
def test_stages_can_be_read(tab: str, scheme: str, chromium: Any, pages: dict[str, Path]) -> None:
    page = opened(chromium, pages["zero_bubble_v"], tab, color_scheme=scheme)
    found = page.evaluate(f"({CONTRAST})()")
    assert found["seen"] > 20
    assert found["wrong"] == []
    page.close()


@needs_browser
def test_stages_whose_programs_are_left_out_are_drawn(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mspc.commands.view.dump.MAX_NODES", 10)
    file = tmp_path / "page.html"
    file.write_text(html_of(facts(tmp_path)), encoding="utf-8")
    page = opened(chromium, file, "step")
    assert page.locator(".stages g.work").count() == 24
    page.locator(".stages g.work", has=page.locator("title", has_text="stage 1: backward of micro-batch 2")).click()
    assert page.locator("aside h2").inner_text() == "Overview"
    page.close()
    page = opened(chromium, file, "memory")
    rows = page.locator(".stage-memory tbody tr")
    assert [row.split()[:5] for row in rows.all_inner_texts()] == [
        ["0", "0", "to", "1", "2"], ["1", "2", "to", "3", "1"]
    ]  # fmt: skip
    page.close()


@needs_browser
def test_the_program_of_one_rank_tells_of_its_messages(chromium: Any, tmp_path: Path) -> None:
    (file,) = (compiled(script(tmp_path), tmp_path / "out", 4, level=1) / "rank_3").glob("*execute*.ir")
    page_file = tmp_path / "page.html"
    page_file.write_text(html_of(facts_of(str(file), ViewOptions())), encoding="utf-8")
    page = opened(chromium, page_file, "collectives")
    page.locator(".entry", has_text="ReceiveFromStage").first.click()
    told = " ".join(page.locator("aside").inner_text().split())
    assert "from rank 1 of stage 0" in told
    assert "other side not in the dump" in told
    page.close()
