"""`mspc verify`: equal programs pass, a program that differs is named with its first operator."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.verify import verify_dumps, verify_scale, verify_target
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.runtime.comm.local import LocalComm, World
from mspc.verify.judged_collectives import asked, expected
from mspc.verify.scale.foreign_dumps import number_of_ranks, tiles
from tests.compiled_scripts import CompileOptions, verify_text
from tests.errors import error_of, failure_of
from tests.operators import AllReduce, Tile
from tests.planted_errors import THROUGH_MPI, verified_through_mpi
from tests.planted_networks import PARALLEL
from tests.serving import HANG, invoke, serve

SCRIPT = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Parameter, Tensor
from mindspore.common.initializer import initializer
ms.set_auto_parallel_context(parallel_mode="{mode}", device_num=4{more})
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [8, 4]), "w")
        self.matmul = ops.MatMul(){shard}
    def construct(self, x):
        return self.matmul(x, self.w)
net = Net()
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9))
step(Tensor(np.ones([2, 8]), ms.float32), Tensor(np.ones([2, 4]), ms.float32))
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(mode: str, shard: str = "", more: str = "") -> str:
        path = tmp_path / "train.py"
        path.write_text(SCRIPT.format(mode=mode, shard=shard, more=more))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("mode", "shard", "more", "compared"),
    [
        ("semi_auto_parallel", ".shard(((2, 2), (2, 1)))", "", {"output", "gradient", "parameter"}),
        ("auto_parallel", ".shard(((1, 4), (4, 1)))", ", full_batch=True", {"output", "gradient", "parameter"}),
        ("data_parallel", "", ", gradients_mean=True", {"output", "parameter", "global output", "global parameter"}),
        ("data_parallel", "", "", {"output", "global output", "global parameter"}),
    ],
)
def test_equal_programs_pass(
    script: Callable[..., str], tmp_path: Path, mode: str, shard: str, more: str, compared: set[str]
) -> None:
    file = tmp_path / "rows.json"
    verify_target(script(mode, shard, more), CompileOptions(json=file), seed=3)
    rows = json.loads(file.read_text())["values"]
    assert {row["kind"] for row in rows} == compared
    assert all(row["same"] for row in rows)


def test_a_wrong_reduction_is_found_with_its_operator(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(self: AllReduce, be: Any) -> Callable[..., Any]:
        return lambda *arrays: arrays[0] if len(arrays) == 1 else arrays

    monkeypatch.setattr(AllReduce, "kernel", wrong)
    target = script("semi_auto_parallel", ".shard(((1, 4), (4, 1)), ((1, 1),))", ", full_batch=True")
    error = failure_of(verify_target, target, CompileOptions(), seed=0)
    assert error.exit_status == 1
    assert " values differ between one device and 4 ranks" in str(error)
    assert "the first operator that differs is " in str(error)
    assert "differs" in capsys.readouterr().out


OWN_ROWS = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Parameter, Tensor
ms.set_auto_parallel_context(parallel_mode="data_parallel", device_num=4{more})
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones([8, 4]), ms.float32), "w")
        self.tile = ops.Tile()
        self.sum = ops.ReduceSum()
    def construct(self, x):
        return {result}
class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def construct(self, x):
        return ops.reduce_sum(self.net(x))
net = Net()
step = {step}
step(Tensor(np.ones([2, 8]), ms.float32))
"""
TRAINED = "nn.TrainOneStepCell(Loss(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))"
RESULTS = ("self.tile(x, (3, 2))", "ops.matmul(x[:, :4], self.w[:4])", "self.sum(x[:, 0:1])", "(x, self.w, x[1])")


@pytest.fixture
def own_rows(tmp_path: Path) -> Callable[..., str]:
    def write(result: str, step: str = "net", more: str = "") -> str:
        path = tmp_path / "train.py"
        path.write_text(OWN_ROWS.format(result=result, step=step, more=more))
        return str(path)

    return write


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_results_of_the_own_rows_agree(own_rows: Callable[..., str], result: str, ranks: int) -> None:
    verify_target(own_rows(result), CompileOptions(ranks=ranks), seed=1)


@pytest.mark.parametrize("more", ["", ", gradients_mean=True"])
@pytest.mark.parametrize("result", ["self.tile(ops.matmul(x, self.w), (2, 1))", "ops.matmul(x[:1], self.w)"])
def test_training_on_own_rows_agrees(own_rows: Callable[..., str], result: str, more: str) -> None:
    verify_target(own_rows(result, TRAINED, more), CompileOptions(), seed=1)


