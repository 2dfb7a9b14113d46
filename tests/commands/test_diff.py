"""`mspc diff`: nothing between a compile and itself, what follows from one changed strategy, MindSpore's dumps."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.comparison.all_differences import Difference, differences
from mspc.commands.comparison.tables import moved_cells
from mspc.commands.diff import diff_targets
from mspc.commands.facts.compiled import CompileFacts
from mspc.commands.facts.graph import OF_GROUPS, GraphFacts
from mspc.commands.facts.reading import read_facts
from mspc.ir.text.fragments import read_layouts
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce
from mspc.ops.fused.elementwise import BodyLine, FusedElementwise
from mspc.ops.math.arithmetic import Mul, Sub
from mspc.ops.op import REGISTRY, Op
from mspc.passes.base import VERIFY
from mspc.plans.files.plan_file import PlanFile, read_plan, write_plan
from tests.compiled_scripts import QUIET, CompileOptions, compile_target
from tests.graphs import FLOAT16, FLOAT32, Constant, DType, Graph, Layout, MspcError, Node, Parameter, TensorType, Value
from tests.serving import invoke

SCRIPT = '''
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

class Branch(nn.Cell):
    def __init__(self, name, cut):
        super().__init__()
        self.w = Parameter(initializer("normal", [32, 64]), name + "w")
        self.v = Parameter(initializer("normal", [64, 32]), name + "v")
        self.up, self.act, self.down = ops.MatMul().shard(cut), ops.GeLU(), ops.MatMul()

    def construct(self, x):
        return self.down(self.act(self.up(x, self.w)), self.v)

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.left, self.right = Branch("l", LEFT), Branch("r", ((2, 1), (1, 4)))
        self.join = ops.Add().shard(((8, 1), (8, 1)))
        self.loss = nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.join(self.left(ops.relu(x)), self.right(ops.tanh(x))), y)

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, dataset_strategy="full_batch")
net = Net()
data = Tensor(np.ones([16, 32], np.float32))
nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))(data, data)
'''
OWN = '''
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn
from mindspore.communication import get_rank, init

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.factor = 3.0 + get_rank()

    def construct(self, x):
        return x * self.factor

ms.set_auto_parallel_context(parallel_mode="hybrid_parallel", device_num=2)
init()
Net()(Tensor(np.ones(2, np.float32)))
'''
LEFT, OTHER = "((2, 1), (1, 4))", "((8, 1), (1, 1))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two compiles, `a` and `b`, of which one strategy differs, and their tables as JSON."""
    place = tmp_path_factory.mktemp("diff")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VERIFY, raising=False)
        for name, strategy in (("a", LEFT), ("b", OTHER)):
            script = place / name / "net.py"
            script.parent.mkdir()
            script.write_text(f"LEFT = {strategy}\n{SCRIPT}")
            done = invoke("compile", script, "--out", place / name / "out", "--json", place / f"{name}.json", "-q")
            assert done.exit_code == 0, done.output
    for name in "ab":
        (place / name / "out").rename(place / f"{name}_out")
    return place


@pytest.fixture(scope="module")
def changed(folder: Path) -> dict[str, Any]:
    """The differences of the two."""
    done = invoke("diff", folder / "a_out", folder / "b_out", "--json", "-", status=1)
    return json.loads(done.stdout)


def test_a_compile_and_itself_are_equal(folder: Path) -> None:
    copy = folder / "copy"
    shutil.copytree(folder / "a_out", copy)
    done = invoke("diff", folder / "a_out", copy, "--json", folder / "none.json", status=0)
    assert done.stdout == f"{folder / 'a_out'} and {copy} are equal\n"
    found = json.loads((folder / "none.json").read_text())
    assert found.pop("equal") is True
    assert not any(value for key, value in found.items() if key not in ("names", "version", "command"))


