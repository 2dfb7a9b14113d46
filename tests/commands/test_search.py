"""`mspc search`: plans side by side, the file of the best, and compiling by it."""

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200, KNOWN_MACHINES, Rate
from mspc.analysis.cost.nodes import sent_bytes
from mspc.analysis.cost.timeline import MissingRate, missing_rates
from mspc.commands.report.plan_summary import missing_rate_notes
from mspc.commands.search import memory_of
from mspc.engine.capture import capture
from mspc.mindspore_api.state import Session
from mspc.output.programs import config_of
from mspc.passes.base import VERIFY
from mspc.plans.files.plan_file import read_plan
from mspc.search.plans import table as plans
from mspc.search.plans.alternatives import WAYS, PlannedNetwork
from mspc.search.plans.row import SEARCH
from mspc.search.plans.table import ForkedCalls
from tests.commands.written_files import Run, ending, runner
from tests.errors import error_of
from tests.graphs import BFLOAT16, DTYPES, FLOAT32, INT32, Builder, DType, Graph, MspcError, Parameter, TensorType
from tests.operators import Conv2D, Conv2DBackpropInput, FlashAttentionScore, MatMul
from tests.pipelining.test_other_commands import SCRIPT as STAGED
from tests.serving import invoke, succeed
from tests.texts import IMPORTS

pytestmark = pytest.mark.usefixtures("brief_searches")

SCRIPT = IMPORTS + """
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
        done = invoke("search", "net.py", "--ranks", "8", "--out", "plan.toml", "-q")
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
    again = succeed(sys.executable, "-m", "mspc", *line, env=environment)
    assert again.stdout == first.stdout
    assert [Path(name).read_bytes() for name in ("plan.toml", "plans.json")] == written


def test_an_edited_plan_counts(run: Run) -> None:
    assert run("search", "net.py", "--ranks", "8", "--out", "plan.toml", "-q").exit_code == 0
    name = next(name for name in read_plan(Path("plan.toml")).operators if "MatMul-op0" in name)
    Path("plan.toml").write_text(f'ranks = 8\n[operators]\n"{name}" = ["(8) [-, 0]", "(8) [0, -]"]\n')
    done = run("compile", "net.py", "--ranks", "8", "--strategies", "plan.toml", "--all")
    assert done.exit_code == 0, done.output
    assert re.search(r"MatMul +matmul +\(1, 8\) \(8, 1\)", done.stdout)


SUMS = IMPORTS + """
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


SUMS_IN_OTHER_SLICES = IMPORTS + """
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


MEMORY_SCRIPT = IMPORTS + """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weights = ms.ParameterTuple([
            Parameter(Tensor(np.ones((128, 128)), ms.float32), name=f"w{i}") for i in range(3)
        ])
        self.matmul, self.relu = ops.MatMul(), ops.ReLU()
    def construct(self, x):
        for weight in self.weights:
            x = self.relu(self.matmul(x, weight))
        return ops.reduce_mean(x)
net = Net()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params()))(Tensor(np.ones((1024, 128)), ms.float32))
"""


def search(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.chdir(folder)
    monkeypatch.delenv(VERIFY, raising=False)
    Path("net.py").write_text(MEMORY_SCRIPT)
    return invoke("search", "net.py", "--ranks", "8", "--json", "-", *arguments)


def memory_plans(done: Any) -> dict[str, Any]:
    assert done.exit_code == 0, done.output
    return {plan["name"]: plan for plan in json.loads(done.stdout)["plans"]}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plans without a limit."""
    with pytest.MonkeyPatch.context() as patch:
        return memory_plans(search(tmp_path_factory.mktemp("free"), patch))


