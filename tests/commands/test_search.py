"""`mspc search`: plans side by side, the file of the best, and compiling by it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mspc.analysis.cost.nodes import sent_bytes
from mspc.cli import app
from mspc.engine.capture import capture
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.state import Session
from mspc.output.programs import config_of
from mspc.passes.base import VERIFY
from mspc.plans.files.plan_file import read_plan
from mspc.search.plans import table as plans
from mspc.search.plans.alternatives import WAYS, PlannedNetwork
from mspc.search.plans.row import SEARCH
from mspc.search.plans.table import ForkedCalls
from tests.commands.written_files import Run, runner

pytestmark = pytest.mark.usefixtures("brief_searches")

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = Parameter(Tensor(np.ones((64, 256)), ms.float32))
        self.second = Parameter(Tensor(np.ones((256, 64)), ms.float32))
        self.matmul, self.relu, self.product = ops.MatMul(), ops.ReLU(), ops.MatMul()
    def construct(self, x):
        return ops.reduce_mean(self.relu(self.product(self.relu(self.matmul(x, self.first)), self.second)))
net = Net()
nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))(Tensor(np.ones((16, 64)), ms.float32))
"""
MACHINE = """
name = "slow links"
memory = 1e12
kernel = 1e-6
other_products = 1e13
[products]
Float32 = 1e14
[link]
latency = 1e-9
bandwidth = 1e9
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(tmp_path, monkeypatch, {"net.py": SCRIPT, "machine.toml": MACHINE})


@pytest.fixture(scope="module")
def first_product(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of the network's first product in a plan of 8 ranks."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "net.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv(VERIFY, raising=False)
        done = CliRunner().invoke(app, ["search", "net.py", "--ranks", "8", "--out", "plan.toml", "-q"])
    assert done.exit_code == 0, done.output
    return next(name for name in read_plan(folder / "plan.toml").operators if "MatMul-op0" in name)


@pytest.mark.share(2)
@pytest.mark.parametrize("memory", [(), ("--memory", "67200kB")], ids=["", "within memory"])
def test_plans_of_forks_are_those_of_one_process(
    run: Run, monkeypatch: pytest.MonkeyPatch, memory: tuple[str, ...]
) -> None:
    arguments = ("search", "net.py", "--ranks", "8", "--machine", "machine.toml", "--json", "-", *memory)
    alone = run(*arguments)
    assert alone.exit_code == 0, alone.output
    monkeypatch.setattr(plans, "LARGE_GRAPH", 0)
    monkeypatch.setattr(plans, "can_fork", lambda: True)
    calls: list[Sequence[Any]] = []
    monkeypatch.setattr(plans, "ForkedCalls", lambda tasks: calls.append(tasks) or ForkedCalls(tasks))
    beside = run(*arguments)
    assert beside.stdout == alone.stdout
    assert [len(tasks) for tasks in calls] == [6]


def test_a_call_that_raises_in_a_fork_has_no_result() -> None:
    def wrong() -> None:
        raise ValueError("of a fork")

    with ForkedCalls([lambda: 3, wrong, lambda: os._exit(1)]) as forked:
        forked.one_more()
        assert [forked.result(index) for index in range(3)] == [3, None, None]


def test_plans_are_set_side_by_side(run: Run) -> None:
    done = run("search", "net.py", "--ranks", "4,8", "--machine", "machine.toml", "--json", "plans.json", "-q")
    assert done.exit_code == 0, done.output
    table = done.stdout.splitlines()
    assert table[0] == "plans of GPU programs, the fastest first, on slow links"
    assert table[1].split() == ["ranks", "plan", "step", "compute", "exposed", "bytes", "sent", "collectives", "memory",
                                "gap"]  # fmt: skip
    found = json.loads(Path("plans.json").read_text())
    assert found["machine"] == "slow links"
    for ranks in (4, 8):
        plans = [plan for plan in found["plans"] if plan["ranks"] == ranks]
        assert {plan["name"] for plan in plans} == {way.name for way in WAYS} | {f"Megatron-style, 1 x {ranks}"}
        assert [plan["step"] for plan in plans] == sorted(plan["step"] for plan in plans)
        assert plans[0]["name"] == SEARCH, "the batch is small and the weights are large: the products are sharded"
        assert plans[0]["search_gap"] in (0, None)
        assert all(plan["least"] <= plan["step"] * (1 + 1e-9) for plan in plans)
        assert all(plan["gap"] == pytest.approx(1 - plan["least"] / plan["step"]) for plan in plans)
        others = [plan["nbytes"] for plan in plans[1:] if "Megatron" not in plan["name"]]
        assert plans[0]["nbytes"] < min(others) / 5
        assert all(plans[0]["nbytes"] <= plan["nbytes"] for plan in plans), "pairs of products are the best here, too"
        assert all(plan["exposed"] <= plan["step"] and plan["memory"] > 0 for plan in plans)


def test_a_plan_is_compiled_as_it_was_found(run: Run) -> None:
    done = run("search", "net.py", "--ranks", "8", "--machine", "machine.toml", "--out", "plan.toml", "--top", "1")
    assert done.exit_code == 0, done.output
    assert "`mspc compile --strategies plan.toml` takes it" in done.stdout
    sent = next(" ".join(line.split()[8:10]) for line in done.stdout.splitlines() if " search " in line)
    compiled = run("compile", "net.py", "--ranks", "8", "--strategies", "plan.toml")
    assert compiled.exit_code == 0, compiled.output
    assert f"{sent} sent per step" in compiled.stdout
    assert read_plan(Path("plan.toml")).ranks == 8


@pytest.mark.thorough
def test_two_searches_write_the_same(run: Run) -> None:
    """Plan, table and JSON within a limit of memory, whatever the seed of hashes and the number of threads."""
    line = ["search", "net.py", "--ranks", "8", "--memory", "60KB", "--out", "plan.toml", "--json", "plans.json"]
    first = run(*line)
    assert first.exit_code == 0, first.output
    written = [Path(name).read_bytes() for name in ("plan.toml", "plans.json")]
    environment = {**os.environ, "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    again = subprocess.run(
        [sys.executable, "-m", "mspc", *line], env=environment, capture_output=True, text=True, check=True
    )
    assert again.stdout == first.stdout
    assert [Path(name).read_bytes() for name in ("plan.toml", "plans.json")] == written


def test_an_edited_plan_counts(run: Run) -> None:
    assert run("search", "net.py", "--ranks", "8", "--out", "plan.toml", "-q").exit_code == 0
    name = next(name for name in read_plan(Path("plan.toml")).operators if "MatMul-op0" in name)
    Path("plan.toml").write_text(f'ranks = 8\n[operators]\n"{name}" = ["(8) [-, 0]", "(8) [0, -]"]\n')
    done = run("compile", "net.py", "--ranks", "8", "--strategies", "plan.toml", "--all")
    assert done.exit_code == 0, done.output
    assert re.search(r"MatMul +matmul +\(1, 8\) \(8, 1\)", done.stdout)


SUMS = """
import numpy as np
from mindspore import nn, ops, Tensor, Parameter
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((64, 256), np.float32)))
        self.matmul = ops.MatMul().shard(((1, 4), (4, 1)))
    def construct(self, x):
        return ops.reduce_mean(self.matmul(x, self.weight))