def test_one_changed_strategy_names_what_follows_from_it_alone(changed: dict[str, Any]) -> None:
    branch, net, optimizer = ("Default/network-Net/left-Branch", "Default/network-Net", "Default/optimizer-Momentum")
    assert [(d["cell"], d["name"]) for d in changed["layouts"]] == [
        (net, "ReLU-op0"), (branch, "MatMul-op0"), (branch, "GeLU-op0"), (branch, "MatMul-op1"),
    ]  # fmt: skip
    assert changed["layouts"][1]["second"] == "(8) [0, -]; (8) [-, -]"
    assert [d["name"] for d in changed["tensors"]] == ["left.w", "moments.left.w"]
    (kind,) = changed["kinds"]
    assert {(d["cell"], d["name"]) for d in kind["operators"]} == {
        (net, "ReLU"), (branch, "MatMul 'up'"), (branch, "GeLU 'act'"), (branch, "MatMul 'down'"),
        (branch, "GeLUGrad (backward)"), (branch, "MatMul (backward)"), (branch, "StridedSlice"), (net, "StridedSlice"),
        (optimizer, "ApplyMomentum of left.w (update)"),
    }  # fmt: skip
    assert {(d["name"], d["first"], d["second"]) for d in kind["collectives"]} == {
        ("ReduceScatter", "ReduceScatter of 768 bytes over 0-1-2-3", None),
        ("gradient of left.v", "AllReduce of 2048 bytes over 0-4", "AllReduce of 14336 bytes over 0-1-2-3-4-5-6-7"),
        ("gradient of left.w", "AllReduce of 2048 bytes over 0-4", "AllReduce of 14336 bytes over 0-1-2-3-4-5-6-7"),
        ("gradient of left.v", "AllGather of 6144 bytes over 0-1-2-3", None),
    }
    assert {d["line"] for d in kind["collectives"]} == {"net.py:16"}
    assert "given by shard()" in kind["collectives"][0]["why"][0]


def test_figures_are_those_of_the_compiles_own_tables(folder: Path, changed: dict[str, Any]) -> None:
    figures = {f["name"]: (f["first"], f["second"]) for f in changed["kinds"][0]["sums"][0]["figures"]}
    tables = [json.loads((folder / f"{name}.json").read_text()) for name in "ab"]
    assert figures["collectives"] == tuple(table["totals"]["collectives"] for table in tables)
    assert figures["bytes sent"] == tuple(table["totals"]["bytes_sent"] for table in tables)
    assert figures["memory: together"] == tuple(table["totals"]["peak_bytes"] for table in tables)
    for name in ("weights", "states", "step", "gradients", "activations"):
        assert figures[f"memory: {name}"] == tuple(table["memory"][name] for table in tables)
    sent = [
        sum(int(d[side].split(" of ")[1].split(" ")[0]) for d in changed["kinds"][0]["collectives"] if d[side])
        for side in ("first", "second")
    ]
    assert sent[1] - sent[0] == figures["bytes sent"][1] - figures["bytes sent"][0], "nothing is left out"
    cells = changed["kinds"][0]["sums"][0]["scopes"]
    sums = [sum(cell[side]["bytes_sent"] for cell in cells) for side in ("first", "second")]
    assert sums[1] - sums[0] == figures["bytes sent"][1] - figures["bytes sent"][0]


def test_attributes_and_constants_are_compared(folder: Path) -> None:
    (file,) = (folder / "a_out" / "rank_0").glob("*.ir")
    text = file.read_text()
    one, other = folder / "same.ir", folder / "changed.ir"
    one.write_text(text)
    for old, new in (("use_nesterov=false", "use_nesterov=true"), ("Float32, value=0.125)", "Float32, value=0.5)")):
        assert old in text
        text = text.replace(old, new)
    other.write_text(text)
    assert invoke("diff", folder / "a_out" / "rank_0" / file.name, one).exit_code == 0
    (kind,) = json.loads(invoke("diff", one, other, "--json", "-").stdout)["kinds"]
    assert {d["name"] for d in kind["operators"]} == {
        "Mul", *(f"ApplyMomentum of {side}.{name} (update)" for side in ("right", "left") for name in "vw")
    }  # fmt: skip
    assert kind["operators"][0]["second"] == "Float32 (); Float32 () = 0.5 -> Float32 ()"
    assert "{use_nesterov: True, use_locking: False, gradient_scale: 1.0}" in kind["operators"][1]["second"]


def test_a_script_is_compiled_for_the_comparison(folder: Path) -> None:
    done = invoke("diff", folder / "a_out", folder / "a" / "net.py", status=0)
    done = invoke("diff", folder / "a_out", folder / "a" / "net.py", "--ranks", "16", "--json", "-")
    assert [(d["name"], d["first"], d["second"]) for d in json.loads(done.stdout)["header"]] == [("ranks", "8", "16")]


