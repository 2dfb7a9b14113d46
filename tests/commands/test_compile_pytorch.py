"""Commands take exported programs of PyTorch: with losses, optimizers and sizes, and clear messages for the rest."""

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.exported_programs import Exported, size, two_layers
from tests.serving import serve, succeed


def table(*arguments: str, cwd: Path) -> dict[str, object]:
    done = serve("compile", *arguments, "--json", "-", "--quiet", cwd=cwd, status=0)
    return json.loads(done.stdout)


def refused(*arguments: str, cwd: Path) -> str:
    done = serve(*arguments, cwd=cwd, status=2)
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with `two.pt2`, 8 rows."""
    two_layers(8).save(tmp_path / "two.pt2")
    return tmp_path


def run(here: Path, *flags: str, steps: int = 1) -> tuple[str, dict[str, np.ndarray]]:
    """The output of two ranks of a compile and the parameters after their last step, for inputs that are known."""
    done = serve("compile", "two.pt2", "-n", "2", "--out", "made", *flags, cwd=here, status=0)
    rows = np.random.default_rng(1)
    inputs = {"x": rows.normal(size=(8, 4)).astype(np.float32)}
    if flags:
        inputs["labels"] = rows.normal(size=(8, 2)).astype(np.float32)
    np.savez(here / "data.npz", **inputs)
    outputs = ["--save", "after.safetensors", "--save-outputs", "out.npz"]
    done = serve("run", "made", "--simulate", "--data", "data.npz", "--steps", str(steps), *outputs, cwd=here, status=0)
    return done.stdout, load_file(here / "after.safetensors")


def forward() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    values = np.random.default_rng(3)
    w, b, v = (values.normal(size=shape).astype(np.float32) for shape in ((8, 4), (8,), (2, 8)))
    x = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
    return np.maximum(x @ w.T + b, 0) @ v.T, {"first.weight": w, "first.bias": b, "second.weight": v}


def test_inference(here: Path) -> None:
    """The program as it is; weights come out of the archive, rows are sharded over the ranks."""
    _, after = run(here)
    expected, weights = forward()
    with np.load(here / "out.npz") as found:
        np.testing.assert_allclose(next(iter(found.values())), expected, rtol=1e-5)
    assert {name: array.shape for name, array in after.items()} == {n: a.shape for n, a in weights.items()}


def test_a_step_of_training(here: Path) -> None:
    """One step of plain descent of the mean squared error moves the last weight by what its formula says."""
    _, after = run(here, "--loss", "mse", "--optimizer", "sgd:lr=0.1")
    result, weights = forward()
    rows = np.random.default_rng(1)
    x = rows.normal(size=(8, 4)).astype(np.float32)
    labels = rows.normal(size=(8, 2)).astype(np.float32)
    hidden = np.maximum(x @ weights["first.weight"].T + weights["first.bias"], 0)
    gradient = (2 * (result - labels) / result.size).T @ hidden
    np.testing.assert_allclose(after["second.weight"], weights["second.weight"] - 0.1 * gradient, rtol=1e-4, atol=1e-6)


def test_weights_of_a_checkpoint(here: Path) -> None:
    """Values that a run has saved are loaded under the module's names, also where the program has no values."""
    _, after = run(here, "--loss", "mse", "--optimizer", "sgd:lr=0.1")
    made = two_layers(8)
    made.members |= {name: b"" for name in made.members if name.startswith("data/weights/")}
    made.save(here / "bare.pt2")
    flags = ["--load", "after.safetensors", "--out", "again"]
    for target in ("two.pt2", "bare.pt2"):
        serve("compile", target, "-n", "2", *flags, cwd=here, status=0)
        found = load_file(here / "again" / "weights.safetensors")
        for name in ("first.weight", "first.bias", "second.weight"):
            assert np.array_equal(found[name], after[name])
    error = refused("compile", "two.pt2", "--load", "none.safetensors", cwd=here)
    assert "there is no checkpoint 'none.safetensors'" in error
    save_file({"first.weight": after["first.weight"], "first.bias": after["first.bias"]}, here / "part.safetensors")
    error = refused("compile", "two.pt2", "--load", "part.safetensors", cwd=here)
    assert "part.safetensors has no tensor 'second.weight', which is a parameter of two.pt2" in error
    save_file({**after, "first.bias": np.zeros(9, np.float32)}, here / "wrong.safetensors")
    error = refused("compile", "two.pt2", "--load", "wrong.safetensors", cwd=here)
    assert "'first.bias' is <Tensor[Float32], (9)>, and the program has Float32[8]" in error
    assert "--load is for a network of PyTorch" in refused("compile", "net.py", "--load", "part.safetensors", cwd=here)


