"""A LLaMA-like network compiles without making its parameters, and runs from the script's first values however it is
sharded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.run import run_directory, run_script
from mspc.runtime.data import full_type, slices_of
from mspc.runtime.program import load_program, load_slices

SIZES = "2 32 4 48 64"


@pytest.fixture
def llama(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(root / "benchmarks" / "networks" / "llama.py")


def compiled(llama: str, sizes: str) -> Path:
    options = CompileOptions(out=Path("out"), json=Path("table.json"), script_arguments=tuple(sizes.split()))
    compile_target(llama, options)
    return Path("out")


def first_values(folder: Path) -> dict[str, Any]:
    """The global first values, put together from the slices that the ranks make; every rank's agree."""
    program = load_program(folder)
    found: dict[str, Any] = {}
    for rank in range(program.ranks):
        graph = program.graph(rank, program.text(rank))
        for name, part in load_slices(program, graph, rank).items():
            parameter = graph.parameter(name)
            shape = full_type(parameter).shape
            where = slices_of(parameter, rank) or (slice(None),) * len(shape)
            global_value = found.setdefault(name, np.full(shape, np.nan, np.float64))
            assert (np.isnan(global_value[where]) | (global_value[where] == part)).all(), name
            global_value[where] = part
    return found


def test_first_values_are_the_scripts_however_many_ranks_and_layers(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    global_value = first_values(compiled(llama, f"{SIZES} 2 2"))
    assert not any(np.isnan(array).any() for array in global_value.values())
    assert global_value["layers.1.feed_forward.w_up"].std() == pytest.approx(0.02, rel=0.1)
    for sizes in (f"{SIZES} 1 1", f"{SIZES} 1 4", f"{SIZES} 4 2 4", f"1 {SIZES[2:]} 2 2"):
        other = first_values(compiled(llama, sizes))
        for name, array in other.items():
            np.testing.assert_array_equal(array, global_value[name], name)


def test_a_compiled_program_trains_as_the_script(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_script(Path(llama), 4, simulate=True, only_rank=0)
    wanted = capsys.readouterr().out.replace("loss ", "").split()
    folder = compiled(llama, f"{SIZES} 2 2")
    text = np.arange(33, dtype=np.int32) % 64
    np.savez("text.npz", inputs0=text[:-1], inputs1=text[1:])
    capsys.readouterr()
    run_directory(folder, data=Path("text.npz"), steps=3, simulate=True)
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == wanted


PEAK = '''
import atexit, re, sys
from mspc.cli import main

def peak():  # of this program alone: what the system says of a child counts the process that started it, too
    print("peak", re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)

atexit.register(peak)
main()
'''


def test_memory_and_files_do_not_grow_with_the_parameters(llama: str, tmp_path: Path) -> None:
    """1.7 billion parameters, which would take 20 GB with their states."""
    sizes = "4 4096 32 11008 100000 8 8 8 64"
    command = [sys.executable, "-c", PEAK, "compile", llama, "--rank", "0", "--out", "out", "--", *sizes.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stderr.rpartition("peak ")[2]) < 300 * 1024
    assert sum(path.stat().st_size for path in Path("out").rglob("*") if path.is_file()) < 2 * 10**6