def test_a_line_that_moved_is_no_difference(folder: Path) -> None:
    moved = folder / "moved"
    shutil.copytree(folder / "a_out", moved)
    for file in moved.glob("rank_*/*.ir"):
        file.write_text(file.read_text().replace("net.py(16)", "net.py(99)"))
    done = invoke("diff", folder / "a_out", moved, status=0)
    assert "edited since they were compiled: rank_" in done.stdout


def test_ranks_of_one_kind_are_read_once_and_edited_ones_apart(folder: Path) -> None:
    assert [kind.ranks for kind in read_facts(folder / "a_out").kinds] == [tuple(range(8))]
    edited = folder / "edited"
    shutil.copytree(folder / "a_out", edited)
    (file,) = (edited / "rank_5").glob("*.ir")
    file.write_text(file.read_text().replace("Tanh(", "Sin("))
    os.utime(file, (file.stat().st_atime, (edited / "program.json").stat().st_mtime + 5))
    kinds = [(kind.ranks, any(node.provenance for node in kind.graph.nodes)) for kind in read_facts(edited).kinds]
    assert kinds == [((0, 1, 2, 3, 4, 6, 7), True), ((5,), False)]
    done = invoke("diff", folder / "a_out", edited, "--json", "-")
    (kind,) = json.loads(done.stdout)["kinds"]
    assert kind["ranks"] == [list(range(8)), [5]]
    assert [d["name"] for d in kind["operators"]] == ["Tanh", "Sin"]


def test_dumps_of_two_ranks_are_compared_though_their_groups_differ(folder: Path) -> None:
    places = (folder / "a_out" / "rank_0", folder / "a_out" / "rank_5", folder / "b_out" / "rank_5")
    files = [next(place.glob("*.ir")) for place in places]
    assert invoke("diff", *files[:2]).exit_code == 0
    assert invoke("diff", files[0], files[2]).exit_code == 1


def test_plans_beside_plans_and_compiles(folder: Path) -> None:
    facts = [read_facts(folder / f"{name}_out") for name in "ab"]
    for name, each in zip("ab", facts, strict=True):
        assert each.plan is not None
        operators = {key: tuple(read_layouts(text)[0] for text in texts) for key, texts in each.plan.operators.items()}
        stored = {key: read_layouts(text)[0] for key, text in each.plan.parameters.items()}
        write_plan(folder / f"{name}.toml", PlanFile(8, operators, stored))
    assert read_plan(folder / "a.toml").ranks == 8
    assert invoke("diff", folder / "a.toml", folder / "a_out").exit_code == 0
    done = invoke("diff", folder / "a.toml", folder / "b.toml", "--json", "-", status=1)
    names = [d["name"] for d in json.loads(done.stdout)["layouts"]]
    assert names == ["ReLU-op0", "MatMul-op0", "GeLU-op0", "MatMul-op1"]


def test_plans_that_shard_alike_and_treat_cells_and_parameters_otherwise(folder: Path) -> None:
    layout = Layout.of((8,), [(0,), ()])
    one, other = folder / "one_plan.toml", folder / "other_plan.toml"
    write_plan(one, PlanFile(8, {}, {"v": layout}, ("Default/a", "Default/b"), ("v",)))
    write_plan(other, PlanFile(8, {}, {}, ("Default/b",)))
    assert invoke("diff", one, one).exit_code == 0
    done = invoke("diff", one, other, "--json", "-", status=1)
    assert [(d["name"], d["cell"], d["first"], d["second"]) for d in json.loads(done.stdout)["memory"]] == [
        ("Default/a", "computed again for gradients", "yes", None),
        ("v", "stored as", "(8) [0, -]", None),
        ("v", "gathered again for gradients", "yes", None),
    ]
    assert "cells and parameters that plans treat in different ways: 3" in invoke("diff", one, other).stdout


@pytest.mark.parametrize("case", ["quickstart_semi", "transformer_semi", "softmax_layernorm", "optimizer_parallel"])
def test_facts_of_mindspores_dumps_are_those_of_its_reference(case: str, conformance: Path) -> None:
    told = json.loads((conformance / "reference" / f"{case}.json").read_text())
    (kind,) = read_facts(conformance / "dumps" / f"{case}.execute.ir").kinds
    assert sorted(c.row.operator for c in kind.collectives) == sorted(entry[0] for entry in told["comm"])
    assert kind.bytes_sent == pytest.approx(told["ring_bytes"], abs=len(kind.collectives))


