"""`mspc opt` on texts in which nodes run graphs.

`mspc demo` writes a project and explains its compile, in a folder that is new or empty.
"""

from __future__ import annotations

import os
import re
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from mspc.commands.opt import optimize
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.text.parser import parse
from mspc.ops.check_graph import check_graph
from mspc.ops.op import REGISTRY
from mspc.passes.base import pass_names
from tests.conftest import HANG
from tests.explained import message_of
from tests.ir.regions import LOOP, PROGRAM
from tests.ir.test_mindspore_dumps import LOOP_DUMP
from tests.serving import SERVED

NEED_LAYOUTS = frozenset({"insert_redistribution", "slice_to_rank", "search_sharding"})
"""Passes that other passes must have gone ahead of."""


def read(text: str) -> Graph:
    graph = parse(text, REGISTRY).main
    graph.verify()
    check_graph(graph)
    return graph


@pytest.mark.parametrize("text", [LOOP, PROGRAM], ids=["loop", "program"])
def test_every_pass_leaves_a_sound_text(text: str, tmp_path: Path) -> None:
    file = tmp_path / "net.ir"
    file.write_text(text)
    assert optimize(file, "") == text
    for name in [name for name in pass_names() if name not in NEED_LAYOUTS]:
        read(optimize(file, name))


def test_what_nobody_reads_goes_out_of_a_loop(tmp_path: Path) -> None:
    """The numbers of turns of `while`, which the body counts, stay; a constant condition goes."""
    file = tmp_path / "net.ir"
    more = "%4 = Neg(%3)\n      : (<Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)\n  Return((%0, %3))"
    file.write_text(LOOP.replace("Return((%0, %3))", more))
    body = read(optimize(file, "simplify")).graphs()[2]
    assert [node.op.name for node in body.nodes] == ["Add", "Greater", "If", "TupleGetItem"]


def test_passes_do_not_run_on_graphs_of_mindspore(tmp_path: Path) -> None:
    file = tmp_path / "dump.ir"
    file.write_text(LOOP_DUMP)
    with pytest.raises(MspcError, match="holds 3 graphs of mindspore; passes run on graphs of mspc"):
        optimize(file, "simplify")
    assert "call(@43_3_" in optimize(file, "") or 'call(@"43_3_' in optimize(file, "")


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
