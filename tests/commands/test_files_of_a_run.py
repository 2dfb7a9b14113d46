"""Files that commands write at their end and read at their beginning: refused before the work, read back as written."""

import io
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc.cli import loaded
from mspc.commands.verbs.table import VERBS
from mspc.engine.profile_options import ProfileOptions
from tests.compiled_scripts import CompileOptions, compile_target, run_directory
from tests.errors import error_of, message_of
from tests.graphs import DTYPES, MspcError
from tests.serving import HANG, SERVED
from tests.texts import IMPORTS

pytestmark = pytest.mark.usefixtures("own_folder")

NETWORK = IMPORTS + """
print("the script runs")
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        start = np.random.default_rng(7).standard_normal((8, 4))
        self.w = Parameter(Tensor(start, ms.TYPE), "w")
        self.matmul = ops.MatMul().shard(((1, 2), (2, 1)))

    def construct(self, x):
        return self.matmul(x, self.w)

Net()(Tensor(np.ones((4, 8)), ms.TYPE))
"""
Capture = pytest.CaptureFixture[str]


def compiled(folder: Path, type: str) -> Path:
    (folder / f"{type}.py").write_text(NETWORK.replace("TYPE", type))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        compile_target(f"{type}.py", CompileOptions(ranks=2, out=Path(type), json=Path("table.json")))
    return folder / type


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("program"), "float32")


@pytest.mark.parametrize("type", ["BFloat16", "Float16", "Float32", "Float64"])
def test_what_a_run_writes_is_read_again(type: str, tmp_path: Path, capsys: Capture) -> None:
    program = compiled(tmp_path, type.lower())
    dtype = DTYPES[type].numpy
    run_directory(program, synthetic=True, simulate=True, save=Path("w.safetensors"), save_outputs=Path("o.npz"))
    capsys.readouterr()
    saved = ms.load_checkpoint("w.safetensors")["w"].asnumpy()
    assert saved.dtype == dtype
    assert saved.tobytes() == ms.load_checkpoint(str(program / "weights.safetensors"))["w"].asnumpy().tobytes()
    with np.load("o.npz") as file:
        outputs = file["output0"]
    assert outputs.dtype == (np.float32 if type == "BFloat16" else dtype)
    Path("w.safetensors").replace(program / "weights.safetensors")
    values = np.random.default_rng(1).random((4, 8)).astype(dtype)
    np.savez("data.npz", x=values)  # of BFloat16 NumPy keeps the bytes alone
    run_directory(program, data=Path("data.npz"), simulate=True, save_outputs=Path("own.npz"))
    np.savez("wide.npz", x=values.astype(np.float64) if type != "BFloat16" else values.astype(np.float32))
    run_directory(program, data=Path("wide.npz"), simulate=True, save_outputs=Path("wider.npz"))
    with np.load("own.npz") as own, np.load("wider.npz") as wide:
        np.testing.assert_array_equal(own["output0"], wide["output0"])
        exact = values.astype(np.float64) @ saved.astype(np.float64)
        np.testing.assert_allclose(own["output0"], exact, atol=0.05 if dtype.itemsize == 2 else 1e-5)


def archive(**members: bytes) -> None:
    with zipfile.ZipFile("data.npz", "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)


def npy(array: np.ndarray, end: int | None = None) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()[:end]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot read data.npz: its entry 'x' is no array"),
        (b"some text", "cannot read data.npz: its entry 'x' is no array"),
        (npy(np.ones((4, 8)), 20), "cannot read data.npz: EOF: reading array header, expected 118 bytes got 10"),
        (npy(np.ones((4, 8)), 140), "cannot read data.npz: EOF: reading array data, expected 256 bytes got 12"),
        (npy(np.full((4, 8), "a")), "data.npz: array 'x' is str32; the program takes float32"),
        (npy(np.ones((4, 8), "V2")), "data.npz: array 'x' is void16; the program takes float32"),
        (npy(np.ones((4, 8), complex)), "data.npz: array 'x' is complex128; the program takes float32"),
        (npy(np.ones((4, 8), "m8[s]")), "data.npz: array 'x' is timedelta64[s]; the program takes float32"),
    ],
)
def test_a_damaged_member_is_named(program: Path, content: bytes, message: str) -> None:
    archive(x=content)
    error = error_of(run_directory, program, data=Path("data.npz"), simulate=True)
    assert (error.message, error.exit_status) == (message, 2)


