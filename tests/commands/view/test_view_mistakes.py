"""Targets that `mspc view` refuses, each with one clear message and status 2."""

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200
from mspc.commands.explain_hang import explain_records
from mspc.commands.view.notebook import View
from mspc.commands.view.page import BUILT, ViewOptions, facts_of, html_of, view_target
from mspc.commands.view.stages import machine_facts
from mspc.ir.diagnostics import CONTROL
from tests import browser
from tests.commands.view.reading import compiled, elements, read_back
from tests.compiled_scripts import QUIET, CompileOptions
from tests.errors import error_of
from tests.offload.test_offload import SCRIPT
from tests.runtime.planted_hangs import as_pytorch_writes, drawn
from tests.serving import succeed
from tests.texts import IMPORTS

NETWORK = IMPORTS + """

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=2, dataset_strategy="full_batch")

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.relu = ops.ReLU().shard(((2, 1),))

    def construct(self, x):
        return self.relu(x) * 2

Net()(Tensor(np.ones((4, 8), np.float32)))
"""


@pytest.fixture(scope="module")
def compile_of_net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "net.py").write_text(NETWORK)
    return compiled(folder / "net.py", folder / "graphs")


@pytest.fixture
def folder(compile_of_net: Path, own_folder: Path) -> Path:
    """A copy that may be damaged, in the working folder."""
    shutil.copytree(compile_of_net, "graphs")
    return Path("graphs")


def refused(target: str, profile: Path | None = None, **options: Any) -> str:
    """The message with which a target is refused. No page is written."""
    common = CompileOptions(loudness=QUIET, **options)
    error = error_of(view_target, target, ViewOptions(common, profile=profile, out=Path("page.html")))
    assert error.exit_status == 2
    assert not Path("page.html").exists()
    return str(error)


def execute(folder: Path, rank: int) -> Path:
    (found,) = (folder / f"rank_{rank}").glob("*_execute_*.ir")
    return found


def test_files_that_are_no_dumps(folder: Path) -> None:
    Path("text.ir").write_text("hello\n")
    Path("bytes.ir").write_bytes(b"\xff\xfe\x00")
    Path("empty").mkdir()
    assert refused("text.ir").startswith("text.ir:1:1: error: unexpected 'hello'")
    assert refused("bytes.ir").startswith("error: bytes.ir is not text")
    assert refused("empty").startswith("error: empty holds no compiled program: program.json is missing")
    assert refused("none.ir") == "error: there is no file or folder 'none.ir'"
    assert refused("none.py") == "error: there is no script 'none.py'"


def test_dumps_of_different_compiles(folder: Path) -> None:
    path = execute(folder, 1)
    said = re.search(r'compile_id : "(\w+)"', path.read_text())
    assert said is not None
    path.write_text(path.read_text().replace(said[1], "0123456789abcdef"))
    assert refused("graphs").splitlines()[0] == (
        f"error: graphs holds dumps of different compiles: {path.relative_to(folder)} is of compile 0123456789abcdef, "
        f"program.json of {said[1]}"
    )


@pytest.mark.parametrize(("old", "new", "why"), [
    ("ranks : 2", "ranks : 4", "has ranks 4, the programs have 2"),
    ("(4, 8)", "(4, 16)", "x is <Tensor[Float32], (4, 16)> in"),
])  # fmt: skip
def test_a_stage_of_another_compile(folder: Path, old: str, new: str, why: str) -> None:
    (path,) = (folder / "rank_0").glob("*_fuse_gradients_*.ir")
    path.write_text(path.read_text().replace(old, new).replace("[0, -]", "[-, -]"))
    assert "graphs holds dumps of different compiles: " in refused("graphs")
    assert why in refused("graphs")


def test_truncated_files(folder: Path) -> None:
    path = execute(folder, 0)
    text = path.read_text()
    path.write_text(text[: text.index("Return(")])
    assert re.fullmatch(rf"{path}:\d+:\d+: error: the text ends too early", refused("graphs").splitlines()[0])
    program = folder / "program.json"
    program.write_text(program.read_text()[:300])
    assert refused("graphs").startswith("error: graphs/program.json is damaged: ")


