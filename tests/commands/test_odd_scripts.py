"""Scripts that change what is around them, and scripts that are none: one message or a compile, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.commands.compile import CompileOptions, compile_target
from mspc.ir.diagnostics import MspcError
from tests.conftest import HANG
from tests.serving import SERVED

NETWORK = """
import mindspore as ms, numpy as np
from mindspore import nn, Tensor
class Net(nn.Cell):
    def construct(self, x):
        return x * 2.0
"""
CALL = "Net()(Tensor(np.ones((4, 2)), ms.float32))\n"
CHANGES = {
    "its folder": "import os; os.makedirs('sub', exist_ok=True); os.chdir('sub')",
    "the path of modules": "import sys; sys.path[:] = []",
    "its arguments": "import sys; sys.argv.clear()",
    "no stdout": "import sys; sys.stdout = None",
    "another stdout": "import sys; sys.stdout = sys.stderr = open('log', 'w')",
    "its own file": "import os; os.remove(__file__)",
    "much output": "for _ in range(20_000): print('y' * 100)",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("named", [False, True])
def test_what_a_script_changes_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str, named: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    Path("net.py").write_text(NETWORK + change + "\n" + ("" if named else CALL))
    target, inputs = ("net.py:Net()", ("float32[4,2]",)) if named else ("net.py", ())
    compile_target(target, CompileOptions(ranks=2, inputs=inputs))
    assert Path.cwd() == tmp_path
    assert (tmp_path / "saved_graph/rank_1").is_dir()
    assert not (tmp_path / "sub/saved_graph").exists()
    assert ", 2 ranks, compile " in capsys.readouterr().out


def test_threads_that_never_end_are_not_waited_for(tmp_path: Path) -> None:
    thread = "import threading, time\nthreading.Thread(target=lambda: time.sleep(3600)).start()\n"
    (tmp_path / "net.py").write_text(NETWORK + thread + CALL)
    for command, status in (("compile", 0), ("verify", 0)):
        done = subprocess.run(
            [*SERVED, command, "net.py"], cwd=tmp_path, capture_output=True, text=True,
            check=False, timeout=HANG,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (status, "")
        assert done.stdout.splitlines()[-1].startswith("memory: " if command == "compile" else "equal: ")


MISTAKES = {
    "nothing": ("", "error: net.py ends without calling a network, so there is nothing to compile\n"
                    "  note: call Model.train, a train step or a cell at the end of the script\n"
                    "  note: or name the network: mspc compile 'net.py:Net()' --input 'float32[16,32]'"),
    "no Python": ("x = (1,\n", "net.py:1:5: error: not Python: '(' was never closed\n    x = (1,\n        ^"),
    "a null byte": ("x\0", "error: net.py is not Python: source code string cannot contain null bytes"),
    "sums in sums": (
        "x = 1" + "+1" * 30_000, "error: net.py is not Python: expressions are nested too deep",
    ),
    "an exit": ("import sys; sys.exit(3)", "error: net.py exited with 3 before it called a network"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES)
def test_scripts_that_launch_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    Path("net.py").write_text(text)
    with pytest.raises(MspcError) as raised:
        compile_target("net.py", CompileOptions())
    assert (str(raised.value), raised.value.exit_status) == (message, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]


CALLED = """
import threading
from typer.testing import CliRunner
from mspc.cli import app

done = threading.Event()
threading.Thread(target=done.wait).start()
result = CliRunner().invoke(app, ["verify", "missing.py", "--ranks", "2"])
print("still here after", result.exit_code)
done.set()
"""


def test_a_program_that_calls_the_commands_keeps_its_threads(tmp_path: Path) -> None:
    """It does not end with a command that ends for a mistake."""
    done = subprocess.run(
        [sys.executable, "-c", CALLED], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG
    )
    assert (done.stdout, done.returncode) == ("still here after 2\n", 0)


def test_a_name_that_is_no_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As older systems wrote umlauts: texts have an escape in its place."""
    monkeypatch.chdir(tmp_path)
    script, out = os.fsdecode(b"gr\xf6sse.py"), os.fsdecode(b"gr\xf6sse")
    Path(script).write_text(
        "import numpy as np\nfrom mindspore import Tensor, ops\n"
        "from mindspore import nn\nclass Net(nn.Cell):\n    def construct(self, x):\n        return ops.relu(x)\n"
        "Net()(Tensor(np.ones(4, np.float32)))\n"
    )
    for arguments in (("compile", script, "--out", out, "-q"), ("view", out, "-q"), ("diff", out, out, "--json", "-")):
        done = CliRunner().invoke(app, [*arguments])
        assert done.exit_code == 0, done.output
    (file,) = Path(out).glob("rank_0/*.ir")
    assert r"# In file gr\udcf6sse.py(6)" in file.read_text()
    assert r"gr\udcf6sse" in Path(f"{out}.view.html").read_text()


@pytest.mark.parametrize(("method", "used"), [
    ("def __getattr__(self, name): return getattr(self, name)", "Odd().value"),
    ("def __len__(self): return len(self)", "len(Odd())"),
], ids=["attribute", "length"])  # fmt: skip
@pytest.mark.parametrize("threaded", [False, True])
def test_an_objects_recursion_through_c_is_a_mistake(tmp_path: Path, method: str, used: str, threaded: bool) -> None:
    """Each call takes stack of C's, of which a process has less than Python's recursion limit allows meanwhile."""
    call = "Net()(Tensor(np.ones((4, 2)), ms.float32))"
    start = f"import threading\nthread = threading.Thread(target=lambda: {call})\nthread.start()\nthread.join()"
    odd = NETWORK.replace("class Net", f"class Odd:\n    {method}\nclass Net").replace("x * 2.0", f"x * {used}")
    (tmp_path / "net.py").write_text(odd + (start if threaded else call) + "\n")
    done = subprocess.run([*SERVED, "compile", "net.py"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 2, done.stderr
    assert "recursion depth exceeded" in done.stderr
