"""Damaged sets of a checkpoint: one clear message each, and what is altered is noticed."""

import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import nn
from mspc.checkpoint.files import SEAL, default_kind
from mspc.checkpoint.sets import INDEX, find_sets, open_checkpoint, rank_file, rank_state, set_name
from mspc.commands.checkpoints import check_checkpoint, merge_checkpoint
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.train.checkpointing import resume_training
from tests.checkpoint.trained import Trained
from tests.checkpoint.written_sets import WHOLE, changed, flip, unsealed, write_set
from tests.damage import damage
from tests.errors import error_of
from tests.kills import in_a_process


def index(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def work(place: Path) -> None:
        content = json.loads((place / INDEX).read_text())
        change(content)
        del content[SEAL]  # what is looked at here must hold without it, too
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
        lambda place: (place / "rank_1-1.safetensors").unlink(), "there is no file of a checkpoint",
    ),
    "no index": (lambda place: (place / INDEX).unlink(), "is no complete checkpoint: index.json is missing"),
    "half an index": (
        lambda place: changed(place / INDEX, lambda data: data[: len(data) // 2]), "index.json is damaged: ",
    ),
    "deep brackets": (
        lambda place: (place / INDEX).write_text('{"format": "mspc checkpoint", "a": ' + "[" * 99999),
        "index.json is damaged: brackets stand too deep in brackets",
    ),
    "another version": (index(lambda c: c.update(version=2)), "its version is 2; this mspc reads 1"),
    "a gap": (
        index(lambda c: c["tensors"]["w"]["slices"].pop(0)), "tensor 'w' is incomplete: no slice holds element [0, 0]",
    ),
    "an overlap": (index(lambda c: c["tensors"]["w"]["slices"][1].update(begin=[3, 0])), "tensor 'w' is incomplete: "),
    "a huge shape": (
        index(lambda c: c["tensors"]["w"].update(shape=[1 << 40, 1 << 40])), "tensor 'w' is incomplete: no slice holds",
    ),
    "a slice outside": (index(lambda c: first(c).update(begin=[7, 0])), "has a slice of shape (4, 8) at (7, 0)"),
    "an offset behind": (index(lambda c: first(c).update(offset=1 << 50)), "has a slice after the end of file 0"),
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
    "lists": (index(lambda c: c.update(tensors=[1])), "its tensors is [1], not an object"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_set_is_explained(damage: str, tmp_path: Path) -> None:
    place = write_set(tmp_path, 1)
    size = (place / "rank_1-1.safetensors").stat().st_size
    work, message = DAMAGES[damage]
    work(place)
    error = error_of(lambda: ms.load_checkpoint(str(place), crc_check=True)["w"].asnumpy())
    assert message.format(size=size, size_less=size - 4) in error.message
    assert error.exit_status == 2


def test_what_is_no_checkpoint_is_passed_over_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index whose beginning is damaged, and a FIFO in its place, which no reader waits for; a folder that cannot be
    read is none without checkpoints."""
    for number in (1, 2):
        os.mkdir(place := tmp_path / set_name("CKP", 1, number))
        os.mkfifo(place / INDEX) if number == 1 else (place / INDEX).write_text('{"form')
    os.mkfifo(tmp_path / "CKP-1_3.safetensors")
    os.mkdir(tmp_path / set_name("CKP", 1, 4))  # of a run that was killed
    assert resume_training(nn.ReLU(), str(tmp_path)).total_step == 0
    assert capsys.readouterr().err == "".join(
        f"warning: resume_training passes over {tmp_path}/CKP-1_{name}: it is damaged, cannot be read, or does not "
        "state the position of its run\n" for name in ("1", "2", "3.safetensors")
    )  # fmt: skip

    def closed(path: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("mspc.checkpoint.sets.os.listdir", closed)
    error = error_of(resume_training, nn.ReLU(), str(tmp_path))
    assert error.message == f"cannot read the folder {tmp_path}: Permission denied"


@pytest.mark.parametrize("name", ["a.json", "m-0.safetensors"])
def test_nobody_waits_for_a_fifo(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "m-0.safetensors"}}')
    os.mkfifo(tmp_path / name)
    error = error_of(open_checkpoint, tmp_path / name if name == "a.json" else tmp_path)
    assert error.message == f"{tmp_path / name} is a FIFO, not a file"


def test_the_checksum_is_compared_where_a_whole_slice_is_read(tmp_path: Path) -> None:
    place = write_set(tmp_path, 1)
    changed(place / "rank_1-1.safetensors", flip)
    found = ms.load_checkpoint(str(place))["w"]
    assert np.array_equal(found.fill_slices((slice(0, 4), slice(0, 8))), WHOLE[:4] + 1)
    with pytest.raises(MspcError, match=f"{default_kind()}:[0-9a-f]+, and {default_kind()}:[0-9a-f]+ was written"):
        found.fill_slices((slice(4, 8), slice(0, 8)))
    found.fill_slices((slice(4, 8), slice(0, 4)))  # part of a slice: nothing to compare with


def test_checksums_of_a_kind_that_is_missing_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are written as CRC-32 without the library, and those of the other kind are said to be left out."""
    pytest.importorskip("xxhash")
    place = write_set(tmp_path, 1)
    monkeypatch.setattr("mspc.checkpoint.files._fast", lambda: None)
    assert np.array_equal(ms.load_checkpoint(str(place))["w"].asnumpy(), WHOLE + 1)
    assert "has checksums that cannot be compared here: the library xxhash is not installed" in capsys.readouterr().err
    other = write_set(tmp_path / "other", 1)
    assert "crc32:" in (other / INDEX).read_text()
    changed(other / "rank_1-1.safetensors", flip)
    with pytest.raises(MspcError, match="the checksum of tensor 'w' is crc32:"):
        ms.load_checkpoint(str(other))["w"].asnumpy()
    assert capsys.readouterr().err == ""


# Any damage to any file of a set is noticed, or does no harm: what is read is what was written.


FILES = (INDEX, rank_file(0, 1), rank_file(1, 1))


def read(place: Path) -> Any:
    """The entries of a set that a run which goes on takes, once everything was checked. Raises MspcError."""
    found = open_checkpoint(place)
    wrong = next((text for _, text in found.verified() if text), "")
    if wrong:
        raise MspcError(wrong)
    tensors = {name: (stored.layout, found.read(name).tobytes()) for name, stored in found.tensors.items()}
    return tensors, found.state, found.ranks, found.sequence, [rank_state(found, rank) for rank in range(2)]


def damages(place: Path, chance: random.Random) -> Iterator[tuple[str, str]]:
    """(file, what was done to it) of one damage after another; the set is mended before the next."""
    for name in FILES:
        data = (place / name).read_bytes()
        for at in range(len(data)):
            (place / name).write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
            yield name, f"byte {at} flipped"
        for size in {0, 1, 7, 8, 9, len(data) - 1, *(chance.randrange(len(data)) for _ in range(20))}:
            (place / name).write_bytes(data[:size])
            yield name, f"cut at {size}"
        for size in (4, 16, 64, 1000):
            for at in (0, 8, *(chance.randrange(len(data)) for _ in range(8))):
                (place / name).write_bytes(data[:at] + chance.randbytes(size) + data[at + size :])
                yield name, f"{size} random bytes at {at}"
                (place / name).write_bytes(data[:at] + data[at + size :] + b"\0" * len(data[at : at + size]))
                yield name, f"{size} bytes from {at} lost, zeros at its end"
        for number in range(80):
            (place / name).write_bytes(data)
            damage(chance, place / name)
            yield name, f"changed in the way of its kind, {number}"
        for other in FILES:
            shutil.copy(place / other, place / "other")
            shutil.copy(place / "other", place / name)
            (place / "other").unlink()
            yield name, f"replaced by {other}"
        (place / name).write_bytes(data)


def test_any_damage_is_noticed_or_does_no_harm(tmp_path: Path) -> None:
    """Every byte of the index, of headers and of slices; truncations, losses, files of another rank or kind."""
    place, chance = write_set(tmp_path, 1), random.Random(3)
    whole, noticed, tried = read(place), 0, 0
    for name, what in damages(place, chance):
        tried += 1
        try:
            found = read(place)
        except MspcError:
            noticed += 1
            continue
        assert found == whole, f"{name}: {what} is not noticed"
    assert read(place) == whole
    assert noticed > 0.9 * tried > 1500


def test_headers_of_all_ranks_are_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = write_set(tmp_path, 1)
    assert check_checkpoint(place, None, None) == 0
    assert capsys.readouterr().out == "complete: 1 tensors, 256 B\n"
    for rank in range(2):
        path = place / rank_file(rank, 1)
        length = int.from_bytes(path.read_bytes()[:8], "little")
        changed(path, lambda data, size=length: bytes(data[:8]) + random.Random(0).randbytes(size) + data[8 + size :])
    assert check_checkpoint(place, None, None) == 1
    said = capsys.readouterr().out
    for rank in range(2):
        name = rank_file(rank, 1)
        assert f"damaged: {name}: {place}/{name} is no file of a checkpoint" in said
        with pytest.raises(MspcError, match="is no file of a checkpoint: its header cannot be read"):
            rank_state(open_checkpoint(place), rank)
    with pytest.raises(MspcError, match=r"load_checkpoint: .* is no file of a checkpoint: its header cannot be read"):
        ms.load_checkpoint(str(place), crc_check=True)


def test_the_header_of_another_set_is_noticed(tmp_path: Path) -> None:
    """It is complete, its slices are equal, and it has another state of the rank."""
    place, other = write_set(tmp_path / "a", 1), write_set(tmp_path / "b", 1)
    path = other / rank_file(1, 1)
    changed(path, lambda data: unsealed(bytes(data)).replace(b"[1,1]", b"[1,2]"))
    shutil.copy(path, place / path.name)
    with pytest.raises(MspcError, match=r"has .* bytes, and"):
        read(place)
    padded = path.read_bytes()
    length = int.from_bytes(padded[:8], "little") + len((other / rank_file(0, 1)).read_bytes()) - len(padded)
    cut = 8 + int.from_bytes(padded[:8], "little")
    (place / path.name).write_bytes(
        length.to_bytes(8, "little") + padded[8:cut].ljust(length) + padded[cut:]
    )  # as large as before, without a checksum of its own
    with pytest.raises(MspcError, match="the checksum of its header is none, and the index has"):
        read(place)


def test_sets_without_checksums_of_headers_are_read_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As mspc wrote them once."""
    place = write_set(tmp_path, 1)
    whole = read(place)
    for rank in range(2):
        changed(place / rank_file(rank, 1), lambda data: unsealed(bytes(data)))
    content = json.loads(unsealed((place / INDEX).read_bytes()))
    for rank, entry in enumerate(content["files"]):
        entry["bytes"] = (place / rank_file(rank, 1)).stat().st_size
        begin = entry["bytes"] - 128
        content["tensors"]["w"]["slices"][rank]["offset"] = begin
    (place / INDEX).write_text(json.dumps(content))
    assert read(place) == whole
    assert check_checkpoint(place, None, None) == 0
    said = capsys.readouterr().out
    assert said.endswith("256 B; its headers have no checksums, or none that can be compared here\n")
    assert np.array_equal(ms.load_checkpoint(str(place))["w"].asnumpy(), open_checkpoint(place).read("w"))
    assert "it was written when headers had no checksums" in capsys.readouterr().err


def test_a_merged_file_keeps_the_first_ranks_numbers(tmp_path: Path) -> None:
    place = write_set(tmp_path, 1)
    merge_checkpoint(place, tmp_path / "whole.safetensors", None, None)
    found = open_checkpoint(tmp_path / "whole.safetensors")
    assert rank_state(found, 0) == rank_state(found, 1) == {"numbers": [0, 1]}
    assert found.state == {"total_step": 1}


# Kills and full disks while a set is written: the last set stays.


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
    for call in sorted({*range(1, calls + 1, 2), calls}):
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
def test_a_full_disk_ends_training(style: str, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_on_a_full_disk_training_goes_on_where_that_is_asked(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch, 18)
    losses = trained.run(2, 1, config='dict(integrated_save=False, on_failure="continue")')
    assert len(losses) == 8
    assert "No space left on device; training continues" in trained.out.err
    assert [entry.path.name for entry in find_sets(Path("sets"), "CKP")] == ["CKP-1_1", "CKP-1_2"]
