"""Checkpoints as files: every element type comes back, and what cannot be written is said before the first step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import mspc as ms
from mspc import Tensor
from mspc.ir.files.tensors import CODES
from mspc.mindspore_api import call_handler
from mspc.train import Callback, ModelCheckpoint
from tests.errors import error_of
from tests.graphs import DTYPES, MspcError, dtype_of
from tests.mindspore_api.nn.test_train import Losses, data, model


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)])
def test_every_element_type_comes_back(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    values = np.arange(int(np.prod(shape))).reshape(shape).astype(DTYPES[name].numpy)
    ms.save_checkpoint({"x": Tensor(values), "y": Tensor(values)}, str(tmp_path / "x"))
    found = ms.load_checkpoint(str(tmp_path / "x"))["x"].asnumpy()
    assert (dtype_of(found.dtype), found.shape) == (DTYPES[name], shape)
    assert found.tobytes() == values.tobytes()
    assert found.flags.writeable


def test_files_of_the_library_are_read(tmp_path: Path) -> None:
    save_file({"x": np.ones((2, 3), np.float32), "y": np.int64([1])}, tmp_path / "x.safetensors", {"format": "np"})
    found = ms.load_checkpoint(str(tmp_path / "x"))
    assert {name: found[name].asnumpy().tolist() for name in found} == {"x": [[1, 1, 1]] * 2, "y": [1]}


HEADERS = {
    "[]": "its header is no object",
    "{": "its header cannot be read: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    "[" * 9999: "its header cannot be read: brackets stand too deep in brackets",
    '{"x": 1}': "tensor 'x': its entry does not have dtype, shape and data_offsets",
    '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}':
        "tensor 'x': <Tensor[Float32], (1)> takes 4 bytes, and its data_offsets are [0, 8]",
    '{"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}}': "tensor 'x': its shape is [-1]",
    '{"x": {"dtype": "F32", "shape": [2], "data_offsets": [8]}}': "tensor 'x': its data_offsets are [8]",
    '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}': "tensor 'x' begins at byte 4, not at 0",
    '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}': "its tensors take 4 bytes, and 8 are there",
    '{"x": {"dtype": "F32", "shape": [' + "1, " * 64 + '2], "data_offsets": [0, 8]}}':
        "tensor 'x': its shape is [" + "1, " * 33,
    '{"x": {}, "x": {}}': "its header cannot be read: it has an entry 'x' twice",
}  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
def test_a_damaged_header_is_explained(header: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    assert error_of(ms.load_checkpoint, str(path)).message == f"{path} is no safetensors file: {HEADERS[header]}"


@pytest.mark.parametrize("size", [0, 7, 8, 20])
def test_a_file_that_was_cut_is_refused(size: int, tmp_path: Path) -> None:
    ms.save_checkpoint({"x": Tensor([1.0])}, str(tmp_path / "x"))
    path = tmp_path / "x.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(MspcError, match="is no safetensors file: it"):
        ms.load_checkpoint(str(path))


NAMES = {
    "x" * 300: "File name too long",
    "x" * 300 + "/x": "File name too long",
    "a\0b": "embedded null byte",
    "file/x": "it is a file",
    "folder.ckpt": "it is a folder",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_that_cannot_be_written(name: str, own_folder: Path) -> None:
    Path("file").write_text("")
    Path("folder.ckpt").mkdir()
    error = error_of(ms.save_checkpoint, {"x": Tensor([1.0])}, name)
    assert error.message.startswith("save_checkpoint: cannot write ")
    assert error.message.endswith(f": {NAMES[name]}")
    with pytest.raises(MspcError):
        ms.load_checkpoint(name)
    assert sorted(p.name for p in own_folder.iterdir()) == ["file", "folder.ckpt"]


@pytest.mark.parametrize(
    ("entries", "kind", "message"),
    [
        ({1: Tensor(1)}, TypeError, "save_checkpoint: the name of a parameter must be a string, not 1"),
        ({"x": "text"}, TypeError, "save_checkpoint: 'x' is <U4, which no tensor can be"),
        ({"x": object()}, TypeError, "save_checkpoint: 'x' is object, which no tensor can be"),
        ({"x": 1j}, MspcError, "save_checkpoint: 'x' is Complex128, which no safetensors file can hold"),
        (
            {"__metadata__": Tensor(1)},
            MspcError,
            "save_checkpoint: a tensor called '__metadata__' cannot be stored: the format keeps that name for itself",
        ),
        (
            {"\ud800": Tensor(1)},
            MspcError,
            "save_checkpoint: a tensor called '\\ud800' cannot be stored: its name is no text",
        ),
    ],
)
def test_what_no_checkpoint_can_hold(entries: Any, kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind) as raised:
        ms.save_checkpoint(entries, str(tmp_path / "x"))
    assert getattr(raised.value, "message", "") == message
    assert list(tmp_path.iterdir()) == []


class Steps(Callback):
    """Counts the steps."""

    def __init__(self) -> None:
        self.count = 0

    def step_end(self, run_context: Any) -> None:
        self.count += 1


@pytest.mark.parametrize(
    ("prefix", "directory", "message"),
    [
        ("CKP", "file", "cannot write to file: it is a file"),
        ("CKP", "file/below", "cannot write to file/below: Not a directory"),
        ("CKP", "x" * 300, f"cannot write to {'x' * 300}: File name too long"),
        ("x" * 300, "new", f"cannot write new/{'x' * 300}-1_3.safetensors: File name too long"),
    ],
)
@pytest.mark.usefixtures("own_folder")
def test_a_checkpoint_that_cannot_be_is_refused_before_the_first_step(
    prefix: str, directory: str, message: str
) -> None:
    Path("file").write_text("")
    call_handler.install(Losses())
    steps = Steps()
    error = error_of(lambda: model()[1].train(1, data(3), [ModelCheckpoint(prefix, directory), steps]))
    assert (error.message, steps.count) == (f"ModelCheckpoint: {message}", 0)


def test_a_read_only_directory_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_handler.install(Losses())
    monkeypatch.setattr("os.access", lambda *_, **__: False)
    steps = Steps()
    assert error_of(lambda: model()[1].train(1, data(3), [ModelCheckpoint("CKP", tmp_path), steps])).message == (
        f"ModelCheckpoint: cannot write {tmp_path}/CKP-1_3.safetensors: the folder '{tmp_path}' is read-only"
    )
    assert steps.count == 0


@pytest.mark.parametrize("prefix", ["a/b", "", "a\0b", 3])
def test_a_prefix_that_no_file_can_have(prefix: Any, tmp_path: Path) -> None:
    call_handler.install(Losses())
    wanted = f"ModelCheckpoint: prefix {prefix!r} must be a string without '/'"
    with pytest.raises(ValueError, match="must be a string") as raised:
        ModelCheckpoint(prefix)
    assert getattr(raised.value, "message", "") == wanted
    with pytest.raises(ValueError, match="must be a string") as raised:
        model()[1].train(1, data(3), [ModelCheckpoint(lambda _: prefix, tmp_path)])
    assert getattr(raised.value, "message", "") == wanted


def test_an_evaluation_needs_no_place_for_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    net, _ = model()
    evaluated = ms.Model(net, loss_fn=ms.nn.MSELoss(), metrics={"loss"})
    call_handler.install(Evaluated())
    evaluated.eval(data(2), [ModelCheckpoint("CKP", tmp_path / "file")])


class Evaluated:
    """Stands for a launcher: loss, outputs and labels of an evaluation."""

    def call(self, target: Any, args: Any) -> Any:
        return Tensor(np.float32(1)), Tensor([[1.0]]), Tensor([[1.0]])
