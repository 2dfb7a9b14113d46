"""`mspc verify` of what `mspc compile` wrote, as it is and edited by hand."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ops.random import words as random_rows
from mspc.passes.communication import reduce_gradients
from mspc.passes.communication.share_statistics import ShareStatistics
from mspc.passes.sharding.draw_rows import DrawRows
from tests.compiled_scripts import QUIET, CompileOptions, Loudness, compile_target, verify_target, verify_text
from tests.errors import error_of, failure_of
from tests.texts import IMPORTS

SCRIPT = IMPORTS + """
from mindspore.communication import get_rank, init
ms.set_auto_parallel_context(parallel_mode="{mode}"{more})
ms.set_seed(1)
init()
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [8, 4]), "w")
        self.b = Parameter(Tensor(np.arange(4), ms.float32), "b")
        self.matmul = ops.MatMul(){shard}
    def construct(self, x):
        return ops.tanh(self.matmul(x, self.w) + self.b) * {factor}
net = Net()
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.1))
step(Tensor(np.ones([4, 8]), ms.float32), Tensor(np.ones([4, 4]), ms.float32))
"""
SHARDED = {"mode": "semi_auto_parallel", "more": ', dataset_strategy="full_batch"', "shard": ".shard(((2, 2), (2, 1)))"}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def compiled(
        mode: str = "stand_alone", more: str = "", shard: str = "", factor: str = "1.0", **options: int
    ) -> Path:
        (tmp_path / "train.py").write_text(SCRIPT.format(mode=mode, more=more, shard=shard, factor=factor))
        made = CompileOptions(ranks=4, out=tmp_path / "out", loudness=QUIET, **options)  # type: ignore[arg-type]
        compile_target(str(tmp_path / "train.py"), made)
        return tmp_path / "out"

    return compiled


def verify(folder: Path, **options: object) -> None:
    verify_target(str(folder), CompileOptions(loudness=QUIET, **options), seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "how",
    [SHARDED, {"mode": "data_parallel"}, {"mode": "data_parallel", "more": ", gradients_mean=True"},
     {"mode": "auto_parallel"}, {"mode": "stand_alone"}],
    ids=lambda how: "-".join(how.values()),
)  # fmt: skip
def test_what_was_compiled_is_equal(
    folder: Callable[..., Path], how: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    verify(folder(**how))
    said = capsys.readouterr()
    assert said.err == ""
    if how.get("mode") != "data_parallel":
        assert said.out.startswith("equal: ")
        return
    assert said.out.startswith("not compared with one device on the global batch: the folder holds the network of a ")
    assert "\neach rank's own rows alone, not the global batch: " in said.out


def edit(folder: Path, rank: int, old: str, new: str) -> str:
    name = json.loads((folder / "program.json").read_text())["execute"][str(rank)]
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    return name


@pytest.mark.parametrize("ranks", [range(4), range(1, 2)])
def test_what_was_edited_is_compared_and_named(
    folder: Callable[..., Path], ranks: range, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder(**SHARDED, factor="1.5")
    names = [edit(out, rank, "1.5", "1.25") for rank in ranks]
    with pytest.raises(ExecutionError, match="values differ between one device and 4 ranks") as raised:
        verify(out)
    assert raised.value.exit_status == 1
    assert raised.value.notes[-1] == f"edited since the compile: {', '.join(names)}"
    said = capsys.readouterr()
    assert said.err.splitlines() == [f"warning: {out / n} has been edited since it was compiled" for n in names]
    assert said.out.startswith("differs: ")


def test_an_edit_that_changes_no_number_is_equal(
    folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder(**SHARDED)
    name = edit(out, 2, "subgraph @", "# a remark\nsubgraph @")
    verify(out)
    said = capsys.readouterr()
    assert said.err == f"warning: {out / name} has been edited since it was compiled\n"
    assert said.out.startswith("equal: ")


@pytest.mark.parametrize(
    ("compiled", "options", "message"),
    [
        (SHARDED, {"ranks": 2}, "{out} was compiled for 4 ranks, not for 2"),
        (SHARDED, {"inputs": ("float32[4]",)}, "{out} is a folder, so a compiled program"),
        (SHARDED | {"only_ranks": (1,)}, {}, "{out} holds no graph for rank 0 of 4"),
        ({"factor": "float(get_rank() + 1)"}, {},
         "{out}/program.json does not say what one device computes, so there is nothing to compare with"),
        ({"mode": "hybrid_parallel"}, {},
         "{out}/program.json does not say what one device computes, so there is nothing to compare with"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(
    folder: Callable[..., Path], compiled: dict[str, str], options: dict[str, object], message: str
) -> None:
    out = folder(**compiled)
    error = error_of(verify, out, **options)
    assert error.message == message.format(out=out)
    assert error.exit_status == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"network": 3}, "{out}/program.json is damaged: network is 3, not a text"),
        ({"inputs": [{"name": "x"}]}, "{out}/program.json is damaged: x: 'dtype'"),
    ],
)
def test_a_damaged_program_is_refused(folder: Callable[..., Path], damage: dict[str, object], message: str) -> None:
    out = folder(**SHARDED)
    program = json.loads((out / "program.json").read_text())
    (out / "program.json").write_text(json.dumps(program | damage))
    assert error_of(verify, out).message == message.format(out=out)


@pytest.mark.parametrize(
    ("key", "entries", "message"),
    [
        ("inputs", lambda found: found[:1], "inputs: 1, in its network 2"),
        ("outputs", lambda found: [found[0] | {"dtype": "Int32"}],
         "outputs[0] is a <Tensor[Int32], ()>, in its network a <Tensor[Float32], ()>"),
        ("parameters", lambda found: found[1:], "its parameters lack 'w', which its network has"),
        ("parameters", lambda found: [found[0] | {"shape": [4, 8]}, *found[1:]],
         "parameter 'w' is a <Tensor[Float32], (4, 8)>, in its network a <Tensor[Float32], (8, 4)>"),
        ("parameters", lambda found: [found[0] | {"shape": [float("inf"), 4]}, *found[1:]], "w: its shape is [inf, 4]"),
        ("parameters", lambda found: [found[0] | {"shape": [8.5, 4]}, *found[1:]], "w: its shape is [8.5, 4]"),
    ],
)  # fmt: skip
def test_a_program_that_is_not_its_networks_is_refused(
    folder: Callable[..., Path], key: str, entries: Callable[[Any], Any], message: str
) -> None:
    out = folder(**SHARDED)
    program = json.loads((out / "program.json").read_text())
    (out / "program.json").write_text(json.dumps(program | {key: entries(program[key])}))
    assert error_of(verify, out).message == f"{out}/program.json is damaged: {message}"


def test_an_empty_folder_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match=r"holds no compiled program: program\.json is missing"):
        verify(tmp_path)


LAYERS = IMPORTS + """
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
ms.set_seed(1)
class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Dense(8, 16), nn.Dense(16, 8)
        self.up.matmul.shard(((1, 1), (2, 1)))
        self.down.matmul.shard(((1, 2), (1, 2)))
    def construct(self, x):
        return x + self.down(ops.gelu(self.up(x)))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(4)])
    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