@pytest.mark.parametrize("content", [b"", b"PK", b"some text", npy(np.ones(3))])
def test_a_file_that_is_no_npz(program: Path, content: bytes) -> None:
    Path("data.npz").write_bytes(content)
    error = error_of(run_directory, program, data=Path("data.npz"), simulate=True)
    assert error.message == "data.npz is not an npz file; write it with numpy.savez(path, name=array, ...)"


@pytest.mark.parametrize("end", [4, 40, -30])
def test_an_archive_that_was_truncated(program: Path, end: int) -> None:
    np.savez("data.npz", x=np.ones((4, 8), np.float32))
    Path("data.npz").write_bytes(Path("data.npz").read_bytes()[:end])
    with pytest.raises(MspcError, match=r"cannot read data\.npz: File is not a zip file"):
        run_directory(program, data=Path("data.npz"), simulate=True)


PLACES = {
    "no/file": "cannot write no/file: there is no folder 'no'",
    "text/file": "cannot write text/file: 'text' is no folder",
    "folder": "cannot write folder: it is a folder",
    "x" * 300: f"cannot write {'x' * 300}: File name too long",
}


@pytest.fixture
def in_the_way(own_folder: Path) -> None:
    (own_folder / "text").write_text("")
    (own_folder / "folder").mkdir()


@pytest.mark.usefixtures("in_the_way")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("option", ["save", "save_outputs", "profile"])
def test_a_run_is_refused_before_its_first_step(program: Path, option: str, place: str, capsys: Capture) -> None:
    value: Any = ProfileOptions(Path(place)) if option == "profile" else Path(place)
    error = error_of(run_directory, program, synthetic=True, simulate=True, **{option: value})
    assert (error.message, error.exit_status) == (PLACES[place], 2)
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("in_the_way")
@pytest.mark.parametrize("place", PLACES)
def test_tables_are_refused_before_the_work(place: str, capsys: Capture) -> None:
    commands: list[Any] = [loaded(verb) for verb in VERBS]
    every = [each for command in commands for each in getattr(command, "commands", {"": command}).values()]
    written = [each for each in every if any(parameter.name == "json" for parameter in each.params)]
    assert len(written) > 12
    for command in written:
        error = error_of(command.callback, json=Path(place))
        assert (error.message, error.exit_status) == (PLACES[place], 2)
    assert capsys.readouterr().out == ""


def test_a_table_in_the_folder_of_its_compile_is_refused() -> None:
    Path("net.py").write_text(NETWORK.replace("TYPE", "float32"))
    Path("out").mkdir()
    error = error_of(compile_target, "net.py", CompileOptions(ranks=2, json=Path("out/table.json"), out=Path("out")))
    assert error.message == "--json out/table.json lies in or around out, which is replaced as a whole"
    assert list(Path("out").iterdir()) == []


def test_two_files_of_one_name_are_refused(program: Path) -> None:
    error = error_of(run_directory, program, synthetic=True, simulate=True, save=Path("x"), save_outputs=Path("./x"))
    assert error.message == "--save and --save-outputs both name x"
    assert not Path("x").exists()


def mspc(*arguments: str, out: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [*SERVED, *arguments]
    return subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=HANG, check=False)


def test_an_output_that_is_full() -> None:
    with open("/dev/full", "w") as full:
        done = mspc("ops", "Add", out=full)
    assert (done.returncode, done.stderr) == (1, "error: cannot write to stdout: No space left on device\n")


@pytest.mark.parametrize("command", ["compile", "run", "verify", "opt"])
def test_a_name_that_is_too_long(command: str) -> None:
    done = mspc(command, "x" * 300)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "net.py", "--json", "net.py"),
        ("compile", "net.py:Net()", "--input", "float32[4]", "--json", "./net.py"),
        ("view", "net.py", "--ranks", "2", "--out", "net.py"),
        ("run", "net.py", "--profile", "net.py"),
        ("run", "out", "--simulate", "--data", "net.py", "--save-outputs", "net.py"),
        ("run", "out", "--simulate", "--synthetic", "--save", "out/program.json"),
        ("ckpt", "show", "net.py", "--json", "net.py"),
    ],
)
@pytest.mark.usefixtures("own_folder")
def test_what_is_read_is_not_written_over(arguments: tuple[str, ...]) -> None:
    Path("out").mkdir()
    kept = [Path("net.py"), Path("out/program.json")]
    for path in kept:
        path.write_text("1\n")
    done = mspc(*arguments)
    assert done.returncode == 2
    assert message_of(done.stderr) == (
        f"error: {arguments[-2]} {Path(arguments[-1])} would replace an input of the command\n"
        "  note: give it another place\n"
    )
    assert [path.read_text() for path in kept] == ["1\n", "1\n"]
