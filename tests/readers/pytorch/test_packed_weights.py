"""Parameters that are several weights one behind another: their parts are parameters where a plan cuts them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor
from mspc.checkpoint.sets import open_checkpoint
from mspc.readers.pytorch.exported_program import ExportedProgram
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.other_weights import with_weights
from mspc.readers.pytorch.plans.packed import unpacked
from mspc.readers.pytorch.plans.strategies import planned
from mspc.readers.pytorch.plans.written_plan import plan_of
from tests.exported_programs import Exported
from tests.readers.pytorch.test_layer_plans import mspc

ROWS, WIDTH, INNER = 6, 4, 8
LAYERS = {"gate_up": "packed_colwise", "down": "rowwise"}


def gated(path: Path, turned: bool = False, sizes: object = None, read_again: bool = False) -> Path:
    """A gate and what it lets through, out of one product, times each other, and a product of that.

    turned: the weight is [in, out], as `addmm` takes it. sizes: of the parts, where they are given as such. read_again:
    another operator reads the weight, too.
    """
    made, random = Exported(), np.random.default_rng(0)
    shape = (WIDTH, 2 * INNER) if turned else (2 * INNER, WIDTH)
    weight, bias, down = (
        made.stored(name, random.normal(size=size).astype(np.float32))
        for name, size in (("gate_up.weight", shape), ("gate_up.bias", (2 * INNER,)), ("down.weight", (WIDTH, INNER)))
    )
    x = made.user("x", "float32", (ROWS, WIDTH))
    wide, half = ("float32", (ROWS, 2 * INNER)), ("float32", (ROWS, INNER))
    if turned:
        both = made.node("aten.addmm.default", {"self": bias, "mat1": x, "mat2": weight}, {"both": wide}, "gate_up")
    else:
        both = made.node("aten.linear.default", {"input": x, "weight": weight, "bias": bias}, {"both": wide}, "gate_up")
    parts = {"gate": half, "up": half}
    if sizes is None:
        made.node("aten.chunk.default", {"self": both, "chunks": 2, "dim": -1}, parts)
    else:
        made.node("aten.split_with_sizes.default", {"self": both, "split_sizes": sizes, "dim": 1}, {
            "gate": ("float32", (ROWS, sizes[0])), "up": ("float32", (ROWS, sizes[1])),  # type: ignore[index]
        })  # fmt: skip
    if read_again:
        made.node("aten.neg.default", {"self": weight}, {"negative": ("float32", shape)})
    if sizes is None or sizes == [INNER, INNER]:
        x = made.node("aten.mul.Tensor", {"self": "gate", "other": "up"}, {"mixed": half})
        x = made.node("aten.linear.default", {"input": x, "weight": down}, {"out": ("float32", (ROWS, WIDTH))}, "down")
    made.output(x)
    return made.save(path / "gated.pt2")


def apart(program: ExportedProgram) -> ExportedProgram:
    return planned(program, plan_of("plan", {"layers": LAYERS}, 4)).program


@pytest.mark.parametrize(("turned", "sizes"), [(False, None), (True, None), (True, [INNER, INNER])])
def test_parts_are_slices_of_the_parameter(tmp_path: Path, turned: bool, sizes: object) -> None:
    program = read_program(gated(tmp_path, turned, sizes))
    found = apart(program)
    whole = program.weights.read("gate_up.weight")
    dim = 1 if turned else 0
    for number in range(2):
        begin = number * INNER
        part = found.weights.read(f"gate_up.weight[{number}]")
        np.testing.assert_array_equal(part, whole.take(range(begin, begin + INNER), dim))
        some = found.weights.read(f"gate_up.weight[{number}]", (slice(1, 3), slice(1, 3)))
        np.testing.assert_array_equal(some, part[1:3, 1:3])
    np.testing.assert_array_equal(found.weights.read("down.weight"), program.weights.read("down.weight"))
    x = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32)
    one, other = (ImportedNetwork(each)(Tensor(x)).asnumpy() for each in (program, found))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_nothing_is_gathered(tmp_path: Path) -> None:
    file = gated(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(LAYERS))
    done = mspc("compile", str(file), "--ranks", "4", "--plan", "plan.json", "--json", "-", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [each["operator"] for each in json.loads(done.stdout)["collectives"]] == ["AllReduce"]
    done = mspc("verify", str(file), "--ranks", "4", "--plan", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("sizes", "read_again"), [([INNER + 2, INNER - 2], False), (None, True)], ids=["other sizes", "read twice"]
)
def test_what_is_not_packed_so_stays(tmp_path: Path, sizes: object, read_again: bool) -> None:
    program = read_program(gated(tmp_path, False, sizes, read_again))
    found, parts = unpacked(program, ["gate_up.weight"])
    assert not parts
    assert found is program


def test_a_parameter_that_no_plan_names_stays(tmp_path: Path) -> None:
    program = read_program(gated(tmp_path))
    assert unpacked(program, ["down.weight"]) == (program, {})


def test_what_a_run_saves_is_loaded_again(tmp_path: Path) -> None:
    """A checkpoint has the parts, and the module the whole parameter."""
    program = read_program(gated(tmp_path))
    found = apart(program)
    names = [each.qualified for each in found.inputs if each.kind == "parameter"]
    tensors = {name: 2 * found.weights.read(name) for name in names}
    assert {"gate_up.weight[0]", "gate_up.bias[1]"} <= set(tensors)
    ms.save_checkpoint([{"name": name, "data": Tensor(value)} for name, value in tensors.items()],
                       str(tmp_path / "saved"), format="safetensors")  # fmt: skip
    loaded = with_weights(program, open_checkpoint(tmp_path / "saved.safetensors"))
    for name in ("gate_up.weight", "gate_up.bias", "down.weight"):
        np.testing.assert_array_equal(loaded.weights.read(name), 2 * program.weights.read(name))
