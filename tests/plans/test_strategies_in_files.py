"""Strategy files: what a run and a compile write to them, and what a network that reads one becomes."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.plans.files.strategy_file import (
    ENTRY,
    ParameterCut,
    StrategyFile,
    layout_of,
    read_restore_ranks,
    read_strategies,
    write_groups,
    write_strategies,
)
from tests.commands.view.reading import QUIET
from tests.compiled_scripts import CompileOptions, compile_target, run_script
from tests.compiler.sharded_networks import check_equals_one_device, compiled, networks
from tests.errors import error_of
from tests.graphs import Layout, MspcError
from tests.texts import IMPORTS

SCRIPT = IMPORTS + """
from mindspore.communication import init
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.train import Model
import mindspore.dataset as ds

init()
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", dataset_strategy="full_batch", enable_parallel_optimizer=True,
    parallel_optimizer_config={"parallel_optimizer_threshold": 0}, device_num=8, CONTEXT
)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [16, 24]), "w")
        self.v = Parameter(initializer("normal", [24, 8]), "v")
        self.first, self.second = ops.MatMul(), ops.MatMul()
        if SHARDED:
            self.first.shard(((2, 1), (1, 2)))
            self.second.shard(((2, 2), (2, 1)))

    def construct(self, x):
        return self.second(ops.relu(self.first(x, self.w)), self.v)