def test_a_compile_beside_mindspores_dump(conformance: Path, tmp_path: Path) -> None:
    case = conformance / "cases" / "quickstart_semi.py"
    assert invoke("compile", case, "--out", tmp_path / "out", "-q").exit_code == 0
    done = invoke("diff", tmp_path / "out", conformance / "dumps" / "quickstart_semi.execute.ir", "--json", "-")
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert found["tensors"] == [], "slices of parameters follow from the strategies"
    (kind,) = found["kinds"]
    assert not any("MatMul" in d["name"] or "ApplyMomentum" in d["name"] for d in kind["operators"])
    sent = [(d["first"], d["second"]) for d in kind["collectives"]]
    assert sent[0] == ("AlltoAll of 192 bytes over 0-1-2-3", "AllGather of 768 bytes over 0-1-2-3")
    assert all(first is not None and second is not None for first, second in sent)


def test_a_compile_that_sends_what_mindspore_sends(conformance: Path) -> None:
    done = invoke(
        "diff", conformance / "cases" / "redistribute_03.py", conformance / "dumps" / "redistribute_03.execute.ir"
    )
    assert done.exit_code == 0, done.output


def test_ranks_with_networks_of_their_own_are_kinds_of_their_own(folder: Path) -> None:
    script = folder / "own.py"
    script.write_text(OWN)
    for name in ("one", "two"):
        assert invoke("compile", script, "--out", folder / name, "-q").exit_code == 0
        script.write_text(OWN.replace("3.0 + get_rank()", "3.0 + 2 * get_rank()"))
    assert [kind.ranks for kind in read_facts(folder / "one").kinds] == [(0,), (1,)]
    assert invoke("diff", folder / "one", folder / "one").exit_code == 0
    (kind,) = json.loads(invoke("diff", folder / "one", folder / "two", "--json", "-").stdout)["kinds"]
    assert kind["ranks"] == [[1], [1]]
    assert [(d["name"], d["first"].partition(" -> ")[0]) for d in kind["operators"]] == [
        ("Mul", "Float32 (2,); Float32 () = 4.0")
    ]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a_out", "nowhere"), "nowhere does not exist"),
        (("a_out", "a"), "a holds no compiled program: program.json is missing"),
        (("a_out", "a.json"), "a.json is no folder of a compile, no graph (.ir) and no plan (.toml)"),
        (("a_out", "b_out", "--ranks", "8"), "a_out and b_out are no scripts and take no --ranks"),
        (("a_out", "nowhere.py"), "no script"),
        (("a_out", "nowhere.ir"), "there is no file"),
        (("a_out", "cut.ir"), "the text ends too early"),
        (("a_out", "mixed"), "holds dumps of different compiles"),
        (("cut.toml", "one.ir"), "say nothing of the same kind"),
        (("a_out", "kinds"), "program.json is damaged"),
    ],
)
def test_bad_input(folder: Path, names: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (file,) = Path("a_out/rank_0").glob("*.ir")
    Path("one.ir").write_text(file.read_text())
    Path("cut.ir").write_text(file.read_text()[:3000])
    Path("cut.toml").write_text('ranks = 2\n[operators]\n"Default/MatMul-op0" = ["(2) [0, -]"]\n')
    for name in ("mixed", "kinds"):
        if not Path(name).exists():
            shutil.copytree("a_out", name)
    (other,) = Path("b_out/rank_0").glob("*.ir")
    shutil.copy(other, Path("mixed/rank_0") / file.name)
    content = json.loads(Path("a_out/program.json").read_text())
    Path("kinds/program.json").write_text(json.dumps({**content, "kinds": {"0": "x"}}))
    done = invoke("diff", *names, status=2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_ranks_that_differ_alike_are_told_once() -> None:
    """Kinds of ranks differ in their groups, and may differ in what they send before the change, too."""

    def kind(ranks: tuple[int, ...], group: tuple[int, ...], extra: int, gathers: bool) -> GraphFacts:
        graph = Graph("one")
        for op, count in [(AllReduce(rank_list=group), extra)] + [(AllGather(rank_list=group), 24)] * gathers:
            operand = Parameter("x", TensorType(FLOAT32, (count,)), "input")
            graph.nodes.append(Node(op, [operand], operand.type, scope="Default"))
        return GraphFacts(graph, of_one_rank=False, ranks=ranks)

    def compiled(gathers: bool) -> CompileFacts:
        kinds = (kind((0, 1), (0, 1), 2, gathers), kind((2, 3), (2, 3), 2, gathers), kind((4,), (4, 5), 4, gathers))
        return CompileFacts("x", 5, "", None, kinds=kinds)

    (found,) = differences(compiled(False), compiled(True)).kinds
    assert found.ranks == ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4))
    assert [(d.first, d.second) for d in found.collectives] == [(None, "AllGather of 96 bytes over 0-1")]
    assert [sums.ranks[0] for sums in found.sums] == [(0, 1, 2, 3), (4,)]
    assert [sums.figures[1].first for sums in found.sums] == [8, 16]