def test_parts_of_a_batch(here: Path) -> None:
    """Gradients of parts are added up: a step over two batches that are the same is the step over one of them."""
    _, once = run(here, "--loss", "mse", "--optimizer", "sgd:lr=0.1")
    flags = ["--loss", "mse", "--optimizer", "sgd:lr=0.1", "--accumulate", "2"]
    serve("compile", "two.pt2", "-n", "2", "--out", "made", *flags, cwd=here, status=0)
    with np.load(here / "data.npz") as given:
        np.savez(here / "twice.npz", **{name: np.concatenate([array, array]) for name, array in given.items()})
    wanted = ["--data", "twice.npz", "--steps", "1", "--save", "twice.safetensors"]
    serve("run", "made", "--simulate", *wanted, cwd=here, status=0)
    for name, array in load_file(here / "twice.safetensors").items():
        np.testing.assert_allclose(array, once[name], rtol=1e-5, atol=1e-7)


def test_mixed_precision(here: Path) -> None:
    """Products are computed in bfloat16, and weights stay in Float32."""
    _, wide = run(here, "--loss", "mse", "--optimizer", "sgd:lr=0.1")
    _, narrow = run(here, "--loss", "mse", "--optimizer", "sgd:lr=0.1", "--precision", "bfloat16")
    moved = {name: np.abs(array - wide[name]).max() for name, array in narrow.items()}
    assert all(array.dtype == wide[name].dtype for name, array in narrow.items())
    assert 1e-6 < moved["second.weight"] < 0.02
    found = table("two.pt2", "-n", "2", "--loss", "mse", "--precision", "bfloat16", "--out", "made", cwd=here)
    assert "Cast" in json.dumps(found)


def test_a_program_is_compiled_for_gpus(here: Path) -> None:
    flags = ["--loss", "mse", "--precision", "tf32", "--device", "gpu", "--save-graphs", "--out", "made"]
    serve("compile", "two.pt2", *flags, cwd=here, status=0)
    settings = json.loads((here / "made" / "program.json").read_text())["settings"]
    assert settings == {"matmul_allow_tf32": True, "device_target": "GPU"}
    assert [path for path in (here / "made" / "rank_0").iterdir() if "fuse_rows" in path.name]


def test_verify_and_the_table(here: Path) -> None:
    done = serve("verify", "two.pt2", "-n", "4", "--loss", "mse", "--optimizer", "adamw:lr=0.01", cwd=here, status=0)
    assert "on 4 ranks within" in done.stdout
    found = table("two.pt2", "-n", "4", "--loss", "mse", "--optimizer", "adamw", "--out", "made", cwd=here)
    text = json.dumps(found)
    assert "net.py:11" in text
    assert "first.weight" in text
    assert "AllReduce" in text


def test_search_and_its_plan(here: Path) -> None:
    serve("search", "two.pt2", "-n", "2", "--loss", "mse", "--out", "plan.toml", "--quiet", cwd=here, status=0)
    serve("compile", "two.pt2", "-n", "2", "--loss", "mse", "--strategies", "plan.toml", cwd=here, status=0)


def test_other_commands(here: Path) -> None:
    """They compile it as they compile a script; a run is of a folder."""
    flags = ["-n", "2", "--loss", "mse", "--optimizer", "sgd"]
    serve("view", "two.pt2", *flags, "--out", "two.html", cwd=here, status=0)
    assert "second.weight" in (here / "two.html").read_text()
    serve("check", "two.pt2", *flags, "--max-collectives", "AllReduce=9", cwd=here, status=0)
    assert serve("check", "two.pt2", *flags, "--max-bytes", "1", cwd=here).returncode == 1
    serve("diff", "two.pt2", "two.pt2", *flags, cwd=here, status=0)
    error = refused("run", "two.pt2", cwd=here)
    assert "mspc compile two.pt2 --ranks 8 --out DIR" in error
    serve("compile", "two.pt2", *flags, "--out", "made", cwd=here, status=0)
    assert "takes no --loss" in refused("view", "made", "--loss", "mse", cwd=here)


def test_ranks_that_do_not_divide_the_batch(here: Path) -> None:
    done = serve("compile", "two.pt2", "-n", "3", cwd=here, status=0)
    assert "3 ranks do not divide the 8 rows of the first input" in done.stderr
    assert serve("compile", "two.pt2", "-n", "4", cwd=here).stderr == ""


def test_an_archive_by_another_name(here: Path) -> None:
    (here / "two.pt2").rename(here / "model.ep")
    serve("compile", "model.ep", "-n", "2", cwd=here, status=0)


def test_classes(tmp_path: Path) -> None:
    two_layers(8).save(tmp_path / "two.pt2")
    found = table("two.pt2", "-n", "2", "--loss", "cross_entropy", "--optimizer", "sgd", "--out", "made", cwd=tmp_path)
    assert "LogSoftmax" in json.dumps(found) or "NLLLoss" in json.dumps(found)


