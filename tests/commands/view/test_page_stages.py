"""The page's content for networks in stages: the schedule, the messages, and the values that each stage holds."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200
from mspc.cli import app
from mspc.commands.facts.compiled import CompileFacts
from mspc.commands.view.alternatives import next_ways
from mspc.commands.view.dump import read_dump
from mspc.commands.view.page import ViewOptions, facts_of, html_of
from mspc.commands.view.proof import page_facts, read_proof
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.graph import WORK
from mspc.output.stage_times import stage_times
from mspc.passes.lib.layout_search import Search
from mspc.search.layouts.cheapest import mesh_of
from mspc.search.model.model import CostModel
from mspc.search.plans.alternatives import LARGE
from mspc.search.solver.elimination import Elimination
from tests import browser
from tests.commands.view.reading import QUIET, compiled
from tests.compiled_scripts import CompileOptions, compile_target, verify_scale
from tests.errors import error_of
from tests.pipelining.staged_script import HEAD
from tests.texts import IMPORTS

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
    shown = page_facts(dump)
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
    found = page_facts(read_dump(tmp_path / "out"))
    assert found["stages"] == {"count": 2, "of": [1]}


def test_of_large_programs_one_is_shown_and_the_schedule_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = compiled(script(tmp_path), tmp_path / "out", 4)
    every = page_facts(read_dump(folder))
    monkeypatch.setattr("mspc.commands.view.dump.MAX_NODES", 10)
    shown = page_facts(read_dump(folder))
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
    error = error_of(read_proof, path, read_dump(graphs))
    assert error.exit_status == 2
    return error.message.replace(str(path), "report.json")


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
    file.write_text(html_of(page_facts(read_dump(wrong[0]), proof=wrong[1])), encoding="utf-8")
    page = chromium.new_page()
    page.goto(f"file://{file}")
    page.wait_for_selector("html[data-ready]")
    assert "Not equal to one device" in page.locator(".pane").inner_text()
    page.locator(".failure button").click()
    assert "ReduceScatter" in page.locator("aside h2").first.inner_text()
    page.close()


NETWORK = IMPORTS + """

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


def model_of(dump: CompileFacts) -> CostModel:
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
    assert dump.global_graph is not None
    assert next_ways(dump.configured, dump.global_graph, H200) == {}