@pytest.mark.thorough
def test_a_limit_brings_memory_down(every: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = every["search"]
    limit = min(free["memory"], every["data parallel"]["memory"]) - 200_000
    found = memory_plans(search(tmp_path, monkeypatch, "--memory", str(limit)))
    assert found["search"]["memory"] <= limit
    assert found["search"]["step"] >= free["step"]
    assert all(plan["memory"] <= limit for plan in found.values())
    assert found["data parallel"]["made_to_fit"]


def test_a_limit_that_holds_changes_nothing(
    every: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = every["search"]
    limited = memory_plans(search(tmp_path, monkeypatch, "--memory", "1GB"))["search"]
    same = ("step", "nbytes", "collectives", "memory")
    assert [limited[key] for key in same] == [free[key] for key in same]


def test_where_nothing_fits_the_smallest_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = search(tmp_path, monkeypatch, "--memory", "900kB")
    assert done.exit_code == 2
    assert re.search(r"no plan (that was found fits|needs at most) 878\.9 KiB \(900,000 bytes\) of memory", done.stderr)
    assert "take more ranks, or allow more memory" in done.stderr


@pytest.mark.parametrize(("text", "nbytes"), [
    (None, 0), ("1000", 1000), ("80GB", 80 * 10**9), ("1.5 GiB", 3 << 29), ("512MiB", 512 << 20), ("2kB", 2000),
])  # fmt: skip
def test_sizes(text: str | None, nbytes: int) -> None:
    assert memory_of(text) == nbytes


@pytest.mark.parametrize("text", ["", "much", "-5GB", "0", "80XB", "1e9"])
def test_what_is_no_size(text: str) -> None:
    assert error_of(memory_of, text).message == f"--memory is {text!r}, not a size as in 80GB or 512MiB"


NAMED = IMPORTS + """
SETTINGS
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up = Parameter(Tensor(np.ones((64, 256)), ms.float32))
        self.down = Parameter(Tensor(np.ones((256, 64)), ms.float32))
        self.matmul = ops.MatMul()
    def construct(self, x):
        return ops.reduce_mean(self.matmul(ops.relu(self.matmul(x, self.up)), self.down))
"""
AGAIN = IMPORTS + """
ms.set_auto_parallel_context(
    parallel_mode="auto_parallel", search_mode="dynamic_programming", dataset_strategy="full_batch", device_num=8
)
class Inner(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((64, 64)), ms.float32))
        self.matmul, self.drop = ops.MatMul(), nn.Dropout(p=0.1)
    def construct(self, x):
        y = ops.relu(self.matmul(x, self.w))
        y = SEVERAL
        return ops.tanh(self.matmul(y, self.w))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.inner.recompute()
    def construct(self, x):
        return ops.reduce_mean(self.inner(x))
net = Net()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params())).set_train()(Tensor(np.ones((16, 64)), ms.float32))
"""


@pytest.fixture
def module_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VERIFY, raising=False)

    def compiled(script: str, *arguments: str) -> Any:
        Path("net.py").write_text(script)
        return invoke("compile", *arguments, "--ranks", "8")

    return compiled


@pytest.mark.parametrize(
    ("settings", "mode", "origin"),
    [
        ('parallel_mode="auto_parallel", search_mode="dynamic_programming"', "auto_parallel", "search"),
        ('parallel_mode="auto_parallel", search_mode="sharding_propagation"', "auto_parallel", "the data"),
        ("", "semi_auto_parallel", "batch"),
    ],
)
def test_a_files_own_settings_count_where_its_network_is_named(
    module_run: Any, settings: str, mode: str, origin: str
) -> None:
    line = f"ms.set_auto_parallel_context({settings})" if settings else ""
    done = module_run(NAMED.replace("SETTINGS", line), "net.py:Net()", "--input", "float32[16,64]")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{mode}, 8 ranks, ")
    assert origin in done.stdout.partition("MatMul")[2].splitlines()[0]


def test_a_search_that_no_mode_asks_for_is_said_to_change_nothing(module_run: Any) -> None:
    line = 'ms.set_auto_parallel_context(search_mode="dynamic_programming")'
    done = module_run(NAMED.replace("SETTINGS", line), "net.py:Net()", "--input", "float32[16,64]")
    assert done.exit_code == 0, done.output
    said = "search_mode='dynamic_programming') changes nothing here: it counts in auto_parallel mode"
    assert said in " ".join(done.stderr.split())


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "several",
    [
        "y * ops.reduce_sum(ops.TopK()(y, 8)[0], 1).reshape((-1, 1))",
        "y * ops.max(y, 1, keepdims=True)[0]",
        "self.drop(y)",
        "ops.ArgMaxWithValue(1, True)(y)[1] + y",
    ],
)
def test_operators_of_several_results_are_computed_again_under_a_search(module_run: Any, several: str) -> None:
    done = module_run(AGAIN.replace("SEVERAL", several), "net.py")
    assert done.exit_code == 0, done.output


HALVES = """
name = "early"
memory = 1e12
kernel = 1e-6
other_products = 8e14
[products]
BFloat16 = 8e14
[link]
latency = 1e-9
bandwidth = 1e9
"""
NOTE = ("note: the file of early has no rates of products of Float32: those of products of BFloat16 stand in, so that "
        "times may be far off; `mspc calibrate` measures them")  # fmt: skip


@pytest.fixture
def rate_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    files = {"net.py": SCRIPT, "staged.py": STAGED.replace(", OTHERS", ""), "machine.toml": HALVES}
    return ending(runner(tmp_path, monkeypatch, files))


def notes(done: Any) -> list[str]:
    return [line for line in done.stdout.splitlines() if "has no rates of" in line]