rows = np.ones((8, 16), np.float32), np.ones((8, 8), np.float32)
data = ds.NumpySlicesDataset(rows, ["x", "y"], shuffle=False).batch(8)
net = Net()
cell = net
METHODS
Model(cell, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9)).train(1, data)
print({p.name: str(p.part()[0]) for p in (net.w, net.v)})
"""
CUTS = {"w": "(2, 2, 2) [0.2, 1]", "v": "(2, 2, 2) [1.0.2, -]"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def script(context: str, sharded: bool, methods: str = "") -> Path:
    text = SCRIPT.replace("CONTEXT", context).replace("SHARDED", str(sharded)).replace("METHODS", methods)
    Path("train.py").write_text(text)
    return Path("train.py")


def run(context: str, sharded: bool, methods: str = "") -> None:
    run_script(script(context, sharded, methods), 8, simulate=True, only_rank=0)


def test_what_is_written_and_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    run('strategy_ckpt_save_file="made/s.ckpt"', True)
    assert capsys.readouterr().out == f"{CUTS}\n"
    found = read_strategies(Path("made/s.ckpt"))
    assert dict(found.operators) == {"MatMul_w": ((2, 1), (1, 2)), "MatMul_v": ((2, 2), (2, 1))}
    assert {name: str(layout_of(name, sharding)) for name, sharding in found.parameters.items()} == CUTS
    assert found.parameters["w"] == ParameterCut((2, 2, 2), ((2,), (1,)), 1, 2)
    run('strategy_ckpt_load_file="made/s.ckpt"', False)
    assert capsys.readouterr().out == f"{CUTS}\n"
    run("", False)
    assert capsys.readouterr().out != f"{CUTS}\n"


def test_states_are_written_where_that_is_asked() -> None:
    run('strategy_ckpt_config={"save_file": "s.json", "only_trainable_params": False}', True)
    found = read_strategies(Path("s.json"))
    assert found.parameters["moments.w"] == found.parameters["w"]
    assert {"learning_rate", "momentum"} <= found.parameters.keys()


def test_what_a_file_cuts_is_said_to_be_the_files() -> None:
    write_strategies(Path("s.json"), StrategyFile({"MatMul_w": ((2, 1), (1, 4))}))
    options = CompileOptions(8, out=Path("out"), strategies=Path("s.json"), json=Path("t.json"), loudness=QUIET)
    compile_target(str(script("", False)), options)
    origins = {row["instance"]: row["origin"] for row in json.loads(Path("t.json").read_text())["operators"]}
    assert (origins["first"], origins["second"]) == ("the strategy file", "its neighbours")


def test_files_of_auto_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    """Strategies of parameters and of operators at once; operators are found by their cells."""
    setup = "cell = AutoParallel(net); cell.dataset_strategy('full_batch'); cell.hsdp(threshold=0); "
    run("", True, setup + "cell.save_param_strategy_file('p.ckpt'); cell.save_operator_strategy_file('o.json'); "
        "cell.disable_strategy_file_only_for_trainable_params()")  # fmt: skip
    assert capsys.readouterr().out == f"{CUTS}\n"
    assert "moments.v" in read_strategies(Path("p.ckpt")).parameters
    assert all(re.fullmatch(r"Default/\S*-op\d+", name) for name in read_strategies(Path("o.json")).operators)
    run("", False, setup + "cell.load_operator_strategy_file('o.json')")
    assert capsys.readouterr().out == f"{CUTS}\n"


def test_a_compile_writes_the_file() -> None:
    compile_target(str(script('strategy_ckpt_save_file="s.ckpt"', True)), CompileOptions(ranks=8))
    assert {n: str(layout_of(n, c)) for n, c in read_strategies(Path("s.ckpt")).parameters.items()} == CUTS


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ({"MatMul_x": ((1, 2), (2, 1))}, "the strategy file s.ckpt names no operator of this network"),
        ({"MatMul_w": ((2, 1, 1), (1, 2))}, "the strategy file s.ckpt shards it ((2, 1, 1), (1, 2)), its operands"),
        ({"MatMul_w": ((2, 1), (3, 2))}, "MatMul"),
    ],
)
def test_a_file_of_another_network_is_refused(operators: dict[str, tuple[tuple[int, ...], ...]], message: str) -> None:
    write_strategies(Path("s.ckpt"), StrategyFile(operators))
    assert message in error_of(run, 'strategy_ckpt_load_file="s.ckpt"', False).render()


def test_a_file_that_is_none_is_refused() -> None:
    Path("s.ckpt").write_bytes(b"no")
    with pytest.raises(MspcError, match=r"s\.ckpt is no strategy file"):
        run('strategy_ckpt_load_file="s.ckpt"', False)


NETWORKS = networks("stored_strategies")


SMALL = "optimizers of small operators, on sharded parameters"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_one_device(tmp_path: Path, name: str) -> None:
    check_equals_one_device(tmp_path, NETWORKS[name])


def test_optimizers_of_small_operators_work_on_the_slices_of_their_parameters(tmp_path: Path) -> None:
    """Their states lie as the parameter does, and a gradient is summed once, not once for each moment: of two sums that
    were rounded otherwise a quotient is far off where the gradient is small."""
    found = compiled(tmp_path, NETWORKS[SMALL])
    states = {"u": ("lamb.lamb_m.u", "lamb.lamb_v.u"), "v": ("ftrl.moments.v", "ftrl.linear.v"),
              "w": ("adagrad.accum.w",), "x": ("rms.mean_square.x", "rms.mean_grad.x", "rms.moment.x")}  # fmt: skip
    for name, of in states.items():
        layout = found.graph.parameter(name).layout
        assert [found.graph.parameter(state).layout for state in of] == [layout] * len(of)
    users = found.graph.users()
    gradients = [node for node in found.graph.nodes if "gradient_for" in node.attrs]
    partial = [node for node in gradients if isinstance(node.layout, Layout) and node.layout.is_partial]
    assert len(partial) >= 2
    assert [len(users[gradient]) for gradient in partial] == [1] * len(partial)


def test_a_plan_says_how_parameters_are_stored(tmp_path: Path) -> None:
    graph = compiled(tmp_path, NETWORKS["a cell whose parameters are sharded by a plan"]).graph
    layouts = [graph.parameter(name).layout for name in ("net.w", "net.b", "moments.net.w")]
    assert [layout.strategy for layout in layouts if isinstance(layout, Layout)] == [(1, 4), (4,), (1, 4)]


TWO_AXES = "products on a mesh of two axes"
REFUSED = [
    (TWO_AXES, '(plane("None", ("x", "y")), plane("x", "y"))', "((1, 8), (8, 1))",
     "MatMul: enable_nd_tp needs a Layout for each of its two tensors"),
    ("a norm over a dimension that is sharded", "((2, 4), (4,))", "((2, 4), (2,))",
     "RmsNorm: the last dimensions of input 0 are sharded (4,), but input 1 (2,)"),
    ("an out_strategy for every result", "((4, 2, 1), (4, 2, 1), (4, 2, 1))", "((4, 1, 1),) * 3",
     "LayerNorm 'norm': the out_strategy shards result 0 (4, 1, 1), but it is sharded (4, 2, 1)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "message"), REFUSED)
def test_what_does_not_fit_is_refused(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    assert old in NETWORKS[name]
    assert error_of(compiled, tmp_path, NETWORKS[name].replace(old, new, 1)).message == message


def test_products_on_a_mesh_of_two_axes_gather_and_scatter(tmp_path: Path) -> None:
    graph = compiled(tmp_path, NETWORKS["products on a mesh of two axes"]).graph
    nodes = [node.op.name for node in graph.nodes if node.phase == "forward"]
    sent = [name for name in nodes if name in ("AllGather", "AllReduce", "ReduceScatter")]
    assert sent[:3] == ["ReduceScatter", "AllGather", "ReduceScatter"]


def test_reshard_takes_a_layout(tmp_path: Path) -> None:
    text = NETWORKS["a tensor brought into another layout"].replace('layout("mp", "None")', "(2, 1)")
    assert "reshard takes the layout of a tensor, not (2, 1)" in str(error_of(compiled, tmp_path, text))


@pytest.mark.parametrize("value", ["False", "None"])
def test_enable_nd_tp_that_is_off_asks_for_nothing(tmp_path: Path, value: str) -> None:
    layouts = '(plane("None", ("x", "y")), plane("x", "y"))'
    text = NETWORKS["products on a mesh of two axes"].replace(layouts, "((8, 1), (1, 1))")
    asked = 'add_prim_attr("enable_nd_tp", True).shard'
    assert asked in text
    off = compiled(tmp_path, text.replace(asked, asked.replace("True", value)))
    forward = [node for node in off.graph.nodes if node.phase == "forward"]
    (product,) = [node for node in forward if node.instance == "first" and node.op.name == "MatMul"]
    assert product.in_strategy == ((8, 1), (1, 1))


TIMES = 1500
GIVEN = StrategyFile(
    {"MatMul_w": ((2, 4), (4, 1)), "Add_b": ((1, 3), (3,)), "Default/network-Net/ReLU-op0": ((8, 1),)},
    {f"layer{i}.w": ParameterCut((2, 2, 2), ((2, 0), (1,)), i, 2 - i) for i in range(3)},
)
GROUPS = {"4-123": (0, 1, 2, 3), "2-77": (0, 4)}


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """The bytes with some of them, side by side, others; with some lost; or truncated."""
    kind, at, size = rng.randrange(4), rng.randrange(len(whole)), rng.randrange(1, 9)
    if kind == 0:
        return whole[:at]
    if kind == 1:
        return whole[:at] + whole[at + size :]
    if kind == 2:
        return whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]
    return whole[:at] + rng.randbytes(size) + whole[at + size :]


def _write(path: Path) -> None:
    write_strategies(path, GIVEN)


@pytest.mark.parametrize(
    ("name", "write", "read"),
    [
        ("s.ckpt", _write, read_strategies), ("s.json", _write, read_strategies),
        ("g.pb", lambda path: write_groups(path, GROUPS, (0, 4)), read_restore_ranks),
    ],
    ids=["message", "JSON", "groups"],
)  # fmt: skip
def test_damage_is_an_error_or_no_matter(
    name: str, write: Callable[[Path], None], read: Callable[[Path], Any], tmp_path: Path
) -> None:
    path = tmp_path / name
    write(path)
    whole, given, rng = path.read_bytes(), read(path), random.Random(26)
    noticed = 0
    for _ in range(TIMES):
        data = damaged(whole, rng)
        path.write_bytes(data)
        try:
            found = read(path)
        except MspcError as error:
            noticed += str(path) in error.message
            continue
        assert found == given, data
    assert noticed > TIMES * 0.9


def test_a_message_that_ends_between_two_entries_is_noticed(tmp_path: Path) -> None:
    """It is a complete one of fewer entries, for those who look at nothing else."""
    path = tmp_path / "s.ckpt"
    write_strategies(path, GIVEN)
    whole = path.read_bytes()
    shorter = whole[: whole.rindex(b"\n\x08layer2.w") - 2]
    path.write_bytes(shorter)
    with pytest.raises(MspcError, match="is no strategy file: it is damaged: its bytes are not those"):
        read_strategies(path)
    path.write_bytes(shorter[7:])  # as MindSpore would have it, without a checksum
    assert list(read_strategies(path).parameters) == ["layer0.w", "layer1.w"]


def test_an_edited_file_is_taken_without_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    write_strategies(path, GIVEN)
    edited = path.read_text().replace("MatMul_w", "MatMul_v")
    path.write_text(edited)
    with pytest.raises(MspcError, match=f"it is damaged; if it was edited by hand, take the entry '{ENTRY}' out"):
        read_strategies(path)
    path.write_text("".join(line for line in edited.splitlines(keepends=True) if ENTRY not in line))
    assert "MatMul_v" in read_strategies(path).operators
    write_strategies(path, GIVEN)
    path.write_text(path.read_text().replace("\n", " "))
    assert read_strategies(path) == GIVEN
