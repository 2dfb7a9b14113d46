"""`mspc run DIR`: a compiled program runs from its files alone, and damaged ones are refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.commands.test_run_script import NETWORK, TRAIN, losses
from tests.compiled_scripts import CompileOptions, compile_target, run_directory, run_script
from tests.errors import error_of, failure_of
from tests.serving import SERVED, run_process

X = np.random.default_rng(5).random((24, 8), dtype=np.float32)
Y = np.random.default_rng(6).random((24, 4), dtype=np.float32)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training step of test_run_script, compiled for 2 ranks."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text(TRAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        compile_target("train.py", CompileOptions(ranks=2, out=Path("out"), json=Path("table.json")))
    return folder / "out"


@pytest.fixture
def program(compiled: Path, own_folder: Path) -> Path:
    """A copy that a test may damage; the script is not beside it."""
    shutil.copytree(compiled, own_folder / "out")
    np.savez(own_folder / "data.npz", inputs0=X, inputs1=Y)
    return Path("out")


def simulate(program: Path, **options: Any) -> None:
    if not options.get("synthetic"):
        options.setdefault("data", Path("data.npz"))
    run_directory(program, simulate=True, **options)


def execute_file(program: Path, rank: int) -> Path:
    (found,) = (program / f"rank_{rank}").glob("*_execute_*.ir")
    return found


def change(program: Path, **facts: Any) -> None:
    path = program / "program.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_losses_are_the_scripts(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "    part = slice(rank * (8 // size), (rank + 1) * (8 // size))\n"
    assert rows in TRAIN
    text = TRAIN.replace(
        rows, rows + "    x, y = (np.load('data.npz')[n][8 * number :] for n in ('inputs0', 'inputs1'))\n"
    )
    (tmp_path / "same.py").write_text(text)
    run_script(Path("same.py"), 2, simulate=True, only_rank=0)
    wanted = losses(capsys.readouterr().out)
    simulate(program)
    assert capsys.readouterr().out == "".join(
        f"step: {i}, loss is {np.float32(loss)!s}\n" for i, loss in enumerate(wanted, 1)
    )


def test_global_parameters_and_outputs_are_saved(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load_file(program / "weights.safetensors")
    parameters = json.loads((program / "program.json").read_text())["parameters"]
    simulate(program, steps=2, save=Path("after.safetensors"), save_outputs=Path("outputs.npz"))
    after = load_file("after.safetensors")
    assert {name: array.shape for name, array in after.items()} == {p["name"]: tuple(p["shape"]) for p in parameters}
    assert after["net.w"].shape == (8, 4)
    assert (after["net.w"] != before["net.w"]).any()
    outputs = np.load("outputs.npz")["output0"]
    assert outputs.shape == (2,)
    assert losses(capsys.readouterr().out.replace("loss is", "loss")) == pytest.approx(outputs.tolist())


def test_synthetic_data_and_mpirun_give_the_same(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(program, synthetic=True, steps=2)
    wanted = capsys.readouterr().out
    done = run_process(*SERVED, "run", str(program), "--synthetic", "--steps", "2")
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr


@pytest.mark.usefixtures("own_folder")
def test_a_forward_graph_prints_its_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(NETWORK + "print(net(Tensor(np.ones((4, 8), np.float32))))\n")
    compile_target("net.py", CompileOptions(ranks=2, out=Path("out"), json=Path("table.json")))
    np.savez("rows.npz", x=np.ones((8, 8)) * np.arange(8)[:, None])
    capsys.readouterr()
    run_directory(Path("out"), data=Path("rows.npz"), simulate=True)
    start = np.random.default_rng(7).standard_normal((8, 4)).astype(np.float32)
    product = np.arange(8, dtype=np.float32)[:, None] * start.sum(0)
    shape, *numbers = re.findall(r"(?:shape|mean|min|max) (\(.*\)|[^,\s]+)", capsys.readouterr().out)
    assert shape == "(8, 4)"
    assert [float(n) for n in numbers] == pytest.approx([product.mean(), product.min(), product.max()], rel=1e-5)


def test_an_edited_file_runs_with_a_warning(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = execute_file(program, 1)
    path.write_text(path.read_text() + "\n")
    simulate(program)
    said = capsys.readouterr()
    assert said.err == f"warning: {path} has been edited since it was compiled\n"
    assert len(said.out.splitlines()) == 3


def test_a_nan_names_step_rank_node_and_line(program: Path) -> None:
    bad = X.copy()
    bad[8 + 5, 0] = np.nan
    np.savez("data.npz", inputs0=bad, inputs1=Y)
    error = failure_of(simulate, program)
    assert error.message.startswith("the loss of step 2 is NaN on rank 1; argument 'inputs0' held")
    assert error.location is not None
    assert error.location.file == "train.py"
    assert "self.matmul(x, self.w)" in error.location.text


def refused(program: Path, **options: Any) -> str:
    error = error_of(simulate, program, **options)
    assert error.exit_status == 2
    return error.render()


def test_another_number_of_ranks(program: Path) -> None:
    assert refused(program, ranks=4) == (
        "error: out was compiled for 2 ranks, not for 4\n  note: run it on 2, or compile it again with --ranks 4"
    )


def test_missing_ranks_are_named(program: Path) -> None:
    facts = json.loads((program / "program.json").read_text())
    change(program, execute={"0": facts["execute"]["0"]})
    assert refused(program) == "error: out holds no graph for rank 1 of 2\n  note: compile it without --rank"


def test_a_missing_file_is_named(program: Path) -> None:
    path = execute_file(program, 1)
    path.unlink()
    assert refused(program) == f"error: there is no graph of rank 1, which program.json names {str(path)!r}"


def test_no_data(program: Path) -> None:
    assert error_of(run_directory, program, simulate=True).render() == (
        "error: out takes inputs0, inputs1\n  note: give --data FILE.npz with these arrays, or --synthetic"
    )


def test_a_truncated_graph_is_refused_with_its_line(program: Path) -> None:
    path = execute_file(program, 0)
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    message = refused(program)
    assert f"{path}:" in message
    assert "error:" in message


def test_damaged_facts_are_refused(program: Path) -> None:
    change(program, ranks="two")
    wrong = "ranks is 'two', not a whole number from 1 to 1048576"
    assert refused(program) == f"error: out/program.json is damaged: {wrong}"
    change(program, ranks=2, format=7)
    assert refused(program) == "error: out/program.json has format 7; this mspc reads format 1"
    (program / "program.json").write_text('{"format": 1')
    assert "out/program.json is damaged" in refused(program)
    (program / "program.json").unlink()
    assert "out holds no compiled program: program.json is missing" in refused(program)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"matmul_allow_tf32": 1}, "matmul_allow_tf32 in settings is 1, not true or false"),
        ({"matmul_allow_tf32": "ON"}, "matmul_allow_tf32 in settings is 'ON', not true or false"),
        ({"deterministic": True}, 'deterministic in settings is true, not "ON" or "OFF"'),
        ({"deterministic": "on"}, 'deterministic in settings is "on", not "ON" or "OFF"'),
        ({"deterministic": ["ON"]}, 'deterministic in settings is ["ON"], not "ON" or "OFF"'),
        ({"tf32": True}, "settings has no 'tf32'; known are matmul_allow_tf32, deterministic, device_target"),
        ({"device_target": "TPU"}, 'device_target in settings is "TPU", not "CPU" or "GPU"'),
        (["deterministic"], "settings is ['deterministic'], not an object"),
        (None, "settings is None, not an object"),
    ],
)
def test_wrong_settings_are_refused(program: Path, settings: Any, message: str) -> None:
    change(program, settings=settings)
    assert refused(program) == f"error: out/program.json is damaged: {message}"


def test_damaged_weights_are_refused(program: Path) -> None:
    path = program / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    assert f"{path} is damaged" in refused(program)
    path.unlink()
    assert f"{path} is missing" in refused(program)


def test_graphs_of_two_compiles_do_not_mix(program: Path) -> None:
    path = execute_file(program, 1)
    text = path.read_text()
    identity = json.loads((program / "program.json").read_text())["compile_id"]
    path.write_text(text.replace(identity, "0123456789abcdef"))
    message = refused(program)
    assert "the ranks hold graphs of different compiles: rank 1 and rank 0 differ" in message
