"""Standard streams that are closed, full or no longer read end a command with a status and no traceback.

Tables on a real terminal, and options and reports that commands share.
"""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from mspc.cli import app
from mspc.commands.report.profile import joined_costs, rate_text, result_text
from mspc.commands.report.tables import layer_kind, sizes_text
from mspc.ir.types import TensorType, TupleType, dtype_of
from mspc.runtime.profile import NodeCost
from tests.serving import HANG, SERVED, invoke, run_process

LONG = "#attrs :\n" + "".join(f'a{i} : "{"x" * 100}"\n' for i in range(800))
GRAPH = LONG + "%para1_x: <Bool>\n\nsubgraph @main() {\n  Return(%para1_x)\n      : (<Bool>)\n}\n"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph whose text is longer than a pipe holds."""
    path = tmp_path_factory.mktemp("streams") / "graph.ir"
    path.write_text(GRAPH.replace("<Bool>", "<Tensor[Bool], ()>"))
    return path


def shell(line: str, *arguments: object) -> tuple[int, str, str]:
    """Status, stdout and stderr of a line of bash in which `mspc` is the command."""
    command = f'mspc() {{ "{sys.executable}" -m mspc "$@"; }}; {line}'
    done = run_process("bash", "-c", command, "bash", *map(str, arguments))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", ['opt "$1"', "ops", "--help", "--version"])
def test_a_full_disk_is_told(graph: Path, command: str) -> None:
    message = "error: cannot write to stdout: No space left on device\n"
    assert shell(f"mspc {command} >/dev/full", graph) == (1, "", message)


@pytest.mark.parametrize("command", ['opt "$1"', "--version"])
def test_a_closed_stdout_is_told(graph: Path, command: str) -> None:
    message = "error: cannot write to stdout: Bad file descriptor\n"
    assert shell(f"mspc {command} >&-", graph) == (1, "", message)


@pytest.mark.parametrize("command", ['opt "$1"', "ops --json -", "--help"])
def test_nobody_reads_any_more(graph: Path, command: str) -> None:
    assert shell(f"mspc {command} | true; exit ${{PIPESTATUS[0]}}", graph) == (141, "", "")


def test_a_closed_stdin_is_told() -> None:
    message = "error: cannot read stdin: Bad file descriptor\nexplain: mspc explain E0100\n"
    assert shell("mspc opt - <&-") == (2, "", message)


@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-"])
def test_a_message_that_cannot_be_written_leaves_its_status(stream: str) -> None:
    assert shell(f"mspc opt no_such_file {stream}")[:2] == (2, "")


def test_a_closed_stream_is_no_file_of_the_command(graph: Path) -> None:
    """A file that is opened later would take the number of a closed stream, and what is printed would go into it."""
    status, _, _ = shell('mspc opt "$1" <&- >&- 2>&-', graph)
    assert status == 1


def test_characters_that_stdout_cannot_say_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "graph.ir"
    path.write_text(GRAPH.replace(LONG, '#attrs :\na : "é"\n').replace("<Bool>", "<Tensor[Bool], ()>"))
    status, out, error = shell('PYTHONIOENCODING=ascii mspc opt "$1"', path)
    assert (status, error) == (0, "")
    assert 'a : "\\xe9"' in out


def test_in_a_test_stdout_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from mspc.commands.report.streams import run_guarded

    before = sys.stdout
    assert run_guarded(lambda: app(["--version"], prog_name="mspc")) == 0
    assert sys.stdout is before
    assert capsys.readouterr().out.startswith("mspc ")


LAYERS = """
import numpy as np
import mindspore as ms
from mindspore import nn, Tensor
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, full_batch=True)
class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up = nn.Dense(8, 8)
        self.up.matmul.shard(((2, 1), (2, 1)))
        self.relu = nn.ReLU().shard(((4, 1),))
    def construct(self, x):
        return x + self.relu(self.up(x))
