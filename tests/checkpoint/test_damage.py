"""Damaged, hostile and unfitting files, full disks and kills: one clear message each, and the last set stays."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mspc as ms
from mspc import Parameter, Tensor, nn
from mspc.checkpoint import wire
from mspc.checkpoint.checksum import kind_here
from mspc.checkpoint.index import INDEX
from mspc.checkpoint.opening import open_checkpoint
from mspc.checkpoint.sets import find_sets, next_sequence, publish, rank_file, remove_set, set_name
from mspc.checkpoint.strategy_file import ParameterCut, StrategyFile, read_strategies, write_strategies
from mspc.checkpoint.writing import Slice, write_slices
from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, TensorType
from mspc.parallel import load_distributed_checkpoint, transform_checkpoints
from tests.checkpoint.trained import Trained, trained  # noqa: F401  # a fixture
from tests.kills import in_a_process

WHOLE = np.arange(64, dtype=np.float32).reshape(8, 8)


def write_set(folder: Path, number: int, ranks: int = 2) -> Path:
    """Write and publish a set, and remove all older ones, as a run does."""
    place = folder / set_name("CKP", 1, number)
    place.mkdir(parents=True, exist_ok=True)
    sequence = next_sequence(folder, "CKP")
    cut = Layout.of((ranks,), [(0,), ()])
    for rank in range(ranks):
        part = WHOLE[cut.slices_for(rank, WHOLE.shape)] + number
        begin = (rank * 8 // ranks, 0)
        made = Slice("w", TensorType(FLOAT32, (8, 8)), begin, part.shape, str(cut), lambda part=part: part)
        write_slices(place / rank_file(rank, sequence), [made], {"own": {}})
    publish(place, sequence, ranks, {"total_step": number})
    for old in find_sets(folder, "CKP")[:-1]:
        remove_set(old.path)
    return place


def changed(path: Path, change: Callable[[bytearray], Any]) -> None:
    data = bytearray(path.read_bytes())
    kept = change(data)
    path.write_bytes(kept if isinstance(kept, bytes | bytearray) else data)


def flip(data: bytearray) -> None:
    data[-1] ^= 1


def index(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def work(place: Path) -> None:
        content = json.loads((place / INDEX).read_text())
        change(content)
        (place / INDEX).write_text(json.dumps(content))

    return work


def first(content: dict[str, Any]) -> dict[str, Any]:
    return content["tensors"]["w"]["slices"][0]


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (
        lambda place: changed(place / "rank_1-1.safetensors", lambda data: data[:-4]),
        "rank_1-1.safetensors is damaged: it has {size_less} bytes, and {size} were written",
    ),
    "altered": (
        lambda place: changed(place / "rank_1-1.safetensors", flip),
        "rank_1-1.safetensors is damaged: the checksum of tensor 'w' is ",
    ),
    "a missing file": (
        lambda place: (place / "rank_1-1.safetensors").unlink(), "rank_1-1.safetensors is missing",
    ),
    "no index": (lambda place: (place / INDEX).unlink(), "is no whole checkpoint: index.json is missing"),
    "half an index": (
        lambda place: changed(place / INDEX, lambda data: data[: len(data) // 2]), "index.json is damaged: ",
    ),
    "deep brackets": (
        lambda place: (place / INDEX).write_text('{"format": "mspc checkpoint", "a": ' + "[" * 99999),
        "index.json is damaged: brackets stand too deep in brackets",
    ),
    "another version": (index(lambda c: c.update(version=2)), "its version is 2; this mspc reads 1"),
    "a gap": (
        index(lambda c: c["tensors"]["w"]["slices"].pop(0)), "tensor 'w' is not whole: no slice holds element [0, 0]",
    ),
    "an overlap": (index(lambda c: c["tensors"]["w"]["slices"][1].update(begin=[3, 0])), "tensor 'w' is not whole: "),
    "a huge shape": (
        index(lambda c: c["tensors"]["w"].update(shape=[1 << 40, 1 << 40])), "tensor 'w' is not whole: no slice holds",
    ),
    "a slice outside": (index(lambda c: first(c).update(begin=[7, 0])), "has a slice of shape (4, 8) at (7, 0)"),
    "an offset behind": (index(lambda c: first(c).update(offset=1 << 50)), "has a slice behind the end of file 0"),
    "a negative size": (index(lambda c: first(c).update(shape=[-4, 8])), "tensor 'w' has shape [-4, 8]"),
    "a path outside": (
        index(lambda c: c["files"][0].update(name="../x.safetensors")), "a path out of its folder",
    ),
    "a folder below": (index(lambda c: c["files"][0].update(name="a/b")), "files of a set lie beside its index"),
    "an unknown type": (index(lambda c: c["tensors"]["w"].update(dtype="Object")), "has element type 'Object'"),
    "no checksum": (index(lambda c: first(c).update(checksum="md5:00")), "a slice with checksum 'md5:00'"),
    "a checksum of another kind": (index(lambda c: first(c).update(checksum={})), "a slice with checksum {{}}"),
    "an entry twice": (
        lambda place: changed(place / INDEX, lambda data: data.replace(b'"ranks": 2', b'"ranks": 2, "ranks": 3')),
        "index.json is damaged: it has an entry 'ranks' twice",
    ),
    "lists": (index(lambda c: c.update(tensors=[1])), "its tensors is no object"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_set_is_explained(damage: str, tmp_path: Path) -> None:
    place = write_set(tmp_path, 1)
    size = (place / "rank_1-1.safetensors").stat().st_size
    work, message = DAMAGES[damage]
    work(place)
    with pytest.raises(MspcError) as raised:
        ms.load_checkpoint(str(place), crc_check=True)["w"].asnumpy()
    assert message.format(size=size, size_less=size - 4) in raised.value.message
    assert raised.value.exit_status == 2


def test_the_checksum_is_compared_where_a_whole_slice_is_read(tmp_path: Path) -> None:
    place = write_set(tmp_path, 1)
    changed(place / "rank_1-1.safetensors", flip)
    found = ms.load_checkpoint(str(place))["w"]
    assert np.array_equal(found.fill_slices((slice(0, 4), slice(0, 8))), WHOLE[:4] + 1)
    with pytest.raises(MspcError, match=f"{kind_here()}:[0-9a-f]+, and {kind_here()}:[0-9a-f]+ was written"):
        found.fill_slices((slice(4, 8), slice(0, 8)))
    found.fill_slices((slice(4, 8), slice(0, 4)))  # part of a slice: nothing to compare with


def test_any_altered_byte_is_noticed_or_does_no_harm(tmp_path: Path) -> None:
    """Of the index and of the slices: what is read is what was written, or nothing is."""
    place = write_set(tmp_path, 1)
    chance = random.Random(0)
    refused = 0
    for name in (INDEX, "rank_0-1.safetensors"):
        data = (place / name).read_bytes()
        for _ in range(250):
            altered = bytearray(data)
            for _ in range(chance.choice([1, 1, 2, 5])):
                altered[chance.randrange(len(altered))] = chance.choice([chance.randrange(256), *b'0159-"[]{},: '])
            (place / name).write_bytes(altered)
            try:
                found = open_checkpoint(place)
                read = found.read("w") if "w" in found.tensors else None
                assert read is None or np.array_equal(read, WHOLE + 1)
            except MspcError:
                refused += 1
        (place / name).write_bytes(data)
    assert refused > 250


def test_checksums_of_a_kind_that_is_missing_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are written as CRC-32 without the library, and those of the other kind are said to be left out."""
    pytest.importorskip("xxhash")
    place = write_set(tmp_path, 1)
    monkeypatch.setattr("mspc.checkpoint.checksum._fast", lambda: None)
    assert np.array_equal(ms.load_checkpoint(str(place))["w"].asnumpy(), WHOLE + 1)
    assert "has checksums that cannot be compared here: the library xxhash is not installed" in capsys.readouterr().err
    other = write_set(tmp_path / "other", 1)
    assert "crc32:" in (other / INDEX).read_text()
    changed(other / "rank_1-1.safetensors", flip)
    with pytest.raises(MspcError, match="the checksum of tensor 'w' is crc32:"):
        ms.load_checkpoint(str(other))["w"].asnumpy()
    assert capsys.readouterr().err == ""


