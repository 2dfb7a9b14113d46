"""Numbers of thousands of digits and lists of millions of members are refused at once, wherever a user writes them.

A path that is no file, or a file that asks for too much, is refused at once: nothing waits, nothing is filled.
"""

import io
import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.commands.compile_options import compile_options
from mspc.commands.launch import _cores
from mspc.commands.opt import optimize
from mspc.commands.report.tables import size_text
from mspc.commands.report.verification import print_values
from mspc.commands.search import meshes_of, micro_batches_of, ranks_of, stages_of
from mspc.engine.capture import parse_input
from mspc.engine.ranks.hosts import check_slots, read_host_file, read_hosts
from mspc.engine.ranks.launcher import LaunchJob
from mspc.engine.script import read_script
from mspc.engine.variants import VARIABLE, graphs_to_keep
from mspc.ir.diagnostics import MspcError, excerpt
from mspc.ir.text import fragments
from mspc.ir.text.limits import LONGEST_LIST, number_of
from mspc.mindspore_api.parallel.layout import Layout
from mspc.verify.difference import ComparedValue
from tests.compiled_scripts import CompileOptions, compile_target, run_directory
from tests.errors import error_of
from tests.graphs import REGISTRY, Graph, Node, parse
from tests.serving import invoke
from tests.texts import IMPORTS

LONG = "9" * 5000
ZEROS = "0" * 5000
MOST = 5.0
"""Seconds of a core, several times the usual; a quadratic reader takes longer."""


def sizes_of(text: str) -> Any:
    return compile_options(size=[f"x.0={text}"]).imported.sizes


@pytest.mark.parametrize("read", [ranks_of, meshes_of, stages_of, micro_batches_of, sizes_of, parse_input, read_hosts])
@pytest.mark.parametrize("number", [LONG, f"4,{LONG}", "9" * 30])
def test_a_number_of_an_option_is_refused(read: Callable[[str], Any], number: str) -> None:
    given = {parse_input: f"float32[{number}]", read_hosts: f"a:{number}"}.get(read, number)
    assert len(str(error_of(read, given))) < 1000


def test_leading_zeros_change_no_number() -> None:
    assert ranks_of(f"{ZEROS}4,8") == (4, 8)
    assert meshes_of(f"{ZEROS}4x2") == ("4x2",)
    assert sizes_of(f"{ZEROS}8") == (("x.0", 8),)
    assert parse_input(f"float32[{ZEROS}16,8]").shape == (16, 8)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), (" 7 ", 7), ("8", 8), ("9", None), ("", None), ("-1", None), ("1.0", None), ("²", None), (LONG, None)],
)
def test_number_of(text: str, number: int | None) -> None:
    assert number_of(text, 8) == number


def test_a_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, LONG)
    with pytest.raises(MspcError, match="must be an integer from 1"):
        graphs_to_keep()


def test_many_hosts_take_linear_time(tmp_path: Path) -> None:
    count = 20_000
    (tmp_path / "hosts").write_text("".join(f"host{i} slots=1\n" for i in range(count)))
    begin = time.process_time()
    hosts = read_host_file(tmp_path / "hosts")
    assert hosts == read_hosts(",".join(f"host{i}:1" for i in range(count)))
    job = LaunchJob(("work",), count, tmp_path, tuple(hosts), "worker_{rank}_{local_rank}.log")
    assert [job.log(rank).name for rank in range(count)] == [f"worker_{rank}_0.log" for rank in range(count)]
    assert len(str(error_of(check_slots, hosts, count + 1))) < 1000
    assert time.process_time() - begin < MOST


def test_lists_of_cores_are_bounded() -> None:
    with pytest.raises(MspcError, match="--bind_core"):
        _cores(f'{{"0": {["0-65535"] * 1000}}}', 1)


SOURCE = """subgraph @net() {{
  %0(total) = Unknown(%para1_x) primitive_attrs: {{group: "g", op: "sum", {attributes}rank_list: {ranks}}}
      : ({types}) -> (<Tensor[Float32], (4)>)
  Return(%0)
      : (<Tensor[Float32], (4)>)
}}
"""


