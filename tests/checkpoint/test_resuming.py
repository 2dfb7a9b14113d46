"""A run that goes on from a checkpoint ends where one ends that nobody stopped, bit for bit on the same strategy."""

import ast
import os
from pathlib import Path
from typing import Any

import pytest

import mspc as ms
from mspc.checkpoint.sets import find_sets, open_checkpoint
from mspc.checkpoint.stored_tensors import Checkpoint
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import call_handler, state
from mspc.mindspore_api.train.checkpointing import Resumed, resume_training
from mspc.mindspore_api.train.model import COUNTERS, SEEDS, restore, state_of_rank
from mspc.train import Callback, CheckpointConfig, ModelCheckpoint
from tests.checkpoint.trained import LOSS, Trained
from tests.checkpoint.written_sets import unsealed
from tests.compiled_scripts import CompileOptions, compile_target, run_script
from tests.errors import error_of
from tests.mindspore_api.nn.test_train import Losses, model
from tests.mindspore_api.nn.test_train import data as batches
from tests.shares import is_taken

WAYS = {
    "slices": "dict(integrated_save=False)",
    "whole": "dict()",
    "async": "dict(integrated_save=False, async_save=True)",
    "once": "dict(remove_redundancy=True)",
    "async whole": "dict(async_save=True)",
}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine stops in the middle of these tests."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


End = tuple[list[str], str, dict[str, bytes], object]


@pytest.fixture(scope="module")
def ends() -> dict[str, End]:
    """How the undisturbed run ended, of whichever test was the first to make it: it is the same for every way."""
    return {}


def end_of(run: Trained, losses: list[str], folder: str) -> End:
    """Losses, what NumPy's generator draws next, tensors and state of the run in the newest checkpoint."""
    found = open_checkpoint(find_sets(Path(folder), "CKP")[-1].path)
    tensors = {name: found.read(name).tobytes() for name in found.tensors}
    return losses, run.out.out.rpartition("numbers")[2], tensors, found.state


@pytest.mark.parametrize("way", [way for place, way in enumerate(WAYS) if is_taken(place, 2)])
def test_a_run_goes_on_bit_for_bit(way: str, trained: Trained, ends: dict[str, End]) -> None:
    """In the middle of an epoch: dropout, shuffling, learning rate, Adam's powers, NumPy's own generator."""
    if not ends:
        ends["undisturbed"] = end_of(trained, trained.run(2, 2, 0, config=WAYS[way], where='"one"'), "one")
    begun = trained.run(2, 2, 0, last=3, config=WAYS[way])
    rest = trained.run(2, 2, 0, config=WAYS[way])
    assert len(begun + rest) == 8
    assert end_of(trained, begun + rest, "sets") == ends["undisturbed"]


def test_a_run_goes_on_with_other_ranks_and_strategies(trained: Trained) -> None:
    """Up and down; losses are those of one strategy up to the order of sums."""
    undisturbed = trained.run(1, 1, where='"one"', config="dict()")
    found = trained.run(4, 2, 1, last=2)
    for data, tensor, further, last in ((3, 1, 1, 3), (1, 6, 0, 5), (2, 1, 1, 6), (1, 1, 0, 7), (2, 4, 1, 8)):
        found += trained.run(data, tensor, further, last, "dict(remove_redundancy=True)")
    assert [float(loss) for loss in found] == pytest.approx([float(loss) for loss in undisturbed], rel=2e-5)


def test_a_run_goes_on_with_ranks_that_do_not_divide_a_dimension(trained: Trained) -> None:
    """48 columns in slices of 10 and 5, padded; the files hold no padding, also where the last ranks have no more."""
    undisturbed = trained.run(1, 1, where='"one"', config="dict()")
    pads, found = "dict(pad_uneven=True)", list[str]()
    for ranks, further, last, config in (
        (5, 1, 2, "dict(integrated_save=False)"), (11, 0, 4, "dict(remove_redundancy=True)"), (1, 0, 8, "dict()"),
    ):  # fmt: skip
        found += trained.run(1, ranks, further, last, config, parallel=pads)
        stored = open_checkpoint(find_sets(Path("sets"), "CKP")[-1].path)
        assert {stored.read(name).shape for name in ("w", "v")} == {(24, 48), (48, 8)}
    assert [float(loss) for loss in found] == pytest.approx([float(loss) for loss in undisturbed], rel=2e-5)