SHAPE = (4, 8)
MESSAGES = {"group", "group_back", "rank_list", "rank_id", "mesh", "axes", "sr_tag", "share", "micro_batch", "stage"}
"""Fields that say who meets whom, which the ranks of collectives say, and fields of costs alone."""


def other(value: Any) -> Any:
    """Another value of the same kind; None if there is no such one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.25
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, DType):
        return FLOAT32 if value != FLOAT32 else FLOAT16
    if isinstance(value, tuple):
        return (other(value[0]), *value[1:]) if value and other(value[0]) is not None else (*value, 1)
    return None


def made(kind: type[Op]) -> Iterator[Op]:
    """Operators of a class: of its samples, and with nothing given."""
    for each in kind.samples:
        yield kind(**each.fields)
    try:
        yield kind()
    except (TypeError, MspcError):  # it needs some fields
        return


def facts(op: Op, operands: list[Value] | None = None) -> CompileFacts:
    """The facts of a graph with one operator, and one that reads it."""
    graph = Graph("one")
    type = TensorType(FLOAT32, SHAPE)
    graph.parameters = [Parameter(name, type, "input") for name in ("x", "y")]
    node = Node(op, operands or list(graph.parameters), type, "made", "made")
    graph.nodes, graph.results = [node], [node]
    return CompileFacts("", 2, "", None, kinds=(GraphFacts(graph, of_one_rank=False, ranks=(0,)),))


def test_every_field_of_every_operator_is_compared() -> None:
    unseen: list[str] = []
    count = 0
    for name in REGISTRY:
        kind = REGISTRY[name]
        op = next(made(kind), None)
        if op is None or kind.__module__.endswith("control.structural"):
            continue
        for each in fields(op):
            if issubclass(kind, Collective) and each.name in MESSAGES:
                continue
            changed = other(getattr(op, each.name))
            if changed is None:
                continue
            try:
                two = facts(replace(op, **{each.name: changed}))
            except MspcError:  # an operator that checks its fields
                continue
            if not differences(facts(op), two):
                unseen.append(f"{name}.{each.name}")
            count += 1
    assert unseen == [], unseen
    print(count)
    assert count > 500


def test_fields_of_groups_are_none_that_change_numbers() -> None:
    assert OF_GROUPS <= MESSAGES


def test_members_of_fused_operators_are_compared() -> None:
    def fused(*lines: BodyLine) -> CompileFacts:
        return facts(FusedElementwise.of(list(lines), (0,)))

    x, y = ("x", 0), ("x", 1)
    assert not differences(fused(BodyLine(Sub(), (x, y))), fused(BodyLine(Sub(), (x, y))))
    assert differences(fused(BodyLine(Sub(), (x, y))), fused(BodyLine(Sub(), (y, x))))
    assert differences(fused(BodyLine(Sub(), (x, y))), fused(BodyLine(Mul(), (x, y))))


@pytest.mark.parametrize("size", [1, 32])
def test_constants_are_compared(size: int) -> None:
    def with_constant(value: float) -> CompileFacts:
        array = np.zeros((size,), np.float32)
        array[-1] = value
        return facts(Sub(), [Parameter("x", TensorType(FLOAT32, SHAPE), "input"), Constant(array, FLOAT32)])

    assert not differences(with_constant(1.0), with_constant(1.0))
    assert differences(with_constant(1.0), with_constant(2.0))


NETWORK = """
import mindspore as ms, numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer
ms.set_seed({seed})
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer(Normal({sigma}), [8, 8]), name="w")
        self.v = Parameter(Tensor(np.full((8, 8), {value}), ms.float32), name="v")
    def construct(self, x):
        return {results}