net = nn.SequentialCell(*[Layer() for _ in range(6)])
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
for _ in range(3):
    print(step(Tensor(np.ones((16, 8), np.float32)), Tensor(np.zeros((16, 8), np.float32))))
"""


def on_terminal(columns: int, *command: str, folder: Path) -> list[str]:
    """Run a command whose stdout is a terminal of that width; its lines."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"TERM": "dumb"}
    subprocess.run(
        [*SERVED, *command], stdout=theirs, stderr=subprocess.DEVNULL, env=environment, cwd=folder, check=True,
        timeout=HANG,
    )  # fmt: skip
    os.close(theirs)
    text = b""
    while True:
        try:
            block = os.read(mine, 65536)
        except OSError:  # how Linux reports the end of a terminal
            break
        if not block:
            break
        text += block
    os.close(mine)
    return text.decode().replace("\r\n", "\n").splitlines()


def test_a_script_may_ask_for_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(
        "import shutil, sys\nprint(shutil.get_terminal_size().columns)\nprint('said', file=sys.__stdout__)\n"
    )
    lines = on_terminal(77, "run", "asks.py", folder=tmp_path)
    assert sorted(lines) == ["77", "said"], "in any order: print is held back until the number of ranks is known"


def run(*words: object) -> tuple[int, str]:
    done = invoke(*words)
    return done.exit_code, done.output


@pytest.fixture
def script(script: Path) -> Path:
    script.write_text(LAYERS)
    return script


def test_one_cause_is_one_error_with_ranks_that_fit(script: Path) -> None:
    status, printed = run("compile", script, "--ranks", 7)
    assert status == 2
    assert printed.count("error: ") == 1
    assert "the strategy ((2, 1), (2, 1)) uses 4 ranks, which does not divide 7" in printed
    assert "note: all strategies of the network divide 4 ranks, and multiples of 4\n" in printed
    assert "note: strategies at net.py:13:20 do not divide 7 either\n" in printed
    script.write_text(LAYERS.replace("((2, 1), (2, 1))", "((7, 1), (1, 1))").replace("((4, 1),)", "((7, 1),)"))
    status, printed = run("compile", script, "--ranks", 7)
    assert status == 2
    assert printed.count("error: ") == 1
    assert "note: shard it into 1, 2, 4, 8 or 16 slices, which fits all of these strategies\n" in printed
    assert "note: strategies at net.py:13:20 shard into 7 slices, too\n" in printed


def test_a_plan_is_taken_by_run_verify_and_check(script: Path) -> None:
    script.write_text(LAYERS.partition("ms.set_auto")[0] + "class" + LAYERS.partition("class")[2].replace(
        "        self.up.matmul.shard(((2, 1), (2, 1)))\n", ""
    ).replace(".shard(((4, 1),))", "") + "print(net(Tensor(np.ones((16, 8), np.float32))).asnumpy().mean())\n")
    name = "Default/network-WithLossCell/_backbone-SequentialCell/0-Layer/up-Dense/MatMul-op0"
    Path("plan.toml").write_text(f'ranks = 4\n[operators]\n"{name}" = ["(2, 2) [-, 0]", "(2, 2) [1, 0]"]\n')
    plan = ("--ranks", 4, "--strategies", "plan.toml")
    plain, sharded = run("run", script)[1].split(), run("run", script, "--simulate", "--only-rank", 0, *plan)[1].split()
    assert list(map(float, plain)) == pytest.approx(list(map(float, sharded)), rel=1e-5)
    assert len(plain) == 4, "the second graph runs, too, which has no operator of the plan"
    assert run("check", script, "--ranks", 4, "--max-bytes", 1, "--json", "one.json")[0] == 0
    assert run("check", script, *plan, "--max-bytes", 1, "--json", "two.json")[0] == 1
    assert json.loads(Path("two.json").read_text())["broken"]
    status, printed = run("verify", script, *plan, "-q", "--json", "three.json")
    assert status == 0, printed
    assert "on 4 ranks" in printed
    for words in (("run",), ("verify",), ("check", "--max-bytes", 1)):
        status, printed = run(*words, script, "--ranks", 4, "--strategies", "none.toml")
        assert (status, "none.toml" in printed, "Traceback" in printed) == (2, True, False)
    assert run("compile", script, "--ranks", 4, "--out", "folder", "-q")[0] == 0
    for words in (("run",), ("verify",), ("check", "--max-bytes", 1)):
        status, printed = run(*words, "folder", "--strategies", "plan.toml")
        assert (status, "--strategies" in printed) == (2, True)