net = Net()
nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))(Tensor(np.ones((16, 64), np.float32)))
"""


def test_sums_that_pass_an_operator_stand_in_a_plan(run: Run) -> None:
    """A mean of partial products: 6 bytes, where 24,576 were sent without them."""
    Path("net.py").write_text(SUMS)
    assert run("search", "net.py", "--ranks", "4", "--out", "plan.toml", "-q").exit_code == 0
    text = Path("plan.toml").read_text()
    assert '/ReduceMean-op0" = ["(4) [-, -] sum[0]"]' in text
    compiled = run("compile", "net.py", "--ranks", "4", "--strategies", "plan.toml")
    assert "1 collectives, 6 B sent per step" in compiled.stdout
    Path("plan.toml").write_text(text.replace("[-, 0]", "[0, -]").replace('"(4) [0, -]"]', '"(4) [-, -]"]'))
    refused = run("compile", "net.py", "--ranks", "4", "--strategies", "plan.toml")
    assert refused.exit_code == 2
    said = "the plan plan.toml has it take partial sums, (4) [-, -] sum[0], and its operand comes out as (4) [0, -]"
    assert f"ReduceMean: {said}\n" in refused.stderr
    assert "note: without sum[0] they are completed" in refused.stderr


SUMS_IN_OTHER_SLICES = """
import numpy as np
from mindspore import nn, ops, Tensor, Parameter
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((64, 256), np.float32)))
    def construct(self, x):
        return ops.sin(ops.matmul(x, self.weight) + ops.matmul(x * 2, self.weight))