@pytest.mark.parametrize(
    ("multiples", "result"), [((1, 2), "self.tile(x, (2, 2))"), ((2, 2), "self.sum(self.tile(x, (1, 1)))")]
)
def test_an_operator_that_is_wrong_on_a_rank_is_found(
    own_rows: Callable[..., str], monkeypatch: pytest.MonkeyPatch, multiples: tuple[int, ...], result: str
) -> None:
    monkeypatch.setattr(Tile, "localize", lambda self, placement: Tile(multiples=multiples))
    with pytest.raises(ExecutionError, match=r"^[^\n]*values differ between one device and 4 ranks") as raised:
        verify_target(own_rows(result), CompileOptions(), seed=0)
    assert "the first operator that differs is Tile 'tile'" in str(raised.value)


def test_a_wrong_slice_of_a_sharded_operator_is_a_difference(
    own_rows: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tile, "localize", lambda self, placement: Tile(multiples=(2, 2)))
    target = Path(own_rows("self.tile(x, (1, 2))"))
    target.write_text(target.read_text().replace("data_parallel", "semi_auto_parallel"))
    with pytest.raises(ExecutionError, match="values differ between one device and 4 ranks"):
        verify_target(str(target), CompileOptions(), seed=0)


def test_a_kernel_that_fails_on_a_rank_is_named(own_rows: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tile, "localize", lambda self, placement: Tile(multiples=(1, 3)))
    with pytest.raises(ExecutionError, match="Add failed on rank 0: ValueError") as raised:
        verify_target(own_rows("self.tile(x, (1, 2)) + ops.concat((x, x), 1)"), CompileOptions(), 0)
    assert raised.value.exit_status == 1


@pytest.mark.parametrize("more", ["", ", gradients_mean=True"])
def test_gradients_that_are_not_combined_are_found(
    own_rows: Callable[..., str], monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    monkeypatch.setattr(AllReduce, "bind", lambda self, comm: lambda *a: a[0] if len(a) == 1 else a)
    with pytest.raises(ExecutionError, match="values differ between one device and 4 ranks"):
        verify_target(own_rows("ops.matmul(x, self.w)", TRAINED, more), CompileOptions(), seed=0)


VIEWS = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Tensor, Parameter
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones([8, 4]), ms.float32), "w")
    def construct(self, x):
        view = {view}
        ops.assign_add(self.w, x)
        return view, self.w
Net()(Tensor(np.ones((8, 4)), ms.float32))
"""


@pytest.mark.parametrize(
    "view", ["self.w.reshape((4, 8))", "ops.transpose(self.w, (1, 0))", "self.w[2:6]", "ops.expand_dims(self.w, 0)"]
)
def test_a_view_is_read_before_the_parameter_is_updated(tmp_path: Path, view: str) -> None:
    verify_text(tmp_path, VIEWS.format(view=view), CompileOptions(ranks=4), seed=0)


def test_ranks_with_graphs_of_their_own_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(
        "import mindspore as ms, numpy as np\nfrom mindspore import nn, Tensor\n"
        "from mindspore.communication import get_rank, init\ninit()\n"
        "class Net(nn.Cell):\n    def construct(self, x):\n        return x * float(get_rank() + 1)\n"
        "Net()(Tensor(np.ones((4, 2)), ms.float32))\n"
    )
    verify_target(str(script), CompileOptions(ranks=1), seed=0)
    assert str(error_of(verify_target, str(script), CompileOptions(ranks=2), seed=0)) == (
        "error: the network depends on get_rank(): the ranks run different graphs, so there is no step of one device "
        "to compare with\n  note: mspc run --simulate runs it on ranks of this process"
    )


def test_the_last_line_is_the_verdict(script: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    verify_target(script("semi_auto_parallel", ".shard(((2, 2), (2, 1)))"), CompileOptions(), seed=3)
    said = capsys.readouterr()
    assert said.err == ""
    assert re.fullmatch(
        r"equal: \d+ values on 4 ranks within 1e-05 of one device(; the worst is \w+ [\w.]+, by \d\.\de-\d\d)?",
        said.out.splitlines()[-1],
    )


def test_a_difference_is_the_verdict(
    own_rows: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Tile, "localize", lambda self, placement: Tile(multiples=(1, 2)))
    with pytest.raises(ExecutionError):
        verify_target(own_rows("self.tile(x, (2, 2))"), CompileOptions(), seed=0)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "differs: 2 of 2 values on 4 ranks; the worst is output 0, in shape or in finite elements "
        "where 1e-05 is allowed; they part at "
        "Tile 'tile', train.py:12"
    )


def test_json_stands_alone_on_stdout(script: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    verify_target(script("semi_auto_parallel"), CompileOptions(json=Path("-")), seed=3)
    assert {row["same"] for row in json.loads(capsys.readouterr().out)["values"]} == {True}


INTEGERS = """
import mindspore as ms
from mindspore import nn, ops
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.classes = nn.Dense(8, 5)
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True)
    def construct(self, ids, labels, mask, shifted, other):
        rows = self.table(ids.reshape((-1,))) + self.table(shifted + 1)
        return self.loss(self.classes(rows), labels), mask, other
