"""`mspc check`, its budget files and the fixture `mspc_budget`; the samples keep theirs."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mspc.passes.base import VERIFY
from tests.serving import invoke

BACKBONE = "Default/network-WithLossCell/_backbone-Net"
PLANTED = (
    "        out = self.matmul2(out, self.weight2)\n",
    "        out = self.matmul2(self.gathered(out), self.weight2)\n",
    "        self.relu = ops.ReLU()\n",
    "        self.relu = ops.ReLU().shard(((2, 4),))\n        self.gathered = ops.Abs().shard(((2, 1),))\n",
)
"""Lines of the quick start and others in their place, which gather its hidden layer on every rank."""


def compiled(script: Path, out: Path) -> Path:
    invoke("compile", script, "--ranks", "8", "--out", out, "-q", status=0)
    return out


@pytest.fixture(scope="module")
def quickstart(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quick start, compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VERIFY, raising=False)
        return compiled(root / "samples" / "quickstart" / "net.py", tmp_path_factory.mktemp("budgets") / "out")


@pytest.fixture
def file(root: Path) -> Path:
    return root / "samples" / "budget.toml"


def test_the_quick_start_keeps_its_budget(quickstart: Path, file: Path, mspc_budget: Callable[..., None]) -> None:
    """The other samples keep theirs in tests/samples, where they are compiled."""
    mspc_budget(quickstart, budget=file, name="quickstart")


def test_a_planted_all_gather_is_caught(root: Path, file: Path, tmp_path: Path) -> None:
    text = (root / "samples" / "quickstart" / "net.py").read_text()
    for line, other in zip(PLANTED[::2], PLANTED[1::2], strict=True):
        assert text.count(line) == 1
        text = text.replace(line, other)
    script = tmp_path / "net.py"
    script.write_text(text)
    done = invoke(
        "check", script, "--ranks", "8", "--budget", file, "--name", "quickstart", "--json", tmp_path / "broken.json"
    )
    assert done.exit_code == 1, done.output
    broken = {breach["key"]: breach for breach in json.loads((tmp_path / "broken.json").read_text())["broken"]}
    gathers = [c for c in broken["max-collectives"]["collectives"] if c["row"]["operator"] == "AllGather"]
    assert any("Abs 'gathered'" in c["row"]["reason"] for c in gathers)
    row = text.split("\n").index(PLANTED[1].rstrip("\n")) + 1
    assert any(c["row"]["line"] == f"net.py:{row}" for c in gathers)
    assert f"{script} breaks its budget" in done.stdout


def test_what_breaks_is_what_the_compiles_table_says(quickstart: Path) -> None:
    done = invoke(
        "check", quickstart, "--max-bytes", "2kB", "--max-memory", "0", "--max-collectives", "AllReduce=1",
        "--forbid", f"AllGather in {BACKBONE}", "--json", "-",
    )  # fmt: skip
    assert done.exit_code == 1
    broken = json.loads(done.stdout)["broken"]
    assert [breach["times"] for breach in broken] == [3488, 2, 2, 2503 / 2000]  # the worst first
    memory, count, forbidden, nbytes = broken
    assert nbytes["message"] == "a step sends 2,503 B (2.4 KiB); the limit is 2,000 B (2.0 KiB)"
    assert sum(c["row"]["bytes"] for c in nbytes["collectives"]) == 2503
    assert nbytes["ranks"] == [*range(8)]
    assert memory["message"] == "a step takes 3,488 B (3.4 KiB) of memory; the limit is 0 B"
    assert sum(part for _, part in memory["memory"]) == 3488
    assert count["message"] == "2 AllReduces in a step; the limit is 1"
    assert [c["row"]["line"] for c in forbidden["collectives"]] == ["net.py:40", "net.py:38"]
    assert all("must be sharded" in c["row"]["reason"] for c in forbidden["collectives"])


SWAPPED = """
import mspc as ms
ms.set_context(mode=ms.GRAPH_MODE, device_target="{}")
class Net(ms.nn.Cell):
    def construct(self, x, n):
        y = x
        while n > 0:
            x, y, n = y, x + y, n - 1
        return x
