"""The search decides on equal layers that are one graph together, and refuses what only the run decides."""

from dataclasses import replace
from pathlib import Path

import pytest

from mspc.analysis.cost.machine import H200
from mspc.commands.search import SearchOptions, compare_plans, explain_node, search_target
from mspc.engine.capture import CapturedCall, capture
from mspc.engine.strategy_files import sharded_by_file
from mspc.ir.diagnostics import MspcError
from mspc.ir.text.families import are_cells, each_of_cells
from mspc.mindspore_api.state import Session
from mspc.output.programs import config_of
from mspc.plans.files.plan_file import PlanFile, read_plan, write_plan
from mspc.search.plans.alternatives import WAYS, PlannedNetwork, PlanRequest
from mspc.search.plans.row import SEARCH, Plans, file_name
from mspc.search.plans.table import plan_of_file, plans_for
from tests.compiled_scripts import Compiled, CompileOptions, compile_call
from tests.shares import crossed
from tests.texts import IMPORTS

pytestmark = pytest.mark.usefixtures("brief_searches")
SCRIPT = IMPORTS + """

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, full_batch=True)


class Inner(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((16, 64), np.float32)), name="w")
        self.out = Parameter(Tensor(np.ones((64, 16), np.float32)), name="out")

    def construct(self, x):
        return ops.matmul(ops.gelu(ops.matmul(x, self.w)), self.out)


class Layer(nn.Cell):
    MARK
    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm((16,)), Inner()

    def construct(self, x):
        return x + self.inner(self.norm(x))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        self.others = nn.CellList([Layer() for _ in range(LAYERS)])
        self.head = Parameter(Tensor(np.ones((16, 16), np.float32)), name="head")

    def construct(self, x):
        BODY
        return ops.matmul(x, self.head).mean()


net = Net()
step = STEP
step(Tensor(np.ones((32, 16), np.float32)))
"""
LAYERS = "for layer in self.layers: x = layer(x)"
NUMBERS = "for i in range(3): x = self.layers[i](x)"
TWO = "for layer in self.layers: x = layer(x)\n        for layer in self.others: x = layer(x)"
OUTSIDE = "for layer in self.layers: x = ops.relu(layer(x))"
LOOP = "while x.sum() < 5: x = self.layers[0](x) + 1"
TRAINED = "nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 0.1))"
CALLED = "net"
ASKED = PlanRequest(4, H200, "", True)


def script(
    folder: Path, body: str = LAYERS, step: str = TRAINED, mark: str = "@ms.lazy_inline", layers: int = 3
) -> Path:
    path = folder / f"net{layers}{len(mark)}.py"
    text = SCRIPT.replace("BODY", body).replace("STEP", step).replace("MARK", mark).replace("LAYERS", str(layers))
    path.write_text(text)
    return path


def captured(path: Path) -> CapturedCall:
    return capture(path, [], Session.of_rank(0, 4))


def alike(plans: Plans) -> int:
    """Layers that the plans of a table shard alike."""
    (found,) = {plan.alike for plan in plans.plans}
    return found


@pytest.mark.share(6)
@pytest.mark.parametrize(
    ("free", "body", "step"), crossed(["free", "kept"], ["cells", "numbers", "two"], ["trained", "called"])
)
def test_rows_are_what_their_files_compile_to(tmp_path: Path, free: str, body: str, step: str) -> None:
    text, count = {"cells": (LAYERS, 3), "numbers": (NUMBERS, 3), "two": (TWO, 6)}[body]
    call = captured(script(tmp_path, text, {"trained": TRAINED, "called": CALLED}[step]))
    asked = replace(ASKED, free=free == "free")
    found = plans_for(call, asked)
    assert alike(found) == count
    assert len(found.plans) >= 4
    assert min(found.plans, key=lambda plan: plan.step).name == SEARCH
    for plan in found.plans:
        file = tmp_path / file_name(plan)
        write_plan(file, found.files[plan.name])
        again = plan_of_file(call, asked, file)
        assert again.columns == plan.columns, plan.name
        assert (again.mean_nbytes, again.rank) == (plan.mean_nbytes, plan.rank), plan.name
        assert any(map(are_cells, read_plan(file).operators)), plan.name