@pytest.mark.parametrize(
    ("ranks", "attributes", "types", "message"),
    [
        ("0:100000000:1", "", "", "is no list start:stop:step"),
        (f"0:{LONG}:1", "", "", "unexpected"),
        (f"({', '.join(['0:10000:1'] * 200)})", "", "", "members have more than"),
        ("(0, 1)", ", ".join(f"a{i}: {i}:{i + 1000}:1" for i in range(40)) + ", ", "", "of more than 20000"),
        ("(0, 1)", "", "<Tensor[Float32], (4)>*100000000", "more than 1048576 types"),
        ("(0, 1)", "", ", ".join(["<Tensor[Float32], (4)>*1048576"] * 200), "more than 1048576 types"),
        ("(0, 1)", "", f"<Tensor[Float32], (4)>*{LONG}", "more than"),
        ("(0, 1)", "", f"<Tensor[Float32], ({', '.join(['9' * 18] * 200)})>", "than any memory holds"),
    ],
)
def test_a_text_of_a_graph(
    ranks: str, attributes: str, types: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragments, "MAX_LISTED", 20_000)
    header = "#IR entry      : @net\n#Total params  : 1\n\n%para1_x: <Tensor[Float32], (4)>\n\n"
    text = header + SOURCE.format(ranks=ranks, attributes=attributes, types=types or "<Tensor[Float32], (4)>")
    begin = time.process_time()
    with pytest.raises(MspcError, match=message):
        parse(text, REGISTRY)
    assert time.process_time() - begin < MOST


def test_lists_of_a_file_are_counted_anew_for_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "MAX_LISTED", 20_000)
    header = "#IR entry      : @net\n#Total params  : 1\n\n%para1_x: <Tensor[Float32], (4)>\n\n"
    body = SOURCE.format(ranks="(0, 1)", attributes="a: 0:15000:1, ", types="<Tensor[Float32], (4)>")
    for number in range(3):
        assert parse(header + body.replace("0:15000", f"{number}:{number + 15000}"), REGISTRY).graphs


def test_an_error_at_the_end_of_a_long_line() -> None:
    assert excerpt("x" * 5000, 5001, 5002)[1].endswith("^")


class Wrong(nn.Cell):
    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change = change

    def construct(self, x: Any) -> Any:
        return self.change(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: ops.reshape(x, (10**5000, -1)),
        lambda x: ops.tile(x, (1,) * (LONGEST_LIST + 1)),
        lambda x: x * 10**5000,
        lambda x: [x + i for i in range(10**30)],
        lambda x: [x + i for i in range(10**8)],
    ],
)
def test_a_number_in_a_network(change: Callable[[Any], Any]) -> None:
    assert len(error_of(lambda: Wrong(change)(Tensor(np.ones((4, 4)), ms.float32))).message) < 1000


@pytest.mark.parametrize(
    "make",
    [
        lambda: ops.MatMul().shard(((10**5000, 1), (1, 1))),
        lambda: ops.ReLU().shard(((1,) * 100_000,)),
        lambda: Layout((10**8, 2), ("a", "b")),
        lambda: Layout((1,) * 100_000, tuple(map(str, range(100_000)))),
    ],
)
def test_a_strategy(make: Callable[[], Any]) -> None:
    assert len(error_of(make).message) < 1000


NETWORK = IMPORTS + """

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((4, 4), np.float32)), "w")
        self.matmul = ops.MatMul().shard(((2, 1), (1, 1)))

    def construct(self, x):
        return ops.tanh(self.matmul(x, self.w))
"""
INPUT = ("float32[8,4]",)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A forward network for 2 ranks, all dumps."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "net.py").write_text(NETWORK)
    options = CompileOptions(ranks=2, level=2, out=folder / "out", inputs=INPUT, json=folder / "table.json")
    compile_target(f"{folder / 'net.py'}:Net", options)
    return folder / "out"


@pytest.fixture
def copy(program: Path, tmp_path: Path) -> Path:
    """The same program, to be damaged."""
    shutil.copytree(program, tmp_path / "out")
    return tmp_path / "out"


def dump(folder: Path, name: str) -> Path:
    (found,) = (folder / "rank_0").glob(f"*{name}*.ir")
    return found


def refusal(action: Callable[[], Any]) -> str:
    error = error_of(action)
    assert error.exit_status == 2
    return error.message


def runs(folder: Path, data: Path | None = None) -> None:
    run_directory(folder, data=data, synthetic=data is None, simulate=True)


# Paths that are no files -------------------------------------------------------------------------------


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name may have a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


KINDS = [
    ("{} is a FIFO, not a file", make_fifo),
    ("{} is a socket, not a file", make_socket),
    ("cannot read {}: Is a directory", Path.mkdir),
]