LOOP = """
import sys
import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops
from mindspore.communication import init
from mindspore.train import CheckpointConfig, ModelCheckpoint, RunContext
from mindspore.train.callback import _InternalCallbackParam
from mspc.train import resume_training

last, folder = int(sys.argv[1]), sys.argv[2]
init()
ms.set_seed(1)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
net = nn.SequentialCell(nn.Dense(8, 16), nn.Dropout(p=0.2), nn.Dense(16, 4))
net.set_train()
optimizer = nn.Adam(net.trainable_params(), 0.01)
gradient = ms.value_and_grad(lambda x, y: nn.MSELoss()(net(x), y), None, optimizer.parameters)


@ms.jit
def step(x, y):
    loss, gradients = gradient(x, y)
    return ops.depend(loss, optimizer(gradients))


rows = np.random.standard_normal((12, 8)).astype(np.float32), np.random.standard_normal((12, 4)).astype(np.float32)
data = ds.NumpySlicesDataset(rows, ["x", "y"], shuffle=True).batch(4)
cells = nn.CellList([net, optimizer], auto_prefix=False)
resumed = resume_training(cells, folder, train_dataset=data)
param = _InternalCallbackParam()
param.update(train_network=cells, batch_num=3, cur_step_num=resumed.total_step)
run = RunContext(param)
saver = ModelCheckpoint(directory=folder, config=CheckpointConfig(integrated_save=False))
saver.begin(run)
for epoch in range(resumed.initial_epoch, 2):
    reading = data.create_tuple_iterator(num_epochs=1)
    for row in reading:
        print("loss is", step(*row))
        param.cur_epoch_num, param.cur_step_num = epoch + 1, param.cur_step_num + 1
        param.dataset_position = reading.epoch * 3 + reading.row
        saver.step_end(run)
        if param.cur_step_num == last:
            sys.exit(0)
saver.end(run)
"""


@pytest.mark.usefixtures("own_folder")
def test_a_loop_of_the_scripts_own_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(LOOP)
    losses: list[list[str]] = []
    for arguments in (("0", "one"), ("2", "sets"), ("0", "sets")):
        run_script(Path("train.py"), 2, simulate=True, only_rank=0, script_arguments=arguments)
        losses.append(LOSS.findall(capsys.readouterr().out))
    assert len(losses[0]) == 6
    assert losses[1] + losses[2] == losses[0]