def test_a_missing_rank(folder: Path) -> None:
    path = execute(folder, 1)
    path.unlink()
    assert refused("graphs") == f"error: there is no graph of rank 1, which program.json names {str(path)!r}"


def event(**others: Any) -> dict[str, Any]:
    return {"name": "ReLU 'relu'", "ph": "X", "pid": 0, "ts": 0.0, "dur": 1.0,
            "args": {"step": 1, "node": 0, "result": "<Tensor[Float32], (2, 8)>"}} | others  # fmt: skip


@pytest.mark.parametrize(("content", "why"), [
    ("no JSON", "is no profile: Expecting value"),
    ('{"traceEvents": 3}', "is no profile: it has no list of traceEvents"),
    (json.dumps({"traceEvents": [event(args={})]}), "is no profile of mspc: an event \"ReLU 'relu'\" names no node"),
    (json.dumps({"traceEvents": [event(pid=7)]}), "is of another compile: it has times of rank 7, which"),
    (json.dumps({"traceEvents": [event(name="GeLU")]}), "is of another compile: node "),
])  # fmt: skip
def test_profiles_of_something_else(folder: Path, content: str, why: str) -> None:
    Path("trace.json").write_text(content)
    assert refused("graphs", Path("trace.json")).startswith(f"error: trace.json {why}")


def test_options_that_say_nothing_here(folder: Path) -> None:
    assert refused("graphs", ranks=4) == "error: graphs is no script and takes no --ranks"
    Path("trace.json").write_text("{}")
    file = str(execute(folder, 0))
    assert refused(file, Path("trace.json")) == "error: --profile is for the folder of a compile, not for one graph"


def test_edited_and_missing_files_are_said_on_the_page(folder: Path) -> None:
    path = execute(folder, 1)
    path.write_text(path.read_text() + "# edited\n")
    (note,) = facts_of("graphs", ViewOptions())["notes"]
    assert note == f"edited since they were compiled: {path.relative_to(folder)}"


def test_a_folder_that_does_not_lead_to_its_program_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    folder = compiled(tmp_path / "net.py", tmp_path / "graphs", level=0, only_ranks=(0,))
    said = (folder / "program.json").read_text()
    (folder / "program.json").write_text(said.replace("((2, 1))", "((1, 2))").replace("in_strategy: ((2, 1),)", ""))
    facts = facts_of(str(folder), ViewOptions())
    assert facts["notes"] == [
        "no layouts of results: mspc compile --save-graphs writes the graphs that have them",
        "the folder holds 1 of 2 ranks' programs",
    ]
    assert facts["plan"] == -1


EVIL = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> ]]>"


def facts(**others: Any) -> dict[str, Any]:
    return {"title": "net", "strings": [], **others}


def test_texts_of_a_dump_stay_texts() -> None:
    given = facts(title=EVIL, strings=[EVIL], notes=["<b>"])
    page = html_of(given)
    assert read_back(given) == given
    tags = [tag for tag, _ in elements(page)]
    assert tags == ["html", "head", "meta", "meta", "meta", "title", "style", "body", "div", "script", "script"]
    data = page.split('id="facts">')[1].split("</script>")[0]
    assert json.loads(data) == given
    assert "<" not in data


