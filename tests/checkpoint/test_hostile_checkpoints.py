"""Pickles, files of MindSpore's formats and strategy files that are hostile or do not fit: one clear message each."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mspc as ms
from mspc import Parameter, Tensor, nn
from mspc.checkpoint.sets import INDEX
from mspc.ir.diagnostics import MspcError
from mspc.ir.files import tensors as wire
from mspc.parallel import load_distributed_checkpoint, transform_checkpoints
from mspc.plans.files.strategy_file import ParameterCut, StrategyFile, read_strategies, write_strategies
from tests.checkpoint.written_sets import WHOLE
from tests.errors import error_of


class Evil:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("name", ["x.ckpt", "x.safetensors", "x.json", "set"])
def test_pickles_are_never_executed(name: str, own_folder: Path) -> None:
    path = own_folder / name
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
    error = error_of(ms.load_checkpoint, str(path))
    assert message in error.message
    assert str(path) in error.message


@pytest.mark.parametrize("texts", [[], {"t": 1}, "t"])
def test_texts_of_a_file_that_are_none(texts: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    ms.save_checkpoint({"w": Tensor([1.0])}, str(path), append_dict={"t": "text"})
    tensors = load_file(path)
    save_file(tensors, path, {"mspc": json.dumps({"texts": texts})})
    error = error_of(ms.load_checkpoint, str(path))
    assert error.message == f"{path} is no file of a checkpoint: its texts are {texts!r}"


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
    "of other dimensions": ({"w": ParameterCut((2,), ((0,),))}, "the strategy file shards 1 dimensions"),
    "of fewer ranks": ({"w": ParameterCut((1,), ((), ()))}, "the strategy file has 1"),
    "of more ranks": ({"w": ParameterCut((4,), ((0,), ()))}, "has no checkpoint of rank 2; the strategy file has 4"),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_file_that_does_not_fit(name: str, tmp_path: Path) -> None:
    cuts, message = STRATEGIES[name]
    for rank in range(2):
        first = rank * 4 * (name != "of another network")
        ms.save_checkpoint({"w": Tensor(WHOLE[first:][:4])}, str(tmp_path / f"rank_{rank}" / "a.ckpt"))
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
            "parameter 'w' is sharded [(5,)] on a device matrix [2]",
        ),
    ],
)  # fmt: skip
def test_hostile_strategy_files(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "s.ckpt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is no strategy file") as raised:
        read_strategies(path)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "it is 3, not an object"),
        ('{"parallel_strategy_item": [1]}', "parallel_strategy_item is [1], not an object"),
        ('{"parallel_strategy_item": {"MatMul_w": 1}}', "operator 'MatMul_w' is 1, not an object"),
        ('{"parallel_strategy_item": {"MatMul_w": {}}}', "operator 'MatMul_w' has no parallel_strategy"),
        ('{"parallel_strategy_item": {"MatMul_w": {"parallel_strategy": 1}}}',
         "parallel_strategy of operator 'MatMul_w' is 1, not a list"),
        ('{"parallel_strategy_item": {"MatMul_w": {"parallel_strategy": [[1.5]]}}}',
         "operator 'MatMul_w' has [1.5], which is no list of integers"),
        ('{"parallel_layout_item": {"w": {"tensor_map": [-1]}}}', "parameter 'w' has no dev_matrix"),
        ('{"parallel_layout_item": {"w": {"dev_matrix": [2], "tensor_map": [5]}}}',
         "parameter 'w' is sharded [(5,)] on a device matrix [2]"),
    ],
)  # fmt: skip
def test_hostile_strategy_files_of_json(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(text)
    error = error_of(read_strategies, tmp_path / "s.json")
    assert error.message == f"{tmp_path / 's.json'} is no strategy file: {message}"


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
