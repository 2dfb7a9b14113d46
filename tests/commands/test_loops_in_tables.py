"""Tables and comparisons of dumps in which loops run collectives.

Tables fit the width that there is, and lose nothing.
"""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from mspc.commands.report.tables import NARROWEST, TextTable, broken, fit, print_table
from mspc.commands.verbs.ops import ops as list_operators
from mspc.ops.control.regions import COUNT, For, emit_regions
from tests.graphs import FLOAT32, INT64, Builder, Constant, Graph, Parameter, TensorType, Value, print_graph
from tests.grouped import each
from tests.ir.test_mindspore_dumps import LOOP_DUMP
from tests.operators import AllReduce, TupleGetItem
from tests.serving import HANG, SERVED, invoke

ROW = TensorType(FLOAT32, (4,))


def looped(turns: int) -> str:
    """The graph of rank 0 of 2, in which a loop adds a row over the ranks so often, with -1 as often as an operand
    says, and once more behind it."""
    body = Graph("for_1_body")
    body.parameters = [Parameter("turn", COUNT), Parameter("y", ROW)]
    body.results = [Builder(body).emit(AllReduce(rank_list=(0, 1)), body.parameters[1])]
    graph = Graph("net")
    graph.attrs = {"mode": "semi_auto_parallel", "ranks": 2, "rank": 0}
    graph.parameters = [Parameter("x", ROW)]
    builder = Builder(graph)
    operands: list[Value] = [*graph.parameters]
    if turns < 0:
        operands = [Constant(3, INT64), *operands]
    loop = emit_regions(builder, For(carried=1, turns=turns), operands, [body])
    summed = builder.emit(TupleGetItem(index=0), loop)
    graph.results = [builder.emit(AllReduce(rank_list=(0, 1)), summed)]
    graph.verify()
    return print_graph(graph)


@pytest.fixture
def dumps(own_folder: Path) -> Path:
    for turns in (3, 4, -1):
        (own_folder / f"turns{turns}.ir").write_text(looped(turns))
    return own_folder


def run(*arguments: str) -> tuple[int, str]:
    """(exit status, what is printed, with single blanks)"""
    done = invoke(*arguments)
    return done.exit_code, " ".join(done.output.split())


def test_turns_that_differ_are_told_with_their_bytes(dumps: Path) -> None:
    status, printed = run("diff", "turns3.ir", "turns4.ir")
    assert status == 1
    assert "AllReduce of 48 bytes, 3 times over 0-1 AllReduce of 64 bytes, 4 times over 0-1" in printed
    run("diff", "turns3.ir", "turns4.ir", "--json", "found.json")
    (kind,) = json.loads((dumps / "found.json").read_text())["kinds"]
    (loop,) = kind["operators"]
    assert "turns: 3" in loop["first"]
    assert "turns: 4" in loop["second"]
    figures = {f["name"]: (f["first"], f["second"]) for f in kind["sums"][0]["figures"]}
    assert figures["collectives"] == (4, 5)
    assert figures["bytes sent"] == (64, 80)


def test_turns_that_only_the_run_counts_are_said_so(dumps: Path) -> None:
    status, printed = run("diff", "turns3.ir", "turns-1.ir")
    assert status == 1
    assert "AllReduce of 48 bytes, 3 times over 0-1" in printed
    assert "AllReduce of 16 bytes, once a turn over 0-1" in printed


def test_equal_loops_are_equal(dumps: Path) -> None:
    assert run("diff", "turns3.ir", "turns3.ir") == (0, "turns3.ir and turns3.ir are equal")


def test_a_budget_counts_what_a_loop_sends(dumps: Path) -> None:
    assert run("check", "turns3.ir", "--max-collectives", "AllReduce=4", "--max-bytes", "64")[0] == 0
    status, printed = run("check", "turns3.ir", "--max-collectives", "AllReduce=3", "--max-bytes", "63", "--all")
    assert status == 1
    assert "4 AllReduces in a step; the limit is 3" in printed
    assert "a step sends 64 B; the limit is 63 B" in printed
    assert "AllReduce 0-1 48 B 3 times - " in printed
    assert "AllReduce 0-1 16 B once - " in printed


def test_graphs_of_mindspore_that_call_each_other_are_compared(dumps: Path) -> None:
    (dumps / "one.ir").write_text(LOOP_DUMP)
    (dumps / "other.ir").write_text(LOOP_DUMP.replace("PrimFunc_Mul(", "PrimFunc_Add("))
    assert run("diff", "one.ir", "one.ir") == (0, "one.ir and one.ir are equal")
    status, printed = run("diff", "one.ir", "other.ir")
    assert status == 1
    assert "operators that differ: 2; types on rank 0" in printed


REASON = "input 0 is sharded (8, 1) on mesh (8), input 0 of MatMul 'matmul' must be sharded (2, 4) on mesh (2, 4)"
NAME = "backbone.layers.31.attention.query.weight"
TABLE = TextTable(
    "collectives",
    ("operator", "name", "bytes", "reason"),
    [("AllReduce", NAME, "1234567", REASON), ("Split", "w", "8", "-")],
    (2,),
    (3,),
)


def test_what_is_too_wide_goes_below_its_row() -> None:
    assert fit(TABLE, 80).lines == [
        "collectives",
        "operator   name                                         bytes",
        "    reason",
        f"AllReduce  {NAME}  1234567",
        "    input 0 is sharded (8, 1) on mesh (8), input 0 of MatMul 'matmul' must be",
        "    sharded (2, 4) on mesh (2, 4)",
        "Split      w                                                8",
    ]