Net()(Tensor(np.ones((8, 8)), ms.float32))
"""
SAME = {"seed": 1, "sigma": 0.1, "value": 0.5, "results": "ops.tanh(x @ self.w), ops.sin(x @ self.v)"}


@pytest.mark.parametrize(
    "change",
    [{}, {"seed": 2}, {"sigma": 0.2}, {"value": 0.25}, {"results": "ops.sin(x @ self.v), ops.tanh(x @ self.w)"},
     {"results": "ops.tanh(x @ self.v), ops.sin(x @ self.w)"}],
    ids=str,
)  # fmt: skip
def test_compiles_that_compute_other_numbers_differ(tmp_path: Path, change: dict[str, Any]) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, text in zip(folders, (SAME, SAME | change), strict=True):
        script = tmp_path / f"{folder.name}.py"
        script.write_text(NETWORK.format(**text))
        assert invoke("compile", str(script), "--out", str(folder), "-q").exit_code == 0
    done = invoke("diff", *map(str, folders))
    assert done.exit_code == (1 if change else 0), done.output


STAGE_SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops

class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(16, 16)

    def construct(self, x):
        return ops.tanh(self.dense(x))

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(4)])
        for layer, stage in zip(self.layers, STAGES):
            layer.pipeline_stage = stage

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=max(STAGES) + 1,
    pipeline_config={"pipeline_scheduler": "SCHEDULE"},
)
net = nn.WithLossCell(Net(), nn.MSELoss())
cell = nn.PipelineCell(net, MICRO)
rows = Tensor(np.ones((16, 16), np.float32))
nn.TrainOneStepCell(cell, nn.SGD(cell.trainable_params(), 0.1))(rows, rows)
"""
BELOW = "Default/network-PipelineCell/network-WithLossCell/_backbone-Net/layers-CellList"


