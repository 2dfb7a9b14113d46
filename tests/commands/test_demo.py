"""`mspc demo` writes a project and explains its compile, in a folder that is new or empty."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import resources
from pathlib import Path

from tests.conftest import HANG
from tests.explained import message_of
from tests.serving import SERVED


def demo(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SERVED, "demo", *arguments], cwd=cwd, capture_output=True, text=True, timeout=HANG)


def test_it_carries_out_its_own_readme(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    done = demo(tmp_path, "project")
    assert (done.returncode, done.stderr) == (0, "")
    readme = (tmp_path / "project" / "README.md").read_text()
    commands = re.findall(r"^\$ mspc .*$", readme, re.MULTILINE)
    assert [command.split()[2] for command in commands] == ["compile", "verify", "view", "search"]
    places = [done.stdout.index(f"{command}\n") for command in commands]
    assert places == sorted(places)
    for line in ("AllReduce", "equal: 12 values on 4 ranks", "4 collectives of 4 ranks", "search "):
        assert line in done.stdout
    assert max(map(len, re.findall(r"^(?![ $]).*$", readme, re.MULTILINE))) <= 120
    written = {path.name for path in (tmp_path / "project").iterdir()}
    assert written == {"README.md", "net.py", "saved_graph", "net.view.html"}


def test_nobody_reads_it(tmp_path: Path) -> None:
    command = f"{' '.join(SERVED)} demo project | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=HANG, check=True
    )
    assert done.stdout == "The project is in project: net.py, README.md.\n141\n"
    assert done.stderr == ""


def test_tables_of_a_narrow_terminal_cut_no_word(tmp_path: Path) -> None:
    source = resources.files("mspc.commands").joinpath("demo/net.py.txt").read_text()
    (tmp_path / "net.py").write_text(source.replace('"up"', '"üp"'))
    pieces: dict[int, set[str]] = {}
    for width in (20, 60, 80, 120, 200):
        environment = {**os.environ, "COLUMNS": str(width), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        command = [*SERVED, "compile", "net.py", "--ranks", "4", "--all"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG, check=True
        )
        tables = done.stdout[done.stdout.index("\n\n") : done.stdout.index("\nrank 0: ")]
        assert max(map(len, tables.splitlines())) <= width
        pieces[width] = {piece for word in tables.split() for piece in re.findall(r"[^-./:,_)\]]+", word)}
    for width in (20, 60, 80, 120):
        assert pieces[width] <= pieces[200] | {"mspc"}
        assert {"ReduceScatter", "AllGather", "Float32", "shard(", "KiB", "sharded"} <= pieces[width]


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for folder, said in ((".", "the folder . is not empty: it has mine.txt"), ("mine.txt", "mine.txt is a file")):
        done = demo(tmp_path, folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert message_of(done.stderr) == f"error: {said}\n  note: give a new folder: mspc demo FOLDER\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