Net()(Tensor(np.ones((16, 64), np.float32)))
"""
SUMS_PLAN = """
ranks = 4
[operators]
"Default/MatMul-op0" = ["(2, 2) [-, 1]", "(2, 2) [1, -]"]
"Default/MatMul-op1" = ["(2, 2) [-, 1]", "(2, 2) [1, -]"]
"Default/Add-op0" = ["(2, 2) [0, -] sum[1]", "(2, 2) [0, -] sum[1]"]
"""


def test_partial_sums_may_be_taken_in_other_slices(run: Run) -> None:
    """Plans of propagation have such sums; `mspc search` wrote them, and compiles refused them."""
    Path("net.py").write_text(SUMS_IN_OTHER_SLICES)
    Path("plan.toml").write_text(SUMS_PLAN)
    done = run("compile", "net.py", "--ranks", "4", "--strategies", "plan.toml")
    assert done.exit_code == 0, done.output
    assert "AllReduce" in done.output
    assert "equal: " in run("verify", "saved_graph").output
    Path("plan.toml").write_text(SUMS_PLAN.replace("[0, -] sum[1]", "[-, -] sum[0]"))
    refused = run("compile", "net.py", "--ranks", "4", "--strategies", "plan.toml")
    assert refused.exit_code == 2
    assert "has it take partial sums" in refused.stderr


def test_partial_sums_may_be_taken_in_slices_on_another_mesh(run: Run) -> None:
    """Axes that go together are one: the same ranks hold the terms."""
    rows = '"(2, 2, 2) [0, 2]", "(2, 2, 2) [2, -]"'
    taken = '"(4, 2) [0, -] sum[1]", "(4, 2) [0, -] sum[1]"'
    plan = SUMS_PLAN.replace("ranks = 4", "ranks = 8").replace('"(2, 2) [-, 1]", "(2, 2) [1, -]"', rows)
    Path("net.py").write_text(SUMS_IN_OTHER_SLICES)
    Path("plan.toml").write_text(plan.replace('"(2, 2) [0, -] sum[1]", "(2, 2) [0, -] sum[1]"', taken))
    done = run("compile", "net.py", "--ranks", "8", "--strategies", "plan.toml")
    assert done.exit_code == 0, done.output
    assert "equal: " in run("verify", "saved_graph").output
    Path("plan.toml").write_text(Path("plan.toml").read_text().replace("[0, -] sum[1]", "[1, -] sum[0]"))
    refused = run("compile", "net.py", "--ranks", "8", "--strategies", "plan.toml")
    assert refused.exit_code == 2
    assert "has it take partial sums" in refused.stderr


def test_the_search_takes_a_faster_plan_of_the_usual_ones(run: Run) -> None:
    """All gradients are added up in one collective, and beside what is computed, which no search reckons with."""
    small = SCRIPT.replace("64, 256", "32, 16").replace("256, 64", "16, 16").replace("16, 64", "16, 32")
    Path("net.py").write_text(small)
    done = run("search", "net.py", "--ranks", "8", "--json", "plans.json", "--out", "plans")
    assert done.exit_code == 0, done.output
    first, *others = json.loads(Path("plans.json").read_text())["plans"]
    assert (first["name"], first["search_gap"]) == (SEARCH, None)
    assert all(first["step"] <= plan["step"] for plan in others)
    assert f"search on 8 ranks takes the plan of {first['taken_from']}, which is faster than its own" in done.stdout
    source = next((plan for plan in others if plan["name"] == first["taken_from"]), None)
    if source is not None:
        assert Path("plans/8-search.toml").read_text() == Path("plans", source["file"]).read_text()


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("", "plan.toml: it does not say ranks"),
        ("ranks = 8\n", "plan.toml: there is no table [operators]"),
        ("rank = 8\n", "plan.toml: a plan has no key 'rank'"),
        ("[layers]\n", "plan.toml is a plan of layers, not of operators"),
        ("ranks = 8\n[operators\n", "plan.toml is no TOML file: "),
        ("ranks = 4\n[operators]\n", "the plan plan.toml is for 4 ranks, and the network is compiled for 8"),
        ('ranks = 8\n[operators]\n"Default/Nothing-op0" = []\n',
         "the plan plan.toml names Default/Nothing-op0, which the network does not have"),
        ('ranks = 8\n[operators]\n"NAME" = 5\n', "plan.toml: 'NAME' is 5, not a list with a layout for every operand"),
        ('ranks = 8\n[operators]\n"NAME" = ["x"]\n', "'NAME' has the entry 'x', not a layout as '(2, 4) [0, -]'"),
        ('ranks = 8\n[operators]\n"NAME" = ["(4) [0]"]\n', "'NAME' has the layout '(4) [0]' of 4 ranks, not 8"),
        ('ranks = 8\n[operators]\n"NAME" = ["(8) [0]"]\n',
         "MatMul 'matmul': the plan plan.toml has layouts (8) [0] for operands of 2, 2 dimensions"),
        ('ranks = 8\n[operators]\n"NAME" = ["(8) [0, -]", "(8) [0, -]"]\n',
         "MatMul 'matmul' cannot be sharded as the plan plan.toml says: (8) [0, -]; (8) [0, -]"),
    ],
)  # fmt: skip
def test_plans_that_do_not_fit(run: Run, first_product: str, plan: str, said: str) -> None:
    name = first_product
    Path("plan.toml").write_text(plan.replace("NAME", name))
    done = run("compile", "net.py", "--ranks", "8", "--strategies", "plan.toml")
    assert done.exit_code == 2
    assert said.replace("NAME", name) in done.stderr
    assert not Path("saved_graph").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("memory = 1e12", ""), "machine.toml: memory is missing"),
        (("memory = 1e12", "memory = -1"), "machine.toml: memory is -1, not a number above 0"),
        (("memory = 1e12", "memory = inf"), "machine.toml: memory is inf, not a number above 0"),
        (("latency = 1e-9", 'latency = "1 us"'), "machine.toml: link.latency is '1 us', not a number above 0"),
        (("[link]", "[links]"), "machine.toml: a machine has no key 'links'"),
        (("latency = 1e-9", "latency = 1e-9\nlatence = 1"), "machine.toml: a link has no key 'latence'"),
        (("Float32 = 1e14", "Float32 = 0"), "machine.toml: products.Float32 is 0, not a number above 0"),
        (("[products]\nFloat32 = 1e14", ""), "machine.toml: there is no table [products]"),
        (("memory = 1e12", "memory = "), "machine.toml is no TOML file: "),
    ],
)  # fmt: skip
def test_machines_that_cannot_be(run: Run, change: tuple[str, str], said: str) -> None:
    Path("machine.toml").write_text(MACHINE.replace(*change))
    done = run("search", "net.py", "--ranks", "8", "--machine", "machine.toml")
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", "eight"], "--ranks is 'eight', not numbers of ranks as in 8 or 8,16,64"),
        (["--ranks", "8,0"], "--ranks is '8,0', not numbers of ranks"),
        (["--ranks", "8,4", "--out", "plan.toml"], "--out is for one case"),
        (["--ranks", "8", "--out", "plan.json"], "--out plan.json: a plan's name ends in .toml"),
        (["--ranks", "8", "--machine", "none.toml"], "there is no machine file 'none.toml'"),
    ],
)  # fmt: skip
def test_mistakes_of_the_command(run: Run, arguments: list[str], said: str) -> None:
    done = run("search", "net.py", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_every_case_with_its_strategies_taken_away(conformance: Path) -> None:
    """Bytes of MindSpore's own answer, of its three searches the best where a case has several."""
    tried = 0
    for case in sorted((conformance / "cases").glob("*.py")):
        reference = json.loads((conformance / "reference" / f"{case.stem}.json").read_text())
        ranks = int(reference["world"])
        captured = capture(case, [], Session.of_rank(0, ranks))
        config = config_of(captured, ranks)
        if not config.sharded:
            continue
        try:
            searched = next(way for way in WAYS if way.name == SEARCH)
            compiled = PlannedNetwork.read(captured, config, free=True).compiled(searched)
        except MspcError as error:
            pytest.fail(f"{case.stem}: {error}")
        sent = [sum(map(sent_bytes, compiled.rank_graph(rank).nodes)) for rank in range(ranks)]
        most = min(reference["ring_bytes"], BEST.get(case.stem, reference["ring_bytes"]))
        assert sum(sent) / ranks <= most, case.stem
        assert compiled.graph.attrs["search_cost"] == round(sum(sent) / ranks), case.stem
        tried += 1
    assert tried >= 30


BEST = {"transformer_dynamic_programming": 147_460, "transformer_propagate": 147_460}
"""Bytes of the best of MindSpore's searches of one network."""


@pytest.mark.parametrize("device", ["auto", "cpu", "gpu"])
def test_the_heading_says_what_programs_are_for(run: Run, device: str) -> None:
    script = "import numpy as np\nimport mindspore as ms\nfrom mindspore import Tensor, nn\n"
    Path("dense.py").write_text(script + "nn.Dense(16, 16)(Tensor(np.ones([16, 16], np.float32)))\n", encoding="utf-8")
    done = run("search", "dense.py", "--ranks", "2", "--out", "dense.toml", "--device", device)
    target = "GPU" if device == "gpu" else "CPU"
    assert done.stdout.startswith(f"plans of {target} programs, the fastest first, on NVIDIA H200")
    assert ("note: programs are for CPU, and rates are of a GPU" in done.stdout) == (target == "CPU")
    in_file = 'device = "GPU"' in Path("dense.toml").read_text(encoding="utf-8")
    assert in_file == (target == "GPU"), "the script's own device is not repeated"