"""


def test_integers_lie_where_the_network_has_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(INTEGERS)
    types = ("int32[2,4]", "int64[8]", "bool[8]", "int32[8]", "int32[8]")
    verify_target(f"{tmp_path}/net.py:Net", CompileOptions(ranks=4, inputs=types), seed=0)
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("input ")] == [
        "input ids: integers in [0, 16), positions of rows",
        "input labels: integers in [0, 5), positions of rows",
        "input mask: True or False",
        "input shifted: integers in [0, 8)",
        "input other: integers in [0, 8)",
    ]


def test_pytorch_is_asked_for_where_it_is_missing(script: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    error = error_of(verify_target, script("stand_alone", "", ""), CompileOptions(), seed=0, with_torch=True)
    assert error.exit_status == 2
    assert error.message == "verify --against torch needs PyTorch, which is not installed"
    assert list(error.notes) == ["pip install 'mspc[oracle]'"]


def test_another_judge_is_no_choice() -> None:
    done = invoke("verify", "net.py", "--against", "numpy", status=2)
    assert "torch" in done.output


BRANCHES = """
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((8, 8)), ms.float32), name="w")
        self.mm = ops.MatMul().shard(((2, 1), (1, 2)))
        self.n = Parameter(Tensor(TURNS, ms.int32), name="n", requires_grad=False)

    def construct(self, x):
        y = self.mm(x, self.w)
        if x.sum() > 1e9:
            y = ops.tanh(y)
        i = ops.zeros((), ms.int32)
        while i < self.n:
            if i < 2:
                y = y * 0.5
            else:
                y = ops.sin(y)
            i = i + 1
        return ops.mean(ops.square(y))


net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
step(Tensor(np.ones((4, 8)), ms.float32))
"""


FIRST = "the branch of If at net.py:18 for which its condition is true"


@pytest.mark.parametrize("judge", [verify_target, verify_scale])
@pytest.mark.parametrize(
    ("mode", "turns", "untaken"),
    [
        ('"semi_auto_parallel", dataset_strategy="full_batch"', 3, [FIRST]),
        ('"data_parallel"', 2, [FIRST, "the branch of If at net.py:22 for which its condition is false"]),
        ('"semi_auto_parallel", dataset_strategy="full_batch"', 0, [FIRST, "the loop at net.py:21"]),
    ],
    ids=["sharded", "rows", "no turn"],
)
def test_branches_and_loops_that_no_step_takes_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], judge: Callable[..., None], mode: str, turns: int,
    untaken: list[str],
) -> None:  # fmt: skip
    path = tmp_path / "net.py"
    text = BRANCHES.replace("TURNS", str(turns))
    path.write_text(text.replace('"semi_auto_parallel", dataset_strategy="full_batch"', mode))
    judge(str(path), CompileOptions(4), 0)
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not compared, as no step")]
    assert found == [f"not compared, as no step takes it: {each}" for each in untaken]


HEAD = """# IR entry: @net
# Total subgraphs: 1

# Total params: 2
# Params:
%para1_x: <Tensor[Float32], (4, 8)>
%para2_w: <Ref[Tensor[Float32]], (8, 2), ref_key=w, is_parameter>  :  has_default

subgraph instance: net : 0x1
subgraph @net() {
"""
NODES = """  %0(a) = AllGather(%para1_x) {instance name: gather} primitive_attrs: {group: "2-77", rank_list: RANKS, rank_size: I64(2)}
      : (<Tensor[Float32], (4, 8)>) -> (<Tensor[Float32], (8, 8)>)
  %1(b) = PrimFunc_MatMul(%0, %para2_w, Bool(0), Bool(0)) {instance name: product} primitive_attrs: {in_strategy: ((1, 1), (1, 4))} cnode_primal_attrs: {origin_input_shapes: ((8, 8), (8, 8))} {in_strategy: ((1, 1), (1, 4))}
      : (<Tensor[Float32], (8, 8)>, <Ref[Tensor[Float32]], (8, 2), ref_key=w, is_parameter>, <Bool, NoShape>, <Bool, NoShape>) -> (<Tensor[Float32], (8, 2)>)
  Return(%1)
      : (<Tensor[Float32], (8, 2)>)
}
"""  # noqa: E501  # as MindSpore writes it


def written(folder: Path, old: str = "", new: str = "", ranks: int = 4) -> Path:
    """A folder of every rank's dump, with one change in that of rank 1."""
    for rank in range(ranks):
        text = HEAD + NODES.replace("RANKS", "(0, 1)" if rank < 2 else "(2, 3)")
        text = text.replace("2-77", "2-77" if rank < 2 else "2-78")
        if rank == 1 and old:
            assert old in text
            text = text.replace(old, new)
        path = folder / f"rank_{rank}" / "net.execute.ir"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return folder


