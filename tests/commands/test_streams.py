"""Standard streams that are closed, full or no longer read end a command with a status and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mspc.cli import app
from tests.conftest import HANG

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
    done = subprocess.run(
        ["bash", "-c", command, "bash", *map(str, arguments)],
        capture_output=True, text=True, timeout=HANG, check=False,
    )  # fmt: skip
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
