"""A compile stores how initial values are made, and arrays only where the script brought arrays."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save

from mspc.ir.files.tensors import StoredTensor, write_tensors
from tests.compiled_scripts import CompileOptions, compile_target, run_directory, run_script
from tests.errors import error_of
from tests.graphs import MspcError, TensorType, dtype_of
from tests.serving import SERVED, succeed
from tests.texts import IMPORTS

HEAD = IMPORTS + """
from mindspore.common.initializer import initializer, Initializer, Normal, TruncatedNormal, Constant
from mindspore.nn.utils import no_init_parameters

ms.set_seed(5)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, dataset_strategy="full_batch")


class Orthogonal(Initializer):
    def draw(self, generator, shape):
        return np.linalg.qr(generator.standard_normal(shape))[0]


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.described = Parameter(initializer(Normal(0.1), [16, 8], ms.float32), "described")
        self.late = Parameter(Tensor(shape=(8, 8), dtype=ms.float32, init=TruncatedNormal(0.2)), "late")
        self.orthogonal = Parameter(initializer(Orthogonal(), [8, 8]), "orthogonal")
        self.given = Parameter(Tensor(np.arange(64.0).reshape(8, 8) / 64, ms.float32), "given")
        self.changed = Parameter(initializer("normal", [8, 8]), "changed")
        self.halves = Parameter(initializer("normal", [8, 8], ms.bfloat16), "halves")
        self.tied = self.described
        self.mask = initializer(Constant(0.5), [8, 8])
        self.first, self.second = ops.MatMul().shard(((1, 4), (4, 1))), ops.MatMul().shard(((2, 1), (1, 2)))
        self.matmul = ops.MatMul()

    def construct(self, x):
        x = self.second(self.first(x, self.described), self.late)
        x = self.matmul(self.matmul(x, self.orthogonal), self.given) * self.mask
        x = self.matmul(x, self.changed + ops.cast(self.halves, ms.float32))
        return ops.reduce_sum(self.matmul(x, ops.transpose(self.tied, (1, 0))))


net = Net()
net.changed[0] = 3
seen = net.described.asnumpy()
step = nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 0.01))
"""
TRAIN = (
    HEAD
    + """
x = Tensor(np.random.default_rng(1).random((8, 16)), ms.float32)
for _ in range(3):
    print("loss", step(x))
for parameter in step.get_parameters():
    np.save(f"after_{parameter.name}.npy", parameter.asnumpy().astype(np.float32))
"""
)
STATES = [f"{moment}.{name}" for moment in ("moment1", "moment2") for name in
          ("described", "late", "orthogonal", "given", "changed", "halves")]  # fmt: skip
MADE = {"described", "late", "halves", "network.mask", *STATES}
BROUGHT = {"orthogonal", "given", "changed", "beta1_power", "beta2_power", "learning_rate", "global_step"}


@pytest.fixture
def script(own_folder: Path) -> Path:
    np.savez("data.npz", inputs0=np.random.default_rng(1).random((8, 16)).astype(np.float32))
    path = own_folder / "train.py"
    path.write_text(TRAIN)
    return path


def compiled(script: Path, ranks: int = 4, weights: bool = False) -> Path:
    options = CompileOptions(ranks=ranks, out=Path("out"), json=Path("table.json"), weights=weights)
    compile_target(str(script), options)
    return Path("out")


def facts(folder: Path) -> dict[str, Any]:
    parameters = json.loads((folder / "program.json").read_text())["parameters"]
    return {entry["name"]: entry.get("initial") for entry in parameters}


def test_arrays_are_kept_only_where_the_script_brought_arrays(script: Path) -> None:
    folder = compiled(script)
    initial = facts(folder)
    assert {name for name, entry in initial.items() if entry is not None} == MADE
    assert {name for name, entry in initial.items() if entry is None} == BROUGHT
    weights = load_file(folder / "weights.safetensors")
    assert set(weights) == BROUGHT
    assert (weights["changed"][0] == 3).all()
    assert initial["described"] == {"initializer": "Normal", "sigma": 0.1, "mean": 0.0, "seed": 5, "counter": 0}
    assert initial["network.mask"] == {"initializer": "Constant", "value": 0.5}
    assert initial["moment1.described"] == {"initializer": "Constant", "value": 0}


def test_with_weights_all_are_written(script: Path) -> None:
    folder = compiled(script, weights=True)
    weights = load_file(folder / "weights.safetensors")
    assert set(weights) == MADE | BROUGHT
    assert weights["halves"].dtype == ml_dtypes.bfloat16
    assert {name for name, entry in facts(folder).items() if entry is not None} == MADE


def after(folder: Path = Path()) -> dict[str, Any]:
    return {path.stem.removeprefix("after_"): np.load(path) for path in folder.glob("after_*.npy")}


def test_a_compiled_program_starts_from_the_scripts_values(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where other ranks hold other slices: the values do not depend on how they are sharded."""
    run_script(script, 4, simulate=True, only_rank=0)
    losses = capsys.readouterr().out.replace("loss ", "")
    wanted = after()
    folder = compiled(script)
    for _ in range(2):
        capsys.readouterr()
        run_directory(folder, data=Path("data.npz"), steps=3, simulate=True, save=Path("saved.safetensors"))
        said = capsys.readouterr().out
        assert "".join(f"{line.rpartition(' ')[2]}\n" for line in said.splitlines()) == losses
        saved = load_file("saved.safetensors")
        assert set(saved) == MADE | BROUGHT
        for name, array in wanted.items():
            np.testing.assert_array_equal(saved[name].astype(np.float32), array)
        folder = compiled(script, weights=True)


