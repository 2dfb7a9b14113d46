"""Every dump of a compile, put through the next pass by `mspc opt`, is the next dump; who looks on changes nothing."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions, find_call
from mspc.commands.opt import optimize
from mspc.compiler.call import describe_call
from mspc.compiler.driver import Compiled, OnStage, compile_traced, trace_call
from mspc.compiler.pipeline import FILE_NAMES, VIEWS
from mspc.output.programs import config_of
from mspc.passes.base import VERIFY
from mspc.plans.files.plan_file import read_plan, write_plan
from mspc.search.plans.alternatives import AUTOMATIC, WAYS, Alternative, PlannedNetwork
from tests.dumps import counter, dumped, pass_of
from tests.graphs import Layout, print_graph
from tests.serving import invoke
from tests.texts import IMPORTS

SCRIPT = IMPORTS + """
ms.set_auto_parallel_context(parallel_mode="{mode}", device_num=4)
ms.set_context(device_target="{device}")
class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = ops.RmsNorm().shard(((2, 2), (2,))), nn.Dense(16, 64), nn.Dense(64, 16)
        self.gamma = ms.Parameter(Tensor(np.ones(16), dtype=ms.float32), name="gamma")
        self.up.matmul.shard(((2, 1), (2, 1)))
    def construct(self, x):
        return x + self.down(ops.gelu(self.up(self.norm(x, self.gamma)[0])))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks = nn.CellList([Block() for _ in range(2)])
    def construct(self, x):
        unread = ops.abs(x)
        for block in self.blocks:
            x = block(x)
        return ops.reduce_mean(x)
net = Net()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params()))(Tensor(np.ones((64, 16)), dtype=ms.float32))
"""
IDENTITY = re.compile(r"^compile_id : .*\n", re.MULTILINE)
"""The line that `slice_to_rank` does not make: it is of the text that it begins with."""
PASS_OF = {file: name for name, file in FILE_NAMES.items()}


@pytest.fixture(scope="module")
def plan_text(tmp_path_factory: pytest.TempPathFactory, brief_searches: None) -> str:
    """The file of the plan that a search finds for the script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("searched"))
        patch.delenv(VERIFY, raising=False)
        Path("net.py").write_text(SCRIPT.format(mode="auto_parallel", device="CPU"))
        run("search", "net.py", "--ranks", "4", "--out", "plan.toml", "-q")
        return Path("plan.toml").read_text()


def run(*arguments: str) -> None:
    invoke(*arguments, status=0)


def check_replay(folder: Path) -> None:
    """Hold every dump of rank 0 to what `mspc opt` makes of the one before."""
    previous: Path | None = None
    for path in sorted(folder.glob("*.ir"), key=counter):
        name = PASS_OF.get(pass_of(path), pass_of(path))
        if previous is not None:
            again = optimize(previous, f"{name}{{rank=0}}" if name == "slice_to_rank" else name)
            wanted = IDENTITY.sub("", path.read_text().partition("\n")[2])
            assert IDENTITY.sub("", again) == wanted, f"{path.name} is not what {name} makes of {previous}"
        if name not in VIEWS:
            previous = path


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("mode", "device"),
    [("semi_auto_parallel", "CPU"), ("semi_auto_parallel", "GPU"), ("auto_parallel", "CPU"), ("data_parallel", "CPU"),
     ("stand_alone", "CPU")],
)  # fmt: skip
def test_the_next_pass_makes_the_next_dump(script: Path, mode: str, device: str) -> None:
    script.write_text(SCRIPT.format(mode=mode, device=device))
    run("compile", "net.py", "--save-graphs", "-q")
    check_replay(Path("saved_graph/rank_0"))