net = Net()
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.1))
step(Tensor(np.ones([4, 8]), ms.float32), Tensor(np.ones([4, 8]), ms.float32))
"""


def value_and_readers(text: str, line: str) -> set[str]:
    """The value of a line of a dump, and the values of the nodes that read it."""
    name = line.split("(")[0].split()[0]
    reads = re.compile(re.escape(name) + r"[,)]")
    lines = (each for each in text.splitlines() if " = " in each)
    return {name, *(each.split("(")[0].split()[0] for each in lines if reads.search(each))}


@pytest.mark.parametrize(
    ("operator", "old", "new", "number"),
    [
        ("AllReduce", 'op: "sum"', 'op: "max"', 2), ("AllReduce", 'op: "sum"', 'op: "max"', 5),
        ("FusedElementwise", "value=0.5", "value=0.25", 2),
    ],
)  # fmt: skip
def test_the_first_wrong_value_of_an_edited_folder_is_named(
    tmp_path: Path, operator: str, old: str, new: str, number: int
) -> None:
    (tmp_path / "net.py").write_text(LAYERS)
    compile_target(str(tmp_path / "net.py"), CompileOptions(ranks=2, out=tmp_path / "out", loudness=QUIET))
    fine: set[str] = set()
    for name in json.loads((tmp_path / "out/program.json").read_text())["execute"].values():
        path = tmp_path / "out" / name
        text = path.read_text()
        line = [each for each in text.splitlines() if f" = {operator}(" in each and old in each][number]
        path.write_text(text.replace(line, line.replace(old, new)))
        fine = value_and_readers(text, line)
    said = "\n".join(failure_of(verify, tmp_path / "out").notes)
    assert (found := re.search(r"it is in rank_0/\S+\.ir:\d+, (%\d+)", said)) is not None, said
    assert found[1] in fine


BATCH_SCRIPT = IMPORTS + '''
ms.communication.init()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean={mean})
ms.set_seed(1)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Dense(8, 6), {norm}, nn.Dense(6, 4)
        self.drop = nn.Dropout(p=0.5)

    def construct(self, x):
        return self.last(self.drop(ops.relu(self.norm(self.first(x)))))


class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, y):
        wrong = (self.net(x) - y) ** 2
        return {loss}


net = Net()
net.set_train()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
step = {step}
step(Tensor(np.ones((4, 8)), ms.float32), Tensor(np.ones((4, 4)), ms.float32))
'''
STEP = "nn.TrainOneStepCell(Loss(net), optimizer)"


@pytest.fixture
def batch_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(ranks: int = 2, quiet: bool = False, **how: Any) -> str:
        values = {"mean": True, "norm": "nn.BatchNorm1d(6)", "loss": "wrong.mean()", "step": STEP} | how
        script = tmp_path / "net.py"
        script.write_text(BATCH_SCRIPT.format(**values))
        verify_target(str(script), CompileOptions(ranks=ranks, loudness=Loudness(quiet=quiet), all_rows=True), seed=0)
        return capsys.readouterr().out

    return run


GIVEN = ", as one device was given them"


@pytest.mark.parametrize(
    ("mean", "loss", "output", "times"),
    [
        (True, "wrong.mean()", "the mean of", ""),
        (False, "wrong.mean()", "the mean of", f" times 2{GIVEN}"),
        (True, "wrong.sum()", "the sum of", f" times 0.5{GIVEN}"),
        (False, "wrong.sum()", "the sum of", ""),
        (False, "wrong.sum() / x.shape[0]", "the mean of", f" times 2{GIVEN}"),
        (True, "wrong.mean() + self.net.last.weight.sum() * 0.1", "the mean of", ""),
    ],
)
def test_sums_and_means_are_those_of_the_global_batch(
    batch_verify: Callable[..., str], mean: bool, loss: str, output: str, times: str
) -> None:
    said = batch_verify(mean=mean, loss=loss)
    assert f"output 0 of one device on the global batch is {output} the ranks'\n" in said
    assert f"updates read the gradients of one device on the global batch{times}\n" in said
    verdict = said.splitlines()[-1]
    assert verdict.startswith("equal: ")
    assert "of one device with the global batch" in verdict
    assert "global parameter  net.first.weight" in said


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"loss": "ops.sqrt(wrong.mean())"}, "is neither the sum nor the mean of those of the ranks' rows"),
        ({"loss": "wrong.sum() + self.net.last.weight.sum()", "mean": False},
         "the gradient of net.last.weight of the global batch is neither the sum nor the mean"),
        ({"loss": "wrong.reshape(4, 4).mean()"}, "the network does not take it: "),
        ({"norm": "nn.SyncBatchNorm(6, process_groups=[[0], [1]])"},
         "the first of its values that has no such tie is"),
        ({"loss": "ops.matmul(wrong, ops.AllGather()(wrong).T).mean()"},
         "AllGather is of the script, and one device has nothing like it"),
    ],
    ids=["root", "sum with decay", "fixed size", "own statistics", "gathered rows"],
)  # fmt: skip
def test_what_cannot_be_compared_is_not_called_equal(
    batch_verify: Callable[..., str], how: dict[str, Any], why: str
) -> None:
    said = batch_verify(quiet=True, **how)
    assert said.startswith("not compared with one device on the global batch: ")
    assert why in said
    verdict = said.splitlines()[-1]
    assert verdict.startswith("each rank's own rows alone, not the global batch: ")


def wrong_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DrawRows, "run", lambda self, graph: False)


def wrong_place(monkeypatch: pytest.MonkeyPatch) -> None:
    right = random_rows.place_of_rows
    monkeypatch.setattr(
        "mspc.ops.random.dropout.place_of_rows", lambda shape, rows, rank, ranks: right(shape, rows, 1 - rank, ranks)
    )


def lost_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    right = reduce_gradients.summed_gradients

    def lost(graph: Any) -> Any:
        return {node for node in right(graph) if node.attrs["gradient_for"] != "net.last.bias"}

    for module in ("mspc.passes.communication.reduce_gradients", "mspc.verify.one_device", "mspc.verify.global_batch"):
        monkeypatch.setattr(f"{module}.summed_gradients", lost)


def own_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShareStatistics, "run", lambda self, graph: False)


@pytest.mark.parametrize("plant", [wrong_draws, wrong_place, lost_gradient, own_statistics])
def test_an_error_that_all_ranks_share_is_found(
    batch_verify: Callable[..., str], monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(ExecutionError, match="values differ between one device and 2 ranks"):
        batch_verify(quiet=True)


REDUCED = '''nn.Cell()


class Own(nn.Cell):
    def __init__(self):
        super().__init__()
        self.loss, self.grad = Loss(net), ops.value_and_grad(Loss(net), None, optimizer.parameters)
        self.reduce = REDUCE
        self.optimizer = optimizer

    def construct(self, x, y):
        loss, grads = self.grad(x, y)
        self.optimizer(self.reduce(grads))
        return loss


step = Own()'''


@pytest.mark.parametrize(
    ("mean", "loss"), [(True, "wrong.mean()"), (False, "wrong.mean()"), (True, "wrong.sum()"), (False, "wrong.sum()")]
)
def test_reductions_of_the_script_count(batch_verify: Callable[..., str], mean: bool, loss: str) -> None:
    reducer = f"nn.DistributedGradReducer(optimizer.parameters, {mean}, 2)"
    said = batch_verify(loss=loss, mean=False, step=REDUCED.replace("REDUCE", reducer))
    assert said.splitlines()[-1].startswith("equal: ")
    assert "global parameter  loss.net.first.weight" in said


ATTENTION = IMPORTS + '''
ms.set_context(device_target="GPU")
ms.communication.init()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
ms.set_seed(1)


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.projected, self.drop = nn.Dense(8, 24), nn.Dropout(p={rate})

    def construct(self, x):
        q, k, v = (y.{split} for y in ops.split(self.projected(x), 8, axis=2))
        weights = ops.softmax(ops.matmul(q, k.swapaxes(-1, -2)) / 2.0, axis=-1)
        return (ops.matmul(self.drop(weights), v).{merged} ** 2).mean()


net = Attention()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1)).set_train()
step(Tensor(np.ones((2, 6, 8)), ms.float32))
'''
HEADS = {"split": "reshape(-1, 6, 2, 4).transpose(0, 2, 1, 3)", "merged": "transpose(0, 2, 1, 3)"}


PLAIN = {"split": "reshape(-1, 6, 8)", "merged": "reshape(-1, 6, 8)"}


@pytest.mark.parametrize("form", [{"rate": 0.0, **HEADS}, {"rate": 0.3, **HEADS}, {"rate": 0.3, **PLAIN}])
def test_attention_that_a_pass_has_joined(
    form: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One operator drops the elements that the ranks' operators drop of the global batch."""
    verify_text(tmp_path, ATTENTION.format(**form), CompileOptions(ranks=2, all_rows=True), seed=0)
    said = capsys.readouterr().out
    assert "differs" not in said
    assert said.splitlines()[-1].startswith("equal: ")
    assert "of one device with the global batch" in said.splitlines()[-1]