def test_a_search_says_it_once(rate_run: Run) -> None:
    words = ("search", "net.py", "--summary", "-q", "--ranks")
    done = rate_run(*words, "2,4", "--machine", "machine.toml", "--json", "plans.json")
    assert notes(done) == [NOTE]
    assert done.stdout.index(NOTE) < done.stdout.index("search on 2 ranks: DP"), "before what it is about"
    plans = json.loads(Path("plans.json").read_text())["plans"]
    assert {json.dumps(plan["missing_rates"]) for plan in plans} == {'[{"kind": "products", "dtype": "Float32"}]'}
    Path("machine.toml").write_text(HALVES.replace("[products]", "[products]\nFloat32 = 5e13"))
    assert (
        notes(rate_run(*words, "2", "--machine", "machine.toml"))
        == notes(rate_run(*words, "2", "--machine", "h100"))
        == []
    )


def test_two_plans_and_one_operator(rate_run: Run) -> None:
    rate_run("search", "net.py", "--ranks", "2", "--out", "plan.toml", "-q")
    words = ("search", "net.py", "--ranks", "2", "--machine", "machine.toml")
    assert notes(rate_run(*words, "--compare", "plan.toml", "plan.toml")) == [NOTE]
    assert notes(rate_run(*words, "--explain", "MatMul-op0")) == [NOTE]


def test_stages_and_their_schedule(rate_run: Run) -> None:
    words = "staged.py", "--ranks", "2", "--machine", "machine.toml"
    assert notes(rate_run("search", *words, "--stages", "2", "-q")) == [NOTE]
    assert notes(rate_run("compile", *words, "--schedule", "times.txt", "--out", "graphs")) == [NOTE]
    assert notes(rate_run("diff", "graphs", "graphs", "--machine", "machine.toml")) == [NOTE]
    assert notes(rate_run("diff", "graphs", "graphs")) == []


def test_the_page(rate_run: Run) -> None:
    rate_run("view", "net.py", "--ranks", "2", "--machine", "machine.toml", "-q", "--out", "page.html")
    assert NOTE.removeprefix("note: ") in Path("page.html").read_text()


def graph_of(*nodes: tuple[Any, DType, tuple[tuple[int, ...], ...]]) -> Graph:
    graph = Graph("one")
    b = Builder(graph)
    for op, dtype, shapes in nodes:
        graph.parameters += (own := [Parameter("p", TensorType(dtype, shape), "parameter", False) for shape in shapes])
        b.emit(op, *own)
    return graph


SQUARE = (8, 8), (8, 8)
CONVOLVED = {"out_channel": 8, "kernel_size": 1, "pad_mode": "same"}
KINDS = graph_of(
    (MatMul(), BFLOAT16, SQUARE), (MatMul(transpose_a=True), FLOAT32, ((4096, 8), (4096, 8))),
    (MatMul(), INT32, SQUARE), (Conv2D(**CONVOLVED), FLOAT32, ((2, 8, 4, 4), (8, 8, 1, 1))),
    (Conv2DBackpropInput(input_size=(2, 8, 4, 4), **CONVOLVED), FLOAT32, ((2, 8, 4, 4), (8, 8, 1, 1))),
    (FlashAttentionScore(2, input_layout="BSH", sparse_mode=2), FLOAT32, ((2, 16, 8),) * 3),
    (MatMul(), FLOAT32, SQUARE),
)  # fmt: skip
FAST, SLOW = Rate.of(8e14), Rate.of(1e13)
EARLY = replace(H200, name="early", work={"products": {"BFloat16": FAST}}, other_products=FAST)


def test_kinds_go_by_what_they_are_without_their_forms() -> None:
    missing = missing_rates([KINDS], EARLY)
    assert [(each.kind, each.dtype) for each in missing] == [
        ("products", "Float32"), ("products", "Int32"), ("convolutions", "Float32"), ("attention", "Float32"),
    ]  # fmt: skip
    notes = missing_rate_notes(missing, EARLY)
    assert NOTE == f"note: {notes[0]}"
    assert notes[1].endswith("times may be far off"), "no calibration times integers"


def test_rates_of_any_kind_that_one_is_like_are_its_own() -> None:
    work = {**EARLY.work, "causal_attention": {"Float32": SLOW}, "convolutions": {"Float32": SLOW}}
    missing = missing_rates([KINDS], replace(EARLY, work=work))
    assert [(each.kind, each.dtype) for each in missing] == [("products", "Float32"), ("products", "Int32")]
    complete = {"products": {"Float16": FAST, "Float32": SLOW, "Int32": SLOW}}
    assert missing_rates([KINDS], replace(EARLY, work=complete)) == ()


def test_machines_that_come_along_say_what_others_have() -> None:
    assert missing_rates([KINDS], H200) == ()
    for machine in KNOWN_MACHINES.values():
        assert all(machine.known_rate("attention", dtype) for dtype in DTYPES.values() if dtype.is_float)


def test_what_stands_in_may_be_a_number_of_its_own() -> None:
    [note] = missing_rate_notes([MissingRate("products", "Float64")], replace(EARLY, other_products=SLOW))
    assert "no rates of products of Float64: its other_products stand in, so that times may be far off;" in note
