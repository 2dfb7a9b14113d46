"""Programs take weights out of checkpoints, also parameters of which these have several parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mspc.checkpoint.sets import open_checkpoint
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.exported_program import ExportedProgram
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.other_weights import NO_NAMES, JoinedWeight, with_weights
from tests.exported_programs import two_layers

VALUES = {
    "first.weight": np.arange(32, dtype=np.float32).reshape(8, 4),
    "first.bias": np.arange(8, dtype=np.float32),
    "second.weight": np.arange(16, dtype=np.float32).reshape(2, 8),
}


def loaded(folder: Path, tensors: dict[str, Any], names: Any = NO_NAMES, change: Any = None) -> ExportedProgram:
    made = two_layers()
    if change is not None:
        change(made)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / "w.safetensors")
    program = read_program(made.save(folder / "two.pt2"))
    return with_weights(program, open_checkpoint(folder / "w.safetensors"), names)


def test_tensors_of_a_file(tmp_path: Path) -> None:
    program = loaded(tmp_path, VALUES | {"exp_avg.first.bias": VALUES["first.bias"]})
    for name, array in VALUES.items():
        assert np.array_equal(program.weights.read(name), array)


@pytest.mark.parametrize(
    ("joined", "parts"),
    [
        (JoinedWeight((("a",),)), {"a": VALUES["first.weight"]}),
        (JoinedWeight((("a",), ("b",)), None, 0), {"a": VALUES["first.weight"][:3], "b": VALUES["first.weight"][3:]}),
        (
            JoinedWeight((("a",), ("b",)), None, 1),
            {"a": VALUES["first.weight"][:, :1], "b": VALUES["first.weight"][:, 1:]},
        ),
        (JoinedWeight((tuple("abcdefgh"),), 0), {name: VALUES["first.weight"][i] for i, name in enumerate("abcdefgh")}),
        (
            JoinedWeight((tuple("abcdefgh"), tuple("ABCDEFGH")), 0, 1),
            {name: VALUES["first.weight"][i, :3] for i, name in enumerate("abcdefgh")}
            | {name: VALUES["first.weight"][i, 3:] for i, name in enumerate("ABCDEFGH")},
        ),
        (JoinedWeight((tuple("abcd"),), 1), {name: VALUES["first.weight"][:, i] for i, name in enumerate("abcd")}),
    ],
)
def test_parts_of_a_parameter(tmp_path: Path, joined: JoinedWeight, parts: dict[str, Any]) -> None:
    """Every slice of the parameter is read out of the parts that it meets."""
    others = {name: array for name, array in VALUES.items() if name != "first.weight"}
    weights = loaded(tmp_path, others | parts, {"first.weight": joined}).weights
    assert np.array_equal(weights.read("first.weight"), VALUES["first.weight"])
    for rows in range(0, 8, 3):
        part = slice(rows, rows + 2), slice(1, 4)
        assert np.array_equal(weights.read("first.weight", part), VALUES["first.weight"][part])


def test_buffers_may_be_missing(tmp_path: Path) -> None:
    def change(made: Any) -> None:
        made.stored("there", np.zeros(2, np.float32), "buffer", trains=False)
        made.stored("mean", np.full(2, 5, np.float32), "buffer", trains=False)

    weights = loaded(tmp_path, VALUES | {"there": np.ones(2, np.float32)}, change=change).weights
    assert (weights.read("there").tolist(), weights.read("mean").tolist()) == ([1, 1], [5, 5])


@pytest.mark.parametrize(
    ("tensors", "names", "message"),
    [
        ({"first.bias": None}, NO_NAMES, "has no tensor 'first.bias', which is a parameter of"),
        ({"first.bias": np.zeros(7, np.float32)}, NO_NAMES, r"is <Tensor\[Float32\], \(7\)>, and the program"),
        ({"first.bias": np.zeros(8, np.float64)}, NO_NAMES, r"'first.bias' is <Tensor\[Float64\]"),
        ({"x": np.zeros(3, np.float32)}, {"first.bias": JoinedWeight((("x", "y"),), 0)}, "has no tensor 'first.bias'"),
        (
            {"x": np.zeros(3, np.float32), "y": np.zeros(3, np.float32)},
            {"first.bias": JoinedWeight((("x",), ("y",)), None, 0)}, r"'x' is <Tensor\[Float32\], \(6\)>",
        ),
        (
            {"x": np.zeros(4, np.float32), "y": np.zeros(4, np.float64)},
            {"first.bias": JoinedWeight((("x",), ("y",)), None, 0)}, r"'x' is <Tensor\[Float64\]",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit(tmp_path: Path, tensors: dict[str, Any], names: Any, message: str) -> None:
    given = {name: array for name, array in (VALUES | tensors).items() if array is not None}
    with pytest.raises(MspcError, match=message):
        loaded(tmp_path, given, names)


def test_a_parameter_that_nothing_is_computed_of_need_not_be_there(tmp_path: Path) -> None:
    """A run saves what its program has read."""
    head = np.arange(3, dtype=np.float32)
    program = loaded(tmp_path, VALUES, change=lambda made: made.stored("head.bias", head))
    assert np.array_equal(program.weights.read("head.bias"), head)
    assert np.array_equal(program.weights.read("first.bias"), VALUES["first.bias"])


def test_a_program_whose_file_is_gone_takes_weights(tmp_path: Path) -> None:
    """As a module that is exported into a temporary file: what the checkpoint lacks is still read there."""
    made = two_layers()
    made.stored("scale", np.full(3, 2, np.float32), kind="buffer")
    path = made.save(tmp_path / "two.pt2")
    save_file(VALUES, tmp_path / "w.safetensors")
    program = read_program(path)
    path.unlink()
    weights = with_weights(program, open_checkpoint(tmp_path / "w.safetensors")).weights
    assert np.array_equal(weights.read("first.weight"), VALUES["first.weight"])
    assert np.array_equal(weights.read("scale"), np.full(3, 2, np.float32))