def test_only_the_code_that_came_along_may_run() -> None:
    page = html_of(facts())
    (policy,) = (a["content"] for _, a in elements(page) if a.get("http-equiv") == "Content-Security-Policy")
    code = (BUILT / "view.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in str(policy)
    assert "default-src 'none'" in str(policy)
    assert "unsafe" not in str(policy)
    assert "</script" not in code


def test_a_frame_of_a_notebook_holds_the_page() -> None:
    page = html_of(facts(title=EVIL))
    shown = View(page)._repr_html_()
    ((tag, attributes),) = elements(shown)
    assert (tag, attributes["sandbox"], attributes["srcdoc"]) == ("iframe", "allow-scripts", page)


def test_a_view_is_saved(tmp_path: Path) -> None:
    View(html_of(facts())).save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == html_of(facts())


def test_the_built_code_is_that_of_the_sources() -> None:
    said = re.search(r"sha256 ([0-9a-f]{64})", (BUILT / "view.js").read_text(encoding="utf-8"))
    digest = hashlib.sha256()
    for path in sorted((BUILT.parent / "source").iterdir()):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    assert said is not None
    assert said[1] == digest.hexdigest(), "run `npm ci && npm run build` in commands/view/page"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node for the tests of the page's code")
def test_the_pages_code_does_what_its_tests_ask() -> None:
    succeed("node", "--test", *map(str, sorted((BUILT.parent / "tests").glob("*.test.mjs"))))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a\x1b[31mred", r"a\x1b[31mred"), ("two\nlines", r"two\nlines"),
        ("\u202eturned\u2066\u200f", r"\u202eturned\u2066\u200f"),
        ("\x85\x7f\u2028", r"\x85\x7f\u2028"), ("\ud800", r"\ud800"), ("C:\\new\\u001b", "C:\\new\\u001b"),
        ('é漢😀 "q"', 'é漢😀 "q"'), ("\tindented", "\tindented"), ("\\\x00", r"\\x00"),
    ],
)  # fmt: skip
def test_control_characters_of_names_stand_as_escapes(name: str, wanted: str) -> None:
    page = html_of(facts(title=name, strings=[name], notes=[{name: name}]))
    found = json.loads(page.split('id="facts">')[1].split("</script>")[0])
    assert found["strings"] == [wanted]
    assert found["notes"] == [{wanted: wanted}]
    assert found["title"] == wanted
    assert not re.search(CONTROL, re.sub(r"[\n\t]", "", re.sub(r"(?s)<(style|script)>.*?</\1>", "", page)))


def test_words_of_mspc_itself_have_no_control_characters() -> None:
    assert "\n" not in machine_facts(H200)["source"]


@pytest.fixture(scope="module")
def host_facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    script = tmp_path_factory.mktemp("page") / "net.py"
    script.write_text(SCRIPT)
    options = CompileOptions(1, script_arguments=("alone", "host", "none", "8", "4"), loudness=QUIET)
    return facts_of(str(script), ViewOptions(options))


def test_a_graph_has_its_bytes_on_the_host(host_facts: dict[str, Any]) -> None:
    moments = 2 * 4 * 5 * (4 * 8 + 8 + 8 * 4 + 4 + 2 * 4)
    assert host_facts["graphs"][0]["memory"]["sizes"]["on_host"] == moments


@pytest.mark.skipif(bool(browser.why_not()), reason=browser.why_not())
def test_a_reader_finds_them(host_facts: dict[str, Any], chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(html_of(host_facts), encoding="utf-8")
    page = chromium.new_page()
    page.goto(f"file://{tmp_path}/page.html")
    page.wait_for_selector("html[data-ready]")
    page.locator("role=tab[name='memory']").click()
    assert "; on the host 3.3 KiB" in page.locator("figcaption").first.inner_text()
    page.locator("role=tab[name='ranks']").click()
    assert any("on the host" in row and "3.3 KiB" in row for row in page.locator("table.ranks tr").all_inner_texts())
    page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_fault_is_marked_in_the_calls_of_its_rank(chromium: Any, tmp_path: Path, width: int) -> None:
    job, records, *_ = drawn(5, "left out")
    for rank, record in enumerate(records):
        (tmp_path / f"rank_{rank}").write_bytes(as_pytorch_writes(record))
    explain_records(sorted(tmp_path.iterdir()), 0, None, None, tmp_path / "hang.html")
    page = chromium.new_page(viewport={"width": width, "height": 700})
    page.goto((tmp_path / "hang.html").as_uri())
    assert page.locator(".explanations li").first.inner_text().startswith(f"rank {job.rank} left out")
    assert page.locator("tr.culprit th").inner_text() == str(job.rank)
    assert page.locator("td.fault").count() == page.locator("tr.culprit td.fault").count() == 1
    page.locator("td.fault").hover()
    assert page.locator(".over").inner_text().startswith(f"rank {job.rank}: ")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