class Evil:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("name", ["x.ckpt", "x.safetensors", "x.json", "set"])
def test_pickles_are_never_executed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    if name == "set":
        path.mkdir()
        path /= INDEX
    path.write_bytes(pickle.dumps({"w": Evil()}))
    with pytest.raises(MspcError):
        ms.load_checkpoint(name)
    with pytest.raises(MspcError):
        read_strategies(path)
    assert not Path("executed").exists()


HOSTILE = {
    "empty": (b"", "it is empty"),
    "cut off": (wire.put_head(1, 100) + b"x", "has 100 bytes, and 1 are left"),
    "a huge length": (wire.put_head(1, 1 << 62) + b"x", f"has {1 << 62} bytes, and 1 are left"),
    "an endless integer": (b"\xff" * 50, "has more than 10 bytes"),
    "a group": (b"\x0b\x0c", "is of kind 3"),
    "a huge shape": (
        wire.put_bytes(1, wire.put_text(1, "w") + wire.put_bytes(2, wire.put_integer(1, 1 << 50)
                       + wire.put_text(2, "Float32") + wire.put_bytes(3, b"abcd"))),
        f"'w' of shape ({1 << 50},) and type Float32 has 4 bytes",
    ),
    "a negative shape": (
        wire.put_bytes(1, wire.put_text(1, "w") + wire.put_bytes(2, wire.put_integer(1, -1) + wire.put_integer(1, -1)
                       + wire.put_text(2, "Float32") + wire.put_bytes(3, b"abcd"))),
        "'w' of shape (-1, -1) and type Float32 has 4 bytes",
    ),
    "an unknown type": (
        wire.put_bytes(
            1, wire.put_text(1, "w") + wire.put_bytes(2, wire.put_text(2, "object") + wire.put_bytes(3, b""))
        ),
        "mspc does not know the element type 'object' of 'w'",
    ),
    "too many dimensions": (
        wire.put_bytes(1, wire.put_text(1, "w") + wire.put_bytes(2, wire.put_integer(1, 1) * 99
                       + wire.put_text(2, "Float32") + wire.put_bytes(3, b"abcd"))),
        "'w' has 99 dimensions; mspc reads 32",
    ),
    "no tensor": (wire.put_bytes(1, wire.put_text(1, "w")), "has no name or no tensor"),
    "no text": (wire.put_bytes(1, wire.put_bytes(1, b"\xff\xff") + wire.put_bytes(2, b"")), "invalid start byte"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_of_mindspores_format(name: str, tmp_path: Path) -> None:
    data, message = HOSTILE[name]
    path = tmp_path / "x.ckpt"
    path.write_bytes(data)
    with pytest.raises(MspcError) as raised:
        ms.load_checkpoint(str(path))
    assert message in raised.value.message
    assert str(path) in raised.value.message


@pytest.mark.parametrize("texts", [[], {"t": 1}, "t"])
def test_texts_of_a_file_that_are_none(texts: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    ms.save_checkpoint({"w": Tensor([1.0])}, str(path), append_dict={"t": "text"})
    tensors = load_file(path)
    save_file(tensors, path, {"mspc": json.dumps({"texts": texts})})
    with pytest.raises(MspcError) as raised:
        ms.load_checkpoint(str(path))
    assert raised.value.message == f"{path} is no file of a checkpoint: its texts are {texts!r}"


def test_every_cut_of_a_file_of_mindspores_format_is_noticed(tmp_path: Path) -> None:
    """Wherever it ends, unless it ends behind a tensor."""
    path = tmp_path / "x.ckpt"
    ms.save_checkpoint({"a": Tensor([1.0, 2.0]), "b": Tensor([3])}, str(path), crc_check=True)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(MspcError):
            ms.load_checkpoint(str(path), crc_check=True)
    for place in range(len(data)):
        changed_data = bytearray(data)
        changed_data[place] ^= 4
        path.write_bytes(changed_data)
        with pytest.raises(MspcError):
            ms.load_checkpoint(str(path), crc_check=True)


STRATEGIES = {
    "of another network": ({"other": ParameterCut((2,), ((0,), ()))}, "no parameter of the strategy file is in "),
    "of other dimensions": ({"w": ParameterCut((2,), ((0,),))}, "the strategy file cuts 1 dimensions"),
    "of fewer ranks": ({"w": ParameterCut((1,), ((), ()))}, "the strategy file has 1"),
    "of more ranks": ({"w": ParameterCut((4,), ((0,), ()))}, "has no checkpoint of rank 2; the strategy file has 4"),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_file_that_does_not_fit(name: str, tmp_path: Path) -> None:
    cuts, message = STRATEGIES[name]
    for rank in range(2):
        ms.save_checkpoint({"w": Tensor(WHOLE[rank * 4 :][:4])}, str(tmp_path / f"rank_{rank}" / "a.ckpt"))
    write_strategies(tmp_path / "s.ckpt", StrategyFile({}, cuts))
    arguments = str(tmp_path), str(tmp_path / "out"), "a", str(tmp_path / "s.ckpt")
    if name == "of another network":
        with pytest.raises(MspcError, match=message):
            transform_checkpoints(*arguments[:3], None, arguments[3])
    elif name == "of fewer ranks":
        files = [str(tmp_path / f"rank_{rank}" / "a.ckpt") for rank in range(2)]
        with pytest.raises(ValueError, match=message):
            load_distributed_checkpoint(nn.ReLU(), files, train_strategy_filename=arguments[3])
    else:
        with pytest.raises(MspcError, match=message):
            transform_checkpoints(*arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (b"\x12\x7f", "has 127 bytes"),
        (wire.put_bytes(3, wire.put_text(1, "w")), "has no name or no content"),
        (wire.put_bytes(3, wire.put_text(1, "w") + wire.put_bytes(2, b"")), "a parameter has no device matrix"),
        (
            wire.put_bytes(
                3, wire.put_text(1, "w") + wire.put_bytes(2, wire.put_bytes(1, wire.put_integer(1, 1 << 40)))
            ),
            "on a device matrix [1099511627776]",
        ),
        (
            wire.put_bytes(3, wire.put_text(1, "w") + wire.put_bytes(2, wire.put_bytes(1, wire.put_integer(1, 2))
                           + wire.put_bytes(2, wire.put_integer(1, 5)))),
            "parameter 'w' is cut [(5,)] on a device matrix [2]",
        ),
    ],
)  # fmt: skip
def test_hostile_strategy_files(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "s.ckpt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is no strategy file") as raised:
        read_strategies(path)
    assert message in str(raised.value)


def test_a_network_of_another_checkpoint_is_listed(tmp_path: Path) -> None:
    """All shapes that differ, not the first alone; and nothing is loaded."""
    net = nn.SequentialCell(nn.Dense(4, 3), nn.Dense(3, 2))
    before = {p.name: p.asnumpy() for p in net.get_parameters()}
    others = {name: Parameter(Tensor(np.zeros((9, *value.shape), np.float32)), name) for name, value in before.items()}
    with pytest.raises(ValueError, match="load_param_into_net") as raised:
        ms.load_param_into_net(net, others)
    text = str(raised.value)
    assert all(f"parameter '{name}' has shape {value.shape}, the checkpoint" in text for name, value in before.items())
    assert all(np.array_equal(p.asnumpy(), before[p.name]) for p in net.get_parameters())


def test_killed_at_any_call_a_set_is_whole(tmp_path: Path) -> None:
    """The process is killed before each of its calls that change files: the newest set is the old or the new one, with
    all of its bytes, and the next run writes on and leaves nothing behind."""
    folder = tmp_path / "sets"
    seen: list[int] = []

    def newest() -> int:
        found = open_checkpoint(find_sets(folder, "CKP")[-1].path)
        number = int(found.state["total_step"])
        assert np.array_equal(found.read("w"), WHOLE + number)
        return number

    def begin() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        write_set(folder, 1)

    begin()
    calls = in_a_process(lambda: write_set(folder, 2))
    for call in range(1, calls + 1, 2):
        begin()
        in_a_process(lambda: write_set(folder, 2), call)
        seen.append(newest())
        write_set(folder, 2)
        assert newest() == 2
        assert [p.name for p in folder.glob("CKP-1_2/*") if p.name.startswith(".")] == []
    assert set(seen) == {1, 2}
    assert seen == sorted(seen), "once the new set is there it stays"


def full(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """From so many files on the disk is full."""
    ordinary, count = os.fsync, [0]

    def fsync(descriptor: int) -> None:
        count[0] += 1
        if count[0] > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        ordinary(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("style", ["", ", async_save=True"])
def test_a_full_disk_ends_training(style: str, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    full(monkeypatch, 18)
    with pytest.raises(MspcError, match="No space left on device"):
        trained.run(2, 1, config=f"dict(integrated_save=False{style})")
    monkeypatch.undo()
    monkeypatch.chdir(trained.folder)
    kept = find_sets(Path("sets"), "CKP")
    assert kept
    assert [text for entry in kept for _, text in open_checkpoint(entry.path).verified() if text] == []
    assert {p.name for p in Path("sets").iterdir()} == {entry.path.name for entry in kept}
    assert trained.run(2, 1)


def test_on_a_full_disk_training_goes_on_where_that_is_asked(
    trained: Trained,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full(monkeypatch, 18)
    losses = trained.run(2, 1, config='dict(integrated_save=False, on_failure="continue")')
    assert len(losses) == 8
    assert "No space left on device; training goes on" in trained.out.err
    assert [entry.path.name for entry in find_sets(Path("sets"), "CKP")] == ["CKP-1_1", "CKP-1_2"]