def test_open_sizes(tmp_path: Path) -> None:
    made = two_layers("s0")
    made.content["range_constraints"] = {"s0": {"min_val": 2, "max_val": 64}}
    made.save(tmp_path / "open.pt2")
    table("open.pt2", "-n", "2", "--size", "x.0=10", "--out", "made", cwd=tmp_path)
    inputs = json.loads((tmp_path / "made" / "program.json").read_text())["inputs"]
    assert "10" in json.dumps(inputs)
    error = refused("compile", "open.pt2", "--size", "x.0=65", cwd=tmp_path)
    assert "the size s0 (x.0) is 65; it may be from 2 to 64" in error
    for made_up, message in (("x.0", "cannot read --size"), ("y=3", "has no size 'y'"), ("x.0=-3", "cannot read")):
        assert message in refused("compile", "open.pt2", "--size", made_up, cwd=tmp_path)
    assert "two numbers" in refused("compile", "open.pt2", "--size", "x.0=4", "--size", "x.0=6", cwd=tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--loss", "los"], "has no result 'los' to be the loss"),
        (["--loss", "y"], "its result 'y' is Float32[8, 2], and no loss"),
        (["--optimizer", "adamw"], "returns no loss"),
        (["--loss", "mse", "--optimizer", "adamv"], "did you mean 'adam' or 'adamw'?"),
        (["--loss", "mse", "--optimizer", "adamw:rate=1"], "the optimizer adamw has no 'rate'"),
        (["--loss", "mse", "--optimizer", "adamw:lr=f()"], "cannot read 'adamw:lr=f()' as an optimizer"),
        (["--loss", "mse", "--optimizer", "adamw:lr=1e400"], "cannot read 'adamw:lr=1e400' as an optimizer"),
        (["--loss", "mse", "--optimizer", "adamw:betas=(0.9, 1e400)"], "cannot read 'adamw:betas="),
        (["--loss", "mse", "--optimizer", "adamw:lr=1,lr=2"], "cannot read"),
        (["--loss", "mse", "--optimizer", "adamw:lr='x'"], "error"),
        (["--precision", "float4"], "no precision 'float4'; there are float32, tf32, bfloat16, float16, float8"),
        (["--precision", "int8"], "there is no precision 'int8'"),
        (["--device", "cuda"], "there is no --device 'cuda' to compile for"),
        (["--accumulate", "2"], "nothing is trained"),
        (["--loss", "mse", "--accumulate", "0"], "at least 1"),
        (["--input", "float32[8,4]"], "two.pt2 knows its inputs"),
        (["--strategies", "none.toml"], "none.toml"),
        (["--torch"], "--torch is for a function that gives a module"),
    ],
)
def test_flags_that_do_not_fit(here: Path, flags: list[str], message: str) -> None:
    assert message in refused("compile", "two.pt2", *flags, cwd=here)


@pytest.mark.parametrize(
    "flags", [["--loss", "mse"], ["--optimizer", "adamw"], ["--size", "x.0=3"], ["--accumulate", "2"]]
)
def test_flags_of_other_targets(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "net.py").write_text("print('runs')\n")
    error = refused("compile", "net.py", *flags, cwd=tmp_path)
    assert f"{flags[0]} is for a network of PyTorch, and net.py is none" in error


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"no archive", "it is no zip archive"), (None, "there is no file 'two.pt2'"), (b"PK\x03\x04 no more", "damaged")],
)
def test_bad_files(here: Path, content: bytes | None, message: str) -> None:
    (here / "two.pt2").unlink()
    if content is not None:
        (here / "two.pt2").write_bytes(content)
    for verb in ("compile", "verify", "search"):
        assert message in refused(verb, "two.pt2", "-n", "2", cwd=here)


def test_kinds_that_are_not_known(tmp_path: Path) -> None:
    made = two_layers()
    for number, kind in enumerate(("aten.fantastic.default", "aten.fantastic.default", "mine.own.default")):
        made.node(kind, {"self": "relu"}, {f"f{number}": ("float32", (6, 8))}, "second", 20 + number)
    made.save(tmp_path / "unknown.pt2")
    error = refused("compile", "unknown.pt2", cwd=tmp_path)
    assert "aten.fantastic.default" in error
    assert "mine.own.default" in error
    assert "net.py:20" in error
    assert "net.py:22" in error


def test_sizes_that_depend_on_data(tmp_path: Path) -> None:
    made: Exported = two_layers()
    made.graph["sym_int_values"] = {"u": size("u0")}
    made.node("aten.nonzero.default", {"self": "x"}, {"found": ("int64", ("u0", 2))}, "second", 21)
    made.save(tmp_path / "data.pt2")
    error = refused("compile", "data.pt2", cwd=tmp_path)
    assert "known only when it runs: u0" in error
    assert "net.py:21" in error


def test_without_pytorch(tmp_path: Path) -> None:
    """A target that needs PyTorch says so; others are compiled as ever."""
    (tmp_path / "torch.py").write_text("raise ImportError('no PyTorch here')\n")
    (tmp_path / "model.py").write_text("def make():\n    return None\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")
    for target in (["model.py:make", "--torch"], ["folder"]):
        error = refused("compile", *target, cwd=tmp_path)
        assert "torch cannot be imported: no PyTorch here" in error
        assert "pip install torch" in error


def test_reading_loads_no_pytorch(here: Path) -> None:
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from mspc.commands.compile import CompileOptions, compile_target
        from mspc.commands.report.verbosity import Loudness

        compile_target("two.pt2", CompileOptions(ranks=2, out=Path("made"), loudness=Loudness(False, True)))
        assert not {"torch", "pickle"} & {name for name in sys.modules if name == "torch"}
    """)
    succeed("python", "-c", code, cwd=here)