def test_a_plan_is_a_pass(script: Path, plan_text: str) -> None:
    """With cells that are computed again, parameters that are stored otherwise, and operators that passes have made."""
    script.write_text(SCRIPT.format(mode="auto_parallel", device="CPU"))
    Path("plan.toml").write_text(plan_text)
    plan = read_plan(Path("plan.toml"))
    cells = dict.fromkeys(name[: name.index("0-Block") + 7] for name in plan.operators if "0-Block/" in name)
    stored = {"blocks.0.up.weight": Layout.of((4,), [(0,), ()])}
    edited = replace(plan, recompute=tuple(cells), parameters=stored, gather_again=tuple(stored))
    write_plan(Path("plan.toml"), edited)
    assert len(cells) == 1
    assert edited.strategies
    run("compile", "net.py", "--strategies", "plan.toml", "--save-graphs", "-q")
    folder = Path("saved_graph/rank_0")
    names = dumped(folder)
    assert names[names.index("shard_by_plan") - 1] == "check_strategies"
    check_replay(folder)
    (last,) = folder.glob("*_execute_*.ir")
    assert "plan_" not in last.read_text()
    assert "place: " not in last.read_text()
    (sharded,) = folder.glob("*_shard_by_plan_*.ir")
    assert "recomputed: true" in sharded.read_text()
    assert "gathers_again: true" in sharded.read_text()
    assert "(4) [0, -]" in next(line for line in sharded.read_text().splitlines() if "blocks.0.up.weight:" in line)


def test_a_graph_says_its_plan_until_it_is_sharded_by_it(script: Path, plan_text: str) -> None:
    script.write_text(SCRIPT.format(mode="auto_parallel", device="CPU"))
    Path("plan.toml").write_text(plan_text)
    run("compile", "net.py", "--save-graphs", "-q", "--out", "plain")
    run("compile", "net.py", "--strategies", "plan.toml", "--save-graphs", "-q")
    assert "shard_by_plan" not in dumped(Path("plain/rank_0"))
    said = [
        pass_of(path)
        for path in sorted(Path("saved_graph/rank_0").glob("*.ir"), key=counter)
        if 'plan_file : "plan.toml"' in path.read_text()
    ]
    assert said == ["frontend", "decompose", "grad", "simplify", "recompute", "check_strategies"]


def test_a_damaged_plan_in_a_header_is_told(script: Path, plan_text: str) -> None:
    script.write_text(SCRIPT.format(mode="auto_parallel", device="CPU"))
    Path("plan.toml").write_text(plan_text)
    run("compile", "net.py", "--strategies", "plan.toml", "--save-graphs", "-q")
    (path,) = Path("saved_graph/rank_0").glob("*_check_strategies_*.ir")
    text = path.read_text()
    for good, bad, told in (
        ("plan_operators : ((\"", "plan_operators : ((8, \"", "plan_operators is"),
        ('"(4) [', '"(4 [', "plan_operators: a layout of Default"),
        ('"(4) [', '"(2) [', "which is none of 4 ranks"),
        ("plan_places : ((\"", "plan_places : (\"Default/Abs\", (\"", "plan_places is"),
        ("plan_operators : ((\"Default/", "plan_operators : ((\"Nowhere/", "the plan plan.toml names Nowhere/"),
    ):
        assert good in text
        path.write_text(text.replace(good, bad, 1))
        done = invoke("opt", "-p", "shard_by_plan", str(path), status=2)
        assert told in done.output, (good, done.output)


def compiled(way: Alternative | None, on_stage: OnStage | None) -> tuple[str, str]:
    """The graph of all ranks and rank 1's; a way of the search, or as the script says."""
    found = find_call("net.py", CompileOptions(ranks=4))
    config = config_of(found.captured, 4)
    made: Compiled
    if way is None:
        captured = found.captured
        call = trace_call(captured.target, describe_call(captured.args, []), config, captured.global_types)
        made = compile_traced(call, on_stage)
    else:
        made = PlannedNetwork.read(found.captured, config).compiled(way, on_stage=on_stage)
    return print_graph(made.graph), print_graph(made.rank_graph(1))


@pytest.mark.parametrize(
    "way",
    [None, WAYS[0], Alternative("again", {**AUTOMATIC, "search_mode": ""}, recompute=True)],
    ids=["script", "search", "again"],
)
def test_who_looks_on_changes_nothing(script: Path, way: Alternative | None) -> None:
    script.write_text(SCRIPT.format(mode="semi_auto_parallel", device="CPU"))
    texts: list[str] = []
    assert compiled(way, lambda stage: texts.append(stage.text())) == compiled(way, None)
    assert len(texts) > 8