def plan_of_search(call: CapturedCall) -> tuple[Compiled, PlanFile]:
    compiled = PlannedNetwork.read(call, ASKED.config(call), True).compiled(WAYS[0])
    return compiled, compiled.strategies.plan(4)


@pytest.mark.parametrize("body", [LAYERS, TWO], ids=["cells", "two"])
def test_a_plan_is_as_long_for_many_layers_and_names_each(tmp_path: Path, body: str) -> None:
    plans = [plan_of_search(captured(script(tmp_path, body, layers=n)))[1] for n in (2, 9)]
    assert len(plans[0].operators) == len(plans[1].operators)
    _, plain = plan_of_search(captured(script(tmp_path, body, mark="", layers=9)))
    assert not any(map(are_cells, plain.operators))
    assert {name for key in plans[1].operators for name in each_of_cells(key)} == set(plain.operators)
    assert set(plans[1].for_operators(()).operators) == set(plain.operators)


def test_a_plan_is_of_every_layer_where_these_are_inlined(tmp_path: Path) -> None:
    path = script(tmp_path)
    call = captured(path)
    compiled, plan = plan_of_search(call)
    assert [node.op.name for node in compiled.graph.nodes if node.regions and node.phase == "forward"] == ["For"]
    write_plan(tmp_path / "plan.toml", plan)
    for planned, device in ((call, "GPU"), (captured(script(tmp_path, mark="")), "CPU")):
        sharded = replace(planned, context=sharded_by_file(planned.context, tmp_path / "plan.toml"))
        config = replace(config_of(sharded, 4), device=device)
        inlined = compile_call(sharded.target, sharded.args, config, None, sharded.global_types)
        assert not any(node.regions for node in inlined.graph.nodes)
        wanted = plan.for_operators(()).operators
        products = {name: layouts for name, layouts in wanted.items() if "MatMul" in name}
        assert len(products) == 7
        assert products.items() <= inlined.strategies.layouts.items()


def test_layers_are_looked_at_one_by_one_for_memory_and_where_turns_have_operators_of_their_own(tmp_path: Path) -> None:
    call = captured(script(tmp_path))
    assert alike(plans_for(call, replace(ASKED, memory=1 << 30))) == 0
    assert alike(plans_for(captured(script(tmp_path, OUTSIDE)), ASKED)) == 0


@pytest.mark.thorough
def test_the_table_says_that_layers_choose_alike(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mark, count in (("@ms.lazy_inline", 1), ("", 0)):
        search_target(str(script(own_folder, mark=mark)), SearchOptions(CompileOptions(), (4,)))
        assert capsys.readouterr().out.count("note: 3 equal layers are one graph: they have equal layouts") == count


@pytest.mark.parametrize("name", ["0-Layer/inner-Inner/MatMul-op1", "[0..2]-Layer/inner-Inner/MatMul-op1"])
def test_an_operator_of_a_layer_is_explained_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    explain_node(captured(script(tmp_path)), ASKED, name, 3, None)
    told = capsys.readouterr().out
    assert "Default/network-Net/layers-CellList/[0..2]-Layer/inner-Inner/MatMul-op1" in told.splitlines()[0]
    assert "the least" in told


def test_plans_of_both_kinds_are_compared_layer_by_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = captured(script(tmp_path))
    _, plan = plan_of_search(call)
    files = tmp_path / "together.toml", tmp_path / "each.toml"
    write_plan(files[0], plan)
    write_plan(files[1], plan.for_operators(()))
    compare_plans(call, ASKED, files, None)
    assert "the plans shard every operator alike" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('For-op0" = ["', 'For-op0" = ["(4) [-, -]", "', "which carries and keeps"),
        ('For-op0"', 'For-op7"', "For-op7, which the network does not have"),
        ("layers-CellList/[0..2]-Layer/inner", "layers-CellList/[0..4]-Layer/inner", "3-Layer"),
    ],
)
def test_mistakes_in_plans_of_layers(tmp_path: Path, old: str, new: str, said: str) -> None:
    call = captured(script(tmp_path))
    file = tmp_path / "plan.toml"
    write_plan(file, plan_of_search(call)[1])
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(MspcError, match=said):
        plan_of_file(call, ASKED, file)


def test_a_loop_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="the search does not weigh values that only a run knows") as caught:
        plans_for(captured(script(tmp_path, LOOP)), ASKED)
    assert caught.value.location is not None
    assert LOOP in caught.value.location.text