@pytest.fixture(scope="module")
def stage_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles of one network on 4 ranks: in two stages, with another border, another schedule, and in four."""
    path = tmp_path_factory.mktemp("stages")
    compiled(path, "two")
    compiled(path, "border", stages="(0, 1, 1, 1)")
    compiled(path, "gpipe", schedule="gpipe", micro=8)
    compiled(path, "four", stages="(0, 1, 2, 3)")
    compiled(path, "part", only_ranks=(2,))
    return path


def compiled(
    path: Path, name: str, stages: str = "(0, 0, 1, 1)", schedule: str = "1f1b", micro: int = 4, **options: Any
) -> None:
    text = STAGE_SCRIPT.replace("STAGES", stages).replace("SCHEDULE", schedule).replace("MICRO", str(micro))
    (path / "net.py").write_text(text)
    compile_target(str(path / "net.py"), CompileOptions(4, out=path / name, loudness=QUIET, **options))


def found(stage_folder: Path, first: str, second: str) -> dict[str, Any]:
    file = stage_folder / "found.json"
    options = CompileOptions(json=file, loudness=QUIET)
    status = diff_targets(str(stage_folder / first), str(stage_folder / second), options)
    told = json.loads(file.read_text())
    assert status == (not told["equal"])
    return told


def test_equal_pipelines_are_equal(stage_folder: Path) -> None:
    told = found(stage_folder, "two", "two")
    assert (told["equal"], told["stages"]) == (True, None)


def test_a_border_elsewhere_moves_operators(stage_folder: Path) -> None:
    stages = found(stage_folder, "two", "border")["stages"]
    assert stages["settings"] == []
    moved = {entry["cell"] for entry in stages["moved"] if entry["cell"].startswith(BELOW)}
    assert moved == {f"{BELOW}/1-Layer", f"{BELOW}/1-Layer/dense-Dense"}
    texts = {(entry["first"].partition(":")[0], entry["second"].partition(":")[0]) for entry in stages["moved"]}
    assert texts == {("stage 0", "stage 1")}
    assert any(entry["name"] == "MatMul 'matmul'" and entry["line"] == "net.py:12" for entry in stages["moved"])
    assert [entry["stage"] for entry in stages["stages"]] == [0, 1]


def test_what_moved_is_no_operator_of_one_alone(stage_folder: Path) -> None:
    operators = [entry for kind in found(stage_folder, "two", "border")["kinds"] for entry in kind["operators"]]
    own = [entry for entry in operators if "1-Layer" in entry["cell"]]
    assert not [entry for entry in own if None in (entry["first"], entry["second"])]


def test_schedules_and_micro_batches(stage_folder: Path) -> None:
    stages = found(stage_folder, "two", "gpipe")["stages"]
    assert [(entry["name"], entry["first"], entry["second"]) for entry in stages["settings"]] == [
        ("schedule", "1f1b", "gpipe"), ("micro-batches", "4", "8")
    ]  # fmt: skip
    assert stages["moved"] == []
    assert [entry["keeps"] for entry in stages["stages"]] == [[2, 8], [1, 8]]
    (there, back) = stages["borders"]
    assert (there["source"], there["target"], there["messages"]) == (0, 1, [4, 8])
    assert (back["source"], back["target"], back["messages"]) == (1, 0, [5, 9])  # with the loss
    assert there["bytes"] == [512, 512]  # half of the 16 rows


def test_unequal_numbers_of_stages(stage_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = found(stage_folder, "two", "four")["stages"]
    assert [(entry["name"], entry["first"], entry["second"]) for entry in stages["settings"]] == [("stages", "2", "4")]
    moved = {entry["cell"]: (entry["first"], entry["second"]) for entry in stages["moved"] if "-Layer" in entry["cell"]}
    told = {cell.removeprefix(f"{BELOW}/")[0]: [text[:7] for text in texts] for cell, texts in moved.items()}
    assert told == {"1": ["stage 0", "stage 1"], "2": ["stage 1", "stage 2"], "3": ["stage 1", "stage 3"]}
    pairs = [(entry["source"], entry["target"], entry["messages"]) for entry in stages["borders"]]
    assert (2, 3, [0, 4]) in pairs
    assert [entry["idle"][0] is None for entry in stages["stages"]] == [False, False, True, True]
    capsys.readouterr()
    options = CompileOptions(all_rows=True)
    assert diff_targets(str(stage_folder / "two"), str(stage_folder / "four"), options) == 1
    out = capsys.readouterr().out
    for title in ("the pipeline\n", "stages: idle part", "messages between stages", "operators in another stage"):
        assert title in out
    assert f"{BELOW}/3-Layer\n" in out


def test_a_part_of_the_stages_is_compared_where_both_tell(stage_folder: Path) -> None:
    told = found(stage_folder, "two", "part")
    assert (told["equal"], told["stages"]) == (True, None)
    pipeline = read_facts(stage_folder / "part").pipeline
    assert pipeline is not None
    assert (pipeline.count, pipeline.timeline, pipeline.step, list(pipeline.stages)) == (2, None, None, [1])


def test_the_largest_cells_that_moved_together_are_named() -> None:
    def difference(cell: str, first: str = "stage 0", second: str = "stage 1") -> Difference:
        return Difference("Add", cell, "", first, second)

    alike = [difference("net/a/b"), difference("net/a/c"), difference("net/d", "stage 1", "stage 2: Float32 (2)")]
    assert moved_cells(alike) == [("net/a", 2, ("stage 0", "stage 1")), ("net/d", 1, ("stage 1", "stage 2"))]
    assert moved_cells(alike[:2]) == [("net", 2, ("stage 0", "stage 1"))]


EDITS = [
    ("micro_batch: 3", "micro_batch: 900000000", "works on micro-batch 900000000, and not on all of those"),
    ('work: "F"', 'work: "Q"', "no work on a micro-batch is work: Q, chunk: 0, micro_batch: 0"),
    ("chunk: 0", "chunks: 0", "no work on a micro-batch is work: F, chunk: None, micro_batch: 0"),
    ("pipeline_stages : 2", "pipeline_stages : 3", "the header says stage 0 of 3, and rank 0 of 4"),
    ("stage : 0", "stage : 1", "the header says stage 1 of 2, and rank 0 of 4"),
    ("# scope", "# changed\n      # scope", ""),
]


@pytest.mark.parametrize(("old", "new", "message"), EDITS)
def test_programs_of_stages_that_were_changed_by_hand(
    old: str, new: str, message: str, stage_folder: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(stage_folder / "two", changed)
    (file,) = (changed / "rank_0").glob("*execute*.ir")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    if message:
        with pytest.raises(MspcError, match=message):
            diff_targets(str(stage_folder / "two"), str(changed), CompileOptions())
    else:
        assert diff_targets(str(stage_folder / "two"), str(changed), CompileOptions()) == 0