def test_reports_have_one_shape(script: Path) -> None:
    assert run("compile", script, "--out", "a", "-q", "--json", "compile.json")[0] == 0
    assert run("diff", "a", "a", "--json", "diff.json")[0] == 0
    assert run("check", "a", "--max-bytes", 1, "--json", "check.json")[0] == 1
    assert run("verify", "a", "-q", "--json", "verify.json")[0] == 0
    assert run("doctor", script, "--json", "doctor.json")[0] == 0
    for command in ("compile", "diff", "check", "verify", "doctor"):
        found = json.loads(Path(f"{command}.json").read_text())
        assert [*found][:3] == ["version", "command", "status"]
        assert (found["version"], found["command"], found["status"]) == (1, command, int(command == "check"))


def test_verbose_means_passes_in_every_command(script: Path) -> None:
    assert run("compile", script, "--out", "a", "-q")[0] == 0
    commands = (("diff", script, "a"), ("check", script, "--max-bytes", "1GB"), ("compile", script), ("verify", script))
    for words in commands:
        (quiet, short), (loud, long) = run(*words), run(*words, "-v")
        passes = [line for line in long.splitlines() if line.startswith("pass ")]
        assert quiet == loud, words
        assert passes, words
        assert not any(line.startswith("pass ") for line in short.splitlines())


def test_equal_layers_are_joined(script: Path) -> None:
    status, printed = run("compile", script, "--out", "a")
    assert status == 0
    sums = [line for line in printed.splitlines() if line.startswith("    the gradient of *.up.")]
    assert len(sums) == len(set(sums)) > 0
    assert "dearest" not in printed
    assert layer_kind("the gradient of 0.up.bias in 2 partial sums") == "the gradient of *.up.bias in 2 partial sums"
    assert layer_kind("18 gradients in one bucket") == "18 gradients in one bucket"


def test_a_profile_joins_equal_layers_and_sums_tuples_up() -> None:
    tensor = TensorType(dtype_of("Float32"), (256, 4))
    costs = [
        NodeCost("MatMul", tensor, "compute", 0.25, 0.25, "net.py:3: x", 1, f"Default/{i}-Layer/up-Dense")
        for i in range(3)
    ]
    other = NodeCost("MatMul", tensor, "compute", 0.5, 0.25, "net.py:3: x", 1, "Gradients/Default/0-Layer/up-Dense")
    assert joined_costs([other, *costs]) == [costs, [other]]
    pairs = ((4e12, 1.0), (4e9, 1.0), (0.0, 3e9), (0.0, 0.0))
    rates = [replace(other, operations=operations, moved=moved) for operations, moved in pairs]
    texts = [rate_text([each, each]) for each in rates]
    assert texts == ["8 TFLOP/s", "8 GFLOP/s", "6 GB/s", ""]
    assert result_text(TupleType((tensor,) * 18)) == "18 tensors, 72.0 KiB"
    assert result_text(TupleType((tensor,))) == result_text(tensor) == "Float32 (256, 4)"


def test_two_sizes_that_round_alike_are_exact() -> None:
    assert sizes_text(1 << 20, 1 << 20) == "1.0 MiB"
    assert sizes_text(1 << 20, 3 << 20) == "1.0 MiB -> 3.0 MiB"
    assert sizes_text(1 << 20, (1 << 20) + 8) == "1,048,576 B -> 1,048,584 B"