def test_the_widest_cells_are_broken_behind_punctuation() -> None:
    assert fit(TABLE, 50).rows[:2] == ["AllReduce  backbone.layers.31.attention.   1234567", "           query.weight"]


def test_every_width_is_obeyed_and_nothing_is_lost() -> None:
    each(check_width, [(width,) for width in range(1, 130)])


def check_width(width: int) -> None:
    found = fit(TABLE, width)
    assert max(map(len, found.lines)) <= max(width, NARROWEST)
    joined = "".join("".join(found.rows).split())
    if len(found.headings[0].split()) < 3:  # bytes are below the row, with their heading
        assert {"bytes", "1234567", "8"} <= {word.strip(",") for row in found.rows for word in row.split()}
        return
    assert sorted(joined) == sorted("".join(c for row in TABLE.rows for c in "".join(row).split()).replace("-", "")
                                    + ("-" if len(found.headings[0].split()) == 4 else ""))  # fmt: skip


def test_numbers_and_words_are_never_broken() -> None:
    table = TextTable("t", tuple("abcdef"), [("123456789012",) * 5 + ("word " * 8 + "word",)], (0, 1, 2, 3, 4))
    assert fit(table, 40).lines == [
        "t",
        "           a             b             c",
        "123456789012  123456789012  123456789012",
        "    d 123456789012, e 123456789012, f",
        "    word word word word word word word",
        "    word word",
    ]


def test_columns_that_have_no_room_go_below_with_their_headings() -> None:
    rows = [("data parallel", "33.9 us", "192.0 KiB", "87.8%"), ("sharding propagation", "59.1 us", "72.0 KiB", "-")]
    table = TextTable("plans of a machine", ("plan", "step", "bytes sent", "gap"), rows, (1, 2, 3))
    for width in range(20, 60):
        words = {word.strip(",") for line in fit(table, width).lines for word in line.split()}
        assert {"parallel", "propagation", "sharding", "33.9", "192.0", "KiB", "87.8%"} <= words


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("", 9, [""]),
        ("(2, 4) (4, 1)", 12, ["(2, 4)", "(4, 1)"]),
        ("(16, 16, 16)", 9, ["(16, 16,", "16)"]),
        ("mspc/api/nn/loss.py:48", 12, ["mspc/api/nn/", "loss.py:48"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
    ],
)
def test_where_text_is_broken(text: str, width: int, lines: list[str]) -> None:
    assert broken(text, width) == lines


@pytest.mark.parametrize(("columns", "most"), [(None, 100), ("60", 60), ("80", 80), ("200", 200), ("x", 100)])
def test_a_pipe_is_as_wide_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str | None, most: int
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    list_operators([], None)
    lines = capsys.readouterr().out.splitlines()
    assert most - 10 < max(map(len, lines)) <= most


@pytest.mark.parametrize(("extra", "bold"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_has_bold_headings(extra: dict[str, str], bold: bool, tmp_path: Path) -> None:
    mine, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    environment |= {"TERM": "xterm", "COLUMNS": "60"} | extra
    command = [*SERVED, "ops", "MatMul"]
    done = subprocess.run(command, stdout=theirs, env=environment, cwd=tmp_path, check=True, timeout=HANG)
    os.close(theirs)
    shown = os.read(mine, 65536).decode()
    os.close(mine)
    assert done.returncode == 0
    assert ("\033[1moperator" in shown) == bold
    assert ("\033" in shown) == bold
    assert "MatMul" in shown


def test_errors_are_as_wide_as_the_terminal(tmp_path: Path) -> None:
    call = "self.relu(self.relu(self.relu(self.relu(self.relu(x))))) + ops.concat((x, x), 7)"
    (tmp_path / "net.py").write_text(
        "from mindspore import nn, ops\nclass Net(nn.Cell):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.relu = nn.ReLU()\n    def construct(self, x):\n        return {call}\n"
    )
    command = [*SERVED, "compile", "net.py:Net()", "--input", "float32[2,2]"]
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    texts: dict[str, list[str]] = {}
    for width in ("", "60"):
        mine, theirs = pty.openpty()
        told = {"COLUMNS": width} if width else {}
        stderr = theirs if width else subprocess.PIPE
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=stderr, env=environment | told, cwd=tmp_path, timeout=HANG
        )
        os.close(theirs)
        text = os.read(mine, 65536).decode() if width else done.stderr.decode()
        os.close(mine)
        assert done.returncode == 2
        texts[width] = text.replace("\r\n", "\n").rpartition("\r")[2].splitlines()
    explained = "explain: mspc explain E0306"
    assert texts[""][1:] == [f"        return {call}".rjust(4 + 8 + 7 + len(call)), " " * 78 + "^" * 21, explained]
    *head, line, carets, last = texts["60"]
    assert last == explained
    assert " ".join(" ".join(head).split()) == texts[""][0]
    assert max(map(len, texts["60"])) <= 60
    assert line[carets.index("^") : len(carets)] == "ops.concat((x, x), 7)"


def test_ranks_of_mpirun_print_as_into_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """mpirun gives them a terminal of its own, and writes to a file what they print."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    print_table(TextTable("title", ("a",), [("b",)]))
    assert "\033[1m" in capsys.readouterr().out
    for name, value in (("SIZE", "2"), ("RANK", "0"), ("LOCAL_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    print_table(TextTable("title", ("a",), [("b",)]))
    assert capsys.readouterr().out == "title\na\nb\n"