def test_a_rank_reads_its_slices_and_no_byte_more(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parameter and state once, when the step is compiled; nobody makes a global tensor."""
    read, found = Checkpoint.read, []

    def counted(source: Checkpoint, name: str, slices: Any = None) -> Any:
        before = source.files.bytes_read
        array = read(source, name, slices)
        found.append((state.current().rank, name, source.files.bytes_read - before, array.nbytes))
        return array

    trained.run(2, 2, last=2)
    monkeypatch.setattr(Checkpoint, "read", counted)
    held = "{p.name: p.part()[1].nbytes for p in model.train_network.get_parameters()}"
    trained.run(
        1, 4, 0, last=3, more=f"print('held', {held}, sum(p.nbytes for p in model.train_network.get_parameters()))"
    )
    text, whole = trained.out.out.rpartition("held ")[2].rsplit(" ", 1)
    sizes = ast.literal_eval(text)
    own = [entry[1:] for entry in found if entry[0] == 0]
    assert sorted(own) == sorted((name, size, size) for name, size in sizes.items())
    assert sum(sizes.values()) < int(whole) / 3.5


def test_a_loss_scale_goes_on(trained: Trained) -> None:
    scaled = 'amp_level="O2", loss_scale_manager=DynamicLossScaleManager(2.0**30, 2, 2)'
    undisturbed = trained.run(2, 1, where='"one"', model=scaled)
    begun = trained.run(2, 1, last=3, model=scaled)
    assert begun + trained.run(2, 1, model=scaled) == undisturbed
    saved = open_checkpoint(find_sets(Path("sets"), "CKP")[-1].path)
    assert float(saved.read("scale_sense")) < 2.0**30


def test_a_folder_of_checkpoints_is_its_newest(trained: Trained) -> None:
    trained.run(2, 1, last=3)
    trained.run(1, 1, last=4)
    found = ms.load_checkpoint("sets")
    assert found["global_step"].item() == 4
    trained.run(1, 1, last=1, where='"sets/inner"', config="dict()")
    Path("sets/inner/CKP-1_1.safetensors").rename("sets/other-1_1.safetensors")
    with pytest.raises(MspcError, match="sets has checkpoints of 2 prefixes: 'CKP', 'other'"):
        ms.load_checkpoint("sets")
    Path("sets/other-1_1.safetensors").unlink()
    Path("sets/CKP-2_10").mkdir()
    Path("sets/CKP-2_10/index.json").write_text("{")
    with pytest.raises(MspcError, match=r"sets/CKP-2_10 is damaged, or cannot be read; the one before is sets/CKP-"):
        ms.load_checkpoint("sets")


def test_only_new_sets_stay(trained: Trained) -> None:
    """And what a killed run has left is removed by the next, that goes on from the sets and counts them as its own."""
    trained.run(2, 1, last=3, config="dict(integrated_save=False, keep_checkpoint_max=2)")
    assert sorted(p.name for p in Path("sets").iterdir()) == ["CKP-1_2", "CKP-2_1"]
    left = Path("sets/CKP-2_2")
    left.mkdir()
    (left / "rank_0-4.safetensors").write_bytes(b"")
    (left / "of the user").write_text("")
    other = Path("sets/CKP-9_9")
    other.mkdir()
    (other / "rank_0-4.safetensors").write_bytes(b"")
    trained.run(2, 1, last=5, config="dict(integrated_save=False, keep_checkpoint_max=2)")
    assert sorted(p.name for p in Path("sets").iterdir()) == ["CKP-2_2", "CKP-3_1"]
    assert sorted(p.name for p in left.iterdir()) == [
        "index.json",
        "of the user",
        *(f"rank_{r}-5.safetensors" for r in (0, 1)),
    ]


def test_a_checkpoint_of_another_network_is_refused(trained: Trained) -> None:
    """Everything that differs is listed, and nothing is loaded."""
    trained.run(2, 1, last=1)
    text = error_of(trained.run, 2, 1, width=64).render()
    assert "resume_training: sets/CKP-1_1 is a checkpoint of another network" in text
    for name, before, now in (("w", "(24, 48)", "(24, 64)"), ("moment2.v", "(48, 8)", "(64, 8)")):
        assert f"parameter '{name}' has shape {now}, in the checkpoint {before}" in text
    index = Path("sets/CKP-1_1/index.json")
    index.write_bytes(unsealed(index.read_bytes()).replace(b'"moment1.v": {', b'"moment3.v": {'))
    error = error_of(trained.run, 2, 1)
    for note in ("it has no parameter 'moment1.v'", "the network has no parameter 'moment3.v'"):
        assert note in error.render()


@pytest.mark.parametrize("sink", [0, 2, 4])
def test_steps_are_counted_on(sink: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where an epoch is some steps of a data set that goes on; a data set that was merely read counts from 1."""
    found: list[list[int]] = []

    class Steps(Callback):
        def step_end(self, run_context: Any) -> None:
            param = run_context.original_args()
            found[-1].append(param.cur_step_num)

    call_handler.install(Losses())
    rows, (_, trained_model) = batches(3), model()
    more = {"dataset_sink_mode": True, "sink_size": sink} if sink else {}
    length = sink or 3
    for position, first in ((0, 0), (None, 0), (length + 1, 1), (0, 1)):
        if position is not None:
            rows.set_init_step(position)
        found.append([])
        trained_model.train(3, rows, Steps(), initial_epoch=first, **more)
    whole = list(range(1, 3 * length + 1))
    assert found == [whole, whole, whole[length + 1 :], whole[length:]]


@pytest.mark.usefixtures("own_folder")
def test_a_damaged_state_of_a_run_is_explained() -> None:
    call_handler.install(Losses())
    net, trained_model = model()
    trained_model.train(1, batches(3), [ModelCheckpoint("CKP", "sets", CheckpointConfig(keep_checkpoint_max=2))])
    assert resume_training(trained_model, "sets").total_step == 3
    earlier = resume_training(trained_model, checkpoint="sets/CKP-1_2.safetensors", train_dataset=(rows := batches(3)))
    assert (earlier.epoch, earlier.step, earlier.initial_epoch, rows.get_init_step()) == (1, 2, 0, 2)
    assert resume_training(trained_model, "nowhere") == Resumed()
    for wanted, damaged in (
        ('\\"total_step\\":3', '\\"total_step\\":1e999'), ('\\"total_step\\":3', '\\"total_step\\":[]'),
        ('\\"counters\\"', '\\"countess\\"'),
    ):  # fmt: skip
        path = Path("sets/CKP-1_3.safetensors")
        before = path.read_bytes()
        text = unsealed(before).replace(wanted.encode(), damaged.encode())
        length = int.from_bytes(before[:8], "little") + len(text) - len(before)
        path.write_bytes(length.to_bytes(8, "little") + text[8:])
        with pytest.raises(MspcError, match=r"the state of the run in sets/CKP-1_3\.safetensors is damaged"):
            resume_training(trained_model, "sets")
        path.write_bytes(before)
    resume_training(trained_model, "sets")
    saved = {"counters": dict.fromkeys(COUNTERS, 0), "seeds": dict.fromkeys(SEEDS), "graph_steps": {}}
    own = state_of_rank()
    own["numpy"][1] = 10**6  # NumPy itself reads what lies behind the generator, or ends the process
    with pytest.raises(ValueError, match="place 1000000 of 624 random numbers"):
        restore(saved, own)
    ms.save_checkpoint(trained_model.train_network, "plain")
    with pytest.raises(RuntimeError, match="does not state the position of its run"):
        resume_training(trained_model, checkpoint="plain.safetensors")
    with pytest.raises(TypeError, match="resume_training takes a Model or a Cell, not int"):
        resume_training(3)
    with pytest.raises(MspcError, match=r"there is no checkpoint 'x\.safetensors'"):
        resume_training(net, checkpoint="x.safetensors")


@pytest.mark.usefixtures("own_folder")
def test_the_prefix_is_that_of_the_checkpoints_that_are_there() -> None:
    """One is taken, of several none, and a run never begins in silence beside what it could go on from."""
    call_handler.install(Losses())
    _, trained_model = model()

    def train(*prefixes: str) -> None:
        saves = [ModelCheckpoint(prefix, "sets", CheckpointConfig(keep_checkpoint_max=9)) for prefix in prefixes]
        trained_model.train(1, batches(2), saves)

    Path("sets/net-9_9").mkdir(parents=True)  # of a run that was killed: nothing to go on from
    assert resume_training(trained_model, "sets") == Resumed()
    train("a-1_1")
    found = resume_training(trained_model, "sets")
    assert (found.total_step, found.file) == (2, "sets/a-1_1-1_2.safetensors")
    assert (os.path.realpath("sets"), "a-1_1") in state.current().resumed
    ms.save_checkpoint(trained_model.train_network, "sets/best-1_7")  # of no run
    assert resume_training(trained_model, "sets").file == found.file
    for wanted in ("CKP", "a"):
        with pytest.raises(ValueError, match=f"sets has no checkpoint of prefix '{wanted}', and some of 'a-1_1', the "
                                             r"newest a-1_1-1_2\.safetensors"):  # fmt: skip
            resume_training(trained_model, "sets", prefix=wanted)
    train("CKP")
    with pytest.raises(ValueError, match=r"of 2 prefixes: 'CKP', the newest .*; 'a-1_1', the newest"):
        resume_training(trained_model, "sets")
    assert resume_training(trained_model, "sets", prefix="CKP").file == "sets/CKP-1_2.safetensors"
    trained_model.train(1, batches(2), [ModelCheckpoint("CKP", "other", CheckpointConfig(format="ckpt"))])
    with pytest.raises(ValueError, match=r"other/CKP-1_2\.ckpt is of MindSpore's format, which does not state"):
        resume_training(trained_model, "other")


def test_a_rank_without_a_checkpoint_is_named(trained: Trained) -> None:
    """Ranks with folders of their own, of which one is empty: the run does not begin again."""
    trained.run(2, 1, last=1, where='f"r{get_rank()}"')
    Path("r1/CKP-1_1.safetensors").unlink()
    error = error_of(trained.run, 2, 1, last=2, where='f"r{get_rank()}"')
    assert "rank 1 finds no checkpoint to resume from, and 1 of 2 ranks find one" in error.render()


DIRECTORIES = {
    "one for each rank": ('f"r{get_rank()}"', ["r0/CKP-1_1.safetensors", "r1/CKP-1_1.safetensors"]),
    "one for all": (
        '"all"',
        ["all/CKP-1_1/index.json", "all/CKP-1_1/rank_0-1.safetensors", "all/CKP-1_1/rank_1-1.safetensors"],
    ),
}


@pytest.mark.parametrize("where", DIRECTORIES)
def test_where_slices_go(where: str, trained: Trained, tmp_path: Path) -> None:
    folder, wanted = DIRECTORIES[where]
    trained.run(1, 2, last=1, where=folder)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("CKP*/*")) == [w for w in wanted if "1_1/" in w]
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.safetensors")) == [
        w for w in wanted if w.endswith("safetensors")
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            'dict(integrated_save=False, format="ckpt")',
            "ModelCheckpoint: slices in MindSpore's format need a directory for every rank",
        ),
        ("dict(on_failure='hope')", "CheckpointConfig: on_failure 'hope' is not one of 'stop', 'continue'"),
        ("dict(format='zip')", "CheckpointConfig: format 'zip' is not one of 'ckpt', 'safetensors'"),
        ("dict(async_save='later')", "CheckpointConfig: async_save 'later' is not True, False, 'thread' or 'process'"),
        ("dict(save_it=1)", "CheckpointConfig has no argument 'save_it'"),
        ("dict(append_info=['loss'])", "append_info takes 'epoch_num', 'step_num' and dicts, not 'loss'"),
    ],
)
def test_what_cannot_be_saved_is_said_before_the_first_step(config: str, message: str, trained: Trained) -> None:
    assert message in error_of(trained.run, 2, 1, config=config).render()
    assert "loss is" not in trained.capsys.readouterr().out


def test_a_compile_touches_no_checkpoint(trained: Trained) -> None:
    trained.run(2, 1, last=1, config="dict(remove_redundancy=True)")
    left = Path("sets/CKP-9_9/rank_0-7.safetensors")
    left.parent.mkdir()
    left.write_bytes(b"")
    compile_target("train.py", CompileOptions(ranks=2, script_arguments=("2", "1", "0", "0")))
    assert left.exists()
    assert "changes nothing here" not in trained.capsys.readouterr().err


def test_what_changes_nothing_is_said(trained: Trained) -> None:
    trained.run(
        1, 1, last=1, config="dict(exception_save=True, crc_check=True, keep_checkpoint_per_n_minutes=3)", where='"a"'
    )
    said = trained.out.err
    for name in ("exception_save=True", "crc_check=True", "keep_checkpoint_per_n_minutes=3"):
        assert said.count(f"CheckpointConfig({name}) changes nothing here: ") == 1