def test_initial_values_do_not_depend_on_the_number_of_ranks(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    starts: list[dict[str, Any]] = []
    for ranks in (1, 2, 4):
        text = TRAIN.replace("Adam(net.trainable_params(), 0.01)", "SGD(net.trainable_params(), 0.0)")
        text = text.replace("device_num=4", f"device_num={ranks}").replace(
            "(1, 4), (4, 1)", f"(1, {ranks}), ({ranks}, 1)"
        )
        text = text.replace("((2, 1), (1, 2))", "((1, 1), (1, 1))")
        other = script.with_name(f"train{ranks}.py")
        other.write_text(text)
        run_directory(compiled(other, ranks), data=Path("data.npz"), simulate=True, save=Path("saved.safetensors"))
        starts.append(load_file("saved.safetensors"))
    for other in starts[1:]:
        for name in ("described", "late", "orthogonal", "given", "changed", "halves", "network.mask"):
            np.testing.assert_array_equal(other[name], starts[0][name])


def test_mpirun_makes_the_same_values(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = compiled(script)
    run_directory(folder, data=Path("data.npz"), steps=2, simulate=True, save=Path("one.safetensors"))
    command = [*SERVED, "run", str(folder), "--data", "data.npz", "--steps", "2"]
    succeed(*command, "--save", "two.safetensors")
    assert Path("one.safetensors").read_bytes() == Path("two.safetensors").read_bytes()


def test_a_file_of_weights_goes_before_descriptions(script: Path) -> None:
    """Trained values take the place of the first ones when they are put into the folder."""
    folder = compiled(script)
    run_directory(folder, data=Path("data.npz"), simulate=True, save=Path("all.safetensors"))
    Path("all.safetensors").replace(folder / "weights.safetensors")
    run_directory(folder, data=Path("data.npz"), simulate=True, steps=1, save=Path("again.safetensors"))
    assert (load_file("again.safetensors")["global_step"] == 2).all()


def test_a_folder_without_descriptions_still_runs(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As earlier versions of mspc wrote it: all values are in the weights."""
    folder = compiled(script, weights=True)
    capsys.readouterr()
    run_directory(folder, data=Path("data.npz"), simulate=True)
    wanted = capsys.readouterr().out
    path = folder / "program.json"
    content = json.loads(path.read_text())
    for entry in content["parameters"]:
        entry.pop("initial", None)
    path.write_text(json.dumps(content))
    run_directory(folder, data=Path("data.npz"), simulate=True)
    assert capsys.readouterr().out == wanted


def damaged(folder: Path, which: str, **changes: Any) -> str:
    path = folder / "program.json"
    before = path.read_text()
    content = json.loads(before)
    for entry in content["parameters"]:
        if entry["name"] == which:
            entry.update(changes)
    path.write_text(json.dumps(content))
    error = error_of(run_directory, folder, data=Path("data.npz"), simulate=True)
    path.write_text(before)
    assert error.exit_status == 2
    return error.render()


def test_damaged_descriptions_are_refused(script: Path) -> None:
    folder = compiled(script)
    place = "error: out/program.json: parameter 'described'"
    normal = facts(folder)["described"]
    assert damaged(folder, "described", initial=7) == (
        f"{place}: how its initial value is made is damaged: it is int, not an object"
    )
    assert "'sigma'" in damaged(folder, "described", initial={k: v for k, v in normal.items() if k != "sigma"})
    assert "counter is -1" in damaged(folder, "described", initial=normal | {"counter": -1})
    assert "unknown initializer 'os.system'" in damaged(folder, "described", initial={"initializer": "os.system"})
    assert damaged(folder, "described", shape=[8, 16]).startswith(f"{place} has shape (8, 16); the program takes")
    assert "shape is '8', not a whole number" in damaged(folder, "described", shape=[16, "8"])
    assert place in damaged(folder, "described", dtype="Float33")
    assert place in damaged(folder, "described", dtype=4)
    assert damaged(folder, "described", name="other") == (
        "error: out/weights.safetensors holds no parameter 'described'\n"
        "  note: nor does program.json say how its values are made"
    )


def test_nothing_to_bring_needs_no_file(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        HEAD.split("class Net")[0]
        + """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        with no_init_parameters():
            self.w = Parameter(initializer("normal", [8, 8]), "w")
        self.matmul = ops.MatMul().shard(((1, 4), (4, 1)))

    def construct(self, x):
        return self.matmul(x, self.w)

net = Net()
print(net(Tensor(np.ones((4, 8)), ms.float32)))
"""
    )
    script.write_text(text)
    folder = compiled(script)
    np.savez("data.npz", x=np.ones((4, 8), np.float32))
    assert load_file(folder / "weights.safetensors") == {}
    (folder / "weights.safetensors").unlink()
    run_directory(folder, data=Path("data.npz"), simulate=True)
    assert "step: 1, output 0: shape (4, 8)" in capsys.readouterr().out


def test_an_initializer_that_makes_no_such_tensor_is_named(script: Path) -> None:
    text = TRAIN.replace("Constant(0.5), [8, 8])", "'xavier_uniform', [24])")
    script.write_text(text.replace("* self.mask", "+ ops.reduce_sum(self.mask)"))
    with pytest.raises(MspcError, match=r"^error: parameter 'network.mask': this initializer needs at least 2 dim"):
        compiled(script)


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16", "Bool", "Int64", "UInt16"])
def test_files_have_the_bytes_of_the_library(tmp_path: Path, dtype: str) -> None:
    arrays = {
        "b": np.ones((3, 4), dtype_of(dtype).numpy),
        "a": np.arange(6.0).reshape(2, 3).T,
        "é": np.zeros((0, 3), np.float16),
        "scalar": np.float32(2.5).reshape(()),
    }
    tensors = [StoredTensor(n, TensorType(dtype_of(a.dtype), a.shape), lambda a=a: a) for n, a in arrays.items()]
    with open(tmp_path / "file", "wb") as file:
        write_tensors(file, tensors)
    wanted = save({name: np.require(array, requirements="C") for name, array in arrays.items()})
    assert (tmp_path / "file").read_bytes() == wanted


@pytest.mark.parametrize("shape", [(40, 7, 5), (3, 1000), (5000,)])
def test_large_tensors_are_written_in_parts(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows at a time, as many as fit, and the bytes of the whole."""
    monkeypatch.setattr("mspc.ir.files.tensors.IN_MEMORY", 1024)
    values, parts = np.random.default_rng(3).normal(size=shape).astype(np.float32), list[int]()

    def part(box: tuple[slice, ...]) -> Any:
        parts.append(values[box].nbytes)
        return values[box]

    whole = StoredTensor("w", TensorType(dtype_of(np.float32), shape), lambda: pytest.fail("it is made as one"), part)
    small = StoredTensor("s", TensorType(dtype_of(np.float32), ()), lambda: np.float32(2), part)
    with open(tmp_path / "w.safetensors", "wb") as file:
        write_tensors(file, [whole, small])
    found = load_file(tmp_path / "w.safetensors")
    assert found["s"] == 2
    assert np.array_equal(found["w"], values)
    assert len(parts) > 1
    assert max(parts) <= max(1024, values[:1].nbytes)
    assert sum(parts) == values.nbytes
