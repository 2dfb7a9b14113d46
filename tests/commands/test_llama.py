"""A LLaMA-like network compiles without making its parameters, and runs from the script's first values however it is
sharded.
`--verbose`, `--quiet`, the progress of `opt`, and completion in shells.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.opt import optimize
from mspc.compiler.pipeline import idle_passes, rank_passes, shared_passes
from mspc.ir.diagnostics import MspcError
from mspc.runtime.data import full_type, slices_of
from mspc.runtime.program import load_program, load_slices
from tests.compiled_scripts import (
    QUIET,
    CompileOptions,
    Loudness,
    compile_target,
    run_directory,
    run_script,
    verify_target,
)
from tests.serving import succeed

SIZES = "2 32 4 48 64"


@pytest.fixture
def llama(root: Path, own_folder: Path) -> str:
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


SCRIPT = """
import mindspore as ms, numpy as np
from mindspore import nn, Tensor
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=2, full_batch=True, gradients_mean=True)
class Net(nn.Cell):
    def construct(self, x):
        return x * 2.0
Net()(Tensor(np.ones((4, 2)), ms.float32))
"""
PASS = re.compile(r"pass (\w+): (changed|left as it was), \d+ operators, \d+\.\d ms")


@pytest.fixture
def script(script: Path) -> Path:
    script.write_text(SCRIPT)
    return script


def passes(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The passes that stderr names."""
    return [found[1] for line in capsys.readouterr().err.splitlines() if (found := PASS.fullmatch(line))]


def test_a_quiet_compile_writes_files_and_says_nothing(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_target(str(script), CompileOptions(out=Path("loud"), json=Path("loud.json")))
    loud = capsys.readouterr()
    assert "warning: " in loud.err
    assert loud.out.startswith("semi_auto_parallel, 2 ranks")
    options = CompileOptions(out=Path("quiet"), json=Path("quiet.json"), loudness=QUIET)
    compile_target(str(script), options)
    assert capsys.readouterr() == ("", "")
    assert Path("quiet.json").read_text() == Path("loud.json").read_text()
    assert Path("quiet/program.json").read_text() == Path("loud/program.json").read_text()


def test_a_verbose_compile_names_every_pass(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_target(str(script), CompileOptions(loudness=Loudness(verbose=True), only_ranks=(1,)))
    names = passes(capsys)
    idle = idle_passes(regions=False, offloads=False, staged=False, quantizes=False)
    assert names == [name for name in (*shared_passes("semi_auto_parallel"), *rank_passes()) if name not in idle]
    compile_target(str(script), CompileOptions(loudness=Loudness(verbose=True)))
    assert passes(capsys)[: len(names)] == names


def test_a_quiet_verify_says_its_verdict(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify_target(str(script), CompileOptions(loudness=QUIET), seed=0)
    assert capsys.readouterr() == ("equal: 1 value on 2 ranks within 1e-05 of one device\n", "")


def test_opt_says_its_passes_on_stderr(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_target(str(script), CompileOptions(loudness=QUIET))
    (file,) = Path("saved_graph/rank_0").glob("*_execute_*.ir")
    plain = optimize(file, "simplify,execute")
    assert optimize(file, "simplify,execute", Loudness(verbose=True)) == plain
    assert passes(capsys) == ["simplify", "execute"]


def test_opt_shows_its_progress_on_a_terminal(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_target(str(script), CompileOptions(loudness=QUIET))
    (file,) = Path("saved_graph/rank_0").glob("*_execute_*.ir")
    optimize(file, "simplify")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    optimize(file, "simplify")
    assert capsys.readouterr().err.startswith("\rsimplify (1 of 1)")


def test_both_at_once_are_refused() -> None:
    with pytest.raises(MspcError, match=r"^error: --verbose and --quiet exclude each other"):
        Loudness(verbose=True, quiet=True)


def test_a_shell_asks() -> None:
    words = "mspc comp"
    asked = {"_MSPC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = succeed(str(Path(sys.executable).with_name("mspc")), env={**os.environ, **asked})
    assert done.stdout.split() == ["compile"]
