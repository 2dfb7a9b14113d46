"""Parameters that are several weights one behind another: their parts are parameters where a plan cuts them.

Programs take weights out of checkpoints, also parameters of which these have several parts.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import mspc as ms
from mspc import Tensor
from mspc.checkpoint.sets import open_checkpoint
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.exported_program import ExportedProgram
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.other_weights import NO_NAMES, JoinedWeight, with_weights
from mspc.readers.pytorch.plans.packed import unpacked
from mspc.readers.pytorch.plans.strategies import planned
from mspc.readers.pytorch.plans.written_plan import plan_of
from tests.exported_programs import Exported, two_layers
from tests.serving import serve

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
    done = serve("compile", str(file), "--ranks", "4", "--plan", "plan.json", "--json", "-", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [each["operator"] for each in json.loads(done.stdout)["collectives"]] == ["AllReduce"]
    done = serve("verify", str(file), "--ranks", "4", "--plan", "plan.json", cwd=tmp_path)
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
