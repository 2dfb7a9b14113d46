"""Damaged sets of a checkpoint: one clear message each, and what is altered is noticed."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import nn
from mspc.api.train.resume import resume_training
from mspc.checkpoint.files import SEAL, kind_here
from mspc.checkpoint.opening import open_checkpoint
from mspc.checkpoint.sets import INDEX, set_name
from mspc.ir.diagnostics import MspcError
from tests.checkpoint.written_sets import WHOLE, changed, flip, write_set


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
        lambda place: (place / "rank_1-1.safetensors").unlink(), "rank_1-1.safetensors is missing",
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
        f"warning: resume_training passes over {tmp_path}/CKP-1_{name}: it is damaged, cannot be read, or does not say "
        "where its run stood\n" for name in ("1", "2", "3.safetensors")
    )  # fmt: skip

    def closed(path: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("mspc.checkpoint.sets.os.listdir", closed)
    with pytest.raises(MspcError) as raised:
        resume_training(nn.ReLU(), str(tmp_path))
    assert raised.value.message == f"cannot read the folder {tmp_path}: Permission denied"


@pytest.mark.parametrize("name", ["a.json", "m-0.safetensors"])
def test_nobody_waits_for_a_fifo(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "m-0.safetensors"}}')
    os.mkfifo(tmp_path / name)
    with pytest.raises(MspcError) as raised:
        open_checkpoint(tmp_path / name if name == "a.json" else tmp_path)
    assert raised.value.message == f"{tmp_path / name} is a FIFO, not a file"


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
    monkeypatch.setattr("mspc.checkpoint.files._fast", lambda: None)
    assert np.array_equal(ms.load_checkpoint(str(place))["w"].asnumpy(), WHOLE + 1)
    assert "has checksums that cannot be compared here: the library xxhash is not installed" in capsys.readouterr().err
    other = write_set(tmp_path / "other", 1)
    assert "crc32:" in (other / INDEX).read_text()
    changed(other / "rank_1-1.safetensors", flip)
    with pytest.raises(MspcError, match="the checksum of tensor 'w' is crc32:"):
        ms.load_checkpoint(str(other))["w"].asnumpy()
    assert capsys.readouterr().err == ""
