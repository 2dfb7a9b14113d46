"""Files of captured steps that are damaged, lie, or are something else: one message each, and nothing is run."""

import copy
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.compile import CompileOptions, find_call
from mspc.ir.diagnostics import MspcError
from mspc.output.dumps import NO_FILES
from mspc.output.programs import compile_for
from mspc.readers.pytorch import placed
from mspc.readers.pytorch.captured import read_step
from tests.errors import error_of

WEIGHT = {"kind": "parameter", "name": "w", "tensor": ["v0", "float32", [4]], "shape": [8], "mesh": [0, 1],
          "placements": ["S(0)"], "value": 0}  # fmt: skip
STEP: dict[str, Any] = {
    "version": 2, "torch": "2.13.0", "script": "train.py", "rank": 1, "ranks": 2,
    "groups": {"3": {"ranks": [0, 1], "about": "mesh_data"}},
    "inputs": [WEIGHT, {"kind": "user", "name": "0", "tensor": ["v1", "float32", [4]], "shape": [4]}],
    "nodes": [
        ["aten.mul.Tensor", {"self": {"tensor": "v0"}, "other": {"tensor": "v1"}}, 0, [["v2", "float32", [4]]], 0],
        ["aten.sum.default", {"self": {"tensor": "v2"}}, 0, [["v3", "float32", []]], 0],
        ["_c10d_functional.all_reduce.default", {"input": {"tensor": "v3"}, "reduce_op": "sum", "group_name": "3"}, 0,
         [["v4", "float32", []]], 0],
    ],
    "places": [[[["train.py", 7, "loss = (w * x).sum()"]], [["", "Net"], ["layers.0", "Layer"]]]],
    "outputs": [["loss", "", "v4"]],
}  # fmt: skip


def written(path: Path, change: Callable[[dict[str, Any]], Any] = lambda step: None, count: int = 4) -> Path:
    step = copy.deepcopy(STEP)
    change(step)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("step/capture.json", json.dumps(step))
        archive.writestr("step/value_0", np.arange(count, dtype=np.float32).tobytes())
    return path


def put(*keys: Any, value: Any) -> Callable[[Any], None]:
    def change(step: Any) -> None:
        for key in keys[:-1]:
            step = step[key]
        step[keys[-1]] = value

    return change


def test_a_step_is_read(tmp_path: Path) -> None:
    step = read_step(written(tmp_path / "rank_1.step"))
    assert (step.rank, step.ranks, [*step.groups.values()]) == (1, 2, [(0, 1)])
    node = step.program.graph.nodes[0]
    assert (node.scope, node.modules, str(node.user_line)) == ("layers.0", ("Net", "Layer"), "train.py:7")
    assert step.program.weights.read("w").tolist() == [0, 1, 2, 3]
    assert [each.qualified for each in step.program.inputs] == ["w", "input_0"]


@pytest.mark.parametrize(("change", "said"), [
    (put("version", value=1), "is of version 1 of captures; mspc reads version 2"),
    (put("rank", value=2), "its rank is 2, not a whole number from 0 to 1"),
    (put("ranks", value=True), "its ranks is True"),
    (put("groups", "3", "ranks", value=[0, 2]), "group '3' is 2, not a whole number from 0 to 1"),
    (put("groups", value={}), "names group '3', which the file does not list"),
    (put("inputs", 0, "kind", value="secret"), "input 0 is of kind 'secret'"),
    (put("inputs", 1, "name", value="w"), "it has 'w' twice"),
    (put("inputs", 1, "tensor", 0, value="v0"), "input 1 is called 'v0', as another value before it"),
    (put("inputs", 1, "tensor", 1, value="float8_e5m2"), "input 1 is of float8_e5m2, which mspc does not have"),
    (put("inputs", 1, "tensor", 1, value="__import__"), "input 1 has element type '__import__'"),
    (put("inputs", 1, "tensor", 2, value=[-4]), "input 1: sizes is -4"),
    (put("inputs", 1, "tensor", 2, value=[1] * 99), "input 1 has 99 dimensions"),
    (put("inputs", 0, "placements", value=["S(0)", "R"]), "has 2 placements for a mesh of 1 dimensions"),
    (put("inputs", 0, "mesh", value=[[0, 1], [0]]), "has a mesh that is no array"),
    (put("inputs", 0, "mesh", value=[0, 5]), "mesh is 5, not a whole number from 0 to 1"),
    (put("inputs", 0, "value", value=1), "it has no value_1"),
    (put("inputs", 0, "tensor", 2, value=[1 << 40]), "16 bytes of it are stored"),
    (put("nodes", 0, 1, "self", value={"tensor": "v9"}), "is 'v9', which nothing before it gives"),
    (put("nodes", 0, 1, "self", value={"pickle": "gASV"}), "has an argument of kind 'pickle'"),
    (put("nodes", 0, 4, value=7), "node 0 (aten.mul.Tensor) is 7, not a whole number from 0 to 0"),
    (put("nodes", 0, value=["aten.mul.Tensor"]), "node 0 has 1 entries, not 5"),
    (put("outputs", 0, 0, value="hook"), "an output is of kind 'hook'"),
    (put("inputs", 0, value={"kind": "constant", "name": "c", "tensor": ["v0", "float32", [4]], "shape": [4]}),
     "aten.mul.Tensor reads a tensor of shape (4,) that was made before the step"),
])  # fmt: skip
def test_damaged_files(change: Callable[[Any], None], said: str, tmp_path: Path) -> None:
    error = error_of(read_step, written(tmp_path / "rank_1.step", change))
    assert said in error.message
    assert "train.py:7" in str(error) or "rank_1.step" in error.message


def test_other_files_are_no_steps(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.step"
    path.write_bytes(pickle.dumps({"step": print}))
    with pytest.raises(MspcError, match="it is no zip archive"):
        read_step(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(print))
    with pytest.raises(MspcError, match=r"is no captured step: it has no capture\.json"):
        read_step(path)


def test_sizes_that_are_not_those_of_the_operator_are_refused(tmp_path: Path) -> None:
    def alone(step: dict[str, Any]) -> None:
        step.update(rank=0, ranks=1, groups={}, nodes=step["nodes"][:2], outputs=[["loss", "", "v3"]])
        step["inputs"][0].update(shape=[4], mesh=None)
        step["nodes"][0][3] = [["v2", "float32", [6]]]

    written(tmp_path / "rank_0.step", alone)
    with pytest.raises(MspcError, match=r"aten\.mul\.Tensor") as raised:
        compile_for(*(lambda call: (call.captured, call.ranks))(find_call(str(tmp_path), CompileOptions())), NO_FILES)
    assert "train.py:7" in str(raised.value)


@pytest.mark.parametrize(("whole", "placements", "said"), [
    ((8,), ["S(0)"], ""), ((8,), ["_S(0, 2)"], ""), ((6,), ["S(0)"], "w is (8,) on all ranks, and (6,) on one device"),
    ((8,), ["R"], "of (8,) is (8,) on rank 1"), ((8,), ["S(1)"], "w of shape (8,) has placement 'S(1)'"),
    ((8,), ["Shard[dim]"], "has placement 'Shard[dim]', which mspc does not know"),
])  # fmt: skip
def test_placements_fit_the_shapes(whole: tuple[int, ...], placements: list[str], said: str, tmp_path: Path) -> None:
    step = read_step(written(tmp_path / "rank_1.step", put("inputs", 0, "placements", value=placements)))
    if not said:
        assert placed.layout(step, (2,), "w", (4,), whole).local_shape(whole) == (4,)
        return
    assert said in error_of(placed.layout, step, (2,), "w", (4,), whole).message