Net()(ms.ops.ones((8, 16), ms.float32), ms.Tensor(3))
"""


@pytest.mark.parametrize(("device", "step"), [("GPU", 1800), ("CPU", 2312)])
def test_memory_is_planned_for_the_device_of_the_compile(device: str, step: int, tmp_path: Path) -> None:
    script, out = tmp_path / "net.py", tmp_path / "out"
    script.write_text(SWAPPED.format(device))
    table = json.loads(invoke("compile", script, "--ranks", "1", "--out", out, "--json", "-", status=0).stdout)
    assert table["memory"]["step"] == step
    (limit,) = json.loads(invoke("check", out, "--max-memory", "0", "--json", "-").stdout)["broken"]
    assert dict(limit["memory"])["step"] == step


def test_limits_that_hold_and_options_before_the_file(quickstart: Path, tmp_path: Path) -> None:
    budget = tmp_path / "pyproject.toml"
    budget.write_text('[tool.x]\ny = 1\n[mspc.budget]\nmax-bytes = "1kB"\nforbid = "AllGather in Default/network-x"\n')
    assert invoke("check", quickstart, "--max-bytes", "2503", "--max-collectives", "AlltoAll=1,7").exit_code == 0
    assert "has no cell 'Default/network-x'" in invoke("check", quickstart, "--budget", budget).stderr
    budget.write_text('[mspc.budget]\nmax-bytes = "1kB"\n')
    assert invoke("check", quickstart, "--budget", budget).exit_code == 1
    done = invoke("check", quickstart, "--budget", budget, "--max-bytes", "3kB", status=0)
    assert done.stdout == f"{quickstart} keeps its budget\n"


def test_an_earlier_compile_is_the_limit(root: Path, quickstart: Path, tmp_path: Path) -> None:
    baseline, network = tmp_path / "baseline.json", tmp_path / "net.py"
    done = invoke("check", quickstart, "--write-baseline", baseline)
    assert (done.exit_code, done.stdout) == (0, f"the figures of {quickstart} are in {baseline}\n")
    done = invoke("check", quickstart, "--baseline", baseline)
    assert (done.exit_code, done.stdout) == (0, f"{quickstart} keeps its budget\n")
    assert invoke("check", quickstart, "--baseline", baseline, "-q").stdout == ""
    figures = json.loads(baseline.read_text())
    assert (figures["bytes"], figures["memory"]) == (2503, 3488)
    baseline.write_text(json.dumps(figures | {"bytes": 2400, "step": figures["step"] / 2}))
    done = invoke("check", quickstart, "--baseline", baseline, "--tolerance", "4%", "-q", status=1)
    said = [line for line in done.stdout.splitlines() if line.startswith("max-")]
    assert "a step is predicted to take" in said[0]  # the worst first
    sent = "a step sends 2,503 B (2.4 KiB); the limit is 2,496 B (2.4 KiB)"
    assert said[1].startswith(f"max-bytes: {sent} (4% above {baseline}); on ranks")
    assert invoke("check", quickstart, "--baseline", baseline, "--tolerance", "1.0").exit_code == 0
    text = (root / "samples" / "quickstart" / "net.py").read_text()
    for line, other in zip(PLANTED[::2], PLANTED[1::2], strict=True):
        text = text.replace(line, other)
    network.write_text(text)
    counts = {name: count for name, count in figures["collectives"].items() if name != "AllGather"}
    baseline.write_text(json.dumps(figures | {"collectives": counts}))
    done = invoke("check", network, "--ranks", "8", "--baseline", baseline, "--tolerance", "1.0")
    assert re.match(r"max-collectives: \d AllGathers in a step; the limit is 0 \(100% above", done.stdout), done.stdout


def test_a_long_list_is_shortened_and_a_step_has_a_budget(root: Path, tmp_path: Path) -> None:
    folder = compiled(root / "samples" / "transformer" / "net.py", tmp_path / "out")
    shortened, every = (invoke("check", folder, "--max-bytes", "3kB", *more).stdout for more in ((), ("--all",)))
    assert "11 more; --all shows them" in shortened
    assert len(shortened.splitlines()) < 30 < len(every.splitlines())
    done = invoke("check", folder, "--max-step", "1 us", "--max-collectives", "100", status=1)
    assert re.search(r"max-step: a step is predicted to take \d+\.\d us; the limit is 1\.0 us; it comp", done.stdout)
    assert invoke("check", folder, "--max-step", "1s").exit_code == 0


def test_a_collective_of_one_edited_rank_is_found(quickstart: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited"
    shutil.copytree(quickstart, edited)
    (file,) = (edited / "rank_6").glob("*.ir")
    text = file.read_text()
    old = ' = AllReduce(%8) primitive_attrs: {op: "sum", '
    assert text.count(old) == 1
    file.write_text(text.replace(old, ' = Reduce(%8) primitive_attrs: {dest_rank: 0, op: "sum", '))
    done = invoke("check", edited, "--max-collectives", "Reduce=0", status=1)
    assert "1 Reduce in a step; the limit is 0; on rank 6" in done.stdout


def test_the_fixture_fails_with_the_tables(quickstart: Path, mspc_budget: Callable[..., None]) -> None:
    with pytest.raises(pytest.fail.Exception) as error:
        mspc_budget(quickstart, max_collectives={"AllReduce": 1}, forbid=["AlltoAll"])
    text = str(error.value)
    assert "breaks its budget: 2 limits" in text
    assert "forbid: AlltoAll is forbidden, and there is one; on ranks 0 to 7" in text
    assert "net.py:38" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-bytes", "3", "--ranks", "8"), " is no script and takes no --ranks"),
        (("--max-bytes", "3XB"), "--max-bytes is '3XB', not a size as in 80GB or 512MiB"),
        (("--max-collectives", "two"), "--max-collectives is 'two', not a number as in 7 or AllGather=4"),
        (("--max-collectives", "MatMul=1"), "--max-collectives names 'MatMul', which is no collective"),
        (("--forbid", "AllGahter"), "did you mean 'AllGather'?"),
        (("--forbid", "AllGather at x"), "--forbid has 'AllGather at x', not 'AllGather' or 'AllGather in Default/"),
        (("--forbid", f"AllGather in {BACKBONE}x"), f"did you mean '{BACKBONE}'"),
        ((), "the budget limits nothing"),
        (("--max-step", "3"), "--max-step is '3', not a time as in 3ms or 250us"),
        (("--tolerance", "5%"), "a tolerance is of a baseline, and there is none\n  note: name it with --base"),
        (("--baseline", "nowhere.json", "--tolerance", "5x"), "--tolerance is '5x', not a share as in 5% or 0.05"),
        (("--baseline", "nowhere.json"), "there is no baseline 'nowhere.json'"),
        (("--baseline", "cut.json"), "cut.json is no JSON file: Expecting property name enclosed in double quotes: "),
        (("--baseline", "list.json"), "list.json is no JSON file: its content is [], not an object\n  note: mspc"),
        (("--baseline", "twice.json"), "twice.json is no JSON file: it has an entry 'bytes' twice"),
        (("--baseline", "fifo.json"), "fifo.json is a FIFO, not a file"),
        (("--baseline", "/dev/zero"), "/dev/zero is a device, not a file"),
        (("--baseline", "version.json"), "version.json is no baseline: mspc_baseline is 2, not 1"),
        (("--baseline", "less.json"), "less.json is no baseline: 'step' is missing"),
        (("--baseline", "wrong.json"), "wrong.json is no baseline: collectives of AllReduce is -1"),
        (("--name", "quickstart"), "the budget 'quickstart' needs the file that has it"),
        (("--budget", "nowhere.toml"), "there is no budget file 'nowhere.toml'"),
        (("--budget", "several.toml"), "several.toml has several budgets\n  note: name one of them: small, large"),
        (("--budget", "several.toml", "--name", "smal"), "there is no budget 'smal'\n  note: did you mean 'small'?"),
        (("--budget", "key.toml"), "a budget has no key 'max_bytes'\n  note: did you mean 'max-bytes'?"),
        (("--budget", "other.toml"), "[mspc] has no key 'budgte'\n  note: did you mean 'budget'"),
        (("--budget", "value.toml"), "value.toml: max-memory is True, not a size as in 80GB or 512MiB"),
        (("--budget", "counts.toml"), "counts.toml: max-collectives has -1, not a number of collectives"),
        (("--budget", "none.toml"), "none.toml: there is no table [mspc.budget]"),
    ],
)
@pytest.mark.usefixtures("own_folder")
def test_bad_input(arguments: tuple[str, ...], said: str, quickstart: Path) -> None:
    files = {
        "several": "budgets.small]\nmax-bytes = 1\n[mspc.budgets.large]\nmax-bytes = 2",
        "key": "budget]\nmax_bytes = 1", "other": "budgte]\nmax-bytes = 1", "value": "budget]\nmax-memory = true",
        "counts": "budget]\nmax-collectives = {AllGather = -1}", "none": "budgets]",
    }  # fmt: skip
    for name, text in files.items():
        Path(f"{name}.toml").write_text(f"[mspc.{text}\n")
    Path("none.toml").write_text("[mspc]\n")
    budget_text = '{"mspc_baseline": 1, "bytes": 1, "memory": 2, "step": 0.1, "collectives": {"AllReduce": 2}}'
    for name, old, new in (
        ("cut", budget_text[20:], ""), ("version", "1,", "2,"), ("less", '"step": 0.1, ', ""), ("wrong", "2}", "-1}"),
        ("list", budget_text, "[]"), ("twice", '"memory"', '"bytes"'),
    ):  # fmt: skip
        Path(f"{name}.json").write_text(budget_text.replace(old, new, 1))
    os.mkfifo("fifo.json")
    done = invoke("check", quickstart, *arguments, status=2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_no_compile(tmp_path: Path) -> None:
    done = invoke("check", tmp_path, "--max-bytes", "1", status=2)
    assert "holds no compiled program: program.json is missing" in done.stderr
    (tmp_path / "plan.toml").write_text("ranks = 2\n[operators]\n")
    assert "is a plan, which sends nothing" in invoke("check", tmp_path / "plan.toml", "--max-bytes", "1").stderr