@pytest.mark.parametrize(("message", "make"), KINDS)
def test_opt_reads_files_only(tmp_path: Path, message: str, make: Callable[[Path], None]) -> None:
    path = tmp_path / "graph.ir"
    make(path)
    assert refusal(lambda: optimize(path, "")) == message.format(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_opt_reads_no_device(path: str) -> None:
    assert refusal(lambda: optimize(Path(path), "")) == f"{path} is a device, not a file"


@pytest.mark.parametrize(("message", "make"), KINDS)
@pytest.mark.parametrize("name", ["program.json", "weights.safetensors", "data.npz", "execute"])
def test_run_reads_files_only(copy: Path, message: str, make: Callable[[Path], None], name: str) -> None:
    path = dump(copy, "execute") if name == "execute" else copy / name
    path.unlink(missing_ok=True)
    make(path)
    data = path if name == "data.npz" else None
    assert refusal(lambda: runs(copy, data)) == message.format(path)


@pytest.mark.parametrize(("message", "make"), KINDS)
def test_scripts_are_files(tmp_path: Path, message: str, make: Callable[[Path], None]) -> None:
    path = tmp_path / "net.py"
    make(path)
    assert refusal(lambda: read_script(path)) == message.format(path)


def test_a_text_has_a_size_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "graph.ir"
    path.touch()
    os.truncate(path, 1 << 40)
    message = f"{path} has {1 << 40} bytes; a file of text may have {1 << 28}"
    assert refusal(lambda: optimize(path, "")) == message


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x80abc"])
def test_stdin_that_is_no_text(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert refusal(lambda: optimize(Path("-"), "")).startswith("stdin is not text: ")


# Files that ask for too much ---------------------------------------------------------------------------


def test_countless_members_of_a_group(tmp_path: Path) -> None:
    path = tmp_path / "graph.ir"
    path.write_text(
        "#attrs :\nranks : 1\n%para1_w: <Ref[Tensor[Float32]], (8), ref_key=w>  :  has_default\n\nsubgraph @a() {\n"
        '  %0 = GroupedUpdate(%para1_w) primitive_attrs: {update: "AssignAdd()", count: 999999999}\n'
        "      : (<Tensor[Float32], (8)>) -> (<Tensor[Float32], (8)>)\n"
        "  Return(%0)\n      : (<Tensor[Float32], (8)>)\n}\n"
    )
    assert "GroupedUpdate takes 1999999998 tensors, not 1" in refusal(lambda: optimize(path, "execute"))
    assert "count: 999999999" in optimize(path, "")


@pytest.mark.parametrize("ranks", [10**5, 1 << 20])
def test_countless_ranks_of_a_program(copy: Path, ranks: int) -> None:
    content = json.loads((copy / "program.json").read_text())
    content["ranks"] = ranks
    (copy / "program.json").write_text(json.dumps(content))
    listed = ", ".join(map(str, range(2, 18)))
    assert refusal(lambda: runs(copy)) == f"{copy} holds no graph for ranks {listed} and {ranks - 18} more of {ranks}"


@pytest.mark.parametrize("ranks", [0, -1, True, 100_000_000, 10**30])
def test_a_program_has_ranks(copy: Path, ranks: int) -> None:
    content = json.loads((copy / "program.json").read_text())
    content["ranks"] = ranks
    (copy / "program.json").write_text(json.dumps(content))
    assert refusal(lambda: runs(copy)) == (
        f"{copy / 'program.json'} is damaged: ranks is {ranks}, not a whole number from 1 to 1048576"
    )


@pytest.mark.parametrize("text", ["[" * 100000, '{"a":' * 100000, "9" * 5000, '{"format": 1, "ranks": ' + "9" * 5000])
def test_json_that_no_reader_takes(copy: Path, text: str) -> None:
    (copy / "program.json").write_text(text)
    assert refusal(lambda: runs(copy)).startswith(f"{copy / 'program.json'} is damaged: ")


LARGE = """#attrs :
mode : "stand_alone"
ranks : 2
rank : {rank}
#Total params : 1

%para1_x: <Tensor[Float32], ({rows}, 4)>

subgraph @large() {{
  %0 = Tanh(%para1_x)
      : (<Tensor[Float32], ({rows}, 4)>) -> (<Tensor[Float32], ({rows}, 4)>)
  Return(%0)
      : (<Tensor[Float32], ({rows}, 4)>)
}}
"""


@pytest.mark.parametrize(("rows", "size"), [(8 * 10**12, "119209.3"), (8 * 10**16, "1192092895.5")])
def test_a_program_larger_than_the_machine(copy: Path, rows: int, size: str) -> None:
    for rank in (0, 1):
        (path,) = (copy / f"rank_{rank}").glob("*_execute_*.ir")
        path.write_text(LARGE.format(rank=rank, rows=rows))
    message = f"rank_0/{dump(copy, 'execute').name}: inputs and parameters take {size} GiB, input 'x' alone {size}; "
    assert message in refusal(lambda: runs(copy))


def test_an_array_that_memory_does_not_hold(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> Any:
        raise MemoryError("Unable to allocate 1.00 EiB")

    monkeypatch.setattr("mspc.engine.run_program.synthetic_batches", none_left)
    message = "there is no memory for the inputs and parameters of rank 0: Unable to allocate 1.00 EiB"
    assert refusal(lambda: runs(copy)) == message


def test_a_header_of_the_data_that_asks_for_all_memory(copy: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((8, 4), np.float32))
    content = (tmp_path / "data.npz").read_bytes()
    assert b"(8, 4)" in content
    (tmp_path / "data.npz").write_bytes(content.replace(b"(8, 4), }      ", b"(8, 499999999), "[:15]))
    assert refusal(lambda: runs(copy, tmp_path / "data.npz")).startswith(f"cannot read {tmp_path / 'data.npz'}: ")


# Passes on graphs that do not fit ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "passes", "message"),
    [
        ("step_parallel_end", "slice_to_rank", "pass slice_to_rank needs a graph of all ranks; "),
        ("execute", "propagate_sharding", "pass propagate_sharding needs a graph of all ranks; "),
        ("execute", "check_strategies", "pass check_strategies needs a graph of all ranks; "),
        ("execute", "insert_redistribution", "pass insert_redistribution needs a graph of all ranks; "),
        ("execute", "reduce_gradients", "pass reduce_gradients needs a graph of all ranks; "),
        ("07_insert", "slice_to_rank", "pass slice_to_rank needs collectives; Redistribute is still to become some"),
    ],
)
def test_a_pass_names_what_the_graph_lacks(program: Path, stage: str, passes: str, message: str) -> None:
    assert refusal(lambda: optimize(dump(program, stage), passes)).startswith(message)


def test_an_unexpected_failure_names_pass_and_node(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(step: Any, graph: Graph) -> bool:
        node = next(n for n in graph.nodes if n.op.name == "MatMul")
        assert isinstance(node, Node)
        raise KeyError(7)

    monkeypatch.setattr("mspc.passes.cleanup.simplify.Simplify.run", fails)
    path = dump(program, "01_grad")
    message = f"{path}: pass simplify cannot work on this graph at MatMul 'matmul': KeyError: 7"
    assert refusal(lambda: optimize(path, "simplify")) == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ranks : 2", "ranks : 4", "is of 2 ranks; the header says 4"),
        ("(8, 4)", "(7, 4)", "shards a tensor of shape (7, 4) into slices that are not equal"),
    ],
)
def test_layouts_fit_the_graph(program: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    text = dump(program, "05_propagate").read_text()
    assert old in text
    (tmp_path / "graph.ir").write_text(text.replace(old, new))
    assert message in refusal(lambda: optimize(tmp_path / "graph.ir", "simplify"))


@pytest.mark.parametrize(
    ("option", "shown"), [("rank=foo", "'foo'"), ("rank=true", "True"), ("rank=" + "9" * 5000, f"'{'9' * 59}...")]
)
def test_options_of_passes_have_their_kind(program: Path, option: str, shown: str) -> None:
    message = f"pass slice_to_rank: option rank takes a whole number, not {shown}"
    assert refusal(lambda: optimize(dump(program, "09_fuse"), f"slice_to_rank{{{option}}}")) == message


SCREEN = 50
"""Lines."""
LAYERS = IMPORTS + """
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up = Parameter(Tensor(shape=(16, 32), dtype=ms.float32, init="normal"))
        self.down = Parameter(Tensor(shape=(32, 16), dtype=ms.float32, init="normal"))
        self.first = ops.MatMul().shard(((2, 1), (1, 4)))
        self.relu = ops.ReLU().shard(((2, 4),))
        self.second = ops.MatMul().shard(((2, 4), (4, 1)))
        self.add = ops.Add().shard(((2, 1), (2, 1)))
    def construct(self, x):
        return self.add(self.second(self.relu(self.first(x, self.up)), self.down), x)
class Net(nn.Cell):
    def __init__(self, layers):
        super().__init__()
        self.blocks = nn.CellList([Block() for _ in range(layers)])
    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""


@pytest.fixture
def script(script: Path) -> Path:
    script.write_text(LAYERS)
    return script


def network(script: Path, layers: int) -> list[str]:
    return [f"{script}:Net({layers})", "--input", "float32[8,16]", "--ranks", "8"]


def test_a_compile_fits_a_screen_whatever_the_layers(script: Path) -> None:
    texts = {}
    for layers in (6, 12):
        done = invoke("compile", *network(script, layers), "--json", "table.json", status=0)
        texts[layers] = done.stdout.splitlines()
        report = json.loads(Path("table.json").read_text())
        assert len(report["operators"]) == 4 * layers
        (row,) = [line.split() for line in texts[layers] if line.startswith("*-Block ")]
        assert row[1:4] == [str(layers), str(4 * layers), str(layers + 1)]
        (dearest,) = [line.split() for line in texts[layers] if line.startswith("AllReduce ")]
        assert dearest[2:5] == [str(layers), *size_text(384 * layers).split()]
    assert len(texts[6]) == len(texts[12]) <= SCREEN


def test_all_has_every_row_of_a_compile(script: Path) -> None:
    done = invoke("compile", *network(script, 12), "--all", "--json", "table.json", status=0)
    report = json.loads(Path("table.json").read_text())
    lines = done.stdout.splitlines()
    assert sum(line.startswith("MatMul ") for line in lines) == 24
    assert all(any(line.startswith(f"{row['name']} ") for line in lines) for row in report["parameters"])
    assert sum(line.startswith(("AllReduce ", "AllGather ")) for line in lines) == len(report["collectives"]) == 13


def test_what_fits_a_screen_has_every_row(script: Path) -> None:
    done = invoke("compile", *network(script, 2))
    assert done.stdout == invoke("compile", *network(script, 2), "--all").stdout
    assert len(done.stdout.splitlines()) <= SCREEN


def values(layers: int) -> list[ComparedValue]:
    return [
        ComparedValue(kind, f"layers.{layer}.{name}", (4, 4), 1e-7 * (layer + 1), 1e-5)
        for kind in ("gradient", "parameter")
        for name in ("attention.wq", "norm.gamma", "up.weight", "down.weight")
        for layer in range(layers)
    ]


def test_values_of_verify_by_kind_the_worst_named(capsys: pytest.CaptureFixture[str]) -> None:
    for layers in (6, 60):
        rows = values(layers)
        print_values(rows, "title", all_rows=False)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 10
        assert lines[2].split() == [
            "gradient", "layers.*.attention.wq", str(layers), f"{1e-7 * layers:.1e}", "1e-05", "worst:",
            f"layers.{layers - 1}.attention.wq",
        ]  # fmt: skip
        print_values(rows, "title", all_rows=True)
        assert len(capsys.readouterr().out.splitlines()) == len(rows) + 2


def test_a_value_that_differs_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    excused = ComparedValue("parameter", "head", (), 0.5, 1e-5, excused=True)
    rows = [*values(9), ComparedValue("output", "0", (), 3e-3, 1e-5), excused]
    print_values(rows, "title", all_rows=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["output", "0", "1", "3.0e-03", "1e-05", "1", "differs"]
    assert lines[-1].split() == ["parameter", "head", "1", "5.0e-01", "1e-05", "1", "by", "rounding"]


@pytest.fixture
def two(script: Path) -> Callable[[int], tuple[str, str]]:
    """Compiles of so many layers for 8 and for 16 ranks: their folders."""

    def folders(layers: int) -> tuple[str, str]:
        for ranks in ("8", "16"):
            invoke("compile", *network(script, layers)[:-1], ranks, "--out", f"{layers}_{ranks}", "-q", status=0)
        return f"{layers}_8", f"{layers}_16"

    return folders


def test_diff_and_check_say_what_was_left_out(two: Callable[[int], tuple[str, str]]) -> None:
    first, second = two(6)
    for arguments in (("check", first, "--max-bytes", "1"), ("diff", first, second)):
        short, full = invoke(*arguments), invoke(*arguments, "--all")
        assert short.exit_code == full.exit_code == 1, full.output
        assert "--all shows" in short.stdout
        assert "--all" not in full.stdout
        assert len(short.stdout.splitlines()) < len(full.stdout.splitlines())
        assert short.stdout.splitlines()[-1] == full.stdout.splitlines()[-1]
    assert invoke("diff", first, second, "-q").stdout == f"{first} and {second} differ\n"


def test_limits_that_the_same_collectives_break_list_them_once(script: Path) -> None:
    assert invoke("compile", *network(script, 12), "--out", "graphs", "-q").exit_code == 0
    done = invoke("check", "graphs", "--max-bytes", "1", "--max-collectives", "1", "--max-step", "1us", status=1)
    assert len(done.stdout.splitlines()) <= SCREEN
    assert done.stdout.count("; by the collectives of ") == 2
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("AllReduce ")]
    assert row[2:5] == ["12", *size_text(12 * 384).split()]