def test_dumps_that_fit(tmp_path: Path) -> None:
    verify_dumps(written(tmp_path / "out"), tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["fits"], found["files"]) == (True, 4)
    assert found["checked"]["orders"] == 2
    assert found["checked"]["operators with slices by their strategies"] == 4
    assert any("values" in each for each in found["unsaid"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("(8, 8)>)\n", "(16, 8)>)\n", r"a group of 2 gathers \(4, 8\) and \(16, 8\)"),
        ("rank_list: (0, 1)", "rank_list: (2, 3)", "rank 1 is none of 2, 3"),
        ("rank_list: (0, 1)", "rank_list: (1, 1)", "names a rank twice"),
        ("rank_size: I64(2)", "rank_size: I64(4)", "is of 2 ranks, and the node says 4"),
        ("AllGather", "ReduceScatter", "a group of 2 scatters"),
        ("strategy: ((1, 1), (1, 4))", "strategy: ((1, 1), (1, 2))", r"operand 1 is \(8, 2\), and strategy \(1, 2\)"),
    ],
)  # fmt: skip
def test_dumps_that_do_not_fit(tmp_path: Path, old: str, new: str, said: str) -> None:
    error = failure_of(verify_dumps, written(tmp_path, old, new), None)
    assert re.search(said, "\n".join([error.message, *error.notes]))


def test_orders_that_do_not_meet(tmp_path: Path) -> None:
    again = NODES.splitlines()[:2]
    more = "\n".join([again[0].replace("%0(a)", "%2(c)").replace("RANKS", "(0, 1)"), again[1], "  Return"])
    with pytest.raises(ExecutionError, match="rank 0 calls nothing where rank 1 calls AllGather"):
        verify_dumps(written(tmp_path, "  Return", more), None)


def test_a_folder_of_other_graphs(tmp_path: Path) -> None:
    (tmp_path / "net.ir").write_text("#IR entry      : @net\n#Total subgraph: 1\n\nsubgraph @net() {\n}\n")
    with pytest.raises(MspcError):
        verify_dumps(tmp_path, None)


def test_groups_that_divide_ranks() -> None:
    assert tiles((0, 4), 8)
    assert not tiles((0, 4), 6)
    assert number_of_ranks([(0, 1, 2, 3), (0, 4)]) == 8


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_every_collective_of_a_communicator_is_numpys(ranks: int) -> None:
    found = World(ranks).run(asked)
    for rank, arrays in enumerate(found):
        wanted = expected(rank, ranks)
        assert len(arrays) == len(wanted) >= 100
        for array, (label, right) in zip(arrays, wanted, strict=True):
            assert array.dtype == right.dtype, label
            np.testing.assert_array_equal(array.astype(np.float64), right.astype(np.float64), label)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "exchange"])
def test_a_collective_that_keeps_its_own_part_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right: Any = getattr(LocalComm, name)

    def wrong(self: LocalComm, *args: Any, **named: Any) -> Any:
        found = right(self, *args, **named)
        if name == "exchange":
            return [np.array(array) for _, array in args[0]]
        own = np.asarray(args[0])
        return np.array(own) if own.shape == found.shape else np.flip(found)

    monkeypatch.setattr(LocalComm, name, wrong)
    found = World(2).run(asked)
    labels = [label for label, _ in expected(1, 2)]
    apart = [
        label for label, array, (_, wanted) in zip(labels, found[1], expected(1, 2), strict=True)
        if not np.array_equal(array.astype(np.float64), wanted.astype(np.float64))
    ]  # fmt: skip
    assert apart
    assert all(label.startswith(name) for label in apart)


def test_what_is_right_and_what_is_wrong_under_mpirun(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(PARALLEL)
    run = serve("verify", "net.py", "--ranks", "2", "--mpi", "--quiet", cwd=tmp_path, status=0)
    assert run.stderr == ""
    assert run.stdout.startswith("equal: ")
    run = verified_through_mpi(THROUGH_MPI[0], HANG)
    assert run.returncode == 1, run.stdout + run.stderr
    assert run.stdout.startswith("differs: ")
    assert "Traceback" not in run.stderr


def test_one_judge_at_a_time(tmp_path: Any) -> None:
    (tmp_path / "net.py").write_text("")
    done = invoke("verify", str(tmp_path / "net.py"), "--mpi", "--against", "torch")
    assert isinstance(done.exception, SystemExit | Exception)
    assert "--against torch judges one device, and --mpi runs ranks" in str(done.exception) + done.output
